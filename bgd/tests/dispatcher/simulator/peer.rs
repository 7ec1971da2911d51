//! A client without a socket: its calls are parsed as on the wire, and it reads its queue when it likes. Every response
//! is awaited, with a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd::client::{Client, ClientLimits};
use bgd::core::Request;
use bgd::wire::calls::{Body, Call};
use bgd::wire::mailbox::{Calls, Incoming};
use bgd_shared::client::{Protocol, Received};
use bgd_shared::event::{Gap, News};
use bgd_shared::id::TaskId;
use bgd_shared::message::parse_request;
use bgd_shared::request::ListResult;
use bgd_shared::strict;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::calls::SOON;
use super::chance::Chance;
use super::model::Model;
use super::world::World;

/// Few, so that the limit is reached.
const REQUESTS: usize = 16;
const QUEUE_BYTES: usize = 64 * 1024;

/// A call without a response so far.
#[derive(Debug)]
pub struct Pending {
    method: &'static str,
    /// When the response must have arrived, in milliseconds.
    by: u64,
    /// The tasks that it waits for, and whether it waits for all of them.
    waits: Option<(Vec<TaskId>, bool)>,
}

pub struct Peer {
    pub client: Arc<Client>,
    protocol: Protocol,
    calls: u64,
    pub pending: BTreeMap<u64, Pending>,
    /// Whether it reads only now and then.
    pub is_slow: bool,
    /// The next event of each subscription, if known.
    subscriptions: BTreeMap<u64, Option<u64>>,
}

pub fn limits() -> ClientLimits {
    ClientLimits { requests: REQUESTS, write_queue_bytes: QUEUE_BYTES }
}

impl Peer {
    pub fn new(id: u64, is_slow: bool, calls: &Calls) -> Self {
        let client = Arc::new(Client::new(id, limits()));
        calls.try_send(Incoming::Connected(Arc::clone(&client))).unwrap();
        let (protocol, pending, subscriptions) = (Protocol::default(), BTreeMap::new(), BTreeMap::new());
        Self { client, protocol, calls: 0, pending, is_slow, subscriptions }
    }

    /// Notes that the program that takes over now has this connection.
    pub fn carried(&mut self) {
        let state = serde_json::to_string(&self.client.state().unwrap()).unwrap();
        let state = serde_json::from_str(&state).unwrap();
        self.client = Arc::new(Client::restore(state, limits()));
    }

