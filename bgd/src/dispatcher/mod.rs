//! The dispatcher: the only owner of the core. A loop receives calls and facts, passes them to the core, and applies
//! its effects to executors, clients and subscribers. It never waits for I/O.

mod agents;
mod answers;
mod asks;
mod carried;
mod configuration;
pub mod durable;
mod effects;
pub mod ending;
mod executors;
mod handoff;
mod inherited;
mod memory;
mod notices;
mod observers;
mod recording;
mod removals;
mod shutdown;
pub mod state;
mod submissions;
mod upgrade;
pub mod upgrading;
mod upkeep;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::slice;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::request::{ClearResult, GroupListResult, SessionEndResult};

use self::ending::Ending;
use self::memory::FreedMemory;
use self::recording::Durable;
use self::removals::Removals;
use self::state::Shape;
use self::upgrading::{Upgrade, UpgradeContext};
use crate::agents::Agents;
use crate::client::Client;
use crate::client::answer::Answer;
use crate::config::Config;
use crate::core::{
    Core, Effect, ExecutorName, Fact, Input, LeavePolicy, Mono, Note, Now, ReplyTo, Request, Selection,
};
use crate::exec::context::Context;
use crate::exec::executor::{Ask, Executors};
use crate::exec::input::unread::UnreadBytes;
use crate::exec::messages::{ExecutorMessage, Inherited};
use crate::notify::Notifier;
use crate::os::clock::{Clock, sleep_until};
use crate::os::wall_clock::WallClock;
use crate::remotes::Remotes;
use crate::wire::calls::{Body, Call};
use crate::wire::figures::Figures;
use crate::wire::mailbox::{Incoming, Internal, Internals, Mailbox};
use crate::wire::reader::Reader;
use crate::wire::server::ServerLimits;
use crate::wire::status::Identity;
use crate::wire::subscribers::Subscribers;
use crate::wire::{refusals, view};

/// Maximum number of facts taken from the mailbox before timers and others get their turn.
const FACTS: usize = 64;

/// The same for calls. Few, as the starts and ends of tasks wait meanwhile.
const CALLS: usize = 16;

/// How late a timer must be for this process to have stood still, in milliseconds.
const LATE_MS: u64 = 1000;

/// How soon other executors find out what has ended while this process stood still, in milliseconds.
const FOUND_OUT_WITHIN_MS: u64 = 10_000;

/// The answer to a call that removed tasks.
#[derive(Debug)]
enum Clear {
    Tasks(ClearResult),
    Session(SessionEndResult),
}

/// Owns the core and everything that it is connected to.
pub struct Dispatcher {
    core: Core,
    executors: Executors,
    /// The configured executors other than this machine.
    remotes: Arc<Remotes>,
    /// The agents that prompts can be sent to.
    agents: Arc<Agents>,
    /// Warnings reported by sessions, by agent.
    agent_warnings: BTreeMap<Arc<str>, Arc<str>>,
    subscribers: Subscribers,
    notifier: Notifier,
    /// Cleared tasks, with their latest runs, whose output is removed once pending notices have read it.
    kept_for_notices: HashMap<TaskId, u32>,
    figures: Figures,
    context: Context,
    /// Receives the results of workers.
    internals: Internals,
    reader: Reader,
    identity: Identity,
    config: Config,
    server_limits: tokio::sync::watch::Sender<ServerLimits>,
    clients: HashMap<u64, Arc<Client>>,
    /// Calls that the core has not answered yet.
    pending: BTreeMap<ReplyTo, (Answer, Shape)>,
    last_call: u64,
    /// Calls that wait until a task's process has started.
    early: HashMap<TaskId, Vec<(Answer, Body, UnreadBytes)>>,
    /// Whether something was started in this turn. Executors proceed once the turn's answers have been sent.
    has_started: bool,
    /// Descriptors for the standard streams of tasks that have not started yet.
    inherited: HashMap<TaskId, Arc<Inherited>>,
    /// Callers that reported the exit of a handed-over process, until the end is known.
    exits: HashMap<TaskId, Vec<Answer>>,
    freed: FreedMemory,
    /// Removals of outputs under way, and the answers that wait for them.
    removals: Arc<Mutex<Removals<(Answer, Clear)>>>,
    clock: Clock,
    epoch: Instant,
    ended: bool,
    /// The journal of a durable daemon; `None` if the daemon is not durable.
    durable: Option<Box<Durable>>,
    /// When executors and channels are forced to end, after the core has ended.
    forced_at: Option<Instant>,
    ending: Ending,
    /// Required for upgrades in place; `None` if they are not possible.
    upgrade_context: Option<UpgradeContext>,
    upgrade: Option<Upgrade>,
}

