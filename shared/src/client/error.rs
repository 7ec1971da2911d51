//! Why a call brought no result.

use std::io;

use crate::error::{ErrorKind, RpcError};
use crate::transport::{ConnectError, Silent};

/// Why a call brought no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There was no connection to begin with.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon refused.
    #[error("{0}")]
    Rpc(#[from] RpcError),
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Io(#[from] io::Error),
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the connection before it answered")]
    Closed,
    /// The daemon is there and says nothing.
    #[error(transparent)]
    NoAnswer(Silent),
    /// The daemon sent something that this client can't read.
    #[error("the daemon's message can't be parsed: {0}")]
    Garbled(String),
}

impl ClientError {
    /// The kind, if the daemon refused.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Rpc(error) => Some(error.kind()),
            Self::Connect(_) | Self::Io(_) | Self::Closed | Self::NoAnswer(_) | Self::Garbled(_) => None,
        }
    }
}
