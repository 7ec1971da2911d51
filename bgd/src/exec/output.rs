//! Output files. A process writes into its file itself; the daemon is not in the data path.
//!
//! To bound the size of a file and to report how far it has grown, the daemon must notice growth, without polling
//! quiet tasks and without a wake-up per write: it watches the folder for one write, then polls the running tasks'
//! files a few times a second until none has grown any more, and then watches again. Quiet tasks cost no system call,
//! busy ones a few per second.
//!
//! A handed-over process may write to a file of its own somewhere else. That file is read and polled in the same way,
//! but never changed or removed.

mod home;
mod kept;
mod place;
mod read;
mod writes;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::replace::replace;
use bgd_shared::request::Stream;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::kept::Kept;
pub use self::read::{Part, last_line, read_part};
use self::writes::FirstWrite;
use super::messages::Facts;
use super::workers::Workers;
use crate::core::{Fact, Spec};

/// The poll interval for growing files.
const TICK: Duration = Duration::from_millis(250);

/// Subscribers are notified of a task's growing output at most once in this many ticks.
const TELL_EVERY: u32 = 2;

/// Holes are punched in whole blocks of this size, so that they really free space.
const BLOCK: u64 = 64 * 1024;

/// The output files of one task.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    out: PathBuf,
    err: Option<PathBuf>,
}

impl OutputFiles {
    /// Returns the paths of both streams' files; just one if the streams share it.
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
}

/// How many runs of an agent task keep their results; each further run removes the oldest one.
const RESULTS_KEPT: u32 = 8;

impl OutputFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// Returns the system error.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { kept: Kept::open(path.clone(), None)?, path })
    }

    /// Opens a folder that `restore` recreates after it was removed.
    ///
    /// # Errors
    /// Returns the system error.
    pub fn kept(
        path: PathBuf,
        restore: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self { kept: Kept::open(path.clone(), Some(Box::new(restore)))?, path })
    }

    /// Recreates the folder if somebody has removed it.
    ///
    /// # Errors
    /// The folder is gone and can't be recreated.
    pub fn ensure(&self) -> io::Result<()> {
        self.kept.ensure()
    }

    /// Opens a file in the folder. Before creating one, makes sure that the folder exists.
    fn open_at(&self, task: TaskId, stream: Stream, flags: OFlag) -> io::Result<OwnedFd> {
        if flags.contains(OFlag::O_CREAT) {
            self.ensure()?;
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(openat(&*self.kept.handle(), name(task, stream).as_str(), flags | OFlag::O_CLOEXEC, mode)?)
    }

    /// Returns the folder's path.
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

    /// Returns the paths of the files of a task with this spec, which may name a file of the process's own.
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

    /// Creates a task's file for a stream that only the daemon writes to; it must not exist yet. `splice` refuses
    /// files in append mode, so each write names its offset.
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

    /// Makes a task's output that of a file elsewhere, unless an earlier run has. [`Self::remove`] leaves that file
    /// alone.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn link(&self, task: TaskId, stream: Stream, target: &Path) -> io::Result<()> {
        self.ensure()?;
        match nix::unistd::symlinkat(target, &*self.kept.handle(), name(task, stream).as_str()) {
            Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the path of the result of an agent task's run.
    pub fn result(&self, task: TaskId, run: u32) -> PathBuf {
        self.path.join(format!("{task}.result.{run}"))
    }

    /// Saves the result of an agent task's run. What was cut off its beginning becomes a hole of `cut` bytes, so that
    /// the file shows how much is missing. The results of the last few runs stay, as their notices may not have been
    /// read yet.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn keep_result(&self, task: TaskId, run: u32, cut: u64, result: &[u8]) -> io::Result<()> {
        let path = self.result(task, run);
        if let Some(old) = run.checked_sub(RESULTS_KEPT) {
            let _ = fs::remove_file(self.result(task, old));
        }
        replace(&path, 0o600, |file| {
            file.seek(SeekFrom::Start(cut))?;
            file.write_all(result)
        })
    }

    /// Creates the file that holds a prompt for the duration of its turn, readable only by its user.
    ///
    /// # Errors
    /// Returns the system error, such as a full disk.
    pub fn create_prompt(&self, task: TaskId) -> io::Result<(PathBuf, fs::File)> {
        let path = self.path.join(format!("{task}.prompt"));
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

    /// Like [`Self::sizes`], without leaving the folder. `None` if a file is a link: its target may be on a disk that
    /// hangs.
    pub fn sizes_unless_linked(&self, task: TaskId, split: bool) -> Option<[u64; 2]> {
        let size = |stream| {
            let (folder, name) = (self.kept.handle(), name(task, stream));
            let stat = fstatat(&*folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let is_link = |stat: &FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFLNK.bits();
            match stat {
                Ok(stat) if is_link(&stat) => None,
                Ok(stat) => Some(stat.st_size.cast_unsigned()),
                Err(_) => Some(0),
            }
        };
        Some([size(Stream::Stdout)?, if split { size(Stream::Stderr)? } else { 0 }])
    }

    /// Removes the files of a task that has had `runs` runs; 0 if it never became a task. Missing files are fine.
    pub fn remove(&self, task: TaskId, runs: u32) {
        let files = [Stream::Stdout, Stream::Stderr].map(|stream| self.path.join(name(task, stream)));
        let results =
            ((runs + 1).saturating_sub(RESULTS_KEPT).max(1)..=runs).map(|run| self.result(task, run));
        for path in files.into_iter().chain(results) {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "output not removed"),
            }
        }
    }

    /// Punches a hole between the head of a file and its tail, so that about `limit` bytes remain. Returns how many
    /// bytes are dropped in total.
    fn bound(&self, task: TaskId, stream: Stream, size: u64, dropped: u64, limit: u64) -> io::Result<u64> {
        let keep_from = size.saturating_sub(limit.saturating_sub(OUTPUT_HEAD_BYTES)) / BLOCK * BLOCK;
        let from = OUTPUT_HEAD_BYTES + dropped;
        if keep_from <= from {
            return Ok(dropped);
        }
        let file = self.open_at(task, stream, OFlag::O_WRONLY)?;
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, hole, from.cast_signed(), (keep_from - from).cast_signed())?;
        Ok(keep_from - OUTPUT_HEAD_BYTES)
    }
}

