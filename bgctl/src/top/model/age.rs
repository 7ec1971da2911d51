//! Which of two tasks is newer. Reads no clock.

use bgd_shared::time::Timestamp;

/// The age of a task, ordered by creation time. Ties are broken by arrival, as all tasks of a batch have the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age {
    created_at: Timestamp,
    arrival: i32,
}

impl Age {
    /// Creates the age of a task with this arrival number ([`Arrivals`]).
    pub const fn of(created_at: Timestamp, arrival: i32) -> Self {
        Self { created_at, arrival }
    }

    /// Newer than all others.
    pub fn newest() -> Self {
        Self::of(Timestamp::from_unix_ms(i64::MAX), i32::MAX)
    }

    /// Older than all others.
    pub fn oldest() -> Self {
        Self::of(Timestamp::from_unix_ms(i64::MIN), i32::MIN)
    }
}

/// Numbers the tasks as they arrive: tasks from events are newer than all earlier ones, while lists begin with the
/// newest task.
#[derive(Debug, Default)]
pub struct Arrivals {
    newest: i32,
    oldest: i32,
}

impl Arrivals {
    /// Returns the number for a task reported by an event.
    pub fn newer(&mut self) -> i32 {
        self.newest = self.newest.saturating_add(1);
        self.newest
    }

    /// Returns the number for the next task of a list.
    pub fn older(&mut self) -> i32 {
        self.oldest = self.oldest.saturating_sub(1);
        self.oldest
    }
}
