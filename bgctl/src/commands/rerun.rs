//! `rerun`: submits tasks that have ended again (R116).

use std::io::Write as _;

use bgd_shared::request::{RerunParams, TaskRerun};

use crate::cli::RerunArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick::{self, Chosen};

/// Submits again, and prints the new ids, a line each.
pub fn run(args: RerunArgs, context: &mut Context) -> Result<Code, Failure> {
    let RerunArgs { ids, select, failed, with_dependents } = args;
    let (ids, matching) = match pick::chosen(ids, select, context)? {
        Chosen::Ids(ids) => (ids, None),
        Chosen::Matching(matching) => (Vec::new(), Some(matching)),
    };
    let result = context.call::<TaskRerun>(&RerunParams { ids, matching, failed, with_dependents })?;
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    for task in &result.tasks {
        context.print(&format!("{}\n", task.id))?;
    }
    if result.tasks.is_empty() {
        let what = if failed { "no failed task" } else { "no task that has ended" };
        // It may be closed; that nothing is printed says the same.
        let _ = writeln!(std::io::stderr(), "bgctl: {what} matches");
    }
    Ok(Code::OK)
}
