//! How a job ended that was in the foreground: the exit code of bgctl, and what is said beside the code.

use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::text::OsText;

use crate::exit::Code;

/// The exit code for it: the job's own, where it has one.
pub fn code(task: &Task) -> Code {
    if task.timed_out {
        return Code::TIME_LIMIT;
    }
    match &task.exit {
        Some(exit) => match exit.shell_code().and_then(|code| u8::try_from(code).ok()) {
            // One that was cancelled has not gone well.
            Some(0) if task.status != Status::Completed => Code::TASK_FAILED,
            Some(code) => Code(code),
            None => Code::INTERNAL,
        },
        None => match task.status {
            Status::Completed => Code::OK,
            Status::Failed if task.agent.is_none() => code_of_unstarted(task),
            _ => Code::TASK_FAILED,
        },
    }
}

/// As shells have it: 127 for a program that is not there, 126 for one that can't be run.
fn code_of_unstarted(task: &Task) -> Code {
    let program = match &task.argv {
        Some(argv) => argv.first().map(OsText::to_string_lossy).unwrap_or_default(),
        None => "/bin/sh".into(),
    };
    // What is wrong with the program itself is told with its name first.
    let why = task.error.as_deref().and_then(|error| error.strip_prefix(&*program)?.strip_prefix(": "));
    match why {
        Some("no such program" | "command not found in PATH") => Code::NOT_FOUND,
        Some(_) => Code::NOT_EXECUTABLE,
        None => Code::INTERNAL,
    }
}

/// What is said about it, unless the code tells all.
pub fn remark(task: &Task) -> Option<String> {
    let error = task.error.as_deref();
    let tells_code = |error: &str| match &task.exit {
        Some(Exit::Code(code)) => error == format!("exited with code {code}"),
        Some(Exit::Signal(_)) => error.starts_with("ended by signal "),
        Some(Exit::Unknown(_)) | None => false,
    };
    match (task.status, error) {
        (Status::Cancelled, Some(why)) => Some(format!("{} was cancelled: {why}", task.id)),
        (Status::Cancelled, None) => Some(format!("{} was cancelled", task.id)),
        (_, Some(error)) if !tells_code(error) => Some(error.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    fn ended(status: Status, exit: Option<Exit>, error: Option<&str>) -> Task {
        Task { status, exit, error: error.map(str::to_owned), ..task() }
    }

    #[test]
    fn the_jobs_own_code_comes_through() {
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
    fn what_could_not_be_started_is_told_as_shells_do() {
        let of = |error| code(&ended(Status::Failed, None, Some(error)));
        assert_eq!(of("make: command not found in PATH"), Code(127));
        assert_eq!(of("make: no such program"), Code(127));
        assert_eq!(of("make: not executable (permission denied)"), Code(126));
        assert_eq!(of("cannot enter the folder /x: No such file or directory"), Code::INTERNAL);
        let shell = Task { argv: None, ..ended(Status::Failed, None, Some("/bin/sh: no such program")) };
        assert_eq!(code(&shell), Code(127));
    }

    #[test]
    fn an_agents_task_has_no_code_but_how_it_went() {
        let of = |status| code(&Task { agent: Some("a".into()), ..ended(status, None, Some("why")) });
        assert_eq!(of(Status::Completed), Code::OK);
        assert_eq!(of(Status::Failed), Code::TASK_FAILED);
        assert_eq!(of(Status::Cancelled), Code::TASK_FAILED);
    }

    #[test]
    fn nothing_is_said_where_the_code_tells_all() {
        let of = |status, exit, error| remark(&ended(status, exit, error));
        assert_eq!(of(Status::Completed, Some(Exit::Code(0)), None), None);
        assert_eq!(of(Status::Failed, Some(Exit::Code(3)), Some("exited with code 3")), None);
        assert_eq!(of(Status::Failed, Some(Exit::Signal(9)), Some("ended by signal 9 (KILL)")), None);
        let late = of(Status::Failed, Some(Exit::Signal(15)), Some("timed out after 1s"));
        assert_eq!(late.as_deref(), Some("timed out after 1s"));
        assert!(of(Status::Cancelled, Some(Exit::Signal(15)), None).unwrap().ends_with("was cancelled"));
        assert!(of(Status::Failed, None, Some("x: no such program")).is_some());
    }
}
