//! `session end`: the end of a parent session (R54).

use bgd_shared::request::{SessionEnd, SessionEndParams};

use crate::cli::{SessionArgs, SessionVerb};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Ends the session, and prints what that did.
pub fn run(args: SessionArgs, context: &mut Context) -> Result<Code, Failure> {
    let SessionVerb::End { key } = args.verb;
    let result = context.call::<SessionEnd>(&SessionEndParams { session: key })?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("cancelled {}, cleared {}\n", result.cancelled, result.cleared))?;
    }
    Ok(Code::OK)
}
