//! Lines on an agent's standard output: cut within a bound, and sorted into messages and noise. Nothing here
//! knows a method of the protocol or a session.
//!
//! The crate has framing of its own, which has no bound on a line, ends the connection at bytes that are not
//! UTF-8, and answers every line that a program logs to its standard output with an error.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use agent_client_protocol::{Error, ErrorCode, RawJsonRpcId, RawJsonRpcMessage};
use bgd_shared::show;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::trouble::bounded;

/// The longest line of an agent. It leaves room for a picture in a tool's answer; an agent that writes more
/// without a newline is taken for broken, and its connection ends.
pub const LINE_BYTES: usize = 16 << 20;

/// How much is read at once. A longer buffer for a line is given back after it.
const READ_BYTES: usize = 64 << 10;

/// How many lines of noise are kept, and how much of each.
const NOISE_LINES: usize = 5;
const NOISE_BYTES: usize = 200;

/// Why there are no more lines.
#[derive(Debug)]
pub enum Broken {
    /// The other side has closed it.
    Ended,
    /// A line is longer than [`LINE_BYTES`].
    TooLong,
    /// It can't be read.
    Unreadable(io::Error),
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => out.write_str("the agent's process ended, or closed its output"),
            Self::TooLong => write!(out, "the agent wrote a line of more than {} MiB", LINE_BYTES >> 20),
            Self::Unreadable(error) => write!(out, "the agent's output can't be read: {error}"),
        }
    }
}

/// The lines of a stream, never holding more than [`LINE_BYTES`] of one.
#[derive(Debug)]
pub struct Lines<R> {
    input: BufReader<R>,
    /// The beginning of the next line.
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// The lines of this stream.
    pub fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(READ_BYTES, input), line: Vec::new() }
    }

    /// The next line without its end. What was cut off by the end of the stream counts as a line. May be
    /// dropped at any time; nothing is lost.
    pub async fn next(&mut self) -> Result<Vec<u8>, Broken> {
        loop {
            let read = self.input.fill_buf().await.map_err(Broken::Unreadable)?;
            if read.is_empty() {
                return if self.line.is_empty() {
                    Err(Broken::Ended)
                } else {
                    Ok(std::mem::take(&mut self.line))
                };
            }
            let end = memchr::memchr(b'\n', read);
            let part = &read[..end.unwrap_or(read.len())];
            if self.line.len() + part.len() > LINE_BYTES {
                return Err(Broken::TooLong);
            }
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(std::mem::take(&mut self.line));
            }
        }
    }
}

/// The message of a line, if it is one.
///
/// Broken characters are replaced, so that half a character in the output of a tool does not cost the
/// message around it.
pub fn message(line: &[u8]) -> Option<RawJsonRpcMessage> {
    let text = String::from_utf8_lossy(line);
    let Ok(Value::Object(object)) = serde_json::from_str(&text) else { return None };
    if object.contains_key("method") {
        RawJsonRpcMessage::deserialize(Value::Object(object)).ok()
    } else {
        response(object)
    }
}

/// An answer, read as generously as possible, because a request whose answer is dropped would wait for ever.
fn response(mut object: Map<String, Value>) -> Option<RawJsonRpcMessage> {
    let id = RawJsonRpcId::deserialize(object.remove("id")?).ok()?;
    let error = object.remove("error").filter(|error| !error.is_null());
    let result = match error {
        Some(error) => Err(readable(&error)),
        None => Ok(object.remove("result")?),
    };
    Some(RawJsonRpcMessage::response(id, result))
}

/// The error as the crate has it. One that it does not take is kept as the data of another.
fn readable(error: &Value) -> Error {
    Error::deserialize(error).unwrap_or_else(|_| {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("an error without a message");
        Error::new(ErrorCode::INTERNAL_ERROR.value(), message).data(error.clone())
    })
}

/// Lines that are no messages: how many there were, and the last of them, for error messages.
#[derive(Debug, Default)]
pub struct Noise(Mutex<(u64, VecDeque<String>)>);

impl Noise {
    /// Keeps a line.
    pub fn add(&self, line: &[u8]) {
        let start = String::from_utf8_lossy(&line[..line.len().min(NOISE_BYTES)]);
        // It may end in a terminal.
        if show::is_blank(&start) {
            return;
        }
        let text = bounded(show::line(start.trim()).trim(), NOISE_BYTES);
        tracing::debug!(bytes = line.len(), line = %text, "an agent wrote a line that is no message");
        let mut noise = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noise.0 += 1;
        if noise.1.len() == NOISE_LINES {
            noise.1.pop_front();
        }
        noise.1.push_back(text);
    }

    /// What was kept, as the end of a sentence; nothing if there was nothing.
    pub fn told(&self) -> String {
        let noise = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = noise.1.iter().map(String::as_str).collect();
        match noise.0 {
            0 => String::new(),
            count if count <= NOISE_LINES as u64 => format!("; it wrote: {}", lines.join(" / ")),
            count => format!("; it wrote {count} other lines, the last one: {}", lines.join(" / ")),
        }
    }
}
