//! Reads output files: parts of them, and the last line. Writes nothing.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use bgd_shared::hole;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::show;
use nix::fcntl::OFlag;

/// A part of an output.
#[derive(Debug, Default)]
pub struct Part {
    pub bytes: Vec<u8>,
    /// The offset of the first byte.
    pub offset: u64,
    /// The offset to continue at.
    pub next: u64,
    /// The size of the file.
    pub size: u64,
}

/// Reads a part of an output file. Skips dropped bytes, so that no invented NULs are returned. A negative `offset`
/// counts from the end. `begun`: the task has started, so the file must exist; otherwise a missing file counts as
/// empty.
///
/// # Errors
/// Returns the system error.
pub fn read_part(path: &Path, begun: bool, offset: i64, limit: u64, dropped: u64) -> io::Result<Part> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !begun => return Ok(Part::default()),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    let first = match u64::try_from(offset) {
        Ok(offset) => offset.min(size),
        Err(_) => size.saturating_sub(offset.unsigned_abs()),
    };
    let mut hole = hole_of(&file, size, dropped);
    loop {
        let part = read_outside_hole(&file, first, limit, size, &hole)?;
        // More may have been dropped just before the read, which then returned NULs.
        let now = hole_of(&file, size, dropped);
        if now == hole || part.next <= now.start || part.offset >= now.end {
            return Ok(part);
        }
        hole = now;
    }
}

/// Returns the dropped range, according to the file itself and to `dropped`, which is obsolete if the file was truncated
/// to less.
fn hole_of(file: &fs::File, size: u64, dropped: u64) -> Range<u64> {
    let known = if OUTPUT_HEAD_BYTES + dropped > size { 0 } else { OUTPUT_HEAD_BYTES + dropped };
    OUTPUT_HEAD_BYTES..known.max(hole::end_of(file, size))
}

/// Reads a part up to the hole, or after it.
fn read_outside_hole(
    file: &fs::File,
    first: u64,
    limit: u64,
    size: u64,
    hole: &Range<u64>,
) -> io::Result<Part> {
    let (mut offset, mut limit) = (first, limit);
    if hole.contains(&offset) {
        offset = hole.end;
    } else if offset < hole.start && !hole.is_empty() {
        limit = limit.min(hole.start - offset);
    }
    let mut file = file;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    let mut next = offset + bytes.len() as u64;
    if next == hole.start && !hole.is_empty() && next < size {
        next = hole.end;
    }
    Ok(Part { bytes, offset, next, size })
}

/// Opens a file for reading. Never blocks, even if the file was replaced by something else, such as a FIFO.
fn open(path: &Path) -> io::Result<fs::File> {
    fs::File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// The maximum length of a last line that is shown, in characters, and the number of bytes that are read to find it.
pub(super) const LAST_LINE_CHARS: usize = 200;
const LAST_LINE_BYTES: u64 = 4096;

/// Returns the last non-blank line of an output, without terminal escape sequences and with other control characters
/// replaced.
pub fn last_line(path: &Path) -> Option<String> {
    let file = open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let mut tail = vec![0; usize::try_from(size.min(LAST_LINE_BYTES)).ok()?];
    let start = size - tail.len() as u64;
    file.read_exact_at(&mut tail, start).ok()?;
    let lines = tail.split(|byte| matches!(byte, b'\n' | b'\r')).map(show::without_escapes);
    let line = lines.rev().find(|line| !line.trim_ascii().is_empty())?;
    let text: String =
        show::line(String::from_utf8_lossy(&line).trim()).chars().take(LAST_LINE_CHARS).collect();
    Some(text.trim().to_owned())
}
