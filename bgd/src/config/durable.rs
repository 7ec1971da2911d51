//! The value of `durable`: false, true, or "sync".

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whether tasks outlive the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// All tasks end with the daemon.
    #[default]
    No,
    /// Tasks outlive the daemon.
    Yes,
    /// Tasks also outlive a power cut.
    Sync,
}

impl Serialize for Durable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::No => serializer.serialize_bool(false),
            Self::Yes => serializer.serialize_bool(true),
            Self::Sync => serializer.serialize_str("sync"),
        }
    }
}

impl<'de> Deserialize<'de> for Durable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl Visitor<'_> for Value {
            type Value = Durable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"sync\"")
            }

            fn visit_bool<E: Error>(self, is_durable: bool) -> Result<Durable, E> {
                Ok(if is_durable { Durable::Yes } else { Durable::No })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Durable, E> {
                match text {
                    "sync" => Ok(Durable::Sync),
                    other => Err(E::custom(format!("{other:?} is not true, false or \"sync\""))),
                }
            }
        }
        deserializer.deserialize_any(Value)
    }
}
