//! Orders of users for runs, other than to end them: carried out at once, with the next connection, or never.

use std::sync::Arc;

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;

use super::{Machine, Outcome};
use crate::core::{Control, Fact, PlaceFact};
use crate::exec::elsewhere::places;
use crate::exec::executor::DoneSender;
use crate::exec::remote::bridge::Bridge;
use crate::exec::remote::order;
use crate::exec::remote::sweep;
use crate::exec::silence;

impl Machine {
    /// Carries out an order. If the machine can't be asked, or is yet to accept the run, that is done later. An order
    /// that must not come late, such as a signal, is refused then.
    pub(super) fn control(&mut self, task: TaskId, control: Control, done: DoneSender) {
        let Some(run) = self.runs.get_mut(&task) else {
            return places::refuse(task, &control, done, places::GONE);
        };
        let number = run.number;
        let (Some(there), Some(bridge)) = (run.there, self.bridge()) else {
            return self.control_later(task, control, done);
        };
        let Some(run) = self.runs.get_mut(&task) else { return };
        run.ordered(&control);
        let (caller, on) = (Arc::clone(&bridge), self.ssh.shell.host.clone());
        self.spawn(task, number, Some(bridge), async move {
            let result = order::control(&caller, there, control.clone()).await;
            let is_signal = matches!(control, Control::Signal { .. });
            if let Err(error) = &result {
                match error.kind() {
                    None if is_signal => {
                        let what = format!("the signal to task {task} was sent on {on}");
                        // Fails if the client is no longer waited for.
                        let _ = done.send(silence::no_answer(&what));
                    }
                    kind if is_signal && sweep::is_passing(kind) => {
                        places::refuse(task, &control, done, &format!("{on} is busy"));
                    }
                    // Other orders are carried out later.
                    kind if sweep::is_passing(kind) => {}
                    _ => places::refuse(task, &control, done, &error.to_string()),
                }
            }
            Outcome::Ordered(control, result)
        });
    }

    fn control_later(&mut self, task: TaskId, control: Control, done: DoneSender) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        if run.takes(&control) {
            return;
        }
        let (number, is_known) = (run.number, run.there.is_some());
        let why = if is_known { self.unreachable() } else { "it is still being submitted there".to_owned() };
        places::refuse(task, &control, done, &why);
        self.refused(task, number, control, &why);
    }

    /// Handles the answer to an order. If none will come, it may have been lost, and is compared with the next state of
    /// the run.
    pub(super) fn ordered(
        &mut self,
        bridge: Option<&Arc<Bridge>>,
        (task, number): (TaskId, u32),
        control: Control,
        result: Result<(), ClientError>,
    ) {
        if !bridge.is_some_and(|asked| self.is_current(asked)) {
            return;
        }
        if let Err(error) = &result
            && error.kind() == Some(ErrorKind::TooManyRequests)
        {
            return self.again(task, number, &control);
        }
        let refusal = match result.map_err(|error| (error.to_string(), sweep::unless_refused(error))) {
            Err((why, Err(_))) => return self.cut(&why),
            Err((why, Ok(()))) => Some(why),
            Ok(()) => None,
        };
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.answered();
        if let Some(why) = refusal {
            self.refused(task, number, control, &why);
        }
    }

    /// Has an order that found the machine busy carried out again: the run's next state shows what is left to do.
    fn again(&mut self, task: TaskId, number: u32, control: &Control) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        run.answered();
        if run.takes(control) {
            run.look_again();
            self.ready.push_back(task);
        }
    }

    fn refused(&self, task: TaskId, run: u32, control: Control, why: &str) {
        let fact = PlaceFact::Refused { control: Some(control), why: why.into() };
        self.context.facts.send(task, run, Fact::Elsewhere(fact));
    }
}
