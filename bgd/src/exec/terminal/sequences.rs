//! Follows the escape sequences in a job's output to its terminal: the modes that they set, and the bytes that change
//! the screen. It is fast where there are none, as all output passes through here.
//!
//! Everything else counts as text; the appearance of the screen is up to the parser.

use bgd_shared::request::TerminalSize;
use memchr::memchr3;
use serde::{Deserialize, Serialize};

use super::modes::{Modes, Region};

const ESC: u8 = 0x1b;
const SHIFT_OUT: u8 = 0x0e;
const SHIFT_IN: u8 = 0x0f;
const BEL: u8 = 0x07;
/// Begins the title of a window of tmux or screen, which is a string in their terminals.
const WINDOW_TITLE: u8 = b'k';
/// Either of these ends a sequence without an effect.
const CANCEL: [u8; 2] = [0x18, 0x1a];

/// The maximum length of a sequence that is understood, in bytes. Longer ones have no effect on the kept screen.
const SEQUENCE_BYTES: usize = 256;

/// How many bytes of an unfinished string (a title, an image) are kept for a viewer that attaches meanwhile. Of a
/// longer one the viewer receives only the beginning, which makes its terminal ignore the rest.
const STRING_BYTES: usize = 4096;

const SAVE_CURSOR: &[u8] = b"\x1b7";
const RESTORE_CURSOR: &[u8] = b"\x1b8";

/// The position in a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ParseState {
    Text,
    /// After an ESC.
    Escape,
    /// In a control sequence.
    Control,
    String,
}

/// Follows the escape sequences of a terminal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sequences {
    size: TerminalSize,
    place: ParseState,
    /// The sequence that has not ended.
    #[serde(with = "crate::carry::bytes")]
    unfinished: Vec<u8>,
    modes: Modes,
    /// Whether the main screen ever had text.
    has_main: bool,
    /// Whether it had none when the alternate screen was last entered.
    is_main_blank: bool,
    /// The character repeated on request, or an empty string, while the parser does not know it: after an upgrade,
    /// until the next character.
    #[serde(default)]
    repeats: Option<String>,
}

impl Sequences {
    /// Creates the state for an untouched terminal of this size.
    pub fn new(size: TerminalSize) -> Self {
        let (unfinished, modes) = (Vec::new(), Modes::default());
        Self {
            size,
            place: ParseState::Text,
            unfinished,
            modes,
            has_main: false,
            is_main_blank: false,
            repeats: None,
        }
    }

    /// Sets the character repeated on request, for a parser that does not know it.
    #[must_use]
    pub fn repeating(self, repeats: Option<String>) -> Self {
        Self { repeats, ..self }
    }

    pub fn modes(&self) -> &Modes {
        &self.modes
    }

    /// Reports whether the main screen was blank when the alternate one was last entered.
    pub fn is_main_blank(&self) -> bool {
        self.is_main_blank
    }

    /// Handles a change of the terminal's size.
    pub fn resized(&mut self, size: TerminalSize) {
        self.size = size;
        self.modes.resized();
    }

    /// Returns the sequence that has begun but not ended.
    pub fn unfinished(&self) -> &[u8] {
        match self.place {
            ParseState::String if self.unfinished.len() == STRING_BYTES => &self.unfinished[..2],
            ParseState::Text | ParseState::Escape | ParseState::Control | ParseState::String => {
                &self.unfinished
            }
        }
    }

    /// Processes the next bytes. Appends to `screen` those that change the screen: text, and whole sequences.
    pub fn take(&mut self, mut bytes: &[u8], screen: &mut Vec<u8>) {
        while let Some(first) = bytes.first() {
            let used = match self.place {
                ParseState::Text => self.text(bytes, screen),
                ParseState::String => self.string(bytes),
                ParseState::Escape => self.escape(*first, screen),
                ParseState::Control => self.control(*first, screen),
            };
            bytes = &bytes[used..];
        }
    }

    fn begin(&mut self) {
        self.place = ParseState::Escape;
        self.unfinished.clear();
        self.unfinished.push(ESC);
    }

    fn end(&mut self) {
        self.place = ParseState::Text;
        self.unfinished.clear();
    }

