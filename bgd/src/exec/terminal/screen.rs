//! The content of a terminal, kept so that it can be drawn on another one at any time.
//!
//! Bytes arrive several times faster than a terminal parser accepts them, so they are only parsed when a viewer needs
//! the screen, or when too many are queued; and of plain text in lines, only the last lines are parsed, because
//! everything before them has scrolled away. The modes are always up to date.
//!
//! A job may write sequences that are expensive to parse, such as clearing the screen all the time. So the backlog is
//! parsed in slices, between which others get their turn; and if it would be too much work, only its end is parsed, on
//! an empty screen: the result is then the picture drawn by that last part.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bgd_shared::request::TerminalSize;
use memchr::{memchr, memrchr, memrchr_iter};
use serde::{Deserialize, Serialize};
use vt100::Parser;

use super::drawing::{self, SCREENS, draw, draw_cursor, sides};
use super::modes::Modes;
use super::news;
use super::sequences::Sequences;
use super::work::{Slice, slices};

/// The size in bytes from which the backlog must be parsed before more is accepted.
const BACKLOG: usize = 256 * 1024;

/// The maximum work for one backlog; of a longer one only the end is parsed. It is four times the work of clearing the
/// largest screen.
const MOST_WORK: usize = 4 * 1024 * 1024;

/// The work of one slice.
const SLICE: usize = 128 * 1024;

/// The screen of a terminal.
pub struct Screen {
    size: TerminalSize,
    sequences: Sequences,
    /// The bytes that have not been parsed yet.
    backlog: Vec<u8>,
    /// How many bytes of the backlog are parsed; they are dropped with the last slice.
    parsed: usize,
    /// The slices of the rest, once parsing has begun.
    slices: VecDeque<Slice>,
    /// `None` before anything is parsed, as a parser takes some 40 bytes per character of the screen.
    parser: Option<Box<Parser>>,
}

impl Screen {
    pub fn new(size: TerminalSize) -> Self {
        let (sequences, slices) = (Sequences::new(size), VecDeque::new());
        Self { size, sequences, backlog: Vec::new(), parsed: 0, slices, parser: None }
    }

    pub fn size(&self) -> TerminalSize {
        self.size
    }

    /// Returns the modes that are set.
    pub fn modes(&self) -> &Modes {
        self.sequences.modes()
    }

    /// Reports whether the main screen was blank when the alternate one was last entered.
    pub fn is_main_blank(&self) -> bool {
        self.sequences.is_main_blank()
    }

    /// Reports whether the job has written nothing yet.
    pub fn is_untouched(&self) -> bool {
        self.parser.is_none() && self.backlog.is_empty()
    }

    /// Accepts output of the job. If [`Self::is_full`] then returns true, the caller must have it parsed.
    pub fn take(&mut self, bytes: &[u8]) {
        self.sequences.take(bytes, &mut self.backlog);
    }

    /// Reports whether the backlog must be parsed before more is accepted.
    pub fn is_full(&self) -> bool {
        self.backlog.len() >= BACKLOG
    }

    /// Changes its size. Parses the backlog first; the caller may have done that in slices.
    pub fn resize(&mut self, size: TerminalSize) {
        self.parse();
        self.size = size;
        let scrolls_parts = self.modes().scrolls_parts();
        self.sequences.resized(size);
        if self.is_untouched() {
            return;
        }
        let (rows, cols) = sides(size);
        self.guarded(|parser| {
            parser.screen_mut().set_size(rows, cols);
            if scrolls_parts {
                scroll_all(parser);
            }
        });
    }

    /// Returns the text that makes a terminal in its initial state show this screen and able to continue from it. That
    /// terminal has `rows` rows, perhaps more than this one. The content of its main screen is pushed up. Parses the
    /// backlog first; the caller may have done that in slices.
    pub fn redraw(&mut self, rows: u16) -> Vec<u8> {
        self.parse();
        let mut text = match self.modes().enter() {
            Some(enter) => format!("{enter}\x1b[H\x1b[2J"),
            None => format!("\x1b[{rows};1H{}\x1b[H", "\n".repeat(rows.into())),
        };
        if let Some(parser) = &self.parser {
            draw(parser.screen(), &mut text);
        }
        let modes = self.sequences.modes();
        text.push_str(&modes.set());
        if let Some(parser) = &self.parser {
            draw_cursor(parser.screen(), modes.origin(), &mut text);
        }
        text.push_str(&modes.character_sets());
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(self.sequences.unfinished());
        bytes
    }

