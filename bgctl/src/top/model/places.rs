//! The sorted places of tasks in the list. There may be 100,000 of them, built and dropped with each change of folding,
//! so they are stored contiguously in chunks of some hundreds. Identifies headings only by their numbers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use bgd_shared::id::TaskId;

use super::age::Age;
use crate::top::row::Section;
use crate::top::task_key::{HostNo, TaskKey};

/// The number of a heading, which is unrelated to the position of the heading in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadNo(pub u32);

/// The position of a task among the tasks of all headings: newest first in its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub head: HeadNo,
    pub section: Section,
    pub order: Reverse<Age>,
    pub task: TaskKey,
}

impl Place {
    /// Sorts before all tasks below a heading.
    fn first(head: HeadNo) -> Self {
        let (order, task) = (Reverse(Age::newest()), HostNo(0).task(TaskId::from_u128(0)));
        Self { head, section: Section::Asks, order, task }
    }

    /// Sorts after all tasks below a heading.
    fn last(head: HeadNo) -> Self {
        let (order, task) = (Reverse(Age::oldest()), HostNo(u8::MAX).task(TaskId::from_u128(u128::MAX)));
        Self { head, section: Section::Done, order, task }
    }
}

/// Maximum number of places in a row; each change moves up to that many.
const ROW: usize = 256;

/// Sorted places.
#[derive(Debug, Default)]
pub struct Places {
    /// Sorted, non-empty rows of places. The key of a row is not less than any of its places, and less than all places
    /// of the next row.
    rows: BTreeMap<Place, Vec<Place>>,
    len: usize,
}

impl Places {
    /// Sorts places that are mostly sorted already.
    pub fn of(mut places: Vec<Place>) -> Self {
        places.sort();
        places.dedup();
        // Half full, so that there is room for later places.
        let rows = places.chunks(ROW / 2).filter_map(|row| Some((*row.last()?, row.to_vec())));
        Self { rows: rows.collect(), len: places.len() }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    /// Adds a place unless it is present.
    pub fn insert(&mut self, place: Place) {
        let key = self.rows.range(place..).next().map(|(key, _)| *key);
        let (key, mut row) = match key {
            Some(key) => (key, self.rows.remove(&key).unwrap_or_default()),
            // Beyond all others: this place becomes the key of the last row.
            None => (place, self.rows.pop_last().map(|(_, row)| row).unwrap_or_default()),
        };
        if let Err(at) = row.binary_search(&place) {
            row.insert(at, place);
            self.len += 1;
        }
        if row.len() > ROW {
            let behind = row.split_off(ROW / 2);
            self.rows.extend(row.last().copied().map(|last| (last, row)));
            row = behind;
        }
        self.rows.insert(key, row);
    }

    /// Removes a place. Returns whether it was present.
    pub fn remove(&mut self, place: Place) -> bool {
        let Some((key, row)) = self.rows.range_mut(place..).next() else { return false };
        let Ok(at) = row.binary_search(&place) else { return false };
        row.remove(at);
        self.len -= 1;
        if row.is_empty() {
            let key = *key;
            self.rows.remove(&key);
        }
        true
    }

    pub fn contains(&self, place: Place) -> bool {
        self.rows.range(place..).next().is_some_and(|(_, row)| row.binary_search(&place).is_ok())
    }

    /// Returns all places below a heading, in order.
    pub fn below(&self, head: HeadNo) -> impl Iterator<Item = Place> + '_ {
        self.from(Place::first(head)).take_while(move |place| place.head == head)
    }

    /// Returns the last place below a heading.
    pub fn last_below(&self, head: HeadNo) -> Option<Place> {
        self.before(Place::last(head))
    }

    /// Returns the next place below the same heading.
    pub fn after(&self, place: Place) -> Option<Place> {
        let next = self.from(place).find(|next| *next != place);
        next.filter(|next| next.head == place.head)
    }

    /// Returns the previous place below the same heading.
    pub fn before(&self, place: Place) -> Option<Place> {
        let here = self.rows.range(place..).next();
        let in_row = here.and_then(|(_, row)| {
            let at = row.partition_point(|other| *other < place);
            row.get(at.checked_sub(1)?)
        });
        let in_row_before =
            || self.rows.range((Bound::Unbounded, Bound::Excluded(place))).next_back()?.1.last();
        in_row.or_else(in_row_before).copied().filter(|before| before.head == place.head)
    }

    /// Returns all places from this one on, which need not be present.
    fn from(&self, place: Place) -> impl Iterator<Item = Place> + '_ {
        // Only the first row may contain earlier places.
        self.rows.range(place..).flat_map(move |(_, row)| {
            let at = row.partition_point(|other| *other < place);
            row.get(at..).unwrap_or_default().iter().copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bgd_shared::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn place(number: u32) -> Place {
        let age = Age::of(Timestamp::from_unix_ms(i64::from(number / 3)), 0);
        let task = HostNo(0).task(TaskId::from_u128(u128::from(number)));
        Place { head: HeadNo(number % 3), section: Section::Done, order: Reverse(age), task }
    }

    /// Checks that the places agree with a plain set.
    fn check(places: &Places, plain: &BTreeSet<Place>, asked: Place) {
        assert_eq!(places.len(), plain.len());
        assert_eq!(places.contains(asked), plain.contains(&asked));
        let same_head = |other: &&Place| other.head == asked.head;
        let after = plain.range((Bound::Excluded(asked), Bound::Unbounded)).next().filter(same_head);
        assert_eq!(places.after(asked), after.copied());
        assert_eq!(places.before(asked), plain.range(..asked).next_back().filter(same_head).copied());
        let below: Vec<Place> = plain.iter().filter(same_head).copied().collect();
        assert_eq!(places.below(asked.head).collect::<Vec<_>>(), below);
        assert_eq!(places.last_below(asked.head), below.last().copied());
        assert!(places.rows.values().all(|row| (1..=ROW).contains(&row.len())));
        let keys = places.rows.iter();
        assert!(keys.clone().all(|(key, row)| row.last() <= Some(key)));
        assert!(keys.clone().zip(keys.skip(1)).all(|((key, _), (_, next))| Some(key) < next.first()));
    }

    proptest! {
        #[test]
        fn r163_places_behave_like_a_plain_sorted_set(
            begin in 0..2000_u32,
            changes in prop::collection::vec((any::<bool>(), 0..2500_u32, 1..600_u32, any::<bool>()), 0..20),
        ) {
            let all: Vec<Place> = (0..begin).map(place).collect();
            let mut plain: BTreeSet<Place> = all.iter().copied().collect();
            let mut places = Places::of(all);
            check(&places, &plain, place(begin / 2));
            for (adds, from, count, falls) in changes {
                for step in 0..count {
                    let place = place(if falls { from.saturating_sub(step) } else { from + step });
                    if adds {
                        places.insert(place);
                        plain.insert(place);
                    } else {
                        assert_eq!(places.remove(place), plain.remove(&place));
                    }
                }
                check(&places, &plain, place(from));
                check(&places, &plain, place(from + count));
            }
        }
    }
}
