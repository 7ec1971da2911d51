//! The pauses between attempts: the first one, then each twice as long as the one before, up to the longest one.
//! Nothing here waits or reads a clock.

use std::time::Duration;

/// Returns the pause that follows this one; a pause of zero comes before the first.
pub fn next_pause(before: Duration, [first, longest]: [Duration; 2]) -> Duration {
    before.saturating_mul(2).clamp(first, longest)
}

/// Returns the pause after this many failures in a row.
pub fn pause_after(failures: u32, [first, longest]: [Duration; 2]) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let seconds = Duration::from_secs;
        let pauses = [seconds(2), seconds(10)];
        let expected = [2, 4, 8, 10, 10].map(seconds);
        assert_eq!([1, 2, 3, 4, u32::MAX].map(|failures| pause_after(failures, pauses)), expected);
        let mut pause = Duration::ZERO;
        for expected in expected {
            pause = next_pause(pause, pauses);
            assert_eq!(pause, expected);
        }
    }
}
