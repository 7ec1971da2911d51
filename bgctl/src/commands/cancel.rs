//! `cancel`: ends tasks, including all their processes.

use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockParams, CancelParams, TaskBlock, TaskCancel};
use bgd_shared::task::{Status, Task};

use crate::cli::{CancelArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick::{self, Chosen};
use crate::progress::Progress;
use crate::remark::say;
use crate::render::{UNKILLABLE, survivors};
use crate::session;

/// Cancels, then prints one line per task.
pub fn run(args: CancelArgs, context: &mut Context) -> Result<Code, Failure> {
    let common = CancelParams { signal: args.signal, grace_ms: args.grace, ..CancelParams::default() };
    // `--all` alone or with only `--session` has its own form of request.
    let only_session = SelectArgs { session: args.select.session.clone(), ..SelectArgs::default() };
    let params = if args.all && args.select == only_session {
        CancelParams {
            all: true,
            session: session::named(args.select.session, context.link.is_remote())?,
            ..common
        }
    } else {
        match pick::chosen(args.ids, args.select, context)? {
            Chosen::Ids(ids) => CancelParams { ids, ..common },
            Chosen::Matching(matching) => CancelParams { matching: Some(matching), ..common },
        }
    };
    // Must be recorded first: the answer does not indicate which tasks had processes left.
    let lingering = if context.json() { Vec::new() } else { lingering(&params, context)? };
    let result = {
        let what = if params.ids.len() == 1 { "the task to end" } else { "the tasks to end" };
        let _progress = Progress::begin(&format!("{what}; SIGKILL follows after the grace period"));
        let counts = !matches!(params.signal.as_deref(), None | Some("KILL" | "SIGKILL" | "9"));
        if params.ids.is_empty() || counts {
            // Not repeatable: others may have submitted matching tasks since, and some programs count the signals.
            context.call::<TaskCancel>(&params)?
        } else {
            context.call_repeatable::<TaskCancel>(&params)?
        }
    };
    if context.json() {
        context.print_json(&result)?;
        return Ok(Code::OK);
    }
    if result.tasks.is_empty() && params.matching.is_some() {
        say(format_args!("bgctl: no active task matches"));
    }
    for task in &result.tasks {
        context.print(&format!("{} {}\n", task.id, what_became(task, lingering.contains(&task.id))))?;
    }
    Ok(Code::OK)
}

/// Returns those of the listed tasks that have ended but left processes running.
fn lingering(params: &CancelParams, context: &mut Context) -> Result<Vec<TaskId>, Failure> {
    if params.ids.is_empty() {
        return Ok(Vec::new());
    }
    let look = BlockParams::look(params.ids.clone());
    let seen = context.recovering(|context| context.call::<TaskBlock>(&look))?;
    Ok(seen
        .tasks
        .into_iter()
        .filter(|task| task.lingering && !task.status.is_active())
        .map(|task| task.id)
        .collect())
}

fn what_became(task: &Task, was_lingering: bool) -> String {
    match (task.status, was_lingering, task.lingering) {
        (status @ (Status::Pending | Status::Running | Status::Resumed), _, _) => format!("is {status}"),
        (Status::Cancelled, false, false) => "cancelled".to_owned(),
        (status, false, false) => format!("already {status}"),
        (status, true, false) => format!("already {status}; ended its remaining processes"),
        (status, _, true) => {
            let already = if status == Status::Cancelled && !was_lingering { "" } else { "already " };
            let left = survivors(task);
            let left = left.as_deref().unwrap_or(UNKILLABLE);
            format!("{already}{status}, but {left}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    #[test]
    fn cancel_reports_outcome_of_each_task() {
        let of = |status, was, lingering| what_became(&Task { status, lingering, ..task() }, was);
        assert_eq!(of(Status::Cancelled, false, false), "cancelled");
        assert_eq!(of(Status::Failed, false, false), "already failed");
        let ended = "already completed; ended its remaining processes";
        assert_eq!(of(Status::Completed, true, false), ended);
        let survive = "but some of its processes do not end after SIGKILL";
        assert_eq!(of(Status::Failed, true, true), format!("already failed, {survive}"));
        assert_eq!(of(Status::Cancelled, false, true), format!("cancelled, {survive}"));
        let far = Task { status: Status::Cancelled, lingering: true, on: Some("far".into()), ..task() };
        assert!(what_became(&far, false).starts_with("cancelled, but it may still run on far"));
    }
}
