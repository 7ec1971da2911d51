//! Output that is shown on a terminal after it was written, maybe on another one. What would make this terminal answer,
//! into the shell's command line, or leave it in another mode, is left out, and so is the screen of a full-screen
//! program. Other readers get every byte.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use crate::output::filter::TextFilter;
use crate::remark::report;

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
        is_terminal.then(|| Self { filter: TextFilter::with_redrawn_lines(), is_reported: false })
    }

    /// Returns the filter for standard output; `None` if that is no terminal.
    pub fn onto_stdout() -> Option<Self> {
        Self::onto(&io::stdout())
    }

    /// Starts anew after a gap: what was left out may have left the screen of a full-screen program.
    pub fn restart(&mut self) {
        self.filter = TextFilter::with_redrawn_lines();
    }

    /// Returns what to show of the next bytes of a task's output, which are at this offset; attempts start at these.
    pub fn push_at(&mut self, offset: u64, bytes: &[u8], starts: &[u64]) -> String {
        let text = self.filter.push_at(offset, bytes, starts);
        self.report_left_out();
        text
    }

    /// Follows bytes before those that are shown.
    pub fn skip(&mut self, offset: u64, bytes: &[u8], starts: &[u64]) {
        self.filter.skip(offset, bytes, starts);
    }

    fn push(&mut self, bytes: &[u8]) -> String {
        let text = self.filter.push(bytes);
        self.report_left_out();
        text
    }

    fn report_left_out(&mut self) {
        if self.filter.has_left_out() && !std::mem::replace(&mut self.is_reported, true) {
            report("the screen of a full-screen program is left out; a pipe or a file gets every byte");
        }
    }
}

/// Returns the bytes to write.
pub fn shown<'a>(replay: &mut Option<Replay>, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    match replay {
        Some(replay) => replay.push(bytes).into_bytes().into(),
        None => bytes.into(),
    }
}
