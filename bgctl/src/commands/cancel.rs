//! `cancel`: ends tasks, including all their processes.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, IsTerminal as _};

use bgd_shared::id::TaskId;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{
    BlockParams, CancelParams, DaemonStatusOf, ListParams, NoParams, TaskBlock, TaskCancel, TaskList,
};
use bgd_shared::show;
use bgd_shared::task::{Status, Task};

use crate::cli::{CancelArgs, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick::{self, Chosen};
use crate::progress::Progress;
use crate::remark::{report, say, warn};
use crate::render::{UNKILLABLE, clean, listed, survivors};
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
    let seen = if context.json() { Vec::new() } else { look(&params, context)? };
    let result = {
        if let Some(remark) = out_of_reach(&seen).filter(|_| io::stderr().is_terminal()) {
            report(&remark);
        }
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
    let left_processes = |task: &&Task| task.lingering && !task.status.is_active();
    let lingering: HashSet<TaskId> = seen.iter().filter(left_processes).map(|task| task.id).collect();
    for task in &result.tasks {
        context.print(&format!("{} {}\n", task.id, what_became(task, lingering.contains(&task.id))))?;
    }
    warn_of_hidden_processes(&result.tasks, context)?;
    Ok(Code::OK)
}

/// Returns the tasks that are given by their ids, as they are now. On a terminal also those that match, of many the
/// latest: only there it is said which can't be reached.
fn look(params: &CancelParams, context: &mut Context) -> Result<Vec<Task>, Failure> {
    if !params.ids.is_empty() {
        let look = BlockParams::look(params.ids.clone());
        return Ok(context.recovering(|context| context.call::<TaskBlock>(&look))?.tasks);
    }
    if !io::stderr().is_terminal() {
        return Ok(Vec::new());
    }
    let mut matching = params.matching.clone().unwrap_or_default();
    if matching.status.is_empty() {
        matching.status = Status::ALL.into_iter().filter(|status| status.is_active()).collect();
    }
    let session = params.session.clone().or_else(|| matching.session.clone());
    let wanted = ListParams { session, limit: Some(LIST_PAGE), ..ListParams::from(matching) };
    Ok(context.call::<TaskList>(&wanted)?.tasks)
}

/// Warns on a terminal if the daemon does not see the processes of its machine. A script is spared the call.
fn warn_of_hidden_processes(cancelled: &[Task], context: &mut Context) -> Result<(), Failure> {
    if !io::stderr().is_terminal() || cancelled.iter().all(|task| task.on.is_some()) {
        return Ok(());
    }
    // What was done is shown before anything else can fail.
    context.flush()?;
    let status = context.call::<DaemonStatusOf>(&NoParams {});
    if status.is_ok_and(|status| status.warnings.iter().any(|warning| warning == show::HIDDEN_PROCESSES)) {
        let place = context.link.host().map(|host| format!("{host}: ")).unwrap_or_default();
        warn(&format!("{place}{}", show::HIDDEN_PROCESSES));
    }
    Ok(())
}

/// Says why the answer takes longer than the grace period, if it is known that some tasks can't be reached.
fn out_of_reach(tasks: &[Task]) -> Option<String> {
    let is_unknown = |task: &&Task| {
        let since = task.elsewhere.as_ref().and_then(|known| known.unknown_since);
        task.status.is_active() && since.is_some()
    };
    let places: BTreeSet<String> =
        tasks.iter().filter(is_unknown).filter_map(|task| task.on.as_deref().map(clean)).collect();
    let places = (!places.is_empty()).then(|| listed(places.into_iter(), 3))?;
    Some(format!(
        "{places} can't be asked now: what runs there is ended as soon as that is possible. bgctl waits for that at \
         most 10 s longer than the grace period"
    ))
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
    use bgd_shared::resources::Elsewhere;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::render::samples::task;

    #[test]
    fn r151_cancel_names_the_places_that_cannot_be_asked() {
        let known = Elsewhere::default();
        let unknown = Elsewhere { unknown_since: Some(Timestamp::now()), ..known.clone() };
        let of = |on: &str, elsewhere: &Elsewhere, status| Task {
            on: Some(on.into()),
            elsewhere: Some(elsewhere.clone()),
            status,
            ..task()
        };
        let running = Status::Running;
        let tasks = [
            of("one", &unknown, running),
            of("two", &known, running),
            of("three", &unknown, Status::Pending),
            of("four", &unknown, Status::Cancelled),
            of("one", &unknown, running),
        ];
        let said = out_of_reach(&tasks).unwrap();
        assert!(said.starts_with("one, three can't be asked now: "), "{said}");
        assert_eq!(out_of_reach(&tasks[1..2]), None);
    }

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
