//! What the daemon says of a task without a terminal that is shown.

use bgd_shared::client::{ClientError, Protocol, Received};
use bgd_shared::event::News;
use bgd_shared::foreground::Outcome;
use bgd_shared::request::{
    DetachResult, EventsSubscribe, OutputParams, OutputResult, TaskBlock, TaskDetach, TaskOutput,
};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use super::{Over, Talk, subscription};
use crate::copy::tell_dropped;
use crate::failure::Failure;
use crate::render::question::question;
use crate::terminal::answers;

/// The most bytes of text that are asked for at once.
const TEXT_BYTES: u64 = 64 * 1024;

impl Talk<'_> {
    pub(super) fn read_news(&mut self) -> Result<(), ClientError> {
        let read = self.news.read();
        while let Some(received) = self.news.next_received()? {
            // Whatever it is about, there may be more; a subscription that begins has missed something.
            self.has_more = true;
            if let Received::News(told) = received
                && let News::Gap(gap) = told.news
                && gap.ended
            {
                self.news.call::<EventsSubscribe>(&subscription(self.task))?;
            }
        }
        read
    }

    /// Asks for more of the text, if there may be some.
    pub(super) fn ask(&mut self) {
        if !self.has_more || self.over.is_some() || self.calls.output.is_some() || !self.out.has_room() {
            return;
        }
        self.has_more = false;
        self.calls.is_last = self.ended.is_some();
        let offset = i64::try_from(self.next).unwrap_or(i64::MAX);
        let params = OutputParams {
            id: self.task.into(),
            offset: Some(offset),
            limit: Some(TEXT_BYTES),
            stream: None,
        };
        match self.link.call::<TaskOutput>(&params) {
            Ok(call) => self.calls.output = Some(call),
            Err(error) => self.lose_daemon(error),
        }
    }

    /// Deals with all that has come from the daemon.
    pub(super) fn hear(&mut self) {
        while self.over.is_none() {
            match self.link.next_received() {
                Ok(Some(received)) => self.received(received),
                Ok(None) => return,
                Err(error) => self.leave(Err(error.into())),
            }
        }
    }

    fn received(&mut self, received: Received) {
        match received {
            Received::Answer { call, outcome } if call == self.calls.block => {
                match answers::ended(Protocol::result::<TaskBlock>(outcome)) {
                    Ok(task) => {
                        self.ended = Some(Box::new(task));
                        self.has_more = true;
                    }
                    Err(failure) => self.leave(Err(failure)),
                }
            }
            Received::Answer { call, outcome } if self.calls.detach == Some(call) => {
                self.calls.detach = None;
                self.detached(Protocol::result::<TaskDetach>(outcome));
            }
            Received::Answer { call, outcome } if self.calls.output == Some(call) => {
                self.calls.output = None;
                match Protocol::result::<TaskOutput>(outcome) {
                    Ok(part) => self.show_part(part),
                    // It was cleared since.
                    Err(ClientError::Rpc(_)) if self.ended.is_some() => self.finish(),
                    Err(error) => self.leave(Err(error.into())),
                }
            }
            other => {
                if let Err(error) = self.around.received(other) {
                    self.leave(Err(error.into()));
                }
            }
        }
    }

    fn show_part(&mut self, part: OutputResult) {
        let OutputResult { task, data, encoding, offset, next, eof } = part;
        let is_new = next > self.next;
        if offset > self.next {
            tell_dropped(offset - self.next);
        }
        match encoding.decode(data) {
            Ok(bytes) => {
                if let Err(error) = self.out.show(&bytes) {
                    return self.lose_reader(error);
                }
            }
            Err(error) => return self.leave(Err(Failure::unreadable_output(error))),
        }
        self.next = self.next.max(next);
        if self.calls.is_last && (eof || !is_new) {
            return self.finish();
        }
        self.has_more |= is_new;
        self.show_question(&task);
    }

    /// Shows what the agent asks, once.
    fn show_question(&mut self, task: &Task) {
        if let Some(asked) = &task.progress.needs_input
            && self.asked.is_none_or(|last| last < asked.request)
        {
            self.asked = Some(asked.request);
            let text = question(task.id, asked, Timestamp::now());
            self.note(&text);
        }
    }

    /// The task has ended, and all of its text is shown.
    fn finish(&mut self) {
        let Some(task) = self.ended.take() else { return };
        self.leave(Ok(match self.cancelled {
            Some(code) if task.status == Status::Cancelled => Over::Cancelled(task, code),
            _ => Over::Ended(task),
        }));
    }

    fn detached(&mut self, outcome: Result<DetachResult, ClientError>) {
        let answer = answers::of_press(&outcome);
        match (self.around.jobs().answered(&self.task, answer), outcome) {
            (Some(Outcome::Backgrounded(..)), Ok(result)) => {
                return self.leave(Ok(Over::Backgrounded(Box::new(result))));
            }
            (Some(Outcome::Stays(_, message)), _) => self.note(&format!("bgctl: {message}\n")),
            // It finished first, and its real end comes by the other call (R66).
            _ => {}
        }
        if std::mem::take(&mut self.drops_presses)
            && let Some(keyboard) = &self.keyboard
        {
            keyboard.take_presses();
        }
    }
}
