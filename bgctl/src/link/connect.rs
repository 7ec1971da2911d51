//! Connects to the daemon, and starts it if necessary.
//!
//! Many `bgctl` processes may find at the same time that there is no daemon. They queue at a file lock: the first one
//! starts a daemon and waits until it reports that its socket is ready; the others then find it. There are no fixed
//! waits, except while a daemon that was started by other means comes up, a killed one goes away ([`pauses`]), or a
//! running one recreates its socket ([`pause_for_socket`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bgd_shared::client::{BUSY, Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::holder::Phase;
use bgd_shared::show::lost_tasks;
use bgd_shared::socket::{SocketError, SocketPath};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::bounded;
use super::daemon_process::DaemonProcess;
use super::lost::NO_DAEMON;
use super::turn::Turn;
use crate::exit::Code;
use crate::failure::Failure;
use crate::state::log_file;

/// Environment variables that are passed to the daemon. All others belong to the caller that happened to come first.
pub const KEPT: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "PATH",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",
    // For notification channels: proxies, and trusted certificates.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Prefixes of further variables that are passed to the daemon.
pub const KEPT_PREFIXES: &[&str] = &["LC_", "XDG_", "BGD_"];

/// Variables that mark a task of another daemon. A daemon that is started from within a task is not part of that task.
pub const DROPPED: &[&str] = &[
    "BGD_TASK_ID",
    "BGD_AGENT_ID",
    "BGD_HOOK_ID",
    "BGD_BRIDGE_ID",
    "BGD_INSTANCE",
    "BGD_MCP_DEPTH",
    "BGD_HOST",
    "BGD_SSH",
];

/// How often to retry while a daemon is starting or ending.
const RETRIES: u32 = 8;

/// The pause before the first retry; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// How long a running daemon may take to recreate its socket. It does so at once, unless the machine is busy.
const RECREATION: Duration = Duration::from_secs(5);

/// The pause between two looks for a socket that is recreated late.
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of bytes read from a daemon's first message.
const WORDS_BYTES: usize = 16 * 1024;

/// How long a daemon may take until it is ready. It gives the processes of each dead daemon 5 seconds to end.
const START: Duration = BUSY;

/// Why no daemon could be started.
#[derive(Debug, PartialEq, Eq)]
pub enum StartError {
    /// The daemon that was started, by this process or another one, ended before it answered.
    Ended(Failure),
    /// Anything else, which another attempt would not change.
    Refused(Failure),
}

impl From<Failure> for StartError {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Ended(failure) | StartError::Refused(failure) => failure,
        }
    }
}

/// Connects; with `start`, starts a daemon if there is none. Waits for a daemon that another `bgctl` is starting.
///
/// # Errors
/// There is no daemon, or the socket must not be trusted.
pub fn connect(socket: &SocketPath, start: bool) -> Result<(Client, Started), Failure> {
    Ok(connect_or_start(socket, start)?)
}

/// Like [`connect`], but distinguishes a daemon that ends while it starts, as it was killed for instance.
///
/// # Errors
/// As for [`connect`].
pub fn connect_or_start(socket: &SocketPath, start: bool) -> Result<(Client, Started), StartError> {
    match Client::connect(socket) {
        Ok(client) => Ok((client, Started::Before)),
        Err(ClientError::Connect(error)) if error.is_absent() => {
            if start {
                begin(&take_turn(socket)?, socket, &[])
            } else {
                connect_to_started(socket)
            }
        }
        Err(error) => Err(absent(socket, error).into()),
    }
}

/// Connects to the daemon that another process is about to start. Distinguishes one that ended while it started.
///
/// # Errors
/// The daemon has ended, the other process takes too long, or the socket must not be trusted.
pub fn connect_to_started(socket: &SocketPath) -> Result<(Client, Started), StartError> {
    until_started(socket)?;
    match Client::connect(socket) {
        Ok(client) => Ok((client, Started::Before)),
        Err(ClientError::Connect(error)) if error.is_absent() => {
            Err(StartError::Ended(absent(socket, error.into())))
        }
        Err(error) => Err(absent(socket, error).into()),
    }
}

