//! What is counted and known of one channel. The dispatcher's side and the channel's worker share it; it
//! decides and delivers nothing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bgd_shared::request::{ChannelRetry, ChannelStatus};
use bgd_shared::time::Timestamp;

use super::undelivered::Undelivered;

/// What is counted of a channel.
#[derive(Debug, Default)]
pub struct Counts {
    /// Notices that are not delivered yet.
    pub queued: AtomicU64,
    /// Those of the queued ones that have left the queue, and are held where they take no more room.
    pub held: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    /// Notices that wait for another terminal, as the one that they were for is closed.
    pub missed: AtomicU64,
    /// Notices that found the queue full.
    pub dropped: AtomicU64,
    known: Mutex<Known>,
}

/// What is known in words, never with a secret in it.
#[derive(Debug, Default)]
struct Known {
    /// Why the last one failed that did, and when.
    last_error: Option<(String, Timestamp)>,
    /// What the notice that is being tried again has met so far.
    retry: Option<ChannelRetry>,
    /// What is wrong with its settings.
    settings: Option<String>,
    /// The file of its token, if it has one.
    token_file: Option<PathBuf>,
    /// What is wrong with that.
    token: Option<String>,
}

impl Counts {
    /// Adds one to a count.
    pub fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one from a count.
    pub fn subtract(count: &AtomicU64) {
        count.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many notices are not delivered yet.
    pub fn waiting(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// How many of them take room in the queue.
    pub fn in_queue(&self) -> u64 {
        self.waiting().saturating_sub(self.held.load(Ordering::Relaxed))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queued notice was delivered, or not.
    pub fn done(&self, outcome: Result<(), Undelivered>) {
        let mut known = self.known();
        known.retry = None;
        match outcome {
            Ok(()) => Self::add(&self.sent),
            Err(Undelivered(why)) => {
                Self::add(&self.failed);
                known.last_error = Some((why, Timestamp::now()));
            }
        }
        Self::subtract(&self.queued);
    }

    /// Its settings were read: what is wrong with them, and the file of its token, at which nobody has looked
    /// yet.
    pub fn configured(&self, wrong: Option<String>, token_file: Option<&Path>) {
        let mut known = self.known();
        known.settings = wrong;
        known.token_file = token_file.map(Path::to_owned);
        known.token = None;
    }

    /// How the channel of this name and type does.
    pub fn status(&self, name: &str, kind: &str) -> ChannelStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let known = self.known();
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
        }
    }
}

/// What there is to tell of a channel that speaks HTTPS only.
#[cfg(feature = "chats")]
impl Counts {
    /// The notice that is being delivered is tried again later.
    pub fn tried(&self, retry: ChannelRetry) {
        self.known().retry = Some(retry);
    }

    /// What is wrong with the file of a token, if it still is the one of this channel.
    pub fn looked_at(&self, token_file: &Path, wrong: Option<&str>) {
        let mut known = self.known();
        if known.token_file.as_deref() == Some(token_file) {
            known.token = wrong.map(str::to_owned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_said_of_the_configured_file_counts() {
        let counts = Counts::default();
        let problem = || counts.status("c", "slack").problem;
        counts.configured(Some("no chat".to_owned()), Some(Path::new("/a")));
        counts.looked_at(Path::new("/a"), Some("empty"));
        assert_eq!(problem().as_deref(), Some("no chat; empty"));
        counts.configured(None, Some(Path::new("/b")));
        counts.looked_at(Path::new("/a"), Some("empty"));
        assert_eq!(problem(), None);
        counts.looked_at(Path::new("/b"), Some("missing"));
        assert_eq!(problem().as_deref(), Some("missing"));
        counts.looked_at(Path::new("/b"), None);
        assert_eq!(problem(), None);
    }
}