    pub(super) fn parse(&mut self) {
        while self.parse_slice() {}
    }

    /// Parses a slice of the backlog, which takes some milliseconds at most. Returns false if nothing is left.
    pub fn parse_slice(&mut self) -> bool {
        if self.slices.is_empty() {
            self.plan();
        }
        let Some(Slice { end, .. }) = self.slices.pop_front() else { return false };
        let backlog = std::mem::take(&mut self.backlog);
        let start = std::mem::replace(&mut self.parsed, end);
        self.guarded(|parser| parser.process(&backlog[start..end]));
        self.backlog = backlog;
        if self.slices.is_empty() {
            self.backlog.drain(..end);
            self.parsed = 0;
            return false;
        }
        true
    }

    /// Cuts the backlog into slices.
    fn plan(&mut self) {
        if self.modes().region().is_none() {
            skip_lines(&mut self.backlog, self.size.rows);
        }
        // The parser loses the bytes after a character that it receives in parts, so it receives whole ones.
        let whole = news::whole_characters(&self.backlog);
        self.slices = slices(&self.backlog[..whole], self.size, SLICE).into();
        let mut work: usize = self.slices.iter().map(|slice| slice.work).sum();
        let is_too_much = work > MOST_WORK;
        while work > MOST_WORK
            && self.slices.len() > 1
            && let Some(skipped) = self.slices.pop_front()
        {
            work -= skipped.work;
            self.parsed = skipped.end;
        }
        if is_too_much {
            self.begin_again();
        }
    }

    /// Restarts with an empty screen, in the modes that will be set when the whole backlog is parsed: if the rest of
    /// the backlog changes them, it ends with the same ones.
    fn begin_again(&mut self) {
        self.parser = None;
        let modes = self.modes();
        let enter = if modes.is_alternate() { "\x1b[?47h" } else { "" };
        let modes = format!("{enter}{}\x1b[H", modes.set());
        self.guarded(|parser| parser.process(modes.as_bytes()));
    }

    /// Runs a job on the parser. If the parser panics at a program's output, it restarts with an empty screen, which
    /// the program may redraw.
    fn guarded(&mut self, job: impl FnOnce(&mut Parser)) {
        let (rows, cols) = sides(self.size);
        let parser = self.parser.get_or_insert_with(|| Box::new(Parser::new(rows, cols, 0)));
        if catch_unwind(AssertUnwindSafe(|| job(parser))).is_err() {
            tracing::warn!("the contents of a terminal can't be followed; it starts with an empty screen");
            **parser = Parser::new(rows, cols, 0);
        }
    }
}

/// Makes all rows scroll, on both screens, as every terminal does when its size changes, but not the parser. The cursor
/// stays.
fn scroll_all(parser: &mut Parser) {
    let shown = usize::from(parser.screen().alternate_screen());
    for screen in [1 - shown, shown] {
        parser.process(SCREENS[screen].as_bytes());
        let (row, col) = parser.screen().cursor_position();
        parser.process(format!("\x1b[r\x1b[{};{}H", row + 1, col + 1).as_bytes());
    }
}

/// Removes from a backlog the lines of plain text at its end that will have scrolled away: all but the last ones. The
/// rest begins after the end of a line.
///
/// From any position of the cursor, `rows` lines take it to the bottom, and as many more push the previous content off
/// the screen; so nothing before them can be seen, nor where they began.
fn skip_lines(backlog: &mut Vec<u8>, rows: u16) {
    // The text after the last sequence. Its exact beginning does not matter, as lines are cut at their ends.
    let plain = memrchr(0x1b, backlog).map_or(0, |escape| {
        escape + memchr(b'\n', &backlog[escape..]).map_or(backlog.len() - escape, |end| end + 1)
    });
    let enough = 2 * usize::from(rows);
    let is_whole = |end: &usize| *end > plain && backlog[end - 1] == b'\r';
    let cut = memrchr_iter(b'\n', &backlog[plain..]).map(|end| plain + end).skip(enough).find(is_whole);
    if let Some(cut) = cut {
        // The end of the last removed line stays.
        backlog.drain(plain..cut - 1);
    }
}

/// A screen for the program that takes over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScreenState {
    size: TerminalSize,
    sequences: Sequences,
    /// The bytes that are not parsed yet.
    #[serde(with = "crate::carry::bytes")]
    backlog: Vec<u8>,
    /// The text that rebuilds the rest; `None` if the screen is untouched.
    drawn: Option<String>,
}

