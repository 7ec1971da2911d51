//! Example tests of how long finished tasks are kept, and of the search in them.

use bgd_core::{
    BatchItem, BatchLimits, Command, CoreLimits, Edit, Fact, Filter, HistoryLimits, Input, ListQuery, Part,
    PlanRequest, Reply, Request, Rule, SEARCH_BYTES, Selection, StartTime, Text, Work,
};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{BlockMode, BlockUntil};
use bgd_shared::task::Status;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::support::{
    Desk, command, configure, events, exited, id, ids, limits, only_reply, prompt, turn_ended,
};

/// One minute, and 100 bytes of output.
const MINUTE: HistoryLimits = HistoryLimits { age_ms: 60_000, bytes: 100, tasks: 1000, memory: 1 << 20 };

/// Returns a desk that keeps finished tasks within these limits.
fn desk_with(history: HistoryLimits) -> Desk {
    let mut desk = Desk::new(4);
    let history = Some(history);
    assert!(desk.input(configure(CoreLimits { history, ..limits(4) })).is_empty());
    desk
}

fn desk() -> Desk {
    desk_with(MINUTE)
}

/// Ends a task with this many bytes of output. Returns the tasks that this removed.
fn end(desk: &mut Desk, task: TaskId, bytes: u64) -> Vec<TaskId> {
    desk.fact(task, Fact::Output { bytes: [bytes, 0], dropped: [0; 2], publish: false });
    cleared(&desk.fact(task, exited(0, false)))
}

fn cleared(effects: &[bgd_core::Effect]) -> Vec<TaskId> {
    let cleared = events(effects).into_iter().filter(|(kind, _)| *kind == EventKind::Cleared);
    cleared.map(|(_, task)| task).collect()
}

#[test]
fn r129_earliest_ended_tasks_are_removed_first() {
    let mut desk = desk();
    let (first, second, third) = (desk.running(1), desk.running(2), desk.running(3));
    assert_eq!(end(&mut desk, second, 40), []);
    desk.now.wall = desk.now.wall.plus_ms(10);
    assert_eq!(end(&mut desk, first, 60), []);
    desk.now.wall = desk.now.wall.plus_ms(10);
    assert_eq!(end(&mut desk, third, 1), [second], "it was submitted later, and ended before");
    let large = desk.running(4);
    desk.now.wall = desk.now.wall.plus_ms(10);
    assert_eq!(end(&mut desk, large, 1000), [first, third], "the last one stays, however large it is");
}

#[test]
fn r129_history_is_trimmed_to_its_task_and_memory_limits() {
    let mut desk = desk_with(HistoryLimits { tasks: 2, ..MINUTE });
    let gone = [1, 2, 3].map(|number| {
        let task = desk.running(number);
        desk.now.wall = desk.now.wall.plus_ms(10);
        cleared(&desk.fact(task, exited(0, false)))
    });
    assert_eq!(gone, [vec![], vec![], vec![id(1)]]);
    // A task that needs much memory is not kept either, unless it is the last one.
    let mut desk = desk_with(HistoryLimits { memory: 10_000, ..MINUTE });
    let large = |number| {
        let mut command = command(id(number));
        command.spec.work = Work::Argv(["x".repeat(7000).as_str().into()].into());
        command
    };
    let [first, second] = [1, 2].map(|number| {
        desk.ask(Request::Submit(Box::new(large(number))));
        desk.fact(id(number), Fact::Started { pid: None });
        desk.now.wall = desk.now.wall.plus_ms(10);
        cleared(&desk.fact(id(number), exited(0, false)))
    });
    assert_eq!((first, second), (vec![], vec![id(1)]));
    let history = Some(HistoryLimits { memory: 1, ..MINUTE });
    assert_eq!(cleared(&desk.input(configure(CoreLimits { history, ..limits(4) }))), []);
}

