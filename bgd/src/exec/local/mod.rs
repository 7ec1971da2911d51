//! The executor of processes on this machine: commands, jobs in terminals, processes that other programs hand over, and
//! the helpers of agents and channels. It is the only owner of processes; it decides nothing.

pub mod carry;
mod handoff;
mod handoffs;
mod helpers;
mod hosting;
mod kept;
mod open_terminals;
mod replaced;
mod terminals;
mod waiting;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::WriteResult;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;
use bgd_shared::usage::LiveUsage;
use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::handoffs::Handoffs;
use self::helpers::Helpers;
use self::open_terminals::OpenTerminals;
use self::replaced::{Renewal, Replaced};
use self::waiting::Waiting;
use super::carried::Carried;
use super::context::Context;
use super::executor::{
    Ask, Asked, Close, DONE, Done, Executor, OfferCallback, SpecOf, Start, unknown_signal,
};
use super::handed::Handoff;
use super::input::InputPipe;
use super::input::unread::UnreadBytes;
use super::left::{self, HeldRun, Resumed, SparedProcesses};
use super::messages::{Inherited, Report, StartOrder, StartedProcess, Streams};
use super::supervise::process::{Processes, Supervised};
use super::supervise::starting::Wanted;
use super::threads::thread_pool::ThreadPool;
use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::client::Client;
use crate::client::answer::write_error;
use crate::core::{Begin, Control, Fact, SpawnFailure};
use crate::keeper::Key;
use crate::keeper::client::Keeper;
use crate::os::pidfd::{PidFd, SIGKILL};

/// The maximum number of reports handled before others on the dispatcher's thread get their turn.
const BATCH: usize = 64;

/// The owner of all processes.
#[derive(Debug)]
pub struct Local {
    processes: Processes,
    terminals: OpenTerminals,
    handoffs: Handoffs,
    helpers: Helpers,
    /// The client that is shown the terminal of a task from the first byte on, while the task is being started.
    owners: HashMap<TaskId, Arc<Client>>,
    /// The owners of the previous program, by client id, until the clients that were carried over are known.
    owners_before: Vec<(TaskId, u64)>,
    /// Starts deferred until the replies of the dispatcher's turn are on their way.
    starts: Vec<StartOrder>,
    /// Whether starts wait for an upgrade.
    holds_starts: bool,
    /// Whether the daemon ends and leaves its tasks running.
    leaves: bool,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Holds everything that must survive this daemon, if the daemon is durable.
    keeper: Option<Arc<Keeper>>,
    /// The work left until a replacement keeper holds all runs.
    replaced: Replaced,
    /// What the keeper holds for pending tasks.
    waiting: Waiting,
    /// When processes ended of which a supervisor is yet to report the exit, if there was no daemon then.
    ends: HashMap<Key, Timestamp>,
    context: Context,
}

impl Local {
    /// Creates the executor without processes. `orders` leads to the spawner threads, whose reports come through
    /// `reports`.
    pub fn new(
        orders: ThreadPool<StartOrder>,
        reports: mpsc::UnboundedReceiver<Report>,
        context: Context,
    ) -> Self {
        Self {
            processes: Processes::new(orders, context.clone()),
            terminals: OpenTerminals::default(),
            handoffs: Handoffs::new(),
            helpers: Helpers::default(),
            owners: HashMap::new(),
            owners_before: Vec::new(),
            starts: Vec::new(),
            holds_starts: false,
            leaves: false,
            reports,
            keeper: None,
            replaced: Replaced::default(),
            waiting: Waiting::default(),
            ends: HashMap::new(),
            context,
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Begun { task, run, result } => {
                let wanted = self.processes.starting.has_begun(task, run);
                if self.helpers.owns(task) {
                    self.helper_begun(task, result);
                } else {
                    self.begun(task, run, result);
                    if wanted == Wanted::No {
                        self.processes.end(task, run, SIGKILL);
                    }
                }
            }
            Report::Fact { task, run, fact } => self.fact(task, run, fact),
            Report::StartHelper { purpose, order, watcher } => self.start_helper(purpose, *order, watcher),
            Report::EndHelper { process, signal } => self.end_helper(process, signal),
            Report::KeeperGone { pid } => self.replace_keeper(pid),
            Report::KeeperCame => self.keeper_came(),
            Report::Copied { key, copied } => self.keep_copied(key, copied),
            Report::Drained { key: Key { task, run } } => self.close_kept(task, run),
            Report::StoppedUnseen { task, run } => self.continue_unseen(task, run),
        }
    }

