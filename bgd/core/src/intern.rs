//! Interning: equal values are stored once, and dropped once they have no holder.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Arc, Weak};

/// A set of shared values. Holds them weakly, so it does not keep them alive.
#[derive(Debug)]
pub struct Interner<T> {
    /// By hash; colliding values share a list. The hasher has no random key: only the user's own programs could
    /// choose collisions.
    values: HashMap<u64, Vec<Weak<T>>, BuildHasherDefault<DefaultHasher>>,
    /// At this many entries, those without a holder are removed.
    sweep_at: usize,
}

const SWEEP_AT_LEAST: usize = 64;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashMap::default(), sweep_at: SWEEP_AT_LEAST }
    }
}

/// The values already shared, by address: where many values are one allocation, it is hashed and compared only once.
/// The allocations are held meanwhile, so that their addresses stay unique.
#[derive(Debug)]
pub struct Seen<T>(HashMap<usize, (Arc<T>, Arc<T>)>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Returns the shared value equal to this one.
    pub fn share(&mut self, value: T) -> Arc<T> {
        let hash = self.values.hasher().hash_one(&value);
        self.find(hash, &value).unwrap_or_else(|| self.add(hash, Arc::new(value)))
    }

    /// Returns the shared value equal to this one, or makes this one the shared value.
    pub fn share_arc(&mut self, value: &Arc<T>) -> Arc<T> {
        let hash = self.values.hasher().hash_one(&**value);
        self.find(hash, value).unwrap_or_else(|| self.add(hash, Arc::clone(value)))
    }

    /// Like [`Self::share_arc`], but uses `seen` to hash each allocation only once.
    pub fn share_seen(&mut self, value: &Arc<T>, seen: &mut Seen<T>) -> Arc<T> {
        let at = Arc::as_ptr(value).addr();
        let (_, shared) = seen.0.entry(at).or_insert_with(|| (Arc::clone(value), self.share_arc(value)));
        Arc::clone(shared)
    }

    fn find(&self, hash: u64, value: &T) -> Option<Arc<T>> {
        self.values.get(&hash)?.iter().filter_map(Weak::upgrade).find(|known| **known == *value)
    }

    fn add(&mut self, hash: u64, shared: Arc<T>) -> Arc<T> {
        if self.values.len() >= self.sweep_at {
            self.sweep();
        }
        let known = self.values.entry(hash).or_default();
        known.retain(|weak| weak.strong_count() > 0);
        known.push(Arc::downgrade(&shared));
        shared
    }

    fn sweep(&mut self) {
        self.values.retain(|_, known| {
            known.retain(|weak| weak.strong_count() > 0);
            !known.is_empty()
        });
        self.sweep_at = (self.values.len() * 2).max(SWEEP_AT_LEAST);
        self.values.shrink_to(self.sweep_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_and_unused_ones_dropped() {
        let mut interner = Interner::default();
        let one = interner.share("a".to_owned());
        assert!(Arc::ptr_eq(&one, &interner.share("a".to_owned())));
        for number in 0..10_000 {
            drop(interner.share(number.to_string()));
        }
        assert!(interner.values.len() <= SWEEP_AT_LEAST, "{}", interner.values.len());
        assert!(Arc::ptr_eq(&one, &interner.share("a".to_owned())));
    }

    #[test]
    fn already_shared_value_replaces_its_equals() {
        let (mut interner, mut seen) = (Interner::default(), Seen::default());
        let (first, other, equal) = (Arc::new("a"), Arc::new("b"), Arc::new("a"));
        for _ in 0..2 {
            for (value, shared) in [(&first, &first), (&other, &other), (&equal, &first)] {
                assert!(Arc::ptr_eq(&interner.share_seen(value, &mut seen), shared));
                assert!(Arc::ptr_eq(&interner.share_arc(value), shared));
            }
        }
    }

    #[test]
    fn seen_value_keeps_its_address() {
        let (mut interner, mut seen) = (Interner::default(), Seen::default());
        let (first, equal) = (Arc::new("a"), Arc::new("a"));
        interner.share_seen(&first, &mut seen);
        interner.share_seen(&equal, &mut seen);
        let weak = Arc::downgrade(&equal);
        drop(equal);
        assert!(weak.upgrade().is_some(), "another value could get its address");
        drop(seen);
        assert!(weak.upgrade().is_none());
    }
}
