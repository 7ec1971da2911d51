//! How many bytes clients have written that tasks have not read, of all tasks together. They wait in memory for as long
//! as a task does not read, so their number is bounded. This module has none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bgd_shared::limits::UNREAD_INPUT_BYTES;

/// Counts them.
#[derive(Clone, Debug, Default)]
pub struct Unread(Arc<AtomicUsize>);

/// Bytes that count as unread until this is dropped.
#[derive(Debug)]
pub struct UnreadBytes {
    of: Unread,
    bytes: usize,
}

impl Unread {
    /// Returns how many there are.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts this many more; `None` if they would be too many. Only the dispatcher's thread may call it.
    pub fn add(&self, bytes: usize) -> Option<UnreadBytes> {
        let fits = self.bytes().saturating_add(bytes) <= UNREAD_INPUT_BYTES;
        fits.then(|| self.again(bytes))
    }

    /// Counts this many that another program has taken, however many there are.
    pub fn again(&self, bytes: usize) -> UnreadBytes {
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
    fn bytes_count_until_they_are_read_and_nothing_is_taken_beyond_the_limit() {
        let unread = Unread::default();
        let most = unread.add(UNREAD_INPUT_BYTES - 1);
        assert!(unread.add(2).is_none());
        let (last, none) = (unread.add(1), unread.add(0));
        assert!(most.is_some() && last.is_some() && none.is_some(), "an end of input always fits");
        let before = unread.again(5);
        assert_eq!(unread.bytes(), UNREAD_INPUT_BYTES + 5);
        drop((most, last));
        assert_eq!(unread.bytes(), 5);
        drop(before);
        assert_eq!(unread.bytes(), 0);
    }
}
