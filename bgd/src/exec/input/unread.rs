//! The number of bytes that clients have written and tasks have not read, of all tasks together. These bytes stay in
//! memory for as long as a task does not read, so their number is bounded. This module does not hold them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bgd_shared::limits::UNREAD_INPUT_BYTES;

/// The maximum size of a write that counts as typed by a person.
const TYPED_BYTES: usize = 1024;

/// Counts unread bytes.
#[derive(Clone, Debug, Default)]
pub struct Unread(Arc<AtomicUsize>);

/// Bytes that count as unread until this is dropped.
#[derive(Debug)]
pub struct UnreadBytes {
    of: Unread,
    bytes: usize,
}

impl Unread {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts this many more bytes; `None` if that exceeds the limit, which is doubled for a write of at most
    /// `TYPED_BYTES`. An end of input, without bytes, is always accepted. Only the dispatcher's thread may call this.
    pub fn add(&self, bytes: usize) -> Option<UnreadBytes> {
        let limit = match bytes {
            0 => usize::MAX,
            1..=TYPED_BYTES => 2 * UNREAD_INPUT_BYTES,
            _ => UNREAD_INPUT_BYTES,
        };
        let fits = self.bytes().saturating_add(bytes) <= limit;
        fits.then(|| self.count_unlimited(bytes))
    }

    /// Counts bytes that another program has accepted, regardless of the limit.
    pub fn count_unlimited(&self, bytes: usize) -> UnreadBytes {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        UnreadBytes { of: self.clone(), bytes }
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_count_until_read_and_are_limited() {
        let unread = Unread::default();
        let most = unread.add(UNREAD_INPUT_BYTES - 1);
        assert!(unread.add(TYPED_BYTES + 1).is_none());
        let last = unread.add(1);
        assert!(most.is_some() && last.is_some());
        assert!(unread.add(TYPED_BYTES).is_some(), "what is typed reaches a terminal");
        let twice = unread.count_unlimited(UNREAD_INPUT_BYTES);
        assert!(unread.add(1).is_none() && unread.add(0).is_some(), "an end of input always fits");
        drop(twice);
        let before = unread.count_unlimited(5);
        assert_eq!(unread.bytes(), UNREAD_INPUT_BYTES + 5);
        drop((most, last));
        assert_eq!(unread.bytes(), 5);
        drop(before);
        assert_eq!(unread.bytes(), 0);
    }
}
