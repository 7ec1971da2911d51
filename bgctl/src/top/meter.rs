//! Measures the CPU use of tasks as the difference between two measurements. Reads no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::usage::LiveUsage;

/// The time between two measurements.
pub const INTERVAL: Duration = Duration::from_millis(INTERVAL_MS);

/// The same in milliseconds.
pub const INTERVAL_MS: u64 = 2000;

/// The previous measurements.
#[derive(Debug, Default)]
pub struct Meter {
    last: HashMap<TaskId, (u64, Instant)>,
    asked_at: Option<Instant>,
}

impl Meter {
    /// Reports whether a measurement is due, and if so, records it as requested.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL);
        if is_due {
            self.asked_at = Some(now);
        }
        is_due
    }

    /// Adds a measurement. Returns the use of one processor since the previous one, in percent; more than 100 if
    /// several are busy. `None` for the first measurement.
    pub fn percent(&mut self, usage: &LiveUsage, now: Instant) -> Option<u64> {
        let cpu_ms = usage.user_ms.saturating_add(usage.system_ms);
        let (before, at) = self.last.insert(usage.id, (cpu_ms, now))?;
        let ms = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        // A process that has ended without being waited for no longer counts, so the time may decrease.
        (cpu_ms.saturating_sub(before) * 100).checked_div(ms)
    }

    /// Forgets all tasks but these.
    pub fn keep(&mut self, ids: &[TaskId]) {
        self.last.retain(|id, _| ids.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r160_cpu_share_covers_time_since_last_measurement() {
        let (id, begin) = (TaskId::from_u128(7), Instant::now());
        let usage = |user_ms| LiveUsage { id, processes: 1, user_ms, system_ms: 0, memory_bytes: 0 };
        let mut meter = Meter::default();
        assert!(meter.is_due(begin) && !meter.is_due(begin) && meter.is_due(begin + INTERVAL));
        assert_eq!(meter.percent(&usage(5000), begin), None);
        let later = begin + Duration::from_secs(2);
        assert_eq!(meter.percent(&usage(8000), later), Some(150));
        assert_eq!(meter.percent(&usage(8000), later), None, "no time has passed");
        assert_eq!(meter.percent(&usage(100), later + INTERVAL), Some(0), "a part of the tree is gone");
        meter.keep(&[]);
        assert_eq!(meter.percent(&usage(100), later + INTERVAL), None);
    }
}
