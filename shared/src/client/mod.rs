//! Clients of the daemon. [`Protocol`] is the one implementation of the protocol's client side and does
//! no I/O; [`Client`] drives it over a blocking socket, [`PolledClient`] for a poll loop, [`AsyncClient`]
//! (feature `tokio`) over tokio.
//!
//! All of them detect a daemon that does not answer: while an answer is pending and nothing arrives, they send
//! `hello`, and give up with [`ClientError::NoAnswer`] if that is not answered either. They wait for a slow answer as
//! long as the daemon is alive.

mod blocking;
mod error;
#[cfg(feature = "tokio")]
mod news_queue;
mod polled;
mod protocol;
#[cfg(feature = "tokio")]
mod tokio;
mod watchdog;

pub use self::blocking::Client;
pub use self::error::ClientError;
pub use self::polled::PolledClient;
pub use self::protocol::{Call, Protocol, Received};
#[cfg(feature = "tokio")]
pub use self::tokio::AsyncClient;
pub use self::watchdog::{BUSY, LATER_ANSWER};
pub use crate::limits::FIRST_ANSWER;
