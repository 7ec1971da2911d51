//! A shell that the console waits for without showing it. A signal ends the wait, as the shell may hang, for example at
//! a dead mount.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::failure::Failure;
use crate::link::poll_timeout;
use crate::terminal::{Caught, Signals};

/// Maximum number of bytes to keep of each stream.
const KEPT: usize = 8192;

/// Number of reads of up to [`KEPT`] bytes once the shell has ended; together they empty a full pipe.
const PIECES: usize = 8;

/// How long to wait for a killed shell. One that hangs in the kernel is left behind.
const KILLED: Duration = Duration::from_secs(1);

const SHELL: &str = "/bin/sh";

/// How a shell ended.
#[derive(Debug)]
pub struct Ended {
    pub is_success: bool,
    /// The beginning of standard output.
    pub output: Vec<u8>,
    /// The beginning of standard error.
    pub errors: Vec<u8>,
}

/// Runs a shell command to its end, with these variables in addition to those of this process. Returns `None` if it was
/// killed by a signal: because `gives_up` held for a signal received here, which kills its whole process group, or by a
/// signal from the terminal, which is lent to it.
///
/// # Errors
/// The shell can't be started.
pub fn shell(
    line: &str,
    variables: &[(String, String)],
    mut gives_up: impl FnMut(Caught) -> bool,
    signals: &Signals,
) -> Result<Option<Ended>, Failure> {
    let failed = |error: io::Error| Failure::io(SHELL, &error);
    let mut child = Child::start(line, variables).map_err(failed)?;
    // It may ask the user something, as `fzf` does.
    let _lent = LentTerminal::to(child.pid);
    let mut killed_until = None;
    while !child.wait(signals, killed_until).map_err(failed)? {
        while let Some(caught) = signals.next_caught() {
            if gives_up(caught) && killed_until.is_none() {
                child.kill();
                killed_until = Some(Instant::now() + KILLED);
            }
        }
        if killed_until.is_some_and(|until| until <= Instant::now()) {
            return Ok(None);
        }
    }
    let ended = child.ended();
    Ok(if killed_until.is_some() { None } else { ended })
}

/// The console's terminal, lent to a process group until this is dropped.
struct LentTerminal(Option<Pid>);

impl LentTerminal {
    /// Lends the terminal, if the console has it.
    fn to(group: Pid) -> Self {
        let (terminal, own) = (io::stdin(), getpgrp());
        let has_it = tcgetpgrp(&terminal) == Ok(own);
        Self((has_it && tcsetpgrp(&terminal, group).is_ok()).then_some(own))
    }
}

impl Drop for LentTerminal {
    fn drop(&mut self) {
        let Some(own) = self.0 else { return };
        // Otherwise this would stop the console, which is not in the foreground now.
        let stops = SigSet::from(Signal::SIGTTOU);
        let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let _ = tcsetpgrp(io::stdin(), own);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
    }
}

struct Child {
    pid: Pid,
    /// Readable when the child has ended.
    end: OwnedFd,
    output: Stream,
    errors: Stream,
}

/// A pipe from the child, until it is closed, and the bytes kept.
struct Stream {
    from: Option<PipeReader>,
    kept: Vec<u8>,
}

impl Child {
    /// Starts a shell in a process group of its own, without the blocked signals of this process.
    fn start(line: &str, variables: &[(String, String)]) -> io::Result<Self> {
        let (output, to_output) = io::pipe()?;
        let (errors, to_errors) = io::pipe()?;
        let nothing = File::open("/dev/null")?;
        let mut files = PosixSpawnFileActions::init()?;
        for (from, to) in [(nothing.as_raw_fd(), 0), (to_output.as_raw_fd(), 1), (to_errors.as_raw_fd(), 2)] {
            files.add_dup2(from, to)?;
        }
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_flags(
            PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
                | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
                | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
        )?;
        attributes.set_pgroup(Pid::from_raw(0))?;
        // After Ctrl-Z, nothing would continue the shell.
        attributes.set_sigmask(&SigSet::from(Signal::SIGTSTP))?;
        // Rust ignores SIGPIPE.
        attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
        let words = ["sh", "-c", line].map(CString::new);
        let words = words.into_iter().collect::<Result<Vec<_>, _>>()?;
        let pid = posix_spawn(SHELL, &files, &attributes, &words, &environment(variables)?)?;
        let child = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        let end = pidfd_open(child, PidfdFlags::empty())?;
        Ok(Self { pid, end, output: Stream::new(output)?, errors: Stream::new(errors)? })
    }

