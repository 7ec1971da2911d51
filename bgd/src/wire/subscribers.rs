//! Events on their way to subscribers: one bounded history, and a place in it for each subscriber.
//!
//! Nothing is queued for a subscriber but what its connection can take; the rest stays in the history.
//! One that reads slowly is behind, and when the history has gone on past it, it is told what it lost
//! and its subscription ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bgd_shared::event::{EventKind, Gap, GapKind};
use bgd_shared::id::TaskId;
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;
use serde::Serialize;

use crate::client::Client;
use crate::wire::history::{History, Kept};

/// A buffer for events that has grown past this is not kept.
const LINE_BYTES: usize = 16 * 1024;

/// Which events a subscriber wants.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this parent session.
    pub session: Option<String>,
    /// Of these tasks; `None` for all.
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
    /// The number of the next event that it has not been offered.
    next: u64,
}

/// The history and the subscribers.
#[derive(Debug)]
pub struct Subscribers {
    history: History,
    /// The event that is being kept, as it is written.
    line: Vec<u8>,
    /// By client, as that is how they are woken and removed.
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

impl Subscribers {
    /// No events yet, and room for this many bytes of them.
    pub fn new(history_limit: usize) -> Self {
        Self { history: History::new(history_limit), line: Vec::new(), by_client: HashMap::new(), last_id: 0 }
    }

    /// Changes how many bytes of past events are kept.
    pub fn set_limit(&mut self, history_limit: usize) {
        self.history.set_limit(history_limit);
    }

    /// How many subscriptions there are.
    pub fn count(&self) -> usize {
        self.by_client.values().map(Vec::len).sum()
    }

    /// Keeps an event and offers it to everybody.
    pub fn publish(
        &mut self,
        seq: u64,
        at: Timestamp,
        kind: EventKind,
        task: &Task,
        session: Option<Arc<str>>,
    ) {
        self.line.clear();
        // The wire types have no failing serializer; nothing is what a reader would skip.
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

    /// How many subscriptions a client has.
    pub fn count_of(&self, client: u64) -> usize {
        self.by_client.get(&client).map_or(0, Vec::len)
    }

    /// Adds a subscriber. Returns its number, and what it asked for but can't have any more; give both
    /// to [`Self::begin`] when the answer is on its way.
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

    /// Sends a new subscriber what it missed.
    pub fn begin(&mut self, client: &Client, id: u64, gap: Option<Gap>) {
        if let Some(gap) = gap {
            tell_gap(client, id, gap);
        }
        self.pump(client.id);
    }

    /// Offers a client's subscriptions what they have not had, as far as there is room.
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
                if subscriber.filter.wants(&kept) && !offer(subscriber, &kept) {
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

    /// A client is gone, and its subscriptions with it.
    pub fn disconnect(&mut self, client: u64) {
        self.by_client.remove(&client);
    }
}

const EVENT_HEAD: &str = r#"{"jsonrpc":"2.0","method":"event","params":{"subscription":"#;

fn offer(subscriber: &Subscriber, kept: &Kept<'_>) -> bool {
    let head = format!("{EVENT_HEAD}{},", subscriber.id);
    // The event object without its opening brace, as its members go on where the head ends.
    let members = kept.json.get(1..).unwrap_or_default();
    subscriber.client.try_tell(&[head.as_bytes(), members, b"}\n"])
}

fn tell_gap(client: &Client, id: u64, gap: Gap) {
    let json = serde_json::to_string(&gap).unwrap_or_default();
    client.tell(format!("{EVENT_HEAD}{id},{}}}\n", json.get(1..).unwrap_or_default()).as_bytes());
}
