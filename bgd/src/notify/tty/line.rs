//! The bytes written to a terminal for a notice: a line above the one being typed, and the sequence that makes a
//! terminal emulator show a bubble.
//!
//! A shell counts rows from the first row of the line it edits and moves the cursor up and down by that many, so all
//! rows of that line must stay together. Only the shell knows how many rows there are and which one the cursor is in:
//! asking the terminal for the cursor position would type the reply into the shell, and even the reply says nothing
//! about the rows above. A line inserted above the cursor's row splits a typed line of two rows: text typed at its end
//! is still correct, but the next move to its first row (Ctrl-A) ends in our line and overwrites it, and the split-off
//! row stays above, in bash 5.2, zsh 5.9 and fish 3.6 alike. If the cursor is in the first of two rows at the bottom of
//! the screen, the second is not visible until the line changes. Enter runs the typed line in any case.
//!
//! So there are three positions. If nothing was typed since a program ended, the prompt is new, and lines go above the
//! cursor's row ([`above_cursor`]). Otherwise they go to the top of the screen, where shells only go with Ctrl-L
//! ([`at_top`]), and the whole typed line moves by the same number of rows. A shell that remembers the row of the screen
//! in which its prompt begins, as Nushell does, would draw over whatever moved there with the next key: there, lines
//! replace the first rows of the screen, which scroll out of it, and everything else stays in its row ([`in_place`]).
//! Known flaws:
//!
//! - A line that was typed ahead and is wider than the terminal is split. So may be a line whose shell runs programs to
//!   complete it (see `keys`), and a line that takes up all rows of the screen.
//! - At the bottom of the screen, rows of a typed line or a menu more than two rows below the cursor are not visible
//!   until they are redrawn.
//! - A new prompt of two rows has our line between them until it is redrawn.
//! - At the top, our line may appear between rows of output that the shell itself has shown.
//! - A prompt in the first rows of the screen, as after Ctrl-L, is covered by lines that replace these rows until it is
//!   redrawn.

use std::fmt::Write as _;

use bgd_shared::id::TaskId;
use bgd_shared::notice::{Notice, NoticeKind};
use bgd_shared::show;
use bgd_shared::text::{Env, shortened};
use bgd_shared::width::{cut, width};
use serde::{Deserialize, Serialize};

use crate::core::SubmitterLocation;
use crate::notice;

/// The minimum number of columns for a description if the hint is shown as well.
const NAME_COLUMNS: usize = 16;

/// A line of characters without special effect on a terminal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The task in question.
    task: Option<TaskId>,
    /// The kind of its notice; `None` if there is no notice, or if an older daemon created the line.
    #[serde(default)]
    kind: Option<NoticeKind>,
    /// The event, the task, and how it ended.
    head: String,
    /// The task's description; empty for none.
    name: String,
    /// A suggested command; left out if it does not fit.
    hint: String,
}

/// Formats a notice as a line. With `is_removed`, the task was removed, so there is no hint.
pub fn line(notice: &Notice, is_removed: bool) -> Line {
    let id = notice.task.id.short();
    let hint = match notice.kind {
        _ if is_removed => String::new(),
        NoticeKind::Started => String::new(),
        NoticeKind::NeedsInput | NoticeKind::Unknown => format!(" (bgctl status {id})"),
        NoticeKind::Completed | NoticeKind::Failed | NoticeKind::Cancelled => format!(" (bgctl output {id})"),
    };
    let head = show::line(&notice::head(notice));
    Line { task: Some(notice.task.id), kind: Some(notice.kind), head, name: notice::name(notice), hint }
}

pub fn plain(text: &str) -> Line {
    Line { task: None, kind: None, head: show::line(text), name: String::new(), hint: String::new() }
}

/// Creates the line of a notice of this kind.
#[cfg(test)]
pub fn of_tests(kind: NoticeKind, text: &str) -> Line {
    Line { kind: Some(kind), ..plain(text) }
}

