//! An agent's permission request: the question, the answers that the agent accepts, and the answer itself. This module
//! is independent of who decides.

use agent_client_protocol::v1::schema::{
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use bgd_shared::agent::{InputOption, OptionKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::question::question;

pub const METHOD: &str = "session/request_permission";

/// A permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub session: String,
    /// The text for display.
    pub text: String,
    /// The answers that the agent accepts.
    pub options: Vec<InputOption>,
}

impl Question {
    /// Parses the parameters of the request. Unknown kinds of options and tools are not an error.
    pub fn read(params: &Value) -> Option<Self> {
        let session = params["sessionId"].as_str()?.to_owned();
        let options = params["options"].as_array()?.iter().filter_map(option).collect();
        let text = question(&params["toolCall"]);
        Some(Self { session, text, options })
    }

    /// Builds the answer that chooses this option. Without a valid option, denies: once if the agent offers that, else
    /// forever, else by cancelling the question.
    pub fn answer(options: &[InputOption], chosen: Option<&str>) -> Value {
        let of_kind = |kind| options.iter().find(|option| option.kind == kind);
        let option = chosen
            .and_then(|chosen| options.iter().find(|option| option.id == chosen))
            .or_else(|| of_kind(OptionKind::RejectOnce))
            .or_else(|| of_kind(OptionKind::RejectAlways));
        match option {
            Some(option) => {
                outcome(RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.id.clone())))
            }
            None => Self::called_off(),
        }
    }

    /// Builds the answer to a question whose turn is over.
    pub fn called_off() -> Value {
        outcome(RequestPermissionOutcome::Cancelled)
    }
}

fn outcome(outcome: RequestPermissionOutcome) -> Value {
    // The answer contains only strings, so serialization can't fail.
    serde_json::to_value(RequestPermissionResponse::new(outcome)).unwrap_or_default()
}

fn option(value: &Value) -> Option<InputOption> {
    let id = value["optionId"].as_str()?.to_owned();
    let name = value["name"].as_str().unwrap_or(&id).to_owned();
    let kind = match value["kind"].as_str() {
        Some("allow_once") => OptionKind::AllowOnce,
        Some("allow_always") => OptionKind::AllowAlways,
        Some("reject_once") => OptionKind::RejectOnce,
        Some("reject_always") => OptionKind::RejectAlways,
        Some(_) | None => OptionKind::Other,
    };
    Some(InputOption { id, name, kind })
}
