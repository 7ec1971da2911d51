//! Questions that an agent asks its user, and the options to choose from.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Effect of an option of an agent's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// Allow once.
    AllowOnce,
    /// Allow always, as long as the agent remembers it.
    AllowAlways,
    /// Deny once.
    RejectOnce,
    /// Deny always.
    RejectAlways,
    /// Another effect; see its name.
    #[serde(other)]
    Other,
}

/// An option of an agent's question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InputOption {
    /// Id for `agent.answer`.
    pub id: String,
    /// Label for people.
    pub name: String,
    /// Effect of the option.
    pub kind: OptionKind,
}

/// An open question of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NeedsInput {
    /// Number of the question within the task.
    pub request: u64,
    /// Text of the question.
    pub question: String,
    /// The options to choose from.
    pub options: Vec<InputOption>,
    /// Time at which the question is denied unless answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Number of further open questions.
    #[serde(default)]
    pub waiting: u64,
}
