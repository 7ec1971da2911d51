//! How far the output of a run was copied from a login node into the files of this daemon, and what is missing. Pure.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::request::Stream;

use super::far::{self, PART_BYTES, Wanted};
use crate::core::Conclusion;

/// A run's output that is copied.
#[derive(Debug)]
pub struct Copy {
    pub run: u32,
    /// Its submission, and its index there.
    pub place: (Arc<str>, u32),
    /// Whether it has two output files.
    pub split: bool,
    /// Where it begins in the files here: earlier attempts share them.
    base: [u64; 2],
    /// Where to go on, in the files there.
    next: [u64; 2],
    /// How much of what was before that is not in the files here.
    missing: [u64; 2],
    /// The known sizes of the files there.
    size: [u64; 2],
    /// How the run has ended, and since when that is known.
    end: Option<(Conclusion, Instant)>,
    /// Whether the sizes were asked for after the end.
    is_final: bool,
    /// How many losses are being written down: nothing more is copied before that is done.
    pub unwritten: usize,
}

impl Copy {
    /// Creates one that begins at `base` in the files here, which have these `sizes`: what is there was copied, by a daemon
    /// before this one, apart from what is `missing`.
    pub fn new(
        run: u32,
        place: (Arc<str>, u32),
        split: bool,
        base: [u64; 2],
        (sizes, missing): ([u64; 2], [u64; 2]),
    ) -> Self {
        let next =
            [0, 1].map(|index| sizes[index].saturating_sub(base[index]).saturating_add(missing[index]));
        Self {
            run,
            place,
            split,
            base,
            next,
            missing,
            size: [0; 2],
            end: None,
            is_final: false,
            unwritten: 0,
        }
    }

    /// Returns the names of its files.
    pub fn names(&self) -> impl Iterator<Item = String> {
        far::streams(self.split).map(|stream| self.name(stream))
    }

    fn name(&self, stream: Stream) -> String {
        far::output(&self.place.0, self.place.1, stream)
    }

    /// Where a byte of the files there belongs in the files here.
    pub const fn here(&self, stream: Stream, offset: u64) -> u64 {
        let index = index(stream);
        (self.base[index] + offset).saturating_sub(self.missing[index])
    }

    /// Takes in the size of a file. Returns whether there is more than before.
    pub fn has_size(&mut self, stream: Stream, size: u64) -> bool {
        let known = &mut self.size[index(stream)];
        let has_grown = size > *known;
        *known = size.max(*known);
        has_grown
    }

    /// Takes in that all sizes are known that were there at that time.
    pub fn was_looked_at(&mut self, began: Instant) {
        self.is_final |= self.end.as_ref().is_some_and(|(_, since)| *since <= began);
    }

    /// Returns what to copy next.
    pub fn wanted(&self) -> Option<(Stream, Wanted)> {
        if self.unwritten > 0 {
            return None;
        }
        far::streams(self.split).find_map(|stream| {
            let (offset, size) = (self.next[index(stream)], self.size[index(stream)]);
            let count = size.saturating_sub(offset).min(PART_BYTES);
            (count > 0).then(|| (stream, Wanted { name: self.name(stream), offset, count }))
        })
    }

    /// Takes in that this much was read of what was wanted, apart from so many bytes that could not be written here.
    /// Less means that there is no more.
    pub fn copied(&mut self, stream: Stream, wanted: &Wanted, count: u64, missing: u64) {
        self.missing[index(stream)] += missing;
        self.next[index(stream)] = wanted.offset + count;
        if count < wanted.count {
            self.size[index(stream)] = wanted.offset + count;
        }
    }

    /// Takes in how the run has ended.
    pub fn ends(&mut self, now: Instant, conclusion: Conclusion) {
        self.end = Some((conclusion, now));
    }

    /// Whether the run has ended.
    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the run has ended, and all of its output is here.
    pub fn is_over(&self) -> bool {
        self.is_final && self.unwritten == 0 && self.wanted().is_none()
    }

    /// Returns how many bytes are not here, and how the run has ended, if it has.
    pub fn into_end(self) -> (u64, Option<Conclusion>) {
        let missing = self.size.iter().zip(self.next).map(|(size, next)| size.saturating_sub(next)).sum();
        (missing, self.end.map(|(conclusion, _)| conclusion))
    }
}

const fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Verdict;
    use std::time::Duration;

    #[test]
    fn r150_it_is_over_when_everything_is_here_that_was_there_after_the_end() {
        let (mut copy, now) =
            (Copy::new(1, ("k".into(), 3), true, [10, 20], ([10, 20], [0; 2])), Instant::now());
        assert_eq!(copy.names().collect::<Vec<_>>(), ["k.3.out", "k.3.err"]);
        assert!(copy.has_size(Stream::Stderr, 5) && !copy.has_size(Stream::Stderr, 5));
        let (stream, wanted) = copy.wanted().unwrap();
        assert_eq!((stream, wanted.offset, wanted.count), (Stream::Stderr, 0, 5));
        assert_eq!(copy.here(stream, wanted.offset), 20);
        copy.copied(stream, &wanted, 5, 2);
        assert_eq!(copy.here(stream, 5), 23, "what is missing takes no place");
        assert!(copy.wanted().is_none() && !copy.is_over());
        copy.ends(now, Conclusion { exit: None, verdict: Verdict::ByExit, at: None });
        copy.was_looked_at(now.checked_sub(Duration::from_secs(1)).unwrap());
        assert!(!copy.is_over(), "it may have grown before the end");
        copy.has_size(Stream::Stdout, PART_BYTES + 1);
        copy.was_looked_at(now);
        let (stream, wanted) = copy.wanted().unwrap();
        assert_eq!(wanted.count, PART_BYTES);
        copy.copied(stream, &wanted, PART_BYTES, 0);
        let (stream, wanted) = copy.wanted().unwrap();
        assert_eq!((wanted.offset, wanted.count), (PART_BYTES, 1));
        // Somebody has made it shorter.
        copy.copied(stream, &wanted, 0, 0);
        assert!(copy.is_over());
        assert_eq!(copy.into_end().0, 0);
    }
}
