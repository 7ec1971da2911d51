//! `hold`, `release`, `pause` and `continue`: control whether pending tasks start and running ones proceed (R106).

use std::collections::HashSet;

use bgd_shared::request::{
    Method, SelectParams, TaskContinue, TaskHold, TaskPause, TaskRelease, TasksResult,
};

use crate::cli::{ContinueArgs, HoldArgs, PauseArgs, ReleaseArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::pick;

/// Holds pending tasks, then prints one line per task.
pub fn hold(args: HoldArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = call::<TaskHold>(args.tasks.ids, args.tasks.select, context)?;
    print(&result, "held", "pending", context)
}

/// Releases held tasks, then prints one line per task.
pub fn release(args: ReleaseArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = call::<TaskRelease>(args.tasks.ids, args.tasks.select, context)?;
    print(&result, "released", "pending", context)
}

/// Pauses running tasks, then prints one line per task.
pub fn pause(args: PauseArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = call::<TaskPause>(args.tasks.ids, args.tasks.select, context)?;
    print(&result, "paused", "running", context)
}

/// Continues paused tasks, then prints one line per task.
pub fn continue_tasks(args: ContinueArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = call::<TaskContinue>(args.tasks.ids, args.tasks.select, context)?;
    print(&result, "continued", "running", context)
}

/// Makes the call for the tasks of all names, or those that the options select. Tasks of a batch that the call does not
/// fit are left out, however many batches there are; tasks given one by one must all fit.
fn call<M>(names: Vec<Name>, select: SelectArgs, context: &mut Context) -> Result<TasksResult, Failure>
where
    M: Method<Params = SelectParams, Result = TasksResult>,
{
    let has_batch = names.iter().any(|name| matches!(name, Name::Batch(_)));
    if names.len() == 1 || !has_batch {
        let (ids, matching) = pick::chosen(names, select, context)?.split();
        return context.call::<M>(&SelectParams { ids, matching });
    }
    // Wrong names are refused before anything is changed.
    pick::together(names.clone(), context)?;
    let (batches, others): (Vec<Name>, Vec<Name>) =
        names.into_iter().partition(|name| matches!(name, Name::Batch(_)));
    let mut tasks = Vec::new();
    if !others.is_empty() {
        let ids = pick::all(others, context)?;
        tasks.extend(context.call::<M>(&SelectParams { ids, matching: None })?.tasks);
    }
    for batch in batches {
        let (ids, matching) = pick::chosen(vec![batch], SelectArgs::default(), context)?.split();
        tasks.extend(context.call::<M>(&SelectParams { ids, matching })?.tasks);
    }
    let mut known = HashSet::new();
    tasks.retain(|task| known.insert(task.id));
    Ok(TasksResult { tasks })
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
