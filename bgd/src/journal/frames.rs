//! Finds damage in the journal's write-ahead log, of which `SQLite` reports nothing: it ignores a log from the first
//! invalid frame on, as a crash may have cut it there.
//!
//! The format is that of "WAL File Format" in the documentation of `SQLite`: a header, then frames of one page each.
//! The checksum of a frame continues that of the frame before, and frames of an earlier use of the file have other
//! salts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The size of the log's header, in bytes.
const HEADER: usize = 32;

/// The part of the log's header that its checksum covers, in bytes.
const SUMMED: usize = 24;

/// The size of a frame's header, in bytes: page, database size after a commit, salts, checksum.
const FRAME_HEADER: usize = 24;

/// The first word of a log whose checksums are made of little-endian words. The last bit is set for big-endian ones.
const MAGIC: u32 = 0x377f_0682;

/// Maximum number of frames that are examined: 1 GiB of usual pages.
const MAX_FRAMES: u64 = 1 << 18;

/// Damage to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Its header is invalid.
    Header,
    /// Transactions follow an invalid frame. The last of them ends with the frame before this one.
    Gap { end: u64 },
}

impl Flaw {
    /// Describes the damage, for users.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Header => "its log can't be read",
            Self::Gap { .. } => "its log is damaged in the middle",
        }
    }
}

type Sum = [u32; 2];

/// A log with a valid header.
struct Log {
    file: File,
    is_big_endian: bool,
    salts: [u8; 8],
    /// The checksum of the header.
    sum: Sum,
    /// The size of a frame, in bytes.
    frame: usize,
    /// The number of complete frames.
    count: u64,
}

impl Log {
    /// Parses the header. Returns `None` if it is invalid.
    fn parse(file: File, header: &[u8; HEADER]) -> io::Result<Option<Self>> {
        let magic = word(header, 0);
        let page = usize::try_from(word(header, 8)).unwrap_or(0);
        if magic & !1 != MAGIC || !page.is_power_of_two() || !(512..=1 << 16).contains(&page) {
            return Ok(None);
        }
        let is_big_endian = magic != MAGIC;
        let sum = add([0; 2], &header[..SUMMED], is_big_endian);
        if sum != [word(header, SUMMED), word(header, SUMMED + 4)] {
            return Ok(None);
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..SUMMED]);
        let frame = FRAME_HEADER + page;
        let bytes = file.metadata()?.len().saturating_sub(HEADER as u64);
        let count = (bytes / frame as u64).min(MAX_FRAMES);
        Ok(Some(Self { file, is_big_endian, salts, sum, frame, count }))
    }

    /// Returns the position of a frame, in bytes.
    fn place(&self, number: u64) -> u64 {
        HEADER as u64 + number * self.frame as u64
    }

    fn read(&self, number: u64, frame: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(frame, self.place(number))
    }

    /// Returns the checksum of a frame that follows one with the checksum `before`.
    fn sum(&self, before: Sum, frame: &[u8]) -> Sum {
        add(add(before, &frame[..8], self.is_big_endian), &frame[FRAME_HEADER..], self.is_big_endian)
    }

    /// Reports whether a frame is valid after one whose checksum is one of `before`. Sets `before` for the next frame:
    /// the checksum that this one names, and, as that may be what is damaged, the one that it should name.
    fn is_valid(&self, before: &mut [Sum; 2], frame: &[u8]) -> bool {
        let named = stored(frame);
        let is_current = frame[8..16] == self.salts && word(frame, 0) != 0;
        let is_valid = is_current && before.iter().any(|before| self.sum(*before, frame) == named);
        let should = if is_current && !is_valid { self.sum(before[0], frame) } else { named };
        *before = [named, should];
        is_valid
    }

    /// Returns the number of the frame after the last transaction behind the first invalid frame; `None` if there is no
    /// such transaction.
    fn end_behind_gap(&self) -> io::Result<Option<u64>> {
        let mut frame = vec![0; self.frame];
        let (mut before, mut is_whole, mut end) = ([self.sum; 2], true, None);
        for number in 0..self.count {
            self.read(number, &mut frame)?;
            let is_valid = self.is_valid(&mut before, &frame);
            if !is_whole && is_valid && is_commit(&frame) {
                end = Some(number + 1);
            }
            is_whole &= is_valid;
        }
        Ok(end)
    }
}

/// Returns the big-endian word at this position.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_be_bytes(*word))
}

/// Continues a checksum.
fn add([mut first, mut second]: Sum, bytes: &[u8], is_big_endian: bool) -> Sum {
    let read = |bytes: &[u8], at: usize| {
        let word = word(bytes, at);
        if is_big_endian { word } else { word.swap_bytes() }
    };
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(read(pair, 0)).wrapping_add(second);
        second = second.wrapping_add(read(pair, 4)).wrapping_add(first);
    }
    [first, second]
}

/// Returns the checksum that a frame names.
fn stored(frame: &[u8]) -> Sum {
    [word(frame, 16), word(frame, 20)]
}

/// Reports whether a frame is the last one of a transaction.
fn is_commit(frame: &[u8]) -> bool {
    word(frame, 4) != 0
}

/// Opens a log. Returns `None` if there is no frame in it, else the log, unless its header is invalid, and whether its
/// header is all zeros.
fn open(path: &Path, is_to_change: bool) -> io::Result<Option<(Option<Log>, bool)>> {
    let file = match File::options().read(true).write(is_to_change).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut header = [0; HEADER];
    if file.metadata()?.len() < (HEADER + FRAME_HEADER) as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut header, 0)?;
    Ok(Some((Log::parse(file, &header)?, header == [0; HEADER])))
}

/// Looks for damage that can't be the work of a crash while the last transactions were being written. Such a crash
/// leaves nothing valid behind the first invalid frame, or nothing at all in the log.
///
/// # Errors
/// The log can't be opened or read.
pub(super) fn look(path: &Path) -> io::Result<Option<Flaw>> {
    match open(path, false)? {
        None | Some((None, true)) => Ok(None),
        Some((None, false)) => Ok(Some(Flaw::Header)),
        Some((Some(log), _)) => Ok(log.end_behind_gap()?.map(|end| Flaw::Gap { end })),
    }
}

/// Makes the copy of a damaged log readable up to the frame `end`: pages of invalid frames become empty, so that rows
/// in them count as unreadable unless a later frame has the page again.
///
/// # Errors
/// The copy can't be read or written.
pub(super) fn bridge(path: &Path, end: u64) -> io::Result<()> {
    let Some((Some(log), _)) = open(path, true)? else { return Ok(()) };
    let mut frame = vec![0; log.frame];
    let (mut before, mut sum, mut written) = ([log.sum; 2], log.sum, 0);
    for number in 0..end.min(log.count) {
        log.read(number, &mut frame)?;
        if !log.is_valid(&mut before, &frame) {
            // Whatever the page has could be another command than the user's.
            frame[FRAME_HEADER..].fill(0);
            // Only a valid frame may end a transaction: it states the size of the database.
            frame[4..8].fill(0);
        }
        // No frame has this page: its number is lost.
        if word(&frame, 0) == 0 {
            continue;
        }
        frame[8..16].copy_from_slice(&log.salts);
        sum = log.sum(sum, &frame);
        for (place, half) in frame[16..FRAME_HEADER].chunks_exact_mut(4).zip(sum) {
            place.copy_from_slice(&half.to_be_bytes());
        }
        log.file.write_all_at(&frame, log.place(written))?;
        written += 1;
    }
    log.file.set_len(log.place(written))
}
