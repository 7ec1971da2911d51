//! A real daemon in a home of its own, with methods that start and end it.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use bgd_shared::client::Client;
use bgd_shared::request::{Hello, HelloParams};
use bgd_shared::socket::SocketPath;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::binaries::{bgctl_path, bgd_path};
use crate::outcome::Outcome;
use crate::process::{Process, processes_of};
use crate::wait::{self, PATIENCE, readable};
use crate::watchdog::Watchdog;

/// A real daemon with its own home, socket, state folder and configuration.
///
/// Dropping it ends the daemon with SIGTERM. Any process of its home that is left after that is killed and fails the
/// test.
#[derive(Debug)]
pub struct TestDaemon {
    home: TempDir,
    socket: SocketPath,
    setup: Builder,
    child: Option<Child>,
    /// Whether processes may be left: after [`TestDaemon::kill9`] they may, until the next start.
    may_leave: bool,
    _watchdog: Option<Watchdog>,
}

/// How to start a daemon.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Option<String>,
    env: Vec<(OsString, OsString)>,
    args: Vec<OsString>,
    prelude: Option<String>,
}

/// Report of a daemon about its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The daemon is listening.
    Ready,
    /// Another daemon owns the socket.
    Taken,
    /// The daemon cannot start.
    Error {
        /// The reported exit code.
        exit: i32,
        message: String,
    },
    /// Something else, or nothing at all.
    Other(String),
}

#[derive(Debug)]
pub struct StartFailure {
    pub word: Word,
    pub status: ExitStatus,
    pub stderr: String,
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bgd did not start: it said {:?} and ended with {}\n{}",
            self.word, self.status, self.stderr
        )
    }
}

impl std::error::Error for StartFailure {}

impl Builder {
    /// Sets the text of `config.toml`.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }

    /// Adds a variable to the environment of the daemon and of every `bgctl`.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds an argument for the daemon.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets shell commands to run in the daemon's process before its `exec`, such as `ulimit -n 64`.
    #[must_use]
    pub fn prelude(mut self, shell: impl Into<String>) -> Self {
        self.prelude = Some(shell.into());
        self
    }

    /// Starts the daemon and waits until it is listening.
    #[track_caller]
    pub fn start(self) -> TestDaemon {
        self.try_start().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Starts the daemon and waits for its report.
    #[track_caller]
    pub fn try_start(self) -> Result<TestDaemon, Box<StartFailure>> {
        let mut daemon = self.home_only();
        daemon.try_launch().map(|()| daemon)
    }

    /// Creates the home without starting anything; `bgctl` starts a daemon when it needs one.
    #[track_caller]
    pub fn home_only(self) -> TestDaemon {
        // Not below $TMPDIR: a socket's path may have only 107 bytes.
        let home = tempfile::Builder::new().prefix("bgd-").tempdir_in("/tmp").expect("a folder in /tmp");
        let at = |name: &str| home.path().join(name);
        for name in ["run", "state", "config"] {
            fs::DirBuilder::new().mode(0o700).create(at(name)).expect("a folder in the home");
        }
        let socket = SocketPath::new(at("run/bgd/bgd.sock")).expect("a short path");
        let watchdog = Watchdog::over(home.path());
        let daemon =
            TestDaemon { home, socket, setup: self, child: None, may_leave: false, _watchdog: watchdog };
        if let Some(text) = &daemon.setup.config {
            daemon.write_config(text);
        }
        daemon
    }
}

impl TestDaemon {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a daemon without configuration.
    #[track_caller]
    pub fn start() -> Self {
        Builder::default().start()
    }

    /// Starts a durable daemon with these further lines of configuration.
    #[track_caller]
    pub fn durable(more: &str) -> Self {
        Self::builder().config(format!("durable = true\n{more}")).start()
    }

    /// Creates a home without a daemon; `bgctl` starts one when it needs it.
    #[track_caller]
    pub fn home_only() -> Self {
        Builder::default().home_only()
    }

    /// Starts the daemon of this home and waits for its report. It stays a child of this process.
    #[track_caller]
    pub fn try_launch(&mut self) -> Result<(), Box<StartFailure>> {
        assert!(self.child.is_none(), "this daemon runs");
        self.child = Some(self.spawn()?);
        self.may_leave = false;
        Ok(())
    }

