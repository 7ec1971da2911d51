//! The user's shell: whether it completes the arguments of `bgctl`.

use std::path::PathBuf;

use crate::render::doctor::Check;
use crate::shells::{Shell, own_shell};

const PART: &str = "shell";

/// Checks that the shell of the user completes.
pub fn completions() -> Check {
    let Some(shell) = own_shell() else {
        return Check::note(PART, "completions", "the shell is neither bash, zsh nor fish")
            .hint("bgctl completions install bash     installs them for another shell");
    };
    let name = shell.name();
    match installed(shell) {
        Some(path) => Check::ok(PART, "completions", format!("{name}: {}", path.display())),
        None => Check::note(PART, "completions", format!("{name} does not complete bgctl"))
            .hint("bgctl completions install"),
    }
}

/// Returns the file that has the shell complete, if there is one.
fn installed(shell: Shell) -> Option<PathBuf> {
    shell.completion_files().into_iter().find(|path| path.exists()).or_else(|| {
        let startup = shell.startup_file()?;
        let text = std::fs::read_to_string(&startup).ok()?;
        let is_set_up = text.lines().any(|line| {
            let line = line.trim_start();
            !line.starts_with('#')
                && (line.contains("bgctl shell-init") || line.contains("bgctl completions"))
        });
        is_set_up.then_some(startup)
    })
}
