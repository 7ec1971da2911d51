//! The dispatcher's part in answers: converts the core's replies to responses for clients.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use bgd_shared::error::RpcError;
use bgd_shared::foreground::backgrounded_message;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockResult, DetachResult, GroupResult, HelloResult, InboxAckResult, InboxReadResult, Rerun, RerunResult,
    ShutdownResult, SubmitManyResult, SubmitResult, TasksResult,
};
use bgd_shared::show;

use futures_util::future::join_all;

use super::{Clear, Dispatcher, Shape};
use crate::client::answer::Answer;
use crate::core::{CoreError, Reply, Snapshot};
use crate::exec::executor::Done;
use crate::exec::silence;
use crate::wire::{refusals, view};

impl Dispatcher {
    /// Removes the outputs of cleared tasks on a worker, then sends the answers, once earlier removals are done, too.
    pub(super) fn remove_outputs(&self, tasks: Vec<(TaskId, u32)>, clears: Vec<(Answer, Clear)>) {
        if tasks.is_empty() && clears.is_empty() {
            return;
        }
        let (folder, removals) = (Arc::clone(&self.context.folder), Arc::clone(&self.removals));
        let job = removals.lock().begin();
        self.context.workers.later(move || {
            let removed = catch_unwind(AssertUnwindSafe(|| {
                for (task, runs) in tasks {
                    folder.remove(task, runs);
                }
            }));
            let due = removals.lock().end(job, clears);
            for (answer, clear) in due {
                match clear {
                    Clear::Tasks(result) => answer.give(&result),
                    Clear::Session(result) => answer.give(&result),
                }
            }
            // Later answers wait for this job, so it had to end before.
            if let Err(panic) = removed {
                resume_unwind(panic);
            }
        });
    }

    /// Answers with one task or several once `done` is complete. If an upgrade cuts the wait short, the next program
    /// repeats orders known to the core where necessary, but not a signal.
    pub(super) fn reply_later(
        &self,
        answer: Answer,
        shape: &Shape,
        reply: Reply,
        (done, is_signal): (Vec<Done>, bool),
    ) {
        let total = if let Reply::Tasks(list) = &reply { list.len() } else { 1 };
        let give: Box<dyn FnOnce(Answer) + Send> = match reply {
            Reply::Task(one) => {
                let result = self.one_task(shape, &one);
                Box::new(move |answer| answer.give(&result))
            }
            Reply::Tasks(list) => {
                let reader = self.reader.clone();
                Box::new(move |answer| reader.tasks(list, answer, |tasks| TasksResult { tasks }))
            }
            _ => return,
        };
        let mut wait = self.context.waits.begin();
        tokio::spawn(async move {
            match wait.until(join_all(done)).await {
                Some(all) => match of_all(all.into_iter().flatten().collect(), total) {
                    Some(refusal) => answer.refuse(&refusal),
                    None => give(answer),
                },
                None if is_signal => answer.refuse(&silence::given_up("the signal was delivered")),
                None => give(answer),
            }
        });
    }

