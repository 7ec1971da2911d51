//! `status`: prints everything about a task.

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
    for (place, id) in pick::each(args.id, args.select, context)?.into_iter().enumerate() {
        let result = context.call::<TaskGet>(&IdParams { id })?;
        if context.json() {
            context.print_json(&result)?;
            continue;
        }
        let between = if place > 0 { "\n" } else { "" };
        let page = page::task(&result.task, &Clock::system(Timestamp::now()));
        context.print(&format!("{between}{page}"))?;
    }
    Ok(Code::OK)
}
