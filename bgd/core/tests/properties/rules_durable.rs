//! Example tests of R126 and R131 in the core: what a durable daemon leaves to its successor.

use std::collections::BTreeMap;

use bgd_core::durable::{Changes, Kept};
use bgd_core::{
    BatchItem, BatchLimits, Cancel, Control, Core, CoreError, Effect, ExecutorName, Fact, Input, LeavePolicy,
    Mono, OrderError, Ordinal, Part, PlanRequest, Request, Rule, Snapshot, State,
};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition, Restart};
use bgd_shared::request::Stdin;
use bgd_shared::task::{Exit, Status};
use bgd_shared::time::Timestamp;

use super::support::{
    Desk, KILL, TERM, command, ends, events, exited, id, ids, limits, prompt, refusal, starts, turn_ended,
};
use crate::wire::{failures, refusals};

const INT: i32 = 2;

/// A durable daemon, and its journal.
struct Durable {
    desk: Desk,
    written: BTreeMap<Ordinal, bgd_core::durable::TaskRow>,
}

impl Durable {
    fn new() -> Self {
        let mut desk = Desk::new(9);
        desk.core.track();
        Self { desk, written: BTreeMap::new() }
    }

    /// Kills the daemon, and starts the next one after this many milliseconds.
    fn killed_for(self, ms: u64) -> Self {
        self.damaged(ms, &[])
    }

    /// Like [`Self::killed_for`], but these tasks, if any, and the last number of a task can't be read any more.
    fn damaged(mut self, ms: u64, unread: &[TaskId]) -> Self {
        let mut kept = self.kept();
        if !unread.is_empty() {
            kept.counters.last = Ordinal::default();
        }
        kept.tasks.retain(|(_, row)| !unread.contains(&row.task.id));
        self.desk.now.mono = self.desk.now.mono.plus_ms(ms);
        self.restored(kept)
    }

    /// Returns the content of the journal.
    fn kept(&mut self) -> Kept {
        let Changes { tasks, batches, entering, groups, counters, .. } =
            self.desk.core.take_changes(self.desk.now).expect("something was changed");
        for (ordinal, row) in tasks {
            match row {
                Some(row) => _ = self.written.insert(ordinal, row),
                None => _ = self.written.remove(&ordinal),
            }
        }
        let tasks = self.written.clone().into_iter().collect();
        let batches = batches.into_iter().filter_map(|(id, batch)| Some((id, batch?))).collect();
        let entering = entering.into_iter().filter_map(|(_, batch)| batch.map(|batch| *batch)).collect();
        let groups = groups.unwrap_or_default();
        Kept { tasks, batches, entering, groups, counters, ..Kept::default() }
    }

    fn restored(mut self, kept: Kept) -> Self {
        self.written = kept.tasks.iter().cloned().collect();
        self.desk.core = Core::restore(limits(9), BTreeMap::new(), kept);
        self.desk.core.track();
        self
    }

    fn orders_again(&mut self, task: TaskId) -> Vec<Effect> {
        self.desk.core.orders_again(self.desk.now, task)
    }
}

fn pause(task: TaskId, paused: bool) -> Request {
    Request::SetPaused { which: ids(&[task]), paused }
}

fn cancel(task: TaskId, signal: i32, grace_ms: u64) -> Request {
    Request::Cancel(Cancel { which: ids(&[task]), signal: Some(signal), grace_ms: Some(grace_ms) })
}

fn controls(effects: &[Effect]) -> Vec<&Control> {
    let controls = effects.iter().filter_map(|effect| match effect {
        Effect::Control { control, .. } => Some(control),
        _ => None,
    });
    controls.collect()
}

