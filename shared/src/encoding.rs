//! Output and input of tasks as JSON strings: text if the bytes are UTF-8, else base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Encoding of bytes in a JSON string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Encoding {
    /// Plain text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64.
    #[serde(rename = "base64")]
    Base64,
}

impl Encoding {
    /// Encodes bytes as text if they are UTF-8, else as base64.
    pub fn encode(bytes: Vec<u8>) -> (String, Self) {
        match String::from_utf8(bytes) {
            Ok(text) => (text, Self::Utf8),
            Err(error) => (STANDARD.encode(error.as_bytes()), Self::Base64),
        }
    }

    /// Encodes bytes as text if they are UTF-8 and not longer that way than as base64, since JSON escapes control
    /// characters: for lines of limited length.
    pub fn encode_short(bytes: Vec<u8>) -> (String, Self) {
        let escaped = |byte: &u8| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..0x20 => 6,
            _ => 1,
        };
        if bytes.iter().map(escaped).sum::<usize>() > bytes.len().div_ceil(3) * 4 {
            return (STANDARD.encode(bytes), Self::Base64);
        }
        Self::encode(bytes)
    }

    /// Decodes a text written by [`Encoding::encode`].
    ///
    /// # Errors
    /// The encoding is base64, but the text is not valid base64.
    pub fn decode(self, text: String) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Utf8 => Ok(text.into_bytes()),
            Self::Base64 => STANDARD.decode(text),
        }
    }
}
