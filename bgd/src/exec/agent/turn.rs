//! Runs one turn of an agent: finds a process, opens the session, sends the prompt, records the agent's output, passes
//! on its questions, and reports the end. It makes no decisions about the task: the core does.

mod opening;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{InputOption, OptionKind, Permissions};
use bgd_shared::error::ErrorKind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::after::with_prompt;
use super::connection::{Ask, Opened, TurnEnd, Update};
use super::link::Connection;
use super::live::Live;
use super::manager::{Lease, Manager};
use super::order::{Control, TurnOrder};
use super::patience::sleep_then_drain;
use super::pending::{Asked, Early};
use super::pool::ProcessId;
use super::recorder::Recorder;
use super::refusals::{bounded, refusal_of};
use super::shown::{Shown, Visible};
use super::state::FollowState;
use super::stderr_tail::speaks;
use crate::core::{Fact, Note, Refusal};
use crate::exec::context::Context;

/// How long to wait for a sign of life after a prompt to an earlier session, before the prompt counts as accepted. An
/// agent that has forgotten the session reports that within this time, and the task remains unchanged.
const ACCEPTED_AFTER: Duration = Duration::from_millis(250);

/// How long the program of a template may take to start before a follow-up prompt counts as accepted nevertheless. The
/// start itself accepts it.
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// The shortest time between two reports of an agent's standard error.
const SPEAKS_EVERY: Duration = Duration::from_secs(1);

/// How far the prompt has come.
enum Phase {
    /// The agent is not known to have the prompt.
    Starting,
    /// The agent has the prompt.
    Running,
}

/// A running turn.
struct Turn {
    order: TurnOrder,
    context: Context,
    control: mpsc::UnboundedReceiver<Control>,
    /// Pending questions by number.
    asked: HashMap<u64, Asked>,
    last_question: u64,
    /// Carries the numbers of questions that the agent no longer waits for.
    withdrawn: (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>),
    /// Whether the turn was asked to end.
    stopping: bool,
    /// Whether a permission was denied in this turn without a user's answer.
    denied: bool,
    /// How many permissions a user has denied in this turn.
    user_denials: u32,
    /// How many meaningful lines the agent had written to its standard error before this turn.
    lines: Option<u64>,
    /// The turn's state as visible to an upgrade.
    shown: Shown,
}

/// The turn's links to the manager and the core.
#[derive(Debug)]
pub struct TurnLinks {
    pub control: mpsc::UnboundedReceiver<Control>,
    /// The turn's state as visible to an upgrade.
    pub shown: Shown,
    pub context: Context,
}

/// Runs a turn to its end, then keeps recording late output.
pub async fn run(manager: Rc<Manager>, order: TurnOrder, links: TurnLinks) {
    let order = with_prompt(order, &links.context).await;
    let mut turn = Turn::new(order, links);
    turn.shown.show(Visible::Opening(Box::new(turn.order.clone())));
    let late = turn.take(&manager).await;
    turn.leave(&manager, late).await;
}

/// Resumes a turn after an upgrade.
pub async fn resume(
    manager: Rc<Manager>,
    state: FollowState,
    lease: Lease,
    updates: mpsc::Receiver<Update>,
    links: TurnLinks,
) {
    let FollowState { order, opened, is_accepted, recorder, asked, .. } = state;
    let mut turn = Turn::new(order, links);
    turn.asked = asked.into_iter().map(Asked::restore).collect();
    turn.last_question = state.last_question;
    (turn.stopping, turn.denied, turn.user_denials) = (state.stopping, state.denied, state.user_denials);
    turn.lines = Some(state.lines);
    let recorder = Recorder::restore(recorder, turn.context.clone());
    let phase = if is_accepted { Phase::Running } else { Phase::Starting };
    let talk = Talk { live: Rc::clone(lease.live()), opened, recorder, phase };
    let late = turn.finish(&manager, &lease, talk, updates).await;
    drop(lease);
    turn.leave(&manager, late).await;
}

/// The remains of a finished turn that late output is recorded with: the recorder, the session's updates, and the
/// process with its key for the session.
type Late = Option<(Recorder, mpsc::Receiver<Update>, Option<(ProcessId, Arc<str>)>)>;

/// Why no session could be opened for a prompt.
enum Unopened {
    Refused(Refusal),
    /// The warm process had already ended; a new one is worth a try.
    TooLate,
}

