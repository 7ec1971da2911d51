//! Output files. A process writes into its file itself; the daemon is not in the data path.
//!
//! To bound the size of a file and to tell how far it has grown, the daemon must learn that it grows,
//! without polling quiet tasks and without a wake-up for each write: it watches the folder for one
//! write, and from then on looks at the running tasks' files a few times a second until none has grown
//! any more. Then it watches again. Quiet tasks cost no system call, loud ones a few a second.
//!
//! A process that was handed over may write to a file of its own somewhere else. That is read and looked at
//! in the same way, and never changed or removed.

mod kept;
mod read;
mod writes;

use std::collections::HashMap;
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
use bgd_shared::request::Stream;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FileStat, Mode, fstatat};
use tokio::sync::Notify;

use self::kept::Kept;
pub use self::read::{Part, last_line, read_part};
use self::writes::FirstWrite;
use super::messages::Facts;
use super::workers::Workers;
use crate::core::{Fact, Spec};

/// How often growing files are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Subscribers hear of a task's growing output at most once in so many ticks.
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
    /// The files of both streams.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.out.as_path()).chain(self.err.as_deref())
    }

    /// How large they are, together.
    pub fn size(&self) -> u64 {
        self.paths().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum()
    }

    /// The file of a stream.
    pub fn path(&self, stream: Stream) -> &Path {
        match (stream, &self.err) {
            (Stream::Stderr, Some(err)) => err,
            (Stream::Stdout | Stream::Stderr, _) => &self.out,
        }
    }
}

/// The folder that holds the output of all tasks of this life of the daemon.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    kept: Kept,
}

/// How many runs of an agent task have their results kept: one more run, and the oldest goes.
const RESULTS_KEPT: u32 = 8;

