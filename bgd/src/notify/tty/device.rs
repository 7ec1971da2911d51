//! A terminal as it is at this moment: whose it is, who has it in the foreground, and what is written to it.
//! It is opened for a look or a write only, so that a terminal which is closed is closed.

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
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::program::{is_bgctl, is_shell};
use crate::os::pidfd::PidFd;
use crate::os::watch;

/// How long a terminal may take nothing (Ctrl-S, a window that hangs) before a line is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The rows and columns of a terminal that does not say how many it has.
const SIZE: (u16, u16) = (24, 80);

/// A terminal that was looked at.
pub struct Look {
    /// Who has it in the foreground.
    pub front: Front,
    /// It, for a write that follows at once.
    pub device: Device,
}

/// Who has a terminal in the foreground.
#[derive(Debug)]
pub enum Front {
    /// A shell that edits a line.
    Prompt,
    /// A shell that does not: one between two lines, or one that leaves that to the terminal.
    Shell,
    /// What is left of a program that has ended, until its shell takes the terminal back.
    Nobody,
    /// A `bgctl` that has not taken the terminal for itself, by a process of it.
    Bgctl(PidFd),
    /// Any other program, by a process of it.
    Program(PidFd),
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    group: i32,
    session: i32,
    /// The device number of its terminal.
    terminal: u64,
    /// The group that has this terminal in the foreground.
    front: i32,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        // The kernel prints it as a signed number of 32 bits.
        let terminal: i32 = stat.field(7)?;
        let (group, session, front) = (stat.field(5)?, stat.field(6)?, stat.field(8)?);
        Some(Self { group, session, terminal: terminal.cast_unsigned().into(), front })
    }
}

