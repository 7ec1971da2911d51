//! Tracks which items of the parent session's inbox were reported and which may be acknowledged: an item may be
//! acknowledged only once the answer that reports it has been written. Does no I/O.
//!
//! Answers are built concurrently, and each item goes into exactly one of them. If an answer is not written because its
//! request was cancelled, its items go into the next answer unchanged: the daemon may have removed their tasks
//! meanwhile. The daemon drops all items up to a number, so an item is acknowledged only when all earlier ones have
//! been reported. The server's own notes, such as a restart of the daemon, are handled the same way but have no number.

use std::collections::{BTreeMap, HashMap};

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
    /// Reported.
    Written,
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
    /// Items with a number above `done`, and older ones claimed by an answer that was not written.
    items: BTreeMap<u64, Entry>,
    /// The server's own notes. They are removed once reported.
    notes: Vec<(Delivery, String)>,
    /// The number of the last acknowledged item.
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
    /// The number of the last item.
    pub upto: u64,
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

    /// Records whether an answer was written. Returns the items that may be acknowledged now, if there are new ones.
    pub fn sent(&self, request: &RequestId, is_written: bool) -> Option<Done> {
        let mut state = self.state.lock();
        state.ends(request)?;
        self.over.send_replace(());
        if !is_written {
            state.release(request);
            return None;
        }
        let is_here = |delivery: &Delivery| matches!(delivery, Delivery::With(with) if with == request);
        state.notes.retain(|(delivery, _)| !is_here(delivery));
        for entry in state.items.values_mut().filter(|entry| is_here(&entry.delivery)) {
            *entry = Entry { delivery: Delivery::Written, item: None };
        }
        state.advance()
    }

    /// Returns the last known item. Call this before reading an inbox, for [`Self::begins_at`].
    pub fn last(&self) -> Done {
        let state = self.state.lock();
        let last = state.items.last_key_value().map_or(0, |(last, _)| *last);
        Done { instance: state.instance.clone(), upto: last.max(state.done) }
    }

    /// Records the number of the first item in an inbox that was read from its beginning, if it has any. All earlier
    /// items have left the inbox: another client of this session acknowledged them, or they were lost. If the inbox is
    /// empty, all items known before the read have left it.
    pub fn begins_at(&self, instance: &str, first: Option<u64>, known: &Done) {
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
    /// inbox must have been read from its beginning.
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
            if item.number <= state.done || !state.is_running(request) {
                continue;
            }
            let entry =
                state.items.entry(item.number).or_insert(Entry { delivery: Delivery::Free, item: None });
            let item = entry.item.as_ref().unwrap_or(&item);
            if entry.delivery == Delivery::Free && wanted(item) {
                let item = item.clone();
                *entry = Entry { delivery: Delivery::With(request.clone()), item: Some(item.clone()) };
                claimed.push(item);
            }
        }
        claimed
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

    /// Confirms an acknowledgement: from then on, the daemon counts lost items from zero.
    pub fn confirm_acknowledged(&self, instance: &str) {
        let mut state = self.state.lock();
        if state.instance == instance {
            state.lost = 0;
        }
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
            (self.done, self.lost) = (0, 0);
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
            Some(Delivery::Written) => Some(true),
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

    /// Forgets the reported items before the first unreported one.
    fn advance(&mut self) -> Option<Done> {
        let before = self.done;
        self.items.retain(|number, entry| *number > before || entry.delivery != Delivery::Written);
        let following = self.items.range(before.saturating_add(1)..);
        let upto = following
            .take_while(|(_, entry)| entry.delivery == Delivery::Written)
            .last()
            .map(|(last, _)| *last)?;
        self.items.retain(|number, _| *number <= before || *number > upto);
        self.done = upto;
        Some(Done { instance: self.instance.clone(), upto })
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::notice::{Notice, NoticeKind};

    use super::*;
    use crate::render::samples::task;

    fn items(numbers: &[u64]) -> Vec<InboxItem> {
        let notice = Notice {
            key: String::new(),
            kind: NoticeKind::Completed,
            at: bgd_shared::time::Timestamp::from_unix_ms(0),
            resume: false,
            title: String::new(),
            text: String::new(),
            active: None,
            duration_ms: None,
            result: None,
            task: task(),
        };
        numbers.iter().map(|number| InboxItem { number: *number, notice: notice.clone() }).collect()
    }

    fn claim(ledger: &Ledger, request: i64, numbers: &[u64]) -> Vec<u64> {
        let claimed = ledger.claim(&RequestId::Number(request), "one", items(numbers), |_| true);
        claimed.iter().map(|item| item.number).collect()
    }

    fn write(ledger: &Ledger, request: i64) -> Option<u64> {
        ledger.sends(&RequestId::Number(request));
        ledger.sent(&RequestId::Number(request), true).map(|done| done.upto)
    }

    fn begin(requests: &[i64]) -> Ledger {
        let ledger = Ledger::default();
        for request in requests {
            ledger.begins(&RequestId::Number(*request));
        }
        ledger
    }

    #[test]
    fn item_is_claimed_by_one_answer_and_acknowledged_once_written() {
        let ledger = begin(&[1, 2]);
        assert_eq!(claim(&ledger, 1, &[3, 7]), [3, 7]);
        assert_eq!(claim(&ledger, 2, &[3, 7, 8]), [8]);
        assert_eq!(write(&ledger, 2), None, "3 and 7 are not written");
        assert_eq!(write(&ledger, 1), Some(8));
        ledger.begins(&RequestId::Number(3));
        assert_eq!(claim(&ledger, 3, &[7, 8, 9]), [9], "an inbox that was read before the acknowledgement");
    }

    #[test]
    fn items_of_cancelled_request_go_to_the_next_one() {
        let ledger = begin(&[1, 2, 3]);
        assert_eq!(claim(&ledger, 1, &[3]), [3]);
        ledger.cancelled(&RequestId::Number(1));
        assert_eq!(claim(&ledger, 1, &[3, 4]), [0; 0], "no answer is sent to it");
        assert_eq!(claim(&ledger, 2, &[3, 4]), [3, 4]);
        ledger.sends(&RequestId::Number(2));
        ledger.cancelled(&RequestId::Number(2));
        assert_eq!(claim(&ledger, 3, &[3, 4]), [0; 0], "it came too late");
        assert_eq!(write(&ledger, 2), Some(4));
    }

    #[test]
    fn items_of_unwritten_answer_are_claimed_again() {
        let ledger = begin(&[1, 2]);
        assert_eq!(claim(&ledger, 1, &[3]), [3]);
        assert_eq!(ledger.sent(&RequestId::Number(1), false), None);
        assert_eq!(claim(&ledger, 2, &[3]), [3]);
    }

    #[test]
    fn unclaimed_item_holds_back_acknowledgement_of_later_ones() {
        let ledger = begin(&[1, 2]);
        let only_second = ledger.claim(&RequestId::Number(1), "one", items(&[3, 4]), |item| item.number == 4);
        assert_eq!(only_second.len(), 1);
        assert_eq!(write(&ledger, 1), None);
        assert_eq!(claim(&ledger, 2, &[3, 4]), [3]);
        assert_eq!(write(&ledger, 2), Some(4));
    }

    #[test]
    fn item_numbers_restart_with_another_daemon() {
        let ledger = begin(&[1, 2]);
        assert_eq!(claim(&ledger, 1, &[3]), [3]);
        assert_eq!(write(&ledger, 1), Some(3));
        let claimed = ledger.claim(&RequestId::Number(2), "two", items(&[1]), |_| true);
        assert_eq!(claimed.len(), 1);
    }

    #[test]
    fn note_is_repeated_until_written() {
        let ledger = begin(&[1, 2, 3]);
        let [one, two, three] = [1, 2, 3].map(RequestId::Number);
        ledger.record_lost("one", 4);
        ledger.record_lost("one", 4);
        let notes = ledger.claim_notes(&one);
        assert!(matches!(&notes[..], [note] if note.starts_with("4 older reports")), "{notes:?}");
        assert_eq!(ledger.claim_notes(&two), [""; 0], "it is in another answer");
        ledger.cancelled(&one);
        assert_eq!(ledger.claim_notes(&two), notes);
        assert_eq!(write(&ledger, 2), None);
        ledger.note("more");
        assert_eq!(ledger.claim_notes(&three), ["more"]);
    }

    #[test]
    fn items_of_cancelled_request_keep_their_first_content() {
        let ledger = begin(&[1, 2]);
        assert_eq!(claim(&ledger, 1, &[3]), [3]);
        ledger.cancelled(&RequestId::Number(1));
        let mut gone = items(&[3]);
        gone[0].notice.title = "its task is gone".to_owned();
        let claimed = ledger.claim(&RequestId::Number(2), "one", gone, |_| true);
        assert_eq!(claimed[0].notice.title, "");
    }

    #[test]
    fn items_gone_from_the_inbox_hold_back_no_acknowledgement() {
        let ledger = begin(&[1, 2, 3, 4]);
        let only_first =
            ledger.claim(&RequestId::Number(1), "one", items(&[3, 4, 5]), |item| item.number == 3);
        assert_eq!(only_first.len(), 1);
        // Another client acknowledges everything up to 5.
        ledger.begins_at("one", Some(6), &ledger.last());
        assert_eq!(claim(&ledger, 2, &[6]), [6]);
        assert_eq!(write(&ledger, 2), Some(6));
        // The items of a request that is never answered go into the next answer, although the inbox is empty.
        let before = ledger.last();
        assert_eq!(before.upto, 6);
        ledger.begins_at("one", None, &before);
        ledger.cancelled(&RequestId::Number(1));
        let kept = ledger.claim_kept(&RequestId::Number(3), |_| true);
        assert_eq!(kept.iter().map(|item| item.number).collect::<Vec<_>>(), [3]);
        assert_eq!(write(&ledger, 3), None, "there is nothing to acknowledge");
        assert_eq!(ledger.claim_kept(&RequestId::Number(4), |_| true), []);
        assert!(ledger.state.lock().items.is_empty());
        // An item that arrives while an empty inbox is being read does not count as having left it.
        let before = ledger.last();
        ledger.begins(&RequestId::Number(5));
        assert_eq!(ledger.claim(&RequestId::Number(4), "one", items(&[7]), |_| false), []);
        ledger.begins_at("one", None, &before);
        assert_eq!(claim(&ledger, 5, &[7]), [7]);
    }

    #[test]
    fn requests_with_a_duplicate_id_claim_nothing() {
        let ledger = begin(&[1]);
        assert_eq!(claim(&ledger, 1, &[3]), [3]);
        ledger.begins(&RequestId::Number(1));
        assert_eq!(claim(&ledger, 1, &[3]), [0; 0]);
        assert_eq!(write(&ledger, 1), None);
        ledger.begins(&RequestId::Number(2));
        assert_eq!(claim(&ledger, 2, &[3]), [3]);
    }

    #[test]
    fn item_state_is_undecided_until_its_answer_is_written() {
        let ledger = begin(&[1, 2]);
        let item = &items(&[3])[0];
        let now = |ledger: &Ledger| ledger.state.lock().is_reported("one", item);
        assert_eq!(now(&ledger), Some(false));
        ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
        assert_eq!(now(&ledger), None, "it is waited for");
        assert_eq!(claim(&ledger, 2, &[3]), [3]);
        ledger.cancelled(&RequestId::Number(1));
        assert_eq!(now(&ledger), None, "it is on its way in another answer");
        assert_eq!(write(&ledger, 2), Some(3));
        assert_eq!(now(&ledger), Some(true));
        assert_eq!(ledger.state.lock().is_reported("two", item), Some(false), "another daemon's");
    }

    #[test]
    fn awaited_item_missing_from_the_answer_counts_as_unreported() {
        let ledger = begin(&[1]);
        let item = &items(&[3])[0];
        ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
        assert_eq!(write(&ledger, 1), None);
        assert_eq!(ledger.state.lock().is_reported("one", item), Some(false));
        ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
        assert_eq!(ledger.state.lock().is_reported("one", item), Some(false), "its request is over");
    }
}
