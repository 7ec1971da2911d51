//! Orders to the agents' thread.

use std::io;
use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::state::Resumed;
pub use super::turn_order::TurnOrder;
use crate::agents::Agent;
use crate::carry::standstill::FreezeOrder;

/// An order to the agents' thread.
pub enum Order {
    /// Runs one turn: sends a prompt to an agent.
    Turn(Box<TurnOrder>),
    /// Controls a running turn.
    Control {
        task: TaskId,
        /// A control of another run is ignored.
        run: u32,
        control: Control,
    },
    /// Drops everything that is kept for a task that was cleared.
    Forget { task: TaskId },
    /// Starts agents to check that they work and to collect their reports about themselves.
    Check {
        /// The agents, each with the information known so far.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment to start them in.
        env: Arc<Env>,
        done: oneshot::Sender<io::Result<Vec<AgentInfo>>>,
    },
    /// Holds back the output of agents, or releases it, so that an upgrade can find them quiet.
    Hold(bool),
    /// Reports the state of all agents, and freezes the thread until it may continue.
    Freeze(FreezeOrder<Box<RawValue>>),
    /// Resumes the agents carried over an upgrade.
    Resume(Box<Resumed>),
}

/// A command to a running turn.
#[derive(Debug)]
pub enum Control {
    /// Ends the turn. Without `force`, only the first stop has an effect: it asks the agent to end the turn.
    Stop {
        /// Whether to kill the agent's process, with all turns in it.
        force: bool,
    },
    /// Passes on the answer to a question.
    Answer {
        /// The question's number in the turn.
        key: u64,
        /// The id of the chosen option; `None` denies.
        option: Option<Box<str>>,
        /// Whether a user has answered.
        by_user: bool,
    },
}
