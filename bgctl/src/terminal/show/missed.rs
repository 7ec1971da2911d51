//! Shows the output that a job wrote while its connection was lost (R142). The daemon draws the current screen; before
//! that, the output that has scrolled off it meanwhile is read and shown. Does not deal with connections.

use bgd_shared::client::ClientError;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{OutputNews, OutputParams, OutputResult, TaskOutput};
use bgd_shared::task::Task;

use super::ScreenView;
use crate::failure::Failure;
use crate::output::filter::{TextFilter, attempt_starts};
use crate::terminal::gap::{Gap, latest, left_out};

/// Maximum number of parts of the output held back meanwhile. Later parts are read from the output instead.
const HELD_PARTS: usize = 256;

impl ScreenView<'_> {
    /// Holds back a part of the output if earlier output has to be shown first. Otherwise returns the part.
    pub(super) fn keep_back(&mut self, news: OutputNews) -> Result<Option<OutputNews>, Failure> {
        if let Some(gap) = &mut self.gap {
            if gap.held.len() < HELD_PARTS && !gap.is_over {
                gap.held.push(news);
            } else {
                gap.is_over = true;
            }
            return Ok(None);
        }
        let Some(from) = self.resumes_from else { return Ok(Some(news)) };
        if !news.redraw {
            // This part will be read once the screen is drawn.
            return Ok(None);
        }
        self.resumes_from = None;
        let (next, end) = (latest(from, news.offset), news.offset);
        if next >= end {
            return Ok(Some(news));
        }
        self.say_left_out(from, next);
        self.read_gap(from, (next, end), vec![news])?;
        Ok(None)
    }

    fn say_left_out(&mut self, from: u64, next: u64) {
        if let Some(text) = left_out(from, next) {
            self.note(&text);
        }
    }

    /// Reports whether the output shown last ended on the alternate screen. Does not count a screen that is still to be
    /// drawn.
    pub(super) fn was_last_alternate(&self) -> bool {
        match &self.gap {
            Some(gap) => gap.filter.is_alternate(),
            None if self.resumes_from.is_some() => self.was_alternate,
            None => self.job.out.is_alternate(),
        }
    }

    /// Shows the remaining output of an ended job, then leaves it.
    pub(super) fn ended(&mut self, task: Box<Task>) -> Result<(), Failure> {
        if self.gap.is_none() {
            let Some(from) = self.resumes_from.take() else {
                let left = self.typed_signals.end_of(task);
                self.job.leave(Ok(left));
                return Ok(());
            };
            // No screen will be drawn any more.
            let next = latest(from, task.output.bytes);
            self.say_left_out(from, next);
            self.read_gap(from, (next, u64::MAX), Vec::new())?;
        }
        self.ended = Some(task);
        Ok(())
    }

    /// Begins to read this part of the output, to show it. Everything before `from` was shown.
    fn read_gap(&mut self, from: u64, (next, end): (u64, u64), held: Vec<OutputNews>) -> Result<(), Failure> {
        let call = self.read_part(next, end)?;
        let filter = TextFilter::new(self.was_alternate, from);
        self.gap = Some(Gap { next, end, call, filter, held, is_over: false });
        Ok(())
    }

    fn read_part(&mut self, next: u64, end: u64) -> Result<u64, Failure> {
        let limit = Some((end - next).min(OUTPUT_CHUNK_BYTES));
        let offset = i64::try_from(next).ok();
        self.job.call::<TaskOutput>(&OutputParams { id: self.job.task.into(), offset, limit, stream: None })
    }

    /// Shows the part that was read, and requests the next one.
    pub(super) fn show_gap(&mut self, part: Result<OutputResult, ClientError>) -> Result<(), Failure> {
        let Some(mut gap) = self.gap.take() else { return Ok(()) };
        // Output that the daemon has dropped can't be shown.
        if let Some(mut part) = part.ok().filter(|part| part.next > gap.next) {
            let data = std::mem::take(&mut part.data);
            let bytes = part.encoding.decode(data).map_err(Failure::unreadable_output)?;
            let shown = gap.filter.push_at(part.offset, &bytes, &attempt_starts(&part));
            if let Err(error) = self.job.out.show(shown.as_bytes(), None) {
                self.job.lose_output(error);
            }
            gap.next = part.next;
            (self.shown_upto, self.was_alternate) = (gap.next, gap.filter.is_alternate());
            if gap.next < gap.end {
                gap.call = self.read_part(gap.next, gap.end)?;
                self.gap = Some(gap);
                return Ok(());
            }
        }
        if gap.is_over {
            self.resumes_from = Some(gap.end);
            return match self.ended.take() {
                Some(task) => self.ended(task),
                None => self.ask_for_screen(),
            };
        }
        gap.held.into_iter().try_for_each(|news| self.show_part(news))?;
        self.ended.take().map_or(Ok(()), |task| self.ended(task))
    }
}
