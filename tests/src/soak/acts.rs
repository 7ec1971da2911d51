//! The acts of a soak on every daemon: verbs with tasks of every kind, kills, upgrades, slow readers.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, CancelParams, ClearParams, DaemonShutdown, DaemonUpgrade, IdParams, ListParams,
    Method, NoParams, SelectParams, ShutdownParams, Stdin, SubmitManyParams, SubmitParams, SubscribeParams,
    TaskBlock, TaskCancel, TaskClear, TaskContinue, TaskGet, TaskHold, TaskList, TaskPause, TaskRelease,
    TaskSubmitMany, TerminalSize, UpgradeParams,
};
use rustix::process::Signal;
use serde_json::json;

use super::Kind;
use super::durable::DurableOnly;
use super::figures::{Figures, MOST_MEMORY, Table};
use super::ledger::{Expected, Ledger, Work};
use crate::daemon::TestDaemon;
use crate::process::Process;
use crate::prompts::fake_agent;
use crate::raw::Raw;
use crate::wait::{PATIENCE, poll_until};

/// Maximum number of simultaneous clients that never read.
const SLOW: usize = 4;

/// A soak in progress.
pub struct Soak {
    pub(super) kind: Kind,
    pub(super) daemon: TestDaemon,
    pub(super) ledger: Ledger,
    chance: u64,
    batch: u64,
    pub(super) slow: Vec<Raw>,
    pub(super) table: Table,
    /// Whether figures of the running daemon were already taken.
    pub(super) has_figures: bool,
    /// Whether a durable daemon is neither killed nor stopped before the next [`Soak::settle`].
    pub(super) is_spared: bool,
    /// Objects that only a durable daemon gets.
    pub(super) others: DurableOnly,
}

impl Soak {
    /// Starts a daemon.
    pub fn start((seed, batch): (u64, u64), kind: Kind) -> Self {
        let durable = kind == Kind::Durable;
        let config = format!("durable = {durable}\nmax_concurrent_tasks = 8\n{}", fake_agent(&[], ""));
        let daemon = TestDaemon::builder().config(config).start();
        let ledger = Ledger::new(daemon.home().join("ledger"));
        let chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (slow, table, others) = (Vec::new(), Table::new(kind), DurableOnly::default());
        Self {
            kind,
            daemon,
            ledger,
            chance,
            batch,
            slow,
            table,
            has_figures: false,
            is_spared: false,
            others,
        }
    }

