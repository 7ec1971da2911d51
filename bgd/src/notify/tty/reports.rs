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

    /// Adds the reports of notices that are older than these.
    pub fn prepend(&mut self, older: Self) {
        let Self { each, counted, missed, of: _ } = older;
        self.each = each.into_iter().chain(std::mem::take(&mut self.each)).collect();
        self.missed = missed.into_iter().chain(std::mem::take(&mut self.missed)).collect();
        self.counted.absorb(counted);
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
