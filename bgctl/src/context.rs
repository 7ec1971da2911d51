//! What every verb needs: global options, the connection, and output that survives a reader closing the pipe.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::os::fd::AsFd as _;

use bgd_shared::request::Method;
use serde::Serialize;

use crate::cli::Globals;
use crate::failure::Failure;
use crate::link::Link;
use crate::render::json;
use crate::render::look::Colours;

/// State of one `bgctl` run.
pub struct Context {
    globals: Globals,
    /// The connection to the daemon.
    pub link: Link,
    /// Not locked permanently: `mcp` writes to standard output from a thread of its own.
    out: BufWriter<Stdout>,
}

impl Context {
    /// Creates a context without connecting or printing anything.
    pub fn new(globals: Globals) -> Self {
        // Programs can read lost tasks from `daemon status`, so `--json` prints no loss message.
        let link = Link::new(globals.socket.clone(), !globals.no_start, !globals.json);
        Self { globals, link, out: BufWriter::new(io::stdout()) }
    }

    /// Whether to print wire objects as JSON.
    pub fn json(&self) -> bool {
        self.globals.json
    }

    /// When to colour lists.
    pub fn colours(&self) -> Colours {
        self.globals.color
    }

    /// Makes a call. The first call connects, and starts a daemon if none is running.
    ///
    /// # Errors
    /// There is no daemon, the connection broke, or the daemon refused the call.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.link.call::<M>(params)
    }

    /// Prints text verbatim.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn print(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Prints bytes verbatim.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn print_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Prints a wire object on one line.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.print_bytes(&json::line(value)?)
    }

    /// Flushes everything printed so far.
    ///
    /// # Errors
    /// The write fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes, then returns a duplicate of standard output as a file, so that bytes can be moved to it without
    /// copying them through this process.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn raw_stdout(&mut self) -> Result<std::fs::File, Failure> {
        self.flush()?;
        Ok(self.out.get_ref().as_fd().try_clone_to_owned()?.into())
    }
}
