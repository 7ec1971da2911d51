//! The input side of the user's terminal: its modes, which are always restored, and typed input.
//!
//! Nothing here may touch a terminal while another job is in its foreground.

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

/// How typed input arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each byte immediately and unchanged, including Ctrl-C: for a job with its own terminal.
    Raw,
    /// Each byte immediately and without echo, but Ctrl-C and the like still send signals, except for this key.
    Keys(Key),
}

/// Interval at which a job in the background of a shell checks whether it is in the foreground. There is no event for
/// that: shells don't notify a running job when they give it the terminal.
const LOOK: Duration = Duration::from_millis(100);

/// The terminal that the user types on.
#[derive(Debug)]
pub struct Keyboard {
    terminal: OwnedFd,
    /// Whether the terminal was opened as `/dev/tty`, which is a different file from the terminal's own device.
    is_alias: bool,
    mode: Mode,
    /// The previous modes, while this process has changed them.
    before: Option<Termios>,
    /// Locked while the modes are changed. If several processes are in the foreground at once, as with `bgctl run a &
    /// bgctl run b` in a script, only one may change the modes: otherwise the last to end would restore the modes
    /// that the first had set.
    turn: Option<Flock<File>>,
}

fn reopened(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(path)
}

/// Reports whether this process is in the foreground of a terminal. The foreground of a terminal that is not the
/// controlling terminal doesn't matter, so the result is true.
pub fn is_in_foreground(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).map_or(true, |group| group == getpgrp())
}

impl Keyboard {
    /// Opens standard input if it is a terminal, else the controlling terminal. Returns `None` if there is none. The
    /// modes stay unchanged until [`Self::take`].
    pub fn open(mode: Mode) -> Option<Self> {
        let input = io::stdin();
        if input.is_terminal() {
            return Some(Self::over(input.as_fd().try_clone_to_owned().ok()?, mode));
        }
        let mut keyboard = Self::over(reopened("/dev/tty").ok()?.into(), mode);
        keyboard.is_alias = true;
        Some(keyboard)
    }

    /// Uses a terminal that was opened elsewhere.
    pub fn over(terminal: OwnedFd, mode: Mode) -> Self {
        Self { terminal, is_alias: false, mode, before: None, turn: None }
    }

    fn is_ours(&self) -> bool {
        is_in_foreground(&self.terminal)
    }

    /// Reports whether the terminal is in the requested mode, so that it may be read.
    pub fn is_taken(&self) -> bool {
        self.before.is_some()
    }

    /// Reports whether another process in the same foreground has changed the modes.
    pub fn is_held_by_other(&mut self) -> bool {
        self.is_ours() && !self.take_turn()
    }

    /// Acquires the lock for changing the modes. Returns `false` if another process holds it.
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

    /// Opens the terminal again, as a lock belongs to an open file description. Returns `None` if the device that all
    /// processes would lock can't be determined; then there is no lock.
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

