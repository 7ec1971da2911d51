//! The inputs for starting an agent.

use std::sync::Arc;

use bgd_shared::text::Env;

use super::turn_order::TurnOrder;
use crate::agents::Agent;
use crate::core::Spec;

/// Everything that starting an agent depends on.
#[derive(Clone, Debug)]
pub struct Start {
    pub agent: Arc<Agent>,
    /// The submitter's environment.
    pub env: Arc<Env>,
    /// The task spec that supplies umask and resource limits.
    pub like: Arc<Spec>,
}

impl Start {
    /// Returns the inputs for starting the agent of a turn.
    pub fn of(order: &TurnOrder) -> Self {
        Self { agent: Arc::clone(&order.agent), env: Arc::clone(&order.env), like: Arc::clone(&order.spec) }
    }
}
