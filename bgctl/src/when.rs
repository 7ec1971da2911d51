//! The times of `--at` and `--since`: an instant with an offset, a local date and time, or how long ago it was.

use bgd_shared::time::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{ToSpan as _, Zoned};

use crate::duration::parse_ms;
use crate::render::wall::{shown, system_zone};

/// The accepted formats.
const FORMS: &str = "use 14:30, 2026-03-01 14:30, or 2026-03-01T14:30:00Z";

/// The accepted formats of a past time.
const PAST_FORMS: &str = "use 2h (ago), 14:30, today, yesterday, 2026-03-01, or 2026-03-01 14:30";

/// How many days to search for a time of day: a daylight saving change can skip it on at most one of them.
const DAYS: i64 = 3;

/// Parses a future time, in the time zone of this process unless the text has an offset.
///
/// # Errors
/// The text is not a time, is in the past, or is skipped by a daylight saving change.
pub fn parse_at(text: &str) -> Result<Timestamp, String> {
    let now = jiff::Timestamp::now().to_zoned(system_zone());
    read(text, &now).map(|at| Timestamp::from_unix_ms(at.as_millisecond()))
}

/// Parses a past time, in the time zone of this process unless the text has an offset: how long ago it was, or when.
///
/// # Errors
/// The text is not a time, is in the future, or is skipped by a daylight saving change.
pub fn parse_since(text: &str) -> Result<Timestamp, String> {
    let now = jiff::Timestamp::now().to_zoned(system_zone());
    read_past(text, &now).map(|at| Timestamp::from_unix_ms(at.as_millisecond()))
}

fn read_past(text: &str, now: &Zoned) -> Result<jiff::Timestamp, String> {
    let text = text.trim();
    let midnight = |date: Date| {
        let day = now.time_zone().to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
        day.compatible().map_err(|_| impossible(text, PAST_FORMS))
    };
    let yesterday = now.date().checked_sub(1.days()).map_err(|_| impossible(text, PAST_FORMS));
    let at = if is_time_of_day(text) {
        last(text.parse().map_err(|_| impossible(text, PAST_FORMS))?, now)?
    } else if text.eq_ignore_ascii_case("today") {
        midnight(now.date())?
    } else if text.eq_ignore_ascii_case("yesterday") {
        midnight(yesterday?)?
    } else if begins_with_date(text) && text.contains('[') {
        in_zone(text, PAST_FORMS)?
    } else if begins_with_date(text) {
        match (text.parse::<jiff::Timestamp>(), text.parse::<Date>()) {
            (Ok(at), _) => at,
            (Err(_), Ok(date)) if text.len() <= 10 => midnight(date)?,
            (Err(_), _) => on_wall(text, now.time_zone(), PAST_FORMS)?,
        }
    } else {
        let ago = parse_ms(text).map_err(|_| format!("{text:?} is not a time; {PAST_FORMS}"))?;
        let ago = i64::try_from(ago).unwrap_or(i64::MAX);
        now.timestamp().checked_sub(ago.milliseconds()).map_err(|_| impossible(text, PAST_FORMS))?
    };
    if at > now.timestamp() {
        return Err(format!("{text} is in the future: it is {} now", shown(now)));
    }
    Ok(at)
}

fn begins_with_date(text: &str) -> bool {
    text.get(..10).is_some_and(|date| date.matches('-').count() == 2)
}

fn read(text: &str, now: &Zoned) -> Result<jiff::Timestamp, String> {
    let text = text.trim();
    if is_time_of_day(text) {
        return next(text.parse().map_err(|_| impossible(text, FORMS))?, now);
    }
    let padded = format!("0{text}");
    if is_time_of_day(&padded) {
        return Err(format!("{text:?} is not a time; write {padded}"));
    }
    if !begins_with_date(text) {
        return Err(format!("{text:?} is not a time; {FORMS}"));
    }
    let at = match text.parse::<jiff::Timestamp>() {
        _ if text.contains('[') => in_zone(text, FORMS)?,
        Ok(at) => at,
        Err(_) => on_wall(text, now.time_zone(), FORMS)?,
    };
    if at <= now.timestamp() {
        return Err(format!("{text} is in the past: it is {} now", shown(now)));
    }
    Ok(at)
}

/// Returns whether the text has the form `14:30` or `14:30:05`.
fn is_time_of_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    matches!(parts.len(), 2 | 3)
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn impossible(text: &str, forms: &str) -> String {
    format!("{text} is not a valid time; {forms}")
}

