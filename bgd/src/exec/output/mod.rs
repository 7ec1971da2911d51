//! Keeps the output files of tasks. A process writes into its file itself; the daemon is not in the data path. It
//! follows the growth of the files, to bound them and to report their sizes.
//!
//! A handed-over process may write to a file of its own elsewhere. That file is read and polled in the same way, but
//! never changed or removed.
//!
//! Nothing here may deal with the processes that write.

pub mod follow;
mod kept;
pub mod loss;
pub mod place;
mod read;
mod relocate;
pub mod results;
mod writes;

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::mutex::Mutex;
use bgd_shared::replace::replace;
use bgd_shared::request::Stream;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use self::kept::Kept;
pub use self::read::{Part, last_line, read_part};
use crate::core::Spec;
use crate::os::files::remove_if_there;

/// Holes are punched in whole blocks of this size, so that they really free space.
const BLOCK: u64 = 64 * 1024;

/// The output files of one task.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    out: PathBuf,
    err: Option<PathBuf>,
}

impl OutputFiles {
    /// Returns the paths of the files of both streams; just one if the streams share it.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.out.as_path()).chain(self.err.as_deref())
    }

    /// Returns their total size in bytes; missing files count as empty.
    pub fn size(&self) -> u64 {
        self.paths().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum()
    }

    /// Returns the path of a stream's file.
    pub fn path(&self, stream: Stream) -> &Path {
        match (stream, &self.err) {
            (Stream::Stderr, Some(err)) => err,
            (Stream::Stdout | Stream::Stderr, _) => &self.out,
        }
    }
}

/// The folder with the output of all tasks of this daemon instance.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    kept: Kept,
    /// Why the last attempt to limit an output failed, if it did: one in this folder, and one that a file here links to.
    unlimited: Mutex<[Option<String>; 2]>,
}

/// The suffix of the names of prompt files.
pub const PROMPT: &str = "prompt";

/// How many runs of an agent task keep their results; each further run removes the oldest one.
const RESULTS_KEPT: usize = 8;