#[test]
fn r126_undelivered_continue_is_repeated_after_each_restart() {
    let mut durable = Durable::new();
    let task = durable.desk.running(1);
    durable.desk.ask(pause(task, true));
    durable.desk.ask(pause(task, false));
    for _ in 0..2 {
        durable = durable.killed_for(10);
        assert!(durable.desk.task(task).may_lack_order());
        assert_eq!(controls(&durable.orders_again(task)), [&Control::Continue]);
    }
    durable.desk.fact(task, Fact::Delivered);
    durable = durable.killed_for(10);
    assert!(!durable.desk.task(task).may_lack_order());
    assert!(durable.orders_again(task).is_empty(), "what has stopped since, has so by itself");
}

/// On a full disk a pause is carried out without being written to the journal.
#[test]
fn r126_tasks_possibly_paused_without_record_are_continued() {
    let mut durable = Durable::new();
    let [running, paused] = [1, 2].map(|id| durable.desk.running(id));
    durable.desk.ask(pause(paused, true));
    durable = durable.killed_for(10);
    let seq = durable.desk.core.seq();
    assert!(!durable.desk.core.number_after(durable.desk.now, Some(seq)));
    assert!(durable.desk.core.number_after(durable.desk.now, Some(seq + 1)));
    let orders = durable.desk.core.continue_running(durable.desk.now);
    assert_eq!(controls(&orders), [&Control::Continue]);
    assert!(matches!(orders[..], [Effect::Control { task, .. }] if task == running));
    assert!(durable.desk.core.continue_running(durable.desk.now).is_empty(), "it is ordered once");
    durable = durable.killed_for(10);
    assert_eq!(controls(&durable.orders_again(running)), [&Control::Continue], "until it is delivered");
}

#[test]
fn r126_last_of_several_orders_is_repeated_after_restart() {
    let mut durable = Durable::new();
    let task = durable.desk.running(1);
    // There is nothing to continue, and that is reported first.
    durable.desk.ask(pause(task, false));
    assert!(!durable.desk.task(task).may_lack_order());
    for paused in [true, false, true, false] {
        durable.desk.ask(pause(task, paused));
    }
    durable.desk.fact(task, Fact::Delivered);
    durable.desk.fact(task, Fact::Delivered);
    durable = durable.killed_for(10);
    assert_eq!(controls(&durable.orders_again(task)), [&Control::Continue]);
    durable.desk.ask(pause(task, true));
    durable = durable.killed_for(10);
    assert_eq!(controls(&durable.orders_again(task)), [&Control::Pause]);
    durable.desk.ask(cancel(task, KILL, 0));
    durable = durable.killed_for(10);
    assert_eq!(ends(&durable.orders_again(task)), [(task, KILL)]);
}

#[test]
fn r126_undelivered_cancel_signal_is_resent_with_a_fresh_grace_period() {
    let mut durable = Durable::new();
    let task = durable.desk.running(1);
    durable.desk.ask(cancel(task, INT, 500));
    durable = durable.killed_for(2000);
    assert_eq!(ends(&durable.orders_again(task)), [(task, INT)]);
    assert!(durable.desk.wait(499).is_empty());
    assert_eq!(ends(&durable.desk.wait(1)), [(task, KILL)]);

    let mut durable = Durable::new();
    let task = durable.desk.running(1);
    durable.desk.ask(cancel(task, INT, 500));
    durable.desk.fact(task, Fact::Delivered);
    durable = durable.killed_for(2000);
    assert!(durable.orders_again(task).is_empty(), "it is not sent twice");
    assert_eq!(ends(&durable.desk.wait(0)), [(task, KILL)]);
}

#[test]
fn r126_lingering_processes_are_signalled_again_after_restart() {
    let mut durable = Durable::new();
    let task = durable.desk.running(1);
    durable.desk.fact(task, exited(0, true));
    durable.desk.ask(Request::Clear { which: ids(&[task]), active_too: false });
    durable = durable.killed_for(60_000);
    assert_eq!(ends(&durable.orders_again(task)), [(task, TERM)]);
    assert!(durable.desk.wait(4999).is_empty());
    assert_eq!(ends(&durable.desk.wait(1)), [(task, KILL)]);
    durable.desk.fact(task, Fact::TreeEmpty);
    assert!(!durable.desk.task(task).may_lack_order());
}