    /// Handles the outcome of a start.
    fn begun(&mut self, task: TaskId, run: u32, result: Result<Box<StartedProcess>, SpawnFailure>) {
        let owner = self.owners.remove(&task);
        let fact = match result {
            Ok(mut begun) => {
                let (terminal, announced) = (begun.terminal.take(), begun.announced.take());
                let has_input = begun.input.is_some();
                let job = terminal.and_then(|terminal| self.open_terminal(task, run, *terminal, owner));
                let pid = self.processes.adopt(task, run, *begun, job);
                if has_input && self.processes.input(task).is_none() {
                    self.close_kept_input(task, run);
                }
                self.has_announced(task, announced);
                Fact::Started { pid: Some(pid) }
            }
            Err(failure) => Fact::StartFailed { failure },
        };
        self.tell_complete();
        self.context.facts.send(task, run, fact);
    }

    /// Forgets a run whose tree has ended, with its terminal if it was the task's latest run.
    fn gone(&mut self, task: TaskId, run: u32) {
        if self.processes.forget_ended(task, run) {
            self.terminals.close(task);
        }
    }

    /// Handles a fact from a supervisor.
    fn fact(&mut self, task: TaskId, run: u32, fact: Fact) {
        // An abandoned attempt may end after the next one has begun, whose state must stay.
        let has_exited = matches!(fact, Fact::Exited { .. });
        let mut fact = fact;
        if let Fact::Exited { at, .. } = &mut fact {
            *at = self.ends.remove(&Key { task, run });
        }
        // Processes that outlive the leader read the end of the input.
        if has_exited && let Some(input) = self.processes.take_input(task, run) {
            input.close();
            if input.take_kept() {
                self.close_kept_input(task, run);
            }
        }
        if matches!(fact, Fact::Exited { others: false, .. } | Fact::TreeEmpty) {
            self.gone(task, run);
        }
        if has_exited {
            self.handoffs.ended(task);
        }
        if self.helpers.owns(task) {
            self.helpers.fact(task, fact);
        } else {
            self.context.facts.send(task, run, fact);
        }
    }

    fn start_process(&mut self, start: Start) {
        let Start { task, run, spec, begin, inherited, owner } = start;
        let (env, place) = match begin {
            Begin::Process { env, place } => (env, Some(place)),
            Begin::HandedOver => return self.adopt_handed(task, run),
            Begin::Prompt { .. } => {
                let failure = "processes do not take prompts".into();
                return self.context.facts.send(task, run, Fact::StartFailed { failure });
            }
        };
        if spec.pty.is_some() {
            if let Err(failure) = self.terminals.prepare() {
                return self.context.facts.send(task, run, Fact::StartFailed { failure });
            }
            self.owners.extend(owner.map(|owner| (task, owner)));
        }
        self.starts.push(StartOrder { task, run, spec, env, place, streams: Streams::Own(inherited) });
    }

    /// Has a process that is still being started end as soon as it runs. Returns false if there is none.
    fn give_up_start(&mut self, task: TaskId, run: u32) -> bool {
        // The order to start it may have waited for the journal as long as the order to end it.
        let ordered = self.starts.iter().position(|start| (start.task, start.run) == (task, run));
        let Some(index) = ordered else { return self.processes.starting.give_up(task, run) };
        self.starts.remove(index);
        self.owners.remove(&task);
        let failure = "nothing is waiting for it to start any longer".into();
        self.context.facts.send(task, run, Fact::StartFailed { failure });
        true
    }

    /// Writes to the standard input of a task, if it has one.
    fn write(&self, asked: Asked) {
        let Some(input) = self.processes.input(asked.task.id) else { return asked.refuse() };
        let Asked { answer, task, what: Ask::Write { data, eof, unread } } = asked else {
            return asked.refuse();
        };
        let number = input.owed.keep(answer);
        let written = input.write(number, data, eof);
        self.answer_write(task.id, input, (number, eof), unread, written);
    }

