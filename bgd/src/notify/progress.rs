//! The progress of a notice's delivery: for its adapter, which resumes it, and for an upgrade in place, which carries
//! it. This module delivers nothing.

#![cfg_attr(not(feature = "chats"), allow(dead_code, reason = "only chats and webhooks try again and send"))]

use std::cell::RefCell;
use std::rc::Rc;
#[cfg(feature = "chats")]
use std::time::Duration;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::hook::{Hook, HookLeft, HookState};
use super::outcomes::Outcomes;
use crate::carry::{CarriedFds, Obstacle};
#[cfg(feature = "chats")]
use crate::core::Delivery;
use crate::core::Tried;

/// The progress of a notice's delivery.
pub struct Progress {
    of: Rc<Outcomes>,
    number: u64,
    /// The tries so far, and when they were recorded.
    tried: RefCell<Option<(Tried, Instant)>>,
    /// The command that the program before the upgrade started for the notice, until the channel takes it.
    left: RefCell<Option<HookLeft>>,
    stage: RefCell<Stage>,
}

/// The delivery's current step.
enum Stage {
    /// Idle, or at a step that an upgrade does not interrupt.
    Waiting,
    /// The notice is being sent and may have arrived already.
    Sending,
    /// A command is being started for the notice.
    Starting,
    /// A command is running for the notice.
    Running(Rc<Hook>),
}

/// The progress of a notice's delivery, as data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProgressState {
    pub tried: Option<Tried>,
    /// The running command.
    pub hook: Option<HookState>,
}

impl Progress {
    /// Creates the progress of a delivery, continuing earlier tries and a command left by the program before an
    /// upgrade.
    pub fn new(of: &Rc<Outcomes>, number: u64, tried: Option<Tried>, left: Option<HookLeft>) -> Self {
        #[cfg(feature = "chats")]
        if let Some(tried) = &tried {
            of.counts.tried(tried.retry.clone());
        }
        let tried = tried.map(|tried| (tried, Instant::now()));
        let stage = RefCell::new(Stage::Waiting);
        Self { of: Rc::clone(of), number, tried: tried.into(), left: left.into(), stage }
    }

    /// Returns the earlier tries.
    pub fn tried(&self) -> Option<Tried> {
        self.tried.borrow().as_ref().map(|(tried, _)| tried.clone())
    }

    /// Takes the command that the program before the upgrade started.
    pub fn take_left(&self) -> Option<HookLeft> {
        self.left.take()
    }

    /// Records a failed try that will be retried.
    #[cfg(feature = "chats")]
    pub fn note(&self, tried: Tried) {
        self.of.counts.tried(tried.retry.clone());
        self.tried.replace(Some((tried.clone(), Instant::now())));
        self.of.report(self.number, Delivery::Tried(Box::new(tried)));
    }

    /// Waits for `time` before the next try. Returns false, at once, if there must not be one as the channel was
    /// removed from the configuration.
    #[cfg(feature = "chats")]
    pub async fn wait(&self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.of.until_gone() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Sends a notice. If an upgrade is about to happen, waits until that is over or cancelled.
    pub async fn send<T>(&self, sending: impl Future<Output = T>) -> T {
        self.of.until_released().await;
        self.stage.replace(Stage::Sending);
        let sent = sending.await;
        self.stage.replace(Stage::Waiting);
        sent
    }

    /// Starts a command, like [`Self::send`].
    pub async fn start<T>(&self, starting: impl Future<Output = T>) -> T {
        self.of.until_released().await;
        self.stage.replace(Stage::Starting);
        let started = starting.await;
        self.stage.replace(Stage::Waiting);
        started
    }

    /// Records the running command, or with `None` that it has ended.
    pub fn show(&self, hook: Option<Rc<Hook>>) {
        self.stage.replace(hook.map_or(Stage::Waiting, Stage::Running));
    }

    /// Returns the state. With `waits`, fails while the notice is being sent; otherwise it will be sent again, under
    /// the same key. The same applies to a running command unless the channel `keeps_type`.
    ///
    /// # Errors
    /// Something is in progress that ends within moments.
    pub fn state(
        &self,
        waits: bool,
        keeps_type: bool,
        named: &mut CarriedFds,
    ) -> Result<ProgressState, Obstacle> {
        // The notice itself is carried with the queue.
        let Self { of, number: _, tried, left, stage } = self;
        let name = &of.channel.name;
        let busy = |what: &str| Err(Obstacle::passing(format!("{what} the channel {name}")));
        let hook = match &*stage.borrow() {
            Stage::Waiting if left.borrow().is_some() => return busy("a command is taken up by"),
            Stage::Sending if waits => return busy("a notice is being sent by"),
            Stage::Waiting | Stage::Sending => None,
            Stage::Starting => return busy("a command is being started by"),
            Stage::Running(_) if waits && !keeps_type => return busy("a command is running for"),
            Stage::Running(_) if !keeps_type => None,
            Stage::Running(hook) => match hook.state(named) {
                Some(hook) => Some(hook),
                None => return busy("a command has ended for"),
            },
        };
        let tried = tried.borrow().as_ref().map(|(tried, since)| {
            let passed = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            Tried { spent_ms: tried.spent_ms.saturating_add(passed), ..tried.clone() }
        });
        Ok(ProgressState { tried, hook })
    }
}
