//! A second, naive implementation of the rules, without indexes and timers: it answers every question by examining
//! everything. Before each step it predicts what the core must do.

mod agent;
mod batch;
mod early;
mod facts;
mod foreground;
mod history;
mod notices;
mod order;
mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::wire::failures;
use bgd_core::{Command, CoreError, CoreLimits, Input, Now, ReplyTo, Snapshot, Work, env_bytes};
use bgd_shared::agent::AgentSettings;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::task::{Status, Summary};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;

use super::expected::{Answer, Expected};
use agent::Chat;
use batch::{Batch, Staged};
use notices::Post;
pub use order::Order;
use order::{DependencyStatus, Groups, Wait};

/// Cost of a text in addition to its bytes.
const TEXT_BYTES: usize = 32;

/// Why a task is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Cancelled,
    Session,
    /// Its client has disconnected.
    Abandoned,
    Shutdown,
    Time(u64),
    NotReady(u64),
    /// This many tasks of its batch have failed.
    MaxFails(u32),
}

/// Stage in ending a process tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    NotBegun,
    /// SIGKILL follows at this time.
    Grace(u64),
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Starting,
    Running,
    Done,
    /// Done, with a follow-up prompt in flight.
    Resuming,
}

/// A task that was submitted and not cleared.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a naive account: each is a question of its own")]
pub struct Known {
    pub id: TaskId,
    pub phase: Phase,
    /// Whether any of its processes is alive.
    pub left: bool,
    /// Whether it has living processes that SIGKILL does not end: nothing waits for them, but they still get signals.
    pub stuck: bool,
    pub session: Option<Arc<str>>,
    /// Its status and error once it is done.
    verdict: Option<(Status, Option<String>)>,
    key: Option<Arc<str>>,
    limit_ms: Option<u64>,
    limit_at: Option<u64>,
    end: End,
    why: Option<Why>,
    /// Signal and grace period of a stop that was requested while it was starting.
    stop_order: Option<(i32, u64)>,
    /// When nothing waits for its start any longer.
    hangs_at: Option<u64>,
    leader_gone: bool,
    created_at: Timestamp,
    completed_at: Timestamp,
    retrieved_at: Option<Timestamp>,
    /// Whether it has a readiness condition, its time limit, and when it became ready.
    becomes_ready: bool,
    ready_ms: Option<u64>,
    ready_at: Option<Timestamp>,
    /// Its latest run's usage, if its executor reported it.
    usage: Option<Usage>,
    pub paused: bool,
    bytes: u64,
    lost: u64,
    /// The number of the latest run, as carried by facts.
    pub run: u32,
    pub resumes: u32,
    /// The client whose foreground job it is.
    pub foreground: Option<u64>,
    /// Whether it was a foreground job until its end.
    seen: bool,
    pub direct: bool,
    /// The call that resumes it, with its prompt and settings.
    resume: Option<(ReplyTo, Arc<str>, AgentSettings)>,
    pub chat: Option<Chat>,
    pub order: Order,
    /// Whether another program started it, so that its environment is unknown.
    pub is_adopted: bool,
}

impl Known {
    /// Creates a pending task; with a client, as a foreground job of that client.
    fn new(now: Now, command: &Command, foreground: Option<u64>) -> Self {
        Self {
            id: command.id,
            phase: Phase::Pending,
            left: false,
            stuck: false,
            session: command.spec.session.clone(),
            verdict: None,
            key: command.key.clone(),
            limit_ms: command.spec.time_limit_ms,
            limit_at: None,
            end: End::NotBegun,
            why: None,
            stop_order: None,
            hangs_at: None,
            order: Order::default(),
            is_adopted: false,
            leader_gone: false,
            created_at: now.wall,
            completed_at: now.wall,
            retrieved_at: None,
            becomes_ready: command.spec.ready.is_some(),
            ready_ms: command.spec.ready_timeout_ms,
            ready_at: None,
            usage: None,
            paused: false,
            bytes: 0,
            lost: 0,
            run: 1,
            resumes: 0,
            foreground,
            seen: false,
            direct: command.spec.direct,
            resume: None,
            chat: Chat::new(command),
        }
    }

