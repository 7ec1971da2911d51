//! Conditions and resources that tasks wait for, on real processes: groups, priorities, slots, conditions, times and
//! holds (R100 to R107).

use std::fs;

use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::{TaskId, TaskRef};
use bgd_tests::shared::order::{After, CancelReason, Condition, Group, Restart, Retry, WaitingFor};
use bgd_tests::shared::request::Matching;
use bgd_tests::shared::request::{
    CancelParams, DaemonReload, EditParams, Encoding, GroupContinue, GroupList, GroupParams, GroupPause,
    GroupRemove, GroupSet, GroupSetParams, ListParams, NoParams, SelectParams, Stdin, SubmitParams,
    TaskCancel, TaskEdit, TaskHold, TaskList, TaskRelease, TaskSubmit, TaskWrite, WriteParams,
};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::shared::time::Timestamp;
use bgd_tests::{FakeDaemon, TestDaemon};

fn shell(daemon: &TestDaemon, line: &str) -> SubmitParams {
    SubmitParams { shell: Some(line.into()), ..daemon.params() }
}

/// A task that runs until [`open`] is called.
pub(super) fn gate(daemon: &TestDaemon, params: SubmitParams) -> TaskId {
    let params =
        SubmitParams { argv: Some(vec!["cat".into()]), shell: None, stdin: Some(Stdin::Pipe), ..params };
    daemon.submit_with(&params).id
}

pub(super) fn open(daemon: &TestDaemon, gate: TaskId) {
    daemon.wait_running(gate);
    let eof = WriteParams { id: gate.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&eof).expect("task.write");
}

fn in_group(daemon: &TestDaemon, group: &str) -> SubmitParams {
    SubmitParams { group: Some(group.into()), ..daemon.params() }
}

fn after(id: TaskId, condition: Condition) -> After {
    After { id: id.into(), condition }
}

fn edit(id: TaskId) -> EditParams {
    EditParams {
        id: id.into(),
        description: None,
        group: None,
        priority: None,
        slots: None,
        after: None,
        delay_ms: None,
        start_at: None,
    }
}

fn select(id: TaskId) -> SelectParams {
    SelectParams { ids: vec![id.into()], matching: None }
}

fn set_group(daemon: &TestDaemon, name: &str, slots: u32) -> Group {
    let params = GroupSetParams { name: name.into(), slots };
    daemon.client().call::<GroupSet>(&params).expect("group.set").group
}

fn of_group(name: &str) -> GroupParams {
    GroupParams { name: name.into() }
}

fn waits_for(daemon: &TestDaemon, id: TaskId) -> WaitingFor {
    daemon.task(id).waiting.unwrap_or_else(|| panic!("{id} waits for nothing")).reason
}

/// Returns the lines that tasks have written to the file `order`.
fn order(daemon: &TestDaemon) -> Vec<String> {
    fs::read_to_string(daemon.home().join("order")).unwrap().lines().map(Into::into).collect()
}

#[test]
fn r100_each_group_has_its_own_slots() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n[groups.gpu]\nslots = 2").start();
    let first = gate(&daemon, daemon.params());
    let waits = gate(&daemon, daemon.params());
    let gpus: Vec<TaskId> = (0..3).map(|_| gate(&daemon, in_group(&daemon, "gpu"))).collect();
    daemon.wait_running(first);
    gpus[..2].iter().for_each(|id| drop(daemon.wait_running(*id)));
    assert_eq!([waits, gpus[2]].map(|id| waits_for(&daemon, id)), [WaitingFor::Slot; 2]);
    let groups = daemon.client().call::<GroupList>(&NoParams {}).expect("group.list").groups;
    let figures = |group: &Group| (group.name.clone(), group.slots, group.used, group.pending, group.running);
    let wanted = [("default".to_owned(), 1, 1, 1, 1), ("gpu".to_owned(), 2, 2, 1, 2)];
    assert_eq!(groups.iter().map(figures).collect::<Vec<_>>(), wanted);
    open(&daemon, gpus[0]);
    daemon.wait_running(gpus[2]);
    let task = daemon.task(gpus[2]);
    assert_eq!((task.group.as_str(), task.slot), ("gpu", Some(1)), "the lowest free slot");
    daemon.cancel(&[&gpus[..], &[first, waits]].concat());
}

