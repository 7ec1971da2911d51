//! `bgctl`: the command line of the background-task daemon `bgd`.
//!
//! Scripts run it thousands of times, so start-up time matters: no async runtime (except in `mcp`, which is
//! long-lived), no configuration file, no logging. Each verb has its own file, and most make a single request. The
//! program keeps no state and makes no decisions about tasks; that is up to the daemon.
//!
//! No code here may print with a macro that panics on a broken pipe, or end the process: handlers return an exit code
//! or a [`Failure`], which [`main`] reports.

#![cfg_attr(
    not(all(feature = "console", feature = "mcp", feature = "top")),
    allow(dead_code, unused_imports, reason = "some of it serves only what is left out then")
)]

mod candidates;
mod chunks;
#[allow(clippy::doc_markdown, reason = "its comments are the help texts, where backticks are noise")]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag, and a verb has several")]
pub mod cli;
mod commands;
pub mod complete;
#[cfg(feature = "console")]
mod console;
mod context;
mod duration;
mod ending;
pub mod exit;
mod failure;
mod files;
mod hosts;
mod job;
mod label;
mod link;
pub mod manual;
#[cfg(feature = "mcp")]
mod mcp;
mod measure;
mod name;
mod options;
mod output;
mod pages;
mod pick;
mod precheck;
mod programs;
mod progress;
mod prompt;
mod remark;
pub mod render;
mod replaced_program;
mod session;
mod several;
mod shells;
mod state;
mod terminal;
#[cfg(feature = "top")]
mod top;
mod watch;
mod when;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;

use bgd_shared::quote::quoted;

use crate::context::Context;
use crate::exit::Code;
pub use crate::failure::Failure;

/// The environment of a daemon that `bgctl` starts, for its manual page.
pub mod daemon_environment {
    pub use crate::link::{DROPPED, KEPT, KEPT_PREFIXES};
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match complete::answer(&args) {
        Ok(false) => {}
        Ok(true) => return Code::OK.into(),
        Err(error) => return usage(&error, false).into(),
    }
    if pick::is_interactive()
        && let Some(globals) = cli::parse_without_verb(&args)
    {
        return alone("bgctl", globals, commands::overview).into();
    }
    let json = asks_for_json(&args);
    let parsed = cli::plain::parse(&args).map_or_else(|| cli::parse(args, pick::is_interactive()), Ok);
    let code = match parsed {
        Ok((globals, verb)) => run(verb, globals),
        Err(error) => usage(&error, json),
    };
    code.into()
}

fn run(verb: cli::Verb, globals: cli::Globals) -> Code {
    // `--json` has been parsed by now, so one among the job's own arguments is not mistaken for it.
    let json = globals.json;
    match context_of(&verb, globals) {
        Ok(mut context) => {
            let may_notify = replaced_program::may_follow(&verb);
            let outcome = commands::run(verb, &mut context);
            let code = finish(outcome, &mut context, json);
            if may_notify {
                replaced_program::notify(&mut context);
            }
            let is_interrupted = context.is_interrupted() && code == Code::INTERRUPTED;
            drop(context);
            if is_interrupted {
                terminal::end_by_interrupt();
            }
            code
        }
        // Errors do not belong in a prompt; other verbs report this one.
        Err(_) if matches!(verb, cli::Verb::ShellPrompt(_)) => Code::OK,
        Err(failure) => {
            failure.print(json);
            failure.code
        }
    }
}

/// Runs `bgctl` without a verb.
fn alone(
    verb: &'static str,
    globals: cli::Globals,
    run: impl FnOnce(&mut Context) -> Result<Code, Failure>,
) -> Code {
    match Context::new(globals, verb) {
        Ok(mut context) => {
            let outcome = run(&mut context);
            finish(outcome, &mut context, false)
        }
        Err(failure) => {
            failure.print(false);
            failure.code
        }
    }
}

