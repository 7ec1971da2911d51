//! Converts the output of a job next to the prompt to lines of text that can be printed above the prompt: several jobs
//! may print at once, and none of them knows where the cursor is.
//!
//! Therefore colours and cursor movements are removed here. The task's output keeps them.

use std::collections::VecDeque;
use std::fmt::Write as _;

use anstream::adapter::StripBytes;
use bgd_shared::titles::TitleFilter;

use crate::render::clean;
use crate::render::signs::ellipsis;

/// Maximum number of bytes of a line; longer ones are continued on the next line.
const LINE_BYTES: usize = 4096;

/// Maximum number of bytes of lines that wait while another job has the terminal. Beyond that, only the latest are
/// kept.
const KEPT_BYTES: usize = 64 * 1024;

/// The lines of one job.
#[derive(Debug, Default)]
pub struct Lines {
    titles: TitleFilter,
    strip: StripBytes,
    line: Vec<u8>,
    /// Whether the cursor is back at the beginning of the line, so that the next byte replaces the line.
    returned: bool,
    kept: VecDeque<String>,
    kept_bytes: usize,
    /// Number of lines dropped.
    dropped: u64,
}

impl Lines {
    /// Adds output of the job's terminal. Each line ends a title that has no end of its own, such as one that was cut
    /// off: all later output would belong to it.
    pub fn push(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, end) = line.split_at(line.len() - usize::from(line.ends_with(b"\n")));
            self.push_part(text);
            if !end.is_empty() && self.titles == TitleFilter::Title {
                self.titles = TitleFilter::default();
            }
            self.push_part(end);
        }
    }

    fn push_part(&mut self, bytes: &[u8]) {
        // `strip_next` borrows `strip` while `self` is changed.
        let mut strip = std::mem::take(&mut self.strip);
        for text in strip.strip_next(&self.titles.push(bytes)) {
            for byte in text {
                self.byte(*byte);
            }
        }
        self.strip = strip;
    }

    fn byte(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.returned = false;
                return self.end_line();
            }
            b'\r' => {
                self.returned = true;
                return;
            }
            _ => {}
        }
        if std::mem::take(&mut self.returned) {
            self.line.clear();
        }
        self.line.push(byte);
        if self.line.len() >= LINE_BYTES {
            let rest = self.line.split_off(whole(&self.line));
            self.end_line();
            self.line = rest;
        }
    }

    fn end_line(&mut self) {
        let line = clean(&String::from_utf8_lossy(&std::mem::take(&mut self.line)));
        self.kept_bytes += line.len() + 1;
        self.kept.push_back(line);
        while self.kept_bytes > KEPT_BYTES
            && let Some(first) = self.kept.pop_front()
        {
            self.kept_bytes -= first.len() + 1;
            self.dropped += 1;
        }
    }

    /// Completes the last line, as the job has ended or is no longer shown here.
    pub fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    /// Takes the lines to show now, each prefixed with `[number]`. `id` is for the message about dropped lines.
    pub fn take(&mut self, number: usize, id: &str) -> String {
        let mut text = String::new();
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let lines = if dropped == 1 { "line is" } else { "lines are" };
            let sign = ellipsis();
            let _ = writeln!(text, "[{number}] {sign} {dropped} {lines} not shown: bgctl output {id}");
        }
        self.kept_bytes = 0;
        for line in self.kept.drain(..) {
            let _ = writeln!(text, "[{number}] {line}");
        }
        text
    }
}

/// Returns the number of bytes without a character that is not complete yet.
fn whole(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map(|chunk| chunk.invalid()).unwrap_or_default();
    let is_incomplete = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
    bytes.len() - if is_incomplete { last.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(parts: &[&[u8]]) -> String {
        let mut lines = Lines::default();
        for part in parts {
            lines.push(part);
        }
        lines.finish();
        lines.take(1, "3f2a91bc")
    }

    #[test]
    fn each_line_is_prefixed_with_job_number() {
        assert_eq!(shown(&[b"one\r\ntwo\r\n"]), "[1] one\n[1] two\n");
        assert_eq!(shown(&[b"o", b"ne\r", b"\nno end"]), "[1] one\n[1] no end\n");
        assert_eq!(shown(&[b"\r\n"]), "[1] \n");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn line_is_shown_only_when_complete() {
        let mut lines = Lines::default();
        lines.push(b"50%");
        assert_eq!(lines.take(2, ""), "");
        lines.push(b"\r100%\r\n");
        assert_eq!(lines.take(2, ""), "[2] 100%\n", "and is what a terminal would show in the end");
        lines.push(b"sure? ");
        lines.finish();
        assert_eq!(lines.take(2, ""), "[2] sure? \n");
    }

    #[test]
    fn escape_sequences_are_removed_from_lines() {
        assert_eq!(
            shown(&[b"\x1b[31mred\x1b[0m \x1b]0;ti", b"tle\x07\x1b[", b"2Jgone\x07\ta\n"]),
            "[1] red gone a\n"
        );
        assert_eq!(shown(&[b"\x1bkti", b"tle\x1b", b"\\said\n"]), "[1] said\n");
        // This one has no end.
        assert_eq!(shown(&[b"a\x1bkcut", b" off\r", b"\nnext\n"]), "[1] a\n[1] next\n");
        assert_eq!(shown(&[b"gr\xc3", b"\xbc\xc3\xbcn\n"]), "[1] gr\u{fc}\u{fc}n\n");
    }

    #[test]
    fn long_line_is_not_split_within_a_character() {
        for before in 0..4 {
            let text = format!("{}{}", "x".repeat(before), "\u{20ac}\u{1f980}\u{fc}".repeat(2000));
            let lines = shown(&[text.as_bytes(), b"\n"]);
            let parts: Vec<&str> = lines.lines().map(|line| line.strip_prefix("[1] ").unwrap()).collect();
            assert!(parts.iter().all(|part| part.len() <= LINE_BYTES));
            assert_eq!(parts.concat(), text);
        }
        // Bytes that no character begins with do not wait for the rest of one.
        assert_eq!(
            (whole(b"x\xff"), whole(b"x\xe2\x82"), whole(b"\xff\xf0\x9f\xa6"), whole(b"")),
            (2, 1, 1, 0)
        );
    }

    #[test]
    fn excess_lines_are_counted_and_the_last_ones_kept() {
        let mut lines = Lines::default();
        for number in 0..100_000 {
            lines.push(format!("line {number}\r\n").as_bytes());
        }
        let text = lines.take(1, "3f2a91bc");
        assert!(text.len() < 3 * KEPT_BYTES / 2);
        let (first, rest) = text.split_once('\n').unwrap();
        let shown = rest.lines().count();
        assert_eq!(first, format!("[1] … {} lines are not shown: bgctl output 3f2a91bc", 100_000 - shown));
        assert!(rest.ends_with("[1] line 99999\n"));
        assert_eq!(lines.take(1, ""), "");
        lines.push(&[b'x'; LINE_BYTES + 1]);
        lines.finish();
        assert_eq!(lines.take(1, "").lines().count(), 2);
    }
}
