//! `shell-init`: prints a script that binds a key of a shell to running the typed line through `bgctl run`, and sets
//! up completion.

use crate::cli::{ShellInitArgs, ShellName};
use crate::complete;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;

const BASH: &str = include_str!("shell_init/init.bash");
const ZSH: &str = include_str!("shell_init/init.zsh");
const FISH: &str = include_str!("shell_init/init.fish");
const NUSHELL: &str = include_str!("shell_init/init.nu");

/// Prints the script.
pub fn run(args: &ShellInitArgs, context: &mut Context) -> Result<Code, Failure> {
    // A shell would evaluate what is printed before a refusal.
    if args.bind.as_deref().is_some_and(|key| key.is_empty() || key.contains(['\'', '"', '\n'])) {
        return Err(Failure::usage("--bind takes a key in the shell's own notation, without quotes"));
    }
    context.print_bytes(&complete::script(args.shell)?)?;
    if !args.no_bind {
        let (script, key) = match args.shell {
            ShellName::Bash => (BASH, r"\C-x\C-r"),
            ShellName::Zsh => (ZSH, "^X^R"),
            ShellName::Fish => (FISH, r"\cx\cr"),
            // Nushell's key bindings are single keys.
            ShellName::Nushell => (NUSHELL, "alt char_r"),
        };
        let key = args.bind.as_deref().unwrap_or(key);
        let (modifier, key) = match key.split_once(' ') {
            Some(parts) if args.shell == ShellName::Nushell => parts,
            None if args.shell == ShellName::Nushell => ("none", key),
            _ => ("", key),
        };
        context.print(&script.replace("@MODIFIER@", modifier).replace("@KEY@", key))?;
    }
    Ok(Code::OK)
}
