//! Pictures of a terminal's screen, as SVG. No I/O: the same screen always gives the same picture.
//!
//! The picture has a dark window of its own, so that it is readable on any page, and uses any monospaced font of the
//! reader; each run of characters is stretched to its columns, so that the columns are straight in any font.

use std::fmt::Write as _;

use vt100::Color;

/// The size of a character cell, and of the letters in it, in units of the picture.
const CELL: (f64, f64) = (8.4, 18.0);
const FONT: f64 = 14.0;

/// Margin around the text, and height of the bar above it.
const MARGIN: f64 = 14.0;
const BAR: f64 = 30.0;

const FOREGROUND: &str = "#d4d7dd";
const BACKGROUND: &str = "#16181d";

/// The first 16 colours of terminals, in a scheme that is readable on the background.
const PALETTE: [&str; 16] = [
    "#3b3f4a", "#f07178", "#8fce7e", "#f2c46d", "#6ea8fe", "#c792ea", "#6fd3d8", "#d4d7dd", "#8a909c",
    "#ff8b92", "#aee39f", "#ffd88a", "#93c1ff", "#dcb1f7", "#95e6ea", "#ffffff",
];

/// Appearance of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Style {
    colour: Option<String>,
    background: Option<String>,
    /// Bold, dim and so on, as attributes of the picture's text.
    looks: String,
}

/// A character on the screen; the second column of a wide one is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Glyph {
    text: String,
    style: Style,
}

/// The text of a screen with its appearance, which can be changed before it becomes a picture.
#[derive(Clone, Debug)]
pub struct Picture {
    rows: Vec<Vec<Glyph>>,
    cursor: Option<(usize, usize)>,
}

impl Picture {
    /// Copies this screen, with its cursor if that is visible.
    pub fn of(screen: &vt100::Screen) -> Self {
        let (rows, columns) = screen.size();
        let row = |row| (0..columns.get()).map(|column| glyph(screen.cell(row, column))).collect();
        let (cursor_row, cursor_column) = screen.cursor_position();
        Self {
            rows: (0..rows.get()).map(row).collect(),
            cursor: (!screen.hide_cursor()).then(|| (usize::from(cursor_row), usize::from(cursor_column))),
        }
    }

    /// Returns the text of a row, without blanks at its end.
    pub fn line(&self, row: usize) -> String {
        text(&self.rows[row]).trim_end().to_owned()
    }

    pub fn height(&self) -> usize {
        self.rows.len()
    }

    /// Overwrites the text in a row from this column on; the new text takes over the appearance of the character there.
    pub fn write(&mut self, row: usize, column: usize, text: &str) {
        let style = self.rows[row][column].style.clone();
        for (glyph, character) in self.rows[row][column..].iter_mut().zip(text.chars()) {
            *glyph = Glyph { text: character.to_string(), style: style.clone() };
        }
    }

    /// Replaces text with other text wherever it occurs in a row; the text behind it moves.
    pub fn replace(&mut self, from: &str, to: &str) {
        for row in &mut self.rows {
            let width = row.len();
            let mut at = 0;
            while let Some(glyphs) = row.get(at..) {
                let rest = text(glyphs);
                let Some(byte) = rest.find(from) else { break };
                // No character before the text may be wide, else the column is wrong.
                at += rest[..byte].chars().count();
                let style = row[at].style.clone();
                let new = |character: char| Glyph { text: character.to_string(), style: style.clone() };
                row.splice(at..at + from.chars().count(), to.chars().map(new));
                row.resize(width, Glyph::default());
                at += to.chars().count();
            }
        }
    }

    /// Removes the empty rows at the end.
    pub fn trim(&mut self) {
        let last = (0..self.height()).rfind(|row| !self.line(*row).is_empty());
        let cursor = self.cursor.map_or(0, |(row, _)| row);
        self.rows.truncate(last.unwrap_or_default().max(cursor) + 1);
    }

    /// Formats the picture as the text of a file, with a title for those who can't see it.
    pub fn svg(&self, title: &str) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let (width, height) =
            (2.0 * MARGIN + span(columns, CELL.0), BAR + MARGIN + span(self.height(), CELL.1));
        let title = escaped(title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" role=\"img\">\n<!-- Made by the program `pictures` of bgd-tests. -->\n<title>{title}</title>\n\
             <rect x=\"0.5\" y=\"0.5\" width=\"{:.1}\" height=\"{:.1}\" rx=\"8\" fill=\"{BACKGROUND}\" \
             stroke=\"#3b3f4a\"/>\n",
            width - 1.0,
            height - 1.0,
        );
        for (place, colour) in ["#f07178", "#f2c46d", "#8fce7e"].iter().enumerate() {
            let x = MARGIN + 4.0 + span(place, 18.0);
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>", BAR / 2.0);
        }
        let _ = writeln!(
            svg,
            "<g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', \
             monospace\" font-size=\"{FONT}\" fill=\"{FOREGROUND}\" xml:space=\"preserve\">"
        );
        for (number, row) in self.rows.iter().enumerate() {
            self.draw(number, row, &mut svg);
        }
        svg + "</g>\n</svg>\n"
    }

    fn draw(&self, number: usize, row: &[Glyph], svg: &mut String) {
        let top = BAR + span(number, CELL.1);
        let mut from = 0;
        for run in row.chunk_by(|one, next| one.style == next.style) {
            let x = MARGIN + span(from, CELL.0);
            let width = span(run.len(), CELL.0);
            if let Some(colour) = &run[0].style.background {
                let height = CELL.1;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
                );
            }
            from += run.len();
            words(run, x, top + 13.5, svg);
        }
        if let Some((_, column)) = self.cursor.filter(|(row, _)| *row == number) {
            let x = MARGIN + span(column, CELL.0);
            let (width, height) = CELL;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width}\" height=\"{height}\" fill=\"{FOREGROUND}\" \
                 opacity=\"0.7\"/>"
            );
        }
    }
}

