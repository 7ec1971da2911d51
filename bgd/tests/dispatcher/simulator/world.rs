//! The simulation outside the daemon: the processes of tasks, the disk, the threads for blocking jobs, and the schedule
//! of events. It outlives the daemon, which may crash or be replaced.

mod executor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bgd::core::{Fact, State as TaskState};
use bgd::exec::messages::Facts;
use bgd::exec::threads::workers::Job;
use bgd::wire::mailbox::{Internal, Internals};
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub use self::executor::Simulated;
use super::chance::{Chance, Trace};
use super::disk::{Disk, Room};
use super::keeper::{Keeper, pid_of};
use super::life::Kind;

const SIGKILL: i32 = 9;

/// An event with a scheduled time.
pub enum Due {
    /// A process takes its next step, unless it was disturbed since.
    Step { task: TaskId, disturbed: u32 },
    /// A blocking job is done.
    Job(Job),
    /// A control operation is done.
    Done(oneshot::Sender<()>),
    /// The processes of a run receive their oldest undelivered order.
    Order { task: TaskId, run: u32 },
    /// The daemon is killed.
    Kill,
    /// The journal is written.
    Write,
    /// A client does something.
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Spawning,
    Alive,
    /// The leader has ended, but other processes have not.
    Others,
}

/// The process tree of a run.
#[derive(Debug)]
pub struct Process {
    pub run: u32,
    pub stage: Stage,
    /// How often it was disturbed: steps scheduled earlier are dropped.
    disturbed: u32,
    /// The signal that ends it.
    ends: Option<i32>,
    is_paused: bool,
    /// Undelivered orders: a daemon that is killed takes them with it.
    orders: VecDeque<Ordered>,
    /// Whether a daemon has asked them to end.
    is_asked_to_end: bool,
    /// Whether the daemon itself has sent SIGKILL to the whole tree.
    is_killed: bool,
    bytes: u64,
}

/// An order on its way to processes.
#[derive(Debug)]
enum Ordered {
    Pause(oneshot::Sender<()>),
    Continue(oneshot::Sender<()>),
    End(i32),
}

pub struct World {
    pub kind: Kind,
    home: PathBuf,
    /// Whether everything is printed, for finding the cause of a fault.
    is_logged: bool,
    begin: Instant,
    state: Mutex<State>,
    /// Something was added to the schedule.
    changed: Notify,
}

#[derive(Default)]
pub struct State {
    chance: Option<Chance>,
    due: BTreeMap<(u64, u64), Due>,
    last: u64,
    pub processes: BTreeMap<TaskId, Process>,
    /// Every run started by the current daemon; for a durable daemon, also those of its predecessors.
    pub started: BTreeSet<(TaskId, u32)>,
    pub keeper: Keeper,
    pub disk: Disk,
    facts: Option<Facts>,
    internals: Option<Internals>,
    pub room: Room,
    trace: Trace,
    is_logged: bool,
    runs: u64,
    /// Whether processes may survive SIGKILL forever: otherwise, tests of what outlives a daemon would not end.
    may_hang: bool,
}

impl World {
    pub fn new(seed: u64, kind: Kind, home: &Path) -> Arc<Self> {
        let is_logged = std::env::var_os("BGD_SIMULATE_LOG").is_some();
        let state = State {
            chance: Some(Chance::new(seed ^ 0x5151)),
            is_logged,
            may_hang: kind == Kind::Plain,
            ..State::default()
        };
        Arc::new(Self {
            kind,
            is_logged,
            home: home.to_owned(),
            begin: Instant::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the milliseconds since the simulation began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap()
    }

    /// Schedules an event in this many milliseconds.
    pub fn after(&self, ms: u64, what: Due) {
        let at = self.now() + ms;
        self.state().add(at, what);
        self.changed.notify_one();
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&self) -> Due {
        loop {
            let first = self.state().due.keys().next().copied();
            let at = first.map_or(u64::MAX / 2_000_000, |(at, _)| at);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.begin + Duration::from_millis(at)) => {
                    if let Some((_, what)) = self.state().due.pop_first() {
                        return what;
                    }
                }
                () = self.changed.notified() => {}
            }
        }
    }

