//! `signal`: sends a signal to a running task. Nothing is printed; its effect is the task's own.

use bgd_shared::request::{SignalParams, TaskSignal};

use crate::cli::SignalArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Sends the signal.
pub fn run(args: SignalArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = SignalParams { id: args.id, signal: args.signal, tree: args.tree };
    let result = context.call::<TaskSignal>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    }
    Ok(Code::OK)
}
