//! Histograms of how long tasks waited and ran, updated when they start and end (R08).

use bgd_shared::event::EventKind;
use bgd_shared::request::{TimeBucket, Times};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::core::{Attempt, Finished, Repetition, Snapshot, State};

/// The upper bounds of the buckets, in milliseconds: from the duration of a trivial command to a day.
const BUCKETS: [u64; 16] = [
    1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000,
    86_400_000,
];

/// A histogram of durations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum_ms: u64,
}

impl Histogram {
    /// Adds the time between two moments. Counts 0 if the clock was set back.
    pub fn add(&mut self, from: Timestamp, to: Timestamp) {
        self.add_ms(to.millis_since(from));
    }

    /// Adds a duration in milliseconds.
    fn add_ms(&mut self, ms: u64) {
        let place = BUCKETS.partition_point(|end| *end < ms);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// Returns the histogram with cumulative counts, as in `daemon.status`.
    pub fn shown(&self) -> Times {
        let mut below = 0;
        let buckets = BUCKETS.iter().zip(self.buckets).map(|(le_ms, count)| {
            below += count;
            TimeBucket { le_ms: *le_ms, count: below }
        });
        Times { buckets: buckets.collect(), count: self.count, sum_ms: self.sum_ms }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Time from submission to the first start.
    pub waited: Histogram,
    /// Time from the start of a run to its end.
    pub ran: Histogram,
}

/// Returns the duration of the latest run of a task; by the wall clock only if an earlier release has recorded its end.
fn ran_ms(task: &Snapshot, began: Timestamp, ended: Timestamp) -> u64 {
    task.run_time.ms().unwrap_or_else(|| ended.millis_since(began))
}

impl Figures {
    /// Updates the histograms for an event.
    pub fn count(&mut self, kind: EventKind, at: Timestamp, task: &Snapshot) {
        // A later attempt has not waited since the submission, but run, failed, and waited for its retry.
        if kind == EventKind::Started && task.is_first_attempt() {
            self.waited.add(task.created_at, at);
        }
        let again = task.plan().again.as_deref();
        match &task.state {
            // Not of one that could not start.
            State::Queued { .. } if kind == EventKind::Retrying => {
                let last = again.and_then(|again| again.attempts.last());
                if let Some(last) = last.filter(|last| last.has_started()) {
                    self.ran.add_ms(ran_ms(task, last.started_at, last.completed_at));
                }
            }
            State::Finished(Finished { started_at: Some(began), completed_at, pid, .. })
                if kind.is_terminal() =>
            {
                // A task that ended without another run shows the last one, which was counted when it ended.
                let is_other =
                    |last: &Attempt| last.started_at != *began || pid.is_some() && last.pid != *pid;
                if again.and_then(Repetition::last_started).is_none_or(is_other) {
                    self.ran.add_ms(ran_ms(task, *began, *completed_at));
                }
            }
            State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming(_) => {}
        }
    }
}
