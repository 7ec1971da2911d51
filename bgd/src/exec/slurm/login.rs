//! The connection to a cluster's login node: one ssh that stays as long as it is needed, with a session for each
//! script. It is the system's ssh, so that hosts, keys and jumps are configured by the user. Nothing of a script is on
//! a command line or passes through the user's remote shell: `/bin/sh` reads it.
//!
//! A script begins to run only after all of it has arrived, and only after the session was seen to work. So a failure
//! before that has had no effect; after a later failure it is unknown whether the script was run.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bgd_shared::ssh::{CUT, KEEP_ALIVE, PRINT_SETTINGS, can_be_control_path, needs_keep_alive, refusal};
use bgd_shared::task::Exit;
use bgd_shared::text::OsText;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, Notify, Semaphore};

use super::error::{self, CommandError};
use super::pipe;
use super::remote_scripts::Script;
use crate::exec::host::{self, Host, Launch, Leased};
use crate::remotes::Shell;

/// How long a session may be silent while a script is sent, runs and prints.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long a script may take in all, over a slow connection.
const LONGEST: Duration = Duration::from_mins(10);

/// The maximum number of concurrent sessions. By default, a server allows 10, one of which is the connection's own.
const SESSIONS: usize = 4;

/// The maximum output of the remote shell before a script begins, in bytes.
const BANNER_BYTES: usize = 64 * 1024;

/// The maximum size of standard error, in bytes.
const ERROR_BYTES: u64 = 64 << 10;

/// The line after which all output is the script's own. Remote shells may print something before it.
const MARK: &str = "bgd: session";

/// The command line of every session. All shells parse it in the same way: it has no variable part.
const SESSION: &str =
    r#"exec /bin/sh -c 'printf "\nbgd: session\n"; printf "\nbgd: session\n" >&2; eval "$(cat)"'"#;

/// The command line of the connection itself. It ends with the daemon.
const STAY: &str = r#"exec /bin/sh -c 'printf "\nbgd: session\n"; exec cat >/dev/null'"#;

/// A login node.
#[derive(Debug)]
pub struct Login {
    host: Host,
    shell: Shell,
    control: PathBuf,
    master: Mutex<Option<Master>>,
    sessions: Semaphore,
}

/// The ssh that holds the connection. Dropping it closes the connection.
#[derive(Debug)]
struct Master {
    process: Leased,
    _streams: UnixStream,
}

/// A script that has run to its end.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub output: Vec<u8>,
    pub errors: String,
}

/// A started ssh.
struct Session {
    process: Leased,
    streams: UnixStream,
    errors: OwnedFd,
}

impl Login {
    /// Names a login node; no connection is made. The control socket is created beside `socket`, the daemon's.
    pub fn new(host: Host, shell: Shell, socket: &Path, executor: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (socket, executor, &shell.host).hash(&mut hasher);
        let control = socket.with_file_name(format!("login-{:016x}", hasher.finish()));
        Self { host, shell, control, master: Mutex::default(), sessions: Semaphore::new(SESSIONS) }
    }

    /// Returns the name of the node.
    pub fn host(&self) -> &str {
        &self.shell.host
    }

    /// Closes the connection. The next script opens another one.
    pub async fn disconnect(&self) {
        *self.master.lock().await = None;
    }

    /// Runs a script to its end. Accepts at most `limit` bytes of standard output.
    ///
    /// # Errors
    /// The node can't be reached, or the script took too long or printed too much.
    pub async fn run(&self, script: &Script, limit: u64) -> Result<Ran, CommandError> {
        // The semaphore is never closed.
        let _permit = self.sessions.acquire().await;
        self.connect().await?;
        let control = self.control.to_string_lossy();
        let path = format!("ControlPath={control}");
        // Without the shared connection, a session must not open its own.
        let options = ["-o", &path, "-o", "ControlMaster=no", "-o", "ProxyCommand=false"];
        let mut session = self.start(&options, SESSION).await?;
        let output = match self.begun(&mut session).await {
            Ok(rest) => rest,
            Err(trouble) => {
                self.forget_dead(&trouble).await;
                return Err(trouble);
            }
        };
        let ran = tokio::time::timeout(LONGEST, self.finish(session, script, output, limit)).await;
        ran.unwrap_or_else(|_| Err(self.unanswered(LONGEST)))
    }

