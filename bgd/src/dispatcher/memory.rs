//! Decides when to return memory to the system: a while after much of it was freed. Otherwise the allocator keeps the
//! memory of the largest burst.

use std::time::{Duration, Instant};

/// Number of freed bytes of tasks that are worth returning.
const MANY_BYTES: usize = 512 * 1024;

/// Number of events after which returning memory is worthwhile, too: the temporary data of each leaves holes.
const MANY_EVENTS: usize = 1000;

/// Memory is returned once nothing has been freed for this long.
const QUIET: Duration = Duration::from_millis(200);

/// The longest that freeing more memory may delay the return.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The memory freed since memory was last returned.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    held: usize,
    bytes: usize,
    events: usize,
    /// When returning memory became worthwhile, and when something was last freed.
    since: Option<(Instant, Instant)>,
}

impl FreedMemory {
    /// Records the bytes currently held by tasks and the number of events published.
    pub(super) fn note(&mut self, held: usize, events: usize, now: Instant) {
        let bytes = self.held.saturating_sub(held);
        self.held = held;
        if bytes == 0 && events == 0 {
            return;
        }
        self.bytes += bytes;
        self.events += events;
        if self.bytes >= MANY_BYTES || self.events >= MANY_EVENTS {
            let (since, _) = self.since.unwrap_or((now, now));
            self.since = Some((since, now));
        }
    }

    /// Resets the counters after memory was returned.
    pub(super) fn given_back(&mut self) {
        *self = Self { held: self.held, ..Self::default() };
    }

    /// Returns when to return memory; `None` if it is not worthwhile.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|(since, last)| (last + QUIET).min(since + MAX_DELAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_returned_when_quiet_or_after_five_seconds() {
        let (mut freed, begin) = (FreedMemory::default(), Instant::now());
        let after = |ms| begin + Duration::from_millis(ms);
        freed.note(100, 0, begin);
        freed.note(0, 10, begin);
        assert_eq!(freed.due(), None, "too little");
        freed.note(MANY_BYTES, 0, begin);
        freed.note(0, 0, begin);
        assert_eq!(freed.due(), Some(after(200)));
        freed.note(0, 1, after(100));
        assert_eq!(freed.due(), Some(after(300)), "it goes on");
        freed.note(0, 0, after(200));
        assert_eq!(freed.due(), Some(after(300)), "nothing was freed");
        freed.note(0, 1, after(4900));
        assert_eq!(freed.due(), Some(after(5000)), "it goes on for too long");
    }
}
