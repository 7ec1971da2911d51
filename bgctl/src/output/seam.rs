//! The place where bytes of an output were dropped. What follows may begin within a line: that rest of a line is left
//! out, and the line before the hole is ended, so that no line is shown that the task has not written.

use std::num::NonZero;

use bgd_shared::limits::LINE_SEARCH_BYTES;

/// Joins the parts of an output around a hole.
#[derive(Debug, Default)]
pub struct Seam {
    /// Whether the bytes passed on so far end within a line.
    is_in_line: bool,
    /// The hole, until the line in which it ends was left out.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// Bytes that are missing so far.
    missing: u64,
    /// How many more bytes may belong to the cut line. What is longer is no line, and is passed on.
    left: NonZero<usize>,
}

/// Missing bytes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub bytes: u64,
    /// Whether a line was cut before them, and is to be ended.
    pub is_in_line: bool,
}

impl Seam {
    /// Notes that this many bytes were dropped here; 0 changes nothing.
    pub fn dropped(&mut self, bytes: u64) {
        let Some(left) = NonZero::new(LINE_SEARCH_BYTES).filter(|_| bytes > 0) else { return };
        let missing = self.open.take().map_or(0, |open| open.missing);
        self.open = Some(Open { missing: missing.saturating_add(bytes), left });
    }

    /// Reports whether the line is still being left out in which a hole ends.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns what to pass on of the next bytes, and what is missing before that.
    pub fn pass<'a>(&mut self, bytes: &'a [u8]) -> (Option<Missing>, &'a [u8]) {
        let (missing, rest) = match self.open.take() {
            Some(Open { missing, left }) => {
                let begin = &bytes[..bytes.len().min(left.get())];
                let cut = memchr::memchr(b'\n', begin).map_or(begin.len(), |end| end + 1);
                let is_over = begin[..cut].ends_with(b"\n");
                let missing = missing.saturating_add(cut as u64);
                let left = NonZero::new(left.get() - cut).filter(|_| !is_over);
                self.open = left.map(|left| Open { missing, left });
                (self.open.is_none().then(|| self.missing(missing)), &bytes[cut..])
            }
            None => (None, bytes),
        };
        if let Some(last) = rest.last() {
            self.ends_with(*last);
        }
        (missing, rest)
    }

    /// Notes the last byte that was passed on.
    pub fn ends_with(&mut self, last: u8) {
        self.is_in_line = last != b'\n';
    }

    /// Returns what is missing at the end of the output, if it ends within the cut line.
    pub fn end(&mut self) -> Option<Missing> {
        let open = self.open.take()?;
        Some(self.missing(open.missing))
    }

    fn missing(&mut self, bytes: u64) -> Missing {
        Missing { bytes, is_in_line: std::mem::take(&mut self.is_in_line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: usize = LINE_SEARCH_BYTES;

    fn missing(bytes: u64, is_in_line: bool) -> Missing {
        Missing { bytes, is_in_line }
    }

    #[test]
    fn cut_lines_are_not_joined() {
        let mut seam = Seam::default();
        assert_eq!(seam.pass(b"one\n1277"), (None, &b"one\n1277"[..]));
        seam.dropped(0);
        assert!(!seam.is_open());
        seam.dropped(100);
        assert_eq!(seam.pass(b"5"), (None, &b""[..]));
        assert_eq!(seam.pass(b"6\nnext\n"), (Some(missing(103, true)), &b"next\n"[..]));
        seam.dropped(10);
        assert_eq!(seam.pass(b"\n"), (Some(missing(11, false)), &b""[..]), "the line before is complete");
        assert_eq!((seam.end(), seam.is_open()), (None, false));
    }

    #[test]
    fn output_may_end_within_the_cut_line_or_be_dropped_further() {
        let mut seam = Seam::default();
        seam.pass(b"a");
        seam.dropped(10);
        seam.pass(b"bc");
        seam.dropped(20);
        assert_eq!(seam.pass(b"d"), (None, &b""[..]));
        assert_eq!((seam.end(), seam.end()), (Some(missing(33, true)), None));
    }

    #[test]
    fn what_is_too_long_for_a_line_is_passed_on() {
        let mut seam = Seam::default();
        seam.dropped(1);
        let text = vec![b'x'; LONG + 3];
        assert_eq!(seam.pass(&text[..LONG - 1]), (None, &b""[..]));
        assert_eq!(seam.pass(&text[LONG - 1..]), (Some(missing(1 + LONG as u64, false)), &b"xxx"[..]));
    }

    proptest! {
        #[test]
        fn only_lines_of_the_task_are_passed_on(
            head in "[ab\n]{0,9}", tail in "[ab\n]{0,9}", cut in 0usize..10,
        ) {
            let mut seam = Seam::default();
            let mut shown = Vec::new();
            let mut reported = 0;
            let mut add = |(missing, rest): (Option<Missing>, &[u8])| {
                if let Some(Missing { bytes, is_in_line }) = missing {
                    reported += bytes;
                    shown.extend(is_in_line.then_some(b'\n'));
                }
                shown.extend_from_slice(rest);
            };
            add(seam.pass(head.as_bytes()));
            seam.dropped(7);
            let (one, other) = tail.as_bytes().split_at(cut.min(tail.len()));
            add(seam.pass(one));
            add(seam.pass(other));
            add((seam.end(), &[]));
            let whole = tail.split_once('\n').map_or("", |(_, whole)| whole);
            let between = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
            prop_assert_eq!(String::from_utf8(shown).unwrap(), format!("{head}{between}{whole}"));
            prop_assert_eq!(reported, 7 + (tail.len() - whole.len()) as u64);
        }
    }
}
