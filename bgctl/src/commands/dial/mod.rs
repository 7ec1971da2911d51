//! `dial`: joins standard input and output to the daemon's socket, for a `bgctl -H` on another machine; or to the
//! socket of a remote daemon, for a daemon here.

mod streams;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread;

use self::streams::Borrowed;
use crate::cli::DialArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::sleep;

/// Number of bytes carried at once.
const PIECE: usize = 64 * 1024;

/// Carries bytes until the daemon closes the connection, or the reader of standard output is gone. The end of standard
/// input alone is passed on, so that requests already sent are still answered; `-H` can't distinguish it from the end
/// of its own process, and never closes only one side.
pub fn run(args: &DialArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.check_config {
        return context.link.check_config().map(|()| Code::OK);
    }
    if let Some(token) = &args.lend {
        return streams::lend(token, context);
    }
    let borrowed = args.borrow.as_deref().map(Borrowed::of).transpose()?;
    // The streams are lent for as long as this connection is open.
    let (borrowed, _lender) =
        borrowed.map_or((None, None), |(borrowed, lender)| (Some(borrowed), Some(lender)));
    let failed = |error: io::Error| Failure::io("can't join the daemon's socket", &error);
    let far = context.link.host().cloned().map(|host| context.link.dial_alone(&host)).transpose()?;
    let socket = match &far {
        Some(bridge) => bridge.stream.as_fd().try_clone_to_owned(),
        None => context.link.client()?.as_fd().try_clone_to_owned(),
    };
    let socket = UnixStream::from(socket.map_err(failed)?);
    // The client's timeouts are for its own calls; the remote client has others.
    socket.set_read_timeout(None).and_then(|()| socket.set_write_timeout(None)).map_err(failed)?;
    let mut input = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?));
    let hangs_up = args.hang_up;
    let upstream = socket.try_clone().map_err(failed)?;
    thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || {
            // However the input ends, no more will arrive.
            let _ = match borrowed {
                Some(borrowed) => borrowed.forward_with_first_submit(&mut input, &upstream),
                None => Ok(()),
            }
            .map(|()| carry(input, &upstream, || Ok(())));
            let _ = upstream.shutdown(if hangs_up { Shutdown::Both } else { Shutdown::Write });
        })
        .map_err(failed)?;
    let output = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
    // Detects that the reader has gone even with nothing to write: the daemon may send no answer for days.
    carry(&socket, &output, || sleep([Some(socket.as_fd())], None).map(drop))?;
    Ok(Code::OK)
}

/// Passes on bytes as they arrive, until there are no more. The kernel's own copying would wait for more before passing
/// them on.
///
/// # Errors
/// Those of `wait`, which is called before each read; the writer accepts no more.
fn carry(
    mut from: impl Read,
    mut to: impl Write,
    wait: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE];
    loop {
        wait()?;
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The peer has closed the connection with data unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(Failure::io("can't read from the connection", &error)),
        }
    }
}
