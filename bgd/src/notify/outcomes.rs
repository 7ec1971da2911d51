//! The outcomes of notices: the deliverer of a notice reports its outcome, which is counted, logged at a bounded rate,
//! and sent to the dispatcher. This module delivers nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::counts::Counts;
use super::undelivered::Undelivered;
use crate::channels::Channel;
#[cfg(test)]
use crate::channels::ChannelKind;
use crate::core::Delivery;
use crate::wire::mailbox::{Internal, Internals};

/// How long an upgrade waits for a notice that a removed channel is delivering, such as for its command: much less than
/// an upgrade waits at all.
const GONE: Duration = Duration::from_secs(1);

/// Why the notices of a removed channel are given up in an upgrade.
pub(super) const GIVEN_UP: &str = "its channel is no longer configured, and the daemon is being upgraded";

/// Shared by all notices of a channel, to report their outcomes.
pub struct Outcomes {
    pub(super) channel: Arc<Channel>,
    pub(super) counts: Arc<Counts>,
    pub(super) log: RefCell<RateLimiter>,
    pub(super) internals: Internals,
    /// Whether an upgrade is about to happen, in which case nothing new begins.
    pub(super) holds: watch::Receiver<bool>,
    /// Whether the channel was removed from the configuration.
    pub(super) gone: watch::Receiver<bool>,
}

#[cfg(test)]
impl Outcomes {
    /// Creates those of a channel of this kind, for tests.
    pub(super) fn of(kind: ChannelKind, counts: &Arc<Counts>, internals: Internals) -> Rc<Self> {
        Rc::new(Self {
            channel: Arc::new(Channel { name: "c".into(), kind, started: true }),
            counts: Arc::clone(counts),
            log: RefCell::default(),
            internals,
            holds: watch::channel(false).1,
            gone: watch::channel(false).1,
        })
    }
}

impl Outcomes {
    /// Reports the progress of a notice's delivery to the dispatcher.
    pub(super) fn report(&self, number: u64, delivery: Delivery) {
        self.internals.send(Internal::Notice { number, delivery });
    }

    /// Counts and logs the outcome of a notice.
    fn settled(&self, was_held: bool, outcome: Result<(), Undelivered>) {
        let Self { channel, counts, log, internals: _, holds: _, gone: _ } = self;
        if was_held {
            Counts::subtract(&counts.held);
        }
        counts.done(outcome.clone());
        match outcome {
            Ok(()) => tracing::debug!(channel = %channel.name, "a notice was delivered"),
            Err(Undelivered(why)) => {
                if let Some(more) = log.borrow_mut().is_due() {
                    tracing::warn!(channel = %channel.name, %why, more, "a notice was not delivered");
                }
            }
        }
    }

    /// Waits while an upgrade is about to happen.
    pub(super) async fn until_released(&self) {
        // Fails without a notifier, that is, when the daemon is ending.
        let _ = self.holds.clone().wait_for(|holds| !holds).await;
    }

