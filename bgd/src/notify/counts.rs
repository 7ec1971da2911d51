//! Counters and status of one channel, shared by the dispatcher and the channel's worker. This module only records.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bgd_shared::mutex::Mutex;
use bgd_shared::request::{ChannelRetry, ChannelStatus};
use bgd_shared::show::plain;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::undelivered::Undelivered;

/// Counters and status of a channel.
#[derive(Debug, Default)]
pub struct Counts {
    /// Notices not yet delivered, held ones included.
    pub queued: AtomicU64,
    /// Undelivered notices that the adapter holds; they no longer take up room in the queue.
    pub held: AtomicU64,
    /// How many notices the channel may queue, and how many it may additionally hold individually; held ones beyond
    /// that are only counted.
    limit: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    /// Notices that wait for another terminal because their own is closed.
    pub missed: AtomicU64,
    /// Notices dropped because the queue was full.
    pub dropped: AtomicU64,
    known: Mutex<Known>,
}

/// Status texts; they contain no secrets.
#[derive(Debug, Default)]
struct Known {
    /// The last failure and its time.
    last_error: Option<(String, Timestamp)>,
    /// Whether the last failure was that of the latest notice.
    is_failing: bool,
    /// The state of the notice that is being retried.
    retry: Option<ChannelRetry>,
    /// The problem with the channel's settings.
    settings: Option<String>,
    token_file: Option<PathBuf>,
    /// The problem with the token file.
    token: Option<String>,
}

/// The counters of a channel as carried over an upgrade in place.
#[derive(Debug, Serialize, Deserialize)]
pub struct CountsState {
    sent: u64,
    failed: u64,
    dropped: u64,
    last_error: Option<(String, Timestamp)>,
    #[serde(default)]
    is_failing: bool,
}

impl Counts {
    pub fn state(&self) -> CountsState {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // The other fields are rebuilt from the carried notices and the configuration.
        let Self { sent, failed, dropped, queued: _, held: _, limit: _, missed: _, known: _ } = self;
        let known = self.known.lock();
        let (last_error, is_failing) = (known.last_error.clone(), known.is_failing);
        CountsState {
            sent: count(sent),
            failed: count(failed),
            dropped: count(dropped),
            last_error,
            is_failing,
        }
    }

    /// Restores the counters from before an upgrade.
    pub fn resume(&self, state: CountsState) {
        let CountsState { sent, failed, dropped, last_error, is_failing } = state;
        self.sent.store(sent, Ordering::Relaxed);
        self.failed.store(failed, Ordering::Relaxed);
        self.dropped.store(dropped, Ordering::Relaxed);
        let mut known = self.known.lock();
        (known.last_error, known.is_failing) = (last_error, is_failing);
    }

    pub fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn subtract(count: &AtomicU64) {
        count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of undelivered notices, held ones included.
    pub fn waiting(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns the number of notices that were lost.
    pub fn lost(&self) -> u64 {
        self.failed.load(Ordering::Relaxed) + self.dropped.load(Ordering::Relaxed)
    }

    /// Reports whether the counts of a channel matter that is no longer configured: notices wait, or were lost.
    pub fn matter(&self) -> bool {
        self.waiting() > 0 || self.lost() > 0
    }

    /// Returns the number of notices that take up room in the queue.
    pub fn in_queue(&self) -> u64 {
        self.waiting().saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// Sets how many notices the channel may queue.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit as u64, Ordering::Relaxed);
    }

    /// Returns how many notices the channel may hold individually; held ones beyond that are only counted.
    pub fn held_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Records the outcome of a queued notice.
    pub fn done(&self, outcome: Result<(), Undelivered>) {
        let mut known = self.known.lock();
        known.retry = None;
        known.is_failing = outcome.is_err();
        match outcome {
            Ok(()) => Self::add(&self.sent),
            Err(Undelivered(why)) => {
                Self::add(&self.failed);
                known.last_error = Some((plain(&why).into_owned(), Timestamp::now()));
            }
        }
        Self::subtract(&self.queued);
    }

    /// Records the result of checking the channel's settings: the problem, if any, and the token file, which has yet to
    /// be read.
    pub fn configured(&self, wrong: Option<String>, token_file: Option<&Path>) {
        let mut known = self.known.lock();
        known.settings = wrong;
        known.token_file = token_file.map(Path::to_owned);
        known.token = None;
    }

    /// Forgets the last failure, which says nothing about the channel's new settings.
    pub fn settings_changed(&self) {
        let mut known = self.known.lock();
        (known.last_error, known.is_failing) = (None, false);
    }

    /// Returns the status of the channel under this name and type.
    pub fn status(&self, name: &str, kind: &str) -> ChannelStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let known = self.known.lock();
        let wrong: Vec<&str> = known.settings.as_deref().into_iter().chain(known.token.as_deref()).collect();
        ChannelStatus {
            name: name.to_owned(),
            kind: kind.to_owned(),
            queued: count(&self.queued),
            sent: count(&self.sent),
            failed: count(&self.failed),
            dropped: count(&self.dropped),
            problem: (!wrong.is_empty()).then(|| wrong.join("; ")),
            retry: known.retry.clone(),
            last_error: known.last_error.as_ref().map(|(why, _)| why.clone()),
            last_error_at: known.last_error.as_ref().map(|(_, at)| *at),
            failing: known.is_failing,
        }
    }
}

/// Status that only HTTPS channels have.
#[cfg(feature = "chats")]
impl Counts {
    /// Records that the current notice will be retried.
    pub fn tried(&self, retry: ChannelRetry) {
        self.known.lock().retry = Some(retry);
    }

    /// Records the problem with a token file, if any; ignored if the channel has another token file by now.
    pub fn token_checked(&self, token_file: &Path, wrong: Option<&str>) {
        let mut known = self.known.lock();
        if known.token_file.as_deref() == Some(token_file) {
            // Equal to the error of a delivery that fails for the same reason.
            known.token = wrong.map(|wrong| plain(wrong).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_problems_of_the_configured_token_file_count() {
        let counts = Counts::default();
        let problem = || counts.status("c", "slack").problem;
        counts.configured(Some("no chat".to_owned()), Some(Path::new("/a")));
        counts.token_checked(Path::new("/a"), Some("empty"));
        assert_eq!(problem().as_deref(), Some("no chat; empty"));
        counts.configured(None, Some(Path::new("/b")));
        counts.token_checked(Path::new("/a"), Some("empty"));
        assert_eq!(problem(), None);
        counts.token_checked(Path::new("/b"), Some("missing"));
        assert_eq!(problem().as_deref(), Some("missing"));
        counts.token_checked(Path::new("/b"), None);
        assert_eq!(problem(), None);
    }

    /// `daemon status` leaves out an error that the problem explains.
    #[test]
    fn problem_and_error_of_a_missing_token_file_are_the_same() {
        let counts = Counts::default();
        let missing = "no token: No such file or directory (os error 2)";
        counts.configured(None, Some(Path::new("/a")));
        counts.token_checked(Path::new("/a"), Some(missing));
        counts.done(Err(Undelivered(missing.to_owned())));
        let status = counts.status("c", "slack");
        assert_eq!(status.problem.as_deref(), Some("no token: No such file or directory"));
        assert_eq!(status.last_error, status.problem);
    }
}
