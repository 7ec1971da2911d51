//! What is known of a helper, and how the one who asked for it hears of that.

use bgd_shared::task::Exit;
use tokio::sync::{oneshot, watch};

use super::members::{AGENT_MARK, HOOK_MARK};
use crate::core::Fact;
use crate::os::pidfd::PidFd;

/// What a helper is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The program of an agent.
    Agent,
    /// The command of a channel.
    Hook,
}

impl Purpose {
    /// The environment variable that marks every process of such a helper.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Agent => AGENT_MARK,
            Self::Hook => HOOK_MARK,
        }
    }
}

/// A process that runs.
#[derive(Debug)]
pub struct Alive {
    /// Its number.
    pub pid: i32,
    /// A handle that tells whether it still lives, before anybody else has seen that it does not.
    pub handle: Option<PidFd>,
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

/// The way of news about a helper to the one who asked for it.
#[derive(Debug)]
pub struct Watcher {
    pub(super) begun: Option<oneshot::Sender<Result<Alive, Box<str>>>>,
    pub(super) life: watch::Sender<Life>,
}

impl Watcher {
    /// It runs, or could not be started.
    pub fn begun(&mut self, result: Result<Alive, Box<str>>) {
        if let Some(begun) = self.begun.take() {
            // One that nobody waits for any more has been told to end.
            let _ = begun.send(result);
        }
    }

    /// Takes what was seen of its end. True: nothing of it is left.
    pub(super) fn fact(&self, fact: Fact) -> bool {
        match fact {
            Fact::Exited { exit, others } => {
                self.life.send_replace(if others { Life::Exited(exit) } else { Life::Gone(exit) });
                !others
            }
            Fact::TreeEmpty => {
                self.life.send_modify(|life| {
                    if let Life::Exited(exit) = life {
                        *life = Life::Gone(exit.clone());
                    }
                });
                true
            }
            _ => false,
        }
    }
}
