//! The machine: every input against every state, written out.

mod agent;
mod facts;
mod foreground;
mod orders;
mod requests;
mod stop;
mod told;
mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::InboxesStatus;
use bgd_shared::task::Summary;
use serde::{Deserialize, Serialize};

use super::CoreLimits;
use super::caller::ReplyTo;
use super::effect::{Begin, CoreError, Effect, Reply};
use super::inbox::{InboxWaitId, Inboxes};
use super::input::Input;
use super::owners::Owners;
use super::queue::{Queue, Standing};
use super::registry::{ListQuery, Page, Registry};
use super::task::{Ordinal, Snapshot, State, Task};
use super::time::{Mono, Now};
use super::waiters::{WaiterId, Waiters};

/// Whose deadline it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Timer {
    Task(Ordinal),
    Waiter(WaiterId),
    Inbox(InboxWaitId),
}

/// Whether the daemon lives or is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Open,
    Closing,
    Closed,
}

/// The owner of all tasks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Core {
    limits: CoreLimits,
    registry: Registry,
    waiters: Waiters,
    timers: BTreeSet<(Mono, Timer)>,
    /// Foreground jobs by the client that shows them.
    foreground: BTreeSet<(u64, Ordinal)>,
    inboxes: Inboxes,
    owners: Owners,
    queue: Queue,
    seq: u64,
    phase: Phase,
    #[serde(skip)]
    effects: Vec<Effect>,
    /// Who asks for the end of tasks, while that is carried out: some end at once.
    #[serde(skip)]
    asker: Option<Asker>,
}

/// A client that asks for the end of tasks.
#[derive(Clone, Copy, Debug)]
struct Asker {
    client: u64,
    /// Whether they are removed, too.
    removes: bool,
}

impl Core {
    /// A core without tasks.
    pub fn new(limits: CoreLimits) -> Self {
        Self {
            limits,
            registry: Registry::default(),
            waiters: Waiters::default(),
            timers: BTreeSet::new(),
            foreground: BTreeSet::new(),
            inboxes: Inboxes::default(),
            owners: Owners::default(),
            queue: Queue::default(),
            seq: 0,
            phase: Phase::Open,
            effects: Vec::new(),
            asker: None,
        }
    }