impl Screen {
    /// Returns the state. Parses the backlog first; the caller may have done that in slices.
    pub fn state(&mut self) -> ScreenState {
        self.parse();
        let (size, modes) = (self.size, self.modes().clone());
        let (mut drawn, mut repeated) = (None, None);
        if self.parser.is_some() {
            self.guarded(|parser| {
                let (text, repeats) = drawing::whole(parser.screen(), size, &modes);
                (drawn, repeated) = (Some(text), Some(repeats));
            });
        }
        // Everything is parsed, and drawn above.
        let Self { size: _, sequences, backlog, parsed: _, slices: _, parser: _ } = self;
        let sequences = sequences.clone().repeating(repeated);
        ScreenState { size, sequences, backlog: backlog.clone(), drawn }
    }

    /// Creates a screen from the state of another program.
    pub fn restore(state: ScreenState) -> Self {
        let ScreenState { size, sequences, backlog, drawn } = state;
        let mut screen = Self { sequences, backlog, ..Self::new(size) };
        if let Some(drawn) = drawn {
            screen.guarded(|parser| parser.process(drawn.as_bytes()));
        }
        screen
    }
}

impl ScreenState {
    /// Returns the size of the screen.
    pub fn size(&self) -> TerminalSize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::exec::terminal::drawing::Pen;
    use proptest::prelude::*;
    use vt100::Cell;

    const SIZE: TerminalSize = TerminalSize { rows: 4, cols: 9 };

    /// The visible content of a screen.
    #[derive(Debug, PartialEq)]
    struct Seen {
        /// The text, including trailing blanks.
        rows: Vec<String>,
        /// Where the pen changes: row, column and the new pen.
        pens: Vec<(u16, u16, Pen)>,
        cursor: (u16, u16),
        /// The pen for the next character.
        next: Pen,
        modes: Modes,
    }

