//! The inputs for starting an agent.

use std::sync::Arc;

use bgd_shared::text::Env;

use crate::agents::Agent;
use crate::core::Spec;

/// Everything that starting an agent depends on.
#[derive(Clone, Debug)]
pub struct Start {
    /// The agent.
    pub agent: Arc<Agent>,
    /// The submitter's environment.
    pub env: Arc<Env>,
    /// The task spec that supplies umask and resource limits.
    pub like: Arc<Spec>,
}
