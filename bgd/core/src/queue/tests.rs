//! Tests of the queue alone: what starts next, and with which slots.

use super::*;

fn demand(group: Option<&str>, priority: i32, slots: u32) -> Demand {
    Demand { group: group.map(Into::into), priority, slots, batch: None }
}

fn wait(queue: &mut Queue, task: u64, demand: Demand) {
    queue.change(Ordinal(task), &Standing::Out, &Standing::Waits(demand));
}

/// Starts every task that can start. Returns them with their lowest slots.
fn start(queue: &mut Queue, demand: impl Fn(u64) -> Demand) -> Vec<(u64, Option<u32>)> {
    let mut started = Vec::new();
    while let Some(task) = queue.next(Starts::Allowed) {
        let demand = demand(task.0);
        let slot = queue.change(task, &Standing::Waits(demand.clone()), &Standing::HasSlots(demand));
        started.push((task.0, slot));
    }
    started
}

fn end(queue: &mut Queue, task: u64, demand: Demand) {
    queue.change(Ordinal(task), &Standing::HasSlots(demand), &Standing::Out);
}

#[test]
fn r100_each_group_counts_its_own_slots() {
    let mut queue = Queue::new(1);
    queue.set("gpu", 2.into());
    let of = |task: u64| demand((task > 2).then_some("gpu"), 0, 1);
    (1..=6).for_each(|task| wait(&mut queue, task, of(task)));
    assert_eq!(start(&mut queue, of), [(1, Some(1)), (3, Some(1)), (4, Some(2))]);
    end(&mut queue, 3, of(3));
    assert_eq!(start(&mut queue, of), [(5, Some(1))], "the lowest free number");
}

#[test]
fn r104_task_keeps_its_slots_when_its_priority_changes() {
    let mut queue = Queue::new(3);
    let of = |_| demand(None, 0, 1);
    (1..=3).for_each(|task| wait(&mut queue, task, of(task)));
    start(&mut queue, of);
    end(&mut queue, 1, of(1));
    let (before, after) = (Standing::HasSlots(of(3)), Standing::HasSlots(demand(None, 5, 1)));
    assert_eq!(queue.change(Ordinal(3), &before, &after), Some(3));
    wait(&mut queue, 4, of(4));
    assert_eq!(start(&mut queue, of), [(4, Some(1))]);
}

#[test]
fn r101_highest_priority_starts_first_and_is_not_overtaken() {
    let mut queue = Queue::new(2);
    let of = |task: u64| match task {
        2 => demand(None, -5, 0),
        3 => demand(None, 7, 2),
        _ => demand(None, 0, 1),
    };
    wait(&mut queue, 1, of(1));
    assert_eq!(start(&mut queue, of), [(1, Some(1))]);
    (2..=4).for_each(|task| wait(&mut queue, task, of(task)));
    assert_eq!(start(&mut queue, of), [], "3 does not fit, and nobody overtakes it");
    end(&mut queue, 1, of(1));
    assert_eq!(start(&mut queue, of), [(3, Some(1))], "and 4 does not fit");
    end(&mut queue, 3, of(3));
    assert_eq!(start(&mut queue, of), [(4, Some(1)), (2, None)]);
}

#[test]
fn r100_paused_group_starts_nothing_and_lowered_limit_ends_nothing() {
    let mut queue = Queue::new(3);
    let of = |_: u64| demand(None, 0, 1);
    queue.pause(DEFAULT_GROUP, true);
    (1..=5).for_each(|task| wait(&mut queue, task, of(task)));
    assert_eq!(start(&mut queue, of), []);
    queue.pause(DEFAULT_GROUP, false);
    assert_eq!(start(&mut queue, of).len(), 3);
    queue.set(DEFAULT_GROUP, 1.into());
    end(&mut queue, 1, of(1));
    end(&mut queue, 2, of(2));
    assert_eq!(start(&mut queue, of), [], "the third has the only slot");
    end(&mut queue, 3, of(3));
    assert_eq!(start(&mut queue, of), [(4, Some(1))]);
}

#[test]
fn task_needing_more_slots_than_exist_runs_alone() {
    let mut queue = Queue::new(4);
    let of = |task: u64| demand(None, 0, if task == 2 { 4 } else { 1 });
    (1..=3).for_each(|task| wait(&mut queue, task, of(task)));
    queue.set(DEFAULT_GROUP, 2.into());
    assert_eq!(start(&mut queue, of), [(1, Some(1))]);
    end(&mut queue, 1, of(1));
    assert_eq!(start(&mut queue, of), [(2, Some(1))]);
    assert_eq!(queue.numbers(Ordinal(2)), [1, 2, 3, 4]);
    end(&mut queue, 2, of(2));
    assert_eq!(start(&mut queue, of), [(3, Some(1))]);
}

#[test]
fn manual_slots_last_until_the_configuration_changes_them() {
    let mut queue = Queue::new(2);
    let config =
        |gpu: u32| BTreeMap::from([(Arc::from(DEFAULT_GROUP), 2.into()), (Arc::from("gpu"), gpu.into())]);
    queue.configure(config(1));
    queue.set("gpu", 5.into());
    queue.set("night", 1.into());
    queue.configure(config(1));
    assert_eq!(queue.slots_of(Some("gpu")), 5);
    queue.configure(config(3));
    assert_eq!((queue.slots_of(Some("gpu")), queue.slots_of(Some("night"))), (3, 1));
    let names: Vec<_> = queue.groups().map(|group| group.name.to_string()).collect();
    assert_eq!(names, [DEFAULT_GROUP, "gpu", "night"]);
}

#[test]
fn r123_groups_keep_the_form_of_earlier_releases() {
    let mut queue = Queue::new(2);
    queue.set("gpu", 3.into());
    queue.pause("gpu", true);
    let recorded = r#"{"all":[["default",2,false],["gpu",3,true]],"configured":{"default":2},"former":[]}"#;
    let groups = queue.take_groups().unwrap();
    assert_eq!(serde_json::to_string(&groups).unwrap(), recorded);
    assert_eq!(serde_json::from_str::<Groups>(recorded).unwrap(), groups);
    assert_eq!(serde_json::to_value(&queue).unwrap()["groups"]["gpu"]["slots"], 3, "the state of an upgrade");
}
