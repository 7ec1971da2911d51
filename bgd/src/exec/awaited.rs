//! What is noted of a process before it begins, so that whoever looks can tell when it is ready (R110): where its output
//! was, and the socket by which it tells. It looks at nothing itself.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::PassCred;

use crate::core::Spec;

/// When a process that was started is ready.
#[derive(Debug)]
pub struct Awaited {
    /// As its submitter says.
    pub ready: Ready,
    /// How long it has for that.
    pub timeout: Option<Duration>,
    /// Its folder.
    pub folder: PathBuf,
    /// The sizes of its output files when it was started.
    pub sizes: [u64; 2],
    /// The socket by which it tells.
    pub socket: Option<NotifySocket>,
}

impl Awaited {
    /// When the process of this order is ready; nothing if nobody wants to know.
    pub fn new(spec: &Spec, sizes: [u64; 2], socket: Option<NotifySocket>) -> Option<Box<Self>> {
        let ready = Ready::clone(spec.ready.as_deref()?);
        let timeout = spec.ready_timeout_ms.map(Duration::from_millis);
        let folder = PathBuf::from(spec.cwd.as_os_str());
        Some(Box::new(Self { ready, timeout, folder, sizes, socket }))
    }
}

/// What the name of a socket has behind that of the daemon's, before a part of the task's id.
const INFIX: &str = ".notify-";

/// A socket that a process can tell something by, as `sd_notify(3)` does. It is removed when it is dropped.
#[derive(Debug)]
pub struct NotifySocket {
    path: PathBuf,
    /// Its end here. Each message comes with who has sent it.
    pub socket: UnixDatagram,
}

impl NotifySocket {
    /// Makes the socket of a task, beside that of the daemon.
    ///
    /// # Errors
    /// What the system says: a path has at most 107 bytes.
    pub fn bind(daemon: &Path, task: TaskId) -> io::Result<Self> {
        let mut path = daemon.as_os_str().to_owned();
        path.push(format!("{INFIX}{:016x}", task.as_u128() >> 64));
        let path = PathBuf::from(path);
        let socket = UnixDatagram::bind(&path)?;
        let this = Self { path, socket };
        this.socket.set_nonblocking(true)?;
        setsockopt(&this.socket, PassCred, &true)?;
        Ok(this)
    }

    /// The variable that tells a process where it is.
    pub fn variable(&self) -> CString {
        let path = self.path.as_os_str().as_encoded_bytes();
        // A path that was bound has no NUL.
        CString::new([b"NOTIFY_SOCKET=", path].concat()).unwrap_or_default()
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the sockets that an earlier daemon of this socket has left, because it was killed.
pub fn sweep(daemon: &Path) {
    let (Some(folder), Some(name)) = (daemon.parent(), daemon.file_name()) else { return };
    let prefix = [name.as_encoded_bytes(), INFIX.as_bytes()].concat();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