/// Waits for another process that is about to start a daemon; returns whether there was one. Blocks.
///
/// # Errors
/// The other process takes too long, or its lock can't be used.
pub fn until_started(socket: &SocketPath) -> Result<bool, Failure> {
    let is_taken = Turn::is_taken(socket);
    if is_taken {
        drop(Turn::take(socket)?);
    }
    Ok(is_taken)
}

/// Explains a failed connection. A daemon that runs without its socket is found by its locks and mentioned.
pub fn absent(socket: &SocketPath, error: ClientError) -> Failure {
    if !matches!(&error, ClientError::Connect(error) if error.is_absent()) {
        return error.into();
    }
    let Some(daemon) = DaemonProcess::of(socket) else { return error.into() };
    let does = match daemon.holder.note.phase {
        Phase::Starting => "is starting, and does not answer yet",
        Phase::Ending => "is shutting down, and accepts no more requests",
        Phase::Ready => return without_socket(socket, &daemon),
    };
    Failure::new(Code::NO_DAEMON, NO_DAEMON, format!("the daemon (pid {}) {does}", daemon.pid()))
        .hint("repeat the command in a moment")
}

fn without_socket(socket: &SocketPath, daemon: &DaemonProcess) -> Failure {
    // Only this state keeps the daemon from recreating the socket until somebody resumes it.
    let stopped = daemon.holder.state().filter(|state| state.is_stopped());
    let state = stopped.map(|state| format!("; it {state}")).unwrap_or_default();
    let message = format!(
        "the daemon (pid {}) is running, but its socket {} is gone{state}",
        daemon.pid(),
        socket.as_path().display()
    );
    Failure::new(Code::NO_DAEMON, "no_answer", message).hint(format!(
        "it recreates its socket as soon as the folder {} exists; `bgctl daemon stop` stops it and its tasks",
        socket.folder().display()
    ))
}

/// Returns the pauses while waiting for a daemon that is starting or ending: 2.5 seconds in all.
pub fn pauses() -> impl Iterator<Item = Duration> {
    (0..RETRIES).map(|times| FIRST_PAUSE * 2_u32.pow(times))
}

/// Returns the pause before the next look for the socket of a running daemon, which is missing at least since this
/// time. `None` if there is no such daemon, it can't recreate the socket as it is stopped, or it takes too long.
fn pause_for_socket(socket: &SocketPath, since: Instant) -> Option<Duration> {
    let is_running = |daemon: DaemonProcess| daemon.holder.note.phase == Phase::Ready && !daemon.is_stopped();
    let waits = since.elapsed() < RECREATION && DaemonProcess::of(socket).is_some_and(is_running);
    waits.then_some(LATE_PAUSE)
}

/// Who started the daemon that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Another process; the daemon was running already.
    Before,
    /// This process.
    ByUs {
        /// Number of tasks started by an earlier daemon that was killed; their outputs are lost.
        lost: u64,
    },
}

impl Started {
    /// Returns a message to the user about lost tasks; `None` if there are none.
    pub fn loss(self) -> Option<String> {
        match self {
            Self::Before | Self::ByUs { lost: 0 } => None,
            Self::ByUs { lost } => Some(format!("{}; its log is {}", lost_tasks(lost), log_file().display())),
        }
    }
}

/// Starts a daemon unless another caller was faster, and connects to it.
///
/// # Errors
/// The daemon could not be started.
pub fn start_daemon(socket: &SocketPath) -> Result<(Client, Started), Failure> {
    start_daemon_with(socket, &[])
}

/// Like [`start_daemon`], with environment variables for the daemon in addition to those of this process.
///
/// # Errors
/// The daemon could not be started.
pub fn start_daemon_with(
    socket: &SocketPath,
    variables: &[(String, String)],
) -> Result<(Client, Started), Failure> {
    start_in_turn(&take_turn(socket)?, socket, variables)
}

/// Waits for this caller's turn to look for a daemon and start one. Other callers wait until the turn is dropped.
///
/// # Errors
/// Others take too long, or the folder of the socket can't be used.
pub fn take_turn(socket: &SocketPath) -> Result<Turn, Failure> {
    if let Err(error) = socket.prepare_folder() {
        // A daemon whose runtime folder was removed may be running: report that instead.
        return Err(match DaemonProcess::of(socket) {
            Some(_) => {
                absent(socket, ClientError::Connect(SocketError::Missing(socket.folder().into()).into()))
            }
            None => error.into(),
        });
    }
    Turn::take(socket)
}

