//! A world around the core: a fake clock, fake executors with misbehaving processes, and clients. All effects of the
//! core are compared with the model's expectations.

mod check;
mod jobs;
mod memory;
mod notices;
mod order;
mod orders;
mod procs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_core::{
    Cancel, Core, CoreLimits, Effect, Fact, Filter, HistoryLimits, Input, LeavePolicy, Lingering, ListQuery,
    Mono, Now, Ordinal, ReplyTo, Request, Selection, Snapshot, Work,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::ready::Ready;
use bgd_shared::request::BlockUntil;
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::expected::Reached;
use super::model::Model;
use super::ops::{CLIENTS, Change, Form, Op, Patience, Pick, SESSIONS, StartMode, Which};
use super::support::{ENV_MARK, KILL, command, configure, env, exited, prompt, settings, turn_ended};
use jobs::Jobs;
use notices::Post;
use order::{batch_id, group_name};
use procs::{Proc, ProcState};

pub type Checked<T = ()> = Result<T, TestCaseError>;

/// Number of steps that a deserialised copy runs beside the original.
const TWIN_STEPS: u32 = 12;

/// Number of steps in which a core that has exited still gets requests.
const STEPS_AFTER_EXIT: u32 = 10;

#[derive(Debug)]
pub struct Sim {
    core: Core,
    /// Whether changes are persisted for a next daemon.
    is_durable: bool,
    /// The persisted row of each task.
    rows: BTreeMap<Ordinal, Snapshot>,
    twin: Option<(Core, u32)>,
    model: Model,
    now: Now,
    procs: Vec<Proc>,
    /// Calls without a reply so far.
    open: BTreeSet<ReplyTo>,
    /// The resumes among the open calls. They get replies even if their client has disconnected.
    resumes: BTreeSet<ReplyTo>,
    /// The latest run of each task, and its environment.
    runs: BTreeMap<TaskId, (u32, Arc<Env>)>,
    /// How agent tasks have ended, which only an accepted resume may change.
    ended: BTreeMap<TaskId, String>,
    /// The knowledge of clients and other programs about their present and former jobs.
    jobs: Jobs,
    /// Notices sent, and their recipients.
    post: Post,
    /// The connection number of each client; every disconnect assigns a new one.
    clients: [u64; CLIENTS],
    calls: u64,
    submitted: u64,
    seq: u64,
    /// The latest lifecycle event of each task.
    latest_events: BTreeMap<TaskId, EventKind>,
    /// The rest of its tree and the usage that the latest event of each ended task showed.
    rests: BTreeMap<TaskId, (Lingering, Option<Usage>)>,
    /// The latest start of each task that an event showed.
    starts: BTreeMap<TaskId, Timestamp>,
    after_exit: u32,
    pub steps: u64,
    /// How often each of the rarer situations occurred.
    pub reached: Reached,
}

/// Returns the limits of the history. The model does not know the memory of tasks; example tests cover that limit.
fn kept_for((age_ms, bytes, tasks): (u64, u64, usize)) -> HistoryLimits {
    HistoryLimits { age_ms, bytes, tasks, memory: usize::MAX }
}

impl Sim {
    pub fn new(is_durable: bool) -> Self {
        let limits = CoreLimits {
            inbox_items: 3,
            grace_ms: 500,
            tasks: 24,
            memory: 1 << 20,
            ..super::support::limits(2)
        };
        let mut core = Core::new(limits, BTreeMap::new());
        if is_durable {
            core.track();
        }
        Self {
            core,
            is_durable,
            rows: BTreeMap::new(),
            twin: None,
            model: Model::new(limits, is_durable),
            now: Now { mono: Mono(1), wall: Timestamp::from_unix_ms(1_700_000_000_000) },
            procs: Vec::new(),
            open: BTreeSet::new(),
            resumes: BTreeSet::new(),
            runs: BTreeMap::new(),
            ended: BTreeMap::new(),
            jobs: Jobs::default(),
            post: Post::default(),
            clients: std::array::from_fn(|client| client as u64),
            calls: 0,
            submitted: 0,
            seq: 0,
            latest_events: BTreeMap::new(),
            rests: BTreeMap::new(),
            starts: BTreeMap::new(),
            after_exit: 0,
            steps: 0,
            reached: Reached::new(),
        }
    }

