//! A world around the core: a fake clock, fake executors with processes that behave badly, and clients.
//! Everything that the core does is compared with what the model expects.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bgd::core::{
    Cancel, Core, CoreLimits, Effect, Fact, Input, ListQuery, Mono, Now, ReplyTo, Request, Selection,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::BlockMode;
use bgd_shared::task::{Exit, Status};
use bgd_shared::time::Timestamp;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::expected::{Answer, Expected, Reached};
use super::model::{Model, Phase};
use super::ops::{CLIENTS, Form, Op, Pick, SESSIONS, Stale, Which};
use super::support::{ENV_MARK, KILL, command, env, exited};

pub type Checked<T = ()> = Result<T, TestCaseError>;

/// How many steps a copy that was read back runs beside the original.
const TWIN_STEPS: u32 = 12;

/// How many steps a closed core is still asked things.
const STEPS_AFTER_EXIT: u32 = 10;

/// A process tree as its executor knows it. One that is gone has none.
#[derive(Debug)]
struct Proc {
    task: TaskId,
    state: ProcState,
    killed: bool,
    told: bool,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcState {
    /// The executor is about to start it.
    Spawning,
    Alive,
    /// The leader has ended, and others have not.
    Others,
}

#[derive(Debug)]
pub struct Sim {
    core: Core,
    twin: Option<(Core, u32)>,
    model: Model,
    now: Now,
    procs: Vec<Proc>,
    /// The connection number of each client; a new one after each disconnect.
    clients: [u64; CLIENTS],
    calls: u64,
    submitted: u64,
    seq: u64,
    /// The latest turn of life that each task's events have told of.
    told: BTreeMap<TaskId, EventKind>,
    after_exit: u32,
    /// Steps that were made.
    pub steps: u64,
    /// How often the worlds came to the rarer places.
    pub reached: Reached,
}

impl Sim {
    pub fn new() -> Self {
        let limits = CoreLimits { max_concurrent_tasks: 2, tasks: 24, grace_ms: 500 };
        Self {
            core: Core::new(limits),
            twin: None,
            model: Model::new(limits),
            now: Now { mono: Mono(1), wall: Timestamp::from_unix_ms(1_700_000_000_000) },
            procs: Vec::new(),
            clients: std::array::from_fn(|client| client as u64),
            calls: 0,
            submitted: 0,
            seq: 0,
            told: BTreeMap::new(),
            after_exit: 0,
            steps: 0,
            reached: Reached::new(),
        }
    }

    /// Makes every step of a history, and brings each world to its end.
    pub fn run(&mut self, ops: &[Op]) -> Checked {
        for op in ops {
            self.op(op)?;
            self.after_exit += u32::from(self.model.exited);
            if self.after_exit > STEPS_AFTER_EXIT {
                self.drain()?;
                let reached = std::mem::take(&mut self.reached);
                *self = Self { steps: self.steps, reached, ..Self::new() };
            }
        }
        self.drain()
    }

    /// Lets everything end, clears everything, and looks that nothing is left.
    fn drain(&mut self) -> Checked {
        while !self.procs.is_empty() {
            let (task, fact) = match self.procs[0].state {
                ProcState::Spawning => (self.procs[0].task, Fact::Started { pid: 1 }),
                ProcState::Alive => (self.procs[0].task, exited(0, false)),
                ProcState::Others => (self.procs[0].task, Fact::TreeEmpty),
            };
            self.fact_of(0, task, fact)?;
        }
        prop_assert_eq!(self.core.summary().active(), 0, "tasks are stuck");
        prop_assert_eq!(self.model.unanswered(), 0, "calls were never answered");
        for id in self.told.keys() {
            let status = self.model.get(*id).map(super::model::Known::status);
            prop_assert!(status.is_none_or(|status| !status.is_active()), "{id} has no terminal event");
        }
        self.request(0, Request::Clear { which: Selection::All { session: None }, active_too: true })?;
        prop_assert_eq!(self.core.deadline(), None);
        self.nothing_is_left()
    }

