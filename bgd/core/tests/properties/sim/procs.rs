//! Fake executors: processes and agents that misbehave.

use std::collections::BTreeSet;

use bgd_core::{Fact, Input, Note, PlaceFact, State};
use bgd_shared::id::TaskId;
use bgd_shared::task::Exit;
use bgd_shared::time::Timestamp;
use proptest::prop_assert_eq;

use super::super::model::Phase;
use super::super::ops::{STALE_FACTS, Stale};
use super::super::support::{
    KILL, asked, consumed, denied, exited, gave_up, planned, refused, session_of, tools, turn_ended,
    turn_failed, used,
};
use super::orders::Orders;
use super::{Checked, Sim};

/// A process tree, or an agent's turn, as its executor knows it. Removed when it is gone.
#[derive(Debug)]
pub struct Proc {
    pub task: TaskId,
    pub run: u32,
    pub is_agent: bool,
    pub state: ProcState,
    /// Signals that were sent to end it.
    pub ends: Vec<i32>,
    /// The agent's open questions.
    pub waiting: BTreeSet<u64>,
    /// Orders that its executor is still to carry out.
    pub orders: Orders,
    /// Whether the executor has given up waiting for it, although it is alive.
    pub gave_up: bool,
    last_key: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcState {
    /// The executor is about to start it, or to send it its prompt.
    Spawning,
    Alive,
    /// The leader has ended, and others have not.
    Others,
}

impl Proc {
    /// Creates a run whose output continues where an earlier run left off.
    pub fn new(task: TaskId, run: u32, is_agent: bool, bytes: u64) -> Self {
        let (state, waiting) = (ProcState::Spawning, BTreeSet::new());
        let (ends, gave_up) = (Vec::new(), false);
        let orders = Orders::default();
        Self { task, run, is_agent, state, ends, waiting, orders, gave_up, last_key: 0, bytes }
    }

    pub fn is_killed(&self) -> bool {
        self.ends.contains(&KILL)
    }

    /// Returns its next action. When told to end, it often does; it can't ignore SIGKILL.
    fn next(&mut self, roll: u8) -> Fact {
        match (self.state, self.is_killed(), !self.ends.is_empty(), roll) {
            _ if self.is_agent => self.next_of_agent(roll),
            (ProcState::Spawning, _, _, ..30) => Fact::StartFailed { failure: "no such program".into() },
            (ProcState::Spawning, ..) => Fact::Started { pid: Some(i32::from(roll) + 1) },
            (ProcState::Alive | ProcState::Others, true, _, 200..) if !self.gave_up => gave_up(),
            (ProcState::Alive, true, ..) => {
                Fact::Exited { exit: Exit::Signal(9), others: roll < 60, at: None }
            }
            (ProcState::Alive, _, true, ..120) => {
                Fact::Exited { exit: Exit::Signal(15), others: roll < 40, at: None }
            }
            (ProcState::Alive, _, _, 120..160) => exited(0, roll < 130),
            (ProcState::Alive, _, _, 160..180) => exited(i32::from(roll), roll < 165),
            (ProcState::Alive, _, _, 180..185) => {
                Fact::Exited { exit: Exit::Unknown("another has reaped it".into()), others: false, at: None }
            }
            (ProcState::Others, true, ..) | (ProcState::Others, _, _, ..100) => Fact::TreeEmpty,
            (ProcState::Alive | ProcState::Others, ..) => self.output(roll),
        }
    }

