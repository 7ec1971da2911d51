//! The dispatcher's part in processes handed over by other programs (R70). The executor prepares first, then the core
//! accepts the task. If anything fails before that, the process stays with the program that offered it.

use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{HandoffParams, TaskResult};
use bgd_shared::task::{Exit, Origin};
use bgd_shared::text::Env;

use super::{Dispatcher, Shape};
use crate::client::answer::Answer;
use crate::core::{Command, ExecutorName, PlanRequest, Request, Spec, State, SubmitterLocation, Work};
use crate::exec::executor::Offer;
use crate::exec::handed::Handoff;
use crate::wire::mailbox::Internal;
use crate::wire::{refusals, view};

/// The executor that takes over processes.
const HANDOFF_EXECUTOR: ExecutorName = ExecutorName::LOCAL;

impl Dispatcher {
    /// Has the executor inspect an offered process; [`Internal::Offered`] follows.
    pub(super) fn handoff(&mut self, answer: Answer, handoff: Box<Handoff>) {
        let Some(executor) = self.executors.of(HANDOFF_EXECUTOR) else { return };
        let (internals, params) = (self.internals.clone(), Box::new(handoff.params.clone()));
        let client = Arc::clone(answer.client());
        let callback =
            Box::new(move |task, result| internals.send(Internal::Offered { answer, params, task, result }));
        executor.offer(TaskId::random(), handoff, &client, callback);
    }

    /// Asks the core to take over a process after its inspection.
    pub(super) fn offered(
        &mut self,
        answer: Answer,
        params: HandoffParams,
        task: TaskId,
        result: Result<Offer, RpcError>,
    ) {
        let offer = match result {
            Ok(offer) => offer,
            Err(error) => return answer.refuse(&error),
        };
        let (pid, started_at) = (offer.pid, offer.started_at);
        let mut command = Box::new(command(task, params, offer));
        let client = Arc::clone(answer.client());
        let chosen = self.choose_channel(&mut command.spec, &client);
        match chosen {
            Ok(()) => {
                self.notifier.awaits(&command.spec, client.process);
                self.ask(answer, Shape::Plain, Request::Adopt { command, pid, started_at });
            }
            Err(error) => answer.refuse(&error),
        }
        let is_taken = self.core.get(&task.into()).is_ok();
        let Some(executor) = self.executors.of(HANDOFF_EXECUTOR) else { return };
        // In this case, the process stays with the program that offered it.
        if !is_taken {
            executor.forget(task);
        }
        // The client may have disconnected before the executor had anything to release for it.
        if !self.clients.contains_key(&client.id) {
            executor.disconnected(client.id);
        }
    }

    /// Handles `task.exit`, by which the parent of a handed-over process reports its exit status. The answer is sent
    /// once the daemon itself has noticed the end.
    pub(super) fn exit_reported(&mut self, answer: Answer, task: &TaskRef, exit: Exit) {
        let snapshot = match self.core.get(task) {
            Ok(snapshot) => snapshot,
            Err(error) => return answer.refuse(&refusals::of_core(error)),
        };
        if snapshot.spec.origin != Origin::Handoff {
            let message = format!("task {} was not handed over", snapshot.id);
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            return answer.refuse(&error.hint("the daemon already knows how its own processes ended"));
        }
        if !awaits_exit(&snapshot.state) {
            return answer.give(&TaskResult { task: view::task(&snapshot, &self.context.folder) });
        }
        if let Some(executor) = self.executors.of(HANDOFF_EXECUTOR) {
            executor.exited(snapshot.id, exit);
        }
        self.exits.entry(snapshot.id).or_default().push(answer);
    }

    /// Answers the clients that reported the exit of a process once its task is past that: the exit is known, or the
    /// daemon has given up ending the process.
    pub(super) fn answer_known_exits(&mut self) {
        let Self { core, exits, context, .. } = self;
        let is_past = |task: TaskId| core.get(&task.into()).map_or(true, |task| !awaits_exit(&task.state));
        for (task, answers) in exits.extract_if(|task, _| is_past(*task)) {
            for answer in answers {
                match core.get(&task.into()) {
                    Ok(snapshot) => answer.give(&TaskResult { task: view::task(&snapshot, &context.folder) }),
                    Err(error) => answer.refuse(&refusals::of_core(error)),
                }
            }
        }
    }
}

/// Reports whether a task in this state waits for the exit of its process.
fn awaits_exit(state: &State) -> bool {
    matches!(state, State::Running { .. } | State::Stopping { exit: None, .. })
}

/// Builds the command for a handed-over process.
fn command(id: TaskId, params: HandoffParams, offer: Offer) -> Command {
    let spec = Spec {
        origin: Origin::Handoff,
        description: Some(params.description.into()),
        work: Work::Argv(offer.argv.into()),
        session: params.session.map(Into::into),
        channel: params.channel.map(Into::into),
        place: params.terminal.map(|terminal| {
            Arc::new(SubmitterLocation { terminal: Some(terminal), ..SubmitterLocation::default() })
        }),
        tags: params.tags.into_iter().map(Into::into).collect(),
        cwd: Arc::new(offer.cwd),
        split: offer.split,
        pty: offer.pty,
        output_file: offer.output_file.map(Box::new),
        ..Spec::of_daemon()
    };
    let plan = PlanRequest::default();
    Command { id, spec, env: Env::default(), prompt: None, key: None, foreground: false, plan }
}
