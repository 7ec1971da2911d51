//! Helpers: processes that the daemon needs for work of its own, those of agents and of hooks. The
//! dispatcher's executor starts, watches and ends them like those of tasks, so that their trees are kept
//! together by the same rules. Here they are asked for and waited for, on whichever thread needs them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use nix::fcntl::OFlag;
use tokio::sync::{oneshot, watch};

pub use super::helper::{Alive, Life, Purpose, Watcher};
use super::messages::{Facts, Report, StartOrder, Streams};
use super::proc::TASK_MARK;
use crate::core::{Fact, Spec, Work};
use crate::sys::pidfd::PidFd;
pub use crate::sys::pidfd::SIGKILL;

/// The signal that asks to end.
pub const SIGTERM: i32 = 15;

/// The run that every helper has: it is started once.
pub const RUN: u32 = 1;

/// What a process is started with.
#[derive(Debug)]
pub struct Launch {
    /// The program with its arguments.
    pub argv: Vec<OsText>,
    /// Its folder.
    pub cwd: OsText,
    /// Its environment.
    pub env: Env,
    /// The task that it works for, if it is one only.
    pub task: Option<TaskId>,
    /// The order that umask and resource limits are taken from.
    pub like: Arc<Spec>,
    /// Standard input, output and error.
    pub streams: [OwnedFd; 3],
}

/// A helper as the dispatcher knows it.
#[derive(Debug)]
struct Helper {
    purpose: Purpose,
    /// The signal for one that does not run yet.
    waiting: Option<i32>,
    watcher: Watcher,
}

/// All helpers that run, or are being started: the dispatcher's list.
#[derive(Debug, Default)]
pub struct Helpers(HashMap<TaskId, Helper>);

impl Helpers {
    /// A helper is being started.
    pub fn starting(&mut self, id: TaskId, purpose: Purpose, watcher: Watcher) {
        self.0.insert(id, Helper { purpose, waiting: None, watcher });
    }

    /// Whether this is a helper, and no task.
    pub fn owns(&self, id: TaskId) -> bool {
        self.0.contains_key(&id)
    }

    /// It shall get this signal when it runs.
    pub fn end_later(&mut self, id: TaskId, signal: i32) {
        // Nothing is stronger than SIGKILL.
        if let Some(helper) = self.0.get_mut(&id).filter(|helper| helper.waiting != Some(SIGKILL)) {
            helper.waiting = Some(signal);
        }
    }

    /// It runs. Gives the signal that waited for that.
    pub fn begun(&mut self, id: TaskId, alive: Alive) -> Option<i32> {
        let helper = self.0.get_mut(&id)?;
        helper.watcher.begun(Ok(alive));
        helper.waiting.take()
    }

    /// It could not be started.
    pub fn failed(&mut self, id: TaskId, why: Box<str>) {
        if let Some(mut helper) = self.0.remove(&id) {
            helper.watcher.begun(Err(why));
        }
    }

    /// Something about its end.
    pub fn fact(&mut self, id: TaskId, fact: Fact) {
        if self.0.get(&id).is_some_and(|helper| helper.watcher.fact(fact)) {
            self.0.remove(&id);
        }
    }

    /// Those for this; all of them if it is not given.
    pub fn of(&self, purpose: Option<Purpose>) -> Vec<TaskId> {
        let is_wanted = |helper: &Helper| purpose.is_none_or(|purpose| helper.purpose == purpose);
        self.0.iter().filter(|(_, helper)| is_wanted(helper)).map(|(id, _)| *id).collect()
    }

    /// Whether any is left.
    pub fn is_busy(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Starts helpers.
#[derive(Clone, Debug)]
pub struct Host {
    facts: Facts,
    purpose: Purpose,
}

/// A process that runs. Letting go of it ends nothing.
#[derive(Clone, Debug)]
pub struct Process {
    id: TaskId,
    /// Its number.
    pub pid: i32,
    handle: Arc<Option<PidFd>>,
    life: watch::Receiver<Life>,
    facts: Facts,
}

impl Host {
    /// Starts processes by way of the dispatcher.
    pub fn new(facts: Facts, purpose: Purpose) -> Self {
        Self { facts, purpose }
    }

    /// Starts a process.
    ///
    /// # Errors
    /// Why it could not be started, for people.
    pub async fn start(&self, launch: Launch) -> Result<Process, Box<str>> {
        let Launch { argv, cwd, env, task, like, streams } = launch;
        // The submitter may be a process of a task itself; what it starts is no part of that.
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
        // Whoever asked may stop waiting before the process runs. Then it is ended when it does.
        let guard = Unwanted { id, facts: self.facts.clone(), armed: true };
        let streams = Streams::Given { streams, mark: self.purpose.mark() };
        let order = StartOrder { task: id, run: RUN, spec: Arc::new(spec), env, streams };
        let watcher = Watcher { begun: Some(begun), life };
        self.facts.send(Report::StartHelper { purpose: self.purpose, order: Box::new(order), watcher });
        let begun = has_begun.await.unwrap_or_else(|_| Err("the daemon is ending".into()))?;
        guard.disarm();
        let Alive { pid, handle } = begun;
        Ok(Process { id, pid, handle: Arc::new(handle), life: lives, facts: self.facts.clone() })
    }
}

/// Ends a process whose start nobody waits for any more.
struct Unwanted {
    id: TaskId,
    facts: Facts,
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
            self.facts.send(Report::EndHelper { process: self.id, signal: SIGKILL });
        }
    }
}

impl Process {
    /// Sends a signal to its whole tree; SIGKILL also to what that starts meanwhile.
    pub fn end(&self, signal: i32) {
        self.facts.send(Report::EndHelper { process: self.id, signal });
    }

    /// Whether its leader has ended, be it in this very moment.
    pub fn has_exited(&self) -> bool {
        *self.life.borrow() != Life::Running || self.handle.as_ref().as_ref().is_some_and(PidFd::has_ended)
    }

    /// Waits until its leader has ended.
    pub async fn exited(&self) -> Exit {
        self.until(|life| match life {
            Life::Running => None,
            Life::Exited(exit) | Life::Gone(exit) => Some(exit.clone()),
        })
        .await
    }

    /// Waits until nothing of its tree is left.
    pub async fn gone(&self) -> Exit {
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

/// A process that ends when nobody needs it any more.
#[derive(Debug)]
pub struct Leased(pub Process);

impl Drop for Leased {
    fn drop(&mut self) {
        self.0.end(SIGKILL);
    }
}

/// The system's end of a process's life in words.
pub fn said(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
        Exit::Unknown(why) => format!("ended ({why})"),
    }
}

/// Which end of a pipe goes to the process. It expects an end that blocks; ours must not.
#[derive(Clone, Copy)]
pub enum Theirs {
    /// It reads.
    Reading,
    /// It writes.
    Writing,
}

/// A pipe: their end, and ours.
///
/// # Errors
/// No descriptors are left.
pub fn pipe(theirs: Theirs) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let (theirs, ours) = match theirs {
        Theirs::Reading => (reading, writing),
        Theirs::Writing => (writing, reading),
    };
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((theirs, ours))
}
