//! A search in the outputs of all tasks: decides what to read next and records what was found. Each output is read in
//! pages from its beginning to its size at that time, or only the last part of it if it is longer than [`MOST`]. No
//! I/O.

use std::collections::{HashMap, VecDeque};

use bgd_shared::id::TaskId;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::Stream;
use regex::bytes::{Regex, RegexBuilder};

/// Maximum number of bytes of an output that are searched, from its end.
pub const MOST: u64 = MOST_MIB * 1024 * 1024;

/// The same in MiB.
pub const MOST_MIB: u64 = 64;

/// Maximum number of outputs read at a time.
const READ_AT_ONCE: usize = 4;

/// The progress of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub text: String,
    /// Number of tasks searched so far.
    pub done: usize,
    /// Number of tasks to search.
    pub all: usize,
    /// Number of outputs of which only the end was searched.
    pub cut: usize,
}

impl State {
    /// Reports whether the search is still in progress.
    pub const fn continues(&self) -> bool {
        self.done < self.all
    }
}

/// A position to read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub id: TaskId,
    pub stream: Stream,
    /// Offset in bytes; negative if from the end.
    pub offset: i64,
}

/// A part of an output.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Offset in bytes: the requested one, or the end of a dropped part.
    pub offset: u64,
    /// Offset of the next page.
    pub next: u64,
    /// Size of the output in bytes, as far as it is known.
    pub size: u64,
    /// Whether standard error is a separate output.
    pub is_split: bool,
    pub bytes: &'a [u8],
}

/// An output that is being read.
#[derive(Debug, Default)]
struct Reading {
    /// The size of the output when the search started to read it.
    end: Option<u64>,
    /// The last bytes of the page before, as a match may begin there.
    carry: Vec<u8>,
    next: u64,
}

#[derive(Debug)]
pub struct Search {
    /// The number of this search, which identifies its replies.
    pub number: u64,
    pattern: Regex,
    carry: usize,
    waiting: VecDeque<TaskId>,
    reading: HashMap<TaskId, Reading>,
    pub state: State,
}

impl Search {
    /// Starts a search in these tasks, in this order. Case is ignored. Returns `None` if the text is too long.
    pub fn begin(number: u64, text: &str, tasks: VecDeque<TaskId>) -> Option<Self> {
        let pattern = RegexBuilder::new(&regex::escape(text)).case_insensitive(true).build().ok()?;
        let state = State { text: text.to_owned(), all: tasks.len(), ..State::default() };
        // A character takes at most four bytes, in either case.
        let carry = text.chars().count() * 4;
        Some(Self { number, pattern, carry, waiting: tasks, reading: HashMap::new(), state })
    }

    /// Returns the next output to read, from its beginning. `None`: enough outputs are being read, or there are no
    /// more.
    pub fn next(&mut self) -> Option<Position> {
        if self.reading.len() >= READ_AT_ONCE {
            return None;
        }
        let id = self.waiting.pop_front()?;
        self.reading.insert(id, Reading::default());
        Some(Position { id, stream: Stream::Stdout, offset: 0 })
    }

    /// Skips a task that is gone or can't be read: nothing is found there.
    pub fn skip(&mut self, id: TaskId) {
        if self.reading.remove(&id).is_some() {
            self.state.done += 1;
        }
    }

    /// Searches a page. Returns whether the text was found, and the next position to read from.
    pub fn take(&mut self, id: TaskId, stream: Stream, page: Page<'_>) -> (bool, Option<Position>) {
        let Some(reading) = self.reading.get_mut(&id) else { return (false, None) };
        if page.offset != reading.next {
            reading.carry.clear();
        }
        reading.carry.extend_from_slice(page.bytes);
        if self.pattern.is_match(&reading.carry) {
            self.skip(id);
            return (true, None);
        }
        // What follows a dropped part does not continue what comes before it.
        let is_cut = page.next > page.offset + page.bytes.len() as u64;
        let kept = if is_cut { 0 } else { self.carry };
        let too_many = reading.carry.len().saturating_sub(kept);
        reading.carry.drain(..too_many);
        reading.next = page.next;
        let is_first = reading.end.is_none();
        let end = *reading.end.get_or_insert(page.size);
        let is_over = page.next >= end || page.bytes.is_empty();
        if !is_over {
            let mut offset = i64::try_from(page.next).unwrap_or(i64::MAX);
            if is_first && end > MOST {
                self.state.cut += 1;
                reading.carry.clear();
                // From the end: with two outputs, the size is the sum of both.
                offset = -i64::try_from(MOST).unwrap_or(i64::MAX);
            }
            return (false, Some(Position { id, stream, offset }));
        }
        if page.is_split && stream == Stream::Stdout {
            *reading = Reading::default();
            return (false, Some(Position { id, stream: Stream::Stderr, offset: 0 }));
        }
        self.skip(id);
        (false, None)
    }
}