fn repeated(rule: Rule) -> PlanRequest {
    PlanRequest { again: Some(rule), ..PlanRequest::default() }
}

fn submit(desk: &mut Desk, number: u16, plan: PlanRequest) -> TaskId {
    let mut command = command(id(number));
    command.plan = plan;
    desk.ask(Request::Submit(Box::new(command)));
    desk.fact(id(number), Fact::Started { pid: Some(100) });
    id(number)
}

/// A service, a task that is retried, a task that comes after it, and a foreground job, which the shutdown ends.
fn busy(desk: &mut Desk) -> [TaskId; 4] {
    let retry = Rule::Retry { times: 5, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    let service = submit(desk, 1, repeated(Rule::Restart(Restart::Always)));
    let retried = submit(desk, 2, repeated(retry));
    let after = vec![After { id: retried.into(), condition: Condition::Ok }];
    let then = submit(desk, 3, PlanRequest { after, ..PlanRequest::default() });
    [service, retried, then, desk.job(4)]
}

#[test]
fn r131_task_ending_during_stop_is_retried_by_next_durable_daemon() {
    let mut durable = Durable::new();
    let desk = &mut durable.desk;
    let [service, retried, then, job] = busy(desk);
    let effects = desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert_eq!(ends(&effects), [(job, TERM)]);
    assert_eq!(events(&desk.fact(retried, exited(1, false))), [(EventKind::Retrying, retried)]);
    // The rest of the tree ends first.
    assert_eq!(ends(&desk.fact(service, exited(0, true))), [(service, TERM)]);
    let effects = desk.fact(service, Fact::TreeEmpty);
    assert_eq!((events(&effects), starts(&effects)), (vec![(EventKind::Retrying, service)], vec![]));
    assert!(matches!(desk.fact(job, exited(0, false)).last(), Some(Effect::Over { .. } | Effect::Exit)));
    let tasks = [service, retried, then];
    assert!(tasks.iter().all(|task| desk.status(*task) == Status::Pending));

    let mut durable = durable.killed_for(60_000);
    let started = starts(&durable.desk.wait(0));
    assert_eq!(started, [service, retried]);
    let attempt = |task: Snapshot| task.plan().again.as_ref().map(|again| again.attempt);
    assert_eq!([service, retried].map(|task| attempt(durable.desk.task(task))), [Some(2); 2]);
}

#[test]
fn r131_tasks_cancelled_by_stop_or_by_volatile_daemon_are_not_retried() {
    let mut durable = Durable::new();
    let desk = &mut durable.desk;
    let tasks = busy(desk);
    desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::Nothing });
    let [service, retried, then, _] = tasks;
    for task in [service, retried] {
        assert_eq!(events(&desk.fact(task, exited(1, false)))[0], (EventKind::Cancelled, task));
    }
    assert_eq!(desk.status(then), Status::Cancelled, "what it comes after has not succeeded");

    let mut desk = Desk::new(9);
    let [service, ..] = busy(&mut desk);
    desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert_eq!(events(&desk.fact(service, exited(1, false))), [(EventKind::Cancelled, service)]);
}

#[test]
fn r130_dependents_of_an_unreadable_task_fail() {
    let mut durable = Durable::new();
    let desk = &mut durable.desk;
    let (lost, known) = (desk.running(1), desk.running(2));
    let after = |task: TaskId| PlanRequest {
        after: vec![After { id: task.into(), condition: Condition::Any }],
        ..PlanRequest::default()
    };
    let tasks = [submit(desk, 3, after(lost)), submit(desk, 4, after(known))];
    let mut durable = durable.damaged(10, &[lost]);
    let effects = durable.desk.core.end_unstartable(durable.desk.now, |_| false);
    assert_eq!(events(&effects), [(EventKind::Failed, tasks[0])]);
    assert_eq!(tasks.map(|task| durable.desk.status(task)), [Status::Failed, Status::Pending]);
    let why = failures::error(&durable.desk.task(tasks[0]));
    assert_eq!(why.as_deref(), Some("a task it depends on was lost with a damaged journal"));
}

