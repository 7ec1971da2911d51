//! Decodes a terminal's input: keys, pastes and the mouse. Bytes go in, keys come out; a sequence may arrive in pieces.

/// Maximum number of bytes of a paste that are kept; the rest is dropped.
const PASTE_BYTES: usize = 64 * 1024;

/// Maximum number of bytes of an unknown sequence.
const SEQUENCE_BYTES: usize = 64;

/// The sequences that start and end a paste.
const PASTE: [&[u8]; 2] = [b"\x1b[200~", b"\x1b[201~"];

/// The byte sent for Ctrl-C.
const CTRL_C: u8 = 0x03;

/// A user action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// A letter with Ctrl.
    Ctrl(char),
    /// A pasted text, with all control characters replaced.
    Paste(String),
    Enter,
    Tab,
    /// Escape alone.
    Escape,
    Backspace,
    Delete,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// F1.
    Help,
    /// A press of the left mouse button in this row and column, counted from 0.
    Click(u16, u16),
    /// A turn of the mouse wheel by this many lines.
    Wheel(isize),
}

/// Collects bytes until they form keys.
#[derive(Debug, Default)]
pub struct Keys {
    held: Vec<u8>,
    /// A paste so far. Its last bytes may be the start of the sequence that ends it.
    paste: Option<Vec<u8>>,
}

/// The meaning of the first bytes.
enum Found {
    /// A key of this length in bytes. `None`: the sequence has no meaning here.
    Key(Option<Key>, usize),
    /// The start of a paste, whose text begins after this many bytes.
    Paste(usize),
    /// An incomplete sequence.
    Part,
}

impl Keys {
    /// Adds bytes and returns the complete keys.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Key> {
        // The end of a paste may have been lost. Pasted text hardly ever arrives as just this byte.
        if bytes == [CTRL_C] && self.paste.take().is_some() {
            return vec![Key::Ctrl('c')];
        }
        let mut keys = Vec::new();
        let mut bytes = bytes;
        while !bytes.is_empty() {
            if self.paste.is_some() {
                bytes = self.pasted(bytes, &mut keys);
                continue;
            }
            self.held.extend_from_slice(bytes);
            bytes = &[];
            let held = std::mem::take(&mut self.held);
            let mut rest = &held[..];
            while !rest.is_empty() {
                match first(rest) {
                    Found::Key(key, length) => {
                        keys.extend(key);
                        rest = &rest[length..];
                    }
                    Found::Paste(length) => {
                        self.paste = Some(Vec::new());
                        rest = self.pasted(&rest[length..], &mut keys);
                    }
                    Found::Part => {
                        self.held = rest.to_vec();
                        break;
                    }
                }
            }
        }
        keys
    }

    /// Adds bytes to a paste, and returns the bytes after its end.
    fn pasted<'a>(&mut self, bytes: &'a [u8], keys: &mut Vec<Key>) -> &'a [u8] {
        let Some(paste) = &mut self.paste else { return bytes };
        let known = paste.len();
        paste.extend_from_slice(bytes);
        let from = known.saturating_sub(PASTE[1].len());
        let Some(end) = memchr::memmem::find(&paste[from..], PASTE[1]).map(|end| from + end) else {
            // Bytes are dropped before the last ones, which may be the start of the sequence that ends the paste.
            let too_many = paste.len().saturating_sub(PASTE_BYTES + PASTE[1].len());
            let kept = PASTE_BYTES.min(paste.len());
            paste.drain(kept..(kept + too_many).min(paste.len()));
            return &[];
        };
        let behind = bytes.len() - (paste.len() - (end + PASTE[1].len()));
        paste.truncate(end.min(PASTE_BYTES));
        let text = String::from_utf8_lossy(paste);
        keys.push(Key::Paste(crate::render::clean(&text)));
        self.paste = None;
        &bytes[behind..]
    }

    /// Reports whether the beginning of a possible sequence is held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives up waiting for the rest of a sequence: a lone ESC byte was the Escape key. The beginning of a character is
    /// no key, so its rest may come later.
    pub fn give_up(&mut self) -> Option<Key> {
        if self.held.first() != Some(&0x1b) {
            return None;
        }
        self.held.clear();
        Some(Key::Escape)
    }
}