    pub fn status(&self) -> Status {
        match (self.phase, &self.verdict) {
            (Phase::Pending, _) => Status::Pending,
            (Phase::Running, _) if self.resumes > 0 => Status::Resumed,
            (Phase::Starting | Phase::Running, _) | (Phase::Done | Phase::Resuming, None) => Status::Running,
            (Phase::Done | Phase::Resuming, Some((status, _))) => *status,
        }
    }

    fn settled(&self) -> bool {
        self.phase == Phase::Done && !self.left
    }

    pub fn has_slot(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Running | Phase::Resuming)
    }

    fn deadline(&self) -> Option<u64> {
        match self.end {
            End::NotBegun if self.phase == Phase::Pending => self.order.deadline(),
            End::NotBegun if self.phase == Phase::Starting => self.hangs_at,
            End::Grace(at) => self.left.then_some(at),
            End::NotBegun if self.phase == Phase::Running => {
                let chat = self.chat.as_ref().and_then(Chat::deadline);
                self.limit_at.into_iter().chain(chat).min()
            }
            End::Killed | End::NotBegun => None,
        }
    }

    /// Reports whether a snapshot of the core matches.
    pub fn agrees(&self, task: &Snapshot) -> bool {
        let error = self.verdict.as_ref().and_then(|(_, error)| error.as_deref());
        task.id == self.id
            && failures::error(task).as_deref() == error
            && task.timed_out() == (self.verdict.is_some() && matches!(self.why, Some(Why::Time(_))))
            && task.is_finished() == (self.phase == Phase::Done)
            && task.is_settled() == self.settled()
            && task.deadline().map(|at| at.0) == self.deadline()
            && (task.ready_at, task.paused, task.usage) == (self.ready_at, self.paused, self.usage)
            && (task.created_at, task.retrieved_at) == (self.created_at, self.retrieved_at)
            && (task.run, task.resume_count) == (self.run, self.resumes)
            && self.order.agrees(task)
            && (task.foreground, task.spec.direct) == (self.foreground, self.direct)
            && task.finished().is_none_or(|finished| finished.in_foreground == self.seen)
            && match (&self.chat, task.agent.as_deref()) {
                (None, None) => true,
                (Some(chat), Some(agent)) => chat.agrees(agent),
                (None, Some(_)) | (Some(_), None) => false,
            }
            && task.lost.as_ref().map_or(0, |lost| lost.bytes) == self.lost
            && (task.output_bytes.iter().sum(), &task.key, &task.spec.session)
                == (self.bytes, &self.key, &self.session)
    }
}

/// A call without a reply so far, or the rest of its work if its client has disconnected.
#[derive(Clone, Debug)]
struct Call {
    to: Option<ReplyTo>,
    tasks: Vec<TaskId>,
    /// Tasks that have not ended since. An ended task may be resumed; this call does not wait for that.
    open: Vec<TaskId>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block { any: bool, hears: bool, ready: bool, deadline: Option<u64> },
    Cancel,
    Clear,
    EndSession { cancelled: u64 },
    Shutdown { cancelled: u64 },
}

impl Kind {
    /// Calls that only read get their replies before those that remove tasks, and shutdown comes last.
    fn rank(self) -> u8 {
        match self {
            Self::Block { .. } | Self::Cancel => 0,
            Self::Clear | Self::EndSession { .. } => 1,
            Self::Shutdown { .. } => 2,
        }
    }
}