#[test]
fn r100_submit_reports_whether_its_task_starts_or_what_it_waits_for() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let submit =
        || daemon.submit_with(&SubmitParams { shell: Some("exec sleep 1000".into()), ..daemon.params() });
    let (first, second) = (submit(), submit());
    assert_eq!((first.status, first.waiting), (Status::Pending, None), "it is the next to start");
    assert_eq!(second.waiting.map(|waiting| waiting.reason), Some(WaitingFor::Slot));
    daemon.cancel(&[first.id, second.id]);
}

#[test]
fn r100_changed_slot_limit_takes_effect_at_once_and_ends_nothing() {
    let daemon = TestDaemon::start();
    assert_eq!(set_group(&daemon, "gpu", 1).slots, 1);
    let tasks: Vec<TaskId> = (0..4).map(|_| gate(&daemon, in_group(&daemon, "gpu"))).collect();
    daemon.wait_running(tasks[0]);
    assert_eq!(set_group(&daemon, "gpu", 3).slots, 3);
    tasks[1..3].iter().for_each(|id| drop(daemon.wait_running(*id)));
    let group = set_group(&daemon, "gpu", 1);
    assert_eq!((group.slots, group.used, group.running, group.pending), (1, 3, 3, 1), "nothing is ended");
    open(&daemon, tasks[0]);
    daemon.block(&tasks[..1]);
    assert_eq!(waits_for(&daemon, tasks[3]), WaitingFor::Slot, "two still have more than there is");
    tasks[1..3].iter().for_each(|id| open(&daemon, *id));
    daemon.wait_running(tasks[3]);
    daemon.cancel(&tasks);
}

#[test]
fn r100_paused_group_starts_nothing_until_continued() {
    let daemon = TestDaemon::start();
    let group = daemon.client().call::<GroupPause>(&of_group("default")).expect("group.pause").group;
    assert!(group.paused);
    let task = daemon.submit_shell("echo ran");
    assert_eq!(waits_for(&daemon, task), WaitingFor::Paused);
    let group = daemon.client().call::<GroupContinue>(&of_group("default")).expect("group.continue").group;
    assert!(!group.paused);
    assert_eq!(daemon.block(&[task])[0].status, Status::Completed);
}

#[test]
fn r100_group_in_use_is_not_removed_and_invalid_group_is_named() {
    let daemon = TestDaemon::start();
    set_group(&daemon, "night", 1);
    let task = gate(&daemon, in_group(&daemon, "night"));
    let error = daemon.refusal::<GroupRemove>(&of_group("night"));
    assert_eq!(
        (error.kind(), error.message.as_str()),
        (ErrorKind::GroupInUse, "group night can't be removed: 1 of its tasks has not ended")
    );
    daemon.cancel(&[task]);
    assert_eq!(
        daemon.client().call::<GroupRemove>(&of_group("night")).expect("group.remove").group.finished,
        1
    );
    let error = daemon
        .refusal::<TaskSubmit>(&SubmitParams { shell: Some("true".into()), ..in_group(&daemon, "night") });
    assert_eq!(error.kind(), ErrorKind::UnknownGroup);
    assert_eq!(error.message, "unknown group \"night\"; known groups: default");
    assert_eq!(error.data.hint.as_deref(), Some("`bgctl group set night --slots 1` creates it"));
    for name in ["", "a b", "../x", &"x".repeat(65)] {
        let error = daemon.refusal::<GroupSet>(&GroupSetParams { name: name.into(), slots: 1 });
        assert!(error.message.contains("is not a valid group name"), "{error}");
    }
    for slots in [0, 100_001] {
        let error = daemon.refusal::<GroupSet>(&GroupSetParams { name: "x".into(), slots });
        assert!(error.message.contains("must be 1 to 100000"), "{error}");
    }
    let error = daemon.refusal::<GroupRemove>(&of_group("default"));
    assert_eq!(error.message, "the group `default` can't be removed");
}