/// Like [`start_daemon_with`], in a turn that the caller has already taken.
///
/// # Errors
/// The daemon could not be started.
pub fn start_in_turn(
    turn: &Turn,
    socket: &SocketPath,
    variables: &[(String, String)],
) -> Result<(Client, Started), Failure> {
    Ok(begin(turn, socket, variables)?)
}

fn begin(
    _turn: &Turn,
    socket: &SocketPath,
    variables: &[(String, String)],
) -> Result<(Client, Started), StartError> {
    match Client::connect(socket) {
        Ok(client) => return Ok((client, Started::Before)),
        Err(ClientError::Connect(error)) if error.is_absent() => {}
        Err(error) => return Err(Failure::from(error).into()),
    }
    let (mut pauses, since) = (pauses(), Instant::now());
    loop {
        match spawn(socket, variables)? {
            StartReport::Ready { lost } => {
                return match Client::connect(socket) {
                    Err(ClientError::Connect(error)) if error.is_absent() => {
                        Err(StartError::Ended(absent(socket, error.into())))
                    }
                    connected => Ok((connected.map_err(Failure::from)?, Started::ByUs { lost })),
                };
            }
            StartReport::Taken => {}
            StartReport::Ended => return Err(StartError::Ended(ended_early())),
        }
        // Another daemon holds the lock. Either it was started by other means a moment ago or its socket was removed,
        // and the socket is about to appear; or it was killed and is not quite gone, and the next daemon gets the lock.
        match Client::connect(socket) {
            Err(ClientError::Connect(error)) if error.is_absent() => {
                let pause = pauses.next().or_else(|| pause_for_socket(socket, since));
                let Some(pause) = pause else { return Err(never_listens(socket, error.into()).into()) };
                std::thread::sleep(pause);
            }
            other => return Ok((other.map_err(Failure::from)?, Started::Before)),
        }
    }
}

/// The first message of a started daemon.
#[derive(Debug, PartialEq, Eq)]
enum StartReport {
    /// The daemon listens. The outputs of `lost` tasks were lost with an earlier daemon that was killed.
    Ready { lost: u64 },
    /// Another daemon holds the lock of this socket.
    Taken,
    /// None: it ended before.
    Ended,
}

/// Makes the daemon's program check the configuration that it would start with.
///
/// # Errors
/// The configuration is invalid, or there is no such program.
pub fn check_config() -> Result<(), Failure> {
    let program = program();
    let (mut reader, writer) = io::pipe().map_err(|error| Failure::io("can't create a pipe", &error))?;
    let mut child = command(&program)
        .arg("--check")
        .stderr(writer)
        .spawn()
        .map_err(|error| no_program(&format!("{} can't be started", program.display()), &error))?;
    let words = bounded::read_to_end(&mut reader, WORDS_BYTES, START)
        .map_err(|error| Failure::io("can't read from the configuration check", &error))?;
    let Some(words) = words else {
        let _ = child.kill();
        return Err(never_ready(child.id()));
    };
    let ended = child.wait().map_err(|error| Failure::io("can't wait for the check", &error))?;
    // Any other code indicates nothing about the configuration; an older program does not know the option.
    if ended.code() != Some(Code::CONFIG.0.into()) {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&words);
    let message = words.trim_end().trim_start_matches("bgd: ").to_owned();
    Err(Failure::new(Code::CONFIG, ErrorKind::ConfigInvalid.as_str(), message))
}

/// Returns a command for the daemon's program, with the part of this environment that is passed to daemons.
fn command(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_kept(name)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn no_program(message: &str, error: &io::Error) -> Failure {
    let failure = Failure::new(Code::NO_DAEMON, "no_daemon", format!("{message}: {error}"));
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            failure.hint("no more processes are allowed: end some of yours, or raise `ulimit -u`")
        }
        io::ErrorKind::OutOfMemory => failure.hint("free some memory, and try again"),
        _ => failure.hint("put bgd next to bgctl or in PATH, or set BGD_DAEMON to its path"),
    }
}