#[test]
fn r129_history_of_few_tasks_keeps_no_new_task_out() {
    for tasks in 1..=3 {
        let mut desk = Desk::new(1);
        let history = Some(HistoryLimits { tasks: tasks - 1, ..MINUTE });
        desk.input(configure(CoreLimits { history, tasks, ..limits(1) }));
        for number in 1..10 {
            let task = desk.running(number);
            desk.fact(task, exited(0, false));
        }
        assert_eq!(desk.core.summary().total(), tasks as u64 - 1);
    }
}

#[test]
fn r129_old_tasks_are_removed_by_wall_clock() {
    let mut desk = desk();
    let ended = desk.finished(1, 0);
    let due = desk.now.wall.plus_ms(60_000);
    assert_eq!(desk.core.wall_deadline(), Some(due));
    desk.now.wall = Timestamp::from_unix_ms(due.unix_ms() - 1);
    assert_eq!(cleared(&desk.core.on_deadline(desk.now)), []);
    desk.now.wall = due;
    assert_eq!(cleared(&desk.core.on_deadline(desk.now)), [ended]);
    assert_eq!(desk.core.wall_deadline(), None);
}

#[test]
fn r129_lingering_or_delayed_tasks_are_not_history() {
    let mut desk = desk();
    let lingers = desk.running(1);
    desk.fact(lingers, exited(0, true));
    let plan = PlanRequest { start: Some(StartTime::In(1 << 40)), ..PlanRequest::default() };
    let waits = bgd_core::Command { plan, ..command(id(2)) };
    desk.ask(Request::Submit(Box::new(waits)));
    desk.now.wall = desk.now.wall.plus_ms(1 << 30);
    assert_eq!(cleared(&desk.input(Input::Continue)), []);
    assert_eq!(cleared(&desk.fact(lingers, Fact::TreeEmpty)), [lingers]);
}

/// Returns a task that comes after this one, whatever the end of that.
fn after(task: TaskId, number: u16) -> bgd_core::Command {
    let after = vec![After { id: task.into(), condition: Condition::Any }];
    bgd_core::Command { plan: PlanRequest { after, ..PlanRequest::default() }, ..command(id(number)) }
}

/// The batch of [`submit_batch`].
const BATCH: TaskId = TaskId::from_u128(7);

/// Submits a batch of this many tasks, with ids from 1.
fn submit_batch(desk: &mut Desk, tasks: u16) -> Vec<TaskId> {
    let ids: Vec<TaskId> = (1..=tasks).map(id).collect();
    let items = ids.iter().map(|id| BatchItem { id: *id, argv: ["true".into()].into() }).collect();
    let first = Some((Box::new(command(id(0))), BatchLimits::default()));
    desk.ask(Request::SubmitMany(Box::new(Part { batch: BATCH, first, items, more: false })));
    ids
}

/// Waits for the tasks of the batch. Returns how many are shown, and how many are gone, also of these those that had not
/// completed.
fn block(desk: &mut Desk, status: &[Status]) -> (usize, Option<(u64, u64)>) {
    let filter = Filter { batch: Some(BATCH.into()), status: status.into(), ..Filter::default() };
    let effects = desk.ask(Request::Block {
        which: Selection::Matching(Box::new(filter)),
        timeout_ms: None,
        mode: BlockMode::All,
        until: BlockUntil::Ended,
    });
    let Reply::Blocked { tasks, cleared, .. } = only_reply(&effects) else { panic!("{effects:?}") };
    (tasks.len(), cleared.map(|cleared| (cleared.tasks, cleared.not_completed)))
}

