//! Pseudo-terminals: making them, and their size.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bgd_shared::request::TerminalSize;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// A pseudo-terminal.
#[derive(Debug)]
pub struct Pty {
    /// The daemon's side, which does not block.
    pub master: OwnedFd,
    /// The processes' side. The daemon keeps it open too: without it the master would report a hang-up
    /// whenever no process has the terminal open for a while.
    pub slave: OwnedFd,
    /// The name of the processes' side, such as `/dev/pts/3`.
    pub name: PathBuf,
}

impl Pty {
    /// A new one of this size, for text in UTF-8.
    ///
    /// # Errors
    /// What the system says: the most pseudo-terminals may be in use.
    pub fn open(size: TerminalSize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        let mut modes = tcgetattr(&slave)?;
        modes.input_modes |= InputModes::IUTF8;
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        set_size(&master, size)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let name = ptsname(&master, Vec::new())?;
        Ok(Self { name: Path::new(OsStr::from_bytes(name.as_bytes())).into(), master, slave })
    }
}

/// Sets the size of a terminal. If it has changed, the foreground group of the terminal is told by SIGWINCH.
///
/// # Errors
/// What the system says.
pub fn set_size(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows: ws_row, cols: ws_col } = size;
    Ok(tcsetwinsize(master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// The size of a terminal.
///
/// # Errors
/// What the system says.
pub fn size_of(master: &OwnedFd) -> io::Result<TerminalSize> {
    let Winsize { ws_row: rows, ws_col: cols, .. } = tcgetwinsize(master)?;
    Ok(TerminalSize { rows, cols })
}

/// The processes' side of a terminal.
///
/// # Errors
/// What the system says.
pub fn slave_of(master: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(ioctl_tiocgptpeer(master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?)
}