/// Starts a daemon and waits for its first message.
fn spawn(socket: &SocketPath, variables: &[(String, String)]) -> Result<StartReport, Failure> {
    let program = program();
    let (mut reader, writer) = io::pipe().map_err(|error| Failure::io("can't create a pipe", &error))?;
    // Only this descriptor may reach the daemon, and nothing else forks in between: no other thread of `mcp` does,
    // and other verbs are single-threaded here.
    fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(|error| Failure::io("can't pass on a pipe", &error.into()))?;
    let mut child = command(&program)
        .arg("--socket")
        .arg(socket.as_path())
        .arg("--ready-fd")
        .arg(writer.as_raw_fd().to_string())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .spawn()
        .map_err(|error| {
            no_program(&format!("no daemon is running, and {} can't be started", program.display()), &error)
        })?;
    drop(writer);
    let words = bounded::read_to_end(&mut reader, WORDS_BYTES, START)
        .map_err(|error| Failure::io("can't read from the started daemon", &error))?;
    let Some(words) = words else { return Err(never_ready(child.id())) };
    // A daemon that moved to the background or failed leaves a child to be reaped.
    let _ = child.try_wait();
    parse_report(&words)
}

/// Returns the daemon's program: `$BGD_DAEMON`, else the one next to this program as it was called, else the one next
/// to the file of this program, else the one on PATH.
pub fn program() -> OsString {
    if let Some(named) = std::env::var_os("BGD_DAEMON").filter(|path| !path.is_empty()) {
        // The daemon starts in `/`, where a relative path would mean something else.
        let path = Path::new(&named);
        let relative = path.components().nth(1).is_some() && path.is_relative();
        return if relative { std::path::absolute(path).map_or(named, Into::into) } else { named };
    }
    let own = std::env::current_exe().ok();
    let called = own.as_deref().and_then(called_as);
    let mut siblings = called.into_iter().chain(own).map(|path| path.with_file_name("bgd"));
    siblings.find(|path| path.is_file()).map_or_else(|| "bgd".into(), PathBuf::into_os_string)
}

/// Returns the path by which this program, whose file is `own`, was called. A package manager may keep a folder for
/// each version and a link to the latest one; only the link survives an update.
fn called_as(own: &Path) -> Option<PathBuf> {
    let name = PathBuf::from(std::env::args_os().next()?);
    let path = if name.components().nth(1).is_some() { name } else { in_path(&name)? };
    let path = std::path::absolute(path).ok()?;
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    (identity(&path)? == identity(own)?).then_some(path)
}

/// Returns the first file of this name in a folder of `PATH`.
fn in_path(name: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns the path of the daemon's program; a bare name is looked up in `PATH`.
pub fn program_path() -> PathBuf {
    let program = PathBuf::from(program());
    if program.components().nth(1).is_some() {
        return program;
    }
    in_path(&program).unwrap_or(program)
}

fn is_kept(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        let is_kept = KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_kept && !DROPPED.contains(&name)
    })
}

/// Parses a daemon's first message: nothing if it has ended, `ready`, `ready` and `lost <count>`, `taken`, or
/// `error <exit code> <message>` and `hint <text>`.
fn parse_report(words: &[u8]) -> Result<StartReport, Failure> {
    let text = String::from_utf8_lossy(words);
    let text = text.trim_end();
    if let Some(error) = text.strip_prefix("error ") {
        let (code, message) = error.split_once(' ').unwrap_or(("", error));
        let code = code.parse().ok().filter(|code| *code != 0).map_or(Code::NO_DAEMON, Code);
        let (message, hint) = match message.rsplit_once("\nhint ") {
            Some((message, hint)) => (message, Some(hint.to_owned())),
            None => (message, None),
        };
        let failure = Failure::new(code, "no_daemon", format!("the daemon can't start: {message}"));
        return Err(Failure { hint, ..failure });
    }
    if let Some(lost) = text.strip_prefix("ready\nlost ").and_then(|lost| lost.parse().ok()) {
        return Ok(StartReport::Ready { lost });
    }
    match text {
        "ready" => Ok(StartReport::Ready { lost: 0 }),
        "taken" => Ok(StartReport::Taken),
        "" => Ok(StartReport::Ended),
        other => {
            let message = format!("unexpected message from the starting daemon: {other:?}");
            Err(Failure::new(Code::NO_DAEMON, "no_daemon", message)
                .hint("bgctl and bgd may have different versions"))
        }
    }
}

