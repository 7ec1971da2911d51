//! From what was typed to tasks: `@` is this session's latest, `@9c1e` a batch, and options say what tasks have in
//! common. Where ids alone are typed no daemon is asked.

use std::io::{self, IsTerminal as _, Write as _};

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskRef;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::order::After;
use bgd_shared::request::{ListParams, Matching, TaskList};
use bgd_shared::task::Task;

use crate::cli::{AfterName, SelectArgs};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::name::Name;
use crate::render::clean;
use crate::session;

/// The most tasks that are named where several match.
const CANDIDATES: usize = 10;

/// The tasks of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    /// One by one.
    Ids(Vec<TaskRef>),
    /// By what they have in common.
    Matching(Matching),
}

impl Chosen {
    /// As a request takes them: ids, or what the tasks have in common.
    pub fn split(self) -> (Vec<TaskRef>, Option<Matching>) {
        match self {
            Self::Ids(ids) => (ids, None),
            Self::Matching(matching) => (Vec::new(), Some(matching)),
        }
    }
}

/// Says on standard error that nothing was done, where standard output says it by being empty.
pub fn tell_none(what: &str) {
    // It may be closed.
    let _ = writeln!(io::stderr(), "bgctl: no {what} matches");
}

/// Whether a person types here, so that a task that is not named can be guessed.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The tasks that are meant by names or by what they have in common; no two of which the command line lets through.
///
/// # Errors
/// A name stands for no task, or the daemon can't be asked.
pub fn chosen(names: Vec<Name>, select: SelectArgs, context: &mut Context) -> Result<Chosen, Failure> {
    if let Some(matching) = matching(select)? {
        return Ok(Chosen::Matching(matching));
    }
    // A batch may have more tasks than fit one request.
    if let [Name::Batch(batch)] = &names[..] {
        return Ok(Chosen::Matching(Matching { batch: Some(batch.clone()), ..Matching::default() }));
    }
    all(names, context).map(Chosen::Ids)
}

/// What the selected tasks have in common, if anything was said.
///
/// # Errors
/// `.` stands for this parent session, and there is none.
pub fn matching(select: SelectArgs) -> Result<Option<Matching>, Failure> {
    if select.is_empty() {
        return Ok(None);
    }
    selected(select).map(Some)
}

/// What the selected tasks have in common, which may be nothing.
///
/// # Errors
/// `.` stands for this parent session, and there is none.
pub fn selected(select: SelectArgs) -> Result<Matching, Failure> {
    let SelectArgs { tags, group, batch, session, status } = select;
    Ok(Matching { session: session::named(session)?, group, batch, tags, status })
}

/// The tasks that are named, in their order; those of a batch in the order of their submission.
///
/// # Errors
/// A name stands for no task, or the daemon can't be asked.
pub fn all(names: Vec<Name>, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let latest = latest(&names, context)?;
    let mut ids = Vec::with_capacity(names.len());
    for name in names {
        match name {
            Name::Id(id) => ids.push(id),
            Name::Latest(count) => ids.extend(latest.get(count - 1).map(|task| task.id.into())),
            Name::Batch(batch) => ids.extend(of_batch(&batch, context)?),
        }
    }
    Ok(ids)
}

/// The one task that is named.
///
/// # Errors
/// The name stands for none or for several, or the daemon can't be asked.
pub fn one(name: Name, context: &mut Context) -> Result<TaskRef, Failure> {
    let batch = match &name {
        Name::Batch(batch) => batch.as_str().to_owned(),
        Name::Id(_) | Name::Latest(_) => String::new(),
    };
    let mut ids = all(vec![name], context)?;
    match (ids.pop(), ids.len()) {
        (Some(id), 0) => Ok(id),
        (_, others) => {
            let message = format!("@{batch} is a batch of {} tasks, but only one can be given", others + 1);
            Err(Failure::usage(message).hint(format!("`bgctl list --batch {batch}` shows them")))
        }
    }
}

/// The one task that is named; on a terminal this session's latest if none is, which is said on standard error.
///
/// # Errors
/// The name stands for none or for several, or the daemon can't be asked.
pub fn one_or_latest(name: Option<Name>, context: &mut Context) -> Result<TaskRef, Failure> {
    match name {
        Some(name) => one(name, context),
        None => implied(context),
    }
}

/// The one task that is named or selected; on a terminal this session's latest if none is.
///
/// # Errors
/// It is none or several, or the daemon can't be asked.
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

/// This session's latest task, as nobody named one.
///
/// # Errors
/// There is none, or the daemon can't be asked.
pub fn implied(context: &mut Context) -> Result<TaskRef, Failure> {
    let task = latest(&[Name::Latest(1)], context)?.swap_remove(0);
    // It may be closed.
    let _ =
        writeln!(io::stderr(), "bgctl: the latest task, {}: {}", task.id.short(), clean(&task.description));
    Ok(task.id.into())
}

/// The tasks that one of these verbs is about that prints one after the other.
///
/// # Errors
/// A name stands for no task, or the daemon can't be asked.
pub fn each(name: Option<Name>, select: SelectArgs, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    let Some(matching) = matching(select)? else {
        return match name {
            Some(name) => all(vec![name], context),
            None => implied(context).map(|id| vec![id]),
        };
    };
    // A verb that is about active tasks alone looks for no others.
    let is_active = matching.status.len() > 1 && matching.status.iter().all(|status| status.is_active());
    let ids = listed(&matching.into(), context)?;
    if ids.is_empty() {
        let what = if is_active { "no active task matches" } else { "no task matches" };
        return Err(Failure::new(Code::NO_TASK, "task_not_found", what)
            .hint("`bgctl list` with the same options shows the tasks and their status"));
    }
    Ok(ids)
}

/// The conditions on other tasks.
///
/// # Errors
/// A name stands for no task, or the daemon can't be asked.
pub fn after(names: Vec<AfterName>, context: &mut Context) -> Result<Vec<After>, Failure> {
    let mut after = Vec::with_capacity(names.len());
    for AfterName { name, condition } in names {
        after.extend(all(vec![name], context)?.into_iter().map(|id| After { id, condition }));
    }
    Ok(after)
}

/// The latest tasks of this session, as many as the names count back. One look for all of them: a task that is
/// submitted meanwhile moves none.
fn latest(names: &[Name], context: &mut Context) -> Result<Vec<Task>, Failure> {
    let counts = names.iter().map(|name| if let Name::Latest(count) = name { *count } else { 0 });
    let wanted = counts.max().unwrap_or(0);
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let session = session::this().map_err(|failure| {
        failure.hint("@ is the latest task of a session: set BGD_SESSION, or give the id of the task")
    })?;
    let mut params =
        ListParams { session: Some(session.clone()), limit: Some(wanted), ..ListParams::default() };
    let mut page = context.call::<TaskList>(&params)?;
    let mut tasks = page.tasks;
    // A page is not longer than it is large.
    while page.next.is_some() && tasks.len() < wanted {
        (params.after, params.limit) = (page.next, Some(wanted - tasks.len()));
        page = context.call::<TaskList>(&params)?;
        tasks.append(&mut page.tasks);
    }
    if tasks.len() < wanted {
        let session = clean(&session);
        let message = match tasks.len() {
            0 => format!("this session ({session}) has no task, so there is no @"),
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

/// All tasks of a list, the oldest first.
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
