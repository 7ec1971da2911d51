//! Whether a machine's daemon has room for more tasks, and when to try again if it has none. Running tasks and other
//! calls are not concerned.

use std::time::{Duration, Instant};

use bgd_shared::client::ClientError;
use bgd_shared::id::TaskId;
use bgd_shared::pauses::next_pause;

use super::{Machine, PAUSES};
use crate::core::{Fact, PlaceFact};

/// Whether tasks are submitted.
#[derive(Debug, Default)]
pub struct Room {
    /// Why none is, and until when.
    full: Option<(Instant, Box<str>)>,
    pause: Duration,
}

impl Room {
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Returns when to try again; `None` if tasks are submitted.
    pub fn until(&self) -> Option<Instant> {
        self.full.as_ref().map(|(until, _)| *until)
    }

    /// Notes a refusal. Those of submissions that were made together count once.
    fn refused(&mut self, now: Instant, why: &str) {
        if self.full.is_none() {
            self.pause = next_pause(self.pause, PAUSES);
            self.full = Some((now + self.pause, why.into()));
        }
    }

    /// Notes that a task was accepted. Those that were refused just before still wait until their time.
    pub const fn accepted(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Reports whether it is time to try again, from when on tasks are submitted.
    fn opens(&mut self, now: Instant) -> bool {
        self.full.take_if(|(until, _)| *until <= now).is_some()
    }
}

impl Machine {
    /// Has a run that the machine's daemon has no room for submitted later.
    pub(super) fn put_off(&mut self, task: TaskId, error: &ClientError) {
        let why = format!("{} accepts no more tasks now: {error}", self.ssh.shell.host);
        self.room.refused(Instant::now(), &why);
        if let Some(run) = self.runs.get_mut(&task) {
            run.was_put_off();
        }
    }

    /// Reports that a run waits until there is room, unless that is known.
    pub(super) fn await_room(&mut self, task: TaskId) {
        let Some((_, why)) = &self.room.full else { return };
        let Some(run) = self.runs.get_mut(&task) else { return };
        if run.note_reason(why) {
            let fact = PlaceFact::Waiting { reason: why.clone() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_submissions_refused_together_are_tried_again_after_one_pause_that_doubles() {
        let (mut room, mut now) = (Room::default(), Instant::now());
        for pause in [PAUSES[0], PAUSES[0] * 2, PAUSES[0] * 4] {
            for _ in 0..64 {
                room.refused(now, "no room");
            }
            assert_eq!(room.until(), Some(now + pause));
            now += pause;
            assert!(room.opens(now) && !room.is_full());
        }
        room.refused(now, "no room");
        // An accepted one shortens the next pause, but no task that was refused may be forgotten.
        room.accepted();
        assert!(room.is_full() && !room.opens(now));
        assert!(room.opens(now + PAUSES[0] * 8) && !room.opens(now + PAUSES[0] * 8));
        room.refused(now, "no room");
        assert_eq!(room.until(), Some(now + PAUSES[0]));
    }
}