    fn nothing_is_left(&self) -> Checked {
        let json = serde_json::to_value(&self.core).map_err(|error| fail(&error))?;
        for index in ["/registry/tasks", "/registry/by_id", "/registry/sessions"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        for index in ["/waiters/by_id", "/waiters/by_task", "/waiters/by_client", "/timers"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        prop_assert_eq!(&json["slots_used"], 0);
        prop_assert_eq!(self.core.summary().total(), 0);
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Checked {
        match op {
            Op::Submit { client, session, key, env, time_limit } => {
                self.submit(*client, *session, *key, *env, *time_limit)
            }
            Op::Block { client, picks, timeout, any } => {
                let mode = if *any { BlockMode::Any } else { BlockMode::All };
                let (ids, timeout_ms) = (self.refs(picks), timeout.map(u64::from));
                self.request(*client, Request::Block { ids, timeout_ms, mode })
            }
            Op::Cancel { client, which, signal, grace } => {
                let (which, grace_ms) = (self.selection(which), grace.map(u64::from));
                self.request(*client, Request::Cancel(Cancel { which, signal: *signal, grace_ms }))
            }
            Op::Clear { client, which, active_too } => {
                let which = self.selection(which);
                self.request(*client, Request::Clear { which, active_too: *active_too })
            }
            Op::EndSession { client, session } => {
                self.request(*client, Request::EndSession { session: session_key(*session) })
            }
            Op::Signal { client, pick, signal, tree } => {
                let id = self.reference(pick);
                self.request(*client, Request::Signal { id, signal: *signal, tree: *tree })
            }
            Op::Retrieve { client, pick, complete } => {
                let id = self.reference(pick);
                self.request(*client, Request::Retrieve { id, complete: *complete })
            }
            Op::Shutdown { client, grace } => {
                self.request(*client, Request::Shutdown { grace_ms: grace.map(u64::from) })
            }
            Op::Disconnect { client } => {
                let gone = self.clients[*client];
                self.clients[*client] += CLIENTS as u64;
                self.input(&Input::Disconnected { client: gone })
            }
            Op::Configure { max_concurrent_tasks, tasks, grace } => {
                let (max_concurrent_tasks, tasks, grace_ms) = (*max_concurrent_tasks, *tasks, *grace);
                self.input(&Input::Configure(CoreLimits { max_concurrent_tasks, tasks, grace_ms }))
            }
            Op::Advance { ms, late, wall_jump } => self.advance(*ms, *late, *wall_jump),
            Op::Act { proc, roll } => self.act(*proc, *roll),
            Op::Stale { pick, kind, fact } => self.stale(*pick, *kind, *fact),
            Op::Reload => self.reload(),
            Op::List { session, status, limit } => self.list(*session, *status, *limit),
        }
    }

    fn submit(
        &mut self,
        client: usize,
        session: Option<u8>,
        key: Option<u8>,
        env_number: u8,
        time_limit: Option<u16>,
    ) -> Checked {
        self.submitted += 1;
        let mut command = command(new_id(self.submitted));
        command.env = env(env_number);
        command.key = key.map(|key| Arc::from(format!("key {key}")));
        command.spec.session = session.map(session_key);
        command.spec.time_limit_ms = time_limit.map(u64::from);
        self.request(client, Request::Submit(Box::new(command)))
    }

    fn advance(&mut self, ms: u64, late: bool, wall_jump: i64) -> Checked {
        let until = self.now.mono.plus_ms(ms);
        let elapsed = i64::try_from(ms).unwrap_or_default();
        self.now.wall = Timestamp::from_unix_ms(self.now.wall.unix_ms() + elapsed + wall_jump);
        while let Some(due) = self.core.deadline().filter(|due| !late && *due <= until) {
            self.now.mono = self.now.mono.max(due);
            self.on_deadline()?;
        }
        self.now.mono = until;
        self.on_deadline()
    }

    /// What a process does next. Told to end, it often does; SIGKILL it can't ignore.
    fn act(&mut self, proc: usize, roll: u8) -> Checked {
        if self.procs.is_empty() {
            return self.on_deadline();
        }
        let index = proc % self.procs.len();
        let proc = &mut self.procs[index];
        let task = proc.task;
        let fact = match (proc.state, proc.killed, proc.told, roll) {
            (ProcState::Spawning, _, _, ..30) => Fact::StartFailed { error: "no such program".into() },
            (ProcState::Spawning, ..) => Fact::Started { pid: i32::from(roll) + 1 },
            (ProcState::Alive, true, ..) => Fact::Exited { exit: Exit::Signal(9), others: roll < 60 },
            (ProcState::Alive, _, true, ..120) => Fact::Exited { exit: Exit::Signal(15), others: roll < 40 },
            (ProcState::Alive, _, _, 120..160) => exited(0, roll < 130),
            (ProcState::Alive, _, _, 160..180) => exited(i32::from(roll), roll < 165),
            (ProcState::Alive, _, _, 180..185) => {
                Fact::Exited { exit: Exit::Unknown("another has reaped it".into()), others: false }
            }
            (ProcState::Others, true, ..) | (ProcState::Others, _, _, ..100) => Fact::TreeEmpty,
            (ProcState::Alive | ProcState::Others, ..) => {
                proc.bytes += u64::from(roll);
                Fact::Output { bytes: proc.bytes, dropped: [0; 2], tell: roll & 1 == 1 }
            }
        };
        self.fact_of(index, task, fact)
    }

    /// A process has done something: the executor notes it and reports it.
    fn fact_of(&mut self, index: usize, task: TaskId, fact: Fact) -> Checked {
        match &fact {
            Fact::Started { .. } => self.procs[index].state = ProcState::Alive,
            Fact::Exited { others: true, .. } => self.procs[index].state = ProcState::Others,
            Fact::StartFailed { .. } | Fact::Exited { .. } | Fact::TreeEmpty => {
                self.procs.remove(index);
            }
            Fact::Output { .. } => {}
        }
        self.input(&Input::Fact { task, run: 1, fact })
    }

    /// A fact that must change nothing.
    fn stale(&mut self, pick: usize, kind: Stale, fact: usize) -> Checked {
        let settled = |id: &TaskId| {
            self.procs.iter().all(|proc| proc.task != *id)
                && self.model.get(*id).is_some_and(|task| task.phase == Phase::Done)
        };
        let candidates: Vec<TaskId> = match kind {
            Stale::WrongRun => self.model.live.values().map(|task| task.id).collect(),
            Stale::Cleared => self.model.gone.values().rev().take(8).map(|(id, _)| *id).collect(),
            Stale::Settled => self.model.live.values().map(|task| task.id).filter(settled).collect(),
        };
        let Some(task) = candidates.get(pick % candidates.len().max(1)).copied() else { return Ok(()) };
        let run = if matches!(kind, Stale::WrongRun) { 2 } else { 1 };
        let bytes = self.core.get(&task.into()).map_or(7, |task| task.output_bytes);
        let fact = match fact {
            0 => Fact::Started { pid: 77 },
            1 => Fact::StartFailed { error: "too late".into() },
            2 => exited(0, true),
            3 => Fact::TreeEmpty,
            _ => Fact::Output { bytes, dropped: [0; 2], tell: true },
        };
        let before = self.core.get(&task.into()).ok();
        self.input(&Input::Fact { task, run, fact })?;
        let after = self.core.get(&task.into()).ok();
        prop_assert_eq!(before.map(|task| task.state), after.map(|task| task.state));
        Ok(())
    }

    fn request(&mut self, client: usize, request: Request) -> Checked {
        self.calls += 1;
        let to = ReplyTo { client: self.clients[client], call: self.calls };
        self.input(&Input::Request { to, request })
    }

    fn input(&mut self, input: &Input) -> Checked {
        let expected = self.model.input(self.now, input);
        let effects = self.core.handle(self.now, input.clone());
        let now = self.now;
        self.compare_twin(&effects, |twin| twin.handle(now, input.clone()))?;
        self.check(expected, effects)
    }

    fn on_deadline(&mut self) -> Checked {
        let expected = self.model.deadline(self.now);
        let effects = self.core.on_deadline(self.now);
        let now = self.now;
        self.compare_twin(&effects, |twin| twin.on_deadline(now))?;
        let next = self.core.deadline();
        prop_assert!(next.is_none_or(|next| next > now.mono), "{:?} at {:?}", next, now.mono);
        self.check(expected, effects)
    }

    fn compare_twin(&mut self, effects: &[Effect], step: impl FnOnce(&mut Core) -> Vec<Effect>) -> Checked {
        let Some((mut twin, left)) = self.twin.take() else { return Ok(()) };
        let copied = step(&mut twin);
        prop_assert_eq!(format!("{effects:?}"), format!("{copied:?}"));
        if left == 0 {
            self.core = twin;
            self.reach("copy goes on");
        } else {
            self.twin = Some((twin, left - 1));
        }
        Ok(())
    }

    /// Writes the core down and reads it back: nothing is lost, and environments are only where a start
    /// still needs them. The copy then runs beside the original for a while, and takes its place.
    fn reload(&mut self) -> Checked {
        let text = serde_json::to_string(&self.core).map_err(|error| fail(&error))?;
        prop_assert_eq!(text.matches(ENV_MARK).count(), self.model.pending(), "environments are kept");
        let copy: Core = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        let again = serde_json::to_value(&copy).map_err(|error| fail(&error))?;
        let first: serde_json::Value = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        prop_assert_eq!(&first, &again);
        let sessions = first["registry"]["sessions"].as_object().into_iter().flatten();
        let keys = sessions.filter_map(|(_, session)| session["keys"].as_object());
        let keys: usize = keys.map(serde_json::Map::len).sum();
        prop_assert_eq!(keys, self.model.keys(), "keys of cleared tasks are kept");
        self.twin = Some((copy, TWIN_STEPS));
        self.on_deadline()
    }

    /// Walks the pages of a list: each task once, the newest first, and the counts are right.
    fn list(&mut self, session: Option<u8>, statuses: u8, limit: usize) -> Checked {
        self.steps += 1;
        let session = session.map(session_key);
        let status: Vec<Status> =
            (0..6).filter(|bit| statuses & (1 << bit) != 0).map(|bit| Status::ALL[bit]).collect();
        let wanted = self.model.live.values().rev().filter(|task| {
            session.as_ref().is_none_or(|session| task.session.as_ref() == Some(session))
                && (status.is_empty() || status.contains(&task.status()))
        });
        let wanted: Vec<TaskId> = wanted.map(|task| task.id).collect();
        let mut query =
            ListQuery { session: session.as_deref().map(str::to_owned), status, limit, after: None };
        let mut found = Vec::new();
        loop {
            let page = self.core.list(&query);
            prop_assert!(page.tasks.len() <= limit);
            prop_assert_eq!(page.summary, self.model.summary(session.as_deref()));
            for task in &page.tasks {
                let agrees = self.model.get(task.id).is_some_and(|known| known.agrees(task));
                prop_assert!(agrees, "{:?} is not {:?}", task, self.model.get(task.id));
            }
            found.extend(page.tasks.iter().map(|task| task.id));
            query.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        prop_assert_eq!(found, wanted);
        Ok(())
    }

    /// Compares what the core did with what it should have done, and looks at every rule that holds
    /// after each step.
    fn check(&mut self, mut expected: Expected, effects: Vec<Effect>) -> Checked {
        self.steps += 1;
        let mut done = Expected::default();
        let mut forgotten = HashSet::new();
        for effect in effects {
            prop_assert!(!done.exit, "something comes after the exit: {:?}", effect);
            match effect {
                Effect::Start { task, run, spec, env: _ } => {
                    let known = self.model.get(task);
                    prop_assert!(run == 1 && known.is_some_and(|known| known.session == spec.session));
                    let (state, killed, told) = (ProcState::Spawning, false, false);
                    self.procs.push(Proc { task, state, killed, told, bytes: 0 });
                    done.starts.push(task);
                }
                Effect::End { task, run, signal } => {
                    let proc = self.living(task);
                    prop_assert!(run == 1 && proc.is_some(), "nobody is left to be ended");
                    if let Some(proc) = proc {
                        proc.told = true;
                        proc.killed |= signal == KILL;
                    }
                    done.ends.push((task, signal));
                }
                Effect::Signal { task, run, signal, tree } => {
                    prop_assert!(run == 1 && self.living(task).is_some(), "nobody is left to be told");
                    done.signals.push((task, signal, tree));
                }
                Effect::Forget { task } => {
                    forgotten.insert(task);
                    prop_assert!(self.living(task).is_none(), "forgotten while it lives");
                    done.forgets.push(task);
                }
                Effect::Reply { to, reply } => {
                    let answer = Answer::from(&reply);
                    self.reply_follows_its_effect(&answer)?;
                    prop_assert!(self.clients.contains(&to.client), "a client that is gone is answered");
                    prop_assert!(done.replies.insert(to, answer).is_none(), "answered twice");
                }
                Effect::Event { seq, at, kind, task } => {
                    prop_assert_eq!(seq, self.seq + 1);
                    prop_assert_eq!(at, self.now.wall);
                    self.seq = seq;
                    prop_assert!(kind != EventKind::Cleared || forgotten.contains(&task.id));
                    self.life_goes_on(kind, task.id, task.status())?;
                    done.events.push((task.id, kind));
                }
                Effect::Exit => done.exit = true,
            }
        }
        for effects in [&mut expected, &mut done] {
            effects.ends.sort_by_key(|(task, _)| *task);
            effects.events.sort_by_key(|(task, _)| *task);
            effects.forgets.sort();
        }
        prop_assert_eq!(&done, &expected);
        done.places().into_iter().for_each(|place| self.reach(place));
        self.rules_after_each_step(&done)
    }

    fn reach(&mut self, place: &'static str) {
        *self.reached.entry(place).or_default() += 1;
    }

    /// The process of a task that can be given signals.
    fn living(&mut self, task: TaskId) -> Option<&mut Proc> {
        self.procs.iter_mut().find(|proc| proc.task == task && proc.state != ProcState::Spawning)
    }

    /// A task that an answer shows as ended was told of as ended before.
    fn reply_follows_its_effect(&self, answer: &Answer) -> Checked {
        let tasks = match answer {
            Answer::Tasks(tasks) | Answer::Blocked { tasks, .. } => tasks.as_slice(),
            Answer::Task(id, status) => &[(*id, *status)],
            _ => &[],
        };
        for (id, status) in tasks {
            let told = self.told.get(id);
            let told_end = told.is_some_and(|kind| kind.is_terminal() || *kind == EventKind::Cleared);
            prop_assert!(told_end != status.is_active(), "{id} is {status}, told: {told:?}");
        }
        Ok(())
    }

    /// `submitted` comes first, `started` once at most, one terminal event, `cleared` last.
    fn life_goes_on(&mut self, kind: EventKind, id: TaskId, status: Status) -> Checked {
        use EventKind::{Cancelled, Cleared, Completed, Failed, Output, Started, Submitted};
        let before = self.told.get(&id).copied();
        let (fits, shown) = match kind {
            Submitted => (before.is_none(), status == Status::Pending),
            Started => (before == Some(Submitted), status == Status::Running),
            Output => (before == Some(Started), status == Status::Running),
            Completed => (before == Some(Started), status == Status::Completed),
            Failed => (matches!(before, Some(Submitted | Started)), status == Status::Failed),
            Cancelled => (matches!(before, Some(Submitted | Started)), status == Status::Cancelled),
            Cleared => (before.is_some_and(EventKind::is_terminal), !status.is_active()),
            _ => (false, false),
        };
        prop_assert!(fits && shown, "{:?} after {:?}, with a task that is {}", kind, before, status);
        match kind {
            Output => {}
            Cleared => {
                self.told.insert(id, Cleared);
            }
            _ => {
                self.told.insert(id, kind);
            }
        }
        Ok(())
    }

    fn rules_after_each_step(&self, done: &Expected) -> Checked {
        let (model, limit) = (&self.model, self.model.limits.max_concurrent_tasks);
        let (slots, pending) = (model.slots(), model.pending());
        prop_assert!(done.starts.is_empty() || slots <= limit, "{slots} of {limit} slots are used");
        prop_assert!(pending == 0 || slots >= limit || model.closing, "a slot is idle");
        prop_assert_eq!(self.core.summary(), model.summary(None));
        prop_assert_eq!(self.core.deadline().map(|at| at.0), model.next_deadline());
        prop_assert_eq!(self.core.seq(), self.seq);
        prop_assert_eq!(self.core.is_closing(), model.closing);
        prop_assert!(!done.exit || (self.procs.is_empty() && model.unanswered() == 0));
        for (id, _) in &done.events {
            if let Some(known) = model.get(*id) {
                let task = self.core.get(&(*id).into());
                prop_assert!(task.is_ok_and(|task| known.agrees(&task)), "{:?}", known);
            }
        }
        Ok(())
    }

    fn refs(&self, picks: &[Pick]) -> Vec<TaskRef> {
        picks.iter().map(|pick| self.reference(pick)).collect()
    }

    fn reference(&self, pick: &Pick) -> TaskRef {
        let nobody = TaskId::from_u128(0xffff << 112);
        let live = self.model.live.values().nth(pick.index % self.model.live.len().max(1));
        let gone = self.model.gone.values().nth(pick.index % self.model.gone.len().max(1));
        match (pick.form, live, gone) {
            (Form::Whole, Some(task), _) => task.id.into(),
            (Form::Prefix(length), Some(task), _) => prefix(task.id, length),
            (Form::Cleared, _, Some((id, _))) => (*id).into(),
            (Form::Prefix(length), None, _) => prefix(nobody, length),
            (Form::Whole | Form::Cleared | Form::Unknown, ..) => nobody.into(),
        }
    }

    fn selection(&self, which: &Which) -> Selection {
        match which {
            Which::Ids(picks) => Selection::Ids(self.refs(picks)),
            Which::All => Selection::All { session: None },
            Which::Session(session) => Selection::All { session: Some(session_key(*session)) },
        }
    }
}

fn prefix(id: TaskId, length: usize) -> TaskRef {
    let text = id.to_string();
    text[..length].parse().unwrap_or_else(|_| id.into())
}

fn session_key(session: u8) -> Arc<str> {
    Arc::from(format!("tmux:%{}", session % SESSIONS))
}

/// Ids whose first characters are often the same, with the number of submission at their end.
fn new_id(number: u64) -> TaskId {
    let scattered = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    let first = u128::from(number % 5) << 112 | u128::from(number / 5 % 3) << 108;
    TaskId::from_u128(first | scattered << 64 | u128::from(number))
}

fn is_empty(json: &serde_json::Value, pointer: &str) -> bool {
    match json.pointer(pointer) {
        Some(serde_json::Value::Object(map)) => map.is_empty(),
        Some(serde_json::Value::Array(list)) => list.is_empty(),
        _ => false,
    }
}

fn fail(error: &serde_json::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
