//! The state of the live view: the tasks, how they are folded and filtered, and which are selected, marked and pinned.
//! Facts and keys go in, lines come out. Does no I/O and reads no clock; the cost of each change is logarithmic in the
//! number of tasks.

mod age;
pub mod filter;
mod hosts;
mod known;
mod live;
mod order;
mod places;

use std::collections::{BTreeSet, HashMap, HashSet};

use bgd_shared::id::TaskId;
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use indexmap::IndexMap;

use self::age::Arrivals;
use self::filter::Filter;
use self::hosts::Hosts;
pub use self::hosts::Silence;
use self::known::Known;
pub use self::live::Live;
pub use self::order::{By, Counts, Head, Spot};
use self::order::{Order, SortKey};
use super::row::{Row, Section, Texts};
use super::task_key::{HostNo, TaskKey};
use crate::render::wall::Clock;
use crate::state::Seen;

/// Maximum number of pinned tasks.
pub const PINS: usize = 4;

/// Maximum number of characters of a filter.
pub const FILTER_CHARS: usize = 256;

/// The state of the live view.
#[derive(Debug)]
pub struct Model {
    /// The tasks, contiguous in memory, as each fold and each letter of a filter reads all of them. They are inserted
    /// newest first, which is nearly the order of the list.
    known: IndexMap<TaskKey, Known>,
    arrivals: Arrivals,
    /// The number of tasks that start after each task, which need not be known yet.
    awaited: HashMap<TaskKey, u32>,
    texts: Texts,
    counts: Counts,
    by: By,
    filter: Filter,
    filter_text: String,
    /// The tasks that a search has found, if only these are shown.
    found: Option<BTreeSet<TaskKey>>,
    order: Order,
    selected: Option<Spot>,
    top: Option<Spot>,
    /// Whether the first line was visible in the last window.
    is_at_top: bool,
    marks: BTreeSet<TaskKey>,
    pins: Vec<TaskKey>,
    live: HashMap<TaskKey, Live>,
    hosts: Hosts,
    /// The tasks that the user had looked at before.
    last_seen: Option<Seen>,
}

impl Model {
    /// Creates an empty list for this number of hosts. `last_seen`: the tasks that the user has looked at before.
    pub fn new(hosts: usize, last_seen: Option<Seen>) -> Self {
        Self {
            known: IndexMap::new(),
            arrivals: Arrivals::default(),
            awaited: HashMap::new(),
            texts: Texts::default(),
            counts: Counts::default(),
            by: By::default(),
            filter: Filter::default(),
            filter_text: String::new(),
            found: None,
            order: Order::default(),
            selected: None,
            top: None,
            is_at_top: false,
            marks: BTreeSet::new(),
            pins: Vec::new(),
            live: HashMap::new(),
            hosts: Hosts::new(hosts),
            last_seen,
        }
    }

    /// Sets the names of the hosts, in their order.
    pub fn name_hosts(&mut self, names: &[String]) {
        self.hosts.set_names(names);
    }

    pub fn hosts(&self) -> impl Iterator<Item = HostNo> + use<> {
        self.hosts.all()
    }

    /// Reports whether there are several hosts to tell apart.
    pub fn is_several(&self) -> bool {
        self.hosts.is_several()
    }

    pub fn host_name(&self, host: HostNo) -> &str {
        self.hosts.name(host)
    }

    /// Returns why a host does not answer; `None` if it does.
    pub fn silence(&self, host: HostNo) -> Option<&Silence> {
        self.hosts.silence(host)
    }

    /// Records that a host does not answer, or answers again. Keeps its tasks.
    pub fn set_silence(&mut self, host: HostNo, silence: Option<Silence>) {
        self.hosts.set_silence(host, silence);
        self.order.set_standing(self.standing());
        let line = Spot::Head(Head::Host(host));
        if self.selected.as_ref() == Some(&line) && self.order.nearest(&line).as_ref() != Some(&line) {
            // The heading was selected only because there was nothing else to select.
            self.selected = None;
        }
        self.settle();
    }

