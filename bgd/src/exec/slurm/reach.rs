//! Tracks whether the cluster can be asked, or accepts jobs, and when to try again. Pure.

use std::time::{Duration, Instant};

use bgd_shared::pauses::next_pause;

/// The pauses between attempts: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Whether the cluster can be asked, or accepts jobs.
#[derive(Clone, Debug, Default)]
pub struct Availability {
    broken: Option<(Instant, Box<str>)>,
    pause: Duration,
}

impl Availability {
    /// Returns whether a command may be tried now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.broken.as_ref().is_none_or(|(until, _)| *until <= now)
    }

    /// Returns when a command may be tried again; `None` if one may be tried now.
    pub fn until(&self) -> Option<Instant> {
        self.broken.as_ref().map(|(until, _)| *until)
    }

    /// Returns why the cluster can't be queried; `None` if it can.
    pub fn why(&self) -> Option<&str> {
        self.broken.as_ref().map(|(_, why)| &**why)
    }

    /// Notes that a command could not reach the cluster. Returns whether this is new, or has a new reason.
    pub fn failed(&mut self, now: Instant, why: &str) -> bool {
        self.pause = next_pause(self.pause, PAUSES);
        let is_new = self.why() != Some(why);
        self.broken = Some((now + self.pause, why.into()));
        is_new
    }

    /// Notes that the cluster has answered. Returns whether it could not be asked before.
    pub fn answered(&mut self) -> bool {
        self.pause = Duration::ZERO;
        self.broken.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r151_retries_back_off_until_the_cluster_answers() {
        let (mut reach, now) = (Availability::default(), Instant::now());
        assert!(reach.is_open(now));
        assert!(reach.failed(now, "down") && !reach.failed(now, "down") && reach.failed(now, "silent"));
        assert!(!reach.is_open(now) && reach.is_open(now + Duration::from_secs(4)));
        for _ in 0..9 {
            reach.failed(now, "down");
        }
        assert_eq!(reach.until(), Some(now + PAUSES[1]));
        assert!(reach.answered() && !reach.answered() && reach.is_open(now));
    }
}
