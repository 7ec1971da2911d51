//! `background_block`: waits for tasks (R22 to R25), as long as a client waits for an answer, or as a task of the
//! protocol.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::BLOCK_TIMEOUT_MS;
use bgd_shared::request::{BlockMode, BlockParams, BlockResult, TaskBlock};
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Reply;
use crate::duration::show_ms;
use crate::failure::Failure;
use crate::mcp::answer::{Answer, Body};
use crate::mcp::arguments::Arguments;
use crate::mcp::refusal::Refusal;
use crate::mcp::shared::Shared;
use crate::mcp::waits::Wait;
use crate::mcp::words;

/// How often a client that asked for it is told that the wait goes on.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How often a wait that has no turn looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells a client how far a wait is.
#[derive(Debug)]
struct Progress {
    client: Peer<RoleServer>,
    token: ProgressToken,
    begun: Instant,
    /// The last number that was told: the next one is higher.
    last: f64,
}

impl Progress {
    fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { client: context.peer.clone(), token, begun: Instant::now(), last: -1.0 })
    }

    async fn tell(&mut self, result: &BlockResult) {
        self.last = self.begun.elapsed().as_secs_f64().max(self.last + 0.001);
        let message = format!("{} of {} tasks have ended", result.finished.len(), result.tasks.len());
        let params = ProgressNotificationParam::new(self.token.clone(), self.last).with_message(message);
        // A client that is gone is noticed where its input ends.
        let _ = self.client.notify_progress(params).await;
    }
}

