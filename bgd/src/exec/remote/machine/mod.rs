//! One machine that runs tasks of this daemon: keeps a connection to its daemon while there are any, and brings what is
//! known and wanted of each run together there. A broken connection loses nothing: submits carry keys, outputs offsets,
//! and everything else is asked again. It decides nothing about tasks.

mod connection;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::client::ClientError;
use bgd_shared::error::ErrorKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{
    CancelParams, ClearParams, OutputResult, Stream, TaskCancel, TaskClear, TaskGet, TaskOutput, TaskSubmit,
};
use bgd_shared::request::{ExecutorCheck, IdParams, OutputParams};
use bgd_shared::task::Task;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use crate::core::{Cause, Conclusion, Control, Fact, PlaceFact, Verdict};
use crate::exec::context::Context;
use crate::exec::host::{Host, SIGKILL};
use crate::exec::remote::bridge::{self, Bridge, Trouble};
use crate::exec::remote::copy::{self, Losses};
use crate::exec::remote::link::Link;
use crate::exec::remote::order::{self, Order};
use crate::exec::remote::run::{Run, Step, conclusion};
use crate::exec::remote::sweep::{self, Origin};
use crate::remotes::Ssh;

/// How many calls are under way at once. A daemon accepts 256 by default.
const CALLS: usize = 64;

/// The pauses between attempts to connect: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// How long a connection is kept without a run.
const IDLE: Duration = Duration::from_mins(1);

/// How long the end of a run may take to be confirmed once nothing stronger can be done.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// How many bytes of output are read at once.
const PART_BYTES: u64 = 256 * 1024;

/// A machine, and the runs that it has.
pub struct Machine {
    ssh: Ssh,
    origin: Arc<Origin>,
    context: Context,
    host: Host,
    orders: mpsc::UnboundedReceiver<Order>,
    runs: HashMap<TaskId, Run>,
    /// The runs by their ids there.
    by_id: HashMap<TaskId, TaskId>,
    /// Tasks there that were told of before the answer to their submit was taken in.
    early: HashMap<TaskId, Box<Task>>,
    /// Runs for which there may be something to do.
    ready: VecDeque<TaskId>,
    calls: FuturesUnordered<BoxFuture<'static, Called>>,
    link: Link,
    /// The instance of the daemon that has the runs.
    instance: Option<String>,
    /// When the ends of these runs are no longer waited for.
    give_up: BTreeSet<(Instant, TaskId)>,
    /// The ids of concluded tasks there that were not cleared yet.
    concluded: Vec<TaskRef>,
    /// Whether a call that clears some is under way.
    is_clearing: bool,
    /// Whether what an earlier daemon has left there was looked for.
    has_swept: bool,
    /// The pause before the next attempt to connect.
    pause: Duration,
}

/// What came of a call for a run.
struct Called {
    task: TaskId,
    run: u32,
    /// The instance that was asked.
    bridge: Option<Arc<Bridge>>,
    outcome: Outcome,
}

enum Outcome {
    Prepared(Result<[u64; 2], String>),
    Known(Result<Box<Task>, ClientError>),
    Read(Stream, Result<Box<OutputResult>, ClientError>, Losses),
    Told(i32, Result<(), ClientError>),
    Settled(Box<Task>, Option<Fact>),
    Cleared,
    Done,
}

