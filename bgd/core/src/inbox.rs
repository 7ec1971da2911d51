//! The inboxes of parent sessions: the notices that each has not acknowledged. An item is delivered until it is
//! acknowledged, and never after that. Each inbox is bounded, and so are all of them together: the oldest items are
//! dropped first, and counted. This module is independent of tasks and sends no replies itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bgd_shared::limits::{INBOXES_BYTES, INBOXES_ITEMS};
use bgd_shared::request::InboxesStatus;
use serde::{Deserialize, Serialize};

use super::caller::ReplyTo;
use super::notice::{Item, Notice};
use super::time::Mono;

/// Cost of an item besides the texts of its task: the snapshot and the index entries.
const ITEM_BYTES: usize = 768;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InboxWaitId(pub u64);

/// A read that waits for an item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InboxWait {
    /// Who gets the reply.
    pub to: ReplyTo,
    pub session: Arc<str>,
    /// Only items with a higher number than this.
    pub after: u64,
    /// The most items to return.
    pub limit: usize,
    /// When the reply is sent even without an item.
    pub deadline: Mono,
}

/// Ended waits with their numbers.
pub type Ended = Vec<(InboxWaitId, InboxWait)>;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inbox {
    /// Items with their numbers, oldest first.
    items: VecDeque<Item>,
    /// How many dropped items no acknowledgement covers yet.
    lost: u64,
    /// The number of the last dropped item; 0 for none.
    lost_upto: u64,
    /// Waiting reads by the number after which they want items. An item ends the reads with lower numbers.
    waits: BTreeSet<(u64, InboxWaitId)>,
}

impl Inbox {
    /// Reports whether it has no content that must be kept.
    fn is_idle(&self) -> bool {
        self.items.is_empty() && self.waits.is_empty() && self.lost == 0
    }
}

/// All inboxes, and the reads waiting on them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Inboxes {
    by_session: HashMap<Arc<str>, Inbox>,
    /// The parent session of every item, oldest first. Numbers are never reused, so an inbox that is no longer needed
    /// can be dropped without a trace.
    items: BTreeMap<u64, Arc<str>>,
    /// Total bytes of the texts of all items.
    bytes: usize,
    last: u64,
    /// The parent sessions whose inboxes have losses, by the number of the last lost item.
    losses: BTreeMap<u64, Arc<str>>,
    /// How many items of all inboxes were dropped unacknowledged so far.
    lost: u64,
    waits: BTreeMap<InboxWaitId, InboxWait>,
    by_client: BTreeSet<(u64, InboxWaitId)>,
    last_wait: u64,
    /// The changes since [`Inboxes::take_touched`]; `None` unless changes are persisted.
    #[serde(skip)]
    touched: Option<TouchedInboxes>,
}

/// The items and losses that were added or removed.
#[derive(Debug, Default)]
pub struct TouchedInboxes {
    /// The numbers of the items.
    pub items: BTreeSet<u64>,
    /// The numbers of the last lost items.
    pub losses: BTreeSet<u64>,
}

impl TouchedInboxes {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.losses.is_empty()
    }
}

/// Persistent counts of all inboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxCounts {
    /// The number of the last item.
    pub last: u64,
    /// How many items of all inboxes were dropped unacknowledged so far.
    pub lost: u64,
}

impl Inboxes {
    /// Starts recording which items and losses are added or removed.
    pub fn track(&mut self) {
        self.touched = Some(TouchedInboxes::default());
    }

