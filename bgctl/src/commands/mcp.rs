//! `mcp`: a Model Context Protocol server for AI agents (R80, R81).

use std::io::{self, IsTerminal as _};

use crate::cli::McpArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::DaemonAddress;
use crate::mcp::{self, Options, ancestors};
use crate::remark::say;
use crate::session;

/// Explains the verb to a person who runs it by hand.
const FOR_AGENTS: &str = "bgctl: mcp expects messages from an AI agent, not from a terminal: set `bgctl mcp` as \
     the command of an MCP server in the agent's configuration (see bgd-mcp(7)). Ctrl-D ends it.";

/// Serves until standard input ends.
pub fn run(args: McpArgs, context: &mut Context) -> Result<Code, Failure> {
    if io::stdin().is_terminal() {
        say(format_args!("{FOR_AGENTS}"));
    }
    let inherited = if args.session.is_none() { session::of_environment()? } else { None };
    let (address, variables) = address(context)?;
    mcp::serve(Options {
        session: session::named(args.session, context.link.is_remote())?,
        inherited,
        keeps: args.keep,
        max_block_ms: args.max_block,
        depth: args.depth,
        all_sessions: args.all_sessions,
        structured: args.structured,
        address,
        variables,
        starts: context.link.starts(),
    })
}

/// Returns the address of the daemon, and the environment variables that lead to it, if they are not set in this process.
fn address(context: &Context) -> Result<(DaemonAddress, Vec<(String, String)>), Failure> {
    if let Some(host) = context.link.host() {
        return Ok((
            DaemonAddress::remote(host.clone(), context.connect_timeout(), context.bootstraps()),
            Vec::new(),
        ));
    }
    let ancestors = if context.link.names_socket() { None } else { ancestors::socket() };
    if let Some((socket, variables)) = ancestors {
        return Ok((DaemonAddress::Local(socket), variables));
    }
    let named = context.link.named_socket()?.map(|socket| ("BGD_SOCKET".to_owned(), socket));
    Ok((DaemonAddress::Local(context.link.socket()?), named.into_iter().collect()))
}
