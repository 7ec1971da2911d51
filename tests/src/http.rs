//! A minimal blocking HTTP client for servers on loopback. It supports only the features that these servers use.

use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::wait::PATIENCE;

/// A server, and the headers of every request to it.
#[derive(Clone, Debug)]
pub struct Http {
    address: SocketAddr,
    headers: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Http {
    /// Creates a client of the server at a URL such as `http://127.0.0.1:80`; the path is ignored.
    #[track_caller]
    pub fn new(url: &str) -> Self {
        let address = url.trim().strip_prefix("http://").expect("an address begins with http://");
        let address = address.split('/').next().unwrap_or_default();
        let address = address.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
        Self { address, headers: String::new() }
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.extend([name, ": ", value, "\r\n"]);
        self
    }

    /// Sends a request and waits for the whole answer.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let answer = self.open(method, path, body).and_then(|(status, mut body)| {
            let mut text = String::new();
            body.read_to_string(&mut text)?;
            Ok(Answer { status, body: text })
        });
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Opens a stream of events, with `GET`, or with `POST` and a body.
    #[track_caller]
    pub fn events(&self, path: &str, body: Option<&Value>) -> Events {
        match self.open(if body.is_some() { "POST" } else { "GET" }, path, body) {
            Ok((200, body)) => Events { lines: BufReader::new(body) },
            Ok((status, _)) => panic!("{path} answers with {status}"),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Sends a request without waiting for anything. Dropping the stream closes the connection.
    pub fn start(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{}\r\n",
            self.address,
            body.len(),
            self.headers
        );
        stream.write_all((head + &body).as_bytes())?;
        Ok(stream)
    }

    /// Sends a request and reads the head of the answer. Dropping the body closes the connection.
    pub fn open(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, BodyReader)> {
        let mut stream = BufReader::new(self.start(method, path, body)?);
        let status = line(&mut stream)?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status"))?;
        let mut left = Left::Rest;
        loop {
            let header = line(&mut stream)?.to_ascii_lowercase();
            match header.split_once(": ") {
                Some(("content-length", length)) => {
                    left = Left::Bytes(length.parse().map_err(io::Error::other)?);
                }
                Some(("transfer-encoding", "chunked")) => left = Left::Chunk(0),
                _ if header.is_empty() && status == 204 => left = Left::Bytes(0),
                _ => {}
            }
            if header.is_empty() {
                return Ok((status, BodyReader { stream, left }));
            }
        }
    }
}

#[derive(Debug)]
pub struct BodyReader {
    stream: BufReader<TcpStream>,
    left: Left,
}

/// Remaining part of a body.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// This many bytes.
    Bytes(u64),
    /// This many bytes of a chunk, and then the next one.
    Chunk(u64),
    /// Everything until the connection ends.
    Rest,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunk(0) = self.left {
            let size = line(&mut self.stream)?;
            let size = u64::from_str_radix(&size, 16).map_err(io::Error::other)?;
            self.left = if size == 0 { Left::Bytes(0) } else { Left::Chunk(size) };
        }
        let (Left::Bytes(at_most) | Left::Chunk(at_most)) = self.left else {
            return self.stream.read(buffer);
        };
        let count = self.stream.by_ref().take(at_most).read(buffer)?;
        let left = at_most - count as u64;
        match self.left {
            Left::Chunk(_) => {
                if left == 0 {
                    line(&mut self.stream)?;
                }
                self.left = Left::Chunk(left);
            }
            Left::Bytes(_) | Left::Rest => self.left = Left::Bytes(left),
        }
        Ok(count)
    }
}

/// A stream of events.
#[derive(Debug)]
pub struct Events {
    lines: BufReader<BodyReader>,
}

impl Events {
    /// Returns the data of the next event; `None` if the stream has ended.
    #[track_caller]
    pub fn next_event(&mut self) -> Option<Value> {
        loop {
            let mut text = String::new();
            match self.lines.read_line(&mut text) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => panic!("no event comes: {error}"),
            }
            let data = text.strip_prefix("data: ").map(str::trim_end);
            if let Some(event) = data.and_then(|data| serde_json::from_str(data).ok()) {
                return Some(event);
            }
        }
    }

    /// Reads until an event of this kind, and returns all events up to and including it.
    #[track_caller]
    pub fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next_event() {
            events.push(event);
            if events.last().is_some_and(|event| event["type"] == kind) {
                return events;
            }
        }
        panic!("the stream ended before {kind}: {events:#?}");
    }
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
