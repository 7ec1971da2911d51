//! `signal`: sends a signal to a running task. Prints nothing; the effect is up to the task.

use bgd_shared::error::ErrorKind;
use bgd_shared::request::{SignalParams, TaskSignal};

use crate::cli::SignalArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;

/// Why one of several selected tasks is skipped: it has ended or was cleared meanwhile, or it is an agent.
const SKIPPED: [ErrorKind; 3] = [ErrorKind::NotRunning, ErrorKind::TaskNotFound, ErrorKind::Unsupported];

/// Sends the signal to each task.
pub fn run(args: SignalArgs, context: &mut Context) -> Result<Code, Failure> {
    let (name, signal) = args.words().map_err(|(_, what)| Failure::usage(what))?;
    let is_selected = name.is_none();
    let mut missed = None;
    let mut is_sent = false;
    for id in pick::each(name, args.select.or_active(), context)? {
        match context.call::<TaskSignal>(&SignalParams { id, signal: signal.clone(), tree: args.tree }) {
            Ok(result) => {
                is_sent = true;
                if context.json() {
                    context.print_json(&result)?;
                }
            }
            // Continue: another selected task may accept the signal.
            Err(failure) if is_selected && SKIPPED.iter().any(|kind| failure.kind == kind.as_str()) => {
                missed = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    missed.filter(|_| !is_sent).map_or(Ok(Code::OK), Err)
}
