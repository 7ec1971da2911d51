//! Readiness of processes (R110).

use bgd_shared::event::EventKind;

use super::Core;
use crate::task::{Ordinal, SIGTERM, State, StopOrder, StopReason, Task};
use crate::time::Now;
use crate::waiters::Until;

impl Core {
    /// Notes that a process is ready: once per run, and only while it is not being ended.
    pub(super) fn ready(&mut self, now: Now, ordinal: Ordinal) {
        let becomes = |task: &Task| {
            matches!(task.state, State::Running { .. })
                && task.spec.ready.is_some()
                && task.ready_at.is_none()
        };
        if self.registry.get(ordinal).is_some_and(becomes) {
            self.registry.change(ordinal, |task| task.ready_at = Some(now.wall));
            self.became(ordinal);
            self.event(now, EventKind::Ready, ordinal);
            self.wake(now, ordinal, Until::Ready);
        }
    }

    /// Ends a process that was not ready in time, as if it had exceeded its time limit.
    pub(super) fn not_ready(&mut self, now: Now, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let limit_ms = task.spec.ready_timeout_ms;
        if let (State::Running { .. }, None, Some(limit_ms)) = (&task.state, task.ready_at, limit_ms) {
            let grace_ms = self.limits.grace_ms;
            let order = StopOrder { reason: StopReason::NotReady(limit_ms), signal: SIGTERM, grace_ms };
            self.stop(now, ordinal, order);
        }
    }
}
