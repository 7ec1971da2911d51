//! Limits how many parts of output are read from a machine at once.

use std::collections::{HashSet, VecDeque};

use bgd_shared::id::TaskId;

/// How many parts are read at once. Each is in memory as it was received and as it is written, and more of them would
/// not come faster over one connection.
const AT_ONCE: usize = 16;

/// The reads of the output of a machine's runs.
#[derive(Default)]
pub struct Reads {
    pending: usize,
    /// The tasks whose next reads wait for room, each once.
    later: VecDeque<TaskId>,
    is_later: HashSet<TaskId>,
}

impl Reads {
    /// Begins a read of a task's output, or returns `false` if there is no room; then [`Self::next`] returns the task
    /// later.
    pub fn begin(&mut self, task: TaskId) -> bool {
        if self.pending < AT_ONCE {
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
        if self.pending >= AT_ONCE {
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
}
