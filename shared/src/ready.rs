//! Readiness conditions of tasks, as written in `--ready` and on the wire (R110), and the search for matching lines
//! of output.
//!
//! This module only parses conditions; the daemon checks whether they are met.

use std::fmt;
use std::str::FromStr;

use memchr::memchr;
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::limits::{LINE_SEARCH_BYTES, READY_BYTES};
use crate::show::without_escapes;
use crate::text::beginning;

/// The readiness condition of a task, written as `line:REGEX`, `tcp:[HOST:]PORT`, `http:URL` (or the URL alone),
/// `file:PATH` or `notify`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ready {
    /// A line of its output matches this regular expression, in the syntax of the `regex` crate.
    Line(Box<str>),
    /// Something listens on a TCP port.
    Tcp {
        /// A name or an address, IPv6 without brackets; `None` for this machine, over IPv4 or IPv6.
        host: Option<Box<str>>,
        /// 1 to 65535.
        port: u16,
    },
    /// A GET request to this URL returns a status from 200 to 399.
    Http(HttpUrl),
    /// This path exists; it is absolute, or relative to the task's folder.
    File(Box<str>),
    /// The task reports its readiness, as with `sd_notify(3)`.
    Notify,
}

/// A URL that begins with `http://`, split into its parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpUrl {
    /// Scheme, host and port, as in `http://[::1]:8080`.
    pub origin: Box<str>,
    /// Path and query; at least `/`.
    pub target: Box<str>,
}

/// Why a text is not a readiness condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadyError {
    /// The text begins with none of the known words.
    #[error("{0:?} is not one of line:REGEX, tcp:[HOST:]PORT, http:URL, file:PATH and notify")]
    Unknown(String),
    /// The text is longer than [`READY_BYTES`].
    #[error("it has {0} bytes; at most {READY_BYTES} are allowed")]
    TooLong(usize),
    /// The part after the colon is invalid.
    #[error("{kind}: {what}")]
    Wrong {
        /// The word before the colon.
        kind: &'static str,
        /// Description of the error in a sentence.
        what: String,
    },
}

fn wrong(kind: &'static str, what: impl Into<String>) -> ReadyError {
    ReadyError::Wrong { kind, what: what.into() }
}

impl FromStr for Ready {
    type Err = ReadyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ready = Self::read(text)?;
        ready.check().map(|()| ready)
    }
}

impl Ready {
    /// Parses the text without compiling a regular expression: compiling takes longer than everything else, and listing
    /// tasks does not need it.
    fn read(text: &str) -> Result<Self, ReadyError> {
        if text.len() > READY_BYTES {
            return Err(ReadyError::TooLong(text.len()));
        }
        match text.split_once(':') {
            None if text == "notify" => Ok(Self::Notify),
            Some(("line", pattern)) => Ok(Self::Line(pattern.into())),
            Some(("tcp", address)) => tcp(address).map_err(|what| wrong("tcp", what)),
            // Users may give the plain URL.
            Some(("http" | "https", rest)) if rest.starts_with("//") => http(text),
            Some(("http", url)) => http(url),
            Some(("file", "")) => Err(wrong("file", "the path is missing, as in file:run/server.pid")),
            Some(("file", path)) if path.contains('\0') => Err(wrong("file", "the path contains a NUL byte")),
            Some(("file", path)) => Ok(Self::File(path.into())),
            Some(_) | None => Err(ReadyError::Unknown(beginning(text, 64).to_owned())),
        }
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(pattern) => write!(f, "line:{pattern}"),
            Self::Tcp { host: None, port } => write!(f, "tcp:{port}"),
            Self::Tcp { host: Some(host), port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host: Some(host), port } => write!(f, "tcp:{host}:{port}"),
            Self::Http(HttpUrl { origin, target }) => write!(f, "http:{origin}{target}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Notify => f.write_str("notify"),
        }
    }
}

impl Ready {
    /// Checks that the regular expression of this condition, if it has one, is usable.
    ///
    /// # Errors
    /// The regular expression does not compile, or needs too much memory.
    pub fn check(&self) -> Result<(), ReadyError> {
        match self {
            Self::Line(pattern) => line_regex(pattern).map(drop).map_err(|what| wrong("line", what)),
            Self::Tcp { .. } | Self::Http(_) | Self::File(_) | Self::Notify => Ok(()),
        }
    }

