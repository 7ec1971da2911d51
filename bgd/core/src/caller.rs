//! Callers: who is waiting for a reply.

use serde::{Deserialize, Serialize};

/// The destination of a reply: a client and one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplyTo {
    /// The number of the client's connection.
    pub client: u64,
    /// The dispatcher's number for the call.
    pub call: u64,
}

/// A client that requested the end of tasks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Asker {
    pub client: u64,
    /// Whether the tasks are removed, too.
    pub removes: bool,
}