    /// Starts another daemon in this home, which must fail, and returns the failure.
    #[track_caller]
    pub fn second(&self) -> StartFailure {
        match self.spawn() {
            Err(failure) => *failure,
            Ok(mut child) => {
                child.kill().and_then(|()| child.wait()).expect("a child can be killed");
                panic!("a second daemon listens in the home of the first");
            }
        }
    }

    /// Spawns a daemon and waits until it is listening.
    #[track_caller]
    fn spawn(&self) -> Result<Child, Box<StartFailure>> {
        let (mut word, word_end) = io::pipe().expect("a pipe");
        let stderr = File::options().create(true).append(true).open(self.stderr_path());
        // The shell moves the pipe from 1 to 3, so no other child of this process can inherit it.
        let prelude = self.setup.prelude.as_deref().unwrap_or(":");
        let script = format!("{prelude}\nexec \"$0\" \"$@\" 3>&1 >/dev/null");
        let mut command = Command::new("/bin/sh");
        self.dress(&mut command);
        command.args(["-c", &script]).arg(bgd_path()).arg("--socket").arg(self.socket());
        command.args(["--ready-fd", "3"]).args(&self.setup.args);
        command.stdin(Stdio::null()).stdout(word_end).stderr(stderr.expect("a file in the home"));
        let mut child = command.spawn().expect("/bin/sh can be run");
        drop(command); // closes its copy of the write end
        let word = Word::read(&mut word);
        if word == Word::Ready {
            return Ok(child);
        }
        let status = end_of(&mut child);
        Err(Box::new(StartFailure { word, status, stderr: self.stderr_text() }))
    }

    /// Starts the daemon of this home and waits until it is listening.
    #[track_caller]
    pub fn launch(&mut self) {
        self.try_launch().unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// Ends the daemon with SIGTERM and waits for its exit.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("this daemon runs");
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("a child can be signalled");
        end_of(&mut child)
    }

    /// Waits for the exit of a daemon that ends by itself, for instance after `daemon.shutdown`.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        end_of(&mut self.child.take().expect("this daemon runs"))
    }

    /// Kills the daemon with SIGKILL. Processes and files of its tasks may stay behind until the next start.
    #[track_caller]
    pub fn kill9(&mut self) {
        self.kill_by(nix::sys::signal::Signal::SIGKILL);
    }

    /// Kills the daemon like [`TestDaemon::kill9`], by another signal that ends it at once.
    #[track_caller]
    pub fn kill_by(&mut self, signal: nix::sys::signal::Signal) -> ExitStatus {
        let mut child = self.child.take().expect("this daemon runs");
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, signal).expect("a child can be signalled");
        self.may_leave = true;
        end_of(&mut child)
    }

    /// Stops the daemon if it runs, and starts another one in the same home.
    #[track_caller]
    pub fn restart(&mut self) {
        if self.child.is_some() {
            self.stop();
        }
        self.launch();
    }

    /// Writes `config.toml`. The daemon reads it at its start and on `daemon.reload`.
    #[track_caller]
    pub fn write_config(&self, text: &str) {
        let path = self.config_path();
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder in the home");
        fs::write(path, text).expect("a file in the home");
    }

    /// Returns the processes of this home, including the daemon: those whose environment names the home or that run in
    /// it.
    pub fn processes(&self) -> Vec<Process> {
        processes_of(self.home())
    }

    /// Returns the processes of this home other than the daemon and its keeper.
    pub fn task_processes(&self) -> Vec<Process> {
        let daemon = self.served_by();
        let is_task = |process: &Process| Some(process.pid()) != daemon && !is_keeper(process);
        self.processes().into_iter().filter(is_task).collect()
    }

    /// Returns the keepers of this home; a durable daemon has one.
    pub fn keepers(&self) -> Vec<Process> {
        self.processes().into_iter().filter(is_keeper).collect()
    }

    /// Waits for a keeper of this home. Just after its start, a process has neither arguments nor an environment for a
    /// moment, and is not among [`Self::keepers`].
    #[track_caller]
    pub fn keeper(&self) -> Process {
        wait::poll_until("a keeper", || self.keepers().into_iter().next())
    }

    /// Returns the pid of the daemon, whether this test or `bgctl` started it.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.served_by().expect("a daemon runs")
    }

    #[track_caller]
    pub fn process(&self) -> Process {
        Process::open(self.pid()).expect("the daemon lives")
    }

    fn served_by(&self) -> Option<i32> {
        if let Some(child) = &self.child {
            return Some(child.id().cast_signed());
        }
        let hello = self.try_client().ok()?.call::<Hello>(&HelloParams::default());
        hello.ok().map(|hello| hello.pid)
    }
}

