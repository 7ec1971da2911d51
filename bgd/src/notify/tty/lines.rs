//! The lines for one terminal: as many as fit, and else their number. This module writes to no terminal.

use std::sync::Arc;

use bgd_shared::notice::NoticeKind;
use serde::{Deserialize, Serialize};

use super::line::{self, Line};
use crate::core::Place;
use crate::notify::Notification;

/// Maximum number of lines held per terminal. More are summarized in one line of counts.
const HELD_LINES: usize = 32;

/// Maximum number of lines written at once where something may be typed. More are summarized in one line of counts.
const TYPED_LINES: usize = 3;

/// The lines to write to one terminal.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Lines {
    /// At most [`HELD_LINES`]; empty if there are more.
    pub(super) each: Vec<Line>,
    /// The number of notices of each kind, in the order of [`KINDS`].
    counts: [u64; KINDS.len()],
    /// The environment and terminal of the latest submitter.
    place: Option<Arc<Place>>,
    /// Whether every task has a parent session, whose inbox holds the notices.
    in_inbox: bool,
    /// Whether some lines were for a terminal that is closed.
    pub(super) is_missed: bool,
}

/// The notice kinds in the order of [`Lines::counts`], with the words for the summary.
const KINDS: [(NoticeKind, &str); 5] = [
    (NoticeKind::Completed, "completed"),
    (NoticeKind::Failed, "failed"),
    (NoticeKind::Cancelled, "cancelled"),
    (NoticeKind::NeedsInput, "need input"),
    (NoticeKind::Started, "started"),
];

impl Lines {
    /// Creates none.
    pub(super) fn new() -> Self {
        Self { in_inbox: true, ..Self::default() }
    }

    /// Adds the line of a notice.
    pub(super) fn push(&mut self, notification: &Notification) {
        let at = KINDS.iter().position(|(kind, _)| *kind == notification.notice.kind);
        if let Some(count) = at.and_then(|at| self.counts.get_mut(at)) {
            *count += 1;
        }
        match self.count() {
            0..=HELD_COUNT => self.each.push(line::line(&notification.notice, notification.is_removed)),
            _ => self.each = Vec::new(),
        }
        self.place.clone_from(&notification.place);
        self.in_inbox &= notification.notice.task.session.is_some();
    }

    /// Adds lines that were for a closed terminal.
    pub(super) fn absorb(&mut self, missed: Self) {
        for (count, more) in self.counts.iter_mut().zip(missed.counts) {
            *count += more;
        }
        match self.count() {
            0..=HELD_COUNT => self.each.extend(missed.each),
            _ => self.each = Vec::new(),
        }
        (self.in_inbox, self.is_missed) = (false, true);
    }

    /// Returns the number of notices.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Summarizes all notices in one line.
    fn summary(&self) -> String {
        let counts: Vec<String> = self
            .counts
            .iter()
            .zip(KINDS)
            .filter(|(count, _)| **count > 0)
            .map(|(count, (_, word))| format!("{count} {word}"))
            .collect();
        let verb = if self.in_inbox { "inbox" } else { "list" };
        format!("[BACKGROUND TASKS] {} (bgctl {verb} shows them)", counts.join(", "))
    }

    /// Returns the bytes to write to a terminal of `size` rows and columns.
    pub(super) fn bytes(&self, to: At, size: (u16, u16)) -> Vec<u8> {
        let (rows, columns) = size;
        let summary = [line::plain(&self.summary())];
        let most = match to {
            At::Cursor => HELD_LINES,
            At::Top => TYPED_LINES.min(usize::from(rows / 2)),
        };
        let lines = if (1..=most).contains(&self.each.len()) { &self.each } else { &summary[..] };
        let mut bytes = match to {
            At::Cursor => line::above_cursor(lines, columns),
            At::Top => line::at_top(lines, size),
        };
        // Only one bubble, however many lines there are.
        let bubble = if let [one] = lines { one } else { &summary[0] };
        bytes.extend(line::bubble(self.place.as_deref(), &bubble.text()));
        bytes
    }
}

const HELD_COUNT: u64 = HELD_LINES as u64;

/// Where lines are put; `line` explains why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Above the cursor's row: nothing is typed there yet.
    Cursor,
    /// At the top of the screen: the typed text may take up several rows.
    Top,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_something_is_typed_more_than_a_few_lines_become_one() {
        let mut lines = Lines::new();
        for count in 1..=TYPED_LINES as u64 + 1 {
            lines.counts[0] = count;
            lines.each.push(line::plain(&format!("[line {count}]")));
            let shown = |at| String::from_utf8(lines.bytes(at, (24, 80))).unwrap();
            let are_few = count <= TYPED_LINES as u64;
            assert!(shown(At::Cursor).contains("[line 1]"), "{count}");
            assert_eq!(shown(At::Top).contains("[line 1]"), are_few, "{count}");
            assert_eq!(shown(At::Top).contains(&format!("{count} completed")), !are_few, "{count}");
        }
    }

    #[test]
    fn many_lines_become_one_that_counts_them() {
        let mut held = Lines::new();
        held.counts[0] = 100;
        held.counts[1] = 2;
        let expected = "[BACKGROUND TASKS] 100 completed, 2 failed (bgctl inbox shows them)";
        assert_eq!(held.summary(), expected);
        held.in_inbox = false;
        assert!(held.summary().ends_with("(bgctl list shows them)"));
    }
}
