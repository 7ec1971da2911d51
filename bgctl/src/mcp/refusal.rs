//! The reason why a tool call failed: a sentence that a model can act on.

use std::fmt;

use bgd_shared::task::{Kind, Status, Task};

use crate::failure::Failure;
use crate::render::{bounded, clean_lines};

/// Maximum number of characters of the daemon's message, and of its hint.
const WORDS_CHARS: usize = 4000;

/// The error text of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(String);

const SUBMIT_AGAIN: &str = "start a new background_task, with everything the agent must know in its prompt";

impl Refusal {
    /// Creates an error from a complete sentence.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the daemon's reason for refusing to resume this task, and what to do instead.
    pub fn of_resume(failure: Failure, task: &Task) -> Self {
        if failure.kind != "not_resumable" {
            return failure.into();
        }
        let hint = match (task.kind, task.status) {
            (Kind::Process | Kind::Unknown, _) => {
                Some("only agents can be resumed: start a new command with background_command")
            }
            (Kind::Agent, status) if status.is_active() => {
                Some("wait until it has completed (background_block), then resume it")
            }
            (Kind::Agent, Status::Failed | Status::Cancelled) => Some(SUBMIT_AGAIN),
            // The folder is gone, the task is about to be cleared, or the like: the daemon's message names the cause.
            (Kind::Agent, _) => failure.hint.as_deref().map(|_| SUBMIT_AGAIN),
        };
        Self::of_failure(&failure, hint)
    }

    fn of_failure(failure: &Failure, hint: Option<&str>) -> Self {
        // The message may quote the input, which may be of any length.
        let mut text = bounded(&clean_lines(failure.message.trim()), WORDS_CHARS).into_owned();
        for candidate in &failure.candidates {
            text = format!("{text}\n  {candidate}");
        }
        match hint {
            Some(hint) => {
                let hint = clean_lines(hint.trim_end_matches('.'));
                Self(format!("{text}\nWhat to do: {}.", bounded(&hint, WORDS_CHARS)))
            }
            None => Self(text),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Keeps the daemon's message and adds what a user of these tools can do about it.
impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let own = match failure.kind {
            "task_not_found" => Some(
                "background_list shows the tasks of this session. Cleared tasks and those of an earlier daemon \
                 are gone: start the ones you still need again",
            ),
            "being_resumed" => Some("wait for its answer with background_block first"),
            "session_expired" => Some(SUBMIT_AGAIN),
            "not_complete" => Some(
                "background_output shows the output so far, background_block waits, background_cancel ends it",
            ),
            "registry_full" => Some(
                "background_clear deletes the finished tasks of this session. If inboxes use the memory, tell the \
                 user, who can empty them with `bgctl inbox --all-sessions --ack`",
            ),
            "authentication_required" => Some("tell the user, who must log in to the agent"),
            "no_answer" => Some(
                "tell the user, who can check with `bgctl daemon status`. The daemon may still do this later: \
                 check with background_list before you call this again",
            ),
            "no_daemon" | "connection_lost" => {
                Some("try once more; if that fails, tell the user, who can check with `bgctl daemon status`")
            }
            _ => None,
        };
        Self::of_failure(&failure, own.or(failure.hint.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;
    use crate::render::samples::task;

    fn resume(kind: Kind, status: Status, hint: Option<&str>) -> String {
        let mut failure = Failure::new(Code::NO_TASK, "not_resumable", "it can't be");
        failure.hint = hint.map(str::to_owned);
        Refusal::of_resume(failure, &Task { kind, status, ..task() }).to_string()
    }

    #[test]
    fn r37_advice_on_refused_resume_fits_kind_and_status() {
        use Kind::{Agent, Process};
        for status in [Status::Running, Status::Failed, Status::Completed] {
            let text = resume(Process, status, Some("submit a new task"));
            assert!(text.contains("background_command") && !text.contains("background_block"), "{text}");
        }
        for status in [Status::Pending, Status::Running, Status::Resumed] {
            assert!(
                resume(Agent, status, Some("`bgctl block` waits")).contains("background_block"),
                "{status}"
            );
        }
        for status in [Status::Failed, Status::Cancelled, Status::Completed] {
            let text = resume(Agent, status, Some("submit a new task"));
            assert!(
                text.contains("start a new background_task") && !text.contains("background_block"),
                "{text}"
            );
        }
        assert_eq!(resume(Agent, Status::Completed, None), "it can't be");
        let other = Failure::new(Code::NO_TASK, "being_resumed", "it is");
        let other = Refusal::of_resume(other, &task()).to_string();
        assert!(other.contains("background_block"), "{other}");
    }

    #[test]
    fn refusal_text_is_bounded() {
        let long = "x".repeat(1_000_000);
        let text = Refusal::from(Failure::usage(&*long).hint(&*long)).to_string();
        assert!(text.len() < 2 * WORDS_CHARS + 100, "{}", text.len());
        assert!(text.contains("(1000000 characters)"), "it says how much that was");
    }

    #[test]
    fn daemon_refusal_is_reworded_in_terms_of_mcp_tools() {
        let failure = Failure::new(Code::NO_TASK, "task_not_found", "no task 3f2a").hint("bgctl list");
        let text = Refusal::from(failure).to_string();
        assert!(text.starts_with("no task 3f2a\nWhat to do: background_list"), "{text}");
        let other = Failure::usage("x").hint("do y");
        assert_eq!(Refusal::from(other).to_string(), "x\nWhat to do: do y.");
    }
}
