//! What leaves the process: lines on stdout and lines of the journal, each whole. It may know of JSON-RPC,
//! but not what its methods mean.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::options::Fault;

/// How much of an endless line is made at once.
const PIECE: usize = 16 * 1024;

pub struct Wire {
    /// Nothing after `close-stdout`.
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

    /// A message as a line.
    pub fn send(&self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    /// The answer to a request.
    pub fn answer(&self, id: &Value, result: &Result<Value, Fault>) {
        self.send(&match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(Fault { code, text }) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
            }
        });
    }

    /// An update of a session.
    pub fn update(&self, session: &str, update: &Value) {
        self.send(&notification(session, update));
    }

    /// A chunk of text.
    pub fn chunk(&self, session: &str, kind: &str, text: &str) {
        self.update(session, &chunk(kind, text));
    }

    /// A chunk of so many bytes of text, as one line that is never in memory as a whole.
    pub fn huge_chunk(&self, session: &str, bytes: u64) {
        let line = notification(session, &chunk("agent_message_chunk", "")).to_string();
        // A quotation mark in a string is escaped, so this is the member and no part of a text.
        let (before, after) = line.split_once(r#""text":"""#).unwrap_or((&line, ""));
        self.filled(&format!(r#"{before}"text":""#), b'x', bytes, &format!("\"{after}\n"));
    }

    /// A line that begins, is filled with a byte and ends.
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

    /// Any bytes.
    pub fn raw(&self, bytes: &[u8]) {
        self.write(|mut out| out.write_all(bytes));
    }

    pub fn close(&self) {
        *self.out.lock().expect("stdout") = None;
    }

    /// A client that does not read any more is no reason to stop: that is for the end of stdin to say.
    fn write(&self, write: impl FnOnce(&File) -> io::Result<()>) {
        if let Some(out) = &*self.out.lock().expect("stdout") {
            let _ = write(out);
        }
    }

    /// A line of the journal, in one write so that the lines of several processes don't mix.
    pub fn note(&self, mut what: Value) {
        what["pid"] = process::id().into();
        let line = format!("{what}\n");
        let written = (&self.journal).write(line.as_bytes()).expect("the journal can be written");
        assert_eq!(written, line.len(), "a line of the journal is cut off");
    }

    /// Writes down what the protocol forbids a client to do.
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
