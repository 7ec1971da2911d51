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

Checks the kernel and the daemon with its configuration, folders and cgroups; starts each \
installed agent (template agents are only looked for) and checks that you are logged in; \
checks the channels; connects to each executor; and checks your shell for completions, key \
binding, prompt and manual pages. Each failed check says how to fix it. Notes are not failures. \
The exit code is 69 if a check fails. Nothing is changed.")]
pub struct DoctorArgs {
    /// Send a test notification through each channel and wait until it is delivered
    #[arg(long)]
    pub notify: bool,
}