fn first(bytes: &[u8]) -> Found {
    match bytes {
        [0x1b, b'[', ..] => sequence(bytes),
        [0x1b, b'O', last, ..] => Found::Key(named(*last), 3),
        [0x1b] | [0x1b, b'O'] => Found::Part,
        // A key with Alt, or Escape followed by another key.
        [0x1b, ..] => Found::Key(Some(Key::Escape), 1),
        [b'\r' | b'\n', ..] => Found::Key(Some(Key::Enter), 1),
        [b'\t', ..] => Found::Key(Some(Key::Tab), 1),
        [0x7f | 0x08, ..] => Found::Key(Some(Key::Backspace), 1),
        [control @ 0x01..=0x1a, ..] => Found::Key(Some(Key::Ctrl(char::from(control + b'`'))), 1),
        [0x00..=0x1f, ..] => Found::Key(None, 1),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> Found {
    let length = match bytes[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    let part = &bytes[..length.min(bytes.len())];
    match std::str::from_utf8(part) {
        Ok(text) => Found::Key(text.chars().next().map(Key::Char), length),
        // The only error is that the text ends too early.
        Err(error) if error.error_len().is_none() && part.len() < length => Found::Part,
        Err(_) => Found::Key(None, 1),
    }
}

/// Parses `ESC [`, its parameters and the final byte.
fn sequence(bytes: &[u8]) -> Found {
    if bytes.starts_with(PASTE[0]) {
        return Found::Paste(PASTE[0].len());
    }
    let rest = &bytes[2..];
    let Some(end) = rest.iter().position(|byte| matches!(byte, 0x40..=0x7e)) else {
        return if bytes.len() < SEQUENCE_BYTES { Found::Part } else { Found::Key(None, bytes.len()) };
    };
    let (parameters, last) = (&rest[..end], rest[end]);
    let length = 2 + end + 1;
    let key = match (parameters, last) {
        ([b'<', mouse @ ..], b'M') => clicked(mouse),
        (b"1" | b"7", b'~') => Some(Key::Home),
        (b"4" | b"8", b'~') => Some(Key::End),
        (b"3", b'~') => Some(Key::Delete),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        (b"11", b'~') => Some(Key::Help),
        // F1 on the Linux console.
        (b"", b'[') => return if rest.len() < 2 { Found::Part } else { linux_console(rest[1]) },
        (b"", last) => named(last),
        _ => None,
    };
    Found::Key(key, length)
}

fn linux_console(last: u8) -> Found {
    Found::Key((last == b'A').then_some(Key::Help), 4)
}

const fn named(last: u8) -> Option<Key> {
    Some(match last {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'P' => Key::Help,
        _ => return None,
    })
}

/// Number of lines per turn of the wheel.
const WHEEL: isize = 3;

/// Parses `button;column;row` of a press, counted from 1.
fn clicked(parameters: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(parameters).ok()?;
    let mut numbers = text.split(';').map(|number| number.parse::<u16>().ok());
    let (button, column, row) = (numbers.next()??, numbers.next()??, numbers.next()??);
    match button {
        0 => Some(Key::Click(row.checked_sub(1)?, column.checked_sub(1)?)),
        64 => Some(Key::Wheel(-WHEEL)),
        65 => Some(Key::Wheel(WHEEL)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        Keys::default().push(bytes)
    }

    #[test]
    fn r162_key_sequences_are_decoded() {
        use Key::{Backspace, Char, Click, Ctrl, Down, Enter, Escape, Help, Home, PageDown, Tab, Up, Wheel};
        assert_eq!(keys(b"jK\r\t\x7f\x03"), [Char('j'), Char('K'), Enter, Tab, Backspace, Ctrl('c')]);
        assert_eq!(keys("äё漢🦀".as_bytes()), ['ä', 'ё', '漢', '🦀'].map(Char));
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[6~\x1b[1~\x1bOP\x1b[[A"), [Up, Down, PageDown, Home, Help, Help]);
        assert_eq!(keys(b"\x1b[<0;3;7M\x1b[<0;3;7m\x1b[<64;1;1M"), [Click(6, 2), Wheel(-3)]);
        assert_eq!(keys(b"\x1bx"), [Escape, Char('x')]);
        assert_eq!(keys(b"\x1b[99;5u\x1b[<0;0;0M\xff\x1b[?1;2c"), []);
    }

    #[test]
    fn lone_escape_is_recognized_on_give_up() {
        let mut keys = Keys::default();
        assert_eq!(keys.push(b"\x1b"), []);
        assert!(keys.is_holding());
        assert_eq!(keys.give_up(), Some(Key::Escape));
        assert!(!keys.is_holding() && keys.give_up().is_none());
        let endless = [b"\x1b[".as_slice(), &[b'1'; 1000]].concat();
        assert_eq!(keys.push(&endless), []);
        assert!(!keys.is_holding(), "a sequence has an end");
    }

    #[test]
    fn r162_character_that_arrives_in_pieces_is_not_lost() {
        let mut keys = Keys::default();
        assert_eq!(keys.push(b"\xc3"), []);
        assert_eq!(keys.give_up(), None, "the rest is late");
        assert_eq!(keys.push(b"\xa4x"), ['ä', 'x'].map(Key::Char));
        assert_eq!(keys.push(b"\xc3"), []);
        assert_eq!(keys.push(b"x"), [Key::Char('x')], "the rest never came");
    }

    #[test]
    fn r162_bracketed_paste_is_one_sanitized_text() {
        let paste = |text: &str| keys(format!("\x1b[200~{text}\x1b[201~q").as_bytes());
        assert_eq!(paste("a\x1b[Aq\n"), [Key::Paste("a\u{fffd}[Aq ".into()), Key::Char('q')]);
        let long = paste(&"x".repeat(1 << 20));
        assert_eq!(long, [Key::Paste("x".repeat(PASTE_BYTES)), Key::Char('q')]);
    }

    #[test]
    fn r162_ctrl_c_ends_an_unterminated_paste() {
        let mut keys = Keys::default();
        assert_eq!(keys.push(b"\x1b[200~a\x03b"), [], "this may be a part of it");
        assert_eq!(keys.push(b"q"), []);
        assert_eq!(keys.push(b"\x03"), [Key::Ctrl('c')]);
        assert_eq!(keys.push(b"q\x03"), [Key::Char('q'), Key::Ctrl('c')]);
    }

    proptest! {
        #[test]
        fn keys_are_independent_of_chunking(bytes in "(\x1b\\[200~[a-z\x1b]{0,9}\x1b\\[201~|\x1b\\[[ABHF]|[a-zä漢]|\x1b\\[<0;[1-9];[1-9]M){0,9}", cuts in proptest::collection::vec(1usize..9, 0..40)) {
            let bytes = bytes.as_bytes();
            let mut pieces = Keys::default();
            let (mut got, mut rest) = (Vec::new(), bytes);
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                got.extend(pieces.push(piece));
                rest = after;
            }
            got.extend(pieces.push(rest));
            prop_assert_eq!(got, keys(bytes));
        }

        #[test]
        fn arbitrary_bytes_leave_held_input_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut keys = Keys::default();
            keys.push(&bytes);
            prop_assert!(keys.held.len() <= SEQUENCE_BYTES);
        }
    }
}