impl OutputFolder {
    /// Opens the folder, which exists.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { kept: Kept::open(path.clone(), None)?, path })
    }

    /// Opens a folder that `restore` makes again when it is removed.
    ///
    /// # Errors
    /// What the system says.
    pub fn kept(
        path: PathBuf,
        restore: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self { kept: Kept::open(path.clone(), Some(Box::new(restore)))?, path })
    }

    /// Makes sure that the folder is where it belongs: it is made again if somebody has removed it.
    ///
    /// # Errors
    /// It is gone, and can't be made again.
    pub fn ensure(&self) -> io::Result<()> {
        self.kept.ensure()
    }

    /// Opens a file of the folder, which must be where it belongs if the file is to be made.
    fn open_at(&self, task: TaskId, stream: Stream, flags: OFlag) -> io::Result<OwnedFd> {
        if flags.contains(OFlag::O_CREAT) {
            self.ensure()?;
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(openat(&*self.kept.handle(), name(task, stream).as_str(), flags | OFlag::O_CLOEXEC, mode)?)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a task's files are.
    pub fn files(&self, task: TaskId, split: bool) -> OutputFiles {
        OutputFiles {
            out: self.path.join(name(task, Stream::Stdout)),
            err: split.then(|| self.path.join(name(task, Stream::Stderr))),
        }
    }

    /// Where the files of a task with this order are.
    pub fn files_of(&self, task: TaskId, spec: &Spec) -> OutputFiles {
        match &spec.output_file {
            Some(own) => OutputFiles { out: own.as_os_str().into(), err: None },
            None => self.files(task, spec.split),
        }
    }

    /// Makes a task's file for a stream, which must be new.
    ///
    /// # Errors
    /// What the system says: the disk may be full.
    pub fn create(&self, task: TaskId, stream: Stream) -> io::Result<OwnedFd> {
        self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_APPEND)
    }

    /// Makes a task's file for a stream, which must be new, for the daemon alone to write to: each write
    /// says where, as `splice` takes no file that is open for appending.
    ///
    /// # Errors
    /// What the system says: the disk may be full.
    pub fn create_to_drain(&self, task: TaskId, stream: Stream) -> io::Result<fs::File> {
        Ok(self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY)?.into())
    }

    /// Opens a task's file for a stream, new or not, to go on writing at its end.
    ///
    /// # Errors
    /// What the system says: the disk may be full.
    pub fn append(&self, task: TaskId, stream: Stream) -> io::Result<OwnedFd> {
        self.open_at(task, stream, OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW)
    }

    /// Where the result of a run of an agent task is.
    pub fn result(&self, task: TaskId, run: u32) -> PathBuf {
        self.path.join(format!("{task}.result.{run}"))
    }

    /// Keeps the result of a run of an agent task. What was cut off before it becomes a hole, so that the
    /// file tells how much that was. Results of the last few runs stay, as notices of them may not have
    /// been read yet.
    ///
    /// # Errors
    /// What the system says: the disk may be full.
    pub fn keep_result(&self, task: TaskId, run: u32, cut: u64, result: &[u8]) -> io::Result<()> {
        let path = self.result(task, run);
        if let Some(old) = run.checked_sub(RESULTS_KEPT) {
            let _ = fs::remove_file(self.result(task, old));
        }
        let new = path.with_extension("new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let kept = file
            .seek(SeekFrom::Start(cut))
            .and_then(|_| file.write_all(result))
            .and_then(|()| fs::rename(&new, path));
        if kept.is_err() {
            // A part of it is of no use, and may have taken the last of the disk.
            let _ = fs::remove_file(new);
        }
        kept
    }

    /// Makes the file that holds a prompt for as long as its turn goes on, and that its user alone can read.
    ///
    /// # Errors
    /// What the system says: the disk may be full.
    pub fn create_prompt(&self, task: TaskId) -> io::Result<(PathBuf, fs::File)> {
        let path = self.path.join(format!("{task}.prompt"));
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }

    fn stat(&self, task: TaskId, stream: Stream) -> Option<FileStat> {
        fstatat(&*self.kept.handle(), name(task, stream).as_str(), nix::fcntl::AtFlags::empty()).ok()
    }

    /// How large a task's output is, in each stream.
    pub fn sizes(&self, task: TaskId, split: bool) -> [u64; 2] {
        let size = |stream| self.stat(task, stream).map_or(0, |stat| stat.st_size.cast_unsigned());
        [size(Stream::Stdout), if split { size(Stream::Stderr) } else { 0 }]
    }

    /// Removes the files of a task that has had so many runs; 0 if it never was one. Missing ones are fine.
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

    /// Gives back what lies between the first part of a file and its last `limit` bytes. Returns how
    /// many bytes are dropped altogether.
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

/// A running task's files, as they were when last looked at.
#[derive(Clone, Debug)]
struct Tracked {
    run: u32,
    split: bool,
    /// The file that is not in the folder.
    own: Option<Arc<Path>>,
    size: [u64; 2],
    dropped: [u64; 2],
    ticks_to_tell: u32,
    /// It has grown since subscribers heard of it.
    untold: bool,
}

#[derive(Debug)]
struct Shared {
    folder: Arc<OutputFolder>,
    running: Mutex<HashMap<TaskId, Tracked>>,
    limit: AtomicU64,
    facts: Facts,
    workers: Workers,
    /// A task was added or may have written; only needed while the folder can't be watched.
    added: Notify,
    /// A file that is not in the folder was added, so it must be watched, too.
    own_added: Notify,
    /// Whether the system tells of writes. Else files are looked at as long as tasks run.
    is_watching: AtomicBool,
}

/// Follows the output files of running tasks.
#[derive(Clone, Debug)]
pub struct OutputWatch(Arc<Shared>);

impl OutputWatch {
    /// Begins to watch.
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
        let watch = FirstWrite::new(shared.folder.path()).ok();
        shared.note_watching(watch.is_some());
        tokio::spawn(follow(Arc::clone(&shared), watch));
        Self(shared)
    }

    /// Whether the system tells of writes to outputs, so that quiet ones need not be looked at.
    pub fn is_watching(&self) -> bool {
        self.0.is_watching.load(Ordering::Relaxed)
    }

    /// Changes how many bytes of a task's output are kept.
    pub fn set_limit(&self, limit: u64) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// A task has begun to run.
    pub fn track(&self, task: TaskId, run: u32, split: bool) {
        self.insert(task, Tracked::new(run, split, None));
    }

    /// The same for a task whose output is a file that is not in the folder.
    pub fn track_own(&self, task: TaskId, run: u32, file: &Path) {
        self.insert(task, Tracked::new(run, false, Some(file.into())));
        self.0.own_added.notify_one();
    }

    fn insert(&self, task: TaskId, tracked: Tracked) {
        self.0.lock().insert(task, tracked);
        self.0.added.notify_one();
    }

    /// A task's leader has ended: the size of its output now, and what was dropped of it. If processes
    /// of the task live on, its files are followed further.
    pub async fn settle(&self, task: TaskId, lives_on: bool) -> Option<Fact> {
        let mut tracked = self.0.lock().get(&task)?.clone();
        if !lives_on {
            self.0.lock().remove(&task);
        }
        let limit = self.0.limit();
        // A folder that is not ours may be on a disk that is slow.
        if tracked.own.is_none() {
            let bytes = self.0.folder.sizes(task, tracked.split);
            if bytes.iter().sum::<u64>() <= limit / 2 {
                return Some(Fact::Output { bytes, dropped: tracked.dropped, tell: false });
            }
        }
        let (folder, before) = (Arc::clone(&self.0.folder), tracked.clone());
        let looked =
            self.0.workers.run(move || look(&folder, task, &mut tracked, limit).map(|_| tracked)).await;
        let tracked = looked.flatten().unwrap_or(before);
        Some(Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell: false })
    }
}

impl Tracked {
    fn new(run: u32, split: bool, own: Option<Arc<Path>>) -> Self {
        Self { run, split, own, size: [0; 2], dropped: [0; 2], ticks_to_tell: 0, untold: false }
    }
}

impl Shared {
    /// The files of running tasks that are not in the folder.
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