#[test]
fn r100_configuration_defines_groups_and_reload_changes_them() {
    let daemon = TestDaemon::builder().config("[groups.gpu]\nslots = 1").start();
    let tasks: Vec<TaskId> = (0..2).map(|_| gate(&daemon, in_group(&daemon, "gpu"))).collect();
    daemon.wait_running(tasks[0]);
    daemon.write_config("[groups.gpu]\nslots = 2\n[groups.disk]\nslots = 1");
    let changed = daemon.client().call::<DaemonReload>(&NoParams {}).expect("daemon.reload").changed;
    assert_eq!(changed, ["groups.disk.slots", "groups.gpu.slots"]);
    daemon.wait_running(tasks[1]);
    daemon.cancel(&tasks);
    // Removed here, but not from the file.
    daemon.client().call::<GroupRemove>(&of_group("disk")).expect("group.remove");
    let reload = || daemon.client().call::<DaemonReload>(&NoParams {}).expect("daemon.reload");
    let again = reload();
    assert_eq!((again.changed, again.recreated_groups), (Vec::new(), vec!["disk".to_owned()]));
    assert!(reload().recreated_groups.is_empty(), "it is there");
    daemon.write_config("[groups.gpu]\nslots = 0");
    let error = daemon.refusal::<DaemonReload>(&NoParams {});
    assert!(error.message.contains("`groups.gpu.slots` is 0; it must be 1 to 100000"), "{error}");
}

#[test]
fn r101_highest_priority_starts_first_and_equals_start_in_order() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let first = gate(&daemon, daemon.params());
    let tasks = [(0, "b1"), (-100, "d"), (100, "a"), (0, "b2"), (-1, "c")].map(|(priority, word)| {
        let params =
            SubmitParams { priority: Some(priority), ..shell(&daemon, &format!("echo {word} >> order")) };
        daemon.submit_with(&params).id
    });
    open(&daemon, first);
    daemon.block(&tasks);
    assert_eq!(order(&daemon), ["a", "b1", "b2", "c", "d"]);
    let error = daemon.refusal::<TaskSubmit>(&SubmitParams { priority: Some(101), ..shell(&daemon, "true") });
    assert_eq!(error.message, "`priority` is 101; it must be -100 to 100");
}

#[test]
fn r101_first_task_in_queue_that_does_not_fit_is_not_overtaken() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let first = gate(&daemon, daemon.params());
    daemon.wait_running(first);
    let taking = |slots| SubmitParams { slots: Some(slots), ..shell(&daemon, "true") };
    let [large, small] = [2, 0].map(|slots| daemon.submit_with(&taking(slots)).id);
    assert_eq!([large, small].map(|id| waits_for(&daemon, id)), [WaitingFor::Slot; 2]);
    open(&daemon, first);
    daemon.block(&[large, small]);
}

