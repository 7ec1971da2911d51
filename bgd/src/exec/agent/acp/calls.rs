//! The daemon's unanswered requests to an agent. This module assigns the ids of requests itself, so that requests can
//! be carried over an upgrade in place. Performs no I/O.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use agent_client_protocol::{Error, RawJsonRpcId};
use bgd_shared::mutex::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

/// An agent's reply to a request.
pub type Outcome = Result<Value, Error>;

/// The requests in flight.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The last assigned id.
    last: i64,
    in_flight: BTreeMap<i64, Call>,
    /// Whether no more answers can come.
    is_over: bool,
}

struct Call {
    /// The session if the request is a prompt.
    prompts: Option<Arc<str>>,
    /// Dropped if no answer comes.
    answer: oneshot::Sender<Outcome>,
    /// Dropped with the answer.
    _held: Box<dyn Any + Send>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("prompts", &self.prompts).finish_non_exhaustive()
    }
}

/// The requests in flight, as carried over an upgrade. Answers to requests other than prompts are useless after an
/// upgrade, as their senders repeat the requests.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CallsState {
    last: i64,
    /// The prompts with their sessions.
    pub prompts: Vec<(i64, Arc<str>)>,
}

impl Calls {
    /// Continues counting ids after an upgrade.
    pub fn after(state: &CallsState) -> Self {
        Self(Mutex::new(Table { last: state.last, ..Table::default() }))
    }

    /// Assigns an id to a request. Returns the id, and a receiver for the answer, which closes if no answer can come.
    /// `held` is dropped with the answer, even if the receiver was dropped before.
    pub fn begin(
        &self,
        prompts: Option<Arc<str>>,
        held: impl Send + 'static,
    ) -> (i64, oneshot::Receiver<Outcome>) {
        let mut table = self.0.lock();
        table.last += 1;
        let id = table.last;
        drop(table);
        (id, self.wait(id, prompts, held))
    }

    /// Registers a request that was already sent. Returns a receiver for the answer, as [`Self::begin`] does.
    pub fn wait(
        &self,
        id: i64,
        prompts: Option<Arc<str>>,
        held: impl Send + 'static,
    ) -> oneshot::Receiver<Outcome> {
        let (answer, answered) = oneshot::channel();
        let mut table = self.0.lock();
        if !table.is_over {
            table.in_flight.insert(id, Call { prompts, answer, _held: Box::new(held) });
        }
        answered
    }

    /// Passes on an answer. Drops an answer to an unknown request.
    pub fn answered(&self, id: &RawJsonRpcId, outcome: Outcome) {
        let id = match id {
            RawJsonRpcId::Number(id) => Some(*id),
            RawJsonRpcId::Str(id) => id.parse().ok(),
            RawJsonRpcId::Null => None,
        };
        let call = id.and_then(|id| self.0.lock().in_flight.remove(&id));
        if let Some(call) = call {
            // Fails if the receiver was dropped.
            let _ = call.answer.send(outcome);
        }
    }

    /// Notes that no more answers can come.
    pub fn end(&self) {
        let mut table = self.0.lock();
        table.is_over = true;
        let all = std::mem::take(&mut table.in_flight);
        drop(table);
        drop(all);
    }

    /// Returns the requests in flight.
    pub fn state(&self) -> CallsState {
        let Table { last, in_flight, is_over: _ } = &*self.0.lock();
        // After an upgrade, only answers to prompts are awaited.
        let prompts = in_flight
            .iter()
            .filter_map(|(id, Call { prompts, answer: _, _held })| Some((*id, prompts.clone()?)));
        CallsState { last: *last, prompts: prompts.collect() }
    }
}
