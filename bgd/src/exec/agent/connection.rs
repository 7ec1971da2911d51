//! What every way to speak with an agent has in common: sessions are opened, prompts are given, turns are
//! cancelled, and what a session tells meanwhile comes through a channel of its own.

use std::sync::Arc;

use bgd_shared::agent::{AgentCheck, InputOption};
use bgd_shared::id::TaskId;
use bgd_shared::text::OsText;
use tokio::sync::{mpsc, oneshot};

use super::acp::Acp;
use super::opencode::Opencode;
use super::signs::Model;
use super::template::Template;
use crate::agents::Settings;
use crate::core::Refusal;

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
    Moved,
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

/// A connection to an agent that has said who it is.
#[derive(Debug)]
pub enum Connection {
    /// The Agent Client Protocol.
    Acp(Acp),
    /// opencode's server.
    Opencode(Opencode),
    /// A command line for each prompt.
    Template(Template),
}

impl Connection {
    /// Opens a new session, or takes up the wanted one again. Its updates go to this channel from now on,
    /// and to no earlier one.
    ///
    /// # Errors
    /// The session is gone, or the agent has another reason, which is told.
    pub async fn open(&self, wanted: &Wanted, updates: Updates) -> Result<Opened, Refusal> {
        match self {
            Self::Acp(acp) => acp.open(wanted, updates).await,
            Self::Opencode(opencode) => opencode.open(wanted, updates).await,
            Self::Template(template) => template.open(wanted, updates),
        }
    }

    /// Gives a prompt to a session that was opened, and waits until the turn has ended.
    pub async fn prompt(&self, key: &Arc<str>, prompt: &str) -> TurnEnd {
        match self {
            Self::Acp(acp) => acp.prompt(key, prompt).await,
            Self::Opencode(opencode) => opencode.prompt(key, prompt).await,
            Self::Template(template) => template.prompt(prompt).await,
        }
    }

    /// Tells the agent to end the turn of a session. [`Self::prompt`] returns when it has.
    pub async fn cancel(&self, key: &Arc<str>) {
        match self {
            Self::Acp(acp) => acp.cancel(key).await,
            Self::Opencode(opencode) => opencode.cancel(key).await,
            Self::Template(template) => template.cancel(),
        }
    }

    /// Makes the turn of a session end, where it has a process of its own. Returns when that is gone.
    pub async fn force(&self) {
        match self {
            Self::Acp(_) | Self::Opencode(_) => {}
            Self::Template(template) => template.force().await,
        }
    }

    /// A session is not needed any more: the agent may let go of it, and its updates go nowhere.
    pub async fn forget(&self, key: &Arc<str>) {
        match self {
            Self::Acp(acp) => acp.forget(key).await,
            Self::Opencode(opencode) => opencode.forget(key),
            Self::Template(_) => {}
        }
    }

    /// What the agent says of itself.
    pub fn about(&self) -> AgentCheck {
        match self {
            Self::Acp(acp) => acp.about(),
            Self::Opencode(opencode) => opencode.about(),
            Self::Template(template) => template.about(),
        }
    }

    /// Waits until nothing can be asked of it any more, and says why.
    pub async fn closed(&self) -> Box<str> {
        match self {
            Self::Acp(acp) => acp.closed().await,
            Self::Opencode(opencode) => opencode.closed().await,
            Self::Template(_) => std::future::pending().await,
        }
    }
}