impl TestDaemon {
    /// Returns the home: `$HOME`, and the default working directory of submitted tasks.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Listens at the daemon's socket while no daemon runs: the test answers in its place.
    #[track_caller]
    pub fn listener(&self) -> UnixListener {
        let folder = self.socket().parent().expect("a socket is in a folder");
        fs::create_dir(folder).expect("a folder in the home");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("a folder of this user");
        UnixListener::bind(self.socket()).expect("a free path")
    }

    pub fn socket(&self) -> &Path {
        self.socket.as_path()
    }

    pub fn socket_path(&self) -> &SocketPath {
        &self.socket
    }

    /// Returns the daemon's folder in `$XDG_STATE_HOME`. It need not exist yet.
    pub fn state_dir(&self) -> PathBuf {
        self.home().join("state/bgd")
    }

    /// Returns the path of the configuration file, which need not exist.
    pub fn config_path(&self) -> PathBuf {
        self.home().join("config/bgd/config.toml")
    }

    /// Returns the path of the file that receives the daemon's stderr.
    pub fn stderr_path(&self) -> PathBuf {
        self.home().join("bgd.stderr")
    }

    /// Returns the stderr of all daemons of this home so far.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.stderr_path()).unwrap_or_default()).into_owned()
    }

    /// Returns the environment of every program in this home. Only `PATH` is inherited.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let at = |name: &str| self.home().join(name).into_os_string();
        let mut pairs: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into())),
            ("HOME".into(), self.home().into()),
            ("XDG_RUNTIME_DIR".into(), at("run")),
            ("XDG_STATE_HOME".into(), at("state")),
            ("XDG_CONFIG_HOME".into(), at("config")),
            ("BGD_SOCKET".into(), self.socket().into()),
            // Otherwise everything would belong to the terminal that the tests run in, if there is one.
            ("BGD_SESSION".into(), "".into()),
            ("LANG".into(), "C.UTF-8".into()),
        ];
        pairs.extend(self.setup.env.iter().cloned());
        pairs
    }

    fn dress(&self, command: &mut Command) {
        command.env_clear().envs(self.environment()).current_dir(self.home());
    }

    /// Prepares a `bgctl` in this home with these arguments.
    pub fn bgctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bgctl_path());
        self.dress(&mut command);
        command.env("BGD_DAEMON", bgd_path()).args(args);
        command
    }

    /// Runs a `bgctl` in this home to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(&mut self.bgctl(args))
    }

    /// Opens a connection. Waiting for an answer longer than [`PATIENCE`] is an error.
    #[track_caller]
    pub fn client(&self) -> Client {
        self.try_client().unwrap_or_else(|error| panic!("{error}\n{}", self.stderr_text()))
    }

    fn try_client(&self) -> Result<Client, bgd_shared::client::ClientError> {
        let mut client = Client::connect(&self.socket)?;
        client.wait_at_most(PATIENCE);
        Ok(client)
    }
}

impl Word {
    /// Reads the report: a line, or all that an error says.
    #[track_caller]
    fn read(pipe: &mut io::PipeReader) -> Self {
        let mut text = Vec::new();
        let mut byte = [0];
        while text.last() != Some(&b'\n') || text.starts_with(b"error ") {
            assert!(
                readable(pipe.as_fd(), PATIENCE),
                "bgd says neither that it listens nor that it does not"
            );
            match pipe.read(&mut byte).expect("a pipe can be read") {
                0 => break,
                _ => text.push(byte[0]),
            }
        }
        Self::parse(String::from_utf8_lossy(&text).trim_end())
    }

