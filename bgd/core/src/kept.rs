//! The environments that tasks were submitted with, kept so that the tasks can be submitted again (R116). They are not
//! part of a task, so that reading a task does not reveal its environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::held::{Shared, SharedBytes};
use super::ordinal::Ordinal;

/// Environments by task, up to a number of bytes. An environment shared by several tasks counts once. Beyond the limit,
/// those of the oldest tasks are dropped.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KeptEnvs {
    #[serde(with = "super::sharing::envs")]
    by_task: BTreeMap<Ordinal, Arc<Env>>,
    #[serde(skip)]
    shared: SharedBytes,
    most: usize,
}

impl KeptEnvs {
    /// Keeps the environment of a new task.
    pub fn keep(&mut self, task: Ordinal, env: Arc<Env>) {
        self.shared.hold(Shared::env(&env));
        self.by_task.insert(task, env);
        self.limit(self.most);
    }

    /// Sets the limit, in bytes, and drops what exceeds it.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
        while self.shared.total() > most
            && let Some((_, env)) = self.by_task.pop_first()
        {
            self.shared.release(Shared::env(&env));
        }
    }

    /// Returns the environment of a task, unless it was dropped.
    pub fn get(&self, task: Ordinal) -> Option<&Arc<Env>> {
        self.by_task.get(&task)
    }

    /// Drops the environment of a removed task.
    pub fn forget(&mut self, task: Ordinal) {
        if let Some(env) = self.by_task.remove(&task) {
            self.shared.release(Shared::env(&env));
        }
    }

    /// Returns each task with its environment, so that deserialised environments can be shared again.
    pub fn into_each(self) -> impl Iterator<Item = (Ordinal, Arc<Env>)> {
        self.by_task.into_iter()
    }

    /// Returns the limit, in bytes.
    pub fn most(&self) -> usize {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::text::OsText;

    const MOST: usize = 100_000;

    fn env(bytes: usize) -> Arc<Env> {
        Arc::new([("A".into(), OsText::from("x".repeat(bytes)))].into_iter().collect())
    }

    #[test]
    fn r116_environments_are_kept_once_and_evicted_oldest_first() {
        let mut kept = KeptEnvs::default();
        kept.limit(MOST);
        let shared = env(MOST / 3);
        for task in 0..1000 {
            kept.keep(Ordinal(task), shared.clone());
        }
        assert!(kept.get(Ordinal(0)).is_some() && kept.shared.total() < MOST / 2);
        kept.keep(Ordinal(1000), env(MOST / 3));
        assert!(kept.get(Ordinal(0)).is_some());
        kept.keep(Ordinal(1001), env(MOST / 2));
        assert!(kept.get(Ordinal(999)).is_none() && kept.get(Ordinal(1000)).is_some());
        kept.forget(Ordinal(1000));
        kept.forget(Ordinal(1001));
        assert_eq!(kept.shared.total(), 0);
        // A limit of 0 keeps nothing.
        kept.keep(Ordinal(1002), env(1));
        kept.limit(0);
        kept.keep(Ordinal(1003), env(1));
        assert!(kept.get(Ordinal(1002)).is_none() && kept.get(Ordinal(1003)).is_none());
    }
}
