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

/// How long a host may take to answer, by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The same for each of several hosts: nobody waits long for one that is switched off (R144).
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(5);

/// State of one `bgctl` run.
pub struct Context {
    globals: Globals,
    /// The connection to the daemon; with several hosts that of the first one.
    pub link: Link,
    /// The machines to ask if there are several, else empty.
    hosts: Vec<Host>,
    /// Not locked permanently: `mcp` writes to standard output from a thread of its own.
    out: BufWriter<Stdout>,
}

impl Context {
    /// Creates a context without a connection, for the daemon that the options or the environment name.
    ///
    /// # Errors
    /// They name something that can't be a host, or several: `verb` takes one.
    pub fn new(globals: Globals, verb: &str) -> Result<Self, Failure> {
        let context = Self::for_hosts(globals)?;
        match context.hosts.len() {
            0 => Ok(context),
            count => Err(Failure::usage(format!("`{verb}` takes one host, not {count}"))
                .hint("give one with -H; `bgctl list` and `bgctl top` take several")),
        }
    }

    /// Like [`Self::new`], for a verb that takes several hosts.
    ///
    /// # Errors
    /// The options or the environment name something that can't be a host.
    pub fn for_hosts(globals: Globals) -> Result<Self, Failure> {
        let named = match (&globals.host, &globals.socket) {
            (Some(named), _) => Some(named.clone()),
            // A socket on the command line is on this machine.
            (None, Some(_)) => None,
            (None, None) => host_of_environment()?,
        };
        let mut hosts = named.map_or(Ok(Vec::new()), |named| Host::several(&named))?;
        let target = match hosts.first() {
            Some(host) => Target::There(host.clone()),
            None => Target::Here(globals.socket.clone()),
        };
        if hosts.len() == 1 {
            hosts.clear();
        }
        Ok(Self { hosts, ..Self::to(target, globals) })
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
        let link = Link::new(options(target, &globals));
        Self { globals, link, hosts: Vec::new(), out: BufWriter::new(io::stdout()) }
    }

    /// A link to each of the hosts if there are several, else none. Their ssh asks no questions: they would come all at
    /// once.
    pub fn links(&self) -> Vec<Link> {
        let connect_timeout = self.connect_timeout();
        let options = |host: &Host| options(Target::There(host.clone()), &self.globals);
        let quiet = |host: &Host| Options { asks: false, connect_timeout, ..options(host) };
        self.hosts.iter().map(|host| Link::new(quiet(host))).collect()
    }

    /// The machines to ask if there are several, else none.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A link of its own to the daemon of one of several hosts by its place, else to the same daemon. It reports nothing
    /// and asks nothing: for what has the screen.
    pub fn quiet_link(&self, place: usize) -> Link {
        let target = match self.hosts.get(place).or(self.link.host()) {
            Some(host) => Target::There(host.clone()),
            None => Target::Here(self.globals.socket.clone()),
        };
        Link::new(Options { asks: false, reports: false, ..options(target, &self.globals) })
    }

    /// The global options.
    pub fn globals(&self) -> &Globals {
        &self.globals
    }

    /// The most time until a host answers.
    pub fn connect_timeout(&self) -> Duration {
        let usual = if self.hosts.is_empty() { CONNECT_TIMEOUT } else { CONNECT_TIMEOUT_OF_SEVERAL };
        self.globals.connect_timeout.map_or(usual, Duration::from_millis)
    }

    /// Whether to copy this program to a host that has none.
    pub fn bootstraps(&self) -> bool {
        self.globals.bootstrap
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

    /// Like [`Self::call`], for what changes nothing the second time with these params: see [`Link::call_repeatable`].
    ///
    /// # Errors
    /// As for [`Self::call`]; or a host can't be reached again.
    pub fn call_repeatable<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.link.call_repeatable::<M>(params, &[])
    }

    /// Does something that may be done again from the start, as often as a connection that can be replaced is lost
    /// meanwhile: see [`Link::recover`].
    ///
    /// # Errors
    /// It fails otherwise, or the connection can't be replaced.
    pub fn recovering<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match attempt(self) {
                Err(failure) => self.link.recover(failure)?,
                done => return done,
            }
        }
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

fn options(target: Target, globals: &Globals) -> Options {
    Options {
        target,
        starts: !globals.no_start,
        // Programs find what was lost in `daemon status`.
        reports: !globals.json,
        asks: true,
        bootstraps: globals.bootstrap,
        connect_timeout: globals.connect_timeout.map_or(CONNECT_TIMEOUT, Duration::from_millis),
    }
}

/// `$BGD_HOST`; empty counts as unset.
fn host_of_environment() -> Result<Option<String>, Failure> {
    let Some(host) = std::env::var_os("BGD_HOST").filter(|host| !host.is_empty()) else { return Ok(None) };
    // Going on with this machine instead could cancel the wrong tasks.
    host.into_string().map(Some).map_err(|_| Failure::usage("BGD_HOST is not UTF-8"))
}
