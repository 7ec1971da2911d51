//! The owner of all agent processes: handles the dispatcher's orders, finds a process for each turn, and ends processes
//! that are no longer needed. Everything here runs on one thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::agent::{AgentCheck, AgentInfo, AgentProtocol};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{mpsc, watch};

use super::folders::Folders;
use super::key::Key;
use super::link::Connection;
use super::live::{Live, too_slow};
use super::order::{Control, Order, TurnOrder};
use super::pool::{Choice, Pool, ProcessId, Rest};
use super::recorder::Recorder;
use super::shown::Shown;
use super::start::Start;
use super::template::{self, Template};
use crate::agents::Agent;
use crate::core::{Refusal, Spec};
use crate::exec::context::Context;
use crate::exec::host::{Host, Purpose};

/// How many agents are checked at a time. A single agent may need half a gigabyte of memory.
const CHECKS: usize = 4;

/// The outcome of a start; `None` while it is in progress.
pub(super) type Outcome = Option<Result<Rc<Live>, Refusal>>;

/// A running turn.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) run: u32,
    pub(super) control: mpsc::UnboundedSender<Control>,
    pub(super) shown: Shown,
}

/// An agent's process, which may still be starting.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) outcome: watch::Receiver<Outcome>,
    /// The agent's name.
    pub(super) agent: Arc<str>,
    pub(super) keep_warm: Duration,
}

/// The recorders of the late output of sessions, by their processes and keys.
type LateRecorders = HashMap<(ProcessId, Arc<str>), Weak<RefCell<Recorder>>>;

/// The owner of all agent processes.
#[derive(Debug)]
pub struct Manager {
    pub(super) host: Host,
    pub(super) context: Context,
    pub(super) folders: Folders,
    pub(super) pool: RefCell<Pool<Key>>,
    pub(super) seats: RefCell<HashMap<ProcessId, Seat>>,
    pub(super) turns: RefCell<HashMap<TaskId, Running>>,
    /// For each task, the process that holds its session, and the connection's key for that session.
    pub(super) sessions: RefCell<HashMap<TaskId, (ProcessId, Arc<str>)>>,
    pub(super) late: RefCell<LateRecorders>,
    /// How many detached jobs are under way; see [`Manager::spawn_detached`].
    pub(super) detached_jobs: Cell<usize>,
    /// Whether agents are held back for an upgrade.
    pub(super) hold: watch::Sender<bool>,
}

/// A turn's place in an agent's process. Dropping it frees the place.
#[derive(Debug)]
struct Occupancy {
    manager: Rc<Manager>,
    seat: ProcessId,
    keep_warm: Duration,
    /// Whether its turn was asked to end.
    ending: Cell<bool>,
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        Manager::free_place(&self.manager, self.seat, self.ending.get(), self.keep_warm);
    }
}

/// An agent that is leased to a turn.
#[derive(Debug)]
pub struct Lease {
    /// `None` if the turn has the agent to itself.
    place: Option<Occupancy>,
    live: Rc<Live>,
    /// Whether the process existed before the turn. If so, it may have ended unnoticed.
    pub was_warm: bool,
}

impl Lease {
    /// Leases an agent that the turn has to itself.
    pub fn of(live: Live) -> Self {
        Self { place: None, live: Rc::new(live), was_warm: false }
    }

    pub fn live(&self) -> &Rc<Live> {
        &self.live
    }

    /// Returns the number of its process; `None` if the turn has the agent to itself.
    pub fn seat(&self) -> Option<ProcessId> {
        self.place.as_ref().map(|place| place.seat)
    }
}

/// Counts a detached job for as long as it exists.
struct DetachedJob(Rc<Manager>);

impl DetachedJob {
    fn new(manager: &Rc<Manager>) -> Self {
        manager.detached_jobs.update(|count| count + 1);
        Self(Rc::clone(manager))
    }
}

impl Drop for DetachedJob {
    fn drop(&mut self) {
        self.0.detached_jobs.update(|count| count - 1);
    }
}

impl Manager {
    pub fn new(context: Context) -> Rc<Self> {
        Rc::new(Self {
            host: Host::new(context.reports.clone(), Purpose::Agent),
            folders: Folders::new(context.workers.clone()),
            context,
            pool: RefCell::default(),
            seats: RefCell::default(),
            turns: RefCell::default(),
            sessions: RefCell::default(),
            late: RefCell::default(),
            detached_jobs: Cell::default(),
            hold: watch::channel(false).0,
        })
    }

