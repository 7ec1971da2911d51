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

    /// Has the next attempt made soon, as the obstacle may be gone. If it is not, the pauses stay as long as they were.
    pub fn try_soon(&mut self, now: Instant) {
        if let Some((until, _)) = &mut self.broken {
            *until = (*until).min(now + PAUSES[0]);
        }
    }

    /// Notes that the cluster has answered. Returns whether it could not be asked before.
    pub fn answered(&mut self) -> bool {
        self.pause = Duration::ZERO;
        self.broken.take().is_some()
    }
}

/// Whether the cluster accepts jobs, and how many at once: an array that exceeds a limit is refused as a whole. After a
/// refusal, a single job is tried, then twice as many as were accepted.
#[derive(Clone, Debug, Default)]
pub struct Room {
    availability: Availability,
    /// The maximum number of jobs in the next submission; `None`: any number.
    most: Option<u32>,
}

impl Room {
    /// Returns whether, and when, jobs may be submitted.
    pub const fn availability(&self) -> &Availability {
        &self.availability
    }

    /// Returns how many of at most this many jobs may be submitted together.
    pub fn limited(&self, most: u32) -> u32 {
        self.most.map_or(most, |limit| limit.min(most))
    }

    /// Notes that the cluster has refused jobs.
    pub fn refused(&mut self, now: Instant, why: &str) {
        self.availability.failed(now, why);
        self.most = Some(1);
    }

    /// Notes that the cluster has accepted jobs.
    pub fn accepted(&mut self) {
        self.availability.answered();
        self.most = self.most.and_then(|most| most.checked_mul(2));
    }

    /// Notes that a job has ended, which may make room.
    pub fn may_have_more(&mut self, now: Instant) {
        self.availability.try_soon(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r146_refused_submission_is_probed_with_one_job_and_grows_while_accepted() {
        let (mut room, now) = (Room::default(), Instant::now());
        assert_eq!(room.limited(500), 500);
        for _ in 0..9 {
            room.refused(now, "AssocMaxSubmitJobLimit");
        }
        assert_eq!((room.limited(500), room.availability().until()), (1, Some(now + PAUSES[1])));
        // The end of a job shortens the current pause only.
        room.may_have_more(now);
        assert_eq!(room.availability().until(), Some(now + PAUSES[0]));
        room.may_have_more(now + PAUSES[0]);
        assert_eq!(room.availability().until(), Some(now + PAUSES[0]), "and not again and again");
        room.refused(now, "AssocMaxSubmitJobLimit");
        assert_eq!(room.availability().until(), Some(now + PAUSES[1]));
        let sizes = [2, 4, 8].map(|_| {
            room.accepted();
            room.limited(500)
        });
        assert_eq!((sizes, room.availability().until()), ([2, 4, 8], None));
        room.refused(now, "AssocMaxSubmitJobLimit");
        assert_eq!(room.limited(500), 1);
        for _ in 0..32 {
            room.accepted();
        }
        assert_eq!(room.limited(u32::MAX), u32::MAX, "in the end there is no limit");
        room.may_have_more(now);
        assert_eq!(room.availability().until(), None);
    }

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