    /// Waits until an upgrade is about to happen.
    pub(super) async fn until_held(&self) {
        if self.holds.clone().wait_for(|holds| *holds).await.is_err() {
            // Without a notifier the daemon is ending.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the channel is removed from the configuration.
    pub(super) async fn until_gone(&self) {
        if self.gone.clone().wait_for(|gone| *gone).await.is_err() {
            // Without a notifier the daemon is ending, and the waiting task is dropped with it.
            std::future::pending::<()>().await;
        }
    }

    /// Waits while an upgrade is about to happen. Returns false, at once, if nothing more may begin then as the channel
    /// was removed: the next program could not go on with it.
    pub(super) async fn may_begin(&self) -> bool {
        tokio::select! {
            biased;
            () = self.until_released() => true,
            () = self.until_gone() => false,
        }
    }

    /// Waits until a notice of a removed channel, with which the next program could not go on, has delayed an upgrade
    /// for [`GONE`].
    pub(super) async fn until_in_the_way(&self) {
        loop {
            self.until_gone().await;
            self.until_held().await;
            let released = tokio::time::timeout(GONE, self.until_released()).await;
            if released.is_err() && *self.gone.borrow() {
                return;
            }
        }
    }
}

/// Reports the outcome of one notice. If dropped without a report, the notice counts as not delivered.
pub struct PendingReport {
    of: Rc<Outcomes>,
    number: u64,
    is_held: bool,
    is_reported: bool,
}

impl PendingReport {
    pub(super) fn new(of: &Rc<Outcomes>, number: u64) -> Self {
        Self { of: Rc::clone(of), number, is_held: false, is_reported: false }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Resumes a notice that its channel held before an upgrade.
    pub(super) fn held(of: &Rc<Outcomes>, number: u64) -> Self {
        Self { of: Rc::clone(of), number, is_held: true, is_reported: false }
    }

    /// Marks the notice as held by its channel, which frees its room in the queue.
    pub(super) fn hold(&mut self) {
        self.is_held = true;
        Counts::add(&self.of.counts.held);
        self.of.report(self.number, Delivery::Held);
        tracing::debug!(channel = %self.of.channel.name, "a notice is held");
    }

    /// Reports the outcome of the notice.
    pub fn report(mut self, outcome: Result<(), Undelivered>) {
        self.take(outcome, Delivery::Over);
    }

    /// Reports why the notice was not delivered, and that its channel will show it later. Returns its number.
    pub(super) fn miss(mut self, why: Undelivered) -> u64 {
        self.take(Err(why), Delivery::Missed);
        self.number
    }

    fn take(&mut self, outcome: Result<(), Undelivered>, delivery: Delivery) {
        self.is_reported = true;
        self.of.report(self.number, delivery);
        self.of.settled(self.is_held, outcome);
    }
}

impl Drop for PendingReport {
    fn drop(&mut self) {
        if !self.is_reported {
            self.take(Err(panicked()), Delivery::Over);
        }
    }
}

/// Reports the common outcome of held notices that are only counted. If dropped without a report, they count as not
/// delivered.
pub struct Counted {
    of: Rc<Outcomes>,
    count: u64,
}

impl Counted {
    /// Resumes `count` notices that the channel held before an upgrade.
    pub(super) fn restore(of: &Rc<Outcomes>, count: u64) -> Self {
        // `held` is updated first so that the queue never seems fuller than it is.
        of.counts.held.fetch_add(count, Ordering::Relaxed);
        of.counts.queued.fetch_add(count, Ordering::Relaxed);
        Self { of: Rc::clone(of), count }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Takes over a held notice; a durable daemon then deletes it from its journal, too.
    pub(super) fn add(&mut self, mut held: PendingReport) {
        held.is_reported = true;
        self.of.report(held.number, Delivery::Over);
        self.count += 1;
        tracing::debug!(channel = %self.of.channel.name, "a held notice is only counted");
    }

    /// Takes over the notices of another report.
    pub(super) fn absorb(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }

    /// Reports the outcome of the notices.
    pub(super) fn report(mut self, outcome: &Result<(), Undelivered>) {
        self.take(outcome);
    }

    fn take(&mut self, outcome: &Result<(), Undelivered>) {
        for _ in 0..std::mem::take(&mut self.count) {
            self.of.settled(true, outcome.clone());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.count > 0 {
            self.take(&Err(panicked()));
        }
    }
}

fn panicked() -> Undelivered {
    Undelivered("the adapter has panicked".to_owned())
}

/// How often the same kind of event is logged per `LOG_EVERY`: a task without a channel, a full queue, a failing
/// channel. A hundred thousand tasks must not fill the log.
const LOG_BURST: u32 = 20;
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Limits how often an event is logged, and counts the suppressed events.
#[derive(Debug, Default)]
pub struct RateLimiter {
    begun: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl RateLimiter {
    /// Returns how many events were suppressed since the last logged one; `None` if this event must be suppressed.
    pub(super) fn is_due(&mut self) -> Option<u64> {
        if self.begun.is_none_or(|begun| begun.elapsed() >= LOG_EVERY) {
            (self.begun, self.logged) = (Some(Instant::now()), 0);
        }
        if self.logged >= LOG_BURST {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}
