//! Durations for people, rounded.

/// Divides, and rounds to the nearest whole number.
const fn nearest(ms: u64, unit: u64) -> u64 {
    ms / unit + (ms % unit >= unit / 2) as u64
}

/// Formats a duration in milliseconds, for limits and other settings. Exact to the millisecond below one minute,
/// otherwise rounded to the smaller of two units.
pub fn duration(ms: u64) -> String {
    if ms < 60_000 {
        return match (ms / 1000, ms % 1000) {
            (0, millis) => format!("{millis}ms"),
            (seconds, 0) => format!("{seconds}s"),
            (seconds, millis) => format!("{seconds}.{millis:03}s"),
        };
    }
    match (nearest(ms, 1000), nearest(ms, 60_000)) {
        (seconds @ ..3_600, _) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        (seconds @ ..3_600, _) => format!("{}m {}s", seconds / 60, seconds % 60),
        (_, minutes) if minutes % 60 == 0 => format!("{}h", minutes / 60),
        (_, minutes) => format!("{}h {}m", minutes / 60, minutes % 60),
    }
}

/// Formats an elapsed time in milliseconds, for lists and notices, with at most two units, rounded to the smaller one.
pub fn elapsed(ms: u64) -> String {
    match (nearest(ms, 100), nearest(ms, 1000), nearest(ms, 60_000), nearest(ms, 3_600_000)) {
        (tenths @ ..10, ..) => format!("0.{tenths}s"),
        (_, seconds @ ..60, ..) => format!("{seconds}s"),
        (_, seconds @ ..3_600, ..) => format!("{}m {:02}s", seconds / 60, seconds % 60),
        (_, _, minutes @ ..1_440, _) => format!("{}h {:02}m", minutes / 60, minutes % 60),
        (_, _, _, hours) => format!("{}d {:02}h", hours / 24, hours % 24),
    }
}

/// Returns in how many milliseconds [`elapsed`] shows something else, if tenths of seconds do not matter.
pub const fn elapsed_changes_in(ms: u64) -> u64 {
    let unit = match ms {
        ..950 => return 950 - ms,
        950..3_599_500 => 1000,
        3_599_500..86_370_000 => 60_000,
        _ => 3_600_000,
    };
    unit - (ms % unit + unit / 2) % unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_shown_briefly_and_exactly_below_a_minute() {
        let cases = [
            (250, "250ms"),
            (1000, "1s"),
            (1500, "1.500s"),
            (60_000, "1m"),
            (90_000, "1m 30s"),
            (3_600_000, "1h"),
            (5_400_000, "1h 30m"),
            (60_499, "1m"),
            (60_500, "1m 1s"),
            (3_599_500, "1h"),
            (5_430_000, "1h 31m"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration(ms), text);
        }
    }

    #[test]
    fn elapsed_times_are_rounded_to_at_most_two_units() {
        let cases = [
            (0, "0.0s"),
            (949, "0.9s"),
            (950, "1s"),
            (1_499, "1s"),
            (1_952, "2s"),
            (59_499, "59s"),
            (59_600, "1m 00s"),
            (119_500, "2m 00s"),
            (3_599_499, "59m 59s"),
            (3_599_500, "1h 00m"),
            (3_630_000, "1h 01m"),
            (86_369_999, "23h 59m"),
            (86_370_000, "1d 00h"),
            (90_000_000, "1d 01h"),
        ];
        for (ms, text) in cases {
            assert_eq!(elapsed(ms), text, "{ms}");
        }
        assert!(elapsed(u64::MAX).ends_with('h'));
    }

    proptest! {
        #[test]
        fn elapsed_time_changes_when_it_is_said_to(ms in prop_oneof![0..100_000_u64, 3_500_000..3_700_000_u64, 80_000_000..100_000_000_u64]) {
            let next = ms + elapsed_changes_in(ms);
            prop_assert_ne!(elapsed(next - 1), elapsed(next));
            prop_assert!(ms < 950 || elapsed(next - 1) == elapsed(ms));
        }
    }
}
