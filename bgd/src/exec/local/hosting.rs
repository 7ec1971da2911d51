//! The part in helpers of the owner of processes: starting and ending them.

use std::os::fd::AsFd as _;

use bgd_shared::id::TaskId;

use super::Local;
use crate::core::SpawnFailure;
use crate::exec::executor::Close;
use crate::exec::host::{Alive, Purpose, RUN, SIGKILL, SIGTERM, Watcher};
use crate::exec::messages::{Begun, StartOrder};
use crate::os::pidfd::PidFd;

impl Local {
    pub(super) fn start_helper(&mut self, purpose: Purpose, order: StartOrder, mut watcher: Watcher) {
        let is_late = match purpose {
            Purpose::Agent => self.helpers.closing.is_some(),
            // What a daemon that ends has to tell is told, for as long as the grace lasts.
            Purpose::Hook => self.helpers.closing == Some(Close::Forced),
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

    /// A helper runs, or could not be started.
    pub(super) fn helper_begun(&mut self, process: TaskId, result: Result<Box<Begun>, SpawnFailure>) {
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

    /// No task is left: agents that are kept warm are asked to end; with force, everything is made to.
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
