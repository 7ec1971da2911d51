//! Starts a keeper's process, with the socket that the next daemon connects to.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use bgd_shared::fds;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socketpair};

use super::reach::{new_socket, set_timeouts, with_address};
use super::socket::Socket;
use super::{ARGUMENT, BACKLOG, PATIENCE, SOCKET};
use crate::os::files::remove_if_there;
use crate::os::pidfd::{PidFd, wait_for_all};
use crate::os::spawn::{ChildStack, JobControl, Plan, spawn};

/// The name of a new keeper's socket until it is moved into place.
const NEW_SOCKET: &str = "keeper.new";

/// Waits for the end of a keeper that is a child of this process, and reaps it.
pub(super) fn reap(child: Option<&PidFd>) {
    if let Some(child) = child {
        wait_for_all([child], Instant::now() + PATIENCE);
        child.reap();
    }
}

/// Starts a keeper's process. It receives the messages in `first` even if this process dies. All signals must be
/// blocked in this thread.
pub(super) fn start(folder: &Path, first: &[Vec<u8>]) -> io::Result<Socket> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_timeouts(&ours)?;
    for message in first {
        fds::send(&ours, message, &[])?;
    }
    let (listener, number) = listener_in(folder)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let text = |text: &[u8]| CString::new(text).map_err(io::Error::other);
    // Shows the keeper's owner in process lists.
    let whose =
        std::env::var_os("HOME").map(|home| text(&[b"HOME=", home.as_bytes()].concat())).transpose()?;
    let plan = Plan {
        // The file that this daemon was started from, even if another file has taken its name since.
        programs: &[text(b"/proc/self/exe")?],
        argv: &[
            text(b"bgd")?,
            text(ARGUMENT.as_bytes())?,
            text(folder.as_os_str().as_bytes())?,
            text(number.to_string().as_bytes())?,
        ],
        env: whose.as_slice(),
        folder: c"/",
        umask: 0o077,
        rlimits: &[],
        reset_signals: &[libc::SIGTERM],
        stdio: [theirs.as_fd(), listener.as_fd(), null.as_fd()],
        cgroup: None,
        control: JobControl::Session,
        announce: None,
    };
    let spawned = spawn(&plan, &mut ChildStack::default()).map_err(|error| io::Error::from(error.errno))?;
    tracing::debug!(pid = spawned.pid, "started the keeper");
    Ok(Socket { socket: ours, pid: spawned.pid, child: Some(spawned.pidfd) })
}

/// Creates the socket that the next daemon will connect to, replacing that of a keeper that was ended. It is moved into
/// place in one step: a folder without a socket means that the keeper held nothing, so if this process were killed in
/// between, the next daemon would restart what has just been started. Also returns the inode number of the socket.
fn listener_in(folder: &Path) -> io::Result<(OwnedFd, u64)> {
    let (listener, new) = (new_socket()?, folder.join(NEW_SOCKET));
    remove_if_there(&new)?;
    with_address(folder, NEW_SOCKET, |address| bind(&listener, address))?;
    listen(&listener, BACKLOG)?;
    let number = std::fs::metadata(&new)?.ino();
    std::fs::rename(new, folder.join(SOCKET))?;
    Ok((listener, number))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::super::reach::Reached;
    use super::*;

    /// A folder without a socket means that the keeper held nothing, whenever the daemon is killed.
    #[test]
    fn r126_keeper_socket_is_replaced_without_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        // As left by a daemon that was killed in between.
        std::fs::write(folder.path().join(NEW_SOCKET), "").unwrap();
        drop(listener_in(folder.path()).unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                for look in 0_u32.. {
                    let is_last = is_over.load(Ordering::Relaxed);
                    let reached = Reached::connect(folder.path());
                    assert!(!matches!(reached, Ok(None)), "no socket is there at look {look}");
                    if is_last {
                        return;
                    }
                }
            });
            (0..2000).for_each(|_| drop(listener_in(folder.path()).unwrap()));
            is_over.store(true, Ordering::Relaxed);
            looks.join().unwrap();
        });
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [SOCKET]);
    }
}
