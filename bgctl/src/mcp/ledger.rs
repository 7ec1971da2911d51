//! Tracks which items of the parent session's inbox were reported and which may be acknowledged: an item may be
//! acknowledged only once the answer that reports it has been written. Does no I/O.
//!
//! Answers are built concurrently, and each item goes into exactly one of them. If an answer is not written because its
//! request was cancelled, its items go into the next answer unchanged: the daemon may have removed their tasks
//! meanwhile. Other readers of the session are kept away from an item by reserving it, which the caller does: an item
//! that another one has reserved may come back. An older daemon reserves nothing and drops all items up to a number, so
//! an item is acknowledged to it only when all earlier ones have been reported. The server's own notes, such as a
//! restart of the daemon, are handled the same way but have no number.

use std::collections::{BTreeMap, HashMap, HashSet};

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::notice::InboxItem;
use bgd_shared::show::count;
use rmcp::model::RequestId;
use tokio::sync::watch;

/// The delivery state of an item.
#[derive(Debug, PartialEq, Eq)]
enum Delivery {
    /// Not in any answer yet.
    Free,
    /// In the answer to this request, which is not written yet.
    With(RequestId),
    /// Reported, but not acknowledged yet.
    Written,
    /// Reported and acknowledged.
    Acknowledged,
    /// Another reader of the session has got it. It comes back if that one ends before it acknowledges the item.
    Elsewhere,
}

impl Delivery {
    /// Reports whether this server has nothing left to report.
    fn is_over(&self) -> bool {
        matches!(self, Self::Written | Self::Acknowledged | Self::Elsewhere)
    }
}

#[derive(Debug)]
struct Entry {
    delivery: Delivery,
    /// The item's content, once an answer has claimed it.
    item: Option<InboxItem>,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// In flight together with another request of the same id. Their answers are indistinguishable, so neither reports
    /// anything.
    Twice,
    /// Its answer is being written to standard output and can't be withdrawn.
    Sending,
}

#[derive(Debug, Default)]
struct State {
    /// The daemon instance that the items belong to.
    instance: String,
    /// Whether the daemon is an older one, which gives an item to all readers.
    gives_to_all: bool,
    /// Items with a number above `done`, and older ones claimed by an answer that was not written or still to be
    /// acknowledged.
    items: BTreeMap<u64, Entry>,
    /// The server's own notes. They are removed once reported.
    notes: Vec<(Delivery, String)>,
    /// The number of the last item up to which all were reported or have left the inbox.
    done: u64,
    requests: HashMap<RequestId, Phase>,
    /// Number of lost items already reported.
    lost: u64,
    /// The tasks that each request waits for; its answer reports their ends.
    awaited: HashMap<RequestId, Vec<TaskId>>,
}

/// The items that may be acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The daemon instance to acknowledge them to.
    pub instance: String,
    /// The numbers of the items.
    pub numbers: Vec<u64>,
    /// The number up to which all items may be acknowledged.
    pub upto: u64,
    /// Whether to acknowledge up to that number: an older daemon does not acknowledge single items.
    pub whole: bool,
}

/// The last item known before a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The daemon instance that the item belongs to.
    instance: String,
    /// The item's number; 0 for none.
    upto: u64,
}

#[derive(Debug, Default)]
pub struct Ledger {
    state: Mutex<State>,
    /// Signals the end of every request.
    over: watch::Sender<()>,
}

impl Ledger {
    /// Registers a request.
    pub fn begins(&self, request: &RequestId) {
        let mut state = self.state.lock();
        let is_new = state.requests.insert(request.clone(), Phase::Running).is_none();
        if !is_new {
            state.requests.insert(request.clone(), Phase::Twice);
            state.awaited.remove(request);
            state.release(request);
            self.over.send_replace(());
        }
    }

    /// Adds a note of the server's own.
    pub fn note(&self, text: impl Into<String>) {
        self.state.lock().notes.push((Delivery::Free, text.into()));
    }

    /// Cancels a request: no answer is sent, unless it is being written already.
    pub fn cancelled(&self, request: &RequestId) {
        let mut state = self.state.lock();
        if matches!(state.requests.get(request), Some(Phase::Running | Phase::Twice)) {
            state.ends(request);
            state.release(request);
            self.over.send_replace(());
        }
    }

    /// Marks the answer as handed to standard output.
    pub fn sends(&self, request: &RequestId) {
        if let Some(phase @ Phase::Running) = self.state.lock().requests.get_mut(request) {
            *phase = Phase::Sending;
        }
    }

    /// Records whether an answer was written.
    pub fn sent(&self, request: &RequestId, is_written: bool) {
        let mut state = self.state.lock();
        if state.ends(request).is_none() {
            return;
        }
        self.over.send_replace(());
        if !is_written {
            state.release(request);
            return;
        }
        let is_here = |delivery: &Delivery| matches!(delivery, Delivery::With(with) if with == request);
        state.notes.retain(|(delivery, _)| !is_here(delivery));
        for entry in state.items.values_mut().filter(|entry| is_here(&entry.delivery)) {
            *entry = Entry { delivery: Delivery::Written, item: None };
        }
        state.advance();
    }