    /// Notes that a daemon has started; its facts and the results of its workers go here.
    pub fn begin(&self, facts: Facts, internals: Internals) {
        let mut state = self.state();
        (state.facts, state.internals) = (Some(facts), Some(internals));
    }

    /// The daemon was killed together with every process; jobs and facts are lost.
    pub fn crash(&self) {
        let mut state = self.state();
        state.due.retain(|_, what| matches!(what, Due::Client));
        state.processes.clear();
        state.started.clear();
        state.keeper.forget_plain();
        (state.facts, state.internals) = (None, None);
    }

    /// Schedules a write of the journal.
    pub fn order(&self, number: u64, changes: bgd::core::durable::Changes) {
        let ms = self.job_takes();
        let mut state = self.state();
        state.disk.order(number, changes);
        if !std::mem::replace(&mut state.disk.is_due, true) {
            drop(state);
            self.after(ms, Due::Write);
        }
    }

    /// Writes the journal, or retries in a second.
    pub fn write(&self) {
        let mut state = self.state();
        let room = state.room;
        let recorded = state.disk.write(room);
        state.disk.is_due = room.is_full();
        if let Some(internals) = &state.internals {
            internals.send(Internal::Recorded(recorded));
        }
        drop(state);
        if room.is_full() {
            self.after(1000, Due::Write);
        }
    }

    /// Reports whether all changes of the daemon are persisted.
    pub fn is_written(&self) -> bool {
        self.state().disk.is_written()
    }

    /// Checks after the end of the daemon that none of its processes are left.
    pub fn ended(&self) {
        self.nothing_runs();
        self.crash();
    }

    /// Checks that the daemon has ended all of its processes.
    pub fn nothing_runs(&self) {
        let left: Vec<TaskId> = self.state().processes.keys().copied().collect();
        assert!(left.is_empty(), "the daemon has ended, and these processes have not: {left:?}");
    }

    /// Returns how long a blocking job takes, in milliseconds: with a slow disk, seconds.
    pub fn job_takes(&self) -> u64 {
        let mut state = self.state();
        let most = if state.room.is_full() { 3000 } else { 20 };
        state.chance.as_mut().map_or(0, |chance| chance.below(most))
    }

    pub fn set_room(&self, room: Room) {
        self.state().room = room;
    }

    /// Adds to the trace.
    pub fn trace(&self, bytes: &[u8]) {
        let at = self.now();
        if self.is_logged {
            eprintln!("{at} {}", String::from_utf8_lossy(bytes).trim_end());
        }
        let mut state = self.state();
        state.trace.add(&at.to_le_bytes());
        state.trace.add(bytes);
    }

    /// Adds a text to the trace, without the name of the folder, which differs between lives.
    pub fn trace_text(&self, text: &str) {
        self.trace(text.replace(&*self.home.to_string_lossy(), "").as_bytes());
    }

    /// Returns the digest so far, and the number of runs.
    pub fn seen(&self) -> (Trace, u64) {
        let state = self.state();
        (state.trace, state.runs)
    }

    /// Delivers the oldest order to the processes of a run.
    pub fn carry_out(&self, task: TaskId, run: u32) {
        let now = self.now();
        self.state().carry_out(now, task, run);
    }

    /// Checks that no order was lost with earlier daemons: processes are paused or were asked to end as the journal
    /// records. Returns false while orders are on their way.
    pub fn check_orders_delivered(&self) -> bool {
        let state = self.state();
        if state.processes.values().any(|process| !process.orders.is_empty()) {
            return false;
        }
        for (_, row) in state.disk.kept().tasks {
            let task = row.task;
            let process = state.processes.get(&task.id).filter(|process| process.run == task.run);
            match (&task.state, process) {
                (TaskState::Running { .. }, Some(process)) if process.stage == Stage::Alive => {
                    assert_eq!(process.is_paused, task.paused, "{task:?}");
                }
                (TaskState::Stopping { .. }, Some(process)) => assert!(process.is_asked_to_end, "{task:?}"),
                _ => {}
            }
        }
        true
    }

