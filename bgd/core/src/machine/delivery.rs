//! Orders that a run's processes may not have received when a durable daemon is killed (R126): to continue after a
//! pause, and to end by a signal. They are persisted with the task until the executor reports their delivery.

use std::num::NonZeroI32;

use super::{Core, commands};
use crate::control::Control;
use crate::effect::Effect;
use crate::task::{Ordinal, State, Task};
use crate::time::{Mono, Now};
use crate::undelivered::{Order, Undelivered};

impl Core {
    /// Notes that a run was sent this signal to end it, with SIGKILL due at `kill_at`.
    pub(super) fn note_end(&mut self, now: Now, ordinal: Ordinal, signal: i32, kill_at: Mono) {
        if self.registry.get(ordinal).is_some_and(|task| task.spec.is_elsewhere()) {
            // The next daemon or program may have to repeat it.
            self.registry.change(ordinal, |task| {
                task.elsewhere.get_or_insert_default().signal = NonZeroI32::new(signal);
            });
        }
        let grace_ms = kill_at.0.saturating_sub(now.mono.0);
        self.note_order(ordinal, Some(Order::End { signal, grace_ms }));
    }

    /// Notes an order for the next daemon; `None` for an order without effect, whose delivery is reported like any
    /// other's. Only for processes on this machine: the next daemon queries runs elsewhere, and agent turns do not
    /// survive.
    pub(super) fn note_order(&mut self, ordinal: Ordinal, order: Option<Order>) {
        let is_noted = self.registry.get(ordinal).is_some_and(|task| task.spec.is_here());
        if !is_noted || !self.registry.is_tracked() {
            return;
        }
        self.registry.change(ordinal, |task| {
            let undelivered = task.undelivered.get_or_insert_default();
            undelivered.last = order.or(undelivered.last);
            undelivered.count = undelivered.count.saturating_add(1);
        });
    }

    /// Notes the delivery of the oldest undelivered order.
    pub(super) fn delivered(&mut self, ordinal: Ordinal) {
        let undelivered = self.registry.get(ordinal).and_then(|task| task.undelivered.as_deref().copied());
        if let Some(Undelivered { last, count }) = undelivered {
            let count = count.saturating_sub(1);
            let left = (count > 0).then(|| Box::new(Undelivered { last, count }));
            self.registry.change(ordinal, |task| task.undelivered = left);
        }
    }

    /// Drops the undelivered orders of a run.
    pub(super) fn drop_undelivered(&mut self, ordinal: Ordinal) {
        if self.registry.get(ordinal).is_some_and(|task| task.undelivered.is_some()) {
            self.registry.change(ordinal, |task| task.undelivered = None);
        }
    }

    /// Takes the last order that a run's processes may not have received from the previous daemon.
    pub(super) fn take_order(&mut self, ordinal: Ordinal) -> Option<Order> {
        let undelivered = self.registry.get(ordinal)?.undelivered.as_deref().copied();
        self.drop_undelivered(ordinal);
        undelivered?.last
    }

    /// Continues the running tasks that are not paused, because the previous daemon may have paused them without writing
    /// that to the journal.
    #[must_use]
    pub fn continue_running(&mut self, now: Now) -> Vec<Effect> {
        let is_concerned = |task: &Task| {
            let runs = matches!(task.state, State::Running { .. }) && task.spec.is_here();
            runs && !task.paused && !task.may_lack_order()
        };
        let concerned: Vec<Ordinal> =
            self.registry.iter().filter(|(_, task)| is_concerned(task)).map(|(ordinal, _)| ordinal).collect();
        let orders =
            concerned.into_iter().filter_map(|ordinal| self.order_again(now, ordinal, Order::Continue));
        orders.collect()
    }

    /// Repeats an order that may not have been delivered. The grace of a signal starts over.
    pub(super) fn order_again(&mut self, now: Now, ordinal: Ordinal, order: Order) -> Option<Effect> {
        let task = self.registry.get(ordinal)?;
        let effect = match (order, &task.state) {
            (Order::Continue, State::Running { .. }) => commands::control(task, Control::Continue),
            (Order::End { signal, grace_ms }, state) if state.kill_at().is_some() => {
                commands::end(task, signal, grace_ms)
            }
            (Order::Continue | Order::End { .. }, _) => return None,
        };
        if let Order::End { grace_ms, .. } = order {
            let kill_at = now.mono.plus_ms(grace_ms);
            self.change_task(ordinal, |task| task.state.set_kill_at(kill_at));
        }
        self.note_order(ordinal, Some(order));
        Some(effect)
    }
}
