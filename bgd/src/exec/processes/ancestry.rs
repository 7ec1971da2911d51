//! Decides what a client may do from its ancestors in `/proc`: an agent's processes may not answer that agent's own
//! questions, and only a process's family may hand it over. Blocks for a short time: call it on a worker.
//!
//! This only keeps honest programs honest: every process of a user has that user's rights, and a determined one can
//! bypass these checks.

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::proc::has_ended;

use super::members::{AGENT_MARK, MAX_DEPTH, Stat, TASK_MARK, ancestors_of, mark_of};

/// How many times a client's ancestors are looked up: some of them may end during a lookup.
const LOOKS: u32 = 3;

/// Checks that a client may answer an agent's question in this task.
///
/// # Errors
/// The client belongs to the agent, or has ended and can't be checked.
pub fn may_answer(client: i32, agent: i32, task: TaskId) -> Result<(), RpcError> {
    let refuse = |message: String| {
        Err(RpcError::new(ErrorKind::PermissionDenied, message)
            .hint("answer from a terminal or a program that the agent has not started"))
    };
    match (0..LOOKS).find_map(|_| belongs_to(client, agent, task)) {
        Some(false) => Ok(()),
        Some(true) => refuse(format!(
            "process {client} belongs to the agent of task {task}, which can't answer its own question"
        )),
        None => refuse(format!("process {client}, which answers the question of task {task}, has ended")),
    }
}

/// Returns whether a process belongs to an agent; `None` if the process or one of its ancestors has ended.
fn belongs_to(process: i32, agent: i32, task: TaskId) -> Option<bool> {
    let me = std::process::id().cast_signed();
    let mark = mark_of(agent, AGENT_MARK);
    let mut is_marked = false;
    let mut current = process;
    for _ in 0..MAX_DEPTH {
        let stat = Stat::of(current)?;
        let of_task = mark_of(current, TASK_MARK);
        let of_agent = mark_of(current, AGENT_MARK);
        let is_its = of_task.as_ref().is_some_and(|id| *id == task.to_string())
            || of_agent.is_some() && of_agent == mark;
        if current == agent || is_its {
            return Some(true);
        }
        is_marked |= of_task.is_some() || of_agent.is_some();
        if stat.parent == me {
            // Every process that the daemon starts is marked, so one without a mark has removed it.
            return Some(!is_marked);
        }
        if stat.parent <= 1 {
            return Some(false);
        }
        current = stat.parent;
    }
    None
}

/// Checks that a client may hand over a process: the client or its parent must have started the process, as a shell
/// starts both the process and the `bgctl` that hands it over. A client that has ended can't be looked up; the process
/// must then be an orphan.
///
/// # Errors
/// Neither of them started the process.
pub fn may_hand_over(client: Option<i32>, process: i32) -> Result<(), RpcError> {
    // Look up the process first: its parent changes when the client ends.
    let Some(parent) = Stat::of(process).map(|stat| stat.parent) else { return Ok(()) };
    let above = client.and_then(Stat::of).map(|stat| stat.parent);
    let is_related = Some(parent) == client || above.is_some_and(|above| above > 1 && above == parent);
    if is_related || client.is_some_and(|client| has_ended(client) && adopts(parent, client)) {
        return Ok(());
    }
    let who = client
        .map_or_else(|| "a process of another pid namespace".to_owned(), |pid| format!("process {pid}"));
    let message =
        format!("process {process} is not a child of {who}, which hands it over, nor of its parent");
    let hint = "only its parent, or a child of that, can hand it over; in a subshell such as $(...) use `exec bgctl \
         handoff`";
    Err(RpcError::new(ErrorKind::ForeignProcess, message).hint(hint))
}

/// Reports whether `parent` may have adopted an orphan: it is pid 1, or the daemon, the client or an ancestor of one of
/// them.
fn adopts(parent: i32, client: i32) -> bool {
    let me = std::process::id().cast_signed();
    parent == 1 || ancestors_of(me).contains(&parent) || ancestors_of(client).contains(&parent)
}
