//! What all back ends have in common: they open sessions, send prompts and cancel turns, and every session
//! reports its updates on a channel of its own.

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

/// The capacity of a session's update channel. When it is full, the sender waits, and over ACP the agent with it.
pub const UPDATES: usize = 256;

/// An update that a session reports.
#[derive(Debug)]
pub enum Update {
    /// A piece of the agent's answer.
    Text(String),
    /// The following text belongs to another message than the text before.
    Message,
    /// It calls a tool. The name is for display.
    Tool(String),
    /// A tool makes progress, or has ended.
    Worked,
    /// What the agent's own fields say about the model.
    Model(Model),
    /// It retries, for this reason.
    Retries(String),
    /// What it has consumed of its model.
    Consumed(Report),
    /// Its plan, replacing the one before.
    Plan(Vec<PlanStep>),
    /// A sign of activity with nothing to record: a thought, the progress of a tool.
    Activity,
    /// It asks for permission, and waits for the answer.
    Ask(Ask),
    /// The agent's id for the conversation, where it becomes known only now.
    Session(Arc<str>),
    /// The whole answer, where that is not the text since the last tool call.
    Answer(String),
}

/// Returns what is kept of a plan: so many steps, each the beginning of its first line.
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
    /// What the agent calls it. It comes again with the same name after an upgrade in place.
    pub reference: Arc<str>,
    /// The question, for display.
    pub question: String,
    /// The answers that it accepts.
    pub options: Vec<InputOption>,
    /// Takes the id of the chosen option. `None`, or dropping the sender, denies. Closed when the agent no
    /// longer waits.
    pub answer: oneshot::Sender<Option<String>>,
}

/// The sending end of a session's update channel.
pub type Updates = mpsc::Sender<Update>;

/// The session that a turn needs.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The task whose turn it is.
    pub task: TaskId,
    /// The session to continue; `None` opens a new one.
    pub session: Option<Arc<str>>,
    /// The working directory, absolute.
    pub cwd: OsText,
    /// Its title, for people.
    pub title: Option<Arc<str>>,
    /// What to set in the session.
    pub settings: Settings,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The connection's key for it.
    pub key: Arc<str>,
    /// The agent's id for it, if already known.
    pub session: Option<Arc<str>>,
    /// What the agent can do in it although its permissions are meant to prevent that.
    pub warning: Option<String>,
}

/// How a turn ended, according to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent has answered.
    Completed,
    /// The agent says that the turn was cancelled.
    Cancelled,
    /// The agent gave up, for this reason.
    Failed(Box<str>),
    /// The connection ended first, for this reason.
    Broken(Box<str>),
    /// The agent does not know the session.
    Forgotten(Box<str>),
    /// The agent is not logged in.
    LoggedOut(Box<str>),
    /// The agent could not be started, for this reason, so it never got the prompt.
    NotBegun(Box<str>),
}
