//! `background_block`: waits for tasks (R22 to R25, R117), for as long as a client waits for an answer, or as an MCP
//! task.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::BLOCK_TIMEOUT_MS;
use bgd_shared::request::{BlockMode, BlockParams, BlockResult, BlockUntil, TaskBlock};
use bgd_shared::show;
use bgd_shared::task::Task;
use regex::bytes::Regex;
use rmcp::service::{RequestContext, RoleServer};
use tokio::time::Instant;

use super::Reply;
use super::progress::{self, Progress};
use super::seek::{LOOK_EVERY, Sighting};
use crate::failure::Failure;
use crate::mcp::answer::{Body, ToolAnswer};
use crate::mcp::arguments::Arguments;
use crate::mcp::refusal::Refusal;
use crate::mcp::shared::Shared;
use crate::mcp::waits::Wait;
use crate::mcp::words::{self, DAEMON_ENDED, Over};

/// Maximum number of connections that a wait for a line may lose.
const LOSSES: u32 = 8;

#[derive(Clone, Debug)]
struct Wanted {
    ids: Vec<TaskRef>,
    until: Until,
    timeout_ms: u64,
}

/// The condition to wait for.
#[derive(Clone, Debug)]
enum Until {
    /// All tasks have ended.
    Ended,
    /// All tasks are ready or have ended.
    Ready,
    /// The single task prints a matching line.
    Line(Regex),
}

/// The findings of a wait.
#[derive(Debug)]
struct Seen {
    result: BlockResult,
    /// The matching line, if there was one.
    line: Option<String>,
    /// Whether the input ended meanwhile.
    is_input_over: bool,
    /// The daemon instance that had the tasks when the wait began.
    instance: Option<String>,
}

impl Until {
    /// Returns the protocol's word for the condition.
    fn wire(&self) -> BlockUntil {
        if let Self::Ready = self { BlockUntil::Ready } else { BlockUntil::Ended }
    }

    /// Returns the active tasks that do not meet the condition yet. A task that is about to be resumed has not ended,
    /// whatever its status.
    fn left(&self, result: &BlockResult) -> Vec<TaskId> {
        let is_ready = |task: &Task| self.wire() == BlockUntil::Ready && task.ready_at.is_some();
        let active: HashSet<TaskId> = result.active.iter().copied().collect();
        let left = result.tasks.iter().filter(|task| active.contains(&task.id) && !is_ready(task));
        left.map(|task| task.id).collect()
    }

    /// Describes the progress of a wait.
    fn progress(&self, result: &BlockResult) -> String {
        let all = result.tasks.len();
        let done = all - self.left(result).len();
        let what = match (self, done) {
            (Self::Ready, 1) => "is ready",
            (Self::Ready, _) => "are ready",
            (_, 1) => "has ended",
            (_, _) => "have ended",
        };
        format!("{done} of {all} tasks {what}")
    }

    /// Refuses a condition that these tasks can never meet.
    fn check(&self, result: &BlockResult) -> Result<(), Refusal> {
        let never = |task: &&Task| task.status.is_active() && task.ready.is_none();
        match self {
            Self::Line(_) if result.tasks.len() != 1 => Err(Refusal::new(format!(
                "background_block: \"line\" waits for a line of one task, but \"task_ids\" has {}: make one call \
                 per task.",
                result.tasks.len()
            ))),
            Self::Ready => result.tasks.iter().find(never).map_or(Ok(()), |task| {
                Err(Refusal::new(format!(
                    "Task {} was started without \"ready\", so it never becomes ready: wait for a line of its \
                     output with \"line\", or omit \"until\" to wait for its end.",
                    task.id
                )))
            }),
            Self::Line(_) | Self::Ended => Ok(()),
        }
    }
}

impl Shared {
    /// Returns the longest wait of this client in milliseconds; `None` if it accepts MCP tasks, whose waits have no
    /// maximum.
    pub(in crate::mcp) fn longest_wait_ms(&self, context: &RequestContext<RoleServer>) -> Option<u64> {
        let most = u64::try_from(self.max_block.as_millis()).unwrap_or(u64::MAX);
        (!takes_tasks(context)).then_some(most)
    }

