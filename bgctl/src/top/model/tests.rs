//! Compares the model with a simple one, and tests what its users rely on.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bgd_shared::id::TaskId;
use bgd_shared::order::{Condition, Dependency};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::render::samples;

fn id(number: u128) -> TaskId {
    TaskId::from_u128(number << 96)
}

fn key(number: u128) -> TaskKey {
    HostNo::default().task(id(number))
}

fn task(number: u128, status: Status) -> Task {
    let created_at = Timestamp::from_unix_ms(i64::try_from(number).unwrap() * 1000);
    let ended = (!status.is_active()).then_some(created_at);
    Task { id: id(number), status, created_at, completed_at: ended, ..samples::task() }
}

fn put(model: &mut Model, task: &Task) {
    model.put(HostNo::default(), task, &Clock::of_tests());
}

fn model(tasks: &[Task]) -> Model {
    let mut model = Model::new(1, None);
    for task in tasks {
        put(&mut model, task);
    }
    model
}

/// Returns the lines in a window: headings by their names, tasks by their numbers.
fn lines(model: &mut Model, height: usize) -> Vec<String> {
    let shown = |spot: Spot| match spot {
        Spot::Head(Head::Section(section)) => section.name().to_owned(),
        Spot::Head(Head::Host(host)) => format!("host {}", host.0),
        Spot::Head(Head::Named(name)) => name.to_string(),
        Spot::Head(Head::Task(key)) => format!("of {}", key.id.as_u128() >> 96),
        Spot::Head(Head::Rest) => "others".to_owned(),
        Spot::Task(sort_key) => (sort_key.task.id.as_u128() >> 96).to_string(),
    };
    model.window(height).into_iter().map(shown).collect()
}

#[test]
fn r160_tasks_are_grouped_by_relevance_to_the_user() {
    let mut asks = task(4, Status::Running);
    asks.progress.needs_input = Some(samples::question());
    let mut model = model(&[
        task(1, Status::Completed),
        task(2, Status::Pending),
        task(3, Status::Running),
        asks,
        task(5, Status::Failed),
        task(6, Status::Running),
    ]);
    let all = ["asks", "4", "failed", "5", "running", "6", "3", "pending", "2", "done", "1"];
    assert_eq!(lines(&mut model, 20), all);
    assert_eq!((model.waiting(), model.counts()), (2, [1, 1, 2, 1, 1]));
    assert_eq!(model.selected_task(), Some(key(4)), "what asks is selected first");
    model.see(key(5));
    assert_eq!(model.waiting(), 1);
    assert_eq!(lines(&mut model, 20)[7..], ["done", "5", "1"]);
    put(&mut model, &Task { completed_at: Some(Timestamp::from_unix_ms(9_000)), ..task(5, Status::Failed) });
    assert_eq!(model.waiting(), 2, "it has failed again");
}

#[test]
fn r160_tasks_created_at_once_keep_their_listing_order() {
    let at_once = |number| Task { created_at: Timestamp::from_unix_ms(0), ..task(number, Status::Pending) };
    let mut model = Model::new(1, None);
    // Ids don't determine the order.
    for number in [4, 9, 2] {
        model.put_listed(HostNo::default(), &at_once(number), &Clock::of_tests());
    }
    for number in [3, 7, 5] {
        put(&mut model, &at_once(number));
    }
    let shown = ["pending", "5", "7", "3", "4", "9", "2"];
    assert_eq!(lines(&mut model, 9), shown);
    put(&mut model, &Task { tags: vec!["changed".into()], ..at_once(9) });
    model.set_filter("pending");
    model.set_filter("");
    assert_eq!(lines(&mut model, 9), shown);
}

#[test]
fn r160_failures_seen_before_are_listed_as_done() {
    let last_seen = Seen { at: Timestamp::from_unix_ms(2_000), unseen: [id(1)].into() };
    let mut model = Model::new(1, Some(last_seen));
    for number in 1..=3 {
        put(&mut model, &task(number, Status::Failed));
    }
    put(&mut model, &Task { ended_in_foreground: true, ..task(4, Status::Failed) });
    assert_eq!(lines(&mut model, 9), ["failed", "3", "1", "done", "4", "2"]);
}