#[test]
fn r102_task_environment_names_its_slots_and_group() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 3\n[groups.gpu]\nslots = 3").start();
    let gates: Vec<TaskId> = (0..3).map(|_| gate(&daemon, in_group(&daemon, "gpu"))).collect();
    for id in &gates {
        daemon.wait_running(*id);
    }
    let line = "echo $BGD_GROUP $BGD_SLOT $BGD_SLOTS $BGD_SLOT_LIST ${BGD_AFTER-none} ${BGD_ATTEMPT-none}";
    let two = SubmitParams { slots: Some(2), shell: Some(line.into()), ..in_group(&daemon, "gpu") };
    let two = daemon.submit_with(&two).id;
    // The first and the last slot are free, and the task occupies these.
    open(&daemon, gates[0]);
    open(&daemon, gates[2]);
    daemon.block(&[two]);
    assert_eq!(String::from_utf8(daemon.output(two)).unwrap(), "gpu 1 2 1,3 none none\n");
    open(&daemon, gates[1]);
    let plain = daemon.submit_shell(line);
    daemon.block(&[plain]);
    assert_eq!(String::from_utf8(daemon.output(plain)).unwrap(), "default 1 1 1 none none\n");
    // Such variables of the submitter, which is a task itself, do not reach a task that occupies no slot.
    let line = "echo ${BGD_SLOT-none} $BGD_SLOTS ${BGD_AFTER-none}";
    let mut params = SubmitParams { slots: Some(0), ..shell(&daemon, line) };
    params.env = params.env.map(|env| {
        env.0.into_iter().chain([("BGD_SLOT".into(), "7".into()), ("BGD_AFTER".into(), "x".into())]).collect()
    });
    let none = daemon.submit_with(&params).id;
    daemon.block(&[none]);
    assert_eq!(String::from_utf8(daemon.output(none)).unwrap(), "none 0 none\n");
    let error = daemon.refusal::<TaskSubmit>(&SubmitParams { slots: Some(4), ..shell(&daemon, "true") });
    assert_eq!(error.message, "group default has 3 slots, but the task takes 4");
}

#[test]
fn r103_task_starts_when_all_its_conditions_are_met() {
    let daemon = TestDaemon::start();
    let [one, two] = [(); 2].map(|()| gate(&daemon, daemon.params()));
    let conditions = vec![after(one, Condition::Ok), after(two, Condition::Start)];
    let task = daemon.submit_with(&SubmitParams { after: conditions, ..shell(&daemon, "echo ran") });
    daemon.wait_running(two);
    let waiting = daemon.task(task.id).waiting.expect("it waits");
    assert_eq!((waiting.reason, waiting.ids), (WaitingFor::After, vec![one]));
    open(&daemon, one);
    assert_eq!(daemon.block(&[task.id])[0].status, Status::Completed);
    let met: Vec<bool> = daemon.task(task.id).after.iter().map(|one| one.met).collect();
    assert_eq!(met, [true, true]);
    daemon.cancel(&[two]);
}

#[test]
fn r103_condition_depends_on_how_the_other_task_ended() {
    use Condition::{Any, Fail, Ok, Ready, Start};
    let daemon = TestDaemon::start();
    let never = daemon
        .submit_with(&SubmitParams { argv: Some(vec!["/no/such/program".into()]), ..daemon.params() })
        .id;
    let well = daemon.submit_shell("true");
    let badly = daemon.submit_shell("exit 3");
    let cancelled = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(cancelled);
    daemon.cancel(&[cancelled]);
    daemon.block(&[never, well, badly]);
    let held = |other: TaskId, condition: Condition| {
        let params = SubmitParams { after: vec![after(other, condition)], ..shell(&daemon, "true") };
        let task = daemon.submit_with(&params).id;
        daemon.block(&[task])[0].clone()
    };
    for (other, met) in [
        (well, vec![Ok, Any, Start]),
        (badly, vec![Any, Fail, Start]),
        (cancelled, vec![Any, Start]),
        (never, vec![Any, Fail]),
    ] {
        for condition in [Ok, Any, Fail, Start, Ready] {
            let task = held(other, condition);
            let wanted = if met.contains(&condition) { Status::Completed } else { Status::Cancelled };
            assert_eq!(task.status, wanted, "{condition} after {}: {task:?}", daemon.task(other).status);
            let reason = task.cancel_reason;
            assert_eq!(reason, (wanted == Status::Cancelled).then_some(CancelReason::Dependency));
            assert_eq!(
                task.started_at.is_some(),
                wanted == Status::Completed,
                "one that can't start never did"
            );
        }
    }
    assert_eq!(
        held(badly, Ok).error,
        Some(format!("task {badly} failed with code 3, but had to complete first"))
    );
    assert_eq!(
        held(never, Ok).error,
        Some(format!("task {never} could not be started, but had to complete first"))
    );
}

