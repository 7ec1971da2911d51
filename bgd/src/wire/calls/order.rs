//! Scheduling parameters: groups, priorities, dependencies, start times and retries, checked against their ranges.
//! Whether what they name exists is checked by the core.

use std::sync::Arc;

use bgd_shared::error::RpcError;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits;
use bgd_shared::order::{After, PRIORITIES, Restart, Retry, is_group_name};
use bgd_shared::params::parse_params;
use bgd_shared::request::Matching;
use bgd_shared::request::{
    self, EditParams, GroupParams, GroupSetParams, ListParams, Method, RerunParams, SelectParams, Stdin,
    SubmitParams,
};
use bgd_shared::time::Timestamp;

use super::body::Body;
use super::checks::{check_label, check_ms, check_tags, invalid};
use crate::core::{
    Edit, Filter, ListQuery, Ordinal, PlanRequest, Request, Rerun, Rule, Selection, StartTime, Text,
};

/// The default of `retry.delay_ms`: the maximum delay before the second attempt, in milliseconds.
const RETRY_DELAY_MS: u64 = 1000;

/// The default of `retry.max_delay_ms`: the upper bound of this delay as it grows, in milliseconds.
const RETRY_MAX_DELAY_MS: u64 = 300_000;

/// Checks and collects the scheduling parameters of a new task.
pub fn plan(params: &SubmitParams) -> Result<PlanRequest, RpcError> {
    let plan = PlanRequest {
        group: params.group.as_deref().map(group_name).transpose()?,
        priority: priority(params.priority.unwrap_or(0))?,
        slots: slots(params.slots.unwrap_or(1))?,
        after: after(params.after.clone())?,
        start: start(params.delay_ms, params.start_at)?,
        hold: params.hold,
        again: repetition(params.retry.as_ref(), params.restart)?,
    };
    let waits = !plan.after.is_empty() || plan.start.is_some() || plan.hold;
    if params.foreground && (waits || plan.again.is_some()) {
        return Err(invalid(
            "`foreground` can't be combined with `after`, `delay_ms`, `start_at`, `hold`, `retry` or `restart`",
        ));
    }
    let uses_up_streams = matches!(params.stdin, Some(Stdin::Fd | Stdin::Sent))
        || params.stdout.is_some()
        || params.stderr.is_some();
    if plan.again.is_some() && uses_up_streams {
        return Err(invalid(
            "`retry` and `restart` can't be combined with `stdin: \"fd\"` or `\"sent\"`, `stdout` or `stderr`: \
             input and descriptors can be used only once",
        ));
    }
    Ok(plan)
}

/// Checks the name of a group.
fn group_name(name: &str) -> Result<Arc<str>, RpcError> {
    if !is_group_name(name) {
        let shown: String = name.chars().take(limits::GROUP_BYTES).collect();
        return Err(invalid(format!(
            "{shown:?} is not a valid group name: use 1 to {} letters, digits, `.`, `_` and `-`",
            limits::GROUP_BYTES
        )));
    }
    Ok(name.into())
}

fn priority(priority: i32) -> Result<i32, RpcError> {
    if !PRIORITIES.contains(&priority) {
        let (low, high) = (PRIORITIES.start(), PRIORITIES.end());
        return Err(invalid(format!("`priority` is {priority}; it must be {low} to {high}")));
    }
    Ok(priority)
}

fn slots(slots: u32) -> Result<u32, RpcError> {
    if slots > limits::GROUP_SLOTS {
        return Err(invalid(format!("`slots` is {slots}; it must be 0 to {}", limits::GROUP_SLOTS)));
    }
    Ok(slots)
}

fn after(after: Vec<After>) -> Result<Vec<After>, RpcError> {
    if after.len() > limits::AFTER {
        let most = limits::AFTER;
        let error = invalid(format!("`after` names {} tasks; at most {most} are allowed", after.len()));
        let hint =
            "let several tasks wait for a part each, and this one for those; or wait with `bgctl block`";
        return Err(error.hint(hint));
    }
    Ok(after)
}

fn start(delay_ms: Option<u64>, start_at: Option<Timestamp>) -> Result<Option<StartTime>, RpcError> {
    check_ms("delay_ms", delay_ms)?;
    match (delay_ms, start_at) {
        (Some(_), Some(_)) => Err(invalid("`delay_ms` and `start_at` can't be combined: give one of them")),
        (Some(ms), None) => Ok(Some(StartTime::In(ms))),
        (None, Some(at)) => Ok(Some(StartTime::At(at))),
        (None, None) => Ok(None),
    }
}

