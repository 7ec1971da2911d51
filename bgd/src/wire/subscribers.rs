//! Event subscriptions: one bounded history, and a position in it for each subscriber.
//!
//! A subscriber is only sent as much as its connection can accept; the rest stays in the history. A slow reader falls
//! behind. Once the history no longer has its next event, the subscriber is informed which events it lost, and its
//! subscription ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bgd_shared::event::{EventKind, Gap, GapKind};
use bgd_shared::id::TaskId;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::wire::history::{History, HistoryState, Kept};

/// A serialisation buffer that has grown beyond this size is dropped.
const LINE_BYTES: usize = 16 * 1024;

/// The events that a subscriber wants.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Filter {
    /// Only events of this parent session; `None` for all.
    pub session: Option<String>,
    /// Only events of these tasks; `None` for all.
    pub ids: Option<HashSet<TaskId>>,
}

impl Filter {
    fn wants(&self, kept: &Kept<'_>) -> bool {
        self.session.as_ref().is_none_or(|session| kept.session == Some(session))
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&kept.task))
    }
}

#[derive(Debug)]
struct Subscriber {
    client: Arc<Client>,
    id: u64,
    filter: Filter,
    /// The sequence number of the next event to offer.
    next: u64,
}

#[derive(Debug)]
pub struct Subscribers {
    history: History,
    /// A reusable buffer for serialising events.
    line: Vec<u8>,
    /// By client, because subscribers are woken and removed by client.
    by_client: HashMap<u64, Vec<Subscriber>>,
    last_id: u64,
}

#[derive(Serialize)]
struct EventOut<'a> {
    seq: u64,
    at: Timestamp,
    kind: EventKind,
    task: &'a Task,
}

/// The history and the subscribers, for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct SubscribersState {
    history: HistoryState,
    all: Vec<SubscriberState>,
    last_id: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct SubscriberState {
    client: u64,
    id: u64,
    filter: Filter,
    next: u64,
}

impl Subscribers {
    pub fn state(&self) -> SubscribersState {
        let Self { history, line: _, by_client, last_id } = self;
        let state = |Subscriber { client, id, filter, next }: &Subscriber| SubscriberState {
            client: client.id,
            id: *id,
            filter: filter.clone(),
            next: *next,
        };
        let all = by_client.values().flatten().map(state).collect();
        SubscribersState { history: history.state(), all, last_id: *last_id }
    }

    /// Continues with the state of another program.
    pub fn resume(&mut self, state: SubscribersState, clients: &HashMap<u64, Arc<Client>>) {
        let SubscribersState { history, all, last_id } = state;
        self.history.resume(history);
        self.last_id = last_id;
        for SubscriberState { client, id, filter, next } in all {
            if let Some(client) = clients.get(&client) {
                let subscriber = Subscriber { client: Arc::clone(client), id, filter, next };
                self.by_client.entry(client.id).or_default().push(subscriber);
            }
        }
    }

    /// Returns the number of the last published event.
    pub fn seq(&self) -> u64 {
        self.history.seq()
    }

    /// Returns the approximate memory of the history, in bytes.
    pub fn bytes(&self) -> usize {
        self.history.bytes()
    }

    /// Numbers events from here on, without having the earlier ones.
    pub fn continue_numbering_after(&mut self, seq: u64) {
        self.history.continue_numbering_after(seq);
    }

    /// Offers all subscribers their next events.
    pub fn pump_all(&mut self) {
        let clients: Vec<u64> = self.by_client.keys().copied().collect();
        for client in clients {
            self.pump(client);
        }
    }

    /// Creates an empty history with a limit in bytes, and no subscribers.
    pub fn new(history_limit: usize) -> Self {
        Self { history: History::new(history_limit), line: Vec::new(), by_client: HashMap::new(), last_id: 0 }
    }

    /// Changes how many bytes of past events are kept.
    pub fn set_limit(&mut self, history_limit: usize) {
        self.history.set_limit(history_limit);
    }

    /// Returns the number of subscriptions.
    pub fn count(&self) -> usize {
        self.by_client.values().map(Vec::len).sum()
    }

