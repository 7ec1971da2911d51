//! Handles the daemon's messages about a job whose terminal is shown.

use std::io;
use std::time::Instant;

use bgd_shared::client::{ClientError, Protocol, Received};
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{
    Hello, OutputNews, TaskAttach, TaskBlock, TaskDetach, TaskOutput, TaskWrite, TerminalSize, WriteResult,
};

use super::{ScreenView, WRITE_PAUSE, write_hint};
use crate::failure::Failure;
use crate::render::width::cut;
use crate::terminal::answers;
use crate::terminal::keyboard::is_in_foreground;

impl ScreenView<'_> {
    pub(super) fn hear(&mut self, received: Received) -> Result<(), Failure> {
        match received {
            Received::Output(news) if news.id == self.job.task => {
                if let Some(news) = self.keep_back(*news)? {
                    self.show_part(news)?;
                }
            }
            Received::Answer { call, outcome } if self.gap.as_ref().is_some_and(|gap| gap.call == call) => {
                self.show_gap(Protocol::result::<TaskOutput>(outcome))?;
            }
            Received::Stopped(news) if news.id == self.job.task => self.stopped(),
            Received::Answer { call, outcome } if self.takes_attach(call) => {
                self.attached_again(Protocol::result::<TaskAttach>(outcome))?;
            }
            Received::Answer { call, outcome } if self.job.takes_end(call) => {
                let task = answers::ended(Protocol::result::<TaskBlock>(outcome))?;
                self.ended(Box::new(task))?;
            }
            Received::Answer { call, outcome } if self.job.is_hand_over(call) => {
                if let Some(message) = self.job.detached(Protocol::result::<TaskDetach>(outcome)) {
                    self.note(&message);
                    if std::mem::take(&mut self.job.stops) {
                        self.stopped();
                    }
                }
                self.input.stay();
            }
            // If it fails, so does every other call, or small calls have to do.
            Received::Answer { call, outcome } if self.calls.hello == Some(call) => {
                if let Ok(hello) = Protocol::result::<Hello>(outcome) {
                    self.input.limit(hello.limits.frame_bytes);
                }
            }
            Received::Answer { call, outcome } if self.calls.write == Some(call) => {
                self.calls.write = None;
                self.written(Protocol::result::<TaskWrite>(outcome))?;
            }
            Received::Answer { call, outcome } if self.calls.last_write == Some(call) => {
                self.calls.last_write = None;
                self.last_written(Protocol::result::<TaskWrite>(outcome))?;
            }
            Received::Answer { call, .. } if self.is_fence(call) => self.leave_attached()?,
            Received::Answer { call, .. } if self.calls.continue_job == Some(call) => {
                self.calls.continue_job = None;
            }
            Received::Answer { call, .. } if self.calls.resize == Some(call) => {
                self.calls.resize = None;
                self.tell_size()?;
            }
            other => self.job.host.received(other)?,
        }
        Ok(())
    }

    /// Handles the answer to a call with typed input.
    fn written(&mut self, outcome: Result<WriteResult, ClientError>) -> Result<(), Failure> {
        match outcome {
            Ok(result) if result.written > 0 => {
                self.calls.write_again = None;
                self.input.taken(usize::try_from(result.written).unwrap_or(usize::MAX));
            }
            Err(ClientError::Rpc(error)) if !takes_no_more(error.kind()) && self.is_leaving() => {
                self.input.drop_all();
                self.lose_input(&error);
            }
            Err(ClientError::Rpc(error)) if !takes_no_more(error.kind()) => {
                self.input.taken(0);
                if self.calls.write_again.replace(Instant::now() + WRITE_PAUSE).is_none() {
                    self.note(&format!("your input is held back: {}", error.message));
                }
            }
            // The job is ending, or has closed its terminal.
            Ok(_) | Err(ClientError::Rpc(_)) => {
                self.calls.write_again = None;
                self.input.drop_all();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn show_part(&mut self, news: OutputNews) -> Result<(), Failure> {
        if self.job.is_behind() {
            self.come_back()?;
        }
        let bytes = news.encoding.decode(news.data).map_err(Failure::unreadable_output)?;
        let length = if news.redraw { 0 } else { bytes.len() as u64 };
        self.shown_upto = news.offset + length;
        // In the background of a shell, a full-screen program would draw over the prompt. In the shell's own terminal,
        // the system stops it when it changes the terminal's modes. It draws its screen again when it is back.
        if self.job.is_behind()
            && self.job.out.would_be_alternate(news.restore.as_deref())
            && !is_in_foreground(io::stdout())
        {
            self.job.leave_screen();
            self.job.out.skip(news.restore);
            self.job.stops = true;
            return Ok(());
        }
        let mut hint = if news.redraw { self.job.next_hint() } else { None };
        let TerminalSize { rows, cols } = self.size;
        // The alternate screen leaves the main one as it is, and so does a job that has written nothing. A single row
        // has room for the text only.
        let comes_first =
            bytes.is_empty() || rows == 1 || self.job.out.would_be_alternate(news.restore.as_deref());
        if let Some(hint) = hint.take_if(|_| comes_first) {
            write_hint(&hint);
        }
        let mut shown = self.job.out.show(&bytes, news.restore);
        if let Some(hint) = hint {
            // A longer one would go on in the next row, over the text there.
            let line = cut(&hint, cols.into());
            shown = shown.and_then(|()| self.job.out.show(on_top(&line).as_bytes(), None));
        }
        if let Err(error) = shown.and_then(|()| self.tell_progress(&bytes)) {
            self.job.lose_output(error);
        }
        if let Some(note) = self.note_once_drawn.take_if(|_| news.redraw) {
            self.note_for_a_while(&note);
        }
        Ok(())
    }

    /// Reports the job's progress to the terminal (R165). A full-screen program has no last line.
    fn tell_progress(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.reads_sequences {
            return Ok(());
        }
        self.gauge.push(bytes);
        let screen = &mut self.job.out;
        if self.gauge.reports_itself() {
            screen.note_own_progress();
        } else if !screen.is_alternate() && self.gauge.is_readable() {
            screen.set_progress(self.gauge.percent())?;
        }
        Ok(())
    }
}

/// Returns what inserts a line above the drawn main screen. The text below stays together, with the cursor at its place
/// in it, as jobs move that relative to what they wrote: it moves down into a row that is first made free below the
/// cursor.
fn on_top(line: &str) -> String {
    format!("\n\x1b[A\x1b7\x1b[H\x1b[L\x1b[m{line}\x1b8\x1b[B")
}

/// Reports whether a refusal of input means that the job has ended or has closed its terminal.
pub(super) fn takes_no_more(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotRunning | ErrorKind::AlreadyFinished | ErrorKind::TaskNotFound | ErrorKind::Unsupported
    )
}