#[test]
fn r103_impossible_condition_cancels_the_whole_chain() {
    let daemon = TestDaemon::start();
    let head = gate(&daemon, daemon.params());
    let mut chain = vec![head];
    for _ in 0..50 {
        let before = vec![after(chain[chain.len() - 1], Condition::Ok)];
        chain.push(daemon.submit_with(&SubmitParams { after: before, ..shell(&daemon, "touch ran") }).id);
    }
    let rescue = SubmitParams { after: vec![after(head, Condition::Any)], ..shell(&daemon, "echo rescued") };
    let rescue = daemon.submit_with(&rescue).id;
    daemon.wait_running(head);
    daemon.cancel(&[head]);
    for task in daemon.block(&chain[1..]) {
        assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::Dependency)));
    }
    assert_eq!(daemon.block(&[rescue])[0].status, Status::Completed);
    assert!(!daemon.home().join("ran").exists());
}

#[test]
fn r103_invalid_and_circular_conditions_are_refused() {
    let daemon = TestDaemon::start();
    let head = gate(&daemon, daemon.params());
    let unknown: TaskRef = "ffffffff".parse().unwrap();
    let params = SubmitParams {
        after: vec![After { id: unknown, condition: Condition::Ok }],
        ..shell(&daemon, "true")
    };
    assert_eq!(daemon.refusal::<TaskSubmit>(&params).kind(), ErrorKind::TaskNotFound);
    let next = daemon
        .submit_with(&SubmitParams { after: vec![after(head, Condition::Ok)], ..shell(&daemon, "true") })
        .id;
    let last = daemon
        .submit_with(&SubmitParams { after: vec![after(next, Condition::Ok)], ..shell(&daemon, "true") })
        .id;
    let behind = format!("after task {last}, which itself starts after task {next}");
    for (other, why) in [(next, "after itself"), (last, &*behind)] {
        let circle = EditParams { after: Some(vec![after(other, Condition::Any)]), ..edit(next) };
        let error = daemon.refusal::<TaskEdit>(&circle);
        assert_eq!(error.message, format!("task {next} can't start {why}"));
    }
    let many = SubmitParams { after: vec![after(head, Condition::Ok); 1001], ..shell(&daemon, "true") };
    assert_eq!(
        daemon.refusal::<TaskSubmit>(&many).message,
        "`after` names 1001 tasks; at most 1000 are allowed"
    );
    let shown = SubmitParams { foreground: true, hold: true, ..shell(&daemon, "true") };
    assert!(daemon.refusal::<TaskSubmit>(&shown).message.starts_with("`foreground` can't be combined with"));
    daemon.cancel(&[head]);
    assert_eq!(daemon.block(&[last])[0].status, Status::Cancelled);
}

#[test]
fn r104_dependent_task_gets_ids_and_output_files_of_its_predecessors() {
    let daemon = TestDaemon::start();
    let [one, two] = ["echo first", "echo second"].map(|line| daemon.submit_shell(line));
    let line = r#"echo $BGD_AFTER; cat "$BGD_AFTER_FILE_1" "$BGD_AFTER_FILE_2""#;
    let conditions = vec![after(one, Condition::Ok), after(two, Condition::Any)];
    let task = daemon.submit_with(&SubmitParams { after: conditions, ..shell(&daemon, line) }).id;
    daemon.block(&[task]);
    let output = String::from_utf8(daemon.output(task)).unwrap();
    assert_eq!(output, format!("{one} {two}\nfirst\nsecond\n"));
}

