//! The dispatcher: the only owner of the core. One loop takes mail and reports, asks the core, and hands
//! its effects to executors, clients and subscribers. It never waits for I/O.

mod agents;
mod answers;
mod configuration;
mod ending;
mod handoff;
mod handoffs;
mod helpers;
mod memory;
mod shows;
mod shutdown;
mod terminals;
mod told;
mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{ClearResult, OutputParams, SessionEndResult, WriteResult};
use bgd_shared::task::Kind;
use bgd_shared::time::Timestamp;

use self::ending::Ending;
use self::handoffs::Handoffs;
use self::memory::Freed;
use self::shows::Shows;
use crate::agents::Agents;
use crate::answer::{Answer, write_error};
use crate::calls::{Body, Call};
use crate::client::Client;
use crate::config::Config;
use crate::core::{
    Command, Core, CoreError, Effect, Fact, Input, Mono, Note, Now, Reply, ReplyTo, Request, State,
};
use crate::exec::agent::{AgentThread, Control, Order, TurnOrder};
use crate::exec::host::Helpers;
use crate::exec::messages::{Brought, Report, StartOrder, Streams};
use crate::exec::process::{Processes, Surroundings};
use crate::figures::Figures;
use crate::mailbox::{Internal, Internals, Mail, Mailbox};
use crate::notify::Notifier;
use crate::reader::Reader;
use crate::server::ServerLimits;
use crate::status::Identity;
use crate::subscribers::Subscribers;
use crate::view;

/// How many letters are taken from the mailbox before effects of timers get their turn.
const BATCH: usize = 64;

/// The answer to a call that removed tasks.
#[derive(Debug)]
enum Clear {
    Tasks(ClearResult),
    Session(SessionEndResult),
}

/// What a call's reply is made into.
#[derive(Debug)]
enum Shape {
    /// What the reply says.
    Plain,
    /// With a part of the output.
    Output(OutputParams),
    /// With the result.
    Result,
}

/// The owner of the core, and of everything that belongs to it.
pub struct Dispatcher {
    core: Core,
    processes: Processes,
    agents: AgentThread,
    /// The processes of agents and hooks.
    helpers: Helpers,
    /// Those of the configuration, and the known ones.
    known_agents: Arc<Agents>,
    /// What sessions have shown that they can do, by their agents.
    agent_warnings: BTreeMap<Arc<str>, Arc<str>>,
    subscribers: Subscribers,
    notifier: Notifier,
    /// Cleared tasks, with their latest runs, whose output is removed when the notices of them have it.
    kept_for_notices: HashMap<TaskId, u32>,
    figures: Figures,
    shows: Shows,
    around: Surroundings,
    /// Where workers tell what they have found.
    internals: Internals,
    reader: Reader,
    identity: Identity,
    config: Config,
    server_limits: tokio::sync::watch::Sender<ServerLimits>,
    clients: HashMap<u64, Arc<Client>>,
    /// Calls that the core has not answered yet.
    pending: BTreeMap<ReplyTo, (Answer, Shape)>,
    last_call: u64,
    /// Calls that wait for a process that is being started.
    early: HashMap<TaskId, Vec<(Answer, Body)>>,
    /// Starts that are ordered when the answers of this turn are on their way: a new process would
    /// compete with whoever waits for one.
    starts: Vec<StartOrder>,
    /// Descriptors for the standard streams of tasks that have not started.
    brought: HashMap<TaskId, Brought>,
    handoffs: Handoffs,
    freed: Freed,
    epoch: Instant,
    ended: bool,
    /// When helpers are made to end, once the core has ended.
    helpers_killed_at: Option<Instant>,
    ending: Ending,
}

