//! `clear`: removes finished tasks and their output.

use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ClearParams, ClearResult, ListParams, Matching, TaskClear, TaskList};
use bgd_shared::task::{Status, Task};

use crate::cli::{ClearArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick::{self, Chosen};
use crate::remark::say;
use crate::render::signs::ellipsis;
use crate::render::{clean, survivors};
use crate::session;

/// Clears, then prints how many tasks were removed.
pub fn run(args: ClearArgs, context: &mut Context) -> Result<Code, Failure> {
    let mut select = args.select;
    let named = select.session.take();
    let chosen = match (args.ids.is_empty(), pick::matching(select, context.link.is_remote())?) {
        (true, matching) => matching.map(Chosen::Matching),
        (false, _) => Some(pick::chosen(args.ids, SelectArgs::default(), context)?),
    };
    // A batch includes its tasks wherever they were submitted; a tag only narrows a selection.
    let names_tasks = match &chosen {
        Some(Chosen::Ids(_)) => true,
        Some(Chosen::Matching(matching)) => matching.batch.is_some(),
        None => false,
    };
    let (session, is_implied) = match named {
        Some(named) => (session::named(Some(named), context.link.is_remote())?, false),
        None if names_tasks || args.all_sessions => (None, false),
        None => (Some(current(context.link.is_remote())?), true),
    };
    let common = ClearParams { session: session.clone(), all: args.all, ..ClearParams::default() };
    let params = match chosen {
        None => common,
        Some(Chosen::Ids(ids)) => ClearParams { ids: Some(ids), ..common },
        Some(Chosen::Matching(matching)) => {
            ClearParams { matching: Some(Matching { session, ..matching }), session: None, ..common }
        }
    };
    let result = context.call::<TaskClear>(&params)?;
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    context.print(&format!("cleared {}\n", result.cleared))?;
    say_unrecorded(&result, context)?;
    if result.cleared == 0 && params.ids.is_none() && !params.all {
        let (unconfirmed, lingering): (Vec<Task>, Vec<Task>) =
            lingering(&params, context)?.into_iter().partition(|task| survivors(task).is_some());
        if !lingering.is_empty() || !unconfirmed.is_empty() {
            context.flush()?;
            if !lingering.is_empty() {
                say(format_args!("{}", kept(&lingering, false)));
            }
            if !unconfirmed.is_empty() {
                say(format_args!("{}", kept(&unconfirmed, true)));
            }
            return Ok(Code::OK);
        }
    }
    let session = params.session.as_ref().or_else(|| params.matching.as_ref()?.session.as_ref());
    if let (0, Some(session)) = (result.cleared, session) {
        context.flush()?;
        let session = clean(session);
        let remark = if is_implied {
            format!("only the current session ({session}) was searched; --all-sessions clears every session")
        } else {
            let what = match (params.all, params.matching.is_some()) {
                (true, false) => "tasks",
                (false, false) => "finished tasks",
                (true, true) => "matching tasks",
                (false, true) => "matching finished tasks",
            };
            format!("no {what} in session {session}; `bgctl list` shows all tasks")
        };
        say(format_args!("{remark}"));
    }
    Ok(Code::OK)
}

/// Says why the daemon has not recorded the result, if it could not.
fn say_unrecorded(result: &ClearResult, context: &mut Context) -> Result<(), Failure> {
    let Some(why) = &result.unrecorded else { return Ok(()) };
    context.flush()?;
    say(format_args!("{}", unrecorded(why)));
    Ok(())
}

fn unrecorded(why: &str) -> String {
    let why = clean(why);
    format!(
        "not recorded yet: {why}; if the daemon dies before that, the tasks are back without their outputs"
    )
}

/// Returns those of the latest finished tasks in question that were kept because processes of theirs are running.
fn lingering(params: &ClearParams, context: &mut Context) -> Result<Vec<Task>, Failure> {
    let mut matching = params.matching.clone().unwrap_or_default();
    if matching.status.is_empty() {
        matching.status = Status::ALL.into_iter().filter(|status| !status.is_active()).collect();
    }
    let session = params.session.clone().or_else(|| matching.session.clone());
    let wanted = ListParams { session, limit: Some(LIST_PAGE), ..ListParams::from(matching) };
    let mut tasks = context.call::<TaskList>(&wanted)?.tasks;
    tasks.retain(|task| task.lingering && !task.status.is_active());
    Ok(tasks)
}

/// Maximum number of ids in a hint.
const IDS: usize = 3;

/// Says that these tasks were kept because of their processes, and what to do: nothing ends those that are left of
/// `unconfirmed` tasks.
fn kept(tasks: &[Task], are_unconfirmed: bool) -> String {
    let ids: Vec<String> = tasks.iter().take(IDS).map(|task| task.id.short()).collect();
    let rest = if tasks.len() > IDS { format!(" {}", ellipsis()) } else { String::new() };
    let ids = format!("{}{rest}", ids.join(" "));
    let (finished, it) = match tasks.len() {
        1 => ("1 finished task".to_owned(), "it"),
        number => (format!("{number} finished tasks"), "them"),
    };
    if are_unconfirmed {
        format!("kept {finished} that may have running processes; `bgctl clear {ids}` removes {it} anyway")
    } else {
        format!("kept {finished} with running processes; `bgctl cancel {ids}` ends those")
    }
}

/// Returns the default session: only the caller's own, so that a forgotten or empty argument never removes tasks of
/// others.
fn current(is_remote: bool) -> Result<String, Failure> {
    session::this(is_remote).map_err(|failure| {
        failure.hint("give task ids, or --session KEY; --all-sessions clears every session")
    })
}
