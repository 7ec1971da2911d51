//! Amounts of bytes in the configuration.

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, written as a number or a text such as `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Use the short form only if it is exact, so that different sizes never serialize alike.
        let short = ByteSize(self.0).to_string();
        let is_exact = short.parse() == Ok(ByteSize(self.0));
        serializer.serialize_str(&if is_exact { short } else { format!("{} B", self.0) })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ByteSize::deserialize(deserializer).map(|size| Self(size.0))
    }
}
