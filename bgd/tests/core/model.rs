//! A second, naive account of the rules: no indexes, no timers, every question answered by looking at
//! everything. Before each step it says what the core must do.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd::core::{
    Cancel, Command, CoreError, CoreLimits, Fact, Input, Now, ReplyTo, Request, Selection, Snapshot,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::BlockMode;
use bgd_shared::task::{Exit, Status, Summary};
use bgd_shared::time::Timestamp;

use super::expected::{Answer, Expected};
use super::support::{KILL, TERM};

/// Why a task is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Cancelled,
    Session,
    Shutdown,
    Time(u64),
}

/// How far the ending of a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    NotTold,
    /// SIGKILL comes then.
    Grace(u64),
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Starting,
    Running,
    Done,
}

/// A task that was submitted and not cleared.
#[derive(Clone, Debug)]
pub struct Known {
    pub id: TaskId,
    pub phase: Phase,
    /// Whether any process of it lives.
    pub left: bool,
    pub session: Option<Arc<str>>,
    /// Its status and error once it is done.
    verdict: Option<(Status, Option<String>)>,
    key: Option<Arc<str>>,
    limit_ms: Option<u64>,
    limit_at: Option<u64>,
    end: End,
    why: Option<Why>,
    /// The first signal and the grace of an order that came while it was starting.
    order: Option<(i32, u64)>,
    leader_gone: bool,
    created_at: Timestamp,
    retrieved_at: Option<Timestamp>,
    bytes: u64,
}

impl Known {
    pub fn status(&self) -> Status {
        match (self.phase, &self.verdict) {
            (Phase::Pending, _) => Status::Pending,
            (Phase::Starting | Phase::Running, _) | (Phase::Done, None) => Status::Running,
            (Phase::Done, Some((status, _))) => *status,
        }
    }

    fn settled(&self) -> bool {
        self.phase == Phase::Done && !self.left
    }

    fn has_slot(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Running)
    }

    fn deadline(&self) -> Option<u64> {
        match self.end {
            End::Grace(at) => self.left.then_some(at),
            End::Killed => None,
            End::NotTold => self.limit_at.filter(|_| self.phase == Phase::Running),
        }
    }

    /// Whether a snapshot of the core says the same.
    pub fn agrees(&self, task: &Snapshot) -> bool {
        let error = self.verdict.as_ref().and_then(|(_, error)| error.as_deref());
        task.id == self.id
            && task.error() == error
            && task.is_finished() == (self.phase == Phase::Done)
            && task.is_settled() == self.settled()
            && task.deadline().map(|at| at.0) == self.deadline()
            && (task.created_at, task.retrieved_at) == (self.created_at, self.retrieved_at)
            && (task.output_bytes, &task.key, &task.spec.session) == (self.bytes, &self.key, &self.session)
    }
}

/// A call that was not answered yet, or whose client is gone while its work goes on.
#[derive(Clone, Debug)]
struct Call {
    to: Option<ReplyTo>,
    tasks: Vec<TaskId>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block { any: bool, deadline: Option<u64> },
    Cancel,
    Clear,
    EndSession { cancelled: u64 },
    Shutdown { cancelled: u64 },
}

impl Kind {
    /// Those who only look are answered before those who remove, and the end of the daemon is last.
    fn rank(self) -> u8 {
        match self {
            Self::Block { .. } | Self::Cancel => 0,
            Self::Clear | Self::EndSession { .. } => 1,
            Self::Shutdown { .. } => 2,
        }
    }
}

/// Everything that the rules need to know.
#[derive(Debug)]
pub struct Model {
    pub limits: CoreLimits,
    /// By the number of submission, which is in the last 32 bits of the ids.
    pub live: BTreeMap<u64, Known>,
    /// Those that were cleared, as they were last.
    pub gone: BTreeMap<u64, (TaskId, Status)>,
    pub closing: bool,
    pub exited: bool,
    calls: Vec<Call>,
    expected: Expected,
}

