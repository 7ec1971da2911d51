//! Remarks to the user besides the output: lines on standard error.

use std::fmt;
use std::io::{self, Write as _};

use bgd_shared::show::lines;

/// Writes a line in one piece: other programs may write there at the same time. What others wrote may be part of it, so
/// nothing in it controls the terminal. Standard error may be closed; the verb continues anyway.
pub fn say(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(line(text).as_bytes());
}

fn line(text: fmt::Arguments<'_>) -> String {
    lines(&format!("{text}\n"))
}

/// Writes a line with this program's name in front.
pub fn report(text: &str) {
    say(format_args!("bgctl: {text}"));
}

/// Writes a warning.
pub fn warn(text: &str) {
    say(format_args!("bgctl: warning: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remark_cannot_control_the_terminal() {
        let evil = "a\x1b[2J\u{9b}31m\u{202e}b\r\nc …";
        assert_eq!(line(format_args!("bgctl: {evil}")), "bgctl: a\u{fffd}[2J\u{fffd}31m\u{fffd}b \nc …\n");
    }
}
