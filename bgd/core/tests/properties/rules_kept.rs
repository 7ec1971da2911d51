//! The persistent state of a durable core, and its use by the next core (R125 to R131).

use std::collections::BTreeMap;
use std::sync::Arc;

use bgd_core::durable::{Changes, Counters, Kept, TaskRow};
use bgd_core::{
    BatchItem, BatchLimits, Command, Conclusion, Core, Effect, Fact, Filter, Input, LeavePolicy, Ordinal,
    Part, PlaceFact, Placement, Reply, Request, Selection, StartTime, Verdict,
};
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::Chosen;
use bgd_shared::resources::{ExecutorKind, Resources};
use bgd_shared::task::{Exit, Status};
use bgd_shared::text::OsText;

use super::support::{Desk, command, ends, exited, id, limits, replies, starts};

const BATCH: TaskId = TaskId::from_u128(7);

/// The number of tasks of the batches here: more than are added in one step.
const TASKS: u64 = 1000;

/// The persisted rows, as in a journal.
#[derive(Default)]
struct Rows {
    tasks: BTreeMap<Ordinal, String>,
    batches: BTreeMap<TaskId, String>,
    entering: BTreeMap<TaskId, String>,
    counters: Counters,
}

fn write<K: Ord, V: serde::Serialize>(rows: &mut BTreeMap<K, String>, changes: Vec<(K, Option<V>)>) {
    for (key, row) in changes {
        match row {
            Some(row) => _ = rows.insert(key, serde_json::to_string(&row).unwrap()),
            None => _ = rows.remove(&key),
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(row: &str) -> T {
    serde_json::from_str(row).unwrap()
}

impl Rows {
    /// Persists the changes.
    fn note(&mut self, desk: &mut Desk) {
        let Some(changes) = desk.core.take_changes(desk.now) else { return };
        let Changes { tasks, batches, entering, counters, .. } = changes;
        write(&mut self.tasks, tasks);
        write(&mut self.batches, batches);
        write(&mut self.entering, entering);
        self.counters = counters;
    }

    /// Kills the daemon and starts the next one.
    fn restart(&self, desk: &mut Desk) {
        Self::start(desk, self.kept());
    }

    /// Kills the daemon, damages its journal so that it must be salvaged, though it is readable, and starts the next one.
    fn restart_damaged(&self, desk: &mut Desk) {
        let mut kept = self.kept();
        assert_eq!(kept.recount_batches(), 0);
        Self::start(desk, kept);
    }

    fn kept(&self) -> Kept {
        Kept {
            tasks: self.tasks.iter().map(|(ordinal, row)| (*ordinal, read::<TaskRow>(row))).collect(),
            batches: self.batches.iter().map(|(id, row)| (*id, read(row))).collect(),
            entering: self.entering.values().map(|row| read(row)).collect(),
            counters: self.counters.clone(),
            ..Kept::default()
        }
    }

    fn start(desk: &mut Desk, kept: Kept) {
        desk.core = Core::restore(limits(1), BTreeMap::new(), kept);
        desk.core.track();
    }
}

/// Returns a desk with a durable core that is running one task, and its persisted rows.
fn durable() -> (Desk, Rows) {
    let mut desk = Desk::new(1);
    let mut roomy = limits(1);
    roomy.tasks = 5000;
    desk.input(super::support::configure(roomy));
    desk.core.track();
    (desk, Rows::default())
}

fn member(number: u64) -> TaskId {
    TaskId::from_u128((1_u128 << 127) | u128::from(number))
}

/// Submits a batch whose tasks wait, or come after another task, and persists its first step.
fn entering((desk, rows): (&mut Desk, &mut Rows), after: Option<TaskId>) {
    let mut common = command(BATCH);
    match after {
        Some(other) => common.plan.after = vec![After { id: other.into(), condition: Condition::Ok }],
        None => common.plan.hold = true,
    }
    let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
    let first = Some((Box::new(common), BatchLimits::default()));
    let part = Part { batch: BATCH, first, items: (0..TASKS).map(item).collect(), more: false };
    desk.ask(Request::SubmitMany(Box::new(part)));
    rows.note(desk);
    assert!(desk.core.has_more() && (1..TASKS).contains(&desk.core.summary().total()));
}

fn enter(desk: &mut Desk) {
    while desk.core.has_more() {
        desk.input(Input::Continue);
    }
}

#[test]
fn r127_withdrawn_tasks_of_an_entering_batch_stay_gone_after_a_kill() {
    let (mut desk, mut rows) = durable();
    entering((&mut desk, &mut rows), None);
    desk.input(Input::Continue);
    let all: Vec<TaskId> = (0..desk.core.summary().total()).map(member).collect();
    rows.note(&mut desk);
    let _ = desk.core.withdraw(desk.now, &all, &[], "nobody wants them");
    assert_eq!(desk.core.summary().total(), 0);
    rows.note(&mut desk);
    rows.restart(&mut desk);
    enter(&mut desk);
    assert_eq!(desk.core.summary().total(), TASKS - all.len() as u64);
    assert!(desk.core.get(&member(0).into()).is_err());
}

#[test]
fn r127_cancel_during_batch_entry_survives_a_kill() {
    let (mut desk, mut rows) = durable();
    entering((&mut desk, &mut rows), None);
    desk.cancel(Selection::All { session: None });
    rows.note(&mut desk);
    assert!(desk.core.has_more());
    rows.restart(&mut desk);
    enter(&mut desk);
    assert_eq!((desk.core.summary().cancelled, desk.core.summary().total()), (TASKS, TASKS));
}

#[test]
fn r142_batch_whose_rest_was_cleared_is_not_torn_after_a_salvage() {
    let (mut desk, mut rows) = durable();
    let part = || {
        let mut common = command(BATCH);
        (common.key, common.plan.hold) = (Some("key".into()), true);
        let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
        let first = Some((Box::new(common), BatchLimits::default()));
        Request::SubmitMany(Box::new(Part {
            batch: BATCH,
            first,
            items: (0..TASKS).map(item).collect(),
            more: false,
        }))
    };
    desk.ask(part());
    rows.note(&mut desk);
    let stays = BATCH.member(0);
    desk.cancel(super::support::ids(&[stays]));
    rows.note(&mut desk);
    assert!(desk.core.has_more());
    let pending = Filter { status: [Status::Pending].into(), ..Filter::default() };
    desk.ask(Request::Clear { which: Selection::Matching(Box::new(pending)), active_too: true });
    desk.go_on();
    rows.note(&mut desk);
    assert_eq!(desk.core.summary().total(), 1);
    rows.restart_damaged(&mut desk);
    let repeated = desk.ask(part());
    assert!(
        matches!(replies(&repeated)[..], [Reply::Many { ids, .. }] if ids.len() as u64 == TASKS),
        "{repeated:?}"
    );
    assert_eq!(desk.core.summary().total(), 1);
}

/// The rest of a batch is pending like the tasks that were already added, and pending tasks outlive the daemon.
#[test]
fn r131_stop_with_cancel_leaves_all_pending_tasks_of_an_entering_batch() {
    let (mut desk, mut rows) = durable();
    entering((&mut desk, &mut rows), None);
    desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::Nothing });
    rows.note(&mut desk);
    assert!(desk.core.has_more());
    rows.restart(&mut desk);
    enter(&mut desk);
    assert_eq!((desk.core.summary().pending, desk.core.summary().total()), (TASKS, TASKS));
}

#[test]
fn r127_dependency_cleared_during_batch_entry_still_decides_after_a_kill() {
    for (code, status) in [(0, Status::Pending), (3, Status::Cancelled)] {
        let (mut desk, mut rows) = durable();
        let first = desk.submit(1);
        desk.fact(first, Fact::Started { pid: Some(100) });
        desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
        entering((&mut desk, &mut rows), Some(first));
        desk.fact(first, exited(code, false));
        let which = super::support::ids(&[first]);
        desk.ask(Request::Clear { which, active_too: false });
        rows.note(&mut desk);
        assert!(desk.core.has_more() && desk.core.get(&first.into()).is_err());
        rows.restart(&mut desk);
        desk.ask(Request::PauseGroup { name: "default".into(), paused: true });
        enter(&mut desk);
        assert_eq!(desk.status(member(TASKS - 1)), status, "after {code}");
    }
}

#[test]
fn r130_shutdown_exits_if_its_last_task_is_withdrawn() {
    let (mut desk, _rows) = durable();
    let job = desk.foreground(command(id(1)));
    let effects = desk.ask_as(2, Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert!(replies(&effects).is_empty(), "it is still being started: {effects:?}");
    let effects = desk.core.withdraw(desk.now, &[job], &[], "the disk is full");
    assert!(matches!(replies(&effects)[..], [Reply::ShutDown { cancelled: 1, left: 0 }]), "{effects:?}");
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    let exits = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Exit));
    assert!(!exits(&desk.input(Input::Continue)), "once is enough");
}

