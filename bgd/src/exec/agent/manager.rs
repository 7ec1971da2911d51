//! The owner of all agent processes: takes the dispatcher's orders, finds a process for each turn, and ends
//! processes that are no longer needed. Everything here runs on one thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::agent::{AgentCheck, AgentInfo, AgentProtocol};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::text::Env;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{mpsc, watch};

use super::link::Connection;
use super::live::{Live, too_slow};
use super::order::{Control, Order, TurnOrder};
use super::pool::{Choice, Pool, ProcessId, Rest};
use super::sameness::relevant_env;
use super::start::Start;
use super::template::{self, Template};
use crate::agents::{Agent, Machine};
use crate::core::{Refusal, Spec};
use crate::exec::context::Context;
use crate::exec::host::{Host, Purpose};

/// How many agents are checked at a time. A single one may need half a gigabyte of memory.
const CHECKS: usize = 4;

/// What must be equal for turns to share a process.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    name: Arc<str>,
    protocol: AgentProtocol,
    command: Vec<String>,
    url: Option<String>,
    on: Option<Arc<Machine>>,
    /// Only the variables that matter, including those that the configuration adds.
    env: Env,
    umask: u32,
    rlimits: Option<Arc<Rlimits>>,
}

/// The outcome of a start; `None` while it is in progress.
type Outcome = Option<Result<Rc<Live>, Refusal>>;

/// A running turn.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) run: u32,
    pub(super) control: mpsc::UnboundedSender<Control>,
}

/// The owner of all agent processes.
#[derive(Debug)]
pub struct Manager {
    host: Host,
    pub(super) context: Context,
    pool: RefCell<Pool<Key>>,
    seats: RefCell<HashMap<ProcessId, watch::Receiver<Outcome>>>,
    pub(super) turns: RefCell<HashMap<TaskId, Running>>,
    /// Which process holds a task's session, and the connection's key for it.
    sessions: RefCell<HashMap<TaskId, (ProcessId, Arc<str>)>>,
}

/// A turn's place in an agent's process. Dropping it frees the place.
#[derive(Debug)]
struct Place {
    manager: Rc<Manager>,
    seat: ProcessId,
    keep_warm: Duration,
    /// Whether its turn was told to end.
    ending: Cell<bool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        Manager::give_back(&self.manager, self.seat, self.ending.get(), self.keep_warm);
    }
}

/// An agent that is leased to a turn.
#[derive(Debug)]
pub struct Lease {
    /// `None` if the turn has the agent to itself.
    place: Option<Place>,
    live: Rc<Live>,
    /// Whether the process existed before the turn; then it may have ended without anybody knowing yet.
    pub was_warm: bool,
}

impl Lease {
    /// Returns the agent.
    pub fn live(&self) -> &Rc<Live> {
        &self.live
    }

    fn seat(&self) -> Option<ProcessId> {
        self.place.as_ref().map(|place| place.seat)
    }
}

impl Manager {
    /// Creates a manager without agents.
    pub fn new(context: Context) -> Rc<Self> {
        Rc::new(Self {
            host: Host::new(context.reports.clone(), Purpose::Agent),
            context,
            pool: RefCell::default(),
            seats: RefCell::default(),
            turns: RefCell::default(),
            sessions: RefCell::default(),
        })
    }

