//! Random histories of tasks on clusters and machines, among local ones. The places are fake: each does anything that a
//! real one may do at that moment, in any order, and the core's view is compared with theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_core::{
    Begin, Cancel, Cause, Command, Conclusion, Control, Core, CoreLimits, Edit, Effect, Fact, GroupSettings,
    Input, Lingering, Mono, Now, Outcome, PlaceFact, Placement, ReplyTo, Request, Rule, Selection, Snapshot,
    State, StopReason, Verdict,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::Chosen;
use bgd_shared::resources::{ExecutorKind, Resources};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::support::{command, exited, limits};

type Checked<T = ()> = Result<T, TestCaseError>;

/// A step: the action, and three numbers that choose among its targets.
type Step = (u8, u8, u8, u8);

/// How many local tasks run at once.
const SLOTS: usize = 2;

/// How many tasks are given to a place at once.
const PLACE_SLOTS: u32 = 3;

/// The places: two clusters and a machine.
const PLACES: [(&str, ExecutorKind); 3] =
    [("west", ExecutorKind::Slurm), ("east", ExecutorKind::Slurm), ("far", ExecutorKind::Ssh)];

/// The largest number of tasks. Older ones are cleared.
const TASKS: usize = 16;

/// A run, as its executor knows it.
#[derive(Clone, Debug)]
struct Run {
    task: TaskId,
    number: u32,
    /// Its place; `None` for this machine.
    on: Option<Arc<str>>,
    has_started: bool,
    is_ending: bool,
    /// The tasks that must succeed before the place starts it.
    awaits: Vec<TaskId>,
    env: Arc<Env>,
}

struct World {
    core: Core,
    now: Now,
    runs: Vec<Run>,
    /// The latest run of each task.
    numbers: BTreeMap<TaskId, u32>,
    /// Whether each run in a place has succeeded there, by task.
    ended_there: BTreeMap<TaskId, bool>,
    tasks: Vec<TaskId>,
    /// The tasks whose end was published.
    ended: BTreeSet<TaskId>,
    /// The tasks that a user cancelled while they were active.
    cancelled: BTreeSet<TaskId>,
    /// Since when the state of a task is unknown.
    unknown: BTreeMap<TaskId, Timestamp>,
    calls: u64,
    submitted: u64,
}

impl World {
    fn new() -> Self {
        let limits = CoreLimits { grace_ms: 500, ..limits(SLOTS) };
        let groups = PLACES.map(|(name, _)| (Arc::from(name), GroupSettings { slots: PLACE_SLOTS }));
        Self {
            core: Core::new(limits, groups.into()),
            now: Now { mono: Mono(1), wall: Timestamp::from_unix_ms(1_700_000_000_000) },
            runs: Vec::new(),
            numbers: BTreeMap::new(),
            ended_there: BTreeMap::new(),
            tasks: Vec::new(),
            ended: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            unknown: BTreeMap::new(),
            calls: 0,
            submitted: 0,
        }
    }

    fn step(&mut self, (what, one, two, three): Step) -> Checked {
        match what {
            ..60 => self.submit(one, two, three),
            60..170 => self.act(one, two, three),
            170..185 => self.cancel(one),
            185..197 => self.hold(one, two & 1 == 0),
            197..207 => self.edit(one, two),
            207..215 => self.clear(one),
            215..225 => self.late(one, two),
            225..236 => self.advance(u64::from(one) * 40),
            236..245 => self.pause(one, two & 1 == 0),
            245.. => self.reload(),
        }
    }

    fn get(&self, id: TaskId) -> Option<Snapshot> {
        self.core.get(&id.into()).ok()
    }

    fn pick(&self, number: u8) -> Option<TaskId> {
        self.tasks.get(usize::from(number) % self.tasks.len().max(1)).copied()
    }

    fn request(&mut self, request: Request) -> Checked {
        self.calls += 1;
        let to = ReplyTo { client: 0, call: self.calls };
        let effects = self.core.handle(self.now, Input::Request { to, request });
        self.carry_out(effects)
    }

