//! Child processes of the tests that are handed over to a daemon (R70).

use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::RpcError;
use bgd_shared::handoff;
use bgd_shared::request::{DetachResult, HandoffParams, HandoffStream, TaskHandoff};
use bgd_shared::task::Task;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::daemon::TestDaemon;
use crate::wait;

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
