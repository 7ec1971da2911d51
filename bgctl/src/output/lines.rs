//! Searches output that arrives in chunks for a matching line, and tracks its offset.

use bgd_shared::ready::LineSearch;
use regex::bytes::Regex;

/// A matching line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The line without its line ending.
    pub bytes: Vec<u8>,
    /// Offset of its first byte.
    pub offset: u64,
    /// Offset just after the line.
    pub next: u64,
}

/// An incremental search for a matching line.
#[derive(Debug)]
pub struct Search {
    lines: LineSearch,
    /// Offset of the current, incomplete line.
    begin: u64,
    /// Offset of the next chunk, unless bytes were dropped.
    next: u64,
    /// Whether `next` is known, so that a later offset means that bytes were dropped.
    has_begun: bool,
    /// Whether dropped bytes have cut the line in which the next chunk begins: the rest of a line is none.
    is_cut: bool,
}

impl Search {
    /// Starts searching at offset `from`; with `None`, where the first chunk starts.
    pub fn new(pattern: Regex, from: Option<u64>) -> Self {
        let (lines, at) = (LineSearch::new(pattern), from.unwrap_or(0));
        Self { lines, begin: at, next: at, has_begun: from.is_some(), is_cut: false }
    }

    /// Returns the offset of the current incomplete line, from which a later search can resume.
    pub fn position(&self) -> u64 {
        self.begin
    }

    /// Searches a chunk that starts at offset `at`, up to the first matching line.
    pub fn push(&mut self, mut at: u64, mut bytes: &[u8]) -> Option<Line> {
        if at != self.next {
            // The bytes in between were dropped, or the file was truncated: do not join the end of one line to the
            // beginning of another.
            self.lines.last();
            self.is_cut = self.has_begun && at > self.next;
            // A later search is to find the hole again, as it does from the line before it.
            self.begin = if self.is_cut { self.begin } else { at };
            self.next = at;
        }
        self.has_begun = true;
        if self.is_cut {
            let end = memchr::memchr(b'\n', bytes);
            let cut = end.map_or(bytes.len(), |end| end + 1);
            (at, bytes) = (at + cut as u64, &bytes[cut..]);
            self.next = at;
            end?;
            (self.is_cut, self.begin) = (false, at);
        }
        let found = self.lines.read(bytes);
        let read = found.as_ref().map_or(bytes.len(), |(_, read)| *read);
        // Exclude the newline that ends the match: `begin` must be the start of the matching line.
        let before = if found.is_some() { &bytes[..read - 1] } else { bytes };
        if let Some(end) = memchr::memrchr(b'\n', before) {
            self.begin = at + end as u64 + 1;
        }
        self.next = at + read as u64;
        found.map(|(line, _)| self.line(line))
    }

    /// Treats the current incomplete line as complete and searches it.
    pub fn finish(&mut self) -> Option<Line> {
        if self.is_cut {
            self.begin = self.next;
        }
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
        Search::new(line_regex(pattern).unwrap(), Some(0))
    }

    fn line(text: &str, offset: u64, next: u64) -> Line {
        Line { bytes: text.into(), offset, next }
    }

    #[test]
    fn r111_line_is_found_once_it_is_complete() {
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
    fn r111_only_beginning_of_long_line_is_searched_and_hole_ends_a_line() {
        let mut lines = search("x$");
        let long = [b"a".repeat(LINE_SEARCH_BYTES), b"x\nx\n".to_vec()].concat();
        let at = LINE_SEARCH_BYTES as u64 + 2;
        assert_eq!(lines.push(0, &long), Some(line("x", at, at + 2)));
        let mut lines = search("one two");
        assert_eq!(lines.push(0, b"one "), None);
        assert_eq!(lines.push(100, b"two\n"), None);
        assert_eq!(lines.push(104, b"one two\n"), Some(line("one two", 104, 112)));
    }

    #[test]
    fn r111_rest_of_a_line_after_a_hole_is_not_searched() {
        let mut lines = search("^two$");
        assert_eq!(lines.push(0, b"one\nhal"), None);
        assert_eq!(lines.push(100, b"t"), None);
        assert_eq!(lines.position(), 4, "a later search begins before the hole");
        assert_eq!(lines.push(101, b"wo\ntwo"), None);
        assert_eq!(lines.position(), 104);
        assert_eq!(lines.push(107, b"\n"), Some(line("two", 104, 108)));
        let mut lines = search("^(two)?$");
        assert_eq!(lines.push(0, b"half"), None);
        assert_eq!(lines.push(100, b"two"), None);
        assert_eq!((lines.finish(), lines.position()), (None, 103));
        // The offset at which a search begins may be known only from its first chunk; and a truncated file begins anew.
        let mut lines = Search::new(line_regex("^two$").unwrap(), None);
        assert_eq!(lines.push(50, b"two\n"), Some(line("two", 50, 54)));
        assert_eq!(lines.push(0, b"two\n"), Some(line("two", 0, 4)));
    }

    #[test]
    fn r111_search_that_resumes_before_a_hole_does_not_search_rest_of_a_line() {
        let mut first = search("^two$");
        assert_eq!(first.push(0, b"one\n"), None);
        assert_eq!(first.push(100, b"tw"), None);
        assert_eq!(first.position(), 4, "the hole begins with a line");
        let mut lines = Search::new(line_regex("^two$").unwrap(), Some(first.position()));
        assert_eq!(lines.push(100, b"two\n"), None);
        assert_eq!(lines.position(), 104);
        assert_eq!(lines.push(104, b"two\n"), Some(line("two", 104, 108)));
    }

    proptest! {
        #[test]
        fn r111_result_is_independent_of_chunking(
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
