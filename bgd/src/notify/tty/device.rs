//! The current state of a terminal (who controls it, who is in its foreground), and writing to it. A terminal is opened
//! only for a check or a write, so that it can be closed in between.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::time::Duration;

use bgd_shared::proc::{self, ProcessStat};
use bgd_shared::request::OriginTerminal;
use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::program::{is_bgctl, is_shell, remembers_row};
use crate::os::pidfd::PidFd;
use crate::os::watch;

/// How long a terminal may accept nothing (Ctrl-S, a hanging window) before a line is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The assumed rows and columns of a terminal that does not report its size.
const SIZE: (u16, u16) = (24, 80);

/// The result of checking a terminal.
pub struct TerminalCheck {
    pub front: Front,
    /// Whether a shell in the foreground remembers the row in which its prompt begins.
    pub remembers_row: bool,
    /// The open terminal, for a write that follows immediately.
    pub device: Device,
}

/// The owner of a terminal's foreground.
#[derive(Debug)]
pub enum Front {
    /// A shell that is editing a line.
    Prompt,
    /// A shell that is not editing: it is between two lines, or leaves editing to the terminal.
    Shell,
    /// The remains of a program that has ended, until its shell takes the terminal back.
    Nobody,
    /// A `bgctl` that leaves the terminal in cooked mode, with a handle to one of its processes.
    Bgctl(PidFd),
    /// Any other program, with a handle to one of its processes.
    Program(PidFd),
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    group: i32,
    session: i32,
    /// The device number of the controlling terminal.
    terminal: u64,
    /// The foreground process group of that terminal.
    front: i32,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        // The kernel prints the number as signed 32-bit.
        let terminal: i32 = stat.field(7)?;
        let (group, session, front) = (stat.field(5)?, stat.field(6)?, stat.field(8)?);
        Some(Self { group, session, terminal: terminal.cast_unsigned().into(), front })
    }
}

