//! The modes of a terminal that escape sequences switch on, and the sequences that switch them off again for a viewer
//! that leaves, or on for one that attaches. The content of the screen is not handled here.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Private modes that are on initially: lines wrap, the cursor is shown.
const ON_AT_FIRST: [u16; 2] = [7, 25];

/// The only other mode that is on initially: the cursor is as visible as usual. tmux and screen switch it off for a very
/// visible one.
const USUAL_CURSOR: u16 = 34;

/// Private modes that are tracked elsewhere or can't be switched back: VT52, 132 columns, and the position of the
/// cursor.
const NOT_FOLLOWED: [u16; 4] = [2, 3, 40, 1048];

/// The private modes that select the alternate screen; they differ in what they save and clear.
const ALTERNATE: [u16; 3] = [47, 1047, 1049];

/// The origin mode: rows count from the top of the scroll region.
const ORIGIN: u16 = 6;

/// The maximum number of modes of a kind, and of keyboard settings, that are tracked. Further ones only affect the
/// terminals of current viewers.
const FOLLOWED: usize = 64;

/// The rows that scroll, first and last, counted from 1.
pub type Region = (u16, u16);

/// The changes that escape sequences have made to a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct Modes {
    /// Private modes (`CSI ? n h`) that are not in their initial state, with the most recently changed last.
    private: Vec<u16>,
    /// Other modes (`CSI n h`) that are not in their initial state.
    ansi: Vec<u16>,
    /// The mode that selected the alternate screen.
    alternate: Option<u16>,
    /// Whether the keypad sends its own sequences.
    keypad: bool,
    /// Whether the second character set is in use.
    shifted: bool,
    /// Which of the two character sets contain line-drawing characters.
    line_drawing: [bool; 2],
    /// The shape of the cursor; 0 is the user's own.
    cursor_style: u16,
    /// The keyboard settings of the main and of the alternate screen.
    keyboards: [Keyboard; 2],
    /// How other keys are reported (xterm's `modifyOtherKeys`), if set.
    other_keys: Option<u16>,
    /// The rows that scroll, on the main and on the alternate screen; `None` for all.
    regions: [Option<Region>; 2],
    /// Whether colours or other attributes were used.
    attributes: bool,
    /// Whether origin mode was on when the cursor was saved; restoring the cursor restores it.
    saved_origin: bool,
}

/// The keyboard settings of one screen: flags, and further ones stacked on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Keyboard {
    flags: u16,
    #[serde(rename = "pile")]
    stack: Vec<u16>,
}

impl Keyboard {
    fn push(&mut self, flags: u16) {
        if self.stack.len() < FOLLOWED {
            self.stack.push(flags);
        }
    }

    fn pop(&mut self, count: u16) {
        self.stack.truncate(self.stack.len().saturating_sub(usize::from(count.max(1))));
    }

    fn change(&mut self, flags: u16, how: u16) {
        let current = self.stack.last_mut().unwrap_or(&mut self.flags);
        *current = match how {
            2 => *current | flags,
            3 => *current & !flags,
            _ => flags,
        };
    }

    fn restore(&self) -> String {
        let mut text = String::new();
        if let count @ 1.. = self.stack.len() {
            let _ = write!(text, "\x1b[<{count}u");
        }
        if self.flags != 0 {
            text.push_str("\x1b[=0u");
        }
        text
    }

    fn set(&self) -> String {
        let mut text = String::new();
        if self.flags != 0 {
            let _ = write!(text, "\x1b[={}u", self.flags);
        }
        for flags in &self.stack {
            let _ = write!(text, "\x1b[>{flags}u");
        }
        text
    }
}

impl Modes {
    fn screen(&self) -> usize {
        usize::from(self.alternate.is_some())
    }

    fn keyboard(&mut self) -> &mut Keyboard {
        &mut self.keyboards[usize::from(self.alternate.is_some())]
    }

    /// Reports whether the alternate screen is shown.
    pub fn is_alternate(&self) -> bool {
        self.alternate.is_some()
    }

    /// Reports whether letters currently stand for lines and corners.
    pub fn draws_lines(&self) -> bool {
        self.line_drawing[usize::from(self.shifted)]
    }

