//! The state of a helper, and how whoever asked for it is notified.

use bgd_shared::task::Exit;
use tokio::sync::{oneshot, watch};

use super::members::{AGENT_MARK, BRIDGE_MARK, HOOK_MARK};
use crate::core::Fact;
use crate::os::pidfd::PidFd;

/// What a helper is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The program of an agent.
    Agent,
    /// The command of a channel.
    Hook,
    /// The connection to another machine, or a command of a cluster's.
    Bridge,
}

impl Purpose {
    /// The environment variable that marks every process of such a helper.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Agent => AGENT_MARK,
            Self::Hook => HOOK_MARK,
            Self::Bridge => BRIDGE_MARK,
        }
    }
}

/// A running process.
#[derive(Debug)]
pub struct Alive {
    /// Its pid.
    pub pid: i32,
    /// A pidfd that shows whether it still lives, before anybody else has noticed its end.
    pub handle: Option<PidFd>,
}

/// The life cycle of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// Its leader has ended, but others of its tree have not.
    Exited(Exit),
    /// Its whole tree has ended.
    Gone(Exit),
}

/// Notifies whoever asked for a helper.
#[derive(Debug)]
pub struct Watcher {
    pub(super) begun: Option<oneshot::Sender<Result<Alive, Box<str>>>>,
    pub(super) life: watch::Sender<Life>,
}

impl Watcher {
    /// Reports that it runs, or why it could not be started.
    pub fn begun(&mut self, result: Result<Alive, Box<str>>) {
        if let Some(begun) = self.begun.take() {
            // One that nobody waits for any more has been told to end.
            let _ = begun.send(result);
        }
    }

    /// Takes a fact about its end. Returns whether its whole tree has ended.
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
