//! Signals as readable events: those that bgctl handles are blocked and read from a signalfd, in the same poll loop
//! as everything else.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use bgd_shared::foreground::Key;
use bgd_shared::proc::ProcessStat;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::failure::Failure;

/// `si_code` of a signal sent by the kernel, such as a terminal's Ctrl-C. Signals from other processes have 0 or
/// less.
const SI_KERNEL: i32 = 0x80;

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    pub signal: Signal,
    /// Whether a terminal sent it to its whole foreground process group.
    pub by_terminal: bool,
}

impl Caught {
    /// Returns the name without `SIG`.
    pub fn name(self) -> &'static str {
        let name = self.signal.as_str();
        name.strip_prefix("SIG").unwrap_or(name)
    }

    /// Reports whether the signal is meant for all processes of the job. A terminal's signal is, and so is one that
    /// ends only this process: sent by `timeout` or `kill %1`, it would have reached the command's whole group without
    /// bgctl.
    pub fn is_for_all(self) -> bool {
        self.by_terminal || matches!(self.signal, Signal::SIGHUP | Signal::SIGTERM)
    }

    /// Reports whether this is the signal that a terminal sends for the key, unless its modes were changed.
    pub fn is_key(self, key: Key) -> bool {
        let byte = match self.signal {
            Signal::SIGQUIT => 0x1c,
            Signal::SIGTSTP => 0x1a,
            _ => return false,
        };
        self.by_terminal && key.byte() == Some(byte)
    }

    /// Returns the exit code that a shell reports for a program ended by this signal.
    pub fn shell_code(self) -> u8 {
        u8::try_from(self.signal as i32 + 128).unwrap_or(u8::MAX)
    }
}

/// The signals that this process reads. They stay blocked until it ends.
#[derive(Debug)]
pub struct Signals {
    source: SignalFd,
}

impl Signals {
    /// Takes over these signals, except those that bgctl was started with as ignored, as under `nohup`. Processes
    /// started after this inherit the blocked signals.
    ///
    /// # Errors
    /// A system call fails.
    pub fn take(wanted: &[Signal]) -> Result<Self, Failure> {
        let mask = without_ignored(wanted);
        let source = mask
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
            .map_err(cannot_take)?;
        Ok(Self { source })
    }

    /// Returns the next pending signal, if any.
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

/// Blocks these signals until [`Signals::take`] reads them, so that none of them ends this process earlier.
///
/// # Errors
/// A system call fails.
pub fn hold(wanted: &[Signal]) -> Result<(), Failure> {
    without_ignored(wanted).thread_block().map_err(cannot_take)
}

/// Unblocks these signals, including pending ones.
///
/// # Errors
/// A system call fails.
pub fn release(wanted: &[Signal]) -> Result<(), Failure> {
    without_ignored(wanted).thread_unblock().map_err(cannot_take)
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
        // The borrow lasts as long as the descriptor.
        self.source.as_fd()
    }
}

/// Signals that this process reads until this is dropped. Then they are unblocked, including pending ones.
#[derive(Debug)]
pub struct Taken {
    signals: Signals,
    wanted: &'static [Signal],
}

impl Taken {
    /// Takes over these signals, as [`Signals::take`] does. From now on, every wait must have a deadline.
    ///
    /// # Errors
    /// A system call fails.
    pub fn new(wanted: &'static [Signal]) -> Result<Self, Failure> {
        Ok(Self { signals: Signals::take(wanted)?, wanted })
    }

    /// Returns the next pending signal, if any.
    pub fn next_caught(&self) -> Option<Caught> {
        self.signals.next_caught()
    }
}

impl AsFd for Taken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // This can't fail for valid signals.
        let _ = release(self.wanted);
    }
}

/// Ends this process by a signal that it has read, as the signal itself would have. The signal must no longer be
/// blocked.
///
/// # Errors
/// A system call fails.
pub fn end_by(caught: Caught) -> Result<(), Failure> {
    raise(caught.signal).map_err(cannot_take)
}

/// Ends this process by SIGINT, which it has read or has got from elsewhere. Returns only if the signal is ignored, as
/// in a script that is not to be interrupted.
pub fn end_by_interrupt() {
    // Nothing else writes it when a signal ends the process.
    let _ = io::stdout().flush();
    // This can't fail for a valid signal.
    if release(&[Signal::SIGINT]).is_ok() {
        let _ = raise(Signal::SIGINT);
    }
}

/// Stops this process as Ctrl-Z does, so that its shell shows it as stopped, and returns when it is continued. The
/// kernel ignores the stop if no shell could continue the process (orphaned process group).
pub fn stop_here() {
    // This can't fail for a valid signal.
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

/// Stops this process and its whole group, such as the rest of a pipeline, as the terminal would if it turned keys into
/// signals itself.
pub fn stop_group() {
    stop_by(|| {
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    });
}

/// Runs a program that uses the terminal meanwhile, with these signals as they were before [`Signals::take`]. Signals
/// from keys are for that program; only Ctrl-Z stops this process with it. Returns the exit code as a shell reports it.
///
/// # Errors
/// The program can't be started.
pub fn lend(taken: &[Signal], command: &mut Command) -> io::Result<u8> {
    let mask = without_ignored(taken);
    // A program inherits the signals that are blocked when it starts.
    mask.thread_unblock()?;
    let child = command.spawn();
    let mut kept = mask;
    kept.remove(Signal::SIGTSTP);
    let blocked = kept.thread_block();
    let ended = child.and_then(|mut child| child.wait());
    mask.thread_block().and(blocked)?;
    let ended = ended?;
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Sends the signal of a key to the rest of this process's group, as the terminal would.
pub fn signal_group(signal: Signal) {
    let mut own = SigSet::empty();
    own.add(signal);
    if own.thread_block().is_ok() {
        let _ = kill(Pid::from_raw(0), signal);
    }
}

/// Returns the signals that were ignored when this process started, as a bit mask.
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
    fn taken_signal_is_read_once_with_name_and_shell_code() {
        let signals = Signals::take(&[Signal::SIGUSR1, Signal::SIGWINCH]).unwrap();
        assert_eq!(signals.next_caught(), None);
        raise(Signal::SIGUSR1).unwrap();
        let caught = signals.next_caught().unwrap();
        assert_eq!((caught.signal, caught.by_terminal), (Signal::SIGUSR1, false));
        assert_eq!((caught.name(), caught.shell_code()), ("USR1", 138));
        assert_eq!(signals.next_caught(), None);
    }

    #[test]
    fn ignored_signals_are_detected() {
        // Rust ignores SIGPIPE.
        assert!(is_in(ignored(), Signal::SIGPIPE));
        assert!(!is_in(ignored(), Signal::SIGTERM));
    }
}
