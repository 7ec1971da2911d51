//! The journal of a durable daemon (R125): the core's state is written after each step, on a separate thread, and read
//! when the next daemon starts. The journal makes no decisions, and treats tasks only as rows.
//!
//! The store is `SQLite`: a transaction in its write-ahead log survives the end of this process without being flushed
//! to the disk, every frame of that log has a checksum, and a torn one at its end is ignored.

mod begin;
mod envs;
mod frames;
mod parse;
mod room;
mod salvage;
mod store;
#[cfg(test)]
mod tests;
mod trouble;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bgd_shared::holder::{Note, of_lock};
use nix::sys::resource::Resource;
use rusqlite::ErrorCode;

use self::begin::{FULL, Fault, READ_ONLY, begin, of_later, probe, refused, words};
use self::room::Room;
pub use self::salvage::Damage;
pub use self::store::{COUNTED, FORMAT, Head, READS};
use self::store::{FILE, LOG, Merged, Read, Store};
pub use self::trouble::Trouble;
use crate::core::durable::{Changes, Kept};
use crate::os::files::private_folder;
use crate::os::limit;
use crate::os::lock::{FileId, ProcessLock};

/// Maximum number of steps per transaction.
const GROUP: usize = 4096;

/// How long to wait before failed writes are retried.
const RETRY: Duration = Duration::from_secs(1);

/// More bytes than `SQLite` writes at once: a page and its header.
const LARGEST_WRITE: u64 = 64 * 1024;

/// How long an ending daemon may keep the journal's lock.
const LEAVING: Duration = Duration::from_secs(1);

/// How long to wait for the last changes to be written when the daemon ends.
const LAST_WRITES: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Answered requests survive the end of the daemon.
    Written,
    /// Answered requests also survive the end of the machine.
    Synced,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon has the journal.
    #[error("the journal {} is in use by another durable bgd{}: use that one, with BGD_SOCKET set to its socket{}; or give this one a state folder of its own, with XDG_STATE_HOME", .folder.display(), .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), .socket.as_ref().map(|path| format!(", {}", path.display())).unwrap_or_default())]
    Busy {
        folder: PathBuf,
        /// The process ID of that daemon, if known.
        pid: Option<i32>,
        /// That daemon's socket, if known.
        socket: Option<PathBuf>,
    },
    /// The journal can't be read or written.
    #[error("the journal {} can't be used: {why}", .folder.display())]
    Unusable { folder: PathBuf, why: String },
}

/// An open journal with its content.
pub struct Opened {
    store: Store,
    lock: ProcessLock,
    folder: PathBuf,
    /// The head; `None` if the journal is new, or was not read.
    pub head: Option<Head>,
    /// The instance that wrote the journal, according to the lock's note.
    pub instance: Option<String>,
    /// The state.
    pub kept: Kept,
    /// The damage of the journal from which this one was salvaged.
    pub damage: Option<Damage>,
}

/// Opens the journal in the state folder and reads it. A damaged one is moved aside after its readable parts were
/// salvaged ([`salvage`]).
///
/// # Errors
/// Another daemon has the journal, or the disk can't be written.
pub fn open(state: &Path, durability: Durability) -> Result<Opened, OpenError> {
    let folder = state.join("journal");
    let unusable = |why: String| OpenError::Unusable { folder: folder.clone(), why };
    let lock = lock(&folder)?;
    let instance = Some(lock.note().instance).filter(|id| !id.is_empty());
    let sync = durability == Durability::Synced;
    let finish = || salvage::finish(&folder).map_err(|error| unusable(error.to_string()));
    // Complete the salvage of a daemon that was killed during it.
    let mut damage = finish()?;
    let mut begun = begin(&folder, sync, instance.as_deref());
    if let Err(Fault::Damaged(why)) = &begun {
        salvage::salvage(&folder, why, instance.as_deref(), sync).map_err(|fault| unusable(fault.words()))?;
        damage = finish()?;
        begun = begin(&folder, sync, instance.as_deref());
    }
    let (store, Read { head, kept, .. }) = begun.map_err(|fault| unusable(fault.words()))?;
    Ok(Opened { store, lock, folder, head, instance, kept, damage })
}

/// Returns the number of tasks in the journal of the state folder, for a daemon that does not use it: nothing else shows
/// them. At most [`COUNTED`]; 0 if another daemon uses it or it can't be read.
pub fn unused_tasks(state: &Path) -> u32 {
    let folder = state.join("journal");
    // Most daemons have never been durable.
    if !folder.exists() {
        return 0;
    }
    let is_used = of_lock(&folder.join("lock")).is_ok_and(|holder| holder.is_some());
    if is_used { 0 } else { store::count_tasks(&folder.join(FILE)).unwrap_or_default() }
}

