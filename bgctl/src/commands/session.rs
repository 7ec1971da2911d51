//! `session`: prints the current parent session, or ends one (R54).

use std::io::{self, IsTerminal as _};

use bgd_shared::request::{SessionEnd, SessionEndParams};
use serde::Serialize;

use crate::cli::{SessionArgs, SessionVerb};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean;
use crate::session;

/// Output of `session key --json`.
#[derive(Serialize)]
struct Key {
    session: String,
}

/// Runs the subcommand.
pub fn run(args: SessionArgs, context: &mut Context) -> Result<Code, Failure> {
    match args.verb {
        SessionVerb::Key => key(context),
        SessionVerb::End { key } => end(key, context),
    }
}

/// Prints the session key that a task submitted here would get. Does not ask the daemon.
fn key(context: &mut Context) -> Result<Code, Failure> {
    let session = session::this(context.link.is_remote())?;
    if context.json() {
        context.print_json(&Key { session })?;
    } else if io::stdout().is_terminal() {
        context.print(&format!("{}\n", clean(&session)))?;
    } else {
        // Programs use it as a key.
        context.print(&format!("{session}\n"))?;
    }
    Ok(Code::OK)
}

/// Ends the session, then prints the result.
fn end(key: String, context: &mut Context) -> Result<Code, Failure> {
    let session = session::named(Some(key), context.link.is_remote())?.unwrap_or_default();
    let result = context.call::<SessionEnd>(&SessionEndParams { session })?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&format!("cancelled {}, cleared {}\n", result.cancelled, result.cleared))?;
    }
    Ok(Code::OK)
}
