//! Copies output from a task's file to standard output. Between two files `std::io::copy` lets the kernel do the
//! copy; to a pipe, reading and writing 128 KiB chunks is about as fast. On a terminal the bytes are filtered.
//!
//! An output that exceeded its limit has a hole after its first 64 KiB. The hole reads as NUL bytes that the task
//! never wrote, so it is skipped and reported on standard error, with the rest of the line in which it ends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};

use bgd_shared::hole;
use bgd_shared::limits::OUTPUT_HEAD_BYTES;
use bgd_shared::show::count;
use bgd_shared::task::{Output, Task};

use crate::output::replay::{Replay, shown};
use crate::output::seam::{Missing, Seam};
use crate::remark::say;

/// A section of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Bytes(Range<u64>),
    /// Number of bytes that were dropped here.
    Dropped(u64),
}

/// Splits `from..end` of an output into stored and dropped sections. `dropped` bytes are missing after the head.
pub fn pieces(from: u64, end: u64, dropped: u64) -> Vec<Piece> {
    let hole_end = OUTPUT_HEAD_BYTES.saturating_add(dropped);
    let mut pieces = Vec::with_capacity(3);
    let mut add = |range: Range<u64>, is_there: bool| {
        if !range.is_empty() {
            pieces.push(if is_there { Piece::Bytes(range) } else { Piece::Dropped(range.end - range.start) });
        }
    };
    add(from..end.min(OUTPUT_HEAD_BYTES), true);
    add(from.max(OUTPUT_HEAD_BYTES)..end.min(hole_end), false);
    add(from.max(hole_end)..end, true);
    // Without a hole, head and rest are contiguous.
    if let [Piece::Bytes(head), Piece::Bytes(rest)] = &pieces[..]
        && head.end == rest.start
    {
        return vec![Piece::Bytes(head.start..rest.end)];
    }
    pieces
}

/// Returns the stored ranges within `from..end`.
pub fn ranges(from: u64, end: u64, dropped: u64) -> Vec<Range<u64>> {
    let there = |piece| match piece {
        Piece::Bytes(range) => Some(range),
        Piece::Dropped(_) => None,
    };
    pieces(from, end, dropped).into_iter().filter_map(there).collect()
}

/// Returns the message that `bytes` are missing at this position.
pub fn dropped_here(bytes: u64) -> String {
    let were = if bytes == 1 { "was" } else { "were" };
    format!("{} {were} dropped here (limits.output_bytes)", count(bytes, "byte"))
}

/// Reports [`dropped_here`] on standard error.
pub fn report_dropped(bytes: u64) {
    // Ignores a closed standard error: the output matters more.
    say(format_args!("bgctl: {}", dropped_here(bytes)));
}

/// The message that the following output starts again at the beginning of the file.
pub const TRUNCATED: &str = "the output file was truncated; this continues from its beginning";

/// Reports [`TRUNCATED`] on standard error.
pub fn report_truncated() {
    say(format_args!("bgctl: {TRUNCATED}"));
}

/// Reports on standard error which part of the output the daemon could not write.
pub fn report_loss(output: &Output) {
    if let Some(loss) = output.loss() {
        say(format_args!("bgctl: {}", crate::render::clean(&loss)));
    }
}

/// Reports that a split task has also written this much to standard error, which was not printed.
pub fn report_stderr(task: &Task, bytes: u64) {
    if bytes > 0 {
        let shown = crate::render::bytes(bytes);
        say(format_args!(
            "bgctl: {shown} of standard error are stored separately: `bgctl output --stderr {}`",
            task.id.short()
        ));
    }
}

/// Bytes read at once where the kernel can't do the copy.
const PIECE: usize = 128 * 1024;

/// Bytes that were read at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunk {
    /// Number of bytes; 0 at the current end.
    pub count: usize,
    /// Number of bytes that were dropped before these.
    pub dropped: u64,
    /// Whether the file was truncated, so that these are at its beginning.
    pub is_restart: bool,
}

/// Reads an output that may still grow, skipping dropped bytes.
#[derive(Debug)]
pub struct Growing {
    file: File,
    position: u64,
    /// Size of the file at the last read.
    size: u64,
}

impl Growing {
    /// Starts reading at `position`.
    pub fn new(file: File, position: u64) -> Self {
        Self { file, position, size: 0 }
    }

