//! All tasks, with indexes that keep the cost of each lookup independent of their number.

mod clearable;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::LIST_PAGE_BYTES;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::task::{Origin, Status, Summary};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::effect::CoreError;
use super::elsewhere::Placement;
use super::filter::Filter;
use super::held::{Changing, Held};
use super::history::{Entry, History, HistoryLimits};
use super::intern::{Interner, Seen};
use super::kept::KeptEnvs;
use super::query::{ListQuery, Page, search};
use super::task::{Ordinal, Spec, State, SubmitterLocation, Task};
use super::touched::Touched;

/// The most candidates listed in the error for an ambiguous id.
pub const CANDIDATES: usize = 20;

/// The tasks of one parent session.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SessionIndex {
    members: BTreeSet<Ordinal>,
    summary: Summary,
    /// The tasks by idempotency key.
    keys: HashMap<Arc<str>, Ordinal>,
}

/// The tasks and their indexes. Change tasks only through [`Registry::change`], which updates the indexes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Registry {
    /// Boxed: the map's nodes are half empty, and tasks are large.
    tasks: BTreeMap<Ordinal, Box<Task>>,
    by_id: BTreeMap<TaskId, Ordinal>,
    by_status: BTreeMap<Status, BTreeSet<Ordinal>>,
    /// By parent session. Tasks without one are under the empty key, which no session can have.
    sessions: BTreeMap<Arc<str>, SessionIndex>,
    summary: Summary,
    last: Ordinal,
    held: Held,
    kept: KeptEnvs,
    history: History,
    /// The changes since [`Self::take_touched`]; `None` unless changes are persisted.
    #[serde(skip)]
    touched: Option<Touched>,
    #[serde(skip)]
    envs: Interner<Env>,
    #[serde(skip)]
    folders: Interner<OsText>,
    #[serde(skip)]
    rlimits: Interner<Rlimits>,
    #[serde(skip)]
    places: Interner<SubmitterLocation>,
    #[serde(skip)]
    ons: Interner<Placement>,
}

/// The values already shared while kept tasks are read: only these are often one allocation.
#[derive(Debug, Default)]
pub struct SeenValues {
    envs: Seen<Env>,
    rlimits: Seen<Rlimits>,
}

/// The serialised part of a registry. The rest is derived from it.
#[derive(Deserialize)]
struct Stored {
    tasks: BTreeMap<Ordinal, Box<Task>>,
    by_id: BTreeMap<TaskId, Ordinal>,
    by_status: BTreeMap<Status, BTreeSet<Ordinal>>,
    sessions: BTreeMap<Arc<str>, SessionIndex>,
    summary: Summary,
    last: Ordinal,
    kept: KeptEnvs,
    #[serde(default)]
    history: History,
}

impl From<Stored> for Registry {
    /// Shared values were serialised with each task; this shares them again.
    fn from(stored: Stored) -> Self {
        let Stored { tasks, by_id, by_status, sessions, summary, last, kept, history } = stored;
        let mut registry = Self { by_id, by_status, sessions, summary, last, history, ..Self::default() };
        let mut seen = SeenValues::default();
        for (ordinal, mut task) in tasks {
            registry.share_task(&mut task, &mut seen);
            registry.held.add(&task);
            registry.tasks.insert(ordinal, task);
        }
        registry.kept.limit(kept.most());
        for (ordinal, env) in kept.into_each() {
            registry.kept.keep(ordinal, registry.envs.share_seen(&env, &mut seen.envs));
        }
        registry.limit_history(registry.history.limits());
        if registry.history.needs_nothing() {
            // An earlier release may have written the state.
            let needed: Vec<Ordinal> = registry.tasks.values().flat_map(|task| needs(task)).collect();
            registry.need(&needed);
        }
        registry
    }
}

impl Registry {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns how many tasks are in each status.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Returns the shared copy of an environment.
    pub fn share_env(&mut self, env: Env) -> Arc<Env> {
        self.envs.share(env)
    }

