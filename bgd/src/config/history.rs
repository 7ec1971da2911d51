//! The `[history]` part of the configuration.

use serde::{Deserialize, Serialize};

use super::size::Size;
use crate::core::HistoryLimits;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// How long a durable daemon keeps finished tasks and their outputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Days after their end.
    pub days: u64,
    /// Bytes of all their outputs.
    pub bytes: Size,
}

impl Default for History {
    fn default() -> Self {
        Self { days: 30, bytes: Size(10 << 30) }
    }
}

impl History {
    /// Returns the limits that the core enforces, for a daemon that keeps at most `tasks` tasks in `memory` bytes. A
    /// quarter of both, at least one task, is left for unfinished tasks. If these need more, the history gives way.
    pub(super) fn limits(&self, tasks: usize, memory: usize) -> HistoryLimits {
        let of = |all: usize| all - all.div_ceil(4);
        HistoryLimits {
            age_ms: self.days.saturating_mul(DAY_MS),
            bytes: self.bytes.0,
            tasks: of(tasks).max(1),
            memory: of(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r129_history_always_leaves_room_for_a_new_task() {
        let kept = |tasks| History::default().limits(tasks, 1 << 20).tasks;
        assert_eq!([1, 2, 3, 4, 5, 1000].map(kept), [1, 1, 2, 3, 3, 750]);
        assert!((2..200).all(|tasks| kept(tasks) < tasks && kept(tasks) * 4 <= tasks * 3));
    }
}