    /// Offset of the next byte to read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the current length of the file.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads what is available now. If the file was truncated, starts again at its beginning, as `tail -f` does. The
    /// daemon may extend the hole at any time, so the hole is looked up in the file both before and after each read.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Chunk> {
        let mut chunk = Chunk::default();
        loop {
            let length = self.file.metadata()?.len();
            if length < self.size {
                report_truncated();
                self.position = 0;
                chunk = Chunk { is_restart: true, ..Chunk::default() };
            }
            self.size = length;
            if self.position >= length {
                return Ok(chunk);
            }
            chunk.dropped += self.skip_hole(length);
            let mut left = length - self.position;
            if self.position < OUTPUT_HEAD_BYTES {
                // The head is never dropped, but what follows may be, so the two are read separately.
                left = left.min(OUTPUT_HEAD_BYTES - self.position);
            }
            let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let count = match self.file.read_at(&mut buffer[..wanted], self.position) {
                // The file was truncated.
                Ok(0) => return Ok(chunk),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // If the hole now covers this position, the bytes were dropped before the read and came back as NUL: skip
            // them.
            if self.hole_end(length) <= self.position {
                self.position += count as u64;
                return Ok(Chunk { count, ..chunk });
            }
        }
    }

    /// Skips the hole if it contains the next byte. Returns how many bytes that are.
    fn skip_hole(&mut self, length: u64) -> u64 {
        let dropped = self.hole_end(length).saturating_sub(self.position);
        self.position += dropped;
        dropped
    }

    /// Returns where the hole ends now; 0 if there is none, or the next byte is in the head.
    fn hole_end(&self, length: u64) -> u64 {
        if self.position < OUTPUT_HEAD_BYTES { 0 } else { hole::end_of(&self.file, length) }
    }
}

/// Copies an output file to standard output, once or repeatedly.
pub struct Copier {
    source: Growing,
    out: File,
    replay: Option<Replay>,
    seam: Seam,
}

impl Copier {
    /// Starts copying at `position`.
    pub fn new(file: File, out: File, position: u64) -> Self {
        let replay = Replay::onto(&out);
        Self { source: Growing::new(file, position), out, replay, seam: Seam::default() }
    }

    /// Notes that the next bytes do not follow the last ones.
    fn skipped(&mut self) {
        if let Some(replay) = &mut self.replay {
            replay.restart();
        }
    }

