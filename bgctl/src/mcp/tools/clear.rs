//! `background_clear`: removes ended tasks (R10), but none whose result would be lost.

use std::collections::HashSet;
use std::sync::Arc;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ClearParams, ListParams, TaskClear, TaskList};
use bgd_shared::show::count;
use bgd_shared::task::{Status, Task};
use rmcp::model::{JsonObject, RequestId};

use crate::mcp::answer::{Body, Reported, ToolAnswer};
use crate::mcp::arguments::Arguments;
use crate::mcp::catalogue::CLEAR;
use crate::mcp::refusal::Refusal;
use crate::mcp::shared::Shared;
use crate::render::survivors;

/// The tasks that `background_clear` may remove.
#[derive(Debug, Default)]
pub struct Removable {
    /// The tasks that the call names, if any, as they were before the inbox was read; or why they can't be listed.
    pub named: Option<Result<Vec<Task>, Refusal>>,
    /// Otherwise: the newest tasks of this session that had ended before the inbox was read.
    pub ended: Vec<Task>,
    /// Whether there are older ones.
    pub more: bool,
    /// Tasks whose ends do not fit into the answer's notifications.
    pub unreported: HashSet<TaskId>,
    /// Whether the answer reports the ends of all other tasks.
    pub is_reported: bool,
}

/// The ended tasks that `background_clear` leaves behind.
#[derive(Clone, Copy, Debug)]
struct RemainingTasks {
    /// Whether older ended tasks remain.
    older: bool,
    /// How many ended tasks remain because some of their processes are still running.
    lingering: usize,
}

/// Reports whether a call would delete results that were never reported: of the tasks that it names, or of any of the
/// session if it deletes the `whole` session, of which only the newest tasks were listed.
fn loses_results(named: &[Task], unreported: &HashSet<TaskId>, whole: bool) -> bool {
    if whole { !unreported.is_empty() } else { named.iter().any(|task| unreported.contains(&task.id)) }
}

impl Shared {
    /// `background_clear`: removes ended tasks of this session (R10), except those whose end is still unreported: their
    /// notifications would lack the results.
    pub(in crate::mcp) async fn clear(
        self: &Arc<Self>,
        arguments: &Arguments,
        removable: Removable,
        request: &RequestId,
    ) -> Result<ToolAnswer, Refusal> {
        let all = arguments.flag("all")?;
        let has_ids = arguments.tasks("task_ids")?.is_some();
        let mut left = RemainingTasks { older: removable.more && !has_ids && !all, lingering: 0 };
        let named = match removable.named {
            Some(named) => named?,
            None if all => removable.ended,
            None => {
                let (lingering, ended): (Vec<_>, Vec<_>) =
                    removable.ended.into_iter().partition(|task| task.lingering);
                left.lingering = lingering.len();
                ended
            }
        };
        if !removable.is_reported {
            return Err(Refusal::new(
                "Nothing was deleted: this request was cancelled, or another one has the same id, so its answer \
                 might be lost. Call background_clear again.",
            ));
        }
        if loses_results(&named, &removable.unreported, all && !has_ids) {
            return Err(Refusal::new(
                "Nothing was deleted: more tasks have ended than fit above, and their results would be lost. Call \
                 background_clear again to get the next ones, or give the tasks to delete in \"task_ids\".",
            ));
        }
        // Tasks that this call cancels need no notification; tasks that ended by themselves do.
        let ends: Vec<_> = match (all, has_ids) {
            (true, false) => self.active().await?,
            (true, true) => {
                let active = named.iter().filter(|task| task.status.is_active());
                active.map(|task| (task.id, task.run)).collect()
            }
            (false, _) => Vec::new(),
        };
        self.ledger.awaits(request, ends.iter().map(|(id, _)| *id).collect());
        // Neither form reaches tasks of other sessions.
        let whole = !has_ids && all;
        let params = ClearParams {
            ids: (!whole).then(|| named.iter().map(|task| task.id.into()).collect()),
            session: whole.then(|| self.session.clone()),
            all,
            ..ClearParams::default()
        };
        if params.ids.as_ref().is_some_and(Vec::is_empty) {
            return Ok(self.cleared(0, left));
        }
        let call = tokio::time::timeout(self.max_block, self.link.end::<TaskClear>(params)).await;
        let result = call.map_err(|_| {
            Refusal::new(
                "The tasks need more time to end and are deleted then. background_list shows what is left.",
            )
        })?;
        let cleared = result?.cleared;
        let answer = self.cleared(cleared, left);
        let reported = ends.into_iter().map(|end| (end, Reported::Cancel)).collect();
        Ok(ToolAnswer { reported, ..answer })
    }

