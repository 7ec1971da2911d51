//! Splits an agent's standard output into lines of bounded length, and sorts them into messages and noise. Independent
//! of the protocol's methods and of sessions.
//!
//! The crate's own framing is not used: it does not limit the length of a line, ends the connection at bytes that are
//! not UTF-8, and answers every line that a program logs to its standard output with an error.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use agent_client_protocol::{Error, ErrorCode, RawJsonRpcId, RawJsonRpcMessage};
use bgd_shared::mutex::Mutex;
use bgd_shared::show;
use bgd_shared::text::truncated_to_bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt as _, BufReader, Chain};

/// The maximum length of a line of an agent, in bytes. This leaves room for an image in a tool's result. An agent that
/// writes more without a newline is considered broken, and its connection ends.
pub const LINE_BYTES: usize = 16 << 20;

/// How many bytes are read at once. A buffer that grew for a longer line is freed after it.
const READ_BYTES: usize = 64 << 10;

/// How many lines of noise are kept, and the maximum length of each in bytes.
const NOISE_LINES: usize = 5;
const NOISE_BYTES: usize = 200;

/// Why there are no more lines.
#[derive(Debug)]
pub enum Broken {
    /// The peer has closed the stream.
    Ended,
    /// A line is longer than [`LINE_BYTES`].
    TooLong,
    /// The stream can't be read.
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

/// The lines of a stream. Never buffers more than [`LINE_BYTES`] of a line.
#[derive(Debug)]
pub struct Lines<R> {
    input: BufReader<Chain<io::Cursor<Vec<u8>>, R>>,
    /// The beginning of the next line.
    line: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Creates a reader for the lines of this stream.
    pub fn new(input: R) -> Self {
        Self::after(Vec::new(), input)
    }

    /// Creates a reader for a stream from which these bytes were already read.
    pub fn after(read: Vec<u8>, input: R) -> Self {
        let input = BufReader::with_capacity(READ_BYTES, io::Cursor::new(read).chain(input));
        Self { input, line: Vec::new() }
    }

    /// Returns the bytes that were read, but not yet returned as a line.
    pub fn unhandled(&self) -> Vec<u8> {
        let (before, _) = self.input.get_ref().get_ref();
        let at = usize::try_from(before.position()).unwrap_or(usize::MAX);
        let unread = before.get_ref().get(at..).unwrap_or_default();
        [&self.line, self.input.buffer(), unread].concat()
    }

    /// Returns the next line without its newline. A line that is cut off by the end of the stream counts, too.
    /// Cancel-safe: dropping the future loses no data.
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

/// Returns all lines of a stream up to its end, or until reading fails.
pub async fn all(input: impl AsyncRead + Unpin) -> Vec<Vec<u8>> {
    let (mut lines, mut all) = (Lines::new(input), Vec::new());
    while let Ok(line) = lines.next().await {
        all.push(line);
    }
    all
}

/// Parses a line as a message; returns `None` if it is not one.
///
/// Replaces invalid UTF-8, so that half a character in a tool's output does not invalidate the message around it.
pub fn message(line: &[u8]) -> Option<RawJsonRpcMessage> {
    let text = String::from_utf8_lossy(line);
    let Ok(Value::Object(object)) = serde_json::from_str(&text) else { return None };
    if object.contains_key("method") {
        RawJsonRpcMessage::deserialize(Value::Object(object)).ok()
    } else {
        response(object)
    }
}

/// Parses an answer as leniently as possible, because a request whose answer is dropped would wait forever. Without a
/// result or an error, which some libraries omit if it is null, it counts as an answer if the object is marked as a
/// message: a line of a log may have an id, too.
fn response(mut object: Map<String, Value>) -> Option<RawJsonRpcMessage> {
    let id = RawJsonRpcId::deserialize(object.remove("id")?).ok()?;
    let is_message = object.contains_key("jsonrpc") || object.contains_key("error");
    let error = object.remove("error").filter(|error| !error.is_null());
    let result = match error {
        Some(error) => Err(readable(&error)),
        None => Ok(object.remove("result").or_else(|| is_message.then_some(Value::Null))?),
    };
    Some(RawJsonRpcMessage::response(id, result))
}

/// Converts an error to the crate's type. An error that does not fit becomes the data of another error.
fn readable(error: &Value) -> Error {
    Error::deserialize(error).unwrap_or_else(|_| {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("an error without a message");
        Error::new(ErrorCode::INTERNAL_ERROR.value(), message).data(error.clone())
    })
}

/// Lines that are not messages: their number, and the last of them, for error messages.
#[derive(Debug, Default)]
pub struct Noise(Mutex<(u64, VecDeque<String>)>);

impl Noise {
    /// Records a line.
    pub fn add(&self, line: &[u8]) {
        let start = String::from_utf8_lossy(&line[..line.len().min(NOISE_BYTES)]);
        // The text may end up in a terminal, so sanitize it.
        if show::is_blank(&start) {
            return;
        }
        let text = truncated_to_bytes(show::line(start.trim()).trim(), NOISE_BYTES);
        tracing::debug!(bytes = line.len(), line = %text, "an agent wrote a line that is not a message");
        let mut noise = self.0.lock();
        noise.0 += 1;
        if noise.1.len() == NOISE_LINES {
            noise.1.pop_front();
        }
        noise.1.push_back(text);
    }

    /// Returns the lines as the end of a sentence; empty if there are none.
    pub fn as_suffix(&self) -> String {
        let noise = self.0.lock();
        let lines: Vec<&str> = noise.1.iter().map(String::as_str).collect();
        match noise.0 {
            0 => String::new(),
            count if count <= NOISE_LINES as u64 => format!("; it wrote: {}", lines.join(" / ")),
            count => format!("; it wrote {count} other lines, the last one: {}", lines.join(" / ")),
        }
    }
}
