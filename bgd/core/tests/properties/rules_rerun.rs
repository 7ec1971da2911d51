//! Example tests of R116: tasks that are submitted again. The random histories do not cover it, as the ids of the new
//! tasks are random.

use bgd_core::{
    BatchItem, BatchLimits, Command, CoreError, CoreLimits, Effect, Fact, OrderError, Part, Reply, Request,
    Rerun, Rule, Selection, Unrepeatable, Work,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::task::{Origin, Status};
use bgd_shared::text::OsText;

use super::support::{
    Desk, command, configure, env, events, exited, id, ids, limits, only_reply, prompt, refusal, starts,
    turn_ended,
};

fn rerun(tasks: &[TaskId], failed: bool, with_dependents: bool) -> Request {
    Request::Rerun(Box::new(Rerun { which: ids(tasks), failed, with_dependents, key: None, seed: 7 }))
}

/// Returns pairs of new and old tasks.
fn pairs(effects: &[Effect]) -> Vec<(TaskId, TaskId)> {
    let Reply::Rerun(pairs) = only_reply(effects) else { panic!("{effects:?}") };
    pairs.clone()
}

/// Submits a task that starts after others.
fn after(desk: &mut Desk, number: u16, others: &[(TaskId, Condition)]) -> TaskId {
    let mut command = command(id(number));
    let after = |(id, condition): &(TaskId, Condition)| After { id: (*id).into(), condition: *condition };
    command.plan.after = others.iter().map(after).collect();
    let id = command.id;
    desk.ask(Request::Submit(Box::new(command)));
    id
}

fn ends(desk: &mut Desk, task: TaskId, code: i32) {
    desk.fact(task, Fact::Started { pid: Some(100) });
    desk.fact(task, exited(code, false));
}

#[test]
fn r142_rerun_with_same_key_is_carried_out_once() {
    let mut desk = Desk::new(1);
    let tasks: Vec<TaskId> = (1..=2).map(|number| desk.finished(number, 3)).collect();
    let mine = desk.finished(3, 3);
    let keyed = |key: &str, seed| {
        let key = Some(key.into());
        Request::Rerun(Box::new(Rerun {
            which: ids(&tasks),
            failed: true,
            with_dependents: false,
            key,
            seed,
        }))
    };
    let first = pairs(&desk.ask(keyed("one", 7)));
    assert_eq!(first.iter().map(|(_, old)| *old).collect::<Vec<_>>(), tasks);
    // The new tasks have failed by then, too.
    ends(&mut desk, first[0].0, 3);
    assert_eq!(pairs(&desk.ask(keyed("one", 8))), first);
    assert_eq!(desk.core.summary().total(), 5);
    // A request of somebody else may have the same key by coincidence.
    let chance = Rerun {
        which: ids(&[mine]),
        failed: true,
        with_dependents: false,
        key: Some("one".into()),
        seed: 10,
    };
    let [(_, old)] = pairs(&desk.ask(Request::Rerun(Box::new(chance))))[..] else { panic!("one task") };
    assert_eq!((old, desk.core.summary().total()), (mine, 6));
    let other = pairs(&desk.ask(keyed("other", 9)));
    assert!(other.len() == 2 && other.iter().all(|pair| !first.contains(pair)), "{other:?}");
    assert_eq!(desk.core.summary().total(), 8);
}

#[test]
fn r116_rerun_submits_a_copy_and_keeps_the_old_task() {
    let mut desk = Desk::new(1);
    let mut first = command(id(1));
    first.env = env(2);
    first.spec.time_limit_ms = Some(9000);
    first.spec.description = Some("mine".into());
    (first.plan.priority, first.plan.slots) = (5, 1);
    first.plan.again =
        Some(Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [9].into(), signal: false });
    desk.ask(Request::Submit(Box::new(first.clone())));
    ends(&mut desk, first.id, 3);
    let before = format!("{:?}", desk.task(first.id));
    let effects = desk.ask(rerun(&[first.id], false, false));
    let [(new, old)] = pairs(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((old, format!("{:?}", desk.task(old))), (first.id, before));
    assert_eq!(events(&effects), [(EventKind::Submitted, new)]);
    assert_eq!(starts(&effects), [new]);
    let (old, task) = (desk.task(old), desk.task(new));
    assert_eq!(task.spec, old.spec);
    assert_eq!((task.plan().priority, task.plan().rerun_of), (5, Some(first.id)));
    let again = task.plan().again.as_ref().expect("it is tried again as often");
    assert_eq!((again.attempt, &*again.env), (1, &first.env));
    // It can be repeated again, with other ids.
    ends(&mut desk, new, 0);
    let which = Rerun { which: ids(&[new]), failed: false, with_dependents: false, key: None, seed: 8 };
    assert_eq!(pairs(&desk.ask(Request::Rerun(Box::new(which))))[0].1, new);
}

/// The old tasks no longer hold their environments, which are kept only as long as there is room for them.
#[test]
fn r116_rerun_counts_all_that_its_tasks_will_hold() {
    const ENV: usize = 100_000;
    let mut desk = Desk::new(1);
    for number in 1..=2 {
        let mut old = command(id(number));
        old.env = [("SIZE".into(), OsText::from("x".repeat(ENV)))].into_iter().collect();
        desk.ask(Request::Submit(Box::new(old)));
        ends(&mut desk, id(number), 0);
    }
    let third = after(&mut desk, 3, &[(id(2), Condition::Any)]);
    ends(&mut desk, third, 0);
    // The new tasks have to wait for it.
    desk.running(4);
    let again = || rerun(&[id(1), id(2), third], false, false);
    let held = desk.core.held();
    desk.input(configure(CoreLimits { memory: held + ENV, ..limits(1) }));
    let refused = desk.ask(again());
    let CoreError::FullMemory { more, .. } = refusal(&refused) else { panic!("{refused:?}") };
    assert!((ENV..2 * ENV).contains(more), "two tasks share an environment: {more}");
    assert_eq!(desk.core.summary().total(), 4);
    desk.input(configure(CoreLimits { memory: held + more, ..limits(1) }));
    assert_eq!(pairs(&desk.ask(again())).len(), 3);
    assert_eq!(desk.core.held(), held + more);
}

#[test]
fn r116_rerun_keeps_the_conditions_that_were_met() {
    let mut desk = Desk::new(2);
    let (first, failing) = (desk.finished(1, 0), desk.finished(2, 3));
    let old = after(&mut desk, 3, &[(first, Condition::Ok), (failing, Condition::Any)]);
    ends(&mut desk, old, 3);
    let effects = desk.ask(rerun(&[old], false, false));
    let [(new, _)] = pairs(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(starts(&effects), [new], "it waits for none of them");
    assert_eq!(desk.task(new).plan().after, desk.task(old).plan().after);
}

#[test]
fn r116_rerun_takes_only_ended_and_optionally_only_failed_tasks() {
    let mut desk = Desk::new(1);
    let tasks = [1, 2, 3].map(|number| desk.submit(number));
    ends(&mut desk, tasks[0], 0);
    ends(&mut desk, tasks[1], 4);
    let refused = desk.ask(rerun(&tasks, true, false));
    let CoreError::Order(OrderError::NotEnded(task, Status::Running | Status::Pending)) = refusal(&refused)
    else {
        panic!("{refused:?}")
    };
    assert_eq!(*task, tasks[2]);
    let failed = pairs(&desk.ask(rerun(&tasks[..2], true, false)));
    assert_eq!(failed.iter().map(|(_, old)| *old).collect::<Vec<_>>(), [tasks[1]]);
    // A selection leaves out tasks that have not ended.
    let which = Selection::All { session: None };
    let all = Rerun { which, failed: false, with_dependents: false, key: None, seed: 9 };
    let all = pairs(&desk.ask(Request::Rerun(Box::new(all))));
    assert_eq!(all.iter().map(|(_, old)| *old).collect::<Vec<_>>(), tasks[..2]);
}

#[test]
fn r116_rerun_includes_dependents_cancelled_by_the_failure() {
    let mut desk = Desk::new(4);
    let first = desk.submit(1);
    let other = desk.submit(2);
    ends(&mut desk, other, 0);
    let second = after(&mut desk, 3, &[(other, Condition::Ok), (first, Condition::Ok)]);
    let third = after(&mut desk, 4, &[(second, Condition::Any)]);
    // Cancelled by a user, thus for another reason.
    let by_hand = after(&mut desk, 5, &[(first, Condition::Any)]);
    desk.cancel(ids(&[by_hand]));
    ends(&mut desk, first, 1);
    assert_eq!([second, third].map(|task| desk.status(task)), [Status::Cancelled; 2]);
    let effects = desk.ask(rerun(&[first], true, true));
    let pairs = pairs(&effects);
    assert_eq!(pairs.iter().map(|(_, old)| *old).collect::<Vec<_>>(), [first, second, third]);
    let [new_first, new_second, new_third] = [0, 1, 2].map(|place| pairs[place].0);
    assert_eq!(starts(&effects), [new_first]);
    let conditions = |task: TaskId| {
        let task = desk.task(task);
        task.plan().after.iter().map(|one| (one.task, one.condition)).collect::<Vec<_>>()
    };
    // The met one keeps its place, by which the task knows it.
    assert_eq!(conditions(new_second), [(other, Condition::Ok), (new_first, Condition::Ok)]);
    assert_eq!(conditions(new_third), [(new_second, Condition::Any)]);
    ends(&mut desk, new_first, 0);
    ends(&mut desk, new_second, 0);
    ends(&mut desk, new_third, 0);
    assert_eq!(desk.status(new_third), Status::Completed);
}

#[test]
fn r116_rerun_of_batch_tasks_is_a_new_batch() {
    let mut desk = Desk::new(4);
    let members = [1_u128, 2, 3].map(|number| TaskId::from_u128((1 << 127) | number));
    let items = members.map(|id| BatchItem { id, argv: [OsText::from("true")].into() }).into();
    let limits = BatchLimits { jobs: Some(1), max_fails: None };
    let common: Box<Command> = Box::new(command(id(7)));
    let part = Part { batch: id(7), first: Some((common, limits)), items, more: false };
    desk.ask(Request::SubmitMany(Box::new(part)));
    for task in members {
        ends(&mut desk, task, 1);
    }
    let effects = desk.ask(rerun(&members[1..], true, false));
    let new: Vec<TaskId> = pairs(&effects).iter().map(|(new, _)| *new).collect();
    assert_eq!(starts(&effects), [new[0]], "one at a time");
    let batches = [new[0], new[1]].map(|task| desk.task(task).plan().batch.unwrap());
    assert_eq!(batches[0], batches[1]);
    assert_ne!(batches[0], id(7));
}

#[test]
fn r116_rerun_with_an_unrepeatable_task_is_refused_entirely() {
    let mut desk = Desk::new(4);
    let mut job = command(id(1));
    job.spec.origin = Origin::Run;
    let job = desk.foreground(job);
    desk.fact(job, Fact::Started { pid: Some(100) });
    desk.fact(job, exited(1, false));
    let mut streams = command(id(2));
    streams.spec.given = [true, false];
    desk.ask(Request::Submit(Box::new(streams)));
    ends(&mut desk, id(2), 1);
    let fine = desk.submit(3);
    ends(&mut desk, fine, 1);
    for (task, why) in [(job, Unrepeatable::Job), (id(2), Unrepeatable::Streams)] {
        let total = desk.core.summary().total();
        let refused = desk.ask(rerun(&[fine, task], false, false));
        assert_eq!(refusal(&refused), &CoreError::Order(OrderError::NotRepeatable(task, why)));
        assert_eq!(desk.core.summary().total(), total);
    }
    // An agent gets the same prompt, in a new conversation.
    let agent = prompt(id(4), 0, 0);
    desk.ask(Request::Submit(Box::new(agent)));
    desk.fact(id(4), Fact::Started { pid: None });
    desk.fact(id(4), turn_ended());
    let [(new, _)] = pairs(&desk.ask(rerun(&[id(4)], false, false)))[..] else { panic!("it is submitted") };
    let task = desk.task(new);
    let part = task.agent.as_deref().unwrap();
    assert_eq!((&*part.prompt, &part.session), (super::support::FIRST_PROMPT, &None));
}

/// The configuration may have changed since; a warning that still holds comes with the new run.
#[test]
fn r116_rerun_does_not_repeat_the_warning_of_the_old_task() {
    let mut desk = Desk::new(1);
    let mut old = prompt(id(1), 0, 0);
    if let Work::Agent(work) = &mut old.spec.work {
        work.warning = Some("asks nobody".into());
    }
    desk.ask(Request::Submit(Box::new(old)));
    let warning = |desk: &Desk, task| desk.task(task).agent.unwrap().notes.warning;
    assert_eq!(warning(&desk, id(1)).as_deref(), Some("asks nobody"));
    desk.fact(id(1), Fact::Started { pid: None });
    desk.fact(id(1), turn_ended());
    let [(new, _)] = pairs(&desk.ask(rerun(&[id(1)], false, false)))[..] else { panic!("it is submitted") };
    assert_eq!((warning(&desk, id(1)).as_deref(), warning(&desk, new)), (Some("asks nobody"), None));
}

#[test]
fn r116_rerun_waiting_for_a_never_ready_task_is_refused_entirely() {
    let mut desk = Desk::new(4);
    let first = desk.submit(1);
    ends(&mut desk, first, 0);
    // A condition on an ended task is judged, and this one is not met.
    let second = after(&mut desk, 2, &[(first, Condition::Ready), (first, Condition::Ok)]);
    assert_eq!(desk.status(second), Status::Cancelled);
    let refused = desk.ask(rerun(&[first], false, true));
    assert_eq!(refusal(&refused), &CoreError::Order(OrderError::NeverReady(first)));
    assert_eq!(desk.core.summary().total(), 2);
}
