//! Reads the output of a program, without parsing it.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use crate::os::watch;

/// Reads a non-blocking pipe to its end.
///
/// # Errors
/// An error of the system, or more than `limit` bytes.
pub async fn read(pipe: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = fs::File::from(pipe.try_clone()?);
    let readable = watch::readable(pipe)?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 16 * 1024];
    loop {
        let mut ready = readable.readable().await?;
        match file.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it prints more than {limit} bytes")));
        }
    }
}