    /// Returns the rows that scroll, if not all of them do.
    pub fn region(&self) -> Option<Region> {
        self.regions[self.screen()]
    }

    /// Returns the rows that scroll on the main and on the alternate screen, where not all do.
    pub fn regions(&self) -> [Option<Region>; 2] {
        self.regions
    }

    /// Returns whether origin mode is on, and whether it was when the cursor was saved.
    pub fn origins(&self) -> (bool, bool) {
        (self.private.contains(&ORIGIN), self.saved_origin)
    }

    /// Reports whether only some rows of one of the screens scroll.
    pub fn scrolls_parts(&self) -> bool {
        self.regions != [None; 2]
    }

    /// Returns the row that the cursor's rows count from, starting at 0.
    pub fn origin(&self) -> u16 {
        let is_relative = self.private.contains(&ORIGIN);
        self.region().filter(|_| is_relative).map_or(0, |(top, _)| top.saturating_sub(1))
    }

    /// Handles a change of the size, which makes all rows scroll.
    pub fn resized(&mut self) {
        self.regions = [None; 2];
    }

    /// Handles shift in and shift out.
    pub fn shift(&mut self, out: bool) {
        self.shifted = out;
    }

    /// Handles an escape sequence without parameters, such as `ESC =`.
    pub fn escape(&mut self, intermediates: &[u8], last: u8) {
        match (intermediates, last) {
            ([], b'=') => self.keypad = true,
            ([], b'>') => self.keypad = false,
            ([], b'c') => *self = Self::default(),
            ([], b'7') => self.save_cursor(),
            ([], b'8') => self.restore_cursor(),
            ([b'('], set) => self.line_drawing[0] = set == b'0',
            ([b')'], set) => self.line_drawing[1] = set == b'0',
            _ => {}
        }
    }

    /// Handles a control sequence, such as `CSI ? 25 l`.
    pub fn control(&mut self, prefix: Option<u8>, params: &[u16], intermediates: &[u8], last: u8) {
        let first = params.first().copied().unwrap_or(0);
        match (prefix, intermediates, last) {
            (Some(b'?'), [], b'h' | b'l') => {
                for mode in params {
                    self.set_private(*mode, last == b'h');
                }
            }
            (None, [], b'h' | b'l') => {
                for mode in params {
                    change(&mut self.ansi, *mode, (last == b'h') != (*mode == USUAL_CURSOR));
                }
            }
            (None, [], b'm') => self.attributes = true,
            (None, [], b's') if params.is_empty() => self.save_cursor(),
            (None, [], b'u') if params.is_empty() => self.restore_cursor(),
            (None, [b'!'], b'p') => self.soft_reset(),
            (None, [b' '], b'q') => self.cursor_style = first,
            (Some(b'>'), [], b'm') if first == 4 || params.is_empty() => {
                self.other_keys = params.get(1).copied().filter(|value| *value != 0);
            }
            (Some(b'>'), [], b'n') if first == 4 => self.other_keys = None,
            (Some(b'>'), [], b'u') => self.keyboard().push(first),
            (Some(b'<'), [], b'u') => self.keyboard().pop(first),
            (Some(b'='), [], b'u') => self.keyboard().change(first, params.get(1).copied().unwrap_or(1)),
            _ => {}
        }
    }

    fn save_cursor(&mut self) {
        self.saved_origin = self.private.contains(&ORIGIN);
    }

    fn restore_cursor(&mut self) {
        change(&mut self.private, ORIGIN, self.saved_origin);
    }

    fn set_private(&mut self, mode: u16, on: bool) {
        match mode {
            1048 | 1049 if on => self.save_cursor(),
            1048 | 1049 => self.restore_cursor(),
            _ => {}
        }
        if ALTERNATE.contains(&mode) {
            if on && mode == 1049 {
                self.regions[1] = None;
            }
            self.alternate = on.then_some(mode);
        } else if !NOT_FOLLOWED.contains(&mode) {
            change(&mut self.private, mode, on != ON_AT_FIRST.contains(&mode));
        }
    }

