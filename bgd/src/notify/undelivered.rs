//! Why notices are not delivered.

/// Why a notice was not delivered, for users; contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered(pub String);
