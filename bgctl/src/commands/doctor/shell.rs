//! The user's shell: whether it finds `bgctl` and its manual, completes its arguments, and has the key and the prompt
//! set up.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bgd_shared::quote::quoted;
use bgd_shared::small_file;

use crate::cli::ShellName;
use crate::commands::completions::{NEEDS_PACKAGE, line_for, loads_completions};
use crate::manual::{self, PAGES};
use crate::render::doctor::Check;
use crate::shells::{self, Shell, own_shell};

const PART: &str = "shell";

/// The maximum size of a start-up file that is searched.
const STARTUP_BYTES: u64 = 1024 * 1024;

pub fn checks() -> Vec<Check> {
    let mut checks = vec![in_path(), pages()];
    let Some(shell) = own_shell() else {
        checks.push(
            Check::note(PART, "completions", format!("the shell ($SHELL) is not {}", shells::KNOWN))
                .hint("bgctl completions install bash     installs them for another shell"),
        );
        return checks;
    };
    checks.extend([completions(shell), key(shell), prompt(shell)]);
    checks
}

fn in_path() -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("bgctl")).find(|path| path.is_file());
    if let Some(path) = found {
        return Check::ok(PART, "bgctl", path.display().to_string());
    }
    let own = std::env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent).unwrap_or(Path::new("/usr/local/bin"));
    Check::note(PART, "bgctl", "is in no folder of PATH, so completions and the key do not work")
        .hint(format!("export PATH={}:\"$PATH\"", quoted(folder.as_os_str().as_encoded_bytes())))
}

fn pages() -> Check {
    let mut man = Command::new("man");
    let output = man.args(["-w", "1", "bgctl"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match output {
        Err(_) => Check::note(PART, "manual", "there is no `man` here")
            .hint("install man-db; bgctl VERB --help shows every option, too"),
        Ok(output) if output.status.success() => {
            Check::ok(PART, "manual", String::from_utf8_lossy(&output.stdout).trim())
        }
        Ok(_) => not_found(),
    }
}

/// Explains why `man` does not find the page: it is not installed, or `man` does not search its folder.
fn not_found() -> Check {
    let own = std::env::current_exe().ok();
    let installed = manual::folder(own.as_deref())
        .filter(|folder| PAGES.iter().any(|page| page.name == "bgctl" && page.file(folder).is_file()));
    match installed {
        Some(folder) => {
            let found = format!("`man` does not look in {}, where the pages are", folder.display());
            Check::note(PART, "manual", found).hint(manual::line_for(&folder))
        }
        None => Check::note(PART, "manual", "`man bgctl` finds nothing").hint("bgctl man install"),
    }
}

fn completions(shell: Shell) -> Check {
    let name = shell.name();
    let file = shell.completion_files().into_iter().find(|path| path.exists());
    let is_loaded = loads_completions(shell);
    let loaded = file.clone().filter(|_| is_loaded).or_else(|| says(shell, SCRIPT));
    match (loaded, file) {
        (Some(path), _) => Check::ok(PART, "completions", format!("{name}: {}", path.display())),
        (None, Some(path)) => {
            let found = format!("{name}: {}, but {NEEDS_PACKAGE}", path.display());
            Check::note(PART, "completions", found).hint(format!(
                "{}     in {}; or install bash-completion",
                line_for(&path),
                shown(shell)
            ))
        }
        (None, None) => Check::note(PART, "completions", format!("{name} does not complete bgctl"))
            .hint("bgctl completions install"),
    }
}

/// Words of a start-up file that loads the completions: it prints them, sources them, or contains a copy.
const SCRIPT: &[&str] =
    &["bgctl shell-init", "bgctl completions", "completions/bgctl", crate::complete::VARIABLE];

fn key(shell: Shell) -> Check {
    if let Some(path) = says(shell, &["bgctl shell-init", "__bgctl_run_line"]) {
        return Check::ok(PART, "key", format!("{}: {}", shell.name(), path.display()));
    }
    let line = match shell.0 {
        ShellName::Bash | ShellName::Zsh => format!("eval \"$(bgctl shell-init {})\"", shell.name()),
        ShellName::Fish => "bgctl shell-init fish | source".to_owned(),
        ShellName::Nushell => {
            "bgctl shell-init nushell | save -f ~/.config/nushell/autoload/bgctl.nu".to_owned()
        }
    };
    let place = match shell.0 {
        ShellName::Nushell => "once".to_owned(),
        _ => format!("in {}", shown(shell)),
    };
    Check::note(PART, "key", "no key runs the current line through bgctl").hint(format!("{line}     {place}"))
}

fn prompt(shell: Shell) -> Check {
    if let Some(path) = says(shell, &["bgctl shell-prompt"]) {
        return Check::ok(PART, "prompt", format!("{}: {}", shell.name(), path.display()));
    }
    let line = match shell.0 {
        ShellName::Bash => "PS1='$(bgctl shell-prompt)'\"$PS1\"",
        ShellName::Zsh => "setopt prompt_subst; PROMPT='$(bgctl shell-prompt)'\"$PROMPT\"",
        ShellName::Fish => "function fish_right_prompt; bgctl shell-prompt; end",
        ShellName::Nushell => "$env.PROMPT_COMMAND_RIGHT = {|| ^bgctl shell-prompt }",
    };
    Check::note(PART, "prompt", "does not show what runs and what has failed")
        .hint(format!("{line}     in {}", shown(shell)))
}

fn shown(shell: Shell) -> String {
    shell.startup_file().unwrap_or_default().display().to_string()
}

/// Returns the start-up file of the shell that contains one of these words outside of comment lines.
fn says(shell: Shell, words: &[&str]) -> Option<PathBuf> {
    shell.startup_files().into_iter().find(|path| {
        let text = small_file::read(path, STARTUP_BYTES).map(|(text, _)| text).unwrap_or_default();
        text.lines()
            .any(|line| !line.trim_start().starts_with('#') && words.iter().any(|word| line.contains(word)))
    })
}
