//! What every verb needs: global options, the connection, and output that survives a reader closing the pipe.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use bgd_shared::request::Method;
use serde::Serialize;

use crate::cli::Globals;
use crate::failure::Failure;
use crate::link::{Host, Link, Options, Target};
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
    /// Creates a context without a connection, for the daemon that the options or the environment name.
    ///
    /// # Errors
    /// They name something that can't be a host.
    pub fn new(globals: Globals) -> Result<Self, Failure> {
        let host = match (&globals.host, &globals.socket) {
            (Some(host), _) => Some(host.clone()),
            // A socket on the command line is on this machine.
            (None, Some(_)) => None,
            (None, None) => host_of_environment()?,
        };
        let target = match host {
            Some(host) => Target::There(Host::new(host)?),
            None => Target::Here(globals.socket.clone()),
        };
        Ok(Self::to(target, globals))
    }

    /// Creates a context for the daemon of this machine unless the options name another one, whatever the environment
    /// says: with `BGD_HOST` set there, `dial` on that host would call itself for ever.
    ///
    /// # Errors
    /// The host's name can't be one.
    pub fn here(globals: Globals) -> Result<Self, Failure> {
        let target = match globals.host.clone() {
            Some(host) => Target::There(Host::new(host)?),
            None => Target::Here(globals.socket.clone()),
        };
        Ok(Self::to(target, globals))
    }

    fn to(target: Target, globals: Globals) -> Self {
        let link = Link::new(Options {
            target,
            starts: !globals.no_start,
            // Programs find what was lost in `daemon status`.
            reports: !globals.json,
            connect_timeout: Duration::from_millis(globals.connect_timeout),
        });
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

/// `$BGD_HOST`; empty counts as unset.
fn host_of_environment() -> Result<Option<String>, Failure> {
    let Some(host) = std::env::var_os("BGD_HOST").filter(|host| !host.is_empty()) else { return Ok(None) };
    // Going on with this machine instead could cancel the wrong tasks.
    host.into_string().map(Some).map_err(|_| Failure::usage("BGD_HOST is not UTF-8"))
}
