//! Starts a command, shows its output for a while, and then hands it over to bgd while it runs.
//!
//! `handoff LINES COMMAND [ARG...]` shows the first LINES lines itself; `bgctl output ID` shows the rest.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::{Child, Command, ExitCode, Stdio};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::handoff::{hand_over_as, params};
use bgd_shared::request::{HandoffParams, HandoffStream, ListParams, TaskList};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::Status;
use bgd_shared::transport::ConnectError;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let lines: usize = args.next().ok_or("how many lines?")?.parse()?;
    let command: Vec<String> = args.collect();
    let program = command.first().ok_or("which command?")?;

    // One pipe for stdout and stderr, so that neither keeps writing to this terminal.
    let (pipe, end) = std::io::pipe()?;
    let mut child = Command::new(program).args(&command[1..]).stdout(end.try_clone()?).stderr(end).spawn()?;
    let mut out = BufReader::new(pipe);
    let mut screen = std::io::stdout().lock();
    for _ in 0..lines {
        let mut line = Vec::new();
        out.read_until(b'\n', &mut line)?;
        screen.write_all(&line)?;
    }
    // Data that was read ahead is ours to show; the daemon continues with the rest of the pipe.
    screen.write_all(out.buffer())?;

    let mut pipe = out.into_inner();
    match hand_over(&child, &command.join(" "), pipe.as_fd()) {
        Ok(message) => {
            writeln!(screen, "{message}")?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) if error.kind() == Some(ErrorKind::AlreadyFinished) => {}
        Err(error) => eprintln!("{error}"),
    }
    if is_handed(&child) {
        return Ok(ExitCode::SUCCESS);
    }
    // It ended first, or there was an error: the rest of its output and its exit code are ours.
    std::io::copy(&mut pipe, &mut screen)?;
    Ok(u8::try_from(child.wait()?.code().unwrap_or(1))?.into())
}

/// Gives the child to the daemon, and returns the sentence for the user.
fn hand_over(child: &Child, description: &str, pipe: BorrowedFd<'_>) -> Result<String, ClientError> {
    // If this fails, connecting says why.
    let _ = Command::new("bgctl").args(["daemon", "start"]).stdout(Stdio::null()).status();
    let socket = SocketPath::from_env().map_err(ConnectError::from)?;
    let mut daemon = Client::connect(&socket)?;
    let params = HandoffParams { session: session(), ..params(child, description) };
    let given = hand_over_as(&mut daemon, child, params, &[(HandoffStream::Stdout, pipe)])?;
    Ok(given.message)
}

/// Asks the daemon whether it has the child, for when its answer may be lost.
fn is_handed(child: &Child) -> bool {
    let params = ListParams { status: vec![Status::Running], ..ListParams::default() };
    let daemon = SocketPath::from_env().ok().and_then(|socket| Client::connect(&socket).ok());
    let listed = daemon.and_then(|mut daemon| daemon.call::<TaskList>(&params).ok());
    listed.is_some_and(|listed| listed.tasks.iter().any(|task| task.pid == Some(child.id().cast_signed())))
}

/// Returns the key of this terminal's session, so that the end is reported here; `None` without a terminal.
fn session() -> Option<String> {
    let key = Command::new("bgctl").args(["session", "key"]).stderr(Stdio::null()).output().ok()?.stdout;
    let key = String::from_utf8(key).ok()?.trim().to_owned();
    Some(key).filter(|key| !key.is_empty())
}
