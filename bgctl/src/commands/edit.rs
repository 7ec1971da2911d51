//! `edit`: changes when a pending task starts (R107).

use bgd_shared::request::{EditParams, TaskEdit};
use bgd_shared::time::Timestamp;

use super::submit::warn_if_ended;
use crate::cli::{EditArgs, NewAfter};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::label;
use crate::pick;
use crate::render::table::status;
use crate::render::wall::Clock;

/// Edits the task, then prints its new status.
pub fn run(args: EditArgs, context: &mut Context) -> Result<Code, Failure> {
    let names = args.after.iter().filter_map(|after| match after {
        NewAfter::Name(name) => Some(name.clone()),
        NewAfter::None => None,
    });
    label::check("--description", &args.description)?;
    let (id, after) = pick::one_after(args.id, names.collect(), context)?;
    let params = EditParams {
        id,
        description: args.description,
        group: args.group,
        priority: args.priority,
        slots: args.slots,
        after: (!args.after.is_empty()).then_some(after),
        delay_ms: args.delay,
        start_at: args.at,
    };
    let result = context.call::<TaskEdit>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        let shown = status(&result.task, &Clock::system(Timestamp::now()));
        context.print(&format!("{} {shown}\n", result.task.id))?;
        context.flush()?;
        warn_if_ended(&result.task);
    }
    Ok(Code::OK)
}
