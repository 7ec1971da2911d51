//! The client side of the protocol, without I/O: calls become lines, bytes become answers and notifications.

use std::convert::Infallible;
use std::os::fd::OwnedFd;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ClientError;
use crate::error::{ErrorKind, RpcError};
use crate::event::{EventKind, EventParams, GapKind};
use crate::frame::FrameDecoder;
use crate::limits::ANSWER_BYTES;
use crate::message::{Incoming, RequestId, request_line};
use crate::request::{Hello, HelloParams, Method, OutputNews, StoppedNews};
use crate::strict;

/// The unparsed result of a call, or the daemon's refusal.
pub(super) type Outcome = Result<Box<RawValue>, RpcError>;

/// A message from the daemon.
#[derive(Debug)]
pub enum Received {
    /// The answer to a call.
    Answer {
        /// The number of the call.
        call: u64,
        /// Its unparsed result, or the daemon's refusal.
        outcome: Result<Box<RawValue>, RpcError>,
    },
    /// An event, or a gap between events.
    News(Box<EventParams>),
    /// A part of a terminal's output.
    Output(Box<OutputNews>),
    /// A job was stopped.
    Stopped(StoppedNews),
}

/// A call to be sent.
#[derive(Debug)]
pub struct Call {
    /// Its number, which the answer will carry.
    pub number: u64,
    /// Its line.
    pub line: Vec<u8>,
    /// A descriptor that travels with the line, after those that the caller sends.
    pub along: Option<OwnedFd>,
}

/// Client-side state of one connection.
#[derive(Debug)]
pub struct Protocol {
    decoder: FrameDecoder<Infallible>,
    calls: u64,
    answers: u64,
    /// Whether another program relays the connection to the daemon, so that no descriptor can travel with a line.
    is_carried: bool,
    /// The longest line that the daemon accepts, in bytes, if known.
    line_limit: Option<usize>,
}

/// Number of the `hello` that only checks whether the daemon is alive. Calls are counted from 1.
const PROBE: u64 = 0;

impl Default for Protocol {
    fn default() -> Self {
        let decoder = FrameDecoder::new(ANSWER_BYTES);
        Self { decoder, calls: 0, answers: 0, is_carried: false, line_limit: None }
    }
}

impl Protocol {
    /// Creates the state of a connection that another program relays to a daemon: everything travels in lines.
    pub(super) fn carried() -> Self {
        Self { is_carried: true, ..Self::default() }
    }

    /// Refuses calls with longer lines from now on: the daemon would close the connection.
    pub fn limit_lines(&mut self, bytes: usize) {
        self.line_limit = Some(bytes);
    }

    /// Creates a call.
    ///
    /// # Errors
    /// [`ClientError::Rpc`] if its params are longer than the daemon accepts.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<Call, ClientError> {
        let call = self.build::<M>(params)?;
        let bytes = call.line.len();
        if let Some(most) = self.line_limit.filter(|most| bytes > *most) {
            return Err(too_long(bytes, most).into());
        }
        self.calls = call.number;
        Ok(call)
    }

    /// Builds the next call without counting it as made.
    ///
    /// # Errors
    /// As for [`Self::call`], apart from the limit.
    pub(super) fn build<M: Method>(&self, params: &M::Params) -> Result<Call, ClientError> {
        let long = if self.is_carried { None } else { M::out_of_line(params)? };
        let number = self.calls + 1;
        let line = |params| request_line(number, M::NAME, params);
        Ok(match long {
            Some((params, file)) => Call { number, line: line(&params), along: Some(file) },
            None => Call { number, line: line(params), along: None },
        })
    }

    /// Reports whether an answer is pending.
    pub fn has_pending(&self) -> bool {
        self.answers < self.calls
    }

    /// Returns the line that checks whether the daemon is alive. Its answer is not reported.
    pub(super) fn probe() -> Vec<u8> {
        request_line(PROBE, Hello::NAME, &HelloParams::default())
    }

    /// Accepts bytes from the daemon.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes, None);
    }

    /// Returns the next message from the daemon, if it is complete.
    ///
    /// # Errors
    /// [`ClientError::Garbled`] for a message that can't be parsed; [`ClientError::Rpc`] for an error of the whole
    /// connection, such as `too_many_connections`.
    pub fn next_received(&mut self) -> Result<Option<Received>, ClientError> {
        loop {
            let frame = self.decoder.next_frame().map_err(|error| ClientError::Garbled(error.to_string()))?;
            let Some(frame) = frame else { return Ok(None) };
            let incoming: Incoming<'_> =
                strict::from_slice(&frame.line).map_err(|error| ClientError::Garbled(error.to_string()))?;
            // Unknown messages are notifications from a newer daemon.
            match Self::understand(incoming)? {
                Some(Received::Answer { call: PROBE, .. }) | None => {}
                Some(received) => {
                    self.answers += u64::from(matches!(received, Received::Answer { .. }));
                    return Ok(Some(received));
                }
            }
        }
    }

    fn understand(incoming: Incoming<'_>) -> Result<Option<Received>, ClientError> {
        if let Some(method) = incoming.method {
            let params = incoming.params.map_or("null", RawValue::get);
            return Self::notification(&method, params)
                .map_err(|error| ClientError::Garbled(format!("{method}: {error}")));
        }
        let call = incoming.id.as_ref().and_then(RequestId::as_u64);
        let outcome = match (incoming.result, incoming.error) {
            (_, Some(error)) => Err(error),
            (Some(result), None) => Ok(result.to_owned()),
            (None, None) => return Err(ClientError::Garbled("an answer without a result".into())),
        };
        match (call, outcome) {
            (Some(call), outcome) => Ok(Some(Received::Answer { call, outcome })),
            (None, Err(error)) => Err(ClientError::Rpc(error)),
            (None, Ok(_)) => Err(ClientError::Garbled("an answer to a call that was not made".into())),
        }
    }

    fn notification(method: &str, params: &str) -> serde_json::Result<Option<Received>> {
        Ok(Some(match method {
            // A kind that only a newer daemon knows is no reason to lose the connection.
            "event" => match strict::from_str(params) {
                Ok(news) => Received::News(news),
                Err(error) if has_known_kind(params) => return Err(error),
                Err(_) => return Ok(None),
            },
            "output" => Received::Output(strict::from_str(params)?),
            "stopped" => Received::Stopped(strict::from_str(params)?),
            _ => return Ok(None),
        }))
    }

    /// Parses an answer line as if it answered the first call of a connection. Whoever waits for such an answer then
    /// already has in memory what parsing the real one needs.
    ///
    /// # Errors
    /// The line is not an answer, or it does not fit the method.
    pub fn parse_for_warm_up<M: Method>(line: &[u8]) -> Result<M::Result, ClientError> {
        let mut protocol = Self::default();
        protocol.push(line);
        match protocol.next_received()? {
            Some(Received::Answer { outcome, .. }) => Self::result::<M>(outcome),
            _ => Err(ClientError::Garbled("not an answer".into())),
        }
    }

    /// Parses the result of a call.
    ///
    /// # Errors
    /// The daemon's refusal, or a result that does not fit the method.
    pub fn result<M: Method>(outcome: Result<Box<RawValue>, RpcError>) -> Result<M::Result, ClientError> {
        strict::from_str(outcome?.get())
            .map_err(|error| ClientError::Garbled(format!("{}: {error}", M::NAME)))
    }
}