    /// Sets the rows that scroll on the current screen; `None` for all of them.
    pub fn set_region(&mut self, region: Option<Region>) {
        let screen = self.screen();
        self.regions[screen] = region;
    }

    /// Keeps the region, as not every terminal resets it.
    fn soft_reset(&mut self) {
        self.private.retain(|mode| ![1, ORIGIN, 7, 25].contains(mode));
        self.ansi.clear();
        self.keypad = false;
        self.shifted = false;
        self.line_drawing = [false; 2];
    }

    /// Returns the text that makes a terminal in these modes usable by others: all modes in their initial state, and
    /// the main screen shown. Empty if that is already so.
    pub fn restore(&self) -> String {
        let mut text = String::new();
        let mut put = |part: std::fmt::Arguments<'_>| {
            // Writing to a string can't fail.
            let _ = text.write_fmt(part);
        };
        for (mode, end) in self.private.iter().rev().map(|mode| (mode, off(*mode))) {
            put(format_args!("\x1b[?{mode}{end}"));
        }
        for mode in self.ansi.iter().rev() {
            put(format_args!("\x1b[{mode}{}", if *mode == USUAL_CURSOR { 'h' } else { 'l' }));
        }
        if self.keypad {
            put(format_args!("\x1b>"));
        }
        if self.other_keys.is_some() {
            put(format_args!("\x1b[>4m"));
        }
        if self.shifted {
            put(format_args!("\x0f"));
        }
        for (set, sign) in [(0, '('), (1, ')')] {
            if self.line_drawing[set] {
                put(format_args!("\x1b{sign}B"));
            }
        }
        if self.cursor_style != 0 {
            put(format_args!("\x1b[0 q"));
        }
        if let Some(alternate) = self.alternate {
            put(format_args!("{}", self.keyboards[1].restore()));
            if self.regions[1].is_some() {
                put(format_args!("\x1b[r"));
            }
            put(format_args!("\x1b[?{alternate}l"));
        }
        put(format_args!("{}", self.keyboards[0].restore()));
        // In some terminals both screens share the rows that scroll.
        if self.regions[0].is_some() || (self.alternate.is_none() && self.scrolls_parts()) {
            // This moves the cursor to the top, so save and restore it.
            put(format_args!("\x1b7\x1b[r\x1b8"));
        }
        if self.attributes {
            put(format_args!("\x1b[m"));
        }
        text
    }

    /// Returns the text that makes a terminal in its initial state show the alternate screen; `None` if the main one is
    /// shown.
    pub fn enter(&self) -> Option<String> {
        self.alternate.map(|mode| format!("\x1b[?{mode}h"))
    }

    /// Returns the text that sets all modes except the character sets on a terminal in its initial state that shows the
    /// right screen. This includes the rows that scroll, which moves the cursor.
    pub fn set(&self) -> String {
        let mut text = String::new();
        let mut put = |part: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(part);
        };
        if let Some((top, bottom)) = self.region() {
            put(format_args!("\x1b[{top};{bottom}r"));
        }
        for (mode, end) in self.private.iter().map(|mode| (mode, on(*mode))) {
            put(format_args!("\x1b[?{mode}{end}"));
        }
        for mode in &self.ansi {
            put(format_args!("\x1b[{mode}{}", if *mode == USUAL_CURSOR { 'l' } else { 'h' }));
        }
        if self.keypad {
            put(format_args!("\x1b="));
        }
        if let Some(value) = self.other_keys {
            put(format_args!("\x1b[>4;{value}m"));
        }
        if self.cursor_style != 0 {
            put(format_args!("\x1b[{} q", self.cursor_style));
        }
        put(format_args!("{}", self.keyboards[self.screen()].set()));
        text
    }

    /// Returns the same for the character sets, which must come last.
    pub fn character_sets(&self) -> String {
        let mut text = String::new();
        for (set, sign) in [(0, '('), (1, ')')] {
            if self.line_drawing[set] {
                let _ = write!(text, "\x1b{sign}0");
            }
        }
        if self.shifted {
            text.push('\x0e');
        }
        text
    }
}

/// Notes whether a mode is on.
fn change(modes: &mut Vec<u16>, mode: u16, on: bool) {
    modes.retain(|known| *known != mode);
    if on && modes.len() < FOLLOWED {
        modes.push(mode);
    }
}

