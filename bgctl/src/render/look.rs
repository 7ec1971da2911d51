//! How what is printed is to look: for people or for programs, how wide, in colours. It prints nothing.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use bgd_shared::time::Timestamp;
use clap::ValueEnum;
use comfy_table::Table;

use super::tree::{ASCII, BOXES, Lines};
use super::wall::Clock;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// In a pipe, too, as `watch --color` and `less -R` show them.
    Always,
    /// Nowhere.
    Never,
}

/// How a list is to look.
#[derive(Clone, Debug)]
pub struct Look {
    /// As a table with a header, for people; else columns with tabs.
    pub table: bool,
    /// With colours.
    pub colour: bool,
    /// Characters that fit a line of the table; `None` for no limit.
    pub width: Option<u16>,
    /// The time that ages are counted to, and the wall that times are shown on.
    pub clock: Clock,
}

impl Look {
    /// A table where people look: on a terminal, under watch(1), and where colours are asked for; else plain columns.
    pub fn of_output(colours: Colours) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match colours {
            Colours::Auto => is_terminal && !no_colour,
            Colours::Always => true,
            Colours::Never => false,
        };
        let columns = columns();
        // It exports its width and shows both outputs together. A script that reads the list has its own pipe for it.
        let is_watched = columns.is_some() && have_one_place();
        let width = if is_terminal { terminal_width().or(columns) } else { columns };
        Self {
            table: is_terminal || is_watched || colour,
            colour,
            width,
            clock: Clock::system(Timestamp::now()),
        }
    }
}

/// What a tree is drawn with on standard output: a file or a terminal of another character set gets plain signs.
pub fn lines() -> Lines {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    let is_utf8 = locale.ends_with("utf-8") || locale.ends_with("utf8");
    if is_utf8 && io::stdout().is_terminal() { BOXES } else { ASCII }
}

/// The width of the terminal, unless nobody has told that it has one: script(1) without a terminal makes such.
fn terminal_width() -> Option<u16> {
    Table::new().width().filter(|width| *width > 0)
}

/// `$COLUMNS`, if it is exported.
fn columns() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0)
}

/// Whether standard output and standard error are one pipe.
fn have_one_place() -> bool {
    let place = |fd: io::Result<OwnedFd>| {
        let meta = File::from(fd.ok()?).metadata().ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let output = place(io::stdout().as_fd().try_clone_to_owned());
    output.is_some() && output == place(io::stderr().as_fd().try_clone_to_owned())
}
