//! Reaching the daemon of a remote machine: ssh runs `bgctl dial` there, which joins its streams to the daemon's
//! socket. It is the system's ssh, so hosts, keys, jumps and prompts are the user's own. The only request made here is
//! the greeting, which confirms that a daemon is at the other end.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, PipeWriter, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bgd_shared::PROTOCOL;
use bgd_shared::client::FIRST_ANSWER;
use bgd_shared::owned;
use bgd_shared::socket::SocketPath;
use bgd_shared::ssh::{CUT, KEEP_ALIVE, PRINT_SETTINGS, can_be_control_path, needs_keep_alive, program};
use bgd_shared::transport::Stream;
use nix::fcntl::Flock;
use nix::poll::PollFlags;
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate, memfd_create};

use super::bounded;
use super::children::{self, SHORT, end, ended};
use super::greeting::{BANNER_BYTES, GreetingError, greet};
use super::host::Host;
use super::programs::Programs;
use super::ssh_failure::{self, Attempt, UNREACHABLE};
use super::wait::{becomes_ready, time_left};
use crate::exit::Code;
use crate::failure::Failure;

/// Maximum number of bytes kept of ssh's messages; the first ones are kept.
pub const ERRORS_BYTES: u64 = 16 * 1024;

/// Number of bytes of a program sent at once.
const PIECE: usize = 64 * 1024;

/// How long a shared connection stays open after its last use, in seconds.
const PERSIST_SECONDS: u32 = 60;

/// A connection to the daemon of a remote machine, and the ssh that carries it.
pub struct Bridge {
    /// The stream for calls, which go through ssh. It can't transfer descriptors.
    pub stream: Stream,
    /// Ends by itself once the stream is dropped.
    pub ssh: Child,
    pub instance: String,
    /// Messages of ssh, and of `bgctl` on the host, on standard error. Not cleaned.
    pub stderr_text: String,
}

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct Dialling {
    /// Whether to start a daemon on the host if none is running.
    pub starts: bool,
    /// Whether ssh may ask the user, for a password for example.
    pub asks: bool,
    /// Timeout for the daemon's answer.
    pub within: Duration,
    /// The programs to copy to the host and use there if none are installed (R143).
    pub programs: Option<&'static Programs>,
}

/// A connection to be made.
pub struct Dial<'a> {
    pub host: &'a Host,
    /// The folder of the shared connection's socket; `None` if the connection is not shared.
    pub folder: Option<PathBuf>,
    pub how: Dialling,
    /// The token of the ssh that lends this connection the standard streams of a job; see [`Lender`].
    pub borrows: Option<&'a str>,
}

/// An ssh that carries the standard streams of a job beside the connection that owns the job (R141): on the host, its
/// `dial` lends them to the `dial` that names the same token.
pub struct Lender<'a> {
    /// Identifies the lender on the host. Contains nothing that a shell might expand.
    pub token: &'a str,
    pub input: Stdio,
    /// The output, whose first line is [`LENT`].
    pub output: Stdio,
    pub errors: Stdio,
}

/// The outcome of a shell line on the host.
pub struct Ended {
    pub code: i32,
    pub output: String,
    /// Standard error. Not cleaned.
    pub stderr_text: String,
}

/// The first line from an ssh with standard streams; everything after it is the job's.
pub const LENT: &str = "bgctl: streams";

impl<'a> Dial<'a> {
    /// Returns a connection over the shared one, if there is a place for that.
    pub fn shared(host: &'a Host, how: Dialling) -> Self {
        Self { host, folder: shared_folder(), how, borrows: None }
    }

    /// Connects, and waits until the daemon has answered a greeting.
    ///
    /// # Errors
    /// ssh can't reach the host, `bgctl` is not installed there, no daemon is running and none can be started, or the
    /// daemon speaks another protocol.
    pub fn connect(&self) -> Result<Bridge, Failure> {
        self.over_shared(|control, deadline| self.carry(control, deadline))
    }