    fn submit(&mut self, place: u8, after: u8, kind: u8) -> Checked {
        self.submitted += 1;
        let mut command: Command = command(TaskId::from_u128(u128::from(self.submitted) << 64));
        if let Some((name, kind)) = PLACES.get(usize::from(place % 4)) {
            let on = Placement {
                name: (*name).into(),
                kind: *kind,
                resources: Resources::default(),
                chosen: Chosen::default(),
            };
            command.spec.on = Some(Arc::new(on));
            command.plan.group = Some((*name).into());
        }
        let count = if after < 100 { 0 } else { 1 + after % 3 };
        for number in 0..count {
            let Some(other) = self.pick(after.wrapping_mul(7).wrapping_add(number * 5)) else { continue };
            let condition = match kind.wrapping_add(number) % 8 {
                6 => Condition::Any,
                7 => Condition::Fail,
                5 => Condition::Start,
                _ => Condition::Ok,
            };
            command.plan.after.push(After { id: other.into(), condition });
        }
        command.plan.hold = kind >= 240;
        if kind.is_multiple_of(5) {
            let rule =
                Rule::Retry { times: 1, delay_ms: 100, max_delay_ms: 100, codes: [].into(), signal: false };
            command.plan.again = Some(rule);
        }
        let id = command.id;
        self.request(Request::Submit(Box::new(command)))?;
        if self.core.get(&id.into()).is_ok() {
            self.tasks.push(id);
        }
        if self.tasks.len() > TASKS {
            self.clear(0)?;
        }
        Ok(())
    }

