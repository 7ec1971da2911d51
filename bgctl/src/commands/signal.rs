//! `signal`: sends a signal to a running task. Prints nothing; the effect is up to the task.

use bgd_shared::error::ErrorKind;
use bgd_shared::request::{SignalParams, TaskSignal};

use crate::cli::SignalArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;

/// Why one of several tasks is skipped: it has ended or was cleared meanwhile, or it is an agent. Another may accept the
/// signal.
const SKIPPED: [&str; 3] =
    [ErrorKind::NotRunning.as_str(), ErrorKind::TaskNotFound.as_str(), ErrorKind::Unsupported.as_str()];

/// Sends the signal to each task.
pub fn run(args: SignalArgs, context: &mut Context) -> Result<Code, Failure> {
    let (name, signal) = args.words().map_err(|(_, what)| Failure::usage(what))?;
    let is_selected = !args.select.is_empty();
    let ids = pick::each(name, args.select.or_active(), context).map_err(|failure| match failure.code {
        Code::NO_TASK if is_selected => failure.hint(
            "only running tasks get a signal: `bgctl list` with the same options shows each and its status",
        ),
        _ => failure,
    })?;
    let mut undelivered = None;
    pick::for_each(ids, &SKIPPED, |id, _| {
        let params = SignalParams { id, signal: signal.clone(), tree: args.tree };
        match context.call::<TaskSignal>(&params) {
            Ok(result) if context.json() => context.print_json(&result),
            Ok(_) => Ok(()),
            // A machine that can't be reached does not keep the signal from the tasks of others.
            Err(failure) if failure.kind == ErrorKind::Internal.as_str() => {
                undelivered.get_or_insert(failure);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    })?;
    undelivered.map_or(Ok(Code::OK), Err)
}
