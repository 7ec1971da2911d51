//! The parts that every verb needs: global options, the connection, and output that survives a reader closing the pipe.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use bgd_shared::request::Method;
use serde::Serialize;

use crate::cli::Globals;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Host, Link, Options, Target};
use crate::render::json;
use crate::render::list_format::Colours;

/// Default timeout for connecting to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Default timeout for each of several hosts: a host that is switched off must not cause a long wait (R144).
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(5);

/// State of one `bgctl` run.
pub struct Context {
    globals: Globals,
    /// The connection to the daemon; with several hosts, that of the first one.
    pub link: Link,
    /// The hosts to ask if there are several, else empty.
    hosts: Vec<Host>,
    /// Not locked permanently: `mcp` writes to standard output from a thread of its own.
    out: BufWriter<Stdout>,
    /// Whether SIGINT is to end this process, once everything is reported.
    is_interrupted: bool,
}

impl Context {
    /// Creates a context without a connection, for the daemon that the options or the environment name.
    ///
    /// # Errors
    /// They contain an invalid host name, or several hosts, of which `verb` accepts only one.
    pub fn new(globals: Globals, verb: &str) -> Result<Self, Failure> {
        let context = Self::for_hosts(globals)?;
        match context.hosts.len() {
            0 => Ok(context),
            count => Err(Failure::usage(format!("`{verb}` takes one host, not {count}"))
                .hint("give one with -H; `bgctl list` and `bgctl top` take several")),
        }
    }

    /// Like [`Self::new`], for a verb that accepts several hosts.
    ///
    /// # Errors
    /// The options or the environment contain an invalid host name, or an option needs a host and none is named.
    pub fn for_hosts(globals: Globals) -> Result<Self, Failure> {
        let named = match (&globals.host, &globals.socket) {
            (Some(named), _) => Some(named.clone()),
            // A socket on the command line is on this machine.
            (None, Some(_)) => None,
            (None, None) => host_of_environment()?,
        };
        let mut hosts = named.map_or(Ok(Vec::new()), |named| Host::several(&named))?;
        if globals.bootstrap && hosts.is_empty() {
            return Err(Failure::usage("--bootstrap copies programs to another machine, and none is named")
                .hint("name it with -H or BGD_HOST"));
        }
        let target = match hosts.first() {
            Some(host) => Target::Remote(host.clone()),
            None => Target::Local(globals.socket.clone()),
        };
        if hosts.len() == 1 {
            hosts.clear();
        }
        Ok(Self { hosts, ..Self::to(target, globals) })
    }

    /// Creates a context for the daemon of this machine unless the options name a host. Ignores the environment: with
    /// `BGD_HOST` set on the remote machine, `dial` there would call itself forever.
    ///
    /// # Errors
    /// The host name is invalid.
    pub fn here(globals: Globals) -> Result<Self, Failure> {
        let target = match globals.host.clone() {
            Some(host) => Target::Remote(Host::new(host)?),
            None => Target::Local(globals.socket.clone()),
        };
        Ok(Self::to(target, globals))
    }

    fn to(target: Target, globals: Globals) -> Self {
        let link = Link::new(options(target, &globals));
        Self { globals, link, hosts: Vec::new(), out: BufWriter::new(io::stdout()), is_interrupted: false }
    }

    /// Returns a link to each of the hosts if there are several, else none. Their ssh asks no questions, as the
    /// questions of all hosts would come at once.
    pub fn links(&self) -> Vec<Link> {
        let connect_timeout = self.connect_timeout();
        let options = |host: &Host| options(Target::Remote(host.clone()), &self.globals);
        let quiet = |host: &Host| Options { asks: false, connect_timeout, ..options(host) };
        self.hosts.iter().map(|host| Link::new(quiet(host))).collect()
    }

    /// Returns the hosts to ask if there are several, else none.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns a separate link to the daemon of the host at this index if there are several, else to the same daemon.
    /// It reports nothing and asks nothing: for full-screen views.
    pub fn quiet_link(&self, place: usize) -> Link {
        let target = match self.hosts.get(place).or(self.link.host()) {
            Some(host) => Target::Remote(host.clone()),
            None => Target::Local(self.globals.socket.clone()),
        };
        Link::new(Options { asks: false, reports: false, ..options(target, &self.globals) })
    }

    pub fn globals(&self) -> &Globals {
        &self.globals
    }

    /// Returns the timeout for connecting to a host.
    pub fn connect_timeout(&self) -> Duration {
        let usual = if self.hosts.is_empty() { CONNECT_TIMEOUT } else { CONNECT_TIMEOUT_OF_SEVERAL };
        self.globals.connect_timeout.map_or(usual, Duration::from_millis)
    }

    /// Reports whether to copy this program to a host on which it is not installed.
    pub fn bootstraps(&self) -> bool {
        self.globals.bootstrap
    }

    /// Reports whether to print wire objects as JSON.
    pub fn json(&self) -> bool {
        self.globals.json
    }

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

    /// Like [`Self::call`], for calls that have no further effect when repeated with these params: see
    /// [`Link::call_repeatable`].
    ///
    /// # Errors
    /// As for [`Self::call`]; or a host can't be reached again.
    pub fn call_repeatable<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        self.link.call_repeatable::<M>(params, &[])
    }

    /// Runs an operation, and restarts it whenever it loses a connection that can be replaced: see [`Link::recover`].
    ///
    /// # Errors
    /// The operation fails otherwise, or the connection can't be replaced.
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

    /// Returns the code with which a shell reports a program that this signal ended. If it is SIGINT, this process is
    /// ended by the signal itself: most shells leave a script or a loop only if they see that.
    pub fn end_by_signal(&mut self, code: u8) -> Code {
        self.is_interrupted |= Code(code) == Code::INTERRUPTED;
        Code(code)
    }

    /// Reports whether SIGINT is to end this process.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
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
        // Programs find losses in `daemon status`.
        reports: !globals.json,
        asks: true,
        bootstraps: globals.bootstrap,
        connect_timeout: globals.connect_timeout.map_or(CONNECT_TIMEOUT, Duration::from_millis),
    }
}

/// Returns `$BGD_HOST`; empty counts as unset.
fn host_of_environment() -> Result<Option<String>, Failure> {
    let Some(host) = std::env::var_os("BGD_HOST").filter(|host| !host.is_empty()) else { return Ok(None) };
    // Falling back to this machine could cancel the wrong tasks.
    host.into_string().map(Some).map_err(|_| Failure::usage("BGD_HOST is not UTF-8"))
}
