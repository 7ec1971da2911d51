//! Signals as something to read: those that bgctl deals with itself are blocked and come from a
//! descriptor, in the poll loop like everything else.

use std::os::fd::{AsFd, BorrowedFd};

use bgd_shared::proc::ProcessStat;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::failure::Failure;

/// `si_code` of a signal that the kernel sent, as a terminal does for Ctrl-C. Those of other processes are
/// 0 or less.
const SI_KERNEL: i32 = 0x80;

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Which.
    pub signal: Signal,
    /// Whether a terminal sent it, to all of its foreground.
    pub by_terminal: bool,
}

impl Caught {
    /// The name, without `SIG`.
    pub fn name(self) -> &'static str {
        let name = self.signal.as_str();
        name.strip_prefix("SIG").unwrap_or(name)
    }

    /// What a shell reports for a program that it has ended.
    pub fn shell_code(self) -> u8 {
        u8::try_from(self.signal as i32 + 128).unwrap_or(u8::MAX)
    }
}

/// The signals that this process reads. They stay blocked to its end.
#[derive(Debug)]
pub struct Signals {
    source: SignalFd,
}

impl Signals {
    /// Takes these from now on, but for those that the caller of bgctl wants to be ignored, as `nohup` does.
    /// What is started after this inherits the block.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(wanted: &[Signal]) -> Result<Self, Failure> {
        let mask = without_ignored(wanted);
        let source = mask
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
            .map_err(cannot_take)?;
        Ok(Self { source })
    }

    /// The next one that came.
    pub fn next_caught(&self) -> Option<Caught> {
        loop {
            let info = self.source.read_signal().ok().flatten()?;
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            if let Some(signal) = signal {
                return Some(Caught { signal, by_terminal: info.ssi_code == SI_KERNEL });
            }
        }
    }
}

/// Holds these back until [`Signals::take`] reads them: none ends this process on the way there.
///
/// # Errors
/// What the system says.
pub fn hold(wanted: &[Signal]) -> Result<(), Failure> {
    without_ignored(wanted).thread_block().map_err(cannot_take)
}

fn without_ignored(wanted: &[Signal]) -> SigSet {
    let ignored = ignored();
    wanted.iter().copied().filter(|signal| !is_in(ignored, *signal)).collect()
}

fn cannot_take(error: Errno) -> Failure {
    Failure::io("can't take signals", &error.into())
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // Borrowed for as long as the descriptor lives.
        self.source.as_fd()
    }
}

/// Stops this process as Ctrl-Z does, so that its shell shows it as stopped, and returns when it goes on.
/// Where nobody could let it go on, as no shell has an eye on it, the kernel does not stop it.
pub fn stop_here() {
    // It can't fail with a signal that exists.
    stop_by(|| {
        let _ = raise(Signal::SIGTSTP);
    });
}

fn stop_by(stop: impl FnOnce()) {
    let mut tstp = SigSet::empty();
    tstp.add(Signal::SIGTSTP);
    if tstp.thread_unblock().is_ok() {
        stop();
        let _ = tstp.thread_block();
    }
}

/// Stops this process with all of its group, such as the rest of a pipeline: as the terminal would if it
/// made signals of keys itself.
pub fn stop_group() {
    stop_by(|| {
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    });
}

/// Sends a signal that a key stands for to the rest of this process's group, as the terminal would.
pub fn signal_group(signal: Signal) {
    let mut own = SigSet::empty();
    own.add(signal);
    if own.thread_block().is_ok() {
        let _ = kill(Pid::from_raw(0), signal);
    }
}

/// The signals that were ignored when this process was started, one bit each.
fn ignored() -> u64 {
    ProcessStat::own().and_then(|stat| stat.field(33)).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal as i32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_read_in_the_loop() {
        let signals = Signals::take(&[Signal::SIGUSR1, Signal::SIGWINCH]).unwrap();
        assert_eq!(signals.next_caught(), None);
        raise(Signal::SIGUSR1).unwrap();
        let caught = signals.next_caught().unwrap();
        assert_eq!((caught.signal, caught.by_terminal), (Signal::SIGUSR1, false));
        assert_eq!((caught.name(), caught.shell_code()), ("USR1", 138));
        assert_eq!(signals.next_caught(), None);
    }

    #[test]
    fn ignored_signals_are_known() {
        // Rust ignores SIGPIPE.
        assert!(is_in(ignored(), Signal::SIGPIPE));
        assert!(!is_in(ignored(), Signal::SIGTERM));
    }
}