    pub(super) fn reply(&self, answer: Answer, shape: Shape, reply: Reply) {
        match reply {
            Reply::Error(error) => answer.refuse(&self.refusal(error)),
            Reply::Backgrounded(snapshot) => {
                let message = backgrounded_message(snapshot.id);
                answer.give(&DetachResult { task: view::task(&snapshot, &self.context.folder), message });
            }
            Reply::Task(snapshot) => match shape {
                Shape::Plain | Shape::Submitted(_) => answer.give(&self.one_task(&shape, &snapshot)),
                Shape::Output(params) => self.reader.output(snapshot, params, answer),
                Shape::Result => self.reader.result(snapshot, answer),
            },
            Reply::Rerun(pairs) => {
                let tasks = pairs.into_iter().map(|(id, rerun_of)| Rerun { id, rerun_of }).collect();
                answer.give(&RerunResult { tasks });
            }
            Reply::Many { batch, ids } => {
                answer.give(&SubmitManyResult { existing: shape.is_existing(batch), batch, ids });
            }
            Reply::Tasks(list) => self.reader.tasks(list, answer, |tasks| TasksResult { tasks }),
            Reply::Blocked { tasks: list, timed_out, cleared } => {
                let of = |finished: bool| -> Vec<TaskId> {
                    list.iter().filter(|task| task.is_finished() == finished).map(|task| task.id).collect()
                };
                let (finished, active) = (of(true), of(false));
                let result = move |tasks| BlockResult { tasks, timed_out, finished, active, cleared };
                self.reader.tasks(list, answer, result);
            }
            Reply::Inbox { items, more, lost } => {
                let instance = self.identity.instance.clone();
                let result = InboxReadResult { items: Vec::new(), more, lost, instance };
                self.reader.inbox(items, result, answer);
            }
            Reply::Acknowledged { acknowledged, left } => {
                answer.give(&InboxAckResult { acknowledged, left });
            }
            Reply::Group(group) => answer.give(&GroupResult { group: view::group(&group) }),
            Reply::Owned => answer.give(&self.hello()),
            // Answered by `remove_outputs` once the outputs are gone.
            Reply::Cleared { .. } | Reply::SessionEnded { .. } => {}
            Reply::ShutDown { cancelled, left } => self.answer_shutdown(answer, cancelled, left),
        }
    }

    /// Returns the result of a call that returns one task: that of `task.submit` is the same, except for a task that
    /// existed already.
    fn one_task(&self, shape: &Shape, task: &Snapshot) -> SubmitResult {
        let existing = shape.is_existing(task.id);
        SubmitResult { task: view::task(task, &self.context.folder), existing }
    }

    /// Answers a shutdown, with what is lost. A worker looks for the journal, as its disk may hang; the daemon waits for
    /// that answer.
    fn answer_shutdown(&self, answer: Answer, cancelled: u64, left: u64) {
        let is_lost = self.durable.as_ref().is_some_and(|durable| !durable.is_written);
        let lost_because = is_lost.then(|| self.trouble_words());
        let mut result = ShutdownResult { cancelled, left, lost: 0, lost_because };
        let Some(journal) = self.durable.as_ref().and_then(|durable| durable.journal.file().cloned()) else {
            return answer.give(&result);
        };
        let total = self.core.summary().total();
        self.context.workers.later(move || {
            // Writing to the open file may have worked until now.
            if let Some(path) = journal.missing_path() {
                result.lost = total;
                result.lost_because = Some(show::missing_journal(&path.display().to_string()));
            }
            answer.give(&result);
        });
    }

    /// Converts an error. If the task ended too early for the request, also adds the task (R66).
    fn refusal(&self, error: CoreError) -> RpcError {
        let ended = match &error {
            CoreError::EndedFirst(id, _) => self.core.get(&(*id).into()).ok(),
            _ => None,
        };
        let mut error = refusals::of_core(error);
        error.data.task = ended.map(|task| Box::new(view::task(&task, &self.context.folder)));
        error
    }

    pub(super) fn hello(&self) -> HelloResult {
        HelloResult {
            protocol: bgd_shared::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.identity.instance.clone(),
            pid: self.identity.pid,
            limits: self.config.wire_limits(),
            background_key: self.config.background_key,
        }
    }
}

/// Returns the error for an order to so many tasks that these refusals answer; `None` if there are none. It contains the
/// first one, and says that the order was carried out for the other tasks.
fn of_all(refusals: Vec<RpcError>, total: usize) -> Option<RpcError> {
    let refused = refusals.len();
    let mut first = refusals.into_iter().next()?;
    if total > 1 {
        let concerned = if refused < total {
            format!("{refused} of {total} tasks: the order was carried out for the others")
        } else {
            format!("all {total} tasks")
        };
        first.message = format!("{}; this concerns {concerned}", first.message);
    }
    Some(first)
}