    /// Runs an operation over the shared connection, which is opened if needed. May run the operation twice.
    fn over_shared<T>(
        &self,
        run: impl Fn(Option<&Path>, Instant) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + self.how.within;
        let control = control_path(self.host, self.folder.as_deref());
        let Some(control) = &control else { return run(None, deadline) };
        if is_open(control) {
            match run(Some(control), Instant::now() + share(self.how.within)) {
                // The shared connection was about to end, or is dead. Only the greeting was sent.
                Err(failure) if failure.kind == UNREACHABLE => {
                    forget_shared(self.host, self.folder.as_deref());
                }
                outcome => return outcome,
            }
        }
        // The daemon ends all processes that its agent has started, and a shared connection would end with them.
        if std::env::var_os("BGD_AGENT_ID").is_some() {
            return run(None, deadline);
        }
        let _turn = turn(control, deadline);
        if !is_open(control) {
            self.open_shared(control, deadline)?;
        }
        run(Some(control), deadline)
    }

    /// Returns an ssh command over the shared connection, ready to run a shell line on the host.
    fn session(&self, control: Option<&Path>, line: &str) -> Command {
        // A shared connection is open by now, and has its own options.
        let mut command = self.command(control, control.is_none());
        if control.is_some() {
            // ssh asks no more questions. Ctrl-C is meant for this process, which needs the connection to act on it.
            command.process_group(0);
            // If the shared connection ended at this moment, ssh would silently make a separate one, without the
            // options.
            command.args(["-o", "ProxyCommand=false"]);
        }
        command.args(["--", self.host.as_str(), line]);
        command
    }

    /// Returns the shell line that runs `bgctl` with these words.
    fn line(&self, words: &str) -> String {
        self.how.programs.map_or_else(|| format!("exec bgctl {words}"), |programs| programs.line(words))
    }

    /// Runs a shell line on the host to completion, and reads its output: at most [`BANNER_BYTES`].
    ///
    /// # Errors
    /// ssh can't reach the host, or the line does not end in time.
    pub fn ask(&self, line: &str) -> Result<Ended, Failure> {
        self.over_shared(|control, deadline| {
            let (mut output, writer) = io::pipe().map_err(cant("can't create a pipe"))?;
            let mut command = self.session(control, line);
            command.stdin(Stdio::null()).stdout(writer);
            let (mut ssh, mut errors) = start(command)?;
            let left = time_left(deadline);
            let text = bounded::read_to_end(&mut output, BANNER_BYTES, left);
            let text = text.map_err(cant("can't read from ssh"))?.unwrap_or_default();
            self.at_end(&mut ssh, &mut errors, deadline, &text)
        })
    }

    /// Runs a shell line on the host to completion, with a file as its input. Drops the output.
    ///
    /// # Errors
    /// ssh can't reach the host, or there is no progress for as long as a connection may take.
    pub fn feed(&self, line: &str, file: &File) -> Result<Ended, Failure> {
        self.over_shared(|control, _| {
            let (reader, writer) = io::pipe().map_err(cant("can't create a pipe"))?;
            let mut command = self.session(control, line);
            command.stdin(reader).stdout(Stdio::null());
            let (mut ssh, mut errors) = start(command)?;
            let is_taken = pour(file, writer, self.how.within)?;
            let deadline = Instant::now() + if is_taken { self.how.within } else { Duration::ZERO };
            self.at_end(&mut ssh, &mut errors, deadline, &[])
        })
    }

    fn at_end(
        &self,
        ssh: &mut Child,
        errors: &mut File,
        deadline: Instant,
        output: &[u8],
    ) -> Result<Ended, Failure> {
        let status = ended(ssh, deadline);
        end(ssh);
        let stderr_text = stderr_text(errors);
        match status.map(|status| status.code()) {
            None => Err(self.failure(GreetingError::Late, None, &stderr_text)),
            Some(None | Some(CUT)) => Err(self.failure(GreetingError::Closed, status, &stderr_text)),
            Some(Some(code)) => Ok(Ended { code, output: text(output), stderr_text }),
        }
    }