    fn cancel(&mut self, one: u8) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        if self.get(id).is_some_and(|task| task.status().is_active()) {
            self.cancelled.insert(id);
        }
        let which = Selection::Ids(vec![id.into()]);
        self.request(Request::Cancel(Cancel { which, signal: None, grace_ms: None }))
    }

    fn hold(&mut self, one: u8, held: bool) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        self.request(Request::Hold { which: Selection::Ids(vec![id.into()]), held })?;
        let task = self.get(id).filter(|task| task.status() == Status::Pending);
        prop_assert!(task.is_none_or(|task| task.plan().held == held), "the hold of {} is lost", id);
        Ok(())
    }

    fn pause(&mut self, one: u8, paused: bool) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        self.request(Request::SetPaused { which: Selection::Ids(vec![id.into()]), paused })?;
        let task = self.get(id).filter(|task| matches!(task.state, State::Running { .. }));
        prop_assert!(task.is_none_or(|task| task.paused == paused), "the pause of {} is lost", id);
        Ok(())
    }

    fn edit(&mut self, one: u8, two: u8) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        let priority = i32::from(two % 20) - 10;
        self.request(Request::Edit(Box::new(Edit {
            id: id.into(),
            description: None,
            group: None,
            priority: Some(priority),
            slots: None,
            after: None,
            start: None,
        })))?;
        let task = self.get(id).filter(|task| task.status() == Status::Pending);
        prop_assert!(task.is_none_or(|task| task.plan().priority == priority), "the priority is lost");
        Ok(())
    }

    fn clear(&mut self, one: u8) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        if self.get(id).is_some_and(|task| task.status().is_active()) {
            self.cancelled.insert(id);
        }
        let which = Selection::Ids(vec![id.into()]);
        self.request(Request::Clear { which, active_too: true })
    }

    fn advance(&mut self, ms: u64) -> Checked {
        self.now = Now { mono: self.now.mono.plus_ms(ms), wall: self.now.wall.plus_ms(ms) };
        while self.core.deadline().is_some_and(|at| at <= self.now.mono) {
            let effects = self.core.on_deadline(self.now);
            self.carry_out(effects)?;
        }
        Ok(())
    }

    fn reload(&mut self) -> Checked {
        let fail = |error: serde_json::Error| TestCaseError::fail(error.to_string());
        let text = serde_json::to_string(&self.core).map_err(fail)?;
        self.core = serde_json::from_str(&text).map_err(fail)?;
        // What the next daemon or program takes over must equal what this one has.
        for id in &self.tasks {
            let known = self.core.run_elsewhere(self.now, *id);
            let run = self.runs.iter().find(|run| run.task == *id && run.on.is_some());
            prop_assert_eq!(known.is_some(), run.is_some(), "{}", id);
            let (Some(known), Some(run)) = (known, run) else { continue };
            let awaits: Vec<TaskId> =
                known.place.after.iter().filter(|other| other.is_awaited).map(|other| other.id).collect();
            prop_assert!(awaits.iter().all(|other| run.awaits.contains(other)));
            prop_assert_eq!(
                (known.run, known.has_started, known.stop.is_some()),
                (run.number, run.has_started, run.is_ending)
            );
        }
        Ok(())
    }

    /// Sends a fact about a run that is over.
    fn late(&mut self, one: u8, two: u8) -> Checked {
        let Some(id) = self.pick(one) else { return Ok(()) };
        // A run whose start hangs is not over: its end is still of interest, although its task has ended.
        let is_stuck = |task: Snapshot| task.finished().is_some_and(|end| end.lingering == Lingering::Stuck);
        if self.runs.iter().any(|run| run.task == id) || self.get(id).is_some_and(is_stuck) {
            return Ok(());
        }
        let run = self.numbers.get(&id).copied().unwrap_or(1);
        let fact = match two % 5 {
            0 => PlaceFact::Started { at: None },
            1 => PlaceFact::Requeued { reason: "late".into() },
            2 => concluded(Verdict::ByExit, Some(0)),
            3 => PlaceFact::GivenBack { env: Arc::default() },
            _ => PlaceFact::Unknown { why: "late".into() },
        };
        let before = self.get(id).map(|task| format!("{task:?}"));
        self.fact(id, run, Fact::Elsewhere(fact))?;
        prop_assert_eq!(
            before,
            self.get(id).map(|task| format!("{task:?}")),
            "a late fact has changed {}",
            id
        );
        Ok(())
    }

    fn fact(&mut self, task: TaskId, run: u32, fact: Fact) -> Checked {
        let effects = self.core.handle(self.now, Input::Fact { task, run, fact });
        self.carry_out(effects)
    }

    /// Lets an executor do something with one of its runs.
    fn act(&mut self, one: u8, two: u8, three: u8) -> Checked {
        if self.runs.is_empty() {
            return Ok(());
        }
        let index = usize::from(one) % self.runs.len();
        let run = self.runs[index].clone();
        if run.on.is_none() {
            return self.act_here(index, &run, two);
        }
        let before = self.get(run.task);
        let fact = match two {
            ..30 => PlaceFact::Accepted { id: "7".into() },
            30..50 => PlaceFact::Waiting { reason: ["Priority", "Resources"][usize::from(three & 1)].into() },
            50..55 => PlaceFact::Unsent { awaits: "far".into(), reason: "its tasks".into() },
            55..75 => PlaceFact::Unknown { why: ["no route", "silent"][usize::from(three & 1)].into() },
            75..78 => PlaceFact::Known,
            78..84 => PlaceFact::Paused { paused: three & 1 == 0 },
            84..100 => PlaceFact::Refused { control: refused(three), why: "not now".into() },
            100..150 => return self.start_there(index),
            150..165 => return self.requeue(index),
            165.. => return self.end_there(index, two, three),
        };
        let is_waiting = matches!(&fact, PlaceFact::Waiting { .. } | PlaceFact::Unsent { .. });
        if is_waiting && run.has_started {
            return Ok(());
        }
        match &fact {
            PlaceFact::Unknown { .. } => _ = self.unknown.entry(run.task).or_insert(self.now.wall),
            PlaceFact::Known => _ = self.unknown.remove(&run.task),
            _ => {}
        }
        let control = match &fact {
            PlaceFact::Refused { control, .. } => control.clone(),
            _ => None,
        };
        let stopped = match (&fact, &control) {
            (PlaceFact::Paused { paused }, _) => Some(*paused),
            // A refused operation is reverted.
            (_, Some(Control::Pause)) => Some(false),
            (_, Some(Control::Continue)) => Some(true),
            _ => None,
        };
        self.fact(run.task, run.number, Fact::Elsewhere(fact))?;
        let after = self.get(run.task);
        if let (Some(before), Some(after)) = (&before, &after) {
            let (held, priority) = (before.plan().held, before.plan().priority);
            let waits = !run.has_started;
            let expected = match control {
                // A refused operation is reverted.
                Some(Control::Hold { held: asked, is_again: false }) if waits && asked == held => {
                    (!held, priority)
                }
                Some(Control::Priority { priority: asked, before }) if waits && asked == priority => {
                    (held, before)
                }
                _ => (held, priority),
            };
            prop_assert_eq!((after.plan().held, after.plan().priority), expected);
            let is_running = matches!(before.state, State::Running { .. });
            let stopped = stopped.filter(|_| is_running).unwrap_or(before.paused);
            prop_assert_eq!(after.paused, stopped);
        }
        let shown = |task: Option<Snapshot>| task.map(|task| format!("{:?} {:?}", task.status(), task.state));
        prop_assert_eq!(shown(before), shown(after.clone()), "what a place says decides nothing");
        if let Some(task) = after.filter(|task| task.status().is_active()) {
            let since = task.elsewhere.as_ref().and_then(|known| known.unknown.as_ref()).map(|(at, _)| *at);
            prop_assert_eq!(since, self.unknown.get(&run.task).copied(), "since when it is unknown");
        }
        Ok(())
    }

    fn act_here(&mut self, index: usize, run: &Run, roll: u8) -> Checked {
        if run.has_started {
            self.runs.remove(index);
            return self.fact(run.task, run.number, exited(i32::from(roll % 2), false));
        }
        self.runs[index].has_started = true;
        self.fact(run.task, run.number, Fact::Started { pid: Some(7) })
    }

    fn start_there(&mut self, index: usize) -> Checked {
        let run = self.runs[index].clone();
        if run.has_started {
            // The place knows the time only now.
            let before = self.get(run.task).map(|task| format!("{:?}", task.state));
            let at = Some(self.now.wall);
            self.fact(run.task, run.number, Fact::Elsewhere(PlaceFact::Started { at }))?;
            prop_assert_eq!(before, self.get(run.task).map(|task| format!("{:?}", task.state)));
            return Ok(());
        }
        let is_over = |task: &TaskId| self.runs.iter().all(|other| other.task != *task);
        if run.awaits.iter().all(|task| is_over(task) && self.ended_there.get(task) == Some(&true)) {
            self.runs[index].has_started = true;
            self.unknown.remove(&run.task);
            return self.fact(run.task, run.number, Fact::Elsewhere(PlaceFact::Started { at: None }));
        }
        if run.awaits.iter().any(is_over) && !run.is_ending {
            return self.give_back(index);
        }
        Ok(())
    }

    fn give_back(&mut self, index: usize) -> Checked {
        let run = self.runs.remove(index);
        self.unknown.remove(&run.task);
        self.fact(run.task, run.number, Fact::Elsewhere(PlaceFact::GivenBack { env: run.env }))
    }

    fn requeue(&mut self, index: usize) -> Checked {
        let run = self.runs[index].clone();
        if !run.has_started || run.is_ending {
            return Ok(());
        }
        self.runs[index].has_started = false;
        self.runs[index].awaits.clear();
        self.fact(run.task, run.number, Fact::Elsewhere(PlaceFact::Requeued { reason: "BeginTime".into() }))?;
        prop_assert_eq!(self.get(run.task).map(|task| task.status()), Some(Status::Pending));
        Ok(())
    }

    fn end_there(&mut self, index: usize, two: u8, three: u8) -> Checked {
        let run = self.runs.remove(index);
        self.unknown.remove(&run.task);
        let failed = |cause| Verdict::Failed(cause, "why".into());
        let fact = match (run.has_started, two % 8) {
            (false, 0..3) => Fact::StartFailed { failure: "refused".into() },
            (false, 3) => Fact::Elsewhere(concluded(failed(Cause::Lost), None)),
            (true, 0..4) => Fact::Elsewhere(concluded(Verdict::ByExit, Some(0))),
            (true, 4) => Fact::Elsewhere(concluded(Verdict::ByExit, Some(i32::from(three % 3)))),
            (true, 5) => Fact::Elsewhere(concluded(failed(Cause::Node), None)),
            (true, 6) => Fact::Elsewhere(concluded(failed(Cause::Timeout), Some(3))),
            (true | false, _) => Fact::Elsewhere(concluded(Verdict::Cancelled, None)),
        };
        self.fact(run.task, run.number, fact)?;
        let status = self.get(run.task).map(|task| task.status());
        self.ended_there.insert(run.task, status == Some(Status::Completed));
        Ok(())
    }

    /// Carries out the effects, and checks that they make sense.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Checked {
        for effect in effects {
            match effect {
                Effect::Start { task, run, spec, begin, .. } => {
                    let on = spec.on.as_ref().map(|on| Arc::clone(&on.name));
                    self.begins(task, run, on, begin)?;
                }
                Effect::End { task, run, .. } => {
                    let known = self.runs.iter().position(|known| (known.task, known.number) == (task, run));
                    prop_assert!(known.is_some(), "{} has no run to be ended", task);
                    let Some(index) = known else { continue };
                    self.runs[index].is_ending = true;
                    if self.runs[index].on.is_none() && !self.runs[index].has_started {
                        // Its start hangs, and nothing waits for it any longer.
                        self.runs.remove(index);
                    }
                }
                Effect::Control { task, control, .. } => {
                    let run = self.runs.iter().find(|run| run.task == task);
                    let waits = run.is_some_and(|run| run.on.is_some() && !run.has_started);
                    let is_of_queue = matches!(control, Control::Hold { .. } | Control::Priority { .. });
                    let is_pause = matches!(control, Control::Pause | Control::Continue);
                    let runs = run.is_some_and(|run| run.has_started && !run.is_ending);
                    let fits = is_of_queue && waits || is_pause && runs;
                    prop_assert!(fits, "{:?} of {}, which waits nowhere else", control, task);
                }
                Effect::Event { kind, task, .. } => self.check_event(kind, &task)?,
                Effect::Forget { task, .. } => {
                    prop_assert!(self.runs.iter().all(|run| run.task != task), "{} still runs", task);
                    self.tasks.retain(|known| *known != task);
                }
                Effect::Reply { .. }
                | Effect::Notice { .. }
                | Effect::Over { .. }
                | Effect::CaughtUp { .. }
                | Effect::Written { .. } => {}
                Effect::Exit => return Err(TestCaseError::fail("nobody has asked for the end")),
            }
        }
        self.slots_are_right()
    }

    fn begins(&mut self, task: TaskId, run: u32, on: Option<Arc<str>>, begin: Begin) -> Checked {
        prop_assert!(self.runs.iter().all(|known| known.task != task), "{} runs already", task);
        prop_assert!(!self.ended.contains(&task), "{} has ended", task);
        prop_assert!(self.numbers.insert(task, run).is_none_or(|before| before < run), "{} again", run);
        let Begin::Process { env, place } = begin else {
            return Err(TestCaseError::fail("no process"));
        };
        let awaits: Vec<TaskId> =
            place.after.iter().filter(|other| other.is_awaited).map(|other| other.id).collect();
        for other in &awaits {
            let known = self.runs.iter().find(|run| run.task == *other);
            prop_assert!(
                known.is_some_and(|known| known.on == on && !known.is_ending),
                "{} awaits {}",
                task,
                other
            );
            prop_assert!(on.as_deref() != Some("far") && on.is_some(), "only a cluster orders tasks");
        }
        let (has_started, is_ending) = (false, false);
        self.runs.push(Run { task, number: run, on, has_started, is_ending, awaits, env });
        Ok(())
    }

    fn check_event(&mut self, kind: EventKind, task: &Snapshot) -> Checked {
        let id = task.id;
        if kind.is_terminal() {
            prop_assert!(self.ended.insert(id), "{} ends twice", id);
            if let Some(finished) = task.finished() {
                let is_by_user = finished.outcome == Outcome::Cancelled(StopReason::Cancelled);
                prop_assert!(!is_by_user || self.cancelled.contains(&id), "nobody has cancelled {}", id);
            }
        } else {
            prop_assert!(
                kind == EventKind::Cleared || !self.ended.contains(&id),
                "{:?} after the end of {}",
                kind,
                id
            );
        }
        if kind == EventKind::Started {
            // The tasks that it depends on must have met its conditions.
            for dependency in task.plan().after.iter().filter(|one| one.condition == Condition::Ok) {
                let other = self.get(dependency.task).map(|other| other.status());
                let has_succeeded = other.is_none_or(|status| status == Status::Completed);
                prop_assert!(dependency.met && has_succeeded, "{} starts after {:?}", id, other);
            }
        }
        Ok(())
    }

    /// Tasks elsewhere occupy no slot of this machine, and no slot is idle because of them.
    fn slots_are_right(&self) -> Checked {
        let all: Vec<Snapshot> = self.tasks.iter().filter_map(|id| self.get(*id)).collect();
        let has_slot = |task: &&Snapshot| {
            matches!(task.state, State::Starting { .. } | State::Running { .. } | State::Stopping { .. })
        };
        let (there, here): (Vec<_>, Vec<_>) = all.iter().partition(|task| task.spec.on.is_some());
        let used = here.iter().filter(|task| has_slot(task)).count();
        let waits = |task: &Snapshot| matches!(task.state, State::Queued { .. }) && task.plan().is_open();
        prop_assert!(used <= SLOTS, "{} of {} slots are used", used, SLOTS);
        prop_assert!(used == SLOTS || !here.iter().any(|task| waits(task)), "a slot is idle");
        for (name, _) in PLACES {
            let of_place = |task: &&&Snapshot| task.plan().group() == name;
            let used = there.iter().filter(of_place).filter(|task| has_slot(task)).count();
            prop_assert!(used <= PLACE_SLOTS as usize, "{} has {} tasks", name, used);
        }
        Ok(())
    }

    /// Cancels everything, lets every executor confirm it, and checks that nothing is left.
    fn drain(&mut self) -> Checked {
        self.cancelled.extend(self.tasks.iter().copied());
        let which = || Selection::All { session: None };
        self.request(Request::Cancel(Cancel { which: which(), signal: None, grace_ms: None }))?;
        while let Some(run) = self.runs.first().cloned() {
            if run.on.is_some() {
                self.end_there(0, 7, 0)?;
            } else {
                self.act_here(0, &run, 0)?;
            }
        }
        self.advance(10_000)?;
        prop_assert_eq!(self.core.summary().active(), 0, "tasks are stuck");
        self.request(Request::Clear { which: which(), active_too: true })?;
        let json =
            serde_json::to_value(&self.core).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for index in ["dependents", "timers", "wall_timers"] {
            let size =
                json[index].as_object().map(serde_json::Map::len).or(json[index].as_array().map(Vec::len));
            prop_assert_eq!(size, Some(0), "{} is not empty", index);
        }
        prop_assert_eq!(self.core.held_by_tasks(), 0);
        Ok(())
    }
}

/// The command that a place refuses, if any.
fn refused(roll: u8) -> Option<Control> {
    match roll % 6 {
        0 => None,
        1 => Some(Control::Hold { held: true, is_again: roll.is_multiple_of(4) }),
        2 => Some(Control::Hold { held: false, is_again: roll.is_multiple_of(4) }),
        3 => Some(Control::Pause),
        4 => Some(Control::Continue),
        _ => Some(Control::Priority { priority: i32::from(roll / 6 % 3), before: 2 }),
    }
}

fn concluded(verdict: Verdict, code: Option<i32>) -> PlaceFact {
    PlaceFact::Concluded(Conclusion { exit: code.map(Exit::Code), verdict, at: None })
}

#[test]
fn r145_to_r151_random_histories_of_remote_tasks_break_no_rule() {
    let config =
        Config { cases: 1500, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let steps = vec((any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>()), 1..300);
    let result = TestRunner::new(config).run(&steps, |steps| {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        world.drain()
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
