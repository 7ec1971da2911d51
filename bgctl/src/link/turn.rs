//! The turn to start a daemon at a socket: a lock beside it, held by one `bgctl` at a time. May not look at the daemon.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use bgd_shared::client::BUSY;
use bgd_shared::socket::SocketPath;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::bounded;
use crate::exit::Code;
use crate::failure::Failure;

/// How long a turn may take: that of whoever stops a daemon first to start the next one takes longest.
const LONGEST: std::time::Duration = BUSY.saturating_mul(2);

/// Dropping it ends the turn.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "held for its lock")] Flock<File>);

impl Turn {
    /// Waits for this caller's turn. Blocks for at most twice [`BUSY`].
    ///
    /// # Errors
    /// Others take longer, or the lock file can't be used.
    pub fn take(socket: &SocketPath) -> Result<Self, Failure> {
        let path = socket.beside("start");
        let unusable = |error| Failure { code: Code::NO_DAEMON, ..Failure::io(path.display(), &error) };
        let file = open(OpenOptions::new().create(true), socket).map_err(unusable)?;
        if let Some(lock) = bounded::lock(file, LONGEST).map_err(unusable)? {
            return Ok(Self(lock));
        }
        let message = format!("another bgctl has been starting a daemon for {} s", LONGEST.as_secs());
        let hint = format!("find it with: fuser -v {}", path.display());
        Err(Failure::new(Code::NO_DAEMON, "no_daemon", message).hint(hint))
    }

    /// Whether somebody is about to start a daemon, who may stop the one before first.
    pub fn is_taken(socket: &SocketPath) -> bool {
        let file = open(&mut OpenOptions::new(), socket);
        // Those who only look must not take each other for somebody who starts one.
        file.is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
    }
}

fn open(options: &mut OpenOptions, socket: &SocketPath) -> std::io::Result<File> {
    let options = options.write(true).truncate(false).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    options.open(socket.beside("start"))
}
