//! The order of the list: which line comes where, kept while tasks change, so that a frame lays out only what is
//! visible.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::rc::Rc;

use bgd_shared::id::TaskId;

use super::age::Age;
use crate::top::row::{Row, Section};
use crate::top::task_key::{HostNo, TaskKey};

/// What the tasks are folded by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// What they are for their user.
    #[default]
    Section,
    /// Their host.
    Host,
    /// Their parent session.
    Session,
    /// Their group.
    Group,
    /// Their batch.
    Batch,
    /// The task that they start after.
    After,
}

impl By {
    /// The next one, for a key that goes through all.
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

    /// The heading that a task is below; `is_awaited`: whether others start after it.
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

    /// Its name for people.
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

/// A heading. Hosts that do not answer come first; those that name something come before the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Head {
    Host(HostNo),
    Section(Section),
    /// A session or group of this name.
    Named(Rc<str>),
    /// A batch, or a task that others start after.
    Task(TaskKey),
    /// Those that belong to none.
    Rest,
}

/// Where a task is in the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    /// Its heading.
    pub head: Head,
    pub section: Section,
    order: Reverse<Age>,
    pub task: TaskKey,
}

impl SortKey {
    /// The key of a task below this heading: newest first in its section.
    pub fn of(row: &Row, arrival: i32, section: Section, head: Head) -> Self {
        let age = Age::of(row.created_at, arrival);
        Self { head, section, order: Reverse(age), task: row.key() }
    }
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spot {
    /// A heading.
    Head(Head),
    Task(SortKey),
}

impl Spot {
    /// The heading that it is, or belongs to.
    pub fn head(&self) -> &Head {
        match self {
            Self::Head(head) => head,
            Self::Task(sort_key) => &sort_key.head,
        }
    }

    /// The task, if it is one's.
    pub fn task(&self) -> Option<TaskKey> {
        match self {
            Self::Head(_) => None,
            Self::Task(sort_key) => Some(sort_key.task),
        }
    }
}

/// Number of tasks below a heading by section.
pub type Counts = [usize; Section::ALL.len()];

/// The lines in order.
#[derive(Debug, Default)]
pub struct Order {
    sort_keys: BTreeSet<SortKey>,
    heads: BTreeMap<Head, Counts>,
    folded: HashSet<Head>,
    /// Headings that are there without tasks, too.
    standing: BTreeSet<Head>,
}

impl Order {
    /// Adds a task.
    pub fn insert(&mut self, sort_key: SortKey) {
        let counts = self.heads.entry(sort_key.head.clone()).or_default();
        counts[sort_key.section as usize] += 1;
        self.sort_keys.insert(sort_key);
    }

    /// Removes a task.
    pub fn remove(&mut self, sort_key: &SortKey) {
        if !self.sort_keys.remove(sort_key) {
            return;
        }
        if let Some(counts) = self.heads.get_mut(&sort_key.head) {
            counts[sort_key.section as usize] -= 1;
            self.drop_empty(&sort_key.head);
        }
    }

    /// Removes a heading that has no tasks, and does not stand without.
    fn drop_empty(&mut self, head: &Head) {
        let is_empty = self.counts(head).iter().all(|count| *count == 0);
        if is_empty && !self.standing.contains(head) {
            self.heads.remove(head);
        }
    }

    /// Sets which headings are there without tasks, too.
    pub fn set_standing(&mut self, standing: BTreeSet<Head>) {
        for head in std::mem::replace(&mut self.standing, standing) {
            self.drop_empty(&head);
        }
        for head in &self.standing {
            self.heads.entry(head.clone()).or_default();
        }
    }

    /// Removes all tasks; remembers what is folded, and what stands without tasks.
    pub fn clear(&mut self) {
        self.sort_keys.clear();
        self.heads = self.standing.iter().map(|head| (head.clone(), Counts::default())).collect();
    }

    /// Adds tasks to a list without any, which costs much less than one by one; the least if those below a heading are
    /// newest first already.
    pub fn fill(&mut self, mut sort_keys: Vec<SortKey>) {
        // There are few headings, so that the first one is cheap; each then has its tasks in one run, or nearly so, of
        // which the second one only makes sure.
        sort_keys.sort_by(|one, next| (&one.head, one.section).cmp(&(&next.head, next.section)));
        sort_keys.sort();
        for same in sort_keys.chunk_by(|one, next| one.head == next.head) {
            let mut counts = Counts::default();
            for sort_key in same {
                counts[sort_key.section as usize] += 1;
            }
            self.heads.insert(same[0].head.clone(), counts);
        }
        // Sorted already: it is built in one go.
        self.sort_keys = sort_keys.into_iter().collect();
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.sort_keys.len()
    }

