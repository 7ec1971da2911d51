//! The keyboard side of the user's terminal: its modes, which are put back whatever happens, and what is
//! typed.
//!
//! Nothing here touches a terminal while another job is in its foreground.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use bgd_shared::foreground::Key;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use rustix::process::getpgrp;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

/// How what is typed is to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every byte at once and as it is, Ctrl-C too: it is for the terminal of a job.
    Raw,
    /// Every byte at once and without an echo, but Ctrl-C and its like are signals as ever.
    Keys,
}

/// How often a job in the background of a shell looks whether it is in the foreground by now. No event tells:
/// shells say nothing to a job that runs when they give it the terminal.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal that the user types at.
#[derive(Debug)]
pub struct Keyboard {
    terminal: OwnedFd,
    /// Whether it was opened as `/dev/tty`, which is another file for each name of a terminal.
    is_alias: bool,
    mode: Mode,
    /// How the terminal was before, while it is in that mode.
    before: Option<Termios>,
    /// Held while it is: of several in the foreground at once, as in `bgctl run a & bgctl run b` of a script,
    /// only one may change the modes, or the last to end would put back those of the first.
    turn: Option<Flock<File>>,
}

fn reopened(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(path)
}

/// Whether this process is in the foreground of a terminal. One that does not control this process has no
/// foreground that could matter.
pub fn is_in_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).map_or(true, |group| group == getpgrp())
}

impl Keyboard {
    /// Standard input if that is a terminal, else the terminal that controls this process. `None`: there is
    /// none. Its modes stay as they are until [`Self::take`].
    pub fn open(mode: Mode) -> Option<Self> {
        let input = io::stdin();
        if input.is_terminal() {
            return Some(Self::over(input.as_fd().try_clone_to_owned().ok()?, mode));
        }
        let mut keyboard = Self::over(reopened("/dev/tty").ok()?.into(), mode);
        keyboard.is_alias = true;
        Some(keyboard)
    }

    /// The same over a terminal that was opened elsewhere.
    pub fn over(terminal: OwnedFd, mode: Mode) -> Self {
        Self { terminal, is_alias: false, mode, before: None, turn: None }
    }

    fn is_ours(&self) -> bool {
        is_in_foreground(&self.terminal)
    }

    /// Whether the terminal is in the mode that was asked for, so that it may be read from.
    pub fn is_taken(&self) -> bool {
        self.before.is_some()
    }

    /// Whether another process of the same foreground has the terminal in a mode of its own.
    pub fn is_anothers(&mut self) -> bool {
        self.is_ours() && !self.take_turn()
    }

    /// Takes the turn to change the modes, unless somebody else has it.
    fn take_turn(&mut self) -> bool {
        if self.turn.is_some() {
            return true;
        }
        let Some(file) = self.own_description() else { return true };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(turn) => self.turn = Some(turn),
            Err((_, Errno::EWOULDBLOCK)) => return false,
            Err(_) => {}
        }
        true
    }

    /// The terminal once more, as a lock belongs to a description. `None`: it can't be had by the one name that all
    /// know it by, so that nobody is in the way.
    fn own_description(&self) -> Option<File> {
        let (output, error) = (io::stdout(), io::stderr());
        let known = match (self.is_alias, output.is_terminal(), error.is_terminal()) {
            (false, ..) => self.terminal.as_raw_fd(),
            (true, true, _) => output.as_raw_fd(),
            (true, false, true) => error.as_raw_fd(),
            (true, false, false) => return None,
        };
        reopened(&format!("/proc/self/fd/{known}")).ok()
    }

    /// When to try [`Self::take`] again, while the terminal is not taken.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.is_taken()).then(|| Instant::now() + LOOK)
    }

    /// Puts the terminal into its mode, if this process is in its foreground, and says whether it is.
    pub fn take(&mut self) -> bool {
        if self.is_ours()
            && self.before.is_none()
            && self.take_turn()
            && let Ok(before) = tcgetattr(&self.terminal)
        {
            let wanted = modes(before.clone(), self.mode);
            if tcsetattr(&self.terminal, OptionalActions::Now, &wanted).is_ok() {
                self.before = Some(before);
            }
        }
        self.is_taken()
    }

    /// Makes the terminal itself drop further presses of the key: what else is typed waits for whoever reads
    /// next. False: it can't, and the caller has to read and drop them.
    ///
    /// A terminal takes the character that lets output go on (Ctrl-Q, after Ctrl-S) out of what is typed
    /// the moment that it comes. In this mode that character is the key, and none stops output.
    pub fn drop_presses(&self, key: Key) -> bool {
        let (Some(before), Some(byte @ 1..)) = (&self.before, key.byte()) else { return false };
        let mut wanted = modes(before.clone(), self.mode);
        wanted.input_modes.insert(InputModes::IXON);
        wanted.input_modes.remove(InputModes::IXANY);
        wanted.special_codes[SpecialCodeIndex::VSTART] = byte;
        wanted.special_codes[SpecialCodeIndex::VSTOP] = 0;
        tcsetattr(&self.terminal, OptionalActions::Now, &wanted).is_ok()
    }

    /// Ends [`Self::drop_presses`].
    pub fn take_presses(&self) {
        if let Some(before) = &self.before {
            // If it fails the terminal is gone, which the next read tells.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &modes(before.clone(), self.mode));
        }
    }

    /// Puts the terminal back as it was. What was typed and not read stays there. In the background
    /// nothing is done: whoever is in the foreground has the modes that it wants.
    pub fn give_back(&mut self) {
        if let Some(before) = self.before.take()
            && self.is_ours()
        {
            // If it fails the terminal is gone.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &before);
        }
        self.turn = None;
    }

    /// How many bytes were typed that nobody has read.
    pub fn waiting(&self) -> usize {
        let count = rustix::io::ioctl_fionread(&self.terminal).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Reads what was typed, after a poll has told that there is something. 0: the terminal is gone.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing after all, or the terminal is another job's by now.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.terminal, buffer) {
            // The error of a read from the background, and that of a terminal that was closed.
            Err(rustix::io::Errno::IO) if !self.is_ours() => Err(io::ErrorKind::WouldBlock.into()),
            Err(rustix::io::Errno::IO) => Ok(0),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            outcome => Ok(outcome?),
        }
    }
}

