//! The common part of all back ends: they open sessions, send prompts and cancel turns, and every session reports its
//! updates on its own channel.

use std::sync::Arc;

use bgd_shared::agent::InputOption;
use bgd_shared::consumption::{PlanStep, StepStatus};
use bgd_shared::id::TaskId;
use bgd_shared::limits::{PLAN_STEP_CHARS, PLAN_STEPS};
use bgd_shared::show;
use bgd_shared::text::OsText;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::signs::Model;
use crate::agents::Settings;
use crate::core::Report;

/// The capacity of a session's update channel. When it is full, the sender waits; over ACP, the agent then waits, too.
pub const UPDATES: usize = 256;

/// An update that a session reports.
#[derive(Debug)]
pub enum Update {
    /// A piece of the agent's answer.
    Text(String),
    /// The text that follows belongs to another message.
    Message,
    /// The text that follows belongs to another part of the same message.
    Part,
    /// The agent calls a tool. The name is for display.
    Tool(String),
    /// A tool makes progress, or has ended.
    Worked,
    /// The state of the model according to the agent's own fields.
    Model(Model),
    /// The agent retries, for this reason.
    Retries(String),
    /// The agent's consumption of its model.
    Consumed(Report),
    /// The agent's plan, replacing the previous one.
    Plan(Vec<PlanStep>),
    /// A sign of activity with nothing to record: a thought, the progress of a tool.
    Activity,
    /// The agent asks for permission, and waits for the answer.
    Ask(Ask),
    /// The agent's id for the conversation, if it becomes known only now.
    Session(Arc<str>),
    /// The whole answer, if it is not the text since the last tool call.
    Answer(String),
}

/// Limits a plan: to a number of steps, and each step to the beginning of its first line.
pub fn plan(steps: impl IntoIterator<Item = (String, StepStatus)>) -> Vec<PlanStep> {
    let step = |(text, status): (String, StepStatus)| {
        let first = text.trim().lines().next().unwrap_or_default();
        let text = show::line(first).chars().take(PLAN_STEP_CHARS).collect();
        PlanStep { text, status }
    };
    steps.into_iter().take(PLAN_STEPS).map(step).collect()
}

/// A question from an agent.
#[derive(Debug)]
pub struct Ask {
    /// The agent's name for the question. After an upgrade in place, the question is repeated under the same name.
    pub reference: Arc<str>,
    /// The text for display.
    pub question: String,
    /// The answers that the agent accepts.
    pub options: Vec<InputOption>,
    /// Receives the id of the chosen option. `None`, or dropping the sender, denies. Closed when the agent no longer
    /// waits.
    pub answer: oneshot::Sender<Option<String>>,
}

/// The sending end of a session's update channel.
pub type Updates = mpsc::Sender<Update>;

/// The session that a turn needs.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The task whose turn it is.
    pub task: TaskId,
    /// The task's run.
    pub run: u32,
    /// The session to continue; `None` opens a new one.
    pub session: Option<Arc<str>>,
    /// The working directory, absolute.
    pub cwd: OsText,
    /// Its title, for people.
    pub title: Option<Arc<str>>,
    /// The settings to apply to the session.
    pub settings: Settings,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The connection's key for the session.
    pub key: Arc<str>,
    /// The agent's id for the session, if already known.
    pub session: Option<Arc<str>>,
    /// Warns of actions that the agent can take in the session although its permissions are meant to prevent that.
    pub warning: Option<String>,
}

/// How a turn ended, according to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent has answered.
    Completed,
    /// The agent reports that the turn was cancelled.
    Cancelled,
    /// The agent gave up, for this reason.
    Failed(Box<str>),
    /// The connection ended before the turn, for this reason.
    Broken(Box<str>),
    /// The agent refused the prompt in these words. It may have forgotten the session.
    Rejected(Box<str>),
    /// The agent has no such session.
    Forgotten(Box<str>),
    /// The agent is not logged in.
    LoggedOut(Box<str>),
    /// The agent could not be started, for this reason, so it never got the prompt.
    NotBegun(Box<str>),
}
