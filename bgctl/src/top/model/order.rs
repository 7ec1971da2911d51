//! The order of the list's lines, maintained as tasks change, so that a frame lays out only the visible ones.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::rc::Rc;

use super::age::Age;
use super::places::{HeadNo, Place, Places};
use crate::top::row::{Row, Section};
use crate::top::task_key::{HostNo, TaskKey};

/// The property that the tasks are folded by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Their relevance to the user.
    #[default]
    Section,
    Host,
    Session,
    Group,
    Batch,
    /// The task that they start after.
    After,
}

impl By {
    /// Returns the next property, for a key that cycles through all of them.
    #[must_use]
    pub const fn next(self, has_hosts: bool) -> Self {
        match self {
            Self::Section if has_hosts => Self::Host,
            Self::Section | Self::Host => Self::Session,
            Self::Session => Self::Group,
            Self::Group => Self::Batch,
            Self::Batch => Self::After,
            Self::After => Self::Section,
        }
    }

    /// Returns the heading of a task; `is_awaited`: whether other tasks start after it.
    pub fn head(self, row: &Row, section: Section, is_awaited: impl FnOnce() -> bool) -> Head {
        let named = |text: &Rc<str>| Head::Named(text.clone());
        match self {
            Self::Section => Head::Section(section),
            Self::Host => Head::Host(row.host),
            Self::Session => row.labels.session.as_ref().map_or(Head::Rest, named),
            Self::Group => named(&row.labels.group),
            Self::Batch => row.labels.batch.map_or(Head::Rest, |batch| Head::Task(row.host.task(batch))),
            Self::After => match row.starts_after() {
                Some(first) => Head::Task(first),
                None if is_awaited() => Head::Task(row.key()),
                None => Head::Rest,
            },
        }
    }

    /// Returns the name for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Section => "status",
            Self::Host => "host",
            Self::Session => "session",
            Self::Group => "group",
            Self::Batch => "batch",
            Self::After => "dependency",
        }
    }
}

/// A heading. Hosts that do not answer come first, and [`Self::Rest`] comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Head {
    Host(HostNo),
    Section(Section),
    /// A session or group of this name.
    Named(Rc<str>),
    /// A batch, or a task that others start after.
    Task(TaskKey),
    /// Tasks that belong to no other heading.
    Rest,
}

/// The position of a task in the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    pub head: Head,
    pub section: Section,
    order: Reverse<Age>,
    pub task: TaskKey,
}

impl SortKey {
    /// Creates the key of a task below this heading: newest first in its section.
    pub fn of(row: &Row, arrival: i32, section: Section, head: Head) -> Self {
        let age = Age::of(row.created_at, arrival);
        Self { head, section, order: Reverse(age), task: row.key() }
    }

    /// Returns the position of the task among all tasks, given the number of its heading.
    const fn place(&self, head: HeadNo) -> Place {
        Place { head, section: self.section, order: self.order, task: self.task }
    }
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    Head(Head),
    Task(SortKey),
}

/// The order on the screen: each heading is followed by its tasks. The derived one would put all headings first.
impl Ord for Spot {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head().cmp(other.head()).then_with(|| match (self, other) {
            (Self::Head(_), Self::Head(_)) => Ordering::Equal,
            (Self::Head(_), Self::Task(_)) => Ordering::Less,
            (Self::Task(_), Self::Head(_)) => Ordering::Greater,
            (Self::Task(one), Self::Task(two)) => one.cmp(two),
        })
    }
}

impl PartialOrd for Spot {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Spot {
    /// Creates the line of a task below this heading.
    fn of(head: &Head, place: Place) -> Self {
        let Place { section, order, task, .. } = place;
        Self::Task(SortKey { head: head.clone(), section, order, task })
    }

    /// Returns the heading that the line is, or belongs to.
    pub fn head(&self) -> &Head {
        match self {
            Self::Head(head) => head,
            Self::Task(sort_key) => &sort_key.head,
        }
    }

    /// Returns the task, if this is the line of a task.
    pub fn task(&self) -> Option<TaskKey> {
        match self {
            Self::Head(_) => None,
            Self::Task(sort_key) => Some(sort_key.task),
        }
    }
}

/// Number of tasks below a heading, by section.
pub type Counts = [usize; Section::ALL.len()];

/// Bookkeeping for a heading.
#[derive(Debug, Default)]
struct Below {
    number: HeadNo,
    counts: Counts,
}

/// The lines in order.
#[derive(Debug, Default)]
pub struct Order {
    /// The tasks, in order below each heading.
    places: Places,
    heads: BTreeMap<Head, Below>,
    /// Free numbers of removed headings.
    free: Vec<HeadNo>,
    folded: HashSet<Head>,
    /// Headings that are present even without tasks.
    standing: BTreeSet<Head>,
}

impl Order {
    pub fn insert(&mut self, sort_key: &SortKey) {
        let place = self.enter(sort_key);
        self.places.insert(place);
    }

    /// Counts a task below its heading and returns its place.
    fn enter(&mut self, sort_key: &SortKey) -> Place {
        let below = self.head(&sort_key.head);
        below.counts[sort_key.section as usize] += 1;
        let number = below.number;
        sort_key.place(number)
    }

    /// Returns a heading, creating it if necessary.
    fn head(&mut self, head: &Head) -> &mut Below {
        // The present and the removed headings together use all numbers up to the highest one.
        let next = self.heads.len() + self.free.len();
        let free = &mut self.free;
        self.heads.entry(head.clone()).or_insert_with(|| {
            let number = free.pop().unwrap_or_else(|| HeadNo(u32::try_from(next).unwrap_or(u32::MAX)));
            Below { number, counts: Counts::default() }
        })
    }

