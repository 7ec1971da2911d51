//! Text as the operating system has it: bytes that are nearly always UTF-8.
//!
//! Arguments, folders and environment values may hold any byte but NUL. JSON can't, so such a value is a string if it
//! is UTF-8, else `{"base64": "…"}`. Nothing is lost, and the usual case stays readable.
//!
//! All cuts of a text by bytes or characters are here, too; `width` cuts by columns.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// Returns the longest prefix of a text that has at most `bytes` bytes and ends at a character boundary.
pub fn beginning(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Returns the longest suffix of a text that has at most `bytes` bytes and begins at a character boundary.
pub fn ending(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Returns the first `chars` characters of a text, with an ellipsis if there are more.
pub fn truncated(text: &str, chars: usize) -> String {
    let end = text.char_indices().nth(chars).map_or(text.len(), |(end, _)| end);
    truncated_to_bytes(text, end)
}

/// Returns the [`beginning`] of a text, with an ellipsis if there is more.
pub fn truncated_to_bytes(text: &str, bytes: usize) -> String {
    let kept = beginning(text, bytes);
    if kept.len() == text.len() { text.to_owned() } else { format!("{kept}…") }
}

/// Shortens a text to at most `most` characters, with an ellipsis in the middle: either end may distinguish one
/// command from another.
pub fn shortened(text: &str, most: usize) -> String {
    shortened_with(text, most, "…")
}

/// Like [`shortened`], with this sign in place of what is left out.
pub fn shortened_with(text: &str, most: usize, sign: &str) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(sign.chars().count());
    let (front, back) = (kept - kept / 2, kept / 2);
    let is_kept = |(place, _): &(usize, char)| *place < front || *place >= count - back;
    let mut out: String = text.chars().enumerate().filter(is_kept).map(|(_, c)| c).collect();
    let at = out.char_indices().nth(front).map_or(out.len(), |(at, _)| at);
    out.insert_str(at, sign);
    out
}

/// An argument, a path or an environment value: any bytes, written as a JSON string if they are UTF-8.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsText(Box<[u8]>);

impl OsText {
    /// Returns the raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes for use in paths and arguments.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Returns the text for display, with U+FFFD for bytes that are not UTF-8.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Reports whether it contains a NUL byte, which no argument, path or environment value can hold.
    pub fn has_nul(&self) -> bool {
        self.0.contains(&0)
    }
}

impl fmt::Debug for OsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl From<&str> for OsText {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for OsText {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<Vec<u8>> for OsText {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<OsString> for OsText {
    fn from(text: OsString) -> Self {
        Self(text.into_vec().into())
    }
}

impl From<&OsStr> for OsText {
    fn from(text: &OsStr) -> Self {
        Self(text.as_bytes().into())
    }
}

impl Serialize for OsText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            serializer.serialize_str(text)
        } else {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
            map.end()
        }
    }
}

impl<'de> Deserialize<'de> for OsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OsTextVisitor;

        impl<'de> Visitor<'de> for OsTextVisitor {
            type Value = OsText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or {\"base64\": \"…\"} for bytes that are not UTF-8")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OsText, E> {
                Ok(OsText::from(text))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<OsText, E> {
                Ok(OsText::from(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OsText, A::Error> {
                let Some((key, value)) = map.next_entry::<String, String>()? else {
                    return Err(de::Error::invalid_length(0, &self));
                };
                if key != "base64" || map.next_key::<String>()?.is_some() {
                    return Err(de::Error::custom("only the key `base64` is allowed here"));
                }
                let bytes = STANDARD
                    .decode(value)
                    .map_err(|error| de::Error::custom(format_args!("base64: {error}")))?;
                Ok(OsText::from(bytes))
            }
        }

        deserializer.deserialize_any(OsTextVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for OsText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OsText".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Any bytes but NUL: a string where they are UTF-8, else an object with base64.",
            "oneOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string", "contentEncoding": "base64" } },
                    "required": ["base64"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// A complete environment: names and values in the caller's order.
///
/// A JSON object on the wire. Duplicate names are kept, as by `execve`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Env(pub Box<[(Box<str>, OsText)]>);

impl Env {
    /// Returns the environment of this process. Variables whose names are not UTF-8 can't be represented and are left
    /// out.
    pub fn of_this_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    /// Returns the first value of a name.
    pub fn get(&self, name: &str) -> Option<&OsText> {
        self.0.iter().find(|(key, _)| &**key == name).map(|(_, value)| value)
    }
}

/// Shows only the size, since environments hold secrets.
impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({} variables)", self.0.len())
    }
}

impl FromIterator<(Box<str>, OsText)> for Env {
    fn from_iter<I: IntoIterator<Item = (Box<str>, OsText)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl Serialize for Env {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Env {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EnvVisitor;

        impl<'de> Visitor<'de> for EnvVisitor {
            type Value = Env;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of environment variables")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Env, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(32));
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Env(pairs.into()))
            }
        }

        deserializer.deserialize_map(EnvVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Env {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Env".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let value = generator.subschema_for::<OsText>();
        schemars::json_schema!({
            "description": "A complete environment: variable names and their values.",
            "type": "object",
            "additionalProperties": value
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_keep_leading_zeros() {
        assert_eq!(hex(&[0, 0x0a, 0xf0, 0xff]), "000af0ff");
    }
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_survive_json(bytes: Vec<u8>) {
            let text = OsText::from(bytes.clone());
            let json = serde_json::to_string(&text).unwrap();
            let back: OsText = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn text_is_cut_between_characters_and_marked_only_if_cut() {
        assert_eq!((beginning("äöü", 3), ending("äöü", 3), ending("äöü", 9)), ("ä", "ü", "äöü"));
        assert_eq!([2, 3].map(|chars| truncated("äöü", chars)), ["äö…", "äöü"]);
        assert_eq!([5, 6].map(|bytes| truncated_to_bytes("äöü", bytes)), ["äö…", "äöü"]);
        assert_eq!([1, 4, 5].map(|most| shortened("abcde", most)), ["…", "ab…e", "abcde"]);
    }

    #[test]
    fn utf8_stays_readable_and_other_bytes_are_base64() {
        assert_eq!(serde_json::to_string(&OsText::from("é")).unwrap(), "\"é\"");
        let latin1 = OsText::from(vec![0xe9]);
        assert_eq!(serde_json::to_string(&latin1).unwrap(), r#"{"base64":"6Q=="}"#);
        assert!(serde_json::from_str::<OsText>(r#"{"hex":"00"}"#).is_err());
        assert!(serde_json::from_str::<OsText>(r#"{"base64":"?"}"#).is_err());
    }

    #[test]
    fn debug_output_hides_the_environment() {
        let env: Env = [("TOKEN".into(), OsText::from("secret"))].into_iter().collect();
        assert_eq!(format!("{env:?}"), "Env(1 variables)");
        assert_eq!(serde_json::to_string(&env).unwrap(), r#"{"TOKEN":"secret"}"#);
    }
}
