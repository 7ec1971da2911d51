//! The key of a process: turns share a process only if their keys are equal.

use std::sync::Arc;

use bgd_shared::agent::AgentProtocol;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::sameness::relevant_env;
use crate::agents::{Agent, Machine};
use crate::core::Spec;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    name: Arc<str>,
    protocol: AgentProtocol,
    command: Vec<String>,
    url: Option<String>,
    on: Option<Arc<Machine>>,
    /// Only the variables that matter to an agent, including those that the configuration adds.
    env: Env,
    umask: u32,
    rlimits: Option<Arc<Rlimits>>,
}

impl Key {
    pub fn of(agent: &Agent, env: &Env, spec: &Spec) -> Self {
        Self {
            name: Arc::clone(&agent.name),
            protocol: agent.protocol,
            command: agent.command.clone(),
            url: agent.url.clone(),
            on: agent.on.clone(),
            env: relevant_env(&agent.environment(env)),
            umask: spec.umask,
            rlimits: spec.rlimits.clone(),
        }
    }
}