impl From<Refusal> for Unopened {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A prompt that is being sent to the agent, or that the agent is working on.
struct Talk {
    live: Rc<Live>,
    opened: Opened,
    recorder: Recorder,
    phase: Phase,
}

/// A session that is ready for its prompt.
struct Ready {
    lease: Lease,
    opened: Opened,
    updates: mpsc::Receiver<Update>,
}

impl Turn {
    fn new(order: TurnOrder, links: TurnLinks) -> Self {
        let TurnLinks { control, shown, context } = links;
        Self {
            order,
            context,
            control,
            asked: HashMap::new(),
            last_question: 0,
            withdrawn: mpsc::unbounded_channel(),
            stopping: false,
            denied: false,
            user_denials: 0,
            lines: None,
            shown,
        }
    }

    /// Deregisters the turn from the manager, and keeps recording late output.
    async fn leave(self, manager: &Rc<Manager>, late: Late) {
        manager.turn_ended(self.order.task, self.order.run);
        drop(self);
        if let Some((recorder, updates, of)) = late {
            manager.keep_late(recorder, updates, of).await;
        }
    }

    /// Runs the turn. If a process that was kept warm turns out to have just ended, retries in a new one.
    async fn take(&mut self, manager: &Rc<Manager>) -> Late {
        let deadline = Instant::now() + self.order.agent.start_timeout;
        loop {
            let Ready { lease, opened, updates } = match self.open(manager, deadline).await {
                Ok(ready) => ready,
                Err(Unopened::TooLate) => continue,
                Err(Unopened::Refused(refusal)) => {
                    self.refuse(refusal);
                    return None;
                }
            };
            // An agent that got the prompt may have acted on it, so retry only before the prompt was sent.
            if !(lease.was_warm && lease.live().is_dead()) {
                return self.talk(manager, &lease, opened, updates).await;
            }
            manager.retire(&lease);
        }
    }

    fn tell(&self, fact: Fact) {
        self.context.facts.send(self.order.task, self.order.run, fact);
    }

    fn refuse(&self, refusal: Refusal) {
        tracing::info!(task = %self.order.task, reason = %refusal.message, "prompt not given");
        self.tell(Fact::Refused(Box::new(refusal)));
    }

    /// Reports the limits that the agent's current configuration sets for this turn.
    fn limit(&self) {
        let agent = &self.order.agent;
        let (stalled_after_ms, ask_timeout_ms) = (agent.stalled_after_ms(), agent.ask_timeout_ms());
        self.tell(Fact::Limits { stalled_after_ms, ask_timeout_ms });
    }

    /// Warns about actions that the agent can take in this session without asking, unless the user has configured when
    /// it asks.
    fn warn(&self, opened: &Opened) {
        let TurnOrder { agent, env, settings, .. } = &self.order;
        let seen = opened.warning.clone().filter(|_| !agent.is_configured_to_ask(env));
        // A warning that needs no session was reported at submit, but each run clears it, so report it again.
        if let Some(warning) = seen.or_else(|| agent.warning(env, settings)) {
            self.tell(Fact::Noted { note: Note::Warning, text: warning.into() });
        }
    }

    /// Sends the prompt, follows the turn to its end, and reports the end.
    async fn talk(
        &mut self,
        manager: &Rc<Manager>,
        lease: &Lease,
        opened: Opened,
        updates: mpsc::Receiver<Update>,
    ) -> Late {
        self.shown.hide();
        // On a first run, warn before `Started`, so that the event for the start already shows the warning.
        // The start of a later run clears all notes, so `accepted` warns after it.
        if self.order.session.is_none() {
            self.limit();
            self.warn(&opened);
        }
        let TurnOrder { task, run, spec, .. } = &self.order;
        let recorder = match Recorder::begin(*task, *run, spec.split, self.context.clone()) {
            Ok(recorder) => recorder,
            Err(error) => {
                self.refuse(Refusal::new(ErrorKind::Internal, error));
                return None;
            }
        };
        let live = Rc::clone(lease.live());
        // The files of a template are tracked as soon as its program runs: until then they may shrink again.
        if !matches!(live.connection, Connection::Template(_)) {
            self.context.outputs.track(*task, *run, spec.split);
        }
        let talk = Talk { live, opened, recorder, phase: Phase::Starting };
        self.finish(manager, lease, talk, updates).await
    }

