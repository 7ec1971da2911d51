//! `status`: prints everything about a task.

use bgd_shared::error::ErrorKind;
use bgd_shared::request::{IdParams, TaskGet};
use bgd_shared::time::Timestamp;

use crate::cli::StatusArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;
use crate::render::page;
use crate::render::wall::Clock;

/// Prints a page per task.
pub fn run(args: StatusArgs, context: &mut Context) -> Result<Code, Failure> {
    let ids = pick::each(args.id, args.select, context)?;
    // One of several tasks may have been cleared since.
    pick::for_each(ids, &[ErrorKind::TaskNotFound.as_str()], |id, before| {
        let result = context.call::<TaskGet>(&IdParams { id })?;
        if context.json() {
            return context.print_json(&result);
        }
        let between = if before > 0 { "\n" } else { "" };
        let page = page::task(&result.task, &Clock::system(Timestamp::now()));
        context.print(&format!("{between}{page}"))
    })?;
    Ok(Code::OK)
}
