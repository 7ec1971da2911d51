//! Resolves typed names to tasks: `@` is this session's latest task, `@9c1e` a batch, and options select tasks by
//! common properties. Plain ids are resolved without asking the daemon.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};

use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{
    ClearedTasks, Hello, HelloParams, IdParams, ListParams, ListResult, Matching, TaskGet, TaskList,
};
use bgd_shared::show::count;
use bgd_shared::task::Task;

use crate::cli::{AfterName, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::remark::say;
use crate::render::clean;
use crate::session;

/// Maximum number of tasks to list when several match.
const CANDIDATES: usize = 10;

/// This many ids fit into the smallest request that a daemon can be configured to accept.
const FEW: usize = 64;

/// Maximum number of bytes in a request besides the ids.
const REST_BYTES: usize = 1024;

/// The tasks that a call applies to.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Tasks listed one by one.
    Ids(Vec<TaskRef>),
    /// Tasks selected by common properties.
    Matching(Matching),
}

impl Chosen {
    /// Splits into the ids and the filter of a request.
    pub fn split(self) -> (Vec<TaskRef>, Option<Matching>) {
        match self {
            Self::Ids(ids) => (ids, None),
            Self::Matching(matching) => (Vec::new(), Some(matching)),
        }
    }
}

/// Reports on standard error that nothing was done, as standard output is just empty then.
pub fn report_no_match(what: &str) {
    say(format_args!("bgctl: no {what} matches"));
}

/// Returns whether a person is at the terminal, so that an omitted task may default to the latest one.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Resolves names or selection options; the command line accepts only one of the two.
///
/// # Errors
/// A name matches no task, or the daemon can't be asked.
pub fn chosen(names: Vec<Name>, select: SelectArgs, context: &mut Context) -> Result<Chosen, Failure> {
    if let Some(matching) = matching(select, context.link.is_remote())? {
        return Ok(Chosen::Matching(matching));
    }
    // A batch may have more tasks than fit into one request.
    if let [Name::Batch(batch)] = &names[..] {
        return Ok(Chosen::Matching(Matching { batch: Some(batch.clone()), ..Matching::default() }));
    }
    together(names, context).map(Chosen::Ids)
}

/// Resolves names for a single request that contains all of them.
///
/// # Errors
/// As for [`all`], or the ids do not fit into one request.
pub fn together(names: Vec<Name>, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let has_batch = names.iter().any(|name| matches!(name, Name::Batch(_)));
    let ids = all(names, context)?;
    if !has_batch || fits(&ids, context)? {
        return Ok(ids);
    }
    let message = format!("these are {} tasks, too many for one call", ids.len());
    Err(Failure::usage(message).hint("give one batch per call, with --batch, or raise limits.frame_bytes"))
}

/// Reports whether a single request can contain all of these ids.
///
/// # Errors
/// The daemon can't be asked.
pub fn fits(ids: &[TaskRef], context: &mut Context) -> Result<bool, Failure> {
    if ids.len() <= FEW {
        return Ok(true);
    }
    // Each id is quoted and followed by a comma.
    let bytes: usize = ids.iter().map(|id| id.as_str().len() + 3).sum();
    Ok((bytes + REST_BYTES) as u64 <= context.call::<Hello>(&HelloParams::default())?.limits.frame_bytes)
}

/// Returns the filter for the selection options, or `None` if none were given.
///
/// # Errors
/// `.` was given, but this process has no parent session.
pub fn matching(select: SelectArgs, is_remote: bool) -> Result<Option<Matching>, Failure> {
    if select.is_empty() {
        return Ok(None);
    }
    selected(select, is_remote).map(Some)
}

/// Returns the filter for the selection options, which may be empty.
///
/// # Errors
/// `.` was given, but this process has no parent session.
pub fn selected(select: SelectArgs, is_remote: bool) -> Result<Matching, Failure> {
    let SelectArgs { tags, group, batch, session, status } = select;
    Ok(Matching { session: session::named(session, is_remote)?, group, batch, tags, status })
}

/// Resolves names in the given order; the tasks of a batch are in submission order.
///
/// # Errors
/// A name matches no task, or the daemon can't be asked.
pub fn all(names: Vec<Name>, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    Ok(by_name(names, context)?.concat())
}

/// Like [`all`], but returns the tasks of each name separately.
fn by_name(names: Vec<Name>, context: &mut Context) -> Result<Vec<Vec<TaskRef>>, Failure> {
    let latest = latest(&names, context)?;
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        found.push(match name {
            Name::Id(id) => vec![id],
            Name::Latest(count) => latest.get(count - 1).map(|task| task.id.into()).into_iter().collect(),
            Name::Batch(batch) => of_batch(&batch, context)?,
        });
    }
    Ok(found)
}

