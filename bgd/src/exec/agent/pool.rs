//! Decides which process a turn runs in. Pure: callers report events, and the pool returns decisions.
//!
//! To save memory, turns are packed into as few processes as possible; a process runs as many turns concurrently as the
//! agent allows. Only turns with an equal `Key` share a process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The number of a process in the pool.
pub type ProcessId = u64;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry<Key> {
    key: Key,
    /// How many turns run in the process.
    running: usize,
    /// How many of them were asked to end.
    ending: usize,
    /// Whether the process gets no new turns.
    retired: bool,
    /// The sessions that the process holds in memory.
    sessions: BTreeSet<Arc<str>>,
    /// Counts all turns that began, so that an outdated timer can be recognized.
    turns: u64,
}

/// All processes of all agents.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pool<Key> {
    entries: BTreeMap<ProcessId, Entry<Key>>,
    last: ProcessId,
}

impl<Key> Default for Pool<Key> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last: 0 }
    }
}

/// The process that a turn goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// An existing process.
    Known(ProcessId),
    /// A new process, which must be started.
    New(ProcessId),
}

impl Choice {
    /// Returns the number of the process.
    pub fn seat(self) -> ProcessId {
        match self {
            Self::Known(seat) | Self::New(seat) => seat,
        }
    }
}

/// The state of a process after one of its turns has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It has other turns.
    Busy,
    /// It is idle; the number is for [`Pool::is_unused_since`].
    Idle(u64),
    /// It is retired and idle, so it can be closed.
    Over,
}

impl<Key: PartialEq> Pool<Key> {
    /// Picks the process for a turn, and counts the turn there. Prefers the process that holds the session,
    /// even if it is full: there the session costs nothing extra, and elsewhere it may not be available.
    /// Otherwise picks the fullest process with room, or a new one. `at_most` is the agent's present limit, which also
    /// applies to processes that were started under another one.
    pub fn take(&mut self, key: Key, at_most: usize, session: Option<&Arc<str>>) -> Choice {
        let holds = |entry: &Entry<Key>| session.is_some_and(|session| entry.sessions.contains(session));
        let best = self
            .entries
            .iter_mut()
            .filter(|(_, entry)| entry.key == key && !entry.retired)
            .filter(|(_, entry)| entry.running < at_most.max(1) || holds(entry))
            .max_by_key(|(seat, entry)| (holds(entry), entry.running, std::cmp::Reverse(**seat)));
        if let Some((seat, entry)) = best {
            entry.running += 1;
            entry.turns += 1;
            return Choice::Known(*seat);
        }
        self.last += 1;
        let entry = Entry { key, running: 1, ending: 0, retired: false, sessions: BTreeSet::new(), turns: 1 };
        self.entries.insert(self.last, entry);
        Choice::New(self.last)
    }

    /// Removes a turn that has ended. `was_ending`: the turn was counted by [`Self::turn_ends`].
    pub fn give_back(&mut self, seat: ProcessId, was_ending: bool) -> Rest {
        let Some(entry) = self.entries.get_mut(&seat) else { return Rest::Busy };
        entry.running = entry.running.saturating_sub(1);
        entry.ending = entry.ending.saturating_sub(usize::from(was_ending));
        match (entry.running, entry.retired) {
            (0, true) => Rest::Over,
            (0, false) => Rest::Idle(entry.turns),
            _ => Rest::Busy,
        }
    }

    /// Counts a turn that was asked to end. Returns whether all turns of the process now were.
    pub fn turn_ends(&mut self, seat: ProcessId) -> bool {
        let Some(entry) = self.entries.get_mut(&seat) else { return true };
        entry.ending += 1;
        entry.ending >= entry.running
    }

    /// Returns whether the process is idle and has begun no turn since [`Rest::Idle`] returned `turns`.
    pub fn is_unused_since(&self, seat: ProcessId, turns: u64) -> bool {
        self.entries.get(&seat).is_some_and(|entry| entry.running == 0 && entry.turns == turns)
    }

    /// Notes that a process holds a session in memory.
    pub fn holds(&mut self, seat: ProcessId, session: &Arc<str>) {
        if let Some(entry) = self.entries.get_mut(&seat) {
            entry.sessions.insert(Arc::clone(session));
        }
    }

    /// Notes that a process no longer holds a session.
    pub fn forget(&mut self, seat: ProcessId, session: &Arc<str>) {
        if let Some(entry) = self.entries.get_mut(&seat) {
            entry.sessions.remove(session);
        }
    }

    /// Stops giving new turns to a process.
    pub fn retire(&mut self, seat: ProcessId) {
        if let Some(entry) = self.entries.get_mut(&seat) {
            entry.retired = true;
        }
    }

    /// Returns a copy of the pool with only these processes, each with this number of turns, none of which was asked to
    /// end.
    #[must_use]
    pub fn only(&self, running: &BTreeMap<ProcessId, usize>) -> Self
    where
        Key: Clone,
    {
        let entries = running.iter().filter_map(|(seat, running)| {
            let entry = self.entries.get(seat)?.clone();
            Some((*seat, Entry { running: *running, ending: 0, ..entry }))
        });
        Self { entries: entries.collect(), last: self.last }
    }

