//! `block`: waits for tasks, and tells by its exit code how they ended.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use bgd_shared::request::{BlockMode, BlockParams, BlockResult, TaskBlock};
use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::time::Timestamp;

use crate::cli::BlockArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean;
use crate::render::page::denied;
use crate::render::table::summary_line;

/// Waits, and prints one line a task.
pub fn run(args: BlockArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.exit_code && args.ids.len() != 1 {
        return Err(Failure::usage("--exit-code takes exactly one id"));
    }
    let mode = if args.any { BlockMode::Any } else { BlockMode::All };
    let mut params = BlockParams { ids: args.ids, timeout_ms: Some(0), mode };
    // People are told what is waited for, which needs a look first; scripts need not pay for it.
    if args.timeout.0 != Some(0) && std::io::stderr().is_terminal() && !context.json() {
        let now = context.call::<TaskBlock>(&params)?;
        if now.timed_out {
            let text = waiting_for(now.active.len(), now.tasks.len());
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
    params.timeout_ms = args.timeout.0;
    let takes = args.timeout.0.map(Duration::from_millis);
    let result = context.exchange(|client| client.call_within::<TaskBlock>(&params, takes))?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        let now = Timestamp::now();
        for task in &result.tasks {
            context.print(&summary_line(task, now))?;
        }
        context.flush()?;
        for task in &result.tasks {
            if task.exit.is_none() {
                tell_why(task);
            }
            if let Some(loss) = task.output.loss() {
                let _ = writeln!(std::io::stderr(), "bgctl: {}: {}", task.id, clean(&loss));
            }
        }
    }
    Ok(if args.exit_code { own_code(&result) } else { code(&result) })
}

/// Says why a task failed that has no exit of its own to tell it, and what may be missing in one that did
/// not.
pub fn tell_why(task: &Task) {
    if let Some(denied) = denied(&task.progress) {
        let _ = writeln!(std::io::stderr(), "bgctl: {}: its agent was denied something {denied}", task.id);
    }
    if let Some(error) = &task.error {
        // Standard error may be closed; the exit code says the same in short.
        let _ = writeln!(std::io::stderr(), "bgctl: {}: {}", task.id, clean(error));
    }
}

fn waiting_for(active: usize, all: usize) -> String {
    match (active, all) {
        (_, 1) => "waiting for the task …".to_owned(),
        _ => format!("waiting for {active} of {all} tasks …"),
    }
}

/// 0, 1 or 75, by those that have ended.
fn code(result: &BlockResult) -> Code {
    let ended = |task: &&Task| !task.status.is_active();
    if result.timed_out {
        Code::TIMED_OUT
    } else if result.tasks.iter().filter(ended).all(|task| task.status == Status::Completed) {
        Code::OK
    } else {
        Code::TASK_FAILED
    }
}

/// The task's own code; where it has none, as without `--exit-code`. Where its time limit ended it, that of timeout(1).
fn own_code(result: &BlockResult) -> Code {
    if !result.timed_out && result.tasks.first().is_some_and(|task| task.timed_out) {
        return Code::TIME_LIMIT;
    }
    let own = result.tasks.first().and_then(|task| task.exit.as_ref()).and_then(Exit::shell_code);
    match own.and_then(|code| u8::try_from(code).ok()) {
        // A task that failed for another reason than its code has not gone well.
        Some(0) | None => code(result),
        Some(_) if result.timed_out => Code::TIMED_OUT,
        Some(own) => Code(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    fn result(tasks: Vec<Task>, timed_out: bool) -> BlockResult {
        BlockResult { tasks, timed_out, finished: Vec::new(), active: Vec::new() }
    }

    fn ended(status: Status, exit: Option<Exit>) -> Task {
        Task { status, exit, ..task() }
    }

    #[test]
    fn the_code_tells_how_it_went() {
        let completed = || ended(Status::Completed, Some(Exit::Code(0)));
        let failed = || ended(Status::Failed, Some(Exit::Code(3)));
        let running = || ended(Status::Running, None);
        assert_eq!(code(&result(vec![], false)), Code::OK);
        assert_eq!(code(&result(vec![completed(), completed()], false)), Code::OK);
        assert_eq!(code(&result(vec![completed(), failed()], false)), Code::TASK_FAILED);
        assert_eq!(code(&result(vec![failed(), running()], true)), Code::TIMED_OUT);
        // `--any` is decided by those that have ended.
        assert_eq!(code(&result(vec![completed(), running()], false)), Code::OK);
        assert_eq!(code(&result(vec![ended(Status::Cancelled, None)], false)), Code::TASK_FAILED);
    }

    #[test]
    fn the_tasks_own_code_comes_through() {
        let own = |status, exit| own_code(&result(vec![ended(status, exit)], false));
        assert_eq!(own(Status::Completed, Some(Exit::Code(0))), Code::OK);
        assert_eq!(own(Status::Failed, Some(Exit::Code(75))), Code(75));
        assert_eq!(own(Status::Failed, Some(Exit::Signal(9))), Code(137));
        assert_eq!(own(Status::Failed, Some(Exit::Code(0))), Code::TASK_FAILED);
        assert_eq!(own(Status::Failed, Some(Exit::Unknown("why".into()))), Code::TASK_FAILED);
        assert_eq!(own(Status::Failed, None), Code::TASK_FAILED);
        assert_eq!(own_code(&result(vec![ended(Status::Running, None)], true)), Code::TIMED_OUT);
        for exit in [Some(Exit::Signal(15)), Some(Exit::Code(0)), Some(Exit::Code(3)), None] {
            let late = Task { timed_out: true, ..ended(Status::Failed, exit) };
            assert_eq!(own_code(&result(vec![late.clone()], false)), Code(124));
            assert_eq!(code(&result(vec![late], false)), Code::TASK_FAILED);
        }
    }

    #[test]
    fn an_agents_task_has_no_code_but_how_it_went() {
        let own = |status| {
            let task = Task { kind: bgd_shared::task::Kind::Agent, ..ended(status, None) };
            own_code(&result(vec![task], false))
        };
        assert_eq!(own(Status::Completed), Code::OK);
        assert_eq!(own(Status::Failed), Code::TASK_FAILED);
        assert_eq!(own(Status::Cancelled), Code::TASK_FAILED);
    }
}
