//! Opens pseudo-terminals, and gets and sets their size.

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

#[derive(Debug)]
pub struct Pty {
    /// The daemon's side, which is non-blocking.
    pub master: OwnedFd,
    /// The processes' side. The daemon keeps it open, too: otherwise the master would report a hang-up whenever no
    /// process has the terminal open.
    pub slave: OwnedFd,
    /// The path of the processes' side, such as `/dev/pts/3`.
    pub name: PathBuf,
}

impl Pty {
    /// Opens a pseudo-terminal of this size, for text in UTF-8.
    ///
    /// # Errors
    /// Returns the system error; all pseudo-terminals may be in use.
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

/// Sets the size of a terminal. If it has changed, the kernel sends SIGWINCH to the terminal's foreground group.
///
/// # Errors
/// Returns the system error.
pub fn set_size(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows: ws_row, cols: ws_col } = size;
    Ok(tcsetwinsize(master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Returns the size of a terminal.
pub fn size_of(master: &OwnedFd) -> io::Result<TerminalSize> {
    let Winsize { ws_row: rows, ws_col: cols, .. } = tcgetwinsize(master)?;
    Ok(TerminalSize { rows, cols })
}

/// Opens the processes' side of a terminal.
///
/// # Errors
/// Returns the system error.
pub fn slave_of(master: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(ioctl_tiocgptpeer(master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?)
}