/// Converts a number of cells to units of the picture.
fn span(count: usize, side: f64) -> f64 {
    f64::from(u16::try_from(count).unwrap_or(u16::MAX)) * side
}

/// Draws the words of a run; two or more blanks separate words, so each stays at its column.
fn words(run: &[Glyph], x: f64, baseline: f64, svg: &mut String) {
    let is_blank = |at: usize| run.get(at).is_none_or(|glyph| glyph.text.trim().is_empty());
    let mut at = 0;
    while at < run.len() {
        if is_blank(at) {
            at += 1;
            continue;
        }
        let mut end = at + 1;
        while end < run.len() && !(is_blank(end) && is_blank(end + 1)) {
            end += 1;
        }
        let x = x + span(at, CELL.0);
        let words = escaped(text(&run[at..end]).trim_end());
        let width = span(end - at, CELL.0);
        let Style { colour, looks, .. } = &run[0].style;
        let fill = colour.as_ref().map_or_else(String::new, |colour| format!(" fill=\"{colour}\""));
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{baseline:.1}\" textLength=\"{width:.1}\"{fill}{looks}>{words}</text>"
        );
        at = end;
    }
}

/// Returns the text of glyphs. The second column of a wide character has none.
fn text(glyphs: &[Glyph]) -> String {
    glyphs.iter().map(|glyph| if glyph.text.is_empty() { " " } else { &glyph.text }).collect()
}

fn glyph(cell: Option<&vt100::Cell>) -> Glyph {
    let Some(cell) = cell else { return Glyph::default() };
    let (mut colour, mut background) = (hex(cell.fgcolor()), hex(cell.bgcolor()));
    if cell.inverse() {
        (colour, background) = (
            Some(background.unwrap_or_else(|| BACKGROUND.to_owned())),
            Some(colour.unwrap_or_else(|| FOREGROUND.to_owned())),
        );
    }
    let looks = [
        (cell.bold(), " font-weight=\"bold\""),
        (cell.dim(), " opacity=\"0.6\""),
        (cell.italic(), " font-style=\"italic\""),
        (cell.underline(), " text-decoration=\"underline\""),
    ];
    let looks = looks.into_iter().filter_map(|(is_so, attribute)| is_so.then_some(attribute)).collect();
    Glyph { text: cell.contents().to_owned(), style: Style { colour, background, looks } }
}

/// Formats a colour for a page; `None` for the default.
fn hex(colour: Color) -> Option<String> {
    let rgb = |r: u8, g: u8, b: u8| format!("#{r:02x}{g:02x}{b:02x}");
    match colour {
        Color::Default => None,
        Color::Rgb(r, g, b) => Some(rgb(r, g, b)),
        Color::Idx(index) => Some(match index {
            0..=15 => PALETTE[usize::from(index)].to_owned(),
            16..=231 => {
                let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
                let index = index - 16;
                rgb(level(index / 36), level(index / 6 % 6), level(index % 6))
            }
            232.. => {
                let level = 8 + 10 * (index - 232);
                rgb(level, level, level)
            }
        }),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;

    fn picture(bytes: &str) -> Picture {
        let side = |length| NonZero::new(length).unwrap();
        let mut emulator = vt100::Parser::new(side(3), side(20), 0);
        emulator.process(bytes.as_bytes());
        Picture::of(emulator.screen())
    }

    #[test]
    fn screen_is_drawn_as_coloured_words() {
        let svg = picture("a <b>\x1b[31m red\x1b[0m   \x1b[1;7mnow").svg("A & B");
        for part in [
            "<title>A &amp; B</title>",
            "textLength=\"42.0\">a &lt;b&gt;</text>",
            " fill=\"#f07178\">red</text>",
            " fill=\"#16181d\" font-weight=\"bold\">now</text>",
            "height=\"18\" fill=\"#d4d7dd\"/>",
            "opacity=\"0.7\"",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
    }

    #[test]
    fn varying_text_is_replaced() {
        let mut picture = picture("id 1f2e in 12s: x\r\n1f2e");
        picture.replace("1f2e", "aaaa");
        picture.replace("12s", "1m 4s");
        picture.write(0, 0, "No");
        picture.trim();
        assert_eq!((picture.height(), picture.line(0)), (2, "No aaaa in 1m 4s: x".to_owned()));
        assert_eq!(picture.line(1), "aaaa");
    }

    #[test]
    fn every_colour_is_mapped() {
        let of = |index| hex(Color::Idx(index)).unwrap();
        assert_eq!(
            [of(16), of(196), of(231), of(232), of(255)],
            ["#000000", "#ff0000", "#ffffff", "#080808", "#eeeeee"]
        );
        assert_eq!((hex(Color::Rgb(1, 2, 255)).unwrap(), hex(Color::Default)), ("#0102ff".to_owned(), None));
    }
}
