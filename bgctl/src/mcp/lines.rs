//! The lines of standard input, each a message of the protocol: read with a bound, and taken apart so far that a line
//! that is none can be answered with the ids that are in it. It writes nothing.

use std::fmt;

use rmcp::model::RequestId;
use rmcp::service::{RoleServer, RxJsonRpcMessage};
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The longest line, in bytes. A longer one is left out and answered with an error.
pub const LINE_BYTES: usize = 16 * 1024 * 1024;

/// The most requests of one line that are answered: no message is a list, so that each is refused.
const REFUSED: usize = 1000;

/// What comes next.
pub enum Line {
    /// A message.
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Something else that somebody may wait for an answer to.
    Unread(Unread),
    /// The end of the input.
    End,
}

/// A line that is no message.
#[derive(Debug, PartialEq, Eq)]
pub struct Unread {
    /// The ids of requests in it.
    pub ids: Vec<Option<RequestId>>,
    /// What is wrong with it.
    pub why: String,
}

/// The lines as they come.
pub struct Lines<R> {
    input: R,
    /// The part of a line that has come.
    line: Vec<u8>,
    /// Whether the line is too long, and the rest of it is left out.
    skips: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Nothing has come yet.
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::new(), skips: false }
    }

    /// The next line that matters. If this future is dropped nothing is lost.
    pub async fn next(&mut self) -> Line {
        loop {
            // An input that can't be read says nothing more.
            let Ok(bytes @ [_, ..]) = self.input.fill_buf().await else { return Line::End };
            let end = bytes.iter().position(|byte| *byte == b'\n');
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

/// Reads a line: nothing if nobody waits for an answer to it.
fn understand(line: &[u8]) -> Option<Line> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Some(Line::Message(Box::new(message))),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(line);
    let found = Found::in_text(&text);
    // To answer noise makes two that echo each other busy for ever, and a notification has no answer.
    if found.ids.is_empty() && (found.is_notification || !error.is_data()) {
        return None;
    }
    let why = if found.is_list {
        "this is a list: send each message on a line of its own".to_owned()
    } else if error.is_data() {
        format!("this is not a message of the protocol: {}", about(&error))
    } else {
        format!("this is not valid JSON in UTF-8: {error}")
    };
    Some(Line::Unread(Unread { ids: found.ids, why }))
}

/// The library tries one kind of message after the other, and says of most faults only that none fits.
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
    Line::Unread(Unread { ids, why })
}

/// What is found in a line that need not be complete.
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
        // It may break off anywhere; what was found before that counts.
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

    fn unread(line: &str) -> Option<Unread> {
        match understand(line.as_bytes()) {
            Some(Line::Unread(unread)) => Some(unread),
            Some(Line::Message(message)) => panic!("{line} is a message: {message:?}"),
            Some(Line::End) | None => None,
        }
    }

    #[test]
    fn what_is_no_message_has_its_ids_found() {
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
        for line in ["", "garbage", "{\"par", r#"{"jsonrpc":"2.0","method":"notifications/x","params":7}"#] {
            assert_eq!(unread(line), None, "{line}");
        }
        let bytes = b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"x\",\"params\":{\"y\":\"\xff\"}}";
        let Some(Line::Unread(unread)) = understand(bytes) else { panic!("it is no UTF-8") };
        assert_eq!(unread.ids, [Some(RequestId::String("a".into()))]);
        assert!(unread.why.contains("UTF-8"), "{}", unread.why);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_left_out() {
        let long = format!("{{\"id\":1,\"x\":\"{}\"}}", "x".repeat(LINE_BYTES));
        let input =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"ping\"}}\r\n{long}\n[]\n{{\"jsonrpc\"");
        let mut lines = Lines::new(input.as_bytes());
        assert!(matches!(lines.next().await, Line::Message(_)));
        let Line::Unread(unread) = lines.next().await else { panic!("it is too long") };
        assert!(unread.why.contains("longer than 16777216 bytes"), "{}", unread.why);
        let Line::Unread(unread) = lines.next().await else { panic!("it is a list") };
        assert!(unread.why.contains("a list"), "{}", unread.why);
        assert!(matches!(lines.next().await, Line::End));
    }
}
