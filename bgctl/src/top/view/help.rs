//! The keys as lines, wrapped to the width of the screen.

use super::text::{fold, width as width_of};
use crate::top::help::{KEYS, SHORT};

/// Returns the most important keys, as many as fit into a line of this many columns.
pub fn short(columns: usize) -> String {
    let mut line = String::new();
    for key in SHORT {
        let gap = if line.is_empty() { "" } else { "  " };
        if width_of(&line) + gap.len() + key.len() > columns {
            break;
        }
        line = line + gap + key;
    }
    line
}

/// Width of the column of keys, including the blank after them.
const KEYS_COLUMNS: usize = 13;

/// Minimum number of columns for showing keys and descriptions side by side.
const SIDE_BY_SIDE: usize = 40;

/// Returns the keys as lines of this many columns.
pub fn lines(columns: usize) -> Vec<String> {
    KEYS.iter().flat_map(|(keys, what)| entry(keys, what, columns)).collect()
}

fn entry(keys: &str, what: &str, columns: usize) -> Vec<String> {
    if columns < SIDE_BY_SIDE {
        let above = fold(keys, columns).into_iter().filter(|line| !line.is_empty());
        let below = fold(what, columns.saturating_sub(1)).into_iter().map(|line| format!(" {line}"));
        return above.chain(below).collect();
    }
    let lines = fold(what, columns - KEYS_COLUMNS).into_iter().enumerate();
    let lines = lines.map(|(number, line)| {
        let keys = if number == 0 { keys } else { "" };
        format!("{keys:<KEYS_COLUMNS$}{line}")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r162_key_help_wraps_to_any_width() {
        let words =
            |lines: &[String]| lines.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wanted = words(&KEYS.map(|(keys, what)| format!("{keys} {what}")));
        for columns in [1, 20, 39, 40, 60, 80, 200] {
            let lines = lines(columns);
            assert_eq!(words(&lines), wanted, "{columns}");
            // Only a single word may be longer than the line.
            let fits = |line: &String| line.len() <= columns || line.split_whitespace().count() == 1;
            assert!(lines.iter().all(fits), "{columns}: {lines:#?}");
        }
        let lines = lines(80);
        let at = lines.iter().position(|line| line.starts_with("Tab ")).unwrap();
        assert_eq!(lines[at + 1], "             or dependency");
    }

    #[test]
    fn r162_short_help_line_keeps_whole_entries() {
        assert_eq!(
            short(80),
            "F1 help  q quit  Enter open  o output  / filter  Tab fold  x cancel  y n answer"
        );
        assert_eq!((short(20).as_str(), short(6).as_str()), ("F1 help  q quit", ""));
    }
}