#[test]
fn r112_history_keeps_the_tasks_of_a_batch_until_all_of_them_have_ended() {
    let mut desk = desk_with(HistoryLimits { tasks: 1, ..MINUTE });
    let members = submit_batch(&mut desk, 3);
    for task in &members {
        desk.fact(*task, Fact::Started { pid: None });
    }
    assert_eq!(cleared(&desk.fact(members[0], exited(1, false))), []);
    assert_eq!(end(&mut desk, members[1], 1000), []);
    assert_eq!(grow_old(&mut desk), [], "one of them is still running");
    assert_eq!(desk.core.wall_deadline(), None);
    // The history of the others does not shrink because of them.
    let other = desk.finished(9, 0);
    assert!(desk.core.get(&other.into()).is_ok());
    let changed = CoreLimits { history: Some(HistoryLimits { tasks: 0, ..MINUTE }), ..limits(4) };
    assert_eq!(desk.core.history_excess(desk.now, &changed), 1);
    assert_eq!(cleared(&desk.input(configure(changed))), [other], "new limits change nothing about that");
    let changed = CoreLimits { history: Some(HistoryLimits { tasks: 1, ..MINUTE }), ..limits(4) };
    assert_eq!(cleared(&desk.input(configure(changed))), []);

    assert_eq!(cleared(&desk.fact(members[2], exited(0, false))), [members[0], members[1]]);

    assert_eq!(block(&mut desk, &[]), (1, Some((2, 1))));
    assert_eq!(block(&mut desk, &[Status::Completed]), (1, None), "the others may not have been meant");
    let filter = Filter { batch: Some(BATCH.into()), ..Filter::default() };
    let page = desk.core.list(&ListQuery { limit: 1, filter, ..ListQuery::default() }).expect("a page");
    assert_eq!(page.cleared.map(|gone| (gone.tasks, gone.not_completed)), Some((2, 1)));
    let all = desk.core.list(&ListQuery { limit: 1, ..ListQuery::default() }).expect("a page");
    assert_eq!(all.cleared, None);
}

#[test]
fn r112_batch_counts_the_tasks_that_a_user_clears() {
    let mut desk = Desk::new(4);
    let members = submit_batch(&mut desk, 3);
    for (task, code) in members.iter().zip([0, 1, 0]) {
        desk.fact(*task, Fact::Started { pid: None });
        desk.fact(*task, exited(code, false));
    }
    assert_eq!(block(&mut desk, &[]), (3, None));
    desk.ask(Request::Clear { which: ids(&members[..1]), active_too: false });
    assert_eq!(block(&mut desk, &[]), (2, Some((1, 0))));
    desk.ask(Request::Clear { which: ids(&members[1..2]), active_too: false });
    assert_eq!(block(&mut desk, &[]), (1, Some((2, 1))));
}

/// Makes all finished tasks too old. Returns those that this removed.
fn grow_old(desk: &mut Desk) -> Vec<TaskId> {
    desk.now.wall = desk.now.wall.plus_ms(60_000);
    cleared(&desk.core.on_deadline(desk.now))
}

#[test]
fn r104_output_is_kept_until_the_tasks_that_need_it_have_ended() {
    let mut desk = desk();
    let [needed, other] = [desk.finished(1, 3), desk.finished(2, 0)];
    let mut waits = after(needed, 3);
    waits.plan.hold = true;
    let rule =
        Rule::Retry { times: 1, delay_ms: 1 << 40, max_delay_ms: 1 << 40, codes: [].into(), signal: false };
    waits.plan.again = Some(rule);
    desk.ask(Request::Submit(Box::new(waits)));
    assert_eq!(grow_old(&mut desk), [other]);
    assert_eq!(desk.core.wall_deadline(), None, "nothing is due while it is needed");
    desk.ask(Request::Hold { which: ids(&[id(3)]), held: false });
    desk.fact(id(3), Fact::Started { pid: None });
    assert_eq!(grow_old(&mut desk), [], "a running task may still read it");
    desk.fact(id(3), exited(1, false));
    assert!(desk.task(id(3)).finished().is_none(), "another attempt follows");
    assert_eq!(grow_old(&mut desk), []);
    assert_eq!(cleared(&desk.cancel(ids(&[id(3)]))), [needed]);
}

