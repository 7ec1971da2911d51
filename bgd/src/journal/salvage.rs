//! The salvage of a damaged journal (R130): its readable parts are copied into a new journal, and it is moved aside,
//! never deleted.
//!
//! The new journal is written in a subfolder first and moved into place in one step. Whenever the daemon is killed, the
//! next one restarts or continues the salvage: an empty journal would claim that nothing had ever run.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use bgd_shared::show;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::begin::{Fault, begin, of_later};
use super::frames::{self, Flaw};
use super::store::{FILE, Head, LOG, Merged, Read, Store};
use crate::os::clock::Stamp;
use crate::os::files::private_folder;

/// The subfolder in which the new journal is written.
const NEW: &str = "salvaged.new";

/// The subfolder's name once the new journal is complete, until [`Damage::settle`].
const DONE: &str = "salvaged";

/// The name of the file in it that describes the damage.
const NOTE: &str = "note";

/// The name of the folder, beside the damaged journal, for outputs of tasks that could not be read.
const OUTPUTS: &str = "output";

/// The description of a damaged journal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Damage {
    /// The message for users.
    pub warning: String,
    /// The name of the folder to which the damaged journal is moved.
    aside: String,
    #[serde(skip)]
    folder: PathBuf,
}

impl Damage {
    /// Moves outputs beside the damaged journal, as nothing else is left of tasks that could not be read.
    ///
    /// # Errors
    /// The disk can't be written.
    pub fn keep_outputs(&self, outputs: impl Iterator<Item = PathBuf>) -> io::Result<()> {
        let kept = self.folder.join(&self.aside).join(OUTPUTS);
        for output in outputs {
            private_folder(&kept)?;
            fs::rename(&output, kept.join(output.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    /// Records that the damage has been dealt with.
    pub fn settle(&self) {
        let _ = fs::remove_dir_all(self.folder.join(DONE));
    }
}

fn files() -> [String; 4] {
    [FILE.to_owned(), LOG.to_owned(), format!("{FILE}-shm"), format!("{FILE}-journal")]
}

/// Writes a new journal with the readable parts of the damaged one in this folder. `why` describes the damage;
/// `instance` is the daemon that wrote the journal, used if its head can't be read. Must be followed by [`finish`].
pub(super) fn salvage(folder: &Path, why: &str, instance: Option<&str>, sync: bool) -> Result<(), Fault> {
    let new = folder.join(NEW);
    let _ = fs::remove_dir_all(&new);
    let done = write_new(folder, &new, (why, instance), sync);
    if done.is_err() {
        // The part written before the disk was full must not keep it full.
        let _ = fs::remove_dir_all(&new);
    }
    done
}

fn write_new(
    folder: &Path,
    new: &Path,
    (why, instance): (&str, Option<&str>),
    sync: bool,
) -> Result<(), Fault> {
    private_folder(new).map_err(|error| Fault::of_disk(&error))?;
    let Read { head, mut kept, has_counters, has_groups, unread } = read_parts(folder, &new.join("copy"))?;
    if !has_counters {
        // Events and inbox items were reported under numbers that are lost now.
        kept.counters.skip_published(Timestamp::now());
    }
    let paused = (!has_groups).then(|| kept.replace_groups());
    let batches = kept.recount_batches();
    let (mut store, _) = begin(new, sync, None)?;
    // If the head is lost, the readable parts are written under a new one with whatever is known.
    let head = head.unwrap_or_else(|| {
        Head::new(instance.unwrap_or_default().to_owned(), String::new(), Stamp::now(), 0)
    });
    let written = store.write(&head, &Merged::of(&kept)).and_then(|()| store.move_log());
    written.map_err(|error| Fault::of(&error, folder))?;
    drop(store);
    let (aside, tasks) = (unused_name(folder), kept.tasks.len());
    let warning = format!(
        "the journal was damaged ({why}) and is kept in {}: {} could be read from it, {} could not{}",
        folder.join(&aside).display(),
        show::count(tasks, "task"),
        show::count(unread, "other part"),
        guarded(paused, batches)
    );
    tracing::error!("{warning}");
    let note = Damage { warning, aside, folder: PathBuf::new() };
    let complete = || {
        fs::write(new.join(NOTE), serde_json::to_vec(&note)?)?;
        for name in [FILE, NOTE] {
            File::open(new.join(name))?.sync_all()?;
        }
        let done = folder.join(DONE);
        let _ = fs::remove_dir_all(&done);
        fs::rename(new, &done)
    };
    complete().map_err(|error: io::Error| Fault::of_disk(&error))
}

/// Describes, for users, which limits are lost, and what therefore does not start: this many paused groups, if the
/// groups are lost, and the held tasks of this many batches.
fn guarded(paused: Option<usize>, batches: usize) -> String {
    let groups = match paused {
        None => "",
        Some(0) => "; the slots and pauses of groups are lost: see `bgctl group list`",
        Some(_) => {
            "; the slots and pauses of groups are lost, so those with pending tasks are paused: see `bgctl group \
             list`, set slots with `bgctl group set`, and continue each with `bgctl group continue`"
        }
    };
    let of = match batches {
        0 => return groups.to_owned(),
        1 => "a batch".to_owned(),
        _ => format!("{batches} batches"),
    };
    format!(
        "{groups}; the limits of {of} are lost, so pending tasks are held: `bgctl release --batch` lets them start"
    )
}

/// Moves the damaged journal aside and the salvaged one into its place. Returns the description of the damage; `None`
/// if nothing was salvaged.
pub(super) fn finish(folder: &Path) -> io::Result<Option<Damage>> {
    let done = folder.join(DONE);
    let note = match fs::read(done.join(NOTE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        note => note?,
    };
    let damage: Damage = serde_json::from_slice(&note)?;
    let aside = folder.join(&damage.aside);
    // Moved last: until then, the files in the folder are the damaged journal's.
    if done.join(FILE).exists() {
        private_folder(&aside)?;
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

/// Returns an unused name for the folder of a damaged journal.
fn unused_name(folder: &Path) -> String {
    let stamp = Timestamp::now().unix_ms();
    let mut names = (0..u32::MAX).map(|number| format!("damaged-{stamp}-{number}"));
    names.find(|name| !folder.join(name).exists()).unwrap_or_else(|| format!("damaged-{stamp}"))
}

/// Reads the readable parts of the damaged journal in this folder, using a folder for copies. What a log has behind
/// damage is read, too, unless that yields less: the pages that are damaged may lead to all others.
fn read_parts(folder: &Path, copy: &Path) -> Result<Read, Fault> {
    let flaw = frames::look(&folder.join(LOG)).map_err(|error| Fault::of_disk(&error))?;
    let whole = match flaw {
        Some(Flaw::Gap { end }) => Some(read_copy(folder, copy, Some(end))?),
        Some(Flaw::Header) | None => None,
    };
    let mut before = read_copy(folder, copy, None)?;
    let is_better = |whole: &Read| {
        whole.head.is_some() && (whole.unread == 0 || whole.kept.tasks.len() >= before.kept.tasks.len())
    };
    if let Some(whole) = whole.filter(is_better) {
        return Ok(whole);
    }
    before.unread += usize::from(flaw.is_some());
    Ok(before)
}

/// Reads the readable parts from a copy of the damaged journal in this folder, with its log up to the frame `end` even
/// if an earlier one is damaged. Fails if the disk can't hold the copy or does not yield the journal: what a part of it
/// lacks would count as lost. Also fails if a newer program wrote it.
fn read_copy(folder: &Path, copy: &Path, end: Option<u64>) -> Result<Read, Fault> {
    private_folder(copy).map_err(|error| Fault::of_disk(&error))?;
    for name in files() {
        match fs::copy(folder.join(&name), copy.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Fault::of_disk(&error)),
            Ok(_) | Err(_) => {}
        }
    }
    let bridged = end.map(|end| frames::bridge(&copy.join(LOG), end)).transpose();
    let skipped = bridged.map_err(|error| Fault::of_disk(&error))?;
    let opened = Store::open_damaged(&copy.join(FILE)).map(|store| (store.add_tables(), store));
    let (added, read, later) = match opened {
        // Without tables that can't be added, the others may be readable.
        Ok((added, mut store)) => {
            let later = store.later_format();
            let mut read = store.read();
            // Pages that are out of date are readable.
            if let Some(skipped) = skipped {
                read.unread += skipped + usize::from(!store.check().unwrap_or(false));
            }
            (added, read, later)
        }
        Err(error) => (Err(error), Read::default(), None),
    };
    let _ = fs::remove_dir_all(copy);
    if let Some(format) = later {
        return Err(Fault::Unusable(of_later(format)));
    }
    match added.map_err(|error| Fault::of(&error, folder)) {
        Err(unusable @ Fault::Unusable(_)) => Err(unusable),
        Err(Fault::Damaged(_)) | Ok(()) => Ok(read),
    }
}