    /// Follows the turn to its end, and reports the end.
    async fn finish(
        &mut self,
        manager: &Rc<Manager>,
        lease: &Lease,
        mut talk: Talk,
        mut updates: mpsc::Receiver<Update>,
    ) -> Late {
        let end = self.follow(manager, lease, &mut talk, &mut updates).await;
        self.shown.hide();
        let end = match end {
            // Before the prompt counts as accepted, as a forgotten session leaves the task as it was.
            Some(TurnEnd::Rejected(why)) => self.judged(why, manager, &mut talk).await,
            end => end,
        };
        let end = match end {
            Some(end) => end,
            None => force(manager, lease).await,
        };
        // First record the output from before the end.
        for _ in 0..updates.len() {
            let Ok(update) = updates.try_recv() else { break };
            self.accepted(&mut talk);
            self.update(update, &mut talk.recorder);
        }
        if matches!(end, TurnEnd::LoggedOut(_)) {
            manager.retire(lease);
        }
        if let Phase::Starting = talk.phase
            && let Some(refusal) = refusal_of(&end, &talk.live).await
        {
            talk.recorder.abandon().await;
            self.refuse(refusal);
            return None;
        }
        self.accepted(&mut talk);
        self.asked.clear();
        if self.stopping {
            manager.turn_cancelled(lease).await;
        }
        let end = match end {
            // A template's tool calls are not visible, so it may complete without any output.
            TurnEnd::Completed => {
                talk.recorder.verdict(!matches!(talk.live.connection, Connection::Template(_)))
            }
            other => other,
        };
        if end == TurnEnd::Completed
            && let Some(why) = talk.recorder.suspicion()
        {
            talk.recorder.note(Note::Suspect, &why);
        }
        let result = self.result(end, &talk.live).await;
        talk.recorder.end(result).await;
        let of = lease.seat().map(|seat| (seat, talk.opened.key));
        Some((talk.recorder, updates, of))
    }

    /// Sends the prompt and follows the turn to its end; returns `None` if the turn must be ended by force. For a turn
    /// that began before an upgrade, the connection only waits for the end.
    async fn follow(
        &mut self,
        manager: &Rc<Manager>,
        lease: &Lease,
        talk: &mut Talk,
        updates: &mut mpsc::Receiver<Update>,
    ) -> Option<TurnEnd> {
        let patience = match (&self.order.session, &talk.live.connection) {
            (None, _) => Duration::ZERO,
            (Some(_), Connection::Template(_)) => STARTED_WITHIN,
            (Some(_), _) => ACCEPTED_AFTER,
        };
        let accepted = sleep_then_drain(patience);
        tokio::pin!(accepted);
        let (live, key) = (Rc::clone(&talk.live), Arc::clone(&talk.opened.key));
        let prompt = Arc::clone(&self.order.prompt);
        let prompting = live.connection.prompt(&key, &prompt);
        tokio::pin!(prompting);
        let died = live.server_exited();
        tokio::pin!(died);
        let mut meaningful_lines = live.stderr_tail().meaningful_lines();
        let (now, mut next) = (*meaningful_lines.borrow_and_update(), Instant::now());
        let before = *self.lines.get_or_insert(now);
        if now > before {
            meaningful_lines.mark_changed();
        }
        let mut hold = manager.hold();
        loop {
            let holds = *hold.borrow_and_update();
            self.show(holds, lease, talk);
            tokio::select! {
                biased;
                Some(control) = self.control.recv() => {
                    if self.handle_control(control, talk, manager) {
                        return None;
                    }
                }
                Some(key) = self.withdrawn.1.recv() => self.withdraw(key),
                // Polled before the updates, so that a turn ends even if its agent never stops sending updates.
                end = &mut prompting => return Some(end),
                Some(update) = updates.recv() => {
                    self.accepted(talk);
                    self.update(update, &mut talk.recorder);
                }
                why = &mut died => return Some(TurnEnd::Broken(why)),
                () = talk.recorder.until_due() => talk.recorder.send_pending(),
                () = speaks(&mut meaningful_lines, next), if matches!(talk.phase, Phase::Running) => {
                    talk.recorder.note(Note::LastWords, &live.stderr_tail().since(before));
                    next = Instant::now() + SPEAKS_EVERY;
                }
                () = &mut accepted, if matches!(talk.phase, Phase::Starting) => self.accepted(talk),
                // The sender lives as long as the manager.
                Ok(()) = hold.changed() => {}
            }
        }
    }

