//! Estimates a terminal parser's work for a job's output, in characters of the screen that it touches. A few bytes can
//! make it touch a whole screen, so a byte count is useless. Nothing is parsed here.

use bgd_shared::request::TerminalSize;

const ESC: u8 = 0x1b;

/// A part of some bytes that is parsed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The offset of its end.
    pub end: usize,
    pub work: usize,
}

/// Cuts text and whole sequences into slices of about `most` work. A slice exceeds that by at most a single character
/// or sequence, or one overlong encoding of a character, and never ends inside one.
pub fn slices(bytes: &[u8], size: TerminalSize, most: usize) -> Vec<Slice> {
    let costs = Costs::of(size);
    let mut slices = Vec::new();
    let (mut at, mut work) = (0, 0);
    while at < bytes.len() {
        let is_inside = bytes[at] & 0xc0 == 0x80;
        if work >= most && !is_inside {
            slices.push(Slice { end: at, work });
            work = 0;
        }
        let (length, more) = costs.first(&bytes[at..]);
        (at, work) = (at + length, work + more);
    }
    if work > 0 {
        slices.push(Slice { end: at, work });
    }
    slices
}

/// The costs on a screen of one size.
struct Costs {
    rows: usize,
    line: usize,
    /// A character, with its share of the resulting lines.
    character: usize,
    /// The whole screen.
    all: usize,
}

impl Costs {
    fn of(size: TerminalSize) -> Self {
        let (rows, cols) = (usize::from(size.rows.max(1)), usize::from(size.cols.max(1)));
        Self { rows, line: cols, character: 2 + rows / cols, all: rows * cols }
    }

    /// Returns the cost of a new line, which moves the others.
    fn scroll(&self) -> usize {
        self.line + self.rows
    }

    /// Returns the length of the first character or sequence, and its cost.
    fn first(&self, bytes: &[u8]) -> (usize, usize) {
        match bytes {
            [ESC, b'[', rest @ ..] => {
                let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)).unwrap_or(rest.len());
                let last = rest.get(end).copied().unwrap_or_default();
                (2 + (end + 1).min(rest.len()), self.control(&rest[..end], last))
            }
            [ESC, b'M', ..] => (2, self.scroll()),
            [ESC, b'c', ..] => (2, 2 * self.all),
            [b'\n' | 0x0b | 0x0c, ..] => (1, self.scroll()),
            _ => (1, self.character),
        }
    }

    fn control(&self, body: &[u8], last: u8) -> usize {
        let number = || {
            let digits = body.iter().take_while(|byte| byte.is_ascii_digit());
            let add = |number: usize, digit: &u8| {
                number.saturating_mul(10).saturating_add(usize::from(*digit - b'0')).min(1 << 16)
            };
            digits.fold(0, add).max(1)
        };
        let special = match last {
            b'J' => self.all,
            b'K' | b'P' | b'X' | b'@' => self.line,
            b'L' | b'M' | b'S' | b'T' => number().min(self.rows) * self.line + self.rows,
            b'b' => number() * self.character,
            b'h' | b'l' if body.first() == Some(&b'?') => {
                let is_screen = |mode: &&[u8]| matches!(*mode, b"47" | b"1047" | b"1049");
                body[1..].split(|byte| *byte == b';').filter(is_screen).count() * self.all
            }
            _ => 0,
        };
        special + body.len() + 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: TerminalSize = TerminalSize { rows: 10, cols: 100 };

    fn work(text: &str) -> usize {
        slices(text.as_bytes(), SIZE, usize::MAX).iter().map(|slice| slice.work).sum()
    }

    #[test]
    fn work_counts_touched_cells() {
        assert_eq!(work("text"), 8);
        for (text, touched) in [
            ("\x1b[2J", 1000),
            ("\x1b[?25;1049h", 1000),
            ("\x1bc", 2000),
            ("\x1b[K", 100),
            ("\x1b[3L", 300),
            ("\x1b[60000S", 1000),
            ("\n", 100),
            ("\x1b[500b", 1000),
            ("\x1b[?25l\x1b[H\x1b[38;5;12m", 0),
        ] {
            assert!((touched..=touched + 50).contains(&work(text)), "{text:?}: {}", work(text));
        }
    }

    proptest! {
        #[test]
        fn slices_cover_everything_without_splitting_sequences(
            pieces in prop::collection::vec(prop::sample::select(vec!["a", "漢", "\x1b[2J", "\x1b[1m", "\r", "\n", "\x1b[3b"]), 0..60),
            most in 1_usize..3000,
        ) {
            let text = pieces.concat();
            let slices = slices(text.as_bytes(), SIZE, most);
            prop_assert_eq!(slices.last().map_or(0, |slice| slice.end), text.len());
            prop_assert_eq!(slices.iter().map(|slice| slice.work).sum::<usize>(), work(&text));
            let mut ends = vec![0];
            for piece in &pieces {
                ends.push(ends[ends.len() - 1] + piece.len());
            }
            for slice in &slices {
                prop_assert!(ends.contains(&slice.end) && slice.work < most + 1100, "{:?}", slice);
            }
        }
    }
}
