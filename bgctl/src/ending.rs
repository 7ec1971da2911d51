//! How a foreground job ended: the exit code of bgctl, and the message that accompanies it.

use bgd_shared::failure::{Failure, FailureKind};
use bgd_shared::task::{Status, Task};

use crate::exit::Code;

/// Returns the exit code for an ended job: the job's own where it has one.
pub fn code(task: &Task) -> Code {
    if task.timed_out {
        return Code::TIME_LIMIT;
    }
    match &task.exit {
        Some(exit) => match exit.shell_code().and_then(|code| u8::try_from(code).ok()) {
            // Cancelled or failed despite exiting with 0: not a success.
            Some(0) if task.status != Status::Completed => Code::TASK_FAILED,
            Some(code) => Code(code),
            None => Code::INTERNAL,
        },
        None => match task.status {
            Status::Completed => Code::OK,
            Status::Failed if task.agent.is_none() => code_of_unstarted(task.failure.as_ref()),
            _ => Code::TASK_FAILED,
        },
    }
}

/// Follows the shell convention: 127 for a program that does not exist, 126 for one that can't be executed.
fn code_of_unstarted(failure: Option<&Failure>) -> Code {
    let code = failure.filter(|failure| failure.kind == FailureKind::Spawn).and_then(|failure| failure.code);
    code.and_then(|code| u8::try_from(code).ok()).map_or(Code::INTERNAL, Code)
}

/// Returns a message about the end, unless the exit code explains it.
pub fn remark(task: &Task) -> Option<String> {
    let kind = task.failure.as_ref().map(|failure| failure.kind);
    let is_explained_by_code = matches!(kind, Some(FailureKind::Exit | FailureKind::Signal));
    match (task.status, task.error.as_deref()) {
        (Status::Cancelled, Some(why)) => Some(format!("{} was cancelled: {why}", task.id)),
        (Status::Cancelled, None) => Some(format!("{} was cancelled", task.id)),
        (_, Some(error)) if !is_explained_by_code => Some(error.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;
    use bgd_shared::task::Exit;

    fn ended(status: Status, exit: Option<Exit>, error: Option<&str>) -> Task {
        Task { status, exit, error: error.map(str::to_owned), ..task() }
    }

    fn failed(failure: Failure, exit: Option<Exit>) -> Task {
        let error = Some(failure.message.clone());
        Task { failure: Some(failure), ..ended(Status::Failed, exit, error.as_deref()) }
    }

    #[test]
    fn own_exit_code_of_job_is_passed_through() {
        let of = |status, exit| code(&ended(status, Some(exit), None));
        assert_eq!(of(Status::Completed, Exit::Code(0)), Code::OK);
        assert_eq!(of(Status::Failed, Exit::Code(3)), Code(3));
        assert_eq!(of(Status::Failed, Exit::Signal(9)), Code(137));
        assert_eq!(of(Status::Cancelled, Exit::Signal(15)), Code(143));
        assert_eq!(of(Status::Cancelled, Exit::Code(0)), Code::TASK_FAILED);
        assert_eq!(of(Status::Failed, Exit::Unknown("why".into())), Code::INTERNAL);
        let late = Task { timed_out: true, ..ended(Status::Failed, Some(Exit::Signal(9)), None) };
        assert_eq!(code(&late), Code(124), "as timeout(1)");
    }

    #[test]
    fn spawn_failures_map_to_shell_codes_126_and_127() {
        let of = |code, message| {
            super::code(&failed(Failure { code, ..Failure::new(FailureKind::Spawn, message) }, None))
        };
        assert_eq!(of(Some(127), "make: command not found in PATH"), Code(127));
        assert_eq!(of(Some(126), "make: not executable (permission denied)"), Code(126));
        assert_eq!(of(None, "cannot enter the folder /x: No such file or directory"), Code::INTERNAL);
    }

    #[test]
    fn agent_task_exit_code_reflects_only_its_status() {
        let of = |status| code(&Task { agent: Some("a".into()), ..ended(status, None, Some("why")) });
        assert_eq!(of(Status::Completed), Code::OK);
        assert_eq!(of(Status::Failed), Code::TASK_FAILED);
        assert_eq!(of(Status::Cancelled), Code::TASK_FAILED);
    }

    #[test]
    fn no_remark_if_the_exit_code_says_everything() {
        let of = |status, exit, error| remark(&ended(status, exit, error));
        assert_eq!(of(Status::Completed, Some(Exit::Code(0)), None), None);
        let of_failure = |kind, exit: Exit| remark(&failed(Failure::new(kind, exit.words()), Some(exit)));
        assert_eq!(of_failure(FailureKind::Exit, Exit::Code(3)), None);
        assert_eq!(of_failure(FailureKind::Signal, Exit::Signal(9)), None);
        let late = Failure::new(FailureKind::Timeout, "timed out after 1s");
        let late = remark(&failed(late, Some(Exit::Signal(15))));
        assert_eq!(late.as_deref(), Some("timed out after 1s"));
        assert!(of(Status::Cancelled, Some(Exit::Signal(15)), None).unwrap().ends_with("was cancelled"));
        assert!(of(Status::Failed, None, Some("x: no such program")).is_some());
    }
}
