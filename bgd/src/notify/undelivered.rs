//! Why notices are not delivered.

/// Why a notice was not delivered, for people; never with a secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered(pub String);