    /// Finds out whether the agent rejected the prompt because it has forgotten the session. Returns `None` if the turn
    /// must be ended by force meanwhile.
    async fn judged(&mut self, why: Box<str>, manager: &Rc<Manager>, talk: &mut Talk) -> Option<TurnEnd> {
        let (live, key) = (Rc::clone(&talk.live), Arc::clone(&talk.opened.key));
        let judging = live.connection.judge(&key, why);
        tokio::pin!(judging);
        loop {
            tokio::select! {
                biased;
                Some(control) = self.control.recv() => {
                    if self.handle_control(control, talk, manager) {
                        return None;
                    }
                }
                end = &mut judging => return Some(end),
            }
        }
    }

    /// While agents are held back, publishes the turn's state for an upgrade; otherwise hides it.
    fn show(&self, holds: bool, lease: &Lease, talk: &mut Talk) {
        if !holds || self.asked.values().any(|asked| asked.early.is_some()) {
            return self.shown.hide();
        }
        let asked = self.asked.iter().map(|(key, asked)| asked.state(*key));
        let state = Box::new(FollowState {
            order: self.order.clone(),
            seat: lease.seat(),
            opened: talk.opened.clone(),
            is_accepted: matches!(talk.phase, Phase::Running),
            recorder: talk.recorder.state(),
            asked: asked.collect(),
            last_question: self.last_question,
            stopping: self.stopping,
            denied: self.denied,
            user_denials: self.user_denials,
            lines: self.lines.unwrap_or_default(),
            template: None,
        });
        self.shown.show(Visible::Following { live: Rc::clone(&talk.live), state });
    }

    /// Reports, once, that the agent has the prompt.
    fn accepted(&self, talk: &mut Talk) {
        if let Phase::Starting = talk.phase {
            talk.phase = Phase::Running;
            if self.order.session.is_some() {
                self.limit();
            } else if let Some(session) = &talk.opened.session {
                self.tell(Fact::Session { id: Arc::clone(session) });
            }
            self.tell(Fact::Started { pid: talk.live.pid() });
            if self.order.session.is_some() {
                self.warn(&talk.opened);
            }
        }
    }

    /// Handles a command. Returns `true` if the turn must be ended by force.
    fn handle_control(&mut self, control: Control, talk: &mut Talk, manager: &Rc<Manager>) -> bool {
        match control {
            Control::Stop { force: true } => return true,
            Control::Stop { force: false } if self.stopping => {}
            Control::Stop { force: false } => {
                self.stopping = true;
                let (live, key) = (Rc::clone(&talk.live), Arc::clone(&talk.opened.key));
                let asked = std::mem::take(&mut self.asked);
                // The agent may be slow to accept the cancel, and the turn must be followed meanwhile. Drop its
                // questions only afterwards: that denies them, and a denial may end the turn, too.
                manager.spawn_detached(async move {
                    live.connection.cancel(&key).await;
                    drop(asked);
                });
            }
            Control::Answer { key, option, by_user } => {
                self.answered(key, option.map(Into::into), by_user, &mut talk.recorder);
            }
        }
        false
    }

    /// Passes on an answer. If the question was carried over an upgrade and the agent has not repeated it yet, keeps
    /// the answer until then.
    fn answered(&mut self, key: u64, option: Option<String>, by_user: bool, recorder: &mut Recorder) {
        let Some(asked) = self.asked.get_mut(&key) else { return };
        let Some(decide) = asked.decide.take() else {
            asked.early = Some(Early(option));
            return;
        };
        let is_denied = option.as_ref().is_none_or(|option| asked.denials.contains(option));
        if is_denied && by_user {
            self.user_denials += 1;
        } else if is_denied {
            self.denied = true;
        }
        self.asked.remove(&key);
        // Fails if the agent has continued without the answer.
        let _ = decide.send(option);
        recorder.note_activity();
    }

    fn withdraw(&mut self, key: u64) {
        if self.asked.remove(&key).is_some() {
            self.tell(Fact::Withdrawn { key });
        }
    }

    fn update(&mut self, update: Update, recorder: &mut Recorder) {
        match update {
            Update::Text(text) => recorder.text(&text),
            Update::Message => recorder.message(),
            Update::Part => recorder.part(),
            Update::Tool(name) => recorder.tool(&name),
            Update::Worked => recorder.worked(),
            Update::Model(of_model) => recorder.model(of_model),
            Update::Retries(why) => recorder.note(Note::LastWords, &why),
            Update::Consumed(report) => recorder.consumed(report),
            Update::Plan(steps) => recorder.plan(steps),
            Update::Activity => recorder.note_activity(),
            Update::Session(id) => self.tell(Fact::Session { id }),
            Update::Answer(answer) => recorder.answer(answer),
            Update::Ask(ask) => self.asked(ask, recorder),
        }
    }

