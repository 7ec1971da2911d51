//! The first answer from a remote machine; text that its shell prints before is skipped. Independent of ssh.

use std::io::{self, Read, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bgd_shared::error::RpcError;
use bgd_shared::message::Incoming;
use bgd_shared::request::{Hello, HelloParams, HelloResult, Method as _};
use nix::poll::PollFlags;

use super::wait::becomes_ready;

/// Maximum number of bytes that a remote shell may print before the daemon answers.
pub const BANNER_BYTES: usize = 64 * 1024;

/// Why there is no greeting.
pub enum GreetingError {
    /// ssh, or the program that it ran, has ended.
    Closed,
    /// Nothing arrived in time.
    Late,
    /// Endless text arrives from something other than a daemon.
    Banner,
    /// The daemon refused the connection.
    Refused(Box<RpcError>),
    /// The daemon speaks another version of the protocol.
    Protocol(Box<HelloResult>),
}

/// Sends `hello`, and waits for the answer. Text that a shell's start-up files print before it is skipped.
pub fn greet(stream: &UnixStream, deadline: Instant) -> Result<HelloResult, GreetingError> {
    let line = bgd_shared::message::request_line(0, Hello::NAME, &HelloParams::default());
    // The line fits into the buffer: the socket is new.
    (&mut &*stream).write_all(&line).map_err(|_| GreetingError::Closed)?;
    let mut bytes = Vec::new();
    let mut skipped = 0;
    loop {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            match answer(&line) {
                Some(answer) => return answer,
                None => skipped += line.len(),
            }
        }
        if skipped + bytes.len() > BANNER_BYTES {
            return Err(GreetingError::Banner);
        }
        read_more(stream, deadline, &mut bytes)?;
    }
}

/// The beginning of every answer of a daemon.
const ANSWER: &[u8] = br#"{"jsonrpc""#;

/// Parses the answer to the greeting; `None` if the line is not one.
fn answer(line: &[u8]) -> Option<Result<HelloResult, GreetingError>> {
    // A shell's start-up files may have printed text on the same line before the answer.
    let begin = line.windows(ANSWER.len()).position(|bytes| bytes == ANSWER)?;
    let incoming: Incoming<'_> = serde_json::from_slice(&line[begin..]).ok()?;
    if let Some(error) = incoming.error {
        return Some(Err(GreetingError::Refused(Box::new(error))));
    }
    serde_json::from_str(incoming.result?.get()).ok().map(Ok)
}

pub fn read_more(
    mut stream: impl Read + AsFd,
    deadline: Instant,
    bytes: &mut Vec<u8>,
) -> Result<(), GreetingError> {
    match becomes_ready(stream.as_fd(), PollFlags::POLLIN, deadline) {
        Ok(true) => {}
        Ok(false) => return Err(GreetingError::Late),
        Err(_) => return Err(GreetingError::Closed),
    }
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => Err(GreetingError::Closed),
        Ok(count) => {
            bytes.extend_from_slice(&buffer[..count]);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(_) => Err(GreetingError::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn r140_banner_before_hello_is_skipped_up_to_a_limit() {
        let talk = |text: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let text = text.to_vec();
            let shell = std::thread::spawn(move || {
                let _ = theirs.write_all(&text);
                let _ = theirs.shutdown(std::net::Shutdown::Write);
                let _ = io::copy(&mut theirs, &mut io::sink());
            });
            let outcome = greet(&ours, Instant::now() + Duration::from_mins(1));
            drop(ours);
            shell.join().unwrap();
            outcome
        };
        let hello = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"full","data":{"kind":"too_many_connections"}}}"#;
        let text = format!("Welcome!\n{{\"not\": 1}}\n{{\n$ {hello}\n");
        assert!(
            matches!(talk(text.as_bytes()), Err(GreetingError::Refused(error)) if error.message == "full")
        );
        assert!(matches!(talk(b"Welcome!\n"), Err(GreetingError::Closed)));
        assert!(matches!(talk(&vec![b'y'; BANNER_BYTES + 1]), Err(GreetingError::Banner)));
        assert!(matches!(talk("y\n".repeat(BANNER_BYTES).as_bytes()), Err(GreetingError::Banner)));
    }
}
