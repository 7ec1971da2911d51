//! Runs that another daemon or program has left on a machine: those taken up continue, and unknown ones are ended. Also
//! holds back orders until the state of a run is known.

use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::task::Task;
use tokio::sync::oneshot;

use super::{CallResult, Machine, Order, Outcome};
use crate::exec::elsewhere::places;
use crate::exec::remote::bridge::Bridge;
use crate::exec::remote::run::{self, Run};
use crate::exec::remote::sweep;

impl Machine {
    /// Keeps an order for a run that was taken up, or to which there was no connection, until its state on the machine
    /// is known, or the machine can't be connected to. Returns any other order.
    pub(super) fn keep_order(&mut self, order: Order) -> Option<Order> {
        let Some(task) = task_of(&order) else { return Some(order) };
        let may_be_seen = !self.has_connected || self.bridge().is_some();
        let run = self.runs.get_mut(&task).filter(|run| may_be_seen && run.is_outdated());
        let Some(run) = run else { return Some(order) };
        match order {
            // It is carried out when the states are compared.
            Order::Control { control, done, .. } if run.takes(&control) => {
                self.early_done.entry(task).or_default().push((control, done));
            }
            order => self.early_orders.push(order),
        }
        None
    }

    /// Stops keeping orders, as there is no connection: those that can't be carried out later are refused.
    pub(super) fn refuse_kept(&mut self) {
        self.early_done.clear();
        for order in std::mem::take(&mut self.early_orders) {
            self.order(order);
        }
    }

    /// Carries out the orders for a run that its state on the machine does not reflect yet.
    pub(super) fn catch_up(&mut self, task: TaskId) {
        let late = self.runs.get_mut(&task).map(Run::take_late).unwrap_or_default();
        let waiters = self.early_done.remove(&task).unwrap_or_default();
        let carried_out: Vec<_> = late
            .into_iter()
            .map(|control| {
                let (done, is_done) = oneshot::channel();
                self.control(task, control.clone(), done);
                (control, is_done)
            })
            .collect();
        // One of these calls can stand for several orders, so the waiter of each order waits for all calls.
        tokio::spawn(async move {
            let mut refusals = Vec::new();
            for (control, is_done) in carried_out {
                refusals.extend(is_done.await.ok().map(|error| (control, error)));
            }
            for (order, done) in waiters {
                let refusal = refusals.iter().find(|(control, _)| run::want_same(control, &order));
                if let Some((_, error)) = refusal {
                    // Fails if the client is no longer waited for.
                    let _ = done.send(error.clone());
                }
            }
        });
        self.order_kept(task);
    }

    /// Refuses the orders that were kept for a run that is gone.
    pub(super) fn release_kept(&mut self, task: TaskId) {
        for (control, done) in self.early_done.remove(&task).unwrap_or_default() {
            places::refuse(task, &control, done, places::GONE);
        }
        self.order_kept(task);
    }

    fn order_kept(&mut self, task: TaskId) {
        let kept: Vec<Order> =
            self.early_orders.extract_if(.., |order| task_of(order) == Some(task)).collect();
        for order in kept {
            self.order(order);
        }
    }

    /// Resumes copying the output of a run.
    pub(super) fn written(&mut self, task: TaskId, number: u32) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.unwritten_losses = run.unwritten_losses.saturating_sub(1);
        self.ready.push_back(task);
    }

    /// Looks for tasks that earlier daemons have left on the machine.
    pub(super) fn sweep(&mut self, bridge: Arc<Bridge>) {
        self.sweeps_at = None;
        if std::mem::replace(&mut self.has_swept, true) {
            return;
        }
        self.is_sweeping = true;
        let (origin, is_own_left) = (Arc::clone(&self.origin), self.may_have_left);
        self.calls.push(Box::pin(async move {
            let left = match sweep::end_earlier(&bridge, &origin).await {
                Ok(()) if is_own_left => sweep::leftover_tasks(&bridge, &origin).await,
                ended => ended.map(|()| Vec::new()),
            };
            let outcome = left.map_or(Outcome::Swept(false), Outcome::Left);
            CallResult { task: TaskId::from_u128(0), run: 0, bridge: Some(bridge), outcome }
        }));
    }

    /// Ends and removes those of these tasks on the machine that belong to no known run of any machine.
    pub(super) fn end_unknown(&mut self, bridge: Option<Arc<Bridge>>, tasks: &[Task]) {
        let Some(bridge) = bridge else { return };
        let unknown = self.known.unknown_of(tasks);
        if unknown.is_empty() {
            return self.swept(true);
        }
        let origin = Arc::clone(&self.origin);
        self.calls.push(Box::pin(async move {
            let is_done = sweep::end_tasks(&bridge, &origin, &unknown).await.is_ok();
            CallResult { task: TaskId::from_u128(0), run: 0, bridge: None, outcome: Outcome::Swept(is_done) }
        }));
    }

    /// Notes that a sweep is over. Unless everything was ended, another sweep follows after a pause.
    pub(super) fn swept(&mut self, is_done: bool) {
        (self.has_swept, self.is_sweeping) = (is_done, false);
        if is_done {
            self.reset_failures();
        } else {
            self.sweep_again();
        }
    }
}

/// Returns the task of a client's order that needs a connection.
fn task_of(order: &Order) -> Option<TaskId> {
    match order {
        Order::Control { task, .. } => Some(*task),
        Order::Write { asked } => Some(asked.task.id),
        _ => None,
    }
}
