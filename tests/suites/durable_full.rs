//! Disks that are full, and journals that can't be written (R130): new work is refused, and all other changes are written
//! to the space that the journal has reserved.

use std::fs;

use bgd_tests::shared::event::{Event, EventKind};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::WaitingFor;
use bgd_tests::shared::request::{
    CancelParams, SelectParams, SignalParams, SubmitParams, SubscribeParams, TaskCancel, TaskPause,
    TaskSignal, TaskSubmit,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::user::{fill_disk, filler_of, keep_disk, on_a_small_disk_with};
use bgd_tests::{Outcome, Process, Raw, TestDaemon, Watch, wait};
use rustix::process::Resource;
use serde_json::json;

/// Submits until a submit is refused. Returns the refusal and the number of accepted submits.
#[track_caller]
fn submit_until_refused(daemon: &TestDaemon) -> (Outcome, u64) {
    let mut accepted = 0;
    let refused = wait::poll_until("a submit is refused", || {
        let outcome = daemon.run(&["submit", "--hold", "--", "true"]);
        accepted += u64::from(outcome.code == 0);
        (outcome.code != 0).then_some(outcome)
    });
    (refused, accepted)
}

#[test]
fn r130_full_disk_refuses_submits_with_reason_and_running_tasks_continue() {
    let daemon = on_a_small_disk_with("size=4m", "durable = true");
    let running = daemon.submit_shell("mkfifo go; read line < go; exit 7");
    wait::for_file(&daemon.home().join("go"));
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let fill = fill_disk(&daemon);
    let known = || daemon.status().summary.total();
    let before = known();
    let (refused, accepted) = submit_until_refused(&daemon);
    let accepted = before + accepted;
    assert_eq!(known(), accepted, "what was refused is not there");
    assert!(refused.stderr.contains("the journal can't be written: the disk is full"), "{}", refused.stderr);
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("the journal can't be written (the disk is full)"), "{warnings}");
    wait::for_reader(&daemon.home().join("go"), "on\n");
    assert_eq!(daemon.block(&[running])[0].exit, Some(Exit::Code(7)));
    daemon.run(&["release", &held.to_string()]).success();
    daemon.run(&["submit", "--", "true"]).expect_code(70);
    assert_eq!(known(), accepted, "nor is what was refused at once");

    fs::remove_file(fill).unwrap();

    assert_eq!(daemon.block(&[held])[0].status, Status::Completed, "its start was held back until then");
    let after = wait::poll_until("a submit is accepted", || {
        let outcome = daemon.run(&["submit", "--", "true"]);
        (outcome.code == 0).then(|| outcome.word::<TaskId>())
    });
    assert_eq!(daemon.block(&[after])[0].status, Status::Completed);
    assert!(daemon.status().warnings.iter().all(|warning| !warning.contains("journal")));
}

#[test]
fn r130_calls_on_task_held_back_by_unwritable_journal_are_answered() {
    let daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.process().limit(Resource::Fsize, Some(64));
    // The task starts before the daemon knows that the start can't be written.
    daemon.run(&["release", &held.to_string()]).success();
    let mut client = daemon.client();
    let one = SelectParams { ids: vec![held.into()], ..SelectParams::default() };
    assert!(client.call::<TaskPause>(&one).unwrap().tasks[0].paused);
    let signal = SignalParams { id: held.into(), signal: "USR1".into(), tree: false };
    let refused = client.call::<TaskSignal>(&signal).expect_err("nothing was started").to_string();
    assert!(refused.contains("the journal can't be written: "), "{refused}");
    let cancel = CancelParams { ids: vec![held.into()], ..CancelParams::default() };
    assert_eq!(client.call::<TaskCancel>(&cancel).unwrap().tasks[0].status, Status::Cancelled);
    let submit = || daemon.run(&["submit", "--hold", "--", "true"]);
    let refused = submit().expect_code(70).stderr;
    assert!(refused.contains("limit of file sizes (`ulimit -f`)\nhint: `bgctl daemon restart`"), "{refused}");
    daemon.process().limit(Resource::Fsize, None);
    wait::poll_until("a submit is accepted", || (submit().code == 0).then_some(()));
}

#[test]
fn r130_refused_submit_leaves_no_notice_in_inbox() {
    let daemon = TestDaemon::durable("");
    daemon.process().limit(Resource::Fsize, Some(64));
    let submit = || {
        let params =
            SubmitParams { argv: Some(vec!["true".into()]), session: Some("s".into()), ..daemon.params() };
        daemon.client().call::<TaskSubmit>(&params).map(|result| result.task.id)
    };
    // The core knows the task before the daemon knows that it can't be written.
    let refused = submit().expect_err("a limit is in the way").to_string();
    assert!(refused.contains("the journal can't be written: "), "{refused}");
    daemon.process().limit(Resource::Fsize, None);
    let accepted = wait::poll_until("a submit is accepted", || submit().ok());
    daemon.block(&[accepted]);
    let notified: Vec<TaskId> = daemon.inbox("s").into_iter().map(|item| item.notice.task.id).collect();
    assert_eq!(notified, [accepted]);
}