    /// Lets a process take its next step.
    pub fn step(&self, task: TaskId, disturbed: u32) {
        let now = self.now();
        self.state().step(now, task, disturbed);
    }

    /// Sends a fact that is late, repeated, or about something that does not exist.
    pub fn stray(&self) {
        let mut state = self.state();
        let mut chance = state.chance.take().unwrap();
        let runs: Vec<(TaskId, u32)> = state.started.iter().copied().collect();
        let (task, run) = chance.of(&runs).copied().unwrap_or((TaskId::from_u128(7), 1));
        let (task, run) = match chance.below(3) {
            0 => (TaskId::from_u128(u128::from(chance.below(1000))), run),
            1 => (task, run + 1 + u32::try_from(chance.below(3)).unwrap()),
            // A run that was over before the current one.
            _ => (task, run.saturating_sub(1)),
        };
        let fact = match chance.below(6) {
            0 => Fact::Started { pid: Some(4) },
            1 => Fact::Exited { exit: Exit::Code(0), others: chance.percent(50), at: None },
            2 => Fact::TreeEmpty,
            3 => Fact::GaveUp { why: "a stray".into() },
            4 => Fact::Ready,
            _ => Fact::StartFailed { failure: "a stray".into() },
        };
        state.chance = Some(chance);
        let is_real = state.started.contains(&(task, run))
            && state.processes.get(&task).is_none_or(|process| process.run == run);
        if let (Some(facts), false) = (&state.facts, is_real) {
            facts.send(task, run, fact);
        }
    }
}

impl State {
    /// The daemon is gone, but processes are not; jobs and facts are lost.
    pub fn leave(&mut self) {
        self.due.retain(|_, what| matches!(what, Due::Client | Due::Step { .. }));
        self.processes.values_mut().for_each(|process| process.orders.clear());
        (self.facts, self.internals) = (None, None);
    }

    fn add(&mut self, at: u64, what: Due) {
        self.last += 1;
        self.due.insert((at, self.last), what);
    }

    fn later(&mut self, now: u64, most: u64, what: Due) {
        let ms = self.chance.as_mut().map_or(0, |chance| chance.below(most));
        self.add(now + ms, what);
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.chance.as_mut().is_some_and(|chance| chance.percent(percent))
    }

    pub fn say(&mut self, task: TaskId, run: u32, fact: Fact) {
        let text = format!("{task} {run} {fact:?}");
        if self.is_logged {
            eprintln!("fact {text}");
        }
        self.trace.add(text.as_bytes());
        if let Some(facts) = &self.facts {
            facts.send(task, run, fact);
        }
    }

    fn step(&mut self, now: u64, task: TaskId, disturbed: u32) {
        let Some(process) = self.processes.get(&task) else { return };
        let (run, stage, ends, is_paused) = (process.run, process.stage, process.ends, process.is_paused);
        let is_killed = process.is_killed;
        if process.disturbed != disturbed || (is_paused && ends != Some(SIGKILL)) {
            return;
        }
        match (stage, ends) {
            (Stage::Spawning, _) => self.spawned(now, task, run),
            (Stage::Alive, None) if self.percent(50) => self.works(now, task, run, disturbed),
            (Stage::Alive, None) => {
                let code = if self.percent(30) { 3 } else { 0 };
                self.exits(now, task, run, Exit::Code(code));
            }
            (Stage::Alive, Some(SIGKILL)) if is_killed && self.may_hang && self.percent(2) => {
                self.processes.remove(&task);
                self.keeper.hangs(task);
                self.say(task, run, Fact::GaveUp { why: "it hangs in the kernel".into() });
            }
            (Stage::Alive, Some(signal)) => self.exits(now, task, run, Exit::Signal(signal)),
            (Stage::Others, _) => {
                self.processes.remove(&task);
                self.keeper.emptied(task, run);
                self.say(task, run, Fact::TreeEmpty);
            }
        }
    }

