//! An agent's request for a permission: what it asks, what it takes for an answer, and the answer itself.
//! Who decides is not known here.

use agent_client_protocol::UntypedMessage;
use agent_client_protocol::v1::schema::{
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use bgd_shared::agent::{InputOption, OptionKind};
use serde_json::Value;

use super::question::question;

/// The method of the request.
pub const METHOD: &str = "session/request_permission";

/// A request for a permission.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// The session that it is about.
    pub session: String,
    /// What it asks, for people.
    pub text: String,
    /// The answers that it takes.
    pub options: Vec<InputOption>,
}

impl Question {
    /// Reads the request. Kinds of options and tools that are not known are no error.
    pub fn read(request: &UntypedMessage) -> Option<Self> {
        let params = request.params();
        let session = params["sessionId"].as_str()?.to_owned();
        let options = params["options"].as_array()?.iter().filter_map(option).collect();
        let text = question(&params["toolCall"]);
        Some(Self { session, text, options })
    }

    /// The answer that chooses this option. Without one that it takes, it is denied: once if that can be
    /// said, else for ever, else by calling the question off.
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

    /// The answer to a question whose turn is over.
    pub fn called_off() -> Value {
        outcome(RequestPermissionOutcome::Cancelled)
    }
}

fn outcome(outcome: RequestPermissionOutcome) -> Value {
    // These have only texts in them, which can always be written.
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
