//! Work on many tasks that one request, or the failure of a batch, has ordered: it is done in portions, one in each
//! step, so that other requests never wait long. What depends on a task is no such work: it ends in the same step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::caller::{Asker, ReplyTo};
use super::task::{Ordinal, StopOrder};
use super::waiters::Waiter;

/// How many tasks are ended or removed in one step. Fewer are dealt with at once. A cluster is called at least once for
/// each portion of its tasks.
pub const PORTION: usize = 512;

/// How many orders may have tasks left. Further ones are carried out at once, so that orders of clients that come and go
/// need no memory.
const ORDERS: usize = 64;

/// Tasks that are still to be asked to end.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stops {
    pub tasks: VecDeque<Ordinal>,
    pub order: StopOrder,
    /// The client that requested it, if any.
    pub asker: Option<Asker>,
}

/// A wait that is over, and whose tasks are being removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Removals {
    pub waiter: Waiter,
    /// How many of its tasks were dealt with.
    pub next: usize,
    /// How many of those were still there.
    pub removed: u64,
}

impl Removals {
    pub fn new(waiter: Waiter) -> Self {
        Self { waiter, next: 0, removed: 0 }
    }
}

/// What is left to do, in the order of the requests.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Portions {
    pub stops: VecDeque<Stops>,
    pub removals: VecDeque<Removals>,
    /// Waits of shutdown requests that are over, except for the rest of this work: the daemon does not end before that.
    pub shutdowns: Vec<Waiter>,
}

impl Portions {
    /// Reports whether no tasks are left to be ended or removed.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty() && self.removals.is_empty()
    }

    /// Reports whether a further order must be carried out at once.
    pub fn is_full(&self) -> bool {
        self.stops.len() + self.removals.len() >= ORDERS
    }

    /// Reports whether this call gets its reply once its tasks are removed, or once the rest is done.
    pub fn is_awaited_by(&self, to: ReplyTo) -> bool {
        self.waiters().any(|waiter| waiter.to == Some(to))
    }

    /// Returns the number of tasks that are being removed for a client, each counted once per call.
    pub fn removed_for(&self, client: u64) -> usize {
        let removals = self.removals.iter().map(|removals| &removals.waiter);
        let theirs = removals.filter(|waiter| waiter.to.is_some_and(|to| to.client == client));
        theirs.map(|waiter| waiter.tasks.len()).sum()
    }

    /// Forgets who waits for a reply, as the client is gone. The work goes on.
    pub fn disconnect(&mut self, client: u64) {
        let removals = self.removals.iter_mut().map(|removals| &mut removals.waiter);
        for waiter in removals.chain(&mut self.shutdowns) {
            waiter.to.take_if(|to| to.client == client);
        }
    }

    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.removals.iter().map(|removals| &removals.waiter).chain(&self.shutdowns)
    }
}
