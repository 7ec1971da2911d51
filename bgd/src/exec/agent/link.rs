//! A connection to an agent, whichever way it speaks.

use std::sync::Arc;

use bgd_shared::agent::AgentCheck;

use super::acp::Acp;
use super::connection::{Opened, TurnEnd, Updates, Wanted};
use super::opencode::Opencode;
use super::template::Template;
use crate::core::Refusal;

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
