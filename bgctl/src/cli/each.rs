//! Arguments of `submit --each`.

use std::ffi::OsString;

use bgd_shared::limits::GROUP_SLOTS;
use clap::Args;

/// One task per item.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Batch")]
pub struct EachArgs {
    /// Submit one task per non-empty line of this file, or of standard input (-); {} in CMD is replaced by the line
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["shell", "agent",
        "prompt", "resume", "stdin", "stdin_pipe", "pty"])]
    pub each: Option<OsString>,
    /// Items end with NUL instead of newline, as printed by `find -print0`
    #[arg(short = '0', long = "null", requires = "each")]
    pub null: bool,
    /// Run at most N tasks of the batch at once [default: limited only by slots]
    #[arg(long, value_name = "N", requires = "each",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUP_SLOTS)))]
    pub jobs: Option<u32>,
    /// Cancel the rest of the batch after N failures
    #[arg(long, value_name = "N", requires = "each", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_fails: Option<u32>,
}