/// A device number as `/proc/PID/stat` has it.
fn as_in_stat(device: u64) -> u64 {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The terminal that this process leads, if there is one.
pub fn terminal_of(leader: i32) -> Option<OriginTerminal> {
    let stat = Stat::of(leader).filter(|stat| stat.session == leader)?;
    let (major, minor) = (stat.terminal >> 8 & 0xfff, stat.terminal & 0xff | stat.terminal >> 12 & 0xf_ff00);
    let path = match major {
        136..=143 => format!("/dev/pts/{}", (major - 136) * 256 + minor),
        4 if minor < 64 => format!("/dev/tty{minor}"),
        _ => return None,
    };
    Some(OriginTerminal { path, leader })
}

/// Whether a terminal was closed: it is gone, or nobody leads it any more, whichever is first.
pub fn is_closed(terminal: &OriginTerminal) -> bool {
    Stat::of(terminal.leader).is_none() || !fs::exists(&terminal.path).unwrap_or(true)
}

/// Whether a path is that of a terminal: `/dev/pts/4`, `/dev/tty1`, `/dev/ttyS0`. Nothing else is touched, as
/// to open a device may do something to it.
fn is_terminals(path: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let rest = |start: &str| path.strip_prefix(start).filter(|rest| !rest.is_empty());
    rest("/dev/pts/").is_some_and(is_number) || rest("/dev/tty").is_some_and(is_name)
}

/// An open terminal.
pub struct Device(File);

impl Device {
    /// Opens the terminal of a submitter, if it is still that one's.
    ///
    /// The leader's number and the terminal's together say whose it is. They may both be given anew to another
    /// session of the same user; that both are within the life of a task is so rare, and a line in the wrong
    /// window of the right user so harmless, that its start time is not kept along with every task.
    fn open(terminal: &OriginTerminal) -> Result<(Self, Stat), String> {
        let path = &terminal.path;
        if !is_terminals(path) {
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
        // Before it is opened, and again for what was opened.
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

    /// Its rows and columns.
    pub fn size(&self) -> (u16, u16) {
        let or = |side: u16, usual| if side > 0 { side } else { usual };
        tcgetwinsize(&self.0).map_or(SIZE, |size| (or(size.ws_row, SIZE.0), or(size.ws_col, SIZE.1)))
    }

    /// Writes as much at once as it takes, which is nothing while its output is stopped.
    ///
    /// # Errors
    /// It was closed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Writes all of it, and waits for room meanwhile, for a while.
    ///
    /// # Errors
    /// It was closed, or there was no room in time.
    pub async fn write_all(self, mut bytes: &[u8]) -> io::Result<()> {
        let device = watch::writable(OwnedFd::from(self.0))?;
        let writing = async {
            while !bytes.is_empty() {
                let write = |fd: &OwnedFd| nix::unistd::write(fd.as_fd(), bytes).map_err(io::Error::from);
                bytes = &bytes[device.async_io(Interest::WRITABLE, write).await?..];
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, writing).await.map_err(|_| stopped())?
    }

    /// Waits until it takes something, for a while from this moment on.
    ///
    /// # Errors
    /// There was no room in time.
    pub async fn room(self, from: Instant) -> io::Result<()> {
        let device = watch::writable(OwnedFd::from(self.0))?;
        let in_time = tokio::time::timeout_at(from + PATIENCE, device.writable());
        in_time.await.map_err(|_| stopped())?.map(drop)
    }

    /// Whether somebody reads keys one by one, as shells do at their prompt.
    fn is_edited(&self) -> bool {
        tcgetattr(&self.0).is_ok_and(|modes| !modes.local_modes.contains(LocalModes::ICANON))
    }
}

fn stopped() -> io::Error {
    io::Error::other("its output is stopped (Ctrl-S), or nobody reads it")
}

/// That something can't be done to a terminal.
pub fn unusable(path: &str, error: &io::Error) -> String {
    format!("the terminal {path} can't be used: {error}")
}

/// Looks who has the terminal in the foreground.
///
/// # Errors
/// It is closed, or another's, or a line would disturb whoever has it.
pub fn look(terminal: &OriginTerminal) -> Result<Look, String> {
    let (device, leader) = Device::open(terminal)?;
    if leader.front <= 0 {
        return Err(format!("the terminal {} has no foreground process", terminal.path));
    }
    let is_leader = leader.front == leader.group;
    let front = if is_leader { terminal.leader } else { leader.front };
    let program = |member: Option<PidFd>| member.map_or(Front::Nobody, Front::Program);
    let front = if !is_shell(front) {
        // Nobody sees the end of a program that the terminal was opened for, as the terminal ends with it.
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
        // A shell at its prompt is alone in its group: this one runs a script, or has no job control. What a
        // shell keeps in its own group (`exec > >(tee log)`) can't be told from that, so nothing is ever
        // written above such a prompt.
        Front::Program(other)
    } else {
        match (device.is_edited(), is_leader) {
            (true, _) => Front::Prompt,
            (false, true) => Front::Shell,
            // A script.
            (false, false) => program(living(front)),
        }
    };
    Ok(Look { front, device })
}

/// A shell that edits a line, and what its ended children say of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Shell {
    pid: i32,
    /// The page faults of those that it has waited for.
    faults: (u64, u64),
}

/// The shell that edits a line in a terminal. None: somebody else has it, or it can't be looked at.
pub fn shell_at(terminal: &OriginTerminal) -> Option<Shell> {
    let (device, leader) = Device::open(terminal).ok()?;
    let pid = if leader.front == leader.group { terminal.leader } else { leader.front };
    let stat = ProcessStat::of(pid).filter(|_| device.is_edited() && is_shell(pid))?;
    Some(Shell { pid, faults: (stat.field(11)?, stat.field(13)?) })
}

/// Whether a living process is not among those that have this terminal in the foreground.
pub fn is_in_background(pid: i32, terminal: &OriginTerminal) -> bool {
    let has_ended = ProcessStat::of(pid).is_none_or(|stat| stat.has_ended());
    let (process, leader) = (Stat::of(pid), Stat::of(terminal.leader));
    !has_ended && process.zip(leader).is_some_and(|(process, leader)| process.group != leader.front)
}

/// A process, if it has not ended.
fn living(pid: i32) -> Option<PidFd> {
    PidFd::open(pid).ok().filter(|handle| !handle.has_ended())
}

/// A living process of a group that is not this one.
fn another_of(group: i32, but: i32) -> Option<PidFd> {
    let mut pids = proc::processes();
    let is_in_it = |pid| Stat::of(pid).is_some_and(|stat| stat.group == group);
    pids.find_map(|pid| {
        let handle = (pid != but && is_in_it(pid)).then(|| living(pid)).flatten()?;
        // The number may have become another's meanwhile.
        is_in_it(pid).then_some(handle)
    })
}

/// Tells that a terminal was written to, once each time that it is asked; the only event there is when a
/// program is stopped (Ctrl-Z), as its shell says so and shows its prompt. It does not hold the terminal open.
pub struct Writes {
    inotify: Inotify,
    ready: AsyncFd<OwnedFd>,
}

impl Writes {
    /// None are watched yet.
    ///
    /// # Errors
    /// The system has no inotify to give.
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let ready = watch::readable(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, ready })
    }

    /// Watches for the next write; what was written before says nothing any more.
    pub fn arm(&self, terminal: &OriginTerminal) {
        while self.inotify.read_events().is_ok() {}
        let once = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        if let Err(error) = self.inotify.add_watch(&*terminal.path, once) {
            tracing::debug!(path = terminal.path, %error, "a terminal can't be watched");
        }
    }

    /// Waits for it.
    pub async fn next(&self) {
        while let Ok(mut ready) = self.ready.readable().await {
            let is_told = self.inotify.read_events().is_ok_and(|events| !events.is_empty());
            ready.clear_ready();
            if is_told {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_compared_as_the_kernel_prints_them() {
        assert_eq!(as_in_stat(nix::sys::stat::makedev(136, 4)), 34820);
        assert_eq!(as_in_stat(nix::sys::stat::makedev(136, 511)), (136 << 8) | 0xff | (1 << 20));
    }

    #[test]
    fn what_is_no_terminal_of_ours_is_not_opened() {
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
            assert!(is_terminals(path), "{path}");
            assert!(Device::open(&OriginTerminal { path: path.to_owned(), leader: me }).is_err(), "{path}");
        }
    }
}
