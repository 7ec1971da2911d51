//! The standard streams of a foreground job on a remote machine (R141). A separate ssh carries them beside the
//! connection that owns the job, so the kernel and ssh slow down a writer that is faster than its reader, and nothing
//! is kept in memory. All bytes pass through this process: ssh would leave the user's own files non-blocking.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bgd_shared::mutex::Mutex;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::bounded;
use super::children::{self, SHORT};
use super::greeting::{BANNER_BYTES, GreetingError, read_more};
use super::ssh::{self, Dial, ERRORS_BYTES, LENT, Lender};
use crate::failure::Failure;

/// Number of bytes carried at once.
const PIECE: usize = 64 * 1024;

/// The standard streams of this process that a job gets.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub input: bool,
    pub output: bool,
    pub errors: bool,
}

/// Streams that wait for a job, or that are being carried.
pub struct Streams {
    ssh: Child,
    ends: Ends,
    given: Given,
    /// Closed once all output of the job has been passed on.
    done: Option<PipeReader>,
    lost: Lost,
}

/// This process's ends of ssh's pipes.
struct Ends {
    input: Option<PipeWriter>,
    output: Option<PipeReader>,
    errors: Option<PipeReader>,
}

impl Streams {
    /// Starts the ssh that carries the streams.
    ///
    /// # Errors
    /// As for [`Dial::connect`].
    pub fn open(dial: &Dial<'_>, token: &str, given: Given) -> Result<Self, Failure> {
        let (ssh, ends) = dial.lend(|| lender(token, given), greet)?;
        Ok(Self { ssh, ends, given, done: None, lost: Lost::default() })
    }

    /// Starts carrying. Signals that this process handles must be blocked by now, as the threads inherit the mask.
    ///
    /// # Errors
    /// A system error.
    pub fn begin(&mut self) -> Result<(), Failure> {
        let (done, writer) = io::pipe().map_err(failed)?;
        if let Some(to) = self.ends.input.take() {
            let from = own(io::stdin().as_fd())?;
            carry("can't read standard input", from, OwnedFd::from(to), None, &self.lost)?;
        }
        // A pipe that is not carried stays open: ssh may write a message to it.
        if self.given.output
            && let Some(from) = self.ends.output.take()
        {
            let (to, done) = (own(io::stdout().as_fd())?, writer.try_clone().map_err(failed)?);
            carry("can't write to standard output", from, to, Some(done), &self.lost)?;
        }
        if self.given.errors
            && let Some(from) = self.ends.errors.take()
        {
            let to = own(io::stderr().as_fd())?;
            carry("can't write to standard error", from, to, Some(writer), &self.lost)?;
        }
        self.done = Some(done);
        Ok(())
    }

    /// Returns a descriptor that becomes readable once all output of the job has been passed on, and all writers are
    /// gone.
    pub fn done(&self) -> Option<BorrowedFd<'_>> {
        self.done.as_ref().map(PipeReader::as_fd)
    }

    /// Returns why not everything was passed on, if data is known to be lost.
    pub fn take_lost(&self) -> Option<Failure> {
        self.lost.lock().take()
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        children::end(&mut self.ssh);
    }
}

fn failed(error: impl Into<io::Error>) -> Failure {
    Failure::io("can't carry the standard streams", &error.into())
}

fn own(stream: BorrowedFd<'_>) -> Result<File, Failure> {
    Ok(stream.try_clone_to_owned().map_err(failed)?.into())
}

/// Creates ssh's pipes.
fn lender(token: &str, given: Given) -> Result<(Lender<'_>, Ends), Failure> {
    let (input, ours_in) = io::pipe().map_err(failed)?;
    let (ours_out, output) = io::pipe().map_err(failed)?;
    let (ours_err, errors) = io::pipe().map_err(failed)?;
    let input = if given.input { input.into() } else { Stdio::null() };
    let lender = Lender { token, input, output: output.into(), errors: errors.into() };
    let ends = Ends { input: given.input.then_some(ours_in), output: Some(ours_out), errors: Some(ours_err) };
    Ok((lender, ends))
}

/// Waits for the line after which the job's own output begins. Text that a shell prints before it is skipped.
fn greet(ends: &mut Ends, deadline: Instant) -> Result<(), (GreetingError, String)> {
    let (Some(output), Some(errors)) = (&mut ends.output, &mut ends.errors) else { return Ok(()) };
    let line = format!("{LENT}\n").into_bytes();
    let mut bytes = Vec::new();
    while !bytes.ends_with(&line) {
        if bytes.len() > BANNER_BYTES {
            return Err((GreetingError::Banner, String::new()));
        }
        if let Err(trouble) = read_more(&mut *output, deadline, &mut bytes) {
            let most = usize::try_from(ERRORS_BYTES).unwrap_or(usize::MAX);
            let said = match trouble {
                GreetingError::Closed => bounded::read_to_end(errors, most, SHORT).ok().flatten(),
                GreetingError::Late
                | GreetingError::Banner
                | GreetingError::Refused(_)
                | GreetingError::Protocol(_) => None,
            };
            return Err((trouble, ssh::text(&said.unwrap_or_default())));
        }
    }
    Ok(())
}

/// Why not everything was passed on.
type Lost = Arc<Mutex<Option<Failure>>>;

/// Passes bytes on until either side is closed, and then closes `done`. An error is recorded as `what`.
fn carry(
    what: &'static str,
    from: impl Into<OwnedFd>,
    to: impl Into<OwnedFd>,
    done: Option<PipeWriter>,
    lost: &Lost,
) -> Result<(), Failure> {
    let (from, to) = (File::from(from.into()), File::from(to.into()));
    let lost = Arc::clone(lost);
    let carries = move || {
        if let Err(error) = pass_on(&from, &to) {
            let mut lost = lost.lock();
            lost.get_or_insert_with(|| Failure::io(what, &error));
        }
        // A caller that waits for the end must find everything written and closed.
        drop((from, to));
        drop(done);
    };
    thread::Builder::new().name("carry".to_owned()).spawn(carries).map(drop).map_err(failed)
}

fn pass_on(mut from: &File, mut to: &File) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) => {
                until_ready(error, from, PollFlags::POLLIN)?;
                continue;
            }
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            match to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => until_ready(error, to, PollFlags::POLLOUT)?,
            }
        }
    }
}

/// Waits for a stream that another process sharing the open file has made non-blocking. Returns other errors.
fn until_ready(error: io::Error, file: &File, wanted: PollFlags) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            match poll(&mut [PollFd::new(file.as_fd(), wanted)], PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }
        _ => Err(error),
    }
}
