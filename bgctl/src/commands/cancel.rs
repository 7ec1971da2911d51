//! `cancel`: ends tasks with all their processes.

use bgd_shared::request::{CancelParams, TaskCancel};
use bgd_shared::task::Status;

use crate::cli::CancelArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::session;

/// Cancels, and prints one line a task.
pub fn run(args: CancelArgs, context: &mut Context) -> Result<Code, Failure> {
    let params = CancelParams {
        ids: args.ids,
        all: args.all,
        session: session::named(args.session)?,
        signal: args.signal,
        grace_ms: args.grace,
    };
    let result = context.call::<TaskCancel>(&params)?;
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    for task in &result.tasks {
        let line = match task.status {
            Status::Cancelled => format!("{} cancelled\n", task.id),
            Status::Completed | Status::Failed => format!("{} already {}\n", task.id, task.status),
            Status::Pending | Status::Running | Status::Resumed => {
                format!("{} is {}\n", task.id, task.status)
            }
        };
        context.print(&line)?;
    }
    Ok(Code::OK)
}