impl AsFd for Keyboard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// These modes, changed as the mode wants.
fn modes(mut modes: Termios, mode: Mode) -> Termios {
    match mode {
        Mode::Raw => modes.make_raw(),
        Mode::Keys => modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO),
    }
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    modes
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use std::io::Write as _;

    fn terminal(mode: Mode) -> (File, Keyboard) {
        let pty = openpty(None, None).unwrap();
        (pty.master.into(), Keyboard::over(pty.slave, mode))
    }

    fn local(keyboard: &Keyboard) -> LocalModes {
        tcgetattr(keyboard).unwrap().local_modes
    }

    #[test]
    fn the_modes_are_put_back() {
        for mode in [Mode::Raw, Mode::Keys] {
            let (_master, mut keyboard) = terminal(mode);
            let before = local(&keyboard);
            assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
            assert!(keyboard.take());
            let taken = local(&keyboard);
            assert!(!taken.intersects(LocalModes::ICANON | LocalModes::ECHO));
            assert_eq!(taken.contains(LocalModes::ISIG), mode == Mode::Keys);
            let slave = keyboard.terminal.try_clone().unwrap();
            drop(keyboard);
            assert_eq!(tcgetattr(&slave).unwrap().local_modes, before, "by the drop, too");
        }
    }

    #[test]
    fn only_one_at_a_time_changes_the_modes_of_a_terminal() {
        let (_master, mut first) = terminal(Mode::Raw);
        let mut second = Keyboard::over(first.own_description().unwrap().into(), Mode::Raw);
        assert!(first.take() && !second.take() && second.is_anothers());
        first.give_back();
        assert!(!second.is_anothers() && second.take());
        let (_master, mut other) = terminal(Mode::Raw);
        assert!(other.take(), "that is another terminal");
    }

    #[test]
    fn r67_the_terminal_drops_presses_and_keeps_the_rest() {
        let (mut master, mut keyboard) = terminal(Mode::Raw);
        assert!(!keyboard.drop_presses(Key::default()), "it is not taken");
        assert!(keyboard.take());
        assert!(!keyboard.drop_presses("ctrl-space".parse().unwrap()));
        assert!(keyboard.drop_presses(Key::default()));
        master.write_all(b"\x02a\x02\x02b\x13\x11\r\x03\x02").unwrap();
        let mut buffer = [0; 64];
        let mut got = Vec::new();
        while got.len() < 6 {
            let count = keyboard.read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(got, b"ab\x13\x11\r\x03");
        keyboard.take_presses();
        master.write_all(b"\x02").unwrap();
        assert_eq!(keyboard.read(&mut buffer).unwrap(), 1);
        assert_eq!(keyboard.waiting(), 0);
    }

    #[test]
    fn what_nobody_read_stays_for_the_shell() {
        let (mut master, mut keyboard) = terminal(Mode::Raw);
        assert!(keyboard.take());
        master.write_all(b"ls\r").unwrap();
        while keyboard.waiting() < 3 {
            std::thread::yield_now();
        }
        keyboard.give_back();
        assert!(keyboard.take());
        let mut buffer = [0; 64];
        assert_eq!(keyboard.read(&mut buffer).unwrap(), 3);
        assert_eq!(&buffer[..3], b"ls\r");
        drop(master);
        assert_eq!(keyboard.read(&mut buffer).unwrap(), 0, "the terminal is gone");
    }
}
