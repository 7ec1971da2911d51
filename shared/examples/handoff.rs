//! Starts a command, shows its output for a while, and then hands it over to bgd while it runs.
//!
//! `handoff LINES COMMAND [ARG...]` shows the first LINES lines itself; `bgctl output ID` shows the rest.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, ExitCode, Stdio};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::handoff::{hand_over_as, params};
use bgd_shared::request::{HandoffParams, HandoffStream};
use bgd_shared::socket::SocketPath;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let lines: usize = args.next().ok_or("how many lines?")?.parse()?;
    let command: Vec<String> = args.collect();
    let program = command.first().ok_or("which command?")?;
    Command::new("bgctl").args(["daemon", "start"]).stdout(Stdio::null()).status()?;
    let mut daemon = Client::connect(&SocketPath::from_env()?)?;

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
    let streams = [(HandoffStream::Stdout, pipe.as_fd())];
    let params = HandoffParams { session: session(), ..params(&child, &command.join(" ")) };
    match hand_over_as(&mut daemon, &child, params, &streams) {
        Ok(given) => {
            writeln!(screen, "{}", given.message)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::AlreadyFinished => {
            // The command ended first: the rest of its output and its exit code are ours.
            std::io::copy(&mut pipe, &mut screen)?;
            Ok(u8::try_from(child.wait()?.code().unwrap_or(1))?.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the key of this terminal's session, so that the end is reported here; `None` without a terminal.
fn session() -> Option<String> {
    let key = Command::new("bgctl").args(["session", "key"]).stderr(Stdio::null()).output().ok()?.stdout;
    let key = String::from_utf8(key).ok()?.trim().to_owned();
    Some(key).filter(|key| !key.is_empty())
}