    fn asked(&mut self, ask: Ask, recorder: &mut Recorder) {
        let Ask { reference, question, options, answer } = ask;
        recorder.worked();
        let before =
            self.asked.iter_mut().find(|(_, asked)| asked.reference == reference && asked.decide.is_none());
        if let Some((key, asked)) = before {
            // The agent repeats a known question after an upgrade.
            let (key, (decide, decided)) = (*key, oneshot::channel());
            let early = asked.early.take();
            asked.decide = Some(decide);
            self.wait_for(key, decided, answer);
            if let Some(Early(option)) = early {
                // One without an option may be that of the time limit.
                let by_user = option.is_some();
                self.answered(key, option, by_user, recorder);
            }
            return;
        }
        let options = bounded(options);
        let allowed = match self.order.agent.permissions {
            Permissions::Allow => [OptionKind::AllowOnce, OptionKind::AllowAlways]
                .iter()
                .find_map(|kind| options.iter().find(|option| option.kind == *kind))
                .map(|option| option.id.clone()),
            Permissions::Ask if !self.stopping => {
                self.last_question += 1;
                let key = self.last_question;
                let (decide, decided) = oneshot::channel();
                let denies = |option: &&InputOption| {
                    matches!(option.kind, OptionKind::RejectOnce | OptionKind::RejectAlways)
                };
                let denials = options.iter().filter(denies).map(|option| option.id.clone()).collect();
                self.asked.insert(key, Asked { reference, decide: Some(decide), early: None, denials });
                self.wait_for(key, decided, answer);
                return recorder.asked(key, &question, options);
            }
            Permissions::Deny | Permissions::Ask => None,
        };
        let is_denied = allowed.is_none();
        self.denied |= is_denied;
        // Fails if the agent has continued without the answer.
        let _ = answer.send(allowed);
        if is_denied && !self.stopping {
            recorder.denied(&question);
        } else {
            recorder.note_activity();
        }
    }

    /// Passes on the answer to a question, or notes that the agent no longer waits for it.
    fn wait_for(
        &self,
        key: u64,
        mut decided: oneshot::Receiver<Option<String>>,
        mut answer: oneshot::Sender<Option<String>>,
    ) {
        let withdrawn = self.withdrawn.0.clone();
        tokio::task::spawn_local(async move {
            tokio::select! {
                biased;
                option = &mut decided => { let _ = answer.send(option.unwrap_or(None)); }
                () = answer.closed() => { let _ = withdrawn.send(key); }
            }
        });
    }

    /// Returns the task's result for this end of the turn. The core uses it only if the task was not stopped.
    async fn result(&self, end: TurnEnd, live: &Live) -> Result<(), Box<str>> {
        match end {
            TurnEnd::Completed => Ok(()),
            TurnEnd::Cancelled if self.stopping => Err("it was cancelled".into()),
            TurnEnd::Cancelled if self.denied => Err(format!(
                "the agent gave up when a permission was denied (permissions in [agents.{}])",
                self.order.agent.name
            )
            .into()),
            TurnEnd::Cancelled if self.user_denials > 0 => {
                Err("the agent gave up when you denied a permission".into())
            }
            TurnEnd::Cancelled => {
                Err("the agent reported the turn as cancelled, but nobody cancelled it".into())
            }
            TurnEnd::Broken(why) => Err(live.describe_end(&why).await.into()),
            TurnEnd::Failed(why)
            | TurnEnd::Rejected(why)
            | TurnEnd::Forgotten(why)
            | TurnEnd::LoggedOut(why)
            | TurnEnd::NotBegun(why) => Err(why),
        }
    }
}

/// Ends the turn of an agent that ignores a cancel. Kills its process with every turn in it: anything that a cancelled
/// turn may still do is worse than a failed neighbour.
async fn force(manager: &Rc<Manager>, lease: &Lease) -> TurnEnd {
    manager.retire(lease);
    lease.live().connection.force().await;
    let why = "another turn of it did not end when cancelled";
    Rc::clone(lease.live()).kill_with_reason(why).await;
    TurnEnd::Cancelled
}
