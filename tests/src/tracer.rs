//! A debugger that only stops processes: nothing else makes a stopped process continue, whatever signal it gets. Needs
//! root, as no other program of a user may inspect bgd.

use std::io::BufReader;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::process::Process;
use crate::user::must_be_root;
use crate::wait;

/// Stops the process, or each of its threads when it starts another process, and reports that. Ends at the end of its
/// input, which lets everything continue.
const DEBUGGER: &str = r#"
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ptrace.restype = ctypes.c_long
SEIZE, INTERRUPT, EVENT_MESSAGE, TRACE_VFORK, EVENT_VFORK, WALL = 0x4206, 0x4207, 0x4201, 4, 2, 0x40000000
def do(request, pid, data=None):
    if ptrace(request, pid, None, data) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
what, *ids = sys.argv[1:]
for pid in map(int, ids):
    do(SEIZE, pid, TRACE_VFORK if what == "births" else None)
    if what == "stop":
        do(INTERRUPT, pid)
        os.waitpid(pid, WALL)
print("ready", flush=True)
while what == "births":
    pid, status = os.waitpid(-1, WALL)
    if status >> 16 == EVENT_VFORK:
        born = ctypes.c_ulong()
        do(EVENT_MESSAGE, pid, ctypes.byref(born))
        print(born.value, flush=True)
        break
sys.stdin.read()
"#;

/// A running debugger. Dropping it lets the stopped processes continue.
#[derive(Debug)]
pub struct Tracer {
    debugger: Child,
    says: BufReader<ChildStdout>,
}

impl Tracer {
    /// Stops a process.
    #[track_caller]
    pub fn stop(process: &Process) -> Self {
        Self::start("stop", &[process.pid()])
    }

    /// Stops the next process that a daemon starts, before its first step. If the daemon is killed then, that process
    /// does not end.
    #[track_caller]
    pub fn at_birth(daemon: &Process) -> Self {
        let spawners = ["spawner-0", "spawner-1"].map(|name| daemon.thread(name));
        Self::start("births", &spawners)
    }

    #[track_caller]
    fn start(what: &str, ids: &[i32]) -> Self {
        must_be_root();
        let mut command = Command::new("python3");
        command.args(["-c", DEBUGGER, what]).args(ids.iter().map(i32::to_string));
        let mut debugger = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let says = BufReader::new(debugger.stdout.take().expect("a pipe"));
        let mut this = Self { debugger, says };
        assert_eq!(this.line(), "ready");
        this
    }

    #[track_caller]
    fn line(&mut self) -> String {
        wait::next_line(&mut self.says)
    }

    /// Waits for the process that is stopped at its start.
    #[track_caller]
    pub fn born(&mut self) -> Process {
        let pid = self.line().parse().expect("a pid");
        Process::open(pid).expect("it has stopped")
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.debugger.stdin.take());
        let _ = self.debugger.wait();
    }
}