#[test]
fn r104_needed_output_is_kept_beyond_the_size_limits() {
    let mut desk = desk_with(HistoryLimits { tasks: 1, ..MINUTE });
    let needed = desk.running(1);
    let mut waits = after(needed, 2);
    waits.plan.hold = true;
    desk.ask(Request::Submit(Box::new(waits)));
    assert_eq!(end(&mut desk, needed, 1000), []);
    let [first, second] = [3, 4].map(|number| desk.running(number));
    desk.now.wall = desk.now.wall.plus_ms(10);
    assert_eq!(end(&mut desk, first, 90), [], "it takes no room from the others");
    desk.now.wall = desk.now.wall.plus_ms(10);
    assert_eq!(end(&mut desk, second, 90), [first]);
    let edit = Edit {
        id: id(2).into(),
        description: None,
        group: None,
        priority: None,
        slots: None,
        after: Some(Vec::new()),
        start: None,
    };
    assert_eq!(cleared(&desk.ask(Request::Edit(Box::new(edit)))), [needed]);
}

#[test]
fn r104_output_is_kept_while_a_batch_that_needs_it_is_entering() {
    for is_withdrawn in [false, true] {
        let mut desk = Desk::new(1000);
        let limits = CoreLimits { history: Some(MINUTE), tasks: 5000, ..limits(1000) };
        desk.input(configure(limits));
        let needed = desk.finished(1, 0);
        let batch = TaskId::from_u128(7);
        let item = |number: u128| {
            let id = TaskId::from_u128((1 << 100) | number);
            BatchItem { id, argv: ["true".into()].into() }
        };
        let first = Some((Box::new(after(needed, 2)), BatchLimits::default()));
        let part = Part { batch, first, items: (0..1000).map(item).collect(), more: false };
        desk.ask(Request::SubmitMany(Box::new(part)));
        // Only tasks that are still to be added need the output.
        for task in desk.core.batch_members(&[batch]) {
            desk.fact(task, Fact::StartFailed { failure: "no such file".into() });
        }
        assert!(desk.core.has_more());
        assert!(!grow_old(&mut desk).contains(&needed));
        if is_withdrawn {
            let _ = desk.core.withdraw(desk.now, &[], &[batch], "the disk is full");
            assert!(grow_old(&mut desk).contains(&needed));
            continue;
        }
        while desk.core.has_more() {
            assert!(!cleared(&desk.input(Input::Continue)).contains(&needed));
        }
        for task in desk.core.batch_members(&[batch]) {
            assert!(desk.core.get(&needed.into()).is_ok(), "{task} needs it");
            desk.fact(task, Fact::StartFailed { failure: "no such file".into() });
        }
        assert!(desk.core.get(&needed.into()).is_err());
    }
}

#[test]
fn r129_new_limits_are_applied_to_old_tasks_in_steps() {
    let mut desk = Desk::new(1);
    for number in 0..600 {
        desk.finished(number, 0);
    }
    desk.now.wall = desk.now.wall.plus_ms(2);
    let history = Some(HistoryLimits { age_ms: 1, bytes: 0, ..MINUTE });
    let first = cleared(&desk.input(configure(CoreLimits { history, ..limits(1) }))).len();
    assert!((1..600).contains(&first), "{first} in one step");
    let mut removed = first;
    while desk.core.wall_deadline().is_some_and(|due| due <= desk.now.wall) {
        removed += cleared(&desk.core.on_deadline(desk.now)).len();
    }
    assert_eq!(removed, 600);
}

