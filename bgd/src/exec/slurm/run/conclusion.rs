//! How a run has ended, from its notes and from the cluster's reports.

use std::time::{Duration, Instant};

use bgd_shared::task::Exit;

use super::{Ended, MISSING, Run};
use crate::core::{Cause, Conclusion, Verdict};
use crate::exec::slurm::states::{self, End, Standing};

/// How long to wait for the cluster's reason after a job has noted an exit that the cluster may explain.
const CAUSE_WITHIN: Duration = Duration::from_secs(5);

/// The same while the cluster cleans up after a job that got a signal: the job may be put back into the queue.
const REQUEUE_WITHIN: Duration = Duration::from_mins(1);

/// How long to wait for the note of a job that has ended: file servers show files with a delay.
const NOTE_WITHIN: Duration = Duration::from_secs(3);

/// The failure message for a job that was preempted for good.
const PREEMPTED: &str = "the cluster ended it in favour of another job (PREEMPTED)";

impl Run {
    /// Returns whether it has failed after its start without an explanation, so that the cluster must be asked for its
    /// exit.
    pub fn wants_exit(&self, now: Instant) -> bool {
        let is_open = self.stop.is_none() && self.noted.is_none() && !self.was_asked;
        is_open
            && self.running.is_some()
            && self.ended.as_ref().is_some_and(|ended| {
                let tells_nothing = ended.end == End::Failed && states::tells_nothing(&ended.reason);
                tells_nothing && ended.exit.is_none() && now >= ended.seen + NOTE_WITHIN
            })
    }

    /// Returns how it has ended, if that can be decided by now. `looked`: the start of the last look that has found all
    /// notes; missing notes mean nothing before that.
    pub fn conclusion(&self, now: Instant, looked: Option<Instant>) -> Option<Conclusion> {
        let decided = |exit: Option<&Exit>, verdict| {
            let at = self.noted.as_ref().and_then(|noted| noted.at);
            Some(Conclusion { exit: exit.cloned(), verdict, at })
        };
        if let Some(noted) = &self.noted {
            let exit = match &noted.end {
                Ok(exit) => exit,
                Err(why) => return decided(None, Verdict::Failed(Cause::Other, why.clone())),
            };
            // The accounting knows the reason even if the queue has already forgotten the job.
            let is_forgotten = self.ended.is_none()
                && self.missing > 0
                && (!self.awaits_record || now >= noted.seen + CAUSE_WITHIN);
            if self.stop.is_some() || !exit.is_explained_by_cluster() || is_forgotten {
                return decided(Some(&exit.exit), Verdict::ByExit);
            }
            if let Some(Ended { end, reason, .. }) = &self.ended {
                return decided(Some(&exit.exit), states::verdict(*end, reason, Some(&exit.exit), true));
            }
            if self.preempted >= MISSING {
                return decided(Some(&exit.exit), Verdict::Failed(Cause::Other, PREEMPTED.into()));
            }
            let is_leaving = matches!(self.standing, Some(Standing::Leaving | Standing::Preempted));
            let wait = if exit.is_signalled && is_leaving { REQUEUE_WITHIN } else { CAUSE_WITHIN };
            let is_asked = self.answered.is_some_and(|asked| asked >= noted.seen);
            return if is_asked && now >= noted.seen + wait {
                decided(Some(&exit.exit), Verdict::ByExit)
            } else {
                None
            };
        }
        if let Some(Ended { end, reason, exit, seen }) = &self.ended {
            let is_clear = self.stop.is_some() || self.running.is_none() && *end == End::Cancelled;
            let is_looked_for = looked.is_some_and(|began| began >= *seen + NOTE_WITHIN) && !self.is_unread;
            if is_clear || is_looked_for && !self.wants_exit(now) {
                let script = self.script.as_ref().filter(|_| self.was_asked);
                let known = exit.as_ref().or(script).filter(|exit| **exit != Exit::Code(0));
                let has_started = self.running.is_some();
                return decided(known, states::verdict(*end, reason, known, has_started));
            }
            return None;
        }
        self.without_a_trace(looked)
    }

    /// Returns how it has ended if the cluster no longer knows it and it noted nothing.
    fn without_a_trace(&self, looked: Option<Instant>) -> Option<Conclusion> {
        let decided = |verdict| Some(Conclusion { exit: None, verdict, at: None });
        if self.stop.is_some() && (self.missing > 0 || self.preempted > 0) {
            return decided(Verdict::Cancelled);
        }
        if self.is_unread || self.forgotten.is_some_and(|since| looked.is_none_or(|began| began < since)) {
            return None;
        }
        if self.missing >= MISSING && !self.awaits_record {
            // A controller keeps nothing of an array element that was cancelled before it started.
            if self.is_waiting() && self.id.is_some_and(|id| id.index.is_some()) {
                return decided(Verdict::Cancelled);
            }
            let why = "lost by the cluster: it no longer knows the job, and the job recorded no exit";
            return decided(Verdict::Failed(Cause::Lost, why.into()));
        }
        if self.preempted >= MISSING {
            return decided(Verdict::Failed(Cause::Other, PREEMPTED.into()));
        }
        None
    }
}
