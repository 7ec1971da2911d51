//! A folder that is recreated if it is removed while it is needed.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bgd_shared::mutex::Mutex;
use nix::fcntl::OFlag;
use nix::libc::{dev_t, ino_t};
use nix::sys::stat::{FileStat, Mode, fstat, stat};
use tokio::sync::Notify;

/// Recreates a folder with everything that belongs to it.
pub(super) type Restore = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// An open folder with its identity, which is fixed as long as the folder is open.
struct Handle {
    fd: Arc<OwnedFd>,
    id: (dev_t, ino_t),
}

pub(super) struct Kept {
    path: PathBuf,
    handle: Mutex<Handle>,
    /// `None` if the folder is never recreated.
    restore: Option<Restore>,
    renewed: Notify,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.path).finish()
    }
}

impl Kept {
    pub fn open(path: PathBuf, restore: Option<Restore>) -> io::Result<Self> {
        let handle = Mutex::new(open(&path)?);
        Ok(Self { path, handle, restore, renewed: Notify::new() })
    }

    /// Returns the handle as of the last (re)creation.
    pub fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.handle.lock().fd)
    }

    /// Waits until the folder is recreated.
    pub async fn renewed(&self) {
        self.renewed.notified().await;
    }

    /// Reports whether the folder was removed and is to be recreated. Costs less than [`Self::ensure`], but does not
    /// notice that the folder was moved.
    pub fn is_removed(&self) -> bool {
        self.restore.is_some() && fstat(&*self.handle()).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Recreates the folder, unless the open folder is still the one at its path.
    ///
    /// # Errors
    /// The folder is gone and can't be recreated.
    pub fn ensure(&self) -> io::Result<()> {
        let Some(restore) = &self.restore else { return Ok(()) };
        // Several threads may notice at the same time that the folder is gone.
        let mut handle = self.handle.lock();
        if stat(&self.path).is_ok_and(|there| id(&there) == handle.id) {
            return Ok(());
        }
        restore()?;
        *handle = open(&self.path)?;
        drop(handle);
        tracing::warn!(path = %self.path.display(), "the output folder was removed and has been recreated");
        self.renewed.notify_one();
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<Handle> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
    let fd = nix::fcntl::open(path, flags, Mode::empty())?;
    let id = id(&fstat(&fd)?);
    Ok(Handle { fd: Arc::new(fd), id })
}

/// Returns the identity of a folder.
fn id(stat: &FileStat) -> (dev_t, ino_t) {
    (stat.st_dev, stat.st_ino)
}
