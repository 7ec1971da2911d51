//! Resource limits in a serialised core: one text, such as `as - -,core 0 -,nofile 1024 4096`. Nearly all tasks have
//! the same sixteen limits; as a map, they took up two fifths of a task's row and half of the time to read it.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};

use bgd_shared::rlimit::{Rlimit, Rlimits};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

thread_local! {
    /// The last limits read: the next ones are mostly the same.
    static LAST: RefCell<(String, Weak<Rlimits>)> = RefCell::default();
}

/// Returns the limits in this text: the last ones read if the text is the same, else the result of `read`.
fn shared<E>(text: &str, read: impl FnOnce() -> Result<Rlimits, E>) -> Result<Arc<Rlimits>, E> {
    LAST.with_borrow_mut(|(known, last)| {
        if let Some(same) = last.upgrade().filter(|_| known == text) {
            return Ok(same);
        }
        let read = Arc::new(read()?);
        (*known, *last) = (text.to_owned(), Arc::downgrade(&read));
        Ok(read)
    })
}

fn text_of(rlimits: &Rlimits) -> String {
    let value = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    let each = rlimits
        .iter()
        .map(|(name, Rlimit { soft, hard })| format!("{name} {} {}", value(*soft), value(*hard)));
    each.collect::<Vec<_>>().join(",")
}

fn parse(text: &str) -> Option<Rlimits> {
    let value = |text: &str| if text == "-" { Some(None) } else { text.parse().ok().map(Some) };
    let limit = |text: &str| {
        let mut words = text.split(' ');
        let (name, soft, hard) = (words.next()?, words.next()?, words.next()?);
        let limit = Rlimit { soft: value(soft)?, hard: value(hard)? };
        words.next().is_none().then(|| (name.to_owned(), limit))
    };
    if text.is_empty() {
        return Some(Rlimits::new());
    }
    let rlimits: Rlimits = text.split(',').map(limit).collect::<Option<_>>()?;
    // Only the canonical form is valid: no duplicate names, no other order, no `+1`.
    (text_of(&rlimits) == text && !rlimits.contains_key("")).then_some(rlimits)
}

/// Serialises limits, for `#[serde(with)]`.
#[allow(clippy::ref_option, reason = "serde's derive calls it with this type")]
pub fn serialize<S: Serializer>(rlimits: &Option<Arc<Rlimits>>, serializer: S) -> Result<S::Ok, S::Error> {
    rlimits.as_deref().map(text_of).serialize(serializer)
}

/// Deserialises limits, also from the map that earlier releases wrote.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Rlimits>>, D::Error> {
    Ok(Option::<Read>::deserialize(deserializer)?.map(|Read(rlimits)| rlimits))
}

struct Read(Arc<Rlimits>);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Arc<Rlimits>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("resource limits")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        shared(text, || parse(text).ok_or_else(|| E::custom("these are not resource limits")))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let rlimits = Rlimits::deserialize(MapAccessDeserializer::new(map))?;
        shared(&text_of(&rlimits), || Ok(rlimits))
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::rlimit::of_this_process;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct One(#[serde(with = "super")] Option<Arc<Rlimits>>);

    proptest! {
        #[test]
        fn r121_limits_survive_a_round_trip(
            limits in prop::collection::btree_map("[a-z]{1,10}", (any::<Option<u64>>(), any::<Option<u64>>()), 0..5)
        ) {
            let limits: Rlimits =
                limits.into_iter().map(|(name, (soft, hard))| (name, Rlimit { soft, hard })).collect();
            for one in [One(None), One(Some(Arc::new(limits)))] {
                let written = serde_json::to_string(&one).unwrap();
                prop_assert_eq!(serde_json::from_str::<One>(&written).unwrap(), one);
            }
        }

        #[test]
        fn parsed_limits_are_written_unchanged(text in "[a-b0-1 ,+-]{0,12}") {
            if let Some(limits) = parse(&text) {
                prop_assert_eq!(text_of(&limits), text);
            }
        }
    }

    #[test]
    fn malformed_limits_text_is_refused() {
        for text in [
            "a",
            "a 1",
            "a 1 2 3",
            "a 1 2,",
            "a x -",
            "a 1  2",
            " 1 2",
            "a +1 -",
            "a 01 -",
            "b 1 1,a 1 1",
            "a 1 1,a 2 2",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert!(parse("a 1 2,b - 3").is_some());
    }

    #[test]
    fn r123_limits_in_the_first_format_are_read() {
        let limits = Some(Arc::new(of_this_process()));
        let map = serde_json::to_string(&(&limits,)).unwrap();
        assert!(map.contains(r#""nofile":{"soft":"#), "{map}");
        assert_eq!(serde_json::from_str::<One>(&map[1..map.len() - 1]).unwrap(), One(limits));
    }

    #[test]
    fn consecutive_equal_limits_are_shared() {
        let text = serde_json::to_string(&One(Some(Arc::new(of_this_process())))).unwrap();
        let [one, other] = [(); 2].map(|()| serde_json::from_str::<One>(&text).unwrap().0.unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert!(!text.contains('{') && text.len() < 400, "{text}");
    }
}
