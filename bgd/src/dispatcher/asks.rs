//! The dispatcher's part in requests about running tasks: checks that the core has such a run, and forwards the request
//! to its executor.

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskRef;

use super::Dispatcher;
use crate::client::answer::Answer;
use crate::core::{CoreError, Snapshot, State};
use crate::exec::executor::{Ask, Asked};
use crate::wire::{refusals, view};

impl Dispatcher {
    /// Forwards a write to the executor of a task, unless tasks have too much unread input.
    pub(super) fn ask_to_write(&mut self, answer: Answer, task: &TaskRef, data: Vec<u8>, eof: bool) {
        if let Some(unread) = self.context.unread.add(data.len()) {
            return self.ask_executor(answer, task, Ask::Write { data, eof, unread });
        }
        // If the task is not running, report that instead.
        let found = self.core.get(task).map_err(refusals::of_core).and_then(|task| must_run(&task));
        answer.refuse(&found.err().unwrap_or_else(refusals::too_much_unread));
    }

    /// Forwards a client's request to the executor of a running task.
    pub(super) fn ask_executor(&mut self, answer: Answer, task: &TaskRef, mut what: Ask) {
        let snapshot = match self.core.get(task) {
            Ok(snapshot) => snapshot,
            Err(error) => return answer.refuse(&refusals::of_core(error)),
        };
        if let Err(error) = may_ask(&snapshot, &what, answer.client().id) {
            return answer.refuse(&error);
        }
        if let Ask::Attach { owns, .. } = &mut what {
            *owns = snapshot.foreground == Some(answer.client().id);
        }
        let task = Box::new(view::task(&snapshot, &self.context.folder));
        if let Some(executor) = self.executors.of(snapshot.spec.executor()) {
            executor.ask(Asked { answer, task, what });
        }
    }
}

fn may_ask(task: &Snapshot, what: &Ask, client: u64) -> Result<(), RpcError> {
    let id = task.id;
    if matches!(what, Ask::Leave) {
        if task.foreground != Some(client) {
            return Ok(());
        }
        let message = format!("task {id} is a foreground job of this connection");
        let error = RpcError::new(ErrorKind::InvalidParams, message);
        return Err(error.hint("move it to the background with `background: true`, or cancel it"));
    }
    must_run(task)
}

fn must_run(task: &Snapshot) -> Result<(), RpcError> {
    match &task.state {
        State::Running { .. } | State::Stopping { exit: None, .. } => Ok(()),
        _ => Err(refusals::of_core(CoreError::NotRunning(task.id, task.status()))),
    }
}