    /// Returns the processes without a turn, each with its number for [`Self::is_unused_since`].
    pub fn idle(&self) -> Vec<(ProcessId, u64)> {
        let idle = self.entries.iter().filter(|(_, entry)| entry.running == 0);
        idle.map(|(seat, entry)| (*seat, entry.turns)).collect()
    }

    /// Removes a process that is gone.
    pub fn remove(&mut self, seat: ProcessId) {
        self.entries.remove(&seat);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn turns_are_packed_into_the_fullest_process() {
        let mut pool = Pool::default();
        let first = pool.take("a", 2, None);
        assert_eq!(first, Choice::New(1));
        assert_eq!(pool.take("a", 2, None), Choice::Known(1));
        assert_eq!(pool.take("a", 2, None), Choice::New(2), "the first one is full");
        assert_eq!(pool.take("b", 2, None), Choice::New(3), "another agent");
        assert!(pool.turn_ends(2) && !pool.turn_ends(1) && pool.turn_ends(1));
        assert_eq!(pool.give_back(2, false), Rest::Idle(1));
        assert_eq!(pool.give_back(1, false), Rest::Busy);
        assert_eq!(pool.take("a", 2, None), Choice::Known(1), "the fuller one");
        assert_eq!(pool.take("a", 2, None), Choice::Known(2));
    }

    #[test]
    fn raised_limit_applies_to_running_process() {
        let mut pool = Pool::default();
        pool.take("a", 1, None);
        assert_eq!(pool.take("a", 3, None), Choice::Known(1));
        assert_eq!(pool.take("a", 3, None), Choice::Known(1));
        assert_eq!(pool.take("a", 3, None), Choice::New(2), "the first one is full again");
    }

    #[test]
    fn lowered_limit_applies_to_running_process() {
        let mut pool = Pool::default();
        pool.take("a", 3, None);
        pool.take("a", 3, None);
        assert_eq!(pool.take("a", 2, None), Choice::New(2), "the first one is full now");
        pool.give_back(1, false);
        assert_eq!(pool.take("a", 2, None), Choice::Known(1), "it has room again");
    }

    #[test]
    fn session_returns_to_the_process_holding_it() {
        let mut pool = Pool::default();
        let session: Arc<str> = "s".into();
        for seat in [1, 2] {
            assert_eq!(pool.take("a", 1, None), Choice::New(seat));
        }
        pool.holds(2, &session);
        pool.give_back(1, false);
        pool.give_back(2, false);
        assert_eq!(pool.take("a", 1, Some(&session)), Choice::Known(2));
        pool.take("a", 1, Some(&session));
        assert_eq!(pool.take("a", 1, Some(&session)), Choice::Known(2), "although it is full");
        pool.give_back(2, false);
        pool.give_back(2, false);
        pool.forget(2, &session);
        assert_eq!(pool.take("a", 1, Some(&session)), Choice::Known(1));
    }

    #[test]
    fn stale_idle_timer_closes_nothing() {
        let mut pool = Pool::default();
        pool.take("a", 1, None);
        let Rest::Idle(rest) = pool.give_back(1, false) else { panic!("it had one turn") };
        assert!(pool.is_unused_since(1, rest));
        pool.take("a", 1, None);
        assert!(!pool.is_unused_since(1, rest));
        pool.give_back(1, false);
        assert!(!pool.is_unused_since(1, rest), "another rest, another timer");
    }

    proptest! {
        /// In any sequence of steps, no process exceeds its limit of turns, no retired or removed process
        /// gets a turn, and a new process is created only if no other has room.
        #[test]
        fn no_process_exceeds_its_turn_limit(at_most in 1_usize..4, steps in proptest::collection::vec((0_u8..5, 0_u64..6), 0..200)) {
            let mut pool = Pool::default();
            let mut running: BTreeMap<ProcessId, usize> = BTreeMap::new();
            let mut retired: BTreeSet<ProcessId> = BTreeSet::new();
            for (step, seat) in steps {
                match step {
                    0 | 1 => {
                        let has_room = running
                            .iter()
                            .any(|(seat, turns)| *turns < at_most && !retired.contains(seat));
                        let choice = pool.take((), at_most, None);
                        prop_assert_eq!(matches!(choice, Choice::Known(_)), has_room);
                        prop_assert!(!retired.contains(&choice.seat()));
                        let turns = running.entry(choice.seat()).or_default();
                        *turns += 1;
                        prop_assert!(*turns <= at_most);
                    }
                    2 => if let Some(turns) = running.get_mut(&seat).filter(|turns| **turns > 0) {
                        *turns -= 1;
                        let rest = match (*turns, retired.contains(&seat)) {
                            (0, true) => pool.give_back(seat, false) == Rest::Over,
                            (0, false) => matches!(pool.give_back(seat, false), Rest::Idle(_)),
                            _ => pool.give_back(seat, false) == Rest::Busy,
                        };
                        prop_assert!(rest);
                    },
                    3 => {
                        pool.retire(seat);
                        if running.contains_key(&seat) {
                            retired.insert(seat);
                        }
                    }
                    _ => {
                        pool.remove(seat);
                        running.remove(&seat);
                    }
                }
            }
        }
    }
}