fn repetition(retry: Option<&Retry>, restart: Option<Restart>) -> Result<Option<Rule>, RpcError> {
    match (retry, restart) {
        (Some(_), Some(_)) => Err(invalid("`retry` and `restart` can't be combined: give one of them")),
        (Some(retry), None) => retry_rule(retry).map(Some),
        (None, Some(restart)) => Ok(Some(Rule::Restart(restart))),
        (None, None) => Ok(None),
    }
}

fn retry_rule(retry: &Retry) -> Result<Rule, RpcError> {
    let Retry { times, delay_ms, max_delay_ms, codes, signal } = retry;
    if *times == 0 || *times > limits::RETRIES {
        return Err(invalid(format!("`retry.times` is {times}; it must be 1 to {}", limits::RETRIES)));
    }
    check_ms("retry.delay_ms", *delay_ms)?;
    check_ms("retry.max_delay_ms", *max_delay_ms)?;
    if let Some(code) = codes.iter().find(|code| !(1..=255).contains(*code)) {
        return Err(invalid(format!("`retry.codes` has {code}; exit codes of failures are 1 to 255")));
    }
    if codes.len() > 255 {
        return Err(invalid(format!("`retry.codes` has {} codes; there are 255", codes.len())));
    }
    let delay_ms =
        delay_ms.unwrap_or_else(|| max_delay_ms.map_or(RETRY_DELAY_MS, |most| most.min(RETRY_DELAY_MS)));
    let max_delay_ms = max_delay_ms.unwrap_or_else(|| RETRY_MAX_DELAY_MS.max(delay_ms));
    if max_delay_ms < delay_ms {
        return Err(invalid(format!(
            "`retry.max_delay_ms` is {max_delay_ms}, which is less than `retry.delay_ms`, {delay_ms}"
        )));
    }
    let codes = codes.clone().into();
    Ok(Rule::Retry { times: *times, delay_ms, max_delay_ms, codes, signal: *signal })
}

/// The methods that this module parses.
pub const METHODS: &[&str] = &[
    request::TaskHold::NAME,
    request::TaskRelease::NAME,
    request::TaskPause::NAME,
    request::TaskContinue::NAME,
    request::TaskEdit::NAME,
    request::TaskRerun::NAME,
    request::GroupList::NAME,
    request::GroupSet::NAME,
    request::GroupPause::NAME,
    request::GroupContinue::NAME,
    request::GroupRemove::NAME,
];

/// Parses a request for one of [`METHODS`].
pub fn read(method: &str, params: Option<&serde_json::value::RawValue>) -> Result<Body, RpcError> {
    Ok(Body::Core(match method {
        request::TaskHold::NAME => hold(parse_params(method, params)?, true)?,
        request::TaskRelease::NAME => hold(parse_params(method, params)?, false)?,
        request::TaskPause::NAME => set_paused(parse_params(method, params)?, true)?,
        request::TaskContinue::NAME => set_paused(parse_params(method, params)?, false)?,
        request::TaskEdit::NAME => edit(parse_params(method, params)?)?,
        request::TaskRerun::NAME => rerun(parse_params(method, params)?)?,
        request::GroupSet::NAME => set_group(&parse_params(method, params)?)?,
        request::GroupPause::NAME => pause_group(&parse_params(method, params)?, true)?,
        request::GroupContinue::NAME => pause_group(&parse_params(method, params)?, false)?,
        request::GroupRemove::NAME => remove_group(&parse_params(method, params)?)?,
        _ => return parse_params(method, params).map(|request::NoParams {}| Body::Groups),
    }))
}

/// `task.list`
pub fn list(params: ListParams) -> Result<ListQuery, RpcError> {
    let limit = params.limit.unwrap_or(limits::LIST_PAGE_DEFAULT);
    if limit == 0 || limit > limits::LIST_PAGE {
        return Err(invalid(format!("`limit` is {limit}; it must be 1 to {}", limits::LIST_PAGE)));
    }
    let ListParams { session, status, group, batch, tags, since, text, after, .. } = params;
    if text.as_deref() == Some("") {
        return Err(invalid("`text` is empty, so every task matches").hint("omit it"));
    }
    check_label("text", text.as_deref())?;
    let filter = filter(Matching { session, group, batch, tags, status })?;
    let text = text.as_deref().map(Text::new);
    Ok(ListQuery { filter, limit, after: after.map(Ordinal), since, text })
}

