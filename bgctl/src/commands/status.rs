//! `status`: everything about one task.

use bgd_shared::request::{IdParams, TaskGet};
use bgd_shared::time::Timestamp;

use crate::cli::StatusArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::page;
use crate::render::wall::Zone;

/// Prints the page of a task.
pub fn run(args: StatusArgs, context: &mut Context) -> Result<Code, Failure> {
    let result = context.call::<TaskGet>(&IdParams { id: args.id })?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&page::task(&result.task, Timestamp::now(), &Zone::system()))?;
    }
    Ok(Code::OK)
}