/// The number of submission of a task.
pub fn number(id: TaskId) -> u64 {
    u64::try_from(id.as_u128() & 0xffff_ffff).unwrap_or_default()
}

impl Model {
    pub fn new(limits: CoreLimits) -> Self {
        Self {
            limits,
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            closing: false,
            exited: false,
            calls: Vec::new(),
            expected: Expected::default(),
        }
    }

    /// What must happen at this input.
    pub fn input(&mut self, now: Now, input: &Input) -> Expected {
        match input {
            Input::Request { to, request } => {
                if let Err(error) = self.request(now, *to, request) {
                    self.reply(Some(*to), Answer::Error(error));
                }
            }
            Input::Fact { task, run, fact } => self.fact(now, *task, *run, fact),
            Input::Disconnected { client } => {
                let theirs = |call: &Call| call.to.is_some_and(|to| to.client == *client);
                self.calls.retain(|call| !(theirs(call) && matches!(call.kind, Kind::Block { .. })));
                for call in &mut self.calls {
                    call.to = call.to.filter(|to| to.client != *client);
                }
            }
            Input::Configure(limits) => self.limits = *limits,
        }
        self.fill();
        std::mem::take(&mut self.expected)
    }

    /// What must happen when the core looks at its timers.
    pub fn deadline(&mut self, now: Now) -> Expected {
        let at = now.mono.0;
        let numbers: Vec<u64> = self.live.keys().copied().collect();
        for number in numbers {
            let Some(task) = self.live.get_mut(&number) else { continue };
            if let (Some(limit_ms), Some(due), End::NotTold, Phase::Running) =
                (task.limit_ms, task.limit_at, task.end, task.phase)
                && due <= at
            {
                self.stop(now, number, Why::Time(limit_ms), TERM, self.limits.grace_ms);
            }
            let Some(task) = self.live.get_mut(&number) else { continue };
            if let End::Grace(due) = task.end
                && task.left
                && due <= at
            {
                task.end = End::Killed;
                self.expected.ends.push((task.id, KILL));
            }
        }
        let due = |call: &Call| matches!(call.kind, Kind::Block { deadline: Some(due), .. } if due <= at);
        for call in self.calls.extract_if(.., |call| due(call)).collect::<Vec<_>>() {
            let tasks = self.statuses(&call.tasks);
            self.reply(call.to, Answer::Blocked { tasks, timed_out: true });
        }
        std::mem::take(&mut self.expected)
    }