    /// Answers when a write to a standard input is done.
    fn answer_write(
        &self,
        task: TaskId,
        input: InputPipe,
        (number, eof): (u64, bool),
        unread: UnreadBytes,
        written: impl Future<Output = io::Result<u64>> + Send + 'static,
    ) {
        let keeper = self.keeper.clone().filter(|_| eof);
        let run = self.processes.supervised.get(&task).map_or(0, |supervised| supervised.run);
        tokio::spawn(async move {
            let written = written.await;
            drop(unread);
            // A write that was refused, as too many are pending, has not closed the pipe.
            let is_refused = matches!(&written, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            if let Some(keeper) = keeper.filter(|_| !is_refused && input.take_kept()) {
                keeper.close_part(Key { task, run }, left::INPUT);
            }
            match (input.owed.take(number), written) {
                (Some(answer), Ok(written)) => answer.give(&WriteResult { written }),
                (Some(answer), Err(error)) => answer.refuse(&write_error(task, &error)),
                (None, _) => {}
            }
        });
    }

    /// Resumes the previous program's pending writes to standard inputs.
    fn continue_writing(&mut self, clients: &HashMap<u64, Arc<Client>>) {
        let all = self.processes.supervised.iter_mut();
        let unread = all.map(|(task, supervised)| (*task, std::mem::take(&mut supervised.unread)));
        for (task, unread) in unread.filter(|(_, unread)| !unread.is_empty()).collect::<Vec<_>>() {
            let Some(input) = self.processes.input(task) else { continue };
            for write in input.restore(unread, clients) {
                let about = (write.write.number, write.eof);
                let unread = self.context.unread.count_unlimited(write.write.data.len());
                self.answer_write(task, input.clone(), about, unread, input.continue_writing(write));
            }
        }
    }
}

/// Returns when an operation is done, which is never refused. After a time, `unknown` is the answer.
fn until(done: oneshot::Receiver<()>, unknown: Option<RpcError>) -> Done {
    // An error means that the process is gone.
    Box::pin(async move { timeout(DONE, done).await.map_or(unknown, |_| None) })
}

impl Executor for Local {
    fn start(&mut self, start: Start) {
        self.start_process(start);
    }

    fn control(&mut self, task: TaskId, run: u32, control: Control) -> Option<Done> {
        let unknown = unknown_signal(&control);
        if !matches!(control, Control::Detach { .. }) {
            self.terminals.may_stop(task);
        }
        match control {
            Control::Signal { signal, tree } => {
                return Some(until(self.processes.signal(task, run, signal, tree), unknown));
            }
            Control::Pause => return Some(until(self.processes.set_paused(task, run, true), None)),
            Control::Continue => return Some(until(self.processes.set_paused(task, run, false), None)),
            Control::Detach { client } => {
                self.owners.remove(&task);
                self.terminals.leave(task, client);
                self.keep_going_unseen();
            }
            Control::Answer { .. } => tracing::error!(%task, "a process does not ask questions"),
            Control::Hold { .. } | Control::Priority { .. } => {
                tracing::error!(%task, "a process waits in no queue of its own");
            }
        }
        None
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32, _: Duration) {
        if signal != SIGKILL || !self.give_up_start(task, run) {
            self.processes.end(task, run, signal);
        }
    }

    fn forget(&mut self, task: TaskId) {
        self.forget_handed(task);
    }

    fn ask(&mut self, asked: Asked) {
        match asked.what {
            Ask::Write { .. } if !self.terminals.is_open(asked.task.id) => self.write(asked),
            Ask::Write { .. } | Ask::Attach { .. } | Ask::Leave | Ask::Resize { .. } => {
                let Self { terminals, processes, .. } = self;
                terminals.ask(asked, |task| processes.leader_of(task));
                self.keep_going_unseen();
            }
        }
    }

    fn usage(&mut self, task: TaskId, run: u32) -> Option<oneshot::Receiver<LiveUsage>> {
        Some(self.processes.usage(task, run))
    }

    fn offer(&mut self, task: TaskId, handoff: Box<Handoff>, client: &Client, callback: OfferCallback) {
        self.check_offer(task, handoff, client, callback);
    }

    fn exited(&mut self, task: TaskId, exit: Exit) {
        self.processes.report_exit(task, exit);
    }

    fn disconnected(&mut self, client: u64) {
        self.terminals.disconnect(client);
        self.keep_going_unseen();
        self.owners.retain(|_, owner| owner.id != client);
        self.client_left(client);
    }

    fn adopt(&mut self, left: HeldRun, resumed: &Resumed) -> io::Result<i32> {
        let (pid, mark) = (left.pid, left.mark());
        self.resume_left(left, resumed).inspect_err(|_| {
            // Nothing that was started for a task may run unsupervised.
            let process = PidFd::open(pid).ok().filter(|_| mark.is_some_and(|mark| mark.is_on(pid)));
            process.inspect(|process| _ = process.signal(SIGKILL));
        })
    }

    fn keep_inherited(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        if let Some(keeper) = &self.keeper {
            self.waiting.keep(keeper, task, inherited);
        }
    }

    fn continue_inherited(&mut self, task: TaskId, inherited: &Arc<Inherited>) {
        if self.keeper.is_some() {
            self.waiting.note_kept(task, inherited);
        }
    }

