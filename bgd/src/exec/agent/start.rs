//! What an agent is started for.

use std::sync::Arc;

use bgd_shared::text::Env;

use crate::agents::Agent;
use crate::core::Spec;

/// What an agent is started for.
#[derive(Clone, Debug)]
pub struct Start {
    /// The agent.
    pub agent: Arc<Agent>,
    /// The submitter's environment.
    pub env: Arc<Env>,
    /// The order that umask and resource limits are taken from.
    pub like: Arc<Spec>,
}