    /// Returns the headings that are present even without tasks: hosts that do not answer, or all hosts if the tasks
    /// are folded by host.
    fn standing(&self) -> BTreeSet<Head> {
        let is_shown = |host: &HostNo| {
            let has_line = self.by == By::Host || self.silence(*host).is_some();
            self.is_several() && has_line && self.filter.takes_host(self.host_name(*host))
        };
        self.hosts().filter(is_shown).map(Head::Host).collect()
    }

    /// Reports whether all tasks of the hosts that answer are known: until then an empty list means nothing.
    pub fn is_listed(&self) -> bool {
        self.hosts.is_listed()
    }

    /// Makes room for this many tasks of a host.
    pub fn make_room(&mut self, host: HostNo, tasks: usize) {
        let all = self.hosts.set_tasks(host, tasks);
        self.known.reserve(all.saturating_sub(self.known.len()));
    }

    /// Begins a new listing of a host: tasks that are not in it are removed by [`Self::end_listing`].
    pub fn begin_listing(&mut self, host: HostNo) {
        self.hosts.begin_listing(host);
    }

    /// Removes the tasks of a host that were neither listed nor changed since [`Self::begin_listing`].
    pub fn end_listing(&mut self, host: HostNo) {
        let round = self.hosts.round(host);
        let is_gone =
            |(key, known): (&TaskKey, &Known)| (key.host == host && known.round != round).then_some(*key);
        for key in self.known.iter().filter_map(is_gone).collect::<Vec<_>>() {
            self.remove(key);
        }
        self.hosts.end_listing(host);
    }

    /// Updates a host's task from an event.
    pub fn put(&mut self, host: HostNo, task: &Task, clock: &Clock) {
        self.take(host, task, clock, Arrivals::newer);
    }

    /// Updates the next task of a host's list, which is sorted newest first.
    pub fn put_listed(&mut self, host: HostNo, task: &Task, clock: &Clock) {
        self.take(host, task, clock, Arrivals::older);
    }

    fn take(&mut self, host: HostNo, task: &Task, clock: &Clock, arrive: fn(&mut Arrivals) -> i32) {
        let row = Row::of(host, task, &mut self.texts, clock);
        let (key, round) = (row.key(), self.hosts.round(host));
        let before = self.known.get(&key);
        if before.is_some_and(|known| known.row == row) {
            if let Some(known) = self.known.get_mut(&key) {
                known.round = round;
            }
            return;
        }
        let has_ended_again = before.is_some_and(|known| known.row.ended_at() != row.ended_at());
        let was_known = self
            .last_seen
            .as_ref()
            .zip(row.ended_at())
            .is_some_and(|(last_seen, ended)| last_seen.has(key.id, ended));
        let is_seen = was_known
            || task.ended_in_foreground
            || before.is_some_and(|known| known.is_seen && !has_ended_again);
        let was_shown = before.is_some_and(|known| known.was_shown && !has_ended_again);
        let (is_new, after) = (before.is_none(), row.starts_after());
        let old_after = before.and_then(|known| known.row.starts_after());
        let arrival = before.map_or_else(|| arrive(&mut self.arrivals), |known| known.arrival);
        let was_at = self.leave(key);
        self.known.insert(key, Known { row, is_seen, was_shown, round, arrival });
        self.enter(key, was_at);
        if is_new || old_after != after {
            self.count_dependents(old_after, after);
        }
        if !task.status.is_active() {
            self.live.remove(&key);
        }
    }

    /// Removes a deleted task.
    pub fn remove(&mut self, key: TaskKey) {
        self.leave(key);
        let Some(known) = self.known.swap_remove(&key) else { return };
        self.count_dependents(known.row.starts_after(), None);
        self.marks.remove(&key);
        self.pins.retain(|pinned| *pinned != key);
        self.live.remove(&key);
        if let Some(found) = &mut self.found {
            found.remove(&key);
        }
        self.settle();
    }

    /// Updates the counts of dependent tasks. Only the first task that a task starts after counts, as it is the
    /// heading.
    fn count_dependents(&mut self, before: Option<TaskKey>, now: Option<TaskKey>) {
        let changes = before.map(|key| (key, -1)).into_iter().chain(now.map(|key| (key, 1)));
        for (key, change) in changes {
            let count = self.awaited.get(&key).copied().unwrap_or(0);
            let count_now = count.saturating_add_signed(change);
            let turns = (count == 0) != (count_now == 0);
            let moves = turns && self.by == By::After && self.known.contains_key(&key);
            let was_at = if moves { self.leave(key) } else { None };
            if count_now == 0 {
                self.awaited.remove(&key);
            } else {
                self.awaited.insert(key, count_now);
            }
            if moves {
                self.enter(key, was_at);
            }
        }
    }

