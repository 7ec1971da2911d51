//! Errors of calls.

use std::io;

use crate::error::{ErrorKind, RpcError};
use crate::transport::{ConnectError, Unresponsive};

/// Why a call returned no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon refused the call.
    #[error("{0}")]
    Rpc(#[from] RpcError),
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Io(#[from] io::Error),
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the connection before it answered")]
    Closed,
    /// The daemon is running but does not answer.
    #[error(transparent)]
    NoAnswer(Unresponsive),
    /// The daemon sent something that this client can't parse.
    #[error("the daemon's message can't be parsed: {0}")]
    Garbled(String),
}

impl ClientError {
    /// Returns the error's kind, if the daemon refused the call.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Rpc(error) => Some(error.kind()),
            Self::Connect(_) | Self::Io(_) | Self::Closed | Self::NoAnswer(_) | Self::Garbled(_) => None,
        }
    }
}
