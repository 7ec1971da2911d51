//! Opens, checks and reads a journal's file, and distinguishes damage from disk errors.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::ErrorCode;

use super::frames;
use super::store::{FILE, FORMAT, LOG, Read, Store};

/// The size of the smallest database, in bytes.
const SHORTEST: u64 = 512;

pub(super) enum Fault {
    Damaged(String),
    Unusable(String),
}

impl Fault {
    pub(super) fn words(self) -> String {
        match self {
            Self::Damaged(why) | Self::Unusable(why) => why,
        }
    }

    /// Returns the fault of a disk that can't be read or written.
    pub(super) fn of_disk(error: &io::Error) -> Self {
        Self::Unusable(match error.kind() {
            io::ErrorKind::StorageFull => FULL.to_owned(),
            io::ErrorKind::ReadOnlyFilesystem => READ_ONLY.to_owned(),
            _ => error.to_string(),
        })
    }

    /// Classifies an error: a disk or system failure, or a damaged file.
    pub(super) fn of(error: &rusqlite::Error, folder: &Path) -> Self {
        let is_unusable = match error.sqlite_error_code() {
            Some(
                ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::OutOfMemory
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked,
            ) => true,
            // Also reported for a file whose header is damaged.
            Some(ErrorCode::ReadOnly) => probe(folder).is_err(),
            _ => false,
        };
        if is_unusable { Self::Unusable(words(error)) } else { Self::Damaged(words(error)) }
    }
}

/// Checks whether the disk can be written, using a temporary file.
pub(super) fn probe(folder: &Path) -> io::Result<()> {
    let path = folder.join("probe");
    let written = fs::write(&path, "x");
    let _ = fs::remove_file(&path);
    written
}

/// Opens, checks and reads the journal in this folder. `instance` is the daemon that has written to it, if known: then
/// it can't be a new one.
pub(super) fn begin(folder: &Path, sync: bool, instance: Option<&str>) -> Result<(Store, Read), Fault> {
    let file = folder.join(FILE);
    let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    let log = folder.join(LOG);
    // As after a crash of the machine.
    if instance.is_some() && fs::metadata(&file).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
        return Err(Fault::Damaged("the file is empty".to_owned()));
    }
    // SQLite would take such a file for a new one.
    if (1..SHORTEST).contains(&size(&file)) || size(&file) == 0 && size(&log) > 0 {
        return Err(Fault::Damaged("the file is too short".to_owned()));
    }
    // Before SQLite opens the log: it would overwrite what follows the damage.
    if let Some(flaw) = frames::look(&log).map_err(|error| Fault::Unusable(refused(&log, &error)))? {
        return Err(Fault::Damaged(flaw.words().to_owned()));
    }
    let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
    made.map_err(|error| Fault::Unusable(refused(&file, &error)))?;
    let fault = |error: rusqlite::Error| Fault::of(&error, folder);
    let mut store = Store::open(&file, sync).map_err(fault)?;
    if let Some(format) = store.later_format() {
        return Err(Fault::Unusable(of_later(format)));
    }
    if !store.check().map_err(fault)? {
        return Err(Fault::Damaged("it is not consistent".to_owned()));
    }
    let read = store.read();
    let lacks_entries = read.head.is_none() || !read.has_counters || !read.has_groups;
    if read.unread > 0 || lacks_entries && !read.kept.tasks.is_empty() {
        return Err(Fault::Damaged("parts of it can't be read".to_owned()));
    }
    // SQLite takes a log that was removed, or cut near its beginning, for one to which nothing was written.
    if instance.is_some() && read.head.is_none() {
        return Err(Fault::Damaged("all that its daemon has written is missing".to_owned()));
    }
    store.trust().map_err(fault)?;
    store.compact();
    Ok((store, read))
}

/// Describes why a file or folder can't be opened or created, and what to do, for users.
pub(super) fn refused(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; make it readable and writable for this user",
        io::ErrorKind::IsADirectory => "; move this folder away, as a file belongs there",
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "; move that file away, as a folder belongs there"
        }
        _ => "",
    };
    format!("{}: {error}{hint}", path.display())
}

/// Returns the error for a journal written by a later program.
pub(super) fn of_later(format: u32) -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!(
        "a newer bgd wrote it (format {format}), and bgd {own} reads up to format {FORMAT}; start the newer one, or \
         move the folder away to begin without these tasks"
    )
}

pub(super) const READ_ONLY: &str = "the disk is read-only";

pub(super) const FULL: &str = "the disk is full";

/// Describes the error, for users.
pub(super) fn words(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => FULL.to_owned(),
        Some(ErrorCode::ReadOnly) => READ_ONLY.to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::holder::Note;

    use super::*;
    use crate::journal::{Durability, Opened, open};
    use crate::os::lock::ProcessLock;

    #[test]
    fn r130_journal_that_cannot_be_opened_is_named_with_what_to_do() {
        for (folder, in_the_way) in [(false, "journal"), (true, "journal/lock"), (true, "journal/journal.db")]
        {
            let state = tempfile::tempdir().unwrap();
            let path = state.path().join(in_the_way);
            if folder {
                fs::create_dir_all(&path).unwrap();
            } else {
                fs::write(&path, "").unwrap();
            }
            let error = open(state.path(), Durability::Written).map(drop).unwrap_err().to_string();
            let words = format!("{}: ", path.display());
            assert!(error.contains(&words) && error.contains("; move th"), "{error}");
        }
        let denied = refused(Path::new("/journal/lock"), &io::ErrorKind::PermissionDenied.into());
        assert_eq!(denied, "/journal/lock: permission denied; make it readable and writable for this user");
    }

    /// As after a crash of the machine. An empty file without a daemon before is a new journal.
    #[test]
    fn r130_emptied_journal_counts_as_damaged() {
        for instance in ["", "ef3673cc-470a-4390-9d0a-d0330b382430"] {
            let state = tempfile::tempdir().unwrap();
            let folder = state.path().join("journal");
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(FILE), "").unwrap();
            let lock = ProcessLock::try_take(&folder.join("lock")).unwrap().unwrap();
            lock.write_note(&Note { instance: instance.to_owned(), ..Note::default() });
            drop(lock);
            let Opened { damage, .. } = open(state.path(), Durability::Written).unwrap();
            let warning = damage.map(|damage| damage.warning);
            assert_eq!(warning.is_some(), !instance.is_empty());
            assert!(warning.is_none_or(|warning| warning.contains("the file is empty")));
            assert!(open(state.path(), Durability::Written).is_ok());
        }
    }
}