    fn unanswered(&self, within: Duration) -> CommandError {
        let (host, seconds) = (self.host(), within.as_secs());
        CommandError::Unanswered(format!("{host} did not answer within {seconds} s"))
    }

    /// Drops a connection that provided no session.
    async fn forget_dead(&self, trouble: &CommandError) {
        let mut master = self.master.lock().await;
        tracing::debug!(?trouble, host = self.host(), "no session");
        *master = None;
    }

    /// Opens the connection, unless it is open.
    async fn connect(&self) -> Result<(), CommandError> {
        let mut master = self.master.lock().await;
        if master.as_ref().is_some_and(|master| !master.process.0.has_exited()) {
            return Ok(());
        }
        *master = None;
        if !can_be_control_path(&self.control) {
            let path = self.control.display();
            return Err(CommandError::NoAccess(format!(
                "{path} can't be the socket of a shared connection: start bgd with a shorter BGD_SOCKET"
            )));
        }
        // A killed daemon may have left the socket.
        let _ = fs::remove_file(&self.control);
        let path = format!("ControlPath={}", self.control.display());
        let mut options = vec!["-o", "ControlMaster=yes", "-o", &*path];
        if self.needs_keep_alive().await {
            options.extend(KEEP_ALIVE);
        }
        let mut session = self.start(&options, STAY).await?;
        self.begun(&mut session).await?;
        let Session { process, streams, errors: _ } = session;
        *master = Some(Master { process, _streams: streams });
        Ok(())
    }

    /// Returns whether the user's configuration leaves the detection of a dead connection to the operating system, which
    /// takes hours, or is not known in time.
    async fn needs_keep_alive(&self) -> bool {
        let Ok(Session { process: _process, mut streams, .. }) = self.start_ssh(&PRINT_SETTINGS, "").await
        else {
            return true;
        };
        let mut text = Vec::new();
        let mut beginning = (&mut streams).take(BANNER_BYTES as u64);
        let read = beginning.read_to_end(&mut text);
        let is_read = matches!(tokio::time::timeout(self.shell.connect_timeout, read).await, Ok(Ok(_)));
        needs_keep_alive(is_read.then_some(&*text))
    }

    async fn start(&self, options: &[&str], line: &str) -> Result<Session, CommandError> {
        self.start_ssh(&[&["-T", "-o", "BatchMode=yes"], options].concat(), line).await
    }

    async fn start_ssh(&self, options: &[&str], line: &str) -> Result<Session, CommandError> {
        let cant = |error: io::Error| CommandError::Unreachable(format!("cannot run ssh: {error}"));
        let (theirs, ours, errors) = host::socket_streams().map_err(cant)?;
        ours.set_nonblocking(true).map_err(cant)?;
        let words = [&[&*self.shell.ssh], options, &["--", &self.shell.host]];
        let words = words.concat().into_iter().chain((!line.is_empty()).then_some(line));
        let argv = words.map(OsText::from).collect();
        let launch = Launch::of_daemon(argv, host::ssh_environment(), theirs);
        let started = self.host.start(launch).await;
        let process =
            started.map_err(|why| CommandError::NoAccess(format!("cannot run {}: {why}", self.shell.ssh)))?;
        let streams = UnixStream::from_std(ours).map_err(cant)?;
        Ok(Session { process: Leased(process), streams, errors })
    }

    /// Waits until a session works. Returns its output after the mark.
    async fn begun(&self, session: &mut Session) -> Result<Vec<u8>, CommandError> {
        let within = self.shell.connect_timeout;
        match tokio::time::timeout(within, marked(&mut session.streams)).await {
            Ok(Ok(Some(rest))) => Ok(rest),
            Ok(Ok(None) | Err(_)) => Err(self.not_begun(session).await),
            Err(_) => {
                let host = self.host();
                Err(CommandError::Unreachable(format!("{host} did not answer within {} s", within.as_secs())))
            }
        }
    }

