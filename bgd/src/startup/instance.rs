//! The directory of one instance (one lifetime) of the daemon, and the cleanup after dead ones (R09).
//!
//! An instance holds a lock on its directory until its process ends, however it ends. A directory whose lock is free
//! belongs to a dead instance: its processes are killed and it is removed.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use bgd_shared::holder::{Holder, Note, State, of_lock};
use bgd_shared::mutex::Mutex;
use bgd_shared::replace::replace;
use nix::errno::Errno;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::left_behind;
use crate::carry::{CarriedFds, Fd};
use crate::exec::left::SparedProcesses;
use crate::exec::processes::members::{self, INSTANCE_MARK};
use crate::exec::processes::{cgroup, mark};
use crate::keeper;
use crate::os::files::private_folder;
use crate::os::lock::ProcessLock;
use crate::os::pidfd::{PidFd, SIGKILL, wait_for_all};

/// The name of the note with the path of the tasks' cgroup.
const CGROUP: &str = "cgroup";

#[derive(Debug)]
pub struct Instance {
    /// The instance's ID, a UUID, which is also the name of the directory.
    pub id: String,
    pub path: PathBuf,
    /// The number of tasks started by killed daemons that could not remove their directories.
    pub lost: usize,
    /// Whether the directory outlives the daemon, as the daemon is durable.
    pub is_kept: bool,
    /// Warnings about outputs of earlier durable daemons that the journal does not know.
    pub unknown: Vec<String>,
    held: Mutex<Held>,
}

/// Marks a directory as that of a living daemon.
#[derive(Debug)]
struct Held {
    lock: ProcessLock,
    note: Note,
}

/// Writes the note of the tasks' cgroup atomically: part of a path would be a different path.
fn note_cgroup(folder: &Path, cgroup: &OsStr) -> io::Result<()> {
    replace(&folder.join(CGROUP), 0o600, |file| file.write_all(cgroup.as_encoded_bytes()))
}

/// Returns the directory of the instance with this ID.
pub fn folder(state: &Path, id: &str) -> PathBuf {
    state.join("instances").join(id)
}

/// The file that marks a directory as that of a durable daemon, to be found by the next one.
const KEPT: &str = "durable";

/// How long to wait for killed processes of a dead instance to end.
const SWEEP: Duration = Duration::from_secs(5);

/// How long to wait for another daemon that is starting and cleaning up; and the interval between checks whether it is
/// stopped.
const TURN: Duration = Duration::from_secs(80);
const LOOK: Duration = Duration::from_secs(5);

impl Instance {
    /// Creates the directory of an instance, named by its UUID, and cleans up after dead ones. Of the runs that this
    /// instance itself left, `spared` ones continue. A durable daemon keeps the outputs of other durable ones, which its
    /// journal does not know, for `keeps_days`.
    ///
    /// # Errors
    /// The state directory can't be written, or another daemon is starting for longer than [`TURN`], or is stopped.
    pub fn begin(
        state: &Path,
        id: String,
        keeps_days: Option<u64>,
        spared: &SparedProcesses,
    ) -> io::Result<Self> {
        let is_kept = keeps_days.is_some();
        let folder = state.join("instances");
        private_folder(&folder)?;
        spread(&folder);
        // Held while instances are created and cleaned up, so that a directory without a lock file yet is never
        // mistaken for a dead one's.
        let _turn = turn(&state.join("instances.lock"))?;
        let path = folder.join(&id);
        DirBuilder::new().mode(0o700).recursive(is_kept).create(&path)?;
        DirBuilder::new().mode(0o700).recursive(is_kept).create(path.join("output"))?;
        // A killed predecessor holds it until its process has ended.
        let own = ProcessLock::take(&path.join("lock"))?;
        if is_kept {
            fs::write(path.join(KEPT), "")?;
            left_behind::remove_notes(&path);
            sweep_kept(&path, &id, spared);
        }
        let held = Mutex::new(Held { lock: own, note: Note::default() });
        let mut instance = Self { id, path, lost: 0, is_kept, unknown: Vec::new(), held };
        instance.sweep(&folder, keeps_days);
        Ok(instance)
    }

    /// Restores the instance of the program before an upgrade, and its directory if it was removed meanwhile: neither
    /// program could continue without it.
    ///
    /// # Errors
    /// The directory can't be recreated.
    pub fn take_over(
        state: &Path,
        id: String,
        (lost, is_kept): (usize, bool),
        (lock, note): (ProcessLock, Note),
    ) -> io::Result<Self> {
        let path = state.join("instances").join(&id);
        // A program that failed to take over may have recreated the directory, with a lock that ended with it.
        let is_there = lock.is_at(&path.join("lock")) && path.join("output").is_dir();
        let held = Mutex::new(Held { lock, note });
        let instance = Self { id, path, lost, is_kept, unknown: Vec::new(), held };
        if !is_there {
            instance.restore()?;
        }
        Ok(instance)
    }