    /// Starts the ssh of a job's standard streams. `prepare` creates them, and `greet` waits for the first line.
    ///
    /// # Errors
    /// As for [`Self::connect`], and those of `prepare`.
    pub fn lend<T>(
        &self,
        prepare: impl Fn() -> Result<(Lender<'a>, T), Failure>,
        greet: impl Fn(&mut T, Instant) -> Result<(), (GreetingError, String)>,
    ) -> Result<(Child, T), Failure> {
        self.over_shared(|control, deadline| {
            let (Lender { token, input, output, errors }, mut ours) = prepare()?;
            let mut command = self.session(control, &self.line(&format!("--json dial --lend {token}")));
            let mut ssh = spawn(command.stdin(input).stdout(output).stderr(errors))?;
            // The command's copies of the streams would keep them open.
            drop(command);
            match greet(&mut ours, deadline) {
                Ok(()) => Ok((ssh, ours)),
                Err((trouble, stderr_text)) => Err(self.give_up(&mut ssh, trouble, || stderr_text)),
            }
        })
    }

    /// Makes `bgctl` on the host check the configuration that a daemon would start with.
    ///
    /// # Errors
    /// The configuration is invalid; otherwise as for [`Self::connect`].
    pub fn check_config(&self) -> Result<(), Failure> {
        self.over_shared(|control, deadline| {
            let mut command = self.session(control, &self.line("--json dial --check-config"));
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let (mut ssh, mut errors) = start(command)?;
            let status = ended(&mut ssh, deadline);
            end(&mut ssh);
            match status {
                Some(status) if status.success() => Ok(()),
                Some(_) => Err(self.failure(GreetingError::Closed, status, &stderr_text(&mut errors))),
                None => Err(self.failure(GreetingError::Late, None, &stderr_text(&mut errors))),
            }
        })
    }

    /// Ends an ssh that gave no answer, and returns the failure.
    fn give_up(
        &self,
        ssh: &mut Child,
        trouble: GreetingError,
        stderr_text: impl FnOnce() -> String,
    ) -> Failure {
        let status = match trouble {
            GreetingError::Closed => ended(ssh, Instant::now() + SHORT),
            GreetingError::Late
            | GreetingError::Banner
            | GreetingError::Refused(_)
            | GreetingError::Protocol(_) => None,
        };
        end(ssh);
        self.failure(trouble, status, &stderr_text())
    }

    /// Runs `bgctl dial` on the host, and greets its daemon.
    fn carry(&self, control: Option<&Path>, deadline: Instant) -> Result<Bridge, Failure> {
        let (ours, theirs) = UnixStream::pair().map_err(cant("can't create a socket pair"))?;
        let theirs = OwnedFd::from(theirs);
        let output = theirs.try_clone().map_err(cant("can't copy a socket"))?;
        let starts = if self.how.starts { "" } else { " --no-start" };
        let borrows = self.borrows.map_or_else(String::new, |token| format!(" --borrow {token}"));
        let line = self.line(&format!("--json{starts} dial --hang-up{borrows}"));
        let mut command = self.session(control, &line);
        command.stdin(theirs).stdout(output);
        let (mut ssh, mut errors) = start(command)?;
        let trouble = match greet(&ours, deadline) {
            Ok(hello) if hello.protocol == PROTOCOL => {
                let (instance, stderr_text) = (hello.instance, stderr_text(&mut errors));
                return Ok(Bridge { stream: OwnedFd::from(ours).into(), ssh, instance, stderr_text });
            }
            Ok(hello) => GreetingError::Protocol(Box::new(hello)),
            Err(trouble) => trouble,
        };
        drop(ours);
        Err(self.give_up(&mut ssh, trouble, || stderr_text(&mut errors)))
    }

    /// Opens the shared connection, in the foreground of the terminal as long as ssh may ask for a password. Afterwards
    /// ssh stays in the background.
    fn open_shared(&self, control: &Path, deadline: Instant) -> Result<(), Failure> {
        let mut command = self.command(Some(control), true);
        command.args(["-f", "-N", "-o", "ControlMaster=auto", "-o"]);
        command.arg(format!("ControlPersist={PERSIST_SECONDS}")).args(["--", self.host.as_str()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let (mut ssh, mut errors) = start(command)?;
        match ended(&mut ssh, deadline) {
            Some(status) if status.success() => Ok(()),
            status => {
                end(&mut ssh);
                let trouble = if status.is_some() { GreetingError::Closed } else { GreetingError::Late };
                let mut said = stderr_text(&mut errors);
                // Nothing ran over there whose end this could be.
                if said.is_empty() && status.is_some_and(|status| status.code() == Some(CUT)) {
                    "it gives no reason".clone_into(&mut said);
                }
                Err(self.failure(trouble, status, &said))
            }
        }
    }

    /// Returns an ssh command with the options of every connection; `connects` means that it makes a separate
    /// connection.
    fn command(&self, control: Option<&Path>, connects: bool) -> Command {
        let mut command = Command::new(program());
        command.arg("-T");
        if !self.how.asks {
            command.args(["-o", "BatchMode=yes"]);
        }
        if connects && self.needs_keep_alive() {
            command.args(KEEP_ALIVE);
        }
        if let Some(control) = control {
            let mut path = OsString::from("ControlPath=");
            path.push(control);
            command.arg("-o").arg(path);
            return command;
        }
        // Otherwise, according to the user's configuration, the user's own sessions might share this connection, and
        // would end with it.
        command.args(["-o", "ControlMaster=no"]);
        if self.folder.is_none() {
            // A client of the user's connection could neither keep it alive nor notice that it is dead.
            command.args(["-o", "ControlPath=none"]);
        }
        command
    }

    /// Reports whether the user's configuration leaves detecting a dead connection to the operating system, which takes
    /// hours, or is not known in time.
    fn needs_keep_alive(&self) -> bool {
        let Ok((mut reader, writer)) = io::pipe() else { return true };
        let mut command = Command::new(program());
        command
            .args(PRINT_SETTINGS)
            .args(["--", self.host.as_str()])
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::null());
        let Ok(mut ssh) = children::spawn(&mut command) else { return true };
        drop(command);
        let text = bounded::read_to_end(&mut reader, BANNER_BYTES, SHORT.min(self.how.within));
        let _ = ssh.kill();
        let _ = ssh.wait();
        needs_keep_alive(text.ok().flatten().as_deref())
    }

    fn failure(&self, trouble: GreetingError, status: Option<ExitStatus>, stderr_text: &str) -> Failure {
        let copies = self.how.programs.is_some();
        ssh_failure::failure(
            trouble,
            status,
            stderr_text,
            &Attempt { host: self.host, within: self.how.within, copies },
        )
    }
}

/// Returns the folder of shared connections, that of our own sockets; `None` if it can't be used.
pub fn shared_folder() -> Option<PathBuf> {
    let socket = SocketPath::from_env().ok().filter(|socket| socket.prepare_folder().is_ok())?;
    Some(socket.folder().to_owned())
}

/// Returns the socket of the shared connection to a host; `None` if there is no place for one.
fn control_path(host: &Host, folder: Option<&Path>) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    host.as_str().hash(&mut hasher);
    let path = folder?.join(format!("ssh-{:016x}", hasher.finish()));
    can_be_control_path(&path).then_some(path)
}

/// Forgets the shared connection to a host, which may be dead unnoticed. The connection ends by itself.
pub fn forget_shared(host: &Host, folder: Option<&Path>) {
    if let Some(control) = control_path(host, folder) {
        let _ = std::fs::remove_file(control);
    }
}

/// Waits for this caller's turn to open a shared connection: if two ssh opened it at the same time, one would stay
/// forever without being shared. `None` if there is no lock to be had, or not in time.
fn turn(control: &Path, deadline: Instant) -> Option<Flock<File>> {
    let lock = control.with_extension("lock");
    let file = owned::file(File::options().write(true), &lock, 0o600).ok()?;
    bounded::lock(file, time_left(deadline)).ok()?
}

/// Returns how long an open shared connection may take of the time to connect, so that a dead one leaves time for
/// another, if there is time for both.
fn share(within: Duration) -> Duration {
    (within / 2).max(FIRST_ANSWER).min(within)
}

/// Reports whether an ssh accepts sessions for a shared connection at this socket.
fn is_open(control: &Path) -> bool {
    UnixStream::connect(control).is_ok()
}

/// Starts ssh, and returns it with the file that receives its messages: a pipe would not be drained once the connection
/// is made. The file can't grow, so a host can't use it to fill memory.
fn start(mut command: Command) -> Result<(Child, File), Failure> {
    let errors = memfd_create("ssh", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).and_then(|errors| {
        ftruncate(&errors, ERRORS_BYTES)?;
        fcntl_add_seals(&errors, SealFlags::GROW | SealFlags::SHRINK)?;
        Ok(File::from(errors))
    });
    let copied = errors.map_err(io::Error::from).and_then(|errors| Ok((errors.try_clone()?, errors)));
    let (copy, errors) = copied.map_err(|error| Failure::io("can't create a memory file", &error))?;
    Ok((spawn(command.stderr(copy))?, errors))
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    children::spawn(command).map_err(|error| {
        let message = format!("can't start {}: {error}", program().display());
        let is_missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
        if !is_missing {
            return Failure::new(Code::NO_DAEMON, UNREACHABLE, message);
        }
        Failure::new(Code::NO_DAEMON, "no_ssh", message)
            .hint("install OpenSSH's client, or set BGD_SSH to its path")
    })
}

fn cant(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::io(what, &error)
}

/// Writes a whole file to a pipe, or until its reader is gone. Returns `false` if the pipe was not read for `within`.
fn pour(mut file: &File, writer: PipeWriter, within: Duration) -> Result<bool, Failure> {
    let cant = cant("can't read a program");
    file.rewind().map_err(&cant)?;
    fcntl_setfl(&writer, OFlags::NONBLOCK).map_err(|error| Failure::io("can't use a pipe", &error.into()))?;
    let mut writer = File::from(OwnedFd::from(writer));
    let mut buffer = vec![0; PIECE];
    loop {
        let count = file.read(&mut buffer).map_err(&cant)?;
        let mut piece = &buffer[..count];
        if piece.is_empty() {
            return Ok(true);
        }
        while !piece.is_empty() {
            let is_ready = becomes_ready(&writer, PollFlags::POLLOUT, Instant::now() + within);
            if !is_ready.map_err(|error| Failure::io("can't wait", &error.into()))? {
                return Ok(false);
            }
            match writer.write(piece) {
                Ok(count) => piece = &piece[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The reader ended early; its exit code explains why.
                Err(_) => return Ok(true),
            }
        }
    }
}

/// Returns the messages of ssh, and of the programs on the host, on standard error: at most [`ERRORS_BYTES`].
fn stderr_text(errors: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = errors.rewind();
    let _ = errors.read_to_end(&mut bytes);
    text(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// Decodes messages. Not cleaned.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r140_control_path_is_per_host_and_omitted_if_unusable() {
        let path =
            |folder: &str, host: &str| control_path(&Host::new(host).unwrap(), Some(Path::new(folder)));
        let one = path("/run/user/1000/bgd", "far").unwrap();
        assert_eq!(Some(&one), path("/run/user/1000/bgd", "far").as_ref());
        assert_ne!(Some(&one), path("/run/user/1000/bgd", "me@far").as_ref());
        assert_eq!(path(&format!("/{}", "a".repeat(80)), "far"), None, "it would not fit");
        assert_eq!(path("/run/100%/bgd", "far"), None, "ssh would expand it");
    }
}
