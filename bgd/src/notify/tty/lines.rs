//! The lines for one terminal: a handful of the most urgent ones, and the number of the others. This module does not
//! write to terminals.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use serde::{Deserialize, Serialize};

use super::line::{self, Line};
use crate::core::SubmitterLocation;
use crate::notify::adapter::Notification;

/// Maximum number of lines held per terminal, and written at once below output that a program has just shown there,
/// such as a list of these very tasks. If there are more, the most urgent ones are written, and the last line counts
/// the rest.
const HELD_LINES: usize = 6;

/// Maximum number of lines written at once if something may be typed there. More are summarized in one line of counts.
const TYPED_LINES: usize = 3;

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Lines {
    /// At most [`HELD_LINES`], in the order of their notices: the newest ones of the most urgent kinds.
    pub(super) each: Vec<Line>,
    /// The number of notices of each kind, in the order of [`KINDS`].
    counts: [u64; KINDS.len()],
    /// The number of questions that have no line here, of each task.
    #[serde(default)]
    counted_questions: BTreeMap<TaskId, u64>,
    /// The environment and terminal of the latest submitter.
    place: Option<Arc<SubmitterLocation>>,
    /// Whether every task has a parent session, whose inbox holds the notices.
    in_inbox: bool,
    /// Whether some lines were meant for a closed terminal.
    pub(super) is_missed: bool,
}

/// The notice kinds in the order of [`Lines::counts`], with the words for the summary.
const KINDS: [(NoticeKind, &str); 5] = [
    (NoticeKind::Completed, "completed"),
    (NoticeKind::Failed, "failed"),
    (NoticeKind::Cancelled, "cancelled"),
    (NoticeKind::NeedsInput, "waiting for input"),
    (NoticeKind::Started, "started"),
];

impl Lines {
    pub(super) fn new() -> Self {
        Self { in_inbox: true, ..Self::default() }
    }

    /// Adds the line of a notice.
    pub(super) fn push(&mut self, notification: &Notification) {
        self.add(line::line(&notification.notice, notification.is_removed));
        self.place.clone_from(&notification.place);
        self.in_inbox &= notification.notice.task.session.is_some();
    }

    /// Adds a line of this daemon, which has a kind.
    fn add(&mut self, line: Line) {
        if let Some(count) = line.kind().and_then(|kind| self.count_of(kind)) {
            *count += 1;
        }
        self.each.push(line);
        self.drop_least_urgent(HELD_LINES);
    }

    /// Creates a line for each of these numbers.
    #[cfg(test)]
    pub(super) fn of_tests(numbers: std::ops::Range<u32>) -> Self {
        let mut lines = Self::new();
        numbers
            .for_each(|number| lines.add(line::of_tests(NoticeKind::Completed, &format!("[line {number}]"))));
        lines
    }

    /// Creates the line of a question of this task.
    #[cfg(test)]
    pub(super) fn question_of_tests(task: TaskId) -> Self {
        let mut lines = Self::new();
        lines.add(line::question_of_tests(task));
        lines
    }

    fn count_of(&mut self, kind: NoticeKind) -> Option<&mut u64> {
        let at = KINDS.iter().position(|(of, _)| *of == kind)?;
        self.counts.get_mut(at)
    }

    /// Drops the questions of a task whose run has ended. Returns the number of notices that are left.
    pub(super) fn drop_questions(&mut self, task: TaskId) -> u64 {
        let before = self.each.len();
        self.each.retain(|line| line.asker() != Some(task));
        let counted = self.counted_questions.remove(&task).unwrap_or_default();
        let dropped = (before - self.each.len()) as u64 + counted;
        if let Some(count) = self.count_of(NoticeKind::NeedsInput) {
            *count = count.saturating_sub(dropped);
        }
        self.count()
    }

    /// Drops the lines about the end of a task that was reported otherwise. Returns the number of notices that are left;
    /// those without a line of their own stay, as they are only counted.
    pub(super) fn drop_ends(&mut self, task: TaskId) -> u64 {
        let each = std::mem::take(&mut self.each).into_iter();
        let (dropped, kept): (Vec<Line>, Vec<Line>) = each.partition(|line| line.ends(task));
        self.each = kept;
        for kind in dropped.iter().filter_map(Line::kind) {
            if let Some(count) = self.count_of(kind) {
                *count = count.saturating_sub(1);
            }
        }
        self.count()
    }