#[test]
fn r104_prompt_can_quote_the_tasks_it_started_after() {
    let daemon = FakeDaemon::start(&[], "");
    let build = daemon.submit_shell("printf 'error: no such crate,'; exit 101");
    let prompt = "say build {after.status}: {after.output}{after.result}in {after.file}, {after.2.result}, {after.3.file}";
    let review = daemon.completed("say looks good").id;
    let conditions = vec![after(build, Condition::Fail), after(review, Condition::Ok)];
    let agent = daemon.submit_with(&SubmitParams { after: conditions, ..daemon.prompt_params(prompt) }).id;
    assert_eq!(daemon.block(&[agent])[0].status, Status::Completed);
    let path = daemon.task(build).output.path;
    let output = String::from_utf8(daemon.output(agent)).unwrap();
    let line = "error: no such crate,";
    // A placeholder for a task that does not exist stays as it is.
    let wanted = format!("build failed: {line}{line}in {path}, looks good, {{after.3.file}}");
    assert!(output.contains(&wanted), "{output}\nhas not\n{wanted}");
    assert_eq!(daemon.task(agent).prompt.as_deref(), Some(prompt), "the task shows what was written");
}

#[test]
fn r104_prompt_is_given_reason_for_missing_result() {
    let daemon = FakeDaemon::start(&[], "");
    let failed = daemon.failed("error -32603 no").0.id;
    let conditions = vec![after(failed, Condition::Any)];
    let prompt = "say {after.result}";
    let agent = daemon.submit_with(&SubmitParams { after: conditions, ..daemon.prompt_params(prompt) }).id;
    daemon.block(&[agent]);
    assert_eq!(daemon.result(agent), format!("(task {failed} is failed and has given no answer)"));
}

#[test]
fn r105_delayed_task_does_not_start_before_its_time() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let soon = daemon.submit_with(&SubmitParams { delay_ms: Some(300), ..shell(&daemon, "true") });
    let waiting = soon.waiting.clone().expect("it waits");
    let until = waiting.until.expect("a time").unix_ms();
    assert_eq!((waiting.reason, until - soon.created_at.unix_ms()), (WaitingFor::Until, 300));
    let started = watch.until(|event| event.kind == EventKind::Started);
    let waited = started.at.unix_ms() - soon.created_at.unix_ms();
    assert!(waited >= 300, "it started after {waited} ms");
    let far = Timestamp::now().plus_ms(3_600_000);
    let later = daemon.submit_with(&SubmitParams { start_at: Some(far), ..shell(&daemon, "true") });
    assert_eq!(later.waiting.and_then(|waiting| waiting.until), Some(far));
    daemon.cancel(&[later.id]);
    let at = Timestamp::now().plus_ms(300);
    daemon.submit_with(&SubmitParams { start_at: Some(at), ..shell(&daemon, "true") });
    let started = watch.until(|event| event.kind == EventKind::Started);
    assert!(started.at >= at, "it started at {}, before {at}", started.at);
    let over = SubmitParams { start_at: Some(Timestamp::from_unix_ms(0)), ..shell(&daemon, "true") };
    assert_eq!(daemon.block(&[daemon.submit_with(&over).id])[0].status, Status::Completed);
    let both = SubmitParams { delay_ms: Some(1), start_at: Some(at), ..shell(&daemon, "true") };
    assert_eq!(
        daemon.refusal::<TaskSubmit>(&both).message,
        "`delay_ms` and `start_at` can't be combined: give one of them"
    );
}

