//! The inboxes of parent sessions: the notices that each has not acknowledged. An item is delivered until it is
//! acknowledged, and never after that. Each inbox is bounded, and so are all of them together: the oldest items are
//! dropped first, and counted. A client may reserve an item until it has passed it on: then no other one gets it, unless
//! the first one is gone before it acknowledges it. This module is independent of tasks and sends no replies itself.

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

    /// Returns where the item with this number is.
    fn position(&self, number: u64) -> Option<usize> {
        self.items.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// Returns the waits that the item with this number ends.
    fn ended_by(&self, number: u64) -> impl Iterator<Item = InboxWaitId> {
        self.waits.range(..(number, InboxWaitId(0))).map(|(_, id)| *id)
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
    /// The items that a client has reserved, with that client: others do not get them.
    #[serde(default)]
    reserved: BTreeMap<u64, u64>,
    /// The most memory of all items, in bytes; `None` for no limit besides those on items and texts.
    #[serde(default)]
    most: Option<usize>,
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
    /// Starts recording which items and losses are added or removed. Restored items beyond a limit lowered since are
    /// only dropped now, so that this is recorded.
    pub fn track(&mut self) {
        self.touched = Some(TouchedInboxes::default());
        self.trim();
    }

    /// Limits the memory of all items, in bytes, and drops the excess, the oldest first. The newest is always kept.
    pub fn limit(&mut self, most: Option<usize>) {
        self.most = most;
        self.trim();
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
        let inbox = self.by_session.get(session)?;
        let (_, notice) = inbox.items.get(inbox.position(number)?)?;
        Some((Arc::clone(session), Arc::clone(notice)))
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
        let most = self.most.take();
        for (number, session, notice) in items {
            self.last = number.saturating_sub(1);
            self.add(&session, notice, usize::MAX);
        }
        self.most = most;
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
        let over: Vec<InboxWaitId> = inbox.ended_by(number).collect();
        // There may be several excess items: the limit may have been lowered.
        for _ in limit.max(1)..inbox.items.len() {
            self.drop_oldest(session);
        }
        self.trim();
        self.end_all(over)
    }

    /// Drops the oldest items beyond the limits on all inboxes.
    fn trim(&mut self) {
        while self.items.len() > INBOXES_ITEMS || self.items.len() > 1 && self.is_too_large() {
            let Some(oldest) = self.items.values().next().cloned() else { break };
            self.drop_oldest(&oldest);
        }
    }

    fn is_too_large(&self) -> bool {
        self.bytes > INBOXES_BYTES || self.most.is_some_and(|most| self.held() > most)
    }

    /// Removes these waits. Returns them, oldest first.
    fn end_all(&mut self, mut ids: Vec<InboxWaitId>) -> Ended {
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| Some((id, self.end_wait(id)?))).collect()
    }

    fn drop_oldest(&mut self, session: &str) {
        let Some(inbox) = self.by_session.get_mut(session) else { return };
        let Some((number, notice)) = inbox.items.pop_front() else { return };
        let before = std::mem::replace(&mut inbox.lost_upto, number);
        inbox.lost += 1;
        self.lost += 1;
        self.bytes -= notice.text_bytes();
        self.reserved.remove(&number);
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

    /// Reports whether there is an item after this number that the client can get.
    pub fn has_any(&self, client: u64, session: &str, after: u64) -> bool {
        !self.read(client, session, after, 1).0.is_empty()
    }

    /// Returns the items after this number that no other client has reserved, oldest first, and how many were lost.
    pub fn read(&self, client: u64, session: &str, after: u64, limit: usize) -> (Vec<Item>, u64) {
        let Some(inbox) = self.by_session.get(session) else { return (Vec::new(), 0) };
        let begin = inbox.items.partition_point(|(number, _)| *number <= after);
        let is_free = |number| self.reserved.get(number).is_none_or(|by| *by == client);
        let free = inbox.items.range(begin..).filter(|(number, _)| is_free(number));
        (free.take(limit).cloned().collect(), inbox.lost)
    }

    /// Reserves an item for a client, unless another one has. Returns how many items were reserved (1 or 0), and how
    /// many there are.
    pub fn reserve(&mut self, client: u64, session: &str, number: u64) -> (u64, u64) {
        let Some(inbox) = self.by_session.get(session) else { return (0, 0) };
        let has_it = inbox.position(number).is_some();
        let is_ours = has_it && *self.reserved.entry(number).or_insert(client) == client;
        (u64::from(is_ours), inbox.items.len() as u64)
    }

    /// Gives up what a client has reserved, as it is gone. Returns the waits that these items end, oldest first.
    pub fn release(&mut self, client: u64) -> Ended {
        let theirs = self.reserved.iter().filter(|(_, by)| **by == client).map(|(number, _)| *number);
        let free: Vec<u64> = theirs.collect();
        let mut over = Vec::new();
        for number in free {
            self.reserved.remove(&number);
            let inbox = self.items.get(&number).and_then(|session| self.by_session.get(session));
            over.extend(inbox.into_iter().flat_map(|inbox| inbox.ended_by(number)));
        }
        self.end_all(over)
    }

    /// Removes the items up to this number that no other client has reserved, and resets the count of lost items if all
    /// of those are up to it too: a client that has read that far either received them or was informed of the loss.
    /// Returns how many items were removed and how many are left.
    pub fn acknowledge(&mut self, client: u64, session: &str, upto: u64) -> (u64, u64) {
        let Some(inbox) = self.by_session.get_mut(session) else { return (0, 0) };
        let end = inbox.items.partition_point(|(number, _)| *number <= upto);
        let is_free = |number: &u64| self.reserved.get(number).is_none_or(|by| *by == client);
        let (gone, kept): (Vec<Item>, Vec<Item>) =
            inbox.items.drain(..end).partition(|(number, _)| is_free(number));
        for item in kept.into_iter().rev() {
            inbox.items.push_front(item);
        }
        self.forget(session, upto, gone)
    }

    /// Like [`Self::acknowledge`], for this item alone, whoever has reserved it. It may have many before it.
    pub fn acknowledge_one(&mut self, session: &str, number: u64) -> (u64, u64) {
        let Some(inbox) = self.by_session.get_mut(session) else { return (0, 0) };
        let gone = inbox.position(number).and_then(|at| inbox.items.remove(at));
        self.forget(session, number, gone.into_iter().collect())
    }

    /// Forgets these items, which were taken out of an inbox, and its losses up to this number. Returns how many items
    /// these are and how many are left.
    fn forget(&mut self, session: &str, upto: u64, gone: Vec<Item>) -> (u64, u64) {
        let Some(inbox) = self.by_session.get_mut(session) else { return (0, 0) };
        let (done, left) = (gone.len() as u64, inbox.items.len() as u64);
        let reported_upto = if inbox.lost_upto <= upto { inbox.lost_upto } else { 0 };
        if reported_upto > 0 {
            (inbox.lost, inbox.lost_upto) = (0, 0);
        }
        for (number, notice) in gone {
            self.touch_item(number);
            self.items.remove(&number);
            self.reserved.remove(&number);
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
        let Some(inbox) = self.by_session.get_mut(session) else { return };
        let gone = std::mem::take(&mut inbox.items).into();
        self.forget(session, u64::MAX, gone);
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
mod tests;