impl Machine {
    /// Creates a machine without runs.
    pub fn new(
        ssh: Ssh,
        origin: Arc<Origin>,
        context: Context,
        host: Host,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Self {
        Self {
            ssh,
            origin,
            context,
            host,
            orders,
            runs: HashMap::new(),
            by_id: HashMap::new(),
            early: HashMap::new(),
            ready: VecDeque::new(),
            calls: FuturesUnordered::new(),
            link: Link::Idle,
            instance: None,
            give_up: BTreeSet::new(),
            concluded: Vec::new(),
            is_clearing: false,
            has_swept: false,
            pause: Duration::ZERO,
        }
    }

    /// Serves the machine until the daemon ends. With `sweeps`, first ends what an earlier daemon has left there.
    pub async fn run(mut self, sweeps: bool) {
        if sweeps {
            self.open();
        }
        loop {
            let due = self.due();
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::Close) | None => break,
                    Some(order) => self.order(order),
                },
                Some(called) = self.calls.next(), if !self.calls.is_empty() => self.called(called),
                event = self.link.next() => self.linked(event),
                () = sleep_until(due) => self.fire(),
            }
            self.advance();
        }
        self.close().await;
    }

    /// Ends what is kept there for this daemon, if it can be reached.
    async fn close(self) {
        let Link::Open(bridge, _) = &self.link else { return };
        if tokio::time::timeout(CONFIRMED_WITHIN / 4, sweep::end_session(bridge, &self.origin)).await.is_ok()
            && self.runs.is_empty()
        {
            self.origin.forget();
        }
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Start { task, run } => self.start(task, *run),
            Order::End { task, run, signal } => self.end(task, run, signal),
            Order::Control { task, control, done } => self.control(task, control, done),
            Order::Write { asked } => {
                let (bridge, id) = (self.bridge(), self.id_of(asked.task.id));
                order::write(*asked, bridge, id);
            }
            Order::Forget { task } => {
                if self.runs.get(&task).is_some_and(|run| !run.is_given_up) {
                    self.remove(task);
                }
            }
            Order::Check { tell } => self.check(tell),
            Order::Configure(ssh) => self.ssh = *ssh,
            Order::Close => {}
        }
    }

    fn start(&mut self, task: TaskId, mut run: Run) {
        let (context, origin) = (self.context.clone(), Arc::clone(&self.origin));
        let (number, is_split) = (run.number, run.spec.split);
        run.is_busy = true;
        self.runs.insert(task, run);
        self.spawn(task, number, None, async move {
            let workers = context.workers.clone();
            let prepared = workers.run(move || {
                // Before anything is there that would have to be ended.
                origin.remember().map_err(|error| format!("cannot write to the state folder: {error}"))?;
                copy::prepare(&context.folder, task, is_split)
                    .map_err(|error| format!("cannot create its output file: {error}"))
            });
            Outcome::Prepared(prepared.await.unwrap_or_else(|| Err("the daemon is ending".to_owned())))
        });
    }

    fn spawn(
        &self,
        task: TaskId,
        run: u32,
        bridge: Option<Arc<Bridge>>,
        call: impl Future<Output = Outcome> + Send + 'static,
    ) {
        self.calls.push(Box::pin(async move { Called { task, run, bridge, outcome: call.await } }));
    }

    fn end(&mut self, task: TaskId, number: u32, signal: i32) {
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number) else { return };
        if run.stop != Some(SIGKILL) {
            run.stop = Some(signal);
        }
        // One that waits there ends at once, so that SIGKILL never follows.
        if signal == SIGKILL || run.is_waiting() {
            self.give_up.insert((Instant::now() + CONFIRMED_WITHIN, task));
        }
        self.tell_to_end(task);
        self.ready.push_back(task);
    }

    /// Tells the machine to end a run, unless it was told as strongly.
    fn tell_to_end(&mut self, task: TaskId) {
        let Some(bridge) = self.bridge() else { return };
        let Some(run) = self.runs.get_mut(&task) else { return };
        let (Some(there), Some(signal)) = (run.there, run.stop) else { return };
        if run.told == Some(signal) || run.told == Some(SIGKILL) {
            return;
        }
        run.told = Some(signal);
        let (number, caller) = (run.number, Arc::clone(&bridge));
        self.spawn(task, number, Some(bridge), async move {
            let params = CancelParams {
                ids: vec![there.into()],
                signal: Some(signal.to_string()),
                ..CancelParams::default()
            };
            Outcome::Told(signal, caller.wait::<TaskCancel>(&params).await.map(drop))
        });
    }

    fn control(&mut self, task: TaskId, control: Control, done: oneshot::Sender<()>) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let number = run.number;
        let Some(there) = run.there else {
            if !run.takes(&control) {
                self.refused(task, number, control, "it is only being submitted there");
            }
            return;
        };
        let Some(bridge) = self.bridge() else {
            return self.refused(task, number, control, &self.unreachable());
        };
        let (facts, caller) = (self.context.facts.clone(), Arc::clone(&bridge));
        self.spawn(task, number, Some(bridge), async move {
            if let Err(error) = order::control(&caller, there, control.clone()).await {
                let (control, why) = (Some(control), error.to_string().into());
                facts.send(task, number, Fact::Elsewhere(PlaceFact::Refused { control, why }));
            }
            // Nobody may wait for it.
            let _ = done.send(());
            Outcome::Done
        });
    }

    fn refused(&self, task: TaskId, run: u32, control: Control, why: &str) {
        let fact = PlaceFact::Refused { control: Some(control), why: why.into() };
        self.context.facts.send(task, run, Fact::Elsewhere(fact));
    }

    fn check(&self, tell: oneshot::Sender<ExecutorCheck>) {
        let (host, shell, bridge) = (self.host.clone(), self.ssh.shell.clone(), self.bridge());
        tokio::spawn(async move {
            let _ = tell.send(order::check(&host, &shell, bridge).await);
        });
    }

    fn bridge(&self) -> Option<Arc<Bridge>> {
        match &self.link {
            Link::Open(bridge, _) => Some(Arc::clone(bridge)),
            Link::Idle | Link::Opening(_) | Link::Broken(..) => None,
        }
    }

    fn id_of(&self, task: TaskId) -> Option<TaskId> {
        self.runs.get(&task)?.there
    }

    fn unreachable(&self) -> String {
        match &self.link {
            Link::Broken(_, trouble) => {
                format!("{} can't be reached: {}", self.ssh.shell.host, trouble.message)
            }
            Link::Idle | Link::Opening(_) | Link::Open(..) => {
                format!("{} is being connected to", self.ssh.shell.host)
            }
        }
    }

    /// Takes the next steps of the runs, as far as calls may be made.
    fn advance(&mut self) {
        if !self.ready.is_empty() && matches!(self.link, Link::Idle) {
            self.open();
        }
        self.clear_concluded();
        while self.calls.len() < CALLS
            && let Some(task) = self.ready.pop_front()
        {
            self.step(task);
        }
    }

    fn open(&mut self) {
        let (host, shell, origin) = (self.host.clone(), self.ssh.shell.clone(), Arc::clone(&self.origin));
        self.link =
            Link::Opening(Box::pin(
                async move { bridge::connect(&host, &shell, Some(&origin.session)).await },
            ));
    }

    fn step(&mut self, task: TaskId) {
        let bridge = self.bridge();
        let Some(run) = self.runs.get_mut(&task) else { return };
        // Without a connection a run that was never sent can still be withdrawn.
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
                Outcome::Settled(end, context.outputs.settle(task, false).await)
            }),
            (Step::Submit(params), Some(bridge)) => {
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

    fn called(&mut self, called: Called) {
        let Called { task, run: number, bridge, outcome } = called;
        if let Outcome::Cleared = outcome {
            self.is_clearing = false;
            return;
        }
        let is_current = match (&bridge, &self.link) {
            (Some(asked), Link::Open(open, _)) => Arc::ptr_eq(asked, open),
            (Some(_), _) => false,
            (None, _) => true,
        };
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.number == number && is_current) else {
            return;
        };
        let told = matches!(outcome, Outcome::Told(..) | Outcome::Done);
        if !told {
            run.is_busy = false;
        }
        self.ready.push_back(task);
        match outcome {
            Outcome::Prepared(Ok(base)) => {
                run.base = base;
                self.context.outputs.track(task, number, run.spec.split);
            }
            Outcome::Prepared(Err(why)) => {
                self.context.facts.send(task, number, Fact::StartFailed { failure: why.as_str().into() });
                self.remove(task);
            }
            Outcome::Known(Ok(known)) => self.learn(task, &known),
            Outcome::Known(Err(error)) | Outcome::Read(_, Err(error), _) => {
                self.call_failed(task, &error);
            }
            Outcome::Read(stream, Ok(part), lost) => {
                run.copied(stream, part.next, lost.bytes(), part.next > part.offset);
                for lost in lost.into_facts() {
                    self.context.facts.send(task, number, lost);
                }
                self.learn(task, &part.task);
            }
            Outcome::Told(signal, Err(error)) => {
                if run.told == Some(signal) {
                    run.told = None;
                }
                if error.kind().is_none() {
                    self.cut(&error.to_string());
                }
            }
            Outcome::Told(_, Ok(())) | Outcome::Cleared | Outcome::Done => {}
            Outcome::Settled(end, output) => self.conclude(task, &end, output),
        }
    }

    fn learn(&mut self, task: TaskId, known: &Task) {
        let Some(run) = self.runs.get_mut(&task) else { return };
        let number = run.number;
        self.pause = Duration::ZERO;
        let mut facts = run.learn(known);
        if let Some(newer) = self.early.remove(&known.id) {
            facts.extend(run.learn(&newer));
        }
        self.by_id.insert(known.id, task);
        for fact in facts {
            self.context.facts.send(task, number, fact);
        }
        let late = self.runs.get_mut(&task).map(Run::take_late).unwrap_or_default();
        for control in late {
            self.control(task, control, oneshot::channel().0);
        }
        if self.runs.get(&task).is_some_and(|run| run.stop.is_some()) {
            self.tell_to_end(task);
        }
        self.ready.push_back(task);
    }

    /// Handles a call without a result: the daemon's refusal, or a broken connection.
    fn call_failed(&mut self, task: TaskId, error: &ClientError) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, is_known) = (run.number, run.there.is_some());
        let host = &self.ssh.shell.host;
        let fact = match error.kind() {
            None | Some(ErrorKind::ShuttingDown | ErrorKind::TooManyRequests) => {
                return self.cut(&error.to_string());
            }
            Some(ErrorKind::TaskNotFound) if is_known => {
                lost(&format!("the daemon of {host} no longer knows it"))
            }
            Some(_) if is_known => {
                // Whatever it is, asking again at once would not help.
                let trouble = Trouble { message: error.to_string().into(), hint: None, is_final: false };
                self.runs.values_mut().for_each(Run::cut);
                return self.failed(trouble, PAUSES[1]);
            }
            Some(_) => Fact::StartFailed { failure: format!("{host} refuses it: {error}").into() },
        };
        self.context.facts.send(task, number, fact);
        self.remove(task);
    }

    fn conclude(&mut self, task: TaskId, end: &Task, output: Option<Fact>) {
        let Some(run) = self.runs.get(&task) else { return };
        let (number, there) = (run.number, end.id);
        for fact in output.into_iter().chain([conclusion(end, &self.ssh.shell.host)]) {
            self.context.facts.send(task, number, fact);
        }
        self.remove(task);
        self.concluded.push(there.into());
    }

    /// Clears the concluded tasks there, as all of them is here. One call at a time, so that many go together. What a
    /// broken connection leaves is cleared with the session.
    fn clear_concluded(&mut self) {
        let Some(bridge) = self.bridge().filter(|_| !self.is_clearing && !self.concluded.is_empty()) else {
            return;
        };
        self.is_clearing = true;
        let params = ClearParams { ids: Some(std::mem::take(&mut self.concluded)), ..ClearParams::default() };
        let origin = Arc::clone(&self.origin);
        self.calls.push(Box::pin(async move {
            if let Err(error) = bridge.call::<TaskClear>(&params).await {
                tracing::warn!(%error, "ended tasks on another machine not cleared");
            } else {
                sweep::forget_notices(&bridge, &origin).await;
            }
            Called { task: TaskId::from_u128(0), run: 0, bridge: None, outcome: Outcome::Cleared }
        }));
    }

    fn remove(&mut self, task: TaskId) {
        if let Some(there) = self.runs.remove(&task).and_then(|run| run.there) {
            self.by_id.remove(&there);
        }
        if let (true, Link::Open(_, idle_at)) = (self.runs.is_empty(), &mut self.link) {
            *idle_at = Instant::now() + IDLE;
        }
    }

    fn due(&self) -> Option<Instant> {
        let link = match &self.link {
            Link::Broken(at, ..) => Some(*at),
            Link::Open(_, idle_at) if self.runs.is_empty() && self.calls.is_empty() => Some(*idle_at),
            Link::Idle | Link::Opening(_) | Link::Open(..) => None,
        };
        let give_up = self.give_up.first().map(|(at, _)| *at);
        link.into_iter().chain(give_up).min()
    }

    /// Does what is due.
    fn fire(&mut self) {
        let now = Instant::now();
        while let Some((at, task)) = self.give_up.first().copied()
            && at <= now
        {
            self.give_up.pop_first();
            self.give_up_on(task);
        }
        match &self.link {
            Link::Broken(at, ..) if *at <= now => self.open(),
            Link::Open(_, idle_at) if self.runs.is_empty() && *idle_at <= now => {
                self.link = Link::Idle;
                self.origin.forget();
            }
            Link::Idle | Link::Opening(_) | Link::Open(..) | Link::Broken(..) => {}
        }
    }

    /// Tells the dispatcher that the end of a run can't be confirmed. The machine is still told to end it.
    fn give_up_on(&mut self, task: TaskId) {
        let why =
            format!("{}: it may still run there, and is ended once that is possible", self.unreachable());
        let Some(run) = self.runs.get_mut(&task).filter(|run| run.stop.is_some() && !run.is_given_up) else {
            return;
        };
        run.is_given_up = true;
        let fact = if run.is_waiting() {
            Fact::StartFailed { failure: why.into() }
        } else {
            Fact::GaveUp { why: why.into() }
        };
        self.context.facts.send(task, run.number, fact);
    }
}

fn lost(message: &str) -> Fact {
    let verdict = Verdict::Failed(Cause::Lost, message.into());
    Fact::Elsewhere(PlaceFact::Concluded(Conclusion { exit: None, verdict, at: None }))
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