    /// Adds the instance's lock to the descriptors for an upgrade.
    pub fn name_lock(&self, named: &mut CarriedFds) -> Fd {
        named.add(&self.held.lock().lock)
    }

    /// Returns the directory for the tasks' outputs.
    pub fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// Writes the path of the tasks' cgroup into the directory, for the cleanup after this instance.
    ///
    /// # Errors
    /// The disk can't be written.
    pub fn note_cgroup(&self, cgroup: &Path) -> io::Result<()> {
        note_cgroup(&self.path, cgroup.as_os_str())
    }

    /// Writes a note that identifies the daemon, for clients that can't find its socket.
    pub fn write_note(&self, note: Note) {
        let mut held = self.held.lock();
        held.lock.write_note(&note);
        held.note = note;
    }

    /// Recreates the directory and everything in it except the outputs, if it was removed.
    ///
    /// # Errors
    /// A system call fails.
    pub fn restore(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        // Moved into place with all its markers, as the next daemon would draw conclusions from missing ones.
        let new = (!self.path.is_dir()).then(|| {
            let folder = self.path.parent().unwrap_or(&self.path);
            (folder, folder.with_file_name(format!("{}.new", self.id)))
        });
        let place = new.as_ref().map_or(&self.path, |(_, new)| new);
        private_folder(place.join("output"))?;
        let lock = place.join("lock");
        if !held.lock.is_at(&lock) {
            held.lock = ProcessLock::take(&lock)?;
        }
        held.lock.write_note(&held.note);
        if self.is_kept {
            fs::write(place.join(KEPT), "")?;
            // The keeper's socket is lost for good: another keeper must take its place. Until then, without any file, the
            // keeper would seem to have held nothing.
            let socket = place.join(keeper::SOCKET);
            if !socket.exists() {
                fs::write(socket, "")?;
            }
        }
        if let Some(cgroup) = &held.note.cgroup {
            note_cgroup(place, cgroup.as_os_str())?;
        }
        if let Some((folder, new)) = &new {
            private_folder(folder)?;
            fs::rename(new, &self.path)?;
        }
        Ok(())
    }

    /// Reports whether the next daemon can reach the keeper: its socket is in the directory.
    pub fn has_keeper_socket(&self) -> bool {
        let meta = fs::symlink_metadata(self.path.join(keeper::SOCKET));
        meta.is_ok_and(|meta| meta.file_type().is_socket())
    }

    /// Cleans up after dead instances. Counts the tasks they had started.
    fn sweep(&mut self, folder: &Path, keeps_days: Option<u64>) {
        let own = self.id.clone();
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        for entry in entries.filter(|entry| entry.file_name() != own.as_str()) {
            let path = entry.path();
            let (name, lock) = (entry.file_name(), ProcessLock::try_take(&path.join("lock")));
            match lock {
                // The files of a durable daemon are kept while it is not running; its processes are ended.
                Ok(Some(_lock)) if path.join(KEPT).exists() => {
                    if keeper::client::dismiss(&path) {
                        left_behind::note_ended(&path, self.is_kept);
                    }
                    sweep_kept(&path, &name.to_string_lossy(), &SparedProcesses::default());
                    self.unknown.extend(keeps_days.and_then(|days| keep_unknown(&path, days)));
                }
                Ok(Some(_lock)) => {
                    self.lost += tasks_in(&path.join("output"));
                    sweep_one(&path, &name.to_string_lossy());
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot examine an old instance");
                }
            }
        }
    }

    /// Removes the directory at the end of this instance, unless it is kept.
    pub fn end(&self) {
        if self.is_kept {
            return;
        }
        remove(&self.path);
    }
}

/// Waits until no other daemon is starting. Fails if that daemon is stopped.
fn turn(path: &Path) -> io::Result<ProcessLock> {
    if let Some(lock) = ProcessLock::try_take(path)? {
        return Ok(lock);
    }
    // Queried before the thread waits: this closes the file, which would release the lock.
    let holder = of_lock(path).ok().flatten();
    let (sender, receiver) = sync_channel(1);
    ProcessLock::take_on_thread(path.to_owned(), move |lock| drop(sender.send(lock)))?;
    let began = Instant::now();
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(lock) => return lock,
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let is_stopped = holder.as_ref().and_then(Holder::state).is_some_and(State::is_stopped);
        if is_stopped || began.elapsed() >= TURN {
            return Err(io::Error::new(io::ErrorKind::TimedOut, busy(path, holder.as_ref(), is_stopped)));
        }
    }
}

