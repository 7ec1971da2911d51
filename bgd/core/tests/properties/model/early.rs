//! Naive model of early ends, of which too many in a row are a crash loop.

use bgd_core::Now;
use bgd_shared::time::Timestamp;

/// An attempt that ends within this time has ended early, in milliseconds.
const EARLY_MS: u64 = 60_000;

/// The current attempt of a task, as far as its end may be early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// When it began; `None` until then.
    began: Option<Now>,
    /// When it ended, if that is learned of late.
    ended_at: Option<Timestamp>,
    /// Whether its end is early; decided once only the rest of its tree is left.
    is_early: Option<bool>,
}

impl Attempt {
    pub fn begun(now: Now) -> Self {
        Self { began: Some(now), ..Self::default() }
    }

    /// Notes that its end is learned of now, and happened at this time, if not now.
    pub fn ends(&mut self, now: Now, at: Option<Timestamp>) {
        let began = self.began.map(|began| began.wall);
        self.ended_at = at.map(|at| began.map_or(at, |began| at.max(began)).min(now.wall));
    }

    pub fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at
    }

    /// Reports whether it would be early if it ended now, or at the noted time. That is a time of the wall clock, which
    /// may have been set: then both clocks must agree.
    pub fn is_early(&self, now: Now) -> bool {
        let Some(began) = self.began else { return true };
        if let Some(is_early) = self.is_early {
            return is_early;
        }
        let lasted = now.mono.0 - began.mono.0;
        match self.ended_at.filter(|at| *at < now.wall) {
            None => lasted < EARLY_MS,
            Some(at) => {
                let since = now.wall.millis_since(at);
                lasted < EARLY_MS + since && at.millis_since(began.wall) < EARLY_MS
            }
        }
    }

    /// Decides whether its end is early, although the rest of its tree is left, which ends later.
    pub fn decide(&mut self, now: Now) {
        (self.is_early, self.ended_at) = (Some(self.is_early(now)), None);
    }
}
