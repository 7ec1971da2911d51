//! `clear`: removes finished tasks with their output.

use bgd_shared::request::{ClearParams, TaskClear};

use crate::cli::ClearArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::session;

/// Clears, and prints how many.
pub fn run(args: ClearArgs, context: &mut Context) -> Result<Code, Failure> {
    let ids = (!args.ids.is_empty()).then_some(args.ids);
    let params = ClearParams { ids, session: session::named(args.session)?, all: args.all };
    let result = context.call::<TaskClear>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("cleared {}\n", result.cleared))?;
    }
    Ok(Code::OK)
}
