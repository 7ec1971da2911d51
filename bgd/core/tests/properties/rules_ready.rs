//! Example tests of the rules about readiness and about pausing.

use bgd_core::{Control, CoreError, Effect, Fact, Reply, Request, Unpausable};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::ready::Ready;
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;

use super::support::{
    Desk, TERM, blocked, command, ends, events, exited, id, ids, only_reply, refusal, replies, starts,
};

/// Submits a task that runs, with this time limit for becoming ready.
fn becoming(desk: &mut Desk, number: u16, timeout_ms: Option<u64>) -> TaskId {
    let mut command = command(id(number));
    command.spec.ready = Some(Box::new(Ready::Notify));
    command.spec.ready_timeout_ms = timeout_ms;
    let id = command.id;
    desk.ask(Request::Submit(Box::new(command)));
    desk.fact(id, Fact::Started { pid: Some(100) });
    id
}

fn until_ready(task: TaskId) -> Request {
    let (timeout_ms, mode, until) = (None, BlockMode::All, BlockUntil::Ready);
    Request::Block { which: ids(&[task]), timeout_ms, mode, until }
}

#[test]
fn r110_task_becomes_ready_once_and_waiters_get_a_reply() {
    let mut desk = Desk::new(1);
    let task = becoming(&mut desk, 1, Some(50));
    assert!(replies(&desk.ask(until_ready(task))).is_empty());
    desk.wait(7);
    let effects = desk.fact(task, Fact::Ready);
    assert_eq!(events(&effects), [(EventKind::Ready, task)]);
    assert_eq!(blocked(&effects), (vec![(task, Status::Running)], false));
    assert_eq!(desk.task(task).ready_at, Some(desk.now.wall));
    // It already is ready; a second `Ready` or a late `NotReady` changes nothing.
    assert_eq!(blocked(&desk.ask(until_ready(task))), (vec![(task, Status::Running)], false));
    assert!(desk.fact(task, Fact::Ready).is_empty());
    assert!(desk.fact(task, Fact::NotReady).is_empty());
    desk.fact(task, exited(0, false));
    assert_eq!(desk.status(task), Status::Completed);
    assert!(desk.task(task).ready_at.is_some());
}

#[test]
fn r110_task_not_ready_in_time_fails() {
    let mut desk = Desk::new(1);
    let task = becoming(&mut desk, 1, Some(2500));
    assert!(replies(&desk.ask(until_ready(task))).is_empty());
    assert_eq!(ends(&desk.fact(task, Fact::NotReady)), [(task, TERM)]);
    assert!(desk.fact(task, Fact::Ready).is_empty(), "it is too late");
    let effects = desk.fact(task, exited(0, false));
    assert_eq!(blocked(&effects), (vec![(task, Status::Failed)], false));
    let task = desk.task(task);
    let failure = crate::wire::failures::wire(task.finished().unwrap()).1.unwrap();
    assert_eq!(failure.message, "not ready after 2.500s");
    assert_eq!(failure.kind, bgd_shared::failure::FailureKind::Timeout);
    assert!(!task.timed_out(), "its time limit is another one");
}

#[test]
fn r110_task_without_ready_check_never_becomes_ready() {
    let mut desk = Desk::new(2);
    let task = desk.running(1);
    assert!(desk.fact(task, Fact::Ready).is_empty());
    assert!(desk.fact(task, Fact::NotReady).is_empty());
    assert!(desk.task(task).ready_at.is_none());
}

fn pause(desk: &mut Desk, tasks: &[TaskId], paused: bool) -> Vec<Effect> {
    desk.ask(Request::SetPaused { which: ids(tasks), paused })
}

/// Returns the tasks to pause (true) or continue (false).
fn orders(effects: &[Effect]) -> Vec<(TaskId, bool)> {
    let orders = effects.iter().filter_map(|effect| match effect {
        Effect::Control { task, control: Control::Pause, .. } => Some((*task, true)),
        Effect::Control { task, control: Control::Continue, .. } => Some((*task, false)),
        _ => None,
    });
    orders.collect()
}