    fn sort_key(&self, known: &Known) -> SortKey {
        let (row, section) = (&known.row, known.section());
        let head = self.by.head(row, section, || self.awaited.contains_key(&row.key()));
        SortKey::of(row, known.arrival, section, head)
    }

    fn is_shown(&self, known: &Known) -> bool {
        let is_found = self.found.as_ref().is_none_or(|found| found.contains(&known.row.key()));
        is_found && self.passes(&self.filter, known)
    }

    fn passes(&self, filter: &Filter, known: &Known) -> bool {
        filter.takes(&known.row, known.section(), self.host_name(known.row.host))
    }

    /// Removes a task from the order before a change, and returns its position there.
    fn leave(&mut self, key: TaskKey) -> Option<SortKey> {
        let known = self.known.get(&key)?;
        let sort_key = self.sort_key(known);
        self.counts[sort_key.section as usize] -= 1;
        self.order.remove(&sort_key);
        Some(sort_key)
    }

    /// Puts a task back into the order. The selection follows it.
    fn enter(&mut self, key: TaskKey, was_at: Option<SortKey>) {
        let Some(known) = self.known.get(&key) else { return };
        let sort_key = self.sort_key(known);
        self.counts[sort_key.section as usize] += 1;
        if self.is_shown(known) {
            self.order.insert(&sort_key);
        }
        if let Some(was_at) = was_at.map(Spot::Task) {
            if self.selected.as_ref() == Some(&was_at) {
                self.selected = Some(Spot::Task(sort_key));
            }
            self.settle();
        }
    }

    /// Moves the selection and the first visible line to lines that exist.
    fn settle(&mut self) {
        let near = |order: &Order, spot: &Option<Spot>| spot.as_ref().and_then(|spot| order.nearest(spot));
        self.selected = near(&self.order, &self.selected);
        self.top = near(&self.order, &self.top);
    }

    fn reorder(&mut self) {
        let selected = self.selected_task();
        self.order.set_standing(self.standing());
        // With 100,000 tasks, the old order must not take up memory at the same time as the new one.
        self.order.clear();
        let mut order = std::mem::take(&mut self.order);
        let shown = self.known.values().filter(|known| self.is_shown(known));
        order.fill(self.known.len(), shown.map(|known| self.sort_key(known)));
        self.order = order;
        let kept =
            selected.and_then(|key| self.known.get(&key)).map(|known| Spot::Task(self.sort_key(known)));
        self.selected = kept.and_then(|spot| self.order.nearest(&spot)).or_else(|| self.first_task());
        self.top = None;
    }

    /// Removes the tasks that the earlier filter showed and the current, narrower one hides from the order if there are
    /// few of them, to avoid sorting 100,000 tasks again for each letter. Returns whether it did.
    fn hide_few(&mut self, before: &Filter) -> bool {
        let is_hidden = |known: &&Known| !self.passes(&self.filter, known) && self.passes(before, known);
        let most = self.order.len() / 4;
        let hidden = self.known.values().filter(is_hidden).take(most + 1);
        let hidden: Vec<SortKey> = hidden.map(|known| self.sort_key(known)).collect();
        if hidden.len() > most {
            return false;
        }
        for sort_key in &hidden {
            self.order.remove(sort_key);
        }
        self.order.set_standing(self.standing());
        self.settle();
        true
    }

