//! Stands in for the Agent Client Protocol in a build without it: every connection attempt fails. Agents that
//! speak it are refused before they are started.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use bgd_shared::agent::AgentCheck;
use bgd_shared::error::ErrorKind;
use tokio::net::unix::pipe;

use crate::core::Refusal;
use crate::exec::agent::connection::{Opened, TurnEnd, Updates, Wanted};
use crate::features::Feature;

/// A connection that can't exist.
#[derive(Debug)]
pub struct Acp(Infallible);

impl Acp {
    /// Refuses to connect.
    ///
    /// # Errors
    /// Always.
    pub fn connect(_: pipe::Sender, _: pipe::Receiver) -> Ready<Result<Self, Refusal>> {
        let message = format!("the Agent Client Protocol {}", Feature::Acp.needed());
        ready(Err(Refusal::new(ErrorKind::AgentUnavailable, message)))
    }

    /// Never called, as no connection exists.
    pub fn open(&self, _: &Wanted, _: Updates) -> Ready<Result<Opened, Refusal>> {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn prompt(&self, _: &Arc<str>, _: &str) -> Ready<TurnEnd> {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn cancel(&self, _: &Arc<str>) -> Ready<()> {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn forget(&self, _: &Arc<str>) -> Ready<()> {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn about(&self) -> AgentCheck {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn closed(&self) -> Ready<Box<str>> {
        match self.0 {}
    }
}