    /// Returns the shared copy of an environment that may already be shared.
    pub fn share_kept_env(&mut self, env: &Arc<Env>) -> Arc<Env> {
        self.envs.share_arc(env)
    }

    /// Makes a new task share equal values with the others.
    pub fn share_spec(&mut self, spec: &mut Spec) {
        spec.rlimits = spec.rlimits.take().map(|rlimits| self.rlimits.share_arc(&rlimits));
        self.share_all_but_rlimits(spec);
    }

    fn share_all_but_rlimits(&mut self, spec: &mut Spec) {
        spec.cwd = self.folders.share_arc(&spec.cwd);
        spec.place = spec.place.take().map(|place| self.places.share_arc(&place));
        spec.on = spec.on.take().map(|on| self.ons.share_arc(&on));
        if let Some(session) = &mut spec.session
            && let Some((known, _)) = self.sessions.get_key_value(session)
        {
            *session = known.clone();
        }
    }

    /// Returns the memory of all tasks, in bytes.
    pub fn held(&self) -> usize {
        self.held.bytes()
    }

    /// Returns by how many bytes adding these tasks would raise [`Self::held`].
    pub fn held_more_with<'a>(&self, tasks: impl IntoIterator<Item = &'a Task>) -> usize {
        self.held.more_with(tasks)
    }

    /// Returns the task that was submitted with this idempotency key.
    pub fn by_key(&self, session: Option<&str>, key: &str) -> Option<&Task> {
        let ordinal = self.sessions.get(session.unwrap_or_default())?.keys.get(key)?;
        self.tasks.get(ordinal).map(Box::as_ref)
    }

    /// Starts recording changes. These tasks count as changed.
    pub fn track(&mut self, tasks: BTreeSet<Ordinal>) {
        self.touched = Some(Touched { tasks, ..Touched::default() });
    }

    /// Returns the changes since the last call; `None` if there were none.
    pub fn take_touched(&mut self) -> Option<Touched> {
        self.touched.as_mut().filter(|touched| !touched.is_empty()).map(std::mem::take)
    }

    /// Reports whether changes are persisted.
    pub fn is_tracked(&self) -> bool {
        self.touched.is_some()
    }

    fn touch(&mut self, ordinal: Ordinal, batch: Option<TaskId>) {
        if let Some(touched) = &mut self.touched {
            touched.tasks.insert(ordinal);
            touched.batches.extend(batch);
        }
    }

    /// Returns the ordinal of the newest task so far.
    pub fn last(&self) -> Ordinal {
        self.last
    }

    /// Numbers further tasks from here on.
    pub fn continue_numbering_after(&mut self, last: Ordinal) {
        self.last = self.last.max(last);
    }

    /// Makes a kept task share equal values with the others.
    fn share_task(&mut self, task: &mut Task, seen: &mut SeenValues) {
        let spec = Arc::make_mut(&mut task.spec);
        let rlimits = spec.rlimits.take();
        spec.rlimits = rlimits.map(|rlimits| self.rlimits.share_seen(&rlimits, &mut seen.rlimits));
        self.share_all_but_rlimits(spec);
        let again = task.plan.as_deref_mut().and_then(|plan| plan.again.as_deref_mut());
        let of_agent = task.agent.as_mut().map(|agent| &mut agent.env);
        let envs = [task.state.env_mut(), again.map(|again| &mut again.env), of_agent];
        for env in envs.into_iter().flatten() {
            *env = self.envs.share_seen(env, &mut seen.envs);
        }
    }

    /// Adds a persisted task under its former ordinal, with the environment that it was submitted with.
    pub fn insert_again(
        &mut self,
        ordinal: Ordinal,
        mut task: Task,
        kept: Option<Arc<Env>>,
        seen: &mut SeenValues,
    ) {
        self.share_task(&mut task, seen);
        self.insert_at(ordinal, task);
        // Keep what was kept before, regardless of the task's state.
        self.kept.forget(ordinal);
        if let Some(env) = kept {
            self.kept.keep(ordinal, self.envs.share_seen(&env, &mut seen.envs));
        }
    }

    /// Adds a task as the newest one.
    pub fn insert(&mut self, task: Task) -> Ordinal {
        let ordinal = Ordinal(self.last.0 + 1);
        if let Some(touched) = &mut self.touched {
            touched.added.push(task.id);
        }
        self.touch(ordinal, task.plan().batch);
        self.insert_at(ordinal, task);
        ordinal
    }

    fn insert_at(&mut self, ordinal: Ordinal, task: Task) {
        self.last = self.last.max(ordinal);
        let status = task.status();
        self.by_id.insert(task.id, ordinal);
        self.by_status.entry(status).or_default().insert(ordinal);
        let session = self.sessions.entry(session_key(&task)).or_default();
        session.members.insert(ordinal);
        *session.summary.count_mut(status) += 1;
        if let Some(key) = &task.key {
            session.keys.insert(key.clone(), ordinal);
        }
        *self.summary.count_mut(status) += 1;
        self.held.add(&task);
        if let (Origin::Submit, State::Queued { env }) = (task.spec.origin, &task.state) {
            self.kept.keep(ordinal, env.clone());
        }
        self.history.change(ordinal, Entry::default(), Some(&task), &self.tasks);
        self.need(&needs(&task));
        self.tasks.insert(ordinal, Box::new(task));
    }

    pub fn remove(&mut self, ordinal: Ordinal) -> Option<Task> {
        let task = self.tasks.remove(&ordinal)?;
        self.touch(ordinal, task.plan().batch);
        self.held.remove(&task);
        self.history.change(ordinal, self.history.entry(ordinal, &task), None, &self.tasks);
        self.release(&needs(&task));
        self.kept.forget(ordinal);
        let status = task.status();
        self.by_id.remove(&task.id);
        if let Some(index) = self.by_status.get_mut(&status) {
            index.remove(&ordinal);
        }
        *self.summary.count_mut(status) -= 1;
        let session_key = session_key(&task);
        if let Some(session) = self.sessions.get_mut(&session_key) {
            session.members.remove(&ordinal);
            *session.summary.count_mut(status) -= 1;
            if let Some(key) = &task.key {
                session.keys.remove(key);
            }
            if session.members.is_empty() {
                self.sessions.remove(&session_key);
            }
        }
        Some(*task)
    }

    /// Changes a task and updates the indexes. Returns what `change` returns.
    pub fn change<T>(&mut self, ordinal: Ordinal, change: impl FnOnce(&mut Task) -> T) -> Option<T> {
        let task = self.tasks.get(&ordinal)?;
        let (batch, before) = (task.plan().batch, needs(task));
        self.touch(ordinal, batch);
        let result = self.change_unnoted(ordinal, change);
        let after = self.tasks.get(&ordinal).map(|task| needs(task)).unwrap_or_default();
        if before != after {
            self.need(&after);
            self.release(&before);
        }
        result
    }

    /// Like [`Self::change`], for changes that may be lost if the daemon is killed: they are persisted with the task's
    /// next other change. They must not concern its state or its conditions.
    pub fn change_unnoted<T>(&mut self, ordinal: Ordinal, change: impl FnOnce(&mut Task) -> T) -> Option<T> {
        let task = self.tasks.get_mut(&ordinal)?;
        let (before, held, entry) = (task.status(), Changing::of(task), self.history.entry(ordinal, task));
        let result = change(task);
        let task: &Task = self.tasks.get(&ordinal)?;
        let after = task.status();
        self.history.change(ordinal, entry, Some(task), &self.tasks);
        self.held.change(held, Changing::of(task));
        if before != after {
            if let Some(index) = self.by_status.get_mut(&before) {
                index.remove(&ordinal);
            }
            self.by_status.entry(after).or_default().insert(ordinal);
            *self.summary.count_mut(before) -= 1;
            *self.summary.count_mut(after) += 1;
            if let Some(session) = self.sessions.get_mut(&session_key(task)) {
                *session.summary.count_mut(before) -= 1;
                *session.summary.count_mut(after) += 1;
            }
        }
        Some(result)
    }

    pub fn get(&self, ordinal: Ordinal) -> Option<&Task> {
        self.tasks.get(&ordinal).map(Box::as_ref)
    }

    /// Limits the environments kept for reruns to this many bytes.
    pub fn limit_kept_envs(&mut self, most: usize) {
        self.kept.limit(most);
    }

    /// Limits how long finished tasks are kept.
    pub fn limit_history(&mut self, limits: Option<HistoryLimits>) {
        self.history.limit(limits);
        if limits.is_some() {
            for (ordinal, task) in &self.tasks {
                self.history.change(*ordinal, Entry::default(), Some(task.as_ref()), &self.tasks);
            }
        }
    }

    /// Counts the finished tasks that these limits remove at this time.
    pub fn history_excess(&self, limits: HistoryLimits, now: Timestamp) -> usize {
        self.history.excess(limits, now, |ordinal| self.history.part(ordinal, self.get(ordinal)?))
    }

    /// Keeps these tasks, even beyond the limits of the history, until they are released as often.
    pub fn need(&mut self, tasks: &[Ordinal]) {
        for ordinal in tasks {
            self.history.need(*ordinal, self.tasks.get(ordinal).map(Box::as_ref));
        }
    }

    pub fn release(&mut self, tasks: &[Ordinal]) {
        for ordinal in tasks {
            self.history.release(*ordinal, self.tasks.get(ordinal).map(Box::as_ref));
        }
    }

    /// Keeps the tasks of a batch, even beyond the limits of the history, until all of them have been added.
    pub fn enter_batch(&mut self, batch: TaskId) {
        self.history.enter_batch(batch, &self.tasks);
    }

    /// Notes that no task of a batch is still to be added.
    pub fn note_entered(&mut self, batch: TaskId) {
        self.history.note_entered(batch, &self.tasks);
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the environment that a task was submitted with, unless it was dropped.
    pub fn kept_env(&self, ordinal: Ordinal) -> Option<&Arc<Env>> {
        self.kept.get(ordinal)
    }

    pub fn ordinal(&self, id: TaskId) -> Option<Ordinal> {
        self.by_id.get(&id).copied()
    }

    /// Resolves a reference to the only matching task.
    ///
    /// # Errors
    /// No task matches, or several do; the error then lists candidates.
    pub fn find(&self, reference: &TaskRef) -> Result<Ordinal, CoreError> {
        let mut found = self.by_id.range(reference.range()).map(|(id, ordinal)| (*id, *ordinal));
        match (found.next(), found.next()) {
            (None, _) => Err(CoreError::NotFound(reference.as_str().to_owned())),
            (Some((_, ordinal)), None) => Ok(ordinal),
            (Some((first, _)), Some((second, _))) => {
                let rest = found.map(|(id, _)| id).take(CANDIDATES - 2);
                let candidates = [first, second].into_iter().chain(rest).collect();
                Err(CoreError::Ambiguous(reference.as_str().to_owned(), candidates))
            }
        }
    }

    /// Returns all tasks, or all of a parent session, oldest first.
    pub fn of_session(&self, session: Option<&str>) -> Vec<Ordinal> {
        match session {
            None => self.tasks.keys().copied().collect(),
            Some(session) => self
                .sessions
                .get(session)
                .map(|index| index.members.iter().copied().collect())
                .unwrap_or_default(),
        }
    }

    /// Returns the tasks that pass a filter, oldest first. `batch` is the filter's resolved batch.
    pub fn matching(&self, filter: &Filter, batch: Option<TaskId>) -> Vec<Ordinal> {
        let mut found = self.of_session(filter.session.as_deref());
        found.retain(|ordinal| self.get(*ordinal).is_some_and(|task| filter.holds(task, batch)));
        found
    }

    /// Returns how many tasks of a parent session are active.
    pub fn active_of(&self, session: &str) -> u64 {
        self.sessions.get(session).map_or(0, |index| index.summary.active())
    }

    /// Returns every task, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Ordinal, &Task)> {
        self.tasks.iter().map(|(ordinal, task)| (*ordinal, task.as_ref()))
    }

    /// Returns a page of tasks. The cost depends on the length of the page. With a filter by group, batch or label, or
    /// by status within a session, it also depends on how many tasks are skipped, of that session or of all. `batch` is
    /// the query's resolved batch.
    pub fn list(&self, query: &ListQuery, batch: Option<TaskId>) -> Page {
        let ListQuery { filter, limit, after, text, .. } = query;
        let end = after.unwrap_or(Ordinal(u64::MAX));
        let session = filter.session.as_ref().map(|session| self.sessions.get(session));
        let summary = match session {
            None => self.summary,
            Some(index) => index.map(|index| index.summary).unwrap_or_default(),
        };
        let wanted = |task: &Task| query.holds(task, batch);
        let newest: Box<dyn Iterator<Item = (Ordinal, &Task)>> = match session {
            Some(None) => Box::new(std::iter::empty()),
            Some(Some(index)) => {
                let members = index.members.range(..end).rev();
                Box::new(members.filter_map(|ordinal| Some((*ordinal, self.get(*ordinal)?))))
            }
            None => Box::new(self.tasks.range(..end).rev().map(|(ordinal, task)| (*ordinal, &**task))),
        };
        let mut stopped = None;
        let mut found: Vec<Ordinal> = if let Some(text) = text {
            search(newest, wanted, text, limit + 1, &mut stopped)
        } else if session.is_none() && !filter.status.is_empty() && !query.needs_look() {
            self.newest_of_statuses(&filter.status, end, limit + 1)
        } else {
            let found = newest.filter(|(_, task)| wanted(task)).map(|(ordinal, _)| ordinal);
            found.take(limit + 1).collect()
        };
        let more = found.len() > *limit;
        found.truncate(*limit);
        let fits = self.how_many_fit(&found);
        let more = more || fits < found.len();
        found.truncate(fits);
        let tasks = found.iter().filter_map(|ordinal| self.tasks.get(ordinal)).cloned().collect();
        let next = if more { found.last().copied() } else { stopped };
        Page { tasks, next, summary, cleared: None }
    }

    /// Returns how many of these tasks fit on one page, at least 1.
    fn how_many_fit(&self, found: &[Ordinal]) -> usize {
        let mut bytes = 0;
        let fits = found.iter().take_while(|ordinal| {
            bytes += self.tasks.get(ordinal).map_or(0, |task| task.text_bytes());
            bytes <= LIST_PAGE_BYTES
        });
        fits.count().max(1)
    }

    fn newest_of_statuses(&self, statuses: &[Status], end: Ordinal, limit: usize) -> Vec<Ordinal> {
        let mut found: Vec<Ordinal> = Vec::new();
        let unique: BTreeSet<&Status> = statuses.iter().collect();
        for index in unique.into_iter().filter_map(|status| self.by_status.get(status)) {
            found.extend(index.range(..end).rev().take(limit));
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.truncate(limit);
        found
    }
}

/// Returns the tasks whose outputs a task still needs: those that it comes after, until it has ended. It may read the
/// outputs while it runs, and a further attempt needs them again.
fn needs(task: &Task) -> Vec<Ordinal> {
    match task.state {
        State::Queued { .. } | State::Starting { .. } | State::Running { .. } | State::Stopping { .. } => {
            task.plan().needed().collect()
        }
        State::Finished(_) | State::Resuming(_) => Vec::new(),
    }
}

/// Returns a task's key in the index by parent session.
fn session_key(task: &Task) -> Arc<str> {
    task.spec.session.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests;