    /// Returns why a session has ended before it worked.
    async fn not_begun(&self, session: &mut Session) -> CommandError {
        let Session { process, errors, .. } = session;
        // If the process does not exit, the problem is not a closed connection.
        let exit = tokio::time::timeout(DEADLINE, process.0.exited()).await;
        let said = match errors.try_clone() {
            Ok(errors) if exit.is_ok() => pipe::read(errors, ERROR_BYTES).await.unwrap_or_default(),
            Ok(_) | Err(_) => Vec::new(),
        };
        let said = String::from_utf8_lossy(&said);
        let refusal = refusal(&said).map(|why| error::message(&why));
        let said = error::message(&said);
        let (host, ssh) = (self.host(), &self.shell.ssh);
        match exit {
            Ok(Exit::Code(CUT)) if let Some(why) = refusal => CommandError::NoAccess(format!(
                "ssh can't log in to {host}: {why}; `{ssh} {host} true` must work"
            )),
            Ok(Exit::Code(code)) if code != CUT => {
                let what = if said.is_empty() { "the shell there does not run commands" } else { &*said };
                CommandError::NoAccess(format!("{what}; `{ssh} {host} true` must work"))
            }
            Ok(Exit::Code(_)) if !said.is_empty() => {
                CommandError::Unreachable(format!("ssh can't reach {host}: {said}"))
            }
            Ok(_) | Err(_) => CommandError::Unreachable(format!("the connection to {host} was closed")),
        }
    }

    /// Sends a script, and waits for its end.
    async fn finish(
        &self,
        session: Session,
        script: &Script,
        output: Vec<u8>,
        limit: u64,
    ) -> Result<Ran, CommandError> {
        let Session { process, streams, errors } = session;
        let broken =
            |what: String| CommandError::Unanswered(format!("the connection to {}: {what}", self.host()));
        let Exchanged { sent, output, errors } =
            exchange(streams, errors, script.bytes(), output, limit).await.map_err(|why| match why {
                Interrupted::TooLong => {
                    CommandError::Refused(format!("{} prints more than {limit} bytes", self.host()))
                }
                Interrupted::Silent => self.unanswered(DEADLINE),
                Interrupted::Io(error) => broken(error.to_string()),
            })?;
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let errors = match errors.split_once(&format!("{MARK}\n")) {
            Some((_, own)) => own.to_owned(),
            None => errors,
        };
        let exited = tokio::time::timeout(DEADLINE, process.0.exited()).await;
        match exited.map_err(|_| self.unanswered(DEADLINE))? {
            Exit::Code(code) if code != CUT => {
                // A script that did not arrive has not run, and the shell's exit code shows that.
                sent.map_err(|error| broken(error.to_string()))?;
                Ok(Ran { code, output, errors })
            }
            Exit::Code(_) | Exit::Signal(_) | Exit::Unknown(_) => {
                let said = error::message(&errors);
                Err(broken(if said.is_empty() { "it was cut".to_owned() } else { said }))
            }
        }
    }
}

/// Reads up to the mark. Returns the bytes read after it; `None` if the stream ends before.
async fn marked(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mark = format!("\n{MARK}\n");
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    while bytes.len() < BANNER_BYTES {
        let count = stream.read(&mut part).await?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&part[..count]);
        if let Some(at) = bytes.windows(mark.len()).position(|window| window == mark.as_bytes()) {
            return Ok(Some(bytes.split_off(at + mark.len())));
        }
    }
    Ok(None)
}

