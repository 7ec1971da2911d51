//! Checks whether an offered process can be taken over: the pidfd refers to it, it belongs to this user, is alive, and
//! has no owner that forbids it. The checks read `/proc`, so they run on a worker. They change nothing, and close the
//! descriptors of a refused process.

use std::collections::HashMap;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::facts::{self, ExitInfo, PidfdTarget, pidfd_target};
use super::kinds::{Outputs, outputs};
use super::offer::Handoff;
use super::tree::HandedTree;
use crate::exec::host::how_ended;
use crate::exec::processes::ancestry;
use crate::exec::processes::members::{AGENT_MARK, MAX_DEPTH, Stat, TASK_MARK, mark_of};
use crate::os::descriptors;
use crate::os::pidfd::PidFd;

/// A process that can be taken over.
#[derive(Debug)]
pub struct Checked {
    pub pid: i32,
    /// The received pidfd.
    pub pidfd: PidFd,
    pub tree: HandedTree,
    pub argv: Vec<OsText>,
    pub cwd: OsText,
    pub started_at: Timestamp,
}

/// The pids of processes that were taken over and have not ended, with their tasks.
#[derive(Debug, Default)]
pub struct Leaders(pub HashMap<i32, TaskId>);

/// Checks an offered process and its descriptors, and finds out where its output goes.
///
/// # Errors
/// Explains why it can't be taken over. All received descriptors are closed then.
pub fn check(
    handoff: Handoff,
    client: Option<i32>,
    leaders: &Leaders,
) -> Result<(Checked, Outputs), RpcError> {
    let Handoff { params, pidfd, streams } = handoff;
    let pid = params.pid;
    if descriptors::are_reserved(&pidfd, descriptors::User::Task) {
        return Err(internal(descriptors::NONE_LEFT));
    }
    let is_alive = names(pid, &pidfd)?;
    let pidfd = PidFd::from(pidfd);
    if !is_alive {
        return Err(already_finished(pid, &pidfd));
    }
    let users = facts::users(pid);
    let now = Timestamp::now();
    let argv = params.argv.unwrap_or_else(|| facts::command(pid));
    let cwd = facts::folder(pid);
    let started_at = params.started_at.or_else(|| facts::started_at(pid)).unwrap_or(now).min(now);
    let is_kernel_thread = facts::is_kernel_thread(pid);
    let owner = owner(pid, leaders);
    let may_hand_over = ancestry::may_hand_over(client, pid);
    // Data read by pid is about this process only if it has not ended until now.
    let has_ended = pidfd.has_ended();
    check_user(pid, users, has_ended)?;
    if has_ended {
        return Err(already_finished(pid, &pidfd));
    }
    if is_kernel_thread {
        return Err(invalid(format!("process {pid} belongs to the system")));
    }
    if crate::exec::processes::members::ancestors_of(std::process::id().cast_signed()).contains(&pid) {
        return Err(invalid(format!("process {pid} is the daemon itself, or one that it runs under")));
    }
    if let Some(owner) = owner {
        return Err(owner.refuse(pid));
    }
    may_hand_over?;
    let outputs = outputs(streams)?;
    let handle = pidfd.try_clone().map_err(|_| internal(descriptors::NONE_LEFT))?;
    let tree = HandedTree::new(pid, handle);
    Ok((Checked { pid, pidfd, tree, argv, cwd, started_at }, outputs))
}

/// Reports whether the descriptor is a pidfd of this process; false if the process has ended and was reaped.
fn names(pid: i32, pidfd: &std::os::fd::OwnedFd) -> Result<bool, RpcError> {
    let not = |what: &str| invalid(format!("descriptor 0 is {what}; it must be a pidfd of process {pid}"));
    match pidfd_target(pidfd).map_err(|error| internal(&format!("/proc can't be read: {error}")))? {
        PidfdTarget::Process(named) if named == pid => Ok(true),
        PidfdTarget::Gone => Ok(false),
        PidfdTarget::Process(named) => Err(not(&format!("a pidfd of process {named}"))),
        PidfdTarget::Nothing => Err(not("not a pidfd").hint("pidfd_open(2) makes one")),
        PidfdTarget::Thread => {
            Err(not("a handle to a thread (PIDFD_THREAD)").hint("open it without that flag"))
        }
        PidfdTarget::Elsewhere => Err(not("a pidfd of a process that the daemon can't see")
            .hint("it is in another pid namespace, such as that of a container")),
    }
}

fn check_user(pid: i32, users: Option<[u32; 4]>, has_ended: bool) -> Result<(), RpcError> {
    let me = nix::unistd::Uid::effective().as_raw();
    let stranger = match users {
        Some(users) => users.into_iter().find(|user| *user != me).map(|user| format!("runs as user {user}")),
        None if has_ended => None,
        None => Some("can't be examined".to_owned()),
    };
    match stranger {
        None => Ok(()),
        Some(what) => {
            let message = format!("process {pid} {what}, but the daemon belongs to user {me}");
            Err(RpcError::new(ErrorKind::ForeignProcess, message)
                .hint("hand it over to the daemon of its own user"))
        }
    }
}

/// Returns the error for a process that ended before it was taken over (R66).
fn already_finished(pid: i32, pidfd: &PidFd) -> RpcError {
    let exit = match (pidfd.exit_info(), facts::remains(pid, pidfd)) {
        (Ok(Some(exit)), _) | (_, ExitInfo::Exit(exit)) => Some(exit),
        _ => None,
    };
    let how = match exit {
        Some(exit @ (Exit::Code(_) | Exit::Signal(_))) => format!(": it {}", how_ended(&exit)),
        Some(Exit::Unknown(_)) | None => String::new(),
    };
    RpcError::new(ErrorKind::AlreadyFinished, format!("process {pid} has already ended{how}"))
        .hint("no task was created; its parent still gets the result")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Task(TaskId),
    Agent,
    Daemon,
}

impl Owner {
    fn refuse(self, pid: i32) -> RpcError {
        match self {
            Self::Task(task) => invalid(format!("process {pid} already belongs to task {task}")),
            Self::Agent => invalid(format!("process {pid} belongs to an agent that the daemon runs")),
            Self::Daemon => invalid(format!("process {pid} descends from the daemon")),
        }
    }
}

/// Returns the current owner of a process: the process descends from a leader, is in the session or group of a leader,
/// or descends from the daemon, like every process that it started.
fn owner(pid: i32, leaders: &Leaders) -> Option<Owner> {
    let me = std::process::id().cast_signed();
    let mut marked = None;
    let mut current = pid;
    for _ in 0..MAX_DEPTH {
        let stat = Stat::of(current)?;
        if let Some(task) = [current, stat.group, stat.session].iter().find_map(|id| leaders.0.get(id)) {
            return Some(Owner::Task(*task));
        }
        marked = marked.or_else(|| {
            let task = mark_of(current, TASK_MARK).and_then(|id| id.parse().ok()).map(Owner::Task);
            task.or_else(|| mark_of(current, AGENT_MARK).map(|_| Owner::Agent))
        });
        if stat.parent == me {
            return Some(marked.unwrap_or(Owner::Daemon));
        }
        if stat.parent <= 1 {
            return None;
        }
        current = stat.parent;
    }
    None
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

fn internal(message: &str) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("the process can't be taken over: {message}"))
}
