//! One machine that runs tasks of this daemon: keeps a connection to the machine's daemon while there are any, and
//! reconciles the known state of each run with the orders for it. A broken connection loses nothing: submits carry
//! keys, outputs offsets, and everything else is requested again. It decides nothing about tasks.

mod connection;
mod ends;
mod news;
mod orders;
mod reads;
mod recovery;
mod room;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::client::ClientError;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{ExecutorCheck, IdParams, OutputParams};
use bgd_shared::request::{OutputResult, Stream, TaskGet, TaskOutput, TaskSubmit};
use bgd_shared::task::Task;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use self::reads::Reads;
use crate::core::{Control, Fact};
use crate::exec::context::Context;
use crate::exec::elsewhere::due::Due;
use crate::exec::executor::DoneSender;
use crate::exec::host::Host;
use crate::exec::remote::bridge::Bridge;
use crate::exec::remote::copy::{self, Losses};
use crate::exec::remote::known::KnownRuns;
use crate::exec::remote::link::Link;
use crate::exec::remote::order::{self, Order};
use crate::exec::remote::room::Room;
use crate::exec::remote::run::{Ending, Run, Step, Stop};
use crate::exec::remote::sweep::{self, Origin};
use crate::os::clock::sleep_until;
use crate::remotes::Ssh;

/// The maximum number of pending calls, except those that end runs, which may take long. A daemon accepts 256 by
/// default; of a lower limit, half is used.
const CALLS: usize = 64;

/// The pauses between attempts to connect: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// How many failures in a row suggest that a machine is gone.
const FAILURES: u32 = 3;

/// How long a connection is kept without a run.
const IDLE: Duration = Duration::from_mins(1);

/// How long the end of a run may take to be confirmed once no stronger signal is left.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// How many bytes of output are read at once.
const PART_BYTES: u64 = 256 * 1024;

/// A machine and its runs.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Machine {
    ssh: Ssh,
    /// The configured host, if that was changed while there were tasks on the previous one.
    next_host: Option<String>,
    origin: Arc<Origin>,
    context: Context,
    host: Host,
    orders: mpsc::UnboundedReceiver<Order>,
    runs: HashMap<TaskId, Run>,
    /// The runs of all machines.
    known: KnownRuns,
    /// The number of runs so far.
    turns: u64,
    /// The runs by their ids on the machine.
    by_id: HashMap<TaskId, TaskId>,
    /// Tasks on the machine that were reported before the answer to their submit was handled.
    early: HashMap<TaskId, Box<Task>>,
    /// Runs that may have a next step.
    ready: VecDeque<TaskId>,
    reads: Reads,
    room: Room,
    calls: FuturesUnordered<BoxFuture<'static, CallResult>>,
    link: Link,
    /// The instance of the daemon that has the runs.
    instance: Option<String>,
    /// Runs that the machine is yet to be ordered to end, and whether they wait for room; those to be killed do not.
    to_end: BTreeSet<(bool, TaskId)>,
    /// How many calls that end runs are pending.
    ending: usize,
    /// When these orders are given again, if the machine's daemon had no room for one.
    ends_at: Option<Instant>,
    /// When the orders to end these runs, which the machine's daemon refused, are given again.
    end_again: Due<TaskId>,
    /// When the ends of these runs are no longer waited for, and whether they were to be killed: of several orders of
    /// one kind, the first counts.
    give_up: Due<(TaskId, u32, bool)>,
    /// The ids on the machine of concluded tasks that were not cleared yet.
    concluded: Vec<TaskRef>,
    /// Whether a call that clears tasks is pending.
    is_clearing: bool,
    /// The ids on the machine of concluded runs whose ends are not in the journal yet, so that they must not be
    /// cleared.
    unwritten: BTreeMap<(TaskId, u32), TaskId>,
    /// Whether a durable daemon writes ends and losses to the journal, and notifies when they are written.
    is_durable: bool,
    /// Whether the runs are left to the next daemon.
    leaves: bool,
    /// Whether no call may begin, as an upgrade waits for a moment without pending work.
    is_held: bool,
    /// Whether an earlier daemon may have left tasks on the machine.
    sweeps: bool,
    /// Whether those tasks were looked for.
    has_swept: bool,
    /// Whether they are being looked for.
    is_sweeping: bool,
    /// Whether they are left to a previous host that can't be reached.
    gave_up_sweep: bool,
    /// When to look for them again.
    sweeps_at: Option<Instant>,
    /// Whether they may belong to this same instance, whose known runs are taken up.
    may_have_left: bool,
    /// Whether a run of this instance may have been submitted since the note was written.
    has_submitted: bool,
    /// Whether the first connection was made, or has failed.
    has_connected: bool,
    /// Whether a host was connected to for its runs: the configured one, or the one that had them before.
    has_opened: bool,
    /// Whether the host is a previous one that is connected to in case it has tasks, and could not be yet.
    is_back: bool,
    /// Orders that came before the first connection, or before the state of their run was known again.
    early_orders: Vec<Order>,
    /// The orders that are carried out when the state of a run is known, with their waiters.
    early_done: HashMap<TaskId, Vec<(Control, DoneSender)>>,
    /// The pause before the next attempt to connect.
    pause: Duration,
    /// How many attempts have failed since the machine was last of use.
    failures: u32,
}

