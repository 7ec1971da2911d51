//! Output of jobs to their terminals.

use bgd::exec::terminal::screen::Screen;
use bgd_shared::request::TerminalSize;

const SIZE: TerminalSize = TerminalSize { rows: 5, cols: 11 };
const OTHER: TerminalSize = TerminalSize { rows: 3, cols: 30 };

/// More than a screen of this size needs to be drawn, whatever its content: colours and attributes of each cell.
const MOST_BYTES: usize = 64 * 1024;

fn drawn(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut screen = Screen::new(SIZE);
    for piece in bytes.chunks(piece) {
        screen.take(piece);
    }
    screen.redraw(SIZE.rows)
}

/// A screen is drawn in few bytes, and in the same bytes however the output arrived; a change of size does no harm.
pub fn screen(bytes: &[u8]) {
    let whole = drawn(bytes, bytes.len().max(1));
    assert!(whole.len() < MOST_BYTES, "{} bytes", whole.len());
    for piece in [1, 2, 5] {
        let parted = drawn(bytes, piece);
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(shown(&parted), shown(&whole), "in pieces of {piece}");
    }
    let mut screen = Screen::new(SIZE);
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    screen.take(first);
    screen.resize(OTHER);
    screen.take(rest);
    let resized = screen.redraw(OTHER.rows);
    assert!(resized.len() < MOST_BYTES, "{} bytes", resized.len());
    assert_eq!(screen.redraw(OTHER.rows), resized, "drawing changes nothing");
}
