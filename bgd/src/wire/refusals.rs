//! Converts refusals of the core to error responses: a kind, a sentence, and a hint.
//!
//! The tests of the core include this file: of this crate, it may only use `core` and `wire::failures`.

use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::limits;
use bgd_shared::params::shortened;
use bgd_shared::show::count;
use bgd_shared::task::Status;
use bytesize::ByteSize;

use crate::core::{
    CANDIDATES, CoreError, Finished, OrderError, Refusal, Unmovable, Unpausable, Unrepeatable,
};
use crate::wire::failures;

/// Returns the error response for a refusal.
pub fn of_core(error: CoreError) -> RpcError {
    match error {
        CoreError::NotFound(id) => RpcError::new(ErrorKind::TaskNotFound, format!("there is no task {id}"))
            .hint("`bgctl list` shows the tasks; those of an earlier daemon are gone"),
        CoreError::IsBatch(id) => is_batch(id),
        CoreError::Ambiguous(id, candidates) => {
            let many = if candidates.len() < CANDIDATES { "" } else { " or more" };
            let message = format!("{id} is ambiguous: {}{many} task ids begin with it", candidates.len());
            let mut error =
                RpcError::new(ErrorKind::AmbiguousId, message).hint("give more characters of the id");
            error.data.candidates = candidates;
            error
        }
        CoreError::NotComplete(id, status, finished) => not_complete(id, status, finished.as_deref()),
        CoreError::EndedFirst(id, status) => ended_first(id, status),
        CoreError::NotBackgroundable(id, why) => not_backgroundable(id, why),
        CoreError::NotRunning(id, status) => not_running(id, status),
        CoreError::NoSignals(id) => RpcError::new(
            ErrorKind::Unsupported,
            format!("task {id} is an agent's turn, which can't be signalled"),
        )
        .hint("`bgctl cancel` ends it"),
        CoreError::NotPausable(id, why) => not_pausable(id, why),
        CoreError::NoAgent(id) => no_agent(id),
        CoreError::NotResumable(id, status) => not_resumable(id, status),
        CoreError::BeingResumed(id) => being_resumed(id),
        CoreError::BeingCleared(id) => {
            RpcError::new(ErrorKind::NotResumable, format!("task {id} is about to be cleared"))
                .hint("submit a new task")
        }
        CoreError::Withdrawn(id) => RpcError::new(
            ErrorKind::NotResumable,
            format!("the resume of task {id} was cancelled before the agent got the prompt"),
        ),
        CoreError::NoSession { id, is_complete } => no_session(id, is_complete),
        CoreError::Refused(id, refusal) => {
            let Refusal { kind, message, hint } = *refusal;
            let mut error = RpcError::new(kind, format!("task {id} can't be resumed: {message}"));
            error.data.hint = hint.map(Into::into);
            error
        }
        CoreError::NotAsked(id, request, current) => not_asked(id, request, current),
        CoreError::NoSuchOption(id, option, known) => RpcError::new(
            ErrorKind::InvalidParams,
            format!("{:?} is not an option of the question of task {id}", shortened(&option)),
        )
        .hint(format!("the options are {}", known.join(", "))),
        CoreError::StillActive(id, status) => still_active(id, status),
        CoreError::TooManyJobs(limit) => too_many_jobs(limit),
        CoreError::TooManySessions(limit) => too_many_sessions(limit),
        CoreError::TooManyWaits(limit) => too_many_waits(limit),
        CoreError::TooManyReads(limit) => too_many_reads(limit),
        CoreError::Full(limit) => RpcError::new(
            ErrorKind::RegistryFull,
            format!("the daemon has reached its limit of {} (limits.tasks)", count(limit, "task")),
        )
        .hint(CLEAR),
        CoreError::FullMemory { held, inboxes, more, limit } => full_memory(held, inboxes, more, limit),
        CoreError::Order(error) => of_order(&error),
        CoreError::ShuttingDown => RpcError::new(ErrorKind::ShuttingDown, "the daemon is shutting down")
            .hint("start it again when it has ended"),
    }
}

fn no_agent(id: TaskId) -> RpcError {
    let message = format!("task {id} is a command; only agent tasks can be resumed");
    RpcError::new(ErrorKind::NotResumable, message).hint("submit a new task")
}