fn name(task: TaskId, stream: Stream) -> String {
    match stream {
        Stream::Stdout => format!("{task}.out"),
        Stream::Stderr => format!("{task}.err"),
    }
}

/// A running task's files, as of the last look.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tracked {
    run: u32,
    split: bool,
    /// The output file outside of the folder, if the process writes to one of its own.
    own: Option<Arc<Path>>,
    size: [u64; 2],
    dropped: [u64; 2],
    ticks_to_tell: u32,
    /// It has grown since subscribers were last notified.
    unreported: bool,
}

#[derive(Debug)]
struct Shared {
    folder: Arc<OutputFolder>,
    running: Mutex<HashMap<TaskId, Tracked>>,
    limit: AtomicU64,
    facts: Facts,
    workers: Workers,
    /// Signalled when a task was added; only needed while the folder can't be watched.
    added: Notify,
    /// Signalled when a file outside of the folder was added and must be watched, too.
    own_added: Notify,
    /// Whether inotify reports writes. Otherwise the files are polled as long as tasks run.
    is_watching: AtomicBool,
}

/// Follows the output files of running tasks, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub struct OutputWatch {
    shared: Arc<Shared>,
    _follower: Arc<JoinSet<()>>,
}

impl OutputWatch {
    /// Starts to watch; at most `limit` bytes are kept per task.
    pub fn start(folder: Arc<OutputFolder>, limit: u64, facts: Facts, workers: Workers) -> Self {
        let shared = Arc::new(Shared {
            folder,
            running: Mutex::default(),
            limit: limit.into(),
            facts,
            workers,
            added: Notify::new(),
            own_added: Notify::new(),
            is_watching: AtomicBool::new(true),
        });
        let mut follower = JoinSet::new();
        // A simulation has no files, and its runtime no I/O.
        if !shared.workers.are_simulated() {
            let watch = FirstWrite::new(shared.folder.path()).ok();
            shared.note_watching(watch.is_some());
            follower.spawn(follow(Arc::clone(&shared), watch));
        }
        Self { shared, _follower: Arc::new(follower) }
    }

