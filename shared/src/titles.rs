//! Removes the titles of windows of tmux and screen (ESC `k` … ESC `\`) from a terminal's output. Parsers for other
//! terminals would show them as text. Output may be cut anywhere.

use std::borrow::Cow;

const ESC: u8 = 0x1b;
/// Either of these cancels a title.
const CANCEL: [u8; 2] = [0x18, 0x1a];

/// Removes titles; its state says where the output so far ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TitleFilter {
    /// In text, or in another sequence.
    #[default]
    Text,
    /// After an ESC, which is passed on only with the byte that follows it.
    Escape,
    /// In a title, which is removed.
    Title,
}

impl TitleFilter {
    /// Returns the next bytes without titles. What ends a title is passed on, and does nothing by itself.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if *self == Self::Text && memchr::memchr(ESC, bytes).is_none() {
            return Cow::Borrowed(bytes);
        }
        let mut rest = Vec::with_capacity(bytes.len() + 1);
        for byte in bytes {
            *self = match (*self, *byte) {
                (Self::Text | Self::Title, ESC) => Self::Escape,
                (Self::Escape, b'k') => Self::Title,
                (Self::Title, byte) if !CANCEL.contains(&byte) => Self::Title,
                (before, byte) => {
                    if before == Self::Escape {
                        rest.push(ESC);
                    }
                    if (before, byte) == (Self::Escape, ESC) {
                        Self::Escape
                    } else {
                        rest.push(byte);
                        Self::Text
                    }
                }
            };
        }
        Cow::Owned(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_titles_are_removed_wherever_the_output_is_cut() {
        let output = b"a\x1bkone\r\n\x1b\\b\x1b\x1bktwo\x1b[1mc\x1bkthree\x18d\x1b(ke\x1b]0;k\x07";
        let without = b"a\x1b\\b\x1b\x1b[1mc\x18d\x1b(ke\x1b]0;k\x07";
        for size in 1..=output.len() {
            let mut titles = TitleFilter::default();
            let rest: Vec<u8> = output.chunks(size).flat_map(|part| titles.push(part).into_owned()).collect();
            assert_eq!(rest, without, "{size}");
        }
    }
}
