//! Arguments of `shell-prompt`.

use clap::Args;

use crate::duration::parse_ms;

/// Arguments of `shell-prompt`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  PS1='$(bgctl shell-prompt)'\"$PS1\"                               in ~/.bashrc
  setopt prompt_subst; PROMPT='$(bgctl shell-prompt)'\"$PROMPT\"    in ~/.zshrc
  function fish_right_prompt; bgctl shell-prompt; end             in ~/.config/fish/config.fish
  $env.PROMPT_COMMAND_RIGHT = {|| ^bgctl shell-prompt }           in ~/.config/nushell/config.nu

Prints, for example, `bgd:2\u{25b6} 1? 1\u{2717} ` (in a locale without UTF-8 `bgd:2> 1? 1x `): 2 tasks are \
running, another one asks you something, and 1 has failed in the background since you last \
ran plain `bgctl` or `bgctl top`. `+` after a number means that there are more. No colour \
codes are printed, and nothing at all if there is nothing to report.

It never starts a daemon. If no daemon answers, or the daemon is on another machine, it prints \
nothing and still exits with 0.")]
pub struct ShellPromptArgs {
    /// Print nothing if the daemon has not answered within this time
    #[arg(long, value_name = "DURATION", value_parser = parse_ms, default_value = "100ms")]
    pub timeout: u64,
}

impl Default for ShellPromptArgs {
    /// The values without any argument.
    fn default() -> Self {
        Self { timeout: 100 }
    }
}