    /// Reports whether a subscriber still has to read before it can be sent the rest.
    pub fn are_behind(&self) -> bool {
        let seq = self.history.seq();
        self.by_client.values().flatten().any(|subscriber| subscriber.next <= seq)
    }

    /// Stores an event and offers it to all subscribers.
    pub fn publish(
        &mut self,
        seq: u64,
        at: Timestamp,
        kind: EventKind,
        task: &Task,
        session: Option<Arc<str>>,
    ) {
        self.line.clear();
        // Serialising the wire types can't fail; if it does, an empty entry is stored, which nobody is sent.
        if serde_json::to_writer(&mut self.line, &EventOut { seq, at, kind, task }).is_err() {
            self.line.clear();
        }
        self.history.push(seq, task.id, session, &self.line);
        if self.line.capacity() > LINE_BYTES {
            self.line = Vec::new();
        }
        if !self.by_client.is_empty() {
            let clients: Vec<u64> = self.by_client.keys().copied().collect();
            for client in clients {
                self.pump(client);
            }
        }
        self.history.trim();
    }

    /// Returns the number of subscriptions of a client.
    pub fn count_of(&self, client: u64) -> usize {
        self.by_client.get(&client).map_or(0, Vec::len)
    }

    /// Adds a subscriber. Returns its ID, and the gap of requested events that are no longer kept, if any. Pass
    /// both to [`Self::begin`] after queueing the response.
    pub fn subscribe(
        &mut self,
        client: Arc<Client>,
        filter: Filter,
        since: Option<u64>,
    ) -> (u64, Option<Gap>) {
        self.last_id += 1;
        let id = self.last_id;
        let seq = self.history.seq();
        let wanted = since.map_or(seq, |since| since.min(seq)) + 1;
        let next = wanted.max(self.history.first());
        let gap = Gap { kind: GapKind::Gap, from: wanted, to: next - 1, ended: false };
        self.by_client.entry(client.id).or_default().push(Subscriber { client, id, filter, next });
        (id, (wanted < next).then_some(gap))
    }

    /// Sends a new subscriber the events it missed.
    pub fn begin(&mut self, client: &Client, id: u64, gap: Option<Gap>) {
        if let Some(gap) = gap {
            tell_gap(client, id, gap);
        }
        self.pump(client.id);
    }

    /// Offers a client's subscriptions their next events, as far as there is room.
    pub fn pump(&mut self, client: u64) {
        let (first, seq) = (self.history.first(), self.history.seq());
        let Some(subscribers) = self.by_client.get_mut(&client) else { return };
        subscribers.retain_mut(|subscriber| {
            if subscriber.next < first {
                let gap = Gap { kind: GapKind::Gap, from: subscriber.next, to: first - 1, ended: true };
                tell_gap(&subscriber.client, subscriber.id, gap);
                return false;
            }
            while subscriber.next <= seq {
                let Some(kept) = self.history.get(subscriber.next) else { break };
                let is_wanted = !kept.json.is_empty() && subscriber.filter.wants(&kept);
                if is_wanted && !offer(subscriber, &kept) {
                    break;
                }
                subscriber.next += 1;
            }
            true
        });
        if subscribers.is_empty() {
            self.by_client.remove(&client);
        }
    }

    /// Removes the subscriptions of a client that is gone.
    pub fn disconnect(&mut self, client: u64) {
        self.by_client.remove(&client);
    }
}

const EVENT_HEAD: &str = r#"{"jsonrpc":"2.0","method":"event","params":{"subscription":"#;

fn offer(subscriber: &Subscriber, kept: &Kept<'_>) -> bool {
    let head = format!("{EVENT_HEAD}{},", subscriber.id);
    // The event object without its opening brace: its members continue the object that the head starts.
    let members = kept.json.get(1..).unwrap_or_default();
    subscriber.client.try_tell(&[head.as_bytes(), members, b"}\n"])
}

fn tell_gap(client: &Client, id: u64, gap: Gap) {
    let json = serde_json::to_string(&gap).unwrap_or_default();
    client.tell(format!("{EVENT_HEAD}{id},{}}}\n", json.get(1..).unwrap_or_default()).as_bytes());
}
