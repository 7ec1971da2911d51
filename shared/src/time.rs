//! Points in time on the wire: RFC 3339, UTC, milliseconds.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A wall-clock time in milliseconds since 1970-01-01T00:00:00Z. For people only: no decision depends on it, because
/// such a clock can be set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// Range of RFC 3339 in milliseconds (years 0 to 9999).
const RANGE_MS: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_207_200_000;

impl Timestamp {
    /// Creates a time from milliseconds since 1970, clamped to the range of RFC 3339.
    pub fn from_unix_ms(ms: i64) -> Self {
        Self(ms.clamp(*RANGE_MS.start(), *RANGE_MS.end()))
    }

    /// Returns the current wall-clock time.
    pub fn now() -> Self {
        Self::from_unix_ms(jiff::Timestamp::now().as_millisecond())
    }

    /// Returns when a file was last changed; `None` if it does not exist.
    pub fn of_file(path: &Path) -> Option<Self> {
        std::fs::metadata(path).and_then(|file| file.modified()).ok().map(Self::from)
    }

    /// Returns the time `ms` milliseconds later.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self::from_unix_ms(self.0.saturating_add_unsigned(ms))
    }

    /// Returns how many milliseconds this is after `earlier`; 0 if it is before that.
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// Returns the milliseconds since 1970.
    pub fn unix_ms(self) -> i64 {
        self.0
    }
}

/// Clamps times that RFC 3339 can't express.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        Self::from_unix_ms(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => ms(after),
            Err(before) => -ms(before.duration()),
        })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = jiff::Timestamp::from_millisecond(self.0).unwrap_or_default();
        write!(f, "{stamp:.3}")
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|stamp| Self::from_unix_ms(stamp.as_millisecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        // The parser's own words describe its grammar, but do not name the format.
        let wanted = "a time as in RFC 3339, such as \"2026-11-29T08:30:00Z\"";
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &wanted))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "RFC 3339, UTC, milliseconds.",
            "type": "string",
            "format": "date-time"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_set_back_yields_zero_age() {
        let at = Timestamp::from_unix_ms;
        assert_eq!((at(10).millis_since(at(5)), at(5).millis_since(at(10))), (5, 0));
    }

    #[test]
    fn timestamp_is_written_in_utc_with_milliseconds() {
        let stamp = Timestamp::from_unix_ms(1_760_000_000_007);
        assert_eq!(stamp.to_string(), "2025-10-09T08:53:20.007Z");
        assert_eq!(stamp.to_string().parse::<Timestamp>().unwrap(), stamp);
    }

    #[test]
    fn time_that_rfc_3339_can_not_express_is_the_nearest_one_that_it_can() {
        let stamp: Timestamp = "-000044-03-15T00:00:00Z".parse().unwrap();
        assert_eq!(stamp, Timestamp::from_unix_ms(i64::MIN));
        assert_eq!(stamp.to_string(), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn extreme_timestamps_survive_a_round_trip() {
        for ms in [i64::MIN, i64::MAX, 0, -1] {
            let stamp = Timestamp::from_unix_ms(ms);
            assert_eq!(stamp.to_string().parse::<Timestamp>().unwrap(), stamp);
        }
    }
}
