//! Tracks how much of a run's output was copied from a login node into the local files, and how much is missing. Pure.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::request::Stream;

use super::part::{PART_BYTES, Wanted};
use super::remote_scripts;
use crate::core::Conclusion;

/// The copying of a run's output.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Copy {
    pub run: u32,
    /// Its submission, and its index in the submission.
    pub place: (Arc<str>, u32),
    /// Whether it has two output files.
    pub split: bool,
    /// The offsets in the local files at which it begins: earlier attempts share the files.
    base: [u64; 2],
    /// The next offsets in the remote files.
    next: [u64; 2],
    /// How many of the bytes before these offsets are missing from the local files.
    missing: [u64; 2],
    /// The known sizes of the remote files.
    size: [u64; 2],
    /// Which of the remote files don't exist.
    is_gone: [bool; 2],
    /// Whether one of the files could not be read at the last attempt.
    is_unread: bool,
    /// Whether to wait for the next look, because one of the files could not be read.
    waits: bool,
    /// How the run has ended, and since when that is known.
    end: Option<(Conclusion, Instant)>,
    /// Whether the sizes were queried after the end.
    is_final: bool,
    /// How many losses are not recorded yet: nothing more is copied before they are.
    pub unwritten: usize,
}

impl Copy {
    /// Creates a copy that begins at `base` in the local files, which have these `sizes`: their content was copied by
    /// an earlier daemon, except for the bytes that are `missing`.
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
            is_gone: [false; 2],
            is_unread: false,
            waits: false,
            end: None,
            is_final: false,
            unwritten: 0,
        }
    }

    /// Returns the names of its files.
    pub fn names(&self) -> impl Iterator<Item = String> {
        Stream::of(self.split).map(|stream| self.name(stream))
    }

    fn name(&self, stream: Stream) -> String {
        remote_scripts::output(&self.place.0, self.place.1, stream)
    }

    /// Returns the offset in the local file for an offset in the remote file.
    pub const fn here(&self, stream: Stream, offset: u64) -> u64 {
        let index = stream.index();
        (self.base[index] + offset).saturating_sub(self.missing[index])
    }

    /// Notes the size of a file. Returns whether the file has grown.
    pub fn has_size(&mut self, stream: Stream, size: u64) -> bool {
        self.is_gone[stream.index()] = false;
        let known = &mut self.size[stream.index()];
        let has_grown = size > *known;
        *known = size.max(*known);
        has_grown
    }

    /// Notes that a file does not exist. The uncopied rest of it is lost, unless the file reappears.
    pub fn is_not_there(&mut self, stream: Stream) {
        self.is_gone[stream.index()] = true;
    }

    /// Notes that a file can't be read. Nothing more is copied until the next look.
    pub const fn is_not_read(&mut self) {
        (self.is_unread, self.waits) = (true, true);
    }

    /// Returns whether a file could not be read at the last attempt.
    pub const fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Notes the end of a look that began at `began`: the sizes at that time are known.
    pub fn was_looked_at(&mut self, began: Instant) {
        self.waits = false;
        self.is_unread &= self.wanted().is_some();
        self.is_final |= self.end.as_ref().is_some_and(|(_, since)| *since <= began);
    }

    /// Returns the next part to copy.
    pub fn wanted(&self) -> Option<(Stream, Wanted)> {
        if self.unwritten > 0 || self.waits {
            return None;
        }
        Stream::of(self.split).filter(|stream| !self.is_gone[stream.index()]).find_map(|stream| {
            let (offset, size) = (self.next[stream.index()], self.size[stream.index()]);
            let count = size.saturating_sub(offset).min(PART_BYTES);
            (count > 0).then(|| (stream, Wanted { name: self.name(stream), offset, count }))
        })
    }

    /// Notes that `count` bytes of a wanted part were read, of which `missing` could not be written here. If fewer than
    /// wanted were read, the file has become shorter.
    pub fn copied(&mut self, stream: Stream, wanted: &Wanted, count: u64, missing: u64) {
        self.is_unread = false;
        self.missing[stream.index()] += missing;
        self.next[stream.index()] = wanted.offset + count;
        if count < wanted.count {
            self.size[stream.index()] = wanted.offset + count;
        }
    }

    /// Notes how the run has ended.
    pub fn ends(&mut self, now: Instant, conclusion: Conclusion) {
        self.end = Some((conclusion, now));
    }

    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns whether the run has ended, and all of its output is here.
    pub fn is_over(&self) -> bool {
        self.is_final && self.unwritten == 0 && !self.waits && self.wanted().is_none()
    }

    /// Returns how many bytes are missing, with the reason, and how the run has ended, if it has.
    pub fn into_end(self) -> ((u64, &'static str), Option<Conclusion>) {
        let missing = self.size.iter().zip(self.next).map(|(size, next)| size.saturating_sub(next)).sum();
        let why = if self.is_gone.contains(&true) {
            "its file on the login node is gone, so its last output is missing"
        } else if self.is_unread {
            "its file on the login node can't be read, so its last output is missing"
        } else {
            "the login node can't be reached, so its last output is missing"
        };
        ((missing, why), self.end.map(|(conclusion, _)| conclusion))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Verdict;
    use std::time::Duration;

    #[test]
    fn r150_copy_ends_when_all_output_known_after_job_end_is_here() {
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
        // The file was truncated.
        copy.copied(stream, &wanted, 0, 0);
        assert!(copy.is_over());
        assert_eq!(copy.into_end().0.0, 0);
    }

    #[test]
    fn r150_unreadable_output_is_awaited_and_missing_output_is_lost() {
        let (mut copy, now) =
            (Copy::new(1, ("k".into(), 3), false, [0; 2], ([0; 2], [0; 2])), Instant::now());
        copy.ends(now, Conclusion { exit: None, verdict: Verdict::ByExit, at: None });
        copy.is_not_read();
        assert!(copy.is_unread() && !copy.is_over());
        copy.has_size(Stream::Stdout, 9);
        copy.was_looked_at(now);
        let (_, wanted) = copy.wanted().unwrap();
        copy.is_not_read();
        assert!(copy.wanted().is_none() && !copy.is_over(), "it waits for the next look");
        copy.was_looked_at(now);
        assert_eq!(copy.wanted().unwrap().1, wanted);
        copy.copied(Stream::Stdout, &Wanted { count: 4, ..wanted }, 4, 0);
        copy.is_not_there(Stream::Stdout);
        assert!(copy.wanted().is_none() && copy.is_over());
        copy.has_size(Stream::Stdout, 9);
        assert!(copy.wanted().is_some() && !copy.is_over(), "it has come again");
        copy.is_not_there(Stream::Stdout);
        let (missing, why) = copy.into_end().0;
        assert!(missing == 5 && why.contains("gone"), "{missing} {why}");
    }
}
