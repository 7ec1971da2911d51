//! The clocks that the dispatcher reads, sleeping until a moment, and moments of the monotonic clock as numbers that stay
//! valid when the daemon executes another program.

use std::time::{Duration, Instant};

use bgd_shared::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Sleeps until this moment; for ever without one.
pub async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// The clocks that the dispatcher reads. Both advance with tokio's clock, which simulations pause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// When a simulation began, on both clocks; `None` for the system's clocks.
    simulated: Option<(Instant, Timestamp)>,
}

impl Clock {
    /// Creates the clocks of a simulation whose wall clock shows this time now.
    pub fn simulated(wall: Timestamp) -> Self {
        Self { simulated: Some((Self::default().now(), wall)) }
    }

    #[allow(clippy::unused_self, reason = "whoever reads it has been given a clock")]
    pub fn now(self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    pub fn wall(self) -> Timestamp {
        let Some((begin, wall)) = self.simulated else { return Timestamp::now() };
        let passed = self.now().saturating_duration_since(begin).as_millis();
        wall.plus_ms(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Returns the stamp of an instant, for the program that takes over.
    pub fn stamp(self, instant: Instant) -> Stamp {
        let Some((begin, _)) = self.simulated else { return Stamp::of(instant) };
        Stamp(nanos_between(begin, instant))
    }

    /// Returns the instant of a stamp.
    pub fn instant(self, stamp: Stamp) -> Instant {
        let Some((begin, _)) = self.simulated else { return stamp.instant() };
        moved(begin, stamp.0).unwrap_or(begin)
    }
}

/// A moment, in nanoseconds of `CLOCK_MONOTONIC`. It is negative before the boot of the machine, when a clock that is
/// continued after a reboot has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp(i64);

impl Stamp {
    pub fn now() -> Self {
        Self(nanos(Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()))
    }

    /// Returns the moment of this instant.
    pub fn of(instant: Instant) -> Self {
        let now = Instant::now();
        Self(Self::now().0.saturating_add(nanos_between(now, instant)))
    }

    pub fn instant(self) -> Instant {
        let (now, stamp) = (Instant::now(), Self::now());
        moved(now, self.0.saturating_sub(stamp.0)).unwrap_or(now)
    }

    /// Returns the time elapsed since then.
    pub fn elapsed(self) -> Duration {
        let nanos = Self::now().0.saturating_sub(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the time from one instant to another; it is negative if the other one is earlier.
fn nanos_between(from: Instant, to: Instant) -> i64 {
    match to.checked_duration_since(from) {
        Some(ahead) => nanos(ahead),
        None => -nanos(from.saturating_duration_since(to)),
    }
}

/// Returns the instant this many nanoseconds later, or earlier if they are negative.
fn moved(instant: Instant, nanos: i64) -> Option<Instant> {
    let time = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { instant.checked_sub(time) } else { instant.checked_add(time) }
}

/// An instant as its moment, for `#[serde(with)]`.
pub mod instant {
    use super::{Instant, Stamp};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub fn serialize<S: Serializer>(instant: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        Stamp::of(*instant).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        Stamp::deserialize(deserializer).map(Stamp::instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much two consecutive readings of the clock may differ.
    const BETWEEN: Duration = Duration::from_mins(1);

    #[test]
    fn r121_instant_survives_conversion_to_a_stamp() {
        for ahead in [Duration::ZERO, Duration::from_secs(100)] {
            let instant = Instant::now() + ahead;
            let back = Stamp::of(instant).instant();
            let apart = back.max(instant) - back.min(instant);
            assert!(apart < BETWEEN, "{apart:?}");
        }
        let before = Instant::now();
        assert!(Stamp::of(before) <= Stamp::now());
    }
}
