//! Finds presses of the key in terminal input.

use memchr::{memchr, memchr2};

use super::key::Key;

const ESC: u8 = 0x1b;

/// Sequence that a terminal sends after pasted text, if the program has enabled bracketed paste.
const PASTE_END: &[u8] = b"\x1b[201~";

/// Maximum length in bytes of a sequence that is examined as a whole; a longer one is not a press and passes. No form
/// of the key is longer than 32.
pub const HELD_BYTES: usize = 48;

/// How many milliseconds a caller waits before it releases held bytes with [`KeyScanner::flush`]: longer than a
/// sequence takes to arrive, and too short to be noticed after an Escape.
pub const HOLD_MS: u16 = 20;

/// A piece of the input. All pieces together are exactly the input, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Input for the job.
    Pass(&'a [u8]),
    /// The key was pressed, and the terminal sent these bytes for it. Drop them, unless
    /// [`Press::Pass`](super::Press::Pass) gives the key to the job.
    Pressed(&'a [u8]),
    /// The key repeated or was released, which is not a press. Treat these bytes like those of the press before.
    Released(&'a [u8]),
}

/// Splits terminal input into input for the job and presses of the key.
///
/// Programs can make a terminal send a key in other forms. All of them are recognized: the control byte, the kitty
/// keyboard protocol (`ESC [ 98 ; 5 u` with event types, lock keys and alternate codes) and xterm's `modifyOtherKeys`
/// (`ESC [ 27 ; 5 ; 98 ~`). With Alt, with Shift and a letter, or with any other modifier it is a different key.
/// Pasted text contains no presses, provided that the job has enabled bracketed paste. The end of a paste can get lost,
/// so pass each read to [`note_read`](Self::note_read) first: otherwise the key would never work again.
///
/// The beginning of a form is held back until the rest shows what it is. So **a lone Escape is held** too, as every
/// form but one begins with it: while [`is_holding`](Self::is_holding), wait at most [`HOLD_MS`] for more input (the
/// timeout of `poll`), then give the job what [`flush`](Self::flush) returns. A terminal sends a form at once; a form
/// that arrives with a longer gap passes, and the user presses again.
#[derive(Clone, Debug)]
pub struct KeyScanner {
    key: Key,
    state: State,
    held: [u8; HELD_BYTES],
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Keys are typed. This many bytes are held, as they may still become a sequence.
    Keys { held: usize },
    /// Text is pasted. This many bytes of its end sequence have arrived. None are held, as all of them pass.
    Paste { seen: usize },
}

/// Classification of the beginning of some input.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    PasteStart,
    Pressed,
    Released,
}

impl Kind {
    const fn piece(self, bytes: &[u8]) -> Piece<'_> {
        match self {
            Self::Text | Self::PasteStart => Piece::Pass(bytes),
            Self::Pressed => Piece::Pressed(bytes),
            Self::Released => Piece::Released(bytes),
        }
    }

    /// Returns the state after this input.
    const fn state(self) -> State {
        match self {
            Self::PasteStart => State::Paste { seen: 0 },
            Self::Text | Self::Pressed | Self::Released => State::Keys { held: 0 },
        }
    }
}

impl KeyScanner {
    /// Creates a scanner for this key. With [`Key::NONE`] everything passes at once.
    pub const fn new(key: Key) -> Self {
        Self { key, state: State::Keys { held: 0 }, held: [0; HELD_BYTES] }
    }

    /// Ends a paste if `bytes`, all that one read of the terminal has returned, is just a press of the key: the end of
    /// the paste was lost, as pasted text hardly ever arrives like this. Call it before [`scan`](Self::scan).
    pub fn note_read(&mut self, bytes: &[u8]) {
        let Some(key) = self.key.byte() else { return };
        let is_all = |(kind, length): (Kind, usize)| matches!(kind, Kind::Pressed) && length == bytes.len();
        let is_press = match bytes {
            [byte] => *byte == key,
            [ESC, ..] => begins(self.key, bytes).is_some_and(is_all),
            _ => false,
        };
        if is_press && matches!(self.state, State::Paste { .. }) {
            self.state = State::Keys { held: 0 };
        }
    }

