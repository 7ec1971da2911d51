//! The keys that usually end a program. While attached they go to the task; a user who presses them repeatedly wants to
//! leave and doesn't know how.

/// Ctrl-C, Ctrl-D, Ctrl-Z and Ctrl-\, as terminals send them.
const KEYS: [u8; 4] = [0x03, 0x04, 0x1a, 0x1c];

/// Number of consecutive presses that count as a wish to leave.
const PRESSES: u8 = 3;

/// Counts consecutive presses of these keys.
#[derive(Debug, Default)]
pub struct WaysOut {
    /// Presses since anything else was typed, at most [`PRESSES`].
    row: u8,
}

/// The kind of key that typed bytes start with.
enum Typed {
    /// A press of one of the keys.
    Press,
    /// A release or repetition of one of the keys.
    Echo,
    Other,
}

impl WaysOut {
    /// Counts presses in typed bytes. Returns `true` once per row of presses, at the third press.
    pub fn typed(&mut self, mut bytes: &[u8]) -> bool {
        let mut wants_out = false;
        while !bytes.is_empty() {
            let (typed, length) = first(bytes);
            bytes = bytes.get(length..).unwrap_or_default();
            match typed {
                Typed::Press if self.row < PRESSES => {
                    self.row += 1;
                    wants_out |= self.row == PRESSES;
                }
                Typed::Press | Typed::Echo => {}
                Typed::Other => self.row = 0,
            }
        }
        wants_out
    }

    /// Reports whether the last key typed was one of these.
    pub fn is_in_row(&self) -> bool {
        self.row > 0
    }
}

/// Classifies the start of `bytes`, and returns its length.
fn first(bytes: &[u8]) -> (Typed, usize) {
    match bytes {
        [byte, ..] if KEYS.contains(byte) => (Typed::Press, 1),
        [0x1b, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| !matches!(byte, b'0'..=b';')).unwrap_or(rest.len());
            let typed = rest.get(end).map_or(Typed::Other, |last| sequence(&rest[..end], *last));
            (typed, 2 + end + 1)
        }
        _ => (Typed::Other, 1),
    }
}

/// Recognises the same keys in the extended forms that programs can enable: `ESC [ 99 ; 5 u`, with an event type
/// after the modifiers, and `ESC [ 27 ; 5 ; 99 ~`.
fn sequence(parameters: &[u8], last: u8) -> Typed {
    let fields: Vec<&[u8]> = parameters.split(|byte| *byte == b';').collect();
    let (([code, modifiers, ..], b'u') | ([b"27", modifiers, code], b'~')) = (&*fields, last) else {
        return Typed::Other;
    };
    let code = code.split(|byte| *byte == b':').next().unwrap_or_default();
    if !matches!(code, b"99" | b"100" | b"122" | b"92") {
        return Typed::Other;
    }
    match *modifiers {
        b"5" | b"5:1" => Typed::Press,
        b"5:2" | b"5:3" => Typed::Echo,
        _ => Typed::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_exit_keys_in_a_row_count_once_as_wish_to_leave() {
        let mut ways_out = WaysOut::default();
        let typed = |keys: &str, ways_out: &mut WaysOut| ways_out.typed(keys.as_bytes());
        assert!(!typed("\x03", &mut ways_out) && !typed("\x04", &mut ways_out));
        assert!(typed("\x1a", &mut ways_out), "the third");
        assert!(!typed("\x1c\x03\x03\x03\x03", &mut ways_out), "once in a row");
        assert!(ways_out.is_in_row());
        assert!(!typed("q", &mut ways_out) && !ways_out.is_in_row());
        assert!(typed("\x03\x03\x03", &mut ways_out), "in the next row again");
    }

    #[test]
    fn other_input_resets_the_row() {
        for keys in ["\x03\x03:q\r\x03", "\x03\x1b\x03\x03", "\x03\x03\x1b[A\x03", "\x04\x04\x1b[99;6u\x04"] {
            let mut ways_out = WaysOut::default();
            assert!(!ways_out.typed(keys.as_bytes()), "{keys:?}");
        }
    }

    #[test]
    fn extended_key_encodings_count_too() {
        let press = "\x1b[99;5u\x1b[99;5:3u";
        for keys in [press.repeat(3), "\x1b[27;5;92~".repeat(3), "\x1b[122:90;5u\x1b[100;5:1u\x03".into()] {
            let mut ways_out = WaysOut::default();
            assert!(ways_out.typed(keys.as_bytes()), "{keys:?}");
        }
        let mut ways_out = WaysOut::default();
        assert!(!ways_out.typed(press.repeat(2).as_bytes()), "to let it go is no press");
    }

    #[test]
    fn truncated_sequences_count_as_no_exit_key() {
        let mut ways_out = WaysOut::default();
        for keys in ["\x1b", "\x1b[", "\x1b[99", "\x1b[99;5", "u", "\x1b[;;;u", "\x1b[27;;~"] {
            assert!(!ways_out.typed(keys.as_bytes()), "{keys:?}");
        }
    }
}
