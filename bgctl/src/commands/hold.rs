//! `hold`, `release`, `pause` and `continue`: control whether pending tasks start and running ones proceed (R106).

use bgd_shared::request::{SelectParams, TaskContinue, TaskHold, TaskPause, TaskRelease, TasksResult};

use crate::cli::{ContinueArgs, HoldArgs, PauseArgs, ReleaseArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::pick;

/// Holds pending tasks, then prints one line per task.
pub fn hold(args: HoldArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskHold>(&params)?;
    print(&result, "held", "pending", context)
}

/// Releases held tasks, then prints one line per task.
pub fn release(args: ReleaseArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskRelease>(&params)?;
    print(&result, "released", "pending", context)
}

/// Pauses running tasks, then prints one line per task.
pub fn pause(args: PauseArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskPause>(&params)?;
    print(&result, "paused", "running", context)
}

/// Continues paused tasks, then prints one line per task.
pub fn continue_tasks(args: ContinueArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskContinue>(&params)?;
    print(&result, "continued", "running", context)
}

fn params(ids: Vec<Name>, select: SelectArgs, context: &mut Context) -> Result<SelectParams, Failure> {
    let (ids, matching) = pick::chosen(ids, select, context)?.split();
    Ok(SelectParams { ids, matching })
}

fn print(result: &TasksResult, what: &str, of: &str, context: &mut Context) -> Result<Code, Failure> {
    if context.json() {
        context.print_json(result)?;
        return Ok(Code::OK);
    }
    for task in &result.tasks {
        context.print(&format!("{} {what}\n", task.id))?;
    }
    if result.tasks.is_empty() {
        pick::report_no_match(&format!("{of} task"));
    }
    Ok(Code::OK)
}