    /// Adds lines that were meant for a closed terminal.
    pub(super) fn absorb(&mut self, missed: Self) {
        self.extend(missed);
        (self.in_inbox, self.is_missed) = (false, true);
    }

    /// Adds lines that are older than these.
    pub(super) fn prepend(&mut self, older: Self) {
        let newer = std::mem::replace(self, older);
        self.place = newer.place.clone().or_else(|| self.place.take());
        self.in_inbox &= newer.in_inbox;
        self.is_missed |= newer.is_missed;
        self.extend(newer);
    }

    fn extend(&mut self, more: Self) {
        for (count, more) in self.counts.iter_mut().zip(more.counts) {
            *count += more;
        }
        for (task, more) in more.counted_questions {
            *self.counted_questions.entry(task).or_default() += more;
        }
        self.each.extend(more.each);
        self.drop_least_urgent(HELD_LINES);
    }

    /// Drops the oldest lines of the least urgent kinds until at most `most` are left.
    fn drop_least_urgent(&mut self, most: usize) {
        while self.each.len() > most {
            // The first of equal lines is the oldest. A line from an older daemon lacks its kind.
            let urgency = |line: &Line| urgency(line.kind().unwrap_or(NoticeKind::Unknown));
            let least = self.each.iter().enumerate().min_by_key(|(_, line)| urgency(line));
            let Some((at, _)) = least else { return };
            if let Some(task) = self.each.remove(at).asker() {
                *self.counted_questions.entry(task).or_default() += 1;
            }
        }
    }

    /// Returns the number of notices.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Reports whether there are at most `most` notices and each has its line. After questions were dropped, there may
    /// be fewer lines than notices, as the lines of less urgent ones had to make room.
    fn are_few(&self, most: usize) -> bool {
        self.count() <= most as u64 && self.each.len() as u64 == self.count()
    }

    /// Returns the number of notices of each kind that have no line here.
    fn rest(&self) -> [u64; KINDS.len()] {
        let mut rest = self.counts;
        for (count, (kind, _)) in rest.iter_mut().zip(KINDS) {
            let lines = self.each.iter().filter(|line| line.kind() == Some(kind)).count();
            *count = count.saturating_sub(lines as u64);
        }
        rest
    }

    /// Summarizes all notices in one line.
    fn summary(&self) -> String {
        self.summed(&words(&self.counts))
    }

    fn summed(&self, what: &str) -> String {
        let verb = if self.in_inbox { "inbox" } else { "list" };
        format!("[BACKGROUND TASKS] {what} (bgctl {verb} shows them)")
    }

    /// Returns at most `most` lines: all of them, or the most urgent ones and a last one that counts the rest.
    fn first(&self, most: usize) -> Vec<Line> {
        let mut shown = self.clone();
        if self.are_few(most) {
            return shown.each;
        }
        shown.drop_least_urgent(most.saturating_sub(1));
        shown.each.push(line::plain(&shown.summary_of_rest()));
        shown.each
    }

    /// Summarizes the notices without a line of their own in one line.
    fn summary_of_rest(&self) -> String {
        if self.each.is_empty() {
            return self.summary();
        }
        let more = self.count().saturating_sub(self.each.len() as u64);
        let rest = self.rest();
        let kinds: Vec<(u64, &str)> =
            rest.into_iter().zip(KINDS.map(|(_, word)| word)).filter(|(count, _)| *count > 0).collect();
        self.summed(&match kinds[..] {
            [(_, word)] => format!("and {more} more {word}"),
            // Lines from an older daemon lack their kind.
            _ if rest.iter().sum::<u64>() != more => format!("and {more} more"),
            _ => format!("and {more} more: {}", words(&rest)),
        })
    }