    /// Returns the items that may be acknowledged; `None` if there are none.
    pub fn unacknowledged(&self) -> Option<Done> {
        let state = self.state.lock();
        let (upto, whole) = (state.done, state.gives_to_all);
        let written = state.items.iter().filter(|(_, entry)| entry.delivery == Delivery::Written);
        let numbers: Vec<u64> =
            written.map(|(number, _)| *number).filter(|number| !whole || *number <= upto).collect();
        (!numbers.is_empty()).then(|| Done { instance: state.instance.clone(), numbers, upto, whole })
    }

    /// Returns the last known item. Call this before reading an inbox, for [`Self::begins_at`].
    pub fn last(&self) -> Known {
        let state = self.state.lock();
        let last = state.items.last_key_value().map_or(0, |(last, _)| *last);
        Known { instance: state.instance.clone(), upto: last.max(state.done) }
    }

    /// Records the number of the first item in an inbox that was read from its beginning, if it has any. All earlier
    /// items have left the inbox: another client of this session reserved or acknowledged them, or they were lost. If
    /// the inbox is empty, all items known before the read have left it.
    pub fn begins_at(&self, instance: &str, first: Option<u64>, known: &Known) {
        let mut state = self.state.lock();
        state.of_instance(instance);
        let known = if known.instance == instance { known.upto } else { 0 };
        state.forget_up_to(first.map_or(known, |first| first.saturating_sub(1)));
    }

    /// Reports whether the answer to this request may report anything: the request was not cancelled and its id is
    /// unique.
    pub fn takes(&self, request: &RequestId) -> bool {
        self.state.lock().is_running(request)
    }

    /// Puts items that have left the inbox, whose earlier answer was not written and which `wanted` accepts, into the
    /// answer to a request.
    pub fn claim_kept(
        &self,
        request: &RequestId,
        mut wanted: impl FnMut(&InboxItem) -> bool,
    ) -> Vec<InboxItem> {
        let mut state = self.state.lock();
        if !state.is_running(request) {
            return Vec::new();
        }
        let done = state.done;
        let mut claimed = Vec::new();
        for entry in state.items.range_mut(..=done).map(|(_, entry)| entry) {
            if entry.delivery == Delivery::Free
                && let Some(item) = entry.item.clone().filter(&mut wanted)
            {
                entry.delivery = Delivery::With(request.clone());
                claimed.push(item);
            }
        }
        claimed
    }

    /// Puts those inbox items that are in no other answer and that `wanted` accepts into the answer to a request. The
    /// inbox must have been read from its beginning. Reserve the items then, and return those that another reader has
    /// with [`Self::yields`].
    pub fn claim(
        &self,
        request: &RequestId,
        instance: &str,
        items: Vec<InboxItem>,
        mut wanted: impl FnMut(&InboxItem) -> bool,
    ) -> Vec<InboxItem> {
        let mut state = self.state.lock();
        state.of_instance(instance);
        let mut claimed = Vec::new();
        for item in items {
            // The page may have been read before an acknowledgement; reserving finds that out.
            let is_done = state.gives_to_all && item.number <= state.done;
            if is_done || !state.is_running(request) {
                continue;
            }
            let entry =
                state.items.entry(item.number).or_insert(Entry { delivery: Delivery::Free, item: None });
            let item = entry.item.as_ref().unwrap_or(&item);
            if matches!(entry.delivery, Delivery::Free | Delivery::Elsewhere) && wanted(item) {
                let item = item.clone();
                *entry = Entry { delivery: Delivery::With(request.clone()), item: Some(item.clone()) };
                claimed.push(item);
            }
        }
        claimed
    }

    /// Takes items that another reader of the session has got out of the answer to a request.
    pub fn yields(&self, request: &RequestId, instance: &str, numbers: &HashSet<u64>) {
        let mut state = self.state.lock();
        if state.instance != instance || numbers.is_empty() {
            return;
        }
        for (_, entry) in state.items.iter_mut().filter(|(number, _)| numbers.contains(*number)) {
            // Free: the request was cancelled meanwhile.
            let is_ours = matches!(&entry.delivery, Delivery::With(with) if with == request);
            if is_ours || entry.delivery == Delivery::Free {
                *entry = Entry { delivery: Delivery::Elsewhere, item: None };
            }
        }
        state.advance();
        self.over.send_replace(());
    }

    /// Records that this daemon is an older one, which reserves nothing and gives an item to all readers.
    pub fn gives_to_all(&self, instance: &str) {
        let mut state = self.state.lock();
        state.gives_to_all |= state.instance == instance;
    }

