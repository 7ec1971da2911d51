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

/// Rejects a call without a task where `@` is not the default: outside an interactive terminal, or after `--`.
pub(super) fn none_named(is_empty: bool, is_interactive: bool) -> Result<(), (ErrorKind, String)> {
    if !is_empty || is_interactive {
        return Ok(());
    }
    let what = "no task given: give a task id, @, or options that select tasks (the latest task is the default only \
                on a terminal, and not after `--`)";
    Err((ErrorKind::MissingRequiredArgument, what.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::Status;
    use crate::cli::{Verb, parse};

    #[test]
    fn r113_nothing_after_dashes_does_not_mean_the_latest_task() {
        let read = |words: &[&str]| {
            let words = std::iter::once("bgctl").chain(words.iter().copied()).map(OsString::from);
            parse(words, true).map(drop).map_err(|error| (error.exit_code(), error.to_string()))
        };
        for verb in ["status", "output", "attach", "block"] {
            read(&[verb]).unwrap();
            let (code, message) = read(&[verb, "--"]).unwrap_err();
            assert!(code == 2 && message.contains("not after `--`"), "{verb}: {message}");
            read(&[verb, "--", "3f2a"]).unwrap();
            read(&[verb, "--tag", "nightly", "--"]).unwrap();
        }
    }

    #[test]
    fn status_option_accepts_comma_lists_and_repeats() {
        let line = "bgctl list --status running,failed --status pending";
        let Verb::List(args) = parse(line.split(' ').map(Into::into), false).unwrap().1 else {
            panic!("not a list")
        };
        assert_eq!(args.select.status, [Status::Running, Status::Failed, Status::Pending]);
    }
}