    /// Returns an agent's next action. An agent may refuse its prompt, even after being told to end. If told to end, it
    /// may still end its turn successfully.
    fn next_of_agent(&mut self, roll: u8) -> Fact {
        let session = || Fact::Session { id: session_of(self.task).into() };
        match (self.state, self.is_killed(), !self.ends.is_empty(), roll) {
            (ProcState::Spawning, _, true, ..128) | (ProcState::Spawning, _, _, ..40) => refused(),
            (ProcState::Spawning, _, _, 40..130) => session(),
            (ProcState::Spawning, _, _, 130..135) => self.ask(),
            (ProcState::Spawning, _, _, 135..140) => tools(1, "too early"),
            (ProcState::Spawning, _, _, 140..144) => noted(roll),
            (ProcState::Spawning, _, _, 144..160) => limited(roll),
            (ProcState::Spawning, ..) => Fact::Started { pid: (roll & 1 == 1).then_some(i32::from(roll)) },
            (_, true, _, ..200) | (_, _, true, ..60) => turn_failed("it was cancelled"),
            (_, _, true, 60..90) | (_, _, _, ..35) => turn_ended(),
            (_, _, _, 35..50) => turn_failed("the model is overloaded"),
            (_, _, _, 50..70) => tools(1 + u64::from(roll % 5), ["read", "run"][usize::from(roll & 1)]),
            (_, _, _, 70..72) => planned(roll.wrapping_add(self.last_byte())),
            (_, _, _, 72..75) => consumed(roll.wrapping_mul(37).wrapping_add(self.last_byte())),
            (_, _, _, 75..78) => Fact::Activity,
            (_, _, _, 78..80) => noted(roll),
            (_, _, _, 80..90) => denied(1 + u64::from(roll % 3), ["run rm", "write"][usize::from(roll & 1)]),
            (_, _, _, 90..150) => self.ask(),
            (_, _, _, 150..175) => {
                let waits = self.waiting.iter().nth(usize::from(roll) % self.waiting.len().max(1)).copied();
                // It may continue at the very moment when it gets the answer.
                Fact::Withdrawn { key: waits.filter(|_| roll < 170).unwrap_or(self.last_key) }
            }
            (_, _, _, 175..205) => session(),
            (_, _, _, 205..) => self.output(roll),
        }
    }

    /// Returns a number that changes as the process continues.
    const fn last_byte(&self) -> u8 {
        self.bytes.to_le_bytes()[0]
    }

    fn ask(&mut self) -> Fact {
        self.last_key += 1;
        asked(self.last_key)
    }

    fn output(&mut self, roll: u8) -> Fact {
        match roll % 16 {
            3 => return Fact::Lost { bytes: u64::from(roll), why: "no space".into() },
            5 | 9 if !self.is_agent => return Fact::Ready,
            7 if !self.is_agent => return Fact::NotReady,
            11 if !self.is_agent => return used(roll),
            13 if self.bytes > 0 => {
                let bytes = [std::mem::take(&mut self.bytes), 0];
                return Fact::Erased { bytes, why: "truncated".into() };
            }
            _ => {}
        }
        self.bytes += u64::from(roll / 2 % 8);
        Fact::Output { bytes: [self.bytes, 0], dropped: [0; 2], publish: roll & 1 == 1 }
    }
}

/// How long ago a process has ended, if no daemon ran then; a clock that was set may also show a time to come.
const LATE_MS: [Option<i64>; 8] = [None, None, None, None, Some(1), Some(5_000), Some(70_000), Some(-5_000)];

impl Sim {
    /// Lets one of the processes do something.
    pub(super) fn act(&mut self, proc: usize, roll: u8) -> Checked {
        if self.procs.is_empty() {
            return self.on_deadline();
        }
        let index = proc % self.procs.len();
        let late_ms = LATE_MS[proc / 4 % LATE_MS.len()];
        let proc = &mut self.procs[index];
        if roll.is_multiple_of(3)
            && let Ok(reported) = proc.orders.carry_out(proc.state == ProcState::Alive)
        {
            return match reported {
                Some(fact) => self.fact_of(index, fact),
                None => self.on_deadline(),
            };
        }
        let fact = match (self.procs[index].next(roll), late_ms) {
            (Fact::Exited { exit, others, at: None }, Some(ms)) => {
                self.reach("an end is learned of late");
                let at = Some(Timestamp::from_unix_ms(self.now.wall.unix_ms() - ms));
                Fact::Exited { exit, others, at }
            }
            (fact, _) => fact,
        };
        self.fact_of(index, fact)
    }

