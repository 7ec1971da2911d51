//! Starts processes in new terminals. This blocks like the other starts.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bgd_shared::request::TerminalSize;
use bgd_shared::text::Env;
use nix::errno::Errno;

use super::{Common, InTerminal, Open, announce_to, c_string, describe_error, explain};
use crate::core::SpawnFailure;
use crate::exec::left::StartingIn;
use crate::exec::messages::NewTerminal;
use crate::exec::processes::members::TASK_MARK;
use crate::exec::terminal::launch::{Announcing, LaunchError, LaunchedJob, Leader, LeaderPlan};
use crate::exec::terminal::order::JobOrder;
use crate::keeper::socket::Socket;
use crate::os::descriptors;
use crate::os::pidfd::PidFd;
use crate::os::pty::Pty;
use crate::os::spawn::{ChildStack, Spawned};

/// A terminal in which a process has started, without the output file.
pub(super) struct InNew {
    pty: Pty,
    size: TerminalSize,
    news: OwnedFd,
    job: i32,
    job_handle: PidFd,
}

impl InNew {
    /// Adds the output file.
    pub(super) fn with(self, output: OwnedFd) -> NewTerminal {
        let Self { pty, size, news, job, job_handle } = self;
        NewTerminal { pty, size, output, leader_news: Some(news), job, job_handle }
    }
}

/// The reason why a process could not be started in a terminal.
enum Failed {
    Before(SpawnFailure),
    Birth(LaunchError),
}

impl Common {
    /// Starts a process in a new terminal. It announces itself to the keeper if there is one, with its leader and the
    /// terminal. Returns the leader, the terminal and the keeper that holds them.
    pub(super) fn begin_in_terminal(
        &self,
        job: &InTerminal<'_>,
        streams: &Open,
        cgroup: Option<BorrowedFd<'_>>,
        stack: &mut ChildStack,
    ) -> Result<(Spawned, InNew, Option<Arc<Socket>>), SpawnFailure> {
        let begun = match (&self.settings.keeper, &job.left) {
            (Some(keeper), Some(left)) => {
                let begun = announce_to(keeper, (cgroup, left.cgroup.as_deref()), |socket, cgroup| {
                    self.begin_in_new(job, streams, (cgroup, Some(socket)), stack).map_err(|failed| {
                        let why = match &failed {
                            Failed::Birth(LaunchError::Job(error)) => Some(*error),
                            Failed::Birth(LaunchError::Leader(_)) | Failed::Before(_) => None,
                        };
                        (why, failed)
                    })
                });
                begun.map(|((leader, in_new), socket)| (leader, in_new, Some(socket)))
            }
            (None, _) | (_, None) => self
                .begin_in_new(job, streams, (cgroup, None), stack)
                .map(|(leader, in_new)| (leader, in_new, None)),
        };
        begun.map_err(|failed| match failed {
            Failed::Before(failure) => failure,
            Failed::Birth(LaunchError::Job(error)) => explain(job.spec, error),
            Failed::Birth(LaunchError::Leader(error)) => {
                format!("cannot start the leader of its terminal: {}", describe_error(&error)).into()
            }
        })
    }

    fn begin_in_new(
        &self,
        job: &InTerminal<'_>,
        streams: &Open,
        (cgroup, keeper): (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>),
        stack: &mut ChildStack,
    ) -> Result<(Spawned, InNew), Failed> {
        let InTerminal { task, spec, program, mark, size, left } = job;
        let pty = open_pty(*size).map_err(Failed::Before)?;
        let marks = self.environment(TASK_MARK, *task, &Env::default(), Vec::new());
        let plan = LeaderPlan {
            label: &c_string(task.to_string().as_bytes()),
            env: &marks,
            folder: self.settings.folder.path(),
            rlimits: &self.rlimits(None, *mark),
            reset_signals: &self.reset_signals,
            cgroup,
            null: self.null.as_fd(),
        };
        let leader = Leader::start(&plan, &pty.slave, keeper.is_some(), stack).map_err(Failed::Birth)?;
        let announced = left.as_ref().zip(leader.news()).zip(keeper).map(|((left, leader_news), socket)| {
            let (leader, output) = (leader.process(), &streams.out);
            let terminal = StartingIn { leader, leader_news, pty: &pty, size: *size, output };
            let (message, descriptors) = left.announcement(Some(terminal))?;
            Ok((message, Announcing { socket, descriptors }))
        });
        let announced = announced.transpose().map_err(Failed::Before)?;
        let (announcement, announcing) = announced.unzip();
        let given = streams.not_terminal();
        let limit = |(resource, limit): (i32, libc::rlimit)| (resource, limit.rlim_cur, limit.rlim_max);
        let order = JobOrder {
            programs: program.programs.clone(),
            argv: program.argv.clone(),
            env: program.env.clone(),
            folder: c_string(spec.cwd.as_bytes()),
            umask: spec.umask,
            rlimits: self.rlimits(spec.rlimits.as_deref(), *mark).into_iter().map(limit).collect(),
            given: given.map(|fd| fd.is_some()),
            announcement: announcement.unwrap_or_default(),
        };
        let given: Vec<_> = given.into_iter().flatten().collect();
        let job = leader.start_job(&order, &given, announcing).map_err(Failed::Birth)?;
        let LaunchedJob { leader, news, job, job_handle } = leader.with(job);
        Ok((leader, InNew { pty, size: *size, news, job, job_handle }))
    }
}

fn open_pty(size: TerminalSize) -> Result<Pty, SpawnFailure> {
    let pty =
        Pty::open(size).map_err(|error: io::Error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOSPC) => "all terminals of the system are in use (kernel.pty.max)".to_owned(),
            _ => format!("cannot create its terminal: {}", describe_error(&error)),
        })?;
    if descriptors::are_reserved(&pty.slave, descriptors::User::Task) {
        return Err(descriptors::NONE_LEFT_FOR_TASK.into());
    }
    Ok(pty)
}
