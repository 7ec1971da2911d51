//! Looking for a line in an output that comes piece by piece, and where it stands.

use bgd_shared::ready::LineSearch;
use regex::bytes::Regex;

/// A line that matches.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its bytes, without its end.
    pub bytes: Vec<u8>,
    /// Where it begins.
    pub offset: u64,
    /// Where what comes behind it begins.
    pub next: u64,
}

/// The search of a line.
#[derive(Debug)]
pub struct Search {
    lines: LineSearch,
    /// Where the line that is being read begins.
    begin: u64,
    /// Where the next piece begins, unless something was dropped.
    next: u64,
}

impl Search {
    /// Begins at this place of an output.
    pub fn new(pattern: Regex, from: u64) -> Self {
        Self { lines: LineSearch::new(pattern), begin: from, next: from }
    }

    /// Where the line begins that has not ended, which is where to go on another time.
    pub fn position(&self) -> u64 {
        self.begin
    }

    /// Looks at a piece, up to the first line that matches.
    pub fn push(&mut self, at: u64, bytes: &[u8]) -> Option<Line> {
        if at != self.next {
            // What lies between was dropped, and the end of one line is not the beginning of another.
            self.lines.last();
            (self.begin, self.next) = (at, at);
        }
        let found = self.lines.read(bytes);
        let read = found.as_ref().map_or(bytes.len(), |(_, read)| *read);
        // The end of the line that was found does not begin it.
        let before = if found.is_some() { &bytes[..read - 1] } else { bytes };
        if let Some(end) = memchr::memrchr(b'\n', before) {
            self.begin = at + end as u64 + 1;
        }
        self.next = at + read as u64;
        found.map(|(line, _)| self.line(line))
    }

    /// Looks at the line that is being read as one that has ended.
    pub fn finish(&mut self) -> Option<Line> {
        if self.begin == self.next {
            return None;
        }
        let found = self.lines.last();
        let line = found.map(|line| self.line(line));
        self.begin = self.next;
        line
    }

    fn line(&mut self, bytes: Vec<u8>) -> Line {
        let offset = std::mem::replace(&mut self.begin, self.next);
        Line { bytes, offset, next: self.next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::limits::LINE_SEARCH_BYTES;
    use bgd_shared::ready::line_regex;
    use proptest::prelude::*;

    fn search(pattern: &str) -> Search {
        Search::new(line_regex(pattern).unwrap(), 0)
    }

    fn line(text: &str, offset: u64, next: u64) -> Line {
        Line { bytes: text.into(), offset, next }
    }

    #[test]
    fn r111_a_line_is_found_when_it_has_ended() {
        let mut lines = search("^read[y!]$");
        assert_eq!(lines.push(0, b"not ready\r\nrea"), None);
        assert_eq!(lines.position(), 11);
        assert_eq!(lines.push(14, b"dy"), None);
        assert_eq!(lines.push(16, b"\r\nmore\n"), Some(line("ready", 11, 18)));
        assert_eq!(lines.position(), 18);
        let mut lines = search("ready");
        assert_eq!(lines.push(0, b"is ready"), None);
        assert_eq!(lines.finish(), Some(line("is ready", 0, 8)));
        assert_eq!(search("^$").push(0, b"\n"), Some(line("", 0, 1)));
        assert_eq!(search("^$").finish(), None, "no line at all");
    }

    #[test]
    fn r111_of_a_long_line_the_beginning_is_looked_at_and_a_hole_ends_one() {
        let mut lines = search("x$");
        let long = [b"a".repeat(LINE_SEARCH_BYTES), b"x\nx\n".to_vec()].concat();
        let at = LINE_SEARCH_BYTES as u64 + 2;
        assert_eq!(lines.push(0, &long), Some(line("x", at, at + 2)));
        let mut lines = search("one two");
        assert_eq!(lines.push(0, b"one "), None);
        assert_eq!(lines.push(100, b"two\n"), None);
        assert_eq!(lines.push(104, b"one two\n"), Some(line("one two", 104, 112)));
    }

    proptest! {
        #[test]
        fn r111_pieces_make_no_difference(
            text in "[ab\n]{0,60}",
            cuts in proptest::collection::vec(0usize..61, 0..5),
        ) {
            let cuts = cuts.into_iter().map(|cut| cut.min(text.len()));
            let mut cuts: Vec<usize> = cuts.chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let mut lines = search("^a+b$");
            let bytes = text.as_bytes();
            let found = cuts.windows(2).find_map(|cut| lines.push(cut[0] as u64, &bytes[cut[0]..cut[1]]));
            let found = found.or_else(|| lines.finish());
            let is_so = |line: &&str| {
                line.strip_suffix('b').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte == b'a'))
            };
            let wanted = text.split('\n').find(is_so);
            prop_assert_eq!(found.as_ref().map(|line| &*line.bytes), wanted.map(str::as_bytes));
            if let Some(Line { offset, next, .. }) = found {
                let part = &text[usize::try_from(offset).unwrap()..usize::try_from(next).unwrap()];
                prop_assert_eq!(part.trim_end_matches('\n'), wanted.unwrap());
            }
        }
    }
}