#[test]
fn r35_refused_resume_names_the_reason_why_the_conversation_has_no_id() {
    let cases = [
        (true, "its agent gave none that can be used"),
        (false, "its turn was cut short before the agent gave one"),
    ];
    for (is_complete, why) in cases {
        let mut desk = Desk::new(1);
        let task = desk.prompted(1);
        desk.fact(task, Fact::Started { pid: None });
        if is_complete {
            desk.fact(task, turn_ended());
        } else {
            let _ = desk.core.lose(desk.now, &[(task, "the daemon was killed")], |_| true);
        }
        let effects = desk.resume(task);
        assert_eq!(refusal(&effects), &CoreError::NoSession { id: task, is_complete });
        let error = refusals::of_core(refusal(&effects).clone());
        let expected = format!("task {task} can't be resumed: the conversation has no id: {why}");
        assert_eq!((error.kind(), error.message), (ErrorKind::SessionExpired, expected));
    }
}

const BATCH: TaskId = TaskId::from_u128(2);

/// Submits a batch with an idempotency key, whose tasks come after this one. Returns the reply, if there is one already.
fn submit_many(desk: &mut Desk, count: u64, after: Option<TaskId>) -> Vec<Effect> {
    let mut common = command(id(3));
    common.key = Some("key".into());
    let after = after.map(|after| After { id: after.into(), condition: Condition::Any });
    common.plan.after = after.into_iter().collect();
    let items = (0..count).map(|_| BatchItem { id: id(3), argv: [].into() }).collect();
    let first = Some((Box::new(common), BatchLimits { jobs: Some(1), max_fails: None }));
    desk.ask(Request::SubmitMany(Box::new(Part { batch: BATCH, first, items, more: false })))
}

fn members(count: u64) -> Vec<TaskId> {
    (0..count).map(|index| BATCH.member(index)).collect()
}

/// The daemon was killed while it added the batch. If the tasks that it had added are lost, too, the number of the task
/// that they come after is free again.
#[test]
fn r130_tasks_of_an_entering_batch_that_depend_on_an_unreadable_task_fail() {
    for are_lost in [false, true] {
        let mut durable = Durable::new();
        let desk = &mut durable.desk;
        let lost = desk.running(1);
        submit_many(desk, 900, Some(lost));
        let members = members(900);
        let is_added = |desk: &Desk, task: TaskId| desk.core.get(&task.into()).is_ok();
        let added: Vec<TaskId> = members.iter().copied().filter(|task| is_added(desk, *task)).collect();
        assert!((1..900).contains(&added.len()), "{}", added.len());
        let unread = [vec![lost], if are_lost { added } else { Vec::new() }].concat();

        let Durable { mut desk, .. } = durable.damaged(10, &unread);

        let _ = desk.core.end_unstartable(desk.now, |_| false);
        while desk.core.has_more() {
            desk.input(Input::Continue);
        }
        let mut left = members.iter().filter(|task| !unread.contains(task));
        assert!(left.all(|task| desk.status(*task) == Status::Failed));
    }
}

/// The daemon was killed when it had ended only a part of a batch in which too many tasks had failed.
#[test]
fn r113_rest_of_a_failed_batch_ends_after_a_kill() {
    let mut durable = Durable::new();
    submit_many(&mut durable.desk, 9, None);
    durable.desk.go_on();
    let mut kept = durable.kept();
    let batch = kept.batches.get_mut(&BATCH).expect("it was written");
    (batch.is_stopped, batch.failed) = (true, 1);

    let Durable { mut desk, .. } = durable.restored(kept);

    let started = starts(&desk.core.end_unstartable(desk.now, |_| true));
    let statuses = members(9).into_iter().skip(1).map(|task| desk.status(task));
    assert!(statuses.eq([Status::Cancelled; 8]) && started.is_empty(), "{started:?}");
}

