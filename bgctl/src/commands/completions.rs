//! `completions`: prints a script that completes verbs, options and existing tasks in a shell, or installs it where
//! that shell looks for it, or removes it again.

use std::path::{Path, PathBuf};

use bgd_shared::quote::quoted;

use super::removed;
use crate::cli::{CompletionsArgs, CompletionsVerb, ShellName};
use crate::complete;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::files::{self, IsOurs};
use crate::shells::{self, Shell, own_shell};

/// Prints, installs or removes the script.
pub fn run(args: &CompletionsArgs, context: &mut Context) -> Result<Code, Failure> {
    match args.what {
        CompletionsVerb::Bash => print(ShellName::Bash, context),
        CompletionsVerb::Zsh => print(ShellName::Zsh, context),
        CompletionsVerb::Fish => print(ShellName::Fish, context),
        CompletionsVerb::Nushell => print(ShellName::Nushell, context),
        CompletionsVerb::Install => {
            let shell = args.shell.map(Shell).or_else(own_shell).ok_or_else(|| {
                Failure::usage(format!("$SHELL does not name {}", shells::KNOWN))
                    .hint("name the shell: bgctl completions install bash")
            })?;
            install(shell, context)
        }
        CompletionsVerb::Uninstall => match args.shell {
            Some(shell) => uninstall(&[Shell(shell)], context),
            None => uninstall(&Shell::ALL, context),
        },
    }
}

fn print(shell: ShellName, context: &mut Context) -> Result<Code, Failure> {
    context.print_bytes(&complete::script(shell)?)?;
    Ok(Code::OK)
}

fn install(shell: Shell, context: &mut Context) -> Result<Code, Failure> {
    let path = shell.own_completion_file().ok_or_else(|| {
        Failure::usage("neither $HOME nor a folder for data is set")
            .hint("set $HOME, or print the script instead")
    })?;
    let script = complete::script(shell.0)?;
    files::may_replace(&path, is_script)?;
    files::replace(&path, &script)
        .map_err(|error| Failure::io(format!("can't write {}", path.display()), &error))?;
    if context.json() {
        context.print_json(&serde_json::json!({"shell": shell.name(), "path": path}))?;
        return Ok(Code::OK);
    }
    context.print(&format!("installed {}\n", path.display()))?;
    if !loads_completions(shell) {
        context.print(&format!(
            "{NEEDS_PACKAGE}; install it, or add this to {}:\n  {}\n",
            shell.startup_file().unwrap_or_default().display(),
            line_for(&path)
        ))?;
        return Ok(Code::OK);
    }
    if let (ShellName::Zsh, Some(folder)) = (shell.0, path.parent()) {
        let startup = shell.startup_file().unwrap_or_default();
        context.print(&format!(
            "add this to {} before `compinit`, unless it is there:\n  fpath=({} $fpath)  # bgctl completions\n",
            startup.display(),
            quoted(folder.as_os_str().as_encoded_bytes())
        ))?;
    }
    context.print("new shells will use it\n")?;
    Ok(Code::OK)
}

/// Reports whether the shell finds completions in the files where they are installed.
pub fn loads_completions(shell: Shell) -> bool {
    let loaders = shell.completion_loaders();
    loaders.is_empty() || loaders.iter().any(|path| path.exists())
}

/// Why an installed script has no effect in bash.
pub const NEEDS_PACKAGE: &str = "bash loads this only with the package bash-completion, which was not found";

/// Returns the line for a start-up file of bash that loads the script without the package.
pub fn line_for(script: &Path) -> String {
    format!("source {}", quoted(script.as_os_str().as_encoded_bytes()))
}

/// Reports whether the text is a completion script of some bgctl.
fn is_script(text: &[u8]) -> bool {
    memchr::memmem::find(text, complete::VARIABLE.as_bytes()).is_some()
}

fn uninstall(shells: &[Shell], context: &mut Context) -> Result<Code, Failure> {
    let paths = shells.iter().filter_map(|shell| shell.own_completion_file());
    let paths: Vec<(PathBuf, IsOurs<'_>)> =
        paths.map(|path| (path, Box::new(is_script) as IsOurs<'_>)).collect();
    removed::report(&files::remove_all(paths)?, context)
}