    /// Cuts the next piece from the front of `typed`. `None` if everything was processed or is
    /// [held](Self::is_holding). A caller that is done with the job may stop earlier; `typed` is then the input after
    /// the piece.
    pub fn scan<'s, 'b: 's>(&'s mut self, typed: &mut &'b [u8]) -> Option<Piece<'s>> {
        let Some(byte) = self.key.byte() else { return pass(typed, typed.len()) };
        match self.state {
            State::Keys { held: 0 } => self.scan_keys(byte, typed),
            State::Keys { held } => {
                let (kind, bytes) = self.complete(held, typed)?;
                self.state = kind.state();
                Some(kind.piece(&self.held[..bytes]))
            }
            State::Paste { seen } => {
                let end = self.paste_end(seen, typed);
                pass(typed, end)
            }
        }
    }

    /// Reports whether bytes are held back, so that [`flush`](Self::flush) is due after [`HOLD_MS`].
    pub const fn is_holding(&self) -> bool {
        matches!(self.state, State::Keys { held: 1.. })
    }

    /// Releases the held bytes: they are input for the job, whatever follows. Call it at the end of the wait and of
    /// the input. Returns nothing if no bytes are held.
    pub fn flush(&mut self) -> &[u8] {
        match self.state {
            State::Keys { held } => {
                self.state = State::Keys { held: 0 };
                &self.held[..held]
            }
            State::Paste { .. } => &[],
        }
    }

    fn scan_keys<'b>(&mut self, key: u8, typed: &mut &'b [u8]) -> Option<Piece<'b>> {
        // All bytes before this offset pass.
        let mut clear = 0;
        loop {
            let Some(found) = memchr2(key, ESC, &typed[clear..]) else { return pass(typed, typed.len()) };
            let at = clear + found;
            let kind =
                if typed[at] == key { Some((Kind::Pressed, 1)) } else { begins(self.key, &typed[at..]) };
            match kind {
                Some((Kind::Text, bytes)) => clear = at + bytes,
                Some((Kind::PasteStart, bytes)) => {
                    self.state = Kind::PasteStart.state();
                    return pass(typed, at + bytes);
                }
                _ if at > 0 => return pass(typed, at),
                Some((kind, bytes)) => return Some(kind.piece(cut(typed, bytes))),
                None => {
                    let rest = cut(typed, typed.len());
                    self.held[..rest.len()].copy_from_slice(rest);
                    self.state = State::Keys { held: rest.len() };
                    return None;
                }
            }
        }
    }

    /// Adds to the held bytes until they can be classified. `None` if they can't yet, and all input is held.
    fn complete(&mut self, held: usize, typed: &mut &[u8]) -> Option<(Kind, usize)> {
        for held in held..HELD_BYTES {
            let Some((byte, rest)) = typed.split_first() else {
                self.state = State::Keys { held };
                break;
            };
            self.held[held] = *byte;
            let kind = begins(self.key, &self.held[..=held]);
            // The last byte may belong to the next piece.
            if kind.is_none_or(|(_, bytes)| bytes > held) {
                *typed = rest;
            }
            if kind.is_some() {
                return kind;
            }
        }
        None
    }

    /// Returns how many bytes belong to the paste, and sets the state after them.
    fn paste_end(&mut self, mut seen: usize, typed: &[u8]) -> usize {
        let mut at = 0;
        while at < typed.len() && seen < PASTE_END.len() {
            if seen == 0 {
                at += memchr(ESC, &typed[at..]).unwrap_or(typed.len() - at);
            }
            let Some(byte) = typed.get(at) else { break };
            // Only the first byte of the end is an Escape, so no other byte can begin another end.
            seen = if *byte == PASTE_END[seen] { seen + 1 } else { usize::from(*byte == ESC) };
            at += 1;
        }
        self.state = if seen < PASTE_END.len() { State::Paste { seen } } else { State::Keys { held: 0 } };
        at
    }
}

