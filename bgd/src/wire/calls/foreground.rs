//! `task.attach`, `task.detach`, `task.resize`, `task.handoff` and `task.exit`.

use std::os::fd::OwnedFd;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::request::{
    AttachParams, DetachParams, ExitParams, HandoffParams, HandoffStream, OriginKind, ResizeParams,
    TerminalSize,
};
use bgd_shared::show::count;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;

use super::body::Body;
use super::checks::{check_label, check_no_nul, check_required, check_size, check_tags, invalid};
use crate::core::Request;
use crate::exec::handed::Handoff;

pub fn attach(params: AttachParams) -> Result<Body, RpcError> {
    let size = match (params.rows, params.cols) {
        (None, None) => None,
        (Some(rows), Some(cols)) => Some(TerminalSize { rows, cols }),
        (Some(_), None) | (None, Some(_)) => {
            return Err(invalid("`rows` and `cols` go together: give both or none"));
        }
    };
    size.map_or(Ok(()), check_size)?;
    Ok(Body::Attach(params.id, size))
}

pub fn detach(params: DetachParams) -> Body {
    let DetachParams { id, background } = params;
    if background { Body::Core(Request::Detach { id }) } else { Body::Leave(id) }
}

pub fn resize(params: ResizeParams) -> Result<Body, RpcError> {
    let size = TerminalSize { rows: params.rows, cols: params.cols };
    check_size(size)?;
    Ok(Body::Resize(params.id, size))
}

pub fn handoff(params: HandoffParams, fds: Vec<OwnedFd>) -> Result<Body, RpcError> {
    match params.origin_kind {
        OriginKind::Tool => {}
        OriginKind::Direct => {
            let message = format!("process {} was started directly by the user", params.pid);
            return Err(RpcError::new(ErrorKind::NotBackgroundable, message)
                .hint("only processes started by a tool or an agent can be handed over"));
        }
    }
    if params.pid <= 1 {
        return Err(invalid(format!(
            "`pid` is {}, which is not a process that can be handed over",
            params.pid
        )));
    }
    if params.description.trim().is_empty() {
        return Err(invalid("`description` is blank: give a text for lists"));
    }
    check_required("description", &params.description)?;
    check_label("session", params.session.as_deref())?;
    check_label("channel", params.channel.as_deref())?;
    if let Some(terminal) = &params.terminal {
        check_required("terminal.path", &terminal.path)?;
    }
    check_tags(&params.tags)?;
    if params.argv.as_ref().is_some_and(|argv| argv.first().is_none_or(|word| word.as_bytes().is_empty())) {
        return Err(invalid("`argv` has no program").hint("omit it: the system knows the command"));
    }
    params.argv.iter().flatten().try_for_each(|text| check_no_nul("argv", text))?;
    if let Some(at) = params.started_at.filter(|at| *at > Timestamp::now()) {
        return Err(invalid(format!("`started_at` is {at}, which is in the future")));
    }
    check_kinds(&params.streams)?;
    let (wanted, received) = (params.streams.len() + 1, fds.len());
    if wanted != received {
        let received = count(received, "descriptor");
        let message = format!("the line came with {received}, but a pidfd and `streams` require {wanted}");
        return Err(
            invalid(message).hint("send them by SCM_RIGHTS with the first byte of the line, the pidfd first")
        );
    }
    let mut fds = fds.into_iter();
    let Some(pidfd) = fds.next() else { return Err(invalid("the line came without a pidfd")) };
    let streams = params.streams.iter().copied().zip(fds).collect();
    Ok(Body::Handoff(Box::new(Handoff { params, pidfd, streams })))
}

pub fn exit(params: ExitParams) -> Result<Body, RpcError> {
    let ExitParams { id, exit } = params;
    match &exit {
        Exit::Code(0..=255) | Exit::Signal(1..=64) => {}
        Exit::Code(code) => return Err(invalid(format!("`exit`: the code is {code}; it must be 0 to 255"))),
        Exit::Signal(signal) => {
            return Err(invalid(format!("`exit`: the signal is {signal}; it must be 1 to 64")));
        }
        Exit::Unknown(why) => check_required("exit.unknown", why)?,
    }
    Ok(Body::Exit(id, exit))
}

/// Checks whether these streams can be the outputs of one process.
fn check_kinds(streams: &[HandoffStream]) -> Result<(), RpcError> {
    let alone = |stream: &HandoffStream| matches!(stream, HandoffStream::Pty | HandoffStream::File);
    if streams.len() > 1 && streams.iter().any(alone) {
        return Err(invalid("`streams`: `pty` and `file` can't be combined with others"));
    }
    match streams {
        [first, second, ..] if first == second || streams.len() > 2 => {
            Err(invalid("`streams` names each of `stdout` and `stderr` at most once"))
        }
        _ => Ok(()),
    }
}
