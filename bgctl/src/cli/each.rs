//! What `submit --each` takes.

use std::ffi::OsString;

use bgd_shared::limits::GROUP_SLOTS;
use clap::Args;

/// A task for each item.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Batch")]
pub struct EachArgs {
    /// Submit a task for each line of this file, or of standard input (-): {} in CMD stands for the line
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["shell", "agent",
        "prompt", "resume", "stdin", "stdin_pipe", "pty", "key"])]
    pub each: Option<OsString>,
    /// Items end with a NUL in place of a newline, as from `find -print0`
    #[arg(short = '0', long = "null", requires = "each")]
    pub null: bool,
    /// How many of the batch run at once [default: as many as have slots]
    #[arg(long, value_name = "N", requires = "each",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUP_SLOTS)))]
    pub jobs: Option<u32>,
    /// When so many have failed, cancel the rest
    #[arg(long, value_name = "N", requires = "each", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_fails: Option<u32>,
}
