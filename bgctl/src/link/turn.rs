//! The turn to start a daemon at a socket: a lock beside the socket, held by one `bgctl` at a time. Must not look at
//! the daemon.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use bgd_shared::client::BUSY;
use bgd_shared::owned;
use bgd_shared::socket::SocketPath;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::Uid;

use super::bounded;
use crate::exit::Code;
use crate::failure::Failure;

/// How long a turn may take; longest for a caller that first stops a daemon before starting the next one.
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
        let create = || owned::file(&how(), &path, 0o600);
        let file =
            create().or_else(|error| usable(&path, error).and_then(|()| create())).map_err(unusable)?;
        if let Some(lock) = bounded::lock(file, LONGEST).map_err(unusable)? {
            return Ok(Self(lock));
        }
        let message = format!("another bgctl has been starting a daemon for {} s", LONGEST.as_secs());
        let hint = format!("find it with: fuser -v {}", path.display());
        Err(Failure::new(Code::NO_DAEMON, "no_daemon", message).hint(hint))
    }

    /// Reports whether a process is about to start a daemon, possibly after stopping the current one.
    pub fn is_taken(socket: &SocketPath) -> bool {
        let path = socket.beside("start");
        let open = || how().open(&path);
        let file = open().or_else(|error| usable(&path, error).and_then(|()| open()));
        // With a shared lock, processes that only check do not mistake each other for one that starts a daemon.
        file.is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
    }
}

/// Returns how to open the lock file.
fn how() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).truncate(false).custom_flags(OFlag::O_NOFOLLOW.bits());
    options
}

/// Makes a lock file usable that could not be opened as its user has no right to write it: a `bgctl` with such a umask
/// is creating it, or has.
fn usable(path: &Path, error: io::Error) -> io::Result<()> {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Err(error);
    }
    let there = fs::symlink_metadata(path)?;
    // No other user can put anything else there: the folder was checked.
    if !there.is_file() || there.uid() != Uid::effective().as_raw() {
        return Err(error);
    }
    fs::set_permissions(path, Permissions::from_mode(0o600))
}