/// The state on which the rules depend.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another rule")]
pub struct Model {
    pub limits: CoreLimits,
    /// Tasks by submission number, which is the last 32 bits of their ids.
    pub live: BTreeMap<u64, Known>,
    /// Cleared tasks, with their last status.
    pub gone: BTreeMap<u64, (TaskId, Status)>,
    /// Whether another daemon continues with what this one leaves.
    pub is_durable: bool,
    pub closing: bool,
    pub exited: bool,
    holds_starts: bool,
    /// Memory of tasks and inboxes before an input that adds to them, in bytes, and the environments among it.
    pub held: usize,
    pub held_by_inboxes: usize,
    pub envs: Vec<Env>,
    pub groups: Groups,
    /// Slots of the default group in the latest configuration.
    configured: u32,
    pub batches: BTreeMap<TaskId, Batch>,
    /// Incomplete batches, by the client that submits them.
    pub staged: BTreeMap<u64, Staged>,
    /// Batches in which too many tasks have failed in this step.
    overdue: Vec<TaskId>,
    calls: Vec<Call>,
    pub post: Post,
    /// Why finished tasks were removed in this step, as the name of a situation.
    pub forgot: Option<&'static str>,
    /// Whether the history gives way to new tasks of this step.
    gives_way: bool,
    /// State changes of tasks in this step, for their dependents.
    news: VecDeque<DependencyStatus>,
    expected: Expected,
}

/// Returns the submission number of a task.
pub fn number(id: TaskId) -> u64 {
    u64::try_from(id.as_u128() & 0xffff_ffff).unwrap_or_default()
}

impl Model {
    pub fn new(limits: CoreLimits, is_durable: bool) -> Self {
        let configured = u32::try_from(limits.max_concurrent_tasks).unwrap_or(u32::MAX);
        Self {
            limits,
            groups: [(DEFAULT_GROUP.to_owned(), (configured, false))].into(),
            configured,
            news: VecDeque::new(),
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            is_durable,
            closing: false,
            exited: false,
            holds_starts: false,
            held: 0,
            held_by_inboxes: 0,
            envs: Vec::new(),
            batches: BTreeMap::new(),
            staged: BTreeMap::new(),
            overdue: Vec::new(),
            calls: Vec::new(),
            post: Post::default(),
            forgot: None,
            gives_way: false,
            expected: Expected::default(),
        }
    }

    /// Returns the required behaviour of the core on this input.
    pub fn input(&mut self, now: Now, input: &Input) -> Expected {
        let had_exited = self.exited;
        match input {
            Input::Request { to, request } => {
                if let Err(error) = self.request(now, *to, request) {
                    self.reply(Some(*to), Answer::Error(error));
                }
            }
            Input::Fact { task, run, fact } => self.fact(now, *task, *run, fact),
            Input::Continue => {}
            Input::HoldStarts(holds) => self.holds_starts = *holds,
            Input::PartRefused { client } => _ = self.staged.remove(client),
            Input::Disconnected { client } => {
                self.staged.remove(client);
                self.drop_calls(*client);
                let jobs = self.abandon(now, *client);
                self.leave(now, *client, &jobs);
            }
            Input::Configure { limits, .. } => {
                self.limits = *limits;
                self.configure_groups(u32::try_from(limits.max_concurrent_tasks).unwrap_or(u32::MAX));
            }
        }
        self.settle(now);
        self.fill();
        self.forget_old(now);
        if self.exited && !had_exited {
            self.refuse_reads();
        }
        std::mem::take(&mut self.expected)
    }

    /// Checks whether there is room for another task that comes after these.
    fn room_for(&self, command: &Command, after: &[Wait]) -> Result<(), CoreError> {
        if self.room(after) == 0 {
            return Err(CoreError::Full(self.limits.tasks));
        }
        let settings = match &command.spec.work {
            Work::Agent(work) => work.settings.texts().collect(),
            Work::Argv(_) | Work::Shell(_) => Vec::new(),
        };
        let labels = command.prompt.iter().chain(&command.key).map(|text| &**text);
        let texts = labels.chain(settings).map(|text| TEXT_BYTES + text.len());
        let env = if self.envs.contains(&command.env) { 0 } else { env_bytes(&command.env) };
        let folder = if self.live.is_empty() { command.spec.shared_bytes() } else { 0 };
        let plan = order::bytes(&command.plan, after.len());
        self.memory_for(command.spec.own_bytes() + texts.sum::<usize>() + plan + env + folder)
    }