    /// Returns a number below `end` (xorshift).
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 11) % end.max(1)
    }

    pub(super) fn fault(&mut self, what: String) {
        eprintln!("soak: {what}");
        self.table.faults.push(what);
    }

    /// Makes a call. A refusal counts as an answer; anything else is a fault.
    pub(super) fn call<M: Method>(&mut self, params: &M::Params) -> Option<M::Result> {
        match self.daemon.client().call::<M>(params) {
            Ok(result) => Some(result),
            Err(ClientError::Rpc(error)) => {
                if matches!(error.kind(), ErrorKind::Internal | ErrorKind::ParseError) {
                    self.fault(format!("{}: {error:?}", M::NAME));
                }
                None
            }
            Err(error) => {
                self.fault(format!("{}: {error}", M::NAME));
                None
            }
        }
    }

    /// Carries out a random act.
    pub fn act(&mut self) {
        self.table.acts += 1;
        match self.kind {
            Kind::Plain => self.act_on_plain(),
            Kind::Durable => self.act_on_durable(),
        }
    }

    fn act_on_plain(&mut self) {
        match self.below(100) {
            0..30 => self.submit(),
            30..40 => self.submit_many(),
            40..48 => self.submit_waiting(),
            48..53 => self.submit_in_terminal(),
            53..56 => self.submit_prompt(),
            56..64 => self.cancel(),
            64..70 => self.kill_process(),
            70..77 => self.hold(),
            77..84 => self.look(),
            84..87 => self.subscribe_and_never_read(),
            87..93 => self.block(),
            93..98 => self.upgrade(),
            98 => self.kill_daemon(),
            _ => self.shut_down(),
        }
    }

    /// Records a task that was accepted.
    pub(super) fn accepted(&mut self, task: TaskId, expected: Expected) {
        self.table.tasks += 1;
        self.ledger.open.insert(task, expected);
    }

    /// Submits a task that writes its token, and then runs `then`.
    pub(super) fn submit_line(
        &mut self,
        then: &str,
        (code, output): (Option<i32>, Option<&'static str>),
        change: impl FnOnce(&mut SubmitParams),
    ) {
        let token = self.ledger.token();
        let shell = format!("echo {token} >> {}; {then}", self.ledger.path.display());
        let mut params = SubmitParams { shell: Some(shell.as_str().into()), ..self.daemon.params() };
        change(&mut params);
        let work = if params.pty.is_some() { Work::Terminal } else { Work::Processes };
        if let Some(result) = self.call::<bgd_shared::request::TaskSubmit>(&params) {
            let expected = Expected { code, output, work, ..Expected::of(token, 0, "") };
            self.accepted(result.task.id, expected);
        }
    }

    pub(super) fn submit(&mut self) {
        for _ in 0..=self.below(4) {
            let code = i32::try_from(self.below(4)).unwrap_or(0);
            let session = self.below(3);
            let line = format!("echo text; exit {code}");
            self.submit_line(&line, (Some(code), Some("text\n")), |params| {
                params.session = Some(format!("session-{session}"));
            });
        }
    }

    pub(super) fn submit_many(&mut self) {
        let path = self.ledger.path.to_string_lossy().into_owned();
        let tokens: Vec<u64> = (0..=self.below(self.batch)).map(|_| self.ledger.token()).collect();
        let argv =
            |token: &u64| ["sh", "-c", "echo $1 >> $0", &path, &token.to_string()].map(Into::into).to_vec();
        let argvs = tokens.iter().map(argv).collect();
        let params =
            SubmitManyParams { task: Some(Box::new(self.daemon.params())), argvs, ..Default::default() };
        if let Some(result) = self.call::<TaskSubmitMany>(&params) {
            for (task, token) in result.ids.into_iter().zip(tokens) {
                self.accepted(task, Expected::of(token, 0, ""));
            }
        }
    }

    /// Submits a task that runs until it is ended from outside.
    pub(super) fn submit_waiting(&mut self) {
        self.submit_line("exec cat", (None, None), |params| params.stdin = Some(Stdin::Pipe));
    }

    pub(super) fn submit_in_terminal(&mut self) {
        let size = TerminalSize { rows: 24, cols: 80 };
        let line = "printf '\\033[2J\\033[5;5H\\033[1mtext\\033[m'; exit 2";
        let output = "\u{1b}[2J\u{1b}[5;5H\u{1b}[1mtext\u{1b}[m";
        self.submit_line(line, (Some(2), Some(output)), |params| params.pty = Some(size));
    }

    pub(super) fn submit_prompt(&mut self) {
        let prompt = ["say hello", "tool ls\nsay done", "think it over\nplan\nsay done"];
        let place = usize::try_from(self.below(3)).unwrap_or(0);
        let params = self.daemon.prompt_params(prompt[place]);
        if let Some(result) = self.call::<bgd_shared::request::TaskSubmit>(&params) {
            let work = Work::Agent;
            let expected = Expected { token: None, output: None, work, ..Expected::of(0, 0, "") };
            self.accepted(result.task.id, expected);
        }
    }

    pub(super) fn some(&mut self) -> Option<TaskId> {
        let place = self.below(self.ledger.open.len() as u64);
        self.ledger.open.keys().nth(usize::try_from(place).unwrap_or(0)).copied()
    }

    pub(super) fn cancel(&mut self) {
        let Some(task) = self.some() else { return };
        self.ledger.disturb(task);
        self.call::<TaskCancel>(&CancelParams {
            ids: vec![task.into()],
            grace_ms: Some(2000),
            ..Default::default()
        });
    }

    /// Kills a process of a task, behind the daemon's back.
    pub(super) fn kill_process(&mut self) {
        let Some(task) = self.some() else { return };
        let Some(result) = self.call::<TaskGet>(&IdParams { id: task.into() }) else { return };
        let process = result.task.pid.filter(|_| result.task.status.is_active()).and_then(Process::open);
        // An agent's process serves other tasks, too, and another process may have this pid by now.
        if let Some(process) = process.filter(|process| result.task.prompt.is_none() && self.is_ours(process))
        {
            self.ledger.disturb(task);
            self.table.killed += u64::from(process.signal(Signal::KILL).is_ok());
        }
    }

    fn is_ours(&self, process: &Process) -> bool {
        self.daemon.task_processes().iter().any(|ours| ours.pid() == process.pid())
    }

    /// Pauses and continues a task, or holds and releases it.
    pub(super) fn hold(&mut self) {
        let Some(task) = self.some() else { return };
        let params = SelectParams { ids: vec![task.into()], ..Default::default() };
        if self.below(2) == 0 {
            self.call::<TaskPause>(&params);
            self.call::<TaskContinue>(&params);
        } else {
            self.call::<TaskHold>(&params);
            self.call::<TaskRelease>(&params);
        }
    }

    pub(super) fn look(&mut self) {
        self.call::<TaskList>(&ListParams { limit: Some(500), ..Default::default() });
        self.call::<bgd_shared::request::DaemonStatusOf>(&NoParams {});
        if let Some(task) = self.some() {
            self.call::<TaskGet>(&IdParams { id: task.into() });
        }
    }

    pub(super) fn subscribe_and_never_read(&mut self) {
        if self.slow.len() == SLOW {
            self.slow.remove(0);
        }
        let mut raw = Raw::connect(self.daemon.socket());
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": "events.subscribe", "params": SubscribeParams::default()});
        if raw.send(format!("{line}\n").as_bytes()).is_ok() {
            self.slow.push(raw);
        }
    }

    pub(super) fn block(&mut self) {
        let Some(task) = self.some() else { return };
        let params = BlockParams { ids: vec![task.into()], timeout_ms: Some(200), ..Default::default() };
        let ended = self.call::<TaskBlock>(&params).into_iter().flat_map(|result| result.tasks);
        ended.filter(|task| !task.status.is_active()).for_each(|task| self.ledger.ended(&task));
    }

    pub(super) fn upgrade(&mut self) {
        let mut client: Client = self.daemon.client();
        match client.call::<DaemonUpgrade>(&UpgradeParams::default()) {
            Ok(_) => self.table.upgrades += 1,
            Err(error) if error.kind() == Some(ErrorKind::UpgradeRefused) => self.table.refused += 1,
            Err(error) => self.fault(format!("daemon.upgrade: {error}")),
        }
    }

    /// Kills a plain daemon. Its tasks are lost, and its successor ends their processes.
    fn kill_daemon(&mut self) {
        self.slow.clear();
        self.daemon.kill9();
        self.daemon.launch();
        self.table.kills += 1;
        self.table.cut += self.ledger.killed();
        self.has_figures = false;
    }

    pub(super) fn shut_down(&mut self) {
        self.disconnect();
        self.call::<DaemonShutdown>(&ShutdownParams { grace_ms: Some(1000), cancel: true });
        self.daemon.ended();
        match self.kind {
            Kind::Plain => _ = self.ledger.killed(),
            // Pending tasks wait for the next daemon.
            Kind::Durable => _ = self.ledger.killed_and_not_kept(),
        }
        self.others.handed.clear();
        self.nothing_is_left();
        self.daemon.launch();
        self.table.shutdowns += 1;
        self.has_figures = false;
    }

    /// Counts the processes that the daemon has left. The kernel may still be tearing down the last ones.
    pub(super) fn nothing_is_left(&mut self) {
        let daemon = &self.daemon;
        let none = || poll_until("nothing is left", || daemon.processes().is_empty().then_some(()));
        if catch_unwind(AssertUnwindSafe(none)).is_err() {
            self.table.left += self.daemon.processes().len() as u64;
        }
    }

    /// Waits for every task, clears them, and checks for losses and leftovers.
    pub fn settle(&mut self) {
        self.slow.clear();
        self.finish_handed();
        let waiting: Vec<TaskId> = self
            .ledger
            .open
            .iter()
            .filter(|(_, expected)| expected.code.is_none())
            .map(|(task, _)| *task)
            .collect();
        for tasks in waiting.chunks(100) {
            for task in tasks {
                self.ledger.disturb(*task);
            }
            let ids = tasks.iter().copied().map(Into::into).collect();
            self.call::<TaskCancel>(&CancelParams { ids, grace_ms: Some(1000), ..Default::default() });
        }
        let open: Vec<TaskId> = self.ledger.open.keys().copied().collect();
        for tasks in open.chunks(100) {
            let ids = tasks.iter().copied().map(Into::into).collect();
            let timeout_ms = u64::try_from(PATIENCE.as_millis()).ok();
            let params = BlockParams { ids, timeout_ms, mode: BlockMode::All, ..Default::default() };
            let result = self.call::<TaskBlock>(&params).into_iter().flat_map(|result| result.tasks);
            result.filter(|task| !task.status.is_active()).for_each(|task| self.ledger.ended(&task));
        }
        self.wait_for_lingering();
        self.waits_are_answered();
        self.table.lost += self.ledger.open.len() as u64;
        if !self.ledger.open.is_empty() {
            let what = format!("these tasks have not ended, or nobody knows them: {:?}", self.ledger.open);
            self.fault(what);
            self.ledger.killed();
        }
        for wrong in std::mem::take(&mut self.ledger.wrong) {
            self.table.lost += 1;
            self.fault(format!("ended otherwise than it should have: {wrong}"));
        }
        let (lost, doubled) = self.ledger.count();
        self.table.lost += lost.len() as u64;
        self.table.doubled += doubled.len() as u64;
        if !lost.is_empty() || !doubled.is_empty() {
            self.fault(format!(
                "tokens that are missing: {lost:?}; that are there twice, or of no task: {doubled:?}"
            ));
        }
        self.call::<TaskClear>(&ClearParams { all: true, ..Default::default() });
        self.look_at_process();
        self.is_spared = !self.is_spared;
    }

    fn look_at_process(&mut self) {
        let daemon = self.daemon.pid();
        // Processes that have just ended may take a moment to be reaped.
        let reaped = catch_unwind(|| poll_until("no zombies", || (zombies_of(daemon) == 0).then_some(())));
        if reaped.is_err() {
            self.table.zombies += zombies_of(daemon);
        }
        // The daemon frees unused memory a few seconds later. Memory that it never frees shows in the figures.
        let process = self.daemon.process();
        let is_little = || (process.own_memory_kb() <= MOST_MEMORY).then_some(());
        let _ = catch_unwind(|| poll_until("the memory of what was cleared", is_little));
        let figures = Figures::of(&process);
        // The first look at each later daemon is skipped, as its threads have only just started.
        if self.has_figures || self.table.figures.is_empty() {
            self.table.figures.push(figures);
        }
        self.has_figures = true;
    }

    /// Shuts the daemon down, and returns the table.
    pub fn end(mut self) -> Table {
        self.disconnect();
        self.call::<DaemonShutdown>(&ShutdownParams { grace_ms: Some(1000), cancel: true });
        self.daemon.ended();
        self.nothing_is_left();
        self.table
    }
}

/// Returns the number of zombies among the children of a process.
fn zombies_of(parent: i32) -> u64 {
    let names = fs::read_dir("/proc").expect("/proc is there").flatten();
    let stats = names.filter_map(|entry| fs::read(entry.path().join("stat")).ok());
    let is_one = |stat: &Vec<u8>| {
        bgd_shared::proc::ProcessStat::parse(stat)
            .is_some_and(|stat| stat.state() == Some('Z') && stat.field::<i32>(4) == Some(parent))
    };
    stats.filter(is_one).count() as u64
}