    /// Whether inotify reports writes to outputs, so that quiet ones need not be polled.
    pub fn is_watching(&self) -> bool {
        self.shared.is_watching.load(Ordering::Relaxed)
    }

    /// Changes how many bytes of a task's output are kept.
    pub fn set_limit(&self, limit: u64) {
        self.shared.limit.store(limit, Ordering::Relaxed);
    }

    /// Follows the output of a task that has started to run.
    pub fn track(&self, task: TaskId, run: u32, split: bool) {
        self.insert(task, Tracked::new(run, split, None));
    }

    /// Like [`Self::track`], for a task whose output is a file outside of the folder.
    pub fn track_own(&self, task: TaskId, run: u32, file: &Path) {
        self.insert(task, Tracked::new(run, false, Some(file.into())));
        self.shared.own_added.notify_one();
    }

    /// Looks at the outputs soon, even if no write was reported: other machines may have written.
    pub fn look_soon(&self) {
        self.shared.own_added.notify_one();
    }

    /// Returns what is followed, for the program that takes over.
    pub fn tracked(&self) -> BTreeMap<TaskId, Tracked> {
        self.shared.lock().iter().map(|(task, tracked)| (*task, tracked.clone())).collect()
    }

    /// Follows again what another program has followed.
    pub fn track_again(&self, all: BTreeMap<TaskId, Tracked>) {
        for (task, tracked) in all {
            self.insert(task, tracked);
        }
        self.look_soon();
    }

    fn insert(&self, task: TaskId, tracked: Tracked) {
        self.shared.lock().insert(task, tracked);
        self.shared.added.notify_one();
    }

    /// Returns the final size of a task's output and how much of it was dropped, after the task's leader has ended;
    /// `None` if the task isn't tracked. Continues to follow its files if processes of the task live on.
    pub async fn settle(&self, task: TaskId, lives_on: bool) -> Option<Fact> {
        let mut tracked = self.shared.lock().get(&task)?.clone();
        if !lives_on {
            self.shared.lock().remove(&task);
        }
        let limit = self.shared.limit();
        // A file outside of our folder may be on a disk that is slow or hangs.
        if tracked.own.is_none()
            && let Some(bytes) = self.shared.folder.sizes_unless_linked(task, tracked.split)
            && bytes.iter().sum::<u64>() <= limit / 2
        {
            return Some(Fact::Output { bytes, dropped: tracked.dropped, tell: false });
        }
        let (folder, before) = (Arc::clone(&self.shared.folder), tracked.clone());
        let looked =
            self.shared.workers.run(move || look(&folder, task, &mut tracked, limit).map(|_| tracked)).await;
        let tracked = looked.flatten().unwrap_or(before);
        Some(Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell: false })
    }
}

impl Tracked {
    fn new(run: u32, split: bool, own: Option<Arc<Path>>) -> Self {
        Self { run, split, own, size: [0; 2], dropped: [0; 2], ticks_to_tell: 0, unreported: false }
    }
}