/// Creates the line of a question of this task.
#[cfg(test)]
pub fn question_of_tests(task: TaskId) -> Line {
    Line { task: Some(task), ..of_tests(NoticeKind::NeedsInput, "[question]") }
}

/// Creates the line of the end of this task.
#[cfg(test)]
pub fn end_of_tests(task: TaskId) -> Line {
    Line { task: Some(task), ..of_tests(NoticeKind::Completed, "[end]") }
}

impl Line {
    /// Drops the hint if the line is about this task, which was removed.
    pub fn forget(&mut self, task: TaskId) {
        if self.task == Some(task) {
            self.hint = String::new();
        }
    }

    /// Returns the task that asks, if the line is about a question.
    pub fn asker(&self) -> Option<TaskId> {
        self.task.filter(|_| self.kind == Some(NoticeKind::NeedsInput))
    }

    /// Reports whether the line is about the end of this task.
    pub fn ends(&self, task: TaskId) -> bool {
        self.task == Some(task) && self.kind.is_some_and(NoticeKind::is_end)
    }

    pub fn kind(&self) -> Option<NoticeKind> {
        self.kind
    }

    /// Returns the text without the hint.
    pub fn text(&self) -> String {
        self.with(&self.name, "")
    }

    fn with(&self, name: &str, hint: &str) -> String {
        let name = if name.is_empty() { String::new() } else { format!(": \"{name}\"") };
        format!("{}{name}{hint}", self.head)
    }

    /// Fits the line into this number of columns: shortens the description first, then leaves out the hint.
    fn fitting(&self, columns: u16) -> String {
        let columns = usize::from(columns);
        let whole = self.name.chars().count();
        for (hint, least) in [(&*self.hint, NAME_COLUMNS), ("", 2)] {
            let fits = |most: &usize| width(&self.with(&shortened(&self.name, *most), hint)) <= columns;
            if let Some(most) = (whole.min(least)..=whole.min(columns)).rev().find(fits) {
                return self.with(&shortened(&self.name, most), hint);
            }
        }
        cut(&self.head, columns, "…")
    }
}

/// Returns the sequences that insert lines above the cursor's line, in which the cursor keeps its position.
///
/// First one step down and one back (VT, RI), so that there is a row below. Then the position is saved (DECSC), a
/// row is inserted (IL) and written, the position is restored (DECRC), and the cursor moves one row down (CUD),
/// to where its line is now. VT replaces LF, which the terminal driver may expand to two characters.
pub fn above_cursor(lines: &[Line], columns: u16) -> Vec<u8> {
    let mut bytes = String::new();
    for line in lines {
        let text = line.fitting(columns);
        let _ = write!(bytes, "\x0b\x1bM\x1b7\r\x1b[m\x1b[L\x1b[?7l{text}\x1b[?7h\x1b8\x1b[B");
    }
    bytes.into_bytes()
}

/// How many rows below the cursor's row, of the typed line or of the shell's menu, stay visible at the bottom of the
/// screen.
const ROWS_BELOW: usize = 2;

/// Returns the sequences that insert lines at the top of a screen of this size; the caller limits them to half of
/// its rows. Everything else moves down, or up where the screen is full.
///
/// First some steps down and back (VT, CUU), so that there are rows below; then as in [`above_cursor`], but
/// at the top (CUP).
pub fn at_top(lines: &[Line], (rows, columns): (u16, u16)) -> Vec<u8> {
    let count = lines.len();
    let steps = (count + ROWS_BELOW).min(usize::from(rows).saturating_sub(1)).max(1);
    let mut bytes = "\x0b".repeat(steps);
    let _ = write!(bytes, "\x1b[{steps}A\x1b7\x1b[H\x1b[m\x1b[{count}L\x1b[?7l");
    let texts: Vec<String> = lines.iter().map(|line| line.fitting(columns)).collect();
    let _ = write!(bytes, "{}\x1b[?7h\x1b8\x1b[{count}B", texts.join("\r\x1b[B"));
    bytes.into_bytes()
}

