//! Output read through the socket in JSON chunks: for `--json`, and where the file can't be opened, as in a container
//! that shares only the socket; on a terminal also for what depends on the state of a task's own terminal. Slower than
//! reading the file.

use bgd_shared::id::TaskRef;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{OutputParams, OutputResult, Stream, SubscribeParams, TaskOutput};
use bgd_shared::task::Task;

use crate::context::Context;
use crate::failure::Failure;
use crate::link::{Heard, Listener};
use crate::output::cleared::report_cleared;
use crate::output::copy::{ranges, report_dropped, report_loss, report_truncated};
use crate::output::filter::attempt_starts;
use crate::output::replay::Replay;
use crate::output::seam::{Missing, Seam};
use crate::output::tail::start_of_last_lines;

/// How many bytes before those that are shown are searched for the screen that they are on: on this machine, and on
/// another one, from which they take long.
const LOOK_BACK: [u64; 2] = [16 << 20, 1 << 20];

pub struct Remote<'a> {
    /// The task that wrote the output.
    pub id: &'a TaskRef,
    /// The stream to read; `None` for the combined output.
    pub stream: Option<Stream>,
}

impl Remote<'_> {
    fn chunk(&self, context: &mut Context, offset: i64, limit: u64) -> Result<OutputResult, Failure> {
        context.call::<TaskOutput>(&OutputParams {
            id: self.id.clone(),
            offset: Some(offset),
            limit: Some(limit),
            stream: self.stream,
        })
    }

    /// Returns the size of the output in bytes, including those that were dropped.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn size(&self, context: &mut Context) -> Result<u64, Failure> {
        // An offset beyond the end means the end.
        Ok(self.chunk(context, i64::MAX, 0)?.next)
    }

    /// Returns the offset at which the last `lines` lines begin.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn tail(&self, context: &mut Context, lines: u64) -> Result<i64, Failure> {
        // The answer to reading the last byte contains the offset where this stream ends.
        let last = self.chunk(context, -1, 1)?;
        let output = &last.task.output;
        let dropped = match self.stream {
            Some(Stream::Stderr) => output.stderr_dropped_bytes,
            Some(Stream::Stdout) | None => output.dropped_bytes,
        };
        let start = start_of_last_lines(lines, &ranges(0, last.next, dropped), |range| {
            let chunk = self.chunk(context, signed(range.start), range.end - range.start)?;
            chunk.encoding.decode(chunk.data).map_err(Failure::unreadable_output)
        })?;
        Ok(signed(start))
    }

    /// Prints one chunk as a wire object. Returns the task.
    ///
    /// # Errors
    /// The daemon refuses, or standard output can't be written.
    pub fn print_one(&self, context: &mut Context, offset: i64) -> Result<Task, Failure> {
        let chunk = self.chunk(context, offset, OUTPUT_CHUNK_BYTES)?;
        context.print_json(&chunk)?;
        Ok(chunk.task)
    }

    /// Prints everything available now. Returns the task as it was then.
    ///
    /// # Errors
    /// The daemon refuses, or standard output can't be written.
    pub fn print_all(&self, context: &mut Context, offset: i64) -> Result<Task, Failure> {
        let mut place = Place::new(offset);
        let task = self.print_from(context, &mut place)?;
        place.finish(context)?;
        Ok(task)
    }

    /// Prints from a place up to the current end, and advances the place. The task may write faster than this can print.
    fn print_from(&self, context: &mut Context, place: &mut Place) -> Result<Task, Failure> {
        let mut end = None;
        loop {
            let (step, task) = self.step(context, place)?;
            if !matches!(step, Step::More) {
                return Ok(task);
            }
            let end = match end {
                Some(end) => end,
                None => *end.insert(signed(self.size(context)?)),
            };
            if place.offset >= end {
                return Ok(task);
            }
        }
    }

    /// Prints existing and new output until the task has ended. Returns the task as it was then.
    ///
    /// # Errors
    /// The daemon refuses or is gone, or standard output can't be written.
    pub fn follow(&self, context: &mut Context, offset: i64) -> Result<Task, Failure> {
        let mut place = Place::new(offset);
        let task = context.recovering(|context| self.follow_from(context, &mut place))?;
        place.finish(context)?;
        Ok(task)
    }

    /// Follows the output on one connection from a place, and advances it.
    fn follow_from(&self, context: &mut Context, place: &mut Place) -> Result<Task, Failure> {
        let mut last = None;
        match (self.follow_until_end(context, place, &mut last), last) {
            (Err(failure), Some(task)) if failure.is_of_missing_task() => {
                context.flush()?;
                if !context.json() {
                    report_cleared(&task);
                }
                Ok(task)
            }
            (outcome, _) => outcome,
        }
    }

    /// Does so, and notes the latest known state of the task in `last`.
    fn follow_until_end(
        &self,
        context: &mut Context,
        place: &mut Place,
        last: &mut Option<Task>,
    ) -> Result<Task, Failure> {
        let params = SubscribeParams { ids: vec![self.id.clone()], ..SubscribeParams::default() };
        let mut events = Listener::new(context.link.existing()?, params)?;
        loop {
            match self.step(context, place)? {
                (Step::More, task) => *last = Some(task),
                (Step::End, task) => return Ok(task),
                // Others of its processes may write on, which is not waited for.
                (Step::Nothing, task) if !task.status.is_active() => return Ok(task),
                (Step::Nothing, task) => {
                    *last = Some(task);
                    context.flush()?;
                    // An agent's task may have been resumed since, so that its output has no end yet. Following stops
                    // here regardless.
                    if let Heard::Event(event) = events.next_for_reader()?
                        && event.kind.is_terminal()
                    {
                        return self.print_from(context, place);
                    }
                }
            }
        }
    }

    /// Prints the next chunk, and advances the place. Returns the task as it was when the chunk was read.
    fn step(&self, context: &mut Context, place: &mut Place) -> Result<(Step, Task), Failure> {
        let offset = place.offset;
        let mut chunk = self.chunk(context, offset, OUTPUT_CHUNK_BYTES)?;
        let (begin, next, eof) = (chunk.offset, chunk.next, chunk.eof);
        if place.is_reached && signed(begin) < offset {
            if !context.json() {
                place.finish(context)?;
                context.flush()?;
                report_truncated();
            }
            *place = Place::new(0);
            return Ok((Step::More, chunk.task));
        }
        let is_to_look_back = !place.is_reached && chunk.task.pty && !context.json();
        if let Some(replay) = place.replay.as_mut().filter(|_| is_to_look_back) {
            self.look_back(context, begin, replay)?;
        }
        (place.offset, place.is_reached) = (signed(next), true);
        let is_new = next > begin;
        if context.json() {
            if is_new || eof {
                context.print_json(&chunk)?;
            }
        } else {
            let asked = u64::try_from(offset).unwrap_or(begin);
            place.seam.dropped(begin.saturating_sub(asked));
            let data = std::mem::take(&mut chunk.data);
            let bytes = chunk.encoding.decode(data).map_err(Failure::unreadable_output)?;
            place.print(context, (begin, &bytes), &attempt_starts(&chunk))?;
            // After the head, `next` skips what was dropped.
            place.seam.dropped(next.saturating_sub(begin + bytes.len() as u64));
            if eof {
                place.finish(context)?;
                report_loss(&chunk.task.output);
            }
        }
        let step = match (eof, is_new) {
            (true, _) => Step::End,
            (false, true) => Step::More,
            (false, false) => Step::Nothing,
        };
        Ok((step, chunk.task))
    }

    /// Follows the output before the part that is shown, so that it is known whether that begins on the alternate
    /// screen. If the program switched to it long before, it is not known.
    fn look_back(&self, context: &mut Context, end: u64, replay: &mut Replay) -> Result<(), Failure> {
        replay.restart();
        let first = end.saturating_sub(LOOK_BACK[usize::from(context.link.is_remote())]);
        let mut place = Some(first).filter(|first| *first < end);
        while let Some(from) = place {
            let mut part = self.chunk(context, signed(from), (end - from).min(OUTPUT_CHUNK_BYTES))?;
            let data = std::mem::take(&mut part.data);
            let bytes = part.encoding.decode(data).map_err(Failure::unreadable_output)?;
            place = replay.look_back((from, end), &part, &bytes);
        }
        Ok(())
    }
}

