//! Extracts the part of a terminal's output that can be shown later, on a terminal in another state: text and colours.
//! All other sequences are dropped: they would move the cursor to a place with other content, change the terminal's
//! modes, or make it answer. Output may be cut anywhere.

use std::fmt::Write as _;

use bgd_shared::request::OutputResult;
use bgd_shared::titles::TitleFilter;
use vte::{Params, Parser, Perform};

/// The maximum number of different colour sequences that are noted at a time.
const COLOURS: usize = 32;

/// The sequence that switches all colours off.
pub const NO_COLOUR: &str = "\x1b[m";

/// Passes on text and colours, except those for the alternate screen.
#[derive(Default)]
pub struct TextFilter {
    titles: TitleFilter,
    parser: Parser,
    shown: Shown,
    /// The attempts that begin before this offset are over or were noticed.
    attempts_from: u64,
}

/// Returns where attempts of a task with a terminal begin in its output, as far as this part of it tells.
pub fn attempt_starts(part: &OutputResult) -> Vec<u64> {
    let earlier = part.task.attempts.iter().map(|attempt| attempt.offset);
    if part.task.pty { earlier.chain(part.attempt_offset).collect() } else { Vec::new() }
}

impl TextFilter {
    /// Starts at this offset of the output, on the main screen or on the alternate one.
    pub fn new(is_alternate: bool, offset: u64) -> Self {
        let shown = Shown { is_alternate, ..Shown::default() };
        Self { shown, attempts_from: offset, ..Self::default() }
    }

    /// Starts on the main screen, for output that is shown from its beginning to its end: also passes on what redraws
    /// its last lines, such as progress bars, namely relative movements and erasing.
    pub fn with_redrawn_lines() -> Self {
        Self { shown: Shown { passes: Passes::Redrawing, ..Shown::default() }, ..Self::default() }
    }

    /// Starts on the main screen, for a terminal that understands no sequences: passes on text only.
    pub fn with_text_only() -> Self {
        Self { shown: Shown { passes: Passes::Text, ..Shown::default() }, ..Self::default() }
    }

    /// Returns the sequences that switch the colours on that are on after the text so far. Empty if none are.
    pub fn colours(&self) -> String {
        self.shown.colours.concat()
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

    /// Like [`Self::push`], for bytes at this offset of an output in which attempts start at these offsets. Each of them
    /// has a terminal of its own, so it begins on the main screen, however the earlier one has ended.
    pub fn push_at(&mut self, offset: u64, bytes: &[u8], starts: &[u64]) -> String {
        let mut text = String::new();
        let (mut at, mut rest) = (offset, bytes);
        let end = offset + bytes.len() as u64;
        for start in starts.iter().copied().filter(|start| *start < end) {
            if start < self.attempts_from {
                continue;
            }
            // It may be known only after its beginning was read.
            let before = usize::try_from(start.saturating_sub(at)).unwrap_or(usize::MAX).min(rest.len());
            text += &self.push(&rest[..before]);
            (at, rest) = (at + before as u64, &rest[before..]);
            self.attempts_from = start + 1;
            (self.titles, self.parser) = (TitleFilter::default(), Parser::default());
            self.shown.is_alternate = false;
        }
        text += &self.push(rest);
        text
    }

    /// Follows bytes that are not to be shown, as [`Self::push_at`] does.
    pub fn skip(&mut self, offset: u64, bytes: &[u8], starts: &[u64]) {
        let had_left_out = self.shown.has_left_out;
        self.push_at(offset, bytes, starts);
        self.shown.has_left_out = had_left_out;
    }
}

/// Which sequences are passed on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Passes {
    /// None.
    Text,
    /// Colours.
    #[default]
    Colours,
    /// Colours, and what redraws the last lines.
    Redrawing,
}

/// Collects the showable part of the output.
#[derive(Default)]
struct Shown {
    text: String,
    is_alternate: bool,
    passes: Passes,
    has_left_out: bool,
    /// The colour sequences passed on since all colours were switched off, the latest last. A repeated one counts as the
    /// latest only, as it overrides those in between.
    colours: Vec<String>,
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
        self.text.push_str(&written(parameters, action));
    }

    fn colour(&mut self, parameters: &Params) {
        let sequence = written(parameters, 'm');
        self.text.push_str(&sequence);
        if parameters.iter().next().is_none_or(|first| matches!(first, [0])) {
            self.colours.clear();
        }
        if parameters.iter().all(|parameter| matches!(parameter, [0])) {
            return;
        }
        self.colours.retain(|noted| *noted != sequence);
        if self.colours.len() == COLOURS {
            self.colours.remove(0);
        }
        self.colours.push(sequence);
    }
}