fn too_long(bytes: usize, most: usize) -> RpcError {
    let message = format!("the request has {bytes} bytes, and the daemon accepts at most {most}");
    RpcError::new(ErrorKind::FrameTooLarge, message)
        .hint("put the long part into a file, or raise limits.frame_bytes where the daemon runs")
}

/// Reports whether the params of an `event` notification are of a kind that this client knows.
fn has_known_kind(params: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Kind {
        Event {
            #[serde(rename = "kind")]
            _kind: EventKind,
        },
        Gap {
            #[serde(rename = "kind")]
            _kind: GapKind,
        },
    }
    serde_json::from_str::<Kind>(params).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ENV_INLINE_BYTES, FRAME_BYTES};
    use crate::request::{SubmitParams, TaskSubmit};

    fn with_env(bytes: usize) -> SubmitParams {
        let env = std::iter::once(("A".into(), "x".repeat(bytes).into())).collect();
        SubmitParams { argv: Some(vec!["true".into()]), env: Some(env), ..SubmitParams::default() }
    }

    #[test]
    fn r145_carried_connection_sends_environment_inline() {
        let params = with_env(2 * ENV_INLINE_BYTES);
        let call = Protocol::default().call::<TaskSubmit>(&params).unwrap();
        assert!(call.along.is_some() && call.line.len() < ENV_INLINE_BYTES);
        let call = Protocol::carried().call::<TaskSubmit>(&params).unwrap();
        assert!(call.along.is_none() && call.line.len() > 2 * ENV_INLINE_BYTES);
    }

    #[test]
    fn event_of_a_newer_daemon_is_skipped() {
        let gap = r#"{"subscription":1,"kind":"gap","from":1,"to":2}"#;
        let newer = r#"{"subscription":1,"kind":"dreamt","seq":3,"at":"2026-01-01T00:00:00Z","task":{}}"#;
        let mut protocol = Protocol::default();
        for params in [newer, gap, r#"{"subscription":1,"kind":"hole"}"#] {
            protocol.push(
                format!("{{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{params}}}\n").as_bytes(),
            );
        }
        assert!(matches!(protocol.next_received().unwrap(), Some(Received::News(_))));
        assert!(protocol.next_received().unwrap().is_none());
        let damaged = r#"{"subscription":1,"kind":"completed","seq":"three"}"#;
        protocol
            .push(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{damaged}}}\n").as_bytes());
        assert!(protocol.next_received().is_err(), "nobody would learn of the end");
    }

    #[test]
    fn r145_overlong_call_is_refused_before_sending() {
        let mut protocol = Protocol::carried();
        protocol.limit_lines(FRAME_BYTES);
        let Err(ClientError::Rpc(error)) = protocol.call::<TaskSubmit>(&with_env(FRAME_BYTES)) else {
            panic!("it is too long")
        };
        assert_eq!(error.kind(), ErrorKind::FrameTooLarge);
        assert!(!protocol.has_pending(), "nothing was sent");
        // The limit is exact to the byte.
        let exact = protocol.build::<TaskSubmit>(&with_env(1000)).unwrap().line.len();
        protocol.limit_lines(exact);
        assert_eq!(protocol.call::<TaskSubmit>(&with_env(1000)).unwrap().line.len(), exact);
        protocol.call::<TaskSubmit>(&with_env(1001)).unwrap_err();
    }
}
