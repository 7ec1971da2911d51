//! The behaviour of the whole process: the flags of the command line. Flags must not concern a single turn;
//! that is for [`script`](super::script).

use std::path::PathBuf;

use clap::Parser;

use super::script;

/// A fake agent that speaks ACP on stdin and stdout, and misbehaves as requested.
///
/// FAKE_ACP_HOME must name the folder for its sessions and its journal.
#[derive(Debug, Parser)]
#[command(name = "fake_acp", after_help = script::help())]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag")]
#[allow(clippy::doc_markdown, reason = "its comments are the help texts, where backticks are noise")]
pub struct Options {
    /// There is no session/load, and no capability for it
    #[arg(long)]
    pub no_load: bool,
    /// There is no session/resume, and no capability for it
    #[arg(long)]
    pub no_resume: bool,
    /// There is no session/list, and no capability for it
    #[arg(long)]
    pub no_list: bool,
    /// There is no session/close, and no capability for it
    #[arg(long)]
    pub no_close: bool,
    /// session/list returns this many at once, with a cursor for the rest
    #[arg(long, value_name = "N")]
    pub page: Option<usize>,
    /// session/list is answered once this file exists
    #[arg(long, value_name = "FILE")]
    pub list_after: Option<PathBuf>,
    /// session/load is answered with null, as in the protocol's text, and not with {}, as in its schema
    #[arg(long)]
    pub null_load: bool,
    /// The conversation is replayed this many times, and only after the answer to session/load
    #[arg(long, value_name = "N")]
    pub late_replay: Option<usize>,
    /// Sessions have these modes, and start in the first one
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub modes: Vec<String>,
    /// Sessions have these models as an option, and start with the first one
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// initialize is never answered
    #[arg(long)]
    pub initialize_never: bool,
    /// initialize is answered once this file exists
    #[arg(long, value_name = "FILE")]
    pub initialize_after: Option<PathBuf>,
    /// session/new is answered only this many times
    #[arg(long, value_name = "N")]
    pub new_sessions: Option<u64>,
    /// Exits at once, without sending anything
    #[arg(long, value_name = "CODE")]
    pub exit_at_start: Option<u8>,
    /// A permission request has no option that rejects it
    #[arg(long)]
    pub no_reject: bool,
    /// A line for stderr, written at the start
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stderr: Option<String>,
    /// session/new is answered with the error -32000
    #[arg(long)]
    pub auth_required: bool,
    /// The error of session/load, session/resume and session/prompt for an unknown session
    #[arg(
        long,
        value_name = "CODE:TEXT",
        allow_hyphen_values = true,
        default_value = "-32602:session not found"
    )]
    pub unknown_session: Fault,
    /// Keeps running when stdin ends
    #[arg(long)]
    pub ignore_eof: bool,
    /// Survives SIGTERM, and so do its children
    #[arg(long)]
    pub ignore_sigterm: bool,
    /// Starts a child that does nothing, in a session of its own but with the same stderr, and writes its pid to
    /// FAKE_ACP_HOME/child.<own pid>
    #[arg(long)]
    pub child: bool,
    /// The protocol version in the answer to initialize
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub protocol_version: u64,
    /// A line for stdout, before anything else; can be given several times
    #[arg(long, value_name = "GARBAGE", allow_hyphen_values = true)]
    pub greeting: Vec<String>,
    /// Name and version in the answer to initialize
    #[arg(long, value_name = "NAME[/VERSION]", default_value = concat!("fake_acp/", env!("CARGO_PKG_VERSION")))]
    pub version_name: String,
    /// Plays the agent that was recorded in this file; see tests/suites/recorded
    #[arg(long, value_name = "FILE")]
    pub recorded: Option<PathBuf>,
    /// Plays the child of --child
    #[arg(long, hide = true)]
    pub sleeper: bool,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: i64,
    pub text: String,
}

impl Fault {
    pub fn new(code: i64, text: &str) -> Self {
        Self { code, text: text.to_owned() }
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (code, text) = text.split_once(':').ok_or("CODE:TEXT is expected")?;
        Ok(Self::new(code.parse().map_err(|error| format!("{code}: {error}"))?, text))
    }
}
