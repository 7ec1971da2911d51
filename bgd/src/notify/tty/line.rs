//! What is written to a terminal for a notice: a line above what is being typed, and what makes a terminal
//! program show a bubble.
//!
//! A shell counts rows from the first one of the line that it edits, and moves the cursor by so many up and
//! down; so all rows of that line have to stay together. How many they are, and in which the cursor is, only
//! the shell knows: to ask the terminal for the cursor would type its answer into the shell, and even that
//! says nothing of the rows above. A line above the cursor's row tears a typed line of two rows: what is typed
//! at its end is still right, but the next step to its first row (Ctrl-A) ends in our line and writes over
//! that, and the torn row stays above, in bash 5.2, zsh 5.9 and fish 3.6 alike. With the cursor in the first row
//! of two at the bottom of the screen, the second is lost from sight until the line is changed. Enter runs what
//! was typed in any case.
//!
//! So there are two places. Above the cursor's row where nothing was typed since a program has ended, as the prompt is
//! new then ([`above_cursor`]). Else at the top of the screen, where no shell ever goes but with Ctrl-L ([`at_top`]):
//! all of the typed line moves by the same rows. What remains: a line that was typed ahead, and is wider than the
//! terminal, is torn, and so may one be while its shell runs programs to complete it (see `keys`); so is one that takes
//! all rows of the screen; at its bottom, what a typed line or a menu has more than two rows below the cursor is lost
//! from sight until it is drawn again; a new prompt of two rows has the line between them until it is drawn anew; and
//! what a shell has shown by itself may have the line at the top between its rows.

use std::fmt::Write as _;

use bgd_shared::id::TaskId;
use bgd_shared::notice::{Notice, NoticeKind};
use bgd_shared::show;
use bgd_shared::text::Env;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::core::Place;
use crate::notice;

/// The columns that a description gets at least where there is also room for what can be done.
const NAME_COLUMNS: usize = 16;

/// One line, of characters that do nothing to a terminal.
#[derive(Clone, Debug)]
pub struct Line {
    /// The task that it is about.
    task: Option<TaskId>,
    /// What is told: what happened, to which task, and how it ended.
    head: String,
    /// The description of the task; empty for none.
    name: String,
    /// What can be done about it; left out where not all fits.
    hint: String,
}

/// A notice in one line. `is_removed`: the task is gone, so that nothing can be done about it.
pub fn line(notice: &Notice, is_removed: bool) -> Line {
    let id = notice.task.id.short();
    let hint = match notice.kind {
        _ if is_removed => String::new(),
        NoticeKind::Started => String::new(),
        NoticeKind::NeedsInput => format!(" (bgctl status {id})"),
        NoticeKind::Completed | NoticeKind::Failed | NoticeKind::Cancelled => format!(" (bgctl output {id})"),
    };
    let head = show::line(&notice::head(notice));
    Line { task: Some(notice.task.id), head, name: notice::name(notice), hint }
}

/// A line of these words.
pub fn plain(text: &str) -> Line {
    Line { task: None, head: show::line(text), name: String::new(), hint: String::new() }
}

impl Line {
    /// A task is gone: if this is about it, nothing can be done any more.
    pub fn forget(&mut self, task: TaskId) {
        if self.task == Some(task) {
            self.hint = String::new();
        }
    }

    /// All that is told.
    pub fn text(&self) -> String {
        self.with(&self.name, "")
    }

    fn with(&self, name: &str, hint: &str) -> String {
        let name = if name.is_empty() { String::new() } else { format!(": \"{name}\"") };
        format!("{}{name}{hint}", self.head)
    }

    /// What fits in so many columns: first the description is shortened, then what can be done is left out.
    fn fitting(&self, columns: u16) -> String {
        let columns = usize::from(columns);
        let whole = self.name.chars().count();
        for (hint, least) in [(&*self.hint, NAME_COLUMNS), ("", 2)] {
            let fits = |most: &usize| self.with(&show::shortened(&self.name, *most), hint).width() <= columns;
            if let Some(most) = (whole.min(least)..=whole.min(columns)).rev().find(fits) {
                return self.with(&show::shortened(&self.name, most), hint);
            }
        }
        cut(&self.head, columns)
    }
}

