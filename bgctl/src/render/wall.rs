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