    /// Looks at every running task's files; whether any has grown.
    fn tick(&self) -> bool {
        let running: Vec<(TaskId, Tracked)> =
            self.lock().iter().map(|(task, known)| (*task, known.clone())).collect();
        let mut any = false;
        for (task, mut tracked) in running {
            let Some(grown) = look(&self.folder, task, &mut tracked, self.limit()) else { continue };
            if !grown && !tracked.untold {
                continue;
            }
            any = true;
            // What has grown is told, be it a tick later: a subscriber may wait for the last of it.
            let tell = tracked.ticks_to_tell == 0;
            tracked.ticks_to_tell = tracked.ticks_to_tell.checked_sub(1).unwrap_or(TELL_EVERY - 1);
            tracked.untold = !tell;
            let fact = Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell };
            // The task may have ended meanwhile; then its final size is told by `settle`.
            if let Some(known) = self.lock().get_mut(&task) {
                let run = tracked.run;
                *known = tracked;
                self.facts.send(task, run, fact);
            }
        }
        any
    }
}

/// Looks at a task's files and bounds them. Whether they have grown; `None` if they are gone.
fn look(folder: &OutputFolder, task: TaskId, tracked: &mut Tracked, limit: u64) -> Option<bool> {
    if let Some(own) = &tracked.own {
        let size = fs::metadata(own).ok()?.len();
        return Some(std::mem::replace(&mut tracked.size[0], size) != size);
    }
    let mut grown = false;
    // The limit is a task's, so two streams share it.
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

/// Waits for a first write, then ticks until nothing grows any more. There is a pause after every
/// write, so that writes to files that nobody tracks cost no more than others. Without a watch it
/// ticks while tasks run.
async fn follow(shared: Arc<Shared>, mut watch: Option<FirstWrite>) {
    loop {
        // Others of this user may have given an instance back.
        watch = watch.or_else(|| FirstWrite::new(shared.folder.path()).ok());
        let is_armed = watch.as_mut().is_some_and(|watch| watch.arm(&shared.own_files()));
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

async fn tick_on_worker(shared: &Arc<Shared>) -> bool {
    let job = Arc::clone(shared);
    shared.workers.run(move || job.tick()).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, OutputFolder) {
        let home = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(home.path().to_path_buf()).unwrap();
        (home, folder)
    }

    #[test]
    fn parts_skip_what_was_dropped() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        let bytes: Vec<u8> = (0..400_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let dropped = 131_072;
        let mut got = Vec::new();
        let mut offset = 0;
        loop {
            let part = read_part(&path, true, offset, 10_000, dropped).unwrap();
            if part.next == offset.cast_unsigned() {
                break;
            }
            got.extend(part.bytes);
            offset = part.next.cast_signed();
        }
        let kept = [&bytes[..65_536], &bytes[65_536 + 131_072..]].concat();
        assert_eq!(got, kept);
    }

    #[test]
    fn a_negative_offset_counts_from_the_end() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_part(&path, true, -3, 100, 0).unwrap().bytes, b"789");
        assert_eq!(read_part(&path, true, -30, 2, 0).unwrap().bytes, b"01");
        assert_eq!(read_part(&path, true, 30, 2, 0).unwrap().next, 10);
    }

    #[test]
    fn bounding_frees_the_middle_and_keeps_both_ends() {
        let (_home, folder) = folder();
        let task = TaskId::random();
        let file = fs::File::from(folder.create(task, Stream::Stdout).unwrap());
        io::Write::write_all(&mut &file, &vec![b'x'; 4 << 20]).unwrap();
        let dropped = folder.bound(task, Stream::Stdout, 4 << 20, 0, 1 << 20).unwrap();
        let stat = folder.stat(task, Stream::Stdout).unwrap();
        assert_eq!(stat.st_size, 4 << 20);
        assert_eq!(dropped, (4 << 20) - (1 << 20));
        assert!(stat.st_blocks * 512 <= (1 << 20) + (64 << 10), "{} blocks", stat.st_blocks);
        let path = folder.files(task, false).path(Stream::Stdout).to_path_buf();
        let bytes = fs::read(path).unwrap();
        assert!(bytes[..65_536].iter().all(|byte| *byte == b'x'));
        assert!(bytes[65_536..65_536 + usize::try_from(dropped).unwrap()].iter().all(|byte| *byte == 0));
        assert!(bytes[65_536 + usize::try_from(dropped).unwrap()..].iter().all(|byte| *byte == b'x'));
    }

    #[test]
    fn the_last_line_is_short_and_clean() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        fs::write(&path, "first\n\x1b[31mred\x1b[0m line\n\n  \n").unwrap();
        assert_eq!(last_line(&path).unwrap(), "\u{fffd}[31mred\u{fffd}[0m line");
        fs::write(&path, b"\xff\xfe").unwrap();
        assert_eq!(last_line(&path).unwrap(), "\u{fffd}\u{fffd}");
        fs::write(&path, "x".repeat(100_000)).unwrap();
        assert_eq!(last_line(&path).unwrap().len(), read::LAST_LINE_CHARS);
        fs::write(&path, "").unwrap();
        assert_eq!(last_line(&path), None);
    }
}