/// The result of an [`exchange`].
struct Exchanged {
    /// Whether the whole script was sent.
    sent: io::Result<()>,
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// Why an [`exchange`] stopped early.
#[derive(Debug)]
enum Interrupted {
    /// More than the limit was printed.
    TooLong,
    /// Nothing moved for the deadline.
    Silent,
    Io(io::Error),
}

/// Sends a script, and appends what it prints to `output` until both of its streams end, at most `limit` bytes in all.
/// Stops at once when that limit is exceeded: the script would block until the rest is read. Gives up when nothing has
/// moved for [`DEADLINE`]; a slow connection is no silence.
async fn exchange(
    streams: UnixStream,
    errors: OwnedFd,
    script: &[u8],
    mut output: Vec<u8>,
    limit: u64,
) -> Result<Exchanged, Interrupted> {
    let (mut reader, mut writer) = streams.into_split();
    let moved = Notify::new();
    let sending = async {
        let sent = send(&mut writer, script, &moved).await;
        // The end of the input lets the script begin.
        Ok(sent.and(writer.shutdown().await))
    };
    let receive = async {
        while reader.read_buf(&mut output).await.map_err(Interrupted::Io)? > 0 {
            moved.notify_one();
            if output.len() as u64 > limit {
                return Err(Interrupted::TooLong);
            }
        }
        Ok(())
    };
    let complain = async { pipe::read(errors, ERROR_BYTES).await.map_err(Interrupted::Io) };
    let exchanging = async { tokio::try_join!(sending, receive, complain) };
    let silence = async { while tokio::time::timeout(DEADLINE, moved.notified()).await.is_ok() {} };
    let (sent, (), errors) = tokio::select! {
        exchanged = exchanging => exchanged?,
        () = silence => return Err(Interrupted::Silent),
    };
    Ok(Exchanged { sent, output, errors })
}

/// Sends all bytes, and notifies `moved` whenever some were accepted.
async fn send(writer: &mut OwnedWriteHalf, mut bytes: &[u8], moved: &Notify) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = writer.write(bytes).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[count..];
        moved.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r146_session_prints_its_mark_and_runs_only_complete_scripts() {
        assert!(SESSION.matches(MARK).count() == 2 && STAY.contains(MARK));
        let line = SESSION.strip_prefix("exec ").unwrap();
        let run = |script: &[u8]| {
            use std::io::Write as _;
            let mut child = std::process::Command::new("/bin/sh")
                .args(["-c", line])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(script).unwrap();
            let output = child.wait_with_output().unwrap();
            (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
        };
        let mut script = Script::new();
        script.line(&[b"echo one; exit 3"]);
        assert_eq!(run(script.bytes()), (3, format!("\n{MARK}\none\n")));
        let bytes = script.bytes();
        let (code, output) = run(&bytes[..bytes.len() - 2]);
        assert!(code != 0 && code != 3 && output == format!("\n{MARK}\n"), "{code} {output}");
    }

    #[tokio::test]
    async fn r151_script_with_too_much_output_is_interrupted_at_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (errors, open) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).unwrap();
        let printing = tokio::spawn(async move { theirs.write_all(&vec![b'x'; 8 << 20]).await });
        let exchanged = exchange(ours, errors, b"script", Vec::new(), 1000);
        let why =
            tokio::time::timeout(Duration::from_secs(20), exchanged).await.expect("it does not wait").err();
        assert!(matches!(why, Some(Interrupted::TooLong)), "{why:?}");
        // It is still there, and can't print the rest.
        assert!(printing.await.unwrap().is_err());
        drop(open);
    }

    #[tokio::test(start_paused = true)]
    async fn r146_slow_session_is_not_silent() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (errors, open) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).unwrap();
        let printing = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(DEADLINE * 2 / 3).await;
                theirs.write_all(b"part").await.unwrap();
            }
            (theirs, open)
        });
        let why = exchange(ours, errors, b"script", Vec::new(), 1000).await.err();
        assert!(matches!(why, Some(Interrupted::Silent)), "{why:?}");
        assert!(printing.is_finished(), "all of it was waited for");
    }

    #[tokio::test]
    async fn r146_shell_output_before_the_mark_is_skipped() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"Welcome!\nbgd: session?\n\nbgd: session\nrest").await.unwrap();
        assert_eq!(marked(&mut ours).await.unwrap().as_deref(), Some(&b"rest"[..]));
        theirs.write_all(b"nothing of that kind").await.unwrap();
        drop(theirs);
        assert_eq!(marked(&mut ours).await.unwrap(), None);
    }
}