    /// Waits and reports the state of the tasks.
    pub(in crate::mcp) async fn block(
        self: &Arc<Self>,
        arguments: &Arguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<Reply, Refusal> {
        let mut wanted = wanted(arguments)?;
        let timeout = wanted.timeout_ms;
        let now = self.look(&wanted.ids).await?;
        wanted.until.check(&now)?;
        let is_over = wanted.until.left(&now).is_empty() || asks(&now);
        if !is_over
            && timeout > 0
            && takes_tasks(context)
            && let Some(wait) = self.waits.begin(timeout)
        {
            tokio::spawn(Arc::clone(self).wait_as_task(Arc::clone(&wait), wanted, now));
            return Ok(Reply::Later(wait));
        }
        self.ledger.awaits(&context.id, now.active.clone());
        let most = u64::try_from(self.max_block.as_millis()).unwrap_or(u64::MAX);
        wanted.timeout_ms = timeout.min(most);
        let mut progress = Progress::of(context);
        let seen = self.wait(&wanted, now, &mut progress, context.ct.cancelled()).await?;
        Ok(self.blocked(&wanted, &seen, timeout > most).into())
    }

    async fn wait_as_task(self: Arc<Self>, wait: Arc<Wait>, wanted: Wanted, now: BlockResult) {
        let outcome = self.wait(&wanted, now, &mut None, wait.until_cancelled()).await;
        wait.ends(outcome.map(|seen| self.blocked(&wanted, &seen, false)));
    }

    /// Returns the current state of the tasks. Refuses tasks that this server may not show.
    async fn look(self: &Arc<Self>, ids: &[TaskRef]) -> Result<BlockResult, Refusal> {
        let result = self.link.call::<TaskBlock>(BlockParams::look(ids.to_vec())).await?;
        for task in &result.tasks {
            let mut named = ids.iter().filter(|id| id.range().contains(&task.id));
            if let Some(id) = named.clone().find(|id| id.exact().is_some()).or_else(|| named.next()) {
                self.check_readable(id, task)?;
            }
        }
        Ok(result)
    }

    /// Like [`Self::look`], for tasks that it has accepted. Returns `None` if no daemon is running, and starts none: the
    /// user may have stopped it.
    async fn look_running(self: &Arc<Self>, ids: Vec<TaskRef>) -> Result<Option<BlockResult>, Failure> {
        self.link.call_running::<TaskBlock>(&BlockParams::look(ids)).await
    }

    /// Brings the state of the tasks up to date. A task that had ended may have been cleared meanwhile: then its last
    /// known state stays. So it does without a daemon; then returns false.
    async fn look_again(self: &Arc<Self>, latest: &mut BlockResult) -> Result<bool, Refusal> {
        let all = latest.tasks.iter().map(|task| task.id.into()).collect();
        match self.look_running(all).await {
            Ok(Some(now)) => *latest = now,
            Ok(None) => return Ok(false),
            Err(failure) if !failure.is_of_missing_task() => return Err(failure.into()),
            Err(_) if latest.active.is_empty() => {}
            Err(_) => {
                let active = latest.active.iter().map(|id| (*id).into()).collect();
                let Some(now) = self.look_running(active).await? else { return Ok(false) };
                update(latest, now);
            }
        }
        Ok(true)
    }

    /// Waits until the condition is met, a task asks its user a question, the timeout expires, the answer is no longer
    /// wanted, or the input has ended.
    async fn wait(
        self: &Arc<Self>,
        wanted: &Wanted,
        now: BlockResult,
        progress: &mut Option<Progress>,
        stop: impl Future<Output = ()>,
    ) -> Result<Seen, Refusal> {
        let deadline = Instant::now() + Duration::from_millis(wanted.timeout_ms);
        let instance = self.link.instance();
        let mut ended = self.ended.clone();
        let stop = async move {
            tokio::select! {
                () = stop => {}
                () = async { drop(ended.wait_for(|ended| *ended).await) } => {}
            }
        };
        if let (Until::Line(pattern), [task]) = (&wanted.until, &now.tasks[..]) {
            let id = task.id;
            let (result, line) = self.wait_for_line(id, now, pattern, deadline, progress, stop).await?;
            return Ok(Seen { result, line, is_input_over: *self.ended.borrow(), instance });
        }
        let result = self.wait_for_all(wanted, now, deadline, progress, stop).await?;
        Ok(Seen { result, line: None, is_input_over: *self.ended.borrow(), instance })
    }

    /// Waits for a line of a task. A restart of a daemon that keeps the task does not end the wait.
    async fn wait_for_line(
        self: &Arc<Self>,
        id: TaskId,
        now: BlockResult,
        pattern: &Regex,
        deadline: Instant,
        progress: &mut Option<Progress>,
        stop: impl Future<Output = ()>,
    ) -> Result<(BlockResult, Option<String>), Refusal> {
        let mut stop = std::pin::pin!(stop);
        let mut losses = 0;
        loop {
            let found = self.seek(id, pattern.clone(), deadline, progress, &mut stop).await;
            // Before `found?`: if the daemon has gone meanwhile, this call notices it too and reports what that means.
            // A daemon that the user has stopped refuses; one that leaves its tasks may just close the connection.
            let is_lost = matches!(&found, Ok(Sighting::Lost(failure))
                if failure.kind != ErrorKind::ShuttingDown.as_str())
                && !self.link.was_stopped();
            let Some(result) = self.look_after(is_lost, id).await? else {
                let line = found?.line().ok_or_else(|| Refusal::new(DAEMON_ENDED))?;
                return Ok((now, Some(line)));
            };
            let line = match found? {
                // The last lines may have been printed after the search.
                Sighting::NotYet if result.active.is_empty() => {
                    self.seek(id, pattern.clone(), deadline, progress, pending()).await?.line()
                }
                // The next daemon has the task.
                Sighting::Lost(_) if losses < LOSSES => {
                    losses += 1;
                    continue;
                }
                Sighting::Lost(failure) => return Err(failure.into()),
                found => found.line(),
            };
            return Ok((result, line));
        }
    }

    /// Returns the state of a task after a search for a line; `None` if no daemon is running. Starts the next one if the
    /// daemon `is_lost`.
    async fn look_after(self: &Arc<Self>, is_lost: bool, id: TaskId) -> Result<Option<BlockResult>, Refusal> {
        if is_lost {
            return self.look(&[id.into()]).await.map(Some);
        }
        Ok(self.look_running(vec![id.into()]).await?)
    }

    async fn wait_for_all(
        self: &Arc<Self>,
        wanted: &Wanted,
        now: BlockResult,
        deadline: Instant,
        progress: &mut Option<Progress>,
        stop: impl Future<Output = ()>,
    ) -> Result<BlockResult, Refusal> {
        let until = &wanted.until;
        let mut ticks = progress::ticks();
        let mut stop = std::pin::pin!(stop);
        let mut latest = now;
        loop {
            let left = until.left(&latest);
            let time = deadline.saturating_duration_since(Instant::now());
            if left.is_empty() || asks(&latest) || time.is_zero() {
                return Ok(latest);
            }
            let mode = if progress.is_some() { BlockMode::AnyOrAsks } else { BlockMode::AllOrAsks };
            let mut call = std::pin::pin!(self.wait_aside(left, until, mode, deadline));
            let is_over = loop {
                tokio::select! {
                    result = &mut call => {
                        match result {
                            Ok(Some(seen)) => update(&mut latest, seen),
                            Ok(None) => {}
                            // The look below finds no daemon, or the next one.
                            Err(_) if self.link.was_stopped() => {}
                            Err(failure) => return Err(failure.into()),
                        }
                        break false;
                    }
                    () = &mut stop => break true,
                    _ = ticks.tick(), if progress.is_some() => {
                        if let Some(progress) = progress {
                            progress.notify(until.progress(&latest)).await;
                        }
                    }
                }
            };
            if !self.look_again(&mut latest).await? {
                // Nothing is left to wait for, and another wait would start a daemon.
                let is_met = until.left(&latest).is_empty() || asks(&latest);
                return if is_met { Ok(latest) } else { Err(Refusal::new(DAEMON_ENDED)) };
            }
            if is_over {
                return Ok(latest);
            }
            if let Some(progress) = progress {
                progress.notify(until.progress(&latest)).await;
            }
        }
    }

    /// Waits on a separate connection, and returns the state of the tasks; `None` if no permit becomes available in
    /// time, or the daemon was stopped meanwhile.
    async fn wait_aside(
        self: &Arc<Self>,
        left: Vec<TaskId>,
        until: &Until,
        mode: BlockMode,
        deadline: Instant,
    ) -> Result<Option<BlockResult>, Failure> {
        let ids: Vec<TaskRef> = left.iter().map(|id| (*id).into()).collect();
        let params = BlockParams { ids, mode, until: until.wire(), ..BlockParams::default() };
        let turn = loop {
            let now = Instant::now();
            match self.link.turn(deadline.min(now + LOOK_EVERY)).await {
                Some(turn) => break turn,
                None if now + LOOK_EVERY >= deadline => return Ok(None),
                None => {}
            }
            // All permits are in use by long waits; the condition may have been met meanwhile.
            let params = BlockParams { timeout_ms: Some(0), ..params.clone() };
            let Some(result) = self.link.call_unless_stopped::<TaskBlock>(params).await? else {
                return Ok(None);
            };
            let still = until.left(&result).len();
            if still == 0 || (mode.is_any() && still < left.len()) || asks(&result) {
                return Ok(Some(result));
            }
        };
        let time = deadline.saturating_duration_since(Instant::now()).as_millis();
        let timeout_ms = Some(u64::try_from(time).unwrap_or(u64::MAX).max(1));
        self.link.wait::<TaskBlock>(turn, BlockParams { timeout_ms, ..params }).await.map(Some)
    }

    /// Builds the answer to a wait (R24). `may_be_cut`: the call asked for a longer wait.
    fn blocked(&self, wanted: &Wanted, seen: &Seen, may_be_cut: bool) -> ToolAnswer {
        let Seen { result, line, is_input_over, instance } = seen;
        let text = |ids: &[TaskId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (finished, active) = (text(&result.finished), text(&result.active));
        let left = if line.is_some() { Vec::new() } else { wanted.until.left(result) };
        let has_question = line.is_none() && asks(result);
        let is_early = !left.is_empty() && !has_question;
        let timed_out = is_early && !is_input_over;
        let cut = timed_out && may_be_cut;
        let time = show::duration(wanted.timeout_ms);
        let over = if *is_input_over { Over::InputEnded } else { Over::TimedOut(time.clone()) };
        let mut opening = match (&wanted.until, has_question) {
            (_, true) => words::asked(result),
            (Until::Ended, false) => words::ended(result, &over),
            (Until::Ready, false) => words::ready(result, &over),
            (Until::Line(_), false) => words::line(result, line.is_some(), &over),
        };
        if cut {
            // Writing to a string can't fail.
            let _ = write!(
                opening,
                " The wait was limited to {time}, this server's maximum, as many agents abort longer tool calls.",
            );
        }
        let again = wanted.again(&text(&left));
        let next = if has_question {
            format!(
                "Tell the user what it asks: waiting is useless until they have answered. Then wait with \
                 background_block {again}, or continue with other work: its end will be reported."
            )
        } else if is_early && *is_input_over {
            // The server is about to end, so no further call can follow.
            String::new()
        } else if timed_out {
            format!(
                "To keep waiting, call background_block {again} again, or continue with other work: the end will \
                 be reported. background_cancel ends a task."
            )
        } else if let [task] = &result.tasks[..] {
            words::after(task, self.is_own(task))
        } else if active.is_empty() {
            words::MORE_OF_EACH.to_owned()
        } else {
            words::while_running(&active)
        };
        let (line, instance) = (line.clone(), instance.clone());
        let body = Body::Blocked { timed_out, cut, finished, active, line, instance };
        self.about(&result.tasks, body).with(opening, next)
    }
}

impl Wanted {
    /// Returns the parameters of a call that continues waiting for these tasks.
    fn again(&self, ids: &[String]) -> String {
        let ids = serde_json::to_string(ids).unwrap_or_default();
        let more = match &self.until {
            Until::Ended => String::new(),
            Until::Ready => ", \"until\": \"ready\"".to_owned(),
            Until::Line(pattern) => {
                format!(", \"line\": {}", serde_json::to_string(pattern.as_str()).unwrap_or_default())
            }
        };
        format!("{{\"task_ids\": {ids}{more}}}")
    }
}

/// Replaces the state of some of the tasks with a later one.
fn update(known: &mut BlockResult, later: BlockResult) {
    let seen: HashSet<TaskId> = later.tasks.iter().map(|task| task.id).collect();
    known.active.retain(|id| !seen.contains(id));
    known.active.extend(later.active);
    known.finished.retain(|id| !seen.contains(id));
    known.finished.extend(later.finished);
    for task in later.tasks {
        if let Some(place) = known.tasks.iter_mut().find(|known| known.id == task.id) {
            *place = task;
        }
    }
}

/// Parses the parameters of a call.
fn wanted(arguments: &Arguments) -> Result<Wanted, Refusal> {
    let Some(ids) = arguments.tasks("task_ids")?.filter(|ids| !ids.is_empty()) else {
        return Err(arguments.missing(&["task_ids"]));
    };
    let until = match (arguments.until("until")?, arguments.line("line")?) {
        (Some(BlockUntil::Ready), Some(_)) => {
            return Err(Refusal::new(
                "background_block: \"until\": \"ready\" and \"line\" can't be combined: give one of them.",
            ));
        }
        (_, Some(pattern)) => Until::Line(pattern),
        (Some(BlockUntil::Ready), None) => Until::Ready,
        (Some(BlockUntil::Ended) | None, None) => Until::Ended,
    };
    let timeout_ms = arguments.milliseconds("timeout")?.unwrap_or(BLOCK_TIMEOUT_MS);
    Ok(Wanted { ids, until, timeout_ms })
}

/// Reports whether a task waits for its user's answer.
fn asks(result: &BlockResult) -> bool {
    result.tasks.iter().any(|task| task.status.is_active() && task.progress.needs_input.is_some())
}

/// Reports whether the client accepts an MCP task as an answer.
fn takes_tasks(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}
