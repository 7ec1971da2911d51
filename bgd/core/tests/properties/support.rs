//! Helpers for building inputs, and a desk for testing single rules by example.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_core::{
    AgentWork, Begin, Cancel, Command, Context, Control, Core, CoreError, CoreLimits, CostScope, Effect,
    Fact, Filter, Input, LAST_TOOLS, ListQuery, Mono, Now, PlanRequest, Refusal, Reply, ReplyTo, Report,
    Request, Selection, Snapshot, Spec, Tokens, Work,
};
use bgd_shared::agent::{AgentSettings, InputOption, OptionKind, Setting};
use bgd_shared::consumption::{Amount, Cost, PlanStep, StepStatus};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use bgd_shared::usage::Usage;

/// A value that occurs in every environment, and nowhere else.
pub const ENV_MARK: &str = "only-in-environments";

/// SIGHUP, SIGKILL and SIGTERM, as numbers like in the core.
pub const HUP: i32 = 1;
pub const KILL: i32 = 9;
pub const TERM: i32 = 15;

pub fn limits(max_concurrent_tasks: usize) -> CoreLimits {
    CoreLimits {
        max_concurrent_tasks,
        tasks: 1000,
        memory: 1 << 30,
        environments: 1 << 20,
        grace_ms: 5000,
        inbox_items: 100,
        history: None,
    }
}

/// Changes the limits, without groups other than the default one.
pub fn configure(limits: CoreLimits) -> Input {
    Input::Configure { limits, groups: BTreeMap::new() }
}

/// Returns an environment that depends on this number.
pub fn env(number: u8) -> Env {
    [("MARK".into(), OsText::from(format!("{ENV_MARK} {number}")))].into_iter().collect()
}

pub fn command(id: TaskId) -> Command {
    let spec = Spec { work: Work::Argv([OsText::from("true")].into()), umask: 0o022, ..Spec::of_daemon() };
    Command {
        id,
        spec,
        env: env(0),
        prompt: None,
        key: None,
        foreground: false,
        plan: PlanRequest::default(),
    }
}

/// Returns a prompt for an agent, with its limits of silence and for questions in milliseconds.
pub fn prompt(id: TaskId, stalled_after_ms: u64, ask_timeout_ms: u64) -> Command {
    let mut command = command(id);
    command.spec.work = Work::Agent(AgentWork {
        name: "fake".into(),
        stalled_after_ms,
        ask_timeout_ms,
        warning: None,
        settings: Arc::default(),
    });
    command.prompt = Some(FIRST_PROMPT.into());
    command
}

/// Returns settings that depend on this number; some of them leave options unset.
pub fn settings(number: u8) -> AgentSettings {
    let text = |has: bool, what: &str| has.then(|| format!("{what} {}", number / 8));
    let option = |name: &str, value| (name.to_owned(), value);
    let mut config = std::collections::BTreeMap::new();
    if number & 4 != 0 {
        config.extend([
            option("effort", Setting::Text(number.to_string())),
            option("fast", Setting::Flag(true)),
        ]);
    }
    AgentSettings { mode: text(number & 1 != 0, "mode"), model: text(number & 2 != 0, "model"), config }
}

/// How long an agent at the desk may be silent, and how long its questions wait, in milliseconds.
pub const STALLED_AFTER: u64 = 2000;
pub const ASK_TIMEOUT: u64 = 3000;

pub const FIRST_PROMPT: &str = "find the bug";

/// SIGKILL did not end the tree.
pub fn gave_up() -> Fact {
    Fact::GaveUp { why: "process 7 (cat) is waiting uninterruptibly in the kernel".into() }
}

pub fn exited(code: i32, others: bool) -> Fact {
    exited_as(Exit::Code(code), others)
}

pub fn exited_as(exit: Exit, others: bool) -> Fact {
    Fact::Exited { exit, others, at: None }
}

/// The usage of a process so far.
pub fn used(roll: u8) -> Fact {
    let (ms, peak) = (u64::from(roll), (roll & 1 == 1).then_some(1 << 20));
    Fact::Used(Usage { user_ms: ms, system_ms: ms / 2, peak_memory_bytes: peak, written_bytes: 0 })
}