/// The journal has lost the record of a batch, some of its tasks, or the record of those that are still to be added.
#[test]
fn r130_batch_with_lost_parts_counts_its_tasks_again_and_starts_nothing_without_its_limits() {
    let [record, tasks, rest] = [0, 1, 2];
    for lost in [record, tasks, rest] {
        let mut durable = Durable::new();
        submit_many(&mut durable.desk, 900, None);
        let mut kept = durable.kept();
        let added = kept.tasks.len();
        assert!((2..900).contains(&added) && kept.batches[&BATCH].left == Some(900 - added));
        if lost == record {
            kept.batches.clear();
        } else if lost == tasks {
            kept.tasks.remove(1);
        } else {
            kept.entering.clear();
        }
        let before = kept.batches.get(&BATCH).map(|batch| batch.limits);

        assert_eq!(kept.recount_batches(), usize::from(lost == record));

        let batch = &kept.batches[&BATCH];
        assert_eq!((batch.members, batch.limits), (kept.tasks.len() as u64, before.unwrap_or_default()));
        let unknown = [0, 1, 900 - added as u64][lost];
        assert_eq!(batch.cleared.not_completed, unknown, "nobody knows how they ended");
        let Durable { mut desk, .. } = durable.restored(kept);
        while desk.core.has_more() {
            desk.input(Input::Continue);
        }
        let waiting = members(900).into_iter().filter_map(|id| desk.core.get(&id.into()).ok());
        let waiting: Vec<Snapshot> = waiting.filter(|task| task.status() == Status::Pending).collect();
        assert_eq!(waiting.len(), [899, 898, added - 1][lost]);
        assert!(waiting.iter().all(|task| task.plan().held == (lost == record)));
        if lost != record {
            let again = submit_many(&mut desk, 900, None);
            assert!(matches!(refusal(&again), CoreError::Order(OrderError::Torn(BATCH))), "{again:?}");
        }
    }
}

#[test]
fn r130_groups_whose_record_is_lost_are_paused_if_tasks_wait_in_them() {
    let mut durable = Durable::new();
    let desk = &mut durable.desk;
    for (number, group) in [(1, "ended"), (2, "runs"), (3, "waits")] {
        desk.ask(Request::SetGroup { name: group.into(), slots: 5 });
        let hold = group == "waits";
        submit(desk, number, PlanRequest { group: Some(group.into()), hold, ..PlanRequest::default() });
    }
    desk.fact(id(1), exited(0, false));
    let mut kept = durable.kept();
    assert_eq!(kept.replace_groups(), 1);
    let Durable { desk, .. } = durable.restored(kept);
    let groups =
        desk.core.groups().into_iter().map(|group| (group.name.to_string(), group.slots, group.is_paused));
    let expected = [("default", 9, false), ("runs", 1, false), ("waits", 1, true)];
    assert_eq!(
        groups.collect::<Vec<_>>(),
        expected.map(|(name, slots, is_paused)| (name.to_owned(), slots, is_paused))
    );
}

#[test]
fn r126_exit_recorded_before_a_kill_decides_about_retry() {
    for (code, status) in [(75, Status::Pending), (3, Status::Failed)] {
        let mut durable = Durable::new();
        let retry =
            Rule::Retry { times: 2, delay_ms: 1000, max_delay_ms: 1000, codes: [75].into(), signal: false };
        let task = submit(&mut durable.desk, 1, repeated(retry));
        let effects = durable.desk.fact(task, exited(code, true));
        assert_eq!(ends(&effects).is_empty(), code == 3, "the rest of its tree ends first");
        let mut durable = durable.killed_for(10);
        let _ = durable.desk.core.lose(durable.desk.now, &[(task, "the keeper was killed")], |_| false);
        assert_eq!(durable.desk.status(task), status);
    }
}

