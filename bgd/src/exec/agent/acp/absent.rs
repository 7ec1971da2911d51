//! What stands for the Agent Client Protocol in a build without it: nobody can be connected with. Agents that speak it
//! are refused before they are started.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use bgd_shared::agent::AgentCheck;
use bgd_shared::error::ErrorKind;
use tokio::net::unix::pipe;

use crate::core::Refusal;
use crate::exec::agent::connection::{Opened, TurnEnd, Updates, Wanted};
use crate::features::Feature;

/// A connection that there can't be.
#[derive(Debug)]
pub struct Acp(Infallible);

impl Acp {
    /// Connects with nobody.
    ///
    /// # Errors
    /// Always.
    pub fn connect(_: pipe::Sender, _: pipe::Receiver) -> Ready<Result<Self, Refusal>> {
        let message = format!("the Agent Client Protocol {}", Feature::Acp.needed());
        ready(Err(Refusal::new(ErrorKind::AgentUnavailable, message)))
    }

    /// Opens no session.
    pub fn open(&self, _: &Wanted, _: Updates) -> Ready<Result<Opened, Refusal>> {
        match self.0 {}
    }

    /// Gives no prompt.
    pub fn prompt(&self, _: &Arc<str>, _: &str) -> Ready<TurnEnd> {
        match self.0 {}
    }

    /// Tells nobody to end a turn.
    pub fn cancel(&self, _: &Arc<str>) -> Ready<()> {
        match self.0 {}
    }

    /// Lets go of no session.
    pub fn forget(&self, _: &Arc<str>) -> Ready<()> {
        match self.0 {}
    }

    /// Says nothing of itself.
    pub fn about(&self) -> AgentCheck {
        match self.0 {}
    }

    /// Waits for no end.
    pub fn closed(&self) -> Ready<Box<str>> {
        match self.0 {}
    }
}