    /// Waits for output, a signal, the shell's end, or this time. Returns whether the shell has ended.
    fn wait(&mut self, signals: &Signals, until: Option<Instant>) -> io::Result<bool> {
        let mut sources = vec![
            PollFd::new(self.end.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let pipes = [&self.output, &self.errors].into_iter().filter_map(|stream| stream.from.as_ref());
        sources.extend(pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        match poll(&mut sources, until.map_or(PollTimeout::NONE, poll_timeout)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = sources[0].any().unwrap_or(false);
        drop(sources);
        self.output.read();
        self.errors.read();
        Ok(has_ended)
    }

    fn kill(&self) {
        // The shell may have ended meanwhile; until it is waited for, its process id is not reused.
        let _ = killpg(self.pid, Signal::SIGKILL);
    }

    /// Returns how the shell ended; `None` if a signal has ended it.
    fn ended(mut self) -> Option<Ended> {
        // Limited, as a process left behind by the shell may keep writing.
        for _ in 0..PIECES {
            let has_read = [self.output.read(), self.errors.read()].contains(&true);
            if !has_read {
                break;
            }
        }
        let status = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
        let is_success = matches!(status, Ok(WaitStatus::Exited(_, 0)));
        let is_whole = !matches!(status, Ok(WaitStatus::Signaled(..)));
        is_whole.then_some(Ended { is_success, output: self.output.kept, errors: self.errors.kept })
    }
}

impl Stream {
    fn new(from: PipeReader) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok(Self { from: Some(from), kept: Vec::new() })
    }

    /// Reads some of the available bytes and drops excess ones. Returns whether there were any.
    fn read(&mut self) -> bool {
        let mut buffer = [0; KEPT];
        match self.from.as_mut().map(|from| from.read(&mut buffer)) {
            Some(Ok(count @ 1..)) => {
                let room = KEPT.saturating_sub(self.kept.len());
                self.kept.extend_from_slice(&buffer[..count.min(room)]);
                return true;
            }
            Some(Err(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Some(Ok(0) | Err(_)) | None => self.from = None,
        }
        false
    }
}

/// Returns the variables of this process, overridden by the given ones.
fn environment(variables: &[(String, String)]) -> io::Result<Vec<CString>> {
    let own =
        std::env::vars_os().filter(|(name, _)| variables.iter().all(|(given, _)| name != given.as_str()));
    let given = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let pair = |(name, value): (OsString, OsString)| {
        CString::new([name.into_vec(), b"=".to_vec(), value.into_vec()].concat()).map_err(io::Error::from)
    };
    own.chain(given).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn shell_output_is_captured_up_to_limit_and_child_signals_are_unblocked() {
        let signals = Signals::take(&[Signal::SIGUSR2]).unwrap();
        let run = |line: &str| {
            let variables = [("WHERE".to_owned(), "here".to_owned())];
            shell(line, &variables, |_| true, &signals).unwrap().unwrap()
        };
        let ended = run("echo $WHERE; echo trouble >&2; exit 3");
        assert_eq!(
            (ended.is_success, &ended.output[..], &ended.errors[..]),
            (false, &b"here\n"[..], &b"trouble\n"[..])
        );
        assert!(run("true").is_success);
        let flood = run("yes | head -c 1000000");
        assert_eq!(flood.output.len(), KEPT);
        // The shell would survive if it had inherited the blocked signal.
        assert!(shell("kill -USR2 $$; echo alive", &[], |_| true, &signals).unwrap().is_none());
    }

    #[test]
    fn signal_kills_shell_and_its_descendants() {
        let signals = Signals::take(&[Signal::SIGUSR1]).unwrap();
        // The signal is blocked only in this thread.
        raise(Signal::SIGUSR1).unwrap();
        let line = "trap '' TERM INT; cd $(exec sleep 1000)";
        let mut caught = Vec::new();
        let ended = shell(
            line,
            &[],
            |signal| {
                caught.push(signal.signal);
                true
            },
            &signals,
        )
        .unwrap();
        assert!(ended.is_none());
        assert_eq!(caught, [Signal::SIGUSR1]);
    }
}
