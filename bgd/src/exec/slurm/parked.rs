//! Runs that wait until the runs that they follow have ids, and which of them have to be checked again. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bgd_shared::id::TaskId;

/// Runs that wait until the runs that they follow have ids.
#[derive(Debug, Default)]
pub struct Parked {
    /// The waiting runs, each with the runs that it follows.
    waiting: BTreeMap<TaskId, Box<[TaskId]>>,
    /// The waiting runs by each of the runs that they follow.
    followers: HashMap<TaskId, BTreeSet<TaskId>>,
    /// The waiting runs of which a followed run has changed.
    due: BTreeSet<TaskId>,
}

impl Parked {
    /// Adds a run that follows the others. Returns whether it is new.
    pub fn add(&mut self, task: TaskId, awaits: &[TaskId]) -> bool {
        if self.waiting.contains_key(&task) {
            return false;
        }
        for other in awaits {
            self.followers.entry(*other).or_default().insert(task);
        }
        self.waiting.insert(task, awaits.into());
        true
    }

    /// Removes a run. Returns whether it was there.
    pub fn remove(&mut self, task: TaskId) -> bool {
        let Some(awaits) = self.waiting.remove(&task) else { return false };
        for other in awaits {
            if let Some(followers) = self.followers.get_mut(&other) {
                followers.remove(&task);
                if followers.is_empty() {
                    self.followers.remove(&other);
                }
            }
        }
        self.due.remove(&task);
        true
    }

    /// Notes that a run has changed: those that follow it have to be checked again.
    pub fn changed(&mut self, task: TaskId) {
        if let Some(followers) = self.followers.get(&task) {
            self.due.extend(followers);
        }
    }

    /// Notes that any run may have changed.
    pub fn all_changed(&mut self) {
        self.due.extend(self.waiting.keys());
    }

    /// Takes the next run to be checked again, which keeps waiting until it is removed.
    pub fn take_due(&mut self) -> Option<TaskId> {
        self.due.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> TaskId {
        TaskId::from_u128(number.into())
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, Vec<u8>),
        Remove(u8),
        /// The run is ready to be followed, or is no longer.
        Turn(u8),
        AllChanged,
        Check,
    }

    fn step() -> impl Strategy<Value = Step> {
        let run = 0..8_u8;
        prop_oneof![
            3 => (run.clone(), prop::collection::vec(run.clone(), 1..4)).prop_map(|(run, of)| Step::Add(run, of)),
            1 => run.clone().prop_map(Step::Remove),
            3 => run.prop_map(Step::Turn),
            1 => Just(Step::AllChanged),
            2 => Just(Step::Check),
        ]
    }

    proptest! {
        #[test]
        fn r150_runs_that_follow_others_are_released_as_if_all_were_checked(
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut parked = Parked::default();
            // The simple version: all are checked each time.
            let mut all: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            let mut ready: HashSet<u8> = HashSet::new();
            for step in steps.into_iter().chain([Step::Check]) {
                match step {
                    // Only runs that can't start yet are parked.
                    Step::Add(run, awaits) if awaits.iter().all(|other| ready.contains(other)) => {
                        prop_assert_eq!(parked.remove(id(run)), all.remove(&run).is_some());
                    }
                    Step::Add(run, awaits) => {
                        let others: Vec<TaskId> = awaits.iter().copied().map(id).collect();
                        prop_assert_eq!(parked.add(id(run), &others), !all.contains_key(&run));
                        all.entry(run).or_insert(awaits);
                    }
                    Step::Remove(run) => {
                        prop_assert_eq!(parked.remove(id(run)), all.remove(&run).is_some());
                    }
                    Step::Turn(run) => {
                        if !ready.remove(&run) {
                            ready.insert(run);
                        }
                        parked.changed(id(run));
                    }
                    Step::AllChanged => parked.all_changed(),
                    Step::Check => {
                        let can_start =
                            |awaits: &Vec<u8>| awaits.iter().all(|other| ready.contains(other));
                        let mut released = Vec::new();
                        while let Some(task) = parked.take_due() {
                            let run = (0..8).find(|run| id(*run) == task).unwrap();
                            if can_start(&all[&run]) {
                                prop_assert!(parked.remove(task));
                                released.push(run);
                            }
                        }
                        let expected: Vec<u8> =
                            all.iter().filter(|(_, awaits)| can_start(awaits)).map(|(run, _)| *run).collect();
                        all.retain(|run, _| !expected.contains(run));
                        prop_assert_eq!(released, expected);
                    }
                }
            }
            for run in 0..8 {
                parked.remove(id(run));
            }
            prop_assert!(parked.followers.is_empty() && parked.due.is_empty());
        }
    }
}
