//! What outlives a simulated durable daemon: the keeper, which holds every process that was started, and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bgd::core::Fact;
use bgd::core::durable::Kept;
use bgd::dispatcher::durable::LeftRuns;
use bgd::exec::left::{Ended, HeldRun, Resumed};
use bgd::keeper::Key;
use bgd_shared::id::TaskId;
use bgd_shared::task::{Exit, Task};

use super::disk::Room;
use super::world::{Stage, State, World};

/// How a durable daemon ends unexpectedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// Alone: its keeper holds the running processes.
    Alone,
    /// With its keeper.
    WithKeeper,
    /// With the whole machine.
    Restart,
}

impl Killed {
    /// Returns why running processes are lost, if they are.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Alone | Self::WithKeeper => "the daemon was killed",
            Self::Restart => "the machine was restarted",
        }
    }
}

/// A run that is held until its end is persisted.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The exit of its leader; `None` while the leader is alive.
    pub exit: Option<Exit>,
    /// Whether other processes are still alive.
    pub has_others: bool,
}

/// The runs that the keeper holds, and the facts about all runs so far.
#[derive(Debug, Default)]
pub struct Keeper {
    pub held: BTreeMap<(TaskId, u32), Held>,
    /// Every run whose process was started.
    executed: BTreeSet<(TaskId, u32)>,
    /// The exit of each task's latest run.
    exits: BTreeMap<TaskId, Exit>,
    /// Tasks that may be lost, or whose exit is unknown.
    maybe_lost: BTreeSet<TaskId>,
    is_gone: bool,
    /// The number of the last event that was published without being persisted.
    sent_seq: u64,
    is_sent_seq_lost: bool,
}

impl Keeper {
    /// Notes that a process has begun.
    pub fn begun(&mut self, task: TaskId, run: u32) {
        assert!(self.executed.insert((task, run)), "run {run} of {task} runs twice");
        self.exits.remove(&task);
        self.held.insert((task, run), Held::default());
    }

    /// Notes that its leader has ended.
    pub fn exited(&mut self, task: TaskId, run: u32, exit: &Exit, others: bool) {
        self.exits.insert(task, exit.clone());
        if let Some(held) = self.held.get_mut(&(task, run)) {
            (held.exit, held.has_others) = (Some(exit.clone()), others);
        }
    }

    /// Notes that no process of it is left.
    pub fn emptied(&mut self, task: TaskId, run: u32) {
        if let Some(held) = self.held.get_mut(&(task, run)) {
            held.has_others = false;
        }
    }

    fn sent_seq(&self) -> Option<u64> {
        (!self.is_sent_seq_lost).then_some(self.sent_seq)
    }

    /// Notes that it survives SIGKILL: its exit is unknown.
    pub fn hangs(&mut self, task: TaskId) {
        self.maybe_lost.insert(task);
    }

    /// Forgets everything, as the daemon is gone.
    pub fn forget_plain(&mut self) {
        *self = Self::default();
    }
}

impl State {
    /// Decides the fate of processes when the daemon is killed.
    fn left_behind(&mut self, killed: Killed) {
        let spawning = self.processes.iter().filter(|(_, process)| process.stage == Stage::Spawning);
        let spawning: Vec<(TaskId, u32)> = spawning.map(|(task, process)| (*task, process.run)).collect();
        for (task, run) in spawning {
            // Its process was created and has announced itself, or neither.
            if self.percent(50) {
                self.keeper.begun(task, run);
                if let Some(process) = self.processes.get_mut(&task) {
                    process.stage = Stage::Alive;
                }
            } else {
                self.processes.remove(&task);
            }
        }
        self.started.retain(|run| self.keeper.executed.contains(run));
        if killed != Killed::Alone {
            self.keeper.maybe_lost.extend(self.keeper.held.keys().map(|(task, _)| *task));
            // The next daemon ends processes that nobody holds.
            self.processes.clear();
            self.keeper.held.clear();
        }
        self.keeper.is_gone |= killed != Killed::Alone;
        self.keeper.is_sent_seq_lost |= killed != Killed::Alone;
    }
}

