//! Who asks.

use serde::{Deserialize, Serialize};

/// Whom an answer goes to: a client and one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplyTo {
    /// The connection.
    pub client: u64,
    /// The call on it.
    pub call: u64,
}