    /// Checks whether there is memory for `more` bytes.
    fn memory_for(&self, more: usize) -> Result<(), CoreError> {
        let (held, inboxes, limit) = (self.held, self.held_by_inboxes, self.limits.memory);
        if held + more > limit { Err(CoreError::FullMemory { held, inboxes, more, limit }) } else { Ok(()) }
    }

    /// Returns when the core must ask to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        let tasks = self.live.values().filter_map(Known::deadline);
        let blocks = self.calls.iter().filter_map(|call| match call.kind {
            Kind::Block { deadline, .. } => deadline,
            _ => None,
        });
        tasks.chain(blocks).chain(self.post.reads.iter().map(|read| read.due)).min()
    }

    pub fn get(&self, id: TaskId) -> Option<&Known> {
        self.live.get(&number(id))
    }

    /// Returns the number of calls whose clients are still waiting.
    pub fn unanswered(&self) -> usize {
        let resumes = self.live.values().filter(|task| task.resume.is_some()).count();
        self.calls.iter().filter(|call| call.to.is_some()).count() + resumes + self.post.reads.len()
    }

    pub fn pending(&self) -> usize {
        self.live.values().filter(|task| task.phase == Phase::Pending).count()
    }

    /// Reports whether tasks are retried: also while a durable daemon is ending.
    pub fn tries_again(&self) -> bool {
        self.is_durable || !self.closing
    }

    /// Returns the number of processes that are being started and that the next daemon may have to start again.
    pub fn starting_again(&self) -> usize {
        let is_process = |task: &&Known| task.phase == Phase::Starting && task.chat.is_none();
        self.live.values().filter(is_process).filter(|_| self.is_durable).count()
    }

    /// Returns the number of agent tasks that can be resumed, now or once they have ended.
    pub fn resumable(&self) -> usize {
        let may = |task: &&Known| !matches!(task.status(), Status::Failed | Status::Cancelled);
        self.live.values().filter(|task| task.chat.is_some()).filter(may).count()
    }

    /// Returns the pending tasks.
    pub fn queued(&self) -> Vec<TaskId> {
        self.live.values().filter(|task| task.phase == Phase::Pending).map(|task| task.id).collect()
    }

    /// Returns the tasks with a restart rule that have not ended for good.
    pub fn kept_alive(&self) -> Vec<TaskId> {
        let goes_on = |task: &&Known| {
            task.order.is_kept_alive()
                && matches!(task.phase, Phase::Pending | Phase::Starting | Phase::Running)
        };
        self.live.values().filter(goes_on).map(|task| task.id).collect()
    }

    /// Returns the number of tasks with a rule for further attempts.
    pub fn with_rules(&self) -> usize {
        let is_over = |task: &Known| matches!(task.phase, Phase::Done | Phase::Resuming) || task.resumes > 0;
        self.live.values().filter(|task| task.order.has_rule() && !is_over(task)).count()
    }

    /// Returns the number of idempotency keys in use.
    pub fn keys(&self) -> usize {
        self.live.values().filter(|task| task.key.is_some()).count()
    }

    pub fn summary(&self, session: Option<&str>) -> Summary {
        let mut summary = Summary::default();
        for task in self.live.values() {
            if session.is_none_or(|session| task.session.as_deref() == Some(session)) {
                *summary.count_mut(task.status()) += 1;
            }
        }
        summary
    }

    fn reply(&mut self, to: Option<ReplyTo>, answer: Answer) {
        if let Some(to) = to {
            assert!(self.expected.replies.insert(to, answer).is_none(), "a call is answered twice");
        }
    }

    fn wait(&mut self, to: impl Into<Option<ReplyTo>>, tasks: Vec<TaskId>, kind: Kind) {
        let (to, open) = (to.into(), tasks.clone());
        self.add_call(Call { to, tasks, open, kind });
        self.answer();
    }

    /// Adds a call. If nobody waits for its reply, it ends at once, or the tasks that it removes go one by one.
    fn add_call(&mut self, call: Call) {
        match call.kind {
            _ if call.to.is_some() => self.calls.push(call),
            Kind::Block { .. } | Kind::Cancel => {}
            Kind::Clear | Kind::EndSession { .. } => {
                for id in &call.tasks {
                    let open = call.open.iter().copied().filter(|open| open == id).collect();
                    self.calls.push(Call { to: None, tasks: vec![*id], open, kind: call.kind });
                }
            }
            Kind::Shutdown { .. } => self.calls.push(call),
        }
    }

    /// Drops the replies of a client that is gone.
    fn drop_calls(&mut self, client: u64) {
        for call in std::mem::take(&mut self.calls) {
            self.add_call(Call { to: call.to.filter(|to| to.client != client), ..call });
        }
        self.answer();
    }

    /// Reports whether this client waits for the removal of a task.
    pub fn clears(&self, client: u64, id: TaskId) -> bool {
        let theirs = self.calls.iter().filter(|call| call.to.is_some_and(|to| to.client == client));
        let mut removing = theirs.filter(|call| matches!(call.kind, Kind::Clear | Kind::EndSession { .. }));
        removing.any(|call| call.tasks.contains(&id))
    }

    /// Reports whether a call does not need to wait for this task.
    fn has_ended(&self, kind: Kind, id: TaskId) -> bool {
        self.get(id).is_none_or(|task| match kind {
            Kind::Block { ready, .. } => task.phase == Phase::Done || ready && task.ready_at.is_some(),
            _ => task.settled(),
        })
    }

    fn is_over(&self, call: &mut Call) -> bool {
        call.open.retain(|id| !self.has_ended(call.kind, *id));
        let asks = |id: &TaskId| {
            let chat = self.get(*id).and_then(|task| task.chat.as_ref());
            chat.is_some_and(|chat| !chat.questions.is_empty())
        };
        if let Kind::Block { hears: true, .. } = call.kind
            && call.open.iter().any(asks)
        {
            return true;
        }
        match call.kind {
            Kind::Block { any: true, .. } => call.tasks.is_empty() || call.open.len() < call.tasks.len(),
            _ => call.open.is_empty(),
        }
    }

    /// Replies to every call whose wait is over.
    fn answer(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        let mut over: Vec<Call> = calls.extract_if(.., |call| self.is_over(call)).collect();
        self.calls = calls;
        // Those with a reply count the tasks that they remove, and come first.
        over.sort_by_key(|call| (call.kind.rank(), call.to.is_none()));
        for call in over {
            let answer = match call.kind {
                Kind::Block { .. } => Answer::Blocked { tasks: self.statuses(&call.tasks), timed_out: false },
                Kind::Cancel => Answer::Tasks(self.statuses(&call.tasks)),
                Kind::Clear => Answer::Cleared(self.remove(&call.tasks)),
                Kind::EndSession { cancelled } => {
                    Answer::SessionEnded { cancelled, cleared: self.remove(&call.tasks) }
                }
                Kind::Shutdown { cancelled } => {
                    self.expected.exit |= !self.exited;
                    self.exited = true;
                    Answer::ShutDown(cancelled)
                }
            };
            self.reply(call.to, answer);
        }
    }

    /// Returns the statuses of these tasks for a reply. Tasks that were cleared meanwhile keep their last status.
    fn statuses(&self, tasks: &[TaskId]) -> Vec<(TaskId, Status)> {
        let status = |id: TaskId| match self.get(id) {
            Some(task) => task.status(),
            None => self.gone[&number(id)].1,
        };
        tasks.iter().map(|id| (*id, status(*id))).collect()
    }

    fn remove(&mut self, tasks: &[TaskId]) -> u64 {
        let mut removed = 0;
        for id in tasks {
            if let Some(task) = self.live.remove(&number(*id)) {
                self.expected.forgets.push(*id);
                self.expected.events.push((*id, EventKind::Cleared));
                self.gone.insert(number(*id), (*id, task.status()));
                removed += 1;
            }
        }
        removed
    }
}
