//! Follows whether a job's output leaves the cursor at the start of a line. Output may be cut anywhere.

use std::fmt;

use bgd_shared::titles::TitleFilter;
use vte::{Params, Parser, Perform};

/// Whether the cursor is at the start of a line or, in the alternate screen, will be after leaving it.
#[derive(Default)]
pub struct LineStart {
    titles: TitleFilter,
    /// Boxed, as it has a large buffer.
    parser: Box<Parser>,
    cursor: Cursor,
}

impl LineStart {
    /// Follows the next bytes. `was_alternate` and `is_alternate` state which screen they begin and end on.
    pub fn push(&mut self, bytes: &[u8], was_alternate: bool, is_alternate: bool) {
        self.cursor.is_alternate = was_alternate;
        self.parser.advance(&mut self.cursor, &self.titles.push(bytes));
        self.cursor.is_alternate = is_alternate;
    }

    /// Notes that the cursor was moved to the start of a line.
    pub fn set(&mut self) {
        self.cursor.is_elsewhere = false;
    }

    /// Reports whether the cursor is at the start of a line. False if it is unknown.
    pub fn is_there(&self) -> bool {
        !self.cursor.is_elsewhere
    }
}

impl fmt::Debug for LineStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineStart").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cursor {
    /// Whether the cursor of the main screen may be elsewhere than at the start of a line.
    is_elsewhere: bool,
    is_alternate: bool,
}

impl Cursor {
    fn move_to(&mut self, is_elsewhere: bool) {
        if !self.is_alternate {
            self.is_elsewhere = is_elsewhere;
        }
    }
}

impl Perform for Cursor {
    fn print(&mut self, _character: char) {
        self.move_to(true);
    }

    /// A carriage return keeps the text of the line, so it starts none.
    fn execute(&mut self, control: u8) {
        match control {
            b'\n' | 0x0b | 0x0c => self.move_to(false),
            b'\t' => self.move_to(true),
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, parameters: &Params, marks: &[u8], _is_cut: bool, action: char) {
        let has = |modes: &[u16]| parameters.iter().flatten().any(|mode| modes.contains(mode));
        match (marks, action) {
            (b"?", 'h' | 'l') if has(&[47, 1047, 1049]) => self.is_alternate = action == 'h',
            // Origin mode and the width move the cursor, and this restores a saved one.
            (b"?", 'h' | 'l') if has(&[3, 6, 1048]) => self.move_to(true),
            // Colours, modes, erasing, queries and the like don't move it.
            ([], action) if !"mhlJKncst".contains(action) => self.move_to(true),
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _is_cut: bool, byte: u8) {
        match (intermediates, byte) {
            ([], b'E') => self.move_to(false),
            // The keypad's mode, saving the cursor and the end of a string don't move it, nor do character sets.
            ([], byte) if !b"=>7\\".contains(&byte) => self.move_to(true),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports whether these bytes leave the cursor at the start of a line, however they are cut.
    #[track_caller]
    fn is_there(text: &str) -> bool {
        let mut whole = LineStart::default();
        whole.push(text.as_bytes(), false, false);
        let mut cut = LineStart::default();
        for byte in text.as_bytes() {
            cut.parser.advance(&mut cut.cursor, &cut.titles.push(&[*byte]));
        }
        assert_eq!(cut.is_there(), whole.is_there(), "{text:?}");
        whole.is_there()
    }

    #[test]
    fn sequences_that_move_nothing_keep_the_start_of_a_line() {
        for text in [
            "",
            "red\r\n\x1b[0m",
            "\x1b[31mred\x1b[m\n",
            "a\r\n\x1b[?25h\x1b[34h\x1b[K\x1b[J\x1b[6n\x1b[>4;1m\x1b[0 q\x1b[<u\x1b=\x1b>\x1b7\x1b(B",
            "a\r\n\x1b]0;title\x07\x1b]0;title\x1b\\\x1bPq\x1b\\\x1bktitle\x1b\\",
            "a\n\r",
            "a\x1bE",
            "\x1b[?1049h\x1b[5;5Htext\x1b[?1049l",
            "a\r\n\x1b[?1049h\x1b[5;5Htext\x1b[?25;1049l\x1b[?25h",
        ] {
            assert!(is_there(text), "{text:?}");
        }
    }

    #[test]
    fn text_and_unknown_movements_end_the_start_of_a_line() {
        for text in [
            "a",
            "a\r",
            "ä\x1b[m",
            "a\n\t",
            "a\n\x1b[A",
            "a\n\x1b[5;5H",
            "a\n\x1b8",
            "a\n\x1b[u",
            "a\n\x1b[?6h",
            "a\x1b[?1049h\x1b[5;5Htext\n\x1b[?1049l",
        ] {
            assert!(!is_there(text), "{text:?}");
        }
    }
}