    /// Runs a detached job: a short one whose result is not awaited.
    pub fn spawn_detached(self: &Rc<Self>, job: impl Future<Output = ()> + 'static) {
        let counted = DetachedJob::new(self);
        tokio::task::spawn_local(async move {
            job.await;
            drop(counted);
        });
    }

    /// Handles orders until the channel closes.
    pub async fn run(self: Rc<Self>, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Turn(order) => self.begin(*order),
                Order::Control { task, run, control } => self.control(task, run, control),
                Order::Forget { task } => self.forget(task),
                Order::Hold(holds) => self.hold_back(holds),
                Order::Freeze(freeze) => self.freeze(freeze),
                Order::Resume(resumed) => self.resume(*resumed),
                Order::Check { agents, env, done } => {
                    let manager = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        // Fails if the result is no longer awaited.
                        let _ = done.send(Ok(manager.check(agents, env).await));
                    });
                }
            }
        }
    }

    fn control(&self, task: TaskId, run: u32, control: Control) {
        if let Some(running) = self.turns.borrow().get(&task).filter(|running| running.run == run) {
            running.shown.hide();
            // Fails if the turn has just ended; the turn reports that itself.
            let _ = running.control.send(control);
        }
    }

    /// Removes a turn; it accepts no more commands.
    pub fn turn_ended(&self, task: TaskId, run: u32) {
        let mut turns = self.turns.borrow_mut();
        if turns.get(&task).is_some_and(|running| running.run == run) {
            turns.remove(&task);
        }
    }

    /// Releases the session of a task that was cleared.
    fn forget(self: &Rc<Self>, task: TaskId) {
        let Some((seat, key)) = self.sessions.borrow_mut().remove(&task) else { return };
        self.release_session(seat, key);
    }

    /// Asks a process to release a session that is no longer needed.
    fn release_session(self: &Rc<Self>, seat: ProcessId, key: Arc<str>) {
        self.pool.borrow_mut().forget(seat, &key);
        let live = self.seats.borrow().get(&seat).and_then(|seat| seat.outcome.borrow().clone());
        if let Some(Ok(live)) = live {
            self.spawn_detached(async move { live.connection.forget(&key).await });
        }
    }

    /// Notes that the process of this lease now holds the task's session.
    pub fn opened(self: &Rc<Self>, lease: &Lease, task: TaskId, key: &Arc<str>) {
        if let Some(seat) = lease.seat() {
            self.pool.borrow_mut().holds(seat, key);
            let before = self.sessions.borrow_mut().insert(task, (seat, Arc::clone(key)));
            // The copy in an earlier process is now outdated.
            if let Some((old, key)) = before.filter(|(old, _)| *old != seat) {
                self.release_session(old, key);
            }
        }
    }

    /// Leases a place for a turn in an existing or a new process.
    ///
    /// # Errors
    /// The agent does not start.
    pub async fn lease(self: &Rc<Self>, order: &TurnOrder) -> Result<Lease, Refusal> {
        let agent = &order.agent;
        let start = Start::of(order);
        if agent.protocol == AgentProtocol::Template {
            let template = Template::new(self.host.clone(), start, self.context.clone());
            return Ok(Lease::of(Live::of(Connection::Template(template))));
        }
        let key = Key::of(agent, &order.env, &order.spec);
        let choice = self.pool.borrow_mut().take(key, agent.max_sessions, order.session.as_ref());
        let seat = choice.seat();
        let keep_warm = agent.keep_warm;
        let place = self.place(seat, keep_warm);
        if let Choice::New(seat) = choice {
            self.start(seat, start);
        }
        let outcome = self.seats.borrow().get(&seat).map(|seat| seat.outcome.clone());
        let Some(mut outcome) = outcome else { return Err(gone()) };
        let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        let Some(started) = outcome else {
            // The start panicked; no other turn should wait for it.
            self.remove(seat);
            return Err(gone());
        };
        let live = started?;
        Ok(Lease { place: Some(place), live, was_warm: matches!(choice, Choice::Known(_)) })
    }

    fn place(self: &Rc<Self>, seat: ProcessId, keep_warm: Duration) -> Occupancy {
        Occupancy { manager: Rc::clone(self), seat, keep_warm, ending: Cell::new(false) }
    }

    /// Leases the process of a resumed turn. The pool, carried over the upgrade, already counts the turn.
    pub(super) fn lease_again(
        self: &Rc<Self>,
        seat: ProcessId,
        keep_warm: Duration,
        live: Rc<Live>,
    ) -> Lease {
        Lease { place: Some(self.place(seat, keep_warm)), live, was_warm: true }
    }

    /// Starts a process. All turns that need this process wait for this one start.
    fn start(self: &Rc<Self>, seat: ProcessId, start: Start) {
        let (done, outcome) = watch::channel(None);
        let (agent, keep_warm) = (Arc::clone(&start.agent.name), start.agent.keep_warm);
        self.seats.borrow_mut().insert(seat, Seat { outcome, agent, keep_warm });
        let manager = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let limit = start.agent.start_timeout;
            let started =
                tokio::time::timeout(limit, Live::start(&manager.host, &manager.folders, &start)).await;
            let started = started.unwrap_or_else(|_| Err(too_slow(&start.agent, "did not start")));
            match started {
                Ok(live) => {
                    let live = Rc::new(live);
                    done.send_replace(Some(Ok(Rc::clone(&live))));
                    manager.watch_over(seat, live, &start.agent.name).await;
                }
                Err(refusal) => {
                    manager.remove(seat);
                    done.send_replace(Some(Err(refusal)));
                }
            }
        });
    }

    /// Waits until a process is gone, and removes it.
    pub(super) async fn watch_over(&self, seat: ProcessId, live: Rc<Live>, agent: &str) {
        let why = live.lost().await;
        tracing::info!(agent, why, "an agent's process is gone");
        self.remove(seat);
        // No order reaches the process any more, but its remaining output and its end must be read.
        live.connection.hold(false);
        live.end_lost().await;
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

    /// Retires the process of a cancelled turn. Anything that the agent started for that turn may still be running,
    /// indistinguishable from the work of other turns. So the process gets no new turns and ends with its last one:
    /// right away, if all of its turns were asked to end.
    pub async fn turn_cancelled(&self, lease: &Lease) {
        self.retire(lease);
        let Some(place) = &lease.place else { return };
        place.ending.set(true);
        if self.pool.borrow_mut().turn_ends(place.seat) {
            Rc::clone(&lease.live).end(true).await;
        }
    }

    /// Frees a turn's place. A process is closed after being idle for `keep_warm`, or as soon as it is idle if it is
    /// retired.
    fn free_place(self: &Rc<Self>, seat: ProcessId, was_ending: bool, keep_warm: Duration) {
        let rest = self.pool.borrow_mut().give_back(seat, was_ending);
        let manager = Rc::clone(self);
        match rest {
            Rest::Busy => {}
            Rest::Idle(rest) => self.close_later(seat, rest, keep_warm),
            Rest::Over => drop(tokio::task::spawn_local(async move { manager.close(seat).await })),
        }
    }

    /// Closes a process once it has been idle for `keep_warm`. `rest` is its number from [`Rest::Idle`].
    pub(super) fn close_later(self: &Rc<Self>, seat: ProcessId, rest: u64, keep_warm: Duration) {
        let manager = Rc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(keep_warm).await;
            if manager.pool.borrow().is_unused_since(seat, rest) {
                manager.close(seat).await;
            }
        });
    }

    async fn close(&self, seat: ProcessId) {
        self.pool.borrow_mut().retire(seat);
        let start = self.seats.borrow().get(&seat).map(|seat| seat.outcome.clone());
        let Some(mut start) = start else { return };
        // The turns that needed this process may be gone before it has started. Wait for the start here, because
        // nothing else will.
        let started = start.wait_for(Option::is_some).await.map(|started| started.clone());
        if let Ok(Some(Ok(live))) = started {
            // The async task that started the process removes it once it is gone.
            live.end(true).await;
        }
    }

    /// Starts the agents that are available, a few at a time, and collects their reports about themselves.
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
        let starting = Live::start(&self.host, &self.folders, &start);
        let started = tokio::time::timeout(agent.start_timeout, starting).await;
        let live = Rc::new(started.unwrap_or_else(|_| Err(too_slow(agent, "did not start")))?);
        // Includes the start of the process, which the connection does not measure.
        let started_in_ms = u64::try_from(begin.elapsed().as_millis()).ok();
        let check = AgentCheck { started_in_ms, ..live.connection.about() };
        live.end(true).await;
        Ok(check)
    }
}

/// Returns the refusal for an agent whose process no longer exists.
pub fn gone() -> Refusal {
    Refusal::new(ErrorKind::AgentUnavailable, "the agent's process has just ended").hint("try again")
}
