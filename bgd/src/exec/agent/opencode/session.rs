//! A session, run as its own async task: handles events as they come, and reads the server's state when it may have
//! changed, until the turn is over. After that it still passes on late output.
//!
//! Events only indicate when to look. The messages that a look reads decide whether a turn is over, and while a turn
//! runs there is a look every few seconds, regardless of events.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bgd_shared::consumption::StepStatus;
use bgd_shared::mutex::Mutex;
use bgd_shared::pauses::pause_after;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::super::connection::{TurnEnd, Update, Updates, plan};
use super::api::{Api, ApiError, SessionAddress};
use super::asks::{Asks, AsksState};
use super::follow::{self, Routes, Signal};
use super::pieces::Relation;
use super::turn::{News, Observation, Turn};
use super::wire::{Event, Fault, FaultData, Message};
use crate::exec::http::HttpError;

/// After how many consecutive failed looks the turn is given up.
const LOOKS: u32 = 12;

/// The shortest time between two looks that events trigger. So the second idle event of a turn, which follows the first
/// immediately, costs at most one more look.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(30);

/// How many generations of subagents are searched for the session of a question.
const GENERATIONS: usize = 4;

/// How many sessions are remembered as foreign.
const FOREIGN_SESSIONS: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time between two looks while a turn runs.
    pub poll: Duration,
    /// How long a session may seem idle with an incomplete answer.
    pub grace: Duration,
    /// How long a prompt may show no sign of work.
    pub stall: Duration,
    /// The shortest and the longest delay before the stream of events is requested again.
    pub waits: [Duration; 2],
}

impl Default for Timing {
    fn default() -> Self {
        let [poll, grace, stall] = [5, 3, 60].map(Duration::from_secs);
        Self { poll, grace, stall, waits: [Duration::from_millis(100), poll] }
    }
}

/// A prompt, and the channel for the end of its turn.
#[derive(Debug)]
pub struct Order {
    /// The prompt; `None` to resume the turn from before an upgrade.
    pub prompt: Option<String>,
    /// Receives the end of the turn. Dropping the receiver abandons the turn.
    pub reply: oneshot::Sender<TurnEnd>,
}

/// Asks a session to end its turn.
#[derive(Debug, Default)]
pub struct Stop {
    /// Whether the turn was asked to end.
    pub is_requested: AtomicBool,
    /// Requests a look.
    pub look: Notify,
}

/// The resources of a session.
#[derive(Debug)]
pub struct Parts {
    pub api: Arc<Api>,
    /// The registry that its events come from.
    pub routes: Arc<Routes>,
    pub id: Arc<str>,
    /// The folder that the server keeps the session under.
    pub directory: Arc<str>,
    pub updates: Updates,
    pub signals: mpsc::Receiver<Signal>,
    pub orders: mpsc::Receiver<Order>,
    /// Asks the session to end its turn.
    pub stop: Arc<Stop>,
    /// Why the server is gone; `None` while it is there.
    pub gone: watch::Receiver<Option<Box<str>>>,
    pub timing: Timing,
    /// Whether agents are held back for an upgrade.
    pub hold: watch::Receiver<bool>,
    /// Receives the session's state while agents are held back.
    pub shown: Arc<Mutex<Option<TurnState>>>,
}

/// The last turn of a session, as carried over an upgrade.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnState {
    turn: Option<Turn>,
    /// Whether the turn is running.
    pub runs: bool,
    may_begin: bool,
    pub asks: AsksState,
}

/// The state of a session's async task.
#[derive(Debug)]
pub struct Session {
    parts: Parts,
    asks: Asks,
    /// The running turn, or the last one.
    turn: Option<Turn>,
    /// Receives the end of the running turn; `None` while no turn runs.
    reply: Option<oneshot::Sender<TurnEnd>>,
    /// When the next look is due.
    due: Instant,
    looked: Instant,
    /// Events are missing: no further ones are handled until a look has read the missed messages.
    stale: bool,
    /// Whether the next look also searches for pending questions.
    thorough: bool,
    failures: u32,
    /// The turn was cancelled before it had visibly begun. If it begins anyway, it is cancelled again.
    may_begin: bool,
    foreign_sessions: HashSet<String>,
}

/// The server's state as read by a look.
struct ServerState {
    busy: Vec<String>,
    messages: Vec<Message>,
}

impl Session {
    /// Creates a session, with the turn from before an upgrade if there is one.
    pub fn new(parts: Parts, before: TurnState) -> Self {
        let TurnState { turn, runs: _, may_begin, asks: asked } = before;
        let mut asks = Asks::new(Arc::clone(&parts.api), parts.directory.clone(), parts.updates.clone());
        asks.restore(asked);
        let now = Instant::now();
        Self {
            parts,
            asks,
            turn,
            reply: None,
            due: now,
            looked: now,
            stale: false,
            thorough: false,
            failures: 0,
            may_begin,
            foreign_sessions: HashSet::new(),
        }
    }

