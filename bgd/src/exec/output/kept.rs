//! A folder that is made again when somebody removes it while it is needed.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat, stat};
use tokio::sync::Notify;

/// Makes a folder again, with all that belongs to it.
pub(super) type Restore = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// The handle to a folder.
pub(super) struct Kept {
    path: PathBuf,
    handle: Mutex<Arc<OwnedFd>>,
    /// Who makes it again.
    restore: Option<Restore>,
    renewed: Notify,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.path).finish()
    }
}

impl Kept {
    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: PathBuf, restore: Option<Restore>) -> io::Result<Self> {
        let handle = Mutex::new(Arc::new(open(&path)?));
        Ok(Self { path, handle, restore, renewed: Notify::new() })
    }

    /// The folder as it was opened last.
    pub fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.handle.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until it was made again.
    pub async fn renewed(&self) {
        self.renewed.notified().await;
    }

    /// Makes it again, unless it is at its path.
    ///
    /// # Errors
    /// It is gone, and can't be made again.
    pub fn ensure(&self) -> io::Result<()> {
        let Some(restore) = &self.restore else { return Ok(()) };
        // Several may miss it at the same time.
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = || {
            let (here, there) = (fstat(&**handle).ok()?, stat(&self.path).ok()?);
            Some((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
        };
        if is_there() == Some(true) {
            return Ok(());
        }
        restore()?;
        *handle = Arc::new(open(&self.path)?);
        drop(handle);
        tracing::warn!(path = %self.path.display(), "the output folder was removed and has been recreated");
        self.renewed.notify_one();
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_PATH;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}
