//! `clear`: removes finished tasks with their output.

use std::io::Write as _;

use bgd_shared::request::{ClearParams, TaskClear};

use crate::cli::ClearArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean;
use crate::session;

/// Clears, and prints how many.
pub fn run(args: ClearArgs, context: &mut Context) -> Result<Code, Failure> {
    let ids = (!args.ids.is_empty()).then_some(args.ids);
    let (session, is_implied) = match (&ids, args.session) {
        (_, Some(named)) => (session::named(Some(named))?, false),
        (Some(_), None) => (None, false),
        (None, None) if args.all_sessions => (None, false),
        (None, None) => (Some(current()?), true),
    };
    let params = ClearParams { ids, session, all: args.all };
    let result = context.call::<TaskClear>(&params)?;
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    context.print(&format!("cleared {}\n", result.cleared))?;
    if let (0, Some(session)) = (result.cleared, &params.session) {
        context.flush()?;
        let session = clean(session);
        let remark = if is_implied {
            format!("only the current session ({session}) was looked at; --all-sessions clears every session")
        } else {
            let what = if params.all { "tasks" } else { "finished tasks" };
            format!("there are no {what} of a session {session}; `bgctl list` shows those of all")
        };
        // Standard error may be closed; the number is what counts.
        let _ = writeln!(std::io::stderr(), "{remark}");
    }
    Ok(Code::OK)
}

/// The session whose tasks are meant where none is named: never those of others, which a forgotten or empty word
/// would remove.
fn current() -> Result<String, Failure> {
    session::this().map_err(|failure| {
        failure.hint(
            "name the tasks by id, or their session with --session KEY; --all-sessions clears every session",
        )
    })
}
