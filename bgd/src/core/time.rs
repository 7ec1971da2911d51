//! The core's notion of time: handed in, never read.

use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A point on a clock that never goes back, in milliseconds. All deadlines are on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mono(pub u64);

impl Mono {
    /// The point so many milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Both clocks at one moment: `mono` decides, `wall` is for people to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Never goes back.
    pub mono: Mono,
    /// May be set to anything at any time.
    pub wall: Timestamp,
}

/// A duration in milliseconds as people write it.
pub fn duration(ms: u64) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    match (hours, minutes, seconds, ms % 1000) {
        (0, 0, 0, millis) => format!("{millis}ms"),
        (0, 0, seconds, 0) => format!("{seconds}s"),
        (0, 0, seconds, millis) => format!("{seconds}.{millis:03}s"),
        (0, minutes, 0, _) => format!("{minutes}m"),
        (0, minutes, seconds, _) => format!("{minutes}m {seconds}s"),
        (hours, 0, 0, _) => format!("{hours}h"),
        (hours, minutes, _, _) => format!("{hours}h {minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_are_short_and_true() {
        let cases = [
            (250, "250ms"),
            (1000, "1s"),
            (1500, "1.500s"),
            (60_000, "1m"),
            (90_000, "1m 30s"),
            (3_600_000, "1h"),
            (5_400_000, "1h 30m"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration(ms), text);
        }
    }
}
