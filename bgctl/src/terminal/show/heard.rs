//! Handles the daemon's messages about a job whose terminal is shown.

use std::io;

use bgd_shared::client::{Protocol, Received};
use bgd_shared::request::{OutputNews, TaskBlock, TaskDetach, TaskOutput, TaskWrite};

use super::ScreenView;
use crate::failure::Failure;
use crate::terminal::answers;

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
            Received::Answer { call, outcome } if self.job.is_end(call) => {
                let task = answers::ended(Protocol::result::<TaskBlock>(outcome))?;
                self.ended(Box::new(task))?;
            }
            Received::Answer { call, outcome } if self.job.is_hand_over(call) => {
                if let Some(message) = self.job.detached(Protocol::result::<TaskDetach>(outcome)) {
                    self.note(&message);
                }
                self.input.stay();
            }
            Received::Answer { call, outcome } if self.calls.write == Some(call) => {
                self.calls.write = None;
                match Protocol::result::<TaskWrite>(outcome) {
                    Ok(result) if result.written > 0 => {
                        self.input.taken(usize::try_from(result.written).unwrap_or(usize::MAX));
                    }
                    // The job is ending, or has closed its terminal.
                    Ok(_) | Err(_) => self.input.drop_all(),
                }
            }
            Received::Answer { call, .. } if self.calls.go_on == Some(call) => self.calls.go_on = None,
            Received::Answer { call, .. } if self.calls.resize == Some(call) => {
                self.calls.resize = None;
                self.tell_size()?;
            }
            other => self.job.host.received(other)?,
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
        let shown = self.job.out.show(&bytes, news.restore).and_then(|()| self.tell_progress(&bytes));
        if let Err(error) = shown {
            self.job.lose_output(error);
        }
        Ok(())
    }

    /// Passes on how far the job is to the terminal (R165). A program with the whole screen has no last line.
    fn tell_progress(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.gauge.push(bytes);
        let screen = &mut self.job.out;
        if self.gauge.tells() {
            screen.is_told();
        } else if !screen.is_alternate() && self.gauge.is_readable() {
            screen.tell(self.gauge.percent())?;
        }
        Ok(())
    }
}
