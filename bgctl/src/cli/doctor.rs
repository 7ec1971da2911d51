//! Arguments of `doctor`.

use clap::Args;

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl doctor
  bgctl doctor --notify               send a test notification through each channel
  bgctl doctor -H build-host          check the daemon of another machine
  bgctl doctor --json | jq '.checks[] | select(.state == \"fails\")'

Checks the kernel, the daemon, its configuration, folders and cgroups, starts each installed
agent and looks whether you are logged in to it, looks at channels, reaches each executor, and
looks for completions, key, prompt and manual in your shell. Each check that fails says what
to do. The exit code is 69 if a check fails; notes are no failures. Nothing is changed.")]
pub struct DoctorArgs {
    /// Send a test notification through each channel and wait until it is delivered
    #[arg(long)]
    pub notify: bool,
}
