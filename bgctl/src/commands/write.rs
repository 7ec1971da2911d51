//! `write`: writes to the standard input of a task that has a pipe there.

use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskRef;
use bgd_shared::request::{Encoding, Hello, HelloParams, TaskWrite, WriteParams, WriteResult};

use crate::chunks::{FEW_BYTES, chunk_bytes};
use crate::cli::WriteArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::pick;

/// Writes the given text, or all of standard input.
pub fn run(args: WriteArgs, context: &mut Context) -> Result<Code, Failure> {
    let id = pick::one(args.id, context)?;
    let id = pick::whole(id, context)?;
    let mut written = 0;
    let ends = match args.text {
        Some(text) => {
            let mut bytes = text.into_vec();
            if args.newline {
                bytes.push(b'\n');
            }
            if bytes.is_empty() && !args.eof {
                check(&id, context)?;
            }
            // Most texts are short, and scripts need not pay for the question.
            let most = if bytes.len() > FEW_BYTES { most_bytes(context)? } else { FEW_BYTES };
            for chunk in bytes.chunks(most) {
                written += send(&id, chunk, context)?;
            }
            args.eof
        }
        None if args.eof => true,
        None => {
            check(&id, context)?;
            written += send_input(&id, context)?;
            !args.no_eof
        }
    };
    if ends {
        let end = WriteParams { id, data: String::new(), encoding: Encoding::Utf8, eof: true };
        call(&end, context)?;
    }
    if context.json() {
        context.print_json(&WriteResult { written })?;
    }
    Ok(Code::OK)
}

/// Checks that the task accepts input, before there is anything to write: perhaps nothing ever arrives.
fn check(id: &TaskRef, context: &mut Context) -> Result<(), Failure> {
    let nothing = WriteParams { id: id.clone(), data: String::new(), encoding: Encoding::Utf8, eof: false };
    call(&nothing, context).map(drop)
}

/// Returns how many bytes fit into a request to this daemon.
fn most_bytes(context: &mut Context) -> Result<usize, Failure> {
    Ok(chunk_bytes(context.call::<Hello>(&HelloParams::default())?.limits.frame_bytes))
}

/// Sends standard input as it arrives.
fn send_input(id: &TaskRef, context: &mut Context) -> Result<u64, Failure> {
    let mut buffer = vec![0; most_bytes(context)?];
    let mut input = io::stdin().lock();
    let mut written = 0;
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(written),
            Ok(count) => written += send(id, &buffer[..count], context)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::io("can't read standard input", &error)),
        }
    }
}

/// Makes the call. Reports a task without an input pipe as being in the wrong state, like one that has ended.
fn call(params: &WriteParams, context: &mut Context) -> Result<u64, Failure> {
    let taken = context.call::<TaskWrite>(params).map_err(|failure| {
        let has_none = failure.kind == ErrorKind::Unsupported.as_str();
        Failure { code: if has_none { Code::WRONG_STATE } else { failure.code }, ..failure }
    });
    Ok(taken?.written)
}

/// Sends bytes until the task's pipe has accepted all of them.
fn send(id: &TaskRef, bytes: &[u8], context: &mut Context) -> Result<u64, Failure> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (data, encoding) = Encoding::encode(rest.to_vec());
        let params = WriteParams { id: id.clone(), data, encoding, eof: false };
        let taken = call(&params, context)?;
        let taken = usize::try_from(taken).unwrap_or(usize::MAX).min(rest.len());
        if taken == 0 {
            let message = format!("task {} no longer accepts input", id.as_str());
            return Err(Failure::new(Code::WRONG_STATE, "not_running", message));
        }
        rest = &rest[taken..];
    }
    Ok(bytes.len() as u64)
}