/// Where to continue reading.
struct Place {
    offset: i64,
    /// Whether a chunk has ended here: only if the file was truncated does it now end before.
    is_reached: bool,
    replay: Option<Replay>,
    seam: Seam,
}

impl Place {
    fn new(offset: i64) -> Self {
        Self { offset, is_reached: false, replay: Replay::onto_stdout(), seam: Seam::default() }
    }

    /// Prints the bytes at this offset, without those of a line that a hole has cut. Attempts start at `starts`.
    fn print(
        &mut self,
        context: &mut Context,
        (offset, bytes): (u64, &[u8]),
        starts: &[u64],
    ) -> Result<(), Failure> {
        let (missing, rest) = self.seam.pass(bytes);
        self.report(context, missing)?;
        match &mut self.replay {
            Some(replay) => {
                let offset = offset + (bytes.len() - rest.len()) as u64;
                context.print_bytes(replay.push_at(offset, rest, starts).as_bytes())
            }
            None => context.print_bytes(rest),
        }
    }

    /// Reports missing bytes, if any, after ending the line before them.
    fn report(&mut self, context: &mut Context, missing: Option<Missing>) -> Result<(), Failure> {
        let Some(Missing { bytes, is_in_line }) = missing else { return Ok(()) };
        if is_in_line {
            context.print_bytes(b"\n")?;
        }
        context.flush()?;
        report_dropped(bytes);
        if let Some(replay) = &mut self.replay {
            replay.restart();
        }
        Ok(())
    }

    /// Reports what is missing at the end of what was printed, if anything is.
    fn finish(&mut self, context: &mut Context) -> Result<(), Failure> {
        let missing = self.seam.end();
        self.report(context, missing)
    }
}

/// What remains after a chunk.
enum Step {
    /// More may be available.
    More,
    /// Nothing is available yet.
    Nothing,
    /// The output has ended.
    End,
}

/// Converts an offset to the wire's signed type, where negative offsets count from the end. No file exceeds `i64`.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