#[test]
fn r106_held_task_waits_until_released() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let held = daemon.submit_with(&SubmitParams { hold: true, ..shell(&daemon, "true") }).id;
    assert_eq!(waits_for(&daemon, held), WaitingFor::Held);
    let free = daemon.submit_with(&SubmitParams { delay_ms: Some(3_600_000), ..shell(&daemon, "true") }).id;
    daemon.client().call::<TaskHold>(&select(free)).expect("task.hold");
    assert_eq!(watch.until(|event| event.kind == EventKind::Held).task.id, free);
    assert_eq!(waits_for(&daemon, free), WaitingFor::Held);
    let all = Matching { status: vec![Status::Pending], ..Matching::default() };
    let all = SelectParams { ids: Vec::new(), matching: Some(all) };
    let released = daemon.client().call::<TaskRelease>(&all).expect("task.release").tasks;
    assert_eq!(released.len(), 2);
    assert_eq!(waits_for(&daemon, free), WaitingFor::Until, "what else it waits for stays");
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
    let error = daemon.refusal::<TaskHold>(&select(held));
    assert_eq!(error.kind(), ErrorKind::NotPending);
    assert_eq!(error.message, format!("task {held} is not pending: it completed"));
    let nothing = SelectParams::default();
    assert_eq!(daemon.refusal::<TaskHold>(&nothing).message, "no task given: give `ids` or `matching`");
    daemon.cancel(&[free]);
}

#[test]
fn r115_start_time_and_retries_are_shown_while_something_else_comes_first() {
    let daemon = TestDaemon::start();
    let start_at = Timestamp::from_unix_ms(4_000_000_000_000);
    let retry = Retry { times: 3, delay_ms: None, max_delay_ms: None, codes: vec![75], signal: false };
    let params = SubmitParams {
        hold: true,
        start_at: Some(start_at),
        retry: Some(retry.clone()),
        ..shell(&daemon, "true")
    };
    let held = daemon.submit_with(&params).id;
    let task = daemon.task(held);
    assert_eq!(waits_for(&daemon, held), WaitingFor::Held);
    assert_eq!((task.start_at, task.restart), (Some(start_at), None));
    let shown = task.retry.expect("its rule");
    assert_eq!((shown.times, &shown.codes, shown.signal), (3, &retry.codes, false));
    assert!(shown.delay_ms.is_some() && shown.max_delay_ms.is_some(), "with the defaults: {shown:?}");
    let later = start_at.plus_ms(60_000);
    let edited = daemon.client().call::<TaskEdit>(&EditParams { start_at: Some(later), ..edit(held) });
    assert_eq!(edited.expect("task.edit").task.start_at, Some(later));
    let page = daemon.run(&["status", &held.to_string()]).success().stdout_text();
    assert!(page.contains("\nnot before:  2096-10-0"), "{page}");
    assert!(page.contains("\nretries:     up to 3, on exit code 75\n"), "{page}");
    let kept = SubmitParams { hold: true, restart: Some(Restart::Always), ..shell(&daemon, "true") };
    let kept = daemon.task(daemon.submit_with(&kept).id);
    assert_eq!((kept.restart, kept.retry, kept.start_at), (Some(Restart::Always), None, None));
}

#[test]
fn r107_empty_description_shows_the_command_again() {
    let daemon = TestDaemon::start();
    for description in [None, Some("as submitted".to_owned())] {
        let params = SubmitParams { hold: true, description, ..shell(&daemon, "true") };
        let held = daemon.submit_with(&params).id;
        for (text, shown) in [("renamed", "renamed"), ("", "true")] {
            let params = EditParams { description: Some(text.into()), ..edit(held) };
            daemon.client().call::<TaskEdit>(&params).expect("task.edit");
            assert_eq!(daemon.task(held).description, shown);
        }
        daemon.run(&["edit", &held.to_string(), "-d", "again"]).success();
        assert_eq!(daemon.task(held).description, "again");
        daemon.run(&["edit", &held.to_string(), "-d", ""]).success();
        assert_eq!(daemon.task(held).description, "true");
    }
}