    /// Returns the total length of the condition's texts, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Line(text) | Self::File(text) => text.len(),
            Self::Tcp { host, .. } => host.as_deref().map_or(0, str::len),
            Self::Http(HttpUrl { origin, target }) => origin.len() + target.len(),
            Self::Notify => 0,
        }
    }
}

fn tcp(address: &str) -> Result<Ready, String> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) => (Some(host_name(host)?), port),
        None => (None, address),
    };
    Ok(Ready::Tcp { host: host.map(Into::into), port: port_number(port)? })
}

/// Validates a host and strips the brackets of an IPv6 address.
fn host_name(host: &str) -> Result<&str, String> {
    if let Some(inside) = host.strip_prefix('[') {
        let inside = inside.strip_suffix(']').filter(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
        return inside.ok_or_else(|| format!("{host:?} is not an IPv6 address in brackets, such as [::1]"));
    }
    if host.contains(':') {
        return Err(format!("{host:?}: put an IPv6 address in brackets, such as [::1]"));
    }
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match host {
        "" => Err("the host before the colon is empty; leave out the colon for this machine".to_owned()),
        host if host.bytes().all(is_of_name) => Ok(host),
        host => Err(format!("{host:?} is not a host name")),
    }
}

fn port_number(port: &str) -> Result<u16, String> {
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| port.parse().ok()).flatten().filter(|port| *port > 0);
    number.ok_or_else(|| format!("{port:?} is not a port: give a number from 1 to 65535"))
}

fn http(url: &str) -> Result<Ready, ReadyError> {
    HttpUrl::read(url).map(Ready::Http).map_err(|what| wrong("http", what))
}

impl HttpUrl {
    fn read(url: &str) -> Result<Self, String> {
        let shown = || beginning(url, 64);
        let Some(rest) = url.strip_prefix("http://") else {
            return Err(format!("{:?} does not begin with http://, the only supported scheme", shown()));
        };
        if let Some(odd) = url.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c)) {
            return Err(format!("{:?}: {odd:?} must be percent-encoded", shown()));
        }
        // The fragment is for browsers only.
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(format!("{:?}: a user name or password can't be sent", shown()));
        }
        let (host, port) = match authority.rsplit_once(':').filter(|_| !authority.ends_with(']')) {
            Some((host, port)) => (host, Some(port_number(port)?)),
            None => (authority, None),
        };
        if host.is_empty() {
            return Err(format!("{:?} has no host", shown()));
        }
        host_name(host)?;
        let origin = port.map_or_else(|| format!("http://{host}"), |port| format!("http://{host}:{port}"));
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self { origin: origin.into(), target: format!("{slash}{target}").into() })
    }
}

/// Maximum memory of a compiled regular expression, in bytes.
const REGEX_BYTES: usize = 1024 * 1024;

/// Maximum nesting depth of a regular expression, as its compiler counts it: groups, repetitions, sequences,
/// alternatives and classes. The compiler recurses to this depth.
const REGEX_DEPTH: u32 = 100;

/// Compiles the regular expression of `line:REGEX`, which is matched against single lines without their line ends. Uses
/// at most 1 MiB of the stack.
///
/// # Errors
/// A message for people: the expression does not compile, needs more than 1 MiB of memory, or is nested more than 100
/// deep.
pub fn line_regex(pattern: &str) -> Result<Regex, String> {
    if pattern.is_empty() {
        return Err("the regular expression is empty".to_owned());
    }
    let built = RegexBuilder::new(pattern).size_limit(REGEX_BYTES).nest_limit(REGEX_DEPTH).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("the regular expression needs more than {limit} bytes when compiled")
        }
        // The message ends with the cause, after several lines that show the position.
        error => error.to_string(),
    })
}

/// Searches growing output for a matching line.
///
/// A line is searched once it is complete, without its line end and terminal escape sequences. Only its first 64 KiB
/// are searched.
#[derive(Debug)]
pub struct LineSearch {
    regex: Regex,
    /// Beginning of the line that is not complete yet.
    begun: Vec<u8>,
}

