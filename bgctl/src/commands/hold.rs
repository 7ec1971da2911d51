//! `hold`, `release`, `pause` and `continue`: control whether pending tasks start and running ones proceed (R106).

use std::collections::HashSet;

use bgd_shared::request::{
    Method, SelectParams, TaskContinue, TaskHold, TaskPause, TaskRelease, TasksResult,
};
use bgd_shared::task::Task;

use crate::cli::{ContinueArgs, HoldArgs, PauseArgs, ReleaseArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::pick;

/// Holds pending tasks, then prints one line per task.
pub fn hold(args: HoldArgs, context: &mut Context) -> Result<Code, Failure> {
    change::<TaskHold>(args.tasks.ids, args.tasks.select, ("held", "pending"), context)
}

/// Releases held tasks, then prints one line per task.
pub fn release(args: ReleaseArgs, context: &mut Context) -> Result<Code, Failure> {
    change::<TaskRelease>(args.tasks.ids, args.tasks.select, ("released", "pending"), context)
}

/// Pauses running tasks, then prints one line per task.
pub fn pause(args: PauseArgs, context: &mut Context) -> Result<Code, Failure> {
    change::<TaskPause>(args.tasks.ids, args.tasks.select, ("paused", "running"), context)
}

/// Continues paused tasks, then prints one line per task.
pub fn continue_tasks(args: ContinueArgs, context: &mut Context) -> Result<Code, Failure> {
    change::<TaskContinue>(args.tasks.ids, args.tasks.select, ("continued", "running"), context)
}

/// Makes the call for the tasks of all names, or those that the options select, and prints what was done, also before a
/// failure.
fn change<M>(
    names: Vec<Name>,
    select: SelectArgs,
    (what, of): (&str, &str),
    context: &mut Context,
) -> Result<Code, Failure>
where
    M: Method<Params = SelectParams, Result = TasksResult>,
{
    let mut tasks = Vec::new();
    let outcome = call::<M>(names, select, context, &mut tasks);
    let mut known = HashSet::new();
    tasks.retain(|task| known.insert(task.id));
    if outcome.is_ok() || !tasks.is_empty() {
        print(&TasksResult { tasks }, what, of, context)?;
    }
    outcome.map(|()| Code::OK)
}

/// Makes the call for the tasks of all names, or those that the options select. Tasks of a batch that the call does not
/// fit are left out, however many batches there are; tasks given one by one must all fit.
fn call<M>(
    names: Vec<Name>,
    select: SelectArgs,
    context: &mut Context,
    tasks: &mut Vec<Task>,
) -> Result<(), Failure>
where
    M: Method<Params = SelectParams, Result = TasksResult>,
{
    let has_batch = names.iter().any(|name| matches!(name, Name::Batch(_)));
    if names.len() == 1 || !has_batch {
        let (ids, matching) = pick::chosen(names, select, context)?.split();
        tasks.extend(context.call::<M>(&SelectParams { ids, matching })?.tasks);
        return Ok(());
    }
    // Wrong names are refused before anything is changed.
    pick::together(names.clone(), context)?;
    let (batches, others): (Vec<Name>, Vec<Name>) =
        names.into_iter().partition(|name| matches!(name, Name::Batch(_)));
    if !others.is_empty() {
        let ids = pick::all(others, context)?;
        tasks.extend(context.call::<M>(&SelectParams { ids, matching: None })?.tasks);
    }
    for batch in batches {
        let (ids, matching) = pick::chosen(vec![batch], SelectArgs::default(), context)?.split();
        tasks.extend(context.call::<M>(&SelectParams { ids, matching })?.tasks);
    }
    Ok(())
}

fn print(result: &TasksResult, what: &str, of: &str, context: &mut Context) -> Result<(), Failure> {
    if context.json() {
        return context.print_json(result);
    }
    for task in &result.tasks {
        context.print(&format!("{} {what}\n", task.id))?;
    }
    if result.tasks.is_empty() {
        pick::report_no_match(&format!("{of} task"));
    }
    Ok(())
}
