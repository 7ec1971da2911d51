//! JSON-RPC 2.0 envelopes: lines on the wire whose params are not parsed yet.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{ErrorKind, RpcError};
use crate::params;
use crate::strict;

/// The id of a request, a number or a string. Its answer repeats it as it was sent: a parsed number could be rounded, and
/// not every string of JSON is text.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct RequestId(Box<RawValue>);

impl RequestId {
    /// Returns the id if it is one that this crate's clients give their requests.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.0.get().parse().ok()
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        match json.get().as_bytes() {
            [b'"' | b'-' | b'0'..=b'9', ..] => Ok(Self(json)),
            _ => Err(serde::de::Error::custom("must be a number or a string")),
        }
    }
}

/// A request or a notification whose params are not parsed yet.
#[derive(Debug, Deserialize)]
pub struct Request<'a> {
    /// Always `2.0`.
    #[serde(borrow, default)]
    pub jsonrpc: Cow<'a, str>,
    /// Missing in a notification. Null is an error: its answer could not be matched to the request.
    #[serde(default, deserialize_with = "present")]
    pub id: Option<RequestId>,
    /// The name of the method.
    #[serde(borrow)]
    pub method: Cow<'a, str>,
    /// Its params.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

/// Parses an id that is present, so that null does not count as missing.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<RequestId>, D::Error> {
    RequestId::deserialize(deserializer).map(Some)
}

/// Parses a request line.
///
/// # Errors
/// `parse_error` for a line that is not JSON, `invalid_request` for JSON that is not a request.
pub fn parse_request(line: &[u8]) -> Result<Request<'_>, RpcError> {
    let request: Request<'_> = match strict::from_slice(line) {
        Ok(request) => request,
        Err(error) => return Err(no_request(line, &error)),
    };
    let why = match &*request.jsonrpc {
        "2.0" => return Ok(request),
        "" => "`jsonrpc` is missing or empty: it must be \"2.0\"".to_owned(),
        other => format!("`jsonrpc` is {:?}, not \"2.0\"", params::shortened(other)),
    };
    Err(RpcError::new(ErrorKind::InvalidRequest, why))
}

/// Returns the error for a line that is not JSON or not a request.
fn no_request(line: &[u8], error: &serde_json::Error) -> RpcError {
    // For a line such as `{}}` or `[[[`, serde reports the wrong object before what makes it no JSON.
    let broken = serde_json::from_slice::<serde::de::IgnoredAny>(line).err();
    if let (true, None, Ok(text)) = (error.is_data(), &broken, std::str::from_utf8(line)) {
        let why = params::explain::<Request<'_>>(text, "it", "a request");
        return RpcError::new(ErrorKind::InvalidRequest, format!("not a JSON-RPC request: {why}"))
            .hint(r#"send one object per line: {"jsonrpc":"2.0","id":1,"method":"…","params":{…}}"#);
    }
    let why = match (&broken, std::str::from_utf8(line)) {
        (None, Err(_)) => "a string in it is not UTF-8".to_owned(),
        (broken, _) => broken.as_ref().unwrap_or(error).to_string(),
    };
    RpcError::new(ErrorKind::ParseError, format!("not JSON: {why}"))
        .hint("send one JSON object per line, in UTF-8")
}

#[derive(Serialize)]
struct RequestOut<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct ResultOut<'a, R> {
    jsonrpc: &'static str,
    id: &'a RequestId,
    result: &'a R,
}

#[derive(Serialize)]
struct ErrorOut<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RequestId>,
    error: &'a RpcError,
}

fn line_of(value: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::with_capacity(1024);
    // Wire types have only string keys and infallible serializers, so this can't fail. If it ever did, an empty line
    // would be harmless: every reader skips it.
    if serde_json::to_writer(&mut line, value).is_err() {
        line.clear();
    }
    line.push(b'\n');
    line
}

/// Returns the line of a request.
pub fn request_line<P: Serialize>(id: u64, method: &str, params: &P) -> Vec<u8> {
    line_of(&RequestOut { jsonrpc: "2.0", id, method, params })
}

