//! What is held for one terminal: its lines with their reports, and the rest of a partial write. This module writes
//! nothing.

use std::collections::HashMap;
use std::rc::Rc;

use bgd_shared::id::TaskId;
use bgd_shared::request::OriginTerminal;
use tokio::sync::Notify;

use super::lines::Lines;
use super::reports::PendingReports;
use crate::notify::outcomes::Outcomes;

/// The lines held for one terminal.
pub struct Held {
    pub lines: Lines,
    /// These report the outcome of the lines.
    pub reports: PendingReports,
    /// The lines that are being written, if a first write took only a part of their bytes.
    pub partial: Option<Partial>,
    /// Wakes the terminal's task for another check.
    pub again: Rc<Notify>,
}

impl Held {
    pub fn new(lines: Lines, reports: PendingReports) -> Self {
        Self { lines, reports, partial: None, again: Rc::default() }
    }

    /// Takes the lines, and their reports.
    pub fn take(&mut self, of: &Rc<Outcomes>) -> (Lines, PendingReports) {
        let lines = std::mem::replace(&mut self.lines, Lines::new());
        (lines, std::mem::replace(&mut self.reports, PendingReports::new(of)))
    }

    /// Holds lines again that could not be written whole. They are older than the others.
    pub fn put_back(&mut self, partial: Partial) {
        let Partial { rest: _, written: _, lines, reports } = partial;
        self.lines.prepend(lines);
        self.reports.prepend(reports);
    }

    /// Drops the questions of a task whose run has ended, also from a partial write: nobody has seen its lines whole,
    /// so they may be held again. Returns the number of notices that are left to write.
    pub fn drop_questions(&mut self, task: TaskId, of: &Rc<Outcomes>) -> u64 {
        if let Some(partial) = &mut self.partial
            && partial.lines.count() > 0
            && partial.lines.drop_questions(task) == 0
        {
            // They asked what no longer matters.
            std::mem::replace(&mut partial.reports, PendingReports::new(of)).report(&Ok(()));
        }
        self.lines.drop_questions(task)
    }

    /// Drops the hints about a task that was removed.
    pub fn forget(&mut self, task: TaskId) {
        let partial = self.partial.iter_mut().flat_map(|partial| &mut partial.lines.each);
        self.lines.each.iter_mut().chain(partial).for_each(|line| line.forget(task));
    }
}

/// Lines that were written in part.
pub struct Partial {
    /// The bytes that the first write left.
    pub rest: Rc<[u8]>,
    /// How many of them have been written since.
    pub written: usize,
    pub lines: Lines,
    pub reports: PendingReports,
}

impl Partial {
    pub fn new(rest: &[u8], lines: Lines, reports: PendingReports) -> Self {
        Self { rest: rest.into(), written: 0, lines, reports }
    }
}

/// Keeps at most `most` held notices individually and only counts older ones: an editor may occupy a terminal for days
/// while tasks end.
pub fn count_oldest(all: &mut HashMap<OriginTerminal, Held>, most: u64) {
    let mut each: u64 = all.values().map(|held| held.reports.len() as u64).sum();
    while each > most {
        let oldest = all.values_mut().filter_map(|held| Some((held.reports.oldest()?, held)));
        let Some((_, held)) = oldest.min_by_key(|(number, _)| *number) else { return };
        held.reports.count_oldest();
        each -= 1;
    }
}

/// Keeps at most `most` missed notices in the journal while their lines are held for other terminals.
pub fn drop_oldest_missed(all: &mut HashMap<OriginTerminal, Held>, most: u64) {
    let mut each: u64 = all.values().map(|held| held.reports.missed().len() as u64).sum();
    while each > most {
        let oldest = all.values_mut().filter_map(|held| Some((*held.reports.missed().front()?, held)));
        let Some((_, held)) = oldest.min_by_key(|(number, _)| *number) else { return };
        held.reports.drop_missed();
        each -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::channels::ChannelKind;
    use crate::core::Delivery;
    use crate::notify::counts::Counts;
    use crate::notify::outcomes::PendingReport;
    use crate::notify::undelivered::Undelivered;
    use crate::wire::mailbox::{self, Internal};

    #[test]
    fn excess_held_notices_are_only_counted() {
        let counts = Arc::new(Counts::default());
        let (_calls, _facts, internals, mut mailbox) = mailbox::new();
        let outcomes = Outcomes::of(ChannelKind::Tty, &counts, internals);
        let terminal = |leader: i32| OriginTerminal { path: format!("/dev/pts/{leader}"), leader };
        let none = |leader| (terminal(leader), Held::new(Lines::new(), PendingReports::new(&outcomes)));
        let mut all: HashMap<OriginTerminal, Held> = [1, 2].map(none).into();
        for number in 1..=9_u64 {
            Counts::add(&counts.queued);
            let mut done = PendingReport::new(&outcomes, number);
            done.hold();
            let at = terminal(1 + i32::from(number % 3 == 0));
            all.get_mut(&at).unwrap().reports.extend([done]);
            count_oldest(&mut all, 4);
        }
        let mut over = Vec::new();
        while let Ok(internal) = mailbox.internals.try_recv() {
            if let Internal::Notice { number, delivery: Delivery::Over } = internal {
                over.push(number);
            }
        }
        assert_eq!(over, [1, 2, 3, 4, 5], "the dispatcher forgets them");
        let mut of = |leader| all.remove(&terminal(leader)).unwrap().reports;
        let (one, two) = (of(1), of(2));
        assert_eq!((one.numbers(), one.counted()), (vec![7, 8], 4));
        assert_eq!((two.numbers(), two.counted()), (vec![6, 9], 1));
        assert_eq!((counts.waiting(), counts.in_queue()), (9, 0), "they still wait");
        one.report(&Err(Undelivered("it is closed".to_owned())));
        two.report(&Ok(()));
        let status = counts.status("t", "tty");
        assert_eq!((status.queued, status.failed, status.sent), (0, 6, 3));
        drop(PendingReports::restore(&outcomes, Vec::new(), 2, VecDeque::new()));
        assert_eq!((counts.waiting(), counts.status("t", "tty").failed), (0, 8));
    }
}
