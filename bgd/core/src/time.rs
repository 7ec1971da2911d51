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

/// How long a run takes by the monotonic clock: the wall clock may be set meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunTime {
    /// It has not started, or only the wall clock knows since when it runs.
    #[default]
    Unknown,
    /// It runs since then.
    Since(Mono),
    /// It took this long, in milliseconds.
    Ms(u64),
}

impl RunTime {
    /// Returns the run time of a run that has ended, at these times on the wall clock; if it has not started since the
    /// one before ended, it is that one's.
    #[must_use]
    pub fn ended(self, now: Now, started_at: Option<Timestamp>, ended_at: Timestamp) -> Self {
        match (self, started_at) {
            // Only the wall clock knows an end that is learned of later.
            (Self::Since(began), _) if ended_at == now.wall => Self::Ms(now.mono.0.saturating_sub(began.0)),
            // Each start replaces what is known: the given one is that of the run before.
            (Self::Ms(_), _) | (_, None) => self,
            (_, Some(started_at)) => Self::Ms(ended_at.millis_since(started_at)),
        }
    }

    /// Returns the run time in milliseconds, once it is known.
    pub const fn ms(self) -> Option<u64> {
        match self {
            Self::Ms(ms) => Some(ms),
            Self::Unknown | Self::Since(_) => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_follows_wall_clock_only_if_no_other_is_known() {
        let at = |ms| Timestamp::default().plus_ms(ms);
        let now = Now { mono: Mono(9_000), wall: at(100_000) };
        let since = RunTime::Since(Mono(7_000));
        for started in [90_000, 100_000, 900_000] {
            assert_eq!(since.ended(now, Some(at(started)), now.wall).ms(), Some(2_000), "a set clock");
        }
        assert_eq!(
            since.ended(now, Some(at(90_000)), at(95_000)).ms(),
            Some(5_000),
            "an end learned of late"
        );
        assert_eq!(RunTime::Unknown.ended(now, Some(at(90_000)), now.wall).ms(), Some(10_000));
        for started in [None, Some(at(90_000))] {
            assert_eq!(RunTime::Ms(3).ended(now, started, now.wall).ms(), Some(3), "of the run before");
        }
        assert_eq!((since.ms(), RunTime::Unknown.ms()), (None, None));
    }
}