/// The result of a call for a run.
struct CallResult {
    task: TaskId,
    run: u32,
    /// The connection that was used, if any.
    bridge: Option<Arc<Bridge>>,
    outcome: Outcome,
}

enum Outcome {
    Prepared(Result<[u64; 2], String>),
    Known(Result<Box<Task>, ClientError>),
    Read(Stream, Result<Box<OutputResult>, ClientError>, Losses),
    /// The answer to an order to end runs.
    EndOrdered {
        signal: i32,
        grace_ms: Option<u64>,
        endings: Vec<Ending>,
        result: Result<(), ClientError>,
    },
    /// The answer to another order.
    Ordered(Control, Result<(), ClientError>),
    Settled(Box<Task>, Option<Fact>),
    Left(Vec<Task>),
    /// Whether all tasks left on the machine were ended.
    Swept(bool),
    /// The tasks that may still have to be cleared.
    Cleared(Vec<TaskRef>),
}

impl Machine {
    /// Creates a machine without runs.
    pub fn new(
        ssh: Ssh,
        origin: Arc<Origin>,
        context: Context,
        host: Host,
        orders: mpsc::UnboundedReceiver<Order>,
        is_durable: bool,
        known: KnownRuns,
    ) -> Self {
        let (instance, may_have_left) = (origin.seen_there(), origin.has_been_there());
        Self {
            ssh,
            next_host: None,
            origin,
            context,
            host,
            orders,
            runs: HashMap::new(),
            known,
            turns: 0,
            by_id: HashMap::new(),
            early: HashMap::new(),
            ready: VecDeque::new(),
            reads: Reads::default(),
            room: Room::default(),
            calls: FuturesUnordered::new(),
            link: Link::Idle,
            instance,
            to_end: BTreeSet::new(),
            ending: 0,
            ends_at: None,
            end_again: Due::default(),
            give_up: Due::default(),
            concluded: Vec::new(),
            is_clearing: false,
            unwritten: BTreeMap::new(),
            is_durable,
            leaves: false,
            is_held: false,
            sweeps: false,
            has_swept: false,
            is_sweeping: false,
            gave_up_sweep: false,
            sweeps_at: None,
            may_have_left,
            has_submitted: may_have_left,
            has_connected: false,
            has_opened: false,
            is_back: false,
            early_orders: Vec::new(),
            early_done: HashMap::new(),
            pause: Duration::ZERO,
            failures: 0,
        }
    }

