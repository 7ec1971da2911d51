//! Helpers: processes that the daemon needs for its own work, for agents and hooks. The local executor starts, watches
//! and ends them like those of tasks, so that the same rules keep their trees together. This module requests them and
//! waits for them, on any thread.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::context::Context;
pub use super::helper::{Alive, Life, Purpose, Watcher};
use super::messages::{Report, Reports, StartOrder, Streams};
use super::processes::members::TASK_MARK;
pub use crate::core::SIGTERM;
use crate::core::{Spec, Work};
use crate::os::pidfd::PidFd;
pub use crate::os::pidfd::SIGKILL;

/// The run number of every helper: each is started once.
pub const RUN: u32 = 1;

/// How to start a helper.
#[derive(Debug)]
pub struct Launch {
    /// The program with its arguments.
    pub argv: Vec<OsText>,
    pub cwd: OsText,
    pub env: Env,
    /// The task that it works for, if there is exactly one.
    pub task: Option<TaskId>,
    /// The spec to take the umask and the resource limits from.
    pub like: Arc<Spec>,
    /// Standard input, output and error.
    pub streams: [OwnedFd; 3],
}

impl Launch {
    /// Returns how to start a helper of the daemon itself, which works for no particular task, in the root folder.
    pub fn of_daemon(argv: Vec<OsText>, env: Env, streams: [OwnedFd; 3]) -> Self {
        Self { argv, cwd: "/".into(), env, task: None, like: Arc::new(Spec::of_daemon()), streams }
    }
}

/// Starts helpers.
#[derive(Clone, Debug)]
pub struct Host {
    reports: Reports,
    purpose: Purpose,
}

/// A running helper. Dropping this ends nothing.
#[derive(Clone, Debug)]
pub struct Process {
    id: TaskId,
    pub pid: i32,
    handle: Arc<Option<PidFd>>,
    life: watch::Receiver<Life>,
    reports: Reports,
}

impl Host {
    /// Creates a host whose processes are started by the dispatcher's thread.
    pub fn new(reports: Reports, purpose: Purpose) -> Self {
        Self { reports, purpose }
    }

    /// Kills the processes with the same purpose that were carried over an upgrade and not reclaimed.
    pub fn end_rest(&self, context: &Context) {
        for process in context.helpers.take_unclaimed(self.purpose) {
            self.reports.send(Report::EndHelper { process, signal: SIGKILL });
        }
    }

    /// Starts a process.
    ///
    /// # Errors
    /// Explains to humans why it could not be started.
    pub async fn start(&self, launch: Launch) -> Result<Process, Box<str>> {
        let Launch { argv, cwd, env, task, like, streams } = launch;
        // The submitter may itself be a process of a task; the helper does not belong to that task.
        let others = env.0.iter().filter(|(name, _)| &**name != TASK_MARK).cloned();
        let own = task.map(|task| (TASK_MARK.into(), task.to_string().as_str().into()));
        let env = Arc::new(others.chain(own).collect());
        let spec = Spec {
            work: Work::Argv(argv.into()),
            cwd: Arc::new(cwd),
            umask: like.umask,
            rlimits: like.rlimits.clone(),
            ..Spec::of_daemon()
        };
        let id = TaskId::random();
        let (begun, has_begun) = oneshot::channel();
        let (life, lives) = watch::channel(Life::Running);
        // The caller may stop waiting before the process runs. The process is then killed as soon as it does.
        let guard = Unwanted { id, reports: self.reports.clone(), armed: true };
        let streams = Streams::Given { streams, mark: self.purpose.mark() };
        let order = StartOrder { task: id, run: RUN, spec: Arc::new(spec), env, place: None, streams };
        let watcher = Watcher { begun: Some(begun), life };
        self.reports.send(Report::StartHelper { purpose: self.purpose, order: Box::new(order), watcher });
        let begun = has_begun.await.unwrap_or_else(|_| Err("the daemon is ending".into()))?;
        guard.disarm();
        let Alive { pid, handle } = begun;
        Ok(Process { id, pid, handle: Arc::new(handle), life: lives, reports: self.reports.clone() })
    }
}

/// Ends a process whose start is not waited for any more.
struct Unwanted {
    id: TaskId,
    reports: Reports,
    armed: bool,
}

impl Unwanted {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        if self.armed {
            self.reports.send(Report::EndHelper { process: self.id, signal: SIGKILL });
        }
    }
}

/// A helper's state for the program that takes over.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProcessState {
    id: TaskId,
    pid: i32,
}