impl Dispatcher {
    /// Creates a dispatcher without tasks.
    pub fn new(
        config: Config,
        identity: Identity,
        executors: Executors,
        context: Context,
        internals: Internals,
        server_limits: tokio::sync::watch::Sender<ServerLimits>,
    ) -> Self {
        Self {
            core: Core::new(config.core_limits(), config.group_settings()),
            executors,
            remotes: Arc::new(config.remotes().unwrap_or_default()),
            agents: Arc::new(config.agents().unwrap_or_default()),
            agent_warnings: BTreeMap::new(),
            subscribers: Subscribers::new(config.limits.event_history_bytes),
            notifier: Notifier::new(
                config.channels().unwrap_or_default(),
                config.limits.channel_queue,
                context.clone(),
                internals.clone(),
            ),
            internals,
            kept_for_notices: HashMap::new(),
            figures: Figures::default(),
            reader: Reader::new(context.folder.clone(), context.workers.clone()),
            context,
            identity,
            config,
            server_limits,
            clients: HashMap::new(),
            pending: BTreeMap::new(),
            last_call: 0,
            early: HashMap::new(),
            has_started: false,
            inherited: HashMap::new(),
            exits: HashMap::new(),
            freed: FreedMemory::default(),
            removals: Arc::default(),
            clock: Clock::default(),
            epoch: Clock::default().now(),
            ended: false,
            durable: None,
            forced_at: None,
            ending: Ending::default(),
            upgrade_context: None,
            upgrade: None,
        }
    }

    /// Allows upgrades in place.
    #[must_use]
    pub fn upgradable(self, upgrade_context: UpgradeContext) -> Self {
        Self { upgrade_context: Some(upgrade_context), ..self }
    }

