//! Explains why a prompt was not delivered.

use bgd_shared::agent::InputOption;
use bgd_shared::error::ErrorKind;
use bgd_shared::limits::{AGENT_SESSION_BYTES, INPUT_OPTION_BYTES, INPUT_OPTIONS};
use bgd_shared::text::beginning;

use super::connection::TurnEnd;
use super::live::Live;
use super::manager::Lease;
use crate::agents::Agent;
use crate::core::{Refusal, Spec};

/// Drops options beyond the limits, which can't be offered for choice, and shortens long names.
pub fn bounded(mut options: Vec<InputOption>) -> Vec<InputOption> {
    options.retain(|option| option.id.len() <= INPUT_OPTION_BYTES);
    options.truncate(INPUT_OPTIONS);
    for option in &mut options {
        option.name.truncate(beginning(&option.name, INPUT_OPTION_BYTES).len());
    }
    options
}

/// Returns the refusal for a prompt that never reached the session; `None` if this end implies that it did.
pub async fn refusal_of(end: &TurnEnd, live: &Live) -> Option<Refusal> {
    match end {
        TurnEnd::Forgotten(why) => Some(
            Refusal::new(ErrorKind::SessionExpired, why.clone())
                .hint("submit a new task; the old result stays"),
        ),
        TurnEnd::LoggedOut(why) => Some(Refusal::new(ErrorKind::AuthenticationRequired, why.clone())),
        TurnEnd::NotBegun(why) => Some(Refusal::new(ErrorKind::AgentUnavailable, why.clone())),
        TurnEnd::Broken(why) => {
            Some(Refusal::new(ErrorKind::AgentUnavailable, live.describe_end(why).await).hint("try again"))
        }
        TurnEnd::Completed | TurnEnd::Cancelled | TurnEnd::Failed(_) | TurnEnd::Rejected(_) => None,
    }
}

/// Returns the refusal for an agent whose session has too long an id.
pub fn too_long(agent: &Agent) -> Refusal {
    let message = format!(
        "the agent {:?} gave its session an id of more than {AGENT_SESSION_BYTES} bytes",
        &*agent.name
    );
    Refusal::new(ErrorKind::AgentUnavailable, message)
}

/// Returns the refusal for a task whose folder can't be used, for this reason.
pub fn no_folder(spec: &Spec, why: &str) -> Refusal {
    let folder = spec.cwd.to_string_lossy();
    Refusal::new(ErrorKind::NotResumable, format!("cannot work in the folder {folder}: {why}"))
}

/// Returns the refusal for an agent that ended before it got the prompt.
pub async fn broken(lease: &Lease, why: &str) -> Refusal {
    Refusal::new(ErrorKind::AgentUnavailable, lease.live().describe_end(why).await)
}