impl Process {
    pub fn state(&self) -> ProcessState {
        // `local` tracks whether it is alive, and carries that state.
        let Self { id, pid, handle: _, life: _, reports: _ } = self;
        ProcessState { id: *id, pid: *pid }
    }

    /// Reclaims a helper. A helper that is not known any more has ended.
    pub fn restore(state: ProcessState, context: &Context) -> Self {
        let ProcessState { id, pid } = state;
        let life = context.helpers.take(id).unwrap_or_else(|| {
            watch::channel(Life::Gone(Exit::Unknown("it ended during an upgrade".into()))).1
        });
        let runs = *life.borrow() == Life::Running;
        // The pid of a reaped process may have been reused.
        let handle = runs.then(|| PidFd::open(pid).ok()).flatten();
        Self { id, pid, handle: Arc::new(handle), life, reports: context.reports.clone() }
    }

    /// Reports whether its leader is running as far as reported.
    pub fn runs(&self) -> bool {
        *self.life.borrow() == Life::Running
    }

    /// Reports whether its whole tree has ended as far as reported.
    pub fn is_gone(&self) -> bool {
        matches!(*self.life.borrow(), Life::Gone(_))
    }

    /// Signals its whole tree; SIGKILL also reaches processes that start meanwhile.
    pub fn end(&self, signal: i32) {
        self.reports.send(Report::EndHelper { process: self.id, signal });
    }

    /// Reports whether its leader has ended, even if that was not reported yet.
    pub fn has_exited(&self) -> bool {
        *self.life.borrow() != Life::Running || self.handle.as_ref().as_ref().is_some_and(PidFd::has_ended)
    }

    /// Waits until its leader has ended, and returns its exit.
    pub async fn exited(&self) -> Exit {
        self.until(|life| match life {
            Life::Running => None,
            Life::Exited(exit) | Life::Gone(exit) => Some(exit.clone()),
        })
        .await
    }

    /// Waits until its whole tree has ended, and returns the leader's exit.
    pub async fn until_ended(&self) -> Exit {
        self.until(|life| match life {
            Life::Running | Life::Exited(_) => None,
            Life::Gone(exit) => Some(exit.clone()),
        })
        .await
    }

    async fn until(&self, what: impl Fn(&Life) -> Option<Exit>) -> Exit {
        let mut life = self.life.clone();
        loop {
            let now = life.borrow_and_update().clone();
            if let Some(exit) = what(&now) {
                return exit;
            }
            if life.changed().await.is_err() {
                return match now {
                    Life::Exited(exit) | Life::Gone(exit) => exit,
                    Life::Running => Exit::Unknown("the daemon is ending".into()),
                };
            }
        }
    }
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Leased(pub Process);

impl Drop for Leased {
    fn drop(&mut self) {
        self.0.end(SIGKILL);
    }
}

/// Describes the end of a process, for a sentence whose subject is the process.
pub fn how_ended(exit: &Exit) -> String {
    match exit {
        Exit::Code(_) => exit.words(),
        Exit::Signal(_) => format!("was {}", exit.words()),
        Exit::Unknown(why) => format!("ended ({why})"),
    }
}

/// Returns the daemon's own environment for ssh, which needs its agent and its home.
pub fn ssh_environment() -> Env {
    let own = Env::of_this_process();
    let others = own.0.iter().filter(|(name, _)| !matches!(&**name, "BGD_HOST" | "BGD_SOCKET" | "BGD_SSH"));
    others.cloned().collect()
}

/// The end of a pipe that the process gets. The process expects a blocking end; ours must not block.
#[derive(Clone, Copy)]
pub enum PipeEnd {
    /// The process reads.
    Reading,
    /// The process writes.
    Writing,
}

/// Creates a pipe. Returns the process's end, then ours.
///
/// # Errors
/// No descriptors are left.
pub fn pipe(theirs: PipeEnd) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let (theirs, ours) = match theirs {
        PipeEnd::Reading => (reading, writing),
        PipeEnd::Writing => (writing, reading),
    };
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((theirs, ours))
}

/// Creates the streams of a process that is talked to through a socket. Returns the process's streams, then our ends: of
/// the socket, and of the pipe that is its standard error.
///
/// # Errors
/// No descriptors are left.
pub fn socket_streams() -> io::Result<([OwnedFd; 3], UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    let output = theirs.try_clone()?;
    let (stderr, errors) = pipe(PipeEnd::Writing)?;
    Ok(([theirs.into(), output.into(), stderr], ours, errors))
}
