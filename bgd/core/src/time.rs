//! The core's notion of time: passed in, never read.

use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A point on a monotonic clock, in milliseconds. All deadlines use it, except those at a wall-clock time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mono(pub u64);

impl Mono {
    /// Returns the point this many milliseconds later, saturating.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Both clocks at one moment: decisions use `mono`, `wall` is mostly for people to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Never goes back.
    pub mono: Mono,
    /// May be set to any time at any moment.
    pub wall: Timestamp,
}
