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
        if self.helpers.closing.is_some_and(|close| ends(close, purpose)) {
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

    /// Called when no task is left: asks warm agents to end; if forced, kills helpers.
    pub(super) fn close_helpers(&mut self, close: Close) {
        self.helpers.closing = Some(close);
        let signal = if close == Close::Asked { SIGTERM } else { SIGKILL };
        for process in self.helpers.of(|purpose| ends(close, purpose)) {
            self.end_helper(process, signal);
        }
    }
}

/// Reports whether helpers for this purpose end, and no more are started, when the daemon ends like this.
const fn ends(close: Close, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Agent => true,
        // Hooks still deliver the notifications of a daemon that is ending, until the grace period is over.
        Purpose::Hook => matches!(close, Close::ForcedHere | Close::Forced),
        // The last commands elsewhere need them.
        Purpose::Bridge => matches!(close, Close::Forced),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r11_helpers_of_last_commands_elsewhere_end_last() {
        let ended =
            |close| [Purpose::Agent, Purpose::Hook, Purpose::Bridge].map(|purpose| ends(close, purpose));
        assert_eq!(ended(Close::Asked), [true, false, false]);
        assert_eq!(ended(Close::ForcedHere), [true, true, false]);
        assert_eq!(ended(Close::Forced), [true; 3]);
    }
}
