//! Output of the process: lines on stdout and lines of the journal, each written whole. This module handles JSON-RPC,
//! and must not interpret its methods.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::options::Fault;

/// Bytes of an endless line per write.
const PIECE: usize = 16 * 1024;

pub struct Wire {
    /// `None` after `close-stdout`.
    out: Mutex<Option<File>>,
    journal: File,
}

impl Wire {
    /// Takes over stdout, so that nothing else in this process holds it open and it can be closed.
    pub fn open(home: &Path) -> io::Result<Self> {
        fs::create_dir_all(home)?;
        let journal = OpenOptions::new().append(true).create(true).open(home.join("journal"))?;
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        nix::unistd::dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
        Ok(Self { out: Mutex::new(Some(out)), journal })
    }

    /// Sends a message as a line.
    pub fn send(&self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    /// Sends the answer to a request.
    pub fn answer(&self, id: &Value, result: &Result<Value, Fault>) {
        self.send(&match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(Fault { code, text }) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
            }
        });
    }

    /// Sends an update of a session.
    pub fn update(&self, session: &str, update: &Value) {
        self.send(&notification(session, update));
    }

    /// Sends a chunk of text.
    pub fn chunk(&self, session: &str, kind: &str, text: &str) {
        self.update(session, &chunk(kind, text));
    }

    /// Sends a chunk with this many bytes of text, as one line that is never in memory as a whole.
    pub fn huge_chunk(&self, session: &str, bytes: u64) {
        let line = notification(session, &chunk("agent_message_chunk", "")).to_string();
        // A quotation mark inside a string would be escaped, so this matches the member and not a part of a text.
        let (before, after) = line.split_once(r#""text":"""#).unwrap_or((&line, ""));
        self.filled(&format!(r#"{before}"text":""#), b'x', bytes, &format!("\"{after}\n"));
    }

    /// Writes a line of `begin`, `count` times `byte`, and `end`.
    pub fn filled(&self, begin: &str, byte: u8, count: u64, end: &str) {
        let piece = [byte; PIECE];
        self.write(|mut out| {
            out.write_all(begin.as_bytes())?;
            let mut left = count;
            while left > 0 {
                let now = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                out.write_all(&piece[..now])?;
                left -= now as u64;
            }
            out.write_all(end.as_bytes())
        });
    }

    /// Writes arbitrary bytes.
    pub fn raw(&self, bytes: &[u8]) {
        self.write(|mut out| out.write_all(bytes));
    }

    pub fn close(&self) {
        *self.out.lock().expect("stdout") = None;
    }

    /// Writes to stdout. A client that no longer reads is no reason to stop: only the end of stdin is.
    fn write(&self, write: impl FnOnce(&File) -> io::Result<()>) {
        if let Some(out) = &*self.out.lock().expect("stdout") {
            let _ = write(out);
        }
    }

    /// Adds a line to the journal, in one write so that the lines of several processes do not mix.
    pub fn note(&self, mut what: Value) {
        what["pid"] = process::id().into();
        let line = format!("{what}\n");
        let written = (&self.journal).write(line.as_bytes()).expect("the journal can be written");
        assert_eq!(written, line.len(), "a line of the journal is cut off");
    }

    /// Records that the client has broken the protocol.
    pub fn violation(&self, what: &str, message: &Value) {
        self.note(json!({ "violation": what, "by": message }));
    }
}

fn notification(session: &str, update: &Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": { "sessionId": session, "update": update },
    })
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}
