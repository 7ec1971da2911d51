//! Limits how many parts of output are read from a machine at once.

use std::collections::{HashSet, VecDeque};

use bgd_shared::id::TaskId;

/// How many parts are read at once. Each is in memory as it was received and as it is written, and more of them would
/// not come faster over one connection.
const AT_ONCE: usize = 16;

/// The reads of the output of a machine's runs.
pub struct Reads {
    /// How many may be pending.
    at_once: usize,
    pending: usize,
    /// The tasks whose next reads wait for room, each once.
    later: VecDeque<TaskId>,
    is_later: HashSet<TaskId>,
}

impl Default for Reads {
    fn default() -> Self {
        Self { at_once: AT_ONCE, pending: 0, later: VecDeque::new(), is_later: HashSet::new() }
    }
}

impl Reads {
    /// Leaves at least half of so many calls to other purposes, such as submissions, but allows one read.
    pub fn limit_to_half_of(&mut self, calls: usize) {
        self.at_once = (calls / 2).clamp(1, AT_ONCE);
    }

    /// Begins a read of a task's output, or returns `false` if there is no room; then [`Self::next`] returns the task
    /// later.
    pub fn begin(&mut self, task: TaskId) -> bool {
        if self.pending < self.at_once {
            self.pending += 1;
            return true;
        }
        if self.is_later.insert(task) {
            self.later.push_back(task);
        }
        false
    }

    /// Notes that a read is over.
    pub const fn end(&mut self) {
        self.pending -= 1;
    }

    /// Returns the task that has waited longest, if there is room now. It need not have anything to read any more.
    pub fn next(&mut self) -> Option<TaskId> {
        if self.pending >= self.at_once {
            return None;
        }
        let task = self.later.pop_front()?;
        self.is_later.remove(&task);
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r145_reads_of_output_wait_for_room_in_turn() {
        let task = |number: usize| TaskId::from_u128(number as u128);
        let mut reads = Reads::default();
        assert!((0..AT_ONCE).all(|number| reads.begin(task(number))));
        let [first, second, third] = [100, 101, 102].map(task);
        // Events of a waiting task do not make it wait twice.
        for waits in [first, second, first, third] {
            assert!(!reads.begin(waits));
        }
        assert_eq!(reads.next(), None);
        reads.end();
        // The first has nothing to read any more, which blocks nobody.
        assert_eq!((reads.next(), reads.next()), (Some(first), Some(second)));
        assert!(reads.begin(second));
        assert_eq!(reads.next(), None);
        assert!(!reads.begin(first));
        reads.end();
        assert_eq!((reads.next(), reads.next(), reads.next()), (Some(third), Some(first), None));
    }

    #[test]
    fn r145_reads_of_output_leave_half_of_the_calls_to_submissions() {
        for (calls, at_once) in [(1, 1), (2, 1), (3, 1), (17, 8), (32, 16), (64, AT_ONCE)] {
            let mut reads = Reads::default();
            reads.limit_to_half_of(calls);
            let begun = (0..100).filter(|number| reads.begin(TaskId::from_u128(*number))).count();
            assert_eq!(begun, at_once, "{calls}");
            // A machine that accepts fewer calls since the next connection gets no further read until fewer are pending.
            reads.limit_to_half_of(1);
            (1..at_once).for_each(|_| reads.end());
            assert_eq!(reads.next(), None);
            reads.end();
            assert!(reads.next().is_some());
        }
    }
}
