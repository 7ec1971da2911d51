//! `doctor`: checks everything that background tasks rely on, and shows how to fix what does not work. It changes
//! nothing; `--notify` sends a notification through each channel.

mod daemon;
mod failed;
mod folders;
mod logins;
mod machine;
mod services;
mod shell;

use std::io::IsTerminal as _;

use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::remark::say;
use crate::render::doctor::{Check, State, page, summary};
use crate::render::list_format::ListFormat;
use crate::render::signs::ellipsis;

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// Whether no check failed.
    ok: bool,
    checks: &'a [Check],
}

/// Makes all checks, then prints them.
pub fn run(args: &DoctorArgs, context: &mut Context) -> Result<Code, Failure> {
    if std::io::stderr().is_terminal() && !context.json() {
        say(format_args!(
            "checking; starting agents and reaching other machines takes a moment {}",
            ellipsis()
        ));
    }
    let is_remote = context.link.is_remote();
    let mut checks = if is_remote { Vec::new() } else { machine::checks() };
    let status = daemon::checks(&mut checks, context);
    if let Some(status) = &status {
        if !is_remote {
            folders::checks(&mut checks, status);
        }
        services::agents(&mut checks, context);
        services::channels(&mut checks, status, args.notify, context);
        services::executors(&mut checks, context);
    }
    if !is_remote {
        checks.extend(shell::checks());
    }
    let ok = checks.iter().all(|check| check.state != State::Fails);
    if context.json() {
        context.print_json(&Report { ok, checks: &checks })?;
    } else {
        let format = ListFormat::of_output(context.colours());
        context.print(&page(&checks, format.colour, format.width))?;
        context.print(&summary(&checks))?;
    }
    Ok(if ok { Code::OK } else { Code::NO_DAEMON })
}
