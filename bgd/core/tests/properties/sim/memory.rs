//! Memory of tasks: the core counts as they come and go, while this module examines all of them.

use bgd_core::sharing::KeptEnv;
use bgd_core::{Input, Request, State, env_bytes};
use bgd_shared::text::Env;
use proptest::prop_assert_eq;

use super::{Checked, Sim};

/// Number of steps between two examinations.
const LOOK_EVERY: u64 = 16;

impl Sim {
    /// Examines every task, and passes the memory in use before an input to the model.
    pub(super) fn weigh(&mut self, input: &Input) -> Checked {
        let Input::Request { request, .. } = input else { return Ok(()) };
        let adds = matches!(
            request,
            Request::Submit(_)
                | Request::SubmitMany(_)
                | Request::Adopt { .. }
                | Request::Resume { .. }
                | Request::Edit(_)
        );
        if !adds && !self.steps.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        let mut bytes = 0;
        let mut envs: Vec<Env> = Vec::new();
        let tasks = self.model.live.values().filter_map(|known| self.core.get(&known.id.into()).ok());
        for (place, task) in tasks.enumerate() {
            // All tasks share their working directory.
            bytes += task.own_bytes() + if place == 0 { task.spec.shared_bytes() } else { 0 };
            let queued = match &task.state {
                State::Queued { env } | State::Starting { env: Some(KeptEnv(env)), .. } => Some(env),
                _ => None,
            };
            let again = task.plan().again.as_ref().map(|again| &again.env);
            for env in queued.into_iter().chain(again).chain(task.agent.as_ref().map(|agent| &agent.env)) {
                if !envs.contains(env) {
                    bytes += env_bytes(env);
                    envs.push(Env::clone(env));
                }
            }
        }
        prop_assert_eq!(self.core.held_by_tasks(), bytes, "what tasks hold is miscounted");
        (self.model.held, self.model.held_by_inboxes) = (self.core.held(), self.core.held_by_inboxes());
        self.model.envs = envs;
        Ok(())
    }
}
