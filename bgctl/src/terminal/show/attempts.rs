//! The attempts of a background task that is shown. Each attempt has its own terminal, so the next one is attached to
//! when it starts.

use bgd_shared::client::{Client, ClientError, Protocol, Received};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::{EventKind, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    AttachParams, EventsSubscribe, IdParams, SubscribeParams, TaskAttach, TaskGet, TaskResult, TerminalSize,
};
use bgd_shared::task::{Status, Task};

use super::{Attempts, ScreenView};
use crate::failure::Failure;

impl Attempts {
    fn listen(&mut self, task: TaskId) -> Result<(), ClientError> {
        let ids = vec![task.into()];
        self.news.call::<EventsSubscribe>(&SubscribeParams { ids, ..SubscribeParams::default() })?;
        // The attempt may have ended before the subscription.
        self.look = Some(self.news.call::<TaskGet>(&IdParams { id: task.into() })?);
        Ok(())
    }
}

impl ScreenView<'_> {
    /// Follows the attempts of this task, of which this one is shown.
    pub(super) fn follow_attempts(&mut self, shown: u32, news: Client) -> Result<(), Failure> {
        let mut attempts = Attempts { shown, has_ended: false, news: news.into(), look: None, attach: None };
        attempts.listen(self.job.task).map_err(|error| self.job.lost(error))?;
        self.attempts = Some(attempts);
        Ok(())
    }

    /// Reads the messages about the task's attempts.
    pub(super) fn read_news(&mut self) -> Result<(), Failure> {
        let read = self.attempts.as_mut().map_or(Ok(()), |attempts| attempts.news.read());
        while let Some(attempts) = &mut self.attempts
            && let Some(received) = attempts.news.next_received()?
        {
            self.hear_of_attempts(received)?;
        }
        read.map_err(|error| self.job.lost(error))
    }

    fn hear_of_attempts(&mut self, received: Received) -> Result<(), Failure> {
        let Some(attempts) = &mut self.attempts else { return Ok(()) };
        match received {
            Received::News(params) => match params.news {
                News::Event(event) if event.task.id == self.job.task => match event.kind {
                    EventKind::Started | EventKind::Retrying => self.note_attempt(&event.task)?,
                    _ => {}
                },
                // This process was too slow to read all events.
                News::Gap(gap) if gap.ended => {
                    attempts.listen(self.job.task).map_err(|error| self.job.lost(error))?;
                }
                News::Event(_) | News::Gap(_) => {}
            },
            Received::Answer { call, outcome } if attempts.look.take_if(|look| *look == call).is_some() => {
                // If the task is gone, it has ended, which is reported separately.
                if let Ok(result) = Protocol::result::<TaskGet>(outcome) {
                    self.note_attempt(&result.task)?;
                }
            }
            Received::Answer { outcome: Err(error), .. } if error.kind() != ErrorKind::TaskNotFound => {
                self.note(&format!("a further attempt is not shown here: {}", error.message));
            }
            Received::Answer { .. } | Received::Output(_) | Received::Stopped(_) => {}
        }
        Ok(())
    }

    /// Reports whether this is the answer to the call that attaches to the next attempt. It arrives only once.
    pub(super) fn takes_attach(&mut self, call: u64) -> bool {
        self.attempts.as_mut().is_some_and(|attempts| attempts.attach.take_if(|it| *it == call).is_some())
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
            if let Some(attempts) = &mut self.attempts {
                (attempts.shown, attempts.has_ended) = (attempt, false);
                (attempts.look, attempts.attach) = (None, attach);
            }
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

    pub(super) fn attached_again(&mut self, outcome: Result<TaskResult, ClientError>) -> Result<(), Failure> {
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