    /// Uses this clock instead of the system's.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, epoch: clock.now(), ..self }
    }

    /// Runs until the shutdown is complete or its deadline has passed. Returns how to end the rest of the process.
    pub async fn run(mut self, mut mailbox: Mailbox, mut wall_clock: WallClock) -> Ending {
        self.go(&mut mailbox, &mut wall_clock).await;
        self.ending
    }

    /// Like [`Self::run`], but may be dropped and called again to continue.
    pub async fn go(&mut self, mailbox: &mut Mailbox, wall_clock: &mut WallClock) {
        let mut incoming = Vec::with_capacity(CALLS);
        let mut facts = Vec::with_capacity(FACTS);
        // After a full batch of facts, other inputs get a turn, so that a flood of facts does not starve them.
        let mut is_others_turn = false;
        let mut is_crowded = false;
        while !self.ended || self.is_busy() {
            let deadline = self.core.deadline().map(|at| self.instant(at));
            if let Err(error) = wall_clock.set(self.core.wall_deadline()) {
                tracing::error!(%error, "the wall-clock timer can't be set");
            }
            let (upgrade_due, force_due) = (self.upgrade_due(), self.force_due());
            tokio::select! {
                biased;
                count = mailbox.facts.recv_many(&mut facts, FACTS), if !is_others_turn => {
                    is_others_turn = count == FACTS;
                    for seen in facts.drain(..) {
                        self.handle_executor_message(seen);
                    }
                }
                // The facts that follow from it need no turn of their own.
                () = self.executors.attend() => self.handle_facts(mailbox),
                Some(internal) = mailbox.internals.recv() => self.internal(internal),
                () = sleep_until(force_due), if self.ended => self.end_by_force(),
                () = sleep_until(self.ending.over_at()) => {
                    tracing::error!("shutdown takes too long: what is still running is left behind");
                    break;
                }
                () = sleep_until(upgrade_due) => {}
                () = sleep_until(self.freed.due()) => self.give_memory_back(),
                () = sleep_until(deadline) => self.fire_deadlines(),
                () = wall_clock.due() => self.fire_deadlines(),
                count = mailbox.calls.recv_many(&mut incoming, CALLS), if !self.is_journal_full() => {
                    is_others_turn = false;
                    is_crowded = count == CALLS;
                    for incoming in incoming.drain(..) {
                        self.incoming(incoming);
                    }
                }
                // Starts that were held back by an upgrade must proceed even if nothing else happens.
                () = std::future::ready(()), if self.has_started => {}
                // Last, so that other inputs wait for at most one part of it.
                () = tokio::task::yield_now(), if self.core.has_more() && !self.is_journal_full() => {
                    is_others_turn = false;
                    self.handle(Input::Continue);
                }
                () = tokio::task::yield_now(), if is_others_turn => is_others_turn = false,
            }
            if std::mem::take(&mut is_crowded) {
                // Ends of processes must not wait until all calls have been handled.
                tokio::task::yield_now().await;
            }
            if std::mem::take(&mut self.has_started) {
                let_woken_run().await;
                self.executors.all().for_each(|executor| executor.answered());
            }
            self.upgrade_step(mailbox);
        }
        // Starts in progress when the shutdown began are complete by now.
        self.leave_all();
        // Calls that wait for a task left by a durable daemon, or for its start, will be answered by the next one; they
        // must not delay the end.
        let pending = std::mem::take(&mut self.pending).into_values().map(|(answer, _)| answer);
        let exits = std::mem::take(&mut self.exits).into_values().flatten();
        let early = std::mem::take(&mut self.early).into_values().flatten().map(|(answer, ..)| answer);
        pending.chain(exits).chain(early).for_each(|answer| answer.abandon());
    }

    /// Handles the facts that are there, up to a limit.
    fn handle_facts(&mut self, mailbox: &mut Mailbox) {
        for _ in 0..FACTS {
            let Ok(seen) = mailbox.facts.try_recv() else { return };
            self.handle_executor_message(seen);
        }
    }

    /// Runs the core's due timers; the wall clock may have been set.
    fn fire_deadlines(&mut self) {
        let now = self.now();
        if self.core.deadline().is_some_and(|due| due.plus_ms(LATE_MS) < now.mono) {
            // After a long stop of this process, other executors find out as late as this one what has ended in time.
            self.core.put_off_passed_limits(now, FOUND_OUT_WITHIN_MS);
        }
        // After a restart, an upgrade or a long stop of this process, a run may have ended in time long ago.
        for task in self.core.past_time_limits(now) {
            if self.has_ended_here(task) {
                self.core.lift_time_limit(task);
            }
        }
        let effects = self.core.on_deadline(now);
        self.commit_effects(effects);
    }

    /// Reports whether a run on this machine has ended, even if that was not reported yet.
    fn has_ended_here(&mut self, task: TaskId) -> bool {
        self.executors.of(ExecutorName::LOCAL).is_some_and(|executor| executor.has_ended(task))
    }

    fn now(&self) -> Now {
        let elapsed = self.clock.now().saturating_duration_since(self.epoch).as_millis();
        Now { mono: Mono(u64::try_from(elapsed).unwrap_or(u64::MAX)), wall: self.clock.wall() }
    }

    fn instant(&self, at: Mono) -> Instant {
        // `now` rounds down to whole milliseconds, so the deadline is due at this instant. A deadline out of range is
        // capped.
        self.epoch
            .checked_add(Duration::from_millis(at.0))
            .unwrap_or(self.epoch + Duration::from_secs(u32::MAX.into()))
    }

    fn handle(&mut self, input: Input) {
        let effects = self.core.handle(self.now(), input);
        self.commit_effects(effects);
    }

    fn internal(&mut self, internal: Internal) {
        match internal {
            Internal::AgentResolved { answer, command, owned, result } => match result {
                Ok(()) if self.is_orphaned(answer.client().id, &command, owned) => {}
                Ok(()) => self.submit(answer, command, Inherited::default()),
                Err(error) => answer.refuse(&error),
            },
            Internal::AgentsFound { answer, env, check, found } => {
                self.agents_found(answer, env, check, found);
            }
            Internal::MayAnswer { answer, request } => self.ask(answer, Shape::Plain, request),
            Internal::Offered { answer, params, task, result } => self.offered(answer, *params, task, result),
            Internal::ConfigRead { config, modified, asked } => self.configured(config, modified, asked),
            Internal::NoticeRead { number } => self.notice_read(number),
            Internal::Notice { number, delivery } => self.delivery_changed(number, delivery),
            Internal::Recorded(recorded) => self.recorded(recorded),
            Internal::ChannelsDone => self.notifier.is_done(),
            Internal::Upgrade { program, was_tried } => self.upgrade_looked_at(program, was_tried),
            Internal::Reload => self.read_config(None),
            Internal::Terminate { signal } => self.terminate(signal),
        }
    }

    /// Handles a message from an executor.
    fn handle_executor_message(&mut self, seen: ExecutorMessage) {
        if self.ended && self.ending.leaves != LeavePolicy::Nothing {
            // Remaining tasks belong to the next daemon.
            return;
        }
        match seen {
            ExecutorMessage::Fact { task, run, fact } => self.fact(task, run, fact),
            ExecutorMessage::AskCaughtUp(mark) => self.commit_effects(vec![Effect::CaughtUp { mark }]),
        }
    }

    /// Handles a fact observed, or assumed, by an executor.
    fn fact(&mut self, task: TaskId, run: u32, fact: Fact) {
        match &fact {
            Fact::StartFailed { failure } => {
                tracing::info!(%task, error = %failure.message, "task not started");
            }
            Fact::Refused(_) => self.notifier.end_typing(task),
            // Its end is about to be reported, and decides: it may have come in time.
            Fact::NotReady if self.has_ended_here(task) => return,
            Fact::Noted { note: Note::Warning, text } => self.warned(task, text),
            Fact::Started { .. }
            | Fact::Delivered
            | Fact::Exited { .. }
            | Fact::TreeEmpty
            | Fact::Used(_)
            | Fact::Output { .. }
            | Fact::Lost { .. }
            | Fact::Erased { .. }
            | Fact::Limits { .. }
            | Fact::Session { .. }
            | Fact::Tools { .. }
            | Fact::Denied { .. }
            | Fact::Consumed(_)
            | Fact::Planned { .. }
            | Fact::Noted { note: Note::LastWords | Note::Suspect, .. }
            | Fact::Activity
            | Fact::Asked { .. }
            | Fact::Withdrawn { .. }
            | Fact::GaveUp { .. }
            | Fact::Ready
            | Fact::NotReady
            | Fact::Elsewhere(_)
            | Fact::TurnEnded { .. } => {}
        }
        self.handle(Input::Fact { task, run, fact });
        self.act_on_early(task);
    }

    /// Handles the calls that waited for a task to start, if it is not being started any more, or if its start is held
    /// back.
    pub(super) fn act_on_early(&mut self, task: TaskId) {
        let is_starting = || self.core.starting(&[task.into()]).is_some() && !self.is_held_back(task);
        if self.early.is_empty() || is_starting() {
            return;
        }
        for (answer, body, unread) in self.early.remove(&task).unwrap_or_default() {
            // Counted again once the task has the input.
            drop(unread);
            // Terminals are not shown to disconnected clients; all other calls are still handled.
            let shows = matches!(body, Body::Attach(..) | Body::Resize(..));
            if !shows || self.clients.contains_key(&answer.client().id) {
                self.act(answer, body);
            }
        }
    }

    fn incoming(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Call { client, call } => self.call(client, call),
            Incoming::Connected(client) => {
                if let Some(leader) = client.leader {
                    self.notifier.visited(leader);
                }
                self.clients.insert(client.id, client);
            }
            Incoming::Gone(client) => {
                self.clients.remove(&client.id);
                self.subscribers.disconnect(client.id);
                self.executors.all().for_each(|executor| executor.disconnected(client.id));
                self.handle(Input::Disconnected { client: client.id });
                self.forget_calls(client.id);
            }
            Incoming::PartRefused(client) => self.handle(Input::PartRefused { client: client.id }),
            Incoming::Drained(client) => self.subscribers.pump(client.id),
        }
    }

    /// Drops the pending calls of a client that is gone.
    fn forget_calls(&mut self, client: u64) {
        let calls = ReplyTo { client, call: 0 }..=ReplyTo { client, call: u64::MAX };
        let calls: Vec<ReplyTo> = self.pending.range(calls).map(|(to, _)| *to).collect();
        for to in calls {
            self.pending.remove(&to);
        }
        self.exits.retain(|_, answers| {
            answers.retain(|answer| answer.client().id != client);
            !answers.is_empty()
        });
    }

    fn call(&mut self, client: Arc<Client>, call: Call) {
        let Call { id, reserved, body } = call;
        self.act(Answer::new(client, id, reserved), body);
    }

    /// Defers a call that needs a running process while the task is being started. Otherwise returns the call.
    fn keep_until_begun(&mut self, answer: Answer, body: Body) -> Option<(Answer, Body)> {
        let starting = match &body {
            Body::Write(id, ..)
            | Body::Attach(id, _)
            | Body::Resize(id, _)
            | Body::Core(Request::Signal { id, .. }) => self.core.starting(slice::from_ref(id)),
            // Other selections name no task to wait for.
            Body::Core(Request::SetPaused { which: Selection::Ids(ids), .. }) => self.core.starting(ids),
            _ => None,
        };
        let Some(task) = starting else { return Some((answer, body)) };
        if !self.is_held_back(task) {
            let bytes = if let Body::Write(_, data, _) = &body { data.len() } else { 0 };
            match self.context.unread.add(bytes) {
                Some(unread) => self.early.entry(task).or_default().push((answer, body, unread)),
                None => answer.refuse(&refusals::too_much_unread()),
            }
            return None;
        }
        // The start is held back for an unknown time. A pause is recorded; calls that need the process are refused.
        let is_pause = matches!(body, Body::Core(Request::SetPaused { .. }));
        match self.unwritable().filter(|_| !is_pause) {
            Some(error) => {
                answer.refuse(&error);
                None
            }
            None => Some((answer, body)),
        }
    }

    fn act(&mut self, answer: Answer, body: Body) {
        let Some((answer, body)) = self.refuse_unwritable(answer, body) else { return };
        let Some((answer, body)) = self.keep_until_begun(answer, body) else { return };
        match body {
            Body::Submit(command, inherited, on) => self.submit_on(answer, command, inherited, *on),
            Body::Many(part, on) => self.submit_many(answer, part, *on),
            Body::Core(request @ Request::Answer { .. }) => self.answer_question(answer, request),
            Body::Core(Request::Shutdown { grace_ms, leaves }) => {
                let request = self.prepare_shutdown(grace_ms, leaves);
                self.ask(answer, Shape::Plain, request);
            }
            Body::Core(request) => self.ask(answer, Shape::Plain, request),
            Body::Inbox(instance, request) => self.inbox(answer, instance, request),
            Body::Inboxes(after, limit) => answer.give(&self.list_inboxes(after, limit)),
            Body::Prompt(request) => self.submit_prompt(answer, *request),
            Body::Agents(params) => self.list_agents(answer, params),
            Body::Output(params) => {
                let request = Request::Retrieve { id: params.id.clone(), complete: false };
                self.ask(answer, Shape::Output(params), request);
            }
            Body::Result(id) => self.ask(answer, Shape::Result, Request::Retrieve { id, complete: true }),
            Body::Get(task) => match self.get(&task) {
                Ok(snapshot) => self.reader.get(snapshot, answer),
                Err(error) => answer.refuse(&refusals::of_core(error)),
            },
            Body::List(query) => match self.list(&query) {
                Ok(list) => answer.give(&list),
                Err(error) => answer.refuse(&refusals::of_core(error)),
            },
            Body::Write(task, data, eof) => self.ask_to_write(answer, &task, data, eof),
            Body::Attach(task, size) => self.ask_executor(answer, &task, Ask::Attach { owns: false, size }),
            Body::Leave(task) => self.ask_executor(answer, &task, Ask::Leave),
            Body::Resize(task, size) => self.ask_executor(answer, &task, Ask::Resize { size }),
            Body::Handoff(handoff) => self.handoff(answer, handoff),
            Body::Exit(task, exit) => self.exit_reported(answer, &task, exit),
            Body::Subscribe(params) => self.subscribe(&answer, params),
            Body::Hello(None) => answer.give(&self.hello()),
            Body::Hello(Some(session)) => self.ask(answer, Shape::Plain, Request::OwnSession { session }),
            Body::Groups => {
                let groups = self.core.groups().iter().map(view::group).collect();
                answer.give(&GroupListResult { groups });
            }
            Body::Executors(params) => self.list_executors(answer, &params),
            Body::Usage(ids) => self.measure(answer, &ids),
            Body::Status => self.give_status(answer),
            Body::Reload => self.read_config(Some(answer)),
            Body::Upgrade(params) => self.upgrade(answer, &params),
            Body::PartRefused(error) => self.refuse_part(&answer, &error),
            Body::Refused(error) => answer.refuse(&error),
        }
    }

    /// Passes a request to the core. The reply comes as an effect, now or later.
    fn ask(&mut self, answer: Answer, shape: Shape, request: Request) {
        self.last_call += 1;
        let to = ReplyTo { client: answer.client().id, call: self.last_call };
        self.pending.insert(to, (answer, shape));
        self.handle(Input::Request { to, request });
        if let Some((answer, _)) = self.pending.get_mut(&to).filter(|_| self.core.waits(to)) {
            answer.release_room();
        }
    }
}

/// Lets the tasks run that were woken before, such as the writers of answers. Unlike tokio's `yield_now`, it does not
/// wait until all others had nothing more to do, and asks the kernel for no events.
async fn let_woken_run() {
    let mut is_over = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