/// `task.edit`
fn edit(params: EditParams) -> Result<Request, RpcError> {
    let EditParams { id, description, group, priority: wanted, slots: taken, after: others, .. } = params;
    check_label("description", description.as_deref().filter(|text| !text.is_empty()))?;
    let start = start(params.delay_ms, params.start_at)?;
    let edit = Edit {
        id,
        description: description.map(Into::into),
        group: group.as_deref().map(group_name).transpose()?,
        priority: wanted.map(priority).transpose()?,
        slots: taken.map(slots).transpose()?,
        after: others.map(after).transpose()?,
        start,
    };
    let Edit { description, group, priority, slots, after, .. } = &edit;
    let changes_order = group.is_some() || priority.is_some() || slots.is_some() || after.is_some();
    if description.is_none() && !changes_order && start.is_none() {
        return Err(invalid("nothing to change: give at least one of the fields besides `id`"));
    }
    Ok(Request::Edit(Box::new(edit)))
}

/// `task.hold` and `task.release`
fn hold(params: SelectParams, held: bool) -> Result<Request, RpcError> {
    Ok(Request::Hold { which: selected(params)?, held })
}

/// `task.pause` and `task.continue`
fn set_paused(params: SelectParams, paused: bool) -> Result<Request, RpcError> {
    Ok(Request::SetPaused { which: selected(params)?, paused })
}

/// `task.rerun`
fn rerun(params: RerunParams) -> Result<Request, RpcError> {
    let RerunParams { ids, matching, failed, with_dependents, key } = params;
    check_label("key", key.as_deref())?;
    let key = key.map(Into::into);
    let which = selected(SelectParams { ids, matching })?;
    let seed = TaskId::random().as_u128();
    Ok(Request::Rerun(Box::new(Rerun { which, failed, with_dependents, key, seed })))
}

/// Returns the tasks that a call selects. The call must name tasks or give criteria.
fn selected(params: SelectParams) -> Result<Selection, RpcError> {
    let which = select(params.ids, params.matching)?;
    match which {
        Selection::Ids(ids) if ids.is_empty() => Err(invalid("no task given: give `ids` or `matching`")),
        which => Ok(which),
    }
}

/// Returns the tasks that a call selects, by ID or by criteria.
pub fn select(ids: Vec<TaskRef>, matching: Option<Matching>) -> Result<Selection, RpcError> {
    match matching {
        None => Ok(Selection::Ids(ids)),
        Some(_) if !ids.is_empty() => {
            Err(invalid("`ids` and `matching` can't be combined: give one of them"))
        }
        Some(matching) if matching.is_empty() => {
            Err(invalid("`matching` is empty: give a session, a group, a batch, tags or statuses"))
        }
        Some(matching) => filter(matching).map(Box::new).map(Selection::Matching),
    }
}

fn filter(matching: Matching) -> Result<Filter, RpcError> {
    let Matching { session, group, batch, tags, status } = matching;
    // An empty one would match the tasks that have none.
    check_label("session", session.as_deref())?;
    check_tags(&tags)?;
    Ok(Filter {
        session: session.map(Into::into),
        group: group.as_deref().map(group_name).transpose()?,
        batch,
        tags: tags.into(),
        status: status.into(),
    })
}

/// `group.set`
fn set_group(params: &GroupSetParams) -> Result<Request, RpcError> {
    let GroupSetParams { name, slots } = params;
    if *slots == 0 || *slots > limits::GROUP_SLOTS {
        return Err(invalid(format!("`slots` is {slots}; it must be 1 to {}", limits::GROUP_SLOTS))
            .hint("`group.pause` starts none of its tasks"));
    }
    Ok(Request::SetGroup { name: group_name(name)?, slots: *slots })
}

/// `group.pause` and `group.continue`
fn pause_group(params: &GroupParams, paused: bool) -> Result<Request, RpcError> {
    Ok(Request::PauseGroup { name: group_name(&params.name)?, paused })
}

/// `group.remove`
fn remove_group(params: &GroupParams) -> Result<Request, RpcError> {
    Ok(Request::RemoveGroup { name: group_name(&params.name)? })
}
