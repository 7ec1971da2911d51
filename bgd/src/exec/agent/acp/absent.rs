//! Replaces the Agent Client Protocol in a build without it: every connection attempt fails. Agents that speak the
//! protocol are refused before they are started.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::os::fd::RawFd;
use std::sync::Arc;

use bgd_shared::agent::AgentCheck;
use bgd_shared::error::ErrorKind;
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;

use crate::core::Refusal;
use crate::exec::agent::connection::{Opened, TurnEnd, Updates, Wanted};
use crate::features::Feature;

/// A connection that can't exist.
#[derive(Debug)]
pub struct Acp(Infallible);

/// The state of a connection, which can't exist either.
#[derive(Debug, Serialize, Deserialize)]
pub enum AcpState {}

impl AcpState {
    /// Never called, as no connection exists.
    pub fn sessions(&self) -> std::slice::Iter<'_, Arc<str>> {
        match *self {}
    }
}

impl Acp {
    /// Never called, as no connection exists.
    pub fn restore(
        state: AcpState,
        _: pipe::Sender,
        _: pipe::Receiver,
        _: impl FnMut(&Arc<str>) -> Option<Updates>,
    ) -> Self {
        match state {}
    }

    /// Never called, as no connection exists.
    pub fn hold(&self, _: bool) {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn state(&self) -> Option<(AcpState, [RawFd; 2])> {
        match self.0 {}
    }

    /// Never called, as no connection exists.
    pub fn asking(&self, _: &str) -> Vec<String> {
        match self.0 {}
    }

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
    pub fn judge(&self, _: &Arc<str>, _: Box<str>) -> Ready<TurnEnd> {
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