/// Converts a device number to the encoding of `/proc/PID/stat`.
fn as_in_stat(device: u64) -> u64 {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Returns the terminal whose session leader is this process.
pub fn terminal_of(leader: i32) -> Option<OriginTerminal> {
    let stat = ProcessStat::of(leader).filter(|stat| stat.field(6) == Some(leader))?;
    stat.terminal().map(|path| OriginTerminal { path, leader })
}

/// Reports whether a terminal was closed: its leader has ended or has no terminal any more, or the device is gone,
/// whichever happens first. Until the leader is reaped, the device may exist again as another terminal.
pub fn is_closed(terminal: &OriginTerminal) -> bool {
    let Some(leader) = Stat::of(terminal.leader) else { return true };
    let is_gone = || leader.terminal == 0 || !fs::exists(&terminal.path).unwrap_or(true);
    is_tty(&terminal.path) && is_gone()
}

/// Reports whether a path is that of a terminal: `/dev/pts/4`, `/dev/tty1`, `/dev/ttyS0`. No other path is opened, as
/// opening a device may have side effects, or even looked up: submitters may name any path, such as one on a disk that
/// hangs.
pub fn is_tty(path: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let rest = |start: &str| path.strip_prefix(start).filter(|rest| !rest.is_empty());
    rest("/dev/pts/").is_some_and(is_number) || rest("/dev/tty").is_some_and(is_name)
}

/// An open terminal.
pub struct Device(File);

impl Device {
    /// Opens the submitter's terminal, if it still belongs to that session.
    ///
    /// The leader's PID and the device together identify the session. Another session of the same user may reuse both
    /// during a task's life, but that is so rare, and a line in the wrong window of the right user so harmless, that
    /// the leader's start time is not stored with every task.
    fn open(terminal: &OriginTerminal) -> Result<(Self, Stat), String> {
        let path = &terminal.path;
        if !is_tty(path) {
            return Err(format!(
                "{path:?} is not a terminal: it is neither /dev/pts/NUMBER nor /dev/ttyNAME"
            ));
        }
        let leader = Stat::of(terminal.leader).ok_or_else(|| {
            format!("the terminal {path} is closed: process {}, its leader, has ended", terminal.leader)
        })?;
        let check = |meta: io::Result<Metadata>| {
            let meta = meta.map_err(|error| unusable(path, &error))?;
            if !meta.file_type().is_char_device() {
                return Err(format!("{path} is not a terminal"));
            }
            if meta.uid() != nix::unistd::geteuid().as_raw() {
                return Err(format!("the terminal {path} belongs to another user"));
            }
            if leader.session != terminal.leader || leader.terminal != as_in_stat(meta.rdev()) {
                return Err(format!(
                    "the terminal {path} is no longer controlled by process {}",
                    terminal.leader
                ));
            }
            Ok(())
        };
        // Check before opening, then check the opened file again.
        check(fs::symlink_metadata(path))?;
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = OpenOptions::new().write(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|error| unusable(path, &error))?;
        check(file.metadata())?;
        if tcgetattr(&file).is_err() {
            return Err(format!("{path} is not a terminal"));
        }
        Ok((Self(file), leader))
    }

    /// Returns the terminal's rows and columns.
    pub fn size(&self) -> (u16, u16) {
        let or = |side: u16, usual| if side > 0 { side } else { usual };
        tcgetwinsize(&self.0).map_or(SIZE, |size| (or(size.ws_row, SIZE.0), or(size.ws_col, SIZE.1)))
    }

    /// Writes as much as the terminal accepts at once, which is nothing while its output is stopped.
    ///
    /// # Errors
    /// The terminal was closed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Writes everything, waiting for room for up to `PATIENCE`. `note` receives the number of bytes of each write.
    ///
    /// # Errors
    /// The terminal was closed, or there was no room in time.
    pub async fn write_all(self, mut bytes: &[u8], note: impl Fn(usize)) -> io::Result<()> {
        let device = watch::writable(OwnedFd::from(self.0))?;
        let writing = async {
            while !bytes.is_empty() {
                let write = |fd: &OwnedFd| nix::unistd::write(fd.as_fd(), bytes).map_err(io::Error::from);
                let count = device.async_io(Interest::WRITABLE, write).await?;
                note(count);
                bytes = &bytes[count..];
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, writing).await.map_err(|_| stopped())?
    }

    /// Waits until the terminal accepts output, for at most `PATIENCE` after `from`.
    ///
    /// # Errors
    /// There was no room in time.
    pub async fn room(self, from: Instant) -> io::Result<()> {
        let device = watch::writable(OwnedFd::from(self.0))?;
        let in_time = tokio::time::timeout_at(from + PATIENCE, device.writable());
        in_time.await.map_err(|_| stopped())?.map(drop)
    }

    /// Reports whether a program reads keys one by one, as shells do at their prompt.
    fn is_edited(&self) -> bool {
        tcgetattr(&self.0).is_ok_and(|modes| !modes.local_modes.contains(LocalModes::ICANON))
    }
}

fn stopped() -> io::Error {
    io::Error::other("its output is stopped (Ctrl-S), or nobody reads it")
}

/// Formats an error on a terminal.
pub fn unusable(path: &str, error: &io::Error) -> String {
    format!("the terminal {path} can't be used: {error}")
}

/// Checks who has the terminal in the foreground.
///
/// # Errors
/// The terminal is closed or belongs to another session or user, or a line would disturb its program.
pub fn look(terminal: &OriginTerminal) -> Result<TerminalCheck, String> {
    let (device, leader) = Device::open(terminal)?;
    if leader.front <= 0 {
        return Err(format!("the terminal {} has no foreground process", terminal.path));
    }
    let is_leader = leader.front == leader.group;
    let front = if is_leader { terminal.leader } else { leader.front };
    let remembers_row = remembers_row(front);
    let program = |member: Option<PidFd>| member.map_or(Front::Nobody, Front::Program);
    let front = if !is_shell(front) {
        // The end of a program that leads the terminal's session can never be seen, as the terminal ends with it.
        if is_leader {
            return Err(format!(
                "the terminal {} is not controlled by a shell: a line would disturb its program",
                terminal.path
            ));
        }
        match living(front) {
            Some(handle) if is_bgctl(front) && !device.is_edited() => Front::Bgctl(handle),
            handle => program(handle.or_else(|| another_of(leader.front, front))),
        }
    } else if let Some(other) = another_of(leader.front, front) {
        // A shell at its prompt is alone in its group; this one runs a script or has no job control. A helper
        // that a shell keeps in its own group (`exec > >(tee log)`) looks the same, so nothing is ever written
        // above such a prompt.
        Front::Program(other)
    } else {
        match (device.is_edited(), is_leader) {
            (true, _) => Front::Prompt,
            (false, true) => Front::Shell,
            // A shell script.
            (false, false) => program(living(front)),
        }
    };
    Ok(TerminalCheck { front, remembers_row, device })
}

/// A shell that edits a line, and the page faults of its ended children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    pub pid: i32,
    /// Minor and major page faults of the children that the shell has waited for.
    faults: (u64, u64),
}

/// Returns the shell that edits a line in a terminal; `None` if another program has it, or it can't be checked.
pub fn shell_at(terminal: &OriginTerminal) -> Option<Shell> {
    let (device, leader) = Device::open(terminal).ok()?;
    let pid = if leader.front == leader.group { terminal.leader } else { leader.front };
    let stat = ProcessStat::of(pid).filter(|_| device.is_edited() && is_shell(pid))?;
    Some(Shell { pid, faults: (stat.field(11)?, stat.field(13)?) })
}

/// Reports whether a process is alive and not in the terminal's foreground group.
pub fn is_in_background(pid: i32, terminal: &OriginTerminal) -> bool {
    let (process, leader) = (Stat::of(pid), Stat::of(terminal.leader));
    !proc::has_ended(pid)
        && process.zip(leader).is_some_and(|(process, leader)| process.group != leader.front)
}

/// Opens a handle to a process, unless it has ended.
fn living(pid: i32) -> Option<PidFd> {
    PidFd::open(pid).ok().filter(|handle| !handle.has_ended())
}

/// Returns a living process of the group other than `but`.
fn another_of(group: i32, but: i32) -> Option<PidFd> {
    let mut pids = proc::processes();
    let is_in_it = |pid| Stat::of(pid).is_some_and(|stat| stat.group == group);
    pids.find_map(|pid| {
        let handle = (pid != but && is_in_it(pid)).then(|| living(pid)).flatten()?;
        // The PID may have been reused since the check.
        is_in_it(pid).then_some(handle)
    })
}

/// Reports when a terminal is written to, once per [`Writes::arm`]. This is the only event when a program is stopped
/// (Ctrl-Z): its shell prints that and shows its prompt. The watch does not hold the terminal open.
pub struct Writes {
    inotify: Inotify,
    ready: AsyncFd<OwnedFd>,
}

impl Writes {
    /// Creates a watcher that watches nothing yet.
    ///
    /// # Errors
    /// The system provides no inotify instance.
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let ready = watch::readable(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, ready })
    }

    /// Watches for the next write, discarding events of earlier ones.
    pub fn arm(&self, terminal: &OriginTerminal) {
        while self.inotify.read_events().is_ok() {}
        if !is_tty(&terminal.path) {
            return;
        }
        let once = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        if let Err(error) = self.inotify.add_watch(&*terminal.path, once) {
            tracing::debug!(path = terminal.path, %error, "a terminal can't be watched");
        }
    }

    /// Waits for the next write.
    pub async fn next(&self) {
        while let Ok(mut ready) = self.ready.readable().await {
            let has_changed = self.inotify.read_events().is_ok_and(|events| !events.is_empty());
            ready.clear_ready();
            if has_changed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn terminal_is_closed_once_its_leader_has_none() {
        let pty = nix::pty::openpty(None, None).unwrap();
        let path = nix::unistd::ttyname(&pty.slave).unwrap().to_str().unwrap().to_owned();
        let mut command = Command::new("setsid");
        let mut leader = command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Its output shows that it has left the session of the tests.
        leader.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        leader.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(is_closed(&OriginTerminal { path, leader: leader.id().cast_signed() }));
        leader.kill().unwrap();
        leader.wait().unwrap();
    }

    #[test]
    fn device_numbers_are_encoded_as_in_proc_stat() {
        assert_eq!(as_in_stat(nix::sys::stat::makedev(136, 4)), 34820);
        assert_eq!(as_in_stat(nix::sys::stat::makedev(136, 511)), (136 << 8) | 0xff | (1 << 20));
    }

    #[tokio::test]
    async fn non_terminal_is_not_watched() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "").unwrap();
        let me = std::process::id().cast_signed();
        let at =
            |path: &std::path::Path| OriginTerminal { path: path.to_str().unwrap().to_owned(), leader: me };
        assert!(!is_closed(&at(&home.path().join("missing"))));
        let writes = Writes::new().unwrap();
        writes.arm(&at(&path));
        fs::write(&path, "text").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), writes.next()).await.is_err());
    }

    #[test]
    fn foreign_or_non_terminal_is_not_opened() {
        let me = std::process::id().cast_signed();
        for path in [
            "/etc/passwd",
            "/dev/pts/../null",
            "dev/pts/0",
            "/dev/null",
            "/dev/pts/ptmx",
            "/dev/pts/",
            "/dev/tty",
        ] {
            let opened = Device::open(&OriginTerminal { path: path.to_owned(), leader: me });
            assert!(opened.is_err_and(|why| why.contains("is not a terminal")), "{path}");
        }
        for path in ["/dev/pts/0", "/dev/tty1", "/dev/ttyS0"] {
            assert!(is_tty(path), "{path}");
            assert!(Device::open(&OriginTerminal { path: path.to_owned(), leader: me }).is_err(), "{path}");
        }
        let pty = nix::pty::openpty(None, None).unwrap();
        let path = nix::unistd::ttyname(&pty.slave).unwrap().to_str().unwrap().to_owned();
        let opened = Device::open(&OriginTerminal { path, leader: me });
        assert!(opened.is_err_and(|why| why.ends_with(&format!("is no longer controlled by process {me}"))));
    }
}
