//! `clear`: removes finished tasks with their output.

use bgd_shared::request::{ClearParams, TaskClear};

use crate::cli::ClearArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Clears, and prints how many.
pub fn run(args: ClearArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = ClearParams { ids: args.ids, session: args.session, all: args.all };
    let result = context.call::<TaskClear>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("cleared {}\n", result.cleared))?;
    }
    Ok(Code::OK)
}
