//! `completions`: a script that teaches a shell the verbs and their options.

use clap_complete::Shell;

use crate::cli::{self, CompletionsArgs, ShellName};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

/// Prints the script.
pub fn run(args: &CompletionsArgs, context: &mut Context) -> Result<Code, Failure> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    // The generator panics where a write fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "bgctl", &mut script);
    context.print_bytes(&script)?;
    Ok(Code::OK)
}
