//! The parts of drains that must survive a killed daemon: copies of their descriptors, and pipes that hold the bytes in
//! transit.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::fcntl::OFlag;

/// A pipe through which a socket is drained, so that every byte is in the kernel at any moment, and none is lost with a
/// killed daemon.
#[derive(Debug)]
pub struct Via {
    /// The read end.
    pub out: OwnedFd,
    /// The write end.
    pub into: OwnedFd,
}

impl Via {
    /// Creates the pipe.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (out, into) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        Ok(Self { out, into })
    }

    /// Completes the pipe of this read end.
    ///
    /// # Errors
    /// No descriptor is left, or there is no `/proc`.
    pub fn of_read_end(out: OwnedFd) -> io::Result<Self> {
        let into = File::options().write(true).open(format!("/proc/self/fd/{}", out.as_raw_fd()))?.into();
        Ok(Self { out, into })
    }

    fn copy(&self) -> io::Result<Self> {
        Ok(Self { out: self.out.try_clone()?, into: self.into.try_clone()? })
    }
}

/// Copies of the descriptors of a drain, for the daemon that continues it if this one is killed.
#[derive(Debug)]
pub struct FlowCopy {
    pub source: OwnedFd,
    /// Whether `source` is a pipe.
    pub is_pipe: bool,
    /// The file; `None` if the output is discarded.
    pub file: Option<OwnedFd>,
    /// The pipe that a socket is drained through.
    pub via: Option<Via>,
}

impl FlowCopy {
    /// Copies the descriptors of a drain.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of(source: &OwnedFd, is_pipe: bool, file: Option<&File>, via: Option<&Via>) -> io::Result<Self> {
        Ok(Self {
            source: source.try_clone()?,
            is_pipe,
            file: file.map(File::try_clone).transpose()?.map(OwnedFd::from),
            via: via.map(Via::copy).transpose()?,
        })
    }
}