/// Connects to a daemon that was started by other means a moment ago: it holds its lock already, and its socket is
/// about to appear.
///
/// # Errors
/// The daemon does not listen after some seconds, or must not be trusted.
pub fn connect_patiently(socket: &SocketPath) -> Result<Client, Failure> {
    for pause in pauses() {
        match Client::connect(socket) {
            Err(ClientError::Connect(error)) if error.is_absent() => std::thread::sleep(pause),
            other => return Ok(other?),
        }
    }
    Client::connect(socket).map_err(|error| never_listens(socket, error))
}

fn ended_early() -> Failure {
    Failure::new(Code::NO_DAEMON, "no_daemon", "the daemon ended before it was ready")
        .hint(format!("its log may say why: {}", log_file().display()))
}

fn never_ready(pid: u32) -> Failure {
    let message = format!("the daemon that was started (pid {pid}) is not ready after {} s", START.as_secs());
    let hint = format!("its log may say why: {}; `kill {pid}` ends it", log_file().display());
    Failure::new(Code::NO_DAEMON, "no_answer", message).hint(hint)
}

fn never_listens(socket: &SocketPath, error: ClientError) -> Failure {
    if DaemonProcess::of(socket).is_some_and(|daemon| daemon.holder.note.phase == Phase::Ready) {
        return absent(socket, error);
    }
    Failure::from(error).hint(format!(
        "another daemon holds {} but is not listening; find it with: fuser -v {0}",
        socket.beside("lock").display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_report_of_daemon_is_parsed() {
        assert_eq!(parse_report(b"ready\n"), Ok(StartReport::Ready { lost: 0 }));
        assert_eq!(parse_report(b"ready\nlost 12\n"), Ok(StartReport::Ready { lost: 12 }));
        assert_eq!(parse_report(b"ready\nlost track\n").unwrap_err().code, Code::NO_DAEMON);
        assert_eq!(parse_report(b"taken\n"), Ok(StartReport::Taken));
        let refused = parse_report(b"error 78 config.toml: unknown key `tsks`\n").unwrap_err();
        assert_eq!(refused.code, Code::CONFIG);
        assert!(refused.message.ends_with("config.toml: unknown key `tsks`") && refused.hint.is_none());
        let refused = parse_report(b"error 77 /run/bgd is a symbolic link\nhint remove it\n").unwrap_err();
        assert!(
            refused.message.ends_with("is a symbolic link") && refused.hint.as_deref() == Some("remove it")
        );
        assert_eq!(parse_report(b"error 0 nonsense").unwrap_err().code, Code::NO_DAEMON);
        assert_eq!(parse_report(b""), Ok(StartReport::Ended));
        assert!(ended_early().hint.unwrap().contains("bgd/bgd.log"));
        assert_eq!(parse_report(b"\xff").unwrap_err().code, Code::NO_DAEMON);
    }

    #[test]
    fn hint_fits_why_the_program_does_not_start() {
        let hint = |error: i32| no_program("bgd", &io::Error::from_raw_os_error(error)).hint.unwrap();
        assert!(hint(nix::libc::EAGAIN).contains("ulimit -u"));
        assert!(hint(nix::libc::ENOENT).contains("BGD_DAEMON"));
    }

    #[test]
    fn started_daemon_does_not_inherit_secrets_of_the_caller() {
        assert!(
            ["HOME", "LC_ALL", "XDG_STATE_HOME", "BGD_SOCKET", "https_proxy"]
                .iter()
                .all(|name| is_kept(name.as_ref()))
        );
        assert!(
            ["AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "PWD", "BGD_TASK_ID", "BGD_AGENT_ID", "BGD_INSTANCE"]
                .iter()
                .all(|name| !is_kept(name.as_ref()))
        );
    }
}
