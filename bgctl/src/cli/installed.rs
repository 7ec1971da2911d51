//! Arguments of the verbs that install something in the user's home: `completions` and `man`.

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::manual;

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Completes verbs, options, task ids (with descriptions) and agent names. The script \
calls bgctl for them, so it need not be regenerated after an upgrade.

EXAMPLES:
  bgctl completions install           for the shell that $SHELL names
  bgctl completions install fish
  bgctl completions uninstall         for every shell
  bgctl completions zsh > ~/.zfunc/_bgctl     (a folder in your $fpath)

`install` writes the file that the shell looks for in your home; for zsh it prints the \
line that your .zshrc needs, and for bash without the package bash-completion the line for \
.bashrc. `uninstall` removes that file.")]
pub struct CompletionsArgs {
    /// The shell whose script to print, or `install` or `uninstall`
    #[arg(value_name = "SHELL|install|uninstall")]
    pub what: CompletionsVerb,
    /// With `install`: the shell [default: that of $SHELL]; with `uninstall`: only this shell
    #[arg(value_name = "SHELL")]
    pub shell: Option<ShellName>,
}

impl CompletionsArgs {
    /// Checks the constraints that clap can't express.
    ///
    /// # Errors
    /// A second shell is given.
    pub fn check(&self) -> Result<(), (clap::error::ErrorKind, String)> {
        let takes_shell = matches!(self.what, CompletionsVerb::Install | CompletionsVerb::Uninstall);
        if self.shell.is_some() && !takes_shell {
            let what = "only one shell can be given; `install` comes before it".to_owned();
            return Err((clap::error::ErrorKind::ArgumentConflict, what));
        }
        Ok(())
    }
}

/// The actions of `completions`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionsVerb {
    /// Print the script for GNU bash.
    Bash,
    /// Print the script for Z shell.
    Zsh,
    /// Print the script for fish.
    Fish,
    /// Print the script for Nushell.
    Nushell,
    /// Install the script in your home.
    Install,
    /// Remove the script from your home.
    Uninstall,
}

/// A shell with supported completions.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShellName {
    /// GNU bash.
    Bash,
    /// Z shell.
    Zsh,
    /// fish.
    Fish,
    /// Nushell.
    Nushell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl man                           read the manual of bgctl
  bgctl man install                   then `man bgctl` shows the manual
  bgctl man uninstall
  bgctl man bgd-config                read a page without installing it; in a pipe, its source

`install` writes the pages to a folder in your home. For ~/.cargo/bin/bgctl that is \
~/.cargo/share/man, which `man` searches because ~/.cargo/bin is in your PATH; if bgctl is \
not in a `bin` folder of your home, it is ~/.local/share/man. After `cargo install`, run it \
again to install the new version's pages. Distribution packages already include them.")]
pub struct ManArgs {
    /// The page to print, or `install` or `uninstall`
    #[arg(value_name = "PAGE|install|uninstall", default_value = "bgctl",
        value_parser = PossibleValuesParser::new(manual::words()))]
    pub what: String,
}