fn no_session(id: TaskId, is_complete: bool) -> RpcError {
    let (why, hint) = if is_complete {
        (
            "its agent gave none that can be used",
            "submit a new task; the daemon's log names an id that was not used; a template agent gives ids only with `session` and `resume` in [agents.NAME], and only \
             if its output has one where `session` points: bgd-config(5)",
        )
    } else {
        ("its turn was cut short before the agent gave one", "submit a new task")
    };
    let message = format!("task {id} can't be resumed: the conversation has no id: {why}");
    RpcError::new(ErrorKind::SessionExpired, message).hint(hint)
}

fn torn(batch: TaskId) -> RpcError {
    let message = format!(
        "only some tasks of batch {batch} are left, as the journal could not be written or was damaged"
    );
    RpcError::new(ErrorKind::JournalUnwritable, message)
        .hint("cancel or clear those, then submit all again; or submit the others with another key")
}

fn group_in_use(name: &str, active: u64) -> RpcError {
    let have = if active == 1 { "has" } else { "have" };
    let message = format!("group {name} can't be removed: {active} of its tasks {have} not ended");
    RpcError::new(ErrorKind::GroupInUse, message).hint(format!("`bgctl cancel --group {name}` cancels them"))
}

/// Returns the error for a refusal that concerns groups, batches or dependencies.
fn of_order(error: &OrderError) -> RpcError {
    match error {
        OrderError::UnknownGroup(name, known) => unknown_group(name, known),
        OrderError::TooManyGroups(limit) => {
            RpcError::new(ErrorKind::RegistryFull, format!("the limit of {limit} groups is reached"))
                .hint("`bgctl group remove NAME` removes one")
        }
        OrderError::GroupInUse(name, active) => group_in_use(name, *active),
        OrderError::DefaultGroup => {
            RpcError::new(ErrorKind::InvalidParams, "the group `default` can't be removed")
                .hint("`bgctl group pause default` starts none of its tasks")
        }
        OrderError::TooManySlots { task, wanted, group, slots } => {
            let task = task.map_or_else(|| "the task".to_owned(), |id| format!("task {id}"));
            let message = format!("group {group} has {}, but {task} takes {wanted}", count(*slots, "slot"));
            RpcError::new(ErrorKind::InvalidParams, message)
                .hint(format!("`bgctl group set {group} --slots {wanted}` gives it more"))
        }
        OrderError::LargeBatch { wanted, room } => RpcError::new(
            ErrorKind::RegistryFull,
            format!(
                "the batch has at least {wanted} tasks, but there is room for {room} (limits.tasks): none was \
                 submitted"
            ),
        )
        .hint(CLEAR),
        OrderError::NotEnded(id, status) if !status.is_active() => being_resumed(*id),
        OrderError::NotEnded(id, status) => {
            RpcError::new(ErrorKind::NotComplete, format!("task {id} has not ended: {}", state(*status)))
                .hint("only ended tasks can be run again; `bgctl cancel` ends it")
        }
        OrderError::NotRepeatable(id, why) => not_repeatable(*id, *why),
        OrderError::TooManyReruns(given) => RpcError::new(
            ErrorKind::InvalidParams,
            format!("{given} tasks were given, but at most {} can be run again at once", limits::RERUNS),
        )
        .hint("select fewer tasks, for example with --tag or --status"),
        OrderError::NoBatch(id) => {
            RpcError::new(ErrorKind::TaskNotFound, format!("there is no batch {id:?}"))
                .hint("`bgctl list --json` shows the batch of each task; a batch without tasks no longer exists")
        }
        OrderError::NotStaged(batch) => RpcError::new(
            ErrorKind::InvalidParams,
            format!("batch {batch} expects no further parts on this connection"),
        )
        .hint("start with `task`; send all parts over one connection; a rejected part ends the batch"),
        OrderError::Torn(batch) => torn(*batch),
        OrderError::AlreadyStaged(batch) => RpcError::new(
            ErrorKind::InvalidParams,
            format!("the last part of batch {batch} is missing on this connection; both batches are dropped"),
        )
        .hint("send `batch` in further parts, and no `more` in the last one"),
        OrderError::NotPending(id, status) => {
            RpcError::new(ErrorKind::NotPending, format!("task {id} is not pending: {}", state(*status)))
                .hint("only a pending task can be held, released or edited")
        }
        OrderError::GivenAway(id) => given_away(*id),
        OrderError::NeverReady(id) => {
            RpcError::new(ErrorKind::InvalidParams, format!("task {id} has no `ready`, so it never becomes ready"))
                .hint("submit it with --ready, or wait for its end, or for its start: `--after ID:start`")
        }
        OrderError::Cycle(other, id) if other == id => {
            RpcError::new(ErrorKind::InvalidParams, format!("task {id} can't start after itself"))
        }
        OrderError::Cycle(other, id) => RpcError::new(
            ErrorKind::InvalidParams,
            format!("task {id} can't start after task {other}, which itself starts after task {id}"),
        ),
    }
}

