//! Durations in the configuration.

use std::fmt;
use std::time::Duration;

use bgd_shared::limits;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration, written as a text such as `5s` or `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SpanVisitor)
    }
}

struct SpanVisitor;

impl de::Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"5s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
        let span = humantime::parse_duration(text)
            .map_err(|error| E::custom(format_args!("{text:?} is not a duration such as \"5s\": {error}")))?;
        if span.as_millis() > limits::DURATION_MS.into() {
            return Err(E::custom(format_args!("{text:?} is longer than 100 years")));
        }
        Ok(Span(span))
    }
}