#[test]
fn r130_task_of_refused_submit_never_runs() {
    let daemon = TestDaemon::durable("max_concurrent_tasks = 1");
    daemon.process().limit(Resource::Fsize, Some(64));
    let mut raw = Raw::connect(daemon.socket());
    // The first one occupies the only slot until it is refused.
    let ids = [1, 2, 3];
    let params = json!({"shell": "exec sleep 1000", "env": {}, "cwd": "/"});
    for id in ids {
        raw.request(id, "task.submit", &params);
    }
    let mut refused = ids.map(|_| {
        let answer = raw.receive().expect("an answer");
        assert_eq!(answer["error"]["data"]["kind"], "journal_unwritable", "{answer}");
        answer["id"].as_u64().expect("its number")
    });
    refused.sort_unstable();
    assert_eq!(refused, ids);
    daemon.process().limit(Resource::Fsize, None);
    let submit = || daemon.run(&["submit", "--", "true"]);
    let accepted = wait::poll_until("a submit is accepted", || {
        let outcome = submit();
        (outcome.code == 0).then(|| outcome.word::<TaskId>())
    });
    // Anything started before it would be running by now.
    daemon.block(&[accepted]);
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn r130_stop_reports_loss_of_unwritten_changes() {
    let mut daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.process().limit(Resource::Fsize, Some(64));
    daemon.run(&["cancel", &held.to_string()]).success();
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("is lost if the daemon ends before it can be written"), "{warnings}");

    let stopped = daemon.run(&["daemon", "stop"]).success().stdout_text();

    assert!(
        stopped.starts_with("stopped; the latest changes are lost: the journal can't be written: "),
        "{stopped}"
    );
    assert!(daemon.ended().success());
    daemon.launch();
    assert_eq!(daemon.task(held).status, Status::Pending);
}

/// The journal has reserved blocks, which suffice for the changes that free others.
#[test]
fn r130_changes_made_on_full_disk_are_known_to_next_daemon() {
    let mut daemon = on_a_small_disk_with("size=6m", "durable = true");
    let hold = || daemon.run(&["submit", "--hold", "--", "sleep", "1000"]).success().word::<TaskId>();
    let [cancelled, edited, released] = [hold(), hold(), hold()];
    let running = daemon.submit(&["sleep", "1000"]);
    let process = Process::open(daemon.wait_running(running).pid.unwrap()).unwrap();
    keep_disk(&daemon, process.pid());
    fill_disk(&daemon);
    submit_until_refused(&daemon);
    for (verb, task) in [("cancel", cancelled), ("release", released), ("pause", running)] {
        daemon.run(&[verb, &task.to_string()]).success();
    }
    daemon.run(&["edit", "--priority", "7", &edited.to_string()]).success();
    for ends in [TestDaemon::kill9, |daemon: &mut TestDaemon| assert!(daemon.stop().success())] {
        ends(&mut daemon);
        daemon.launch();

        assert_eq!(daemon.task(cancelled).status, Status::Cancelled);
        assert_eq!(daemon.task(edited).priority, 7);
        assert!(daemon.task(running).paused);
        let waits = wait::poll_until("the disk is found full", || {
            let task = daemon.task(released);
            task.waiting.filter(|waiting| waiting.reason == WaitingFor::Journal).map(|_| task.status)
        });
        assert_eq!(waits, Status::Pending, "it starts only if that can be written down");
        daemon.run(&["submit", "--", "true"]).expect_code(70);
    }
    let shown = daemon.run(&["list", "--status", "pending"]).success().stdout_text();
    assert!(shown.contains("pending (journal)"), "{shown}");
    fs::remove_file(filler_of(&daemon)).unwrap();
    daemon.wait_running(released);
    daemon.cancel(&[running, released]);
}

#[test]
fn r112_batch_interrupted_by_full_disk_is_complete_once_there_is_room_even_after_kill() {
    const TASKS: u64 = 6000;
    let mut daemon = on_a_small_disk_with("size=40m", "durable = true");
    let running = daemon.submit(&["sleep", "1000"]);
    let process = Process::open(daemon.wait_running(running).pid.unwrap()).unwrap();
    keep_disk(&daemon, process.pid());
    // Leaves room for the journal's record of the batch, but not for its tasks.
    let fill = fs::File::options().write(true).open(fill_disk(&daemon)).unwrap();
    fill.set_len(fill.metadata().unwrap().len() - (4 << 20)).unwrap();
    drop(fill);
    let lines: Vec<String> = (1..=TASKS).map(|number| number.to_string()).collect();
    fs::write(daemon.home().join("lines"), lines.join("\n")).unwrap();

    let submitted = daemon.run(&["submit", "--hold", "--each", "lines", "--", "true", "{}"]).success();

    let batch = submitted.word::<TaskId>().to_string();
    let count = |daemon: &TestDaemon| {
        let listed: serde_json::Value = daemon.run(&["list", "--batch", &batch, "--json"]).success().json();
        listed["summary"]["pending"].as_u64()
    };
    assert_eq!(count(&daemon), Some(TASKS));
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("what changes meanwhile is lost"), "the disk is not full: {warnings}");
    daemon.kill9();
    daemon.launch();
    fs::remove_file(filler_of(&daemon)).unwrap();
    let wait_for_all = |daemon: &TestDaemon| {
        wait::poll_until("all of its tasks are there", || (count(daemon) == Some(TASKS)).then_some(()));
    };
    wait_for_all(&daemon);
    wait::poll_until("they are written", || {
        let warnings = daemon.status().warnings;
        warnings.iter().all(|warning| !warning.contains("can't be written")).then_some(())
    });
    daemon.kill9();
    daemon.launch();
    wait_for_all(&daemon);
    daemon.cancel(&[running]);
}

