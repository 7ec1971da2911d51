//! `completions`: prints a script that completes verbs, options and existing tasks in a shell.

use crate::cli::CompletionsArgs;
use crate::complete;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Prints the script.
pub fn run(args: &CompletionsArgs, context: &mut Context) -> Result<Code, Failure> {
    context.print_bytes(&complete::script(args.shell)?)?;
    Ok(Code::OK)
}
