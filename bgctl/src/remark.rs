//! Remarks to the user besides the output: lines on standard error.

use std::fmt;
use std::io::{self, Write as _};

/// Writes a line in one piece: other programs may write there at the same time. Standard error may be closed; the verb
/// continues anyway.
pub fn say(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes a line with this program's name in front.
pub fn report(text: &str) {
    say(format_args!("bgctl: {text}"));
}

/// Writes a warning.
pub fn warn(text: &str) {
    say(format_args!("bgctl: warning: {text}"));
}
