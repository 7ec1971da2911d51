//! `rerun`: submits ended tasks again (R116).

use bgd_shared::id::made_up_key;
use bgd_shared::request::{RerunParams, TaskRerun};

use crate::cli::RerunArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::may_be_older;
use crate::name::Name;
use crate::pick;
use crate::remark::say;

/// Submits the tasks again, then prints the new ids, one per line.
pub fn run(args: RerunArgs, context: &mut Context) -> Result<Code, Failure> {
    let RerunArgs { ids, select, failed, with_dependents } = args;
    let mut names = ids.clone();
    names.extend(select.batch.clone().map(Name::Batch));
    let (ids, matching) = pick::chosen(ids, select, context)?.split();
    // Lets the call be repeated if its answer is lost.
    let key = Some(made_up_key());
    let params = RerunParams { ids, matching, failed, with_dependents, key };
    let result = match context.link.begin(|link| link.call_repeatable::<TaskRerun>(&params, &[])) {
        // The daemon may be too old to know keys of reruns.
        Err(failure) if params.key.is_some() && may_be_older(&failure) => {
            context.call::<TaskRerun>(&RerunParams { key: None, ..params })?
        }
        outcome => outcome?,
    };
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    for task in &result.tasks {
        context.print(&format!("{}\n", task.id))?;
    }
    if result.tasks.is_empty() {
        pick::report_no_match(if failed { "failed task" } else { "task that has ended" });
    }
    if failed || result.tasks.is_empty() {
        // The tasks themselves were dealt with; an older daemon, or a batch that is gone by now, adds nothing to that.
        let cleared = pick::cleared(&names, context).ok().flatten();
        if let Some(cleared) = cleared.filter(|cleared| cleared.not_completed > 0) {
            say(format_args!("bgctl: {} and can't be run again", pick::cleared_words(cleared)));
        }
    }
    Ok(Code::OK)
}
