//! The output side of the user's terminal: shows the job's output completely and in order, without ever blocking.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use bgd_shared::request::TerminalSize;
use nix::fcntl::OFlag;
use rustix::termios::tcgetwinsize;

use super::attachment::Output;
use super::line_start::LineStart;
use crate::failure::Failure;
use crate::progress::percent::osc94_sequence;

/// Number of bytes to queue for the terminal before no more output is accepted from the daemon, which then makes the
/// job wait. Writing the queue is the slowest part of leaving with Ctrl-B, so the limit is small.
const PENDING_BYTES: usize = 64 * 1024;

/// The size assumed for a terminal that does not report one.
const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Maximum number of rows and of columns accepted by the daemon.
const SIDE: u16 = 1000;

/// The user's terminal.
#[derive(Debug)]
pub struct Screen {
    terminal: File,
    pending: Vec<u8>,
    /// The sequence that returns the terminal to a usable state.
    restore: String,
    /// Whether the restore sequence was the last output.
    is_left: bool,
    line_start: LineStart,
    /// Whether progress was reported to the terminal, by the job or by this program.
    shows_progress: bool,
    /// The progress last reported by this program, in percent, if any.
    reported_percent: Option<u8>,
}

impl Screen {
    /// Opens standard output, which must be a terminal.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open() -> Result<Self, Failure> {
        let output = io::stdout().as_fd().try_clone_to_owned();
        output.and_then(Self::over).map_err(|error| Failure::io("can't open the terminal", &error))
    }

    /// Uses a terminal that was opened elsewhere.
    ///
    /// # Errors
    /// The system refuses.
    pub fn over(terminal: OwnedFd) -> io::Result<Self> {
        // Reopen the terminal to get an open file description of its own: others that share the original must not
        // become non-blocking.
        let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        // A terminal of another user can't be reopened; then writes may block.
        let terminal = OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)
            .or_else(|_| io::Result::Ok(terminal.into()))?;
        Ok(Self {
            terminal,
            pending: Vec::new(),
            restore: String::new(),
            is_left: true,
            line_start: LineStart::default(),
            shows_progress: false,
            reported_percent: None,
        })
    }

    /// Returns the current size.
    pub fn size(&self) -> TerminalSize {
        match tcgetwinsize(&self.terminal) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                TerminalSize { rows: size.ws_row.min(SIDE), cols: size.ws_col.min(SIDE) }
            }
            _ => SIZE,
        }
    }

    /// Reports whether more output may be queued.
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING_BYTES
    }

    /// Shows output of the job. `restore`, if it has changed, is the sequence that returns the terminal to a usable
    /// state after these bytes.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn show(&mut self, bytes: &[u8], restore: Option<String>) -> io::Result<()> {
        let was_alternate = is_alternate(&self.restore);
        if let Some(restore) = restore {
            self.restore = restore;
        }
        self.line_start.push(bytes, was_alternate, self.is_alternate());
        self.is_left = false;
        self.queue(bytes)
    }

    /// Passes over output of the job, which it will repeat. `restore` is as for [`Self::show`].
    pub fn skip(&mut self, restore: Option<String>) {
        self.restore = restore.unwrap_or_else(|| std::mem::take(&mut self.restore));
    }

    /// Reports whether the job is in the alternate screen after output with this `restore`.
    pub fn would_be_alternate(&self, restore: Option<&str>) -> bool {
        is_alternate(restore.unwrap_or(&self.restore))
    }

    /// Sets the modes that leaving the main screen has reset, as far as the restore sequence tells them: not those with
    /// a value, such as the shape of the cursor. The alternate screen must be drawn instead.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn set_modes_again(&mut self) -> io::Result<()> {
        let modes = if self.is_alternate() { String::new() } else { undone(&self.restore) };
        if modes.is_empty() {
            return Ok(());
        }
        self.is_left = false;
        self.queue(modes.as_bytes())
    }

    /// Reports the job's progress to the terminal (OSC 9;4), unless it is unchanged. Leaving the job clears it.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn set_progress(&mut self, percent: Option<u8>) -> io::Result<()> {
        if self.reported_percent == percent {
            return Ok(());
        }
        (self.shows_progress, self.reported_percent) = (true, percent);
        self.is_left = false;
        self.queue(osc94_sequence(percent).as_bytes())
    }

    /// Records that the job has reported its progress to the terminal itself.
    pub fn note_own_progress(&mut self) {
        self.shows_progress = true;
    }

    /// Reports whether the job is in the alternate screen.
    pub fn is_alternate(&self) -> bool {
        is_alternate(&self.restore)
    }

    fn queue(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.wants_write() {
            self.pending.extend_from_slice(bytes);
            return Ok(());
        }
        let written = self.write_some(bytes)?;
        self.pending.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Reports whether the job has put the terminal into a special state such as the alternate screen.
    pub fn is_changed(&self) -> bool {
        is_changed(&self.restore)
    }

    /// Returns the sequence that makes the terminal usable again.
    pub fn restore(&self) -> &str {
        &self.restore
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match self.terminal.write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

impl Output for Screen {
    fn wants_write(&self) -> bool {
        !self.pending.is_empty()
    }

    fn write(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let written = self.write_some(&pending)?;
        self.pending = pending;
        self.pending.drain(..written);
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        if self.is_left {
            return Ok(());
        }
        self.is_left = true;
        let line = if self.line_start.is_there() { "" } else { "\r\n" };
        self.line_start.set();
        let reset =
            if std::mem::take(&mut self.shows_progress) { osc94_sequence(None) } else { String::new() };
        self.reported_percent = None;
        self.queue(&[self.restore.as_bytes(), reset.as_bytes(), line.as_bytes()].concat())
    }

    fn forget(&mut self) {
        self.pending = Vec::new();
        self.is_left = true;
    }

    fn lost(&self, _error: io::Error) -> Option<Failure> {
        None
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

impl Drop for Screen {
    /// For loops that end without leaving the terminal properly.
    fn drop(&mut self) {
        // Errors are ignored: the terminal may be gone.
        let _ = self.leave().and_then(|()| self.write());
    }
}

/// Reports whether a restore sequence does more than reset colours.
pub fn is_changed(restore: &str) -> bool {
    !matches!(restore, "" | "\x1b[m")
}

/// Reports whether a restore sequence leaves the alternate screen, which returns the cursor to its previous position.
pub fn is_alternate(restore: &str) -> bool {
    ["\x1b[?1049l", "\x1b[?1047l", "\x1b[?47l"].iter().any(|leave| restore.contains(leave))
}

/// Returns the sequence that sets the modes that a restore sequence resets.
fn undone(restore: &str) -> String {
    let opposite = |sequence: &str| {
        let sequence = sequence.trim_end_matches('\x0f');
        if sequence == ">" {
            return Some("\x1b=".to_owned());
        }
        let (mode, set) = match (sequence.strip_suffix('l'), sequence.strip_suffix('h')) {
            (Some(mode), _) => (mode, 'h'),
            (None, Some(mode)) => (mode, 'l'),
            (None, None) => return None,
        };
        let number = mode.strip_prefix('[')?.trim_start_matches('?');
        // Origin mode would move the cursor.
        let is_mode = number != "6" && number.bytes().all(|byte| byte.is_ascii_digit());
        is_mode.then(|| format!("\x1b{mode}{set}"))
    };
    restore.rsplit('\x1b').filter_map(opposite).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::pty::openpty;
    use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
    use std::io::Read as _;

    /// Returns the user's side of a terminal, the screen, and the descriptor that it was opened over.
    fn terminal() -> (File, Screen, OwnedFd) {
        let pty = openpty(None, None).unwrap();
        let mut modes = tcgetattr(&pty.slave).unwrap();
        cfmakeraw(&mut modes);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).unwrap();
        let screen = Screen::over(pty.slave.try_clone().unwrap()).unwrap();
        (pty.master.into(), screen, pty.slave)
    }

    #[track_caller]
    fn sees(user: &mut File, text: &str) {
        let mut got = vec![0; text.len()];
        user.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), text);
    }

    #[test]
    fn showing_never_blocks_on_an_unread_terminal() {
        let (mut user, mut screen, other) = terminal();
        let flood = vec![b'x'; 1 << 20];
        screen.show(&flood, None).unwrap();
        assert!(screen.wants_write() && !screen.has_room());
        std::thread::scope(|scope| {
            scope.spawn(|| user.read_exact(&mut vec![0; 1 << 20]).unwrap());
            while screen.wants_write() {
                let mut sources = [PollFd::new(screen.as_fd(), PollFlags::POLLOUT)];
                poll(&mut sources, PollTimeout::NONE).unwrap();
                screen.write().unwrap();
            }
        });
        assert!(!screen.wants_write() && screen.has_room());
        let flags = OFlag::from_bits_retain(fcntl(&other, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "others are not to see the difference");
    }

    #[test]
    fn leave_ends_an_open_line_and_resets_modes() {
        let (mut user, mut screen, _other) = terminal();
        screen.leave().unwrap();
        screen.show(b"text\r\n", None).unwrap();
        screen.leave().unwrap();
        screen.show(b"more", None).unwrap();
        screen.leave().unwrap();
        sees(&mut user, "text\r\nmore\r\n");
        // A prompt with bracketed paste keeps the cursor on its line.
        screen.show(b"$ ", Some("\x1b[?2004l".into())).unwrap();
        assert!(screen.is_changed());
        screen.leave().unwrap();
        screen.leave().unwrap();
        sees(&mut user, "$ \x1b[?2004l\r\n");
        screen.show(b"red\r\n\x1b[m", Some("\x1b[m".into())).unwrap();
        screen.leave().unwrap();
        sees(&mut user, "red\r\n\x1b[m\x1b[m");
        for usual in ["", "\x1b[m"] {
            screen.show(b"", Some(usual.into())).unwrap();
            assert!(!screen.is_changed());
        }
        screen.show(b"", Some(String::new())).unwrap();
        // A full-screen program returns the cursor to the line where it was started.
        screen.show(b"\x1b[?1049h~", Some("\x1b[?1049l".into())).unwrap();
        screen.show(b"tilde", None).unwrap();
        screen.leave().unwrap();
        sees(&mut user, "\x1b[?1049h~tilde\x1b[?1049l");
        screen.show(b"", Some(String::new())).unwrap();
        screen.show(b"\x1b[?25l", Some("\x1b[?25h".into())).unwrap();
        drop(screen);
        sees(&mut user, "\x1b[?25l\x1b[?25h");
    }

    #[test]
    fn modes_of_the_main_screen_can_be_set_again() {
        let (mut user, mut screen, _other) = terminal();
        screen
            .show(
                b"1\r\n",
                Some("\x1b[?25h\x1b[?2004l\x1b[4l\x1b>\x0f\x1b[0 q\x1b[<1u\x1b7\x1b[r\x1b8\x1b[m".into()),
            )
            .unwrap();
        screen.leave().unwrap();
        let restore = screen.restore().to_owned();
        screen.set_modes_again().unwrap();
        screen.leave().unwrap();
        sees(&mut user, &format!("1\r\n{restore}\x1b=\x1b[4h\x1b[?2004h\x1b[?25l{restore}"));
        for restore in ["\x1b[?25h\x1b[?1049l", "\x1b[m"] {
            screen.show(b"", Some(restore.into())).unwrap();
            screen.leave().unwrap();
            screen.set_modes_again().unwrap();
            sees(&mut user, restore);
            assert!(screen.is_left);
        }
    }

    #[test]
    fn r165_progress_is_cleared_on_leave() {
        let (mut user, mut screen, _other) = terminal();
        screen.show(b"a\r\n", None).unwrap();
        for percent in [None, Some(7), Some(7)] {
            screen.set_progress(percent).unwrap();
        }
        screen.leave().unwrap();
        screen.leave().unwrap();
        screen.show(b"b\r\n", None).unwrap();
        screen.note_own_progress();
        screen.leave().unwrap();
        let (progress, over) = (osc94_sequence(Some(7)), osc94_sequence(None));
        sees(&mut user, &format!("a\r\n{progress}{over}b\r\n{over}"));
    }

    #[test]
    fn terminal_without_size_gets_the_default_size() {
        let (_user, screen, _other) = terminal();
        assert_eq!(screen.size(), SIZE);
    }
}
