//! R70, R62: handing over child processes that run in terminals of other programs or write to files.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    ClearParams, HandoffStream, IdParams, OutputParams, TaskClear, TaskGet, TaskOutput,
};
use bgd_shared::task::{Exit, Status};
use bgd_tests::handed::{Job, line_of};
use bgd_tests::{Process, Terminal, TestDaemon, wait};

/// Starts a command in its own terminal, copies the given number of bytes of its output to a file, hands it over and
/// closes the terminal. On the input `die` it then kills itself; on any other line it waits for its child and prints
/// the exit code.
const PARENT: &str = r#"
import fcntl, json, os, pty, signal, socket, struct, sys, termios
rows, cols, shown = map(int, sys.argv[1:4])
pid, master = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    os.execvp(sys.argv[4], sys.argv[4:])
with open("foreground", "wb") as foreground:
    while shown > 0:
        part = os.read(master, min(shown, 65536))
        foreground.write(part)
        shown -= len(part)
params = {"pid": pid, "description": "in a terminal", "streams": ["pty"]}
call = {"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params}
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(os.environ["BGD_SOCKET"])
    socket.send_fds(daemon, [json.dumps(call).encode() + b"\n"], [os.pidfd_open(pid), master])
    print(json.loads(daemon.makefile().readline())["result"]["task"]["id"], flush=True)
os.close(master)
if sys.stdin.readline() == "die\n":
    os.kill(os.getpid(), signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"#;

/// Prints its input and the size of its terminal. A thread waits for SIGWINCH, because a handler beside a read misses a
/// signal that arrives just before the read.
const TALK: &str = r#"
import os, signal, sys, threading
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
def sizes():
    while signal.sigwait(changed):
        say("size", *reversed(os.get_terminal_size()))
changed = {signal.SIGWINCH}
signal.pthread_sigmask(signal.SIG_BLOCK, changed)
threading.Thread(target=sizes, daemon=True).start()
say("up")
for line in sys.stdin:
    if line == "end\n":
        sys.exit(9)
    say("got", line.strip())
"#;

/// Returns a program that has handed over a job in a terminal of this size, its remaining output, and the task.
#[track_caller]
fn in_terminal(
    daemon: &TestDaemon,
    size: (u16, u16),
    shown: usize,
    command: &[&str],
) -> (Job, impl std::io::Read + use<>, TaskId) {
    let mut parent = Command::new("python3");
    let numbers = [usize::from(size.0), usize::from(size.1), shown].map(|number| number.to_string());
    parent.args(["-c", PARENT]).args(numbers).args(command).env_clear().envs(daemon.environment());
    let (job, mut said) = Job::piped(daemon, &mut parent);
    let id = line_of(&mut said).parse().expect("the id of a task");
    (job, said, id)
}

#[test]
fn r70_handed_over_terminal_job_can_be_attached() {
    let daemon = TestDaemon::start();
    for last_word in ["die", "wait"] {
        let python = ["python3", "-c", TALK];
        let (mut parent, mut said, id) = in_terminal(&daemon, (30, 100), "up\r\n".len(), &python);
        parent.say(last_word);
        if last_word == "die" {
            parent.wait_dead();
        }
        let task = daemon.client().call::<TaskGet>(&IdParams { id: id.into() }).unwrap().task;
        assert!(task.pty && !task.foreground);
        let mut terminal = Terminal::bgctl(&daemon, &["attach", &id.to_string()]);
        // The smaller size wins, and the job is notified.
        terminal.wait_text("size 24 80");
        terminal.type_line("hello");
        terminal.wait_text("got hello");
        terminal.resize((20, 60));
        terminal.wait_text("size 20 60");
        terminal.type_line("end");
        assert_eq!(terminal.ended().code(), Some(9), "{terminal:?}");
        let ended = daemon.block(&[id]).remove(0);
        assert_eq!((ended.status, ended.exit), (Status::Failed, Some(Exit::Code(9))));
        let output = "size 24 80\r\nhello\r\ngot hello\r\nsize 20 60\r\nend\r\n";
        assert_eq!(String::from_utf8_lossy(&daemon.output(id)), output);
        assert_eq!(ended.output.bytes, output.len() as u64);
        if last_word == "wait" {
            assert_eq!(line_of(&mut said), "9", "its parent has it, too");
        }
    }
}

#[test]
fn r62_terminal_handoff_neither_loses_nor_repeats_output() {
    let daemon = TestDaemon::start();
    // More than fits into a terminal, so that the job cannot end before it is handed over. It ends right after its last
    // byte.
    for (bytes, behind) in [(16 << 20, 3_000_123)].into_iter().chain([(200_000, 12_345); 10]) {
        let line = format!("stty -opost; seq 1 100000000 2>/dev/null | head -c {bytes}; exit 3");
        let (mut parent, _said, id) = in_terminal(&daemon, (24, 80), behind, &["sh", "-c", &line]);
        parent.say("wait");
        let ended = daemon.block(&[id]).remove(0);
        let rest = u64::try_from(bytes - behind).unwrap();
        assert_eq!((ended.exit, ended.output.bytes), (Some(Exit::Code(3)), rest));
        let mut whole = fs::read(daemon.home().join("foreground")).unwrap();
        assert_eq!(whole.len(), behind);
        whole.extend(daemon.output(id));
        let seq = Command::new("seq").args(["1", "10000000"]).stdout(Stdio::piped()).spawn();
        let mut seq = Kill(seq.unwrap());
        let mut wanted = vec![0; bytes];
        seq.0.stdout.take().unwrap().read_exact(&mut wanted).unwrap();
        let differs = whole.iter().zip(&wanted).position(|(one, other)| one != other);
        assert_eq!((differs, whole.len()), (None, bytes), "other bytes than were written");
    }
}

/// A program whose output need not be read to its end.
struct Kill(std::process::Child);

impl Drop for Kill {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn r70_terminal_without_size_gets_default_size_and_closes_with_its_task() {
    let daemon = TestDaemon::start();
    let line = "setsid sh -c 'trap \"\" HUP; exec sleep 1000' & echo $! >pid; echo up; trap '' HUP; wait";
    let (mut parent, mut said, id) = in_terminal(&daemon, (0, 0), "up\r\n".len(), &["sh", "-c", line]);
    let pid = fs::read_to_string(daemon.home().join("pid")).unwrap().trim().parse().unwrap();
    let grandchild = Process::open(pid).unwrap();
    let job = daemon.client().call::<TaskGet>(&IdParams { id: id.into() }).unwrap().task.pid.unwrap();
    let tty = fs::read_link(format!("/proc/{job}/fd/0")).unwrap();
    let stty = Command::new("stty").arg("size").stdin(File::open(tty).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&stty.stdout), "24 80\n");
    let terminals = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
        let names = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        names.filter(|name| name.to_string_lossy().starts_with("/dev/pt")).collect::<Vec<_>>()
    };
    let open = terminals();
    assert_eq!(open.len(), 2, "a master, and the processes' side of it: {open:?}");
    daemon.run(&["cancel", "--grace", "0", &id.to_string()]).success();
    grandchild.gone();
    assert_eq!(daemon.block(&[id]).remove(0).status, Status::Cancelled);
    parent.say("wait");
    let code = line_of(&mut said);
    assert!(matches!(&*code, "-15" | "-9"), "{code}");
    // A thread closes the terminal, and no event reports when.
    wait::poll_until("the end of the daemon's terminals", || terminals().is_empty().then_some(()));
}

/// Returns the path where the daemon would keep the output of a task.
fn own_file(daemon: &TestDaemon, id: TaskId) -> PathBuf {
    let other = daemon.submit(&["true"]);
    let path = daemon.block(&[other]).remove(0).output.path;
    Path::new(&path).with_file_name(format!("{id}.out"))
}

fn over_the_wire(daemon: &TestDaemon, id: TaskId) -> String {
    let params = OutputParams { id: id.into(), offset: None, limit: None, stream: None };
    daemon.client().call::<TaskOutput>(&params).unwrap().data
}

#[test]
fn r70_handed_over_output_file_is_read_in_place_and_left_alone() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start();
    let path = daemon.home().join("log");
    fs::write(&path, "before\n").unwrap();
    let file = File::options().append(true).open(&path).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "read x; echo one; read x; echo two; head -c 3000000 /dev/zero; exit 5"]);
    command.stdout(file.try_clone().unwrap());
    let mut job = Job::start(&daemon, &mut command);
    let mut watch = daemon.watch();
    let task = job.hand_over(&mut daemon.client(), &[(HandoffStream::File, file.as_fd())]);
    assert_eq!(Path::new(&task.output.path), fs::canonicalize(&path).unwrap());
    assert_eq!((task.output.stderr_path, task.pty), (None, false));
    let id = task.id.to_string();
    assert_eq!(over_the_wire(&daemon, task.id), "before\n");
    job.say("go on");
    watch.until(|event| event.kind == EventKind::Output && event.task.output.bytes == 11);
    let now = daemon.client().call::<TaskGet>(&IdParams { id: task.id.into() }).unwrap().task;
    assert_eq!((now.progress.last_line.as_deref(), now.output.bytes), (Some("one"), 11));
    assert_eq!(daemon.run(&["output", &id]).success().stdout_text(), "before\none\n");
    assert_eq!(daemon.run(&["output", "--tail", "1", &id]).success().stdout_text(), "one\n");
    job.say("go on");
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.exit), (Status::Failed, Some(Exit::Code(5))));
    // The file belongs to the program, so it may grow without limit, and it remains.
    assert_eq!((ended.output.bytes, ended.output.dropped_bytes), (3_000_015, 0));
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.len() == 3_000_015 && meta.blocks() * 512 >= 3_000_000, "{meta:?}");
    assert!(!own_file(&daemon, task.id).exists(), "nothing is kept of it elsewhere");
    let params = ClearParams { ids: Some(vec![task.id.into()]), ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&params).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..15], *b"before\none\ntwo\n");
}

