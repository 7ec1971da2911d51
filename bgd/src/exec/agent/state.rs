//! What agents carry over an upgrade in place, as data. Fields are only added, with a default.

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
use crate::carry::{Came, Fd};

#[derive(Debug, Serialize, Deserialize)]
pub struct AgentsState {
    /// Which process has which turns.
    pub pool: Pool<Key>,
    /// The processes.
    pub seats: Vec<SeatState>,
    /// Which process holds a task's session, and the connection's key for it.
    pub sessions: Vec<(TaskId, ProcessId, Arc<str>)>,
    pub turns: Vec<TurnState>,
    /// What records late output.
    pub late: Vec<LateState>,
}

/// An agent's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct SeatState {
    /// Its number in the pool.
    pub seat: ProcessId,
    /// The agent's name.
    pub agent: Arc<str>,
    /// How long it may stay idle.
    pub keep_warm: Duration,
    /// The process with its connection.
    pub live: LiveState,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TurnState {
    /// Its session is not open yet: it begins again.
    Opening(Box<TurnOrder>),
    /// It goes on.
    Following(Box<FollowState>),
}

/// A turn that the agent works on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FollowState {
    /// What it is for.
    pub order: TurnOrder,
    /// Its process; `None` if it has one for itself.
    pub seat: Option<ProcessId>,
    /// Its session.
    pub opened: Opened,
    /// Whether the agent is known to have the prompt.
    pub is_accepted: bool,
    /// What was recorded.
    pub recorder: RecorderState,
    /// Its pending questions.
    pub asked: Vec<AskedState>,
    /// The number of its last question.
    pub last_question: u64,
    /// Whether it was told to end.
    pub stopping: bool,
    /// Whether a permission was denied.
    pub denied: bool,
    /// How many lines its process had written to its standard error before.
    pub lines: u64,
    /// The process of its own.
    pub template: Option<TemplateState>,
}

/// A pending question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AskedState {
    /// Its number.
    pub key: u64,
    /// What the agent calls it.
    pub reference: Arc<str>,
    /// The ids of the options that deny the request.
    pub denials: Vec<String>,
}

/// What records the late output of a session.
#[derive(Debug, Serialize, Deserialize)]
pub struct LateState {
    pub seat: ProcessId,
    /// The connection's key for the session.
    pub key: Arc<str>,
    /// The record.
    pub recorder: RecorderState,
}

/// Agents that came over an upgrade, with their descriptors.
#[derive(Debug)]
pub struct Resumed {
    pub state: AgentsState,
    /// Their descriptors.
    pub taken: Taken,
}

/// Descriptors that were taken for agents.
#[derive(Debug, Default)]
pub struct Taken(Vec<(Fd, OwnedFd)>);

impl Taken {
    /// Takes all descriptors of agents.
    ///
    /// # Errors
    /// One of them did not come.
    pub fn all(state: &AgentsState, came: &mut Came) -> io::Result<Self> {
        let lives = state.seats.iter().flat_map(|seat| seat.live.descriptors());
        let templates = state.turns.iter().filter_map(|turn| match turn {
            TurnState::Opening(_) => None,
            TurnState::Following(turn) => turn.template.as_ref()?.descriptor(),
        });
        lives.chain(templates).map(|fd| Ok((fd, came.take(fd)?))).collect::<io::Result<_>>().map(Self)
    }

    /// Takes one of them.
    ///
    /// # Errors
    /// It is not there.
    pub fn take(&mut self, fd: Fd) -> io::Result<OwnedFd> {
        let at = self.0.iter().position(|(known, _)| *known == fd);
        at.map(|at| self.0.swap_remove(at).1)
            .ok_or_else(|| io::Error::other("a descriptor of an agent is missing"))
    }
}
