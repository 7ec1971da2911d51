//! Standard output of any kind: a terminal, or a file or pipe that may be shared with other programs.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use super::attachment::Output;
use super::screen::Screen;
use crate::failure::Failure;

/// Number of bytes to queue before no more output is accepted from the daemon.
const PENDING_BYTES: usize = 64 * 1024;

/// Number of bytes that a pipe accepts without blocking once `poll` reports it writable (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;

/// Standard output.
#[derive(Debug)]
pub enum Sink {
    Screen(Screen),
    Plain(Plain),
}

/// Standard output that is not a terminal. Its open file description may be shared with other programs, so its flags
/// are not changed.
#[derive(Debug)]
pub struct Plain {
    out: File,
    pending: Vec<u8>,
}

impl Plain {
    fn over(out: File) -> Self {
        Self { out, pending: Vec::new() }
    }

    fn write(&mut self) -> io::Result<()> {
        let some = &self.pending[..self.pending.len().min(PIPE_BYTES)];
        match self.out.write(some) {
            Ok(0) if !some.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                self.pending.drain(..written);
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Sink {
    /// Opens standard output of this process.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open() -> Result<Self, Failure> {
        let out = io::stdout();
        if out.is_terminal() {
            return Screen::open().map(Self::Screen);
        }
        let file = out.as_fd().try_clone_to_owned();
        let file = file.map_err(|error| Failure::io("can't open standard output", &error))?;
        Ok(Self::Plain(Plain::over(file.into())))
    }

    pub fn is_screen(&self) -> bool {
        matches!(self, Self::Screen(_))
    }

    /// Reports whether more output may be queued.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Screen(screen) => screen.has_room(),
            Self::Plain(plain) => plain.pending.len() < PENDING_BYTES,
        }
    }

    /// Shows these bytes as soon as the reader accepts them.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn show(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            // Skip empty output, which would mark the screen as needing to be left.
            _ if bytes.is_empty() => Ok(()),
            Self::Screen(screen) => screen.show(bytes, None),
            Self::Plain(plain) => {
                plain.pending.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

impl Output for Sink {
    fn wants_write(&self) -> bool {
        match self {
            Self::Screen(screen) => screen.wants_write(),
            Self::Plain(plain) => !plain.pending.is_empty(),
        }
    }

    fn may_rest(&self) -> bool {
        !self.is_screen() || !self.wants_write()
    }

    fn write(&mut self) -> io::Result<()> {
        match self {
            Self::Screen(screen) => screen.write(),
            Self::Plain(plain) => plain.write(),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        match self {
            Self::Screen(screen) => screen.leave(),
            Self::Plain(_) => Ok(()),
        }
    }

    fn forget(&mut self) {
        match self {
            Self::Screen(screen) => screen.forget(),
            Self::Plain(plain) => plain.pending = Vec::new(),
        }
    }

    fn lost(&self, error: io::Error) -> Option<Failure> {
        (!self.is_screen()).then(|| error.into())
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Screen(screen) => screen.as_fd(),
            Self::Plain(plain) => plain.out.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::{Duration, Instant};

    use nix::poll::{PollFd, PollFlags, poll};

    use super::*;
    use crate::link::poll_timeout;

    #[test]
    fn pipe_sink_writes_every_byte_once_and_reports_broken_pipe() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut sink = Sink::Plain(Plain::over(std::os::fd::OwnedFd::from(writer).into()));
        let text: Vec<u8> = (0..=255).cycle().take(PENDING_BYTES).collect();
        sink.show(&text).unwrap();
        assert!(sink.wants_write() && !sink.has_room());
        let mut got = Vec::new();
        let mut buffer = [0; PIPE_BYTES];
        while sink.wants_write() {
            sink.write().unwrap();
            let count = reader.read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..count]);
        }
        assert!(got == text, "{} of {} bytes", got.len(), text.len());
        sink.leave().unwrap();
        assert!(!sink.wants_write(), "no byte of our own");
        drop(reader);
        // Children that other tests are starting have copies of the reading end for a moment.
        let until = Instant::now() + Duration::from_mins(1);
        let polled = poll(&mut [PollFd::new(sink.as_fd(), PollFlags::empty())], poll_timeout(until));
        assert_eq!(polled, Ok(1), "the pipe has a reader");
        sink.show(b"x").unwrap();
        assert_eq!(sink.write().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        sink.forget();
        assert!(!sink.wants_write());
    }
}
