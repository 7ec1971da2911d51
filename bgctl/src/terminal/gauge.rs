//! Extracts the progress of a shown job from its output (R165), to report it to the user's terminal (OSC 9;4). Progress
//! that the job itself reports to the terminal takes precedence over its last line. Reports nothing in the middle of
//! one of the job's sequences or characters. No I/O.

use crate::progress::percent;

/// Maximum number of bytes of a line searched for progress, from its end.
const LINE: usize = 4096;

/// Maximum number of bytes kept of a string sequence; longer ones contain no progress.
const WORDS: usize = 64;

/// The position of the last byte in the structure of the job's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Between sequences.
    #[default]
    Text,
    /// In a character, with this many bytes still missing.
    Character(u8),
    /// After ESC and any intermediate bytes.
    Escape,
    /// In a sequence that starts with ESC `[`.
    Control,
    /// In a string, such as one that starts with ESC `]`, or with ESC `k`: the title of a window in tmux.
    Words,
    /// In a string after an ESC, which may end it.
    WordsEscape,
}

/// Tracks a job's progress.
#[derive(Debug, Default)]
pub struct Gauge {
    part: Part,
    /// The line being written, and the one before it.
    lines: [Vec<u8>; 2],
    /// Whether the next byte begins a line.
    is_new_line: bool,
    words: Vec<u8>,
    /// Whether the job itself reports its progress to the terminal.
    reports_itself: bool,
}