/// Reopens the journal of this instance after an upgrade in place, without reading the state, which is carried
/// separately.
///
/// # Errors
/// The journal can't be used, is missing, or belongs to another instance.
pub fn reopen(state: &Path, durability: Durability, instance: &str) -> Result<Opened, OpenError> {
    let folder = state.join("journal");
    let lock = lock(&folder)?;
    let unusable = |why: String| OpenError::Unusable { folder: folder.clone(), why };
    let failed = |error: rusqlite::Error| unusable(words(&error));
    let mut store = Store::open(&folder.join(FILE), durability == Durability::Synced).map_err(failed)?;
    // First, as nothing else of a later format may be readable, and its file must not be changed.
    if let Some(format) = store.later_format() {
        return Err(unusable(of_later(format)));
    }
    store.read_envs().and_then(|()| store.trust()).map_err(failed)?;
    if store.head().is_none_or(|head| head.instance != instance) {
        return Err(unusable("it is not this daemon's".to_owned()));
    }
    Ok(Opened { store, lock, folder, head: None, instance: None, kept: Kept::default(), damage: None })
}

/// Takes the journal's lock; the error names its holder. A killed daemon keeps the lock for a moment after its socket
/// is free.
fn lock(folder: &Path) -> Result<ProcessLock, OpenError> {
    let unusable = |path: &Path, error: &io::Error| OpenError::Unusable {
        folder: folder.to_owned(),
        why: refused(path, error),
    };
    let made = private_folder(folder);
    made.map_err(|error| unusable(folder, &error))?;
    let path = folder.join("lock");
    let deadline = Instant::now() + LEAVING;
    loop {
        if let Some(lock) = ProcessLock::try_take(&path).map_err(|error| unusable(&path, &error))? {
            return Ok(lock);
        }
        if Instant::now() >= deadline {
            let holder = of_lock(&path).ok().flatten();
            let (pid, note) = holder.map(|holder| (holder.pid, holder.note)).unzip();
            let socket = note.map(|note| PathBuf::from(note.socket.as_os_str()));
            let socket = socket.filter(|path| !path.as_os_str().is_empty());
            return Err(OpenError::Busy { folder: folder.to_owned(), pid, socket });
        }
        thread::sleep(LEAVING / 20);
    }
}

/// Writes the head to a new journal, and returns the note for its lock. A lock must not name the instance of a journal
/// without a head: that counts as damaged.
fn claim(store: &mut Store, head: &Head, note: &Note) -> Note {
    let is_claimed = store.head().is_some() || store.write(head, &Merged::default()).is_ok();
    let instance = if is_claimed { note.instance.clone() } else { String::new() };
    Note { instance, ..note.clone() }
}

/// Returns why a write has failed. `SQLite` does not distinguish a read-only disk from a broken one.
fn of_write_error(error: &rusqlite::Error, folder: &Path) -> Trouble {
    let is_of_disk = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly)
    );
    match probe(folder) {
        Err(probed) if is_of_disk && probed.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Trouble::of_disk(READ_ONLY)
        }
        _ if is_of_disk && is_at_limit(folder) => Trouble::FileLimit,
        Ok(()) | Err(_) => Trouble::of_disk(words(error)),
    }
}

/// Reports whether a file of the journal is about as large as files of this process may be.
fn is_at_limit(folder: &Path) -> bool {
    let Some(most) = limit::own(Resource::RLIMIT_FSIZE) else { return false };
    let is_there = |name: &&str| {
        let size = folder.join(name).metadata().map_or(0, |meta| meta.len());
        size.saturating_add(LARGEST_WRITE) > most
    };
    [FILE, LOG].iter().any(is_there)
}

/// The outcome of writing steps.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// All steps up to this one were written, or failed to be.
    pub upto: u64,
    /// Whether the steps were written. If not, writing them is retried.
    pub is_written: bool,
    /// Why no work should be added: the steps could not be written, or the disk has no room except the journal's own
    /// reserve.
    pub trouble: Option<Trouble>,
}

/// The writing side of an open journal.
#[derive(Debug)]
pub struct Journal {
    writes: Writes,
    /// Why no work should be added initially ([`Recorded::trouble`]).
    pub trouble: Option<Trouble>,
    /// Its file; `None` in a simulation.
    file: Option<JournalFile>,
    is_stopped: Arc<AtomicBool>,
}

