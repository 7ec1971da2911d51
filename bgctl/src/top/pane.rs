//! The preview of a task: the end of its output as a terminal would show it, with colours. Bounded, regardless of the
//! length of the output. No I/O.

use std::num::NonZero;

use bgd_shared::question::NeedsInput;
use bgd_shared::show;
use bgd_shared::task::Task;
use bgd_shared::titles::TitleFilter;

use crate::render::clean;

/// Maximum number of bytes kept of an output, from its end.
pub const TAIL: u64 = 64 * 1024;

/// The size of the screen on which a task's own terminal is drawn, which suffices for most terminals.
const SCREEN: (u16, u16) = (100, 250);

/// A task in the preview.
pub struct Pane {
    source: Source,
    /// Offset of the next byte to read.
    pub next: u64,
    /// The last known size of the output.
    pub end: u64,
    /// Whether its terminal can no longer be shown.
    pub has_no_screen: bool,
    /// Whether the output has grown since it was read.
    pub is_stale: bool,
    /// Whether a call for it is in flight.
    pub is_asked: bool,
    /// Its agent's last tool calls.
    tools: Vec<String>,
    tool_calls: u64,
    /// Its agent's plan, one line per step.
    plan: Vec<String>,
    /// The resources it has used, and its agent's consumption.
    used: Vec<String>,
    /// Its agent's last message besides the answer.
    words: Option<String>,
    question: Option<NeedsInput>,
    error: Option<String>,
}

enum Source {
    /// Nothing read yet.
    Nothing,
    /// The end of an output.
    Tail(Vec<u8>),
    /// The reason why the output can't be read.
    Unreadable(String),
    /// The screen of a task's own terminal.
    Screen(Box<vt100::Parser>, TitleFilter),
}

impl Default for Pane {
    fn default() -> Self {
        Self {
            source: Source::Nothing,
            next: 0,
            end: 0,
            has_no_screen: false,
            is_stale: true,
            is_asked: false,
            tools: Vec::new(),
            tool_calls: 0,
            plan: Vec::new(),
            used: Vec::new(),
            words: None,
            question: None,
            error: None,
        }
    }
}

fn side(length: u16) -> NonZero<u16> {
    NonZero::new(length).unwrap_or(NonZero::<u16>::MIN)
}

impl Pane {
    /// Sets the data that a task has besides its output.
    pub fn set_task(&mut self, task: &Task) {
        self.tools = task.progress.last_tools.iter().map(|tool| clean(tool)).collect();
        self.tool_calls = task.progress.tool_calls;
        self.plan = task.progress.plan.iter().map(show::step).collect();
        let is_over = !task.status.is_active();
        let used =
            task.usage.as_ref().filter(|_| is_over).map(|usage| format!("used {}", show::usage(usage)));
        let consumed = task.agent_usage.as_ref();
        let words = consumed.and_then(show::agent_usage);
        let context = consumed.and_then(show::agent_context).map(|context| format!("context: {context}"));
        self.used = used.into_iter().chain(words).chain(context).map(|words| clean(&words)).collect();
        self.words = task.progress.last_words.as_deref().map(clean);
        self.question = task.progress.needs_input.clone().filter(|_| task.status.is_active());
        self.error = task.error.as_deref().map(clean);
    }

    /// Returns the offset at which to continue reading: after the known bytes, or near the end if that is too far away.
    /// Negative offsets are from the end.
    pub fn continues_at(&self) -> i64 {
        match &self.source {
            // A smaller size means that the output was truncated.
            Source::Tail(_) if (self.next..=self.next.saturating_add(TAIL)).contains(&self.end) => {
                i64::try_from(self.next).unwrap_or(i64::MAX)
            }
            Source::Tail(_) | Source::Nothing | Source::Unreadable(_) | Source::Screen(..) => {
                -i64::try_from(TAIL).unwrap_or(i64::MAX)
            }
        }
    }

