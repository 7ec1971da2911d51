//! `console`: an interactive prompt whose commands run in the foreground and can be moved to the background.

use std::io::{self, IsTerminal as _};

use bgd_shared::request::{Hello, HelloParams};

use crate::cli::ConsoleArgs;
use crate::console::{Console, Setup};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::DaemonAddress;
use crate::session;

/// Runs commands until the user leaves.
pub fn run(args: ConsoleArgs, context: &mut Context) -> Result<Code, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage("the console needs a terminal for input and output")
            .hint("in scripts use `bgctl run` and `bgctl submit`"));
    }
    if context.json() {
        return Err(Failure::usage("--json can't be combined with `console`, which is interactive"));
    }
    let hello = context.call::<Hello>(&HelloParams::default())?;
    let key = args.key.unwrap_or(hello.background_key);
    let session = match session::named(args.session, context.link.is_remote())? {
        Some(key) => Some(key),
        None => session::of_environment()?,
    };
    let session =
        session.filter(|key| !key.is_empty()).unwrap_or_else(|| format!("console:{}", std::process::id()));
    let socket = context.link.named_socket()?;
    let news = context.link.existing()?;
    let address = match context.link.host() {
        Some(host) => DaemonAddress::remote(host.clone(), context.connect_timeout(), context.bootstraps()),
        None => DaemonAddress::Local(context.link.socket()?),
    };
    let (link, instance) = (context.link.polled()?, hello.instance);
    let connect_timeout = context.connect_timeout();
    Console::begin(Setup { link, news, key, session, socket, address, instance, connect_timeout })?.run()
}