/// The journal can't say which event numbers were sent. The keeper knows; without it, more numbers are skipped than
/// were used.
#[test]
fn r130_event_numbers_sent_while_journal_is_unwritable_are_not_reused() {
    let mut daemon = TestDaemon::durable("");
    for (go, with_keeper) in [("one", false), ("two", false), ("three", true)] {
        let mut watch = daemon.watch();
        let task = daemon.submit_shell(&format!("until [ -e {go} ]; do sleep 0.02; done; exit 7"));
        daemon.wait_running(task);
        daemon.process().limit(Resource::Fsize, Some(64));
        fs::write(daemon.home().join(go), "").unwrap();
        // No event follows this one.
        let is_end =
            |Event { task: of, .. }: &Event| of.id == task && of.completed_at.is_some() && !of.lingering;
        let last = watch.until(is_end).seq;
        if with_keeper {
            daemon.keepers().iter().for_each(Process::kill);
        }
        daemon.kill9();
        daemon.launch();
        // If the keeper was killed, too, the daemon can't know that nothing else came after `last`.
        let since = if with_keeper { daemon.status().seq } else { last };
        assert!(since >= last, "it goes on after {last}: {since}");
        let since = SubscribeParams { since: Some(since), ..SubscribeParams::default() };
        let mut watch = Watch::new(daemon.client(), &since);
        let next = daemon.submit(&["true"]);
        let submitted = watch.until_kind(next, EventKind::Submitted).seq;
        assert!(submitted > last, "{submitted} after {last}");
        daemon.block(&[next]);
        // Its end is not in the journal, so this daemon reports it again, once the process was reaped. No event of it may
        // follow the last one of the next task, and no keeper may hold it when this daemon is stopped.
        wait::poll_until("the task has ended for this daemon, too", || {
            let task = daemon.task(task);
            (task.completed_at.is_some() && !task.lingering).then_some(())
        });
    }
}

const NOT_RECORDED: &str = "not recorded yet: the journal can't be written: ";

#[test]
fn r130_task_back_after_an_unrecorded_clear_says_why_its_output_is_gone() {
    let mut daemon = TestDaemon::durable("");
    let ended = daemon.submit(&["echo", "said"]);
    daemon.block(&[ended]);
    let (journal, away) = (daemon.state_dir().join("journal"), daemon.state_dir().join("journal.away"));
    fs::rename(&journal, &away).unwrap();
    let cleared = daemon.run(&["clear", &ended.to_string()]).success();
    assert!(cleared.stderr.contains(NOT_RECORDED), "{}", cleared.stderr);
    daemon.kill9();
    fs::rename(&away, &journal).unwrap();
    daemon.launch();
    assert_eq!(daemon.task(ended).status, Status::Completed);
    let gone = daemon.run(&["output", &ended.to_string()]).expect_code(70);
    assert!(gone.stderr.contains("cleared while the journal could not be written"), "{}", gone.stderr);
    let cleared = daemon.run(&["clear", &ended.to_string()]).success();
    assert_eq!(cleared.stderr, "");
}

/// The open file could still be written, but no other daemon would ever read it.
#[test]
fn r130_nothing_is_accepted_while_the_journal_is_not_in_its_place() {
    let mut daemon = TestDaemon::durable("");
    let kept = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let ended = daemon.submit(&["true"]);
    daemon.block(&[ended]);
    let (journal, away) = (daemon.state_dir().join("journal"), daemon.state_dir().join("journal.away"));
    fs::rename(&journal, &away).unwrap();
    let refused = daemon.run(&["submit", "--hold", "--", "true"]).expect_code(70);
    let words = "journal.db was removed, moved or replaced: put its folder back";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains(words), "{warnings}");
    assert!(refused.stderr.contains("after the folder is back"), "{}", refused.stderr);
    let cleared = daemon.run(&["clear", &ended.to_string()]).success();
    assert!(cleared.stderr.contains(NOT_RECORDED), "{}", cleared.stderr);
    fs::rename(&away, &journal).unwrap();
    wait::poll_until("the journal is found again", || {
        daemon.status().warnings.iter().all(|warning| !warning.contains("journal")).then_some(())
    });
    let after = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.kill9();
    daemon.launch();
    assert_eq!([kept, after].map(|task| daemon.task(task).status), [Status::Pending; 2]);
    assert_eq!(daemon.status().summary.total(), 2, "what was refused is not there");
    daemon.cancel(&[kept, after]);
}
