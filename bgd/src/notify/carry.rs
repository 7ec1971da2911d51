//! What the channels carry over an upgrade in place: their counters, and who is shown as typing. A notice that is not
//! delivered yet is an obstacle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bgd_shared::id::TaskId;
use serde::{Deserialize, Serialize};

use super::Notifier;
use super::counts::CountsState;
use crate::carry::Obstacle;

/// The channels for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct NotifierState {
    counts: BTreeMap<Arc<str>, CountsState>,
    unreported: u64,
    /// The turns of agents that are shown as typing, with their channels and sessions.
    #[serde(default)]
    typing: Vec<(TaskId, Arc<str>, Option<Arc<str>>)>,
}

impl Notifier {
    /// Returns the state.
    ///
    /// # Errors
    /// A notice is to be delivered.
    pub fn state(&self) -> Result<NotifierState, Obstacle> {
        for (name, counts) in &self.counts {
            let waiting = counts.waiting().saturating_add(counts.missed.load(Ordering::Relaxed));
            if waiting > 0 {
                let held = counts.waiting() == counts.held.load(Ordering::Relaxed);
                let what = format!("a notice waits to be delivered by the channel {name}");
                return Err(if held { Obstacle::Lasting(what) } else { Obstacle::Passing(what) });
            }
        }
        if !self.unread.is_empty() {
            return Err(Obstacle::passing("a notice is being read"));
        }
        let counts = self.counts.iter().map(|(name, counts)| (Arc::clone(name), counts.state()));
        let typing = self.typing.iter();
        let typing = typing.map(|(task, turn)| (*task, Arc::clone(&turn.channel), turn.session.clone()));
        Ok(NotifierState { counts: counts.collect(), unreported: self.unreported, typing: typing.collect() })
    }

    /// Goes on with what another program has counted.
    pub fn resume(&mut self, state: NotifierState) {
        let NotifierState { counts, unreported, typing } = state;
        for (name, counts) in counts {
            self.counts_of(&name).resume(counts);
        }
        self.unreported = unreported;
        for (task, channel, session) in typing {
            self.show_typing(task, channel, session);
        }
    }
}