/// Parses a date and time with a time zone in brackets (RFC 9557), which parsers of other types ignore. A time that occurs
/// twice resolves to the first, unless its offset says which it is.
fn in_zone(text: &str, forms: &str) -> Result<jiff::Timestamp, String> {
    let zoned: Zoned = text.parse().map_err(|_| impossible(text, forms))?;
    let (begin, _) = text.split_once('[').unwrap_or((text, ""));
    if begin.len() <= 10 {
        return Err(format!("{text} has no time of day; {forms}"));
    }
    // The parser moves a skipped time.
    if begin.parse::<DateTime>().is_ok_and(|local| local != zoned.datetime()) {
        return Err(format!("{text} does not exist there: daylight saving time skips it"));
    }
    Ok(zoned.timestamp())
}

/// Parses a local date and time in this zone. A time that occurs twice resolves to the first.
fn on_wall(text: &str, zone: &TimeZone, forms: &str) -> Result<jiff::Timestamp, String> {
    if text.len() <= 10 {
        let is_date = text.parse::<Date>().is_ok();
        let lacks =
            if is_date { format!("{text} has no time of day; {forms}") } else { impossible(text, forms) };
        return Err(lacks);
    }
    let local: DateTime = text.parse().map_err(|_| impossible(text, forms))?;
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if let AmbiguousOffset::Gap { .. } = ambiguous.offset() {
        return Err(format!("{text} does not exist here: daylight saving time skips it"));
    }
    ambiguous.earlier().map_err(|_| impossible(text, forms))
}

/// Returns when this time of day occurs next.
fn next(time: Time, now: &Zoned) -> Result<jiff::Timestamp, String> {
    let days = (0..DAYS).filter_map(|days| now.date().checked_add(days.days()).ok());
    let next = occurrences(time, days, now).find(|at| *at > now.timestamp());
    next.ok_or_else(|| impossible(&time.to_string(), FORMS))
}

/// Returns when this time of day last occurred.
fn last(time: Time, now: &Zoned) -> Result<jiff::Timestamp, String> {
    let days = (0..DAYS).filter_map(|days| now.date().checked_sub(days.days()).ok());
    let last = occurrences(time, days, now).filter(|at| *at <= now.timestamp()).max();
    last.ok_or_else(|| impossible(&time.to_string(), PAST_FORMS))
}

