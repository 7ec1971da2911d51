//! What is told of a task that did not end well: to programs by kind and numbers, to people in a sentence.

use bgd_shared::failure::{Failure as WireFailure, FailureKind};
use bgd_shared::show;
use bgd_shared::task::Exit;

use crate::core::{Failure, Finished, Outcome, StopReason, Task};

/// Why a task failed or was cancelled, in a sentence; nothing if it was neither, or a user asked for it.
pub fn error(task: &Task) -> Option<String> {
    task.finished().and_then(error_of)
}

/// The same of an end.
pub fn error_of(finished: &Finished) -> Option<String> {
    wire(finished).0
}

/// What the wire says of an end: a sentence for people and, for a failure, its parts for programs.
pub fn wire(finished: &Finished) -> (Option<String>, Option<WireFailure>) {
    match (&finished.outcome, failure(finished)) {
        (Outcome::Cancelled(reason), _) => (cause(*reason).map(str::to_owned), None),
        (Outcome::Completed | Outcome::Failed(_), failure) => {
            (failure.as_ref().map(|failure| failure.message.clone()), failure)
        }
    }
}

/// Why a task failed.
fn failure(finished: &Finished) -> Option<WireFailure> {
    let Outcome::Failed(failure) = &finished.outcome else { return None };
    Some(match failure {
        Failure::Exit => of_exit(finished.exit.as_ref()),
        Failure::Agent(message) => WireFailure::new(FailureKind::Agent, &**message),
        Failure::Spawn(spawn) => WireFailure {
            errno: spawn.errno,
            code: spawn.code,
            ..WireFailure::new(FailureKind::Spawn, &*spawn.message)
        },
        Failure::TimedOut { limit_ms, last_words } => {
            let words = last_words.as_deref().map(|words| format!("; its agent's last words: {words}"));
            let after = show::duration(*limit_ms);
            let message = format!("timed out after {after}{}", words.unwrap_or_default());
            WireFailure::new(FailureKind::Timeout, message)
        }
    })
}

fn of_exit(exit: Option<&Exit>) -> WireFailure {
    let words = |kind, exit: &Exit| WireFailure::new(kind, exit.words());
    match exit {
        Some(exit @ Exit::Code(code)) => WireFailure { code: Some(*code), ..words(FailureKind::Exit, exit) },
        Some(exit @ Exit::Signal(signal)) => {
            WireFailure { signal: Some(*signal), ..words(FailureKind::Signal, exit) }
        }
        Some(exit @ Exit::Unknown(_)) => words(FailureKind::Unknown, exit),
        None => WireFailure::new(FailureKind::Unknown, "its exit is not known"),
    }
}

/// Why a task was ended that no user asked to end, and that had time left.
const fn cause(reason: StopReason) -> Option<&'static str> {
    match reason {
        StopReason::Cancelled | StopReason::TimedOut(_) => None,
        StopReason::SessionEnded => Some("its parent session ended"),
        StopReason::Abandoned => Some("its terminal or client went away"),
        StopReason::Shutdown => Some("the daemon was shut down"),
    }
}