/// Resolves a name to exactly one task.
///
/// # Errors
/// The name matches none or several, or the daemon can't be asked.
pub fn one(name: Name, context: &mut Context) -> Result<TaskRef, Failure> {
    one_after(name, Vec::new(), context).map(|(id, _)| id)
}

/// Replaces a prefix by the whole id, for a verb that makes several calls: by the next one, the prefix could match
/// another task as well.
///
/// # Errors
/// The prefix matches none or several, or the daemon can't be asked.
pub fn whole(id: TaskRef, context: &mut Context) -> Result<TaskRef, Failure> {
    match id.exact() {
        Some(_) => Ok(id),
        None => Ok(context.call::<TaskGet>(&IdParams { id })?.task.id.into()),
    }
}

/// Resolves a name to exactly one task, and conditions on other tasks, all of them at once.
///
/// # Errors
/// The name matches none or several, a name of a condition matches none, or the daemon can't be asked.
pub fn one_after(
    name: Name,
    names: Vec<AfterName>,
    context: &mut Context,
) -> Result<(TaskRef, Vec<After>), Failure> {
    let batch = match &name {
        Name::Batch(batch) => batch.as_str().to_owned(),
        Name::Id(_) | Name::Latest(_) => String::new(),
    };
    let (names, conditions): (Vec<_>, Vec<_>) = names.into_iter().map(split).unzip();
    let mut found = by_name([vec![name], names.clone()].concat(), context)?;
    check_cleared(&names, &conditions, context)?;
    let after = joined(found.split_off(1), conditions);
    let mut ids = found.concat();
    match (ids.pop(), ids.len()) {
        (Some(id), 0) => Ok((id, after)),
        (_, others) => {
            let message = format!("@{batch} is a batch of {} tasks, but only one can be given", others + 1);
            Err(Failure::usage(message).hint(format!("`bgctl list --batch {batch}` shows them")))
        }
    }
}

/// Resolves a name to exactly one task. Without a name, uses this session's latest task and reports that on standard
/// error; the command line allows this only on a terminal.
///
/// # Errors
/// The name matches none or several, or the daemon can't be asked.
pub fn one_or_latest(name: Option<Name>, context: &mut Context) -> Result<TaskRef, Failure> {
    match name {
        Some(name) => one(name, context),
        None => implied(context),
    }
}

/// Resolves a name or selection to exactly one task. Without either, uses this session's latest task.
///
/// # Errors
/// None or several match, or the daemon can't be asked.
pub fn only(name: Option<Name>, select: SelectArgs, context: &mut Context) -> Result<TaskRef, Failure> {
    if select.is_empty() {
        return one_or_latest(name, context);
    }
    let mut ids = each(None, select, context)?;
    if ids.len() > 1 {
        let message = format!("{} tasks match, but only one can be given", ids.len());
        let mut failure = Failure::new(Code::NO_TASK, ErrorKind::AmbiguousId.as_str(), message);
        failure.candidates = ids.iter().rev().take(CANDIDATES).filter_map(TaskRef::exact).collect();
        return Err(failure.hint("give the id of one"));
    }
    Ok(ids.swap_remove(0))
}

/// Returns this session's latest task as the default, and reports it on standard error.
///
/// # Errors
/// There is none, or the daemon can't be asked.
pub fn implied(context: &mut Context) -> Result<TaskRef, Failure> {
    let task = latest(&[Name::Latest(1)], context)?.swap_remove(0);
    let text = clean(&task.description);
    say(format_args!("bgctl: the latest task, {}: {text}", task.id.short()));
    Ok(task.id.into())
}

/// Resolves the tasks of a verb that handles them one after the other.
///
/// # Errors
/// A name matches no task, or the daemon can't be asked.
pub fn each(name: Option<Name>, select: SelectArgs, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let Some(matching) = matching(select, context.link.is_remote())? else {
        return match name {
            Some(name) => all(vec![name], context),
            None => implied(context).map(|id| vec![id]),
        };
    };
    // Several statuses, all active: the verb itself is limited to active tasks, which the message should mention.
    let is_active = matching.status.len() > 1 && matching.status.iter().all(|status| status.is_active());
    let ids = listed(&matching.into(), context)?;
    if ids.is_empty() {
        let what = if is_active { "no active task matches" } else { "no task matches" };
        return Err(Failure::new(Code::NO_TASK, "task_not_found", what)
            .hint("`bgctl list` with the same options shows the tasks and their status"));
    }
    Ok(ids)
}