impl Shared {
    /// Returns the output files of running tasks that are outside of the folder.
    fn own_files(&self) -> Vec<Arc<Path>> {
        self.lock().values().filter_map(|tracked| tracked.own.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Tracked>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn note_watching(&self, is_watching: bool) {
        let before = self.is_watching.swap(is_watching, Ordering::Relaxed);
        match (before, is_watching) {
            (true, false) => tracing::warn!("no inotify is left: outputs are looked at while tasks run"),
            (false, true) => tracing::info!("outputs are watched by inotify again"),
            (true, true) | (false, false) => {}
        }
    }

    /// Looks at every running task's files. Returns whether any has grown.
    fn tick(&self) -> bool {
        let running: Vec<(TaskId, Tracked)> =
            self.lock().iter().map(|(task, known)| (*task, known.clone())).collect();
        let mut any = false;
        for (task, mut tracked) in running {
            let Some(grown) = look(&self.folder, task, &mut tracked, self.limit()) else { continue };
            if !grown && !tracked.unreported {
                continue;
            }
            any = true;
            // Growth is always reported, if only a tick later: a subscriber may wait for the last of it.
            let tell = tracked.ticks_to_tell == 0;
            tracked.ticks_to_tell = tracked.ticks_to_tell.checked_sub(1).unwrap_or(TELL_EVERY - 1);
            tracked.unreported = !tell;
            let fact = Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell };
            // The run may have ended meanwhile; then `settle` reports its final size. Another one has its own.
            let run = tracked.run;
            if let Some(known) = self.lock().get_mut(&task).filter(|known| known.run == run) {
                *known = tracked;
                self.facts.send(task, run, fact);
            }
        }
        any
    }
}

/// Looks at a task's files and bounds them. Returns whether they have grown; `None` if they are gone.
fn look(folder: &OutputFolder, task: TaskId, tracked: &mut Tracked, limit: u64) -> Option<bool> {
    if let Some(own) = &tracked.own {
        let size = fs::metadata(own).ok()?.len();
        return Some(std::mem::replace(&mut tracked.size[0], size) != size);
    }
    let mut grown = false;
    // The limit is per task, so two streams share it.
    let (streams, limit): (&[Stream], u64) = if tracked.split {
        (&[Stream::Stdout, Stream::Stderr], limit / 2)
    } else {
        (&[Stream::Stdout], limit)
    };
    for (index, stream) in streams.iter().enumerate() {
        let size = folder.stat(task, *stream)?.st_size.cast_unsigned();
        grown |= size != tracked.size[index];
        tracked.size[index] = size;
        if size > limit {
            match folder.bound(task, *stream, size, tracked.dropped[index], limit) {
                Ok(dropped) => tracked.dropped[index] = dropped,
                Err(error) => tracing::warn!(%task, %error, "cannot bound the output"),
            }
        }
    }
    Some(grown)
}

/// Waits for a first write, then ticks until nothing grows any more. Pauses after every write, so that writes to
/// untracked files cost no more than others. Without a watch, ticks as long as tasks run.
async fn follow(shared: Arc<Shared>, mut watch: Option<FirstWrite>) {
    loop {
        // Other processes of this user may have released an inotify instance.
        watch = watch.or_else(|| FirstWrite::new(shared.folder.path()).ok());
        let armed = match watch.take() {
            Some(watch) => arm(&shared, watch).await,
            None => None,
        };
        let is_armed = armed.as_ref().is_some_and(|(_, is_armed)| *is_armed);
        watch = armed.map(|(watch, _)| watch);
        shared.note_watching(is_armed);
        match watch.as_ref().filter(|_| is_armed) {
            // A write between the last look and arming would go unseen, so look once more.
            Some(watch) => {
                let quiet = !tick_on_worker(&shared).await;
                if quiet {
                    tokio::select! {
                        told = watch.wait() => if told.is_err() { return },
                        () = shared.own_added.notified() => {}
                        () = shared.folder.kept.renewed() => {}
                    }
                }
            }
            None if shared.lock().is_empty() => shared.added.notified().await,
            None => {}
        }
        while tick_on_worker(&shared).await {
            tokio::time::sleep(TICK).await;
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Arms a watch, on a worker if there are files elsewhere: their disk may hang. Returns whether that is done.
async fn arm(shared: &Shared, mut watch: FirstWrite) -> Option<(FirstWrite, bool)> {
    let elsewhere = shared.own_files();
    let is_near = elsewhere.is_empty();
    let arm = move || {
        let is_armed = watch.arm(&elsewhere);
        (watch, is_armed)
    };
    if is_near { Some(arm()) } else { shared.workers.run(arm).await }
}

async fn tick_on_worker(shared: &Arc<Shared>) -> bool {
    let job = Arc::clone(shared);
    shared.workers.run(move || job.tick()).await.unwrap_or(false)
}

#[cfg(test)]
mod tests;