impl Shared {
    /// Waits, and tells how the tasks are.
    pub(in crate::mcp) async fn block(
        self: &Arc<Self>,
        arguments: &Arguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<Reply, Refusal> {
        let Some(ids) = arguments.tasks("task_ids")?.filter(|ids| !ids.is_empty()) else {
            return Err(arguments.missing(&["task_ids"]));
        };
        let timeout = arguments.milliseconds("timeout")?.unwrap_or(BLOCK_TIMEOUT_MS);
        let now = self.look(&ids).await?;
        if !now.active.is_empty()
            && timeout > 0
            && !asks(&now)
            && takes_tasks(context)
            && let Some(wait) = self.waits.begin(timeout)
        {
            tokio::spawn(Arc::clone(self).wait_as_task(Arc::clone(&wait), ids, timeout));
            return Ok(Reply::Later(wait));
        }
        self.told.awaits(&context.id, now.active.clone());
        let most = u64::try_from(self.max_block.as_millis()).unwrap_or(u64::MAX);
        let mut progress = Progress::of(context);
        let result = self.wait(ids, now, timeout.min(most), &mut progress, context.ct.cancelled()).await?;
        let cut = timeout > most && !result.active.is_empty();
        Ok(self.blocked(&result, timeout.min(most), cut).into())
    }

    async fn wait_as_task(self: Arc<Self>, wait: Arc<Wait>, ids: Vec<TaskRef>, timeout: u64) {
        let outcome = match self.look(&ids).await {
            Ok(now) => self.wait(ids, now, timeout, &mut None, wait.until_cancelled()).await,
            Err(refusal) => Err(refusal),
        };
        wait.ends(outcome.map(|result| self.blocked(&result, timeout, false)));
    }

    /// How the tasks are now.
    async fn look(self: &Arc<Self>, ids: &[TaskRef]) -> Result<BlockResult, Refusal> {
        let params = BlockParams { ids: ids.to_vec(), timeout_ms: Some(0), mode: BlockMode::All };
        let result = self.link.call::<TaskBlock>(params).await?;
        for task in &result.tasks {
            let mut named = ids.iter().filter(|id| id.range().contains(&task.id));
            if let Some(id) = named.clone().find(|id| id.exact().is_some()).or_else(|| named.next()) {
                self.check_readable(id, task)?;
            }
        }
        Ok(result)
    }

    /// Waits until all have ended, one asks its user something, the time is over, nobody wants the answer, or the
    /// input has ended.
    async fn wait(
        self: &Arc<Self>,
        ids: Vec<TaskRef>,
        now: BlockResult,
        timeout_ms: u64,
        progress: &mut Option<Progress>,
        stop: impl Future<Output = ()>,
    ) -> Result<BlockResult, Refusal> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let mut ticks = interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = self.ended.clone();
        let mut stop = std::pin::pin!(async move {
            tokio::select! {
                () = stop => {}
                () = async { drop(ended.wait_for(|ended| *ended).await) } => {}
            }
        });
        let mut latest = now;
        while !latest.active.is_empty() && !asks(&latest) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let ids_left = latest.active.iter().map(|id| (*id).into()).collect();
            let mode = if progress.is_some() { BlockMode::AnyOrAsks } else { BlockMode::AllOrAsks };
            let mut call = std::pin::pin!(self.wait_aside(ids_left, mode, deadline));
            let is_over = loop {
                tokio::select! {
                    result = &mut call => {
                        result?;
                        break false;
                    }
                    () = &mut stop => break true,
                    _ = ticks.tick(), if progress.is_some() => {
                        if let Some(progress) = progress {
                            progress.tell(&latest).await;
                        }
                    }
                }
            };
            latest = self.look(&ids).await?;
            if is_over {
                break;
            }
            if let Some(progress) = progress {
                progress.tell(&latest).await;
            }
        }
        Ok(latest)
    }

    /// Waits on a connection of its own. If its turn does not come in time, it is over like a wait in vain.
    async fn wait_aside(
        self: &Arc<Self>,
        ids: Vec<TaskRef>,
        mode: BlockMode,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let turn = loop {
            let now = Instant::now();
            match self.link.turn(deadline.min(now + LOOK_EVERY)).await {
                Some(turn) => break turn,
                None if now + LOOK_EVERY >= deadline => return Ok(()),
                None => {}
            }
            // Others have waited for long; what it waits for may have ended meanwhile.
            let params = BlockParams { ids: ids.clone(), timeout_ms: Some(0), mode };
            let result = self.link.call::<TaskBlock>(params).await?;
            let is_enough = result.active.is_empty() || (mode.is_any() && !result.finished.is_empty());
            if is_enough || asks(&result) {
                return Ok(());
            }
        };
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let timeout_ms = Some(u64::try_from(left).unwrap_or(u64::MAX).max(1));
        self.link.wait::<TaskBlock>(turn, BlockParams { ids, timeout_ms, mode }).await.map(drop)
    }

    /// The answer to a wait (R24).
    fn blocked(&self, result: &BlockResult, waited_ms: u64, cut: bool) -> Answer {
        let text = |ids: &[TaskId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (finished, active) = (text(&result.finished), text(&result.active));
        let has_question = asks(result);
        let (timed_out, cut) = (!active.is_empty() && !has_question, cut && !has_question);
        let mut opening = opening(result, &show_ms(waited_ms));
        if cut {
            // Writing to a string can't fail.
            let _ = write!(
                opening,
                " The wait was cut to {}, the longest of this server, as agents give up on a tool that takes longer.",
                show_ms(waited_ms)
            );
        }
        let list = serde_json::to_string(&active).unwrap_or_default();
        let next = if has_question {
            format!(
                "Tell the user what it asks: until they have answered, waiting for it is of no use. Then wait with \
                 background_block {{\"task_ids\": {list}}}; or go on with other work, as the end is told in any case."
            )
        } else if timed_out {
            format!(
                "To wait on, call background_block {{\"task_ids\": {list}}} again; or go on with other work, as the end \
                 is told in any case. background_cancel ends a task."
            )
        } else if let [task] = &result.tasks[..] {
            words::after(task, self.is_own(task))
        } else {
            "background_output shows more of the output of each of them.".to_owned()
        };
        let body = Body::Blocked { timed_out, cut, finished, active };
        self.about(&result.tasks, body).with(opening, next)
    }
}

/// Whether one of the tasks waits for its user.
fn asks(result: &BlockResult) -> bool {
    result.tasks.iter().any(|task| task.status.is_active() && task.progress.needs_input.is_some())
}

/// How a wait of this length ended.
fn opening(result: &BlockResult, waited: &str) -> String {
    let (active, all) = (result.active.len(), result.tasks.len());
    match (active, all, asks(result)) {
        (0, 1, _) => "It has ended.".to_owned(),
        (0, _, _) => format!("All {all} have ended."),
        (1, 1, true) => "It asks its user something, and waits for the answer.".to_owned(),
        (_, _, true) => {
            format!(
                "A task asks its user something, and waits for the answer: {} of {all} have ended, {active} have not.",
                all - active
            )
        }
        (1, 1, false) => format!("The time is over ({waited}), and it still runs."),
        (_, _, false) => {
            format!("The time is over ({waited}): {} of {all} have ended, {active} still run.", all - active)
        }
    }
}

/// Whether the client takes a task of the protocol for an answer.
fn takes_tasks(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}
