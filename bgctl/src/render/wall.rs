//! Times as the clock on the wall shows them to whoever looks: in their time zone, to the second.

use bgd_shared::time::Timestamp;
use jiff::tz::TimeZone;

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl Zone {
    /// UTC.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// That of this process: `$TZ`, else that of the system; UTC where neither says.
    pub fn system() -> Self {
        Self(TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }

    /// A time there, such as `2026-03-01 17:45:09`.
    pub fn show(&self, at: Timestamp) -> String {
        let stamp = jiff::Timestamp::from_millisecond(at.unix_ms()).unwrap_or_default();
        stamp.to_zoned(self.0.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }
}

/// The time that it is, on the wall of whoever looks.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time.
    pub now: Timestamp,
    zone: Zone,
}

impl Clock {
    /// The clock of this process, showing this time.
    pub fn system(now: Timestamp) -> Self {
        Self { now, zone: Zone::system() }
    }

    /// The clock of somebody elsewhere.
    pub fn of(now: Timestamp, zone: Zone) -> Self {
        Self { now, zone }
    }

    /// The same clock at another time.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        Self { now, zone: self.zone.clone() }
    }

    /// A time with its date.
    pub fn show(&self, at: Timestamp) -> String {
        self.zone.show(at)
    }

    /// A time, with its date unless that is today.
    pub fn near(&self, at: Timestamp) -> String {
        let (today, shown) = (self.zone.show(self.now), self.zone.show(at));
        match (today.split_once(' '), shown.split_once(' ')) {
            (Some((today, _)), Some((day, time))) if today == day => time.to_owned(),
            _ => shown,
        }
    }

    /// One in UTC at second 1100.
    #[cfg(test)]
    pub fn of_tests() -> Self {
        Self::of(Timestamp::from_unix_ms(1_100_000), Zone::UTC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_shows_seconds_of_its_own_zone() {
        let at = Timestamp::from_unix_ms(1_002_999);
        assert_eq!(Zone::UTC.show(at), "1970-01-01 00:16:42");
        let east = Zone(TimeZone::fixed(jiff::tz::offset(9)));
        assert_eq!(east.show(at), "1970-01-01 09:16:42");
    }
}
