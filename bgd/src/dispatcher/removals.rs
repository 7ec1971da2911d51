//! Removals of outputs under way. Clearing many tasks takes several, on more than one thread: the answer comes after the
//! last of them.

use std::collections::{BTreeMap, BTreeSet};

/// Numbered jobs, and the answers that wait for them.
#[derive(Debug)]
pub(super) struct Removals<T> {
    last: u64,
    under_way: BTreeSet<u64>,
    /// The answers of jobs that are done, by their numbers.
    waiting: BTreeMap<u64, Vec<T>>,
}

impl<T> Default for Removals<T> {
    fn default() -> Self {
        Self { last: 0, under_way: BTreeSet::new(), waiting: BTreeMap::new() }
    }
}

impl<T> Removals<T> {
    /// Begins a job. Returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last);
        self.last
    }

    /// Ends a job, after which these answers are due. Returns the answers that wait for no earlier job, in order.
    pub(super) fn end(&mut self, job: u64, answers: Vec<T>) -> Vec<T> {
        self.under_way.remove(&job);
        if !answers.is_empty() {
            self.waiting.insert(job, answers);
        }
        let due = match self.under_way.first() {
            Some(first) => {
                let later = self.waiting.split_off(first);
                std::mem::replace(&mut self.waiting, later)
            }
            None => std::mem::take(&mut self.waiting),
        };
        due.into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_answer_comes_after_all_removals_that_began_before() {
        let mut removals = Removals::default();
        let [first, second, third] = [(); 3].map(|()| removals.begin());
        assert!(removals.end(second, vec!["second"]).is_empty(), "the first is under way");
        assert_eq!(removals.end(first, vec![]), ["second"], "and not the third");
        let fourth = removals.begin();
        assert_eq!(removals.end(third, vec!["third"]), ["third"]);
        assert_eq!(removals.end(fourth, vec!["fourth", "too"]), ["fourth", "too"]);
    }
}
