//! Durations as people type them.

use std::time::Duration;

use bgd_shared::limits::DURATION_MS;

/// The accepted formats, for error messages.
const HOW: &str = "use 90s, 10m, 1h30m, 1.5h or 500ms; a plain number means seconds";

/// Parses `90s`, `10m`, `1h 30m`, or a plain number of seconds such as `90`, `0.5` or `.5`, into milliseconds.
///
/// # Errors
/// The text is not a duration, or is longer than the protocol allows.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    if text.trim_start().strip_prefix('-').is_some_and(|rest| rest.starts_with(is_of_number)) {
        return Err(format!("a duration can't be negative; {HOW}"));
    }
    // Of a number below 1, the 0 may be left out.
    let zero = if text.trim_start().starts_with('.') { "0" } else { "" };
    let plain = format!("{zero}{}", text.trim());
    let duration = match plain.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) if is_decimal(&plain) => humantime::parse_duration(&format!("{plain}s")),
        Err(_) => humantime::parse_duration(&plain),
    };
    let duration = duration.map_err(|_| format!("that is not a duration; {HOW}"))?;
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms > DURATION_MS {
        return Err("that is more than 100 years".to_owned());
    }
    Ok(ms)
}

/// Reports whether a text is a number such as `0.5`, without a unit.
fn is_decimal(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('.').is_some_and(|(whole, part)| is_number(whole) && is_number(part))
}

/// Like [`parse_ms`], for a limit of a task.
///
/// # Errors
/// The text is not a duration, or is 0, which would leave the task no time.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    match parse_ms(text)? {
        0 => Err("a limit must be longer than 0".to_owned()),
        ms => Ok(ms),
    }
}

/// A timeout; `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<u64>);

/// Parses a duration or `none`.
///
/// # Errors
/// The text is neither.
pub fn parse_timeout(text: &str) -> Result<Timeout, String> {
    if text == "none" {
        return Ok(Timeout(None));
    }
    parse_ms(text).map(|ms| Timeout(Some(ms))).map_err(|error| format!("{error}; none means no limit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_in_common_notations() {
        assert_eq!(parse_ms("90s"), Ok(90_000));
        assert_eq!(parse_ms("10m"), Ok(600_000));
        assert_eq!(parse_ms("1h 30m"), Ok(5_400_000));
        assert_eq!(parse_ms("250ms"), Ok(250));
        assert_eq!(parse_ms("5"), Ok(5_000));
        for (text, ms) in [("0.5", 500), (" 1.25 ", 1250), ("0.5s", 500), ("1.5h", 5_400_000)] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for (text, ms) in [(".5", 500), (" .25 ", 250), (".5s", 500), (".5h", 1_800_000)] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for nothing in
            ["soon", "5x", "", "1h30", "5.", "5.s", ".", ".s", "..5", "1.2.3", ".1.2", "0,5", "1e3", "- .5"]
        {
            assert_eq!(
                parse_ms(nothing).unwrap_err(),
                "that is not a duration; use 90s, 10m, 1h30m, 1.5h or 500ms; a plain number means seconds",
                "{nothing}"
            );
        }
        for negative in ["-1s", "-5", " -10m", "-.5"] {
            assert!(parse_ms(negative).unwrap_err().contains("can't be negative"), "{negative}");
        }
        assert!(parse_ms("-").is_err() && parse_ms("--hold").unwrap_err().contains("use "));
        assert_eq!(parse_ms("100years"), Ok(DURATION_MS));
        assert!(parse_ms("200years").unwrap_err().contains("100 years"));
        assert!(parse_ms("99999999999999999999").is_err());
    }

    #[test]
    fn zero_limit_is_refused() {
        assert_eq!(parse_limit("1ms"), Ok(1));
        assert!(parse_limit("0s").unwrap_err().contains("longer than 0"));
    }

    #[test]
    fn timeout_accepts_none() {
        assert_eq!(parse_timeout("none"), Ok(Timeout(None)));
        assert_eq!(parse_timeout("0"), Ok(Timeout(Some(0))));
        assert!(parse_timeout("never").unwrap_err().contains("none"));
    }
}