/// Creates the context of a verb. `dial` is the remote end of a `--host` and must not connect to another host. Verbs that
/// ask no daemon work whatever hosts the environment names.
fn context_of(verb: &cli::Verb, globals: cli::Globals) -> Result<Context, Failure> {
    match verb {
        cli::Verb::Dial(_) | cli::Verb::Completions(_) | cli::Verb::Man(_) | cli::Verb::ShellInit(_) => {
            Context::here(globals)
        }
        // A session has the same key on every host.
        cli::Verb::List(_) | cli::Verb::Session(cli::SessionArgs { verb: cli::SessionVerb::Key }) => {
            Context::for_hosts(globals)
        }
        #[cfg(feature = "top")]
        cli::Verb::Top(_) => Context::for_hosts(globals),
        _ => Context::new(globals, verb.name()),
    }
}

/// Flushes buffered output and reports a failure.
fn finish(outcome: Result<Code, Failure>, context: &mut Context, json: bool) -> Code {
    // Flush before reporting a failure, so that output printed earlier comes first.
    let outcome = match (outcome, context.flush()) {
        (Ok(_), Err(error)) => Err(error.into()),
        (outcome, _) => outcome,
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            let failure = context.link.name_host(failure);
            failure.print(json);
            failure.code
        }
    }
}

/// Prints help, the version or a usage error. Does not use clap's own `exit`, which ends the process.
fn usage(error: &clap::Error, json: bool) -> Code {
    if error.exit_code() == 0 {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        return match printed {
            // A pager that closed early is not an error.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                let failure = Failure::from(error);
                failure.print(json);
                failure.code
            }
            Ok(()) | Err(_) => Code::OK,
        };
    }
    if error.kind() == clap::error::ErrorKind::InvalidUtf8 {
        let args: Vec<OsString> = std::env::args_os().skip(1).collect();
        no_text(&args).print(json);
    } else if json {
        // Clap continues with usage and advice for people; its first paragraph states the error.
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let what = text.split("\n\n").next().unwrap_or(text);
        Failure::usage(what.trim_end()).hint("see `bgctl VERB --help`").print(true);
    } else {
        let text = error.render().to_string();
        if text == render::clean_lines(&text) {
            let _ = error.print();
            let _ = std::io::stderr().flush();
        } else {
            // The text quotes an argument with control characters: keep them from the terminal.
            let _ = std::io::stderr().write_all(render::clean_lines(&text).as_bytes());
        }
    }
    Code::USAGE
}

/// Creates the failure for an argument that is not UTF-8, which clap does not name. Some others need not be text, such
/// as paths and the words of a command.
fn no_text(args: &[OsString]) -> Failure {
    let options = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let invalid = |args: &[OsString]| -> Vec<String> {
        args.iter().filter(|arg| arg.to_str().is_none()).map(|arg| quoted(arg.as_encoded_bytes())).collect()
    };
    let found = Some(invalid(&args[..options])).filter(|found| !found.is_empty());
    let found = found.unwrap_or_else(|| invalid(args));
    let which = if found.len() > 1 { "one of these arguments" } else { "this argument" };
    Failure::usage(format!("{which} is not valid UTF-8: {}", found.join(" "))).hint("see `bgctl VERB --help`")
}

/// Returns whether `--json` is among the options, so that even usage errors are reported as JSON.
fn asks_for_json(args: &[OsString]) -> bool {
    args.iter().skip(1).take_while(|arg| *arg != OsStr::new("--")).any(|arg| arg == OsStr::new("--json"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn argument_that_is_no_text_is_named() {
        let said = |args: &[&[u8]]| {
            let args: Vec<OsString> = args.iter().map(|arg| OsString::from_vec(arg.to_vec())).collect();
            no_text(&args).message
        };
        assert_eq!(said(&[&b"status"[..], b"d\xff"]), r"this argument is not valid UTF-8: $'d\377'");
        assert!(said(&[&b"status"[..], b"d\xff", b"--", b"\xfe"]).ends_with(r": $'d\377'"));
        assert!(said(&[&b"status"[..], b"--", b"\xfe"]).ends_with(r": $'\376'"));
        assert!(said(&[&b"a\xff"[..], b"b\xff"]).starts_with("one of these arguments"));
    }

    #[test]
    fn json_after_double_dash_belongs_to_the_job() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(asks_for_json(&args(&["bgctl", "list", "--json"])));
        assert!(!asks_for_json(&args(&["bgctl", "submit", "--", "x", "--json"])));
    }
}