    /// Makes a call whose response must arrive within this many milliseconds. Returns false if there is no room for it.
    pub fn call(
        &mut self,
        world: &World,
        calls: &Calls,
        chance: &mut Chance,
        (method, params, within): (&'static str, Value, u64),
    ) -> bool {
        if self.client.has_room().now_or_never().is_none() {
            return false;
        }
        let waits = (method == "task.block").then(|| {
            let ids = params["ids"].as_array().into_iter().flatten();
            let ids = ids.map(|id| id.as_str().unwrap().parse().unwrap()).collect();
            (ids, params["mode"] == "all")
        });
        let number = self.calls + 1;
        let line = json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params }).to_string();
        world.trace_text(&format!("client {}: {line}", self.client.id));
        let request = parse_request(line.as_bytes()).unwrap();
        let mut body = Body::read(&request, Vec::new(), None);
        repeatable(&mut body, chance);
        let reserved = body.reserve();
        if !self.client.begin_request(reserved) {
            return false;
        }
        self.calls = number;
        self.pending.insert(number, Pending { method, by: world.now() + within, waits });
        let call = Call { id: request.id, reserved, body };
        calls.try_send(Incoming::Call { client: Arc::clone(&self.client), call }).unwrap();
        true
    }

    /// Returns the methods of the calls without a response.
    pub fn unanswered(&self) -> impl Iterator<Item = &'static str> {
        self.pending.values().map(|pending| pending.method)
    }

    /// Reads the messages that have arrived, and passes them to `model`.
    pub fn read(&mut self, world: &World, calls: &Calls, mut model: Option<&mut Model>) {
        while let Some(Some(bytes)) = self.client.next_bytes(|| false).now_or_never() {
            // The daemon has events for the client that had no room: a response may have overtaken them.
            let is_behind = self.client.wrote();
            if is_behind {
                calls.try_send(Incoming::Drained(Arc::clone(&self.client))).unwrap();
            }
            if bytes.is_empty() {
                break;
            }
            world.trace(&self.client.id.to_le_bytes());
            world.trace_text(&String::from_utf8_lossy(&bytes));
            self.protocol.push(&bytes);
            while let Some(received) = self.protocol.next_received().unwrap() {
                self.received(received, model.as_deref_mut(), (world, is_behind));
            }
        }
    }

    fn received(
        &mut self,
        received: Received,
        model: Option<&mut Model>,
        (world, is_behind): (&World, bool),
    ) {
        match received {
            Received::Answer { call, outcome } => {
                let pending =
                    self.pending.remove(&call).unwrap_or_else(|| panic!("{call} is answered twice"));
                match (pending.method, outcome, model) {
                    // Changes that are not persisted yet are listed, but not published.
                    ("task.list", Ok(result), Some(model))
                        if (world.is_written() && !is_behind) || model.is_new() =>
                    {
                        model.listed(strict::from_str::<ListResult>(result.get()).unwrap());
                    }
                    ("events.subscribe", Ok(result), model) => {
                        let result: Value = serde_json::from_str(result.get()).unwrap();
                        if let Some(model) = model {
                            model.published_until(result["seq"].as_u64().unwrap());
                        }
                        self.subscriptions.insert(result["subscription"].as_u64().unwrap(), None);
                    }
                    _ => {}
                }
            }
            Received::News(news) => match news.news {
                News::Event(event) => {
                    let next = self.subscriptions.get_mut(&news.subscription).expect("a subscription");
                    assert!(next.is_none_or(|next| next == event.seq), "{next:?}, and then {}", event.seq);
                    *next = Some(event.seq + 1);
                    if let Some(model) = model {
                        model.take(*event, world.state().disk.is_troubled);
                    }
                }
                News::Gap(gap) => self.gap(news.subscription, gap, model.is_some()),
            },
            Received::Output(_) | Received::Stopped(_) => panic!("nobody has attached"),
        }
    }

    fn gap(&mut self, subscription: u64, gap: Gap, is_fast: bool) {
        assert!(!is_fast, "a client that reads at once has missed {gap:?}");
        assert!(gap.from <= gap.to + 1, "{gap:?}");
        let next = self.subscriptions.get_mut(&subscription).expect("a subscription");
        assert!(next.is_none_or(|next| next == gap.from), "{next:?}, and then {gap:?}");
        *next = Some(gap.to + 1);
        if gap.ended {
            self.subscriptions.remove(&subscription);
        }
    }

    /// Checks that every due response has arrived: by its deadline, or once its condition is met. A durable daemon
    /// starts nothing while it can't write, and replies once all earlier changes are written.
    pub fn is_answered(&mut self, world: &World, model: &Model) {
        let (now, is_written, holds_starts) = {
            let disk = &world.state().disk;
            (world.now(), disk.is_written(), disk.holds_starts)
        };
        for (number, pending) in &mut self.pending {
            if holds_starts {
                pending.by = pending.by.max(now + SOON);
            }
            let of = self.client.id;
            assert!(now <= pending.by, "call {number} of client {of} is not answered at {now}: {pending:?}");
            if let Some((tasks, all)) = &pending.waits {
                let mut ended = tasks.iter().map(|task| model.has_ended(*task));
                let is_over = if *all { ended.all(|ended| ended) } else { ended.any(|ended| ended) };
                assert!(!is_over || !is_written, "call {number} still waits at {now}: {pending:?}");
            }
        }
    }
}

/// Replaces random values drawn by the wire with values derived from the seed.
fn repeatable(body: &mut Body, chance: &mut Chance) {
    match body {
        Body::Submit(command, ..) => command.id = chance.id(),
        Body::Prompt(request) => request.task.id = chance.id(),
        Body::Many(part, _) => {
            if part.first.is_some() {
                part.batch = chance.id();
            }
            part.items.iter_mut().for_each(|item| item.id = chance.id());
        }
        Body::Core(Request::Rerun(rerun)) => rerun.seed = chance.id().as_u128(),
        _ => {}
    }
}
