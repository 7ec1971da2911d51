//! The state of a helper, and the notification of its requester.

use std::collections::HashMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::task::Exit;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::processes::members::{AGENT_MARK, BRIDGE_MARK, HOOK_MARK};
use crate::core::Fact;
use crate::os::pidfd::PidFd;

/// The purpose of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    Agent,
    /// The command of a channel.
    Hook,
    /// The connection to another machine, or a command for a cluster.
    Bridge,
}

impl Purpose {
    /// Returns the environment variable that marks every process of such a helper.
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
    pub pid: i32,
    /// A pidfd that shows whether the process still lives, even before its end is reported.
    pub handle: Option<PidFd>,
}

/// The life cycle of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    Running,
    /// Its leader has ended, but others of its tree have not.
    Exited(Exit),
    /// Its whole tree has ended, or survives SIGKILL and is not waited for any more.
    Gone(Exit),
}

/// The helpers that were carried over an upgrade, until their requesters reclaim them.
#[derive(Clone, Debug, Default)]
pub struct UnclaimedHelpers(Arc<Mutex<Kept>>);

type Kept = HashMap<TaskId, (Purpose, watch::Receiver<Life>)>;

impl UnclaimedHelpers {
    /// Adds a helper. Returns the watcher for it.
    pub(super) fn keep(&self, id: TaskId, purpose: Purpose, life: Life) -> Watcher {
        let (life, lives) = watch::channel(life);
        self.0.lock().insert(id, (purpose, lives));
        Watcher { begun: None, life }
    }

    /// Reclaims a helper.
    pub fn take(&self, id: TaskId) -> Option<watch::Receiver<Life>> {
        self.0.lock().remove(&id).map(|(_, life)| life)
    }

    /// Removes and returns all helpers for a purpose that were not reclaimed.
    pub fn take_unclaimed(&self, purpose: Purpose) -> Vec<TaskId> {
        self.0.lock().extract_if(|_, (of, _)| *of == purpose).map(|(id, _)| id).collect()
    }
}

/// Notifies the requester of a helper.
#[derive(Debug)]
pub struct Watcher {
    pub(super) begun: Option<oneshot::Sender<Result<Alive, Box<str>>>>,
    pub(super) life: watch::Sender<Life>,
}

impl Watcher {
    /// Reports that the helper runs, or why it could not be started.
    pub fn begun(&mut self, result: Result<Alive, Box<str>>) {
        if let Some(begun) = self.begun.take() {
            // A helper that is not waited for any more has been asked to end.
            let _ = begun.send(result);
        }
    }

    /// Applies a fact about the helper's end. Returns whether its whole tree has ended.
    pub(super) fn fact(&self, fact: Fact) -> bool {
        match fact {
            Fact::Exited { exit, others, .. } => {
                self.become_unless_gone(|_| if others { Life::Exited(exit) } else { Life::Gone(exit) });
                !others
            }
            Fact::TreeEmpty => {
                self.become_unless_gone(|life| match life {
                    Life::Exited(exit) => Life::Gone(exit),
                    life => life,
                });
                true
            }
            // It may hang in the kernel forever, and nothing more can be done.
            Fact::GaveUp { why } => {
                self.become_unless_gone(|life| match life {
                    Life::Exited(exit) => Life::Gone(exit),
                    Life::Running | Life::Gone(_) => Life::Gone(Exit::Unknown(why)),
                });
                false
            }
            _ => false,
        }
    }

    fn become_unless_gone(&self, next: impl FnOnce(Life) -> Life) {
        self.life.send_if_modified(|life| {
            if matches!(life, Life::Gone(_)) {
                return false;
            }
            *life = next(std::mem::replace(life, Life::Running));
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_surviving_sigkill_counts_as_gone() {
        let watched = |facts: Vec<Fact>| {
            let (life, lives) = watch::channel(Life::Running);
            let watcher = Watcher { begun: None, life };
            let has_ended: Vec<bool> = facts.into_iter().map(|fact| watcher.fact(fact)).collect();
            (has_ended, lives.borrow().clone())
        };
        let gave_up = || Fact::GaveUp { why: "it hangs".into() };
        let exited = |others| Fact::Exited { exit: Exit::Code(3), others, at: None };
        let gone = |exit| Life::Gone(exit);
        assert_eq!(watched(vec![gave_up()]), (vec![false], gone(Exit::Unknown("it hangs".into()))));
        assert_eq!(watched(vec![exited(true), gave_up()]), (vec![false, false], gone(Exit::Code(3))));
        // The helper is known until all of it has ended, but stays gone for those that wait.
        let late = watched(vec![gave_up(), exited(true), Fact::TreeEmpty]);
        assert_eq!(late, (vec![false, false, true], gone(Exit::Unknown("it hangs".into()))));
    }
}
