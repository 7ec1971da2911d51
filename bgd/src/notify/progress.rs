//! How far the delivery of a notice has come, for its adapter, which goes on with it, and for an upgrade in place, which
//! carries it. This module delivers nothing.

#![cfg_attr(not(feature = "chats"), allow(dead_code, reason = "only chats and webhooks try again and send"))]

use std::cell::RefCell;
use std::rc::Rc;
#[cfg(feature = "chats")]
use std::time::Duration;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::hook::{Hook, HookLeft, HookState};
use super::outcomes::Outcomes;
use crate::carry::{Named, Obstacle};
#[cfg(feature = "chats")]
use crate::core::Delivery;
use crate::core::Tried;

/// How far the delivery of a notice has come.
pub struct Progress {
    of: Rc<Outcomes>,
    number: u64,
    /// What was tried, and since when that is so.
    tried: RefCell<Option<(Tried, Instant)>>,
    /// The command that the program before has started for it, until its channel goes on with that.
    left: RefCell<Option<HookLeft>>,
    stage: RefCell<Stage>,
}

/// What is under way for a notice.
enum Stage {
    /// Nothing that an upgrade would interrupt.
    Waiting,
    /// It is being sent to somebody who may have it already.
    Sending,
    /// A command is being started for it.
    Starting,
    /// A command runs for it.
    Running(Rc<Hook>),
}

/// How far the delivery of a notice has come, as data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProgressState {
    /// What was tried.
    pub tried: Option<Tried>,
    /// The command that runs for it.
    pub hook: Option<HookState>,
}

impl Progress {
    /// Begins with what was done for a notice before.
    pub fn new(of: &Rc<Outcomes>, number: u64, tried: Option<Tried>, left: Option<HookLeft>) -> Self {
        let tried = tried.map(|tried| (tried, Instant::now()));
        let stage = RefCell::new(Stage::Waiting);
        Self { of: Rc::clone(of), number, tried: tried.into(), left: left.into(), stage }
    }

    /// Returns what was tried before.
    pub fn tried(&self) -> Option<Tried> {
        self.tried.borrow().as_ref().map(|(tried, _)| tried.clone())
    }

    /// Takes the command that the program before has started.
    pub fn take_left(&self) -> Option<HookLeft> {
        self.left.take()
    }

    /// Notes a try that has failed and is followed by another one.
    #[cfg(feature = "chats")]
    pub fn note(&self, tried: Tried) {
        self.of.counts.tried(tried.retry.clone());
        self.tried.replace(Some((tried.clone(), Instant::now())));
        self.of.report(self.number, Delivery::Tried(Box::new(tried)));
    }

    /// Waits so long for the next try. Returns false, at once, if none is to follow: the channel is not configured any more.
    #[cfg(feature = "chats")]
    pub async fn wait(&self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.of.until_gone() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Sends a notice, unless an upgrade is about to happen: then that comes first.
    pub async fn send<T>(&self, sending: impl Future<Output = T>) -> T {
        self.of.until_let_go().await;
        self.stage.replace(Stage::Sending);
        let sent = sending.await;
        self.stage.replace(Stage::Waiting);
        sent
    }

    /// Starts a command likewise.
    pub async fn start<T>(&self, starting: impl Future<Output = T>) -> T {
        self.of.until_let_go().await;
        self.stage.replace(Stage::Starting);
        let started = starting.await;
        self.stage.replace(Stage::Waiting);
        started
    }

    /// Shows the command that runs, or that it is over.
    pub fn show(&self, hook: Option<Rc<Hook>>) {
        self.stage.replace(hook.map_or(Stage::Waiting, Stage::Running));
    }

    /// Returns the state. What is being sent is waited for only with `waits`: else it is sent again, under the same key.
    ///
    /// # Errors
    /// Something is under way that ends within moments.
    pub fn state(&self, waits: bool, named: &mut Named) -> Result<ProgressState, Obstacle> {
        // The notice itself is in the queue.
        let Self { of, number: _, tried, left, stage } = self;
        let name = &of.channel.name;
        let busy = |what: &str| Err(Obstacle::passing(format!("{what} the channel {name}")));
        let hook = match &*stage.borrow() {
            Stage::Waiting if left.borrow().is_some() => return busy("a command is taken up by"),
            Stage::Sending if waits => return busy("a notice is being sent by"),
            Stage::Waiting | Stage::Sending => None,
            Stage::Starting => return busy("a command is being started by"),
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
