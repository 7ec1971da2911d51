//! Interning: equal values are stored once, and dropped when nobody holds them any more.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Arc, Weak};

/// A set of shared values. Holds them weakly, so it does not keep them alive.
#[derive(Debug)]
pub struct Interner<T> {
    /// By hash; colliding values share a list. The hasher has no random key: only the user's own programs could
    /// choose collisions.
    values: HashMap<u64, Vec<Weak<T>>, BuildHasherDefault<DefaultHasher>>,
    /// At this many entries, those that nobody holds are removed.
    sweep_at: usize,
}

const SWEEP_AT_LEAST: usize = 64;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: HashMap::default(), sweep_at: SWEEP_AT_LEAST }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Returns the shared value equal to this one.
    pub fn share(&mut self, value: T) -> Arc<T> {
        let hash = self.values.hasher().hash_one(&value);
        if let Some(known) = self.values.get(&hash) {
            let same = known.iter().filter_map(Weak::upgrade).find(|known| **known == value);
            if let Some(shared) = same {
                return shared;
            }
        }
        if self.values.len() >= self.sweep_at {
            self.sweep();
        }
        let shared = Arc::new(value);
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
    fn equal_values_are_one_and_unused_ones_go() {
        let mut interner = Interner::default();
        let one = interner.share("a".to_owned());
        assert!(Arc::ptr_eq(&one, &interner.share("a".to_owned())));
        for number in 0..10_000 {
            drop(interner.share(number.to_string()));
        }
        assert!(interner.values.len() <= SWEEP_AT_LEAST, "{}", interner.values.len());
        assert!(Arc::ptr_eq(&one, &interner.share("a".to_owned())));
    }
}