impl Dispatcher {
    /// A dispatcher without tasks.
    pub fn new(
        config: Config,
        identity: Identity,
        orders: std::sync::mpsc::Sender<StartOrder>,
        around: Surroundings,
        internals: Internals,
        server_limits: tokio::sync::watch::Sender<ServerLimits>,
    ) -> Self {
        Self {
            core: Core::new(config.core_limits()),
            processes: Processes::new(orders, around.clone()),
            agents: AgentThread::new(around.clone()),
            helpers: Helpers::default(),
            known_agents: Arc::new(config.agents().unwrap_or_default()),
            agent_warnings: BTreeMap::new(),
            subscribers: Subscribers::new(config.limits.event_history_bytes),
            notifier: Notifier::new(
                config.channels().unwrap_or_default(),
                config.limits.channel_queue,
                around.clone(),
                internals.clone(),
            ),
            internals,
            kept_for_notices: HashMap::new(),
            figures: Figures::default(),
            shows: Shows::default(),
            reader: Reader::new(around.folder.clone(), around.workers.clone()),
            around,
            identity,
            config,
            server_limits,
            clients: HashMap::new(),
            pending: BTreeMap::new(),
            last_call: 0,
            early: HashMap::new(),
            starts: Vec::new(),
            brought: HashMap::new(),
            handoffs: Handoffs::default(),
            freed: Freed::default(),
            epoch: Instant::now(),
            ended: false,
            helpers_killed_at: None,
            ending: Ending::default(),
        }
    }

    /// Works until the core has ended, or the time for that is over. Tells whether the rest is in a hurry, too.
    pub async fn run(mut self, mut mailbox: Mailbox) -> bool {
        let mut mail = Vec::with_capacity(BATCH);
        let mut reports = Vec::with_capacity(BATCH);
        while !self.ended || self.is_busy() {
            let deadline = self.core.deadline().map(|at| self.instant(at));
            tokio::select! {
                biased;
                _ = mailbox.reports.recv_many(&mut reports, BATCH) => {
                    for report in reports.drain(..) {
                        self.report(report);
                    }
                }
                Some(internal) = mailbox.internals.recv() => self.internal(internal),
                () = sleep_until(self.helpers_killed_at), if self.ended => self.end_by_force(),
                () = sleep_until(self.ending.over_at()) => {
                    tracing::error!("the end takes too long: what still runs is left behind");
                    break;
                }
                () = sleep_until(self.freed.due()) => self.give_memory_back(),
                () = sleep_until(deadline) => {
                    let effects = self.core.on_deadline(self.now());
                    self.apply(effects);
                }
                _ = mailbox.calls.recv_many(&mut mail, BATCH) => {
                    for mail in mail.drain(..) {
                        self.mail(mail);
                    }
                }
            }
            if !self.starts.is_empty() {
                tokio::task::yield_now().await;
                for order in self.starts.drain(..) {
                    self.processes.start(order);
                }
            }
        }
        self.ending.is_hurried()
    }