    /// Executes every step of a history, and brings each world to its end.
    pub fn run(&mut self, ops: &[Op]) -> Checked {
        for op in ops {
            self.op(op)?;
            self.after_exit += u32::from(self.model.exited);
            if self.after_exit > STEPS_AFTER_EXIT {
                self.drain()?;
                let reached = std::mem::take(&mut self.reached);
                *self = Self { steps: self.steps, reached, ..Self::new(self.is_durable) };
            }
        }
        self.drain()
    }

    /// Lets everything end, clears everything, and checks that nothing is left.
    fn drain(&mut self) -> Checked {
        self.end_procs()?;
        // Tasks that wait for something that never comes, and tasks that start again and again.
        let which = Selection::All { session: None };
        self.request(0, Request::Cancel(Cancel { which, signal: Some(KILL), grace_ms: None }))?;
        self.end_procs()?;
        self.advance(10_000, true, 0)?;
        prop_assert!(self.open.is_empty(), "calls were never answered: {:?}", self.open);
        prop_assert_eq!(self.core.summary().active(), 0, "tasks are stuck");
        prop_assert_eq!(self.model.unanswered(), 0, "calls were never answered");
        for id in self.latest_events.keys() {
            let status = self.model.get(*id).map(super::model::Known::status);
            prop_assert!(status.is_none_or(|status| !status.is_active()), "{id} has no terminal event");
        }
        self.request(0, Request::Clear { which: Selection::All { session: None }, active_too: true })?;
        prop_assert_eq!(self.core.deadline(), None);
        for client in 0..CLIENTS {
            self.disconnect(client)?;
        }
        for session in 0..SESSIONS {
            self.request(0, Request::EndSession { session: session_key(session) })?;
        }
        self.nothing_is_left()
    }

    /// Lets everything that is running end successfully.
    fn end_procs(&mut self) -> Checked {
        while let Some(proc) = self.procs.first() {
            let fact = match (proc.state, proc.is_agent) {
                (ProcState::Spawning, _) => Fact::Started { pid: None },
                (_, true) => turn_ended(),
                (ProcState::Alive, false) => exited(0, false),
                (ProcState::Others, false) => Fact::TreeEmpty,
            };
            self.fact_of(0, fact)?;
        }
        Ok(())
    }