    /// Returns the tasks with these ids if all of them may be removed.
    async fn clearable(self: &Arc<Self>, ids: &[TaskRef], all: bool) -> Result<Vec<Task>, Refusal> {
        if ids.is_empty() {
            return Err(Refusal::new(
                "background_clear: \"task_ids\" is empty: give tasks, or omit it for all finished ones.",
            ));
        }
        let mut tasks = Vec::new();
        for id in ids {
            let task = self.own_task(id, "cleared").await?;
            if task.status.is_active() && !all {
                return Err(Refusal::new(format!(
                    "Task {} is {}, but only finished tasks can be deleted. background_cancel ends it.",
                    task.id, task.status
                )));
            }
            if let Some(left) = survivors(&task).filter(|_| !all) {
                return Err(Refusal::new(format!(
                    "Task {} was cancelled, but {left}. To delete it nevertheless, add \"all\": true.",
                    task.id
                )));
            }
            if task.lingering && !all {
                return Err(Refusal::new(format!(
                    "Task {} has ended, but processes it started are still running. background_cancel ends them.",
                    task.id
                )));
            }
            tasks.push(task);
        }
        Ok(tasks)
    }

    fn cleared(&self, cleared: u64, left: RemainingTasks) -> ToolAnswer {
        let mut opening = format!("Deleted {}.", count(cleared, "task"));
        if left.older {
            opening = format!("{opening} There are older ones: call it again to delete them too.");
        }
        if left.lingering > 0 {
            let (have, they) = if left.lingering == 1 { ("has", "it") } else { ("have", "they") };
            opening = format!(
                "{opening} {} more {have} ended, but processes {they} started may still be running: background_list \
                 shows them, background_cancel ends them if possible.",
                left.lingering
            );
        }
        self.about(&[], Body::Cleared { cleared }).with(opening, "")
    }

    /// Returns the tasks that a call of `background_clear` may remove. The caller fills in the rest from the inbox, which
    /// it must read afterwards: a task that ends later is not removed.
    pub(in crate::mcp) async fn removable(self: &Arc<Self>, given: &JsonObject) -> Removable {
        let ids_and_all =
            |arguments: Arguments| Some((arguments.tasks("task_ids").ok()?, arguments.flag("all").ok()?));
        match Arguments::new(&CLEAR, given.clone()).ok().and_then(ids_and_all) {
            Some((Some(ids), all)) => {
                Removable { named: Some(self.clearable(&ids, all).await), ..Removable::default() }
            }
            Some((None, _)) => self.ended().await,
            // The call itself reports what is wrong.
            None => Removable::default(),
        }
    }

    /// Returns the newest ended tasks of this session.
    async fn ended(self: &Arc<Self>) -> Removable {
        let status = Status::ALL.into_iter().filter(|status| !status.is_active()).collect();
        let session = Some(self.session.clone());
        let params =
            ListParams { session, status, limit: Some(LIST_PAGE), after: None, ..ListParams::default() };
        match self.link.call_running::<TaskList>(&params).await {
            Ok(Some(page)) => {
                Removable { more: page.next.is_some(), ended: page.tasks, ..Removable::default() }
            }
            // Without a daemon there are none.
            Ok(None) => Removable::default(),
            // The call reports the failure: an empty list would make it claim that there was nothing to delete.
            Err(failure) => Removable { named: Some(Err(failure.into())), ..Removable::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;

    #[test]
    fn r10_whole_session_is_not_cleared_while_any_result_is_unreported() {
        let (listed, older) = (task(), TaskId::from_u128(1));
        let of = |ids: &[TaskId]| ids.iter().copied().collect::<HashSet<_>>();
        assert!(loses_results(&[], &of(&[older]), true), "an end that the list does not reach");
        assert!(!loses_results(&[], &of(&[]), true));
        let named = [listed];
        assert!(!loses_results(&named, &of(&[older]), false), "the call does not delete it");
        assert!(loses_results(&named, &of(&[older, named[0].id]), false));
    }
}