    /// Returns the number of tasks by section, regardless of the filter.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of tasks that pass the filter and, during a search, were found.
    pub fn shown(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of tasks waiting for the user: those that ask, and those that failed unseen.
    pub fn waiting(&self) -> usize {
        self.counts[Section::Asks as usize] + self.counts[Section::Failed as usize]
    }

    pub fn by(&self) -> By {
        self.by
    }

    /// Folds by the next property.
    pub fn fold_by_next(&mut self) {
        self.by = self.by.next(self.is_several());
        self.reorder();
    }

    /// Returns the filter as typed.
    pub fn filter(&self) -> &str {
        &self.filter_text
    }

    /// Sets the filter, which selects the tasks to show.
    pub fn set_filter(&mut self, text: &str) {
        self.filter_text = text.chars().take(FILTER_CHARS).collect();
        let filter = Filter::parse(&self.filter_text, self.is_several());
        if filter == self.filter {
            return;
        }
        let before = std::mem::replace(&mut self.filter, filter);
        if !self.filter.is_narrower_than(&before) || !self.hide_few(&before) {
            self.reorder();
        }
    }

    /// Shows only these tasks, which a search has found so far; with `None`, shows all again.
    pub fn set_found(&mut self, found: Option<BTreeSet<TaskKey>>) {
        if found != self.found {
            self.found = found;
            self.reorder();
        }
    }

    /// Adds a task found by the search.
    pub fn find(&mut self, key: TaskKey) {
        let Some(found) = &mut self.found else { return };
        if !found.insert(key) {
            return;
        }
        if let Some(known) = self.known.get(&key).filter(|known| self.is_shown(known)) {
            let sort_key = self.sort_key(known);
            self.order.insert(&sort_key);
        }
    }

    /// Returns the number of tasks that the search has found.
    pub fn found(&self) -> usize {
        self.found.as_ref().map_or(0, BTreeSet::len)
    }

    /// Returns all tasks in order that are shown or folded.
    pub fn tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        self.order.tasks()
    }

    /// Returns all tasks: first those that are shown or folded, in order, then those that a filter hides.
    pub fn all(&self) -> Vec<TaskKey> {
        let shown: HashSet<TaskKey> = self.tasks().collect();
        let hidden = self.known.keys().filter(|key| !shown.contains(key));
        self.tasks().chain(hidden.copied()).collect()
    }

    pub fn row(&self, key: TaskKey) -> Option<&Row> {
        self.known.get(&key).map(|known| &known.row)
    }

    /// Returns the tasks that start after each task.
    pub fn dependents(&self) -> HashMap<TaskKey, Vec<TaskKey>> {
        let mut dependents: HashMap<TaskKey, Vec<TaskKey>> = HashMap::new();
        for known in self.known.values() {
            for after in &known.row.after {
                dependents.entry(known.row.host.task(*after)).or_default().push(known.row.key());
            }
        }
        dependents
    }

    /// Returns the number of tasks below a heading, by section.
    pub fn counts_below(&self, head: &Head) -> Counts {
        self.order.counts(head)
    }

    /// Reports whether the tasks below a heading are hidden.
    pub fn is_folded(&self, head: &Head) -> bool {
        self.order.is_folded(head)
    }

    pub fn selected(&self) -> Option<&Spot> {
        self.selected.as_ref()
    }

    pub fn selected_task(&self) -> Option<TaskKey> {
        self.selected.as_ref().and_then(Spot::task)
    }

    /// Returns the visible lines in a window of this height, which moves only as far as necessary to show the
    /// selection.
    pub fn window(&mut self, height: usize) -> Vec<Spot> {
        if self.selected.is_none() {
            self.selected = self.first_task();
        }
        // Hosts have lines even before any task is known.
        let Some(selected) = self.selected.clone().or_else(|| self.order.first()) else { return Vec::new() };
        if height == 0 {
            return Vec::new();
        }
        let back = isize::try_from(height - 1).unwrap_or(isize::MAX);
        let lowest = self.order.moved(&selected, -back);
        // If the first line was visible, keep showing it when lines are added before it.
        let top = if self.is_at_top { self.order.first() } else { self.top.take() };
        let top = match top {
            Some(top) if top < lowest => lowest,
            Some(top) if top > selected => selected,
            Some(top) => top,
            None => lowest,
        };
        // Do not scroll beyond the last line.
        let end = self.order.last().map(|last| self.order.moved(&last, -back));
        let top = end.filter(|end| *end < top).unwrap_or(top);
        let lines = self.order.lines(&top, height);
        self.is_at_top = self.order.first().as_ref() == Some(&top);
        self.top = Some(top);
        lines
    }