/// An agent has made this many tool calls, all with this name.
pub fn tools(calls: u64, name: &str) -> Fact {
    Fact::Tools { calls, latest: (0..calls).take(LAST_TOOLS).map(|_| name.into()).collect() }
}

/// An agent was denied requests this many times; `what` is the last of them.
pub fn denied(times: u64, what: &str) -> Fact {
    Fact::Denied { times, what: what.into() }
}

/// An agent's consumption report; incomplete at times, and with a cost that sometimes decreases.
pub fn consumed(roll: u8) -> Fact {
    let number = u64::from(roll);
    let tokens = Tokens { input: number, output: number / 2, cached: 0 };
    let amount = Amount::of(f64::from(roll % 16) / 4.0).expect("it is not negative");
    Fact::Consumed(Box::new(Report {
        tokens: (roll & 1 == 0).then_some(tokens),
        context: (roll & 2 == 0).then_some(Context { tokens: number, size: Some(1000) }),
        cost: (roll & 4 == 0).then(|| (CostScope::Session, Cost { amount, currency: "USD".to_owned() })),
    }))
}

pub fn planned(roll: u8) -> Fact {
    let step = PlanStep { text: format!("step {roll}"), status: StepStatus::InProgress };
    Fact::Planned { steps: vec![step; usize::from(roll % 3)].into() }
}

/// The agent has ended its turn successfully.
pub fn turn_ended() -> Fact {
    Fact::TurnEnded { result: Ok(()) }
}

pub fn turn_failed(why: &str) -> Fact {
    Fact::TurnEnded { result: Err(why.into()) }
}

/// The refusal of an agent that has forgotten the conversation.
pub fn forgotten() -> Refusal {
    Refusal::new(ErrorKind::SessionExpired, "there is no such session").hint("submit a new task")
}

pub fn refused() -> Fact {
    Fact::Refused(Box::new(forgotten()))
}

/// A question with the options `yes` and `no`.
pub fn asked(key: u64) -> Fact {
    let option = |id: &str, kind| InputOption { id: id.to_owned(), name: id.to_uppercase(), kind };
    let options = [option("yes", OptionKind::AllowOnce), option("no", OptionKind::RejectOnce)];
    Fact::Asked { key, question: "may I?".into(), options: options.into() }
}

/// A core with one client, driven input by input.
pub struct Desk {
    pub core: Core,
    pub now: Now,
    calls: u64,
}

impl Desk {
    pub fn new(max_concurrent_tasks: usize) -> Self {
        let now = Now { mono: Mono(1000), wall: Timestamp::from_unix_ms(1_700_000_000_000) };
        Self { core: Core::new(limits(max_concurrent_tasks), BTreeMap::new()), now, calls: 0 }
    }

    pub fn input(&mut self, input: Input) -> Vec<Effect> {
        self.core.handle(self.now, input)
    }

    /// Makes a request as client 1.
    pub fn ask(&mut self, request: Request) -> Vec<Effect> {
        self.ask_as(1, request)
    }

    /// Makes a request. The call's number is the count of calls so far.
    pub fn ask_as(&mut self, client: u64, request: Request) -> Vec<Effect> {
        self.calls += 1;
        let to = ReplyTo { client, call: self.calls };
        self.input(Input::Request { to, request })
    }

    /// Does all work that was put off. Returns the effects of all steps.
    pub fn go_on(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.core.has_more() {
            effects.extend(self.input(Input::Continue));
        }
        effects
    }

    /// Submits a foreground job of client 1.
    pub fn foreground(&mut self, mut command: Command) -> TaskId {
        command.foreground = true;
        let id = command.id;
        let effects = self.ask(Request::Submit(Box::new(command)));
        assert!(matches!(only_reply(&effects), Reply::Task(task) if task.foreground == Some(1)));
        assert_eq!(starts(&effects).len() + prompts(&effects).len(), 1, "it waits: {effects:?}");
        id
    }

    /// Submits a foreground job of client 1 that is running.
    pub fn job(&mut self, number: u16) -> TaskId {
        let id = self.foreground(command(id(number)));
        assert_eq!(events(&self.fact(id, Fact::Started { pid: Some(100) })), [(EventKind::Started, id)]);
        id
    }