    fn text(&mut self, bytes: &[u8], screen: &mut Vec<u8>) -> usize {
        let end = memchr3(ESC, SHIFT_OUT, SHIFT_IN, bytes).unwrap_or(bytes.len());
        if !self.has_main && !self.modes.is_alternate() {
            self.has_main = bytes[..end].iter().any(|byte| *byte > b' ');
        }
        if self.repeats.is_some() && bytes[..end].iter().any(|byte| *byte >= b' ') {
            self.repeats = None;
        }
        if self.modes.draws_lines() {
            bytes[..end].iter().for_each(|byte| draw(*byte, screen));
        } else {
            screen.extend_from_slice(&bytes[..end]);
        }
        match bytes.get(end) {
            Some(&ESC) => self.begin(),
            Some(control) => self.execute(*control, screen),
            None => return end,
        }
        end + 1
    }

    /// Executes a control character, which takes effect inside sequences, too.
    fn execute(&mut self, byte: u8, screen: &mut Vec<u8>) {
        match byte {
            SHIFT_OUT => self.modes.shift(true),
            SHIFT_IN => self.modes.shift(false),
            byte => screen.push(byte),
        }
    }

    fn string(&mut self, bytes: &[u8]) -> usize {
        let is_command = self.unfinished.get(1) == Some(&b']');
        let ends = |byte: &u8| *byte == ESC || CANCEL.contains(byte) || (is_command && *byte == BEL);
        let end = bytes.iter().position(ends);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = STRING_BYTES - self.unfinished.len();
        self.unfinished.extend_from_slice(&part[..part.len().min(room)]);
        match end.map(|end| bytes[end]) {
            // The string terminator has two characters, the first of which is ESC.
            Some(ESC) => self.begin(),
            Some(_) => self.end(),
            None => return part.len(),
        }
        part.len() + 1
    }

    fn escape(&mut self, byte: u8, screen: &mut Vec<u8>) -> usize {
        match byte {
            ESC => self.begin(),
            byte if CANCEL.contains(&byte) => self.end(),
            0x00..=0x1f => self.execute(byte, screen),
            b'[' if self.unfinished.len() == 1 => self.continue_sequence(byte, ParseState::Control),
            b']' | b'P' | b'X' | b'^' | b'_' | WINDOW_TITLE if self.unfinished.len() == 1 => {
                self.continue_sequence(byte, ParseState::String);
            }
            0x20..=0x2f => self.continue_sequence(byte, ParseState::Escape),
            0x30..=0x7e => {
                match (&self.unfinished[1..], byte) {
                    // Down one line (IND), which the parser does not know.
                    ([], b'D') => screen.push(b'\n'),
                    ([], b'E') => screen.extend_from_slice(b"\r\n"),
                    (intermediates, byte) => {
                        if (intermediates, byte) == (&[], b'c') {
                            self.repeats = None;
                        }
                        self.modes.escape(intermediates, byte);
                        screen.extend_from_slice(&self.unfinished);
                        screen.push(byte);
                    }
                }
                self.end();
            }
            0x7f.. => {}
        }
        1
    }

    fn continue_sequence(&mut self, byte: u8, place: ParseState) {
        self.place = place;
        if self.unfinished.len() < SEQUENCE_BYTES {
            self.unfinished.push(byte);
        }
    }

    fn control(&mut self, byte: u8, screen: &mut Vec<u8>) -> usize {
        match byte {
            ESC => self.begin(),
            byte if CANCEL.contains(&byte) => self.end(),
            0x00..=0x1f => self.execute(byte, screen),
            0x20..=0x3f => self.continue_sequence(byte, ParseState::Control),
            0x40..=0x7e => {
                if self.unfinished.len() < SEQUENCE_BYTES {
                    self.finish_control(byte, screen);
                }
                self.end();
            }
            0x7f.. => {}
        }
        1
    }

