//! The attempts of a background task that is shown. Each attempt has its own terminal, so the next one is attached to
//! when it starts.

use bgd_shared::client::{ClientError, Protocol, Received};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::{EventKind, News};
use bgd_shared::request::{
    AttachParams, EventsSubscribe, IdParams, SubscribeParams, TaskAttach, TaskGet, TaskResult, TerminalSize,
};
use bgd_shared::task::{Status, Task};

use super::{Attempts, ScreenView};
use crate::failure::Failure;

impl ScreenView<'_> {
    /// Follows the attempts of this task, if it may have several.
    pub(super) fn follow_attempts(&mut self, task: &Task) -> Result<(), Failure> {
        let Some(shown) = task.attempt else { return Ok(()) };
        self.attempts = Some(Attempts { shown, has_ended: false, look: None, attach: None });
        self.listen()
    }

    fn listen(&mut self) -> Result<(), Failure> {
        let ids = vec![self.job.task.into()];
        self.job.call::<EventsSubscribe>(&SubscribeParams { ids, ..SubscribeParams::default() })?;
        // The attempt may have ended before the subscription.
        let look = self.job.call::<TaskGet>(&IdParams { id: self.job.task.into() })?;
        if let Some(attempts) = &mut self.attempts {
            attempts.look = Some(look);
        }
        Ok(())
    }

    /// Handles messages about the attempts. Returns any other message.
    pub(super) fn hear_of_attempts(&mut self, received: Received) -> Result<Option<Received>, Failure> {
        let Some(attempts) = &mut self.attempts else { return Ok(Some(received)) };
        match received {
            Received::News(told) => match told.news {
                News::Event(event) if event.task.id == self.job.task => match event.kind {
                    EventKind::Started | EventKind::Retrying => self.note_attempt(&event.task)?,
                    _ => {}
                },
                // This process was too slow to read all events.
                News::Gap(gap) if gap.ended => self.listen()?,
                News::Event(_) | News::Gap(_) => {}
            },
            Received::Answer { call, outcome } if attempts.look.take_if(|look| *look == call).is_some() => {
                // If the task is gone, it has ended, which is reported separately.
                if let Ok(result) = Protocol::result::<TaskGet>(outcome) {
                    self.note_attempt(&result.task)?;
                }
            }
            Received::Answer { call, outcome } if attempts.attach.take_if(|it| *it == call).is_some() => {
                self.attached_again(Protocol::result::<TaskAttach>(outcome))?;
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Notifies the user that the attempt has ended, and attaches to the next one once that runs.
    fn note_attempt(&mut self, task: &Task) -> Result<(), Failure> {
        let Some(attempts) = self.attempts.as_mut().filter(|_| !self.job.is_over()) else { return Ok(()) };
        let shown = attempts.shown;
        let runs = task.status == Status::Running && task.attempt.is_some_and(|attempt| attempt > shown);
        let has_ended = runs || task.attempts.last().is_some_and(|last| last.attempt >= shown);
        if !has_ended {
            return Ok(());
        }
        if !std::mem::replace(&mut attempts.has_ended, true) {
            self.leave_attempt(shown)?;
        }
        if let (true, Some(attempt)) = (runs, task.attempt) {
            let TerminalSize { rows, cols } = self.size;
            let params = AttachParams { id: self.job.task.into(), rows: Some(rows), cols: Some(cols) };
            let attach = Some(self.job.call::<TaskAttach>(&params)?);
            self.attempts = Some(Attempts { shown: attempt, has_ended: false, look: None, attach });
        }
        Ok(())
    }

    /// Restores the terminal to its usual state, which the job can no longer do, and explains why nothing is shown.
    fn leave_attempt(&mut self, attempt: u32) -> Result<(), Failure> {
        if self.job.is_behind() {
            self.come_back()?;
        }
        self.noted_until = None;
        self.job.leave_screen();
        if let Err(error) = self.job.out.show(b"", Some(String::new())) {
            self.job.lose_output(error);
        }
        self.note(&format!("attempt {attempt} has ended; the next one is shown here when it begins"));
        Ok(())
    }

    fn attached_again(&mut self, outcome: Result<TaskResult, ClientError>) -> Result<(), Failure> {
        match outcome {
            Ok(_) => {}
            // The attempt has ended already, which is reported separately.
            Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::NotRunning => {}
            Err(ClientError::Rpc(error)) => self.note(&error.message),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
