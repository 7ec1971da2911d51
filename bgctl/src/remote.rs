//! Output by way of the socket, in pieces of JSON: for `--json`, and where the file itself can't be
//! opened, as in a container that shares the socket only. It is slower than the file.

use bgd_shared::id::TaskRef;
use bgd_shared::limits::OUTPUT_CHUNK_BYTES;
use bgd_shared::request::{OutputParams, OutputResult, Stream, SubscribeParams, TaskOutput};

use crate::context::Context;
use crate::copy::{ranges, tell_dropped, tell_loss};
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Heard, Listener};
use crate::tail::start_of_last_lines;

/// An output that is read through the daemon.
pub struct Remote<'a> {
    /// The task.
    pub id: &'a TaskRef,
    /// Which of its outputs.
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

    /// Where the last lines begin.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn tail(&self, context: &mut Context, lines: u64) -> Result<i64, Failure> {
        // The last byte tells where the end of this stream is.
        let last = self.chunk(context, -1, 1)?;
        let output = &last.task.output;
        let dropped = match self.stream {
            Some(Stream::Stderr) => output.stderr_dropped_bytes,
            Some(Stream::Stdout) | None => output.dropped_bytes,
        };
        let start = start_of_last_lines(lines, &ranges(0, last.next, dropped), |range| {
            let chunk = self.chunk(context, signed(range.start), range.end - range.start)?;
            decode(chunk)
        })?;
        Ok(signed(start))
    }

    /// Prints one piece as the object of the wire.
    ///
    /// # Errors
    /// The daemon refuses, or standard output takes no more.
    pub fn print_one(&self, context: &mut Context, offset: i64) -> Result<Code, Failure> {
        let chunk = self.chunk(context, offset, OUTPUT_CHUNK_BYTES)?;
        context.print_json(&chunk)?;
        Ok(Code::OK)
    }

    /// Prints all that is there now.
    ///
    /// # Errors
    /// The daemon refuses, or standard output takes no more.
    pub fn print_all(&self, context: &mut Context, offset: i64) -> Result<Code, Failure> {
        let mut offset = offset;
        while let Step::More(next) = self.step(context, offset)? {
            offset = next;
        }
        Ok(Code::OK)
    }

    /// Prints what is there and what comes, until the task has ended.
    ///
    /// # Errors
    /// The daemon refuses or is gone, or standard output takes no more.
    pub fn follow(&self, context: &mut Context, offset: i64) -> Result<Code, Failure> {
        let params = SubscribeParams { ids: vec![self.id.clone()], ..SubscribeParams::default() };
        let mut events = Listener::new(context.link.existing()?, params)?;
        let mut offset = offset;
        loop {
            match self.step(context, offset)? {
                Step::More(next) => offset = next,
                Step::End => return Ok(Code::OK),
                Step::Nothing(next) => {
                    offset = next;
                    context.flush()?;
                    // An agent's task may have been resumed since, and then its output has no end yet: what was
                    // followed ends here all the same.
                    if let Heard::Event(event) = events.next()?
                        && event.kind.is_terminal()
                    {
                        return self.print_all(context, offset);
                    }
                }
            }
        }
    }

    /// Prints the next piece.
    fn step(&self, context: &mut Context, offset: i64) -> Result<Step, Failure> {
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
                tell_dropped(begin - asked);
            }
            let output = chunk.task.output.clone();
            context.print_bytes(&decode(chunk)?)?;
            if eof {
                tell_loss(&output);
            }
        }
        Ok(match (eof, is_new) {
            (true, _) => Step::End,
            (false, true) => Step::More(signed(next)),
            (false, false) => Step::Nothing(signed(next)),
        })
    }
}

/// What a piece leaves to do.
enum Step {
    /// There may be more from here on.
    More(i64),
    /// Nothing is there yet from here on.
    Nothing(i64),
    /// That was all, for ever.
    End,
}

fn decode(chunk: OutputResult) -> Result<Vec<u8>, Failure> {
    chunk.encoding.decode(chunk.data).map_err(Failure::unreadable_output)
}

/// Offsets are signed on the wire, as negative ones count from the end. No file is that long.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