    fn spawned(&mut self, now: u64, task: TaskId, run: u32) {
        if (self.room.is_full() && self.percent(60)) || self.percent(3) {
            self.processes.remove(&task);
            let why = if self.room.is_full() { "no space left on device" } else { "no such program" };
            return self.say(task, run, Fact::StartFailed { failure: why.into() });
        }
        self.keeper.begun(task, run);
        self.say(task, run, Fact::Started { pid: Some(pid_of(task)) });
        let Some(process) = self.processes.get_mut(&task) else { return };
        process.stage = Stage::Alive;
        let (disturbed, ends) = (process.disturbed, process.ends);
        let span = match ends {
            Some(_) => 20,
            None => self.chance.as_mut().map_or(1, Chance::span),
        };
        self.add(now + span, Due::Step { task, disturbed });
    }

    /// Lets it write, become ready, or lose output on a full disk.
    fn works(&mut self, now: u64, task: TaskId, run: u32, disturbed: u32) {
        let roll = self.chance.as_mut().map_or(0, |chance| chance.below(10));
        let Some(process) = self.processes.get_mut(&task) else { return };
        process.bytes += roll;
        let bytes = [process.bytes, 0];
        let fact = match roll {
            0 => Fact::Ready,
            1..4 if self.room.is_full() => Fact::Lost { bytes: 5, why: "no space left on device".into() },
            _ => Fact::Output { bytes, dropped: [0; 2], publish: roll.is_multiple_of(2) },
        };
        self.say(task, run, fact);
        let span = self.chance.as_mut().map_or(1, Chance::span);
        self.add(now + span, Due::Step { task, disturbed });
    }

    fn exits(&mut self, now: u64, task: TaskId, run: u32, exit: Exit) {
        let others = self.percent(15);
        self.keeper.exited(task, run, &exit, others);
        self.say(task, run, Fact::Exited { exit, others, at: None });
        if !others {
            self.processes.remove(&task);
        } else if let Some(process) = self.processes.get_mut(&task) {
            process.stage = Stage::Others;
            let disturbed = process.disturbed;
            // SIGKILL was sent to all processes.
            let most = if process.is_killed { 50 } else { 100_000 };
            self.later(now, most, Due::Step { task, disturbed });
        }
    }

    /// Puts an order on its way, for a while.
    fn order(&mut self, now: u64, task: TaskId, run: u32, order: Ordered) {
        let most = if matches!(order, Ordered::End(SIGKILL)) { 20 } else { 300 };
        if let Some(process) = self.processes.get_mut(&task).filter(|process| process.run == run) {
            process.orders.push_back(order);
            self.later(now, most, Due::Order { task, run });
        }
    }

    fn carry_out(&mut self, now: u64, task: TaskId, run: u32) {
        let Some(process) = self.processes.get_mut(&task).filter(|process| process.run == run) else {
            return;
        };
        let Some(order) = process.orders.pop_front() else { return };
        process.is_paused = matches!(order, Ordered::Pause(_));
        match order {
            Ordered::Pause(done) => return done.send(()).unwrap_or_default(),
            Ordered::Continue(done) => {
                process.disturbed += 1;
                let disturbed = process.disturbed;
                self.later(now, 1000, Due::Step { task, disturbed });
                // The waiter may be gone.
                let _ = done.send(());
            }
            Ordered::End(signal) => {
                process.is_asked_to_end = true;
                process.is_killed |= signal == SIGKILL;
                self.signal(now, task, signal);
            }
        }
        self.say(task, run, Fact::Delivered);
    }

    /// Sends a signal that ends the process, sooner or later, or that it ignores.
    fn signal(&mut self, now: u64, task: TaskId, signal: i32) {
        let takes = signal == SIGKILL || self.percent(70);
        let Some(process) = self.processes.get_mut(&task) else { return };
        if !takes || (process.ends == Some(SIGKILL) && process.stage != Stage::Others) {
            return;
        }
        process.ends = Some(signal);
        if process.stage == Stage::Spawning {
            return;
        }
        process.disturbed += 1;
        let disturbed = process.disturbed;
        let most = if signal == SIGKILL { 50 } else { 4000 };
        self.later(now, most, Due::Step { task, disturbed });
    }
}