    /// Adds bytes of the output that begin at this offset. Bytes that do not follow the known ones replace them.
    pub fn set_output(&mut self, offset: u64, bytes: &[u8]) {
        if offset < self.next && bytes.is_empty() && matches!(self.source, Source::Tail(_)) {
            // The output was truncated before the end that is known: it is read again.
            (self.source, self.next, self.is_stale) = (Source::Nothing, 0, true);
            return;
        }
        let follows = offset == self.next;
        let mut tail = match std::mem::replace(&mut self.source, Source::Nothing) {
            Source::Tail(tail) if follows => tail,
            Source::Tail(_) | Source::Nothing | Source::Unreadable(_) | Source::Screen(..) => Vec::new(),
        };
        tail.extend_from_slice(bytes);
        let most = usize::try_from(TAIL).unwrap_or(usize::MAX);
        let too_many = tail.len().saturating_sub(most);
        tail.drain(..too_many);
        self.source = Source::Tail(tail);
        self.next = offset.saturating_add(bytes.len() as u64);
    }

    /// Reports whether it shows no output, because there was none or it could not be read.
    pub fn is_blank(&self) -> bool {
        match &self.source {
            Source::Tail(tail) => tail.is_empty(),
            Source::Nothing | Source::Unreadable(_) => true,
            Source::Screen(..) => false,
        }
    }

    /// Shows why the output can't be read, in its place. Counts as known, so that it is not read again until the task
    /// changes.
    pub fn set_unreadable(&mut self, why: &str) {
        self.source = Source::Unreadable(clean(why));
    }

    /// Adds output of the task's terminal.
    pub fn set_screen(&mut self, bytes: &[u8], is_redraw: bool) {
        if is_redraw || !matches!(self.source, Source::Screen(..)) {
            let parser = vt100::Parser::new(side(SCREEN.0), side(SCREEN.1), 0);
            self.source = Source::Screen(Box::new(parser), TitleFilter::default());
        }
        if let Source::Screen(parser, titles) = &mut self.source {
            parser.process(&titles.push(bytes));
        }
    }

    /// Reports whether anything was read, or could not be.
    pub fn is_known(&self) -> bool {
        !matches!(self.source, Source::Nothing)
    }

    /// Returns the open question of its agent.
    pub fn question(&self) -> Option<&NeedsInput> {
        self.question.as_ref()
    }

    /// Returns the lines above the output: an agent's plan and tools, resource usage, and why a task failed.
    pub fn about(&self) -> Vec<String> {
        let mut lines = self.plan.clone();
        if self.tool_calls > 0 {
            lines.push(format!("{}: {}", show::count(self.tool_calls, "tool call"), self.tools.join(", ")));
        }
        lines.extend(self.used.iter().cloned());
        lines.extend(self.words.clone());
        lines.extend(self.error.clone());
        lines
    }

    /// Draws the output on a screen of this size, showing the last lines.
    pub fn screen(&self, rows: u16, cols: u16) -> Drawn {
        match &self.source {
            Source::Nothing => Drawn { screen: None, from: 0 },
            Source::Tail(tail) => drawn(&as_shown(tail), rows, cols),
            Source::Unreadable(why) => drawn(why.as_bytes(), rows, cols),
            Source::Screen(parser, _) => {
                let screen = parser.screen();
                let last = last_row(screen);
                Drawn { screen: Some(screen.clone()), from: (last + 1).saturating_sub(rows) }
            }
        }
    }
}

/// A screen, and the first row to show.
pub struct Drawn {
    /// `None` if nothing is known yet.
    pub screen: Option<vt100::Screen>,
    pub from: u16,
}

/// Draws bytes on an empty screen of this size.
fn drawn(bytes: &[u8], rows: u16, cols: u16) -> Drawn {
    let mut parser = vt100::Parser::new(side(rows), side(cols), 0);
    parser.process(&TitleFilter::default().push(bytes));
    Drawn { screen: Some(parser.screen().clone()), from: 0 }
}