    fn finish_control(&mut self, last: u8, screen: &mut Vec<u8>) {
        let body = &self.unfinished[2..];
        let (prefix, rest) = match body {
            [prefix @ b'<'..=b'?', rest @ ..] => (Some(*prefix), rest),
            rest => (None, rest),
        };
        let end = rest.iter().position(|byte| (0x20..=0x2f).contains(byte)).unwrap_or(rest.len());
        let (numbers, intermediates) = rest.split_at(end);
        let params = params(numbers);
        let was_alternate = self.modes.is_alternate();
        self.modes.control(prefix, &params, intermediates, last);
        if !was_alternate && self.modes.is_alternate() {
            self.is_main_blank = !self.has_main;
        }
        match (prefix, intermediates, last) {
            (None, [], b'b') => {
                let count = repeated(params.first().copied().unwrap_or(1), self.size);
                match self.repeats.take() {
                    Some(one) => screen.extend_from_slice(one.repeat(count.into()).as_bytes()),
                    None => screen.extend_from_slice(format!("\x1b[{count}b").as_bytes()),
                }
            }
            // Sequences that the parser knows by other names, or only in part.
            (None, [], b's') if body.is_empty() => screen.extend_from_slice(SAVE_CURSOR),
            (None, [], b'u') if body.is_empty() => screen.extend_from_slice(RESTORE_CURSOR),
            (None, [], b'r') => {
                // As in terminals, an invalid region is ignored.
                if let Some((top, bottom)) = scroll_region(&params, self.size.rows) {
                    let all = (top, bottom) == (1, self.size.rows);
                    self.modes.set_region((!all).then_some((top, bottom)));
                    // The parser leaves the cursor at the top of these rows, so move it home.
                    screen.extend_from_slice(format!("\x1b[{top};{bottom}r\x1b[H").as_bytes());
                }
            }
            (None, [b'!'], b'p') => screen.extend_from_slice(b"\x1b[m\x1b[?6l"),
            (Some(b'?'), [], b'h' | b'l') => self.finish_private(&params, last, screen),
            (_, _, last) => {
                screen.extend_from_slice(&self.unfinished);
                screen.push(last);
            }
        }
    }

    fn finish_private(&self, params: &[u16], last: u8, screen: &mut Vec<u8>) {
        screen.extend_from_slice(&self.unfinished);
        screen.push(last);
        for mode in params {
            match (mode, last) {
                (1047, b'h') => screen.extend_from_slice(b"\x1b[?47h"),
                (1047, _) => screen.extend_from_slice(b"\x1b[?47l"),
                (1048, b'h') => screen.extend_from_slice(SAVE_CURSOR),
                (1048, _) => screen.extend_from_slice(RESTORE_CURSOR),
                _ => {}
            }
        }
    }
}

/// Returns the numbers of a control sequence; an omitted one is 0, and of a number with parts the first counts.
fn params(numbers: &[u8]) -> Vec<u16> {
    if numbers.is_empty() {
        return Vec::new();
    }
    let number = |text: &[u8]| {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0_u16, |number, digit| number.saturating_mul(10).saturating_add((digit - b'0').into()))
    };
    numbers.split(|byte| *byte == b';').map(number).collect()
}

/// Limits how often a character is repeated (`CSI n b`) to the number that fills the screen and ends in the same
/// column: the rest can't be seen, and would keep the parser busy.
fn repeated(count: u16, size: TerminalSize) -> u16 {
    match size.rows.checked_mul(size.cols) {
        Some(all @ 1..) if count > all => all.saturating_add((count - all) % size.cols),
        _ => count,
    }
}

/// Returns the requested scroll region on a screen of `rows` rows; `None` if it has fewer than two rows, unless it is
/// the whole screen.
fn scroll_region(params: &[u16], rows: u16) -> Option<Region> {
    let param = |place: usize| params.get(place).copied().filter(|number| *number > 0);
    let (top, bottom) = (param(0).unwrap_or(1), param(1).unwrap_or(rows).min(rows));
    (top < bottom || (top, bottom) == (1, rows)).then_some((top, bottom))
}

/// The characters for lines and corners, from `` ` `` to `~`.
const LINES: [&str; 31] = [
    "◆", "▒", "␉", "␌", "␍", "␊", "°", "±", "␤", "␋", "┘", "┐", "┌", "└", "┼", "⎺", "⎻", "─", "⎼", "⎽", "├",
    "┤", "┴", "┬", "│", "≤", "≥", "π", "≠", "£", "·",
];