/// Returns a sequence as it is written.
fn written(parameters: &Params, action: char) -> String {
    let mut sequence = "\x1b[".to_owned();
    for (index, parameter) in parameters.iter().enumerate() {
        let numbers = parameter.iter().map(u16::to_string).collect::<Vec<_>>().join(":");
        let _ = write!(sequence, "{}{numbers}", if index == 0 { "" } else { ";" });
    }
    sequence.push(action);
    sequence
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
            _ if is_cut || self.is_alternate || self.passes == Passes::Text => {}
            ([], 'm') => self.colour(parameters),
            _ if self.passes != Passes::Redrawing => {}
            ([], 'A'..='G' | 'K' | '@' | 'P' | 'X') => self.sequence(parameters, action),
            // Not the whole screen, or what is above: that is not the output's.
            ([], 'J') if parameters.iter().all(|what| matches!(what, [0])) => {
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
            let mut filter = TextFilter::new(false, 0);
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
    fn terminal_without_sequences_gets_text_only() {
        let mut filter = TextFilter::with_text_only();
        assert_eq!(
            filter.push(b"\x1b[1;31mred\x1b[m\r\n\x1b[2Kline\x1b[?1049hcells\x1b[?1049l"),
            "red\r\nline"
        );
        assert_eq!((filter.colours(), filter.has_left_out()), (String::new(), true));
    }

    #[test]
    fn colours_that_are_on_are_known_and_bounded() {
        let mut filter = TextFilter::with_redrawn_lines();
        for (bytes, colours) in [
            (&b"text"[..], ""),
            (b"\x1b[31mred", "\x1b[31m"),
            (b"\x1b[1mbold\x1b[32mgreen", "\x1b[31m\x1b[1m\x1b[32m"),
            (b"\x1b[31m\x1b[32m", "\x1b[1m\x1b[31m\x1b[32m"),
            (b"\x1b[0;4munderlined", "\x1b[0;4m"),
            (b"\x1b[38;5;0mblack", "\x1b[0;4m\x1b[38;5;0m"),
            (b"\x1b[?1049h\x1b[7m\x1b[?1049l", "\x1b[0;4m\x1b[38;5;0m"),
            (b"\x1b[m", ""),
            (b"\x1b[3m\x1b[0;0m", ""),
        ] {
            filter.push(bytes);
            assert_eq!(filter.colours(), colours);
        }
        for number in 0..1000 {
            filter.push(format!("\x1b[38;5;{}m\x1b[48;2;1;2;{number}m", number % 256).as_bytes());
        }
        assert!(filter.colours().len() < 1000 && filter.colours().ends_with("\x1b[48;2;1;2;999m"));
    }

    #[test]
    fn attempt_begins_on_the_main_screen_wherever_the_output_is_cut() {
        // The first one ends within a sequence, on the alternate screen; the second one there, too.
        let output = b"one \x1b[?1049hcells\x1b[3two \x1b[?1049hcells\x1b]0;titlethree\x1b[?1049hcells";
        let find = |word: &[u8]| output.windows(word.len()).position(|part| part == word).unwrap() as u64;
        let starts = [0, find(b"two"), find(b"three")];
        for size in 1..output.len() {
            let mut filter = TextFilter::new(false, 0);
            let parts = output.chunks(size).enumerate();
            let shown: String =
                parts.map(|(index, part)| filter.push_at((index * size) as u64, part, &starts)).collect();
            assert_eq!((shown.as_str(), filter.is_alternate()), ("one two three", true), "{size}");
        }
        // An attempt that is known only after its first bytes.
        let mut filter = TextFilter::new(true, 100);
        assert_eq!(filter.push_at(100, b"cells, lost ", &[0, 50]), "");
        assert_eq!(filter.push_at(112, b"shown\x1b[?1049h", &[50, 106]), "shown");
        assert_eq!(filter.push_at(125, b"cells", &[50, 106]), "", "it begins once");
        let mut filter = TextFilter::with_redrawn_lines();
        filter.skip(0, b"before\x1b[?1049hcells", &[0]);
        assert!(filter.is_alternate() && !filter.has_left_out(), "nothing of it was to be shown");
    }

    #[test]
    fn unterminated_sequence_is_bounded() {
        let mut filter = TextFilter::new(true, 0);
        assert!(filter.push(b"hidden").is_empty());
        let long = [b"\x1b[", &*vec![b'1'; 1000], b"\x1b[?47lx"].concat();
        assert_eq!(filter.push(&long), "x");
    }
}