fn cut<'b>(typed: &mut &'b [u8], bytes: usize) -> &'b [u8] {
    let (first, rest) = typed.split_at(bytes);
    *typed = rest;
    first
}

fn pass<'b>(typed: &mut &'b [u8], bytes: usize) -> Option<Piece<'b>> {
    (bytes > 0).then(|| Piece::Pass(cut(typed, bytes)))
}

/// Classifies the beginning of `bytes`, which is an Escape, and returns its length. `None` if more bytes are needed,
/// which never happens with [`HELD_BYTES`].
fn begins(key: Key, bytes: &[u8]) -> Option<(Kind, usize)> {
    match bytes.get(1)? {
        b'[' => {}
        // The key with Alt.
        second if Some(*second) == key.byte() => return Some((Kind::Text, 2)),
        _ => return Some((Kind::Text, 1)),
    }
    let bytes = &bytes[..bytes.len().min(HELD_BYTES)];
    // Digits, `:` and `;` are adjacent in ASCII.
    let Some(end) = bytes.iter().skip(2).position(|byte| !matches!(byte, b'0'..=b';')).map(|end| end + 2)
    else {
        return (bytes.len() == HELD_BYTES).then_some((Kind::Text, HELD_BYTES));
    };
    let kind = match (&bytes[2..end], bytes[end]) {
        (b"200", b'~') => Some(Kind::PasteStart),
        (parameters, b'~') => other_key(key, parameters),
        (parameters, b'u') => kitty_key(key, parameters),
        _ => None,
    };
    Some(kind.map_or((Kind::Text, end), |kind| (kind, end + 1)))
}

/// Parses xterm's `27 ; modifiers ; code`.
fn other_key(key: Key, parameters: &[u8]) -> Option<Kind> {
    let mut fields = parameters.split(|byte| *byte == b';').map(numbers);
    let ([27, ..], [modifiers, ..], codes) = (fields.next()?, fields.next()?, fields.next()?) else {
        return None;
    };
    (fields.next().is_none() && is_key(key, codes, modifiers)).then_some(Kind::Pressed)
}

/// Parses kitty's `code : shifted code : base code ; modifiers : event`. A text may follow, but never with Ctrl.
fn kitty_key(key: Key, parameters: &[u8]) -> Option<Kind> {
    let mut fields = parameters.split(|byte| *byte == b';').map(numbers);
    let (codes, [modifiers, event, _]) = (fields.next()?, fields.next()?);
    match event {
        _ if !is_key(key, codes, modifiers) => None,
        0 | 1 => Some(Kind::Pressed),
        2 | 3 => Some(Kind::Released),
        _ => None,
    }
}

/// Parses the numbers of a field. A missing one becomes 0, which is never a valid value.
fn numbers(field: &[u8]) -> [u32; 3] {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let mut numbers = field.split(|byte| *byte == b':').map(|digits| number(digits).unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// Reports whether these codes with these modifiers are the key.
fn is_key(key: Key, [code, shifted, base]: [u32; 3], modifiers: u32) -> bool {
    const SHIFT: u32 = 1;
    const CTRL: u32 = 4;
    const LOCKS: u32 = 64 | 128;
    let Some(byte) = key.byte() else { return false };
    let is = |code: u32| {
        u8::try_from(code)
            .is_ok_and(|code| code.to_ascii_uppercase() == byte | 0x40 || (code, byte) == (b' ', 0))
    };
    // Modifiers are sent with 1 added.
    let modifiers = modifiers.wrapping_sub(1) & !LOCKS;
    let with_shift = modifiers & SHIFT != 0;
    // Many symbols need Shift, but a letter with Shift is another key.
    let is_sign = !(1..=26).contains(&byte);
    modifiers & !SHIFT == CTRL
        && (!with_shift || is_sign)
        // The base code is the position on the keyboard: it counts if the layout has no Latin letters.
        && (is(code) || (with_shift && is(shifted)) || (code > 0x7f && is(base)))
}
