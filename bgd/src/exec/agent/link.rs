//! A connection to an agent, whichever protocol it speaks.

use std::sync::Arc;

use bgd_shared::agent::AgentCheck;

use super::acp::Acp;
use super::connection::{Opened, TurnEnd, Updates, Wanted};
use super::opencode::Opencode;
use super::template::Template;
use crate::core::Refusal;

/// A connection to an agent that has completed its handshake.
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
    /// Opens a new session, or resumes the wanted one. From now on its updates go to this channel only.
    ///
    /// # Errors
    /// The session is gone, or the agent refuses for another reason; the refusal names it.
    pub async fn open(&self, wanted: &Wanted, updates: Updates) -> Result<Opened, Refusal> {
        match self {
            Self::Acp(acp) => acp.open(wanted, updates).await,
            Self::Opencode(opencode) => opencode.open(wanted, updates).await,
            Self::Template(template) => template.open(wanted, updates),
        }
    }

    /// Sends a prompt to an open session, and waits for the end of the turn.
    pub async fn prompt(&self, key: &Arc<str>, prompt: &str) -> TurnEnd {
        match self {
            Self::Acp(acp) => acp.prompt(key, prompt).await,
            Self::Opencode(opencode) => opencode.prompt(key, prompt).await,
            Self::Template(template) => template.prompt(prompt).await,
        }
    }

    /// Finds out why a prompt was [rejected](TurnEnd::Rejected) in these words: returns [`TurnEnd::Forgotten`] if the
    /// agent has no such session any more, otherwise [`TurnEnd::Failed`].
    pub async fn judge(&self, key: &Arc<str>, why: Box<str>) -> TurnEnd {
        match self {
            Self::Acp(acp) => acp.judge(key, why).await,
            Self::Opencode(_) | Self::Template(_) => TurnEnd::Failed(why),
        }
    }

    /// Asks the agent to end the session's turn. [`Self::prompt`] returns when the turn has ended.
    pub async fn cancel(&self, key: &Arc<str>) {
        match self {
            Self::Acp(acp) => acp.cancel(key).await,
            Self::Opencode(opencode) => opencode.cancel(key).await,
            Self::Template(template) => template.cancel(),
        }
    }

    /// Kills the turn's process, if the turn has a process of its own, and waits until it is gone.
    pub async fn force(&self) {
        match self {
            Self::Acp(_) | Self::Opencode(_) => {}
            Self::Template(template) => template.force().await,
        }
    }

    /// Releases a session that is no longer needed: the agent may drop it, and its updates are discarded.
    pub async fn forget(&self, key: &Arc<str>) {
        match self {
            Self::Acp(acp) => acp.forget(key).await,
            Self::Opencode(opencode) => opencode.forget(key),
            Self::Template(_) => {}
        }
    }

    /// Holds back the agent's output, or releases it.
    pub fn hold(&self, holds: bool) {
        match self {
            Self::Acp(acp) => acp.hold(holds),
            Self::Opencode(opencode) => opencode.hold(holds),
            Self::Template(_) => {}
        }
    }

    /// Returns the agent's names for the open questions of a session.
    pub fn asking(&self, key: &str) -> Vec<String> {
        match self {
            Self::Acp(acp) => acp.asking(key),
            Self::Opencode(opencode) => opencode.asking(key),
            Self::Template(_) => Vec::new(),
        }
    }

    /// Returns the agent's report about itself.
    pub fn about(&self) -> AgentCheck {
        match self {
            Self::Acp(acp) => acp.about(),
            Self::Opencode(opencode) => opencode.about(),
            Self::Template(template) => template.about(),
        }
    }

    /// Waits until the connection is unusable, and returns the reason.
    pub async fn closed(&self) -> Box<str> {
        match self {
            Self::Acp(acp) => acp.closed().await,
            Self::Opencode(opencode) => opencode.closed().await,
            Self::Template(_) => std::future::pending().await,
        }
    }
}