    /// When the core must want to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        let tasks = self.live.values().filter_map(Known::deadline);
        let blocks = self.calls.iter().filter_map(|call| match call.kind {
            Kind::Block { deadline, .. } => deadline,
            _ => None,
        });
        tasks.chain(blocks).min()
    }

    pub fn get(&self, id: TaskId) -> Option<&Known> {
        self.live.get(&number(id))
    }

    /// Calls whose clients still wait.
    pub fn unanswered(&self) -> usize {
        self.calls.iter().filter(|call| call.to.is_some()).count()
    }

    pub fn slots(&self) -> usize {
        self.live.values().filter(|task| task.has_slot()).count()
    }

    pub fn pending(&self) -> usize {
        self.live.values().filter(|task| task.phase == Phase::Pending).count()
    }

    /// How many idempotency keys are taken.
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

    fn fill(&mut self) {
        while !self.closing && self.slots() < self.limits.max_concurrent_tasks {
            let oldest = self.live.values_mut().find(|task| task.phase == Phase::Pending);
            let Some(oldest) = oldest else { return };
            oldest.phase = Phase::Starting;
            self.expected.starts.push(oldest.id);
        }
    }

    fn reply(&mut self, to: Option<ReplyTo>, answer: Answer) {
        if let Some(to) = to {
            assert!(self.expected.replies.insert(to, answer).is_none(), "a call is answered twice");
        }
    }

    fn request(&mut self, now: Now, to: ReplyTo, request: &Request) -> Result<(), CoreError> {
        match request {
            Request::Submit(command) => return self.submit(now, to, command),
            Request::Retrieve { id, complete } => return self.retrieve(now, to, id, *complete),
            Request::Block { ids, timeout_ms, mode } => {
                let tasks = self.find_all(ids)?;
                let deadline = timeout_ms.map(|timeout| now.mono.plus_ms(timeout).0);
                self.wait(to, tasks, Kind::Block { any: *mode == BlockMode::Any, deadline });
            }
            Request::Cancel(Cancel { which, signal, grace_ms }) => {
                let tasks = match which {
                    Selection::Ids(ids) => self.find_all(ids)?,
                    Selection::All { session } => {
                        self.of(session.as_deref(), |task| task.phase != Phase::Done)
                    }
                };
                let grace = grace_ms.unwrap_or(self.limits.grace_ms);
                self.stop_all(now, &tasks, Why::Cancelled, signal.unwrap_or(TERM), grace);
                self.wait(to, tasks, Kind::Cancel);
            }
            Request::Clear { which, active_too } => {
                let tasks = match which {
                    Selection::Ids(ids) => self.find_all(ids)?,
                    Selection::All { session } => {
                        self.of(session.as_deref(), |task| *active_too || task.settled())
                    }
                };
                let active =
                    tasks.iter().filter_map(|id| self.get(*id)).find(|task| task.phase != Phase::Done);
                if let Some(task) = active.filter(|_| !active_too) {
                    return Err(CoreError::StillActive(task.id, task.status()));
                }
                self.stop_all(now, &tasks, Why::Cancelled, TERM, self.limits.grace_ms);
                self.wait(to, tasks, Kind::Clear);
            }
            Request::Signal { id, signal, tree } => {
                let task = self.find(id)?;
                let (id, status) = (task.id, task.status());
                let leader_lives = task.phase == Phase::Running && !task.leader_gone;
                if !(leader_lives || *tree && task.left) {
                    return Err(CoreError::NotRunning(id, status));
                }
                self.expected.signals.push((id, *signal, *tree));
                self.reply(Some(to), Answer::Task(id, status));
            }
            Request::EndSession { session } => {
                let tasks = self.of(Some(session), |_| true);
                let cancelled = self.active_among(&tasks);
                self.stop_all(now, &tasks, Why::Session, TERM, self.limits.grace_ms);
                self.wait(to, tasks, Kind::EndSession { cancelled });
            }
            Request::Shutdown { grace_ms } => {
                self.closing = true;
                let tasks = self.of(None, |task| !task.settled());
                let cancelled = self.active_among(&tasks);
                let grace = grace_ms.unwrap_or(self.limits.grace_ms);
                self.stop_all(now, &tasks, Why::Shutdown, TERM, grace);
                self.wait(to, tasks, Kind::Shutdown { cancelled });
            }
        }
        Ok(())
    }

    fn retrieve(&mut self, now: Now, to: ReplyTo, id: &TaskRef, complete: bool) -> Result<(), CoreError> {
        let task = self.find(id)?;
        let (id, status) = (task.id, task.status());
        if status == Status::Completed {
            task.retrieved_at.get_or_insert(now.wall);
        } else if complete {
            let error = task.verdict.clone().and_then(|(_, error)| error);
            return Err(CoreError::NotComplete(id, status, error.map(Into::into)));
        }
        self.reply(Some(to), Answer::Task(id, status));
        Ok(())
    }

    fn submit(&mut self, now: Now, to: ReplyTo, command: &Command) -> Result<(), CoreError> {
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        let session = command.spec.session.clone();
        let same =
            |task: &&Known| task.key.is_some() && (&task.key, &task.session) == (&command.key, &session);
        if let Some(known) = self.live.values().find(same) {
            let answer = Answer::Task(known.id, known.status());
            self.reply(Some(to), answer);
            return Ok(());
        }
        if self.live.len() >= self.limits.tasks {
            return Err(CoreError::Full(self.limits.tasks));
        }
        let task = Known {
            id: command.id,
            phase: Phase::Pending,
            left: false,
            session,
            verdict: None,
            key: command.key.clone(),
            limit_ms: command.spec.time_limit_ms,
            limit_at: None,
            end: End::NotTold,
            why: None,
            order: None,
            leader_gone: false,
            created_at: now.wall,
            retrieved_at: None,
            bytes: 0,
        };
        self.live.insert(number(command.id), task);
        self.expected.events.push((command.id, EventKind::Submitted));
        self.reply(Some(to), Answer::Task(command.id, Status::Pending));
        Ok(())
    }

    fn of(&self, session: Option<&str>, wanted: impl Fn(&Known) -> bool) -> Vec<TaskId> {
        let of_session =
            |task: &&Known| session.is_none_or(|session| task.session.as_deref() == Some(session));
        self.live.values().filter(of_session).filter(|task| wanted(task)).map(|task| task.id).collect()
    }

    fn active_among(&self, tasks: &[TaskId]) -> u64 {
        tasks.iter().filter(|id| self.get(**id).is_some_and(|task| task.phase != Phase::Done)).count() as u64
    }

    /// By the written id, as a user would look for it.
    fn find(&mut self, reference: &TaskRef) -> Result<&mut Known, CoreError> {
        let text = reference.as_str();
        let begins = |task: &Known| task.id.to_string().starts_with(text);
        let mut found: Vec<&mut Known> = self.live.values_mut().filter(|task| begins(task)).collect();
        found.sort_by_key(|task| task.id.to_string());
        match found.len() {
            0 => Err(CoreError::NotFound(text.to_owned())),
            1 => Ok(found.swap_remove(0)),
            _ => {
                let candidates = found.iter().take(20).map(|task| task.id).collect();
                Err(CoreError::Ambiguous(text.to_owned(), candidates))
            }
        }
    }

    fn find_all(&mut self, references: &[TaskRef]) -> Result<Vec<TaskId>, CoreError> {
        let mut tasks = Vec::new();
        for reference in references {
            let id = self.find(reference)?.id;
            if !tasks.contains(&id) {
                tasks.push(id);
            }
        }
        Ok(tasks)
    }

    fn fact(&mut self, now: Now, id: TaskId, run: u32, fact: &Fact) {
        let number = number(id);
        let Some(task) = self.live.get_mut(&number).filter(|_| run == 1) else { return };
        match (fact, task.phase) {
            (Fact::Started { .. }, Phase::Starting) => {
                task.phase = Phase::Running;
                task.left = true;
                task.limit_at = task.limit_ms.map(|limit| now.mono.plus_ms(limit).0);
                self.expected.events.push((id, EventKind::Started));
                if let (Some((signal, grace)), Some(why)) = (task.order, task.why) {
                    self.stop(now, number, why, signal, grace);
                }
            }
            (Fact::StartFailed { error }, Phase::Starting) => self.done(number, &Err(error.to_string())),
            (Fact::Exited { exit, others }, Phase::Running) if !task.leader_gone => {
                task.leader_gone = true;
                task.left = *others;
                if task.end == End::NotTold || !others {
                    let result = match exit {
                        Exit::Code(0) => Ok(()),
                        Exit::Code(code) => Err(format!("exited with code {code}")),
                        Exit::Signal(9) => Err("ended by signal 9 (SIGKILL)".to_owned()),
                        Exit::Signal(15) => Err("ended by signal 15 (SIGTERM)".to_owned()),
                        Exit::Signal(signal) => Err(format!("ended by signal {signal}")),
                        Exit::Unknown(why) => Err(format!("its exit is not known: {why}")),
                    };
                    self.done(number, &result);
                }
            }
            (Fact::TreeEmpty, Phase::Running) if task.leader_gone => {
                task.left = false;
                self.done(number, &Ok(()));
            }
            (Fact::TreeEmpty, Phase::Done) => {
                task.left = false;
                self.answer();
            }
            (Fact::Output { bytes, tell, .. }, phase) => {
                task.bytes = *bytes;
                if *tell && phase != Phase::Done {
                    self.expected.events.push((id, EventKind::Output));
                }
            }
            _ => {}
        }
    }

    fn stop_all(&mut self, now: Now, tasks: &[TaskId], why: Why, signal: i32, grace: u64) {
        for id in tasks {
            self.stop(now, number(*id), why, signal, grace);
        }
    }

    /// The first reason counts; SIGKILL can only come sooner by a second order.
    fn stop(&mut self, now: Now, number: u64, why: Why, signal: i32, grace: u64) {
        let Some(task) = self.live.get_mut(&number) else { return };
        if task.phase != Phase::Done {
            task.why.get_or_insert(why);
        }
        match task.phase {
            Phase::Pending => self.done(number, &Ok(())),
            Phase::Starting => {
                let (first, before) = task.order.unwrap_or((signal, grace));
                task.order = Some((if first == KILL { KILL } else { signal }, grace.min(before)));
            }
            Phase::Running | Phase::Done => {
                let before = match task.end {
                    End::NotTold => u64::MAX,
                    End::Grace(at) => at,
                    End::Killed => return,
                };
                if task.left {
                    let kill_at = now.mono.plus_ms(grace).0.min(before);
                    task.end = if signal == KILL { End::Killed } else { End::Grace(kill_at) };
                    self.expected.ends.push((task.id, signal));
                }
            }
        }
    }

    /// A task ends; the reason why it was ended counts more than how it ended.
    fn done(&mut self, number: u64, result: &Result<(), String>) {
        let Some(task) = self.live.get_mut(&number) else { return };
        task.phase = Phase::Done;
        let verdict = match (task.why, result) {
            (None, Ok(())) => (Status::Completed, None),
            (None, Err(error)) => (Status::Failed, Some(error.clone())),
            (Some(Why::Cancelled), _) => (Status::Cancelled, None),
            (Some(Why::Session), _) => (Status::Cancelled, Some("its parent session ended".to_owned())),
            (Some(Why::Shutdown), _) => (Status::Cancelled, Some("the daemon was shut down".to_owned())),
            (Some(Why::Time(limit)), _) => {
                let limit = match (limit / 1000, limit % 1000) {
                    (0, ms) => format!("{ms}ms"),
                    (seconds, 0) => format!("{seconds}s"),
                    (seconds, ms) => format!("{seconds}.{ms:03}s"),
                };
                (Status::Failed, Some(format!("timed out after {limit}")))
            }
        };
        let kind = match verdict.0 {
            Status::Completed => EventKind::Completed,
            Status::Cancelled => EventKind::Cancelled,
            _ => EventKind::Failed,
        };
        task.verdict = Some(verdict);
        self.expected.events.push((task.id, kind));
        self.answer();
    }

    fn wait(&mut self, to: ReplyTo, tasks: Vec<TaskId>, kind: Kind) {
        self.calls.push(Call { to: Some(to), tasks, kind });
        self.answer();
    }

    fn is_over(&self, call: &Call) -> bool {
        let done = |id: &TaskId| self.get(*id).is_none_or(|task| task.phase == Phase::Done);
        let settled = |id: &TaskId| self.get(*id).is_none_or(Known::settled);
        match call.kind {
            Kind::Block { any: true, .. } => call.tasks.is_empty() || call.tasks.iter().any(done),
            Kind::Block { any: false, .. } => call.tasks.iter().all(done),
            _ => call.tasks.iter().all(settled),
        }
    }

    /// Answers every call whose wait is over.
    fn answer(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        let (mut over, waiting): (Vec<Call>, Vec<Call>) =
            calls.into_iter().partition(|call| self.is_over(call));
        self.calls = waiting;
        over.sort_by_key(|call| call.kind.rank());
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

    /// What a summary must say: those that were cleared meanwhile are in it as they were last.
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