    /// Runs until no more prompts can come.
    pub async fn run(mut self) {
        let gone = follow::wait_until_lost(self.parts.gone.clone());
        let mut gone = std::pin::pin!(gone);
        loop {
            let runs = self.reply.is_some();
            let holds = *self.parts.hold.borrow_and_update();
            self.show(holds);
            tokio::select! {
                biased;
                order = self.parts.orders.recv() => match order {
                    Some(order) => self.start(order).await,
                    None => return,
                },
                () = until_abandoned(&mut self.reply), if runs => self.reset_after_turn(),
                why = &mut gone, if runs => self.finish(TurnEnd::Broken(why)),
                () = self.parts.stop.look.notified() => self.look_soon(),
                () = tokio::time::sleep_until(self.due), if runs && !holds => self.look().await,
                () = self.asks.next() => {}
                signal = self.parts.signals.recv(), if !self.stale && !holds => match signal {
                    Some(Signal::Event(event)) => self.event(*event).await,
                    Some(Signal::Gap) => self.lose_track(),
                    None => return,
                },
                Ok(()) = self.parts.hold.changed() => {}
            }
        }
    }

    /// Publishes the state while agents are held back; otherwise hides it.
    fn show(&self, holds: bool) {
        let state = holds.then(|| TurnState {
            turn: self.turn.clone(),
            runs: self.reply.is_some(),
            may_begin: self.may_begin,
            asks: self.asks.state(),
        });
        *self.parts.shown.lock() = state;
    }

