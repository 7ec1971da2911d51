//! What is said to a person beside the output: a line on standard error.

use std::fmt;
use std::io::{self, Write as _};

/// Writes a line in one piece: other programs may write there at the same time. Standard error may be closed; the verb
/// continues anyway.
pub fn say(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Says a line as this program's own.
pub fn report(text: &str) {
    say(format_args!("bgctl: {text}"));
}