    fn nothing_is_left(&self) -> Checked {
        let json = serde_json::to_value(&self.core).map_err(|error| fail(&error))?;
        for index in ["/registry/tasks", "/registry/by_id", "/registry/sessions"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        for index in ["by_id", "by_task", "by_client", "removals"] {
            prop_assert!(is_empty(&json, &format!("/waiters/{index}")), "{index} is not empty: {json}");
        }
        for index in ["/timers", "/foreground"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        for index in ["by_session", "items", "losses", "waits", "by_client"] {
            prop_assert!(is_empty(&json, &format!("/inboxes/{index}")), "{index} is not empty: {json}");
        }
        for index in ["/owners/by_client", "/owners/counts"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        for index in ["/wall_timers", "/dependents", "/queue/numbers", "/queue/startable"] {
            prop_assert!(is_empty(&json, index), "{index} is not empty: {json}");
        }
        for (_, group) in json["queue"]["groups"].as_object().into_iter().flatten() {
            prop_assert!(is_empty(group, "/waiting"), "somebody still waits: {json}");
            prop_assert_eq!(&group["numbers"]["top"], &serde_json::Value::from(0));
        }
        prop_assert_eq!(&json["inboxes"]["bytes"], &serde_json::Value::from(0));
        prop_assert_eq!(self.core.held(), 0, "nothing is left that could hold memory");
        prop_assert_eq!(self.core.summary().total(), 0);
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Checked {
        match op {
            Op::Submit { .. } => self.submit(op),
            Op::Detach { client, pick, aimed, by_owner, twice } => {
                let id = self.aim(pick, &self.model.jobs(), *aimed);
                self.detach(*client, &id, *by_owner, *twice)
            }
            Op::Adopt { client, session, key, time_limit } => {
                self.adopt(*client, *session, *key, *time_limit)
            }
            Op::Resume { client, pick, aimed, prompt } => {
                let id = self.aim(pick, &self.model.completed_by_agents(), *aimed);
                let (text, settings) = (format!("prompt {prompt}").into(), Box::new(settings(*prompt)));
                self.request(*client, Request::Resume { id, prompt: text, settings })
            }
            Op::Answer { client, pick, aimed, question, option } => {
                let id = self.aim(pick, &self.model.asking(), *aimed);
                let agent = self.core.get(&id).ok().and_then(|task| task.agent);
                let waiting = agent
                    .and_then(|agent| agent.questions.get(question % (agent.questions.len() + 1)).cloned());
                let request = waiting.map_or(*question as u64, |question| question.request);
                let option =
                    ["yes", "no", "perhaps"].get(usize::from(*option)).map(|option| (*option).into());
                self.request(*client, Request::Answer { id, request, option })
            }
            Op::Block { client, picks, timeout, mode, ready } => {
                let (mode, until) = (*mode, if *ready { BlockUntil::Ready } else { BlockUntil::Ended });
                let (ids, timeout_ms) = (self.refs(picks), timeout.map(u64::from));
                let which = Selection::Ids(ids);
                self.request(*client, Request::Block { which, timeout_ms, mode, until })
            }
            Op::Many { .. } => self.many(op),
            Op::Pause { .. } | Op::Cancel { .. } | Op::Clear { .. } | Op::EndSession { .. } => self.end(op),
            Op::Hold { .. } | Op::Edit { .. } | Op::Group { .. } => self.order(op),
            Op::Own { .. } | Op::ReadInbox { .. } | Op::Acknowledge { .. } => self.correspond(op),
            Op::Signal { client, pick, signal, tree } => {
                let id = self.reference(pick);
                self.request(*client, Request::Signal { id, signal: *signal, tree: *tree })
            }
            Op::Retrieve { client, pick, complete } => {
                let id = self.reference(pick);
                self.request(*client, Request::Retrieve { id, complete: *complete })
            }
            Op::Shutdown { client, grace, cancels } => {
                let leaves = if *cancels { LeavePolicy::Nothing } else { LeavePolicy::All };
                self.request(*client, Request::Shutdown { grace_ms: grace.map(u64::from), leaves })
            }
            Op::Disconnect { client } => self.disconnect(*client),
            Op::Configure { max_concurrent_tasks, tasks, memory, grace, inbox_items, history } => {
                let limits = CoreLimits {
                    max_concurrent_tasks: *max_concurrent_tasks,
                    tasks: *tasks,
                    // As in `kept_for`: finished tasks would give way to others.
                    memory: if history.is_some() { 1 << 30 } else { *memory },
                    environments: 1 << 20,
                    grace_ms: *grace,
                    inbox_items: *inbox_items,
                    history: history.map(kept_for),
                };
                self.input(&configure(limits))
            }
            Op::HoldStarts(holds) => self.input(&Input::HoldStarts(*holds)),
            Op::Advance { ms, late, wall_jump } => self.advance(*ms, *late, *wall_jump),
            Op::Act { proc, roll } => self.act(*proc, *roll),
            Op::Relapse { pick } => self.relapse(*pick),
            Op::Stale { pick, kind, fact } => self.stale(*pick, *kind, *fact),
            Op::Reload => self.reload(),
            Op::List { session, status, limit } => self.list(*session, *status, *limit),
        }
    }

    /// Pauses, cancels or clears tasks, or ends a session.
    fn end(&mut self, op: &Op) -> Checked {
        match op {
            Op::Pause { client, which, paused } => {
                let which = self.selection(which);
                self.request(*client, Request::SetPaused { which, paused: *paused })
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
            _ => Ok(()),
        }
    }

    /// Changes the order of tasks.
    fn order(&mut self, op: &Op) -> Checked {
        match op {
            Op::Hold { client, which, held } => {
                let which = self.selection(which);
                self.request(*client, Request::Hold { which, held: *held })
            }
            Op::Edit { .. } => self.edit(op),
            Op::Group { client, group, change } => {
                let name = group_name(*group);
                let request = match *change {
                    Change::Slots(slots) => Request::SetGroup { name, slots },
                    Change::Pause(paused) => Request::PauseGroup { name, paused },
                    Change::Remove => Request::RemoveGroup { name },
                };
                self.request(*client, request)
            }
            _ => Ok(()),
        }
    }

    /// Executes operations on sessions and their inboxes.
    fn correspond(&mut self, op: &Op) -> Checked {
        match op {
            Op::Own { client, session } => {
                self.request(*client, Request::OwnSession { session: session_key(*session) })
            }
            Op::ReadInbox { client, session, after, wait, limit } => {
                let (session, after) = (session_key(*session), self.mark(*after));
                let (wait_ms, limit) = (wait.unwrap_or_default().into(), *limit);
                self.request(*client, Request::ReadInbox { session, after, wait_ms, limit })
            }
            Op::Acknowledge { client, session, upto } => {
                let (session, upto) = (session_key(*session), self.mark(*upto));
                self.request(*client, Request::AckInbox { session, upto })
            }
            _ => Ok(()),
        }
    }

    fn submit(&mut self, op: &Op) -> Checked {
        let Op::Submit { client, session, key, env: env_number, time_limit, agent, place, plan, ready } = op
        else {
            return Ok(());
        };
        self.submitted += 1;
        let id = new_id(self.submitted);
        let mut command = match agent {
            None => command(id),
            Some(Patience { silence, question }) => {
                let mut command = prompt(id, (*silence).into(), (*question).into());
                if let Work::Agent(work) = &mut command.spec.work {
                    work.settings = Arc::new(settings(silence.to_le_bytes()[0]));
                }
                command
            }
        };
        command.env = env(*env_number);
        command.key = key.map(key_text);
        command.spec.session = session.map(session_key);
        command.spec.time_limit_ms = time_limit.map(u64::from);
        if let (Some(ready), None) = (ready, agent) {
            command.spec.ready = Some(Box::new(Ready::Notify));
            command.spec.ready_timeout_ms = ready.timeout.map(u64::from);
        }
        command.spec.direct = *place == StartMode::Direct;
        command.foreground = *place != StartMode::Background;
        if let Some(plan) = plan.as_ref().filter(|_| *place == StartMode::Background) {
            command.plan = self.plan(plan);
        }
        self.submit_job(*client, command)
    }

    /// Returns one of the targets if `aimed`, else any task.
    fn aim(&self, pick: &Pick, targets: &[TaskId], aimed: bool) -> TaskRef {
        match targets.get(pick.index % targets.len().max(1)) {
            Some(target) if aimed => (*target).into(),
            _ => self.reference(pick),
        }
    }

    pub(super) fn advance(&mut self, ms: u64, late: bool, wall_jump: i64) -> Checked {
        let until = self.now.mono.plus_ms(ms);
        let elapsed = i64::try_from(ms).unwrap_or_default();
        self.now.wall = Timestamp::from_unix_ms(self.now.wall.unix_ms() + elapsed + wall_jump);
        if self.core.wall_deadline().is_some_and(|due| due <= self.now.wall) {
            self.reach("starts at a time");
        }
        while let Some(due) = self.core.deadline().filter(|due| !late && *due <= until) {
            self.now.mono = self.now.mono.max(due);
            self.on_deadline()?;
        }
        self.now.mono = until;
        self.on_deadline()
    }

    fn request(&mut self, client: usize, request: Request) -> Checked {
        self.calls += 1;
        let to = ReplyTo { client: self.clients[client], call: self.calls };
        self.open.insert(to);
        if matches!(request, Request::Resume { .. }) {
            self.resumes.insert(to);
        }
        self.post.asked(to, &request, self.now.mono);
        self.input(&Input::Request { to, request })?;
        self.post.waits(to);
        Ok(())
    }

    fn input(&mut self, input: &Input) -> Checked {
        self.weigh(input)?;
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
        self.check(expected, effects)?;
        self.nobody_outlives_the_grace()
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

    /// Serialises the core and reads it back: nothing is lost, and environments are kept only where a start still needs
    /// them. The copy then runs beside the original for a while, and replaces it.
    fn reload(&mut self) -> Checked {
        let text = serde_json::to_string(&self.core).map_err(|error| fail(&error))?;
        let needed = self.model.pending() + self.model.resumable() + self.model.with_rules() + self.model.staged.len()
            // Every task except adopted ones can be submitted again.
            + self.model.live.values().filter(|task| !task.is_adopted).count()
            + self.model.starting_again();
        prop_assert_eq!(text.matches(ENV_MARK).count(), needed, "environments are kept");
        let mut copy: Core = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        if self.is_durable {
            copy.track();
        }
        let again = serde_json::to_value(&copy).map_err(|error| fail(&error))?;
        let first: serde_json::Value = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        prop_assert_eq!(&first, &again);
        let sessions = first["registry"]["sessions"].as_object().into_iter().flatten();
        let keys = sessions.filter_map(|(_, session)| session["keys"].as_object());
        let keys: usize = keys.map(serde_json::Map::len).sum();
        prop_assert_eq!(keys, self.model.keys(), "keys of cleared tasks are kept");
        self.index_of_jobs_is_true(&first)?;
        self.twin = Some((copy, TWIN_STEPS));
        self.on_deadline()
    }

    /// Walks the pages of a list: it has each task once, newest first, and the counts are right.
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
        let filter = Filter { session: session.clone(), status: status.into(), ..Filter::default() };
        let mut query = ListQuery { filter, limit, ..ListQuery::default() };
        let mut found = Vec::new();
        loop {
            let page = self.core.list(&query).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            prop_assert!(page.tasks.len() <= limit);
            prop_assert_eq!(page.summary, self.model.summary(session.as_deref()));
            for task in &page.tasks {
                let agrees = self.model.get(task.id).is_some_and(|known| known.agrees(task));
                prop_assert!(agrees, "{:?} is not {:?}", task, self.model.get(task.id));
                self.is_shown_rightly(task)?;
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
            Which::Group(group) => {
                let group = Some(group_name(*group));
                Selection::Matching(Box::new(Filter {
                    group,
                    status: [Status::Pending, Status::Running].into(),
                    ..Filter::default()
                }))
            }
            Which::Batch(index) => {
                let batches: Vec<TaskId> = self.model.batches.keys().copied().collect();
                let batch = batches.get(*index).copied().unwrap_or_else(|| batch_id(0));
                Selection::Matching(Box::new(Filter { batch: Some(batch.into()), ..Filter::default() }))
            }
            Which::Session(session) => Selection::All { session: Some(session_key(*session)) },
        }
    }
}

fn prefix(id: TaskId, length: usize) -> TaskRef {
    let text = id.to_string();
    text[..length].parse().unwrap_or_else(|_| id.into())
}

fn key_text(key: u8) -> Arc<str> {
    Arc::from(format!("key {key}"))
}

fn session_key(session: u8) -> Arc<str> {
    Arc::from(format!("tmux:%{}", session % SESSIONS))
}

/// Returns an id that often shares its first characters with others, and ends with the submission number.
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

fn fail_with(why: String) -> Checked {
    Err(TestCaseError::fail(why))
}

fn fail(error: &serde_json::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
