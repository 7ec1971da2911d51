//! The beginning with a journal's file: opens, checks and reads it, and tells a damaged one from a disk that refuses.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::ErrorCode;

use super::store::{FILE, FORMAT, LOG, Read, Store};

/// The size of the smallest database, in bytes.
const SHORTEST: u64 = 512;

/// What is wrong with a journal.
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

    /// Tells a disk or a machine that refuses something from a file that is not what it should be.
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
            // Also said of a file whose head was damaged.
            Some(ErrorCode::ReadOnly) => probe(folder).is_err(),
            _ => false,
        };
        if is_unusable { Self::Unusable(words(error)) } else { Self::Damaged(words(error)) }
    }
}

/// Tries whether a file can be written.
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
    // It would be taken for a new one.
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
    let lacks_entries = read.head.is_none() || !read.has_counters;
    if read.unread > 0 || lacks_entries && !read.kept.tasks.is_empty() {
        return Err(Fault::Damaged("parts of it can't be read".to_owned()));
    }
    store.trust().map_err(fault)?;
    Ok((store, read))
}

/// Says that a later program has written a journal.
pub(super) fn of_later(format: u32) -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!(
        "a later bgd has written it (format {format}), and bgd {own} reads up to format {FORMAT}; start the later one, or \
         move the folder away to begin without these tasks"
    )
}

pub(super) const READ_ONLY: &str = "the disk is read-only";

pub(super) const FULL: &str = "the disk is full";

/// Says what is wrong, for people.
pub(super) fn words(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => FULL.to_owned(),
        Some(ErrorCode::ReadOnly) => READ_ONLY.to_owned(),
        _ => error.to_string(),
    }
}
