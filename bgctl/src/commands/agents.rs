//! `agents`: lists configured and known agents, and with `--check` whether they start.

use std::io::IsTerminal as _;

use bgd_shared::agent::{AgentInfo, AgentListParams};
use bgd_shared::request::AgentList;

use crate::cli::AgentsArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::job;
use crate::remark::say;
use crate::render::agents::list;
use crate::render::list_format::ListFormat;
use crate::render::signs::ellipsis;

/// Fetches and prints the agents.
pub fn run(args: AgentsArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.check && std::io::stderr().is_terminal() && !context.json() {
        say(format_args!("starting each available agent {}", ellipsis()));
    }
    let params =
        AgentListParams { check: args.check, names: args.names, ..job::agents(context.link.is_remote()) };
    let result = context.call::<AgentList>(&params)?;
    // Without names, the built-in agents are listed too, and nobody has all of them.
    let is_named = !params.names.is_empty();
    let is_bad = |agent: &AgentInfo| agent.error.is_some() || (is_named && !agent.available);
    let fails = args.check && result.agents.iter().any(is_bad);
    let code = if fails { Code::NO_DAEMON } else { Code::OK };
    if context.json() {
        context.print_json(&result)?;
        return Ok(code);
    }
    let is_terminal = std::io::stdout().is_terminal();
    if !result.agents.is_empty() {
        context.print(&list(&result.agents, args.check, &ListFormat::of_output(context.colours())))?;
    } else if is_terminal {
        say(format_args!("no agents"));
    }
    Ok(code)
}