/// Returns the error that names the lock's holder and says what to do.
fn busy(path: &Path, holder: Option<&Holder>, is_stopped: bool) -> String {
    let path = path.display();
    let who = holder.map_or("another process".to_owned(), |holder| format!("process {}", holder.pid));
    if is_stopped {
        format!("{who} is stopped, and holds {path} as a daemon does while it starts; resume or end it")
    } else {
        let seconds = TURN.as_secs();
        format!(
            "{who} has held {path} for {seconds} s, as a daemon does while it starts; wait for it, or end it"
        )
    }
}

/// Returns the PID of a living daemon that serves this socket path, even if the socket is gone: it holds the lock of
/// its instance. Call it only before this process has an instance of its own.
pub fn serving(state: &Path, socket: &Path) -> Option<i32> {
    let lives = fs::read_dir(state.join("instances")).ok()?.flatten();
    lives.map(|life| life.path().join("lock")).find_map(|lock| {
        let holder = of_lock(&lock).ok()??;
        (holder.note.socket.as_os_str() == socket.as_os_str()).then_some(holder.pid)
    })
}

/// Cleans up after a dead instance whose directory is gone, using a note that it left elsewhere.
pub fn sweep_noted(state: &Path, dead: &Note) {
    // The ID is used as a directory name here, and as part of a path.
    let Ok(id) = uuid::Uuid::try_parse(&dead.instance) else { return };
    let path = state.join("instances").join(id.to_string());
    if !path.exists() {
        let cgroup = dead.cgroup.as_ref().map(|cgroup| PathBuf::from(cgroup.as_os_str()));
        sweep_processes(&path, &id.to_string(), cgroup.as_deref(), &SparedProcesses::default());
    }
}

/// Asks the file system to place each subdirectory into a separate part of the disk, if it has such parts (ext4).
/// Creating a file makes ext4 check every inode freed in the same part within the last minutes, which takes 0.5
/// ms if there are thousands. This way an instance pays only for files that it has removed itself.
fn spread(folder: &Path) {
    let mark = || -> io::Result<()> {
        let folder = fs::File::open(folder)?;
        Ok(ioctl_setflags(&folder, ioctl_getflags(&folder)? | IFlags::TOPDIR)?)
    };
    // Other file systems have no such flag.
    let _ = mark();
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove an instance's folder");
    }
}

/// Keeps the directory of a durable instance that the journal does not know, for this many days: the journal may be put
/// back. Returns the warning about its outputs, if there are any.
fn keep_unknown(path: &Path, days: u64) -> Option<String> {
    if left_behind::is_expired(path, days) {
        remove(path);
        return None;
    }
    let output = path.join("output");
    let tasks = tasks_in(&output);
    let warning = (tasks > 0).then(|| left_behind::warning(&output, tasks, days))?;
    tracing::warn!("{warning}");
    Some(warning)
}

/// Counts the tasks that have files in this directory. Each file name begins with a task ID.
fn tasks_in(output: &Path) -> usize {
    let names = fs::read_dir(output).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let id = |name: OsString| uuid::Uuid::try_parse(name.to_str()?.get(..ID_CHARS)?).ok();
    names.filter_map(id).collect::<HashSet<_>>().len()
}

/// The number of characters of a task ID.
const ID_CHARS: usize = 36;

/// Kills the processes that a dead instance left, and removes its files.
fn sweep_one(path: &Path, id: &str) {
    sweep_kept(path, id, &SparedProcesses::default());
    remove(path);
}

/// Kills the processes that a dead instance left, except spared runs. Its files are kept.
fn sweep_kept(path: &Path, id: &str, spared: &SparedProcesses) {
    let cgroup = fs::read_to_string(path.join(CGROUP)).ok().map(PathBuf::from);
    sweep_processes(path, id, cgroup.as_deref(), spared);
}