/// The file of an open journal, as its path named it when it was opened.
#[derive(Clone, Debug)]
pub struct JournalFile {
    path: PathBuf,
    id: Option<FileId>,
}

impl JournalFile {
    fn in_folder(folder: &Path) -> Self {
        let path = folder.join(FILE);
        Self { id: FileId::of(&path), path }
    }

    /// Checks that the file can be opened again: it is still at its path.
    ///
    /// # Errors
    /// Returns the problem and how to fix it, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.is_there() { Ok(()) } else { Err(format!("the journal {}", self.missing())) }
    }

    /// Returns its path if it was removed, moved or replaced, so that the next daemon will not find the tasks.
    pub fn missing_path(&self) -> Option<&Path> {
        self.is_gone().then_some(self.path.as_path())
    }

    fn is_there(&self) -> bool {
        self.id.is_some() && FileId::of(&self.path) == self.id
    }

    /// Reports whether the file was at its path once, but no longer is.
    fn is_gone(&self) -> bool {
        // Any other error is one of the disk, for which writing fails, too.
        let is_missing = || {
            let kind = std::fs::symlink_metadata(&self.path).map_err(|error| error.kind());
            matches!(kind, Err(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
        };
        match (self.id, FileId::of(&self.path)) {
            (None, _) => false,
            (Some(_), None) => is_missing(),
            (Some(own), Some(there)) => own != there,
        }
    }

    fn missing(&self) -> Trouble {
        Trouble::Missing(self.path.as_path().into())
    }
}

/// The destination of changes.
enum Writes {
    Thread {
        orders: Option<Sender<(u64, Changes)>>,
        thread: Option<JoinHandle<()>>,
        /// Disconnected when the thread ends.
        ended: Receiver<()>,
    },
    Simulated(Box<dyn Fn(u64, Changes)>),
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread { .. } => "Thread",
            Self::Simulated(_) => "Simulated",
        })
    }
}

impl Journal {
    /// Starts the journal's thread. `next_mark` returns the number of the next mark of a process tree; `report` is
    /// called after every transaction, on the journal's thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        opened: Opened,
        head: Head,
        note: &Note,
        next_mark: impl Fn() -> u32 + Send + 'static,
        report: impl Fn(Recorded) + Send + 'static,
    ) -> io::Result<Self> {
        let Opened { mut store, lock, folder, .. } = opened;
        lock.write_note(&claim(&mut store, &head, note));
        let (orders, ordered) = mpsc::channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (next_mark, report, shared) = (Box::new(next_mark), Box::new(report), Arc::clone(&is_stopped));
        let file = JournalFile::in_folder(&folder);
        let mut writer = Writer {
            store,
            file: file.clone(),
            room: None,
            folder,
            head,
            next_mark,
            report,
            is_stopped: shared,
            _lock: lock,
        };
        let trouble = writer.is_short().then(|| Trouble::of_disk(FULL));
        let found = trouble.clone();
        let (ending, ended) = mpsc::channel();
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| writer.run(&ordered, found))).is_err() {
                writer.refuse_all(&ordered);
            }
            drop(writer);
            drop(ending);
        };
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(run)?;
        let thread = Writes::Thread { orders: Some(orders), thread: Some(thread), ended };
        Ok(Self { writes: thread, trouble, file: Some(file), is_stopped })
    }

    /// Creates a journal without thread and file for a simulation; `take` receives the changes of each step.
    pub fn simulated(take: impl Fn(u64, Changes) + 'static) -> Self {
        let writes = Writes::Simulated(Box::new(take));
        Self { writes, trouble: None, file: None, is_stopped: Arc::default() }
    }

    /// Returns its file; `None` in a simulation.
    pub fn file(&self) -> Option<&JournalFile> {
        self.file.as_ref()
    }

    /// Makes the journal record at its end that the daemon was stopped on request.
    pub fn note_stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Queues the changes of a step for writing.
    pub fn write(&self, number: u64, changes: Changes) {
        match &self.writes {
            Writes::Thread { orders: Some(orders), .. } => {
                // Can't fail: the thread ends only once the sender is dropped, even if writing panics.
                let _ = orders.send((number, changes));
            }
            Writes::Thread { orders: None, .. } => {}
            Writes::Simulated(take) => take(number, changes),
        }
    }
}