    pub fn remove(&mut self, sort_key: &SortKey) {
        let Some(below) = self.heads.get_mut(&sort_key.head) else { return };
        if self.places.remove(sort_key.place(below.number)) {
            below.counts[sort_key.section as usize] -= 1;
            self.drop_empty(&sort_key.head);
        }
    }

    /// Removes a heading without tasks, unless it is to be present even then.
    fn drop_empty(&mut self, head: &Head) {
        let is_empty = self.counts(head).iter().all(|count| *count == 0);
        if is_empty && !self.standing.contains(head) {
            self.free.extend(self.heads.remove(head).map(|below| below.number));
        }
    }

    /// Sets the headings that are present even without tasks.
    pub fn set_standing(&mut self, standing: BTreeSet<Head>) {
        for head in std::mem::replace(&mut self.standing, standing) {
            self.drop_empty(&head);
        }
        for head in self.standing.clone() {
            self.head(&head);
        }
    }

    /// Removes all tasks. Keeps the folded headings and those that are present without tasks.
    pub fn clear(&mut self) {
        self.places = Places::default();
        self.heads.clear();
        self.free = Vec::new();
        for head in self.standing.clone() {
            self.head(&head);
        }
    }

    /// Adds tasks, `most` at most, to an empty list. This costs much less than adding them one by one, and least if the
    /// tasks of each heading are already sorted newest first.
    pub fn fill(&mut self, most: usize, sort_keys: impl Iterator<Item = SortKey>) {
        let mut places = Vec::with_capacity(most);
        places.extend(sort_keys.map(|sort_key| self.enter(&sort_key)));
        // There are few headings, so this is cheap; each then has its tasks in one run, or nearly so.
        places.sort_by_key(|place| (place.head, place.section));
        self.places = Places::of(places);
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of tasks below a heading, by section.
    pub fn counts(&self, head: &Head) -> Counts {
        self.heads.get(head).map(|below| below.counts).unwrap_or_default()
    }

    /// Reports whether the tasks below a heading are hidden.
    pub fn is_folded(&self, head: &Head) -> bool {
        self.folded.contains(head)
    }

    /// Hides the tasks below a heading, or shows them again.
    pub fn fold(&mut self, head: &Head, is_folded: bool) {
        if is_folded {
            self.folded.insert(head.clone());
        } else {
            self.folded.remove(head);
        }
    }

    /// Returns all tasks in order, including hidden ones.
    pub fn tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        self.heads.values().flat_map(|below| self.places.below(below.number)).map(|place| place.task)
    }

    pub fn first(&self) -> Option<Spot> {
        self.heads.keys().next().cloned().map(Spot::Head)
    }

    pub fn last(&self) -> Option<Spot> {
        let head = self.heads.keys().next_back()?;
        Some(self.last_of(head))
    }

    /// Returns the last line below a heading, which is the heading itself if it is folded.
    fn last_of(&self, head: &Head) -> Spot {
        let number = self.heads.get(head).filter(|_| !self.is_folded(head)).map(|below| below.number);
        let last = number.and_then(|number| self.places.last_below(number));
        last.map_or_else(|| Spot::Head(head.clone()), |place| Spot::of(head, place))
    }

    /// Returns the line itself if it exists, else the heading if that is folded, else the next line, or the last one.
    pub fn nearest(&self, spot: &Spot) -> Option<Spot> {
        let below = self.heads.get(spot.head());
        let is_there = below.is_some_and(|below| match spot {
            Spot::Head(_) => true,
            Spot::Task(sort_key) => {
                !self.is_folded(&sort_key.head) && self.places.contains(sort_key.place(below.number))
            }
        });
        if is_there {
            return Some(spot.clone());
        }
        if self.is_folded(spot.head()) && below.is_some() {
            return Some(Spot::Head(spot.head().clone()));
        }
        self.next(spot).or_else(|| self.last())
    }

    /// Returns the line after this one, which need not exist.
    pub fn next(&self, spot: &Spot) -> Option<Spot> {
        let head = spot.head();
        let below = self.heads.get(head).filter(|_| !self.is_folded(head)).and_then(|below| match spot {
            Spot::Head(_) => self.places.below(below.number).next(),
            Spot::Task(sort_key) => self.places.after(sort_key.place(below.number)),
        });
        if let Some(place) = below {
            return Some(Spot::of(head, place));
        }
        let next = self.heads.range((Bound::Excluded(head), Bound::Unbounded)).next();
        next.map(|(head, _)| Spot::Head(head.clone()))
    }

    /// Returns the line before this one, which need not exist.
    pub fn previous(&self, spot: &Spot) -> Option<Spot> {
        let head = spot.head();
        match spot {
            Spot::Task(sort_key) => {
                let number = self.heads.get(head)?.number;
                let before = self.places.before(sort_key.place(number));
                Some(before.map_or_else(|| Spot::Head(head.clone()), |place| Spot::of(head, place)))
            }
            Spot::Head(_) => {
                let before = self.heads.range(..head).next_back()?.0;
                Some(self.last_of(before))
            }
        }
    }

    /// Returns the line `count` lines after this one, or before it if negative, but not beyond the first or last line.
    pub fn moved(&self, spot: &Spot, count: isize) -> Spot {
        let mut spot = spot.clone();
        for _ in 0..count.unsigned_abs() {
            let next = if count > 0 { self.next(&spot) } else { self.previous(&spot) };
            let Some(next) = next else { break };
            spot = next;
        }
        spot
    }

    /// Returns up to `count` lines, starting with this one.
    pub fn lines(&self, from: &Spot, count: usize) -> Vec<Spot> {
        std::iter::successors(Some(from.clone()), |spot| self.next(spot)).take(count).collect()
    }
}