#[test]
fn r106_repeated_pause_sends_one_event() {
    let mut desk = Desk::new(1);
    let task = desk.running(1);
    for (paused, kind) in [(true, EventKind::Paused), (false, EventKind::Continued)] {
        let effects = pause(&mut desk, &[task], paused);
        assert_eq!((orders(&effects), events(&effects)), (vec![(task, paused)], vec![(kind, task)]));
        let Reply::Tasks(tasks) = only_reply(&effects) else { panic!("{effects:?}") };
        assert_eq!((tasks[0].id, tasks[0].paused), (task, paused));
        let again = pause(&mut desk, &[task], paused);
        assert_eq!((orders(&again), events(&again)), (vec![(task, paused)], Vec::new()));
    }
}

#[test]
fn r106_starting_task_is_paused_once_it_runs() {
    let mut desk = Desk::new(1);
    let task = desk.submit(1);
    let effects = pause(&mut desk, &[task], true);
    assert_eq!((orders(&effects), events(&effects)), (vec![], vec![(EventKind::Paused, task)]));
    assert_eq!(orders(&desk.fact(task, Fact::Started { pid: Some(100) })), [(task, true)]);
}

#[test]
fn r106_paused_task_keeps_its_slot_and_its_time_limit_runs() {
    let mut desk = Desk::new(1);
    let mut limited = command(id(1));
    limited.spec.time_limit_ms = Some(100);
    desk.ask(Request::Submit(Box::new(limited)));
    desk.fact(id(1), Fact::Started { pid: Some(100) });
    pause(&mut desk, &[id(1)], true);
    let next = desk.submit(2);
    assert_eq!(desk.status(next), Status::Pending);
    assert_eq!(ends(&desk.wait(100)), [(id(1), TERM)]);
    assert!(!desk.task(id(1)).paused, "what is ended goes on, so that it can end");
}

#[test]
fn r106_pause_of_any_unpausable_task_is_refused_entirely() {
    let mut desk = Desk::new(3);
    let (task, done, ending) = (desk.running(1), desk.finished(2, 0), desk.running(3));
    let agent = desk.at_work(4);
    desk.cancel(ids(&[ending]));
    let pending = desk.submit(5);
    for (other, error) in [
        (done, CoreError::NotRunning(done, Status::Completed)),
        (ending, CoreError::NotPausable(ending, Unpausable::Ending)),
        (agent, CoreError::NotPausable(agent, Unpausable::Agent)),
        (pending, CoreError::NotPausable(pending, Unpausable::Pending)),
    ] {
        for paused in [true, false] {
            let effects = pause(&mut desk, &[task, other], paused);
            assert_eq!((refusal(&effects), effects.len()), (&error, 1));
        }
    }
}

/// Submits a task that starts once another one is ready.
fn behind(desk: &mut Desk, number: u16, other: TaskId) -> Vec<Effect> {
    let mut command = command(id(number));
    command.plan.after = vec![After { id: other.into(), condition: Condition::Ready }];
    desk.ask(Request::Submit(Box::new(command)))
}

#[test]
fn r103_dependent_starts_when_its_dependency_is_ready() {
    let mut desk = Desk::new(9);
    let task = becoming(&mut desk, 1, None);
    assert!(starts(&behind(&mut desk, 2, task)).is_empty(), "it runs, and is not ready");
    assert_eq!(starts(&desk.fact(task, Fact::Ready)), [id(2)]);
    // A condition that is already met counts at submission, even if the task has ended since.
    assert_eq!(starts(&behind(&mut desk, 3, task)), [id(3)]);
    desk.fact(task, exited(3, false));
    assert_eq!(starts(&behind(&mut desk, 4, task)), [id(4)]);
}

#[test]
fn r103_dependent_is_cancelled_if_dependency_ends_unready() {
    let mut desk = Desk::new(9);
    let task = becoming(&mut desk, 1, None);
    behind(&mut desk, 2, task);
    let effects = desk.fact(task, exited(0, false));
    assert_eq!(events(&effects), [(EventKind::Completed, task), (EventKind::Cancelled, id(2))]);
}

#[test]
fn r26_output_seen_before_start_is_reported_by_the_start() {
    let mut desk = Desk::new(1);
    let task = desk.submit(1);
    let output = |bytes| Fact::Output { bytes: [bytes, 0], dropped: [0; 2], publish: true };
    assert_eq!(events(&desk.fact(task, output(3))), []);
    assert_eq!(events(&desk.fact(task, Fact::Started { pid: None })), [(EventKind::Started, task)]);
    assert_eq!(desk.task(task).output_bytes, [3, 0]);
    assert_eq!(events(&desk.fact(task, output(4))), [(EventKind::Output, task)]);
}
