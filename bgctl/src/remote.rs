//! Output read through the socket in JSON chunks: for `--json`, and where the file can't be opened, as in a container
//! that shares only the socket. Slower than reading the file.

use bgd_shared::id::TaskRef;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{OutputParams, OutputResult, Stream, SubscribeParams, TaskOutput};
use bgd_shared::task::Task;

use crate::context::Context;
use crate::copy::{ranges, report_dropped, report_loss};
use crate::failure::Failure;
use crate::link::{Heard, Listener};
use crate::tail::start_of_last_lines;

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
        let mut offset = offset;
        self.print_from(context, &mut offset)
    }

    /// Prints from `offset`, and advances it.
    fn print_from(&self, context: &mut Context, offset: &mut i64) -> Result<Task, Failure> {
        loop {
            match self.step(context, *offset)? {
                (Step::More(next), _) => *offset = next,
                (Step::Nothing(_) | Step::End, task) => return Ok(task),
            }
        }
    }

    /// Prints existing and new output until the task has ended. Returns the task as it was then.
    ///
    /// # Errors
    /// The daemon refuses or is gone, or standard output can't be written.
    pub fn follow(&self, context: &mut Context, offset: i64) -> Result<Task, Failure> {
        let mut offset = offset;
        context.recovering(|context| self.follow_from(context, &mut offset))
    }

    /// Follows the output on one connection from `offset`, and advances it.
    fn follow_from(&self, context: &mut Context, offset: &mut i64) -> Result<Task, Failure> {
        let params = SubscribeParams { ids: vec![self.id.clone()], ..SubscribeParams::default() };
        let mut events = Listener::new(context.link.existing()?, params)?;
        loop {
            match self.step(context, *offset)? {
                (Step::More(next), _) => *offset = next,
                (Step::End, task) => return Ok(task),
                (Step::Nothing(next), _) => {
                    *offset = next;
                    context.flush()?;
                    // An agent's task may have been resumed since, so that its output has no end yet. Following stops
                    // here regardless.
                    if let Heard::Event(event) = events.next_for_reader()?
                        && event.kind.is_terminal()
                    {
                        return self.print_from(context, offset);
                    }
                }
            }
        }
    }

    /// Prints the next chunk. Returns the task as it was when the chunk was read.
    fn step(&self, context: &mut Context, offset: i64) -> Result<(Step, Task), Failure> {
        let chunk = self.chunk(context, offset, OUTPUT_CHUNK_BYTES)?;
        let (begin, next, eof) = (chunk.offset, chunk.next, chunk.eof);
        let is_new = next > begin;
        if context.json() {
            if is_new || eof {
                context.print_json(&chunk)?;
            }
        } else {
            if let Ok(asked) = u64::try_from(offset)
                && begin > asked
            {
                context.flush()?;
                report_dropped(begin - asked);
            }
            context.print_bytes(&chunk.encoding.decode(chunk.data).map_err(Failure::unreadable_output)?)?;
            if eof {
                report_loss(&chunk.task.output);
            }
        }
        let step = match (eof, is_new) {
            (true, _) => Step::End,
            (false, true) => Step::More(signed(next)),
            (false, false) => Step::Nothing(signed(next)),
        };
        Ok((step, chunk.task))
    }
}

/// What remains after a chunk.
enum Step {
    /// More may be available from this offset.
    More(i64),
    /// Nothing is available yet from this offset.
    Nothing(i64),
    /// The output has ended.
    End,
}

/// Converts an offset to the wire's signed type, where negative offsets count from the end. No file exceeds `i64`.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
