//! The standard streams of a job for a `bgctl -H` on another machine. They arrive by a separate ssh, whose `dial` lends
//! them to the `dial` that submits the job: only a process on this machine can pass descriptors to the daemon.

use std::fs::File;
use std::io::{self, BufRead, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use bgd_shared::fds;
use bgd_shared::limits::FRAME_BYTES_MAX;
use bgd_shared::request::{self, Method as _, Stdin, TaskSubmit};
use nix::unistd::Uid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::Deserialize;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{LENT, sleep};

/// How long the lender waits for the borrower to connect, and the borrower for the streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of standard streams.
const COUNT: usize = 3;

/// Returns the address at which the streams are lent. It has no file that could be left behind; both sides check the
/// other's user.
fn place(token: &str) -> Result<SocketAddr, Failure> {
    SocketAddr::from_abstract_name(format!("bgctl-streams-{token}")).map_err(failed)
}

fn failed(error: impl Into<io::Error>) -> Failure {
    Failure::io("can't pass on the standard streams", &error.into())
}

fn is_ours(peer: &UnixStream) -> bool {
    fds::peer_uid(peer).is_ok_and(|uid| uid == Uid::effective().as_raw())
}

/// Lends the standard streams of this process to the `dial` that names the token, until that `dial` ends.
pub fn lend(token: &str, context: &mut Context) -> Result<Code, Failure> {
    let listener = UnixListener::bind_addr(&place(token)?).map_err(failed)?;
    context.print(&format!("{LENT}\n"))?;
    context.flush()?;
    let until = Instant::now() + PATIENCE;
    let mut borrower = loop {
        if sleep([Some(listener.as_fd())], Some(until))? == [false] {
            return Err(lost());
        }
        let (peer, _) = listener.accept().map_err(failed)?;
        if is_ours(&peer) {
            break peer;
        }
    };
    drop(listener);
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    fds::send(&borrower, b"\n", &[input.as_fd(), output.as_fd(), errors.as_fd()]).map_err(failed)?;
    // The processes at the other ends must see the end of the job, not that of this process.
    let nothing = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let let_go =
        dup2_stdin(&nothing).and_then(|()| dup2_stdout(&nothing)).and_then(|()| dup2_stderr(&nothing));
    let_go.map_err(failed)?;
    // The borrower sends nothing, and closes this connection when its own connection ends.
    let _ = borrower.read(&mut [0]);
    Ok(Code::OK)
}

/// Streams to pass to the daemon with the first submit.
pub struct Borrowed([OwnedFd; COUNT]);

/// The parts of a request that this program needs.
#[derive(Deserialize)]
struct Request {
    method: String,
    #[serde(default)]
    params: Option<Params>,
}

#[derive(Deserialize)]
struct Params {
    stdin: Option<Stdin>,
    stdout: Option<request::Given>,
    stderr: Option<request::Given>,
}

impl Borrowed {
    /// Borrows the streams from the `dial` that lends them under this token; also returns the connection to that
    /// `dial`, which must be kept open.
    ///
    /// # Errors
    /// There is no such `dial`.
    pub fn of(token: &str) -> Result<(Self, UnixStream), Failure> {
        let lender = UnixStream::connect_addr(&place(token)?).map_err(|_| lost())?;
        lender.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        if !is_ours(&lender) {
            return Err(lost());
        }
        let (_, streams) = fds::receive(&lender, &mut [0]).map_err(failed)?;
        Ok((Self(streams.try_into().map_err(|_| lost())?), lender))
    }

    /// Passes on requests up to and including the first submit, which is sent with the streams that it names.
    ///
    /// # Errors
    /// Reading or writing fails.
    pub fn forward_with_first_submit(self, from: &mut impl BufRead, mut to: &UnixStream) -> io::Result<()> {
        loop {
            let mut line = Vec::new();
            // The daemon refuses what is longer than its own limit, which may be any up to this one.
            let most = u64::try_from(FRAME_BYTES_MAX).unwrap_or(u64::MAX);
            if from.take(most).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let request: Option<Request> = serde_json::from_slice(&line).ok();
            let Some(Request { params, .. }) = request.filter(|request| request.method == TaskSubmit::NAME)
            else {
                to.write_all(&line)?;
                continue;
            };
            let [input, output, errors] = &self.0;
            let named = params.as_ref().map_or([false; COUNT], |params| {
                [params.stdin == Some(Stdin::Fd), params.stdout.is_some(), params.stderr.is_some()]
            });
            let streams = [input, output, errors].into_iter().zip(named).filter(|(_, is_named)| *is_named);
            let streams: Vec<_> = streams.map(|(stream, _)| stream.as_fd()).collect();
            let sent = fds::send(to, &line, &streams)?;
            return to.write_all(&line[sent..]);
        }
    }
}

fn lost() -> Failure {
    Failure::new(Code::NO_DAEMON, "connection_lost", "the connection for the standard streams is lost")
}