    fn now(&self) -> Now {
        let elapsed = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono: Mono(elapsed), wall: Timestamp::now() }
    }

    fn instant(&self, at: Mono) -> Instant {
        // A deadline is reached when its whole millisecond is over, and never lies beyond what fits.
        self.epoch
            .checked_add(Duration::from_millis(at.0))
            .unwrap_or(self.epoch + Duration::from_secs(u32::MAX.into()))
    }

    fn handle(&mut self, input: Input) {
        let effects = self.core.handle(self.now(), input);
        self.apply(effects);
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Begun { task, result, .. } if self.helpers.owns(task) => self.helper_begun(task, result),
            Report::Begun { task, run, result } => {
                let fact = match result {
                    Ok(mut begun) => {
                        let terminal = begun.terminal.take();
                        let job = terminal.and_then(|terminal| self.open_terminal(task, run, *terminal));
                        Fact::Started { pid: Some(self.processes.adopt(task, run, *begun, job)) }
                    }
                    Err(failure) => {
                        tracing::info!(%task, error = %failure.message, "task not started");
                        Fact::StartFailed { failure }
                    }
                };
                self.handle(Input::Fact { task, run, fact });
                for (answer, body) in self.early.remove(&task).unwrap_or_default() {
                    // Nobody is shown anything who is gone; what else was asked for is done.
                    let shows = matches!(body, Body::Attach(..) | Body::Resize(..));
                    if !shows || self.clients.contains_key(&answer.client().id) {
                        self.act(answer, body);
                    }
                }
            }
            Report::Fact { task, run, fact } => self.fact(task, run, fact),
            Report::StartHelper { purpose, order, watcher } => self.start_helper(purpose, *order, watcher),
            Report::EndHelper { process, signal } => self.end_helper(process, signal),
        }
    }

    fn internal(&mut self, internal: Internal) {
        match internal {
            Internal::AgentFound { answer, command, result } => match result {
                // Its client went away meanwhile, and nobody would tell the core so again (R71).
                Ok(()) if command.foreground && !self.clients.contains_key(&answer.client().id) => {}
                Ok(()) => self.submit(answer, command, Brought::default()),
                Err(error) => answer.refuse(&error),
            },
            Internal::AgentsFound { answer, env, check, found } => {
                self.agents_found(answer, env, check, found);
            }
            Internal::MayAnswer { answer, request } => self.ask(answer, Shape::Plain, request),
            Internal::Offered { answer, params, task, result } => self.offered(answer, *params, task, result),
            Internal::ConfigRead { config, asked } => self.configured(config, asked),
            Internal::NoticeRead { task } => self.notice_read(task),
            Internal::ChannelsDone => self.notifier.is_done(),
            Internal::Reload => self.read_config(None),
            Internal::Terminate { signal } => self.terminate(signal),
        }
    }

    /// What an executor saw.
    fn fact(&mut self, task: TaskId, run: u32, fact: Fact) {
        match fact {
            Fact::Exited { others: false, .. } | Fact::TreeEmpty => {
                self.processes.gone(task, run);
                self.shows.close(task);
            }
            Fact::Exited { others: true, .. } => self.processes.close_input(task),
            Fact::Refused(_) => self.notifier.end_typing(task),
            Fact::Noted { note: Note::Warning, ref text } => self.warned(task, text),
            Fact::Started { .. }
            | Fact::StartFailed { .. }
            | Fact::Output { .. }
            | Fact::Lost { .. }
            | Fact::Session { .. }
            | Fact::Tool { .. }
            | Fact::Denied { .. }
            | Fact::Noted { note: Note::LastWords | Note::Suspect, .. }
            | Fact::Moved
            | Fact::Asked { .. }
            | Fact::Withdrawn { .. }
            | Fact::GaveUp { .. }
            | Fact::TurnEnded { .. } => {}
        }
        let has_ended = matches!(fact, Fact::Exited { .. });
        if self.helpers.owns(task) {
            self.helpers.fact(task, fact);
        } else {
            self.handle(Input::Fact { task, run, fact });
        }
        if has_ended {
            self.handed_ended(task);
        }
    }

    fn mail(&mut self, mail: Mail) {
        match mail {
            Mail::Call { client, call } => self.call(client, call),
            Mail::Connected(client) => {
                if let Some(leader) = client.leader {
                    self.notifier.visited(leader);
                }
                self.clients.insert(client.id, client);
            }
            Mail::Gone(client) => {
                self.clients.remove(&client.id);
                self.subscribers.disconnect(client.id);
                self.shows.disconnect(client.id);
                self.hander_left(client.id);
                self.handle(Input::Disconnected { client: client.id });
                self.forget_calls(client.id);
            }
            Mail::Drained(client) => self.subscribers.pump(client.id),
        }
    }

    /// Nobody wants the answers of a client that is gone.
    fn forget_calls(&mut self, client: u64) {
        let calls = ReplyTo { client, call: 0 }..=ReplyTo { client, call: u64::MAX };
        let calls: Vec<ReplyTo> = self.pending.range(calls).map(|(to, _)| *to).collect();
        for to in calls {
            self.pending.remove(&to);
        }
    }

    fn call(&mut self, client: Arc<Client>, call: Call) {
        let Call { id, reserved, body } = call;
        self.act(Answer::new(client, id, reserved), body);
    }

    /// Keeps what can only be done when a task's process runs, if that is being started. Gives back the rest.
    fn keep_until_begun(&mut self, answer: Answer, body: Body) -> Option<(Answer, Body)> {
        let (Body::Write(id, ..)
        | Body::Attach(id, _)
        | Body::Resize(id, _)
        | Body::Core(Request::Signal { id, .. })) = &body
        else {
            return Some((answer, body));
        };
        match self.core.get(id) {
            Ok(task) if matches!(task.state, State::Starting { .. }) && task.agent.is_none() => {
                self.early.entry(task.id).or_default().push((answer, body));
                None
            }
            Ok(_) | Err(_) => Some((answer, body)),
        }
    }

    fn act(&mut self, answer: Answer, body: Body) {
        let Some((answer, body)) = self.keep_until_begun(answer, body) else { return };
        match body {
            Body::Submit(command, brought) => self.submit(answer, command, brought),
            Body::Core(request @ Request::Answer { .. }) => self.answer_question(answer, request),
            Body::Core(request) => {
                if let Request::Shutdown { grace_ms } = request {
                    self.limit_the_end(grace_ms);
                }
                self.ask(answer, Shape::Plain, request);
            }
            Body::Inbox(instance, request) => self.inbox(answer, instance, request),
            Body::Inboxes(after, limit) => answer.give(&self.list_inboxes(after, limit)),
            Body::Prompt(command, agent) => self.submit_prompt(answer, command, agent.as_deref()),
            Body::Agents(params) => self.list_agents(answer, params),
            Body::Output(params) => {
                let request = Request::Retrieve { id: params.id.clone(), complete: false };
                self.ask(answer, Shape::Output(params), request);
            }
            Body::Result(id) => self.ask(answer, Shape::Result, Request::Retrieve { id, complete: true }),
            Body::Get(task) => match self.core.get(&task) {
                Ok(snapshot) => self.reader.get(snapshot, answer),
                Err(error) => answer.refuse(&error.into()),
            },
            Body::List(query) => answer.give(&self.list(&query)),
            Body::Write(task, data, eof) => self.write(answer, &task, data, eof),
            Body::Attach(task, size) => self.attach(&answer, &task, size),
            Body::Leave(task) => self.leave(&answer, &task),
            Body::Resize(task, size) => self.resize(&answer, &task, size),
            Body::Handoff(handoff) => self.handoff(answer, handoff),
            Body::Exit(task, exit) => self.exit_told(answer, &task, exit),
            Body::Subscribe(params) => self.subscribe(&answer, params),
            Body::Hello(None) => answer.give(&self.hello()),
            Body::Hello(Some(session)) => self.ask(answer, Shape::Plain, Request::OwnSession { session }),
            Body::Status => answer.give(&self.status()),
            Body::Reload => self.read_config(Some(answer)),
            Body::Refused(error) => answer.refuse(&error),
        }
    }

    fn submit(&mut self, answer: Answer, mut command: Box<Command>, brought: Brought) {
        if let Err(error) = self.choose_channel(&mut command.spec).and_then(|()| self.has_folder()) {
            return answer.refuse(&error);
        }
        self.notifier.awaits(&command.spec, answer.client().process);
        let id = command.id;
        let brings_any = !brought.is_empty();
        if brings_any {
            self.brought.insert(id, brought);
        }
        self.ask(answer, Shape::Plain, Request::Submit(command));
        // A key that is known, or a refusal: there is no such task, and nobody uses the descriptors.
        if brings_any && self.core.get(&id.into()).is_err() {
            self.brought.remove(&id);
        }
    }

    /// Puts a request to the core; the reply comes as an effect, now or later.
    fn ask(&mut self, answer: Answer, shape: Shape, request: Request) {
        self.last_call += 1;
        let to = ReplyTo { client: answer.client().id, call: self.last_call };
        self.pending.insert(to, (answer, shape));
        self.handle(Input::Request { to, request });
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        self.note_freed(&effects);
        let (mut forgotten, mut clears) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Start { task, run, spec, env } => {
                    let streams = Streams::Own(self.brought.remove(&task).unwrap_or_default());
                    let ready = if spec.pty.is_some() { self.shows.prepare() } else { Ok(()) };
                    match ready {
                        Ok(()) => self.starts.push(StartOrder { task, run, spec, env, streams }),
                        Err(error) => {
                            self.around.facts.send(Report::Begun { task, run, result: Err(error) });
                        }
                    }
                }
                Effect::Prompt { task, run, spec, env, prompt, settings, session } => {
                    if let Some(agent) = self.agent_of(task, run, &spec) {
                        self.prompt(TurnOrder { task, run, agent, spec, env, prompt, settings, session });
                    }
                }
                Effect::Answer { task, run, key, option } => {
                    let control = Control::Answer { key, option };
                    self.agents.order_if_started(Order::Control { task, run, control });
                }
                Effect::Signal { task, run, signal, tree } => self.processes.signal(task, run, signal, tree),
                Effect::End { task, run, signal } => {
                    self.processes.end(task, run, signal);
                    self.stop_turn(task, run, signal);
                }
                Effect::Adopt { task, run } => self.adopt_handed(task, run),
                Effect::Detached { task, client } => self.leave_terminal(task, client),
                Effect::Forget { task, run } => {
                    self.brought.remove(&task);
                    self.handoffs.forget(task);
                    self.agents.order_if_started(Order::Forget { task });
                    if self.notifier.reads(task) {
                        self.kept_for_notices.insert(task, run);
                    } else {
                        self.notifier.forget(task);
                        forgotten.push((task, run));
                    }
                }
                Effect::Event { seq, at, kind, task } => {
                    if kind.is_terminal() {
                        self.brought.remove(&task.id);
                        self.notifier.end_typing(task.id);
                    }
                    self.figures.count(kind, at, &task);
                    let session = task.spec.session.clone();
                    self.subscribers.publish(seq, at, kind, &view::task(&task, &self.around.folder), session);
                }
                Effect::Notice { notice, seen_by } => self.tell(notice, &seen_by),
                Effect::Reply { to, reply } => {
                    let Some((answer, shape)) = self.pending.remove(&to) else { continue };
                    match reply {
                        Reply::Cleared { cleared } => {
                            clears.push((answer, Clear::Tasks(ClearResult { cleared })));
                        }
                        Reply::SessionEnded { cancelled, cleared } => {
                            let result = SessionEndResult { cancelled, cleared };
                            clears.push((answer, Clear::Session(result)));
                        }
                        reply => self.reply(answer, shape, reply),
                    }
                }
                Effect::Exit => self.begin_to_end(),
            }
        }
        self.remove_outputs(forgotten, clears);
    }

    fn write(&self, answer: Answer, task: &TaskRef, data: Vec<u8>, eof: bool) {
        let snapshot = match self.core.get(task) {
            Ok(snapshot) => snapshot,
            Err(error) => return answer.refuse(&error.into()),
        };
        let id = snapshot.id;
        if !matches!(snapshot.state, State::Running { .. } | State::Stopping { exit: None, .. }) {
            return answer.refuse(&CoreError::NotRunning(id, snapshot.status()).into());
        }
        let Some((answer, data)) = self.write_to_terminal(answer, id, data, eof) else { return };
        let Some(input) = self.processes.input(id) else {
            let hint = match snapshot.spec.kind {
                Kind::Process => "submit it with `stdin: \"pipe\"` (bgctl submit --stdin-pipe)",
                Kind::Agent => "an agent is told something else when it has answered: `bgctl resume`",
            };
            let message = format!("task {id} has no standard input to write to");
            return answer.refuse(&RpcError::new(ErrorKind::Unsupported, message).hint(hint));
        };
        tokio::spawn(async move {
            match input.write(data, eof).await {
                Ok(written) => answer.give(&WriteResult { written }),
                Err(error) => answer.refuse(&write_error(id, &error)),
            }
        });
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
