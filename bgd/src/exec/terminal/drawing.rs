//! Draws the content of a parsed screen for another terminal.
//!
//! [`whole`] returns the bytes that rebuild a screen in the program that takes over (R121). That program may have
//! another parser, or another version of it, but these are understood by every terminal: the content of both screens,
//! their saved cursors, the scrolling rows, their cursors, and the attributes of the next character. Two things can't
//! be expressed that way: the lines that have scrolled away, which are replaced by as many empty ones; and the
//! character that `CSI b` would repeat, which is carried separately.

use std::fmt::Write as _;
use std::num::NonZeroU16;

use bgd_shared::request::TerminalSize;
use vt100::{Cell, Color, Parser};

use super::modes::{Modes, Region};

/// The maximum number of lines counted as having left the main screen: as many may return when it becomes larger.
const LEFT: u16 = 1000;

const RESET_PEN: &str = "\x1b[m";
const ORIGIN_ON: &str = "\x1b[?6h";
const ORIGIN_OFF: &str = "\x1b[?6l";

/// The sequences that switch to the main and to the alternate screen, without changing either.
pub const SCREENS: [&str; 2] = ["\x1b[?47l", "\x1b[?47h"];

/// Returns the dimensions for the parser, at least 1.
pub fn sides(size: TerminalSize) -> (NonZeroU16, NonZeroU16) {
    (
        NonZeroU16::new(size.rows).unwrap_or(NonZeroU16::MIN),
        NonZeroU16::new(size.cols).unwrap_or(NonZeroU16::MIN),
    )
}

/// Draws the characters of a screen on an empty one whose cursor may be anywhere.
pub fn draw(screen: &vt100::Screen, text: &mut String) {
    let (rows, cols) = screen.size();
    let mut pen = Pen::default();
    for row in 0..rows.get() {
        let cells = (0..cols.get()).filter_map(|col| screen.cell(row, col));
        let cells: Vec<&Cell> = cells.collect();
        let is_blank = |cell: &&Cell| !cell.has_contents() && Pen::of(cell) == Pen::default();
        let Some(last) = cells.iter().rposition(|cell| !is_blank(cell)) else { continue };
        let _ = write!(text, "\x1b[{};1H", row + 1);
        for cell in cells[..=last].iter().filter(|cell| !cell.is_wide_continuation()) {
            pen.change(Pen::of(cell), text);
            text.push_str(if cell.has_contents() { cell.contents() } else { " " });
        }
    }
    pen.change(Pen::default(), text);
}

/// Places the cursor, with the attributes of the next character. Rows count from row `origin`.
pub fn draw_cursor(screen: &vt100::Screen, origin: u16, text: &mut String) {
    let (row, col) = screen.cursor_position();
    let cols = screen.size().1.get();
    let shown_row = row.saturating_sub(origin) + 1;
    let mut pen = Pen::default();
    if col < cols {
        let _ = write!(text, "\x1b[{shown_row};{}H", col + 1);
    } else {
        // The cursor is after the last character of the row, which only writing that character achieves.
        let is_second_half = screen.cell(row, cols - 1).is_some_and(Cell::is_wide_continuation);
        let last = cols.saturating_sub(if is_second_half { 2 } else { 1 });
        let _ = write!(text, "\x1b[{shown_row};{}H", last + 1);
        if let Some(cell) = screen.cell(row, last) {
            pen.change(Pen::of(cell), text);
            text.push_str(if cell.has_contents() { cell.contents() } else { " " });
        }
    }
    pen.change(Pen::next(screen), text);
}

/// The colours and attributes of characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pen {
    colors: [Color; 2],
    /// In the order of [`ATTRIBUTES`].
    attributes: [bool; 5],
}

/// The numbers of bold, dim, italic, underlined and inverse in an SGR sequence.
const ATTRIBUTES: [u8; 5] = [1, 2, 3, 4, 7];

impl Pen {
    /// Returns the pen that a character was drawn with.
    pub fn of(cell: &Cell) -> Self {
        let attributes = [cell.bold(), cell.dim(), cell.italic(), cell.underline(), cell.inverse()];
        Self { colors: [cell.fgcolor(), cell.bgcolor()], attributes }
    }

