//! What every way to speak with an agent has in common: sessions are opened, prompts are given, turns are
//! cancelled, and what a session tells meanwhile comes through a channel of its own.

use std::sync::Arc;

use bgd_shared::agent::InputOption;
use bgd_shared::id::TaskId;
use bgd_shared::text::OsText;
use tokio::sync::{mpsc, oneshot};

use super::signs::Model;
use crate::agents::Settings;

/// How many updates of one session may wait to be written down. The agent waits beyond that.
pub const UPDATES: usize = 256;

/// Something that a session tells.
#[derive(Debug)]
pub enum Update {
    /// A piece of the agent's answer.
    Text(String),
    /// What it says from now on is another message than what it said before.
    Message,
    /// It calls a tool; the name is for people.
    Tool(String),
    /// A tool goes on, or has ended.
    Worked,
    /// What its own fields say of the model.
    Model(Model),
    /// It tries again, and why.
    Retries(String),
    /// It shows that it moves, with nothing to keep of it: a thought, a plan, the progress of a tool.
    Activity,
    /// It asks for a permission and waits.
    Ask(Ask),
    /// The agent has only now told its name for the conversation.
    Session(Arc<str>),
    /// The whole answer, where it is not the text since the last tool.
    Answer(String),
}

/// A question of an agent.
#[derive(Debug)]
pub struct Ask {
    /// What it asks, for people.
    pub question: String,
    /// The answers that it takes.
    pub options: Vec<InputOption>,
    /// Where the id of the chosen option goes; `None`, or dropping it, denies. It is closed when the agent
    /// does not wait any more.
    pub answer: oneshot::Sender<Option<String>>,
}

/// Where the updates of one session go.
pub type Updates = mpsc::Sender<Update>;

/// The session that a turn is for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The task whose turn it is.
    pub task: TaskId,
    /// The one that goes on; a new one if there is none.
    pub session: Option<Arc<str>>,
    /// The folder that it works in, absolute.
    pub cwd: OsText,
    /// What people call it.
    pub title: Option<Arc<str>>,
    /// What is set in it.
    pub settings: Settings,
}

/// A session that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What this connection knows it by.
    pub key: Arc<str>,
    /// The agent's own name for it, if it is known already.
    pub session: Option<Arc<str>>,
    /// What the agent can do there although its permissions mean to keep it from that.
    pub warning: Option<String>,
}

/// How a turn ended, by the agent's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// It has answered.
    Completed,
    /// It says that it was cancelled.
    Cancelled,
    /// It gave up, and why.
    Failed(Box<str>),
    /// The connection ended first, and why.
    Broken(Box<str>),
    /// It does not know the session.
    Forgotten(Box<str>),
    /// It is not logged in.
    LoggedOut(Box<str>),
    /// It could not be started, so it never had the prompt, and why.
    NotBegun(Box<str>),
}