impl Drop for Journal {
    /// Waits until everything was written or failed to be, at most [`LAST_WRITES`].
    fn drop(&mut self) {
        let Writes::Thread { orders, thread, ended } = &mut self.writes else { return };
        *orders = None;
        if ended.recv_timeout(LAST_WRITES) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the disk does not answer: the last changes are not in the journal");
        } else if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

/// The changes taken over by the journal's thread.
struct Taken {
    unwritten: Merged,
    /// The number of the last step.
    upto: u64,
    /// Whether all of them are written.
    is_written: bool,
    /// Why no work should be added ([`Recorded::trouble`]).
    trouble: Option<Trouble>,
}

impl Taken {
    fn recorded(&self) -> Recorded {
        Recorded { upto: self.upto, is_written: self.is_written, trouble: self.trouble.clone() }
    }
}

struct Writer {
    store: Store,
    file: JournalFile,
    /// `None` while there is no log.
    room: Option<Room>,
    folder: PathBuf,
    head: Head,
    next_mark: Box<dyn Fn() -> u32 + Send>,
    report: Box<dyn Fn(Recorded) + Send>,
    is_stopped: Arc<AtomicBool>,
    _lock: ProcessLock,
}

impl Writer {
    fn run(&mut self, ordered: &Receiver<(u64, Changes)>, trouble: Option<Trouble>) {
        let mut taken = Taken { unwritten: Merged::default(), upto: 0, is_written: true, trouble };
        if taken.trouble.is_some() {
            (self.report)(taken.recorded());
        }
        loop {
            let next = if taken.trouble.is_some() {
                ordered.recv_timeout(RETRY)
            } else {
                ordered.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            if !self.turn(&mut taken, next, ordered) {
                break;
            }
        }
        if taken.trouble.is_some() {
            self.store.keep_log();
        }
    }

    /// Reports every step as not written, after a panic: which of the last ones are in the file is unknown, and writing
    /// later ones without them would record a state that never existed.
    fn refuse_all(&self, ordered: &Receiver<(u64, Changes)>) {
        tracing::error!(
            "the journal's thread panicked: nothing more is written until the daemon is restarted"
        );
        let refuse = |upto| {
            (self.report)(Recorded { upto, is_written: false, trouble: Some(Trouble::Panicked) });
        };
        // The numbers of the steps that were being written are lost.
        refuse(u64::MAX);
        for (number, _) in ordered {
            refuse(number);
        }
    }

    /// Writes the next steps together with those whose write failed before, and reports the outcome. If there are none,
    /// checks whether the disk has room again. Returns false after the last ones.
    fn turn(
        &mut self,
        taken: &mut Taken,
        next: Result<(u64, Changes), RecvTimeoutError>,
        ordered: &Receiver<(u64, Changes)>,
    ) -> bool {
        let is_over = matches!(next, Err(RecvTimeoutError::Disconnected));
        let mut is_idle = taken.is_written;
        // A step may have arrived since the timeout.
        for (number, changes) in next.into_iter().chain(ordered.try_iter().take(GROUP)) {
            taken.unwritten.add(changes);
            (taken.upto, is_idle) = (number, false);
        }
        self.head.is_stopped = is_over && self.is_stopped.load(Ordering::Relaxed);
        if is_over && is_idle && !self.head.is_stopped {
            return false;
        }
        let failed = if is_idle && !is_over { None } else { self.write(&mut taken.unwritten) };
        if let (Some(why), true) = (&failed, taken.is_written) {
            tracing::error!(%why, "the journal can't be written");
        }
        taken.is_written = failed.is_none();
        taken.trouble = failed.or_else(|| self.is_short().then(|| Trouble::of_disk(FULL)));
        (self.report)(taken.recorded());
        !is_over
    }

    /// Writes the changes and empties `unwritten`. On failure, keeps them and returns the reason.
    fn write(&mut self, unwritten: &mut Merged) -> Option<Trouble> {
        // The file is still open, but the next daemon would not find it.
        if self.file.is_gone() {
            return Some(self.file.missing());
        }
        self.head.next_mark = (self.next_mark)();
        match self.store.write(&self.head, unwritten) {
            Ok(()) => {
                *unwritten = Merged::default();
                None
            }
            Err(error) => Some(of_write_error(&error, &self.folder)),
        }
    }

    /// Reports whether the disk is full, apart from the journal's own reserve.
    fn is_short(&mut self) -> bool {
        if self.room.is_none() {
            self.room = Room::of(&self.folder.join(LOG)).ok();
        }
        self.room.as_mut().is_some_and(Room::is_short)
    }
}