    /// Number of tasks below a heading by section.
    pub fn counts(&self, head: &Head) -> Counts {
        self.heads.get(head).copied().unwrap_or_default()
    }

    /// Whether the tasks below a heading are hidden.
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

    /// All tasks in order, also hidden ones.
    pub fn tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        self.sort_keys.iter().map(|sort_key| sort_key.task)
    }

    /// The first line.
    pub fn first(&self) -> Option<Spot> {
        self.heads.keys().next().cloned().map(Spot::Head)
    }

    /// The last line.
    pub fn last(&self) -> Option<Spot> {
        let head = self.heads.keys().next_back()?;
        Some(self.last_of(head))
    }

    /// The last line below a heading: the heading itself if it is folded.
    fn last_of(&self, head: &Head) -> Spot {
        if self.is_folded(head) {
            return Spot::Head(head.clone());
        }
        let last =
            self.sort_keys.range(..=end_of(head)).next_back().filter(|sort_key| sort_key.head == *head);
        last.cloned().map_or_else(|| Spot::Head(head.clone()), Spot::Task)
    }

    /// The line itself if it exists, else the one that is there now: the next one, or the last.
    pub fn nearest(&self, spot: &Spot) -> Option<Spot> {
        let is_there = match spot {
            Spot::Head(head) => self.heads.contains_key(head),
            Spot::Task(sort_key) => !self.is_folded(&sort_key.head) && self.sort_keys.contains(sort_key),
        };
        if is_there {
            return Some(spot.clone());
        }
        if self.is_folded(spot.head()) && self.heads.contains_key(spot.head()) {
            return Some(Spot::Head(spot.head().clone()));
        }
        self.next(spot).or_else(|| self.last())
    }

    /// The line after this one, which need not exist.
    pub fn next(&self, spot: &Spot) -> Option<Spot> {
        let head = spot.head();
        if !self.is_folded(head) {
            let below = match spot {
                Spot::Head(head) => self.sort_keys.range(start_of(head)..).next(),
                Spot::Task(sort_key) => {
                    self.sort_keys.range((Bound::Excluded(sort_key), Bound::Unbounded)).next()
                }
            };
            if let Some(sort_key) = below.filter(|sort_key| sort_key.head == *head) {
                return Some(Spot::Task(sort_key.clone()));
            }
        }
        let next = self.heads.range((Bound::Excluded(head), Bound::Unbounded)).next();
        next.map(|(head, _)| Spot::Head(head.clone()))
    }

    /// The line before this one, which need not exist.
    pub fn previous(&self, spot: &Spot) -> Option<Spot> {
        match spot {
            Spot::Task(sort_key) => {
                let before = self
                    .sort_keys
                    .range(..sort_key)
                    .next_back()
                    .filter(|before| before.head == sort_key.head);
                let head =
                    || self.heads.contains_key(&sort_key.head).then(|| Spot::Head(sort_key.head.clone()));
                before.cloned().map(Spot::Task).or_else(head)
            }
            Spot::Head(head) => {
                let before = self.heads.range(..head).next_back()?.0;
                Some(self.last_of(before))
            }
        }
    }

    /// The line `count` lines after this one, or before it if negative, as far as there are lines.
    pub fn moved(&self, spot: &Spot, count: isize) -> Spot {
        let mut spot = spot.clone();
        for _ in 0..count.unsigned_abs() {
            let next = if count > 0 { self.next(&spot) } else { self.previous(&spot) };
            let Some(next) = next else { break };
            spot = next;
        }
        spot
    }

    /// Up to `count` lines from this one on.
    pub fn lines(&self, from: &Spot, count: usize) -> Vec<Spot> {
        std::iter::successors(Some(from.clone()), |spot| self.next(spot)).take(count).collect()
    }
}

/// A key before all others below a heading.
fn start_of(head: &Head) -> SortKey {
    SortKey {
        head: head.clone(),
        section: Section::Asks,
        order: Reverse(Age::newest()),
        task: HostNo(0).task(TaskId::from_u128(0)),
    }
}

/// A key after all others below a heading.
fn end_of(head: &Head) -> SortKey {
    SortKey {
        head: head.clone(),
        section: Section::Done,
        order: Reverse(Age::oldest()),
        task: HostNo(u8::MAX).task(TaskId::from_u128(u128::MAX)),
    }
}
