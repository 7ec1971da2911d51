//! Clients of the daemon. [`Protocol`] is the one implementation of the protocol's client side and does
//! no I/O; [`Client`] drives it over a blocking socket, [`PolledClient`] for a poll loop, [`AsyncClient`]
//! (feature `tokio`) over tokio.
//!
//! All of them notice a daemon that does not answer: when an answer is owed and nothing comes, they say
//! `hello`, and give up with [`ClientError::NoAnswer`] when that is not answered either. An answer that takes
//! long is waited for as long as the daemon lives.

mod blocking;
mod polled;
mod protocol;
mod silence;
#[cfg(feature = "tokio")]
mod tokio;

pub use self::blocking::Client;
pub use self::polled::PolledClient;
pub use self::protocol::{Call, Protocol, Received};
pub use self::silence::{BUSY, FIRST_ANSWER, LATER_ANSWER};
#[cfg(feature = "tokio")]
pub use self::tokio::AsyncClient;

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
    #[error("the daemon sent what this client can't read: {0}")]
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