    /// Returns the items and losses added or removed since the last call.
    pub fn take_touched(&mut self) -> TouchedInboxes {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn touch_item(&mut self, number: u64) {
        self.touched.iter_mut().for_each(|touched| _ = touched.items.insert(number));
    }

    fn touch_loss(&mut self, number: u64) {
        self.touched.iter_mut().for_each(|touched| _ = touched.losses.insert(number));
    }

    /// Returns an item with its parent session.
    pub fn item(&self, number: u64) -> Option<(Arc<str>, Arc<Notice>)> {
        let session = self.items.get(&number)?;
        let items = &self.by_session.get(session)?.items;
        let at = items.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some((Arc::clone(session), Arc::clone(&items.get(at)?.1)))
    }

    /// Returns the parent session whose last lost item has this number, and how many items it has lost that no
    /// acknowledgement covers yet.
    pub fn loss(&self, number: u64) -> Option<(Arc<str>, u64)> {
        let session = self.losses.get(&number)?;
        Some((Arc::clone(session), self.by_session.get(session)?.lost))
    }

    pub fn counts(&self) -> InboxCounts {
        InboxCounts { last: self.last, lost: self.lost }
    }

    /// Restores inboxes: their items and their losses as by [`Self::loss`], both oldest first.
    pub fn fill(
        &mut self,
        counts: &InboxCounts,
        items: impl IntoIterator<Item = (u64, Arc<str>, Arc<Notice>)>,
        losses: impl IntoIterator<Item = (u64, Arc<str>, u64)>,
    ) {
        for (number, session, lost) in losses {
            let inbox = self.by_session.entry(Arc::clone(&session)).or_default();
            self.losses.remove(&inbox.lost_upto);
            (inbox.lost, inbox.lost_upto) = (lost, number);
            self.losses.insert(number, session);
        }
        for (number, session, notice) in items {
            self.last = number.saturating_sub(1);
            self.add(&session, notice, usize::MAX);
        }
        self.last = self.last.max(counts.last);
        self.lost += counts.lost;
    }

    /// Gives further items numbers after this one, unless it was already used.
    pub fn number_after(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// Adds an item, then drops the excess over `limit` (at least 1) in this inbox or over the limits on all inboxes.
    /// Returns the waits that the item ends, oldest first.
    pub fn add(&mut self, session: &Arc<str>, notice: Arc<Notice>, limit: usize) -> Ended {
        self.last += 1;
        let number = self.last;
        self.touch_item(number);
        self.items.insert(number, Arc::clone(session));
        self.bytes += notice.text_bytes();
        let inbox = self.by_session.entry(Arc::clone(session)).or_default();
        inbox.items.push_back((number, notice));
        let mut over: Vec<InboxWaitId> =
            inbox.waits.range(..(number, InboxWaitId(0))).map(|(_, id)| *id).collect();
        // There may be several excess items: the limit may have been lowered.
        for _ in limit.max(1)..inbox.items.len() {
            self.drop_oldest(session);
        }
        while self.items.len() > INBOXES_ITEMS || self.bytes > INBOXES_BYTES && self.items.len() > 1 {
            let Some(oldest) = self.items.values().next().cloned() else { break };
            self.drop_oldest(&oldest);
        }
        over.sort_unstable();
        over.into_iter().filter_map(|id| Some((id, self.end_wait(id)?))).collect()
    }

    fn drop_oldest(&mut self, session: &str) {
        let Some(inbox) = self.by_session.get_mut(session) else { return };
        let Some((number, notice)) = inbox.items.pop_front() else { return };
        let before = std::mem::replace(&mut inbox.lost_upto, number);
        inbox.lost += 1;
        self.lost += 1;
        self.bytes -= notice.text_bytes();
        self.touch_item(number);
        self.forget_loss(before);
        if let Some(session) = self.items.remove(&number) {
            self.losses.insert(number, session);
            self.touch_loss(number);
        }
        // An inbox must not be kept forever only to remember a loss.
        if self.losses.len() > INBOXES_ITEMS
            && let Some((upto, session)) = self.losses.pop_first()
            && let Some(inbox) = self.by_session.get_mut(&session)
        {
            (inbox.lost, inbox.lost_upto) = (0, 0);
            self.touch_loss(upto);
            self.tidy(&session);
        }
    }

    /// Removes the loss whose last item has this number; 0 for none.
    fn forget_loss(&mut self, upto: u64) {
        if self.losses.remove(&upto).is_some() {
            self.touch_loss(upto);
        }
    }

    /// Reports whether there is an item after this number.
    pub fn has_any(&self, session: &str, after: u64) -> bool {
        let newest = self.by_session.get(session).and_then(|inbox| inbox.items.back());
        newest.is_some_and(|(number, _)| *number > after)
    }

    /// Returns the items after this number, oldest first, and how many were lost.
    pub fn read(&self, session: &str, after: u64, limit: usize) -> (Vec<Item>, u64) {
        let Some(inbox) = self.by_session.get(session) else { return (Vec::new(), 0) };
        let begin = inbox.items.partition_point(|(number, _)| *number <= after);
        (inbox.items.range(begin..).take(limit).cloned().collect(), inbox.lost)
    }

    /// Removes the items up to this number, and resets the count of lost items if all of those are up to it too: a
    /// client that has read that far either received them or was informed of the loss. Returns how many items were
    /// removed and how many are left.
    pub fn acknowledge(&mut self, session: &str, upto: u64) -> (u64, u64) {
        let (done, left) = self.forget(session, upto);
        (done as u64, left as u64)
    }

    fn forget(&mut self, session: &str, upto: u64) -> (usize, usize) {
        let Some(inbox) = self.by_session.get_mut(session) else { return (0, 0) };
        let done = inbox.items.partition_point(|(number, _)| *number <= upto);
        let gone: Vec<Item> = inbox.items.drain(..done).collect();
        let left = inbox.items.len();
        let reported_upto = if inbox.lost_upto <= upto { inbox.lost_upto } else { 0 };
        if reported_upto > 0 {
            (inbox.lost, inbox.lost_upto) = (0, 0);
        }
        for (number, notice) in gone {
            self.touch_item(number);
            self.items.remove(&number);
            self.bytes -= notice.text_bytes();
        }
        self.forget_loss(reported_upto);
        self.tidy(session);
        (done, left)
    }

    fn tidy(&mut self, session: &str) {
        if self.by_session.get(session).is_some_and(Inbox::is_idle) {
            self.by_session.remove(session);
        }
    }

    /// Adds a read that waits for an item.
    pub fn wait(&mut self, wait: InboxWait) -> InboxWaitId {
        self.last_wait += 1;
        let id = InboxWaitId(self.last_wait);
        self.by_session.entry(Arc::clone(&wait.session)).or_default().waits.insert((wait.after, id));
        self.by_client.insert((wait.to.client, id));
        self.waits.insert(id, wait);
        id
    }

    /// Reports whether this call waits for an item.
    pub fn waits(&self, to: ReplyTo) -> bool {
        self.waits_of(to.client).any(|id| self.waits.get(&id).is_some_and(|wait| wait.to == to))
    }

    /// Returns the waiting reads of a client, oldest first.
    pub fn waits_of(&self, client: u64) -> impl Iterator<Item = InboxWaitId> {
        let theirs = (client, InboxWaitId(0))..=(client, InboxWaitId(u64::MAX));
        self.by_client.range(theirs).map(|(_, id)| *id)
    }

    pub fn end_wait(&mut self, id: InboxWaitId) -> Option<InboxWait> {
        let wait = self.waits.remove(&id)?;
        self.by_client.remove(&(wait.to.client, id));
        if let Some(inbox) = self.by_session.get_mut(&wait.session) {
            inbox.waits.remove(&(wait.after, id));
        }
        self.tidy(&wait.session);
        Some(wait)
    }

    /// Removes every waiting read. Returns them, oldest first.
    pub fn end_waits(&mut self) -> Ended {
        let ids: Vec<InboxWaitId> = self.waits.keys().copied().collect();
        ids.into_iter().filter_map(|id| Some((id, self.end_wait(id)?))).collect()
    }

    /// Removes the waiting reads of a client that is gone. Returns them, oldest first.
    pub fn disconnect(&mut self, client: u64) -> Ended {
        let ids: Vec<InboxWaitId> = self.waits_of(client).collect();
        ids.into_iter().filter_map(|id| Some((id, self.end_wait(id)?))).collect()
    }

    /// Empties the inbox of an ended parent session, because it will not be read. Waiting reads stay: a session with
    /// the same key may begin.
    pub fn remove(&mut self, session: &str) {
        self.forget(session, u64::MAX);
    }

    /// Lists the inboxes whose oldest item comes after this number, oldest first: parent session, number of the
    /// oldest item, and number of items.
    pub fn list(&self, after: u64) -> impl Iterator<Item = (&Arc<str>, u64, usize)> {
        self.items.range(after.saturating_add(1)..).filter_map(|(number, session)| {
            let inbox = self.by_session.get(session)?;
            let (oldest, _) = inbox.items.front()?;
            (oldest == number).then_some((session, *number, inbox.items.len()))
        })
    }

    /// Returns the memory of the items, in bytes. Texts of existing tasks also count here, since an item may soon be
    /// their only holder.
    pub fn held(&self) -> usize {
        self.bytes + self.items.len() * ITEM_BYTES
    }

    /// Returns how full the inboxes are.
    pub fn status(&self) -> InboxesStatus {
        let sessions = self.by_session.values().filter(|inbox| !inbox.items.is_empty()).count();
        InboxesStatus { sessions: sessions as u64, items: self.items.len() as u64, lost: self.lost }
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::id::TaskId;
    use bgd_shared::notice::NoticeKind;
    use bgd_shared::time::Timestamp;

    use super::super::task::{Spec, State, Task};
    use super::*;

    /// Creates a notice with this many bytes of text.
    fn notice(bytes: usize) -> Arc<Notice> {
        let spec =
            Spec { description: Some("x".repeat(bytes).into()), cwd: Arc::default(), ..Spec::of_daemon() };
        let state = State::Starting { stop: None, env: None, give_up_at: None };
        let task = Task::new(TaskId::from_u128(1), Arc::new(spec), Timestamp::default(), state);
        let (kind, at) = (NoticeKind::Completed, Timestamp::default());
        let notice = Notice { number: 1, kind, at, active: None, is_removed: false, task: Box::new(task) };
        assert_eq!(notice.text_bytes(), bytes);
        Arc::new(notice)
    }

    fn wait(client: u64, session: &str, after: u64) -> InboxWait {
        let to = ReplyTo { client, call: 1 };
        InboxWait { to, session: session.into(), after, limit: 1, deadline: Mono(1) }
    }

    fn numbers(inboxes: &Inboxes, session: &str) -> Vec<u64> {
        inboxes.read(session, 0, usize::MAX).0.iter().map(|(number, _)| *number).collect()
    }

    fn ids(ended: &Ended) -> Vec<u64> {
        ended.iter().map(|(id, _)| id.0).collect()
    }

    fn is_empty(inboxes: &Inboxes) -> bool {
        let Inboxes { by_session, items, bytes, losses, waits, by_client, .. } = inboxes;
        by_session.is_empty()
            && items.is_empty()
            && *bytes == 0
            && losses.is_empty()
            && waits.is_empty()
            && by_client.is_empty()
    }

    #[test]
    fn r55_item_ends_the_waits_it_satisfies() {
        let (mut inboxes, news) = (Inboxes::default(), notice(0));
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        for (client, session, after) in [(1, "a", 2), (2, "a", 0), (3, "b", 0), (2, "a", 1)] {
            inboxes.wait(wait(client, session, after));
        }
        assert_eq!(ids(&inboxes.add(&a, news.clone(), 9)), [2]);
        assert_eq!(ids(&inboxes.add(&a, news.clone(), 9)), [4]);
        assert_eq!(ids(&inboxes.add(&b, news.clone(), 9)), [3]);
        assert_eq!(ids(&inboxes.disconnect(1)), [1]);
        assert_eq!((numbers(&inboxes, "a"), numbers(&inboxes, "b")), (vec![1, 2], vec![3]));
        assert_eq!(
            (inboxes.has_any("a", 1), inboxes.has_any("a", 2), inboxes.has_any("c", 0)),
            (true, false, false)
        );
        inboxes.remove("a");
        assert_eq!(inboxes.acknowledge("b", 3), (1, 0));
        assert!(is_empty(&inboxes), "{inboxes:?}");
        inboxes.add(&a, news, 9);
        assert_eq!(numbers(&inboxes, "a"), [4], "an inbox that is new gives no number again");
    }

    #[test]
    fn r55_waits_are_answered_oldest_first_and_all_on_shutdown() {
        let mut inboxes = Inboxes::default();
        for after in [5, 0, 3] {
            inboxes.wait(wait(1, "a", after));
        }
        inboxes.wait(wait(2, "b", 0));
        inboxes.last = 9;
        assert_eq!(ids(&inboxes.add(&"a".into(), notice(0), 1)), [1, 2, 3]);
        inboxes.wait(wait(2, "a", 10));
        assert_eq!(ids(&inboxes.end_waits()), [4, 5]);
        inboxes.remove("a");
        assert!(is_empty(&inboxes), "{inboxes:?}");
    }

    #[test]
    fn r55_losses_count_until_a_later_item_is_acknowledged() {
        let (mut inboxes, session) = (Inboxes::default(), Arc::from("a"));
        for _ in 0..5 {
            inboxes.add(&session, notice(3), 2);
        }
        assert_eq!((numbers(&inboxes, "a"), inboxes.read("a", 9, 1).1, inboxes.bytes), (vec![4, 5], 3, 6));
        assert_eq!((inboxes.acknowledge("a", 2), inboxes.read("a", 0, 0).1), ((0, 2), 3));
        assert_eq!((inboxes.acknowledge("a", 3), inboxes.read("a", 0, 0).1), ((0, 2), 0));
        inboxes.add(&session, notice(3), 1);
        assert_eq!((numbers(&inboxes, "a"), inboxes.read("a", 0, 0).1), (vec![6], 2), "a lower limit");
        inboxes.add(&session, notice(3), 0);
        assert_eq!(numbers(&inboxes, "a"), [7], "what is new is kept in any case");
        let InboxesStatus { sessions, items, lost } = inboxes.status();
        assert_eq!((sessions, items, lost), (1, 1, 6));
        inboxes.remove("a");
        assert!(is_empty(&inboxes), "{inboxes:?}");
    }

    #[test]
    fn r125_losses_are_restored_from_what_was_touched() {
        let (mut inboxes, mut losses, mut items) = (Inboxes::default(), BTreeMap::new(), BTreeMap::new());
        inboxes.track();
        let mut note = |inboxes: &mut Inboxes| {
            let touched = inboxes.take_touched();
            for number in touched.losses {
                losses.remove(&number);
                losses.extend(inboxes.loss(number).map(|loss| (number, loss)));
            }
            for number in touched.items {
                items.remove(&number);
                items.extend(inboxes.item(number).map(|item| (number, item)));
            }
            let mut again = Inboxes::default();
            let rows =
                items.iter().map(|(number, (session, notice))| (*number, session.clone(), notice.clone()));
            let lost = losses.iter().map(|(number, (session, lost))| (*number, session.clone(), *lost));
            again.fill(&inboxes.counts(), rows, lost);
            for session in ["a", "b"] {
                let read = |inboxes: &Inboxes| (numbers(inboxes, session), inboxes.read(session, 0, 0).1);
                assert_eq!(read(&again), read(inboxes), "{session}");
            }
            assert_eq!((again.counts(), &again.losses), (inboxes.counts(), &inboxes.losses));
            again
        };
        for (session, limit) in [("a", 1), ("b", 1), ("a", 1), ("b", 3), ("a", 3), ("a", 2), ("b", 1)] {
            inboxes.add(&session.into(), notice(1), limit);
            note(&mut inboxes);
        }
        assert_eq!(["a", "b"].map(|session| inboxes.read(session, 0, 0).1), [2, 2]);
        inboxes.acknowledge("a", 2);
        let mut again = note(&mut inboxes);
        assert_eq!(again.read("a", 0, 0).1, 2, "of a later item");
        again.acknowledge("a", 6);
        again.remove("b");
        assert!(is_empty(&again), "{again:?}");
        inboxes.acknowledge("a", 6);
        note(&mut inboxes);
        inboxes.remove("b");
        assert!(is_empty(&note(&mut inboxes)));
    }

    #[test]
    fn r55_total_item_count_of_all_inboxes_is_bounded() {
        let (mut inboxes, news) = (Inboxes::default(), notice(1));
        let rest = 1000;
        for session in 0..INBOXES_ITEMS + rest {
            inboxes.add(&format!("{session}").into(), news.clone(), 10);
        }
        let status = inboxes.status();
        let (sessions, items, lost) = (INBOXES_ITEMS as u64, inboxes.items.len(), rest as u64);
        assert_eq!((status.sessions, items, status.lost), (sessions, INBOXES_ITEMS, lost));
        assert_eq!(
            (numbers(&inboxes, "0"), inboxes.read("0", 0, 1).1),
            (vec![], 1),
            "the oldest, and it is told"
        );
        for session in 0..INBOXES_ITEMS + rest {
            inboxes.add(&format!("later {session}").into(), news.clone(), 10);
        }
        let sizes = [inboxes.items.len(), inboxes.bytes, inboxes.losses.len()];
        assert_eq!(sizes, [INBOXES_ITEMS; 3], "losses are forgotten too");
        assert_eq!(inboxes.by_session.len(), 2 * INBOXES_ITEMS);
        assert_eq!(inboxes.read("0", 0, 1).1, 0, "the oldest loss");
    }

    #[test]
    fn r55_total_text_size_of_all_inboxes_is_bounded() {
        let (mut inboxes, third) = (Inboxes::default(), notice(INBOXES_BYTES / 3));
        for session in ["a", "b", "a", "c"] {
            inboxes.add(&session.into(), third.clone(), 10);
        }
        assert_eq!(["a", "b", "c"].map(|session| numbers(&inboxes, session)), [vec![3], vec![2], vec![4]]);
        assert_eq!((inboxes.bytes, inboxes.read("a", 0, 1).1), (INBOXES_BYTES / 3 * 3, 1));
        inboxes.add(&"d".into(), notice(INBOXES_BYTES + 1), 10);
        assert_eq!((inboxes.items.len(), numbers(&inboxes, "d")), (1, vec![5]), "the newest is always kept");
    }

    /// Would not finish in time if every item required a search through all of them.
    #[test]
    fn inbox_handles_100000_items_and_10000_waits() {
        let (mut inboxes, news, session) = (Inboxes::default(), notice(1), Arc::from("a"));
        for client in 0..10_000 {
            inboxes.wait(wait(client, "a", u64::MAX));
            inboxes.wait(wait(client, "a", 99_999));
        }
        for number in 1..100_000 {
            assert!(inboxes.add(&session, news.clone(), 50_000).is_empty());
            assert_eq!(inboxes.read("a", number - 1, 9).0.len(), 1);
        }
        assert_eq!(inboxes.add(&session, news, 50_000).len(), 10_000);
        assert_eq!((0..10_000).map(|client| inboxes.disconnect(client).len()).sum::<usize>(), 10_000);
        let acknowledged: u64 = (0..100_001).map(|upto| inboxes.acknowledge("a", upto).0).sum();
        assert_eq!(acknowledged, 50_000);
        assert!(is_empty(&inboxes), "{inboxes:?}");
    }
}
