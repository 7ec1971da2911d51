//! What every verb needs: the global options, the connection, and a way to print that survives a
//! reader who goes away.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::os::fd::AsFd as _;

use bgd_shared::request::Method;
use serde::Serialize;

use crate::cli::Globals;
use crate::failure::Failure;
use crate::link::Link;
use crate::render::json;
use crate::render::look::Colours;

/// The state of one run of `bgctl`.
pub struct Context {
    globals: Globals,
    /// The connection to the daemon.
    pub link: Link,
    /// Not locked for good: `mcp` writes to it from a thread of its own.
    out: BufWriter<Stdout>,
}

impl Context {
    /// Nothing is connected or printed yet.
    pub fn new(globals: Globals) -> Self {
        // Programs read in `daemon status` what was lost.
        let link = Link::new(globals.socket.clone(), !globals.no_start, !globals.json);
        Self { globals, link, out: BufWriter::new(io::stdout()) }
    }

    /// Whether the wire's objects are to be printed.
    pub fn json(&self) -> bool {
        self.globals.json
    }

    /// When lists are to have colours.
    pub fn colours(&self) -> Colours {
        self.globals.color
    }

    /// Makes a call; the first one connects, and starts a daemon if there is none.
    ///
    /// # Errors
    /// No daemon, a broken connection, or the daemon's refusal.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.link.call::<M>(params)
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Prints bytes as they are.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Prints an object of the wire on one line.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.print_bytes(&json::line(value)?)
    }

    /// Hands everything printed so far to the system.
    ///
    /// # Errors
    /// What the system says.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Standard output as a file of its own, behind all that was printed so far: bytes can be moved to
    /// it without a copy in this process.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn raw_stdout(&mut self) -> Result<std::fs::File, Failure> {
        self.flush()?;
        Ok(self.out.get_ref().as_fd().try_clone_to_owned()?.into())
    }
}