    /// Returns when to retry [`Self::take`]; `None` if the terminal is taken.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.is_taken()).then(|| Instant::now() + LOOK)
    }

    /// Sets the requested mode if this process is in the foreground. Returns whether the terminal is taken.
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

    /// Sets the requested mode again after this process was continued. `kill -STOP` leaves no time to restore the
    /// terminal, and the shell sets its own modes. In the background, the terminal counts as given back. Returns
    /// whether the terminal is taken.
    pub fn retake(&mut self) -> bool {
        let Some(before) = self.before.take() else { return self.take() };
        if !self.is_ours() {
            self.turn = None;
            return false;
        }
        // If a shell has set its modes, those are the ones to restore later.
        let is_restored = |now: &Termios| now.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO);
        let before = tcgetattr(&self.terminal).ok().filter(is_restored).unwrap_or(before);
        // On failure the terminal is gone, which the next read reports.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &modes(before.clone(), self.mode));
        self.before = Some(before);
        true
    }

    /// Makes the terminal itself drop further presses of the key; other input stays for the next reader. Returns
    /// `false` if that is impossible, and the caller has to read and drop the presses.
    ///
    /// A terminal removes the character that resumes output (Ctrl-Q after Ctrl-S) from the input as soon as it arrives.
    /// Here that character is set to the key, and the one that stops output is disabled.
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
            // On failure the terminal is gone, which the next read reports.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &modes(before.clone(), self.mode));
        }
    }

    /// Restores the terminal's modes. Unread input stays in the terminal. Does nothing in the background: the
    /// foreground job has set the modes that it needs.
    pub fn give_back(&mut self) {
        if let Some(before) = self.before.take()
            && self.is_ours()
        {
            // On failure the terminal is gone.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &before);
        }
        self.turn = None;
    }

    /// Returns the number of bytes that were typed but not read yet.
    pub fn waiting(&self) -> usize {
        let count = rustix::io::ioctl_fionread(&self.terminal).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Reads typed input after `poll` has reported some. Returns 0 if the terminal is gone.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing to read after all, or another job has the terminal by now.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.terminal, buffer) {
            // EIO is returned both for a read from the background and for a closed terminal.
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

/// Returns `modes` adjusted for `mode`.
fn modes(mut modes: Termios, mode: Mode) -> Termios {
    match mode {
        Mode::Raw => modes.make_raw(),
        Mode::Keys(key) => {
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            pass_on(&mut modes, key);
        }
    }
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    modes
}

/// Makes the terminal pass on the key even if it is one of those that send a signal or stop the output, such as Ctrl-\.
fn pass_on(modes: &mut Termios, key: Key) {
    let Some(byte) = key.byte() else { return };
    let codes = &mut modes.special_codes;
    if codes[SpecialCodeIndex::VSTART] == byte {
        // Nothing would resume stopped output any more.
        codes[SpecialCodeIndex::VSTOP] = 0;
    }
    for index in [
        SpecialCodeIndex::VINTR,
        SpecialCodeIndex::VQUIT,
        SpecialCodeIndex::VSUSP,
        SpecialCodeIndex::VSTART,
        SpecialCodeIndex::VSTOP,
    ] {
        if codes[index] == byte {
            codes[index] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use std::io::Write as _;

    const KEYS: Mode = Mode::Keys(Key::NONE);

    fn terminal(mode: Mode) -> (File, Keyboard) {
        let pty = openpty(None, None).unwrap();
        (pty.master.into(), Keyboard::over(pty.slave, mode))
    }

    fn local(keyboard: &Keyboard) -> LocalModes {
        tcgetattr(keyboard).unwrap().local_modes
    }

    #[test]
    fn terminal_modes_are_restored_on_drop() {
        for mode in [Mode::Raw, KEYS] {
            let (_master, mut keyboard) = terminal(mode);
            let before = local(&keyboard);
            assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
            assert!(keyboard.take());
            let taken = local(&keyboard);
            assert!(!taken.intersects(LocalModes::ICANON | LocalModes::ECHO));
            assert_eq!(taken.contains(LocalModes::ISIG), mode == KEYS);
            let slave = keyboard.terminal.try_clone().unwrap();
            drop(keyboard);
            assert_eq!(tcgetattr(&slave).unwrap().local_modes, before, "by the drop, too");
        }
    }

    #[test]
    fn retake_sets_modes_again_after_shell_restored_them() {
        for mode in [Mode::Raw, KEYS] {
            let (_master, mut keyboard) = terminal(mode);
            let mut shells = tcgetattr(&keyboard).unwrap();
            assert!(keyboard.retake(), "it was not taken before");
            let taken = local(&keyboard);
            // No modes were restored meanwhile.
            assert!(keyboard.retake() && local(&keyboard) == taken);
            shells.local_modes.remove(LocalModes::ECHOK);
            tcsetattr(&keyboard, OptionalActions::Now, &shells).unwrap();
            assert!(keyboard.retake());
            assert!(!local(&keyboard).intersects(LocalModes::ICANON | LocalModes::ECHO), "{mode:?}");
            keyboard.give_back();
            assert_eq!(local(&keyboard), shells.local_modes, "as the shell had them last");
        }
    }

    #[test]
    fn only_one_keyboard_at_a_time_can_take_a_terminal() {
        let (_master, mut first) = terminal(Mode::Raw);
        let mut second = Keyboard::over(first.own_description().unwrap().into(), Mode::Raw);
        assert!(first.take() && !second.take() && second.is_held_by_other());
        first.give_back();
        assert!(!second.is_held_by_other() && second.take());
        let (_master, mut other) = terminal(Mode::Raw);
        assert!(other.take(), "that is another terminal");
    }

    #[test]
    fn r67_terminal_discards_key_presses_and_keeps_other_input() {
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
    fn r60_key_that_a_terminal_handles_itself_is_read_like_any_other() {
        for (name, byte) in [("^\\", 0x1c), ("^z", 0x1a), ("^s", 0x13), ("^q", 0x11), ("^b", 0x02)] {
            let (mut master, mut keyboard) = terminal(Mode::Keys(name.parse().unwrap()));
            assert!(keyboard.take());
            let codes = tcgetattr(&keyboard).unwrap().special_codes;
            assert_eq!(codes[SpecialCodeIndex::VINTR], 0x03, "Ctrl-C is still a signal");
            assert_eq!(
                codes[SpecialCodeIndex::VQUIT] == 0,
                byte == 0x1c,
                "so is Ctrl-\\ if it is not the key"
            );
            // Followed by another one, so that a key that is not passed on is no reason to wait for ever.
            master.write_all(&[byte, b'x']).unwrap();
            let mut buffer = [0; 64];
            let mut got = Vec::new();
            while !got.ends_with(b"x") {
                let count = keyboard.read(&mut buffer).unwrap();
                got.extend_from_slice(&buffer[..count]);
            }
            assert_eq!(got, [byte, b'x'], "{name}");
        }
    }

    #[test]
    fn unread_input_stays_for_the_shell() {
        let (mut master, mut keyboard) = terminal(Mode::Raw);
        assert!(keyboard.take());
        master.write_all(b"ls\r").unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        while keyboard.waiting() < 3 {
            assert!(Instant::now() < deadline, "what is typed does not arrive");
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