/// Returns the final byte that takes a private mode out of its initial state.
fn on(mode: u16) -> char {
    if ON_AT_FIRST.contains(&mode) { 'l' } else { 'h' }
}

/// Returns the final byte that resets a private mode to its initial state.
fn off(mode: u16) -> char {
    if ON_AT_FIRST.contains(&mode) { 'h' } else { 'l' }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Modes {
        /// Returns the modes in force on the current screen.
        pub fn current(&self) -> Self {
            let screen = self.screen();
            let mut modes = Self { attributes: false, saved_origin: false, ..self.clone() };
            modes.keyboards[1 - screen] = Keyboard::default();
            modes.regions[1 - screen] = None;
            modes
        }
    }

    /// A control sequence: prefix, params, intermediates, last byte.
    type Control<'a> = (Option<u8>, &'a [u16], &'a [u8], u8);

    fn after(controls: &[Control<'_>]) -> Modes {
        let mut modes = Modes::default();
        for (prefix, params, intermediates, last) in controls {
            modes.control(*prefix, params, intermediates, *last);
        }
        modes
    }

    #[test]
    fn default_modes_need_no_restore() {
        assert_eq!(Modes::default().restore() + &Modes::default().set(), "");
        let modes = after(&[(Some(b'?'), &[25, 2004], &[], b'l'), (Some(b'?'), &[25], &[], b'h')]);
        assert_eq!(modes, Modes::default());
    }

    #[test]
    fn usual_cursor_of_tmux_needs_no_restore() {
        let very_visible: Control<'_> = (None, &[34], &[], b'l');
        let usual: Control<'_> = (None, &[34], &[], b'h');
        assert_eq!(after(&[usual]), Modes::default());
        let modes = after(&[very_visible]);
        assert_eq!([modes.restore(), modes.set()], ["\x1b[34h", "\x1b[34l"]);
        assert_eq!(after(&[very_visible, usual]), Modes::default());
    }

    #[test]
    fn modes_are_restored_in_reverse_order() {
        let mut modes = after(&[
            (Some(b'?'), &[1049], &[], b'h'),
            (Some(b'?'), &[1, 2004, 1006], &[], b'h'),
            (Some(b'?'), &[25], &[], b'l'),
            (Some(b'>'), &[5], &[], b'u'),
            (None, &[1], &[], b'm'),
        ]);
        modes.set_region(Some((2, 9)));
        let left = "\x1b[?25h\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b[<1u\x1b[r\x1b[?1049l\x1b[m";
        assert_eq!(modes.restore(), left);
        assert_eq!(modes.enter().as_deref(), Some("\x1b[?1049h"));
        assert_eq!(modes.set(), "\x1b[2;9r\x1b[?1h\x1b[?2004h\x1b[?1006h\x1b[?25l\x1b[>5u");
    }

    #[test]
    fn each_screen_has_its_own_region_and_keyboard_mode() {
        let mut modes = after(&[(Some(b'='), &[1], &[], b'u')]);
        modes.set_region(Some((3, 5)));
        modes.control(Some(b'?'), &[1049], &[], b'h');
        assert_eq!(modes.region(), None);
        assert_eq!(modes.set(), "");
        modes.control(Some(b'?'), &[6], &[], b'h');
        assert_eq!(modes.origin(), 0);
        modes.control(Some(b'?'), &[47], &[], b'l');
        assert_eq!((modes.region(), modes.origin()), (Some((3, 5)), 2));
        assert_eq!(modes.set(), "\x1b[3;5r\x1b[?6h\x1b[=1u");
        modes.resized();
        assert_eq!((modes.region(), modes.origin()), (None, 0));
    }

    #[test]
    fn stored_modes_are_bounded() {
        let mut modes = Modes::default();
        for number in 100..10_000 {
            modes.control(Some(b'?'), &[number], &[], b'h');
            modes.control(None, &[number], &[], b'h');
            modes.control(Some(b'>'), &[number], &[], b'u');
        }
        assert!(modes.restore().len() < 3000, "{}", modes.restore().len());
    }
}
