//! Hand-overs: another program's description of a process, and the descriptors sent with it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};

use bgd::exec::handed::Handoff;
use bgd::exec::handed::check::{Leaders, check};
use bgd::wire::calls::Body;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::limits::FRAME_BYTES;
use bgd_shared::message::{error_line, parse_request};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The first bytes select the descriptors; the rest is the request.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    (&bytes[..end.min(8)], &bytes[(end + 1).min(bytes.len())..])
}

/// Returns a descriptor of a kind. Pipes are those of `probe`, so that closing them can be observed.
fn descriptor(kind: u8, probe: &PipeReader) -> OwnedFd {
    match kind % 9 {
        0 => pidfd_open(Pid::from_raw(1).unwrap(), PidfdFlags::empty()).unwrap(),
        1 => pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap(),
        2 | 3 => probe.try_clone().unwrap().into(),
        4 => UnixStream::pair().unwrap().0.into(),
        5 => UnixDatagram::unbound().unwrap().into(),
        6 => TcpListener::bind("127.0.0.1:0").unwrap().into(),
        7 => File::open("/dev/null").unwrap().into(),
        _ => File::open("/").unwrap().into(),
    }
}

fn is_closed(mut writer: PipeWriter) -> bool {
    writer.write(b"x").is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_one_line(error: &RpcError) {
    let line = error_line(None, error);
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
    assert!(!error.message.is_empty());
}

/// A hand-over is refused with an error, or it belongs to the process that it names; afterwards every descriptor is
/// closed.
pub fn handoff(bytes: &[u8]) {
    let (kinds, line) = split(bytes);
    let (probe, writer) = io::pipe().unwrap();
    let fds = kinds.iter().map(|kind| descriptor(*kind, &probe)).collect();
    drop(probe);
    if let Ok(request) = parse_request(line) {
        match Body::read(&request, fds, None) {
            Body::Handoff(handoff) => checked(*handoff),
            Body::Refused(error) => is_one_line(&error),
            other => drop(other),
        }
    } else {
        drop(fds);
    }
    assert!(is_closed(writer), "a descriptor is left");
}

fn checked(handoff: Handoff) {
    let (pid, streams) = (handoff.params.pid, handoff.streams.len());
    match check(handoff, None, &Leaders::default()) {
        Ok((checked, _)) => assert_eq!(checked.pid, pid, "with {streams} streams"),
        Err(error) => {
            is_one_line(&error);
            assert_ne!(error.data.kind, ErrorKind::MethodNotFound);
        }
    }
}

/// A request of any method is refused with an error, or reserves no more room for its response than a client has.
pub fn call(line: &[u8]) {
    let Ok(request) = parse_request(line) else { return };
    let body = Body::read(&request, Vec::new(), None);
    match &body {
        Body::Refused(error) => is_one_line(error),
        body => assert!(body.reserve() <= 16 * FRAME_BYTES, "{}", body.reserve()),
    }
}

/// Reports whether this is a hand-over that gets as far as the inspection of the process.
pub fn is_offered(bytes: &[u8]) -> bool {
    let (kinds, line) = split(bytes);
    let (probe, _writer) = io::pipe().unwrap();
    let fds = kinds.iter().map(|kind| descriptor(*kind, &probe)).collect();
    matches!(Body::read(&parse_request(line).unwrap(), fds, None), Body::Handoff(_))
}