    /// Returns the pen for the next character.
    pub fn next(screen: &vt100::Screen) -> Self {
        let attributes = [screen.bold(), screen.dim(), screen.italic(), screen.underline(), screen.inverse()];
        Self { colors: [screen.fgcolor(), screen.bgcolor()], attributes }
    }

    /// Switches to another pen, by a sequence that starts with a reset.
    pub fn change(&mut self, next: Self, text: &mut String) {
        if *self == next {
            return;
        }
        *self = next;
        text.push_str("\x1b[0");
        for (number, _) in ATTRIBUTES.iter().zip(next.attributes).filter(|(_, is_on)| *is_on) {
            let _ = write!(text, ";{number}");
        }
        for (base, color) in [(30, next.colors[0]), (40, next.colors[1])] {
            let _ = match color {
                Color::Default => Ok(()),
                Color::Idx(number @ 0..8) => write!(text, ";{}", base + number),
                Color::Idx(number) => write!(text, ";{};5;{number}", base + 8),
                Color::Rgb(red, green, blue) => write!(text, ";{};2;{red};{green};{blue}", base + 8),
            };
        }
        text.push('m');
    }
}

/// Returns the text that draws a screen on an untouched terminal, and the character that `CSI b` would repeat.
pub fn whole(screen: &vt100::Screen, size: TerminalSize, modes: &Modes) -> (String, String) {
    let (rows, cols) = sides(size);
    // State that the parser does not expose is determined by experiments on a copy.
    let mut copy = Parser::new(rows, cols, 0);
    *copy.screen_mut() = screen.clone();
    let shown = usize::from(screen.alternate_screen());
    let mut drawn = [String::new(), String::new()];
    for which in [1 - shown, shown] {
        copy.process(SCREENS[which].as_bytes());
        // The alternate screen is entered without origin mode.
        let is_in_force = which == shown || which == 0;
        let origins = if is_in_force { modes.origins() } else { (false, false) };
        draw_one(&mut copy, origins, modes.regions()[which], &mut drawn[which]);
    }
    let repeated = repeated(&mut copy);
    let left = "\n".repeat(left(&mut copy, rows).into());
    let [main, alternate] = drawn;
    let main = format!("{}\x1b[{rows};1H{left}{main}", SCREENS[0]);
    let alternate = format!("{}{alternate}", SCREENS[1]);
    let mut text = if shown == 0 { alternate + &main } else { main + &alternate };
    text.push_str(RESET_PEN);
    Pen::default().change(Pen::next(screen), &mut text);
    (text, repeated)
}

/// Draws the current screen, with its saved cursor, which it then restores. `is_on` and `was_on` state whether origin
/// mode is on, and whether it was when the cursor was saved.
fn draw_one(copy: &mut Parser, (is_on, was_on): (bool, bool), region: Option<Region>, text: &mut String) {
    draw(copy.screen(), text);
    let origin = |is_on| if is_on { ORIGIN_ON } else { "" };
    let first = region.filter(|_| is_on).map_or(0, |(top, _)| top.saturating_sub(1));
    let mut cursor = String::new();
    draw_cursor(copy.screen(), first, &mut cursor);
    copy.process(b"\x1b8");
    text.push_str(origin(was_on));
    draw_cursor(copy.screen(), 0, text);
    let _ = write!(text, "\x1b7{ORIGIN_OFF}{RESET_PEN}");
    if let Some((top, bottom)) = region {
        let _ = write!(text, "\x1b[{top};{bottom}r");
    }
    let _ = write!(text, "{}{cursor}{RESET_PEN}", origin(is_on));
}

/// Returns the character that would be repeated, if any. Destroys the copy's content.
fn repeated(copy: &mut Parser) -> String {
    let clear = format!("{ORIGIN_OFF}\x1b[r{RESET_PEN}\x1b[2J\x1b[H\x1b[b");
    copy.process(clear.as_bytes());
    copy.screen().cell(0, 0).map(Cell::contents).unwrap_or_default().to_owned()
}

/// Returns how many lines have left the main screen at its top. Destroys the copy's content.
fn left(copy: &mut Parser, rows: NonZeroU16) -> u16 {
    copy.process(format!("{}{ORIGIN_OFF}\x1b[H", SCREENS[0]).as_bytes());
    copy.screen_mut().set_size(rows.saturating_add(LEFT), NonZeroU16::MIN);
    copy.screen().cursor_position().0
}