    /// Serves the machine until the daemon ends. With `sweeps`, first ends the tasks that an earlier daemon has left on
    /// the machine, except those taken up.
    pub async fn run(mut self, sweeps: bool) {
        self.sweeps = sweeps;
        if sweeps {
            self.open();
        }
        // The runs taken up must be known before any task is ended.
        while let Ok(order) = self.orders.try_recv() {
            self.order(order);
        }
        loop {
            let due = self.due();
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::Close) | None => break,
                    Some(order) => {
                        self.order(order);
                        // Orders that were given together are carried out together.
                        if self.order_all().is_break() {
                            break;
                        }
                    }
                },
                Some(called) = self.calls.next(), if !self.calls.is_empty() => self.called(called),
                event = self.link.next() => self.linked(event),
                () = sleep_until(due) => self.fire(),
            }
            self.advance();
        }
        self.close().await;
    }

    /// Handles all orders that have arrived. Breaks if the machine is no longer needed.
    fn order_all(&mut self) -> ControlFlow<()> {
        while let Ok(order) = self.orders.try_recv() {
            if matches!(order, Order::Close) {
                return ControlFlow::Break(());
            }
            self.order(order);
        }
        ControlFlow::Continue(())
    }

    /// Ends this daemon's session on the machine, if it can be reached and the runs are not left to the next daemon.
    async fn close(self) {
        if self.leaves && !self.is_idle() {
            return;
        }
        let Link::Open(bridge, _) = &self.link else { return };
        let ending = async {
            if self.leaves && !self.known.is_empty() {
                // The session may also contain runs of other executors, which are left.
                let left = sweep::leftover_tasks(bridge, &self.origin).await?;
                sweep::end_tasks(bridge, &self.origin, &self.known.unknown_of(&left)).await
            } else {
                sweep::end_session(bridge, &self.origin).await
            }
        };
        let ended = tokio::time::timeout(CONFIRMED_WITHIN / 4, ending).await;
        if matches!(ended, Ok(Ok(()))) && self.runs.is_empty() {
            self.origin.forget();
        }
    }

    fn order(&mut self, order: Order) {
        let Some(order) = self.keep_order(order) else { return };
        match order {
            Order::Start { task, run } => self.start(task, *run),
            Order::End { task, run, signal, grace } => {
                self.end(task, run, Stop { signal, kill_at: Instant::now() + grace });
            }
            Order::Control { task, control, done } => self.control(task, control, done),
            Order::Write { asked } => {
                let (bridge, id) = (self.bridge(), self.id_of(asked.task.id));
                order::write(*asked, bridge, id, self.context.waits.begin());
            }
            Order::Forget { task } => {
                if self.runs.get(&task).is_some_and(|run| !run.is_given_up) {
                    self.remove(task);
                }
                self.clear_recorded(task, 0..=u32::MAX);
            }
            Order::EndRecorded { task, run } => self.clear_recorded(task, run..=run),
            Order::Written { task, run } => self.written(task, run),
            Order::Hold { holds } => self.is_held = holds,
            Order::Leave => self.leaves = true,
            Order::Check { done } => self.check(done),
            Order::Configure(ssh) => self.configure(*ssh),
            // The machine's daemon reports the usage with the end.
            Order::Count { .. } | Order::Close => {}
        }
    }

    fn start(&mut self, task: TaskId, mut run: Run) {
        let (context, origin) = (self.context.clone(), Arc::clone(&self.origin));
        let (number, is_split, is_taken_up) = (run.number, run.spec.split, run.is_taken_up);
        let stop = run.stop;
        run.is_busy = true;
        self.has_submitted |= run.may_exist();
        run.turn = self.turns;
        self.turns += 1;
        self.by_id.extend(run.there.map(|there| (there, task)));
        if let Some(before) = self.runs.insert(task, run).filter(|before| before.number != number) {
            self.known.remove(task, before.number);
        }
        self.spawn(task, number, None, async move {
            let workers = context.workers.clone();
            let prepared = workers.run(move || {
                // Noted before anything exists on the machine that may have to be ended.
                let noted =
                    origin.remember().map_err(|error| format!("cannot write to the state folder: {error}"));
                let sizes = noted.and_then(|()| {
                    copy::prepare(&context.folder, task, is_split)
                        .map_err(|error| format!("cannot create its output file: {error}"))
                });
                // A run that may already be running can't fail to start.
                if is_taken_up { Ok(context.folder.sizes(task, is_split)) } else { sizes }
            });
            Outcome::Prepared(prepared.await.unwrap_or_else(|| Err("the daemon is ending".to_owned())))
        });
        if let Some(stop) = stop {
            self.end(task, number, stop);
        }
    }

    fn spawn(
        &self,
        task: TaskId,
        run: u32,
        bridge: Option<Arc<Bridge>>,
        call: impl Future<Output = Outcome> + Send + 'static,
    ) {
        self.calls.push(Box::pin(async move { CallResult { task, run, bridge, outcome: call.await } }));
    }

    /// Checks whether the machine works: the configured one, even if there are still tasks on the previous one.
    fn check(&self, done: oneshot::Sender<ExecutorCheck>) {
        let (host, mut ssh, mut bridge) = (self.host.clone(), self.ssh.clone(), self.bridge());
        if let Some(next) = &self.next_host {
            ssh.shell.host.clone_from(next);
            bridge = None;
        }
        let session = self.origin.session.clone();
        tokio::spawn(async move {
            let _ = done.send(order::check(&host, &ssh, session, bridge).await);
        });
    }

    fn id_of(&self, task: TaskId) -> Option<TaskId> {
        self.runs.get(&task)?.there
    }

    /// Takes the next steps of the runs, as far as calls are allowed.
    fn advance(&mut self) {
        self.order_ends();
        if self.is_held {
            return;
        }
        self.change_host();
        if !self.ready.is_empty() && matches!(self.link, Link::Idle) {
            self.open();
        }
        self.clear_concluded();
        let at_once = self.calls_at_once();
        self.reads.limit_to_half_of(at_once);
        let at_once = at_once + self.ending;
        while self.calls.len() < at_once
            && let Some(task) = self.reads.next().or_else(|| self.ready.pop_front())
        {
            self.step(task);
        }
    }

    fn calls_at_once(&self) -> usize {
        let accepted = self.bridge().map(|bridge| bridge.hello.limits.requests / 2);
        accepted.map_or(CALLS, |accepted| usize::try_from(accepted).unwrap_or(CALLS).clamp(1, CALLS))
    }

    fn step(&mut self, task: TaskId) {
        let bridge = self.bridge();
        let Some(run) = self.runs.get_mut(&task) else { return };
        if self.next_host.is_some() && !run.may_exist() && run.stop.is_none() {
            let number = run.number;
            return self.await_next_host(task, number);
        }
        if self.room.is_full() && run.is_to_be_submitted() {
            return self.await_room(task);
        }
        // Without a connection, a run that was never sent can still be withdrawn.
        if bridge.is_none() && (run.may_exist() || run.stop.is_none()) {
            return;
        }
        let (number, is_split) = (run.number, run.spec.split);
        let Some(step) = run.next() else { return };
        run.is_busy = true;
        let context = self.context.clone();
        match (step, bridge) {
            (Step::Withdraw, _) => {
                let failure = "it was cancelled before it was submitted there".into();
                self.context.facts.send(task, number, Fact::StartFailed { failure });
                self.remove(task);
            }
            (Step::Conclude(end), _) => self.spawn(task, number, None, async move {
                Outcome::Settled(end, context.outputs.settle(task, number, false).await)
            }),
            (Step::Submit(params), Some(bridge)) => {
                self.has_submitted = true;
                self.spawn(task, number, Some(Arc::clone(&bridge)), async move {
                    let submitted = bridge.call::<TaskSubmit>(&params).await;
                    Outcome::Known(submitted.map(|result| Box::new(result.task)))
                });
            }
            (Step::Look(id), Some(bridge)) => {
                self.spawn(task, number, Some(Arc::clone(&bridge)), async move {
                    let known = bridge.call::<TaskGet>(&IdParams { id: id.into() }).await;
                    Outcome::Known(known.map(|result| Box::new(result.task)))
                });
            }
            (Step::Read { .. }, Some(_)) if !self.reads.begin(task) => run.is_busy = false,
            (Step::Read { id, stream, offset, at }, Some(bridge)) => {
                self.spawn(task, number, Some(Arc::clone(&bridge)), async move {
                    let (from, limit) = (offset.try_into().ok(), Some(PART_BYTES));
                    let stream_there = is_split.then_some(stream);
                    let params = OutputParams { id: id.into(), offset: from, limit, stream: stream_there };
                    let mut read = bridge.call::<TaskOutput>(&params).await.map(Box::new);
                    let lost = match &mut read {
                        Ok(part) => copy::write(&context, (task, stream), (offset, at), part).await,
                        Err(_) => Losses::default(),
                    };
                    Outcome::Read(stream, read, lost)
                });
            }
            (Step::Submit(_) | Step::Look(_) | Step::Read { .. }, None) => run.is_busy = false,
        }
    }

    fn called(&mut self, called: CallResult) {
        let CallResult { task, run: number, bridge, outcome } = called;
        if matches!(outcome, Outcome::Read(..)) {
            self.reads.end();
        }
        let outcome = match outcome {
            Outcome::Cleared(left) => return self.cleared(bridge.as_ref(), left),
            Outcome::Left(tasks) => return self.end_unknown(bridge, &tasks),
            Outcome::Swept(is_done) => return self.swept(is_done),
            Outcome::Ordered(control, result) => {
                return self.ordered(bridge.as_ref(), (task, number), control, result);
            }
            Outcome::EndOrdered { signal, grace_ms, endings, result } => {
                self.ending -= 1;
                if let (Some(asked), Err(error)) = (bridge, result) {
                    self.end_ordered(&asked, (signal, grace_ms), endings, &error);
                }
                return;
            }
            outcome => outcome,
        };
        let is_current = bridge.is_none_or(|asked| self.is_current(&asked));
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number && is_current) else {
            return;
        };
        run.is_busy = false;
        self.ready.push_back(task);
        match outcome {
            Outcome::Prepared(Ok(sizes)) => {
                run.prepared(sizes);
                self.context.outputs.track(task, number, run.spec.split);
            }
            Outcome::Prepared(Err(why)) => {
                self.context.facts.send(task, number, Fact::StartFailed { failure: why.as_str().into() });
                self.remove(task);
            }
            Outcome::Known(Ok(known)) => self.learn_answer(task, &known),
            Outcome::Known(Err(error)) | Outcome::Read(_, Err(error), _) => {
                self.call_failed(task, &error);
            }
            Outcome::Read(stream, Ok(part), lost) => {
                run.copied(stream, part.next, lost.bytes());
                let losses = lost.into_facts(stream);
                run.unwritten_losses += if self.is_durable { losses.len() } else { 0 };
                for lost in losses {
                    self.context.facts.send(task, number, lost);
                }
                self.learn_answer(task, &part.task);
            }
            Outcome::EndOrdered { .. }
            | Outcome::Ordered(..)
            | Outcome::Cleared(_)
            | Outcome::Left(_)
            | Outcome::Swept(_) => {}
            Outcome::Settled(end, output) => self.conclude(task, &end, output),
        }
    }

    fn remove(&mut self, task: TaskId) {
        if let Some(run) = self.runs.remove(&task) {
            if !self.unwritten.contains_key(&(task, run.number)) {
                self.known.remove(task, run.number);
            }
            if let Some(there) = run.there {
                self.by_id.remove(&there);
            }
        }
        self.release_kept(task);
        if !self.runs.is_empty() {
            return;
        }
        if let Link::Open(_, idle_at) = &mut self.link {
            *idle_at = Instant::now() + IDLE;
        }
        if !self.has_submitted {
            // Otherwise, the next daemon would connect to a machine that has nothing of this one.
            self.origin.forget();
        }
    }

    fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.unwritten.is_empty()
    }

    fn due(&self) -> Option<Instant> {
        let link = match &self.link {
            Link::Broken(at, ..) => Some(*at),
            Link::Open(_, idle_at) if self.is_idle() && self.calls.is_empty() => Some(*idle_at),
            Link::Idle | Link::Opening(_) | Link::Open(..) => None,
        };
        let sweeps = self.sweeps_at.filter(|_| matches!(self.link, Link::Idle | Link::Open(..)));
        let ends = [self.give_up.next_at(), self.ends_at, self.end_again.next_at(), self.room.until()];
        link.into_iter().chain(sweeps).chain(ends.into_iter().flatten()).min()
    }

    /// Performs the actions that are due.
    fn fire(&mut self) {
        let now = Instant::now();
        while let Some((task, number, _)) = self.give_up.take_due(now) {
            self.report_unconfirmed_end(task, number);
        }
        self.ends_at = self.ends_at.filter(|at| *at > now);
        self.repeat_ends(now);
        self.try_room(now);
        let sweeps = self.sweeps_at.is_some_and(|at| at <= now);
        match &self.link {
            Link::Broken(at, ..) if *at <= now => self.open(),
            Link::Idle if sweeps => self.open(),
            Link::Open(bridge, _) if sweeps => {
                let bridge = Arc::clone(bridge);
                self.sweep(bridge);
            }
            Link::Open(_, idle_at) if self.is_idle() && *idle_at <= now => {
                // Tasks that were not looked for may still be there.
                if self.has_swept {
                    self.origin.forget();
                }
                self.disconnect_idle();
            }
            Link::Idle | Link::Opening(_) | Link::Open(..) | Link::Broken(..) => {}
        }
    }
}
