//! Durations as people type and read them.

use std::time::Duration;

use bgd_shared::limits::DURATION_MS;

/// Reads `90s`, `10m`, `1h 30m` or a plain number of seconds, as milliseconds.
///
/// # Errors
/// It is no duration, or longer than the protocol can carry.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let duration = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write it as 90s, 10m or 1h30m"))?,
    };
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms > DURATION_MS {
        return Err("that is more than 100 years".to_owned());
    }
    Ok(ms)
}

/// A timeout: a duration, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<u64>);

/// Reads a duration or `none`.
///
/// # Errors
/// It is neither.
pub fn parse_timeout(text: &str) -> Result<Timeout, String> {
    if text == "none" {
        return Ok(Timeout(None));
    }
    parse_ms(text).map(|ms| Timeout(Some(ms))).map_err(|error| format!("{error}, or none"))
}

/// Milliseconds as people read them: two units at most, the smaller one left out where it says nothing.
pub fn show_ms(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{}.{}s", seconds, ms % 1000 / 100),
        1..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{}h {:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_ms("90s"), Ok(90_000));
        assert_eq!(parse_ms("10m"), Ok(600_000));
        assert_eq!(parse_ms("1h 30m"), Ok(5_400_000));
        assert_eq!(parse_ms("250ms"), Ok(250));
        assert_eq!(parse_ms("5"), Ok(5_000));
        assert!(parse_ms("soon").is_err());
        assert!(parse_ms("-1s").is_err());
        assert!(parse_ms("200years").unwrap_err().contains("100 years"));
        assert!(parse_ms("99999999999999999999").is_err());
    }

    #[test]
    fn a_timeout_may_be_none() {
        assert_eq!(parse_timeout("none"), Ok(Timeout(None)));
        assert_eq!(parse_timeout("0"), Ok(Timeout(Some(0))));
        assert!(parse_timeout("never").unwrap_err().contains("none"));
    }

    #[test]
    fn durations_are_shown_with_two_units_at_most() {
        let shown: Vec<_> = [0, 940, 1_000, 59_999, 60_000, 3_599_000, 3_600_000, 86_399_000, 90_000_000]
            .map(show_ms)
            .into_iter()
            .collect();
        assert_eq!(shown, ["0.0s", "0.9s", "1s", "59s", "1m 00s", "59m 59s", "1h 00m", "23h 59m", "1d 01h"]);
        assert!(show_ms(u64::MAX).ends_with('h'));
    }
}