/// Returns the last row that is not blank, or the cursor's row if that is further down.
fn last_row(screen: &vt100::Screen) -> u16 {
    let (rows, cols) = screen.size();
    let is_blank = |row: u16| {
        (0..cols.get()).all(|col| screen.cell(row, col).is_none_or(|cell| cell.contents().trim().is_empty()))
    };
    let cursor = screen.cursor_position().0;
    (cursor + 1..rows.get()).rev().find(|row| !is_blank(*row)).unwrap_or(cursor)
}

/// Makes lines begin at the left, as a terminal driver does, and omits an empty last line.
fn as_shown(bytes: &[u8]) -> Vec<u8> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 16);
    for byte in bytes {
        if *byte == b'\n' {
            out.push(b'\r');
        }
        out.push(*byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(pane: &Pane, rows: u16, cols: u16) -> String {
        let drawn = pane.screen(rows, cols);
        drawn.screen.map_or_else(String::new, |screen| screen.contents())
    }

    #[test]
    fn r161_preview_shows_the_end_of_the_output() {
        let mut pane = Pane::default();
        assert!(!pane.is_known());
        pane.set_output(0, b"one\ntwo\n\x1b[31mthree\x1b[m\x1bktitle\x1b\\\n");
        assert_eq!(text(&pane, 2, 20).trim_end(), "two\nthree");
        let red = pane.screen(2, 20).screen.unwrap().cell(1, 0).unwrap().fgcolor();
        assert_eq!(red, vt100::Color::Idx(1));
        pane.set_output(pane.next, b"four\n");
        assert_eq!(text(&pane, 2, 20).trim_end(), "three\nfour");
        pane.set_output(1 << 30, b"later\n");
        assert_eq!(text(&pane, 9, 20).trim_end(), "later", "what is between is not known");
        pane.end = 6;
        assert!(pane.continues_at() < 0, "it was truncated");
        pane.set_output(6, b"");
        assert!(!pane.is_known() && pane.is_stale, "it is read again");
        pane.set_output(0, b"short\n");
        assert_eq!(text(&pane, 9, 20).trim_end(), "short");
    }

    #[test]
    fn r161_preview_keeps_only_the_end_of_the_output() {
        let mut pane = Pane::default();
        for _ in 0..100 {
            pane.set_output(pane.next, &[b'x'; 16 * 1024]);
        }
        let Source::Tail(tail) = &pane.source else { panic!("no output") };
        assert_eq!(tail.len() as u64, TAIL);
        assert_eq!(pane.next, 100 * 16 * 1024);
    }

    #[test]
    fn r163_unreadable_output_counts_as_known_until_it_can_be_read() {
        let mut pane = Pane::default();
        pane.set_output(0, b"one\n");
        pane.set_unreadable("it is gone");
        assert!(pane.is_known(), "it would be read again and again");
        assert_eq!(text(&pane, 2, 5).trim_end(), "it is gone", "it is wrapped, not cut");
        assert!(pane.continues_at() < 0, "the bytes before are not shown any more");
        pane.set_output(4, b"two\n");
        assert_eq!(text(&pane, 2, 20).trim_end(), "two");
    }

    #[test]
    fn r161_preview_shows_terminal_screen_as_drawn() {
        let mut pane = Pane::default();
        pane.set_screen(b"\x1b[2J\x1b[5;1Hfive\x1b[7;1Hseven", true);
        pane.set_screen(b"!\x1bkti", false);
        pane.set_screen(b"tle\x1b\\", false);
        let drawn = pane.screen(3, 20);
        assert_eq!(drawn.from, 4);
        assert!(drawn.screen.unwrap().contents().ends_with("seven!"));
    }

    proptest! {
        #[test]
        fn r161_binary_output_never_breaks_the_preview(bytes in proptest::collection::vec(any::<u8>(), 0..2000), rows in 1u16..30, cols in 1u16..60) {
            let mut pane = Pane::default();
            pane.set_output(0, &bytes);
            let drawn = pane.screen(rows, cols);
            prop_assert_eq!(drawn.screen.unwrap().size(), (side(rows), side(cols)));
        }
    }
}
