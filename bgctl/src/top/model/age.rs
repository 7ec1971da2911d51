//! Which of two tasks is newer. Reads no clock.

use bgd_shared::time::Timestamp;

/// How new a task is: by its time, and of equal times by its arrival, as all tasks of a batch have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age {
    created_at: Timestamp,
    arrival: i32,
}

impl Age {
    /// That of a task with this number ([`Arrivals`]).
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

/// Counts the tasks as they arrive: an event tells of one that is newer than all before it, a list begins with the
/// newest.
#[derive(Debug, Default)]
pub struct Arrivals {
    newest: i32,
    oldest: i32,
}

impl Arrivals {
    /// The number of a task that an event has told of.
    pub fn newer(&mut self) -> i32 {
        self.newest = self.newest.saturating_add(1);
        self.newest
    }

    /// The number of the next task of a list.
    pub fn older(&mut self) -> i32 {
        self.oldest = self.oldest.saturating_sub(1);
        self.oldest
    }
}
