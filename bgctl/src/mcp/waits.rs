//! Waits that go on as tasks of the protocol (the extension `io.modelcontextprotocol/tasks`): a client that declares it
//! gets the answer of `background_block` by asking for it, so that no wait is too long for it. There are
//! [`MOST`] at once at most; the oldest one that is over goes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use rmcp::model::{JsonObject, Task as WireTask, TaskStatus};
use tokio::sync::{OnceCell, watch};

use super::answer::Answer;
use super::refusal::Refusal;

/// The most waits that are kept.
pub const MOST: usize = 64;

/// How often a client should ask, in milliseconds.
const POLL_MS: u64 = 1000;

/// How long an answer is kept for the client behind the end of the wait, in milliseconds.
const KEPT_MS: u64 = 300_000;

/// How a wait ended.
pub type Outcome = Result<Answer, Refusal>;

/// One wait.
#[derive(Debug)]
pub struct Wait {
    id: String,
    created: Timestamp,
    ttl_ms: u64,
    /// How it ended, and when.
    over: Mutex<Option<(Outcome, Timestamp)>>,
    /// The protocol's result, once it was asked for.
    result: OnceCell<JsonObject>,
    cancelled: watch::Sender<bool>,
}

impl Wait {
    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.over().as_ref().map(|(outcome, _)| outcome.clone())
    }

    /// The protocol's result, which `make` makes of how it ended: the same however often it is asked for, as the
    /// results of its tasks are told once. An error is a result that is not kept.
    pub async fn result<F>(&self, make: impl FnOnce() -> F) -> JsonObject
    where
        F: Future<Output = Result<JsonObject, JsonObject>>,
    {
        self.result.get_or_try_init(make).await.cloned().unwrap_or_else(|unkept| unkept)
    }

    /// It has ended. What comes behind a cancel says nothing more.
    pub fn ends(&self, outcome: Outcome) {
        self.over().get_or_insert((outcome, Timestamp::now()));
    }

    /// Nobody wants its answer any more.
    pub fn cancel(&self) {
        if self.outcome().is_none() {
            self.cancelled.send_replace(true);
        }
    }

    /// Whether its answer is not wanted any more.
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Waits until its answer is not wanted any more.
    pub async fn until_cancelled(&self) {
        // The sender lives as long as this.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// The task of the protocol that it is.
    pub fn task(&self) -> WireTask {
        let updated = self.over().as_ref().map_or(self.created, |(_, at)| *at);
        let status = match (self.is_cancelled(), self.outcome().is_some()) {
            (true, _) => TaskStatus::Cancelled,
            (false, true) => TaskStatus::Completed,
            (false, false) => TaskStatus::Working,
        };
        WireTask::new(self.id.clone(), status, self.created.to_string(), updated.to_string())
            .with_ttl_ms(self.ttl_ms)
            .with_poll_interval_ms(POLL_MS)
    }

    fn over(&self) -> MutexGuard<'_, Option<(Outcome, Timestamp)>> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_cancelled() || self.outcome().is_some()
    }
}

/// All waits, by the order of their beginning.
#[derive(Debug, Default)]
pub struct Waits(Mutex<BTreeMap<u64, Arc<Wait>>>);

impl Waits {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Wait>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, which lasts this long; none if there are too many.
    pub fn begin(&self, timeout_ms: u64) -> Option<Arc<Wait>> {
        let mut all = self.all();
        if all.len() >= MOST {
            let oldest = all.iter().find(|(_, wait)| wait.is_over()).map(|(number, _)| *number)?;
            all.remove(&oldest);
        }
        let wait = Arc::new(Wait {
            id: TaskId::random().to_string(),
            created: Timestamp::now(),
            ttl_ms: timeout_ms.saturating_add(KEPT_MS),
            over: Mutex::new(None),
            result: OnceCell::new(),
            cancelled: watch::Sender::new(false),
        });
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, Arc::clone(&wait));
        Some(wait)
    }

    /// The one of this id.
    pub fn get(&self, id: &str) -> Option<Arc<Wait>> {
        self.all().values().find(|wait| wait.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_one_that_is_over_goes_first() {
        let waits = Waits::default();
        let begun: Vec<_> = (0..MOST).map(|_| waits.begin(1000).unwrap()).collect();
        assert!(waits.begin(1000).is_none(), "all are under way");
        begun[3].ends(Err(Refusal::new("x")));
        begun[5].cancel();
        assert!(waits.begin(1000).is_some());
        assert!(waits.get(&begun[3].id).is_none());
        assert_eq!(waits.get(&begun[5].id).unwrap().task().status, TaskStatus::Cancelled);
        assert_eq!(waits.get(&begun[0].id).unwrap().task().status, TaskStatus::Working);
    }

    #[test]
    fn a_cancel_behind_the_end_changes_nothing() {
        let waits = Waits::default();
        let wait = waits.begin(1000).unwrap();
        wait.ends(Err(Refusal::new("x")));
        wait.cancel();
        assert_eq!(wait.task().status, TaskStatus::Completed);
        assert_eq!(wait.task().ttl_ms, Some(301_000));
    }
}
