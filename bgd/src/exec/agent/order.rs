//! Orders to the agents' thread.

use std::sync::Arc;

use bgd_shared::agent::{AgentInfo, AgentSettings};
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;

use crate::agents::Agent;
use crate::core::{AfterTask, Spec};

/// An order to the agents' thread.
#[derive(Debug)]
pub enum Order {
    /// Runs one turn: sends a prompt to an agent.
    Turn(Box<TurnOrder>),
    /// Controls a running turn.
    Control {
        /// The task.
        task: TaskId,
        /// The task's run.
        run: u32,
        /// What the turn should do.
        control: Control,
    },
    /// Drops what is kept for a task that was cleared.
    Forget {
        /// The task.
        task: TaskId,
    },
    /// Starts agents to check that they work and what they report about themselves.
    Check {
        /// The agents, with what is known about each.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment that they start in.
        env: Arc<Env>,
        /// Receives the results.
        tell: Tell,
    },
}

/// Callback that receives the results of [`Order::Check`].
pub struct Tell(pub Box<dyn FnOnce(Vec<AgentInfo>) + Send>);

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tell")
    }
}

/// A prompt for an agent, with everything that its turn needs.
#[derive(Clone, Debug)]
pub struct TurnOrder {
    /// The task.
    pub task: TaskId,
    /// The task's run, which every fact about the turn carries.
    pub run: u32,
    /// The agent that gets the prompt.
    pub agent: Arc<Agent>,
    /// The task's spec, for its working directory, umask and resource limits.
    pub spec: Arc<Spec>,
    /// The submitter's environment.
    pub env: Arc<Env>,
    /// The prompt.
    pub prompt: Arc<str>,
    /// What the task sets in the session, such as a model or a mode.
    pub settings: Arc<AgentSettings>,
    /// The session to continue; `None` opens a new one.
    pub session: Option<Arc<str>>,
    /// The tasks that this one ran after; the prompt may refer to them.
    pub after: Box<[AfterTask]>,
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