    /// Returns the bytes to write to a terminal of `size` rows and columns.
    pub(super) fn bytes(&self, to: LinePosition, size: (u16, u16)) -> Vec<u8> {
        let (rows, columns) = size;
        let lines = match to {
            // Two thirds of the screen stay unchanged.
            LinePosition::Cursor => self.first(HELD_LINES.min(usize::from(rows / 3)).max(1)),
            LinePosition::Top | LinePosition::InPlace
                if self.are_few(TYPED_LINES.min(usize::from(rows / 2))) =>
            {
                self.each.clone()
            }
            LinePosition::Top | LinePosition::InPlace => vec![line::plain(&self.summary())],
        };
        let mut bytes = match to {
            LinePosition::Cursor => line::above_cursor(&lines, columns),
            LinePosition::Top => line::at_top(&lines, size),
            LinePosition::InPlace => line::in_place(&lines, size),
        };
        // Only one bubble, however many lines there are.
        let bubble = if let [one] = &lines[..] { one.text() } else { self.summary() };
        bytes.extend(line::bubble(self.place.as_deref(), &bubble));
        bytes
    }
}

/// Formats the counts of each kind.
fn words(counts: &[u64; KINDS.len()]) -> String {
    let counts = counts.iter().zip(KINDS).filter(|(count, _)| **count > 0);
    counts.map(|(count, (_, word))| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Returns how much a notice of this kind matters to its user; larger is more urgent.
const fn urgency(kind: NoticeKind) -> u8 {
    match kind {
        NoticeKind::Started => 0,
        NoticeKind::Completed => 1,
        NoticeKind::Cancelled => 2,
        // An unknown one may be about a failure.
        NoticeKind::Failed | NoticeKind::Unknown => 3,
        NoticeKind::NeedsInput => 4,
    }
}

/// The position of lines; `line` explains why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePosition {
    /// Above the cursor's row: nothing is typed there yet.
    Cursor,
    /// At the top of the screen: the typed text may take up several rows.
    Top,
    /// At the top of the screen, where nothing else moves: the shell remembers the row in which its prompt begins.
    InPlace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lines_are_summarized_while_user_is_typing() {
        let mut lines = Lines::new();
        for count in 1..=TYPED_LINES as u64 + 1 {
            lines.counts[0] = count;
            lines.each.push(line::plain(&format!("[line {count}]")));
            let shown = |at| String::from_utf8(lines.bytes(at, (24, 80))).unwrap();
            let are_few = count <= TYPED_LINES as u64;
            assert!(shown(LinePosition::Cursor).contains("[line 1]"), "{count}");
            assert_eq!(shown(LinePosition::Top).contains("[line 1]"), are_few, "{count}");
            assert_eq!(shown(LinePosition::Top).contains(&format!("{count} completed")), !are_few, "{count}");
        }
    }

    #[test]
    fn most_urgent_lines_are_shown_and_the_rest_counted() {
        let mut lines = Lines::new();
        lines.in_inbox = false;
        let mut push = |kind: NoticeKind, number: u64| {
            lines.add(line::of_tests(kind, &format!("[line {number}]")));
            let shown = |rows| lines.first(rows).iter().map(Line::text).collect::<Vec<String>>();
            (shown(HELD_LINES), shown(2))
        };
        push(NoticeKind::Failed, 1);
        for number in 2..6 {
            push(NoticeKind::Completed, number);
        }
        let (six, _) = push(NoticeKind::Completed, 6);
        assert_eq!(six, [1, 2, 3, 4, 5, 6].map(|number| format!("[line {number}]")), "all of them");
        let of = |numbers: &[u64], rest: &str| -> Vec<String> {
            let lines = numbers.iter().map(|number| format!("[line {number}]"));
            lines.chain([format!("[BACKGROUND TASKS] {rest} (bgctl list shows them)")]).collect()
        };
        let (seven, two) = push(NoticeKind::Completed, 7);
        assert_eq!(seven, of(&[1, 4, 5, 6, 7], "and 2 more completed"));
        assert_eq!(two, of(&[1], "and 6 more completed"));
        for number in 8..24 {
            push(NoticeKind::Failed, number);
        }
        let (many, two) = push(NoticeKind::NeedsInput, 24);
        assert_eq!(many, of(&[20, 21, 22, 23, 24], "and 19 more: 6 completed, 13 failed"));
        assert_eq!(two, of(&[24], "and 23 more: 6 completed, 17 failed"));
        lines.each.iter_mut().for_each(|line| *line = line::plain("of an older daemon"));
        assert!(lines.first(HELD_LINES)[5].text().starts_with("[BACKGROUND TASKS] and 19 more (bgctl"));
    }

    #[test]
    fn lines_take_at_most_a_fraction_of_the_screen() {
        let mut lines = Lines::new();
        lines.counts[0] = 9;
        lines.each = (1..=6).map(|n| line::of_tests(NoticeKind::Completed, &format!("[line {n}]"))).collect();
        for (rows, shown) in [(24, 5), (12, 3), (6, 1), (3, 0), (1, 0)] {
            let bytes = String::from_utf8(lines.bytes(LinePosition::Cursor, (rows, 80))).unwrap();
            assert_eq!(bytes.matches("[line ").count(), shown, "{rows}");
            assert_eq!(bytes.matches("[BACKGROUND TASKS] ").count(), 1, "{rows}");
        }
    }

    fn shown(lines: &Lines, at: LinePosition) -> String {
        String::from_utf8(lines.bytes(at, (24, 80))).unwrap()
    }

    #[test]
    fn notices_without_a_line_are_counted_after_questions_were_dropped() {
        let (mut lines, task) = (Lines::new(), TaskId::from_u128(1));
        (1..=2)
            .for_each(|number| lines.add(line::of_tests(NoticeKind::Completed, &format!("[line {number}]"))));
        (1..=HELD_LINES).for_each(|_| lines.add(line::question_of_tests(task)));
        assert_eq!(lines.drop_questions(task), 2);
        for at in [LinePosition::Cursor, LinePosition::Top] {
            assert!(shown(&lines, at).contains("[BACKGROUND TASKS] 2 completed (bgctl "), "{at:?}");
        }
        lines.add(line::of_tests(NoticeKind::Completed, "[line 3]"));
        let above = shown(&lines, LinePosition::Cursor);
        assert!(above.contains("[line 3]") && above.contains("and 2 more completed"), "{above}");
        assert!(shown(&lines, LinePosition::Top).contains("[BACKGROUND TASKS] 3 completed (bgctl "));
    }

    #[test]
    fn only_the_end_of_a_reported_task_is_dropped() {
        let [task, other] = [1, 2].map(TaskId::from_u128);
        let mut lines = Lines::new();
        lines.add(line::end_of_tests(task));
        lines.add(line::question_of_tests(task));
        lines.add(line::end_of_tests(other));
        assert_eq!((lines.drop_ends(task), lines.each.len()), (2, 2));
        assert_eq!((lines.drop_ends(task), lines.drop_ends(other), lines.drop_questions(task)), (2, 1, 0));
    }

    #[test]
    fn questions_without_a_line_are_dropped_as_well() {
        let [task, other] = [1, 2].map(TaskId::from_u128);
        let (mut lines, mut missed) = (Lines::new(), Lines::new());
        (0..=HELD_LINES).for_each(|_| lines.add(line::question_of_tests(task)));
        missed.add(line::question_of_tests(other));
        missed.absorb(lines);
        let carried = serde_json::to_string(&missed).unwrap();
        let mut missed: Lines = serde_json::from_str(&carried).unwrap();
        assert_eq!((missed.count(), missed.drop_questions(task), missed.drop_questions(other)), (8, 1, 0));
        assert_eq!(missed.each.len(), 0);
    }

    #[test]
    fn summary_counts_lines_by_kind() {
        let mut held = Lines::new();
        held.counts[0] = 100;
        held.counts[1] = 2;
        let expected = "[BACKGROUND TASKS] 100 completed, 2 failed (bgctl inbox shows them)";
        assert_eq!(held.summary(), expected);
        held.in_inbox = false;
        assert!(held.summary().ends_with("(bgctl list shows them)"));
    }
}
