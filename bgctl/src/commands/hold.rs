//! `hold`, `release`, `pause` and `continue`: whether pending tasks start, and running ones go on (R106).

use std::io::Write as _;

use bgd_shared::request::{SelectParams, TaskContinue, TaskHold, TaskPause, TaskRelease, TasksResult};

use crate::cli::{ContinueArgs, HoldArgs, PauseArgs, ReleaseArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::pick::{self, Chosen};

/// Holds, and prints one line a task.
pub fn hold(args: HoldArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskHold>(&params)?;
    print(&result, "held", "pending", context)
}

/// Releases, and prints one line a task.
pub fn release(args: ReleaseArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskRelease>(&params)?;
    print(&result, "released", "pending", context)
}

/// Pauses, and prints one line a task.
pub fn pause(args: PauseArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskPause>(&params)?;
    print(&result, "paused", "running", context)
}

/// Continues, and prints one line a task.
pub fn go_on(args: ContinueArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = params(args.tasks.ids, args.tasks.select, context)?;
    let result = context.call::<TaskContinue>(&params)?;
    print(&result, "continued", "running", context)
}

fn params(ids: Vec<Name>, select: SelectArgs, context: &mut Context) -> Result<SelectParams, Failure> {
    Ok(match pick::chosen(ids, select, context)? {
        Chosen::Ids(ids) => SelectParams { ids, matching: None },
        Chosen::Matching(matching) => SelectParams { ids: Vec::new(), matching: Some(matching) },
    })
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
        // It may be closed; that nothing is printed says the same.
        let _ = writeln!(std::io::stderr(), "bgctl: no {of} task matches");
    }
    Ok(Code::OK)
}