/// Kills the processes of a dead instance, except those of spared runs.
fn sweep_processes(path: &Path, id: &str, cgroup: Option<&Path>, spared: &SparedProcesses) {
    let deadline = Instant::now() + SWEEP;
    if let Some(cgroup) = cgroup {
        let killed = cgroup::kill_except(cgroup, &spared.cgroups);
        tracing::info!(cgroup = %cgroup.display(), ?killed, "an old instance's cgroup is ended");
    }
    loop {
        let left = processes_of(path, id, spared);
        if left.is_empty() {
            break;
        }
        tracing::info!(instance = id, count = left.len(), "ending processes that a dead daemon left");
        for process in &left {
            if let Err(error) = process.signal(SIGKILL)
                && error.raw_os_error() != Some(Errno::ESRCH as i32)
            {
                tracing::warn!(%error, "cannot end a process of a dead daemon");
            }
        }
        if !wait_for_all(&left, deadline) {
            tracing::warn!(instance = id, "some processes of a dead daemon do not end");
            break;
        }
    }
    if let Some(cgroup) = cgroup {
        cgroup::remove_except(cgroup, &spared.cgroups);
    }
}

/// Returns the processes that carry an instance's mark or write to its output, those in their sessions, and all their
/// descendants, also if one of them has started this daemon; never this daemon itself.
fn processes_of(path: &Path, id: &str, sparing: &SparedProcesses) -> Vec<PidFd> {
    let variable = format!("{INSTANCE_MARK}={id}");
    let output = path.join("output");
    let everyone = members::processes_of_user();
    let is_marked = |pid: i32| {
        mark::is_of_instance(pid, id)
            || members::has_mark(pid, variable.as_bytes())
            || members::appends_to(pid, &output)
    };
    let is_to_go = |pid: i32| is_marked(pid) && !sparing.owns(pid, &output);
    let marked: Vec<i32> = everyone.iter().copied().filter(|pid| is_to_go(*pid)).collect();
    let sessions: HashSet<i32> =
        marked.iter().copied().filter(|pid| members::session_of(*pid) == Some(*pid)).collect();
    let in_session = |pid: i32| members::session_of(pid).is_some_and(|session| sessions.contains(&session));
    let mut roots = marked;
    roots.extend(everyone.into_iter().filter(|pid| in_session(*pid)));
    let own = std::process::id().cast_signed();
    let mut found = members::descendants_of(&roots);
    found.retain(|pid| *pid != own && !sparing.owns(*pid, &output));
    found.sort_unstable();
    found.dedup();
    // Open the handle first, then check again, as the PID may have been reused.
    let hold = |pid: i32| {
        let process = PidFd::open(pid).ok()?;
        let belongs = members::ancestors_of(pid).into_iter().any(|pid| is_marked(pid) || in_session(pid));
        (belongs && !process.has_ended()).then_some(process)
    };
    found.into_iter().filter_map(hold).collect()
}

#[cfg(test)]
mod tests {
    use rustix::fs::statfs;

    use super::*;

    #[test]
    fn r130_outputs_that_no_journal_knows_are_reported_and_removed_in_time() {
        let state = tempfile::tempdir().unwrap();
        let [lost, empty, own] =
            [1, 2, 3].map(|number| format!("00000000-0000-4000-8000-00000000000{number}"));
        let none = SparedProcesses::default();
        let begin = |id: &str, days| Instance::begin(state.path(), id.to_owned(), days, &none).unwrap();
        drop((begin(&lost, Some(30)), begin(&empty, Some(30))));
        let output = folder(state.path(), &lost).join("output");
        fs::write(output.join(format!("{own}.out")), "said").unwrap();

        assert!(begin("00000000-0000-4000-8000-000000000004", None).unknown.is_empty(), "it has no journal");
        for _ in 0..2 {
            let warnings = begin(&own, Some(30)).unknown;
            let [warning] = &warnings[..] else { panic!("{warnings:?}") };
            let text = output.display().to_string();
            assert!(warning.contains("does not know 1 task ") && warning.contains(&text), "{warning}");
        }
        assert!(begin(&own, Some(0)).unknown.is_empty());
        assert!(!output.exists() && !folder(state.path(), &empty).exists(), "their time is over");
        assert!(folder(state.path(), &own).exists());
    }

    /// The magic number of ext2, ext3 and ext4.
    const EXT: u64 = 0xef53;

    #[test]
    fn instances_folder_is_marked_topdir_on_ext_file_systems() {
        let state = tempfile::tempdir().unwrap();
        let instance = Instance::begin(
            state.path(),
            "00000000-0000-4000-8000-000000000001".into(),
            None,
            &SparedProcesses::default(),
        )
        .unwrap();
        assert!(instance.output().is_dir());
        let folder = fs::File::open(state.path().join("instances")).unwrap();
        let is_ext = u64::try_from(statfs(state.path()).unwrap().f_type).is_ok_and(|kind| kind == EXT);
        let is_marked = ioctl_getflags(&folder).is_ok_and(|flags| flags.contains(IFlags::TOPDIR));
        assert_eq!(is_marked, is_ext);
    }
}
