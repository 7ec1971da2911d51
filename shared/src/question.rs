//! What an agent asks its user, and which answers it takes.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// What an answer to an agent's question does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// Allows it this time.
    AllowOnce,
    /// Allows it from now on, as long as the agent remembers.
    AllowAlways,
    /// Denies it this time.
    RejectOnce,
    /// Denies it from now on.
    RejectAlways,
    /// Something else; its name tells.
    #[serde(other)]
    Other,
}

/// One of the answers that an agent takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InputOption {
    /// What `agent.answer` names it by.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it does.
    pub kind: OptionKind,
}

/// A question of an agent, which waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NeedsInput {
    /// Its number within the task.
    pub request: u64,
    /// What it asks, for people.
    pub question: String,
    /// The answers that it takes.
    pub options: Vec<InputOption>,
    /// When it is denied if nobody answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// How many more questions are waiting.
    #[serde(default)]
    pub waiting: u64,
}