#[test]
fn r129_tasks_that_new_limits_will_remove_are_counted() {
    let mut desk = desk();
    for number in 1..=5 {
        let task = desk.running(number);
        desk.now.wall = desk.now.wall.plus_ms(10);
        assert_eq!(end(&mut desk, task, 10), []);
    }
    let last = desk.now.wall;
    for (history, removed) in [
        (MINUTE, 0),
        (HistoryLimits { tasks: 2, ..MINUTE }, 3),
        (HistoryLimits { bytes: 40, ..MINUTE }, 1),
        (HistoryLimits { memory: 1, ..MINUTE }, 4),
        (HistoryLimits { age_ms: 0, ..MINUTE }, 5),
    ] {
        let changed = CoreLimits { history: Some(history), ..limits(4) };
        assert_eq!(desk.core.history_excess(desk.now, &changed), removed, "{history:?}");
    }
    assert_eq!((desk.now.wall, desk.core.summary().total()), (last, 5), "none is removed yet");
    let changed = CoreLimits { history: Some(HistoryLimits { tasks: 2, ..MINUTE }), ..limits(4) };
    assert_eq!(cleared(&desk.input(configure(changed))).len(), 3);
}

#[test]
fn r129_search_proceeds_in_bounded_pages_and_misses_nothing() {
    let mut desk = Desk::new(1);
    let padding = "x".repeat(100_000);
    for number in 0..200 {
        let mut command = command(id(number));
        let word = if number % 90 == 0 { "a Needle" } else { "hay" };
        command.spec.work = Work::Argv([padding.as_str().into(), OsText::from(word)].into());
        desk.ask(Request::Submit(Box::new(command)));
    }
    let mut query = ListQuery { limit: 100, text: Some(Text::new("A NEEDLE")), ..ListQuery::default() };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = desk.core.list(&query).expect("a page");
        pages += 1;
        found.extend(page.tasks.iter().map(|task| task.id));
        query.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(found, [id(180), id(90), id(0)]);
    assert_eq!(pages, (200 * 100_000_usize).div_ceil(SEARCH_BYTES));
}

#[test]
fn r129_list_since_includes_active_and_later_ended_tasks() {
    let mut desk = Desk::new(4);
    let _before = desk.finished(1, 0);
    let running = desk.running(2);
    desk.now.wall = desk.now.wall.plus_ms(1000);
    let since = Some(desk.now.wall);
    let after = desk.finished(3, 1);
    let query = ListQuery { limit: 10, since, ..ListQuery::default() };
    let page = desk.core.list(&query).expect("a page");
    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [after, running]);
    assert_eq!(page.summary.total(), 3);
}

#[test]
fn r129_search_uses_the_edited_description() {
    let mut desk = Desk::new(1);
    desk.running(1);
    let mut command = command(id(2));
    command.spec.description = Some("older".into());
    desk.ask(Request::Submit(Box::new(command)));
    let (description, group, priority, slots, after, start) =
        (Some("newer".into()), None, None, None, None, None);
    let edit = Edit { id: id(2).into(), description, group, priority, slots, after, start };
    desk.ask(Request::Edit(Box::new(edit)));
    let found = |text: &str| {
        let query = ListQuery { limit: 10, text: Some(Text::new(text)), ..ListQuery::default() };
        desk.core.list(&query).expect("a page").tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!((found("newer"), found("older")), (vec![id(2)], vec![]));
}

#[test]
fn r129_environments_of_completed_turns_count_in_history_memory() {
    let mut desk = desk_with(HistoryLimits { memory: 30_000, ..MINUTE });
    let mut turn = |number, letter: &str| {
        let env = [("LARGE".into(), OsText::from(letter.repeat(20_000)))].into_iter().collect();
        let command = Command { env, ..prompt(id(number), 60_000, 60_000) };
        desk.ask(Request::Submit(Box::new(command)));
        desk.fact(id(number), Fact::Session { id: "session".into() });
        desk.fact(id(number), Fact::Started { pid: None });
        desk.now.wall = desk.now.wall.plus_ms(10);
        cleared(&desk.fact(id(number), turn_ended()))
    };
    assert_eq!([turn(1, "x"), turn(2, "x")], [vec![], vec![]], "the same environment counts once");
    assert_eq!(turn(3, "y"), [id(1), id(2)]);
    assert_eq!(turn(4, "z"), [id(3)]);
}