    /// Records an action of a process, and reports it as its executor would.
    pub(super) fn fact_of(&mut self, index: usize, fact: Fact) -> Checked {
        let proc = &mut self.procs[index];
        let (task, run) = (proc.task, proc.run);
        match &fact {
            Fact::Started { .. } => proc.state = ProcState::Alive,
            Fact::Exited { others: true, .. } => {
                proc.state = ProcState::Others;
                proc.orders.leader_has_ended();
            }
            Fact::Asked { key, .. } => {
                proc.waiting.insert(*key);
            }
            Fact::Withdrawn { key } => {
                proc.waiting.remove(key);
            }
            Fact::GaveUp { .. } => proc.gave_up = true,
            Fact::StartFailed { .. }
            | Fact::Exited { .. }
            | Fact::TreeEmpty
            | Fact::TurnEnded { .. }
            | Fact::Elsewhere(PlaceFact::Concluded(_))
            | Fact::Refused(_) => {
                self.procs.remove(index);
            }
            Fact::Limits { .. }
            | Fact::Session { .. }
            | Fact::Tools { .. }
            | Fact::Denied { .. }
            | Fact::Consumed(_)
            | Fact::Planned { .. }
            | Fact::Noted { .. }
            | Fact::Activity
            | Fact::Delivered
            | Fact::Used(_)
            | Fact::Elsewhere(_)
            | Fact::Ready
            | Fact::NotReady
            | Fact::Output { .. }
            | Fact::Lost { .. }
            | Fact::Erased { .. } => {}
        }
        let refused = matches!(fact, Fact::Refused(_));
        let before = self.core.get(&task.into()).ok();
        self.input(&Input::Fact { task, run, fact })?;
        let after = self.core.get(&task.into()).ok();
        if let (true, Some(before), Some(mut after)) = (refused, before, after)
            && let State::Resuming(resuming) = before.state.clone()
        {
            prop_assert_eq!(&after.state, &State::Finished(resuming.finished));
            after.state = before.state.clone();
            // The task no longer has its slot.
            after.place = before.place;
            prop_assert_eq!(format!("{:?}", after), format!("{:?}", before), "a refused resume left a mark");
            self.reach("refused, as it was");
        }
        self.compare(task)
    }

    /// Sends a fact that must change nothing.
    pub(super) fn stale(&mut self, pick: usize, kind: Stale, fact: usize) -> Checked {
        let settled = |id: &TaskId| {
            self.procs.iter().all(|proc| proc.task != *id)
                && self.model.get(*id).is_some_and(|task| task.phase == Phase::Done)
        };
        let live = self.model.live.values().map(|task| (task.id, task.run));
        let candidates: Vec<(TaskId, u32)> = match kind {
            Stale::LaterRun => live.map(|(id, run)| (id, run + 1)).collect(),
            Stale::EarlierRun => live.filter(|(_, run)| *run > 1).map(|(id, run)| (id, run - 1)).collect(),
            // A process that was given up may outlive its task, and its facts are true.
            Stale::Cleared => {
                let gone = self.model.gone.values().rev().take(8).map(|(id, _)| (*id, 1));
                gone.filter(|(id, _)| self.procs.iter().all(|proc| proc.task != *id)).collect()
            }
            Stale::Settled => live.filter(|(id, _)| settled(id)).collect(),
        };
        let Some((task, run)) = candidates.get(pick % candidates.len().max(1)).copied() else {
            return Ok(());
        };
        let before = self.core.get(&task.into()).ok();
        let known = before.as_ref().map_or(7, |task| task.output_bytes[0]);
        let bytes = if matches!(kind, Stale::Settled) { known } else { known + 5 };
        let fact = match fact % STALE_FACTS {
            0 => Fact::Started { pid: Some(77) },
            1 => Fact::StartFailed { failure: "too late".into() },
            2 => exited(0, true),
            3 => Fact::TreeEmpty,
            4 => refused(),
            5 => Fact::Session { id: "another".into() },
            6 => tools(1, "late"),
            7 => Fact::Activity,
            8 => asked(1000),
            9 => Fact::Withdrawn { key: 1 },
            10 => turn_ended(),
            11 => denied(1, "late"),
            12 => Fact::Ready,
            13 => Fact::NotReady,
            14 => Fact::Delivered,
            _ => Fact::Output { bytes: [bytes, 0], dropped: [0; 2], publish: true },
        };
        self.input(&Input::Fact { task, run, fact })?;
        let after = self.core.get(&task.into()).ok();
        prop_assert_eq!(format!("{:?}", before), format!("{:?}", after));
        if matches!(kind, Stale::EarlierRun) {
            self.reach("fact before a resume");
        }
        Ok(())
    }
}

/// Returns changed limits of the agent.
fn limited(roll: u8) -> Fact {
    Fact::Limits { stalled_after_ms: u64::from(roll) * 10, ask_timeout_ms: u64::from(roll) * 20 }
}

/// Returns a note of any kind; two of four are last words.
fn noted(roll: u8) -> Fact {
    let note = [Note::LastWords, Note::Suspect, Note::Warning, Note::LastWords][usize::from(roll % 4)];
    Fact::Noted { note, text: format!("note {roll}").into() }
}
