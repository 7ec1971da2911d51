//! Formats times in the user's time zone, to the second.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

use bgd_shared::time::Timestamp;
use jiff::Zoned;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// A time zone. The system's zone is read when the first time is shown, as most runs show none.
#[derive(Clone, Debug)]
pub enum Zone {
    Fixed(TimeZone),
    /// The zone of this process.
    System(OnceCell<TimeZone>),
}

impl Zone {
    pub const UTC: Self = Self::Fixed(TimeZone::UTC);

    fn zone(&self) -> &TimeZone {
        match self {
            Self::Fixed(zone) => zone,
            Self::System(zone) => zone.get_or_init(system_zone),
        }
    }

    /// Formats a time in this zone, as [`shown`] does.
    pub fn show(&self, at: Timestamp) -> String {
        let stamp = jiff::Timestamp::from_millisecond(at.unix_ms()).unwrap_or_default();
        shown(&stamp.to_zoned(self.zone().clone()))
    }
}

/// Formats a time to the second, such as `2026-03-01 17:45:09`; with its offset if the zone has this time twice, as when
/// daylight saving time ends.
pub fn shown(at: &Zoned) -> String {
    let is_twice =
        matches!(at.time_zone().to_ambiguous_timestamp(at.datetime()).offset(), AmbiguousOffset::Fold { .. });
    at.strftime(if is_twice { "%Y-%m-%d %H:%M:%S %:z" } else { "%Y-%m-%d %H:%M:%S" }).to_string()
}

/// Returns the time zone of this process: `$TZ`, else the system's, else UTC.
pub fn system_zone() -> TimeZone {
    local().unwrap_or_else(|| TimeZone::try_system().unwrap_or(TimeZone::UTC))
}

/// Reads the system's zone directly from its file. To find the name of the zone, which is not needed, jiff would read
/// all folders of the time zone database: a millisecond, as much as the rest of a short run.
fn local() -> Option<TimeZone> {
    if std::env::var_os("TZ").is_some() {
        return None;
    }
    zone_in(Path::new("/etc/localtime"))
}

fn zone_in(file: &Path) -> Option<TimeZone> {
    TimeZone::tzif("", &fs::read(file).ok()?).ok()
}

/// The current time and the time zone to show times in.
#[derive(Clone, Debug)]
pub struct Clock {
    pub now: Timestamp,
    zone: Zone,
}

impl Clock {
    /// Creates a clock in the time zone of this process.
    pub fn system(now: Timestamp) -> Self {
        Self { now, zone: Zone::System(OnceCell::new()) }
    }

    pub fn of(now: Timestamp, zone: Zone) -> Self {
        Self { now, zone }
    }

    /// Returns the same clock at another time.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        Self { now, zone: self.zone.clone() }
    }

    /// Formats a time with its date.
    pub fn show(&self, at: Timestamp) -> String {
        self.zone.show(at)
    }

    /// Formats a time, with its date unless that is today.
    pub fn near(&self, at: Timestamp) -> String {
        let (today, shown) = (self.zone.show(self.now), self.zone.show(at));
        match (today.split_once(' '), shown.split_once(' ')) {
            (Some((today, _)), Some((day, time))) if today == day => time.to_owned(),
            _ => shown,
        }
    }

    /// A UTC clock at second 1100.
    #[cfg(test)]
    pub fn of_tests() -> Self {
        Self::of(Timestamp::from_unix_ms(1_100_000), Zone::UTC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_is_read_from_its_file() {
        // A file of version 2 without transitions: twice the same header and the type UTC, then the rule.
        let header = [&b"TZif2"[..], &[0; 15 + 4 * 4], &[0, 0, 0, 1, 0, 0, 0, 4], &[0; 6], b"UTC\0"].concat();
        let rule = "CET-1CEST,M3.5.0,M10.5.0/3";
        let file = [&header, &header, format!("\n{rule}\n").as_bytes()].concat();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("localtime");
        assert_eq!(zone_in(&path), None);
        fs::write(&path, file).unwrap();
        let (zone, named) = (zone_in(&path).expect("a zone"), TimeZone::posix(rule).unwrap());
        for second in [0, 1_700_000_000, 1_720_000_000] {
            let at = jiff::Timestamp::from_second(second).unwrap();
            assert_eq!(zone.to_offset(at), named.to_offset(at));
        }
        fs::write(&path, "no zone").unwrap();
        assert_eq!(zone_in(&path), None);
    }

    #[test]
    fn local_zone_matches_named_system_zone() {
        // If the system has no zone, both are UTC.
        let (Some(local), Ok(named)) = (local(), TimeZone::try_system()) else { return };
        for second in [0, 1_700_000_000, 1_720_000_000] {
            let at = jiff::Timestamp::from_second(second).unwrap();
            assert_eq!(local.to_offset(at), named.to_offset(at));
        }
    }

    #[test]
    fn r105_time_that_occurs_twice_is_shown_with_its_offset() {
        let zone = || Zone::Fixed(TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap());
        let at =
            |text: &str| Timestamp::from_unix_ms(text.parse::<jiff::Timestamp>().unwrap().as_millisecond());
        for (text, wanted) in [
            ("2027-11-07T04:59:59Z", "2027-11-07 00:59:59"),
            ("2027-11-07T05:30:00Z", "2027-11-07 01:30:00 -04:00"),
            ("2027-11-07T06:30:00Z", "2027-11-07 01:30:00 -05:00"),
            ("2027-11-07T07:00:00Z", "2027-11-07 02:00:00"),
        ] {
            assert_eq!(zone().show(at(text)), wanted);
        }
        let clock = Clock::of(at("2027-11-07T07:00:00Z"), zone());
        assert_eq!(clock.near(at("2027-11-07T06:30:00Z")), "01:30:00 -05:00");
    }

    #[test]
    fn time_is_shown_to_the_second_in_given_zone() {
        let at = Timestamp::from_unix_ms(1_002_999);
        assert_eq!(Zone::UTC.show(at), "1970-01-01 00:16:42");
        let east = Zone::Fixed(TimeZone::fixed(jiff::tz::offset(9)));
        assert_eq!(east.show(at), "1970-01-01 09:16:42");
    }
}
