//! Why notices are not delivered.

/// Why a notice was not delivered, for people; contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered(pub String);