fn given_away(id: TaskId) -> RpcError {
    let what = "is queued on its executor: only its priority and description can change";
    RpcError::new(ErrorKind::NotPending, format!("task {id} {what}")).hint("cancel it and submit it again")
}

fn unknown_group(name: &str, known: &[Arc<str>]) -> RpcError {
    let known = known.join(", ");
    RpcError::new(ErrorKind::UnknownGroup, format!("unknown group {name:?}; known groups: {known}"))
        .hint(format!("`bgctl group set {name} --slots 1` creates it"))
}

fn not_repeatable(id: TaskId, why: Unrepeatable) -> RpcError {
    let (why, hint) = match why {
        Unrepeatable::Job => (
            "it used the terminal, or the input and output, of whoever started it or handed it over",
            "submit its command: `bgctl submit -- CMD`",
        ),
        Unrepeatable::Streams => {
            ("its input or output was a file or pipe of the caller", "submit it again with these")
        }
        Unrepeatable::Resumed => {
            ("it was resumed, and its prompts build upon each other", "submit its first prompt, or resume it")
        }
        Unrepeatable::NoEnvironment => (
            "its environment is no longer kept (limits.environments)",
            "submit its command: `bgctl submit -- CMD`",
        ),
    };
    RpcError::new(ErrorKind::InvalidParams, format!("task {id} can't be run again: {why}")).hint(hint)
}

fn ended_first(id: TaskId, status: Status) -> RpcError {
    let message = format!("task {id} has already ended: {}", state(status));
    RpcError::new(ErrorKind::AlreadyFinished, message)
        .hint("`bgctl status` shows how it ended, `bgctl output` what it wrote")
}

/// What to do about too many tasks. All of them may be active.
const CLEAR: &str = "`bgctl clear --all-sessions` removes the finished ones if there are any; or wait, cancel some, or \
                     raise limits.tasks in the configuration";

/// Describes a status in a clause.
fn state(status: Status) -> &'static str {
    match status {
        Status::Pending => "it is pending",
        Status::Running => "it is running",
        Status::Resumed => "it is being resumed",
        Status::Completed => "it completed",
        Status::Failed => "it failed",
        Status::Cancelled => "it was cancelled",
    }
}

/// Returns the error for a request that exceeds the limit on memory. Its hint names the inboxes first if they use most
/// of it, and otherwise only if emptying them makes enough room.
fn full_memory(held: usize, inboxes: usize, more: usize, limit: usize) -> RpcError {
    let size = |bytes: usize| ByteSize(bytes as u64);
    let tasks = held.saturating_sub(inboxes);
    let message = format!(
        "this needs {} of memory, but tasks use {} and inboxes {} of {} (limits.memory)",
        size(more),
        size(tasks),
        size(inboxes),
        size(limit)
    );
    let clear = "`bgctl clear --all-sessions` removes the finished tasks";
    let read = "`bgctl inbox --all-sessions --ack` prints and removes the notifications";
    let ways = if inboxes > tasks {
        format!("{read}; {clear}")
    } else if tasks.saturating_add(more) <= limit {
        format!("{clear}; {read}")
    } else {
        clear.to_owned()
    };
    let hint = format!("{ways}; or raise limits.memory in the configuration");
    RpcError::new(ErrorKind::RegistryFull, message).hint(hint)
}

fn not_backgroundable(id: TaskId, why: Unmovable) -> RpcError {
    let (why, hint) = match why {
        Unmovable::InBackground => ("it is already there", "`bgctl output` shows what it wrote"),
        Unmovable::OfAnother => ("it is the foreground job of another client", "move it where it is shown"),
        Unmovable::Direct => ("the user started it directly", "wait for it, or end it with `bgctl cancel`"),
    };
    let message = format!("task {id} can't be moved to the background: {why}");
    RpcError::new(ErrorKind::NotBackgroundable, message).hint(hint)
}

fn is_batch(id: TaskId) -> RpcError {
    RpcError::new(ErrorKind::TaskNotFound, format!("{id} is a batch, not a task"))
        .hint(format!("@{id} names its tasks, and so does --batch {id}"))
}

