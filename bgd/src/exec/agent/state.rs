//! The state of agents that is carried over an upgrade in place. Fields are only added, with a default.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use serde::{Deserialize, Serialize};

use super::connection::Opened;
use super::key::Key;
use super::live::LiveState;
use super::pool::{Pool, ProcessId};
use super::recorder::RecorderState;
use super::template::TemplateState;
use super::turn_order::TurnOrder;
use crate::carry::{Fd, ReceivedFds};

#[derive(Debug, Serialize, Deserialize)]
pub struct AgentsState {
    /// Which process has which turns.
    pub pool: Pool<Key>,
    pub seats: Vec<SeatState>,
    /// For each task, the process that holds its session, and the connection's key for that session.
    pub sessions: Vec<(TaskId, ProcessId, Arc<str>)>,
    pub turns: Vec<TurnState>,
    pub late: Vec<LateState>,
}

/// An agent's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct SeatState {
    pub seat: ProcessId,
    pub agent: Arc<str>,
    /// How long the process may stay idle.
    pub keep_warm: Duration,
    pub live: LiveState,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TurnState {
    /// Its session is not open yet; the turn starts again.
    Opening(Box<TurnOrder>),
    /// The agent has its session; the turn is resumed.
    Following(Box<FollowState>),
}

/// A turn with an open session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FollowState {
    pub order: TurnOrder,
    /// Its process; `None` if the turn has a process of its own.
    pub seat: Option<ProcessId>,
    pub opened: Opened,
    /// Whether the agent is known to have the prompt.
    pub is_accepted: bool,
    pub recorder: RecorderState,
    pub asked: Vec<AskedState>,
    pub last_question: u64,
    /// Whether the turn was asked to end.
    pub stopping: bool,
    /// Whether a permission was denied without a user's answer.
    pub denied: bool,
    /// How many permissions a user has denied.
    #[serde(default)]
    pub user_denials: u32,
    /// How many meaningful lines its process had written to its standard error before the turn.
    pub lines: u64,
    /// The turn's own process, if its agent is a template.
    pub template: Option<TemplateState>,
}

/// A pending question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AskedState {
    /// The question's number in the turn.
    pub key: u64,
    /// The agent's name for the question.
    pub reference: Arc<str>,
    /// The ids of the options that deny the request.
    pub denials: Vec<String>,
}

/// The recorder of a session's late output.
#[derive(Debug, Serialize, Deserialize)]
pub struct LateState {
    pub seat: ProcessId,
    /// The connection's key for the session.
    pub key: Arc<str>,
    pub recorder: RecorderState,
}

/// Agents carried over an upgrade, with their descriptors.
#[derive(Debug)]
pub struct Resumed {
    pub state: AgentsState,
    pub taken: Taken,
}

/// The descriptors received for agents.
#[derive(Debug, Default)]
pub struct Taken(Vec<(Fd, OwnedFd)>);

impl Taken {
    /// Takes the descriptors of all agents from those received.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub fn all(state: &AgentsState, received: &mut ReceivedFds) -> io::Result<Self> {
        let lives = state.seats.iter().flat_map(|seat| seat.live.descriptors());
        let templates = state.turns.iter().filter_map(|turn| match turn {
            TurnState::Opening(_) => None,
            TurnState::Following(turn) => turn.template.as_ref()?.descriptor(),
        });
        lives.chain(templates).map(|fd| Ok((fd, received.take(fd)?))).collect::<io::Result<_>>().map(Self)
    }

    /// Takes one descriptor.
    ///
    /// # Errors
    /// It is missing.
    pub fn take(&mut self, fd: Fd) -> io::Result<OwnedFd> {
        let at = self.0.iter().position(|(known, _)| *known == fd);
        at.map(|at| self.0.swap_remove(at).1)
            .ok_or_else(|| io::Error::other("a descriptor of an agent is missing"))
    }
}
