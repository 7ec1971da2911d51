//! Task ids, and how users refer to them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limits::ID_PREFIX_CHARS;
use crate::splitmix::{STEP, mix};

/// The id of a task: a random UUID, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskId(Uuid);

impl TaskId {
    /// Creates a random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Creates an id from its 128 bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }

    /// Returns the 128 bits of this id. They sort like the written ids.
    pub fn as_u128(self) -> u128 {
        self.0.as_u128()
    }

    /// Returns the id of a member of the batch with this id: always the same one, spread like a random one. Other
    /// releases must return the same one, as a batch may be submitted again after an upgrade.
    #[must_use]
    pub fn member(self, index: u64) -> Self {
        let (high, low) = self.0.as_u64_pair();
        let step = STEP.wrapping_mul(index.wrapping_add(1));
        let low = mix(low.wrapping_add(step));
        let bits = (u128::from(mix(high ^ mix(low))) << 64) | u128::from(low);
        Self(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
    }

    /// Returns the first eight characters, as shown in tables.
    pub fn short(self) -> String {
        let mut text = self.to_string();
        text.truncate(8);
        text
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Parses a complete id. For user input, where a prefix is enough, see [`TaskRef`].
impl FromStr for TaskId {
    type Err = TaskRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let reference: TaskRef = text.parse()?;
        reference.exact().ok_or(TaskRefError::NotAnId(reference.text))
    }
}

/// A task as named by a user: its id, or a prefix of at least four characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRef {
    text: String,
    low: u128,
    high: u128,
}

/// Why a text can't refer to a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskRefError {
    /// Empty: in a script, the command that should print the id printed nothing.
    #[error("the task id is empty: did the command that should print it fail?")]
    Empty,
    /// Fewer than four characters.
    #[error("task id {0:?} is too short: give at least its first {ID_PREFIX_CHARS} characters")]
    TooShort(String),
    /// A character that no UUID contains, a hyphen in the wrong place, or too many characters.
    #[error(
        "{0:?} is not a task id: ids are UUIDs such as 3f2a9c1e-5d04-4b7a-9e61-c2f80d3b7a15, or their first characters"
    )]
    NotAnId(String),
}

impl TaskRef {
    /// Returns the smallest and the largest id that begin with this text.
    pub fn range(&self) -> std::ops::RangeInclusive<TaskId> {
        TaskId::from_u128(self.low)..=TaskId::from_u128(self.high)
    }

    /// Returns the id if the text is complete.
    pub fn exact(&self) -> Option<TaskId> {
        (self.low == self.high).then(|| TaskId::from_u128(self.low))
    }

    /// Returns the text as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<TaskId> for TaskRef {
    fn from(id: TaskId) -> Self {
        Self { text: id.to_string(), low: id.as_u128(), high: id.as_u128() }
    }
}

impl FromStr for TaskRef {
    type Err = TaskRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not_an_id = || TaskRefError::NotAnId(text.chars().take(64).collect());
        let hyphen_at = |place: usize| matches!(place, 8 | 13 | 18 | 23);
        let mut bits: u128 = 0;
        let mut digits = 0_u32;
        let hyphenated = text.contains('-');
        for (place, character) in text.chars().enumerate() {
            if hyphenated && hyphen_at(place) {
                if character != '-' {
                    return Err(not_an_id());
                }
                continue;
            }
            let digit = character.to_digit(16).ok_or_else(not_an_id)?;
            if digits == 32 {
                return Err(not_an_id());
            }
            bits = (bits << 4) | u128::from(digit);
            digits += 1;
        }
        if text.is_empty() {
            return Err(TaskRefError::Empty);
        }
        if (digits as usize) < ID_PREFIX_CHARS {
            return Err(TaskRefError::TooShort(text.to_owned()));
        }
        let free = 4 * (32 - digits);
        let low = bits << free;
        let high = low | 1_u128.checked_shl(free).map_or(u128::MAX, |one| one - 1);
        Ok(Self { text: text.to_owned(), low, high })
    }
}

impl Serialize for TaskRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for TaskRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for TaskRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TaskRef".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A task id, or a unique prefix of one of four characters or more.",
            "type": "string",
            "minLength": ID_PREFIX_CHARS
        })
    }
}

/// Prefix of the idempotency keys that a program makes up.
const MADE_UP: &str = "auto:";

/// Makes up an idempotency key for a request that its user gave none, so that it can be sent again.
pub fn made_up_key() -> String {
    format!("{MADE_UP}{}", TaskId::random())
}

/// Reports whether a program made up this idempotency key: its user has never seen it.
pub fn is_made_up_key(key: &str) -> bool {
    key.strip_prefix(MADE_UP).is_some_and(|id| id.parse::<TaskId>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_prefix_range_contains_its_id(bits: u128, length in 4usize..=36) {
            let id = TaskId::from_u128(bits);
            let reference: TaskRef = id.to_string()[..length].parse().unwrap();
            prop_assert!(reference.range().contains(&id));
            prop_assert_eq!(reference.exact(), (length == 36).then_some(id));
        }

        #[test]
        fn arbitrary_text_never_panics(text: String) {
            let _ = text.parse::<TaskRef>();
        }
    }

    #[test]
    fn id_without_hyphens_is_accepted() {
        let id = TaskId::random();
        let text = id.to_string().replace('-', "");
        assert_eq!(text.parse::<TaskRef>().unwrap().exact(), Some(id));
    }

    #[test]
    fn ids_of_members_are_the_same_in_every_release() {
        let members = [0, 1].map(|index| TaskId::from_u128(7).member(index).to_string());
        assert_eq!(members, ["10d66daa-ae4a-4bb0-a3cb-e1e459320dd7", "766ea049-b109-410d-844c-3cd7f43c661c"]);
    }

    #[test]
    fn made_up_key_differs_from_one_that_a_user_gave() {
        assert!(is_made_up_key(&made_up_key()));
        for key in ["build-42", "auto:build", &TaskId::random().to_string()] {
            assert!(!is_made_up_key(key), "{key}");
        }
    }

    #[test]
    fn invalid_ids_are_classified() {
        assert!(matches!("abc".parse::<TaskRef>(), Err(TaskRefError::TooShort(_))));
        assert_eq!("".parse::<TaskRef>(), Err(TaskRefError::Empty));
        for text in ["nope", "12345678x", "1234-5678", "3f2a9c1e-aaaa-aaaa-aaaa-aaaaaaaaaaaaa"] {
            assert!(matches!(text.parse::<TaskRef>(), Err(TaskRefError::NotAnId(_))), "{text}");
        }
    }
}