    /// Handles orders until the channel closes.
    pub async fn run(self: Rc<Self>, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Turn(order) => self.begin(*order),
                Order::Control { task, run, control } => self.control(task, run, control),
                Order::Forget { task } => self.forget(task),
                Order::Check { agents, env, tell } => {
                    let manager = Rc::clone(&self);
                    tokio::task::spawn_local(async move { (tell.0)(manager.check(agents, env).await) });
                }
            }
        }
    }

    fn control(&self, task: TaskId, run: u32, control: Control) {
        if let Some(running) = self.turns.borrow().get(&task).filter(|running| running.run == run) {
            // Fails if the turn has just ended, which it reports itself.
            let _ = running.control.send(control);
        }
    }

    /// Removes a turn, which takes no more commands.
    pub fn turn_ended(&self, task: TaskId, run: u32) {
        let mut turns = self.turns.borrow_mut();
        if turns.get(&task).is_some_and(|running| running.run == run) {
            turns.remove(&task);
        }
    }

    /// Releases the session of a task that was cleared.
    fn forget(&self, task: TaskId) {
        let Some((seat, key)) = self.sessions.borrow_mut().remove(&task) else { return };
        self.let_go(seat, key);
    }

    /// Tells a process to release a session that it no longer needs.
    fn let_go(&self, seat: ProcessId, key: Arc<str>) {
        self.pool.borrow_mut().forget(seat, &key);
        let live = self.seats.borrow().get(&seat).and_then(|start| start.borrow().clone());
        if let Some(Ok(live)) = live {
            tokio::task::spawn_local(async move { live.connection.forget(&key).await });
        }
    }

    /// Notes that the process of this lease now holds the task's session.
    pub fn opened(&self, lease: &Lease, task: TaskId, key: &Arc<str>) {
        if let Some(seat) = lease.seat() {
            self.pool.borrow_mut().holds(seat, key);
            let before = self.sessions.borrow_mut().insert(task, (seat, Arc::clone(key)));
            // The copy in an earlier process is outdated from now on.
            if let Some((old, key)) = before.filter(|(old, _)| *old != seat) {
                self.let_go(old, key);
            }
        }
    }

    /// Leases a place for a turn in an existing or a new process.
    ///
    /// # Errors
    /// The agent does not start.
    pub async fn lease(self: &Rc<Self>, order: &TurnOrder) -> Result<Lease, Refusal> {
        let agent = &order.agent;
        let start = Start { agent: agent.clone(), env: order.env.clone(), like: order.spec.clone() };
        if agent.protocol == AgentProtocol::Template {
            let template = Template::new(self.host.clone(), start, self.context.clone());
            let live = Rc::new(Live::of(Connection::Template(template)));
            return Ok(Lease { place: None, live, was_warm: false });
        }
        let key = key_of(agent, &order.env, &order.spec);
        let choice = self.pool.borrow_mut().take(key, agent.max_sessions, order.session.as_ref());
        let seat = choice.seat();
        let keep_warm = agent.keep_warm;
        let place = Place { manager: Rc::clone(self), seat, keep_warm, ending: Cell::new(false) };
        if let Choice::New(seat) = choice {
            self.start(seat, start);
        }
        let outcome = self.seats.borrow().get(&seat).cloned();
        let Some(mut outcome) = outcome else { return Err(gone()) };
        let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        let Some(started) = outcome else {
            // The start panicked; nobody else should wait for it.
            self.remove(seat);
            return Err(gone());
        };
        let live = started?;
        Ok(Lease { place: Some(place), live, was_warm: matches!(choice, Choice::Known(_)) })
    }

    /// Starts a process. All turns that want it wait for this one start.
    fn start(self: &Rc<Self>, seat: ProcessId, start: Start) {
        let (tell, outcome) = watch::channel(None);
        self.seats.borrow_mut().insert(seat, outcome);
        let manager = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let limit = start.agent.start_timeout;
            let started = tokio::time::timeout(limit, Live::start(&manager.host, &start)).await;
            let started = started.unwrap_or_else(|_| Err(too_slow(&start.agent, "did not start")));
            match started {
                Ok(live) => {
                    let live = Rc::new(live);
                    tell.send_replace(Some(Ok(Rc::clone(&live))));
                    let why = live.lost().await;
                    tracing::info!(agent = &*start.agent.name, why, "an agent's process is gone");
                    manager.remove(seat);
                    live.end_lost().await;
                }
                Err(refusal) => {
                    manager.remove(seat);
                    tell.send_replace(Some(Err(refusal)));
                }
            }
        });
    }

    fn remove(&self, seat: ProcessId) {
        self.pool.borrow_mut().remove(seat);
        self.seats.borrow_mut().remove(&seat);
        self.sessions.borrow_mut().retain(|_, (holder, _)| *holder != seat);
    }

    /// Stops giving new turns to the process of this lease.
    pub fn retire(&self, lease: &Lease) {
        if let Some(seat) = lease.seat() {
            self.pool.borrow_mut().retire(seat);
        }
    }

    /// Retires the process of a cancelled turn. What the agent started for that turn may live on,
    /// indistinguishable from what belongs to other turns. So the process gets no new turns and ends with its
    /// last one: right away, if all of its turns were told to end.
    pub async fn turn_cancelled(&self, lease: &Lease) {
        self.retire(lease);
        let Some(place) = &lease.place else { return };
        place.ending.set(true);
        if self.pool.borrow_mut().turn_ends(place.seat) {
            Rc::clone(&lease.live).end(true).await;
        }
    }

    /// Frees a turn's place. A process that stays idle for `keep_warm` is closed, a retired one as soon as it
    /// is idle.
    fn give_back(self: &Rc<Self>, seat: ProcessId, was_ending: bool, keep_warm: Duration) {
        let rest = self.pool.borrow_mut().give_back(seat, was_ending);
        let manager = Rc::clone(self);
        match rest {
            Rest::Busy => {}
            Rest::Idle(rest) => drop(tokio::task::spawn_local(async move {
                tokio::time::sleep(keep_warm).await;
                if manager.pool.borrow().is_unused_since(seat, rest) {
                    manager.close(seat).await;
                }
            })),
            Rest::Over => drop(tokio::task::spawn_local(async move { manager.close(seat).await })),
        }
    }

    async fn close(&self, seat: ProcessId) {
        self.pool.borrow_mut().retire(seat);
        let start = self.seats.borrow().get(&seat).cloned();
        let Some(mut start) = start else { return };
        // The turns that wanted it may be gone before it has started. Wait for it here, as nobody else will.
        let started = start.wait_for(Option::is_some).await.map(|started| started.clone());
        if let Ok(Some(Ok(live))) = started {
            // The task that started it removes it once it is gone.
            live.end(true).await;
        }
    }

    /// Starts the agents that are available, a few at a time, and collects what they report about themselves.
    async fn check(&self, agents: Vec<(Arc<Agent>, AgentInfo)>, env: Arc<Env>) -> Vec<AgentInfo> {
        let env = &env;
        let checks = agents.into_iter().map(|(agent, mut info)| async move {
            if info.available {
                match self.check_one(&agent, env).await {
                    Ok(check) => info.check = Some(check),
                    Err(refusal) => info.error = Some(refusal.message.into()),
                }
            }
            info
        });
        stream::iter(checks).buffered(CHECKS).collect().await
    }

    async fn check_one(&self, agent: &Arc<Agent>, env: &Arc<Env>) -> Result<AgentCheck, Refusal> {
        // A template's program is started only for a prompt.
        if agent.protocol == AgentProtocol::Template {
            return Ok(template::about(agent));
        }
        let begin = Instant::now();
        let start = Start { agent: agent.clone(), env: env.clone(), like: Arc::new(Spec::of_daemon()) };
        let started = tokio::time::timeout(agent.start_timeout, Live::start(&self.host, &start)).await;
        let live = Rc::new(started.unwrap_or_else(|_| Err(too_slow(agent, "did not start")))?);
        // Includes the start of the process, which the connection does not measure.
        let started_in_ms = u64::try_from(begin.elapsed().as_millis()).ok();
        let check = AgentCheck { started_in_ms, ..live.connection.about() };
        live.end(true).await;
        Ok(check)
    }
}

fn key_of(agent: &Agent, env: &Env, spec: &Spec) -> Key {
    Key {
        name: Arc::clone(&agent.name),
        protocol: agent.protocol,
        command: agent.command.clone(),
        url: agent.url.clone(),
        on: agent.on.clone(),
        env: relevant_env(&agent.environment(env)),
        umask: spec.umask,
        rlimits: spec.rlimits.clone(),
    }
}

fn gone() -> Refusal {
    Refusal::new(ErrorKind::AgentUnavailable, "the agent's process has just ended").hint("try it again")
}