    fn parse(text: &str) -> Self {
        let error = || {
            let (exit, message) = text.strip_prefix("error ")?.split_once(' ')?;
            Some(Self::Error { exit: exit.parse().ok()?, message: message.to_owned() })
        };
        match text {
            "ready" => Self::Ready,
            "taken" => Self::Taken,
            _ => error().unwrap_or_else(|| Self::Other(text.to_owned())),
        }
    }
}

/// Waits for the exit of a child, with a watchdog.
#[track_caller]
fn end_of(child: &mut Child) -> ExitStatus {
    if let Some(process) = Process::open(child.id().cast_signed())
        && !process.wait_gone(PATIENCE)
    {
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
        panic!("bgd does not end");
    }
    child.wait().expect("a child can be waited for")
}

/// How long a process may outlive the daemon: the kernel needs a moment to tear down a killed process, and others need
/// one to see that their connection or terminal has ended.
const TIME_TO_DIE: Duration = Duration::from_secs(5);

impl TestDaemon {
    fn explain(&self) {
        eprintln!("--- stderr of bgd\n{}", self.stderr_text());
        for entry in fs::read_dir(self.state_dir()).into_iter().flatten().flatten() {
            // A test may have put a pipe in its place, whose reader would wait forever.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && entry.path().extension().is_some_and(|ending| ending == "log") {
                let text = fs::read(entry.path()).unwrap_or_default();
                let text = String::from_utf8_lossy(&text[text.len().saturating_sub(8000)..]).into_owned();
                eprintln!("--- end of {}\n{text}", entry.path().display());
            }
        }
    }

    pub(crate) fn end(&mut self) {
        if self.child.is_some() {
            self.stop();
        } else if let Some(daemon) = self.served_by().and_then(Process::open) {
            // If the last one was killed, a `bgctl` has started this one, which leaves nothing of that one, either.
            self.may_leave = false;
            let sent = daemon.signal(Signal::TERM);
            if sent.is_err() || !daemon.wait_gone(PATIENCE) {
                daemon.kill();
            }
        }
    }

    /// Kills the remaining processes, and returns descriptions of them.
    fn sweep(&self) -> Vec<String> {
        let mut left = Vec::new();
        for process in self.processes() {
            if !self.may_leave && process.wait_gone(TIME_TO_DIE) {
                continue;
            }
            left.push(format!("{process:?}"));
            process.kill();
        }
        left
    }
}

fn is_keeper(process: &Process) -> bool {
    process.cmdline().starts_with("bgd --keeper")
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        if thread::panicking() {
            self.explain();
            if let Some(mut child) = self.child.take() {
                // Do not assert while panicking; the sweep ends the remaining processes.
                let _ = child.kill().and_then(|()| child.wait());
            }
            self.sweep();
            return;
        }
        self.end();
        let left = self.sweep();
        if !left.is_empty() && !self.may_leave {
            self.explain();
            panic!("processes are left: {left:#?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_reports_are_parsed() {
        assert_eq!(Word::parse("ready"), Word::Ready);
        assert_eq!(Word::parse("taken"), Word::Taken);
        let error = Word::Error { exit: 77, message: "it is a link".into() };
        assert_eq!(Word::parse("error 77 it is a link"), error);
        assert_eq!(Word::parse("error"), Word::Other("error".into()));
        assert_eq!(Word::parse(""), Word::Other(String::new()));
    }

    #[test]
    fn home_is_private_and_its_socket_path_short() {
        let home = TestDaemon::home_only();
        assert!(home.socket().as_os_str().len() < 60);
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(home.home().join("run")).unwrap());
        assert_eq!(mode & 0o777, 0o700);
    }

    /// Runs a process in this home that its daemon knows nothing of, and ends the test there.
    fn leave_process(home: TestDaemon) {
        let mut command = Command::new("sleep");
        home.dress(&mut command);
        let mut child = command.arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let reaper = thread::spawn(move || child.wait().unwrap());
        drop(home);
        reaper.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "processes are left")]
    fn leftover_processes_fail_the_test() {
        leave_process(TestDaemon::home_only());
    }

    #[test]
    #[should_panic(expected = "processes are left")]
    fn processes_left_by_daemon_started_by_bgctl_after_kill_fail_the_test() {
        let mut daemon = TestDaemon::start();
        daemon.kill9();
        daemon.run(&["list"]).success();
        leave_process(daemon);
    }
}
