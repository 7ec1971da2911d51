//! Renders the results of `doctor`: one line per check, with a hint below if action is needed.

use std::fmt::Write as _;

use bgd_shared::show::plain;
use serde::Serialize;

use super::{clean, clean_lines};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    Ok,
    /// It works, but less well than it could, or is not used.
    Note,
    /// It does not work.
    Fails,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The area: `machine`, `daemon`, `agents`, `channels`, `executors` or `shell`.
    pub part: &'static str,
    pub name: String,
    pub state: State,
    /// What was found.
    pub found: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    /// Creates a check that passed.
    pub fn ok(part: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        let found = plain(&found.into()).into_owned();
        Self { part, name: name.into(), state: State::Ok, found, hint: None }
    }

    /// Creates a check with room for improvement.
    pub fn note(part: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::ok(part, name, found) }
    }

    /// Creates a check that failed, with a hint on how to fix the problem.
    pub fn fails(
        part: &'static str,
        name: impl Into<String>,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { state: State::Fails, ..Self::ok(part, name, found) }.hint(hint)
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Minimum width for the findings, below which they are not wrapped.
const ROOM: usize = 30;

/// Formats the checks in their order, with a heading for each part. The findings are wrapped to this width, if given;
/// hints are not, as they may be copied.
pub fn page(checks: &[Check], colour: bool, columns: Option<u16>) -> String {
    let width = checks.iter().map(|check| clean(&check.name).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut part = "";
    for check in checks {
        if check.part != part {
            part = check.part;
            let _ = writeln!(text, "{}{part}", if text.is_empty() { "" } else { "\n" });
        }
        let (word, sgr) = match check.state {
            State::Ok => ("ok   ", "\x1b[32m"),
            State::Note => ("note ", "\x1b[33m"),
            State::Fails => ("FAILS", "\x1b[31m"),
        };
        let word = if colour { format!("{sgr}{word}\x1b[0m") } else { word.to_owned() };
        let room = columns.map(usize::from).and_then(|columns| columns.checked_sub(width + 11));
        let found = broken(&clean(&check.found), room.filter(|room| *room >= ROOM));
        for (number, line) in found.iter().enumerate() {
            let _ = match number {
                0 => writeln!(text, "  {word}  {:width$}  {line}", clean(&check.name)),
                _ => writeln!(text, "         {:width$}  {line}", ""),
            };
        }
        for line in check.hint.iter().flat_map(|hint| hint.lines()) {
            let _ = writeln!(text, "         {:width$}  -> {}", "", clean_lines(line));
        }
    }
    text
}

/// Wraps a text between words into lines of at most `room` characters.
fn broken(text: &str, room: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let length = |line: &String| line.chars().count() + 1 + word.chars().count();
        match lines.last_mut() {
            Some(line) if room.is_none_or(|room| length(line) <= room) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats the result of all checks.
pub fn summary(checks: &[Check]) -> String {
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let notes = match count(State::Note) {
        0 => String::new(),
        1 => ", 1 note".to_owned(),
        count => format!(", {count} notes"),
    };
    match count(State::Fails) {
        0 => format!("\nEverything works{notes}.\n"),
        1 => format!("\n1 check failed{notes}.\n"),
        fails => format!("\n{fails} checks failed{notes}.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r168_each_check_is_a_line_with_its_hint() {
        let checks = [
            Check::ok("machine", "kernel", "Linux 6.15"),
            Check::fails("machine", "folder", "gone\x1b", "make it"),
            Check::note("shell", "completions", "none"),
        ];
        let all = page(&checks, false, Some(80));
        assert_eq!(
            all,
            "machine\n  ok     kernel       Linux 6.15\n  FAILS  folder       gone\u{fffd}\n                      -> make it\n\
             \nshell\n  note   completions  none\n"
        );
        assert_eq!(summary(&checks), "\n1 check failed, 1 note.\n");
        let long = [Check::ok("machine", "kernel", "one two ".repeat(9).trim_end())];
        let lines = page(&long, false, Some(47));
        assert_eq!(
            lines,
            "machine\n  ok     kernel  one two one two one two one\n                 two one two one two one two\n                 \
             one two one two\n"
        );
        assert_eq!(page(&long, false, Some(30)).lines().count(), 2, "too narrow");
        assert_eq!(page(&long, false, None).lines().count(), 2);
        assert_eq!(summary(&checks[..1]), "\nEverything works.\n");
    }
}