/// Returns the sequences that replace the first rows of a screen of this size; the caller limits the lines to half of
/// its rows.
///
/// The position is saved (DECSC). At the bottom (CUP), VT moves all rows up, and what is inserted at the top (IL)
/// moves those that are left back to where they were. Then the position is restored (DECRC).
pub fn in_place(lines: &[Line], (rows, columns): (u16, u16)) -> Vec<u8> {
    let count = lines.len();
    let texts: Vec<String> = lines.iter().map(|line| line.fitting(columns)).collect();
    let (steps, texts) = ("\x0b".repeat(count), texts.join("\r\x1b[B"));
    format!("\x1b7\x1b[{rows}H{steps}\x1b[H\x1b[m\x1b[{count}L\x1b[?7l{texts}\x1b[?7h\x1b8").into_bytes()
}

/// Returns the sequence that makes a terminal show a bubble; empty if it is not known to support that, or inside
/// a multiplexer, which would show the sequence itself.
pub fn bubble(place: Option<&SubmitterLocation>, text: &str) -> Vec<u8> {
    let Some(SubmitterLocation { env, .. }) = place else { return Vec::new() };
    let value = |name: &str| value_of(env, name);
    let term = value("TERM");
    let is_inside = ["TMUX", "STY"].iter().any(|name| !value(name).is_empty());
    if is_inside || term.starts_with("tmux") || term.starts_with("screen") {
        return Vec::new();
    }
    let titled = format!("\x1b]777;notify;bgd;{text}\x1b\\");
    match value("TERM_PROGRAM").as_str() {
        "iTerm.app" => format!("\x1b]9;{text}\x07"),
        "WezTerm" | "ghostty" => titled,
        _ if term == "xterm-ghostty" || term == "foot" || term.starts_with("foot-") => titled,
        _ => String::new(),
    }
    .into_bytes()
}

