//! Options that select tasks by common properties instead of by id.

use bgd_shared::id::TaskRef;
use bgd_shared::task::Status;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;

use crate::candidates::{batches, groups, sessions, tags};
use crate::name::parse_batch;

pub(super) fn status_parser() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::as_str)).try_map(|text| text.parse::<Status>())
}

/// The names of these options, for arguments that conflict with them.
pub const SELECTORS: [&str; 5] = ["tags", "group", "batch", "session", "status"];

/// Selects tasks by common properties; all given conditions must hold.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Select tasks")]
pub struct SelectArgs {
    /// Tasks with this tag; if repeated, with all of these tags
    #[arg(long = "tag", value_name = "TAG", add = tags(), value_parser = NonEmptyStringValueParser::new())]
    pub tags: Vec<String>,
    /// Tasks in this group
    #[arg(long, value_name = "NAME", add = groups(), value_parser = NonEmptyStringValueParser::new())]
    pub group: Option<String>,
    /// Tasks of this batch, by the id that `submit --each` printed
    #[arg(long, value_name = "BATCH", value_parser = parse_batch, add = batches())]
    pub batch: Option<TaskRef>,
    /// Tasks of this parent session; `.` is the current session
    #[arg(long, value_name = "KEY", add = sessions(), value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Tasks with this status; may be repeated or comma-separated
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status_parser())]
    pub status: Vec<Status>,
}

impl SelectArgs {
    /// Reports whether no option was given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl SelectArgs {
    /// Restricts the selection to active tasks, unless it is empty or includes a status.
    #[must_use]
    pub fn or_active(mut self) -> Self {
        if !self.is_empty() && self.status.is_empty() {
            self.status = Status::ALL.into_iter().filter(|status| status.is_active()).collect();
        }
        self
    }
}

/// Rejects a call without a task where `@` is not the default: outside an interactive terminal.
pub(super) fn none_named(is_empty: bool, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
    if !is_empty || is_interactive {
        return Ok(());
    }
    let what = "no task given: give a task id, @, or options that select tasks (the latest task is the default only \
                on a terminal)";
    Err((ErrorKind::MissingRequiredArgument, what.to_owned()))
}
