//! What is due when. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Keys with the time at which each is due, each once.
#[derive(Debug)]
pub struct Due<K> {
    by_time: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K> Default for Due<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Due<K> {
    /// Schedules a key; keeps the earlier time if it is already scheduled.
    pub fn add(&mut self, at: Instant, key: K) {
        if self.times.get(&key).is_none_or(|known| at < *known) {
            self.set(at, key);
        }
    }

    /// Schedules a key, in place of any other time.
    pub fn set(&mut self, at: Instant, key: K) {
        self.forget(key);
        self.times.insert(key, at);
        self.by_time.insert((at, key));
    }

    pub fn forget(&mut self, key: K) {
        if let Some(at) = self.times.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Returns when the next key is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the key that has been due longest, if there is one.
    pub fn take_due(&mut self, now: Instant) -> Option<K> {
        let (_, key) = self.next_at().filter(|at| *at <= now).and_then(|_| self.by_time.pop_first())?;
        self.times.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn key_is_due_once_at_the_earlier_of_its_times() {
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut keys = Due::default();
        assert_eq!((keys.next_at(), keys.take_due(now)), (None, None));
        keys.add(later(30), "second");
        keys.add(later(20), "first");
        keys.add(later(40), "first");
        assert_eq!((keys.next_at(), keys.take_due(later(19))), (Some(later(20)), None));
        assert_eq!((keys.take_due(later(20)), keys.take_due(later(20))), (Some("first"), None));
        // It can be scheduled again once it was due.
        keys.add(later(50), "first");
        keys.add(later(45), "first");
        assert_eq!([45; 3].map(|at| keys.take_due(later(at))), [Some("second"), Some("first"), None]);
        assert_eq!(keys.next_at(), None);
    }

    #[test]
    fn key_that_is_set_or_forgotten_loses_its_earlier_time() {
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut keys = Due::default();
        keys.add(later(10), 1);
        keys.set(later(20), 1);
        keys.add(later(15), 2);
        keys.forget(2);
        assert_eq!(
            (keys.take_due(later(19)), keys.take_due(later(20)), keys.next_at()),
            (None, Some(1), None)
        );
    }
}
