//! The data recorded about a process before it starts, in order to detect readiness (R110): the sizes of its output
//! files, and the socket for its notification. This module checks nothing itself.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;
use bgd_shared::text::OsText;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::PassCred;

use crate::core::Spec;
use crate::os::lock::FileId;

/// How to detect that a started process is ready.
#[derive(Debug)]
pub struct Awaited {
    /// The submitter's condition.
    pub ready: Ready,
    /// How long the process has to become ready; `None` for any time.
    pub timeout: Option<Duration>,
    pub folder: Arc<OsText>,
    /// The sizes of its output files when it was started.
    pub sizes: [u64; 2],
    /// The socket on which the process reports that it is ready.
    pub socket: Option<NotifySocket>,
}

impl Awaited {
    /// Records how to detect that the process of this spec is ready; `None` if the spec sets no condition.
    pub fn new(
        spec: &Spec,
        sizes: impl FnOnce() -> [u64; 2],
        socket: Option<NotifySocket>,
    ) -> Option<Box<Self>> {
        let ready = Ready::clone(spec.ready.as_deref()?);
        let timeout = spec.ready_timeout_ms.map(Duration::from_millis);
        Some(Box::new(Self { ready, timeout, folder: Arc::clone(&spec.cwd), sizes: sizes(), socket }))
    }
}

/// The infix of a notification socket's name, between the name of the daemon's socket and one made of the task's
/// id and the run.
const INFIX: &str = ".notify-";

/// A socket that a process can send `sd_notify(3)` messages to. Its file is removed on drop, unless it is left.
#[derive(Debug)]
pub struct NotifySocket {
    path: PathBuf,
    /// The file of this socket; another one at its path stays.
    file: Option<FileId>,
    /// Whether another program uses the file.
    is_left: AtomicBool,
    /// The daemon's end. Each message comes with its sender's credentials.
    pub socket: UnixDatagram,
}

impl NotifySocket {
    /// Creates the socket of a run, next to that of the daemon. The processes of the previous run may still have theirs.
    ///
    /// # Errors
    /// Returns the system error, also for a path of more than 107 bytes.
    pub fn bind(daemon: &Path, task: TaskId, run: u32) -> io::Result<Self> {
        let mut path = daemon.as_os_str().to_owned();
        // No longer with a later run: what the first one can bind, the others can, too.
        let name = (task.as_u128() >> 64) ^ u128::from(run.saturating_sub(1));
        path.push(format!("{INFIX}{name:016x}"));
        let path = PathBuf::from(path);
        let socket = UnixDatagram::bind(&path)?;
        let this = Self { file: FileId::of(&path), path, is_left: AtomicBool::new(false), socket };
        this.socket.set_nonblocking(true)?;
        setsockopt(&this.socket, PassCred, &true)?;
        Ok(this)
    }

    /// Takes over the socket of another program, which may go on with it until [`Self::set_left`] says otherwise.
    pub fn restore(path: PathBuf, socket: OwnedFd) -> Self {
        Self { file: FileId::of(&path), path, is_left: AtomicBool::new(true), socket: socket.into() }
    }

    /// Sets whether another program goes on with the socket, so that its file must stay.
    pub fn set_left(&self, is_left: bool) {
        self.is_left.store(is_left, Ordering::Relaxed);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the environment variable that passes the socket's path to the process.
    pub fn variable(&self) -> CString {
        let path = self.path.as_os_str().as_encoded_bytes();
        // A path that was bound contains no NUL.
        CString::new([b"NOTIFY_SOCKET=", path].concat()).unwrap_or_default()
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        if !*self.is_left.get_mut() && self.file.is_some() && self.file == FileId::of(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the sockets that a killed daemon with this socket path has left behind, except those at `spared`.
pub fn sweep(daemon: &Path, spared: &[&Path]) {
    let (Some(folder), Some(name)) = (daemon.parent(), daemon.file_name()) else { return };
    let prefix = [name.as_encoded_bytes(), INFIX.as_bytes()].concat();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(&prefix) && !spared.contains(&&*entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r110_sockets_of_two_runs_of_a_task_exist_side_by_side() {
        let home = tempfile::tempdir().unwrap();
        let (daemon, task) = (home.path().join("bgd.sock"), TaskId::random());
        let [first, second] = [1, 2].map(|run| NotifySocket::bind(&daemon, task, run).unwrap());
        assert_eq!(first.path().as_os_str().len(), second.path().as_os_str().len());
        let paths = [&first, &second].map(|socket| socket.path().to_owned());
        drop(first);
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true]);
        drop(second);
        assert!(!paths[1].exists());
    }

    #[test]
    fn socket_of_another_owner_at_the_same_path_stays() {
        let home = tempfile::tempdir().unwrap();
        let (daemon, task) = (home.path().join("bgd.sock"), TaskId::random());
        let first = NotifySocket::bind(&daemon, task, 1).unwrap();
        let path = first.path().to_owned();
        // It keeps the number of its file.
        fs::rename(&path, home.path().join("moved")).unwrap();
        let second = NotifySocket::bind(&daemon, task, 1).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
