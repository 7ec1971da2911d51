//! What must survive a killed daemon of drains: copies of their descriptors, and pipes that keep what is on its way.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;

/// A pipe through which a socket is drained, so that each byte is in the kernel at every moment, and a killed daemon takes
/// none along.
#[derive(Debug)]
pub struct Via {
    /// Where the bytes come out.
    pub out: OwnedFd,
    /// Where they go in.
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

    fn copy(&self) -> io::Result<Self> {
        Ok(Self { out: self.out.try_clone()?, into: self.into.try_clone()? })
    }
}

/// Copies of the descriptors of a drain, for whoever goes on with it when the daemon is killed.
#[derive(Debug)]
pub struct FlowCopy {
    /// Where the bytes come from.
    pub source: OwnedFd,
    /// Whether that is a pipe.
    pub is_pipe: bool,
    /// The file; `None` if the output is discarded.
    pub file: Option<OwnedFd>,
    /// What a socket is drained through.
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
