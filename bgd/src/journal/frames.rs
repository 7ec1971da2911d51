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
    /// A transaction has an invalid frame, and others follow it. The last of them ends with the frame before this one.
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

    /// Reports whether a frame was written since the log was last begun anew: one of the salts may be what is damaged.
    fn is_of_this_use(&self, frame: &[u8]) -> bool {
        frame[8..12] == self.salts[..4] || frame[12..16] == self.salts[4..]
    }

    /// Returns the number of the frame after the last transaction behind the one with the first invalid frame; `None`
    /// if there is no such transaction.
    fn end_behind_gap(&self) -> io::Result<Option<u64>> {
        let mut frame = vec![0; self.frame];
        let (mut before, mut is_whole, mut has_ended, mut end) = ([self.sum; 2], true, false, None);
        for number in 0..self.count {
            self.read(number, &mut frame)?;
            let is_valid = self.is_valid(&mut before, &frame);
            is_whole &= is_valid;
            // The last transaction may be torn anywhere: the blocks of a log that is used again reach the disk in any
            // order, so its end may be there without its beginning.
            if !is_whole && self.is_of_this_use(&frame) && is_commit(&frame) {
                if is_valid && has_ended {
                    end = Some(number + 1);
                }
                has_ended = true;
            }
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

/// Looks for damage that can't be the work of a power cut while the last transaction was being written, if all before
/// it were on the disk. Such a cut leaves any part of this transaction behind what is valid, or nothing at all in the
/// log.
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
/// in them count as unreadable unless a later frame has the page again. Returns how many frames were skipped because
/// their page is unknown: it may be out of date.
///
/// # Errors
/// The copy can't be read or written.
pub(super) fn bridge(path: &Path, end: u64) -> io::Result<usize> {
    let Some((Some(log), _)) = open(path, true)? else { return Ok(0) };
    let mut frame = vec![0; log.frame];
    let (mut before, mut sum, mut written, mut skipped) = ([log.sum; 2], log.sum, 0, 0);
    for number in 0..end.min(log.count) {
        log.read(number, &mut frame)?;
        let is_valid = log.is_valid(&mut before, &frame);
        // No frame has page 0: the number is lost. A frame of an earlier use names another page.
        if word(&frame, 0) == 0 || !log.is_of_this_use(&frame) {
            skipped += 1;
            continue;
        }
        if !is_valid {
            // Whatever the page has could be another command than the user's.
            frame[FRAME_HEADER..].fill(0);
            // Only a valid frame may end a transaction: it states the size of the database.
            frame[4..8].fill(0);
        }
        frame[8..16].copy_from_slice(&log.salts);
        sum = log.sum(sum, &frame);
        for (place, half) in frame[16..FRAME_HEADER].chunks_exact_mut(4).zip(sum) {
            place.copy_from_slice(&half.to_be_bytes());
        }
        log.file.write_all_at(&frame, log.place(written))?;
        written += 1;
    }
    log.file.set_len(log.place(written))?;
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PAGE: usize = 512;

    const FRAME: usize = FRAME_HEADER + PAGE;

    /// The salts of this use of the log, and of the use before.
    const SALTS: [[u8; 8]; 2] = [*b"saltsnow", *b"SALTSOLD"];

    fn put(bytes: &mut [u8], at: usize, word: u32) {
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Returns a log with transactions of this many frames. The pages of each are numbered from 2, and filled with
    /// `fill`.
    fn log(salts: [u8; 8], transactions: &[u32], fill: u8) -> Vec<u8> {
        let mut log = vec![0; HEADER];
        for (at, word) in [(0, MAGIC), (4, 3_007_000), (8, 512)] {
            put(&mut log, at, word);
        }
        log[16..SUMMED].copy_from_slice(&salts);
        let mut sum = add([0; 2], &log[..SUMMED], false);
        put(&mut log, SUMMED, sum[0]);
        put(&mut log, SUMMED + 4, sum[1]);
        for count in transactions {
            for number in 1..=*count {
                let mut frame = vec![fill; FRAME];
                put(&mut frame, 0, number + 1);
                put(&mut frame, 4, if number == *count { 10 } else { 0 });
                frame[8..16].copy_from_slice(&salts);
                sum = add(add(sum, &frame[..8], false), &frame[FRAME_HEADER..], false);
                put(&mut frame, 16, sum[0]);
                put(&mut frame, 20, sum[1]);
                log.extend(frame);
            }
        }
        log
    }

    /// Returns the bytes of a frame.
    fn bytes(number: usize) -> std::ops::Range<usize> {
        HEADER + number * FRAME..HEADER + (number + 1) * FRAME
    }

    fn flaw(log: &[u8]) -> Option<Flaw> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, log).unwrap();
        look(&path).unwrap()
    }

    /// Its frames reach the disk in any order, over those of an earlier use or where the file was empty.
    #[test]
    fn r128_last_transaction_torn_anywhere_is_no_damage() {
        let whole = log(SALTS[0], &[2, 3, 5], 1);
        let old = log(SALTS[1], &[1, 4, 2, 2, 3], 2);
        assert_eq!(flaw(&whole), None);
        for lost in 1..1_u32 << 5 {
            for is_reused in [true, false] {
                let mut torn = whole.clone();
                for number in (5..10).filter(|number| (lost >> (number - 5)) & 1 != 0) {
                    if is_reused {
                        torn[bytes(number)].copy_from_slice(&old[bytes(number)]);
                    } else {
                        torn[bytes(number)].fill(0);
                    }
                }
                torn.extend(&old[bytes(10)]);
                assert_eq!(flaw(&torn), None, "lost {lost:b}, reused: {is_reused}");
            }
        }
    }

    #[test]
    fn r128_remains_of_a_longer_transaction_that_failed_are_no_damage() {
        for kept in 1..5 {
            let mut remains = log(SALTS[0], &[2, 6], 1);
            let shorter = log(SALTS[0], &[2, kept], 2);
            remains[..shorter.len()].copy_from_slice(&shorter);
            assert_eq!(flaw(&remains), None, "behind {kept}");
        }
    }

    #[test]
    fn r130_damage_before_the_last_transaction_is_found_whatever_it_hit() {
        let whole = log(SALTS[0], &[2, 1, 3, 2], 1);
        for number in 0..8 {
            for at in [3, 9, 13, 17, 100] {
                let mut damaged = whole.clone();
                damaged[bytes(number)][at] ^= 0x10;
                let expected = (number < 6).then_some(Flaw::Gap { end: 8 });
                assert_eq!(flaw(&damaged), expected, "frame {number}, byte {at}");
            }
        }
    }

    #[test]
    fn r130_bridge_counts_frames_whose_page_is_unknown_and_empties_no_other_page() {
        let whole = log(SALTS[0], &[2, 3, 2], 1);
        let old = log(SALTS[1], &[7], 2);
        let mut no_page = whole.clone();
        no_page[bytes(2)][..4].fill(0);
        let mut no_header = whole.clone();
        no_header[bytes(2)][..FRAME_HEADER].fill(0);
        let mut stale = whole.clone();
        stale[bytes(2)].copy_from_slice(&old[bytes(2)]);
        let mut emptied = whole;
        emptied[bytes(2)][100] ^= 1;
        for (number, (damaged, skipped)) in
            [(no_page, 1), (no_header, 1), (stale, 1), (emptied, 0)].into_iter().enumerate()
        {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            fs::write(&path, &damaged).unwrap();
            assert_eq!(look(&path).unwrap(), Some(Flaw::Gap { end: 7 }), "log {number}");
            assert_eq!(bridge(&path, 7).unwrap(), skipped, "log {number}");
            let bridged = fs::read(&path).unwrap();
            assert_eq!(bridged.len(), HEADER + (7 - skipped) * FRAME, "log {number}");
            assert_eq!(flaw(&bridged), None, "log {number}: it is whole");
            let pages: Vec<u32> = (0..7 - skipped).map(|number| word(&bridged[bytes(number)], 0)).collect();
            let expected: &[u32] = if skipped > 0 { &[2, 3, 3, 4, 2, 3] } else { &[2, 3, 2, 3, 4, 2, 3] };
            assert_eq!(pages, expected, "log {number}");
        }
    }
}
