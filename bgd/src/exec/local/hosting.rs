//! Helpers in the local executor: starts and ends them.

use std::os::fd::AsFd as _;

use bgd_shared::id::TaskId;

use super::Local;
use crate::core::SpawnFailure;
use crate::exec::executor::Close;
use crate::exec::host::{Alive, Purpose, RUN, SIGKILL, SIGTERM, Watcher};
use crate::exec::messages::{StartOrder, StartedProcess};
use crate::os::pidfd::PidFd;

impl Local {
    pub(super) fn start_helper(&mut self, purpose: Purpose, order: StartOrder, mut watcher: Watcher) {
        let is_late = match purpose {
            Purpose::Agent => self.helpers.closing.is_some(),
            // Hooks still deliver the notifications of a daemon that is ending, until the grace period is over.
            Purpose::Hook | Purpose::Bridge => self.helpers.closing == Some(Close::Forced),
        };
        if is_late {
            return watcher.begun(Err("the daemon is ending".into()));
        }
        self.helpers.starting(order.task, purpose, watcher);
        self.processes.start(order);
    }

    pub(super) fn end_helper(&mut self, process: TaskId, signal: i32) {
        self.helpers.end_later(process, signal);
        self.processes.end(process, RUN, signal);
    }

    /// Handles the outcome of a helper's start.
    pub(super) fn helper_begun(
        &mut self,
        process: TaskId,
        result: Result<Box<StartedProcess>, SpawnFailure>,
    ) {
        match result {
            Ok(begun) => {
                let handle = begun.pidfd.as_fd().try_clone_to_owned().ok().map(PidFd::from);
                let pid = self.processes.adopt(process, RUN, *begun, None);
                if let Some(signal) = self.helpers.begun(process, Alive { pid, handle }) {
                    self.processes.end(process, RUN, signal);
                }
            }
            Err(failure) => self.helpers.failed(process, failure.message),
        }
    }

    /// Called when no task is left: asks warm agents to end; if forced, kills all helpers.
    pub(super) fn close_helpers(&mut self, close: Close) {
        self.helpers.closing = Some(close);
        let (purpose, signal) = match close {
            Close::Asked => (Some(Purpose::Agent), SIGTERM),
            Close::Forced => (None, SIGKILL),
        };
        for process in self.helpers.of(purpose) {
            self.end_helper(process, signal);
        }
    }
}
