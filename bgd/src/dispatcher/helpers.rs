//! The dispatcher's part in helpers: the processes of agents and hooks are started and ended with those of
//! tasks, but the core knows nothing of them.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;

use super::Dispatcher;
use crate::core::SpawnFailure;
use crate::exec::host::{Alive, Purpose, RUN, SIGKILL, SIGTERM, Watcher};
use crate::exec::messages::{Begun, StartOrder};
use crate::sys::pidfd::PidFd;

/// How long helpers have to end with the daemon, and notices to be delivered, before they are made to.
const HELPERS_GRACE: Duration = Duration::from_secs(2);

impl Dispatcher {
    pub(super) fn start_helper(&mut self, purpose: Purpose, order: StartOrder, mut watcher: Watcher) {
        let is_late = match purpose {
            Purpose::Agent => self.ended,
            // What a daemon that ends has to tell is told, for as long as the grace lasts.
            Purpose::Hook => self.ended && self.helpers_killed_at.is_none(),
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

    /// No task is left: agents that are kept warm are asked to end, and channels have a while to deliver.
    pub(super) fn begin_to_end(&mut self) {
        self.ended = true;
        self.helpers_killed_at = Instant::now().checked_add(HELPERS_GRACE);
        for process in self.helpers.of(Some(Purpose::Agent)) {
            self.end_helper(process, SIGTERM);
        }
        self.notifier.close();
    }

    /// The grace is over.
    pub(super) fn end_by_force(&mut self) {
        self.helpers_killed_at = None;
        for process in self.helpers.of(None) {
            self.end_helper(process, SIGKILL);
        }
        // Who could not be told by now is not waited for.
        self.notifier.give_up();
    }

    /// Whether a helper is left, or something is still to be told.
    pub(super) fn is_busy(&self) -> bool {
        self.helpers.is_busy() || self.notifier.is_busy()
    }
}