impl World {
    /// Kills the durable daemon. Its pending write may still complete.
    pub fn kill(&self, killed: Killed) {
        let mut state = self.state();
        state.leave();
        state.left_behind(killed);
        let room = if state.percent(50) { Room::None } else { state.room };
        let disk = &mut state.disk;
        disk.write(room);
        disk.drop_unwritten();
        if killed == Killed::Restart {
            disk.epoch = None;
        }
    }

    /// The durable daemon has ended on command, and has left its tasks.
    pub fn leave(&self) {
        let mut state = self.state();
        state.leave();
        state.left_behind(Killed::Alone);
        let room = state.room;
        state.disk.write(room);
        state.disk.drop_unwritten();
    }

    /// Returns the runs that the keeper holds of the tasks in the journal, and lets go of the rest, which is over.
    pub fn left_runs(&self, kept: &Kept) -> LeftRuns {
        let mut state = self.state();
        let keys = state.keeper.held.keys().map(|(task, run)| Key { task: *task, run: *run });
        let runs: BTreeMap<Key, HeldRun> =
            keys.map(|key| (key, HeldRun::bare(key, pid_of(key.task)))).collect();
        let (is_complete, sent_seq) = (!state.keeper.is_gone, state.keeper.sent_seq());
        let mut left = LeftRuns { runs, is_complete, sent_seq, ..LeftRuns::default() };
        left.retain_known(kept);
        state.keeper.held.retain(|(task, run), held| {
            let is_known = left.runs.contains_key(&Key { task: *task, run: *run });
            let is_over = held.exit.is_some() && !held.has_others;
            assert!(is_known || is_over, "{task} runs, and the journal knows nothing of that: {held:?}");
            is_known
        });
        left
    }

    /// A daemon resumes a run.
    pub fn run_resumed(&self, key: Key, resumed: &Resumed) -> io::Result<i32> {
        let Key { task, run } = key;
        self.trace(format!("go on {task} {run} {:?}", resumed.ended).as_bytes());
        let mut state = self.state();
        let Some(held) = state.keeper.held.get(&(task, run)).cloned() else {
            return Err(io::Error::other("nobody holds it"));
        };
        match (held.exit, resumed.ended) {
            (None, Ended::Nothing) => {}
            (Some(exit), Ended::Nothing) => {
                state.say(task, run, Fact::Exited { exit, others: held.has_others, at: None });
            }
            (Some(_), Ended::Leader) if held.has_others => {}
            (Some(_), Ended::Leader) => state.say(task, run, Fact::TreeEmpty),
            (exit, ended) => panic!("{task} has ended ({ended:?}) says the journal, and in truth: {exit:?}"),
        }
        Ok(pid_of(task))
    }

    /// Events up to this number are published that can't be persisted.
    pub fn sent_unrecorded(&self, seq: Option<u64>) {
        let keeper = &mut self.state().keeper;
        keeper.sent_seq = seq.map_or(0, |seq| keeper.sent_seq.max(seq));
    }

    /// The fate of all earlier runs is persisted.
    pub fn caught_up(&self) {
        let keeper = &mut self.state().keeper;
        (keeper.is_gone, keeper.is_sent_seq_lost) = (false, false);
    }

    /// The end of a run is persisted.
    pub fn over(&self, task: TaskId, run: u32) {
        let mut state = self.state();
        let held = state.keeper.held.remove(&(task, run));
        let is_over = held.as_ref().is_none_or(|held| held.exit.is_some() && !held.has_others);
        assert!(is_over, "{task} is over, and in truth: {held:?}");
    }

    /// Checks an end that the daemon reports.
    pub fn is_true(&self, task: &Task) {
        let state = self.state();
        let Keeper { exits, executed, maybe_lost, .. } = &state.keeper;
        let attempts = task.attempt.unwrap_or(1) as usize;
        let id = task.id;
        let runs = executed.range((id, 0)..=(id, u32::MAX)).count();
        assert!(runs <= attempts, "{id} has run {runs} times in {attempts} attempts");
        match &task.exit {
            None => {}
            Some(Exit::Unknown(why)) => assert!(maybe_lost.contains(&id), "{id} is lost: {why}"),
            exit => assert_eq!(exit.as_ref(), exits.get(&id), "{id} has ended otherwise: {task:?}"),
        }
    }
}

/// Returns the process id that a task shows.
pub fn pid_of(task: TaskId) -> i32 {
    i32::from(task.as_u128().to_le_bytes()[0]) + 2
}