/// Returns the line of an answer.
pub fn result_line<R: Serialize>(id: &RequestId, result: &R) -> Vec<u8> {
    line_of(&ResultOut { jsonrpc: "2.0", id, result })
}

/// Returns the line of an error. `id` is `None` if the id of the request could not be read.
pub fn error_line(id: Option<&RequestId>, error: &RpcError) -> Vec<u8> {
    line_of(&ErrorOut { jsonrpc: "2.0", id, error })
}

/// A line that a client receives.
#[derive(Debug, Deserialize)]
pub struct Incoming<'a> {
    /// The request that it answers.
    #[serde(default)]
    pub id: Option<RequestId>,
    /// The name of a notification.
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    /// The params of a notification.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    /// The result of a successful call.
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
    /// The error of a failed call.
    #[serde(default)]
    pub error: Option<RpcError>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_line_never_panics(line: Vec<u8>) {
            let _ = parse_request(&line);
        }
    }

    #[test]
    fn id_is_repeated_as_it_was_sent() {
        for id in [
            "1",
            "-0",
            "1e3",
            "1.50",
            "1e400",
            "123456789012345678901234567890",
            r#""""#,
            r#""a\u0062\/c""#,
            r#""\ud83d""#,
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0", "id" : {id} ,"method":"hello"}}"#);
            let request = parse_request(line.as_bytes()).unwrap();
            let answer = result_line(request.id.as_ref().unwrap(), &7);
            let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":7}}\n");
            assert_eq!(String::from_utf8(answer).unwrap(), expected);
            // As over an upgrade in place.
            let json = serde_json::to_string(&request.id).unwrap();
            let carried: Option<RequestId> = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&carried).unwrap(), id);
        }
    }

    #[test]
    fn malformed_requests_are_explained_without_names_of_types() {
        for (line, message) in [
            (&*"[".repeat(5000), "not JSON: EOF while parsing a list at line 1 column 5000"),
            (
                r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"hello"}"#,
                "not a JSON-RPC request: `id` of a request is given twice",
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"hello"}"#,
                "not a JSON-RPC request: `id` of a request must be a number or a string",
            ),
            (
                r#"{"jsonrpc":"2.0","id":[1],"method":"hello"}"#,
                "not a JSON-RPC request: `id` of a request must be a number or a string",
            ),
            (r#"{"id":1,"method":"hello"}"#, "`jsonrpc` is missing or empty: it must be \"2.0\""),
            (r#"{"jsonrpc":"1.0","method":"hello"}"#, "`jsonrpc` is \"1.0\", not \"2.0\""),
            ("[]", "not a JSON-RPC request: it must be an object, not an array"),
        ] {
            assert_eq!(parse_request(line.as_bytes()).unwrap_err().message, message);
        }
    }

    #[test]
    fn malformed_requests_get_the_right_error_kind() {
        let kind = |line: &str| parse_request(line.as_bytes()).unwrap_err().kind();
        assert_eq!(kind("{"), ErrorKind::ParseError);
        assert_eq!(kind("hello"), ErrorKind::ParseError);
        assert_eq!(kind("{}}"), ErrorKind::ParseError);
        assert_eq!(kind(&"[".repeat(100_000)), ErrorKind::ParseError);
        assert_eq!(
            kind(&["[", "]"].map(|bracket| bracket.repeat(100_000)).concat()),
            ErrorKind::InvalidRequest
        );
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":null,"method":"hello"}"#), ErrorKind::InvalidRequest);
        assert_eq!(kind("[]"), ErrorKind::InvalidRequest);
        assert_eq!(kind(r#"["2.0",1,"hello",{}]"#), ErrorKind::InvalidRequest);
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1}"#), ErrorKind::InvalidRequest);
        assert_eq!(kind(r#"{"jsonrpc":"1.0","method":"hello"}"#), ErrorKind::InvalidRequest);
        assert_eq!(parse_request(b"\xff").unwrap_err().kind(), ErrorKind::ParseError);
    }
}
