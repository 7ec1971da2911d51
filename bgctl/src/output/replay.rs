//! Output that is shown on a terminal after it was written, maybe on another one. What would make this terminal answer,
//! into the shell's command line, or leave it in another mode, is left out, and so is the screen of a full-screen
//! program. After each part the colours are off, whatever ends this process next. Other readers get every byte.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use bgd_shared::request::OutputResult;

use crate::output::filter::{NO_COLOUR, TextFilter, attempt_starts};
use crate::remark::report;
use crate::render::list_format::is_dumb;

/// What is said once, if something is left out.
const LEFT_OUT: &str = "the screen of a full-screen program is left out; a pipe or a file gets every byte";

/// The filter for a terminal.
pub struct Replay {
    filter: TextFilter,
    /// Whether the user was notified that something is left out.
    is_reported: bool,
}

impl Replay {
    /// Returns the filter for this output; `None` if it is no terminal.
    pub fn onto(output: &impl AsFd) -> Option<Self> {
        let is_terminal = output.as_fd().is_terminal();
        is_terminal.then(|| Self { filter: begun(), is_reported: false })
    }

    /// Returns the filter for standard output; `None` if that is no terminal.
    pub fn onto_stdout() -> Option<Self> {
        Self::onto(&io::stdout())
    }

    /// Starts anew after a gap: what was left out may have left the screen of a full-screen program.
    pub fn restart(&mut self) {
        self.filter = begun();
    }

    /// Returns what to show of the next bytes of a task's output, which are at this offset; attempts start at these.
    pub fn push_at(&mut self, offset: u64, bytes: &[u8], starts: &[u64]) -> String {
        let text = self.coloured(|filter| filter.push_at(offset, bytes, starts));
        self.report_left_out();
        text
    }

    /// Returns what to show of the next bytes of an output without a terminal, and what to say of what is left out.
    pub fn push(&mut self, bytes: &[u8]) -> (String, Option<&'static str>) {
        let text = self.coloured(|filter| filter.push(bytes));
        (text, self.left_out())
    }

    /// Follows a part of the output that was requested from `from` on; what is shown begins at `end`. Returns where the
    /// next part before that begins, if there is one.
    pub fn look_back(&mut self, (from, end): (u64, u64), part: &OutputResult, bytes: &[u8]) -> Option<u64> {
        if part.offset != from {
            // What was there was dropped, maybe only now, or truncated.
            self.restart();
        }
        if part.offset >= end || part.next <= from {
            return None;
        }
        // After a dropped part, as many bytes as requested may end beyond what was meant.
        let before = usize::try_from(end - part.offset).unwrap_or(usize::MAX).min(bytes.len());
        self.filter.skip(part.offset, &bytes[..before], &attempt_starts(part));
        if part.next > part.offset + bytes.len() as u64 {
            self.restart();
        }
        Some(part.next).filter(|next| *next < end)
    }

    /// Switches on the colours of the part before, passes on a part, and switches them off.
    fn coloured(&mut self, pass: impl FnOnce(&mut TextFilter) -> String) -> String {
        let before = self.filter.colours();
        let text = pass(&mut self.filter);
        if text.is_empty() {
            return text;
        }
        let after = if self.filter.colours().is_empty() { "" } else { NO_COLOUR };
        before + &text + after
    }

    fn left_out(&mut self) -> Option<&'static str> {
        (self.filter.has_left_out() && !std::mem::replace(&mut self.is_reported, true)).then_some(LEFT_OUT)
    }

    fn report_left_out(&mut self) {
        if let Some(words) = self.left_out() {
            report(words);
        }
    }
}

/// Returns a filter for this terminal at the beginning of an output.
fn begun() -> TextFilter {
    if is_dumb() { TextFilter::with_text_only() } else { TextFilter::with_redrawn_lines() }
}

/// Returns the bytes to write.
pub fn shown<'a>(replay: &mut Option<Replay>, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    match replay {
        Some(replay) => {
            let (text, left_out) = replay.push(bytes);
            left_out.into_iter().for_each(report);
            text.into_bytes().into()
        }
        None => bytes.into(),
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::request::Encoding;
    use bgd_shared::task::Task;

    use super::*;
    use crate::render::samples::task;

    const ALTERNATE: &[u8] = b"\x1b[?1049hcells";

    fn replay() -> Replay {
        Replay { filter: TextFilter::with_redrawn_lines(), is_reported: false }
    }

    fn part(offset: u64, next: u64) -> OutputResult {
        let (task, data, encoding) = (Task { pty: true, ..task() }, String::new(), Encoding::Utf8);
        OutputResult { task, data, encoding, offset, next, eof: false, attempt_offset: None }
    }

    #[test]
    fn screen_before_a_dropped_part_is_not_that_of_what_follows() {
        let next = ALTERNATE.len() as u64;
        // All up to the part that is shown was dropped between two reads; or only some; or it was truncated.
        for (second, is_last) in [(part(1000, 1007), true), (part(500, 507), false), (part(5, 5), true)] {
            let mut replay = replay();
            assert_eq!(replay.look_back((0, 1000), &part(0, next), ALTERNATE), Some(next));
            assert!(replay.filter.is_alternate());
            let place = replay.look_back((next, 1000), &second, b"a text ");
            assert_eq!(place, (!is_last).then_some(507));
            assert!(!replay.filter.is_alternate(), "{place:?}");
        }
    }

    #[test]
    fn r142_colours_are_off_after_each_part_and_on_again_in_the_next() {
        let mut replay = replay();
        let mut push = |bytes: &[u8]| replay.push(bytes).0;
        assert_eq!(push(b"plain"), "plain");
        assert_eq!(push(b"\x1b[31mred"), "\x1b[31mred\x1b[m");
        assert_eq!(push(b"\x1b[?25l"), "", "nothing is shown");
        assert_eq!(push(b" bold\x1b[1m"), "\x1b[31m bold\x1b[1m\x1b[m");
        assert_eq!(push(b"both\x1b[m"), "\x1b[31m\x1b[1mboth\x1b[0m");
        assert_eq!(push(b"plain"), "plain");
    }

    #[test]
    fn look_back_follows_nothing_of_the_part_that_is_shown() {
        let mut replay = replay();
        let bytes = [b"a text ", ALTERNATE].concat();
        let next = 993 + bytes.len() as u64;
        assert_eq!(replay.look_back((0, 1000), &part(993, next), &bytes), None);
        assert!(!replay.filter.is_alternate());
    }
}
