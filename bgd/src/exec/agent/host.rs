//! The agents' processes: the dispatcher's executor starts, watches and ends them like those of tasks, so
//! that their trees are kept together by the same rules. Here they are asked for and waited for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use tokio::sync::{oneshot, watch};

use crate::core::{Fact, Spec, Work};
use crate::exec::spawner::{StartOrder, Streams};
use crate::exec::tree::TASK_MARK;
use crate::mailbox::{Facts, Report};
use crate::sys::pidfd::PidFd;
pub use crate::sys::pidfd::SIGKILL;

/// What the dispatcher tells of an agent's process.
#[derive(Debug)]
pub enum ProcessNews {
    /// It runs, or could not be started.
    Begun(Result<Alive, Box<str>>),
    /// Something about its end.
    Fact(Fact),
}

/// A process that runs.
#[derive(Debug)]
pub struct Alive {
    /// Its number.
    pub pid: i32,
    /// A handle that tells whether it still lives, before anybody else has seen that it does not.
    pub handle: Option<PidFd>,
}

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

/// How far a process has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// Its leader has ended, others of its tree have not.
    Exited(Exit),
    /// Nothing of it is left.
    Gone(Exit),
}

/// What is known of a process on the way to the one who asked for it.
#[derive(Debug)]
struct Entry {
    begun: Option<oneshot::Sender<Result<Alive, Box<str>>>>,
    life: watch::Sender<Life>,
}

/// Starts processes.
#[derive(Clone, Debug)]
pub struct Host {
    facts: Facts,
    entries: Rc<RefCell<HashMap<TaskId, Entry>>>,
}

/// A process that runs. Letting go of it ends nothing.
#[derive(Clone, Debug)]
pub struct Process {
    id: TaskId,
    /// Its number.
    pub pid: i32,
    handle: Rc<Option<PidFd>>,
    life: watch::Receiver<Life>,
    facts: Facts,
}

impl Host {
    /// Starts processes by way of the dispatcher.
    pub fn new(facts: Facts) -> Self {
        Self { facts, entries: Rc::default() }
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
        self.entries.borrow_mut().insert(id, Entry { begun: Some(begun), life });
        // Whoever asked may stop waiting before the process runs. Then it is ended when it does.
        let guard = Unwanted { id, facts: self.facts.clone(), armed: true };
        let streams = Streams::Given(streams);
        let order = StartOrder { task: id, run: 1, spec: Arc::new(spec), env, streams };
        self.facts.send(Report::StartAgent(Box::new(order)));
        let begun = has_begun.await.unwrap_or_else(|_| Err("the daemon is ending".into()))?;
        guard.disarm();
        let Alive { pid, handle } = begun;
        Ok(Process { id, pid, handle: Rc::new(handle), life: lives, facts: self.facts.clone() })
    }

    /// Takes news of a process.
    pub fn news(&self, id: TaskId, news: ProcessNews) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&id) else { return };
        let is_over = match news {
            ProcessNews::Begun(result) => {
                let failed = result.is_err();
                if let Some(begun) = entry.begun.take() {
                    // One that nobody waits for any more has been told to end.
                    let _ = begun.send(result);
                }
                failed
            }
            ProcessNews::Fact(Fact::Exited { exit, others }) => {
                entry.life.send_replace(if others { Life::Exited(exit) } else { Life::Gone(exit) });
                !others
            }
            ProcessNews::Fact(Fact::TreeEmpty) => {
                entry.life.send_modify(|life| {
                    if let Life::Exited(exit) = life {
                        *life = Life::Gone(exit.clone());
                    }
                });
                true
            }
            ProcessNews::Fact(_) => false,
        };
        if is_over {
            entries.remove(&id);
        }
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
            self.facts.send(Report::EndAgent { process: self.id, signal: SIGKILL });
        }
    }
}

/// The signal that asks to end.
pub const SIGTERM: i32 = 15;

impl Process {
    /// Sends a signal to its whole tree; SIGKILL also to what that starts meanwhile.
    pub fn end(&self, signal: i32) {
        self.facts.send(Report::EndAgent { process: self.id, signal });
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