    pub fn detach(&mut self, task: TaskId) -> Vec<Effect> {
        self.ask(Request::Detach { id: task.into() })
    }

    /// Hands over a process of another program.
    pub fn adopt(&mut self, number: u16) -> Vec<Effect> {
        let command = Box::new(command(id(number)));
        let started_at = Timestamp::from_unix_ms(self.now.wall.unix_ms() - 7000);
        self.ask(Request::Adopt { command, pid: 200, started_at })
    }

    /// Submits a plain task whose id begins with the four hexadecimal digits of this number.
    pub fn submit(&mut self, number: u16) -> TaskId {
        let id = id(number);
        let effects = self.ask(Request::Submit(Box::new(command(id))));
        assert!(matches!(only_reply(&effects), Reply::Task(task) if task.id == id), "{effects:?}");
        id
    }

    pub fn fact(&mut self, task: TaskId, fact: Fact) -> Vec<Effect> {
        self.fact_of_run(task, 1, fact)
    }

    pub fn fact_of_run(&mut self, task: TaskId, run: u32, fact: Fact) -> Vec<Effect> {
        self.input(Input::Fact { task, run, fact })
    }

    /// Submits a prompt that gets a slot at once.
    pub fn prompted(&mut self, number: u16) -> TaskId {
        let id = id(number);
        let command = prompt(id, STALLED_AFTER, ASK_TIMEOUT);
        let effects = self.ask(Request::Submit(Box::new(command)));
        assert!(matches!(only_reply(&effects), Reply::Task(task) if task.id == id), "{effects:?}");
        assert_eq!(prompts(&effects), [(id, 1, None)]);
        id
    }

    /// Submits a prompt that an agent is working on, in a conversation with an id.
    pub fn at_work(&mut self, number: u16) -> TaskId {
        let id = self.prompted(number);
        assert!(self.fact(id, Fact::Session { id: session_of(id).into() }).is_empty());
        assert_eq!(events(&self.fact(id, Fact::Started { pid: None })), [(EventKind::Started, id)]);
        id
    }

    /// Submits a prompt, and completes its turn.
    pub fn answered(&mut self, number: u16) -> TaskId {
        let id = self.at_work(number);
        assert_eq!(events(&self.fact(id, turn_ended())), [(EventKind::Completed, id)]);
        id
    }

    pub fn resume(&mut self, task: TaskId) -> Vec<Effect> {
        self.resume_with(task, AgentSettings::default())
    }

    pub fn resume_with(&mut self, task: TaskId, settings: AgentSettings) -> Vec<Effect> {
        self.ask(Request::Resume { id: task.into(), prompt: "and now?".into(), settings: Box::new(settings) })
    }

    /// Resumes a task; its new run has this number.
    pub fn resumed(&mut self, task: TaskId, run: u32) {
        let effects = self.resume(task);
        assert_eq!(prompts(&effects), [(task, run, Some(session_of(task)))]);
        let effects = self.fact_of_run(task, run, Fact::Started { pid: None });
        assert_eq!(events(&effects), [(EventKind::Resumed, task)]);
        assert!(matches!(only_reply(&effects), Reply::Task(shown) if shown.id == task));
    }

    pub fn answer(&mut self, task: TaskId, request: u64, option: &str) -> Vec<Effect> {
        self.ask(Request::Answer { id: task.into(), request, option: Some(option.into()) })
    }

    /// Submits a task that gets a slot at once and is running.
    pub fn running(&mut self, number: u16) -> TaskId {
        let id = self.submit(number);
        let effects = self.fact(id, Fact::Started { pid: Some(100) });
        assert_eq!(events(&effects), [(EventKind::Started, id)]);
        id
    }

    /// Submits a task that runs and exits with this code.
    pub fn finished(&mut self, number: u16, code: i32) -> TaskId {
        let id = self.running(number);
        let effects = self.fact(id, exited(code, false));
        assert_eq!(events(&effects).len(), 1);
        id
    }

    pub fn cancel(&mut self, which: Selection) -> Vec<Effect> {
        self.ask(Request::Cancel(Cancel { which, signal: None, grace_ms: None }))
    }

