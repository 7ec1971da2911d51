//! The only source of randomness in a simulation: the same seed gives the same numbers.

use bgd_shared::id::TaskId;
use bgd_shared::splitmix::{STEP, mix};

/// Numbers derived from a seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(STEP).wrapping_add(0x1234_5678_9abc_def1))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Returns true with this probability.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of these.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let place = self.below(all.len() as u64);
        all.get(usize::try_from(place).unwrap())
    }

    /// Returns a time span in milliseconds: most are short, some take hours.
    pub fn span(&mut self) -> u64 {
        let most = [200, 3_000, 60_000, 1_800_000, 20_000_000];
        let most = most[usize::try_from(self.below(5)).unwrap()];
        self.below(most)
    }

    /// Returns a new task id.
    pub fn id(&mut self) -> TaskId {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        // As in random ids.
        let version = 0xffff_ffff_ffff_0fff_3fff_ffff_ffff_ffff;
        TaskId::from_u128((bits & version) | 0x0000_0000_0000_4000_8000_0000_0000_0000)
    }
}

/// A digest of everything observed, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