    fn on(&self) -> SessionAddress<'_> {
        SessionAddress { session: &self.parts.id, directory: &self.parts.directory }
    }

    /// Sends the session a prompt. A turn that is still running is abandoned.
    async fn start(&mut self, order: Order) {
        self.show(false);
        let Some(prompt) = order.prompt else {
            self.reply = Some(order.reply);
            return self.lose_track();
        };
        self.reset_after_turn();
        let id = message_id();
        let began = Instant::now();
        let mut turn = Turn::new(id.clone(), began.into_std());
        match self.give(&id, &prompt).await {
            Ok(()) => {}
            // The prompt may have arrived. Don't send it again: the server would accept the same message twice.
            Err(error @ (ApiError::Late | ApiError::Http(HttpError::Broken(_)))) => {
                turn.complain(began.into_std(), fault(format!("the prompt was not answered: {error}")));
            }
            Err(ApiError::NotFound(why)) => return drop(order.reply.send(TurnEnd::Forgotten(why))),
            // Nothing was sent, so another server may get the same prompt.
            Err(error @ ApiError::Http(HttpError::Unreachable(_))) => {
                return drop(order.reply.send(TurnEnd::Broken(error.to_string().into())));
            }
            Err(error) => {
                let why = format!("the server rejected the prompt: {error}");
                return drop(order.reply.send(TurnEnd::Failed(why.into())));
            }
        }
        self.turn = Some(turn);
        self.reply = Some(order.reply);
        self.failures = 0;
        self.may_begin = false;
        self.thorough = false;
        self.due = Instant::now() + self.parts.timing.poll;
    }

    async fn give(&self, id: &str, prompt: &str) -> Result<(), ApiError> {
        let given = self.parts.api.prompt(self.on(), id, prompt).await;
        match given {
            // Nothing was sent, so a retry can't deliver the prompt twice.
            Err(ApiError::Http(HttpError::Unreachable(_))) => {
                tokio::time::sleep(MIN_LOOK_INTERVAL).await;
                self.parts.api.prompt(self.on(), id, prompt).await
            }
            given => given,
        }
    }

    /// Handles a gap in the events.
    fn lose_track(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.lose_track();
        }
        // A turn that is over needs no look: late events carry their whole text.
        if self.reply.is_some() {
            self.stale = true;
            self.thorough = true;
            self.failures = 0;
            self.due = Instant::now();
        }
    }

    async fn event(&mut self, event: Event) {
        let runs = self.reply.is_some();
        let Some(turn) = &mut self.turn else { return };
        let news = match event {
            Event::Message(info) => {
                let news = turn.on_message(&info);
                if news.is_some() && std::mem::take(&mut self.may_begin) {
                    self.abort().await;
                }
                news
            }
            Event::Busy(retry) => {
                turn.on_busy();
                retry.map(|why| News::Retries(why.into()))
            }
            Event::Todos(todos) => Some(News::Plan(plan(todos.into_iter().map(|todo| {
                (todo.content, StepStatus::named(&todo.status).unwrap_or(StepStatus::Pending))
            })))),
            Event::Part(part) => turn.on_part(&part),
            Event::Delta(delta) => turn.on_delta(&delta),
            Event::Idle | Event::Deleted => {
                self.look_soon();
                None
            }
            Event::Fault(fault) => {
                turn.complain(Instant::now().into_std(), fault);
                self.look_soon();
                None
            }
            Event::Permission(asked) if runs => {
                self.asks.permission(asked);
                None
            }
            Event::Questions(asked) if runs => {
                self.asks.questions(asked);
                None
            }
            Event::Answered(id) => {
                self.asks.take_back(&id);
                None
            }
            Event::Permission(_) | Event::Questions(_) | Event::Child(_) => None,
        };
        let consumed = self.turn.as_mut().and_then(Turn::consumed);
        self.tell(news.into_iter().chain(consumed)).await;
    }

    async fn tell(&self, news: impl IntoIterator<Item = News>) {
        for news in news {
            // Fails if the receiver was dropped; then nothing needs to be reported.
            let _ = match news {
                News::Text(relation, text) => self.tell_text(relation, text).await,
                News::Tool(name) => self.parts.updates.send(Update::Tool(name)).await.is_ok(),
                News::Retries(why) => self.parts.updates.send(Update::Retries(why)).await.is_ok(),
                News::Consumed(report) => self.parts.updates.send(Update::Consumed(report)).await.is_ok(),
                News::Plan(steps) => self.parts.updates.send(Update::Plan(steps)).await.is_ok(),
                // A full channel is a sign of activity itself.
                News::Activity => self.parts.updates.try_send(Update::Activity).is_ok(),
            };
        }
    }

    async fn tell_text(&self, relation: Relation, text: String) -> bool {
        let updates = &self.parts.updates;
        let boundary = match relation {
            Relation::Continues => None,
            Relation::OtherPart => Some(Update::Part),
            Relation::OtherMessage => Some(Update::Message),
        };
        if let Some(boundary) = boundary
            && updates.send(boundary).await.is_err()
        {
            return false;
        }
        updates.send(Update::Text(text)).await.is_ok()
    }

    /// Schedules a look as soon as possible, if a turn runs.
    fn look_soon(&mut self) {
        if self.reply.is_some() {
            self.due = self.due.min(Instant::now().max(self.looked + MIN_LOOK_INTERVAL));
        }
    }

    /// Reads the server's state, reports news, and ends the turn if it is over.
    async fn look(&mut self) {
        self.show(false);
        let Some(turn) = &self.turn else { return };
        let had_begun = turn.has_begun();
        let is_poll = self.thorough || self.looked.elapsed() >= self.parts.timing.poll;
        let mut hold = self.parts.hold.clone();
        let found = tokio::select! {
            biased;
            // A server that does not answer must not delay an upgrade. Nothing is lost: the look stays due.
            Ok(_) = hold.wait_for(|holds| *holds) => return,
            found = self.read(turn) => found,
        };
        self.looked = Instant::now();
        match found {
            Ok(truth) => {
                self.failures = 0;
                self.stale = false;
                self.thorough = false;
                self.take(&truth, had_begun).await;
                if is_poll && self.reply.is_some() {
                    self.find_asks(&truth.busy).await;
                }
            }
            Err(ApiError::NotFound(why)) => self.finish(TurnEnd::Forgotten(why)),
            Err(error) => {
                self.failures += 1;
                let pauses = [MIN_LOOK_INTERVAL, self.parts.timing.poll];
                self.due = self.looked + pause_after(self.failures.min(8) + 1, pauses);
                tracing::debug!(session = %self.parts.id, %error, "cannot read an opencode session");
                if self.failures >= LOOKS {
                    self.finish(TurnEnd::Failed(format!("the session can't be read: {error}").into()));
                }
            }
        }
    }

    /// Reads the status before the messages: a session that was already idle has written all of its messages.
    async fn read(&self, turn: &Turn) -> Result<ServerState, ApiError> {
        let busy = self.parts.api.busy(&self.parts.directory).await?;
        let messages = self.parts.api.messages(self.on(), |message| turn.knows(message)).await?;
        Ok(ServerState { busy, messages })
    }

    async fn take(&mut self, truth: &ServerState, had_begun: bool) {
        let Some(turn) = &mut self.turn else { return };
        let mut news = turn.read(&truth.messages);
        news.extend(turn.consumed());
        if let Some(question) = self.asks.unanswered() {
            turn.question_unanswered(question);
        }
        let timing = self.parts.timing;
        let sight = Observation {
            busy: truth.busy.iter().any(|busy| **busy == *self.parts.id),
            had_begun,
            now: self.looked.into_std(),
            cancelled: self.parts.stop.is_requested.load(Ordering::Relaxed),
            grace: timing.grace,
            stall: timing.stall,
        };
        let end = turn.judge(&sight);
        let (last, turn_has_begun) = (turn.last().map(str::to_owned), turn.has_begun());
        self.tell(news).await;
        if let Some(end) = end {
            self.may_begin = sight.cancelled && !turn_has_begun;
            tracing::debug!(session = %self.parts.id, last, ?end, "the turn is over");
            return self.finish(end);
        }
        let wait = match (sight.busy, turn_has_begun && !had_begun) {
            (true, _) => timing.poll,
            // The turn may well be over, but the status was read too early to show it.
            (false, true) => MIN_LOOK_INTERVAL,
            (false, false) => timing.poll.min(timing.grace / 4),
        };
        self.due = self.looked + wait;
        if sight.busy && sight.cancelled && self.reply.is_some() {
            // An abort that arrived before the server started with the prompt had no effect.
            self.abort().await;
        }
    }

    async fn abort(&self) {
        if let Err(error) = self.parts.api.abort(self.on()).await {
            tracing::debug!(session = %self.parts.id, %error, "cannot cancel");
        }
    }

    /// Finds the questions whose events were lost.
    async fn find_asks(&mut self, busy: &[String]) {
        let api = Arc::clone(&self.parts.api);
        let directory = self.parts.directory.clone();
        let (permissions, questions) = (api.permissions(&directory).await, api.questions(&directory).await);
        let (Ok(permissions), Ok(questions)) = (permissions, questions) else { return };
        let waiting = permissions.iter().map(|asked| asked.id.clone());
        self.asks.keep(&waiting.chain(questions.iter().map(|asked| asked.id.clone())).collect());
        for asked in permissions {
            let message = asked.tool.as_ref().map(|tool| tool.message.clone());
            if self.is_ours(&asked.session, message.as_deref(), busy).await {
                self.asks.permission(asked);
            }
        }
        for asked in questions {
            let message = asked.tool.as_ref().map(|tool| tool.message.clone());
            if self.is_ours(&asked.session, message.as_deref(), busy).await {
                self.asks.questions(asked);
            }
        }
    }

    /// Returns whether a question belongs to this turn. The server also keeps questions of aborted turns.
    async fn is_ours(&mut self, session: &str, message: Option<&str>, busy: &[String]) -> bool {
        if session == &*self.parts.id {
            let is_of_turn = |turn: &Turn| message.is_none_or(|message| turn.has(message));
            return self.turn.as_ref().is_some_and(is_of_turn);
        }
        if !busy.iter().any(|busy| busy == session) || self.foreign_sessions.contains(session) {
            return false;
        }
        let mut generations = vec![session.to_owned()];
        while let Some(youngest) = generations.last().filter(|_| generations.len() <= GENERATIONS) {
            if let Some(root) = self.parts.routes.root(youngest) {
                for child in &generations {
                    self.parts.routes.adopt(child.clone(), &root);
                }
                return root == self.parts.id;
            }
            match self.parts.api.session(youngest, &self.parts.directory).await {
                Ok(info) => match info.parent {
                    Some(parent) => generations.push(parent),
                    None => break,
                },
                Err(_) => return false,
            }
        }
        if self.foreign_sessions.len() < FOREIGN_SESSIONS {
            self.foreign_sessions.insert(session.to_owned());
        }
        false
    }

    /// Ends the turn, and reports its end. All updates of the turn are already in the channel.
    fn finish(&mut self, end: TurnEnd) {
        let reply = self.reply.take();
        self.reset_after_turn();
        if let Some(reply) = reply {
            // Fails if the caller has abandoned the turn.
            let _ = reply.send(end);
        }
    }

    /// Resets the state after a turn.
    fn reset_after_turn(&mut self) {
        self.reply = None;
        self.stale = false;
        self.asks.take_all_back();
    }
}

/// Waits until nothing waits for the end of the turn any more.
async fn until_abandoned(reply: &mut Option<oneshot::Sender<TurnEnd>>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

fn fault(message: String) -> Fault {
    Fault { name: "the prompt was lost".to_owned(), data: FaultData { message: Some(message), status: None } }
}

/// Creates an id for a message. It has the form of the server's own ids, which begin with the time, because some
/// versions compare them.
fn message_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let time = now.wrapping_mul(0x1000) & 0xffff_ffff_ffff;
    let chance = uuid::Uuid::new_v4().simple().to_string();
    format!("msg_{time:012x}{}", chance.get(..14).unwrap_or_default())
}
