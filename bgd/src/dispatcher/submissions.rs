//! The dispatcher's part in submits: the executors and the channels of new tasks. A submit that repeats another one, by
//! its key, gets the same task, even if what it names has left the configuration meanwhile.

use bgd_shared::error::RpcError;

use super::{Dispatcher, Shape};
use crate::client::answer::Answer;
use crate::core::{Command, Input, Part, Request};
use crate::exec::messages::Inherited;
use crate::remotes::OnRequest;

impl Dispatcher {
    /// Submits a command after choosing its executor.
    pub(super) fn submit_on(
        &mut self,
        answer: Answer,
        mut command: Box<Command>,
        inherited: Inherited,
        on: OnRequest,
    ) {
        match self.remotes.place(&mut command, on) {
            Err(error) if !self.repeats(&command) => answer.refuse(&error),
            Ok(()) | Err(_) => self.submit(answer, command, inherited),
        }
    }

    pub(super) fn submit(&mut self, answer: Answer, mut command: Box<Command>, inherited: Inherited) {
        let chosen = self.choose_channel(&mut command.spec, answer.client());
        if let Err(error) = chosen.and_then(|()| self.ensure_folder())
            && !self.repeats(&command)
        {
            return answer.refuse(&error);
        }
        self.notifier.awaits(&command.spec, answer.client().process);
        let id = command.id;
        let inherits_any = !inherited.is_empty();
        if inherits_any {
            self.keep_inherited(id, inherited, command.foreground);
        }
        self.ask(answer, Shape::Submitted(id), Request::Submit(command));
        // A known idempotency key, or a refusal: the task does not exist, and nothing uses the descriptors.
        if inherits_any && self.core.get(&id.into()).is_err() {
            self.release_inherited(id);
        }
    }

    pub(super) fn submit_many(&mut self, answer: Answer, mut part: Box<Part>, on: OnRequest) {
        if let Some((common, _)) = &mut part.first {
            let placed = self.remotes.place(common, on);
            let ready = placed.and_then(|()| self.choose_channel(&mut common.spec, answer.client()));
            if let Err(error) = ready.and_then(|()| self.ensure_folder())
                && !self.repeats_batch(common)
            {
                return self.refuse_part(&answer, &error);
            }
            self.notifier.awaits(&common.spec, answer.client().process);
        }
        self.ask(answer, Shape::Submitted(part.batch), Request::SubmitMany(part));
    }

    /// Refuses a part of a batch and drops the earlier parts, as the batch would be incomplete.
    pub(super) fn refuse_part(&mut self, answer: &Answer, error: &RpcError) {
        self.handle(Input::PartRefused { client: answer.client().id });
        answer.refuse(error);
    }

    /// Reports whether the core will answer with an existing task.
    fn repeats(&self, command: &Command) -> bool {
        let session = command.spec.session.as_deref();
        command.key.as_deref().is_some_and(|key| self.core.has_key(session, key))
    }

    /// Reports whether the core will answer with an existing batch.
    fn repeats_batch(&self, common: &Command) -> bool {
        let session = common.spec.session.as_deref();
        common.key.as_deref().is_some_and(|key| self.core.has_batch_key(session, key))
    }
}
