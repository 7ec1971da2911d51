//! Child processes of the tests that are handed over to a daemon (R70).

use std::io::{self, PipeReader, PipeWriter, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::RpcError;
use bgd_shared::handoff;
use bgd_shared::id::TaskId;
use bgd_shared::request::{DetachResult, HandoffParams, HandoffStream, TaskHandoff};
use bgd_shared::task::Task;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::daemon::TestDaemon;
use crate::wait;

/// Starts a shell command in a terminal and hands it over.
const IN_TERMINAL: &str = "import json, os, pty, socket, sys
pid, master = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', sys.argv[1]])
params = {'pid': pid, 'description': 'in a terminal', 'streams': ['pty']}
call = {'jsonrpc': '2.0', 'id': 1, 'method': 'task.handoff', 'params': params}
daemon = socket.socket(socket.AF_UNIX)
daemon.connect(os.environ['BGD_SOCKET'])
socket.send_fds(daemon, [json.dumps(call).encode() + b'\\n'], [os.pidfd_open(pid), master])
print(json.loads(daemon.makefile().readline())['result']['task']['id'], flush=True)
os.close(master)
sys.stdin.readline()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)";

/// A child of this process with its standard input and a handle to it.
#[derive(Debug)]
pub struct Job {
    /// A child that has not been reaped.
    pub child: Child,
    pub pidfd: OwnedFd,
}

/// Ends the job, which only a failed test leaves running.
impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Job {
    /// Starts a command in the home of a daemon, so that the harness notices if it is left behind.
    #[track_caller]
    pub fn start(daemon: &TestDaemon, command: &mut Command) -> Self {
        let child = command.current_dir(daemon.home()).stdin(Stdio::piped()).spawn();
        Self::of(child.expect("a command can be run"))
    }

    /// Wraps a child that has not been reaped.
    #[track_caller]
    pub fn of(child: Child) -> Self {
        let pidfd = handoff::pidfd(&child).expect("a child that nobody has waited for");
        Self { child, pidfd }
    }

    /// Starts a shell command with stdout and stderr in one pipe.
    #[track_caller]
    pub fn shell(daemon: &TestDaemon, line: &str) -> (Self, PipeReader) {
        Self::piped(daemon, Command::new("/bin/sh").args(["-c", line]))
    }

    /// Starts a command with stdout and stderr in one pipe.
    #[track_caller]
    pub fn piped(daemon: &TestDaemon, command: &mut Command) -> (Self, PipeReader) {
        let (reader, writer) = io::pipe().expect("a pipe");
        command.stderr(writer.try_clone().expect("a copy")).stdout(writer);
        let job = Self::start(daemon, command);
        // Otherwise the command would keep the write end open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        (job, reader)
    }

    /// Starts a shell command in a terminal, and hands it over. Returns its parent, a program that waits for a line
    /// before it prints the command's exit code.
    #[track_caller]
    pub fn in_terminal(daemon: &TestDaemon, line: &str) -> (Self, PipeReader, TaskId) {
        let mut command = Command::new("python3");
        command.args(["-c", IN_TERMINAL, line]).env_clear().envs(daemon.environment());
        let (job, mut said) = Self::piped(daemon, &mut command);
        let id = line_of(&mut said).parse().expect("the id of a task");
        (job, said, id)
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Returns the params of a handoff of this job.
    pub fn params(&self) -> HandoffParams {
        handoff::params(&self.child, "a job")
    }

    /// Hands the job over with these output streams.
    #[track_caller]
    pub fn hand_over(&self, client: &mut Client, streams: &[(HandoffStream, BorrowedFd<'_>)]) -> Task {
        let given = self.offer(client, streams).expect("task.handoff");
        assert_eq!(given.message, message(&given.task));
        given.task
    }

    /// Hands the job over with the pipe that is its output.
    #[track_caller]
    pub fn hand_over_pipe(&self, daemon: &TestDaemon, pipe: &impl AsFd) -> Task {
        self.hand_over(&mut daemon.client(), &[(HandoffStream::Stdout, pipe.as_fd())])
    }

    /// Like [`Job::hand_over`], where the daemon may refuse.
    pub fn offer(
        &self,
        client: &mut Client,
        streams: &[(HandoffStream, BorrowedFd<'_>)],
    ) -> Result<DetachResult, ClientError> {
        handoff::hand_over(client, &self.child, "a job", streams)
    }

    /// Writes a line to the child's standard input.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a standard input");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("somebody who reads it");
    }

    /// Waits until the child is dead, without reaping it: only its parent may do that.
    #[track_caller]
    pub fn wait_dead(&self) {
        assert!(wait::readable(self.pidfd.as_fd(), wait::PATIENCE), "{self:?} does not die");
    }

    /// Reaps the child, as its parent. Closes its standard input.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }
}

/// Returns the sentence of R61.
pub fn message(task: &Task) -> String {
    format!("Command was manually backgrounded by user with ID {}", task.id)
}

/// Offers a handoff with these params and descriptors, which must be refused.
#[track_caller]
pub fn refused(client: &mut Client, params: &HandoffParams, fds: &[BorrowedFd<'_>]) -> RpcError {
    match client.call_with_fds::<TaskHandoff>(params, fds) {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("{params:?} is not refused: {other:?}"),
    }
}

/// Hands over a shell that writes `first` and exits with 3. Returns its task, which has ended, and the pipe that is its
/// output: a process outside its tree, this one, still has it open.
#[track_caller]
pub fn ended_with_open_pipe(daemon: &TestDaemon) -> (TaskId, PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut command = Command::new("sh");
    command.args(["-c", "read go; echo first; exit 3"]).stdout(writer.try_clone().expect("a copy"));
    let mut job = Job::start(daemon, &mut command);
    drop(command);
    let id = job.hand_over_pipe(daemon, &reader).id;
    drop(reader);
    job.say("go");
    job.wait_dead();
    job.wait();
    daemon.block(&[id]);
    (id, writer)
}

/// Opens a pidfd for a process.
#[track_caller]
pub fn pidfd_of(pid: i32) -> OwnedFd {
    let pid = Pid::from_raw(pid).expect("a number of a process");
    pidfd_open(pid, PidfdFlags::empty()).expect("a process that is there")
}

/// Reads a line byte by byte, so that nothing after it is consumed.
#[track_caller]
pub fn line_of(reader: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while reader.read(&mut byte).expect("a pipe can be read") > 0 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}
