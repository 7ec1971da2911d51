//! What of a terminal's output can be shown later, on a terminal that is in another state: text and colours. Everything
//! else is dropped: it would move the cursor to where something else is, or have the terminal answer. Cut anywhere.

/// The longest control sequence to keep, in bytes.
const SEQUENCE_BYTES: usize = 64;

/// Passes text and colours on, except what is shown on the alternate screen.
#[derive(Debug, Default)]
pub struct Plain {
    state: State,
    /// The parameters of the control sequence so far.
    sequence: Vec<u8>,
    is_alternate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After the first byte of a character that may be a control character.
    Wide,
    Escape,
    /// Of an escape sequence with intermediate bytes, the last one is missing.
    Intermediate,
    Sequence,
    /// In a string, which ends with BEL or ESC and a backslash.
    String,
    StringEscape,
}

impl Plain {
    /// Begins on the main screen or on the alternate one.
    pub fn new(is_alternate: bool) -> Self {
        Self { is_alternate, ..Self::default() }
    }

    /// Returns what can be shown of the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.take(*byte, &mut shown);
        }
        shown
    }

    fn take(&mut self, byte: u8, shown: &mut Vec<u8>) {
        self.state = match (self.state, byte) {
            (State::String, 0x07) => State::Text,
            (State::String, 0x1b) => State::StringEscape,
            (State::String, _) => State::String,
            (State::StringEscape, b'\\') => State::Text,
            (_, 0x1b) => State::Escape,
            (State::Text, 0xc2) => State::Wide,
            (State::Text, _) => self.text(&[byte], shown),
            // The control characters of Latin-1, which some terminals act on.
            (State::Wide, 0x80..=0x9f) => State::Text,
            (State::Wide, _) => self.text(&[0xc2, byte], shown),
            (State::Escape | State::StringEscape, b'[') => {
                self.sequence.clear();
                State::Sequence
            }
            (State::Escape | State::StringEscape, b']' | b'P' | b'X' | b'^' | b'_') => State::String,
            (State::Escape | State::StringEscape | State::Intermediate, 0x20..=0x2f) => State::Intermediate,
            (State::Escape | State::StringEscape | State::Intermediate, _) => State::Text,
            (State::Sequence, 0x40..=0x7e) => self.sequence(byte, shown),
            (State::Sequence, _) => {
                self.sequence.push(byte);
                if self.sequence.len() > SEQUENCE_BYTES { State::Text } else { State::Sequence }
            }
        };
    }

    fn text(&self, bytes: &[u8], shown: &mut Vec<u8>) -> State {
        let is_kept = match bytes {
            [byte] => !byte.is_ascii_control() || matches!(byte, b'\n' | b'\r' | b'\t' | 0x08),
            _ => true,
        };
        if is_kept && !self.is_alternate {
            shown.extend_from_slice(bytes);
        }
        State::Text
    }

    fn sequence(&mut self, last: u8, shown: &mut Vec<u8>) -> State {
        match (&*self.sequence, last) {
            (b"?1049" | b"?1047" | b"?47", b'h') => self.is_alternate = true,
            (b"?1049" | b"?1047" | b"?47", b'l') => self.is_alternate = false,
            (parameters, b'm') if parameters.iter().all(|byte| matches!(byte, b'0'..=b';')) => {
                if !self.is_alternate {
                    shown.extend_from_slice(&[b"\x1b[", parameters, b"m"].concat());
                }
            }
            _ => {}
        }
        State::Text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] =
        "one\r\n\x1b[1;31mré\u{9b}d\x1b[m\x1b[6n\x07\x1b[2Jtwo\x1b]0;title\x07\x1b]2;t\x1b\\three\
        \x1bP+q\x1b\\\x1b(Bfour\x1b[?1049h\x1b[Hthe alternate\x1b[m\x1b[?1049l\x1b[>0;1mfive\x1b7\tsix"
            .as_bytes();

    const SHOWN: &str = "one\r\n\x1b[1;31mréd\x1b[mtwothreefourfive\tsix";

    #[test]
    fn r142_text_and_colours_are_shown_later_wherever_they_are_cut() {
        for size in 1..OUTPUT.len() {
            let mut plain = Plain::new(false);
            let shown: Vec<u8> = OUTPUT.chunks(size).flat_map(|part| plain.push(part)).collect();
            assert_eq!(String::from_utf8(shown).unwrap(), SHOWN, "{size}");
        }
    }

    #[test]
    fn a_sequence_without_an_end_has_one() {
        let mut plain = Plain::new(true);
        assert!(plain.push(b"hidden").is_empty());
        let long = [b"\x1b[", &*vec![b'1'; 1000], b"\x1b[?47lx"].concat();
        assert!(plain.push(&long).ends_with(b"x"));
        assert!(plain.sequence.len() <= SEQUENCE_BYTES + 1);
    }
}
