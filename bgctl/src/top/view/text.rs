//! Puts text into the cells of a screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

pub use crate::render::width::{cut, width};

/// Wraps a text at blanks to lines of this many columns. A longer word gets a line of its own.
pub fn fold(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if width(line) + 1 + width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Breaks a line into lines of this many columns, without leaving anything out.
pub fn broken(line: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut taken = 0;
    for c in line.chars() {
        let columns_of = width(c.encode_utf8(&mut [0; 4]));
        if taken + columns_of > columns && taken > 0 {
            lines.push(String::new());
            taken = 0;
        }
        if let Some(last) = lines.last_mut() {
            last.push(c);
        }
        taken += columns_of;
    }
    lines
}

/// Writes a text on one line of an area, from this column on. Returns the column after it.
pub fn put(buffer: &mut Buffer, area: Rect, column: u16, text: &str, style: Style) -> u16 {
    let left = area.width.saturating_sub(column);
    if left == 0 || area.height == 0 {
        return column;
    }
    let text = cut(text, usize::from(left));
    let (end, _) = buffer.set_stringn(area.x + column, area.y, &text, usize::from(left), style);
    end - area.x
}

pub fn line(area: Rect, row: u16) -> Rect {
    if row < area.height {
        Rect::new(area.x, area.y + row, area.width, 1)
    } else {
        Rect::new(area.x, area.y, area.width, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_wraps_at_blanks() {
        assert_eq!(fold("a bc  def", 4), ["a bc", "def"]);
        assert_eq!(fold("漢字 x longer", 4), ["漢字", "x", "longer"]);
        assert_eq!((fold("", 4), fold("ab c", 0)), (vec![String::new()], vec!["ab".into(), "c".into()]));
    }

    #[test]
    fn line_breaks_at_any_character_and_keeps_all() {
        assert_eq!(broken("ab  c", 3), ["ab ", " c"]);
        assert_eq!(broken("a漢字", 2), ["a", "漢", "字"]);
        assert_eq!((broken("", 3), broken("ab", 0)), (vec![String::new()], vec!["a".into(), "b".into()]));
    }

    proptest! {
        #[test]
        fn text_never_leaves_its_area(text in ".{0,40}", column in 0u16..12, columns in 0u16..12) {
            let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 1));
            put(&mut buffer, Rect::new(0, 0, columns, 1), column, &crate::render::clean(&text), Style::new());
            for x in columns..20 {
                prop_assert_eq!(buffer[(x, 0)].symbol(), " ");
            }
        }
    }
}