fn draw(byte: u8, screen: &mut Vec<u8>) {
    match byte.checked_sub(b'`').and_then(|place| LINES.get(usize::from(place))) {
        Some(line) => screen.extend_from_slice(line.as_bytes()),
        None => screen.push(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

    /// Returns the part of these bytes that changes the screen, and the state after them.
    fn follow(bytes: &[u8]) -> (String, Sequences) {
        let (mut sequences, mut screen) = (Sequences::new(SIZE), Vec::new());
        sequences.take(bytes, &mut screen);
        (String::from_utf8_lossy(&screen).into_owned(), sequences)
    }

    #[test]
    fn text_and_sequences_are_passed_on_without_control_strings() {
        let text = "a\x1b]2;title\x07b\x1b[1mc\x1bPq#0\x1b\\d\x1b]8;;uri\x1b\\e";
        assert_eq!(follow(text.as_bytes()).0, "ab\x1b[1mc\x1b\\d\x1b\\e");
        assert_eq!(follow(b"\x1bktitle\x1b\\x\x1b(k").0, "\x1b\\x\x1b(k", "the title of a window in tmux");
        assert_eq!(follow(b"\x1b[1;2\x18x\x1b]2;t\x1ay").0, "xy", "cancelled");
        assert_eq!(follow(b"\x1b[2\r\nJ").0, "\r\n\x1b[2J", "controls work inside of sequences");
    }

    #[test]
    fn sequences_unknown_to_the_parser_are_translated() {
        assert_eq!(follow(b"\x1bD\x1bE").0, "\n\r\n");
        assert_eq!(follow(b"\x1b[s\x1b[u\x1b[?1048h\x1b[?1048l").0, {
            "\x1b7\x1b8\x1b[?1048h\x1b7\x1b[?1048l\x1b8"
        });
        assert_eq!(follow(b"\x1b[?1047h\x1b[?25;1047l").0, { "\x1b[?1047h\x1b[?47h\x1b[?25;1047l\x1b[?47l" });
        assert_eq!(follow(b"x\x1b[1920b\x1b[60003b").0, "x\x1b[1920b\x1b[1923b");
        assert_eq!(
            follow(b"\x1b(0lqk\x1b(Bq\x1b)0\x0eq\x0fq").0.replace("\x1b(0", "").replace("\x1b(B", ""),
            { "\u{250c}\u{2500}\u{2510}q\x1b)0\u{2500}q" }
        );
    }

    #[test]
    fn unfinished_sequence_is_kept_up_to_a_limit() {
        assert_eq!(follow(b"x\x1b[1;3").1.unfinished(), b"\x1b[1;3");
        assert_eq!(follow(b"x\x1b]2;ti").1.unfinished(), b"\x1b]2;ti");
        let long = [b"\x1b]".as_slice(), &[b'x'; 10_000]].concat();
        assert_eq!(follow(&long).1.unfinished(), b"\x1b]");
        let long = [b"\x1b[".as_slice(), &[b'1'; 10_000], b"m."].concat();
        let (screen, sequences) = follow(&long);
        assert_eq!((&*screen, sequences.unfinished()), (".", b"".as_slice()));
    }

    proptest! {
        #[test]
        fn sequences_are_independent_of_chunking(
            bytes in prop::collection::vec(prop::sample::select(&b"\x1b\x1b[]?(0;125hlmrqu!>=PX\\\x07\x0e\x0f\x18a\n"[..]), 0..200),
            cut in 0_usize..200,
        ) {
            let (screen, whole) = follow(&bytes);
            let (mut parted, mut parts) = (Sequences::new(SIZE), Vec::new());
            let (one, other) = bytes.split_at(cut.min(bytes.len()));
            parted.take(one, &mut parts);
            parted.take(other, &mut parts);
            prop_assert_eq!(String::from_utf8_lossy(&parts), screen);
            prop_assert_eq!(parted.modes(), whole.modes());
            prop_assert_eq!(parted.unfinished(), whole.unfinished());
        }

        /// Even if the terminal was left in the middle of a sequence or of a string.
        #[test]
        fn restore_resets_all_modes(
            bytes in prop::collection::vec(prop::sample::select(&b"\x1b\x1b\x1b[[[]?(0;1245679hhlmrrqu!>=<P\\\x07\x0e\x0f\x18"[..]), 0..200),
        ) {
            let (_, mut sequences) = follow(&bytes);
            let restore = sequences.modes().restore();
            sequences.take(b"\x18", &mut Vec::new());
            sequences.take(restore.as_bytes(), &mut Vec::new());
            let again = sequences.modes().restore();
            prop_assert!(again.is_empty() || again == "\x1b[m", "{:?} after {:?}", again, restore);
        }
    }
}
