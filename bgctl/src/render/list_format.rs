//! Decides the output format: for people or programs, width, colours. Prints nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use clap::ValueEnum;
use comfy_table::Table;

use super::columns::{Field, Measured};
use super::signs::is_utf8;
use super::tree::{ASCII, BOXES, Lines};
use super::wall::Clock;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is unset or `dumb`.
    #[default]
    Auto,
    /// Also in a pipe, as `watch --color` and `less -R` show them, and if `NO_COLOR` is set.
    Always,
    /// Nowhere.
    Never,
}

#[derive(Clone, Debug)]
pub struct ListFormat {
    /// A table with a header, for people; otherwise tab-separated columns.
    pub table: bool,
    /// Whether to use colours.
    pub colour: bool,
    /// The width of the table in characters; `None` for no limit.
    pub width: Option<u16>,
    /// The columns, in order; ignored by lists with fixed columns.
    pub columns: Vec<Field>,
    /// Whether the user has chosen the columns: of a table that is too wide, the last ones are left out.
    pub is_chosen: bool,
    /// The progress of tasks in percent, where it was looked up.
    pub percents: HashMap<TaskId, u8>,
    /// Current usage of running tasks, where it was measured.
    pub measured: Measured,
    /// The current time, which ages are relative to, and the time zone.
    pub clock: Clock,
}

impl ListFormat {
    /// Chooses a table where people read it (on a terminal, under watch(1), or if colours are requested), else plain
    /// columns.
    pub fn of_output(colours: Colours) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match colours {
            Colours::Auto => is_terminal && !no_colour && !is_dumb(),
            Colours::Always => true,
            Colours::Never => false,
        };
        if colour {
            // It draws tables and `top`, and without this, heeds `NO_COLOR` by itself, whatever was asked for.
            crossterm::style::force_color_output(true);
        }
        let columns = columns();
        // watch(1) exports COLUMNS and merges both outputs into one pipe. A script that captures the list gives
        // standard output a pipe of its own.
        let is_watched = columns.is_some() && have_one_place();
        let width = if is_terminal { terminal_width().or(columns) } else { columns };
        Self {
            table: is_terminal || is_watched || colour,
            colour,
            width,
            columns: Field::DEFAULT.to_vec(),
            is_chosen: false,
            percents: HashMap::new(),
            measured: Measured::new(),
            clock: Clock::system(Timestamp::now()),
        }
    }
}

#[cfg(test)]
impl ListFormat {
    /// Plain columns without a width limit, at second 1100.
    pub fn of_tests() -> Self {
        Self {
            table: false,
            colour: false,
            width: None,
            columns: Field::DEFAULT.to_vec(),
            is_chosen: false,
            percents: HashMap::new(),
            measured: Measured::new(),
            clock: Clock::of_tests(),
        }
    }
}

/// Returns the characters for drawing trees on standard output: ASCII for files and for terminals without UTF-8.
pub fn lines() -> Lines {
    if is_utf8() && io::stdout().is_terminal() { BOXES } else { ASCII }
}

/// Reports whether the terminal shows escape sequences instead of interpreting them, according to `TERM`.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb")
}

/// Returns the width of the terminal, or `None` if it was never set, as for script(1) without a terminal.
fn terminal_width() -> Option<u16> {
    Table::new().width().filter(|width| *width > 0)
}

/// Returns `$COLUMNS` if it is exported and positive.
fn columns() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0)
}

/// Returns whether standard output and standard error are the same pipe or file.
fn have_one_place() -> bool {
    let place = |fd: io::Result<OwnedFd>| {
        let meta = File::from(fd.ok()?).metadata().ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let output = place(io::stdout().as_fd().try_clone_to_owned());
    output.is_some() && output == place(io::stderr().as_fd().try_clone_to_owned())
}
