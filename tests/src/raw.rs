//! A connection that breaks all rules, like that of a broken or hostile client of the daemon.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::wait::PATIENCE;

/// A connection that can send arbitrary bytes.
#[derive(Debug)]
pub struct Raw {
    stream: BufReader<UnixStream>,
}

impl Raw {
    /// Connects without checking who owns the socket.
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()))
    }

    /// Like [`Raw::connect`], but may fail.
    pub fn try_connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Connects, and makes a call at once: a connection without one is closed if another client needs it.
    #[track_caller]
    pub fn served(socket: &Path) -> Self {
        let mut raw = Self::connect(socket);
        assert!(raw.is_served(), "the daemon has no room");
        raw
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    #[track_caller]
    pub fn request(&mut self, id: u64, method: &str, params: &Value) {
        let line = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(format!("{line}\n").as_bytes()).expect("the daemon reads");
    }

    /// Appends the next line from the daemon verbatim.
    pub fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<usize> {
        self.stream.read_until(b'\n', line)
    }

    /// Returns the next line from the daemon; `None` if it has closed the connection.
    #[track_caller]
    pub fn receive(&mut self) -> Option<Value> {
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_slice(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("nothing comes from the daemon: {error}"),
        }
    }

    /// Sends a request and waits for its answer.
    #[track_caller]
    pub fn call(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.request(id, method, params);
        self.receive().expect("the daemon answers")
    }

    /// Reports whether the daemon still serves this connection.
    #[track_caller]
    pub fn is_served(&mut self) -> bool {
        self.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"served?\",\"method\":\"hello\"}\n").is_ok()
            && self.receive().is_some_and(|answer| answer["id"] == "served?" && answer["error"].is_null())
    }

    /// Waits until the daemon closes the connection, and discards all data until then.
    #[track_caller]
    pub fn closed(&mut self) {
        match io::copy(&mut self.stream.by_ref(), &mut io::sink()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the daemon does not close: {error}"),
        }
    }
}

/// Returns the kind of the error in an answer, which must have one.
#[track_caller]
pub fn kind(answer: &Value) -> &str {
    answer["error"]["data"]["kind"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

impl Drop for Raw {
    /// Ends the connection, also while a child that another test is starting has a copy of its descriptor.
    fn drop(&mut self) {
        // The daemon may have closed it already.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