    /// Returns the first task, or its heading if that is folded. Skips hosts without tasks.
    fn first_task(&self) -> Option<Spot> {
        let mut first = self.order.first()?;
        while self.order.counts(first.head()).iter().all(|count| *count == 0) {
            first = self.order.next(&first)?;
        }
        Some(self.order.next(&first).filter(|spot| spot.task().is_some()).unwrap_or(first))
    }

    /// Moves the selection by this many lines.
    pub fn move_by(&mut self, lines: isize) {
        self.selected = match &self.selected {
            Some(selected) => Some(self.order.moved(selected, lines)),
            None => self.order.first(),
        };
    }

    /// Selects a line.
    pub fn select(&mut self, spot: &Spot) {
        self.selected = self.order.nearest(spot);
    }

    /// Selects the first line, or the last one.
    pub fn select_end(&mut self, is_last: bool) {
        self.selected = if is_last { self.order.last() } else { self.order.first() };
    }

    /// Hides or shows the tasks below the heading of the selection. Hiding them selects the heading.
    pub fn fold(&mut self, is_folded: bool) {
        let Some(head) = self.selected.as_ref().map(|spot| spot.head().clone()) else { return };
        self.order.fold(&head, is_folded);
        if is_folded {
            self.selected = Some(Spot::Head(head));
        }
        self.settle();
    }

    /// Records that the user has looked at a task.
    pub fn see(&mut self, key: TaskKey) {
        let was_at = self.leave(key);
        if let Some(known) = self.known.get_mut(&key) {
            known.is_seen = true;
        }
        self.enter(key, was_at);
    }

    /// Records that these tasks are on the screen.
    pub fn note_visible(&mut self, tasks: &[TaskKey]) {
        for key in tasks {
            if let Some(known) = self.known.get_mut(key) {
                known.was_shown |= known.row.status == Status::Failed;
            }
        }
    }

    /// Returns the failures that the user has neither looked at nor had on the screen, with the times of their ends.
    pub fn unseen(&self) -> Vec<(TaskId, Timestamp)> {
        let failed = self.known.values().filter(|known| known.row.status == Status::Failed);
        let unseen = failed.filter(|known| !known.is_seen && !known.was_shown);
        unseen.filter_map(|known| Some((known.row.id, known.row.ended_at()?))).collect()
    }

    /// Toggles the mark of the selected task and moves to the next line.
    pub fn mark(&mut self) {
        if let Some(key) = self.selected_task()
            && !self.marks.remove(&key)
        {
            self.marks.insert(key);
        }
        self.move_by(1);
    }

    pub fn is_marked(&self, key: TaskKey) -> bool {
        self.marks.contains(&key)
    }

    /// Removes all marks. Returns whether there were any.
    pub fn unmark(&mut self) -> bool {
        !std::mem::take(&mut self.marks).is_empty()
    }

    /// Returns the tasks that a key applies to: the marked ones, else the selected one.
    pub fn chosen(&self) -> Vec<TaskKey> {
        if self.marks.is_empty() {
            return self.selected_task().into_iter().collect();
        }
        self.marks.iter().copied().collect()
    }

    pub fn pins(&self) -> &[TaskKey] {
        &self.pins
    }

    /// Toggles the pin of the selected task. Returns false if too many tasks are pinned.
    pub fn pin(&mut self) -> bool {
        let Some(key) = self.selected_task() else { return true };
        if let Some(at) = self.pins.iter().position(|pinned| *pinned == key) {
            self.pins.remove(at);
        } else if self.pins.len() < PINS {
            self.pins.push(key);
        } else {
            return false;
        }
        true
    }

    /// Returns the live data of a task.
    pub fn live(&self, key: TaskKey) -> Option<&Live> {
        self.live.get(&key)
    }

    /// Sets the live data of a task.
    pub fn set_live(&mut self, key: TaskKey, live: Live) {
        if self.known.contains_key(&key) {
            self.live.insert(key, live);
        }
    }

    /// Marks the live data of a task as stale because its output has grown.
    pub fn output_grew(&mut self, key: TaskKey) {
        if let Some(live) = self.live.get_mut(&key) {
            live.is_stale = true;
        }
    }

    /// Forgets the live data of all tasks but these.
    pub fn keep_live(&mut self, keys: &[TaskKey]) {
        self.live.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests;