/// Runs `job` for each task, passing the number of tasks done so far. With several tasks, failures of the kinds in
/// `left_out` are skipped: the task does not fit, or was cleared meanwhile.
///
/// # Errors
/// A job failed in another way, or no job succeeded.
pub fn for_each(
    ids: Vec<TaskRef>,
    left_out: &[&str],
    mut job: impl FnMut(TaskRef, usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let is_several = ids.len() > 1;
    let (mut done, mut missed) = (0, None);
    for id in ids {
        match job(id, done) {
            Ok(()) => done += 1,
            Err(failure) if is_several && left_out.contains(&failure.kind) => missed = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    missed.filter(|_| done == 0).map_or(Ok(()), Err)
}

/// Resolves conditions on other tasks.
///
/// # Errors
/// A name matches no task, or the daemon can't be asked.
pub fn after(names: Vec<AfterName>, context: &mut Context) -> Result<Vec<After>, Failure> {
    let (names, conditions): (Vec<_>, Vec<_>) = names.into_iter().map(split).unzip();
    let found = by_name(names.clone(), context)?;
    check_cleared(&names, &conditions, context)?;
    Ok(joined(found, conditions))
}

/// Refuses a condition on a batch that some of its tasks did not meet before they were cleared. Must come after the
/// lookup of the tasks: one that is cleared in between is then both named and counted.
fn check_cleared(names: &[Name], conditions: &[Condition], context: &mut Context) -> Result<(), Failure> {
    for (name, condition) in names.iter().zip(conditions) {
        if let (Name::Batch(batch), Some(cleared)) = (name, cleared_of(name, context)?)
            && is_missed(*condition, cleared)
        {
            let (batch, words) = (batch.as_str(), cleared_words(cleared));
            let message = format!("{words}, so not every task of batch {batch} can meet the condition");
            let hint = format!(
                "`--after @{batch}:any` starts after those that are left, however they end; or submit the batch again"
            );
            return Err(Failure::new(Code::WRONG_STATE, ErrorKind::NotComplete.as_str(), message).hint(hint));
        }
    }
    Ok(())
}

/// Reports whether some of these tasks are known not to have met a condition. Whether they had started, or were ready,
/// is not known.
const fn is_missed(condition: Condition, cleared: ClearedTasks) -> bool {
    match condition {
        Condition::Ok => cleared.not_completed > 0,
        Condition::Fail => cleared.not_completed < cleared.tasks,
        Condition::Any | Condition::Start | Condition::Ready => false,
    }
}

/// Returns the tasks of all batches among these names that are gone; `None` if there are none. Says nothing of a batch
/// that has no tasks any more, and counts one that is named twice once.
///
/// # Errors
/// The daemon can't be asked, or a prefix now means several batches.
pub fn cleared(names: &[Name], context: &mut Context) -> Result<Option<ClearedTasks>, Failure> {
    let mut batches: BTreeMap<Option<TaskId>, ClearedTasks> = BTreeMap::new();
    for name in names {
        let page = match batch_of(name, context) {
            Err(failure) if failure.is_of_missing_task() => None,
            page => page?,
        };
        if let Some(page) = page
            && let Some(cleared) = page.cleared
        {
            batches.insert(page.tasks.first().and_then(|task| task.batch), cleared);
        }
    }
    let mut all = ClearedTasks::default();
    for cleared in batches.into_values() {
        all.add(cleared);
    }
    Ok(Some(all).filter(|all| !all.is_empty()))
}

fn cleared_of(name: &Name, context: &mut Context) -> Result<Option<ClearedTasks>, Failure> {
    Ok(batch_of(name, context)?.and_then(|page| page.cleared))
}

/// Looks at a batch: at one of its tasks, and at how many are gone. `None` if this names no batch.
fn batch_of(name: &Name, context: &mut Context) -> Result<Option<ListResult>, Failure> {
    let Name::Batch(batch) = name else { return Ok(None) };
    let params = ListParams { batch: Some(batch.clone()), limit: Some(1), ..ListParams::default() };
    context.call::<TaskList>(&params).map(Some)
}

/// Describes tasks of a batch that are gone.
pub fn cleared_words(cleared: ClearedTasks) -> String {
    let ClearedTasks { tasks, not_completed } = cleared;
    let were = if tasks == 1 { "was" } else { "were" };
    let which = match (tasks, not_completed) {
        (_, 0) => String::new(),
        (1, _) => ", which had not completed,".to_owned(),
        _ => format!(", {not_completed} of which had not completed,"),
    };
    format!("{} of the batch{which} {were} already cleared", count(tasks, "task"))
}

fn split(AfterName { name, condition }: AfterName) -> (Name, Condition) {
    (name, condition)
}

/// Gives each task the condition of its name.
fn joined(found: Vec<Vec<TaskRef>>, conditions: Vec<Condition>) -> Vec<After> {
    let each = found.into_iter().zip(conditions);
    each.flat_map(|(ids, condition)| ids.into_iter().map(move |id| After { id, condition })).collect()
}

/// Returns as many of this session's latest tasks as the names count back. All names are resolved from one query, so
/// that a task submitted meanwhile does not shift them.
fn latest(names: &[Name], context: &mut Context) -> Result<Vec<Task>, Failure> {
    let counts = names.iter().map(|name| if let Name::Latest(count) = name { *count } else { 0 });
    let wanted = counts.max().unwrap_or(0);
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let session = session::this(context.link.is_remote()).map_err(|failure| {
        failure.hint("@ is the latest task of a session: set BGD_SESSION, or give the id of the task")
    })?;
    let mut params =
        ListParams { session: Some(session.clone()), limit: Some(wanted), ..ListParams::default() };
    let mut page = context.call::<TaskList>(&params)?;
    let mut tasks = page.tasks;
    // The daemon also caps a page by size, so it may hold fewer tasks than `limit`.
    while page.next.is_some() && tasks.len() < wanted {
        (params.after, params.limit) = (page.next, Some(wanted - tasks.len()));
        page = context.call::<TaskList>(&params)?;
        tasks.append(&mut page.tasks);
    }
    if tasks.len() < wanted {
        let session = clean(&session);
        let message = match tasks.len() {
            0 => format!("this session ({session}) has no tasks yet, so `@` means nothing"),
            1 => format!("this session ({session}) has one task, so there is no @{wanted}"),
            count => format!("this session ({session}) has {count} tasks, so there is no @{wanted}"),
        };
        return Err(Failure::new(Code::NO_TASK, "task_not_found", message)
            .hint("`bgctl list` shows the tasks of every session"));
    }
    Ok(tasks)
}

fn of_batch(batch: &TaskRef, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let ids = listed(&ListParams { batch: Some(batch.clone()), ..ListParams::default() }, context)?;
    if ids.is_empty() {
        let message = format!("there is no batch {}", batch.as_str());
        return Err(
            Failure::new(Code::NO_TASK, "task_not_found", message).hint("`bgctl list` shows the tasks")
        );
    }
    Ok(ids)
}

/// Returns all tasks that match, oldest first.
fn listed(params: &ListParams, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let mut params = ListParams { limit: Some(LIST_PAGE), ..params.clone() };
    let mut ids = Vec::new();
    loop {
        let page = context.call::<TaskList>(&params)?;
        ids.extend(page.tasks.iter().map(|task| TaskRef::from(task.id)));
        params.after = page.next;
        if params.after.is_none() {
            ids.reverse();
            return Ok(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r112_condition_on_a_batch_is_missed_if_a_cleared_task_did_not_meet_it() {
        let missed = |tasks, not_completed| {
            let cleared = ClearedTasks { tasks, not_completed };
            [Condition::Ok, Condition::Fail, Condition::Any].map(|condition| is_missed(condition, cleared))
        };
        assert_eq!(missed(3, 0), [false, true, false]);
        assert_eq!(missed(3, 1), [true, true, false]);
        assert_eq!(missed(3, 3), [true, false, false]);
    }

    #[test]
    fn r112_cleared_tasks_of_a_batch_are_described() {
        let words = |tasks, not_completed| cleared_words(ClearedTasks { tasks, not_completed });
        assert_eq!(words(2, 0), "2 tasks of the batch were already cleared");
        assert_eq!(words(1, 1), "1 task of the batch, which had not completed, was already cleared");
        assert_eq!(words(5, 2), "5 tasks of the batch, 2 of which had not completed, were already cleared");
    }

    #[test]
    fn r113_tasks_that_vanished_are_skipped_unless_none_is_left() {
        let gone = || Failure::new(Code::NO_TASK, "task_not_found", "gone");
        let run = |names: &[&str], why: &dyn Fn() -> Failure| {
            let mut done = Vec::new();
            let ids = names.iter().map(|name| name.parse().unwrap()).collect();
            let outcome = for_each(ids, &["task_not_found"], |id, before| {
                if id.as_str().starts_with("0000") {
                    return Err(why());
                }
                assert_eq!(before, done.len());
                done.push(id.as_str().to_owned());
                Ok(())
            });
            (done, outcome.map_err(|failure| failure.message))
        };
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(run(&["0000", "1111", "2222"], &gone), (owned(&["1111", "2222"]), Ok(())));
        assert_eq!(run(&["0000", "00001"], &gone), (vec![], Err("gone".into())));
        assert_eq!(run(&["0000"], &gone), (vec![], Err("gone".into())));
        assert_eq!(
            run(&["1111", "0000", "2222"], &|| Failure::usage("x")),
            (owned(&["1111"]), Err("x".into()))
        );
    }
}
