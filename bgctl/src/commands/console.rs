//! `console`: an interactive prompt whose commands run in the foreground and can be moved to the background.

use std::io::{self, IsTerminal as _};

use super::run::{ask_for_key, await_key};
use crate::cli::ConsoleArgs;
use crate::console::{Console, Setup};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Runs commands until the user leaves.
pub fn run(args: ConsoleArgs, context: &mut Context) -> Result<Code, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage("the console needs a terminal for input and output")
            .hint("in scripts use `bgctl run` and `bgctl submit`"));
    }
    if context.json() {
        return Err(Failure::usage("--json can't be combined with `console`, which is interactive"));
    }
    context.link.only_here("the console")?;
    let key = context.link.exchange(|client| {
        let asked = ask_for_key(client, args.key)?;
        await_key(client, asked)
    })?;
    let named = args.session.or_else(|| std::env::var("BGD_SESSION").ok()).filter(|key| !key.is_empty());
    let session = named.unwrap_or_else(|| format!("console:{}", std::process::id()));
    let socket = context.link.named_socket()?;
    let news = context.link.existing()?;
    Console::begin(Setup { link: context.link.polled()?, news, key, session, socket })?.run()
}
