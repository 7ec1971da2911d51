//! The dispatcher's part in measuring the resource usage of running tasks.

use std::time::Duration;

use bgd_shared::id::TaskRef;
use bgd_shared::request::UsageResult;
use bgd_shared::usage::LiveUsage;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Dispatcher;
use crate::client::answer::Answer;
use crate::core::{Snapshot, State};
use crate::exec::processes::members::descendants_of;
use crate::exec::supervise::usage::live;
use crate::wire::refusals;

/// The timeout for measuring one task. A task that takes longer, as its processes hang in the kernel, is left out.
const PATIENCE: Duration = Duration::from_secs(1);

impl Dispatcher {
    /// Measures tasks on workers, and answers when all are measured.
    pub(super) fn measure(&mut self, answer: Answer, ids: &[TaskRef]) {
        let tasks: Result<Vec<Snapshot>, _> = ids.iter().map(|id| self.core.get(id)).collect();
        let tasks = match tasks {
            Ok(tasks) => tasks,
            Err(error) => return answer.refuse(&refusals::of_core(error)),
        };
        let measured: Vec<_> = tasks.iter().filter_map(|task| self.usage_of(task)).collect();
        tokio::spawn(async move {
            let mut usages = Vec::with_capacity(measured.len());
            for usage in measured {
                usages.extend(timeout(PATIENCE, usage).await.ok().and_then(Result::ok));
            }
            usages.retain(|usage: &LiveUsage| usage.processes > 0);
            answer.give(&UsageResult { usages });
        });
    }

    fn usage_of(&mut self, task: &Snapshot) -> Option<oneshot::Receiver<LiveUsage>> {
        if let (State::Running { pid, .. } | State::Stopping { pid, .. }, Some(_)) =
            (&task.state, &task.agent)
        {
            let (id, pid) = (task.id, (*pid)?);
            let (done, usage) = oneshot::channel();
            self.context.workers.later(move || {
                // The client may have disconnected.
                let _ = done.send(live(id, &descendants_of(&[pid])));
            });
            return Some(usage);
        }
        self.executors.of(task.spec.executor())?.usage(task.id, task.run)
    }
}