fn value_of(env: &Env, name: &str) -> String {
    env.get(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_shortened_to_the_terminal_width() {
        let name = "a description that is long".to_owned();
        let line = Line {
            task: None,
            kind: None,
            head: "[DONE] 3f2a".into(),
            name: name.clone(),
            hint: " (x)".into(),
        };
        assert_eq!(line.fitting(45), format!("[DONE] 3f2a: \"{name}\" (x)"));
        assert_eq!(line.fitting(44), "[DONE] 3f2a: \"a descriptio…that is long\" (x)");
        assert_eq!(line.fitting(35), "[DONE] 3f2a: \"a descri…is long\" (x)");
        assert_eq!(line.fitting(34), "[DONE] 3f2a: \"a descrip…t is long\"");
        assert_eq!(line.fitting(17), "[DONE] 3f2a: \"a…\"");
        assert_eq!(line.fitting(10), "[DONE] 3f…");
        assert_eq!(plain("abcdef").fitting(6), "abcdef");
        assert_eq!(plain("日本語日本語").fitting(7), "日本語…");
    }

    #[test]
    fn line_with_pictures_keeps_the_column_limit() {
        let text = "\u{2600}\u{fe0f}".repeat(8);
        for columns in 0..8 {
            let fitting = plain(&text).fitting(columns);
            assert!(width(&fitting) <= usize::from(columns), "{fitting} in {columns} columns");
        }
    }

    #[test]
    fn lines_above_the_cursor_keep_the_typed_line() {
        for row in [0_u16, 1, 11, 22, 23] {
            for lines in [1, 3, 30] {
                let (rows, columns) = (24.try_into().unwrap(), 40.try_into().unwrap());
                let mut parser = vt100::Parser::new(rows, columns, 100);
                parser.process("\r\n".repeat(row.into()).as_bytes());
                parser.process(b"$ half-typed\x1b[3D");
                let (_, column) = parser.screen().cursor_position();
                let text: Vec<Line> = (0..lines).map(|line| plain(&format!("[line {line}]"))).collect();
                parser.process(&above_cursor(&text, 40));
                let screen = parser.screen();
                let (now, same) = screen.cursor_position();
                assert_eq!(same, column);
                let shown: Vec<String> = screen.rows(0, 40).collect();
                assert_eq!(shown[usize::from(now)], "$ half-typed", "row {row}, {lines} lines");
                assert_eq!(shown[usize::from(now) - 1], format!("[line {}]", lines - 1));
                assert_eq!(now, (row + lines).min(23));
            }
        }
    }

    #[test]
    fn desktop_bubble_is_sent_only_to_supporting_terminals() {
        let with = |pairs: &[(&str, &str)]| {
            let env = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            String::from_utf8(bubble(Some(&SubmitterLocation { terminal: None, env }), "done")).unwrap()
        };
        assert_eq!(with(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "iTerm.app")]), "\x1b]9;done\x07");
        assert_eq!(with(&[("TERM_PROGRAM", "WezTerm")]), "\x1b]777;notify;bgd;done\x1b\\");
        assert_eq!(with(&[("TERM", "foot-extra")]), "\x1b]777;notify;bgd;done\x1b\\");
        assert_eq!(with(&[("TERM", "xterm-256color")]), "");
        assert_eq!(with(&[("TERM", "foot"), ("TMUX", "/tmp/x,1,0")]), "");
        assert_eq!(with(&[("TERM", "screen.xterm"), ("TERM_PROGRAM", "WezTerm")]), "");
    }

    #[test]
    fn lines_in_place_keep_everything_below_them_in_its_row() {
        for row in [12_u16, 15, 23] {
            for lines in [1_u16, 3, 12] {
                let mut parser = vt100::Parser::new(24.try_into().unwrap(), 40.try_into().unwrap(), 100);
                for number in 0..row {
                    parser.process(format!("out {number}\r\n").as_bytes());
                }
                parser.process(b"$ half-typed\x1b[3D");
                let before: Vec<String> = parser.screen().rows(0, 40).collect();
                let cursor = parser.screen().cursor_position();
                let text: Vec<Line> = (0..lines).map(|line| plain(&format!("[line {line}]"))).collect();
                parser.process(&in_place(&text, (24, 40)));
                assert_eq!(parser.screen().cursor_position(), cursor);
                let after: Vec<String> = parser.screen().rows(0, 40).collect();
                let count = usize::from(lines);
                assert_eq!(after[count..], before[count..], "row {row}, {lines} lines");
                for (line, shown) in after[..count].iter().enumerate() {
                    assert_eq!(*shown, format!("[line {line}]"));
                }
                parser.screen_mut().set_scrollback(count);
                let scrolled: Vec<String> = parser.screen().rows(0, 40).take(count).collect();
                assert_eq!(scrolled, before[..count], "nothing is lost");
            }
        }
    }

    #[test]
    fn lines_at_the_top_keep_a_wrapped_typed_line() {
        for (row, above) in [0_u16, 1, 11, 20, 21].into_iter().flat_map(|row| [(row, 0), (row, 1), (row, 2)])
        {
            for lines in [1_u16, 3, 12] {
                let (rows, columns) = (24.try_into().unwrap(), 40.try_into().unwrap());
                let mut parser = vt100::Parser::new(rows, columns, 100);
                parser.process("out\r\n".repeat(row.into()).as_bytes());
                let typed = format!("$ {}{}{}", "a".repeat(38), "b".repeat(40), "c".repeat(10));
                parser.process(format!("{typed}\x1b[3D{}", "\x1b[A".repeat(above)).as_bytes());
                let text: Vec<Line> = (0..lines).map(|line| plain(&format!("[line {line}]"))).collect();
                parser.process(&at_top(&text, (24, 40)));
                let screen = parser.screen();
                let (now, column) = screen.cursor_position();
                assert_eq!(column, 7);
                let shown: Vec<String> = screen.rows(0, 40).collect();
                let first = usize::from(now) + above - 2;
                assert_eq!(shown[first..=first + 2].concat(), typed, "row {row}, {lines} lines");
                for line in 0..lines {
                    assert_eq!(shown[usize::from(line)], format!("[line {line}]"));
                }
            }
        }
    }
}