/// A task that waits, and one whose process was about to be started.
#[test]
fn r127_tasks_start_with_descriptors_that_outlive_the_daemon() {
    for are_there in [true, false] {
        let mut durable = Durable::new();
        let desk = &mut durable.desk;
        for number in [1, 2] {
            let mut command = command(id(number));
            command.spec.stdin = Some(Stdin::Fd);
            command.plan.hold = number == 1;
            desk.ask(Request::Submit(Box::new(command)));
        }
        let mut desk = durable.killed_for(10).desk;
        desk.input(Input::HoldStarts(true));
        let _ = desk.core.end_unstartable(desk.now, |_| are_there);
        assert_eq!(desk.core.take_back_start(id(2), are_there), are_there);
        let lost: &[(TaskId, &str)] = if are_there { &[] } else { &[(id(2), "the daemon was killed")] };
        let _ = desk.core.lose(desk.now, lost, |_| are_there);
        let status = if are_there { Status::Pending } else { Status::Failed };
        assert_eq!([1, 2].map(|number| desk.status(id(number))), [status; 2]);
        let effects = desk.input(Input::HoldStarts(false));
        assert_eq!(starts(&effects), if are_there { vec![id(2)] } else { Vec::new() });
    }
}

/// The exit of the attempt before is not that of the one that was lost.
#[test]
fn r126_attempt_lost_while_starting_has_no_exit() {
    let mut durable = Durable::new();
    let rule = Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    let task = submit(&mut durable.desk, 1, repeated(rule));
    assert_eq!(starts(&durable.desk.fact(task, exited(3, false))), [task]);
    let mut durable = durable.killed_for(10);
    let _ = durable.desk.core.lose(durable.desk.now, &[(task, "the machine was restarted")], |_| false);
    let finished = durable.desk.task(task).finished().cloned().unwrap();
    assert_eq!((durable.desk.status(task), finished.exit, finished.pid), (Status::Failed, None, None));
}

/// The keeper holds the descriptors of a run until it is told of its end.
#[test]
fn r126_end_of_an_abandoned_run_is_recorded_even_if_its_task_is_gone() {
    let mut durable = Durable::new();
    let desk = &mut durable.desk;
    let over = |effects: &[Effect]| {
        let of = |effect: &Effect| match effect {
            Effect::Over { executor, task, run } => Some((*executor, *task, *run)),
            _ => None,
        };
        effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    let task = desk.submit(1);
    desk.cancel(ids(&[task]));
    desk.wait(60_000);
    assert_eq!(desk.status(task), Status::Cancelled, "its start hangs");
    desk.ask(Request::Clear { which: ids(&[task]), active_too: false });
    assert!(desk.core.get(&task.into()).is_err());
    // It starts after all, and is ended by the executor.
    assert!(over(&desk.fact(task, Fact::Started { pid: Some(100) })).is_empty());
    assert!(over(&desk.fact(task, exited(1, true))).is_empty());
    assert_eq!(over(&desk.fact(task, Fact::TreeEmpty)), [(ExecutorName::LOCAL, task, 1)]);
}

/// It may have begun: the daemon is told of a start only afterwards.
#[test]
fn r126_first_attempt_lost_while_starting_is_followed_by_another() {
    let retry = Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false };
    for (is_agent, rule) in [
        (true, retry.clone()),
        (false, retry),
        (true, Rule::Restart(Restart::Always)),
        (false, Rule::Restart(Restart::OnFailure)),
    ] {
        let mut durable = Durable::new();
        let task = id(1);
        let mut command = if is_agent { prompt(task, 1000, 1000) } else { command(task) };
        command.plan = repeated(rule.clone());
        durable.desk.ask(Request::Submit(Box::new(command)));
        assert_eq!(durable.desk.status(task), Status::Running, "it is being started");
        let mut durable = durable.killed_for(10);
        let _ = durable.desk.core.lose(durable.desk.now, &[(task, "the machine was restarted")], |_| false);
        let lost = durable.desk.task(task);
        let attempts = lost.plan().again.as_ref().map(|again| again.attempts.len());
        assert_eq!((lost.status(), attempts), (Status::Pending, Some(1)), "{rule:?}");
    }
}