#[test]
fn r160_only_shown_failures_count_as_seen() {
    let mut model = model(&[task(1, Status::Failed), task(2, Status::Failed), task(3, Status::Failed)]);
    put(&mut model, &task(4, Status::Running));
    model.note_visible(&[key(1), key(4)]);
    model.see(key(2));
    assert_eq!(model.unseen(), [(id(3), Timestamp::from_unix_ms(3_000))]);
    put(&mut model, &task(4, Status::Failed));
    put(&mut model, &Task { completed_at: Some(Timestamp::from_unix_ms(9_000)), ..task(1, Status::Failed) });
    let mut unseen: Vec<TaskId> = model.unseen().into_iter().map(|(id, _)| id).collect();
    unseen.sort_unstable();
    assert_eq!(unseen, [id(1), id(3), id(4)], "they have failed since they were shown");
}

#[test]
fn r160_tab_folds_by_session_group_batch_and_dependency() {
    let on = |number| vec![Dependency { id: id(number), condition: Condition::Ok, met: false }];
    let mut model = model(&[
        Task { session: Some("b".into()), batch: Some(id(9)), ..task(1, Status::Running) },
        Task { session: Some("a".into()), group: "gpu".into(), after: on(1), ..task(2, Status::Pending) },
        task(3, Status::Pending),
    ]);
    model.window(9);
    let mut seen = Vec::new();
    for _ in 0..4 {
        model.fold_by_next();
        seen.push(lines(&mut model, 9).join(" "));
    }
    assert_eq!(seen, ["a 2 b 1 others 3", "default 1 3 gpu 2", "of 9 1 others 3 2", "of 1 1 2 others 3"]);
    put(&mut model, &Task { after: Vec::new(), ..task(2, Status::Pending) });
    assert_eq!(lines(&mut model, 9).join(" "), "others 1 3 2", "nobody starts after it any more");
    model.fold_by_next();
    assert_eq!(model.by(), By::Section);
}

#[test]
fn r160_folded_group_is_one_line() {
    let mut model = model(&[task(1, Status::Running), task(2, Status::Running), task(3, Status::Pending)]);
    model.window(9);
    model.fold(true);
    assert_eq!(lines(&mut model, 9), ["running", "pending", "3"]);
    assert!(matches!(model.selected(), Some(Spot::Head(_))));
    put(&mut model, &task(4, Status::Running));
    assert_eq!(model.counts_below(&Head::Section(Section::Running))[2], 3);
    assert_eq!(lines(&mut model, 9).len(), 3);
    model.fold(false);
    assert_eq!(lines(&mut model, 9), ["running", "4", "2", "1", "pending", "3"]);
}

#[test]
fn r160_selection_follows_its_task() {
    let mut model = model(&[task(1, Status::Running), task(2, Status::Running), task(3, Status::Running)]);
    model.window(9);
    model.move_by(1);
    assert_eq!(model.selected_task(), Some(key(2)));
    put(&mut model, &task(2, Status::Completed));
    put(&mut model, &task(4, Status::Running));
    assert_eq!(model.selected_task(), Some(key(2)), "wherever it is now");
    model.remove(key(2));
    assert!(model.selected().is_some(), "something is selected as long as there is something");
    for number in [1, 3, 4] {
        model.remove(key(number));
    }
    assert!(model.selected().is_none() && model.window(9).is_empty());
}

#[test]
fn r162_marks_and_pins_vanish_with_their_task() {
    let mut model = model(&(1..=6).map(|number| task(number, Status::Running)).collect::<Vec<_>>());
    model.window(9);
    assert_eq!(model.chosen(), [key(6)], "without marks the selected one is meant");
    model.mark();
    model.mark();
    assert_eq!(model.chosen(), [key(5), key(6)]);
    model.remove(key(5));
    assert_eq!(model.chosen(), [key(6)]);
    assert!(model.unmark() && !model.unmark());
    for number in 0..5 {
        model.select_end(false);
        model.move_by(number + 1);
        assert_eq!(model.pin(), number < 4, "{number}");
    }
    assert_eq!(model.pins().len(), PINS);
    model.remove(key(6));
    assert_eq!(model.pins().len(), PINS - 1);
}

#[test]
fn r163_new_listing_removes_tasks_it_lacks() {
    let mut model = model(&[task(1, Status::Running), task(2, Status::Running)]);
    model.begin_listing(HostNo::default());
    put(&mut model, &task(2, Status::Running));
    put(&mut model, &task(3, Status::Running));
    model.end_listing(HostNo::default());
    assert_eq!(lines(&mut model, 9), ["running", "3", "2"]);
}

