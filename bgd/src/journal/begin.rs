//! Opens, checks and reads a journal's file, and distinguishes damage from disk errors.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::ErrorCode;

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

pub(super) fn begin(folder: &Path, sync: bool) -> Result<(Store, Read), Fault> {
    let file = folder.join(FILE);
    let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    let log = folder.join(LOG);
    // SQLite would take such a file for a new one.
    if (1..SHORTEST).contains(&size(&file)) || size(&file) == 0 && size(&log) > 0 {
        return Err(Fault::Damaged("the file is too short".to_owned()));
    }
    let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
    made.map_err(|error| Fault::Unusable(error.to_string()))?;
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
    store.trust().map_err(fault)?;
    store.compact();
    Ok((store, read))
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