    /// Reports whether this daemon may be able to reserve items.
    pub fn may_reserve(&self, instance: &str) -> bool {
        let state = self.state.lock();
        state.instance != instance || !state.gives_to_all
    }

    /// Puts the server's own notes into the answer to a request.
    pub fn claim_notes(&self, request: &RequestId) -> Vec<String> {
        let mut state = self.state.lock();
        if !state.is_running(request) {
            return Vec::new();
        }
        let free = state.notes.iter_mut().filter(|(delivery, _)| *delivery == Delivery::Free);
        free.map(|(delivery, text)| {
            *delivery = Delivery::With(request.clone());
            text.clone()
        })
        .collect()
    }

    /// Records how many items were lost before those still in the inbox.
    pub fn record_lost(&self, instance: &str, lost: u64) {
        let mut state = self.state.lock();
        state.of_instance(instance);
        let new = lost.saturating_sub(state.lost);
        state.lost = lost;
        if new > 0 {
            let were = if new == 1 { "was" } else { "were" };
            let text = format!(
                "{} {were} dropped because there were too many: background_list shows the tasks.",
                count(new, "older report")
            );
            state.notes.push((Delivery::Free, text));
        }
    }

    /// Confirms the acknowledgement of these items: from then on, the daemon counts lost items from zero.
    pub fn confirm_acknowledged(&self, instance: &str, numbers: &[u64]) {
        let mut state = self.state.lock();
        if state.instance != instance {
            return;
        }
        state.lost = 0;
        for number in numbers {
            if let Some(entry) = state.items.get_mut(number)
                && entry.delivery == Delivery::Written
            {
                entry.delivery = Delivery::Acknowledged;
            }
        }
        state.advance();
    }

    /// Announces that the answer to this request will report the ends of these tasks.
    pub fn awaits(&self, request: &RequestId, tasks: Vec<TaskId>) {
        let mut state = self.state.lock();
        if state.requests.contains_key(request) {
            state.awaited.insert(request.clone(), tasks);
        }
    }

    /// Reports whether an answer has reported this item. Waits for an answer that may still do so.
    pub async fn was_reported(&self, instance: &str, item: &InboxItem) -> bool {
        let mut over = self.over.subscribe();
        loop {
            over.mark_unchanged();
            if let Some(is_reported) = self.state.lock().is_reported(instance, item) {
                return is_reported;
            }
            // `self` owns the sender, so this can't fail.
            if over.changed().await.is_err() {
                return false;
            }
        }
    }
}

impl State {
    /// Resets the ledger if the daemon is another instance, as its numbers are unrelated.
    fn of_instance(&mut self, instance: &str) {
        if self.instance != instance {
            instance.clone_into(&mut self.instance);
            self.items.clear();
            (self.done, self.lost, self.gives_to_all) = (0, 0, false);
        }
    }

    fn ends(&mut self, request: &RequestId) -> Option<Phase> {
        self.awaited.remove(request);
        self.requests.remove(request)
    }

    /// Returns whether an item was reported; `None` while an answer that may report it is in flight.
    fn is_reported(&self, instance: &str, item: &InboxItem) -> Option<bool> {
        let entry = if self.instance == instance { self.items.get(&item.number) } else { None };
        match entry.map(|entry| &entry.delivery) {
            Some(delivery) if delivery.is_over() => Some(true),
            Some(Delivery::With(_)) => None,
            _ if self.instance == instance && item.number <= self.done => Some(true),
            _ => {
                let is_awaited = self.awaited.values().flatten().any(|task| *task == item.notice.task.id);
                if is_awaited { None } else { Some(false) }
            }
        }
    }

    fn is_running(&self, request: &RequestId) -> bool {
        self.requests.get(request) == Some(&Phase::Running)
    }

    /// Releases the items that the answer to a request had claimed.
    fn release(&mut self, request: &RequestId) {
        let items = self.items.values_mut().map(|entry| &mut entry.delivery);
        for delivery in items.chain(self.notes.iter_mut().map(|(delivery, _)| delivery)) {
            if matches!(delivery, Delivery::With(with) if with == request) {
                *delivery = Delivery::Free;
            }
        }
    }

    /// Forgets the items up to this number, except those that an answer claims or claimed.
    fn forget_up_to(&mut self, end: u64) {
        self.items.retain(|number, entry| *number > end || entry.item.is_some());
        self.done = self.done.max(end);
    }

    /// Moves on to the first item that is still to be reported, and forgets those before it that need no
    /// acknowledgement.
    fn advance(&mut self) {
        let following = self.items.range(self.done.saturating_add(1)..);
        let over = following.take_while(|(_, entry)| entry.delivery.is_over());
        self.done = over.last().map_or(self.done, |(last, _)| *last);
        let done = self.done;
        self.items.retain(|number, entry| {
            *number > done || !matches!(entry.delivery, Delivery::Acknowledged | Delivery::Elsewhere)
        });
    }
}

#[cfg(test)]
mod tests;