    /// Takes an input and says what is to be done about it.
    #[must_use]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Effect> {
        let was_closed = self.phase == Phase::Closed;
        match input {
            Input::Request { to, request } => self.request(now, to, request),
            Input::Fact { task, run, fact } => self.fact(now, task, run, fact),
            Input::Disconnected { client } => {
                self.disconnect(client);
                let jobs = self.abandon(now, client);
                self.leave_sessions(now, client, &jobs);
            }
            Input::Configure(limits) => self.limits = limits,
        }
        self.fill_slots();
        if self.phase == Phase::Closed && !was_closed {
            self.refuse_reads();
            self.effects.push(Effect::Exit);
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`Core::on_deadline`] wants to be called, if nothing else happens.
    pub fn deadline(&self) -> Option<Mono> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due at this time.
    #[must_use]
    pub fn on_deadline(&mut self, now: Now) -> Vec<Effect> {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now.mono {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Task(ordinal) => self.task_deadline(now, ordinal),
                Timer::Waiter(id) => self.waiter_deadline(id),
                Timer::Inbox(id) => self.inbox_deadline(id),
            }
        }
        self.fill_slots();
        std::mem::take(&mut self.effects)
    }

    /// How many tasks are in each status.
    pub fn summary(&self) -> Summary {
        self.registry.summary()
    }

    /// How full the inboxes of parent sessions are.
    pub fn inboxes(&self) -> InboxesStatus {
        self.inboxes.status()
    }

    /// How many bytes tasks hold.
    pub fn held_by_tasks(&self) -> usize {
        self.registry.held()
    }

    /// The inboxes of parent sessions that have items, the one with the oldest item behind this number first.
    pub fn list_inboxes(&self, after: u64) -> impl Iterator<Item = (&Arc<str>, u64, usize)> {
        self.inboxes.list(after)
    }

    /// How many bytes tasks and inboxes hold.
    pub fn held(&self) -> usize {
        self.registry.held() + self.inboxes.held()
    }

    /// The number of the latest event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// A page of tasks.
    pub fn list(&self, query: &ListQuery) -> Page {
        self.registry.list(query)
    }

    /// One task.
    ///
    /// # Errors
    /// No task has this id, or several do.
    pub fn get(&self, id: &TaskRef) -> Result<Snapshot, CoreError> {
        let ordinal = self.registry.find(id)?;
        self.snapshot(ordinal).ok_or_else(|| CoreError::NotFound(id.as_str().to_owned()))
    }

    /// Whether new work is refused.
    pub fn is_closing(&self) -> bool {
        self.phase != Phase::Open
    }

    fn snapshot(&self, ordinal: Ordinal) -> Option<Snapshot> {
        self.registry.get(ordinal).cloned().map(Box::new)
    }

    fn reply(&mut self, to: Option<ReplyTo>, reply: Reply) {
        if let Some(to) = to {
            self.effects.push(Effect::Reply { to, reply });
        }
    }

    fn event(&mut self, now: Now, kind: EventKind, ordinal: Ordinal) {
        if let Some(task) = self.snapshot(ordinal) {
            self.event_of(now, kind, task);
        }
    }

    fn event_of(&mut self, now: Now, kind: EventKind, task: Snapshot) {
        self.seq += 1;
        self.effects.push(Effect::Event { seq: self.seq, at: now.wall, kind, task });
    }

    /// Changes a task's state, and keeps its timer and its standing in the queue.
    fn set_state(&mut self, ordinal: Ordinal, state: State) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let (before, old_deadline) = (Standing::from(&task.state), task.deadline());
        let Some((after, deadline)) = self.registry.change(ordinal, |task| {
            task.state = state;
            (Standing::from(&task.state), task.deadline())
        }) else {
            return;
        };
        self.queue.change(ordinal, before, after);
        self.retime_to(ordinal, old_deadline, deadline);
    }

    /// Keeps a task's timer after a change that may have moved its deadline.
    fn retime(&mut self, ordinal: Ordinal, before: Option<Mono>) {
        let after = self.registry.get(ordinal).and_then(Task::deadline);
        self.retime_to(ordinal, before, after);
    }

    /// Also if both are the same moment: the old timer may be the one that has just gone off, as with a
    /// time limit and no grace.
    fn retime_to(&mut self, ordinal: Ordinal, before: Option<Mono>, after: Option<Mono>) {
        if let Some(at) = before {
            self.timers.remove(&(at, Timer::Task(ordinal)));
        }
        if let Some(at) = after {
            self.timers.insert((at, Timer::Task(ordinal)));
        }
    }

    /// Starts tasks while slots are free.
    fn fill_slots(&mut self) {
        while self.phase == Phase::Open
            && let Some(ordinal) = self.queue.next(self.limits.max_concurrent_tasks)
        {
            self.begin(ordinal);
        }
    }

    /// Has a pending task started.
    fn begin(&mut self, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let State::Queued { env } = &task.state else { return };
        let env = env.clone();
        let begin = match task.agent.as_deref() {
            None => Begin::Process { env },
            Some(agent) => {
                let (prompt, settings) = (agent.prompt.clone(), agent.settings.clone());
                Begin::Prompt { env, prompt, settings, session: None }
            }
        };
        let start = orders::start(task, begin);
        self.effects.push(start);
        self.set_state(ordinal, State::Starting { stop: None });
    }

    fn find_all(&self, ids: &[TaskRef]) -> Result<Vec<Ordinal>, CoreError> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let ordinal = self.registry.find(id)?;
            if seen.insert(ordinal) {
                found.push(ordinal);
            }
        }
        Ok(found)
    }

    fn with_ids(&self, ordinals: &[Ordinal]) -> Vec<(Ordinal, TaskId)> {
        ordinals.iter().filter_map(|ordinal| Some((*ordinal, self.registry.get(*ordinal)?.id))).collect()
    }
}
