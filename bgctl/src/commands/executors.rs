//! `executors`: lists where tasks can run, and with `--check` whether they can run there now.

use std::io::IsTerminal as _;

use bgd_shared::request::{ExecutorList, ExecutorListParams};

use crate::cli::ExecutorsArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::remark::say;
use crate::render::executors::list;
use crate::render::list_format::ListFormat;
use crate::render::signs::ellipsis;

/// Fetches and prints the executors.
pub fn run(args: ExecutorsArgs, context: &mut Context) -> Result<Code, Failure> {
    if args.check && std::io::stderr().is_terminal() && !context.json() {
        say(format_args!("asking each executor {}", ellipsis()));
    }
    let params = ExecutorListParams { names: args.names, check: args.check };
    let result = context.call::<ExecutorList>(&params)?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&list(&result.executors, args.check, &ListFormat::of_output(context.colours())))?;
    }
    let is_bad = |check: &bgd_shared::request::ExecutorCheck| !check.ok;
    let fails = result.executors.iter().filter_map(|executor| executor.check.as_ref()).any(is_bad);
    Ok(if fails { Code::NO_DAEMON } else { Code::OK })
}
