//! When the orders that a machine has refused are given again.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use bgd_shared::id::TaskId;

/// The tasks for which an order is to be given again, each once.
#[derive(Default)]
pub struct Repeats {
    by_time: BTreeSet<(Instant, TaskId)>,
    tasks: HashSet<TaskId>,
}

impl Repeats {
    /// Has the order for a task given again at this time, unless it already waits for that.
    pub fn add(&mut self, at: Instant, task: TaskId) {
        if self.tasks.insert(task) {
            self.by_time.insert((at, task));
        }
    }

    /// Returns when the next order is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Returns the task whose order has been due longest, if there is one.
    pub fn due(&mut self, now: Instant) -> Option<TaskId> {
        let (_, task) = self.next_at().filter(|at| *at <= now).and_then(|_| self.by_time.pop_first())?;
        self.tasks.remove(&task);
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn r145_refused_order_is_repeated_once_when_it_is_due() {
        let [first, second] = [1, 2].map(TaskId::from_u128);
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut repeats = Repeats::default();
        assert_eq!((repeats.next_at(), repeats.due(now)), (None, None));
        repeats.add(later(30), second);
        repeats.add(later(20), first);
        // It was refused again in between, as it was also ordered for another reason.
        repeats.add(later(40), first);
        assert_eq!((repeats.next_at(), repeats.due(later(19))), (Some(later(20)), None));
        assert_eq!((repeats.due(later(20)), repeats.due(later(20))), (Some(first), None));
        // Each refusal leads to another attempt.
        repeats.add(later(50), first);
        assert_eq!([60; 3].map(|at| repeats.due(later(at))), [Some(second), Some(first), None]);
        assert_eq!(repeats.next_at(), None);
    }
}