impl LineSearch {
    /// Starts a search.
    pub fn new(regex: Regex) -> Self {
        Self { regex, begun: Vec::new() }
    }

    /// Accepts the next bytes. Returns the first matching line that they complete, and the number of bytes consumed,
    /// including its line end.
    pub fn read(&mut self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut read = 0;
        while let Some(end) = memchr(b'\n', &bytes[read..]) {
            self.keep(&bytes[read..read + end]);
            read += end + 1;
            if let Some(line) = self.last() {
                return Some((line, read));
            }
        }
        self.keep(&bytes[read..]);
        None
    }

    /// Ends the current line and returns it if it matches. Call it at the end of the output, for a last line without
    /// a line end.
    pub fn last(&mut self) -> Option<Vec<u8>> {
        let line = self.begun.strip_suffix(b"\r").unwrap_or(&self.begun);
        let plain = without_escapes(line);
        let found = self.regex.is_match(&plain).then(|| plain.into_owned());
        self.begun.clear();
        found
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_SEARCH_BYTES.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Serialize for Ready {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Does not compile a regular expression: see [`Ready::check`].
impl<'de> Deserialize<'de> for Ready {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::read(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Ready {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Ready".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "When a task is ready: `line:REGEX`, `tcp:[HOST:]PORT`, `http:URL`, `file:PATH` or `notify`.",
            "type": "string",
            "maxLength": READY_BYTES,
            "pattern": "^(line:.+|tcp:.+|http:(http:)?//.+|file:.+|notify)$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        text.parse::<Ready>().expect_err(text).to_string()
    }

    #[test]
    fn ready_conditions_survive_a_round_trip() {
        for text in [
            "line:^Listening on .*:\\d+$",
            "line:a:b",
            "tcp:5432",
            "tcp:localhost:80",
            "tcp:db.example:65535",
            "tcp:127.0.0.1:1",
            "tcp:[::1]:8080",
            "http:http://localhost:8080/health?deep=1",
            "http:http://[::1]:80/",
            "file:run/server.pid",
            "file:/tmp/a b:c",
            "notify",
        ] {
            let ready: Ready = text.parse().unwrap();
            assert_eq!(ready.to_string(), text);
            let json = serde_json::to_string(&ready).unwrap();
            assert_eq!(serde_json::from_str::<Ready>(&json).unwrap(), ready);
        }
        let ready: Ready = "http:http://host?x=1#part".parse().unwrap();
        assert_eq!(ready.to_string(), "http:http://host/?x=1");
        assert_eq!("http://host:80/x".parse::<Ready>().unwrap().to_string(), "http:http://host:80/x");
        let host = Some("::1".into());
        assert_eq!("tcp:[::1]:8080".parse(), Ok(Ready::Tcp { host, port: 8080 }));
    }

    #[test]
    fn invalid_ready_conditions_get_specific_errors() {
        for (text, part) in [
            ("", "is not one of line:REGEX"),
            ("ready", "\"ready\" is not one of"),
            ("udp:53", "is not one of"),
            ("notify:", "is not one of"),
            ("line:", "regular expression is empty"),
            ("line:a(b", "unclosed group"),
            ("line:(?:a{1000}){1000}", "needs more than 1048576 bytes"),
            (&nested("(", 101, ")"), "exceed the maximum number of nested parentheses/brackets (100)"),
            (&nested("(?:", 51, ")*"), "exceed the maximum number of nested parentheses/brackets (100)"),
            ("tcp:", "\"\" is not a port"),
            ("tcp:0", "\"0\" is not a port: give a number from 1 to 65535"),
            ("tcp:65536", "\"65536\" is not a port"),
            ("tcp:+80", "\"+80\" is not a port"),
            ("tcp:host", "\"host\" is not a port"),
            ("tcp::80", "host before the colon is empty"),
            ("tcp:::1:80", "put an IPv6 address in brackets"),
            ("tcp:[x]:80", "not an IPv6 address in brackets"),
            ("tcp:a b:80", "not a host name"),
            ("http:https://host/", "does not begin with http://"),
            ("https://host/", "\"https://host/\" does not begin with http://"),
            ("http:host", "does not begin with http://"),
            ("http:http://", "has no host"),
            ("http:http:///path", "has no host"),
            ("http:http://host:0/", "\"0\" is not a port"),
            ("http:http://me@host/", "user name or password"),
            ("http:http://host/a b", "' ' must be percent-encoded"),
            ("http:http://ho[st/", "not a host name"),
            ("file:", "the path is missing"),
            ("file:a\0b", "NUL byte"),
        ] {
            let error = error(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert_eq!(error(&"line:".repeat(1000)), "it has 5000 bytes; at most 4096 are allowed");
    }

    /// Searches for a character inside `depth` nested groups with this beginning and end.
    fn nested(begin: &str, depth: usize, end: &str) -> String {
        format!("line:{}L{}", begin.repeat(depth), end.repeat(depth))
    }

    #[test]
    fn most_deeply_nested_pattern_compiles_on_a_small_stack() {
        for text in [nested("(", 100, ")"), nested("(?:", 50, ")*"), nested("(?:", 33, "i?)*")] {
            let checks = move || text.parse::<Ready>().map(drop);
            let checked = std::thread::Builder::new().stack_size(1024 * 1024).spawn(checks).unwrap().join();
            assert_eq!(checked.unwrap(), Ok(()));
        }
    }

    fn search(pattern: &str) -> LineSearch {
        LineSearch::new(line_regex(pattern).unwrap())
    }

    #[test]
    fn line_is_found_once_complete() {
        let mut lines = search("^ready on \\d+$");
        assert_eq!(lines.read(b"not ready on 1\nready"), None);
        assert_eq!(lines.read(b" on 80"), None);
        assert_eq!(lines.read(b"80\r\nready on 1\n"), Some((b"ready on 8080".to_vec(), 4)));
        assert_eq!(lines.read(b"ready on 2"), None);
        assert_eq!(lines.last(), Some(b"ready on 2".to_vec()));
        assert_eq!(lines.last(), None);
    }

    #[test]
    fn colours_and_invalid_bytes_do_not_prevent_a_match() {
        let mut lines = search("ready in \\d+ ms$");
        let shown = b"\x1b[32mVITE\x1b[39m \x1b[2mready in \x1b[0m\x1b[1m312\x1b[22m ms\x1b[0m\r\n";
        assert_eq!(lines.read(shown), Some((b"VITE ready in 312 ms".to_vec(), shown.len())));
        assert_eq!(lines.read(b"\xff\xfe ready in 5 ms\n"), Some((b"\xff\xfe ready in 5 ms".to_vec(), 17)));
    }

    #[test]
    fn window_title_is_not_part_of_a_line() {
        let mut lines = search("^up$");
        let shown = b"\x1bkserver: not up\x1b\\up\n";
        assert_eq!(lines.read(shown), Some((b"up".to_vec(), shown.len())));
        let mut lines = search("server");
        assert_eq!(lines.read(shown), None);
    }

    #[test]
    fn only_the_beginning_of_a_long_line_is_searched() {
        let mut lines = search("a$");
        let long = vec![b'a'; LINE_SEARCH_BYTES];
        assert_eq!(lines.read(&long), None);
        assert_eq!(lines.read(b"b\nbbb\n"), Some((long, 2)), "what comes behind it is cut off");
        assert_eq!(lines.read(b"bbb\n"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics_and_valid_text_round_trips(kind in "(line|tcp|http|file|notify|)", text: String) {
            if let Ok(ready) = format!("{kind}:{text}").parse::<Ready>() {
                prop_assert_eq!(ready.to_string().parse::<Ready>(), Ok(ready));
            }
        }

        #[test]
        fn search_is_independent_of_chunking(text in "[ab\n]{0,40}", cut in 0usize..40) {
            let all = |parts: &[&[u8]]| {
                let mut lines = search("^ab*$");
                parts.iter().find_map(|part| lines.read(part)).map(|(line, _)| line)
            };
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            prop_assert_eq!(all(&[first, second]), all(&[text.as_bytes()]));
        }
    }
}
