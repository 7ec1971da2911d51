//! The pending reports of the notices held for a terminal: individual ones up to the limit of the channel, and a common
//! one for all older notices, which are only counted. A terminal may be in use for days while tasks end.
//!
//! Notices missed by a closed terminal were reported as such; a durable daemon keeps them in its journal until their
//! lines are shown in this one.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::core::Delivery;
use crate::notify::outcomes::{Counted, Outcomes, PendingReport};
use crate::notify::undelivered::Undelivered;

/// The pending reports of held notices.
pub struct PendingReports {
    /// The individual reports, oldest first.
    each: VecDeque<PendingReport>,
    /// The common report for all older notices.
    counted: Counted,
    /// The numbers of the missed notices whose lines are held here, oldest first.
    missed: VecDeque<u64>,
    of: Rc<Outcomes>,
}

impl PendingReports {
    pub fn new(of: &Rc<Outcomes>) -> Self {
        Self::restore(of, Vec::new(), 0, VecDeque::new())
    }

    /// Resumes the reports of a channel from before an upgrade: the numbers of the individual notices, how many more
    /// there are, and the numbers of the missed notices.
    pub fn restore(of: &Rc<Outcomes>, numbers: Vec<u64>, counted: u64, missed: VecDeque<u64>) -> Self {
        let each = numbers.into_iter().map(|number| PendingReport::held(of, number)).collect();
        Self { each, counted: Counted::restore(of, counted), missed, of: Rc::clone(of) }
    }

    /// Returns the numbers of the individual notices.
    pub fn numbers(&self) -> Vec<u64> {
        self.each.iter().map(PendingReport::number).collect()
    }

    /// Returns the number of notices that are only counted.
    pub fn counted(&self) -> u64 {
        self.counted.count()
    }

    /// Returns the numbers of the missed notices, oldest first.
    pub fn missed(&self) -> &VecDeque<u64> {
        &self.missed
    }

    /// Adds missed notices whose lines are held here from now on.
    pub fn add_missed(&mut self, numbers: VecDeque<u64>) {
        self.missed.extend(numbers);
    }

    /// Drops the oldest missed notice from the journal.
    pub fn drop_missed(&mut self) {
        if let Some(oldest) = self.missed.pop_front() {
            self.of.report(oldest, Delivery::Seen);
        }
    }

    /// Returns the number of individual reports.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Returns the number of the oldest individual notice.
    pub fn oldest(&self) -> Option<u64> {
        self.each.front().map(PendingReport::number)
    }

    /// Turns the oldest individual report into a counted one.
    pub fn count_oldest(&mut self) {
        if let Some(oldest) = self.each.pop_front() {
            self.counted.add(oldest);
        }
    }

    /// Reports the outcome of the notices.
    pub fn report(self, outcome: &Result<(), Undelivered>) {
        let Self { each, counted, missed, of } = self;
        if !missed.is_empty() {
            for number in missed {
                of.report(number, Delivery::Seen);
            }
            tracing::debug!(channel = %of.channel.name, "missed notices leave the journal");
        }
        counted.report(outcome);
        for done in each {
            done.report(outcome.clone());
        }
    }

    /// Reports why the notices were not delivered, and that their lines are shown later. Returns the numbers of the
    /// notices to keep until then.
    pub fn miss(self, why: &Undelivered) -> Vec<u64> {
        let Self { each, counted, missed, of: _ } = self;
        counted.report(&Err(why.clone()));
        missed.into_iter().chain(each.into_iter().map(|done| done.miss(why.clone()))).collect()
    }
}

impl Extend<PendingReport> for PendingReports {
    fn extend<T: IntoIterator<Item = PendingReport>>(&mut self, reports: T) {
        self.each.extend(reports);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::sync::Arc;

    use bgd_shared::request::OriginTerminal;

    use super::*;
    use crate::channels::{Channel, ChannelKind};
    use crate::core::Delivery;
    use crate::notify::counts::Counts;
    use crate::notify::tty::lines::Lines;
    use crate::notify::tty::{Held, count_oldest};
    use crate::wire::mailbox::{self, Internal};

    #[test]
    fn excess_held_notices_are_only_counted() {
        let counts = Arc::new(Counts::default());
        let (_calls, _facts, internals, mut mailbox) = mailbox::new();
        let channel = Channel { name: "t".into(), kind: ChannelKind::Tty, started: true };
        let outcomes = Rc::new(Outcomes {
            channel: Arc::new(channel),
            counts: Arc::clone(&counts),
            log: RefCell::default(),
            internals,
            holds: tokio::sync::watch::channel(false).1,
            gone: tokio::sync::watch::channel(false).1,
        });
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