#[test]
fn r163_only_visible_lines_are_laid_out() {
    let mut model = model(&(1..=5000).map(|number| task(number, Status::Running)).collect::<Vec<_>>());
    assert_eq!(model.window(20).len(), 20);
    model.select_end(true);
    let last = lines(&mut model, 20);
    assert_eq!((last[0].as_str(), last[19].as_str()), ("20", "1"));
    model.move_by(-19);
    assert_eq!(lines(&mut model, 20), last, "it does not scroll before it must");
    model.move_by(-1);
    assert_eq!(lines(&mut model, 20)[0], "21");
    assert_eq!(lines(&mut model, 5)[0], "21");
    model.select_end(true);
    assert_eq!(lines(&mut model, 3), ["3", "2", "1"]);
}

#[test]
fn r163_selection_stays_in_the_window_across_headings() {
    let running = (1..=3).map(|number| task(number, Status::Running));
    let ended = (4..=103).map(|number| task(number, Status::Completed));
    let mut model = model(&running.chain(ended).collect::<Vec<_>>());
    model.select_end(false);
    for lines in [1, -1] {
        for step in 0..105 {
            let window = model.window(20);
            let selected = model.selected().unwrap();
            assert!(window.contains(selected), "after {step} moves by {lines}: {selected:?}");
            model.move_by(lines);
        }
    }
}

proptest! {
    #[test]
    fn r163_filter_typed_stepwise_shows_the_same_as_set_at_once(
        words in proptest::collection::vec("[ab]{1,3}", 1..40),
        filter in "[ab]{1,3}",
        by in 0u8..6,
        found in proptest::option::of(proptest::collection::btree_set(1u128..40, 0..40)),
    ) {
        let fill = || {
            let mut model = Model::new(1, None);
            for (number, word) in (1u128..).zip(&words) {
                let status = if number % 3 == 0 { Status::Completed } else { Status::Running };
                put(&mut model, &Task { description: word.clone(), ..task(number, status) });
            }
            (0..by).for_each(|_| model.fold_by_next());
            model.set_found(found.as_ref().map(|found| found.iter().map(|number| key(*number)).collect()));
            model
        };
        let (mut typed, mut at_once) = (fill(), fill());
        for end in 1..=filter.len() {
            typed.set_filter(&filter[..end]);
        }
        at_once.set_filter(&filter);
        prop_assert_eq!(typed.shown(), at_once.shown());
        prop_assert_eq!(typed.tasks().collect::<Vec<_>>(), at_once.tasks().collect::<Vec<_>>());
        let heads = |model: &mut Model| {
            let spots = model.window(100);
            let heads = spots.into_iter().filter(|spot| matches!(spot, Spot::Head(_)));
            heads.map(|spot| model.counts_below(spot.head())).collect::<Vec<_>>()
        };
        prop_assert_eq!(heads(&mut typed), heads(&mut at_once));
    }
}

#[test]
fn r162_huge_filter_is_truncated() {
    let mut model = model(&[task(1, Status::Running)]);
    model.set_filter(&"x".repeat(1 << 20));
    assert_eq!((model.filter().len(), model.shown()), (FILTER_CHARS, 0));
    model.set_filter("");
    assert_eq!(model.shown(), 1);
}

#[test]
fn r144_same_id_on_two_hosts_is_two_tasks() {
    let (mut model, clock) = (Model::new(2, None), Clock::of_tests());
    let [here, there] = [HostNo(0), HostNo(1)];
    for host in [here, there] {
        model.put(host, &task(1, Status::Running), &clock);
    }
    assert_eq!(model.counts(), [0, 0, 2, 0, 0]);
    model.put(there, &task(1, Status::Completed), &clock);
    assert_eq!(model.row(here.task(id(1))).unwrap().status, Status::Running);
    assert_eq!(model.counts(), [0, 0, 1, 0, 1]);
    model.window(9);
    model.mark();
    assert_eq!((model.is_marked(here.task(id(1))), model.is_marked(there.task(id(1)))), (true, false));
    model.begin_listing(there);
    model.end_listing(there);
    assert_eq!(lines(&mut model, 9), ["running", "1"], "what one host lists says nothing about the other");
    model.remove(here.task(id(1)));
    assert!(model.window(9).is_empty());
}