    /// Writes the next bytes, without those of a line that a hole has cut.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (missing, rest) = self.seam.pass(bytes);
        self.report(missing)?;
        self.out.write_all(&shown(&mut self.replay, rest))
    }

    /// Reports missing bytes, if any, after ending the line before them.
    fn report(&mut self, missing: Option<Missing>) -> io::Result<()> {
        let Some(Missing { bytes, is_in_line }) = missing else { return Ok(()) };
        if is_in_line {
            self.out.write_all(b"\n")?;
        }
        report_dropped(bytes);
        self.skipped();
        Ok(())
    }

    /// Ends the copy: reports what is missing at its end, if anything is.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(&mut self) -> io::Result<()> {
        let missing = self.seam.end();
        self.report(missing)
    }

    /// Offset of the next byte to copy.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// Copies up to `end` from the output of an ended task that lacks `dropped` bytes. [`Self::finish`] is due afterwards,
    /// as after each copy.
    ///
    /// # Errors
    /// Reading or writing fails.
    pub fn copy_ended(&mut self, end: u64, dropped: u64) -> io::Result<()> {
        for piece in pieces(self.source.position, end, dropped) {
            match piece {
                Piece::Bytes(range) => {
                    self.source.position = range.start;
                    self.copy_to(range.end)?;
                }
                Piece::Dropped(bytes) => {
                    self.seam.dropped(bytes);
                    self.source.position += bytes;
                }
            }
        }
        Ok(())
    }

    /// Copies everything that is available now, and hardly more: the task may write faster than this can copy.
    ///
    /// # Errors
    /// Reading or writing fails.
    pub fn copy_growing(&mut self) -> io::Result<()> {
        let end = self.source.length()?;
        let mut buffer = vec![0; PIECE];
        // Always read once: only that detects a truncated file.
        loop {
            let Chunk { count, dropped, is_restart } = self.source.read(&mut buffer)?;
            if is_restart {
                self.finish()?;
                self.skipped();
            }
            self.seam.dropped(dropped);
            self.write(&buffer[..count])?;
            if count == 0 || self.source.position >= end {
                return Ok(());
            }
        }
    }

    /// Copies up to `end`, or up to the end of the file if that comes first.
    fn copy_to(&mut self, end: u64) -> io::Result<()> {
        let begin = self.source.position;
        self.source.file.seek(SeekFrom::Start(self.source.position))?;
        while self.source.position < end {
            match self.copy_some(end - self.source.position) {
                Ok(0) => break,
                Ok(count) => self.source.position += count,
                // The kernel may have moved some bytes before the interruption.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.source.position = self.source.file.stream_position()?;
                }
                Err(error) => return Err(error),
            }
        }
        // What the kernel has copied was not seen here.
        let mut last = [0];
        let position = self.source.position;
        if position > begin && !self.seam.is_open() && self.source.file.read_at(&mut last, position - 1)? > 0
        {
            self.seam.ends_with(last[0]);
        }
        Ok(())
    }

    /// Copies at most `most` bytes. Bypasses `io::copy` for terminals, for pipes, where it would use chunks of 8 KiB, and
    /// after a hole, until the line in which that ends was left out.
    fn copy_some(&mut self, most: u64) -> io::Result<u64> {
        let by_kernel = self.replay.is_none() && !self.out.metadata()?.file_type().is_fifo();
        if by_kernel && !self.seam.is_open() {
            return io::copy(&mut (&self.source.file).take(most), &mut self.out);
        }
        let mut buffer = vec![0; PIECE];
        let mut copied = 0;
        while copied < most {
            let wanted = usize::try_from(most - copied).map_or(PIECE, |left| left.min(PIECE));
            let count = self.source.file.read(&mut buffer[..wanted])?;
            if count == 0 {
                break;
            }
            self.write(&buffer[..count])?;
            copied += count as u64;
            if by_kernel && !self.seam.is_open() {
                break;
            }
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: u64 = OUTPUT_HEAD_BYTES;

    #[test]
    fn output_without_hole_is_one_piece() {
        assert_eq!(pieces(0, 10, 0), [Piece::Bytes(0..10)]);
        assert_eq!(pieces(0, 10 * HEAD, 0), [Piece::Bytes(0..10 * HEAD)]);
        assert_eq!(pieces(7, 7, 0), []);
        assert_eq!(pieces(9, 7, 0), []);
    }

    #[test]
    fn hole_is_skipped_and_reported_as_dropped() {
        let end = 10 * HEAD;
        assert_eq!(
            pieces(0, end, 5 * HEAD),
            [Piece::Bytes(0..HEAD), Piece::Dropped(5 * HEAD), Piece::Bytes(6 * HEAD..end)]
        );
        assert_eq!(pieces(2 * HEAD, end, 5 * HEAD), [Piece::Dropped(4 * HEAD), Piece::Bytes(6 * HEAD..end)]);
        assert_eq!(pieces(8 * HEAD, end, 5 * HEAD), [Piece::Bytes(8 * HEAD..end)]);
        assert_eq!(ranges(0, end, 5 * HEAD), [0..HEAD, 6 * HEAD..end]);
    }

    proptest! {
        #[test]
        fn pieces_cover_everything_once(from in 0..4 * HEAD, size in 0..9 * HEAD, dropped in 0..9 * HEAD) {
            let end = from + size;
            let mut place = from;
            for piece in pieces(from, end, dropped) {
                match piece {
                    Piece::Bytes(range) => {
                        prop_assert_eq!(range.start, place);
                        prop_assert!(range.end <= HEAD || range.start >= HEAD + dropped || dropped == 0);
                        place = range.end;
                    }
                    Piece::Dropped(bytes) => place += bytes,
                }
            }
            prop_assert_eq!(place, end);
        }
    }

    /// Returns a copier of a file with these bytes, that file, and the copier's output file.
    fn copier(bytes: &[u8], position: u64) -> (Copier, File, File) {
        let mut writer = tempfile::tempfile().unwrap();
        writer.write_all(bytes).unwrap();
        let out = tempfile::tempfile().unwrap();
        (Copier::new(writer.try_clone().unwrap(), out.try_clone().unwrap(), position), writer, out)
    }

    fn written(mut out: File) -> Vec<u8> {
        let mut bytes = Vec::new();
        out.rewind().unwrap();
        out.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn copied_bytes_equal_source_except_hole() {
        let bytes: Vec<u8> = (0..3 * HEAD).map(|place| u8::try_from(place % 251).unwrap()).collect();
        let (mut ended, _writer, out) = copier(&bytes, 5);
        ended.copy_ended(3 * HEAD, HEAD).unwrap();
        ended.finish().unwrap();
        let place = |offset: u64| usize::try_from(offset).unwrap();
        let (head, rest) = (&bytes[5..place(HEAD)], &bytes[place(2 * HEAD)..]);
        let cut = memchr::memchr(b'\n', rest).unwrap() + 1;
        assert!(!head.ends_with(b"\n") && cut > 1);
        assert_eq!(written(out), [head, b"\n", &rest[cut..]].concat());
        let (mut growing, _writer, out) = copier(&bytes, 0);
        growing.copy_growing().unwrap();
        growing.copy_growing().unwrap();
        assert_eq!(growing.source.position, 3 * HEAD);
        assert_eq!(written(out), bytes);
    }

    #[test]
    fn lines_that_a_hole_has_cut_are_not_joined() {
        let line = |number: u64| format!("{number:09}\n");
        // A line begins at each multiple of 10, and a hole that does not end there.
        let text: String = (0..3 * HEAD / 10).map(line).collect();
        let end = text.len() as u64;
        for (dropped, is_in_line) in [(HEAD, true), (3, true), (0, false)] {
            let (mut ended, _writer, out) = copier(text.as_bytes(), 0);
            ended.copy_ended(end, dropped).unwrap();
            ended.finish().unwrap();
            let shown = String::from_utf8(written(out)).unwrap();
            let is_whole =
                |shown: &&str| shown.parse::<u64>().is_ok_and(|number| line(number).trim_end() == *shown);
            let cut: Vec<&str> = shown.lines().filter(|shown| !is_whole(shown)).collect();
            assert_eq!(cut.len(), usize::from(is_in_line), "{cut:?}");
            assert!(cut.iter().all(|cut| line(HEAD / 10).starts_with(cut)), "{cut:?}");
        }
    }

    #[test]
    fn r20_copying_restarts_at_the_beginning_of_a_truncated_file() {
        let (mut growing, mut writer, out) = copier(b"a long beginning\n", 2);
        growing.copy_growing().unwrap();
        writer.set_len(0).unwrap();
        writer.rewind().unwrap();
        for text in [&b"new\n"[..], b"", b"more\n"] {
            writer.write_all(text).unwrap();
            growing.copy_growing().unwrap();
        }
        assert_eq!(written(out), b"long beginning\nnew\nmore\n");
        // An offset that the file has yet to reach is no sign of truncation.
        let (mut growing, mut writer, out) = copier(b"12", 4);
        for text in [&b"3"[..], b"4", b"56"] {
            writer.write_all(text).unwrap();
            growing.copy_growing().unwrap();
        }
        assert_eq!(written(out), b"56");
    }

    #[test]
    fn r20_copying_ends_even_if_the_file_grows_faster() {
        let (_, mut writer, _) = copier(b"", 0);
        writer.write_all(&vec![b'x'; PIECE]).unwrap();
        // Each byte copied makes the file longer.
        let copied = writer.try_clone().unwrap();
        let mut growing = Copier::new(writer, copied, 0);
        for _ in 0..2 {
            let end = growing.source.length().unwrap();
            growing.copy_growing().unwrap();
            assert!((end..end + PIECE as u64).contains(&growing.position()), "{}", growing.position());
        }
    }

    #[test]
    fn hole_made_while_following_is_skipped() {
        let (mut growing, mut writer, out) = copier(b"head", 0);
        // Extending a file leaves the same kind of hole as punching one.
        writer.set_len(HEAD).unwrap();
        writer.set_len(16 * HEAD).unwrap();
        writer.seek(SeekFrom::End(0)).unwrap();
        writer.write_all(b"ta").unwrap();
        growing.copy_growing().unwrap();
        // Looking for the hole has moved the position that both share.
        writer.seek(SeekFrom::End(0)).unwrap();
        writer.write_all(b"il\nnext\n").unwrap();
        growing.copy_growing().unwrap();
        let bytes = written(out);
        assert!(bytes.ends_with(b"\0\nnext\n"));
        assert_eq!(growing.source.position, 16 * HEAD + 10);
        assert!(u64::try_from(bytes.len()).unwrap() < 2 * HEAD, "{}", bytes.len());
    }
}