impl OutputFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// Returns the system error.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { kept: Kept::open(path.clone(), None)?, path, unlimited: Mutex::default() })
    }

    /// Opens a folder that `restore` recreates if it is removed.
    ///
    /// # Errors
    /// Returns the system error.
    pub fn kept(
        path: PathBuf,
        restore: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            kept: Kept::open(path.clone(), Some(Box::new(restore)))?,
            path,
            unlimited: Mutex::default(),
        })
    }

    /// Recreates the folder if it was removed.
    ///
    /// # Errors
    /// The folder is gone and can't be recreated.
    pub fn ensure(&self) -> io::Result<()> {
        self.kept.ensure()
    }

    /// Recreates the folder if it was removed. Does not notice that it was moved; the start of a task does.
    ///
    /// # Errors
    /// As for [`Self::ensure`].
    pub fn ensure_not_removed(&self) -> io::Result<()> {
        if self.kept.is_removed() { self.ensure() } else { Ok(()) }
    }

    /// Opens a file in the folder. Before creating one, makes sure that the folder exists.
    fn open_at(&self, task: TaskId, stream: Stream, flags: OFlag) -> io::Result<OwnedFd> {
        if flags.contains(OFlag::O_CREAT) {
            self.ensure()?;
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(openat(&*self.kept.handle(), name(task, stream).as_str(), flags | OFlag::O_CLOEXEC, mode)?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the paths of a task's files.
    pub fn files(&self, task: TaskId, split: bool) -> OutputFiles {
        OutputFiles {
            out: self.path.join(name(task, Stream::Stdout)),
            err: split.then(|| self.path.join(name(task, Stream::Stderr))),
        }
    }

    /// Returns the paths of the files of a task with this spec, which may name the process's own file.
    pub fn files_of(&self, task: TaskId, spec: &Spec) -> OutputFiles {
        match &spec.output_file {
            Some(own) => OutputFiles { out: own.as_os_str().into(), err: None },
            None => self.files(task, spec.split),
        }
    }

    /// Creates a task's file for a stream; it must not exist yet.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn create(&self, task: TaskId, stream: Stream) -> io::Result<OwnedFd> {
        self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_APPEND)
    }

    /// Creates a task's file for a stream that only the daemon writes to; it must not exist yet. `splice` refuses files
    /// in append mode, so each write specifies its offset.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn create_to_drain(&self, task: TaskId, stream: Stream) -> io::Result<fs::File> {
        Ok(self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY)?.into())
    }

    /// Opens a task's file for a stream for appending; creates it if needed.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn append(&self, task: TaskId, stream: Stream) -> io::Result<OwnedFd> {
        self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW)
    }

    /// Opens a task's file for a stream for appending; it must exist.
    ///
    /// # Errors
    /// Returns the system error, such as that there is no file any more.
    pub fn append_existing(&self, task: TaskId, stream: Stream) -> io::Result<OwnedFd> {
        self.open_at(task, stream, OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW)
    }

    /// Returns the path of the result of an agent task's run.
    pub fn result(&self, task: TaskId, run: u32) -> PathBuf {
        self.path.join(format!("{task}.result.{run}"))
    }

    /// Saves the result of an agent task's run. A beginning that was cut off becomes a hole of `cut` bytes, so that the
    /// file shows how much is missing. The last few results stay, as their notices may not have been read yet; runs that
    /// the agent refused have none.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn keep_result(&self, task: TaskId, run: u32, cut: u64, result: &[u8]) -> io::Result<()> {
        let path = self.result(task, run);
        // One at most: each earlier save has done the same.
        let mut earlier = (1..run).rev().map(|run| self.result(task, run)).filter(|path| path.exists());
        if let Some(oldest) = earlier.nth(RESULTS_KEPT - 1) {
            let _ = fs::remove_file(oldest);
        }
        replace(&path, 0o600, |file| {
            file.seek(SeekFrom::Start(cut))?;
            file.write_all(result)
        })
    }

    fn prompt(&self, task: TaskId) -> PathBuf {
        self.path.join(format!("{task}.{PROMPT}"))
    }

    /// Creates the file that holds a prompt for the duration of its turn, readable only by its user. Removes a file
    /// left by an earlier turn.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn create_prompt(&self, task: TaskId) -> io::Result<(PathBuf, fs::File)> {
        let path = self.prompt(task);
        remove_if_there(&path)?;
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    fn stat(&self, task: TaskId, stream: Stream) -> Option<FileStat> {
        fstatat(&*self.kept.handle(), name(task, stream).as_str(), AtFlags::empty()).ok()
    }

    /// Returns the size of a task's output in bytes, per stream.
    pub fn sizes(&self, task: TaskId, split: bool) -> [u64; 2] {
        let size = |stream| self.stat(task, stream).map_or(0, |stat| stat.st_size.cast_unsigned());
        [size(Stream::Stdout), if split { size(Stream::Stderr) } else { 0 }]
    }

    /// Returns the state of a stream's file, or of the link in its place.
    fn own_stat(&self, task: TaskId, stream: Stream) -> Result<FileStat, Errno> {
        fstatat(&*self.kept.handle(), name(task, stream).as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// Reports whether a stream has no file.
    pub fn is_missing(&self, task: TaskId, stream: Stream) -> bool {
        self.own_stat(task, stream).is_err_and(|error| error == Errno::ENOENT)
    }

    /// Like [`Self::sizes`], but follows no links. `None` if a file is a link: its target may be on a disk that hangs.
    pub fn sizes_unless_linked(&self, task: TaskId, split: bool) -> Option<[u64; 2]> {
        let size = |stream| {
            let is_link = |stat: &FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFLNK.bits();
            match self.own_stat(task, stream) {
                Ok(stat) if is_link(&stat) => None,
                Ok(stat) => Some(stat.st_size.cast_unsigned()),
                Err(_) => Some(0),
            }
        };
        Some([size(Stream::Stdout)?, if split { size(Stream::Stderr)? } else { 0 }])
    }

    /// Removes the files of a task. `runs` is the number of its runs that may have left a result: 0 unless it is an
    /// agent's. Missing files are ignored.
    pub fn remove(&self, task: TaskId, runs: u32) {
        let files = [Stream::Stdout, Stream::Stderr].map(|stream| self.path.join(name(task, stream)));
        let results = (1..=runs).map(|run| self.result(task, run));
        for path in files.into_iter().chain(results).chain([self.prompt(task)]) {
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(path = %path.display(), %error, "output not removed");
            }
        }
    }

    /// Punches a hole between the head of a file and its tail, so that about `limit` bytes remain. Returns the total
    /// number of dropped bytes. Punches what was dropped before once more, which costs next to nothing: if the file was
    /// truncated and has outgrown its earlier size unnoticed, there are new bytes.
    fn bound(&self, task: TaskId, stream: Stream, size: u64, dropped: u64, limit: u64) -> io::Result<u64> {
        let keep_from = size.saturating_sub(limit.saturating_sub(OUTPUT_HEAD_BYTES)) / BLOCK * BLOCK;
        if keep_from <= OUTPUT_HEAD_BYTES + dropped {
            return Ok(dropped);
        }
        let total = keep_from - OUTPUT_HEAD_BYTES;
        let file = self.open_at(task, stream, OFlag::O_WRONLY)?;
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punched = fallocate(&file, hole, OUTPUT_HEAD_BYTES.cast_signed(), total.cast_signed());
        let is_linked = self.path.join(name(task, stream)).is_symlink();
        self.note_limit(is_linked, punched.err());
        Ok(if punched.is_ok() { total } else { dropped })
    }

    /// Notes why the disk can't drop a part of a file, if so. Logs it once: such a disk never can.
    fn note_limit(&self, is_linked: bool, error: Option<Errno>) {
        let mut unlimited = self.unlimited.lock();
        let before = &mut unlimited[usize::from(is_linked)];
        let error = error.map(|error| error.desc().to_owned());
        if *before != error {
            if let Some(error) = &error {
                tracing::warn!(error, is_linked, "outputs can't be limited");
            }
            *before = error;
        }
    }

    /// Returns why outputs were not limited at the last attempt: those in this folder, and those elsewhere, as in a
    /// folder shared with a cluster.
    pub fn limit_errors(&self) -> [Option<String>; 2] {
        self.unlimited.lock().clone()
    }
}

fn name(task: TaskId, stream: Stream) -> String {
    format!("{task}.{}", stream.suffix())
}

#[cfg(test)]
mod tests;