fn not_complete(id: TaskId, status: Status, finished: Option<&Finished>) -> RpcError {
    let (why, failure) = finished.map(failures::wire).unwrap_or_default();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let (word, hint) = if status.is_active() {
        ("is not complete yet", "`bgctl block` waits for it, `bgctl output` shows the output so far")
    } else {
        ("has no result", "`bgctl output` shows what it wrote")
    };
    let mut error =
        RpcError::new(ErrorKind::NotComplete, format!("task {id} {word}: {}{why}", state(status))).hint(hint);
    error.data.failure = failure.map(Box::new);
    error
}

fn not_pausable(id: TaskId, why: Unpausable) -> RpcError {
    let (kind, why, hint) = match why {
        Unpausable::Pending => (
            ErrorKind::NotRunning,
            "is pending: only running tasks can be paused and continued",
            "`bgctl hold` keeps it from starting, `bgctl release` lets it start",
        ),
        Unpausable::Agent => (
            ErrorKind::Unsupported,
            "is an agent's turn, which can't be paused or continued",
            "`bgctl cancel` ends it; `bgctl hold` keeps pending ones from starting",
        ),
        Unpausable::Ending => (
            ErrorKind::NotRunning,
            "is being ended, so it can't be paused or continued",
            "`bgctl block` waits for its end",
        ),
    };
    RpcError::new(kind, format!("task {id} {why}")).hint(hint)
}

fn too_many_jobs(limit: usize) -> RpcError {
    let message = format!("this connection has reached the limit of {limit} foreground jobs");
    RpcError::new(ErrorKind::TooManyRequests, message)
        .hint("move some to the background (`task.detach`), or submit without `foreground`")
}

fn too_many_sessions(limit: usize) -> RpcError {
    let message = format!("this connection has reached the limit of {limit} parent sessions");
    RpcError::new(ErrorKind::TooManyRequests, message).hint("use another connection")
}

fn too_many_waits(limit: usize) -> RpcError {
    let message = format!("the calls of this connection would wait for more than {limit} tasks");
    RpcError::new(ErrorKind::TooManyRequests, message)
        .hint("wait for each task once, or use another connection")
}

fn too_many_reads(limit: usize) -> RpcError {
    let message = format!("this connection already has {limit} waiting `inbox.read` calls, the limit");
    RpcError::new(ErrorKind::TooManyRequests, message)
        .hint("read each inbox once at a time, or use another connection")
}

fn not_resumable(id: TaskId, status: Status) -> RpcError {
    let message = format!("only completed tasks can be resumed; task {id} is {status}");
    let hint = if status.is_active() { "`bgctl block` waits for it" } else { "submit a new task" };
    RpcError::new(ErrorKind::NotResumable, message).hint(hint)
}

fn not_running(id: TaskId, status: Status) -> RpcError {
    let (message, hint) = match status {
        // It is shown like this from before the start of its main process until the end of all its processes.
        Status::Running | Status::Resumed => (
            format!(
                "task {id} has no main process: it is being started, or the rest of its processes are being ended"
            ),
            "`bgctl block` waits for its end, and `bgctl signal --tree` reaches processes that are left",
        ),
        status => (
            format!("task {id} is not running: {}", state(status)),
            "only running tasks accept signals and input, and can be paused and continued",
        ),
    };
    RpcError::new(ErrorKind::NotRunning, message).hint(hint)
}

fn being_resumed(id: TaskId) -> RpcError {
    RpcError::new(ErrorKind::BeingResumed, format!("task {id} is currently being resumed"))
        .hint("wait for the answer with `bgctl block`, then try again")
}

fn still_active(id: TaskId, status: Status) -> RpcError {
    let (kind, what) = if status.is_active() {
        (ErrorKind::NotComplete, status.as_str())
    } else {
        (ErrorKind::BeingResumed, "being resumed")
    };
    RpcError::new(kind, format!("task {id} is {what}, so it can't be cleared"))
        .hint("cancel it first; `bgctl clear --all ID` does both")
}

fn not_asked(id: TaskId, request: u64, current: Option<u64>) -> RpcError {
    let message = format!("question {request} of task {id} is not open");
    RpcError::new(ErrorKind::AlreadyFinished, message).hint(match current {
        Some(current) => format!("the open question is {current}"),
        None => "it has no open question".to_owned(),
    })
}
/// Returns the error for a write while tasks have too much unread input.
pub fn too_much_unread() -> RpcError {
    let limit = limits::UNREAD_INPUT_BYTES >> 20;
    let message =
        format!("the input that tasks have not read yet would exceed {limit} MiB, the limit for all tasks");
    RpcError::new(ErrorKind::TooManyRequests, message).hint("write again once they have read some of it")
}
