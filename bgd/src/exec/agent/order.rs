//! Orders to the agents' thread.

use std::io;
use std::sync::{Arc, mpsc};

use bgd_shared::agent::AgentInfo;
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::state::Resumed;
pub use super::turn_order::TurnOrder;
use crate::agents::Agent;
use crate::carry::{Named, Obstacle};

/// An order to the agents' thread.
pub enum Order {
    /// Runs one turn: sends a prompt to an agent.
    Turn(Box<TurnOrder>),
    /// Controls a running turn.
    Control {
        task: TaskId,
        /// The task's run.
        run: u32,
        /// What the turn should do.
        control: Control,
    },
    /// Drops what is kept for a task that was cleared.
    Forget { task: TaskId },
    /// Starts agents to check that they work and what they report about themselves.
    Check {
        /// The agents, with what is known about each.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment that they start in.
        env: Arc<Env>,
        /// Receives the results.
        tell: oneshot::Sender<io::Result<Vec<AgentInfo>>>,
    },
    /// Holds back what agents say, or lets it pass, so that an upgrade can find them quiet.
    Hold(bool),
    /// Reports the state of all agents, and stands still until it is told to go on.
    Freeze(Freeze),
    /// Goes on with agents of the program before an upgrade.
    Resume(Box<Resumed>),
}

/// The order to stand still with a state.
#[derive(Debug)]
pub struct Freeze {
    /// Receives the state with its descriptors, or why there is none now.
    pub tell: mpsc::Sender<Result<(Box<RawValue>, Named), Obstacle>>,
    /// Closes when the thread may go on.
    pub until: mpsc::Receiver<()>,
}

/// A command to a running turn.
#[derive(Debug)]
pub enum Control {
    /// Ends the turn. Without `force`, only the first stop has an effect: it asks the agent to end the turn.
    Stop {
        /// Whether to end the turn by force.
        force: bool,
    },
    /// Passes on the answer to a question.
    Answer {
        /// The question's number.
        key: u64,
        /// The id of the chosen option; `None` denies.
        option: Option<Box<str>>,
    },
}
