//! Decides when a cluster is asked for the states of its jobs (R149): soon after a change, increasingly rarely while
//! nothing changes, and not at all while there are no jobs.

use std::time::{Duration, Instant};

/// The time to the first query, and to the next one after a change.
pub const SOON: Duration = Duration::from_secs(2);

/// The longest time between two queries.
pub const LATEST: Duration = Duration::from_secs(30);

/// The shortest time between the starts of two queries of any kind.
pub const SPACING: Duration = Duration::from_secs(1);

/// While nothing changes, each wait is `FACTOR / 2` times the previous one.
const FACTOR: u32 = 3;

/// Decides when the next query is due.
#[derive(Clone, Debug, Default)]
pub struct PollSchedule {
    /// When the next query is due; `None` while there are no jobs.
    due: Option<Instant>,
    /// The current wait between two queries.
    wait: Duration,
    /// When the last query began.
    asked: Option<Instant>,
}

impl PollSchedule {
    /// Returns when the next query is due; `None` if no query is scheduled.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes activity about which the cluster will report more: a job was submitted, cancelled or has started.
    pub fn note_activity(&mut self, now: Instant) {
        self.wait = SOON;
        self.ask_by(now + SOON);
    }

    /// Notes that the cluster's state is needed at once, for instance because a job has noted its end.
    pub fn ask_now(&mut self, now: Instant) {
        self.wait = SOON;
        self.ask_by(now);
    }

    /// Returns the earliest time at which a query of another kind may begin; `None`: now.
    pub fn free_at(&self) -> Option<Instant> {
        self.asked.map(|asked| asked + SPACING)
    }

    /// Notes that a query of another kind begins.
    pub fn asks_more(&mut self, now: Instant) {
        self.asked = Some(now);
        self.due = self.due.map(|due| due.max(now + SPACING));
    }

    /// Notes that there is nothing to ask about.
    pub fn rests(&mut self) {
        self.due = None;
    }

    /// Notes that a query begins.
    pub fn asks(&mut self, now: Instant) {
        self.asked = Some(now);
        self.due = None;
    }

    /// Notes the answer to a query: whether it shows activity since the previous one, and whether there are still jobs.
    pub fn answered(&mut self, now: Instant, has_activity: bool, has_jobs: bool) {
        let later = (self.wait * FACTOR / 2).clamp(SOON, LATEST);
        self.wait = if has_activity { SOON } else { later };
        if has_jobs {
            self.ask_by(now + self.wait);
        } else {
            self.due = None;
        }
    }

    fn ask_by(&mut self, at: Instant) {
        let earliest = self.asked.map_or(at, |asked| at.max(asked + SPACING));
        self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how long the pace waits from `now` on.
    fn wait(pace: &PollSchedule, now: Instant) -> Duration {
        pace.due().unwrap().duration_since(now)
    }

    #[test]
    fn r149_queries_become_rarer_while_nothing_changes() {
        let mut now = Instant::now();
        let mut pace = PollSchedule::default();
        assert_eq!(pace.due(), None);
        pace.note_activity(now);
        let mut waits = Vec::new();
        for _ in 0..12 {
            waits.push(wait(&pace, now));
            now = pace.due().unwrap();
            pace.asks(now);
            assert_eq!(pace.due(), None, "one query at a time");
            pace.answered(now, false, true);
        }
        assert_eq!(waits[0], SOON);
        assert!(waits.is_sorted() && waits.ends_with(&[LATEST, LATEST]), "{waits:?}");
        pace.asks(now);
        pace.answered(now, true, true);
        assert_eq!(wait(&pace, now), SOON);
    }

    #[test]
    fn r149_no_queries_without_jobs() {
        let now = Instant::now();
        let mut pace = PollSchedule::default();
        pace.note_activity(now);
        pace.asks(now + SOON);
        pace.answered(now + SOON, true, false);
        assert_eq!(pace.due(), None);
        pace.ask_now(now);
        pace.rests();
        assert_eq!(pace.due(), None);
    }

    #[test]
    fn r149_urgent_query_comes_sooner_within_the_minimum_spacing() {
        let now = Instant::now();
        let mut pace = PollSchedule::default();
        pace.note_activity(now);
        pace.ask_now(now);
        assert_eq!(wait(&pace, now), Duration::ZERO);
        pace.asks(now);
        pace.ask_now(now);
        pace.answered(now, false, true);
        assert_eq!(wait(&pace, now), SPACING);
        pace.note_activity(now + SPACING);
        assert_eq!(wait(&pace, now), SPACING, "nothing makes it later");
    }
}