/// Number of bytes to read at once.
pub const PAGE: u64 = OUTPUT_CHUNK_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: TaskId = TaskId::from_u128(1);

    fn begin(text: &str, tasks: usize) -> Search {
        let ids = (1..=tasks).map(|number| TaskId::from_u128(number as u128)).collect();
        Search::begin(1, text, ids).unwrap()
    }

    /// Searches this output in pages of this size. Returns whether the text was found.
    fn finds(text: &str, output: &[u8], page: usize) -> bool {
        let mut search = begin(text, 1);
        let mut next = search.next();
        while let Some(Position { id, stream, offset }) = next {
            let from = usize::try_from(offset).unwrap();
            let bytes = &output[from..output.len().min(from + page)];
            let (offset, size) = (from as u64, output.len() as u64);
            let page = Page { offset, next: offset + bytes.len() as u64, size, is_split: false, bytes };
            let (is_found, more) = search.take(id, stream, page);
            if is_found {
                return true;
            }
            next = more;
        }
        assert!(!search.state.continues());
        false
    }

    #[test]
    fn r162_both_streams_are_searched_and_progress_is_counted() {
        let mut search = begin("x", 6);
        let places: Vec<Position> = std::iter::from_fn(|| search.next()).collect();
        assert_eq!(places.len(), READ_AT_ONCE);
        let page = |bytes: &'static [u8], is_split| Page {
            offset: 0,
            next: bytes.len() as u64,
            size: bytes.len() as u64,
            is_split,
            bytes,
        };
        let other = Position { id: ID, stream: Stream::Stderr, offset: 0 };
        assert_eq!(search.take(ID, Stream::Stdout, page(b"abc", true)), (false, Some(other)));
        assert_eq!(search.take(ID, Stream::Stderr, page(b"aXc", true)), (true, None));
        assert_eq!(search.take(TaskId::from_u128(2), Stream::Stdout, page(b"", false)), (false, None));
        search.skip(TaskId::from_u128(3));
        search.skip(TaskId::from_u128(3));
        assert_eq!((search.state.done, search.state.all, search.state.continues()), (3, 6, true));
        assert_eq!(std::iter::from_fn(|| search.next()).count(), 2);
        assert_eq!(search.take(ID, Stream::Stdout, page(b"x", false)), (false, None), "it was found before");
    }

    #[test]
    fn r162_only_the_end_of_a_huge_output_is_searched() {
        let mut search = begin("x", 1);
        search.next();
        let size = 10 * MOST;
        let page = Page { offset: 0, next: PAGE, size, is_split: false, bytes: b"beginning" };
        let end = Position { id: ID, stream: Stream::Stdout, offset: -i64::try_from(MOST).unwrap() };
        assert_eq!(search.take(ID, Stream::Stdout, page), (false, Some(end)));
        assert_eq!(search.state.cut, 1);
        let page = Page { offset: size - MOST, next: size, size: 2 * size, is_split: false, bytes: b"end" };
        assert_eq!(search.take(ID, Stream::Stdout, page), (false, None), "what came since is not waited for");
        assert_eq!((search.state.done, search.state.continues()), (1, false));
    }

    #[test]
    fn r162_nothing_is_found_across_a_dropped_part() {
        let mut search = begin("ab", 1);
        search.next();
        let page =
            |offset, next, bytes: &'static [u8]| Page { offset, next, size: 200, is_split: false, bytes };
        let behind = Position { id: ID, stream: Stream::Stdout, offset: 100 };
        assert_eq!(search.take(ID, Stream::Stdout, page(0, 100, b"xa")), (false, Some(behind)));
        assert_eq!(search.take(ID, Stream::Stdout, page(100, 200, b"b")), (false, None));
    }

    proptest! {
        #[test]
        fn r162_search_result_is_independent_of_page_size(before in "[a-cä]{0,40}", text in "[abä]{1,6}", page in 1usize..9) {
            let output = before.as_bytes();
            let wanted = before.to_lowercase().contains(&text);
            prop_assert_eq!(finds(&text, output, page), wanted);
            prop_assert_eq!(finds(&text.to_uppercase(), output, page), wanted);
        }
    }
}