/// The beginning of a text that fits in so many columns.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken < columns
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    cut.push('…');
    cut
}

/// The sequences that put lines above the cursor's, which stays where it is in its own.
///
/// First a step down and one back (VT, RI), so that there is a row below. The place is kept (DECSC), a row is
/// inserted here (IL) and written, and the cursor goes back to its place (DECRC), one row further down (CUD),
/// where its line is now. VT in place of LF, as that may be made into two characters on its way.
pub fn above_cursor(lines: &[Line], columns: u16) -> Vec<u8> {
    let mut bytes = String::new();
    for line in lines {
        let text = line.fitting(columns);
        let _ = write!(bytes, "\x0b\x1bM\x1b7\r\x1b[m\x1b[L\x1b[?7l{text}\x1b[?7h\x1b8\x1b[B");
    }
    bytes.into_bytes()
}

/// How many rows of the typed line, or of a menu of its shell, may be below the cursor's at the bottom of the
/// screen, and stay.
const ROWS_BELOW: usize = 2;

/// The sequences that put lines at the top of a screen of so many rows and columns, of which they take half at
/// most; everything else moves down, or up where it is full.
///
/// First some steps down and back (VT, CUU), so that there are rows below; then as above, at the top (CUP).
pub fn at_top(lines: &[Line], (rows, columns): (u16, u16)) -> Vec<u8> {
    let count = lines.len();
    let steps = (count + ROWS_BELOW).min(usize::from(rows).saturating_sub(1)).max(1);
    let mut bytes = "\x0b".repeat(steps);
    let _ = write!(bytes, "\x1b[{steps}A\x1b7\x1b[H\x1b[m\x1b[{count}L\x1b[?7l");
    let texts: Vec<String> = lines.iter().map(|line| line.fitting(columns)).collect();
    let _ = write!(bytes, "{}\x1b[?7h\x1b8\x1b[{count}B", texts.join("\r\x1b[B"));
    bytes.into_bytes()
}

/// What makes a terminal show a bubble; empty if it is not known to do so. A multiplexer would show it itself.
pub fn bubble(place: Option<&Place>, text: &str) -> Vec<u8> {
    let Some(Place { env, .. }) = place else { return Vec::new() };
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
    fn a_line_is_as_wide_as_the_terminal_at_most() {
        let name = "a description that is long".to_owned();
        let line = Line { task: None, head: "[DONE] 3f2a".into(), name: name.clone(), hint: " (x)".into() };
        assert_eq!(line.fitting(45), format!("[DONE] 3f2a: \"{name}\" (x)"));
        assert_eq!(line.fitting(44), "[DONE] 3f2a: \"a descriptio…that is long\" (x)");
        assert_eq!(line.fitting(35), "[DONE] 3f2a: \"a descri…is long\" (x)");
        assert_eq!(line.fitting(34), "[DONE] 3f2a: \"a descrip…t is long\"");
        assert_eq!(line.fitting(17), "[DONE] 3f2a: \"a…\"");
        assert_eq!(line.fitting(10), "[DONE] 3f…");
        assert_eq!(plain("abcdef").fitting(6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語日本語", 7), "日本語…");
    }

    #[test]
    fn the_typed_line_stays_as_it_is_wherever_it_is() {
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
    fn only_terminals_that_know_it_are_asked_for_a_bubble() {
        let with = |pairs: &[(&str, &str)]| {
            let env = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            String::from_utf8(bubble(Some(&Place { terminal: None, env }), "done")).unwrap()
        };
        assert_eq!(with(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "iTerm.app")]), "\x1b]9;done\x07");
        assert_eq!(with(&[("TERM_PROGRAM", "WezTerm")]), "\x1b]777;notify;bgd;done\x1b\\");
        assert_eq!(with(&[("TERM", "foot-extra")]), "\x1b]777;notify;bgd;done\x1b\\");
        assert_eq!(with(&[("TERM", "xterm-256color")]), "");
        assert_eq!(with(&[("TERM", "foot"), ("TMUX", "/tmp/x,1,0")]), "");
        assert_eq!(with(&[("TERM", "screen.xterm"), ("TERM_PROGRAM", "WezTerm")]), "");
    }

    #[test]
    fn a_line_of_several_rows_is_not_torn_by_lines_at_the_top() {
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
