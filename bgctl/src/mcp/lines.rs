//! Reads the lines of standard input, each an MCP message, up to a maximum length. Searches a line that is not a
//! message for request ids, so that it can be answered. Writes nothing.

use std::fmt;

use memchr::memchr;
use rmcp::model::{ErrorCode, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage};
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The longest line, in bytes. A longer one is skipped and answered with an error.
pub const LINE_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of requests in one line that are answered. A list is not a message, so each request in it is refused.
const REFUSED: usize = 1000;

pub enum Line {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// An invalid line, which may contain requests that expect an answer.
    InvalidLine(InvalidLine),
    End,
}

#[derive(Debug, PartialEq, Eq)]
pub struct InvalidLine {
    pub ids: Vec<Option<RequestId>>,
    pub code: ErrorCode,
    /// The error message.
    pub why: String,
}

pub struct Lines<R> {
    input: R,
    /// The part of the current line that has been read.
    line: Vec<u8>,
    /// Whether the current line is too long and the rest of it is being skipped.
    skips: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::new(), skips: false }
    }

    /// Returns the next relevant line. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Line {
        loop {
            // An unreadable input counts as ended.
            let Ok(bytes @ [_, ..]) = self.input.fill_buf().await else { return Line::End };
            let end = memchr(b'\n', bytes);
            let count = end.map_or(bytes.len(), |end| end + 1);
            let fits = self.line.len() + count <= LINE_BYTES;
            if !self.skips && fits {
                self.line.extend_from_slice(&bytes[..count]);
            }
            self.input.consume(count);
            let was_skipped = self.skips;
            self.skips = end.is_none() && (self.skips || !fits);
            let line = if !was_skipped && !fits {
                Some(too_long(&std::mem::take(&mut self.line)))
            } else if end.is_some() && !was_skipped {
                let line = understand(self.line.trim_ascii());
                self.line.clear();
                line
            } else {
                None
            };
            if let Some(line) = line {
                return line;
            }
        }
    }
}

/// Parses a line; `None` if it expects no answer.
fn understand(line: &[u8]) -> Option<Line> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if line.is_empty() {
        return None;
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Some(Line::Message(Box::new(message))),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(line);
    let found = Found::in_text(&text);
    // A notification has no answer.
    if found.ids.is_empty() && found.is_notification && error.is_data() {
        return None;
    }
    let code = if error.is_data() { ErrorCode::INVALID_REQUEST } else { ErrorCode::PARSE_ERROR };
    let why = if found.is_list {
        "this is a list: send each message on a line of its own".to_owned()
    } else if error.is_data() {
        format!("this is not a message of the protocol: {}", about(&error))
    } else {
        format!("this is not valid JSON in UTF-8: {error}")
    };
    Some(Line::InvalidLine(InvalidLine { ids: found.ids, code, why }))
}

/// Describes a parse error. rmcp tries one kind of message after the other, and most of its errors say only that none
/// matches.
fn about(error: &serde_json::Error) -> String {
    let hint = "it needs \"jsonrpc\": \"2.0\", \"method\", and \"id\", a string or a whole number; \"params\" and \
                its \"_meta\" must be objects";
    format!("{error}; {hint}")
}

fn too_long(beginning: &[u8]) -> Line {
    let ids = Found::in_text(&String::from_utf8_lossy(beginning)).ids;
    let why = format!(
        "this line is longer than {LINE_BYTES} bytes: write the long part to a file, and give the file's path"
    );
    Line::InvalidLine(InvalidLine { ids, code: ErrorCode::INVALID_REQUEST, why })
}

/// The parts of a line that matter for an answer. The line may be incomplete.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<Option<RequestId>>,
    is_list: bool,
    /// Whether it has a method and no id.
    is_notification: bool,
}

impl Found {
    fn in_text(text: &str) -> Self {
        let mut found = Self::default();
        // The text may break off anywhere; what was found up to there counts.
        let _ = serde_json::Deserializer::from_str(text).deserialize_any(Finder(&mut found));
        found
    }
}

struct Finder<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for Finder<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut has_id, mut has_method) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            if key == "id" {
                has_id = true;
                if let Ok(id) = serde_json::from_value(map.next_value()?)
                    && self.0.ids.len() < REFUSED
                {
                    self.0.ids.push(Some(id));
                }
            } else {
                has_method |= key == "method";
                map.next_value::<IgnoredAny>()?;
            }
        }
        self.0.is_notification |= has_method && !has_id;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.is_list = true;
        while list.next_element_seed(Finder(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread(line: &str) -> Option<InvalidLine> {
        match understand(line.as_bytes()) {
            Some(Line::InvalidLine(unread)) => Some(unread),
            Some(Line::Message(message)) => panic!("{line} is a message: {message:?}"),
            Some(Line::End) | None => None,
        }
    }

    #[test]
    fn request_ids_are_recovered_from_invalid_lines() {
        let number = |id| Some(RequestId::Number(id));
        for (line, ids) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":7}}"#, vec![number(7)]),
            (r#"{"id":7,"method":"tools/list"}"#, vec![number(7)]),
            (r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","par"#, vec![number(7)]),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, vec![]),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, vec![]),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"id":2}]"#, vec![number(1), number(2)]),
            ("[]", vec![]),
            ("{}", vec![]),
            ("7", vec![]),
        ] {
            assert_eq!(unread(line).map(|unread| unread.ids), Some(ids), "{line}");
        }
        for line in ["", r#"{"jsonrpc":"2.0","method":"notifications/x","params":7}"#] {
            assert_eq!(unread(line), None, "{line}");
        }
        for (line, code) in [
            ("garbage", ErrorCode::PARSE_ERROR),
            ("{\"par", ErrorCode::PARSE_ERROR),
            (r#"{"id":7,"par"#, ErrorCode::PARSE_ERROR),
            ("{}", ErrorCode::INVALID_REQUEST),
            ("[]", ErrorCode::INVALID_REQUEST),
        ] {
            assert_eq!(unread(line).map(|unread| unread.code), Some(code), "{line}");
        }
        let bytes = b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"x\",\"params\":{\"y\":\"\xff\"}}";
        let Some(Line::InvalidLine(unread)) = understand(bytes) else { panic!("it is no UTF-8") };
        assert_eq!(unread.ids, [Some(RequestId::String("a".into()))]);
        assert!(unread.why.contains("UTF-8"), "{}", unread.why);
    }

    #[tokio::test]
    async fn overlong_line_is_skipped() {
        let long = format!("{{\"id\":1,\"x\":\"{}\"}}", "x".repeat(LINE_BYTES));
        let input =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"ping\"}}\r\n{long}\n[]\n{{\"jsonrpc\"");
        let mut lines = Lines::new(input.as_bytes());
        assert!(matches!(lines.next().await, Line::Message(_)));
        let Line::InvalidLine(unread) = lines.next().await else { panic!("it is too long") };
        assert!(unread.why.contains("longer than 16777216 bytes"), "{}", unread.why);
        let Line::InvalidLine(unread) = lines.next().await else { panic!("it is a list") };
        assert!(unread.why.contains("a list"), "{}", unread.why);
        assert!(matches!(lines.next().await, Line::End));
    }
}
