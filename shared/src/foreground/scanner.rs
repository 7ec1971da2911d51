//! Finds the presses of the key in what is typed at a terminal.

use memchr::{memchr, memchr2};

use super::key::Key;

const ESC: u8 = 0x1b;

/// What a terminal puts behind a pasted text, where the program has asked for bracketed paste.
const PASTE_END: &[u8] = b"\x1b[201~";

/// The longest sequence in bytes that is looked at as a whole; a longer one is no press and passes. No
/// form of the key is longer than 32.
pub const HELD_BYTES: usize = 48;

/// How many milliseconds a caller waits before it gives up held bytes by [`KeyScanner::flush`]: longer
/// than a sequence needs to arrive, and shorter than anybody notices after an Escape.
pub const HOLD_MS: u16 = 20;

/// A piece of what was typed. All pieces together are exactly what was typed, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Input of the job.
    Pass(&'a [u8]),
    /// The key was pressed, and this is what the terminal sent for it: for nobody, but for a job whose
    /// key it is by [`Press::Pass`](super::Press::Pass).
    Pressed(&'a [u8]),
    /// The key repeated itself or was let go, which is no press. It goes where the press before it went.
    Released(&'a [u8]),
}

/// Cuts what is typed into what is meant for the job and the presses of the key.
///
/// Programs can make a terminal send a key in other forms, and all of them are known here: the control
/// byte, the kitty keyboard protocol (`ESC [ 98 ; 5 u` with event types, lock keys and alternate codes)
/// and xterm's `modifyOtherKeys` (`ESC [ 27 ; 5 ; 98 ~`). With Alt, with Shift and a letter, or with any
/// other modifier it is another key. What is pasted is text and has no presses in it, provided that the
/// job has asked for bracketed paste.
///
/// The beginning of a form is held back until the rest shows what it is. So **a lone Escape is held**
/// too, as every form but one begins with it: while [`is_holding`](Self::is_holding), wait no longer
/// than [`HOLD_MS`] for more to be typed (the timeout of `poll`), then give the job what
/// [`flush`](Self::flush) returns. A terminal sends a form at once; one that is torn apart by more than
/// this time passes, and the user presses again.
#[derive(Clone, Debug)]
pub struct KeyScanner {
    key: Key,
    state: State,
    held: [u8; HELD_BYTES],
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Keys are typed, and so many bytes are held: all of them may still become something.
    Keys { held: usize },
    /// A text is pasted, and so many bytes of its end are there. None are held, as all will pass.
    Paste { seen: usize },
}

/// What the first bytes of some input are.
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

    /// The state behind it.
    const fn state(self) -> State {
        match self {
            Self::PasteStart => State::Paste { seen: 0 },
            Self::Text | Self::Pressed | Self::Released => State::Keys { held: 0 },
        }
    }
}

impl KeyScanner {
    /// A scanner for this key. With [`Key::NONE`] all passes at once.
    pub const fn new(key: Key) -> Self {
        Self { key, state: State::Keys { held: 0 }, held: [0; HELD_BYTES] }
    }

    /// The next piece of what was typed, which is cut from its front. `None`: all of it is dealt with, or
    /// [held](Self::is_holding). A caller that is done with the job may stop before that; what is left in
    /// `typed` is what was typed behind the piece.
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

    /// Whether bytes are held back, so that [`flush`](Self::flush) is due after [`HOLD_MS`].
    pub const fn is_holding(&self) -> bool {
        matches!(self.state, State::Keys { held: 1.. })
    }

    /// Gives up the bytes that are held: they are input of the job, however they go on. For the end of the
    /// wait, and of the input. Empty if there are none.
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
        // The bytes before this pass.
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

    /// Adds to the held bytes until it is known what they are. `None`: not yet, and all is held.
    fn complete(&mut self, held: usize, typed: &mut &[u8]) -> Option<(Kind, usize)> {
        for held in held..HELD_BYTES {
            let Some((byte, rest)) = typed.split_first() else {
                self.state = State::Keys { held };
                break;
            };
            self.held[held] = *byte;
            let kind = begins(self.key, &self.held[..=held]);
            // The last byte may belong to what comes next.
            if kind.is_none_or(|(_, bytes)| bytes > held) {
                *typed = rest;
            }
            if kind.is_some() {
                return kind;
            }
        }
        None
    }

    /// How many bytes belong to the paste, and the state behind them.
    fn paste_end(&mut self, mut seen: usize, typed: &[u8]) -> usize {
        let mut at = 0;
        while at < typed.len() && seen < PASTE_END.len() {
            if seen == 0 {
                at += memchr(ESC, &typed[at..]).unwrap_or(typed.len() - at);
            }
            let Some(byte) = typed.get(at) else { break };
            // Only its first byte is an Escape, so nothing else can be the beginning of another end.
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

/// What these bytes begin with, the first of which is an Escape, and how many bytes that is. `None`:
/// there must be more of them to tell, which is never so with [`HELD_BYTES`].
fn begins(key: Key, bytes: &[u8]) -> Option<(Kind, usize)> {
    match bytes.get(1)? {
        b'[' => {}
        // With Alt.
        second if Some(*second) == key.byte() => return Some((Kind::Text, 2)),
        _ => return Some((Kind::Text, 1)),
    }
    let bytes = &bytes[..bytes.len().min(HELD_BYTES)];
    // Digits, `:` and `;` are neighbours.
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

/// xterm's `27 ; modifiers ; code`.
fn other_key(key: Key, parameters: &[u8]) -> Option<Kind> {
    let mut fields = parameters.split(|byte| *byte == b';').map(numbers);
    let ([27, ..], [modifiers, ..], codes) = (fields.next()?, fields.next()?, fields.next()?) else {
        return None;
    };
    (fields.next().is_none() && is_key(key, codes, modifiers)).then_some(Kind::Pressed)
}

/// kitty's `code : shifted code : base code ; modifiers : event`, and a text behind that, which Ctrl never has.
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

/// The numbers of a field; 0 for one that is not there, which none of them can be.
fn numbers(field: &[u8]) -> [u32; 3] {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let mut numbers = field.split(|byte| *byte == b':').map(|digits| number(digits).unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// Whether these codes with these modifiers are the key.
fn is_key(key: Key, [code, shifted, base]: [u32; 3], modifiers: u32) -> bool {
    const SHIFT: u32 = 1;
    const CTRL: u32 = 4;
    const LOCKS: u32 = 64 | 128;
    let Some(byte) = key.byte() else { return false };
    let is = |code: u32| {
        u8::try_from(code)
            .is_ok_and(|code| code.to_ascii_uppercase() == byte | 0x40 || (code, byte) == (b' ', 0))
    };
    // They are sent with 1 added.
    let modifiers = modifiers.wrapping_sub(1) & !LOCKS;
    let with_shift = modifiers & SHIFT != 0;
    // Many a sign can't be typed without Shift, but a letter with it is another key.
    let is_sign = !(1..=26).contains(&byte);
    modifiers & !SHIFT == CTRL
        && (!with_shift || is_sign)
        // The base code is the place on the keyboard: it counts where the layout has no Latin letters.
        && (is(code) || (with_shift && is(shifted)) || (code > 0x7f && is(base)))
}
