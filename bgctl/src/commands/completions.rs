//! `completions`: a script that teaches a shell the verbs, their options and the tasks that are there.

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