#[test]
fn r107_runs_lost_by_machine_restarts_are_no_crash_loop() {
    let mut durable = Durable::new();
    let task = submit(&mut durable.desk, 1, repeated(Rule::Restart(Restart::Always)));
    for _ in 0..12 {
        durable = durable.killed_for(10);
        let _ = durable.desk.core.lose(durable.desk.now, &[(task, "the machine was restarted")], |_| false);
        assert_eq!(starts(&durable.desk.wait(60_000)), [task]);
        durable.desk.fact(task, Fact::Started { pid: Some(100) });
    }
    assert_eq!(durable.desk.status(task), Status::Running);
}

/// The executor can tell whether a run has ended before the core knows how.
#[test]
fn r126_time_limit_passed_without_a_daemon_spares_runs_that_have_ended() {
    let mut durable = Durable::new();
    let [ended, runs] = [1, 2].map(|number| {
        let mut command = command(id(number));
        command.spec.time_limit_ms = Some(1000);
        durable.desk.ask(Request::Submit(Box::new(command)));
        durable.desk.fact(id(number), Fact::Started { pid: Some(100) });
        id(number)
    });
    assert!(durable.desk.core.past_time_limits(durable.desk.now).is_empty());
    let Durable { mut desk, .. } = durable.killed_for(60_000);
    assert_eq!(desk.core.past_time_limits(desk.now), [ended, runs]);
    desk.core.lift_time_limit(ended);
    assert_eq!(desk.core.past_time_limits(desk.now), [runs]);
    assert_eq!(ends(&desk.wait(0)), [(runs, TERM)]);
    assert_eq!(events(&desk.fact(ended, exited(0, false))), [(EventKind::Completed, ended)]);
    desk.core.lift_time_limit(ended);
    assert_eq!(desk.status(ended), Status::Completed);
}

#[test]
fn r126_end_without_a_daemon_is_recorded_with_its_time() {
    let mut desk = Desk::new(3);
    let begin = desk.now.wall;
    let tasks = [1, 2, 3].map(|number| desk.running(number));
    desk.now.wall = begin.plus_ms(10_000);
    // A clock that was set meanwhile makes no end before the start, nor in the future.
    let ends =
        [(begin.plus_ms(3000), 3000), (begin.plus_ms(20_000), 10_000), (Timestamp::from_unix_ms(0), 0)];
    for (task, (at, ran_ms)) in tasks.into_iter().zip(ends) {
        desk.fact(task, Fact::Exited { exit: Exit::Code(0), others: false, at: Some(at) });
        let State::Finished(finished) = desk.task(task).state else { panic!("it has ended") };
        assert_eq!(finished.completed_at, begin.plus_ms(ran_ms));
    }
}

#[test]
fn r130_clock_goes_on_from_the_last_start_if_its_time_is_lost() {
    let mut durable = Durable::new();
    let begin = Mono(50_000_000);
    durable.desk.now.mono = begin;
    let mut limited = command(id(1));
    limited.spec.time_limit_ms = Some(1000);
    durable.desk.ask(Request::Submit(Box::new(limited)));
    durable.desk.fact(id(1), Fact::Started { pid: Some(100) });
    durable.desk.now.mono = begin.plus_ms(10);
    let again = submit(&mut durable.desk, 2, repeated(Rule::Restart(Restart::Always)));
    durable.desk.now.mono = begin.plus_ms(20);
    let mut kept = durable.kept();
    assert_eq!(kept.reached(), begin.plus_ms(20));
    kept.counters.mono = Mono::default();
    assert_eq!(kept.reached(), begin.plus_ms(10));
    kept.tasks.retain(|(_, row)| row.task.id != again);
    assert_eq!(kept.reached(), begin, "its time limit is known");
}