impl Gauge {
    /// Adds shown bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        // For plain text, only the end matters.
        let is_plain = self.part == Part::Text && memchr::memchr(0x1b, bytes).is_none();
        let skipped = if is_plain { bytes.len().saturating_sub(2 * LINE) } else { 0 };
        if skipped > 0 {
            self.is_new_line = true;
        }
        for byte in &bytes[skipped..] {
            self.part = self.next(*byte);
        }
    }

    fn next(&mut self, byte: u8) -> Part {
        match (self.part, byte) {
            (Part::Words, 0x1b) => Part::WordsEscape,
            (Part::Words | Part::WordsEscape, 0x07) | (Part::WordsEscape, b'\\') => self.end_string(),
            (Part::Words, byte) => {
                if self.words.len() <= WORDS {
                    self.words.push(byte);
                }
                Part::Words
            }
            (_, 0x1b) | (Part::Escape, 0x20..=0x2f) => Part::Escape,
            (Part::Escape | Part::WordsEscape, b'[') => Part::Control,
            (Part::Escape | Part::WordsEscape, b']' | b'P' | b'X' | b'^' | b'_' | b'k') => {
                self.words.clear();
                self.words.push(byte);
                Part::Words
            }
            (Part::Escape | Part::WordsEscape, _) => Part::Text,
            (Part::Control, 0x40..=0x7e) => {
                // The cursor moves elsewhere, so the text that follows is another line.
                self.is_new_line |= matches!(byte, b'A' | b'B' | b'E' | b'F' | b'G' | b'H' | b'J' | b'f');
                Part::Text
            }
            (Part::Control, _) => Part::Control,
            (Part::Text | Part::Character(_), byte) => self.text(byte),
        }
    }

    fn text(&mut self, byte: u8) -> Part {
        if matches!(byte, b'\r' | b'\n') {
            self.is_new_line = true;
            return Part::Text;
        }
        if byte < 0x20 {
            return Part::Text;
        }
        if std::mem::take(&mut self.is_new_line) && !self.lines[0].is_empty() {
            self.lines.swap(0, 1);
            self.lines[0].clear();
        }
        let line = &mut self.lines[0];
        if line.len() >= 2 * LINE {
            line.drain(..LINE);
        }
        line.push(byte);
        match (self.part, byte) {
            (Part::Character(more @ 2..), 0x80..=0xbf) => Part::Character(more - 1),
            (_, 0xc2..=0xdf) => Part::Character(1),
            (_, 0xe0..=0xef) => Part::Character(2),
            (_, 0xf0..=0xf4) => Part::Character(3),
            _ => Part::Text,
        }
    }

    /// Handles the end of a string.
    fn end_string(&mut self) -> Part {
        self.reports_itself |= self.words.starts_with(b"]9;4;");
        Part::Text
    }

    /// Reports whether the job itself reports its progress to the terminal.
    pub fn reports_itself(&self) -> bool {
        self.reports_itself
    }

    /// Reports whether progress may be reported now.
    pub fn is_readable(&self) -> bool {
        !self.reports_itself && self.part == Part::Text
    }

    /// Returns the job's progress in percent, if its last line contains it.
    pub fn percent(&self) -> Option<u8> {
        let of = |line: &[u8]| percent::of_line(&String::from_utf8_lossy(line));
        // The line being written may contain it already, or be incomplete.
        let current = of(&self.lines[0]);
        if self.is_new_line { current } else { current.or_else(|| of(&self.lines[1])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gauge(bytes: &[u8]) -> Gauge {
        let mut gauge = Gauge::default();
        gauge.push(bytes);
        gauge
    }

    /// Returns whether progress may be reported, and if so, the progress.
    fn percent(bytes: &[u8]) -> (bool, Option<u8>) {
        let gauge = gauge(bytes);
        (gauge.is_readable(), gauge.percent().filter(|_| gauge.is_readable()))
    }

    #[test]
    fn r165_percentage_is_read_from_the_last_complete_line() {
        assert_eq!(percent(b"\r 7%\r 42%"), (true, Some(42)));
        assert_eq!(percent(b"3/8 a\n"), (true, Some(37)));
        assert_eq!(percent(b"3/8 a\n4"), (true, Some(37)), "the next line is not complete");
        assert_eq!(percent(b"3/8 a\nwarning: x\n"), (true, None));
        assert_eq!(percent("[====> ] 50% \u{2588}".as_bytes()), (true, Some(50)));
        assert_eq!(percent(b"\x1b[32m50%\x1b[m"), (true, Some(50)), "colours are no text");
        assert_eq!(percent(b"10%\x1b[2K\x1b[1G20%"), (true, Some(20)));
        assert_eq!(percent(&[vec![b'x'; 100_000], b"\n9%\n".to_vec()].concat()), (true, Some(9)));
    }

    #[test]
    fn r165_own_progress_sequence_of_job_takes_precedence() {
        for sequence in ["\x1b]9;4;1;42\x07", "\x1b]9;4;1;42\x1b\\", "\x1b]9;4;3\x07 7%"] {
            assert!(gauge(sequence.as_bytes()).reports_itself(), "{sequence:?}");
            assert_eq!(percent(sequence.as_bytes()), (false, None));
        }
        assert!(!gauge(b"\x1b]0;9;4;1;42\x07").reports_itself());
        assert_eq!(percent(b"7%\n\x1bk99%\n\x1b\\"), (true, Some(7)));
        assert_eq!(percent(b"\x1b]0;a title\x07 7%"), (true, Some(7)));
    }

    #[test]
    fn r165_nothing_is_written_within_a_sequence_or_character() {
        for part in ["7%\n\x1b", "7%\n\x1b[3", "7%\n\x1b]0;x", "7%\n\x1b]0;x\x1b", "7%\n\x1b("] {
            assert_eq!(percent(part.as_bytes()), (false, None), "{part:?}");
        }
        assert_eq!(percent(b"7%\n\xe6\xbc"), (false, None), "nor within a character");
        assert_eq!(percent(b"7%\n\xe6\xbc\xa2"), (true, Some(7)));
    }

    proptest! {
        #[test]
        fn r165_gauge_is_independent_of_chunking(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let (one, two) = bytes.split_at(cut.min(bytes.len()));
            let mut pieces = gauge(one);
            pieces.push(two);
            let whole = gauge(&bytes);
            prop_assert_eq!((pieces.percent(), pieces.reports_itself(), pieces.is_readable()), (whole.percent(), whole.reports_itself(), whole.is_readable()));
        }
    }
}