/// Returns a model of these hosts, each with a running task of the same id.
fn hosts(names: &[&str]) -> Model {
    let mut model = Model::new(names.len(), None);
    model.name_hosts(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
    for host in model.hosts() {
        model.put(host, &task(1, Status::Running), &Clock::of_tests());
    }
    model
}

fn silence() -> Silence {
    Silence { since: Some(Timestamp::from_unix_ms(1)), why: "gone".into() }
}

#[test]
fn r144_silent_host_gets_a_line_on_top_and_keeps_its_tasks() {
    let mut model = hosts(&["a", "b"]);
    assert_eq!(lines(&mut model, 9), ["running", "1", "1"]);
    let selected = model.selected_task();
    model.set_silence(HostNo(1), Some(silence()));
    assert_eq!(
        lines(&mut model, 9),
        ["host 1", "running", "1", "1"],
        "seen by whoever looks at the first line"
    );
    assert_eq!(model.selected_task(), selected);
    model.set_filter("host:a");
    assert_eq!(lines(&mut model, 9), ["running", "1"]);
    model.set_filter("s:failed");
    assert_eq!(lines(&mut model, 9), ["host 1"]);
    model.set_filter("");
    model.set_silence(HostNo(1), None);
    assert_eq!(lines(&mut model, 9), ["running", "1", "1"]);
}

#[test]
fn r144_connecting_hosts_have_lines_before_any_task_is_known() {
    let mut model = Model::new(2, None);
    for host in model.hosts() {
        model.set_silence(host, Some(Silence { since: None, why: "connecting".into() }));
    }
    assert_eq!((lines(&mut model, 9), model.is_listed()), (vec!["host 0".into(), "host 1".into()], false));
    assert_eq!(model.selected(), None, "nobody begins at a host without tasks");
    model.select_end(true);
    model.set_silence(HostNo(1), None);
    assert_eq!(model.selected(), None, "its line is gone");
    model.put(HostNo(1), &task(1, Status::Running), &Clock::of_tests());
    model.end_listing(HostNo(1));
    model.set_silence(HostNo(0), Some(silence()));
    assert!(model.is_listed());
    assert_eq!(lines(&mut model, 9), ["host 0", "running", "1"]);
    assert_eq!(model.selected_task(), Some(HostNo(1).task(id(1))));
    model.move_by(-9);
    assert_eq!(model.selected(), Some(&Spot::Head(Head::Host(HostNo(0)))));
}

#[test]
fn r144_tab_folds_by_host_if_there_are_several() {
    let mut model = hosts(&["a", "b", "c"]);
    model.remove(HostNo(1).task(id(1)));
    model.window(9);
    model.fold_by_next();
    assert_eq!((model.by(), lines(&mut model, 9).join(" ")), (By::Host, "host 0 1 host 1 host 2 1".into()));
    model.move_by(9);
    model.fold(true);
    assert_eq!(lines(&mut model, 9).join(" "), "host 0 1 host 1 host 2");
    model.set_filter("host:b");
    assert_eq!(lines(&mut model, 9).join(" "), "host 1");
    model.set_filter("");
    model.fold_by_next();
    assert_eq!((model.by(), lines(&mut model, 9).len()), (By::Session, 3));
}

proptest! {
    #[test]
    fn r144_line_order_stays_consistent_under_random_host_changes(
        steps in proptest::collection::vec((0u8..3, 0u8..7, 1u128..4), 0..40),
    ) {
        let mut model = hosts(&["a", "b", "c"]);
        for (host, step, number) in steps {
            let host = HostNo(host);
            match step {
                0 => model.put(host, &task(number, Status::Running), &Clock::of_tests()),
                1 => model.remove(host.task(id(number))),
                2 => model.set_silence(host, Some(silence())),
                3 => model.set_silence(host, None),
                4 => model.fold_by_next(),
                5 => model.fold(number > 2),
                _ => model.set_filter(["", "host:a", "s:failed"][usize::from(host.0)]),
            }
            let lines = model.window(100);
            prop_assert!(lines.windows(2).all(|two| model.order.next(&two[0]).as_ref() == Some(&two[1])));
            prop_assert!(lines.windows(2).all(|two| model.order.previous(&two[1]).as_ref() == Some(&two[0])));
            prop_assert_eq!(lines.last().cloned(), model.order.last());
            prop_assert!(model.selected().is_none_or(|selected| lines.contains(selected)));
            for host in model.hosts() {
                let is_shown = model.filter.takes_host(model.host_name(host));
                let has_line = model.silence(host).is_some() || model.by() == By::Host;
                prop_assert_eq!(lines.contains(&Spot::Head(Head::Host(host))), is_shown && has_line);
            }
        }
    }
}

/// A change to the model.
#[derive(Clone, Debug)]
enum Step {
    Put(u128, Status, u128),
    Remove(u128),
    See(u128),
    By,
    Filter(bool),
    Fold(bool),
    Move(isize),
    Window(usize),
    Relist(Vec<u128>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let status = proptest::sample::select(Status::ALL.to_vec());
    let step = prop_oneof![
        6 => (1u128..12, status, 0u128..12).prop_map(|(id, status, after)| Step::Put(id, status, after)),
        2 => (1u128..12).prop_map(Step::Remove),
        1 => (1u128..12).prop_map(Step::See),
        1 => Just(Step::By),
        1 => any::<bool>().prop_map(Step::Filter),
        1 => any::<bool>().prop_map(Step::Fold),
        2 => (-5isize..5).prop_map(Step::Move),
        2 => (0usize..8).prop_map(Step::Window),
        1 => proptest::collection::vec(1u128..12, 0..6).prop_map(Step::Relist),
    ];
    proptest::collection::vec(step, 0..60)
}

/// The expected tasks, and whether each was seen.
type Simple = BTreeMap<u128, (Task, bool)>;

fn apply(model: &mut Model, simple: &mut Simple, step: &Step) {
    match step {
        Step::Put(number, status, after) => {
            let mut task = task(*number, *status);
            if after != number && *after > 0 {
                task.after = vec![Dependency { id: id(*after), condition: Condition::Any, met: false }];
            }
            task.tags = if number % 2 == 0 { vec!["even".into()] } else { Vec::new() };
            put(model, &task);
            let seen =
                simple.get(number).is_some_and(|(old, seen)| *seen && old.completed_at == task.completed_at);
            simple.insert(*number, (task, seen));
        }
        Step::Remove(number) => {
            model.remove(key(*number));
            simple.remove(number);
        }
        Step::See(number) => {
            model.see(key(*number));
            if let Some((_, seen)) = simple.get_mut(number) {
                *seen = true;
            }
        }
        Step::By => model.fold_by_next(),
        Step::Filter(is_set) => model.set_filter(if *is_set { "tag:even" } else { "" }),
        Step::Fold(is_folded) => model.fold(*is_folded),
        Step::Move(lines) => model.move_by(*lines),
        Step::Window(height) => {
            let lines = model.window(*height);
            let shows = |selected: &Spot| *height == 0 || lines.contains(selected);
            assert!(model.selected().is_none_or(shows), "{:?} is not in {lines:?}", model.selected());
        }
        Step::Relist(kept) => {
            model.begin_listing(HostNo::default());
            simple.retain(|number, _| kept.contains(number));
            for (task, _) in simple.values() {
                put(model, task);
            }
            model.end_listing(HostNo::default());
        }
    }
}

proptest! {
    #[test]
    fn r163_order_and_counts_match_a_simple_model(steps in steps()) {
        let (mut model, mut simple) = (Model::new(1, None), Simple::new());
        let mut is_filtered = false;
        for step in &steps {
            apply(&mut model, &mut simple, step);
            if let Step::Filter(is_set) = step {
                is_filtered = *is_set;
            }
            let shown: BTreeSet<TaskKey> = simple
                .iter()
                .filter(|(number, _)| !is_filtered || *number % 2 == 0)
                .map(|(number, _)| key(*number))
                .collect();
            prop_assert_eq!(model.tasks().collect::<BTreeSet<_>>(), shown.clone());
            let mut counts = [0; 5];
            let mut sections = HashMap::new();
            for (number, (task, seen)) in &simple {
                let row = Row::of(HostNo::default(), task, &mut Texts::default(), &Clock::of_tests());
                counts[row.section(*seen) as usize] += 1;
                sections.insert(key(*number), row.section(*seen));
            }
            prop_assert_eq!(model.counts(), counts);
            prop_assert_eq!(model.selected().is_some() && shown.is_empty(), false);
            let lines = model.window(1000);
            prop_assert!(model.selected().is_none_or(|selected| lines.contains(selected)));
            prop_assert_eq!(lines.is_empty(), shown.is_empty());
            for spot in &lines {
                match spot {
                    Spot::Head(head) => {
                        let below = shown.iter().filter(|key| model.sort_key(&model.known[*key]).head == *head).count();
                        prop_assert_eq!(model.counts_below(head).iter().sum::<usize>(), below);
                        prop_assert!(below > 0);
                    }
                    Spot::Task(sort_key) => prop_assert_eq!(sort_key.section, sections[&sort_key.task]),
                }
            }
            let drawn = lines.iter().filter_map(Spot::task).collect::<BTreeSet<_>>();
            let folded = shown.iter().filter(|key| model.is_folded(&model.sort_key(&model.known[*key]).head)).count();
            prop_assert_eq!(drawn.len() + folded, shown.len());
            prop_assert!(lines.windows(2).all(|two| model.order.next(&two[0]).as_ref() == Some(&two[1])));
            prop_assert!(lines.windows(2).all(|two| model.order.previous(&two[1]).as_ref() == Some(&two[0])));
        }
    }
}
