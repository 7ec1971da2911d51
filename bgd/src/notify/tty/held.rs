//! What is held for one terminal: its lines with their reports, and the rest of a partial write. This module writes
//! nothing.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

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
    /// The rest of a partial write.
    pub rest: Rc<RefCell<Option<Rest>>>,
    /// Wakes the terminal's task for another check.
    pub again: Rc<Notify>,
}

impl Held {
    pub fn new(lines: Lines, reports: PendingReports) -> Self {
        Self { lines, reports, rest: Rc::default(), again: Rc::default() }
    }

    /// Takes the lines, and their reports.
    pub fn take(&mut self, of: &Rc<Outcomes>) -> (Lines, PendingReports) {
        let lines = std::mem::replace(&mut self.lines, Lines::new());
        (lines, std::mem::replace(&mut self.reports, PendingReports::new(of)))
    }

    /// Holds lines again that could not be written whole. They are older than the others.
    pub fn put_back(&mut self, partial: Partial) {
        let Partial { rest: _, lines, reports } = partial;
        self.lines.prepend(lines);
        self.reports.prepend(reports);
    }
}

/// Lines that were written in part.
pub struct Partial {
    /// The bytes that are left to write.
    pub rest: Vec<u8>,
    pub lines: Lines,
    pub reports: PendingReports,
}

/// The rest of a partial write, for an upgrade in place.
pub struct Rest {
    pub bytes: Vec<u8>,
    /// How many bytes have been written.
    pub written: usize,
    /// The lines that the bytes belong to.
    pub lines: Lines,
    /// The numbers of their notices.
    pub numbers: Vec<u64>,
    /// How many more such notices are only counted.
    pub counted: u64,
    /// The numbers of the missed notices among them.
    pub missed: VecDeque<u64>,
}

impl Rest {
    pub fn new(Partial { rest, lines, reports }: &Partial) -> Self {
        Self {
            bytes: rest.clone(),
            written: 0,
            lines: lines.clone(),
            numbers: reports.numbers(),
            counted: reports.counted(),
            missed: reports.missed().clone(),
        }
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
