//! Whether a machine's daemon has room for more tasks, and when to try again if it has none. Pure: the machine submits.

use std::time::{Duration, Instant};

use bgd_shared::pauses::next_pause;

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

    /// Returns why none is; `None` if tasks are submitted.
    pub fn why(&self) -> Option<&str> {
        self.full.as_ref().map(|(_, why)| &**why)
    }

    /// Notes a refusal: the next pause is within `pauses`. Those of submissions that were made together count once.
    pub fn refused(&mut self, now: Instant, why: &str, pauses: [Duration; 2]) {
        if self.full.is_none() {
            self.pause = next_pause(self.pause, pauses);
            self.full = Some((now + self.pause, why.into()));
        }
    }

    /// Notes that a task was accepted. Those that were refused just before still wait until their time.
    pub const fn accepted(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Reports whether it is time to try again, from when on tasks are submitted.
    pub fn opens(&mut self, now: Instant) -> bool {
        self.full.take_if(|(until, _)| *until <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

    #[test]
    fn r145_submissions_refused_together_are_tried_again_after_one_pause_that_doubles() {
        let (mut room, mut now) = (Room::default(), Instant::now());
        for pause in [PAUSES[0], PAUSES[0] * 2, PAUSES[0] * 4] {
            for _ in 0..64 {
                room.refused(now, "no room", PAUSES);
            }
            assert_eq!(room.until(), Some(now + pause));
            now += pause;
            assert!(room.opens(now) && !room.is_full());
        }
        room.refused(now, "no room", PAUSES);
        // An accepted one shortens the next pause, but no task that was refused may be forgotten.
        room.accepted();
        assert!(room.is_full() && !room.opens(now));
        assert!(room.opens(now + PAUSES[0] * 8) && !room.opens(now + PAUSES[0] * 8));
        room.refused(now, "no room", PAUSES);
        assert_eq!(room.until(), Some(now + PAUSES[0]));
    }
}
