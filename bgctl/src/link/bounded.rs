//! Waits with a timeout, for starting a daemon.

use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::PollFlags;

use super::wait::becomes_ready;

/// Reads at most `bytes` bytes until the other end is closed. `None` if it was not closed in time.
///
/// # Errors
/// A system error.
pub fn read_to_end(reader: &mut PipeReader, bytes: usize, at_most: Duration) -> io::Result<Option<Vec<u8>>> {
    let end = Instant::now() + at_most;
    let mut words = vec![0; bytes];
    let mut count = 0;
    while count < bytes {
        if !becomes_ready(reader.as_fd(), PollFlags::POLLIN, end)? {
            return Ok(None);
        }
        match reader.read(&mut words[count..])? {
            0 => break,
            more => count += more,
        }
    }
    words.truncate(count);
    Ok(Some(words))
}

/// Locks a file. `None` if another process held the lock until the timeout.
///
/// # Errors
/// A system error.
pub fn lock(file: File, at_most: Duration) -> io::Result<Option<Flock<File>>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(Some(lock)),
        Err((file, Errno::EAGAIN | Errno::EINTR)) => file,
        Err((_, error)) => return Err(error.into()),
    };
    // The kernel has no lock call with a timeout. If the thread gets the lock too late, the lock is dropped, because
    // the receiver is gone.
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("lock".to_owned()).spawn(move || {
        let mut file = file;
        loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(lock) => return drop(sender.send(Ok(lock))),
                Err((same, Errno::EINTR)) => file = same,
                Err((_, error)) => return drop(sender.send(Err(io::Error::from(error)))),
            }
        }
    })?;
    match receiver.recv_timeout(at_most) {
        Ok(outcome) => outcome.map(Some),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(io::Error::other("the waiting thread has ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn read_without_eof_gives_up_after_timeout() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"rea").unwrap();
        assert_eq!(read_to_end(&mut reader, 100, Duration::from_millis(1)).unwrap(), None);
        writer.write_all(b"dy\n").unwrap();
        drop(writer);
        assert_eq!(read_to_end(&mut reader, 100, Duration::from_mins(1)).unwrap().unwrap(), b"dy\n");
    }

    #[test]
    fn lock_is_waited_for_up_to_timeout() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let first = lock(open(), Duration::ZERO).unwrap().unwrap();
        assert!(lock(open(), Duration::from_millis(1)).unwrap().is_none());
        let waits = thread::spawn({
            let file = open();
            move || lock(file, Duration::from_mins(1)).unwrap().is_some()
        });
        drop(first);
        assert!(waits.join().unwrap());
    }
}
