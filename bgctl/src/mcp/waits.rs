//! Waits that run as MCP tasks (the extension `io.modelcontextprotocol/tasks`). A client that declares the extension
//! polls for the answer of `background_block`, so waits may be of any length. At most [`MOST`] are kept; the oldest
//! finished one is dropped first.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::time::Timestamp;
use rmcp::model::{JsonObject, Task as WireTask, TaskStatus};
use tokio::sync::{OnceCell, watch};

use super::answer::ToolAnswer;
use super::refusal::Refusal;

/// Maximum number of waits kept.
pub const MOST: usize = 64;

/// How often a client should poll, in milliseconds.
const POLL_MS: u64 = 1000;

/// How long a client may expect the answer after the wait ends, in milliseconds. Nothing expires then; the answer is
/// only dropped to make room for other waits.
const KEPT_MS: u64 = 300_000;

pub type Outcome = Result<ToolAnswer, Refusal>;

#[derive(Debug)]
pub struct Wait {
    id: String,
    created: Timestamp,
    ttl_ms: u64,
    /// The outcome and the time at which the wait ended.
    over: Mutex<Option<(Outcome, Timestamp)>>,
    /// The MCP result, once it was requested.
    result: OnceCell<JsonObject>,
    cancelled: watch::Sender<bool>,
}

impl Wait {
    /// Returns the outcome, if the wait has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.over.lock().as_ref().map(|(outcome, _)| outcome.clone())
    }

    /// Returns the MCP result, which `make` builds from the outcome. Later requests get the same one, since the
    /// tasks' results are reported only once. An error is returned but not kept.
    pub async fn result<F>(&self, make: impl FnOnce() -> F) -> JsonObject
    where
        F: Future<Output = Result<JsonObject, JsonObject>>,
    {
        self.result.get_or_try_init(make).await.cloned().unwrap_or_else(|unkept| unkept)
    }

    /// Records the outcome. Only the first one counts, and a cancelled wait stays cancelled.
    pub fn ends(&self, outcome: Outcome) {
        self.over.lock().get_or_insert((outcome, Timestamp::now()));
    }

    /// Cancels the wait, unless it has ended.
    pub fn cancel(&self) {
        if self.outcome().is_none() {
            self.cancelled.send_replace(true);
        }
    }

    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Waits until the wait is cancelled.
    pub async fn until_cancelled(&self) {
        // `self` owns the sender, so this can't fail.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub fn task(&self) -> WireTask {
        let updated = self.over.lock().as_ref().map_or(self.created, |(_, at)| *at);
        let status = match (self.is_cancelled(), self.outcome().is_some()) {
            (true, _) => TaskStatus::Cancelled,
            (false, true) => TaskStatus::Completed,
            (false, false) => TaskStatus::Working,
        };
        WireTask::new(self.id.clone(), status, self.created.to_string(), updated.to_string())
            .with_ttl_ms(self.ttl_ms)
            .with_poll_interval_ms(POLL_MS)
    }

    fn is_over(&self) -> bool {
        self.is_cancelled() || self.outcome().is_some()
    }
}

/// All waits, in the order of their start.
#[derive(Debug, Default)]
pub struct Waits(Mutex<BTreeMap<u64, Arc<Wait>>>);

impl Waits {
    /// Starts a wait with this timeout; `None` if too many are in progress.
    pub fn begin(&self, timeout_ms: u64) -> Option<Arc<Wait>> {
        let mut all = self.0.lock();
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

    pub fn get(&self, id: &str) -> Option<Arc<Wait>> {
        self.0.lock().values().find(|wait| wait.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_finished_wait_is_evicted_first() {
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
    fn cancel_after_the_end_changes_nothing() {
        let waits = Waits::default();
        let wait = waits.begin(1000).unwrap();
        wait.ends(Err(Refusal::new("x")));
        wait.cancel();
        assert_eq!(wait.task().status, TaskStatus::Completed);
        assert_eq!(wait.task().ttl_ms, Some(301_000));
    }
}
