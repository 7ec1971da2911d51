//! R129: finished tasks give way to requests that need their room, on a daemon that clears them by itself.

use bgd_core::{
    BatchItem, BatchLimits, Command, CoreError, CoreLimits, Effect, Fact, HistoryLimits, Input, OrderError,
    Part, Reply, Request, Work,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::text::OsText;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::test_runner::{Config, TestRunner};

use super::support::{
    Desk, command, configure, events, exited, id, ids, limits, prompt, refusal, replies, turn_ended,
};

/// Keeps all finished tasks.
const ALL: HistoryLimits =
    HistoryLimits { age_ms: 1 << 40, bytes: u64::MAX, tasks: usize::MAX, memory: usize::MAX };

/// Returns a desk with room for this many tasks in this many bytes, whose history may use all of it.
fn desk_with(tasks: usize, memory: usize) -> Desk {
    let mut desk = Desk::new(2000);
    limit(&mut desk, tasks, memory);
    desk
}

fn limit(desk: &mut Desk, tasks: usize, memory: usize) {
    let limits = CoreLimits { history: Some(ALL), tasks, memory, inbox_items: 1000, ..limits(2000) };
    assert_eq!(cleared(&desk.input(configure(limits))), [], "it only gives way to requests");
}

fn cleared(effects: &[Effect]) -> Vec<TaskId> {
    let cleared = events(effects).into_iter().filter(|(kind, _)| *kind == EventKind::Cleared);
    cleared.map(|(_, task)| task).collect()
}

/// Returns a command with this many more bytes.
fn large(number: u16, bytes: usize) -> Command {
    let mut command = command(id(number));
    command.spec.work = Work::Argv([OsText::from("true"), "x".repeat(bytes).as_str().into()].into());
    command
}

/// Returns a held command that comes after these tasks.
fn after(number: u16, tasks: &[TaskId]) -> Command {
    let mut command = command(id(number));
    command.plan.after =
        tasks.iter().map(|task| After { id: (*task).into(), condition: Condition::Any }).collect();
    command.plan.hold = true;
    command
}

fn submit(desk: &mut Desk, command: Command) -> Vec<Effect> {
    desk.ask(Request::Submit(Box::new(command)))
}

/// Runs a task to its end.
fn end(desk: &mut Desk, task: TaskId) {
    desk.fact(task, Fact::Started { pid: None });
    desk.fact(task, exited(0, false));
}

/// Returns a part of the batch with this number: `count` tasks from the one numbered `from`, like `common` if it is the
/// first part.
fn part(batch: u16, common: Option<Command>, from: u16, count: u16, more: bool) -> Part {
    let item = |number: u16| {
        let id = TaskId::from_u128((1 << 100) | (u128::from(batch) << 32) | u128::from(number));
        BatchItem { id, argv: ["true".into()].into() }
    };
    let first = common.map(|common| (Box::new(common), BatchLimits::default()));
    Part { batch: id(batch), first, items: (from..from + count).map(item).collect(), more }
}

fn is_refused(effects: &[Effect]) -> bool {
    replies(effects).iter().any(|reply| matches!(reply, Reply::Error(_)))
}

#[test]
fn r129_history_gives_way_to_single_tasks_and_batches_oldest_first() {
    let mut desk = desk_with(100, 1 << 30);
    let ended: Vec<TaskId> = (0..75).map(|number| desk.finished(number, 0)).collect();
    let effects = desk.ask(Request::SubmitMany(Box::new(part(900, Some(command(id(900))), 0, 30, false))));
    assert_eq!(cleared(&effects), ended[..5], "no more than needed");
    for number in 100..170 {
        assert!(!is_refused(&submit(&mut desk, command(id(number)))));
    }
    assert_eq!((desk.core.summary().total(), desk.core.summary().active()), (100, 100));
    assert_eq!(refusal(&submit(&mut desk, command(id(200)))), &CoreError::Full(100));
}

#[test]
fn r129_refused_request_clears_no_history() {
    let mut desk = desk_with(100, 1 << 30);
    for number in 0..75 {
        desk.finished(number, 0);
    }
    desk.running(80);
    let effects = desk.ask(Request::SubmitMany(Box::new(part(900, Some(command(id(900))), 0, 100, false))));
    let large_batch = CoreError::Order(OrderError::LargeBatch { wanted: 100, room: 99 });
    assert_eq!((refusal(&effects), cleared(&effects)), (&large_batch, vec![]));
    // Nor do the accepted parts of a batch that is refused later.
    let effects = desk.ask(Request::SubmitMany(Box::new(part(901, Some(command(id(901))), 0, 60, true))));
    assert_eq!((is_refused(&effects), cleared(&effects)), (false, vec![]));
    assert!(!desk.core.has_more());
    let effects = desk.ask(Request::SubmitMany(Box::new(part(901, None, 60, 40, false))));
    assert_eq!((is_refused(&effects), cleared(&effects)), (true, vec![]));
    let memory = desk.core.held() + 1000;
    limit(&mut desk, 100, memory);
    let effects = submit(&mut desk, large(300, 1 << 20));
    assert!(matches!(refusal(&effects), CoreError::FullMemory { .. }));
    assert_eq!((cleared(&effects), desk.core.summary().total()), (vec![], 76));
    // Without a history, tasks stay until somebody clears them.
    let mut desk = Desk::new(1);
    desk.input(configure(CoreLimits { tasks: 1, ..limits(1) }));
    desk.finished(1, 0);
    assert_eq!(refusal(&submit(&mut desk, command(id(2)))), &CoreError::Full(1));
}

#[test]
fn r104_tasks_that_a_request_comes_after_do_not_give_way_to_it() {
    let mut desk = desk_with(2, 1 << 30);
    let (first, second) = (desk.finished(1, 0), desk.finished(2, 0));
    let effects = submit(&mut desk, after(3, &[first, second]));
    assert_eq!((refusal(&effects), cleared(&effects)), (&CoreError::Full(2), vec![]));
    assert_eq!(cleared(&submit(&mut desk, after(3, &[first]))), [second]);
    assert_eq!(refusal(&submit(&mut desk, command(id(4)))), &CoreError::Full(2));
}

#[test]
fn r129_history_gives_way_to_a_large_batch_in_steps() {
    let mut desk = desk_with(1000, 1 << 30);
    let ended: Vec<TaskId> = (0..1000).map(|number| desk.finished(number, 0)).collect();
    let common = after(2000, &ended[..1]);
    let effects = desk.ask(Request::SubmitMany(Box::new(part(2000, Some(common.clone()), 0, 1000, false))));
    let large_batch = CoreError::Order(OrderError::LargeBatch { wanted: 1000, room: 999 });
    assert_eq!(refusal(&effects), &large_batch);
    let mut effects = desk.ask(Request::SubmitMany(Box::new(part(2001, Some(common), 0, 999, false))));
    let mut gone = Vec::new();
    loop {
        assert!(cleared(&effects).len() < 999, "all in one step");
        gone.extend(cleared(&effects));
        assert!(desk.core.summary().total() <= 1000);
        if !desk.core.has_more() {
            break;
        }
        effects = desk.input(Input::Continue);
    }
    assert_eq!(gone, ended[1..], "all but the one that it comes after");
    assert_eq!((desk.core.summary().total(), desk.core.summary().active()), (1000, 999));
}

#[test]
fn r129_unread_notices_leave_half_of_the_memory_to_tasks() {
    const MEMORY: usize = 200_000;
    let mut desk = desk_with(1000, MEMORY);
    for number in 0..600 {
        let mut command = command(id(number));
        command.spec.session = Some("s".into());
        let effects = submit(&mut desk, command);
        assert!(!is_refused(&effects), "{number}: {effects:?}");
        end(&mut desk, id(number));
        assert!(desk.core.held_by_inboxes() <= MEMORY / 2);
    }
    assert!(desk.core.held_by_inboxes() > MEMORY / 3 && desk.core.inboxes().lost > 0);
    assert!(!is_refused(&submit(&mut desk, large(700, MEMORY / 3))));
    assert!(desk.core.held() <= MEMORY, "{}", desk.core.held());
}

#[test]
fn r129_unread_notices_of_a_program_without_their_limit_give_way_after_an_upgrade() {
    const MEMORY: usize = 100_000;
    let mut desk = desk_with(1000, 1 << 30);
    for number in 0..200 {
        let mut command = command(id(number));
        command.spec.session = Some("s".into());
        submit(&mut desk, command);
        end(&mut desk, id(number));
    }
    assert!(desk.core.held_by_inboxes() > MEMORY);
    let mut json = serde_json::to_value(&desk.core).unwrap();
    json["limits"]["memory"] = MEMORY.into();
    assert!(json["inboxes"].as_object_mut().unwrap().remove("most").is_some());
    desk.core = serde_json::from_str(&json.to_string()).unwrap();
    desk.core.track();
    assert!(desk.core.held_by_inboxes() <= MEMORY / 2 && desk.core.inboxes().lost > 0);
    let dropped = desk.core.take_changes(desk.now).unwrap().items;
    assert_eq!(dropped.iter().filter(|(_, row)| row.is_none()).count() as u64, desk.core.inboxes().lost);
}

/// Tasks that a wait keeps free nothing, but those that ended after them do.
#[test]
fn r129_history_gives_way_past_the_tasks_that_a_wait_keeps() {
    let mut desk = desk_with(1000, 1 << 30);
    let running = desk.running(1);
    let waited: Vec<TaskId> = (2..20).map(|number| desk.finished(number, 0)).collect();
    for number in 20..23 {
        submit(&mut desk, large(number, 7000));
        end(&mut desk, id(number));
    }
    let (mode, until) = (BlockMode::All, BlockUntil::Ended);
    let which = ids(&[&[running], &waited[..]].concat());
    desk.ask_as(2, Request::Block { which, timeout_ms: None, mode, until });
    let memory = desk.core.held() + 1000;
    limit(&mut desk, 1000, memory);
    let gone = cleared(&submit(&mut desk, large(30, 7000)));
    assert_eq!(gone, [&waited[..], &[id(20)]].concat(), "no more than needed");
    assert_eq!(cleared(&submit(&mut desk, large(31, 7000))), [id(21)]);
    assert!(desk.core.held() <= memory);
}

#[test]
fn r129_memory_that_a_wait_keeps_is_not_given_away() {
    let mut desk = desk_with(1000, 1 << 30);
    let running = desk.running(1);
    submit(&mut desk, large(2, 7000));
    end(&mut desk, id(2));
    let (mode, until, which) = (BlockMode::All, BlockUntil::Ended, ids(&[running, id(2)]));
    desk.ask_as(2, Request::Block { which, timeout_ms: None, mode, until });
    let memory = desk.core.held() + 1000;
    limit(&mut desk, 1000, memory);
    let effects = submit(&mut desk, large(3, 7000));
    assert!(matches!(refusal(&effects), CoreError::FullMemory { .. }));
    assert_eq!(cleared(&effects), []);
    desk.input(Input::Disconnected { client: 2 });
    assert_eq!(cleared(&submit(&mut desk, large(3, 7000))), [id(2)]);
}

#[test]
fn r129_values_that_a_new_task_shares_are_not_freed() {
    let mut desk = desk_with(1000, 1 << 30);
    let of = |number| {
        let env = [("LARGE".into(), OsText::from("x".repeat(20_000)))].into_iter().collect();
        Command { env, ..prompt(id(number), 60_000, 60_000) }
    };
    submit(&mut desk, of(1));
    desk.fact(id(1), Fact::Session { id: "session".into() });
    desk.fact(id(1), Fact::Started { pid: None });
    desk.fact(id(1), turn_ended());
    let memory = desk.core.held() + 500;
    limit(&mut desk, 1000, memory);
    let effects = submit(&mut desk, Command { prompt: Some("p".repeat(10_000).into()), ..of(2) });
    assert!(matches!(refusal(&effects), CoreError::FullMemory { .. }), "the environment stays");
    assert_eq!(cleared(&effects), []);
    assert_eq!(cleared(&submit(&mut desk, large(3, 10_000))), [id(1)]);
}

/// Whatever has happened, no history keeps a small task out, and no refusal costs a part of it.
#[test]
fn r129_small_task_is_accepted_whenever_all_tasks_have_ended() {
    const MEMORY: usize = 60_000;
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let steps = vec((0u8..5, 0usize..9000, any::<bool>()), 1..80);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        let mut desk = Desk::new(2000);
        let history = HistoryLimits { tasks: 30, memory: MEMORY / 4 * 3, ..ALL };
        let limits = CoreLimits { history: Some(history), tasks: 40, memory: MEMORY, ..limits(2000) };
        desk.input(configure(limits));
        let (mut active, mut number): (Vec<TaskId>, u16) = (Vec::new(), 0);
        for (kind, size, is_noted) in steps {
            number += 1;
            let mut command = large(number, size);
            command.spec.session = is_noted.then(|| "s".into());
            let (effects, new) = match kind {
                0 | 1 => (submit(&mut desk, command), vec![id(number)]),
                2 => {
                    let count = u16::try_from(size % 40 + 1).unwrap_or_default();
                    let part = part(number, Some(command), 0, count, false);
                    let new = part.items.iter().map(|item| item.id).collect();
                    (desk.ask(Request::SubmitMany(Box::new(part))), new)
                }
                _ => {
                    let ended = active.len().min(size % 40);
                    for task in active.drain(..ended) {
                        end(&mut desk, task);
                    }
                    continue;
                }
            };
            if is_refused(&effects) {
                prop_assert!(cleared(&effects).is_empty(), "a refusal costs nothing");
            } else {
                active.extend(new);
                prop_assert!(desk.core.held() <= MEMORY && desk.core.summary().total() <= 40);
            }
            prop_assert!(!desk.core.has_more());
        }
        for task in active {
            end(&mut desk, task);
        }
        let effects = submit(&mut desk, command(id(u16::MAX)));
        prop_assert!(!is_refused(&effects), "{effects:?}");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