    pub fn block(&mut self, ids: &[TaskId], timeout_ms: Option<u64>, mode: BlockMode) -> Vec<Effect> {
        let (which, until) = (Selection::Ids(refs(ids)), BlockUntil::Ended);
        self.ask(Request::Block { which, timeout_ms, mode, until })
    }

    /// Advances the clock and handles what is due.
    pub fn wait(&mut self, ms: u64) -> Vec<Effect> {
        self.now.mono = self.now.mono.plus_ms(ms);
        self.core.on_deadline(self.now)
    }

    pub fn task(&self, id: TaskId) -> Snapshot {
        self.core.get(&id.into()).unwrap()
    }

    pub fn status(&self, id: TaskId) -> Status {
        self.task(id).status()
    }
}

pub fn id(number: u16) -> TaskId {
    TaskId::from_u128((u128::from(number) << 112) | u128::from(number))
}

pub fn refs(ids: &[TaskId]) -> Vec<TaskRef> {
    ids.iter().map(|id| TaskRef::from(*id)).collect()
}

pub fn ids(ids: &[TaskId]) -> Selection {
    Selection::Ids(refs(ids))
}

/// Returns a query for the newest tasks of a parent session.
pub fn of_session(session: &str, limit: usize) -> ListQuery {
    let filter = Filter { session: Some(session.into()), ..Filter::default() };
    ListQuery { filter, limit, ..ListQuery::default() }
}

pub fn replies(effects: &[Effect]) -> Vec<&Reply> {
    let replies = effects.iter().filter_map(|effect| match effect {
        Effect::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    replies.collect()
}

/// Returns the only reply among these effects.
pub fn only_reply(effects: &[Effect]) -> &Reply {
    let replies = replies(effects);
    assert_eq!(replies.len(), 1, "{effects:?}");
    replies[0]
}

/// Returns the error that is the only reply.
pub fn refusal(effects: &[Effect]) -> &CoreError {
    let Reply::Error(error) = only_reply(effects) else { panic!("not refused: {effects:?}") };
    error
}

/// Returns the result of a block that is the only reply: the tasks with their statuses, and whether it timed out.
pub fn blocked(effects: &[Effect]) -> (Vec<(TaskId, Status)>, bool) {
    let Reply::Blocked { tasks, timed_out, .. } = only_reply(effects) else {
        panic!("no block: {effects:?}")
    };
    (tasks.iter().map(|task| (task.id, task.status())).collect(), *timed_out)
}

pub fn events(effects: &[Effect]) -> Vec<(EventKind, TaskId)> {
    let events = effects.iter().filter_map(|effect| match effect {
        Effect::Event { kind, task, .. } => Some((*kind, task.id)),
        _ => None,
    });
    events.collect()
}

pub fn starts(effects: &[Effect]) -> Vec<TaskId> {
    let starts = effects.iter().filter_map(|effect| match effect {
        Effect::Start { task, begin: Begin::Process { .. }, .. } => Some(*task),
        _ => None,
    });
    starts.collect()
}

/// Returns the prompts with their runs and the sessions that they continue.
pub fn prompts(effects: &[Effect]) -> Vec<(TaskId, u32, Option<String>)> {
    let prompts = effects.iter().filter_map(|effect| match effect {
        Effect::Start { task, run, begin: Begin::Prompt { session, .. }, .. } => {
            Some((*task, *run, session.as_deref().map(str::to_owned)))
        }
        _ => None,
    });
    prompts.collect()
}

/// Returns the answers to agents, by the keys of their questions.
pub fn decisions(effects: &[Effect]) -> Vec<(u64, Option<&str>)> {
    let decisions = effects.iter().filter_map(|effect| match effect {
        Effect::Control { control: Control::Answer { key, option, .. }, .. } => {
            Some((*key, option.as_deref()))
        }
        _ => None,
    });
    decisions.collect()
}

/// Returns the agent's own id of a task's conversation.
pub fn session_of(task: TaskId) -> String {
    format!("session of {task}")
}

/// Returns the signals sent to whole trees.
pub fn ends(effects: &[Effect]) -> Vec<(TaskId, i32)> {
    let ends = effects.iter().filter_map(|effect| match effect {
        Effect::End { task, signal, .. } => Some((*task, *signal)),
        _ => None,
    });
    ends.collect()
}
