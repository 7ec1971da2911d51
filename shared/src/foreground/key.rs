//! The key that moves a foreground job to the background, as users write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::beginning;

/// The key that moves a foreground job to the background: Ctrl with another key, or none.
///
/// Written as `ctrl-b`, `ctrl+b`, `C-b` or `^B`, in any case, with a letter or one of `@ \ ] ^ _`, or as
/// `ctrl-space`, which is `ctrl-@`; `none` disables it. The job never sees the key, so keys that every job needs are
/// rejected: `ctrl-c` interrupts, and to a terminal `ctrl-i` is Tab, `ctrl-j` and `ctrl-m` are Enter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(Option<u8>);

/// Why a text is not a usable key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text does not name a key.
    #[error("{0:?} can't be used as the key: give `ctrl-` with a letter or one of @ \\ ] ^ _, or `none`")]
    Unknown(String),
    /// The key is Escape.
    #[error("{0:?} is Escape, which also starts arrow and other keys: give another key, such as ctrl-b")]
    Escape(String),
    /// Every job needs the key itself.
    #[error("{0:?} is {1}, which the job needs itself: give another key, such as ctrl-b")]
    Needed(String, &'static str),
}

impl Key {
    /// No key: nothing that is typed counts as a press.
    pub const NONE: Self = Self(None);

    /// Returns the control byte that terminals send for the key, 0x00 to 0x1f without 0x1b; `None` for no key.
    pub const fn byte(self) -> Option<u8> {
        self.0
    }

    /// Returns the hint to show while the key can be used, such as `[Ctrl-B] Background`; `None` for no key.
    pub fn hint(self) -> Option<String> {
        self.0.map(|_| format!("[{self}] Background"))
    }
}

/// Defaults to `ctrl-b`.
impl Default for Key {
    fn default() -> Self {
        Self(Some(0x02))
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let written = || beginning(text, 64).to_owned();
        let lower = text.to_ascii_lowercase();
        if lower == "none" {
            return Ok(Self::NONE);
        }
        let name = ["ctrl-", "ctrl+", "c-", "^"].iter().find_map(|prefix| lower.strip_prefix(prefix));
        let symbol = match name.map(str::as_bytes) {
            Some(b"space") => b'@',
            Some([symbol]) => symbol.to_ascii_uppercase(),
            _ => return Err(KeyError::Unknown(written())),
        };
        match symbol {
            b'[' => Err(KeyError::Escape(written())),
            b'C' => Err(KeyError::Needed(written(), "the interrupt")),
            b'I' => Err(KeyError::Needed(written(), "Tab")),
            b'J' | b'M' => Err(KeyError::Needed(written(), "Enter")),
            // Terminals derive a control byte from a key by clearing its upper bits.
            b'@'..=b'_' => Ok(Self(Some(symbol & 0x1f))),
            _ => Err(KeyError::Unknown(written())),
        }
    }
}

/// Formats the key for display: `Ctrl-B`, `none`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad("none"),
            Some(0) => f.pad("Ctrl-Space"),
            Some(byte) => f.pad(&format!("Ctrl-{}", char::from(byte | 0x40))),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Writes the key as in the configuration: `ctrl-b`, `none`.
impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string().to_ascii_lowercase())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Key {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Key".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The key that moves a foreground job to the background: ctrl- with a letter except c, i, j and m, or one of @ \\ ] ^ _; or none.",
            "type": "string",
            "default": "ctrl-b"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    #[test]
    fn key_is_parsed_in_every_spelling() {
        for text in ["ctrl-b", "Ctrl-B", "CTRL+b", "C-b", "c-B", "^B", "^b"] {
            assert_eq!(key(text), Key::default(), "{text}");
        }
        for text in ["ctrl-space", "C-@", "^@"] {
            assert_eq!(key(text).byte(), Some(0), "{text}");
        }
        let bytes: Vec<_> =
            ["^A", "^Z", "^\\", "^]", "^^", "^_"].iter().filter_map(|text| key(text).byte()).collect();
        assert_eq!(bytes, [1, 26, 28, 29, 30, 31]);
        assert_eq!(key("None"), Key::NONE);
    }

    #[test]
    fn invalid_key_is_refused_by_name() {
        for text in ["", "b", "ctrl", "ctrl-", "ctrl-1", "ctrl-bb", "ctrl--", "ctrl-é", "alt-b", "^?", " ^B"]
        {
            let error = text.parse::<Key>().unwrap_err();
            assert_eq!(error, KeyError::Unknown(text.to_owned()));
            assert!(error.to_string().contains(text), "{error}");
        }
        for text in ["ctrl-[", "^["] {
            assert_eq!(text.parse::<Key>(), Err(KeyError::Escape(text.to_owned())));
        }
        for (text, name) in
            [("ctrl-c", "the interrupt"), ("^i", "Tab"), ("C-j", "Enter"), ("ctrl-M", "Enter")]
        {
            let error = text.parse::<Key>().unwrap_err();
            assert_eq!(error, KeyError::Needed(text.to_owned(), name));
            assert!(error.to_string().contains("such as ctrl-b"), "{error}");
        }
    }

    #[test]
    fn every_key_survives_a_round_trip() {
        let keys = (0..0x20)
            .filter(|byte| ![0x03, 0x09, 0x0a, 0x0d, 0x1b].contains(byte))
            .map(|byte| Key(Some(byte)));
        for key in keys.chain([Key::NONE]) {
            assert_eq!(key.to_string().parse(), Ok(key));
            let json = serde_json::to_string(&key).unwrap();
            assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key, "{json}");
        }
        assert_eq!(serde_json::to_string(&Key::default()).unwrap(), r#""ctrl-b""#);
        let error = serde_json::from_str::<Key>(r#""f12""#).unwrap_err().to_string();
        assert!(error.contains(r#""f12" can't be used as the key"#), "{error}");
    }

    #[test]
    fn r60_hint_names_the_key() {
        let hints = ["ctrl-b", "ctrl-]", "ctrl-space"].map(|text| key(text).hint().unwrap());
        assert_eq!(hints, ["[Ctrl-B] Background", "[Ctrl-]] Background", "[Ctrl-Space] Background"]);
        assert_eq!(Key::NONE.hint(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text: String) {
            let _ = text.parse::<Key>();
            let _ = format!("ctrl-{text}").parse::<Key>();
        }
    }
}
