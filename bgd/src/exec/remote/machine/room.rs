//! Runs that wait until their machine's daemon has room for them. Running tasks and other calls are not concerned.

use std::time::Instant;

use bgd_shared::client::ClientError;
use bgd_shared::id::TaskId;

use super::{Machine, PAUSES};
use crate::core::{Fact, PlaceFact};

impl Machine {
    /// Has a run that the machine's daemon has no room for submitted later.
    pub(super) fn put_off(&mut self, task: TaskId, error: &ClientError) {
        let why = format!("{} accepts no more tasks now: {error}", self.ssh.shell.host);
        self.room.refused(Instant::now(), &why, PAUSES);
        if let Some(run) = self.runs.get_mut(&task) {
            run.was_put_off();
        }
    }

    /// Reports that a run waits until there is room, unless that is known.
    pub(super) fn await_room(&mut self, task: TaskId) {
        let Some(why) = self.room.why() else { return };
        let Some(run) = self.runs.get_mut(&task) else { return };
        if run.note_reason(why) {
            let fact = PlaceFact::Waiting { reason: why.into() };
            self.context.facts.send(task, run.number, Fact::Elsewhere(fact));
        }
    }

    /// Has the runs submitted for which there was no room, if it is time to try again.
    pub(super) fn try_room(&mut self, now: Instant) {
        if self.room.opens(now) {
            self.ready.extend(self.in_order());
        }
    }
}