    fn release_inherited(&mut self, task: TaskId) {
        if let Some(keeper) = &self.keeper {
            self.waiting.close(keeper, task);
        }
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.close_over(task, run);
    }

    fn sent_unrecorded(&mut self, seq: Option<u64>) {
        match (&self.keeper, seq) {
            (Some(keeper), Some(seq)) => keeper.note_sent(seq),
            (Some(keeper), None) => keeper.forget_sent(),
            (None, _) => {}
        }
    }

    fn mark_incomplete(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.doubt();
            (self.replaced.renewal, self.replaced.is_doubtful) = (Renewal::Filling, true);
        }
    }

    fn caught_up(&mut self, mark: u64) {
        if mark == self.replaced.mark {
            self.replaced.is_doubtful = false;
            self.tell_complete();
        }
        if mark == 0 {
            // New events are numbered after those already sent.
            self.sent_unrecorded(None);
        }
    }

    fn leave(&mut self, left: &mut SparedProcesses) {
        self.leaves = true;
        let of_tasks = self.processes.supervised.iter().filter(|(task, _)| !self.helpers.owns(**task));
        for (_, supervised) in of_tasks {
            left.add(&supervised.tree);
            supervised.probe.iter().for_each(|probe| probe.set_left(true));
        }
        let Some(keeper) = &self.keeper else { return };
        let socket = keeper.socket();
        if socket.is_gone() {
            // The report may still be on its way.
            self.replace_keeper(socket.pid);
        } else {
            keeper.settle();
        }
    }

    fn hold_starts(&mut self, holds: bool) {
        self.holds_starts = holds;
        self.answered();
        self.terminals.release();
        self.handoffs.release();
    }

    fn carry(&mut self, named: &mut CarriedFds) -> Result<Carried, Obstacle> {
        self.state(named).map(Carried::Local)
    }

    fn resume(&mut self, carried: Carried, received: &mut ReceivedFds, spec: &SpecOf<'_>) -> io::Result<()> {
        match carried {
            Carried::Local(state) => self.restore(state, received, spec),
            Carried::Nothing => Ok(()),
            Carried::Other(_) => Err(io::Error::other("the state of another executor")),
        }
    }

    fn activate(&mut self, clients: &HashMap<u64, Arc<Client>>) {
        // The previous program will not go on any more.
        let probes = self.processes.supervised.values().filter_map(|supervised| supervised.probe.as_ref());
        probes.for_each(|probe| probe.set_left(false));
        let owners = std::mem::take(&mut self.owners_before).into_iter();
        self.owners.extend(owners.filter_map(|(task, id)| Some((task, Arc::clone(clients.get(&id)?)))));
        self.terminals.resume(clients, &self.context.unread);
        self.keep_going_unseen();
        self.handoffs.resume();
        self.continue_writing(clients);
        // A client that is gone reports nothing any more.
        for (task, running) in &self.handoffs.running {
            if running.client.is_some_and(|client| !clients.contains_key(&client)) {
                self.processes.client_disconnected(*task);
            }
        }
    }

    fn count_owed(&self, clients: &mut HashMap<u64, usize>) {
        self.terminals.count_owed(clients);
        let inputs = self.processes.supervised.values().filter_map(|supervised| supervised.input.as_ref());
        inputs.for_each(|input| input.owed.count(clients));
    }

    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            let mut reports = Vec::new();
            tokio::select! {
                biased;
                _ = self.reports.recv_many(&mut reports, BATCH) => {
                    for report in reports {
                        self.report(report);
                    }
                }
                prepared = self.handoffs.prepared() => self.prepared(prepared),
            }
        })
    }

    fn has_ended(&self, task: TaskId) -> bool {
        self.processes.supervised.get(&task).is_some_and(Supervised::has_ended)
    }

    fn answered(&mut self) {
        if !self.holds_starts {
            for order in self.starts.drain(..) {
                self.processes.start(order);
            }
        }
    }

    fn close(&mut self, close: Close) {
        self.close_helpers(close);
    }

    fn is_busy(&self) -> bool {
        // A process that is being started is not yet among those to be left; and tasks outlive the daemon only in a
        // keeper that has them.
        let is_starting = || !(self.processes.starting.is_empty() && self.starts.is_empty());
        let has_tasks = || self.processes.supervised.keys().any(|task| !self.helpers.owns(*task));
        let has_runs = || has_tasks() || !self.handoffs.drained.is_empty() || !self.waiting.is_empty();
        let lacks_runs = || self.replaced.lacks_runs() && has_runs();
        self.helpers.is_busy() || self.leaves && (is_starting() || lacks_runs())
    }
}
