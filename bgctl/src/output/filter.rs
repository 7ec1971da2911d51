//! Extracts the part of a terminal's output that can be shown later, on a terminal in another state: text and colours.
//! All other sequences are dropped: they would move the cursor to a place with other content, change the terminal's
//! modes, or make it answer. Output may be cut anywhere.

use std::fmt::Write as _;

use bgd_shared::titles::TitleFilter;
use vte::{Params, Parser, Perform};

/// Passes on text and colours, except those for the alternate screen.
#[derive(Default)]
pub struct TextFilter {
    titles: TitleFilter,
    parser: Parser,
    shown: Shown,
}

impl TextFilter {
    /// Starts on the main screen or on the alternate one.
    pub fn new(is_alternate: bool) -> Self {
        Self { shown: Shown { is_alternate, ..Shown::default() }, ..Self::default() }
    }

    /// Starts on the main screen, for output that is shown from its beginning to its end: also passes on what redraws
    /// its last lines, such as progress bars, namely relative movements and erasing.
    pub fn with_redrawn_lines() -> Self {
        Self { shown: Shown { redraws_lines: true, ..Shown::default() }, ..Self::default() }
    }

    /// Reports whether any text of the alternate screen was dropped.
    pub fn has_left_out(&self) -> bool {
        self.shown.has_left_out
    }

    /// Reports whether the output so far ends on the alternate screen.
    pub fn is_alternate(&self) -> bool {
        self.shown.is_alternate
    }

    /// Returns the showable part of the next bytes. Invalid UTF-8 becomes U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.parser.advance(&mut self.shown, &self.titles.push(bytes));
        std::mem::take(&mut self.shown.text)
    }
}

/// Collects the showable part of the output.
#[derive(Default)]
struct Shown {
    text: String,
    is_alternate: bool,
    redraws_lines: bool,
    has_left_out: bool,
}

impl Shown {
    fn show(&mut self, character: char) {
        if self.is_alternate {
            self.has_left_out = true;
        } else {
            self.text.push(character);
        }
    }

    fn sequence(&mut self, parameters: &Params, action: char) {
        self.text.push_str("\x1b[");
        for (index, parameter) in parameters.iter().enumerate() {
            let numbers = parameter.iter().map(u16::to_string).collect::<Vec<_>>().join(":");
            let _ = write!(self.text, "{}{numbers}", if index == 0 { "" } else { ";" });
        }
        self.text.push(action);
    }
}

impl Perform for Shown {
    fn print(&mut self, character: char) {
        if !character.is_control() {
            self.show(character);
        }
    }

    fn execute(&mut self, control: u8) {
        if matches!(control, b'\n' | b'\r' | b'\t' | 0x08) {
            self.show(control.into());
        }
    }

    fn csi_dispatch(&mut self, parameters: &Params, marks: &[u8], is_cut: bool, action: char) {
        let is_screen = |parameter: &[u16]| matches!(parameter, [47 | 1047 | 1049]);
        match (marks, action) {
            (b"?", 'h' | 'l') if parameters.iter().any(is_screen) => self.is_alternate = action == 'h',
            _ if is_cut || self.is_alternate => {}
            ([], 'm') => self.sequence(parameters, action),
            ([], 'A'..='G' | 'K' | '@' | 'P' | 'X') if self.redraws_lines => {
                self.sequence(parameters, action);
            }
            // Not the whole screen, or what is above: that is not the output's.
            ([], 'J') if self.redraws_lines && parameters.iter().all(|what| matches!(what, [0])) => {
                self.sequence(parameters, action);
            }
            _ => {}
        }
    }

    /// A full reset also leaves the alternate screen.
    fn esc_dispatch(&mut self, intermediates: &[u8], _is_cut: bool, byte: u8) {
        if (intermediates, byte) == (&[], b'c') {
            self.is_alternate = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] =
        "one\r\n\x1b[1;31;48:2:1mré\u{9b}d\x1b[m\x1b[6n\x07\x1b[2Jtwo\x1b]0;title\x07\x1b]2;t\x1b\\three\
        \x1bP+q\x1b\\\x1b(B\x1bktitle\x1b\\four\x1b[?1049h\x1b[Hthe alternate\x1b[m\x1b[?1049l\x1b[>0;1mfive\x1b7\tsix"
            .as_bytes();

    const SHOWN: &str = "one\r\n\x1b[1;31;48:2:1mréd\x1b[0mtwothreefourfive\tsix";

    #[test]
    fn r142_filtered_text_is_independent_of_chunking() {
        for size in 1..OUTPUT.len() {
            let mut filter = TextFilter::new(false);
            let shown: String = OUTPUT.chunks(size).map(|part| filter.push(part)).collect();
            assert_eq!(shown, SHOWN, "{size}");
        }
    }

    #[test]
    fn redrawn_lines_are_passed_on_without_modes_and_queries() {
        let mut filter = TextFilter::with_redrawn_lines();
        let bars = b"\r\x1b[K50%\x1b[2A\x1b[G\x1b[J";
        assert_eq!(filter.push(bars), "\r\x1b[0K50%\x1b[2A\x1b[0G\x1b[0J");
        let others = b"\x1b[6n\x1b[c\x1b[>c\x1b[?1000;2004h\x1b=\x1b]11;?\x07\x1bP$qm\x1b\\\x05\x0e\
            \x1b[H\x1b[2J\x1b[5;9r\x1b[?J\x1b[?1049l";
        assert_eq!(filter.push(others), "");
        assert!(!filter.has_left_out());
        assert_eq!(filter.push(b"\x1b[?1049h\x1b[1Atext\x1b[K\x1b[?1049lback"), "back");
        assert!(filter.has_left_out());
        assert_eq!(
            filter.push(b"\x1b[?1049htext\x1bcnext \x1b[2P\x1b[@\x1b[3X"),
            "next \x1b[2P\x1b[0@\x1b[3X"
        );
    }

    #[test]
    fn unterminated_sequence_is_bounded() {
        let mut filter = TextFilter::new(true);
        assert!(filter.push(b"hidden").is_empty());
        let long = [b"\x1b[", &*vec![b'1'; 1000], b"\x1b[?47lx"].concat();
        assert_eq!(filter.push(&long), "x");
    }
}