#[test]
fn r107_conditions_of_a_pending_task_can_be_edited() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n[groups.free]\nslots = 1").start();
    let first = gate(&daemon, daemon.params());
    let task = daemon.submit_with(&SubmitParams { delay_ms: Some(3_600_000), ..shell(&daemon, "true") }).id;
    let change =
        |params: EditParams| -> Task { daemon.client().call::<TaskEdit>(&params).expect("task.edit").task };
    let edited = change(EditParams { description: Some("renamed".into()), priority: Some(7), ..edit(task) });
    assert_eq!((edited.description.as_str(), edited.priority), ("renamed", 7));
    assert_eq!(waits_for(&daemon, task), WaitingFor::Until);
    change(EditParams { delay_ms: Some(0), after: Some(vec![after(first, Condition::Ok)]), ..edit(task) });
    assert_eq!(waits_for(&daemon, task), WaitingFor::After);
    let error =
        daemon.refusal::<TaskEdit>(&EditParams { group: Some("free".into()), slots: Some(2), ..edit(task) });
    assert_eq!(error.message, "group free has 1 slot, but the task takes 2");
    assert_eq!(daemon.task(task).group, "default", "nothing is half done");
    change(EditParams { after: Some(Vec::new()), ..edit(task) });
    assert_eq!(waits_for(&daemon, task), WaitingFor::Slot);
    change(EditParams { group: Some("free".into()), ..edit(task) });
    assert_eq!(daemon.block(&[task])[0].status, Status::Completed);
    assert_eq!(
        daemon.refusal::<TaskEdit>(&EditParams { priority: Some(1), ..edit(task) }).kind(),
        ErrorKind::NotPending
    );
    let nothing = daemon.refusal::<TaskEdit>(&edit(first));
    assert_eq!(nothing.message, "nothing to change: give at least one of the fields besides `id`");
    daemon.cancel(&[first]);
}

#[test]
fn r113_calls_select_tasks_by_group_tag_session_and_status() {
    let daemon = TestDaemon::builder().config("[groups.gpu]\nslots = 1").start();
    let tagged = |tags: &[&str], group: &str| {
        let tags = tags.iter().map(ToString::to_string).collect();
        gate(&daemon, SubmitParams { tags, session: Some("s".into()), ..in_group(&daemon, group) })
    };
    let [a, b, ab] = [tagged(&["a"], "default"), tagged(&["b"], "gpu"), tagged(&["a", "b"], "gpu")];
    let list = |params: ListParams| -> Vec<TaskId> {
        let tasks = daemon.client().call::<TaskList>(&params).expect("task.list").tasks;
        tasks.iter().map(|task| task.id).collect()
    };
    assert_eq!(list(ListParams { tags: vec!["a".into()], ..ListParams::default() }), [ab, a]);
    assert_eq!(list(ListParams { group: Some("gpu".into()), ..ListParams::default() }), [ab, b]);
    let both = vec!["b".to_owned(), "a".to_owned()];
    assert_eq!(list(ListParams { tags: both, session: Some("s".into()), ..ListParams::default() }), [ab]);
    daemon.wait_running(b);
    let pending =
        Matching { group: Some("gpu".into()), status: vec![Status::Pending], ..Matching::default() };
    let cancel = CancelParams { matching: Some(pending), ..CancelParams::default() };
    let cancelled = daemon.client().call::<TaskCancel>(&cancel).expect("task.cancel").tasks;
    assert_eq!(cancelled.iter().map(|task| task.id).collect::<Vec<_>>(), [ab]);
    let empty = CancelParams { matching: Some(Matching::default()), ..CancelParams::default() };
    assert!(daemon.refusal::<TaskCancel>(&empty).message.starts_with("`matching` is empty"));
    let twice = CancelParams {
        ids: vec![a.into()],
        matching: Some(Matching { session: Some("s".into()), ..Matching::default() }),
        ..CancelParams::default()
    };
    assert_eq!(
        daemon.refusal::<TaskCancel>(&twice).message,
        "`ids` and `matching` can't be combined: give one of them"
    );
    daemon.cancel(&[a, b]);
}
