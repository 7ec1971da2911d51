//! Handles the daemon's messages about a shown task without a terminal.

use std::io;

use bgd_shared::client::{ClientError, Protocol, Received};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::News;
use bgd_shared::request::{EventsSubscribe, OutputParams, OutputResult, TaskBlock, TaskDetach, TaskOutput};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use super::{TextView, subscription};
use crate::failure::Failure;
use crate::output::copy::{TRUNCATED, dropped_here};
use crate::output::seam::Missing;
use crate::render::question::question;
use crate::terminal::answers;
use crate::terminal::attachment::AttachmentEnd;

/// Maximum number of bytes of text to request at once.
const TEXT_BYTES: u64 = 64 * 1024;

impl TextView<'_> {
    pub(super) fn read_news(&mut self) -> Result<(), ClientError> {
        let read = self.news.read();
        while let Some(received) = self.news.next_received()? {
            // Any message means that there may be more text, as does the answer to the subscription: text may have been
            // written before it.
            self.has_more = true;
            if let Received::News(params) = received
                && let News::Gap(gap) = params.news
                && gap.ended
            {
                self.news.call::<EventsSubscribe>(&subscription(self.job.task))?;
            }
        }
        read
    }

    /// Requests more text if there may be some.
    pub(super) fn ask(&mut self) -> Result<(), Failure> {
        if !self.has_more || self.job.is_over() || self.asked.is_some() || !self.job.out.has_room() {
            return Ok(());
        }
        self.has_more = false;
        let offset = i64::try_from(self.shown.next).unwrap_or(i64::MAX);
        let params = OutputParams {
            id: self.job.task.into(),
            offset: Some(offset),
            limit: Some(TEXT_BYTES),
            stream: None,
        };
        let call = self.job.call::<TaskOutput>(&params)?;
        self.asked = Some((call, self.ended.is_some()));
        Ok(())
    }

    pub(super) fn hear(&mut self, received: Received) -> Result<(), Failure> {
        match received {
            Received::Answer { call, outcome } if self.job.takes_end(call) => {
                let task = answers::ended(Protocol::result::<TaskBlock>(outcome))?;
                self.ended = Some(Box::new(task));
                self.has_more = true;
            }
            Received::Answer { call, outcome } if self.job.is_hand_over(call) => {
                if let Some(message) = self.job.detached(Protocol::result::<TaskDetach>(outcome)) {
                    self.note(&format!("bgctl: {message}\n"));
                }
            }
            Received::Answer { call, outcome } if self.asked.is_some_and(|(asked, _)| asked == call) => {
                let is_last = self.asked.take().is_some_and(|(_, is_last)| is_last);
                match Protocol::result::<TaskOutput>(outcome) {
                    Ok(part) => self.show_part(part, is_last)?,
                    // The task was cleared meanwhile.
                    Err(ClientError::Rpc(_)) if self.ended.is_some() => self.finish(),
                    // The same, but the report of the task's end has not arrived yet.
                    Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::TaskNotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
            other => self.job.host.received(other)?,
        }
        Ok(())
    }

    fn show_part(&mut self, part: OutputResult, is_last: bool) -> Result<(), Failure> {
        let OutputResult { task, data, encoding, offset, next, eof, attempt_offset: _ } = part;
        // The daemon answers from the end of a file that has become shorter.
        if offset < self.shown.next {
            self.note_end();
            self.note(&format!("bgctl: {TRUNCATED}\n"));
            self.restart();
            (self.shown.next, self.has_more) = (0, true);
            return Ok(());
        }
        let is_new = next > self.shown.next;
        self.shown.seam.dropped(offset - self.shown.next);
        let bytes = encoding.decode(data).map_err(Failure::unreadable_output)?;
        let (missing, rest) = self.shown.seam.pass(&bytes);
        self.note_missing(missing);
        if let Err(error) = self.show(rest) {
            self.job.lose_output(error);
            return Ok(());
        }
        self.shown.seam.dropped(next.saturating_sub(offset + bytes.len() as u64));
        self.shown.next = self.shown.next.max(next);
        if is_last && (eof || !is_new) {
            self.finish();
            return Ok(());
        }
        self.has_more |= is_new;
        self.show_question(&task);
        Ok(())
    }

    /// Shows a part of the text.
    fn show(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(replay) = &mut self.shown.replay else { return self.job.out.show(bytes) };
        let (text, left_out) = replay.push(bytes);
        self.job.out.show(text.as_bytes())?;
        if let Some(words) = left_out {
            self.note(&format!("bgctl: {words}\n"));
        }
        Ok(())
    }

    /// Notes that the next part does not follow the last one.
    fn restart(&mut self) {
        if let Some(replay) = &mut self.shown.replay {
            replay.restart();
        }
    }

    /// Shows amid the text that bytes are missing here, if any, after ending the line before them.
    fn note_missing(&mut self, missing: Option<Missing>) {
        let Some(Missing { bytes, is_in_line }) = missing else { return };
        if is_in_line && let Err(error) = self.job.out.show(b"\n") {
            self.job.lose_output(error);
            return;
        }
        self.restart();
        self.note(&format!("bgctl: {}\n", dropped_here(bytes)));
    }

    /// Shows that bytes are missing at the end of the text, if any.
    fn note_end(&mut self) {
        let missing = self.shown.seam.end();
        self.note_missing(missing);
    }

    /// Shows the agent's question, once.
    fn show_question(&mut self, task: &Task) {
        if let Some(asked) = &task.progress.needs_input
            && self.question.is_none_or(|last| last < asked.request)
        {
            self.question = Some(asked.request);
            let text = question(task.id, asked, Timestamp::now());
            self.note(&text);
        }
    }

    /// Leaves the task, which has ended and whose text was shown completely.
    fn finish(&mut self) {
        let Some(task) = self.ended.take() else { return };
        self.note_end();
        self.job.leave(Ok(match self.cancelled {
            Some(code) if task.status == Status::Cancelled => AttachmentEnd::Cancelled(task, code),
            _ => AttachmentEnd::Ended(task),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use bgd_shared::client::{Client, PolledClient};
    use bgd_shared::error::RpcError;
    use bgd_shared::foreground::{Can, Foreground, Key};
    use bgd_shared::request::BlockResult;
    use nix::pty::openpty;
    use serde_json::value::to_raw_value;

    use crate::output::replay::Replay;
    use crate::render::samples;
    use crate::terminal::attachment::{Role, Subject};
    use crate::terminal::talk::TextShown;

    fn client() -> (UnixStream, Client) {
        let (here, there) = UnixStream::pair().unwrap();
        (there, Client::over(OwnedFd::from(here).into()))
    }

    #[test]
    fn r69_task_cleared_before_its_last_text_still_ends_normally() {
        let ((_daemon, client), (_news, news)) = (self::client(), self::client());
        let (mut link, ended) = (PolledClient::from(client), samples::task());
        let mut jobs = Foreground::new(Key::NONE);
        jobs.started(ended.id, Can::Yes);
        let (task, role, key) = (ended.id, Role::Foreground, Key::NONE);
        let mut text =
            TextView::begin(Subject { link: &mut link, host: &mut jobs, task, role, key }, news).unwrap();
        // The first call waits for the end.
        let end = to_raw_value(&BlockResult {
            tasks: vec![ended],
            timed_out: false,
            finished: vec![task],
            active: Vec::new(),
            cleared: None,
        });
        let mut end = Some(end.unwrap());
        text.has_more = true;
        for is_last in [false, true] {
            text.ask().unwrap();
            let (call, was_last) = text.asked.expect("a call for text");
            assert_eq!(was_last, is_last);
            let outcome = Err(RpcError::new(ErrorKind::TaskNotFound, "it was cleared"));
            text.hear(Received::Answer { call, outcome }).unwrap();
            assert_eq!(text.job.is_over(), is_last);
            if let Some(end) = end.take() {
                text.hear(Received::Answer { call: 1, outcome: Ok(end) }).unwrap();
            }
        }
        assert!(matches!(text.job.end(), Some(Ok(AttachmentEnd::Ended(_)))));
    }

    #[test]
    fn r142_sequence_that_an_upgrade_cuts_is_not_shown_as_text() {
        let pty = openpty(None, None).unwrap();
        let mut shown = TextShown { replay: Replay::onto(&pty.slave), ..TextShown::default() };
        let parts = [(&b"plain \x1b[31"[..], 0, "plain "), (b"mred", 10, "\x1b[31mred\x1b[m")];
        for (part, next, wanted) in parts {
            let ((_daemon, client), (_news, news)) = (self::client(), self::client());
            let (mut link, mut jobs) = (PolledClient::from(client), Foreground::new(Key::NONE));
            let (task, role, key) = (samples::task().id, Role::Attached, Key::NONE);
            jobs.started(task, Can::Yes);
            let subject = Subject { link: &mut link, host: &mut jobs, task, role, key };
            let mut text = TextView::begin(subject, news).unwrap();
            text.resume(&mut shown);
            assert_eq!(text.shown.next, next);
            let (passed, _) = text.shown.replay.as_mut().expect("a filter").push(part);
            assert_eq!(passed, wanted);
            text.shown.next += 10;
            shown = std::mem::take(&mut text.shown);
        }
    }
}