    fn see(screen: &mut Screen) -> Seen {
        screen.parse();
        let modes = screen.modes().clone();
        let mut shown = None;
        screen.guarded(|parser| shown = Some(parser.screen().clone()));
        let shown = shown.expect("a screen");
        let (rows, cols) = (shown.size().0.get(), shown.size().1.get());
        let cell = |row, col| shown.cell(row, col).expect("a cell");
        let text =
            |cell: &Cell| if cell.has_contents() { cell.contents().to_owned() } else { " ".to_owned() };
        let mut pens: Vec<(u16, u16, Pen)> = Vec::new();
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let pen = Pen::of(cell(row, col));
            if pens.last().map_or(Pen::default(), |last| last.2) != pen {
                pens.push((row, col, pen));
            }
        }
        Seen {
            rows: (0..rows).map(|row| (0..cols).map(|col| text(cell(row, col))).collect()).collect(),
            pens,
            cursor: shown.cursor_position(),
            next: Pen::next(&shown),
            modes,
        }
    }

    fn screen_of(bytes: &[u8]) -> Screen {
        let mut screen = Screen::new(SIZE);
        screen.take(bytes);
        screen
    }

    /// Returns the text of the rows without trailing blanks.
    fn text(screen: &mut Screen) -> Vec<String> {
        see(screen).rows.iter().map(|row| row.trim_end().to_owned()).collect()
    }

    /// Generates output of a program. Half of it is plain text in lines, sometimes a lot at once.
    fn pieces() -> impl Strategy<Value = String> {
        let word =
            prop::sample::select(vec!["a", "bcd", "ä", "漢", "e\u{301}", "long enough for two lines", "\t"]);
        let line = (word.clone(), 1_usize..30).prop_map(|(word, count)| format!("{word}\r\n").repeat(count));
        let control = prop::sample::select(vec!["\r\n", "\n", "\r", "\x08", "\x07", "\x0e", "\x0f", "\x0b"]);
        let number = 0_u8..12;
        let sequence = (number.clone(), number, prop::sample::select(&b"@ABCDEFGHJKLMPSTX`mrsu"[..]))
            .prop_map(|(one, other, last)| format!("\x1b[{one};{other}{}", char::from(last)));
        let color = (0_u8..=255).prop_map(|color| format!("\x1b[38;5;{color};48;2;1;2;{color};1m"));
        let mode = prop::sample::select(vec![1_u16, 6, 25, 47, 1047, 1000, 1006, 2004]);
        let mode = (mode, any::<bool>())
            .prop_map(|(mode, on)| format!("\x1b[?{mode}{}", if on { 'h' } else { 'l' }));
        let others = prop::sample::select(vec![
            "\x1b[m",
            "\x1b[H",
            "\x1b[2J",
            "\x1b=",
            "\x1b>",
            "\x1b7",
            "\x1b8",
            "\x1bM",
            "\x1bD",
            "\x1bE",
            "\x1bc",
            "\x1b(0",
            "\x1b(B",
            "\x1b)0",
            "\x1b]2;title\x07",
            "\x1b[?1049h",
            "\x1b[?1049l",
            "\x1b[4 q",
            "\x1b[>1u",
            "\x1b[<u",
            "\x1b[!p",
            "\x1b[4h",
        ]);
        let piece = prop_oneof![
            4 => word.prop_map(str::to_owned),
            4 => line,
            2 => control.prop_map(str::to_owned),
            3 => sequence,
            1 => color,
            1 => mode,
            2 => others.prop_map(str::to_owned),
        ];
        let text = prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat());
        // In the parser each screen has its own origin mode, in terminals both share one.
        let is_alternate = |text: &str| ["47h", "1049h"].iter().any(|mode| text.contains(mode));
        text.prop_map(move |text| if is_alternate(&text) { text.replace("\x1b[?6h", "") } else { text })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn lazy_parsing_shows_the_same_as_full_parsing(text in pieces()) {
            let mut lazy = screen_of(text.as_bytes());
            let mut thorough = Screen::new(SIZE);
            let mut all = Vec::new();
            thorough.sequences.take(text.as_bytes(), &mut all);
            thorough.guarded(|parser| parser.process(&all));
            prop_assert_eq!(see(&mut lazy), see(&mut thorough));
        }

        #[test]
        fn screen_is_independent_of_chunking(text in pieces(), cuts in prop::collection::vec(1_usize..80, 1..9)) {
            let mut parted = Screen::new(SIZE);
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, tail) = rest.split_at(rest.len().min(*cut));
                parted.take(part);
                parted.parse();
                rest = tail;
            }
            prop_assert_eq!(see(&mut parted), see(&mut screen_of(text.as_bytes())));
        }

        /// Also on a terminal that shows something else, as long as it was not left in another mode.
        #[test]
        fn redraw_reproduces_the_screen_on_another_terminal(text in pieces(), before in pieces(), end in 0_usize..5) {
            // The text may end in the middle of a sequence, which must continue on the other terminal, too.
            let bytes = &text.as_bytes()[..text.len().saturating_sub(end)];
            let mut screen = screen_of(bytes);
            // State set on the alternate screen before leaving it can't be reached from the main one.
            let is_main = |part: &&str| !["?47h", "?1047h", "?1049h"].iter().any(|mode| part.starts_with(mode));
            let before: Vec<_> = before.split("\x1b[").filter(is_main).collect();
            let mut other = screen_of(before.join("\x1b[").as_bytes());
            let restore = other.modes().restore();
            other.take(restore.as_bytes());
            other.take(&screen.redraw(SIZE.rows));
            // It makes no visible difference whether attributes were used.
            let (mut here, mut there) = (see(&mut screen), see(&mut other));
            for seen in [&mut here, &mut there] {
                seen.modes = seen.modes.current();
            }
            prop_assert_eq!(here, there);
            prop_assert_eq!(screen.sequences.unfinished(), other.sequences.unfinished());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Including everything that is not visible yet: the other screen, the saved cursor, the repeated character,
        /// the scrolled lines.
        #[test]
        fn r121_screen_state_survives_a_round_trip(
            text in pieces(), more in pieces(), end in 0_usize..5, is_parsed: bool, rows in 1_u16..9,
        ) {
            let mut before = screen_of(&text.as_bytes()[..text.len().saturating_sub(end)]);
            if is_parsed {
                before.parse();
            }
            let state = serde_json::to_vec(&before.state()).unwrap();
            let mut after = Screen::restore(serde_json::from_slice(&state).unwrap());
            let seen = see(&mut before);
            // A cursor that was restored to a position unreachable by other sequences is moved to the next row instead.
            let (row, (is_relative, _)) = (seen.cursor.0 + 1, seen.modes.origins());
            prop_assume!(!is_relative || seen.modes.region().is_none_or(|(top, bottom)| (top..=bottom).contains(&row)));
            prop_assert_eq!(see(&mut after), seen);
            prop_assert_eq!(before.sequences.unfinished(), after.sequences.unfinished());
            for text in ["\x1b[3b", &more, "\x18\x1b8.", "\x1b[?47h\x1b8.", "\x1b[?47l\x1b8."] {
                before.take(text.as_bytes());
                after.take(text.as_bytes());
                prop_assert_eq!(see(&mut after), see(&mut before), "after {:?}", text);
            }
            for screen in [&mut before, &mut after] {
                screen.resize(TerminalSize { rows, cols: SIZE.cols });
            }
            prop_assert_eq!(see(&mut after), see(&mut before), "in another size");
        }
    }

    #[test]
    fn redraw_scrolls_the_main_screen_instead_of_overwriting_it() {
        let mut users = Parser::new(NonZeroU16::new(6).unwrap(), NonZeroU16::new(20).unwrap(), 100);
        users.process(b"$ ls\r\nprecious\r\n$ bgctl attach");
        users.process(&screen_of(b"one\r\ntwo").redraw(6));
        let contents = users.screen().contents();
        assert_eq!(contents.trim_end(), "one\ntwo");
        users.screen_mut().set_scrollback(6);
        assert_eq!(users.screen().contents().lines().nth(1), Some("precious"));
    }

    #[test]
    fn flood_leaves_its_last_lines() {
        let mut screen = Screen::new(SIZE);
        for number in 0..100_000 {
            screen.take(format!("no {number}\r\n").as_bytes());
            if screen.is_full() {
                screen.parse();
            }
        }
        assert_eq!(text(&mut screen), ["no 99997", "no 99998", "no 99999", ""]);
    }

    #[test]
    fn parsing_work_is_bounded_and_keeps_the_final_screen() {
        let size = TerminalSize { rows: 1000, cols: 1000 };
        let whole = usize::from(size.rows) * usize::from(size.cols);
        for piece in ["\x1b[2J", "x\x1b[65535b", "\x1b[999L", "\x1bc", "\x1b[?1049h\x1b[?1049l"] {
            let mut screen = Screen::new(size);
            screen.take(b"\x1b[?1049h\x1b[5;900rlost");
            while !screen.is_full() {
                screen.take(piece.as_bytes());
            }
            screen.take(b"\x1b[?1049h\x1b[3;800r\x1b[?2004h\x1b[2J\x1b[Hend");
            screen.plan();
            let work: usize = screen.slices.iter().map(|slice| slice.work).sum();
            assert!(work <= MOST_WORK, "{piece:?}: {work}");
            assert!(screen.slices.iter().all(|slice| slice.work <= SLICE + 2 * whole + 100), "{piece:?}");
            screen.parse();
            assert_eq!(screen.backlog.len(), 0, "{piece:?}");
            let Seen { rows, modes, .. } = see(&mut screen);
            assert_eq!((rows[0].trim_end(), modes.region()), ("end", Some((3, 800))), "{piece:?}");
            assert!(modes.is_alternate(), "{piece:?}");
        }
    }

    #[test]
    fn modes_survive_skipped_output() {
        let mut screen = Screen::new(TerminalSize { rows: 100, cols: 1000 });
        screen.take(b"\x1b[?1049h\x1b[2;3r");
        while !screen.is_full() {
            screen.take(b"\x1b[2J");
        }
        screen.take(b"\x1b[Hone\r\ntwo\r\nthree\r\nfour");
        assert_eq!(text(&mut screen)[..4], ["one", "three", "four", ""]);
        screen.take(b"\x1b[?1049l");
        assert_eq!(text(&mut screen)[0], "", "the main screen, where nothing is");
    }

    #[test]
    fn resize_keeps_the_text() {
        let mut screen = screen_of(b"\x1b[2;3rone\r\ntwo");
        screen.resize(TerminalSize { rows: 3, cols: 20 });
        screen.take(b" and more than eight\r\nthree");
        assert_eq!(text(&mut screen), ["two and more than ei", "ght", "three"]);
    }

    #[test]
    fn extreme_sequences_on_tiny_screen_do_not_panic() {
        let mut screen = Screen::new(TerminalSize { rows: 1, cols: 1 });
        screen.take("漢\u{301}\u{fe0f}\x1b[65535;65535H\x1b[65535@\x1b[65535b\x1b[?6h\x1b[9;3r漢".as_bytes());
        assert!(!screen.redraw(1000).is_empty());
        screen.resize(TerminalSize { rows: 1000, cols: 1000 });
        assert!(!screen.redraw(1).is_empty());
    }
}
