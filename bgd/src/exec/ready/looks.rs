//! What a check and those who wait for its looks report to each other. This module looks at nothing itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// How long the end of a process waits for the last look.
const PATIENCE: Duration = Duration::from_secs(2);

/// The looks of one check.
#[derive(Debug, Default)]
pub struct Looks {
    /// Notified whenever everything there is was looked at in vain.
    in_vain: Notify,
    /// Notified when the process has ended: the next look is due, and is the last.
    again: Notify,
    has_ended: AtomicBool,
    /// Whether the time in which the process must be ready no longer counts.
    is_over: AtomicBool,
    /// Notified when a look that began after the end of the process was in vain.
    last_in_vain: Notify,
}

/// A look that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether the process had ended before.
    is_last: bool,
}

impl Looks {
    /// Notes that a look begins.
    pub fn begin(&self) -> Look {
        Look { is_last: self.has_ended.load(Ordering::Acquire) }
    }

    /// Notes that everything there is was looked at in vain.
    pub fn note_vain(&self, look: Look) {
        self.in_vain.notify_one();
        if look.is_last {
            self.last_in_vain.notify_one();
        }
    }

    /// Notes that no look will follow, and never returns.
    pub async fn give_up<T>(&self) -> T {
        self.note_vain(Look { is_last: true });
        std::future::pending().await
    }

    /// Waits until a look was in vain.
    pub async fn until_vain(&self) {
        self.in_vain.notified().await;
    }

    /// Waits until a look is due because the process has ended.
    pub async fn until_due(&self) {
        self.again.notified().await;
    }

    /// Notes that the process has ended, and thus can't be late any more.
    pub fn stop_clock(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Has another look follow at once, after which the process is known not to have become ready, and waits for it.
    pub async fn look_once_more(&self) {
        self.stop_clock();
        self.has_ended.store(true, Ordering::Release);
        self.again.notify_one();
        self.last_in_vain.notified().await;
    }
}

/// Asks a check to look once more, as its process has ended.
#[derive(Debug)]
pub struct LastLook(oneshot::Sender<oneshot::Sender<()>>);

/// The receiving end of a [`LastLook`].
pub type LastLookRequest = oneshot::Receiver<oneshot::Sender<()>>;

impl LastLook {
    /// Creates both ends.
    pub fn new() -> (Self, LastLookRequest) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Waits until the check has looked once more, which decides whether the process became ready before it ended, and
    /// has reported that; at most 2 s, as the disk may hang.
    pub async fn take(self) {
        let (done, is_done) = oneshot::channel();
        // Fails if the check has reported its outcome.
        if self.0.send(done).is_ok() {
            let _ = timeout(PATIENCE, is_done).await;
        }
    }
}