#[test]
fn r131_broader_second_stop_delays_both_replies() {
    let (mut desk, _rows) = durable();
    let job = desk.job(1);
    // The foreground job has a slot of its own.
    desk.ask(Request::SetGroup { name: "default".into(), slots: 2 });
    let task = desk.running(2);
    let stop = |leaves| Request::Shutdown { grace_ms: Some(60_000), leaves };
    assert_eq!(ends(&desk.ask_as(2, stop(LeavePolicy::All))), [(job, 15)]);
    let both = ends(&desk.ask_as(3, stop(LeavePolicy::Nothing)));
    assert!(both.contains(&(task, 15)), "{both:?}");
    let effects = desk.fact(job, exited(0, false));
    assert!(replies(&effects).is_empty(), "the other one is still to end: {effects:?}");
    let effects = desk.fact(task, exited(0, false));
    let [Reply::ShutDown { cancelled: 2, left: 0 }, Reply::ShutDown { cancelled: 2, left: 0 }] =
        replies(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    assert!(desk.core.is_closed() && starts(&effects).is_empty());
}

#[test]
fn r113_unrecorded_task_does_not_count_as_batch_failure() {
    let (mut desk, _) = durable();
    let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
    let limits = BatchLimits { max_fails: Some(1), ..BatchLimits::default() };
    let first = Some((Box::new(command(BATCH)), limits));
    let part = Part { batch: BATCH, first, items: (0..3).map(item).collect(), more: false };
    desk.ask(Request::SubmitMany(Box::new(part)));
    let _ = desk.core.withdraw(desk.now, &[member(2)], &[], "the disk is full");
    assert_eq!([0, 1].map(|number| desk.status(member(number))), [Status::Running, Status::Pending]);
}

/// The head that is written with them has the new clock.
#[test]
fn r128_waits_converted_after_reboot_are_written_with_the_first_changes() {
    const HOUR: u64 = 3_600_000;
    let (mut desk, mut rows) = durable();
    let delayed = |number| {
        let mut command = command(id(number));
        command.plan.start = Some(StartTime::In(2 * HOUR));
        Box::new(command)
    };
    desk.ask(Request::Submit(delayed(1)));
    let plain = desk.submit(2);
    let item = |number| BatchItem { id: member(number), argv: [OsText::from("true")].into() };
    let first = Some((Box::new(Command { id: BATCH, ..*delayed(3) }), BatchLimits::default()));
    let part = Part { batch: BATCH, first, items: (0..TASKS).map(item).collect(), more: false };
    desk.ask(Request::SubmitMany(Box::new(part)));
    assert!(desk.core.has_more());
    rows.note(&mut desk);

    // The new clock goes on from where the last one was written, and the machine was off for an hour.
    let mut kept = rows.kept();
    desk.now.wall = desk.now.wall.plus_ms(HOUR);
    kept.rebase(desk.now.mono, desk.now.wall);
    Rows::start(&mut desk, kept);
    let in_memory = desk.core.deadline();
    assert_eq!(in_memory, Some(desk.now.mono.plus_ms(HOUR)));
    rows.note(&mut desk);

    // Not rebased: it is the same boot.
    rows.restart(&mut desk);
    enter(&mut desk);
    assert_eq!(desk.core.summary().pending, TASKS + 1);
    assert_eq!(desk.core.deadline(), in_memory);
    desk.fact(plain, exited(0, false));
    desk.wait(HOUR);
    let late = |task: TaskId| desk.core.get(&task.into()).unwrap().plan().not_before.is_some();
    assert!(!late(id(1)) && !(0..TASKS).any(|number| late(member(number))));
}

#[test]
fn run_time_of_a_run_elsewhere_includes_the_time_while_the_machine_was_off_after_another_kill() {
    const HOUR: u64 = 3_600_000;
    let (mut desk, mut rows) = durable();
    let mut command = command(id(1));
    command.spec.on = Some(Arc::new(Placement {
        name: "cluster".into(),
        kind: ExecutorKind::Slurm,
        resources: Resources::default(),
        chosen: Chosen::default(),
    }));
    desk.ask(Request::Submit(Box::new(command)));
    // The cluster does not know when: the monotonic clock counts.
    desk.fact(id(1), Fact::Elsewhere(PlaceFact::Started { at: None }));
    rows.note(&mut desk);

    let mut kept = rows.kept();
    desk.now.wall = desk.now.wall.plus_ms(HOUR);
    kept.rebase(desk.now.mono, desk.now.wall);
    Rows::start(&mut desk, kept);
    rows.note(&mut desk);

    // Not rebased: it is the same boot.
    rows.restart(&mut desk);
    let (exit, verdict) = (Some(Exit::Code(0)), Verdict::ByExit);
    desk.fact(id(1), Fact::Elsewhere(PlaceFact::Concluded(Conclusion { exit, verdict, at: None })));
    assert_eq!((desk.status(id(1)), desk.task(id(1)).run_time.ms()), (Status::Completed, Some(HOUR)));
}
