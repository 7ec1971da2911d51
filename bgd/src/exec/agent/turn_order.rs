//! A prompt for an agent, with everything that its turn needs.

use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::connection::Wanted;
use crate::agents::Agent;
use crate::core::{AfterTask, Spec};

/// A prompt for an agent, with everything that its turn needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnOrder {
    pub task: TaskId,
    /// The task's run, included in every fact about the turn.
    pub run: u32,
    pub agent: Arc<Agent>,
    /// The task's spec, for its working directory, umask and resource limits.
    pub spec: Arc<Spec>,
    /// The submitter's environment.
    #[serde(with = "crate::core::sharing::env")]
    pub env: Arc<Env>,
    pub prompt: Arc<str>,
    /// The settings of the task for the session, such as a model or a mode.
    pub settings: Arc<AgentSettings>,
    /// The session to continue; `None` opens a new one.
    pub session: Option<Arc<str>>,
    /// The tasks that this one ran after; the prompt may refer to them. Empty once the prompt's placeholders are filled
    /// in.
    #[serde(skip)]
    pub after: Box<[AfterTask]>,
}

impl TurnOrder {
    /// Returns the session that the turn needs.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            task: self.task,
            run: self.run,
            session: self.session.clone(),
            cwd: self.spec.cwd.as_ref().clone(),
            title: self.spec.description.as_deref().map(Into::into),
            settings: self.agent.settings(&self.settings),
        }
    }
}
