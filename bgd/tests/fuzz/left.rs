//! The remains of a durable daemon that was killed: its journal, and the keeper's records of its runs. Disks lose
//! bytes, and a keeper serves daemons of other versions.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use bgd::core::{Core, CoreLimits};
use bgd::exec::left::{HeldRun, SparedProcesses};
use bgd::journal::{Damage, Durability, OpenError, Opened, open};
use bgd::keeper::{Kept, Key};
use bgd_shared::id::TaskId;

const LIMITS: CoreLimits = CoreLimits {
    max_concurrent_tasks: 2,
    tasks: 1000,
    memory: 1 << 30,
    environments: 1 << 20,
    grace_ms: 1000,
    inbox_items: 10,
    history: None,
};

fn opened(folder: &Path) -> Result<Opened, OpenError> {
    open(folder, Durability::Written)
}

/// A journal is refused with an error, or a core continues with its content; the journal is then intact, and has the
/// same content.
pub fn journal(bytes: &[u8]) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let journal = folder.path().join("journal");
    fs::create_dir(&journal).unwrap();
    fs::write(journal.join("journal.db"), bytes).unwrap();
    let mut first = match opened(folder.path()) {
        Ok(first) => first,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let kept = std::mem::take(&mut first.kept);
    let tasks = kept.tasks.len();
    let core = Core::restore(LIMITS, [].into(), kept);
    assert!(core.summary().total() <= tasks as u64);
    let was_damaged = first.damage.is_some();
    first.damage.iter().for_each(Damage::settle);
    drop(first);
    let second = opened(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    assert!(second.damage.is_none(), "{was_damaged}: {:?}", second.damage);
    assert_eq!(second.kept.tasks.len(), tasks);
}

/// Returns the number of tasks in an intact journal.
pub fn tasks(bytes: &[u8]) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    fs::create_dir(&journal).unwrap();
    fs::write(journal.join("journal.db"), bytes).unwrap();
    let read = opened(folder.path()).unwrap();
    (read.damage.is_none() && read.head.is_some()).then_some(read.kept.tasks.len())
}

const KEY: Key = Key { task: TaskId::from_u128(7), run: 3 };

/// Returns the record of a run, with the maximum number of descriptors.
fn held(text: &[u8]) -> std::io::Result<HeldRun> {
    let null = File::open("/dev/null").unwrap();
    let descriptors = (0..12).map(|_| OwnedFd::from(null.try_clone().unwrap())).collect();
    let (pid, text) = (std::process::id().cast_signed(), text.to_vec());
    HeldRun::read(Kept { key: KEY, pid, text, descriptors, ended_at: None })
}

/// A record is refused with an error, or it belongs to the run that it was held for.
pub fn run(text: &[u8]) {
    match held(text) {
        Ok(run) => {
            assert_eq!(run.key, KEY);
            let _ = (run.is_drained(), run.mark_number(), run.notify_socket());
            let _ = SparedProcesses::of([&run]);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reports whether this is a daemon's record of a run.
pub fn is_run(text: &[u8]) -> bool {
    held(text).is_ok()
}
