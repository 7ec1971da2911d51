//! What the agents' thread is told.

use std::sync::Arc;

use bgd_shared::agent::{AgentInfo, AgentSettings};
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;

use crate::agents::Agent;
use crate::core::{AfterTask, Spec};

/// What the agents' thread is told.
#[derive(Debug)]
pub enum Order {
    /// A prompt.
    Turn(Box<TurnOrder>),
    /// Something about a turn that goes on.
    Control {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What.
        control: Control,
    },
    /// A task was cleared.
    Forget {
        /// The task.
        task: TaskId,
    },
    /// Agents shall be started to see what they are.
    Check {
        /// Which, with what is known of them.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// In this environment.
        env: Arc<Env>,
        /// Takes what they are.
        tell: Tell,
    },
}

/// Takes the answer to a question about agents.
pub struct Tell(pub Box<dyn FnOnce(Vec<AgentInfo>) + Send>);

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tell")
    }
}

/// A prompt for an agent.
#[derive(Clone, Debug)]
pub struct TurnOrder {
    /// The task.
    pub task: TaskId,
    /// The number that its facts carry.
    pub run: u32,
    /// Who gets it.
    pub agent: Arc<Agent>,
    /// Where, and with what limits.
    pub spec: Arc<Spec>,
    /// The submitter's environment.
    pub env: Arc<Env>,
    /// What the agent is told.
    pub prompt: Arc<str>,
    /// What its task sets in the session.
    pub settings: Arc<AgentSettings>,
    /// The session that goes on; a new one if there is none.
    pub session: Option<Arc<str>>,
    /// The tasks that it came after, which the prompt may speak of.
    pub after: Box<[AfterTask]>,
}

/// What a turn is told while it goes on.
#[derive(Debug)]
pub enum Control {
    /// End. The first time the agent is asked to.
    Stop {
        /// It is made to.
        force: bool,
    },
    /// The answer to a question.
    Answer {
        /// The question.
        key: u64,
        /// The chosen option; none denies.
        option: Option<Box<str>>,
    },
}
