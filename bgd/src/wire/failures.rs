//! The errors of tasks that did not end well: kinds and numbers for programs, a sentence for people.
//!
//! The tests of the core include this file: of this crate, it may only use `core` and `wire::failures`.

use bgd_shared::failure::{Failure as WireFailure, FailureKind};
use bgd_shared::order::{CancelReason, Condition};
use bgd_shared::show;
use bgd_shared::task::{Exit, Status};

use crate::core::{
    Attempt, AttemptError, Cause, EndReason, EndedTask, Failure, Finished, Need, Outcome, StopReason, Task,
};

/// Returns why a task failed or was cancelled, in a sentence. `None` if it did neither, or a user cancelled it.
pub fn error(task: &Task) -> Option<String> {
    task.finished().and_then(error_of)
}

/// Like [`error`], for a finished state.
pub fn error_of(finished: &Finished) -> Option<String> {
    wire(finished).0
}

/// Returns the error in its wire form: a sentence for people and, for a failure, its details for programs.
pub fn wire(finished: &Finished) -> (Option<String>, Option<WireFailure>) {
    match (&finished.outcome, failure(finished)) {
        (Outcome::Cancelled(reason), _) => (cause(*reason), None),
        (Outcome::Completed | Outcome::Failed(_), failure) => {
            (failure.as_ref().map(|failure| failure.message.clone()), failure)
        }
    }
}

/// Returns the details of a failure.
fn failure(finished: &Finished) -> Option<WireFailure> {
    let Outcome::Failed(failure) = &finished.outcome else { return None };
    Some(match failure {
        Failure::Exit => of_exit(finished.exit.as_ref()),
        Failure::CrashLoop { ends, error } => crash_loop(*ends, error.as_deref(), finished.exit.as_ref()),
        Failure::Agent(message) => WireFailure::new(FailureKind::Agent, &**message),
        Failure::Interrupted(why) => WireFailure::new(FailureKind::Interrupted, interrupted(why)),
        Failure::Spawn(spawn) => WireFailure {
            errno: spawn.errno,
            code: spawn.code,
            ..WireFailure::new(FailureKind::Spawn, &*spawn.message)
        },
        Failure::Unstartable(need) => WireFailure::new(FailureKind::Spawn, without(*need)),
        Failure::Elsewhere { cause, message } => WireFailure::new(kind(*cause), &**message),
        Failure::NotReady { limit_ms } => WireFailure::new(FailureKind::Timeout, not_ready(*limit_ms)),
        Failure::TimedOut { limit_ms, last_words } => {
            let words = last_words.as_deref().map(|words| format!("; the agent's last output: {words}"));
            let after = show::duration(*limit_ms);
            let message = format!("timed out after {after}{}", words.unwrap_or_default());
            WireFailure::new(FailureKind::Timeout, message)
        }
    })
}

fn crash_loop(ends: u32, error: Option<&AttemptError>, exit: Option<&Exit>) -> WireFailure {
    let (last, is_exit) = match error {
        Some(error) => (of_attempt_error(error), false),
        None => (of_exit(exit), true),
    };
    let early = match error {
        Some(AttemptError::NotReady { .. }) => "before it was ready",
        _ => "within a minute of its start",
    };
    let message = format!(
        "crash loop: ended {ends} times in a row {early}; the last time{} {}",
        if is_exit { " it" } else { ":" },
        last.message
    );
    WireFailure { message, ..last }
}

fn of_attempt_error(error: &AttemptError) -> WireFailure {
    match error {
        AttemptError::Agent(text) => WireFailure::new(FailureKind::Agent, &**text),
        AttemptError::Interrupted(why) => WireFailure::new(FailureKind::Agent, interrupted(why)),
        AttemptError::Spawn(text) => WireFailure::new(FailureKind::Spawn, &**text),
        AttemptError::Unstartable(need) => WireFailure::new(FailureKind::Spawn, without(*need)),
        AttemptError::Elsewhere { cause, message } => WireFailure::new(kind(*cause), &**message),
        AttemptError::NotReady { limit_ms } => WireFailure::new(FailureKind::Timeout, not_ready(*limit_ms)),
    }
}

const fn kind(cause: Cause) -> FailureKind {
    match cause {
        Cause::Timeout => FailureKind::Timeout,
        Cause::Memory => FailureKind::Memory,
        Cause::Node => FailureKind::Node,
        Cause::Lost => FailureKind::Lost,
        Cause::Other => FailureKind::Unknown,
    }
}