/// Returns when this time of day occurs on these days.
fn occurrences(
    time: Time,
    days: impl Iterator<Item = Date>,
    now: &Zoned,
) -> impl Iterator<Item = jiff::Timestamp> {
    let times = days.flat_map(move |day| {
        let ambiguous = now.time_zone().to_ambiguous_timestamp(day.to_datetime(time));
        match ambiguous.offset() {
            AmbiguousOffset::Gap { .. } => [None, None],
            AmbiguousOffset::Unambiguous { .. } => [ambiguous.earlier().ok(), None],
            AmbiguousOffset::Fold { .. } => [ambiguous.earlier().ok(), ambiguous.later().ok()],
        }
    });
    times.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, now: &str) -> Result<String, String> {
        let now: Zoned = now.parse().unwrap();
        read(text, &now).map(|at| at.to_zoned(now.time_zone().clone()).strftime("%F %T %:z").to_string())
    }

    fn since(text: &str, now: &str) -> Result<String, String> {
        let now: Zoned = now.parse().unwrap();
        let at = read_past(text, &now);
        at.map(|at| at.to_zoned(now.time_zone().clone()).strftime("%F %T %:z").to_string())
    }

    const NOON: &str = "2026-11-23T12:00:00+01:00[Europe/Berlin]";

    #[test]
    fn r105_time_of_day_means_its_next_occurrence() {
        assert_eq!(at("14:00", NOON).unwrap(), "2026-11-23 14:00:00 +01:00");
        assert_eq!(at("14:00:07", NOON).unwrap(), "2026-11-23 14:00:07 +01:00");
        assert_eq!(at("12:00", NOON).unwrap(), "2026-11-24 12:00:00 +01:00", "not now");
        assert_eq!(at("03:30", NOON).unwrap(), "2026-11-24 03:30:00 +01:00");
    }

    #[test]
    fn r105_date_is_local_unless_it_has_an_offset() {
        for text in ["2026-12-01 08:15", "2026-12-01T08:15", "2026-12-01 08:15:00"] {
            assert_eq!(at(text, NOON).unwrap(), "2026-12-01 08:15:00 +01:00", "{text}");
        }
        for text in ["2026-12-01T08:15:00Z", "2026-12-01 10:15:00+02:00"] {
            assert_eq!(at(text, NOON).unwrap(), "2026-12-01 09:15:00 +01:00", "{text}");
        }
    }

    #[test]
    fn r105_time_zone_in_brackets_counts() {
        for text in [
            "2026-12-01T08:15[America/New_York]",
            "2026-12-01 08:15:00[America/New_York]",
            "2026-12-01T08:15-05:00[America/New_York]",
            "2026-12-01T13:15Z[America/New_York]",
        ] {
            assert_eq!(at(text, NOON).unwrap(), "2026-12-01 14:15:00 +01:00", "{text}");
        }
        assert_eq!(since("2026-11-23 05:00[America/New_York]", NOON).unwrap(), "2026-11-23 11:00:00 +01:00");
        for (text, expected) in [
            ("2026-12-01T08:15[Nowhere/Else]", "is not a valid time"),
            ("2026-12-01T08:15+05:00[America/New_York]", "is not a valid time"),
            ("2027-03-14T02:30[America/New_York]", "does not exist there"),
            ("2026-12-01[America/New_York]", "has no time of day"),
            ("2026-12-01T08:15[America/New_York", "is not a valid time"),
            ("14:30[America/New_York]", "is not a time;"),
        ] {
            let error = at(text, NOON).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(since(text, "2028-01-01T00:00:00+01:00[Europe/Berlin]").is_err(), "{text}");
        }
    }

    #[test]
    fn r105_past_or_invalid_times_are_refused_with_reason() {
        for (text, expected) in [
            ("2026-11-23 11:59", "2026-11-23 11:59 is in the past: it is 2026-11-23 12:00:00 now"),
            ("2026-11-23T11:00:00Z", "is in the past"),
            ("25:00", "25:00 is not a valid time"),
            ("12:60", "12:60 is not a valid time"),
            ("2026-13-01 10:00", "is not a valid time"),
            ("2026-02-30 10:00", "is not a valid time"),
            ("2026-02-30", "is not a valid time"),
            ("2026-12-01", "has no time of day"),
            ("2027-03-28 02:30", "does not exist here"),
            ("tomorrow", "\"tomorrow\" is not a time; use 14:30"),
            ("", "is not a time;"),
            ("8:15", "is not a time; write 08:15"),
            ("14", "is not a time;"),
        ] {
            let error = at(text, NOON).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn r105_skipped_time_moves_to_next_day_and_repeated_time_means_the_first() {
        let before = "2027-03-28T01:00:00+01:00[Europe/Berlin]";
        assert_eq!(at("02:30", before).unwrap(), "2027-03-29 02:30:00 +02:00");
        let first = "2026-10-25T02:00:00+02:00[Europe/Berlin]";
        assert_eq!(at("02:30", first).unwrap(), "2026-10-25 02:30:00 +02:00");
        let between = "2026-10-25T02:45:00+02:00[Europe/Berlin]";
        assert_eq!(at("02:30", between).unwrap(), "2026-10-25 02:30:00 +01:00");
        assert_eq!(at("2026-10-25 02:30", first).unwrap(), "2026-10-25 02:30:00 +02:00");
        let error = at("2026-10-25 02:30", between).unwrap_err();
        assert!(error.ends_with("is in the past: it is 2026-10-25 02:45:00 +02:00 now"), "{error}");
    }

    #[test]
    fn r129_since_accepts_durations_and_dates() {
        for (text, expected) in [
            ("2h", "2026-11-23 10:00:00 +01:00"),
            ("1h 30m", "2026-11-23 10:30:00 +01:00"),
            ("30d", "2026-10-24 13:00:00 +02:00"),
            ("12:00", "2026-11-23 12:00:00 +01:00"),
            ("14:30", "2026-11-22 14:30:00 +01:00"),
            ("today", "2026-11-23 00:00:00 +01:00"),
            ("Yesterday", "2026-11-22 00:00:00 +01:00"),
            ("2026-03-01", "2026-03-01 00:00:00 +01:00"),
            ("2026-07-01 14:30", "2026-07-01 14:30:00 +02:00"),
            ("2026-03-01T12:00:00Z", "2026-03-01 13:00:00 +01:00"),
        ] {
            assert_eq!(since(text, NOON).as_deref(), Ok(expected), "{text}");
        }
        let first = "2026-10-25T02:45:00+01:00[Europe/Berlin]";
        assert_eq!(since("02:30", first).unwrap(), "2026-10-25 02:30:00 +01:00", "the later of two");
    }

    #[test]
    fn r129_future_or_invalid_times_are_refused_with_reason() {
        for (text, expected) in [
            ("2026-11-23 12:01", "2026-11-23 12:01 is in the future: it is 2026-11-23 12:00:00 now"),
            ("2026-11-24", "is in the future"),
            ("2026-02-30", "2026-02-30 is not a valid time; use 2h (ago)"),
            ("25:00", "is not a valid time"),
            ("soon", "\"soon\" is not a time; use 2h (ago)"),
            ("-2h", "is not a time"),
            ("", "is not a time"),
        ] {
            let error = since(text, NOON).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