#[test]
fn r70_quiet_output_file_is_not_polled_after_another_output_has_grown() {
    let daemon = TestDaemon::start();
    let file = File::create(daemon.home().join("log")).unwrap();
    let mut command = Command::new("sh");
    let mut job = Job::start(&daemon, command.args(["-c", "read x"]).stdout(file.try_clone().unwrap()));
    let task = job.hand_over(&mut daemon.client(), &[(HandoffStream::File, file.as_fd())]);
    let other = daemon.submit_shell("echo something");
    daemon.block(&[other]);
    // A look at files takes place four times a second, if at all.
    let mut last = (daemon.process().switches(), Instant::now());
    wait::poll_until("a second in which the daemon sleeps", || {
        let now = daemon.process().switches();
        if now != last.0 {
            last = (now, Instant::now());
        }
        (last.1.elapsed() >= Duration::from_secs(1)).then_some(())
    });
    job.say("go on");
    assert_eq!(daemon.block(&[task.id]).remove(0).status, Status::Completed);
}

#[test]
fn r70_removed_output_file_is_named_in_error() {
    let daemon = TestDaemon::start();
    let path = daemon.home().join("log");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(b"something\n").unwrap();
    let mut command = Command::new("sh");
    let mut job = Job::start(&daemon, command.args(["-c", "read x"]).stdout(file.try_clone().unwrap()));
    let task = job.hand_over(&mut daemon.client(), &[(HandoffStream::File, file.as_fd())]);
    fs::remove_file(&path).unwrap();
    let failure = daemon.run(&["output", &task.id.to_string()]);
    assert!(failure.stderr.contains(&*path.to_string_lossy()), "{failure:?}");
    // A FIFO in its place must not block the reader.
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let failure = daemon.run(&["--json", "output", &task.id.to_string()]).expect_code(70);
    assert!(failure.stderr.contains(&*path.to_string_lossy()), "{failure:?}");
    // A list reads the outputs for progress, and needs none of them.
    let listed = daemon.run(&["list", "--columns", "id,progress"]).success().stdout_text();
    assert!(listed.contains(&task.id.short()), "{listed}");
    job.say("go on");
    assert_eq!(daemon.block(&[task.id]).remove(0).status, Status::Completed);
}
