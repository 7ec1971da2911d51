//! Callers: who is waiting for an answer.

use serde::{Deserialize, Serialize};

/// Where an answer goes: a client and one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplyTo {
    /// The connection.
    pub client: u64,
    /// The dispatcher's number for the call.
    pub call: u64,
}
