//! Clients' operations on the order of tasks.

use std::sync::Arc;

use bgd_core::{BatchItem, BatchLimits, Edit, Fact, Part, PlanRequest, Request, Rule, StartTime};
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition, DEFAULT_GROUP, Restart};
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::super::ops::{Op, Pick, PlanPick, Repetition, StartPick};
use super::super::support::{command, env, exited};
use super::procs::ProcState;
use super::{Checked, Sim, new_id, session_key};

/// Returns the name of the default group, of one of two groups that are created now and then, or of one that never
/// exists.
pub fn group_name(group: u8) -> Arc<str> {
    Arc::from([DEFAULT_GROUP, "build", "gpu", "moon"][usize::from(group)])
}

/// Returns the id of a batch, which no task has.
pub fn batch_id(number: u64) -> TaskId {
    TaskId::from_u128((0xba7c_u128 << 112) | u128::from(number))
}

impl Sim {
    /// Submits a batch, part by part.
    pub(super) fn many(&mut self, op: &Op) -> Checked {
        let Op::Many { client, session, env: number, plan, jobs, max_fails, parts, stray, open } = op else {
            return Ok(());
        };
        let batch = batch_id(self.submitted + 1);
        for (place, items) in parts.iter().enumerate() {
            let first = (place == 0 && !stray).then(|| {
                let mut common = command(batch);
                common.env = env(*number);
                common.spec.session = session.map(session_key);
                common.plan = plan.as_ref().map(|plan| self.plan(plan)).unwrap_or_default();
                (Box::new(common), BatchLimits { jobs: *jobs, max_fails: *max_fails })
            });
            let items = std::iter::repeat_with(|| self.item()).take(*items).collect();
            let more = place + 1 < parts.len() || *open;
            self.request(*client, Request::SubmitMany(Box::new(Part { batch, first, items, more })))?;
        }
        Ok(())
    }

    fn item(&mut self) -> BatchItem {
        self.submitted += 1;
        BatchItem { id: new_id(self.submitted), argv: [OsText::from("true"), OsText::from("x")].into() }
    }

    pub(super) fn plan(&self, pick: &PlanPick) -> PlanRequest {
        let PlanPick { group, priority, slots, after, start, hold, again } = pick;
        PlanRequest {
            group: group.map(group_name),
            priority: (*priority).into(),
            slots: *slots,
            after: self.after(after),
            start: start.map(|start| self.start(start)),
            hold: *hold,
            again: again.map(rule),
        }
    }

    fn after(&self, picks: &[(Pick, u8)]) -> Vec<After> {
        let of = |(pick, condition): &(Pick, u8)| After {
            id: self.reference(pick),
            condition: Condition::ALL[usize::from(*condition) % Condition::ALL.len()],
        };
        picks.iter().map(of).collect()
    }

    fn start(&self, start: StartPick) -> StartTime {
        match start {
            StartPick::In(ms) => StartTime::In(ms.into()),
            StartPick::At(ms) => {
                StartTime::At(Timestamp::from_unix_ms(self.now.wall.unix_ms() + i64::from(ms) - 200))
            }
        }
    }

    pub(super) fn edit(&mut self, op: &Op) -> Checked {
        let Op::Edit { client, pick, aimed, group, priority, slots, after, start } = op else {
            return Ok(());
        };
        let id = self.aim(pick, &self.model.queued(), *aimed);
        let edit = Edit {
            id,
            description: None,
            group: group.map(group_name),
            priority: priority.map(i32::from),
            slots: *slots,
            after: after.as_deref().map(|after| self.after(after)),
            start: start.map(|start| self.start(start)),
        };
        self.request(*client, Request::Edit(Box::new(edit)))
    }
}

impl Sim {
    /// Lets a task with a restart rule fail as soon as it runs, each time it is restarted.
    pub(super) fn relapse(&mut self, pick: usize) -> Checked {
        let tasks: Vec<TaskId> = self.model.kept_alive();
        let Some(task) = tasks.get(pick % tasks.len().max(1)).copied() else { return Ok(()) };
        // Two facts and a delay for each end, up to a crash loop.
        for _ in 0..30 {
            let proc = self.procs.iter().position(|proc| proc.task == task);
            match proc.map(|index| (index, self.procs[index].state)) {
                Some((index, ProcState::Spawning)) => self.fact_of(index, Fact::Started { pid: Some(7) })?,
                Some((index, ProcState::Alive)) => self.fact_of(index, exited(1, false))?,
                Some((index, ProcState::Others)) => self.fact_of(index, Fact::TreeEmpty)?,
                None => match self.model.get(task).and_then(|task| task.order.deadline()) {
                    Some(at) => self.advance(at.saturating_sub(self.now.mono.0), false, 0)?,
                    None => break,
                },
            }
        }
        Ok(())
    }
}

fn rule(again: Repetition) -> Rule {
    match again {
        Repetition::Retry { times, delay, codes, signal } => Rule::Retry {
            times: times.into(),
            delay_ms: delay.into(),
            max_delay_ms: u64::from(delay) * 3,
            codes: if codes { (160..170).collect() } else { [].into() },
            signal,
        },
        Repetition::OnFailure => Rule::Restart(Restart::OnFailure),
        Repetition::Always => Rule::Restart(Restart::Always),
    }
}
