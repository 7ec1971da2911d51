//! Hands a running child over to the daemon (R70), for programs that started it themselves.
//!
//! ```no_run
//! use std::os::fd::AsFd as _;
//! use std::process::{Command, Stdio};
//!
//! use bgd_shared::client::Client;
//! use bgd_shared::handoff::hand_over;
//! use bgd_shared::request::HandoffStream;
//! use bgd_shared::socket::SocketPath;
//!
//! let mut child = Command::new("make").stdout(Stdio::piped()).spawn()?;
//! // … show its output until the user moves it to the background …
//! let mut client = Client::connect(&SocketPath::from_env()?)?;
//! let out = child.stdout.take().ok_or("it has no output")?;
//! let given = hand_over(&mut client, &child, "make", &[(HandoffStream::Stdout, out.as_fd())])?;
//! println!("{}", given.message);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Once the call is made, only the daemon may read from the descriptors, so the caller must not continue reading
//! through a buffered reader either. Data that the caller has already read is the caller's to show. If the daemon refuses
//! the call, nothing has changed; `already_finished` means that the child ended first (R66). If the connection breaks
//! before the answer, the daemon may have the child: `task.list` shows it by its `pid`.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::client::{Client, ClientError};
use crate::id::TaskId;
use crate::request::{
    DetachResult, ExitParams, HandoffParams, HandoffStream, OriginKind, TaskExit, TaskHandoff,
};
use crate::task::{Exit, Task};

/// Returns a pidfd of a child that has not been waited for yet, so that its pid can't have been reused.
///
/// # Errors
/// The kernel is older than Linux 5.3, or no descriptors are left.
pub fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a process id"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns params with only the pid of a child and a description.
pub fn params(child: &Child, description: &str) -> HandoffParams {
    HandoffParams {
        pid: child.id().cast_signed(),
        description: description.to_owned(),
        argv: None,
        started_at: None,
        session: None,
        channel: None,
        terminal: None,
        tags: Vec::new(),
        streams: Vec::new(),
        origin_kind: OriginKind::Tool,
    }
}

/// Hands over a child with the descriptors of its output. The caller's copies stay open; close them afterwards.
///
/// # Errors
/// The daemon's refusal, or a broken connection. The caller still owns the child then, unless only the answer was lost:
/// `task.list` shows whether it was.
pub fn hand_over(
    client: &mut Client,
    child: &Child,
    description: &str,
    streams: &[(HandoffStream, BorrowedFd<'_>)],
) -> Result<DetachResult, ClientError> {
    hand_over_as(client, child, params(child, description), streams)
}

/// Like [`hand_over`], with further params. `streams` replaces those in `params`.
///
/// # Errors
/// As for [`hand_over`].
pub fn hand_over_as(
    client: &mut Client,
    child: &Child,
    params: HandoffParams,
    streams: &[(HandoffStream, BorrowedFd<'_>)],
) -> Result<DetachResult, ClientError> {
    let pidfd = pidfd(child)?;
    let params = HandoffParams { streams: streams.iter().map(|(kind, _)| *kind).collect(), ..params };
    let fds: Vec<_> = std::iter::once(pidfd.as_fd()).chain(streams.iter().map(|(_, fd)| *fd)).collect();
    client.call_with_fds::<TaskHandoff>(&params, &fds)
}

/// Reports to the daemon how a handed-over child ended, for the parent that has waited for it. Only useful before Linux
/// 6.15, over the connection that handed the child over, within 5 seconds of its end.
///
/// # Errors
/// The daemon's refusal, or a broken connection.
pub fn report_exit(client: &mut Client, task: TaskId, status: ExitStatus) -> Result<Task, ClientError> {
    let params = ExitParams { id: task.into(), exit: exit_of(status) };
    client.call::<TaskExit>(&params).map(|result| result.task)
}

/// Converts an exit status to its wire type.
pub fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown(status.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn exit_status_is_converted_exactly() {
        let run = |line: &str| Command::new("/bin/sh").args(["-c", line]).status().unwrap();
        assert_eq!(exit_of(run("exit 0")), Exit::Code(0));
        assert_eq!(exit_of(run("exit 255")), Exit::Code(255));
        assert_eq!(exit_of(run("kill -9 $$")), Exit::Signal(9));
    }

    #[test]
    fn running_child_has_a_pidfd_and_its_pid_survives_wait() {
        let mut child = Command::new("true").spawn().unwrap();
        assert!(pidfd(&child).is_ok());
        child.wait().unwrap();
        assert_eq!(params(&child, "x").pid, child.id().cast_signed());
    }
}
