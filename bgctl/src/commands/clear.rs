//! `clear`: removes finished tasks and their output.

use bgd_shared::request::Matching;
use bgd_shared::request::{ClearParams, TaskClear};

use crate::cli::{ClearArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick::{self, Chosen};
use crate::remark::say;
use crate::render::clean;
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

/// Returns the default session: only the caller's own, so that a forgotten or empty argument never removes tasks of
/// others.
fn current(is_remote: bool) -> Result<String, Failure> {
    session::this(is_remote).map_err(|failure| {
        failure.hint("give task ids, or --session KEY; --all-sessions clears every session")
    })
}