fn interrupted(why: &str) -> String {
    format!("interrupted: {why}")
}

/// Returns why a task could not start.
const fn without(need: Need) -> &'static str {
    match need {
        Need::Dependency => "a task it depends on was lost with a damaged journal",
        Need::Descriptors => "the descriptors sent with it were lost with the previous daemon",
    }
}

fn not_ready(limit_ms: u64) -> String {
    format!("not ready after {}", show::duration(limit_ms))
}

fn of_exit(exit: Option<&Exit>) -> WireFailure {
    let words = |kind, exit: &Exit| WireFailure::new(kind, exit.words());
    match exit {
        Some(exit @ Exit::Code(code)) => WireFailure { code: Some(*code), ..words(FailureKind::Exit, exit) },
        Some(exit @ Exit::Signal(signal)) => {
            WireFailure { signal: Some(*signal), ..words(FailureKind::Signal, exit) }
        }
        Some(exit @ Exit::Unknown(_)) => words(FailureKind::Unknown, exit),
        None => WireFailure::new(FailureKind::Unknown, "its exit status is unknown"),
    }
}

/// Returns why a task was ended other than by a user or a time limit.
fn cause(reason: StopReason) -> Option<String> {
    Some(match reason {
        StopReason::Cancelled
        | StopReason::TimedOut(_)
        | StopReason::NotReady(_)
        | StopReason::NextAttempt => {
            return None;
        }
        StopReason::SessionEnded => "its parent session ended".to_owned(),
        StopReason::Abandoned => "its terminal was closed or its client ended".to_owned(),
        StopReason::Shutdown => "the daemon was shut down".to_owned(),
        StopReason::Dependency(condition, ended) => dependency(condition, ended),
        StopReason::MaxFails(1) => "a task of its batch failed (--max-fails)".to_owned(),
        StopReason::Elsewhere => "somebody else cancelled it where it ran".to_owned(),
        StopReason::MaxFails(failed) => format!("{failed} tasks of its batch failed (--max-fails)"),
    })
}

/// Returns why a task can't start: its dependency did not end as required.
fn dependency(condition: Condition, ended: EndedTask) -> String {
    let EndedTask { task, status, has_begun, was_ready: _, how } = ended;
    let how = match (status, how) {
        (Status::Failed, Some(EndReason::TimedOut)) => "timed out".to_owned(),
        (Status::Failed, Some(EndReason::NotReady)) => "was not ready in time".to_owned(),
        (Status::Failed, Some(EndReason::Code(code))) => format!("failed with code {code}"),
        (Status::Failed, Some(EndReason::Signal(signal))) => {
            format!("was ended by signal {}", show::signal(signal))
        }
        (Status::Failed, None) if !has_begun => "could not be started".to_owned(),
        (Status::Cancelled, _) if !has_begun => "was cancelled before it started".to_owned(),
        (Status::Cancelled, _) => "was cancelled".to_owned(),
        (status, _) => status.to_string(),
    };
    let wanted = match condition {
        Condition::Ok => "complete",
        // It has ended, but did nothing: "but had to end first" would puzzle.
        Condition::Any => return format!("task {task} {how}, so the condition `any` can't be met"),
        Condition::Fail => "fail",
        Condition::Start => "start",
        Condition::Ready => "be ready",
    };
    format!("task {task} {how}, but had to {wanted} first")
}

/// Returns why an attempt failed. `None` if it ended well.
pub fn of_attempt(attempt: &Attempt) -> Option<String> {
    match (&attempt.error, &attempt.exit) {
        (Some(error), _) => Some(of_attempt_error(error).message),
        (None, None | Some(Exit::Code(0))) => None,
        (None, exit) => Some(of_exit(exit.as_ref()).message),
    }
}

/// Returns the reason of a cancellation for programs.
pub fn cancel_reason(finished: &Finished) -> Option<CancelReason> {
    let Outcome::Cancelled(reason) = &finished.outcome else { return None };
    Some(match reason {
        StopReason::Cancelled
        | StopReason::TimedOut(_)
        | StopReason::NotReady(_)
        | StopReason::NextAttempt => CancelReason::User,
        StopReason::SessionEnded => CancelReason::Session,
        StopReason::Abandoned => CancelReason::Client,
        StopReason::Shutdown => CancelReason::Shutdown,
        StopReason::Dependency(..) => CancelReason::Dependency,
        StopReason::MaxFails(_) => CancelReason::MaxFails,
        StopReason::Elsewhere => CancelReason::Elsewhere,
    })
}
