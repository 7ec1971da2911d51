//! Reads the output of a program, without parsing it.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// Reads a pipe to its end.
///
/// # Errors
/// An error of the system, or more than `limit` bytes.
pub async fn read(pipe: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Receiver::from_owned_fd(pipe)?.take(limit.saturating_add(1)).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it prints more than {limit} bytes")));
    }
    Ok(bytes)
}
