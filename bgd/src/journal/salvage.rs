//! The salvage of a damaged journal (R130): what can be read of it goes into a new one, and it is moved aside, never deleted.
//!
//! The new one is written beside it first, and takes its place in one step. At whatever moment the daemon is killed, the next
//! one begins the salvage anew or goes on with it: an empty journal would say that nothing had ever run.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::show;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::begin::{Fault, begin};
use super::store::{FILE, Head, Merged, Read, Store};
use crate::os::clock::Stamp;

/// The folder of a new journal that is being written.
const NEW: &str = "salvaged.new";

/// That folder once the new journal is complete, until [`Damage::settle`].
const DONE: &str = "salvaged";

/// The name in that folder of what is known of the damaged journal.
const NOTE: &str = "note";

/// The name of the folder with outputs of tasks that could not be read, beside the damaged journal.
const OUTPUTS: &str = "output";

/// What is known of a damaged journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Damage {
    /// What people should know.
    pub warning: String,
    /// The name of its folder.
    aside: String,
    /// The folder of the journal.
    #[serde(skip)]
    folder: PathBuf,
}

impl Damage {
    /// Moves outputs beside the damaged journal, as they are all that is left of tasks that could not be read.
    ///
    /// # Errors
    /// The disk can't be written.
    pub fn keep_outputs(&self, outputs: impl Iterator<Item = PathBuf>) -> io::Result<()> {
        let kept = self.folder.join(&self.aside).join(OUTPUTS);
        for output in outputs {
            make(&kept)?;
            fs::rename(&output, kept.join(output.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    /// Notes that nothing is left to be done about the damage.
    pub fn settle(&self) {
        let _ = fs::remove_dir_all(self.folder.join(DONE));
    }
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)
}

fn files() -> [String; 4] {
    [FILE.to_owned(), format!("{FILE}-wal"), format!("{FILE}-shm"), format!("{FILE}-journal")]
}

/// Writes a new journal with what can be read of the one in this folder, which is damaged for the reason `why`. `instance` is
/// the daemon that wrote it, where its head does not say so. [`finish`] follows.
pub(super) fn salvage(folder: &Path, why: &str, instance: Option<&str>, sync: bool) -> Result<(), Fault> {
    let unusable = |error: io::Error| Fault::Unusable(error.to_string());
    let (new, done) = (folder.join(NEW), folder.join(DONE));
    let _ = fs::remove_dir_all(&new);
    make(&new).map_err(unusable)?;
    let Read { head, mut kept, has_counters, unread } = read_copy(folder, &new.join("copy"));
    if !has_counters {
        // Events and items of inboxes were told under numbers that nobody knows any more.
        kept.counters.leave_out(Timestamp::now());
    }
    let (mut store, _) = begin(&new, sync)?;
    // Without a head what was read is written all the same, under one that says as much as is known.
    let head = head.unwrap_or_else(|| {
        Head::new(instance.unwrap_or_default().to_owned(), String::new(), Stamp::now(), 0)
    });
    store.write(&head, &Merged::of(&kept)).map_err(|error| Fault::of(&error, folder))?;
    // The log is part of the database then.
    drop(store);
    let (aside, tasks) = (unused_name(folder), kept.tasks.len());
    let warning = format!(
        "the journal was damaged ({why}) and is kept in {}: {} could be read of it, {} could not",
        folder.join(&aside).display(),
        show::count(tasks, "task"),
        show::count(unread, "other part")
    );
    tracing::error!("{warning}");
    let note = Damage { warning, aside, folder: PathBuf::new() };
    let complete = || {
        fs::write(new.join(NOTE), serde_json::to_vec(&note)?)?;
        for name in [FILE, NOTE] {
            File::open(new.join(name))?.sync_all()?;
        }
        let _ = fs::remove_dir_all(&done);
        fs::rename(&new, &done)
    };
    complete().map_err(unusable)
}

/// Puts a salvaged journal into the place of the damaged one, which is moved aside, and returns what is known of that one;
/// `None` if nothing was salvaged.
pub(super) fn finish(folder: &Path) -> io::Result<Option<Damage>> {
    let done = folder.join(DONE);
    let note = match fs::read(done.join(NOTE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        note => note?,
    };
    let damage: Damage = serde_json::from_slice(&note)?;
    let aside = folder.join(&damage.aside);
    // Moved last: as long as it is there, what is in the folder is the damaged one.
    if done.join(FILE).exists() {
        make(&aside)?;
        for name in files() {
            match fs::rename(folder.join(&name), aside.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        fs::rename(done.join(FILE), folder.join(FILE))?;
    }
    Ok(Some(Damage { folder: folder.to_owned(), ..damage }))
}

/// A name for the folder of a damaged journal.
fn unused_name(folder: &Path) -> String {
    let stamp = Timestamp::now().unix_ms();
    let mut names = (0..u32::MAX).map(|number| format!("damaged-{stamp}-{number}"));
    names.find(|name| !folder.join(name).exists()).unwrap_or_else(|| format!("damaged-{stamp}"))
}

/// Reads what it can from a copy of the damaged journal in this folder.
fn read_copy(folder: &Path, copy: &Path) -> Read {
    let read = || -> Option<Read> {
        make(copy).ok()?;
        for name in files() {
            let _ = fs::copy(folder.join(&name), copy.join(&name));
        }
        let mut store = Store::open_damaged(&copy.join(FILE)).ok()?;
        Some(store.read())
    };
    let read = read();
    let _ = fs::remove_dir_all(copy);
    read.unwrap_or_default()
}
