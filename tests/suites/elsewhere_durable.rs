//! Tasks on another machine outlive this machine's durable daemon (R151): after a kill or a stop the next daemon finds
//! them again, and each has run once.

use std::fs;
use std::path::PathBuf;

use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::{CancelReason, WaitingFor};
use bgd_tests::shared::task::{Exit, Output, Status, Task};
use bgd_tests::{TestDaemon, wait};

/// Kills the daemon here, runs `meanwhile`, and starts the next one.
#[track_caller]
fn kill(far: &mut Far, meanwhile: impl FnOnce(&Far)) {
    far.here().kill9();
    meanwhile(far);
    far.here().launch();
}

/// Makes sure that the next daemon knows what clients have been shown: a submit is answered when it is recorded, after
/// all that happened before.
fn record_all(far: &mut Far) {
    far.here().submit(&["true"]);
}

/// Returns a file of the other machine, and a shell command that waits there until it exists.
fn gate(far: &Far, name: &str) -> (PathBuf, String) {
    let path = far.daemon.home().join(name);
    let line = format!("until [ -e {} ]; do sleep 0.02; done", path.display());
    (path, line)
}

#[test]
fn r151_running_waiting_and_ended_remote_tasks_survive_kill() {
    let mut far = Far::with_here("durable = true");
    let (first, until_first) = gate(&far, "first");
    let (second, until_second) = gate(&far, "second");
    let ended = far.submit_on(&[], &format!("echo begun; {until_first}; echo over; exit 7"));
    let goes_on = far.submit_on(
        &["--split"],
        &format!("echo begun; echo err >&2; {until_second}; echo over; echo late >&2; exit 3"),
    );
    let held = far.submit_on(&["--hold"], "true");
    let next = far.submit_on(&["--after", &format!("{goes_on}:fail")], "echo next");
    let again = far.submit_on(
        &["--retry", "1", "--retry-delay", "0"],
        &format!("echo try; test -e $HOME/tried && exit 5; touch $HOME/tried; {until_second}; exit 4"),
    );
    let before = [ended, goes_on, again].map(|id| far.running(id));
    far.here().wait_output(goes_on, "begun");
    record_all(&mut far);
    kill(&mut far, |far| {
        fs::write(first, "").unwrap();
        wait::poll_until("it has ended there", || {
            far.tasks_there().iter().any(|task| task.exit == Some(Exit::Code(7))).then_some(())
        });
    });
    let task = far.ended(ended);
    assert_eq!((task.status, task.exit, task.run), (Status::Failed, Some(Exit::Code(7)), 1));
    assert_eq!(task.started_at, before[0].started_at);
    assert_eq!(far.here().output(ended), b"begun\nover\n");
    let task = far.here().task(goes_on);
    assert_eq!((task.status, task.started_at), (Status::Running, before[1].started_at));
    assert_eq!(task.elsewhere.and_then(|there| there.id), before[1].elsewhere.clone().unwrap().id);
    let task = far.here().task(held);
    assert_eq!(task.waiting.map(|waiting| waiting.reason), Some(WaitingFor::Held));
    far.here().cancel(&[held]);
    fs::write(second, "").unwrap();
    let task = far.ended(goes_on);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    let errors = far.run_here(&["output", "--stderr", &goes_on.to_string()]).success().stdout_text();
    assert_eq!((far.here().output(goes_on), &*errors), (b"begun\nover\n".to_vec(), "err\nlate\n"));
    assert_eq!(far.ended(next).status, Status::Completed);
    let task = far.ended(again);
    assert_eq!((task.exit, task.attempts.len()), (Some(Exit::Code(5)), 1), "{:?}", task.attempts);
    assert_eq!(far.here().output(again), b"try\ntry\n");
    far.forgotten();
}

#[test]
fn r151_remote_tasks_accept_commands_after_kill() {
    let mut far = Far::with_here("durable = true");
    let line = "trap 'echo usr; exit 6' USR1; echo up; while read word; do echo \"<$word>\"; done; exit 7";
    let reads = far.submit_on(&["--stdin-pipe", "--ready", "line:^up"], line);
    let sleeps = far.submit_on(&[], "exec sleep 1000");
    far.until(reads, "it is ready", |task| task.ready_at.is_some());
    far.running(sleeps);
    let held = far.submit_on(&["--priority", "3"], "echo held");
    let id = far.ended(held).id;
    assert_eq!(far.here().output(id), b"held\n");
    far.run_here(&["pause", &sleeps.to_string()]).success();
    kill(&mut far, |_| ());
    assert!(far.here().task(sleeps).paused);
    // Although the connection is still being made.
    far.run_here(&["continue", &sleeps.to_string()]).success();
    assert!(!far.here().task(sleeps).paused);
    wait::poll_until("it goes on there", || far.tasks_there().iter().all(|task| !task.paused).then_some(()));
    far.run_here(&["write", &reads.to_string(), "-n", "words"]).success();
    far.here().wait_output(reads, "<words>");
    far.run_here(&["signal", &reads.to_string(), "USR1"]).success();
    let task = far.ended(reads);
    assert_eq!(task.exit, Some(Exit::Code(6)), "{task:?}");
    far.run_here(&["pause", &sleeps.to_string()]).success();
    wait::poll_until("it is paused there", || far.tasks_there().iter().any(|task| task.paused).then_some(()));
    let task = far.here().cancel(&[sleeps]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
    far.forgotten();
}

#[test]
fn r151_waiting_remote_tasks_stay_pending_and_accept_edits_after_kill() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("durable = true");
    let (open, until_open) = gate(&far, "open");
    let first = far.submit_on(&[], &until_open);
    far.running(first);
    let [low, high, held] = [["--priority", "-5"], ["--priority", "5"], ["--priority", "0"]]
        .map(|options| far.submit_on(&options, "date +%s%N; echo >>$HOME/ran"));
    for id in [low, high, held] {
        far.until(id, "it waits there", |task| {
            task.elsewhere.as_ref().is_some_and(|there| there.id.is_some())
        });
    }
    far.run_here(&["hold", &held.to_string()]).success();
    kill(&mut far, |_| ());
    for id in [low, high, held] {
        assert_eq!(far.here().task(id).status, Status::Pending);
    }
    far.run_here(&["edit", &low.to_string(), "--priority", "9"]).success();
    fs::write(open, "").unwrap();
    let ended = far.here().block(&[first, low, high]);
    assert!(ended.iter().all(|task| task.status == Status::Completed), "{ended:?}");
    let when =
        |far: &mut Far, id| String::from_utf8(far.here().output(id)).unwrap().trim().parse::<u64>().unwrap();
    assert!(when(&mut far, low) < when(&mut far, high));
    assert_eq!(far.here().task(held).status, Status::Pending);
    far.run_here(&["release", &held.to_string()]).success();
    assert_eq!(far.ended(held).status, Status::Completed);
    assert_eq!(fs::read_to_string(far.daemon.home().join("ran")).unwrap().lines().count(), 3);
    far.forgotten();
}

#[test]
fn r151_remote_submission_in_progress_at_kill_runs_once() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("durable = true");
    let mut whole = 0;
    // Not in the first round, which also connects.
    for _ in 0..2 {
        let before = wire.carried_there();
        let id = far.submit_on(&[], "true");
        far.ended(id);
        far.forgotten();
        whole = wire.carried_there() - before;
    }
    for stage in 0..8 {
        far.wrap("exit 255");
        wire.cut_asking_after(1 + whole * stage / 8);
        let id = far.submit_on(&[], &format!("echo once >>\"$HOME/times{stage}\"; exit {stage}"));
        let is_cut = |task: &Task| task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_some());
        let task = far.until(id, "it is cut or over", |task| is_cut(task) || task.completed_at.is_some());
        kill(&mut far, |far| far.wrap(""));
        let ended = far.ended(id);
        assert_eq!((ended.run, task.run), (1, 1));
        let code = Some(Exit::Code(i32::try_from(stage).unwrap()));
        assert_eq!(ended.exit, code, "{stage}: {ended:?}");
        let times = fs::read_to_string(far.daemon.home().join(format!("times{stage}"))).unwrap();
        assert_eq!(times, "once\n", "{stage}");
        // Connect first, so that the next connection can be cut.
        let check = || Some(far.run_here(&["executors", "--check", "far"]).code).filter(|code| *code == 0);
        wait::poll_until("a connection", check);
    }
    far.forgotten();
}

#[test]
fn r151_leftover_remote_task_is_ended_once_machine_is_reachable() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&[], "exec sleep 1000");
    far.running(id);
    kill(&mut far, |far| far.wrap("exit 255"));
    wait::for_line(&far.here().state_dir().join("bgd.log"), "not connected");
    assert_eq!(far.tasks_there().len(), 1);
    // Nobody sends requests to the other machine.
    far.wrap("");
    far.forgotten();
}

#[test]
fn r151_leftover_remote_task_is_ended_wherever_connection_is_cut() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("");
    let id = far.submit_on(&[], "exec sleep 1000");
    far.running(id);
    // The traffic of an undisturbed sweep.
    let before = wire.carried_there();
    kill(&mut far, |_| ());
    far.forgotten();
    let whole = wire.carried_there() - before;
    let log = far.here().state_dir().join("bgd.log");
    let is_cut_midway = || fs::read_to_string(&log).unwrap().contains("tasks of an earlier daemon not ended");
    // From the last request back to the handshake. Which step a cut hits depends on the sizes of what ssh sends, so
    // the distances of further rounds are between those of the first ones.
    let distances = (1..=12).map(|stage| 90 * stage);
    let further = (1..=36).map(|stage| 20 * stage + 10);
    for (round, distance) in distances.chain(further).enumerate() {
        if round >= 12 && is_cut_midway() {
            break;
        }
        let id = far.submit_on(&[], "exec sleep 1000");
        far.running(id);
        kill(&mut far, |_| wire.cut_asking_after(whole - distance));
        // Nobody sends requests to the other machine.
        far.forgotten();
        wait::poll_until("the cut", || (!wire.is_to_be_cut()).then_some(()));
    }
    assert!(is_cut_midway(), "some were cut in the midst of it");
}

#[test]
fn r151_unreachable_machine_at_start_leaves_tasks_undecided() {
    let mut far = Far::with_here("durable = true");
    let (open, until_open) = gate(&far, "open");
    let runs = far.submit_on(&[], &format!("echo begun; {until_open}; exit 3"));
    let ends = far.submit_on(&[], "exec sleep 1000");
    far.running(runs);
    far.running(ends);
    far.here().wait_output(runs, "begun");
    // The daemon answers once everything before it is in the journal.
    far.run_here(&["submit", "--hold", "--", "true"]).success();
    kill(&mut far, |far| far.wrap("exit 255"));
    let unknown = |task: &Task| task.elsewhere.as_ref().and_then(|there| there.unknown_since).is_some();
    let task = far.until(runs, "it is not known", unknown);
    assert_eq!(task.status, Status::Running);
    let page = far.run_here(&["status", &runs.to_string()]).success().stdout_text();
    assert!(page.contains("not known"), "{page}");
    let since = task.elsewhere.unwrap().unknown_since;
    // Tasks accepted later are written later.
    let held = far.submit_on(&["--hold"], "true");
    // A second daemon that can't reach the machine keeps that time.
    kill(&mut far, |_| ());
    far.run_here(&["cancel", &held.to_string()]).success();
    let task = far.until(runs, "it is not known", unknown);
    assert_eq!(task.elsewhere.unwrap().unknown_since, since);
    // Tasks ended meanwhile are ended there as soon as possible.
    let mut cancel = far.here().bgctl(&["cancel", &ends.to_string()]).spawn().unwrap();
    fs::write(open, "").unwrap();
    far.wrap("");
    assert!(cancel.wait().unwrap().success());
    assert_eq!(far.ended(runs).exit, Some(Exit::Code(3)));
    assert_eq!(far.here().output(runs), b"begun\n");
    far.forgotten();
}

#[test]
fn r151_stopped_durable_daemon_leaves_remote_tasks_running_and_counts_them() {
    let mut far = Far::with_here("durable = true");
    let (open, until_open) = gate(&far, "open");
    let runs = far.submit_on(&[], &format!("echo begun; {until_open}; exit 3"));
    let here = far.here().submit_shell(&format!("{until_open}; exit 4"));
    far.running(runs);
    far.here().wait_running(here);
    let words = far.run_here(&["daemon", "stop"]).success().stdout_text();
    assert_eq!(words, "stopped; 2 tasks keep running, and the next daemon finds them again\n");
    assert!(far.here().ended().success());
    assert_eq!(far.tasks_there()[0].status, Status::Running);
    far.here().launch();
    assert!(far.here().stop().success(), "by SIGTERM");
    fs::write(open, "").unwrap();
    wait::poll_until("it has ended there", || far.tasks_there()[0].exit.clone());
    far.here().launch();
    assert_eq!(far.ended(runs).exit, Some(Exit::Code(3)));
    assert_eq!(far.here().output(runs), b"begun\n");
    assert_eq!(far.ended(here).exit, Some(Exit::Code(4)));
    far.forgotten();
    // The shutdown can cancel them, too.
    let cancelled = far.submit_on(&[], "exec sleep 1000");
    far.running(cancelled);
    far.run_here(&["daemon", "stop", "--cancel"]).success();
    assert!(far.here().ended().success());
    far.forgotten();
    far.here().launch();
    assert_eq!(far.here().task(cancelled).status, Status::Cancelled);
}

#[test]
fn r151_tasks_of_two_executors_on_one_machine_survive_kill_and_stop() {
    let mut far = Far::start();
    let config = format!("durable = true\n{}", far.second_executor());
    far.start_here(&config);
    let (open, until_open) = gate(&far, "open");
    let first = far.submit_on(&[], "exec sleep 1000");
    let line = format!("{until_open}; exit 3");
    let second = far.run_here(&["submit", "--on", "second", "--shell", &line]).word();
    far.running(first);
    far.running(second);
    kill(&mut far, |_| ());
    for id in [first, second] {
        far.until(id, "it is known again", |task| task.status == Status::Running);
    }
    // The connection of the executor that has no task left is still open at the stop.
    far.here().cancel(&[first]);
    wait::poll_until("it is cleared", || (far.tasks_there().len() == 1).then_some(()));
    far.run_here(&["daemon", "stop"]).success();
    assert!(far.here().ended().success());
    assert_eq!(far.tasks_there()[0].status, Status::Running);
    let refused = far.run_here(&["daemon", "stop", "--cancel"]).expect_code(69);
    assert!(refused.stderr.contains("may have left tasks running"), "{}", refused.stderr);
    far.here().launch();
    fs::write(open, "").unwrap();
    assert_eq!(far.ended(second).exit, Some(Exit::Code(3)));
    far.forgotten();
    far.run_here(&["daemon", "stop"]).success();
    let nothing = far.run_here(&["daemon", "stop", "--cancel"]).success().stdout_text();
    assert_eq!(nothing, "no daemon is running\n");
}

#[test]
fn r151_changing_durability_ends_remote_tasks_of_previous_daemon() {
    let mut far = Far::with_here("");
    for config in ["durable = true", ""] {
        let left = far.submit_on(&[], "exec sleep 1000");
        far.running(left);
        far.here().kill9();
        far.configure_here(config);
        far.here().launch();
        far.forgotten();
    }
}

#[test]
fn r151_twenty_kills_lose_no_remote_task_and_start_none_twice() {
    let mut far = Far::with_here("durable = true");
    let mut all = Vec::new();
    for round in 0..20 {
        for number in 0..2 {
            let line = format!(
                "echo ran >>$HOME/ran-{round}-{number}; echo begun; sleep 0.{round}; echo over; exit {number}"
            );
            all.push(far.submit_on(&[], &line));
        }
        // At a different moment of their lives in each round.
        let last = *all.last().unwrap();
        match round % 4 {
            0 => {}
            1 => _ = far.until(last, "it is there", |task| task.elsewhere.is_some()),
            2 => _ = far.until(last, "it has begun", |task| task.started_at.is_some()),
            _ => _ = far.until(last, "it has ended", |task| task.completed_at.is_some()),
        }
        kill(&mut far, |_| ());
    }
    for (task, place) in far.here().block(&all).iter().zip(0..) {
        let (round, number) = (place / 2, place % 2);
        let ran = fs::read_to_string(far.daemon.home().join(format!("ran-{round}-{number}")));
        assert_eq!(ran.unwrap_or_default().lines().count(), 1, "{task:?}");
        assert_eq!(task.exit, Some(Exit::Code(number)), "{task:?}");
        assert_eq!(far.here().output(task.id), b"begun\nover\n", "{task:?}");
    }
    far.forgotten();
}

#[test]
fn r151_kills_neither_lose_nor_repeat_streaming_remote_output() {
    let mut far = Far::with_here("durable = true");
    let line = "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done; exit 9";
    let id = far.submit_on(&[], line);
    far.running(id);
    let mut seen = 0;
    for _ in 0..6 {
        let task = far.until(id, "more output, or its end", |task| {
            task.output.bytes > seen || task.completed_at.is_some()
        });
        seen = task.output.bytes;
        kill(&mut far, |_| ());
    }
    assert_eq!(far.ended(id).exit, Some(Exit::Code(9)));
    let whole = (0..40_000).map(|number| format!("line {number}\n")).collect::<Vec<_>>().concat();
    assert!(far.here().output(id) == whole.as_bytes());
}

#[test]
fn r151_gap_in_remote_output_is_counted_once_across_kills() {
    let mut far = Far::of(TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start());
    far.start_here("durable = true");
    let ([write, more], [until_write, until_more]) = {
        let (one, two) = (gate(&far, "write"), gate(&far, "more"));
        ([one.0, two.0], [one.1, two.1])
    };
    let line = format!(
        "echo first; {until_write}; head -c 60000000 /dev/zero | tr '\\0' x
         {until_more}; echo last; exit 3"
    );
    let id = far.submit_on(&[], &line);
    far.here().wait_output(id, "first");
    kill(&mut far, |far| {
        fs::write(write, "").unwrap();
        wait::poll_until("a small file there", || {
            let output = far.tasks_there().remove(0).output;
            (output.bytes > 60_000_000 && output.dropped_bytes > 50_000_000).then_some(())
        });
    });
    for _ in 0..3 {
        kill(&mut far, |_| ());
    }
    far.until(id, "the rest of it is here", |task| task.output.bytes + task.output.lost_bytes > 60_000_000);
    kill(&mut far, |_| ());
    fs::write(more, "").unwrap();
    let task = far.ended(id);
    assert_eq!((task.status, &task.exit), (Status::Failed, &Some(Exit::Code(3))), "{task:?}");
    // Every byte written is either here or counted as lost.
    let Output { bytes, lost_bytes, dropped_bytes, .. } = task.output;
    assert_eq!((bytes + lost_bytes, dropped_bytes), (60_000_000 + "first\nlast\n".len() as u64, 0));
    assert!(lost_bytes > 50_000_000, "{lost_bytes}");
    let output = far.here().output(id);
    assert_eq!(output.len() as u64, bytes);
    let text =
        output.strip_prefix(b"first\n").and_then(|text| text.strip_suffix(b"last\n")).expect("both ends");
    assert!(text.iter().all(|byte| *byte == b'x'));
}

#[test]
fn r131_stopped_service_cancels_local_tasks_but_leaves_remote_ones_running() {
    // This makes the daemon believe that it is a service, but no manager gives it a scope.
    let here = TestDaemon::builder().env("NOTIFY_SOCKET", "/nowhere").home_only();
    let mut far = Far::between(HOST, TestDaemon::start(), here);
    far.start_here("durable = true");
    let (open, until_open) = gate(&far, "open");
    let there = far.submit_on(&[], &format!("echo begun; {until_open}; exit 3"));
    let second = far.submit_on(&[], &format!("{until_open}; exit 4"));
    far.running(there);
    far.running(second);
    let here = far.here().submit_shell("exec sleep 1000");
    let held = far.submit_on(&["--hold"], "true");
    far.here().wait_running(here);
    let reason = far.here().status().tree_reason;
    assert!(reason.contains("whose end ends the tasks here"), "{reason}");

    let stopped = far.run_here(&["daemon", "stop"]).success().stdout_text();
    let words = "stopped; 1 task was cancelled; 2 tasks keep running, and the next daemon finds them again\n";
    assert_eq!(stopped, words);
    assert!(far.here().ended().success());
    far.here().launch();
    let task = far.here().task(here);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::Shutdown)));
    assert_eq!(far.here().task(held).status, Status::Pending);
    far.here().cancel(&[held]);
    far.running(there);
    assert!(far.here().stop().success(), "by SIGTERM");
    fs::write(open, "").unwrap();
    far.here().launch();
    let exits: Vec<_> = far.here().block(&[there, second]).into_iter().map(|task| task.exit).collect();
    assert_eq!(exits, [Some(Exit::Code(3)), Some(Exit::Code(4))]);
    assert_eq!(far.here().output(there), b"begun\n");
    far.forgotten();

    let last = far.submit_on(&[], "exec sleep 1000");
    far.running(last);
    let stopped = far.run_here(&["daemon", "stop", "--cancel"]).success().stdout_text();
    assert_eq!(stopped, "stopped; 1 task was cancelled\n");
}

#[test]
fn r151_task_for_a_changed_host_survives_kill_before_the_first_connection() {
    // The daemon's connection to it ends first.
    let near = Far::named("near", TestDaemon::start());
    let mut far = Far::with_here("durable = true");
    far.join(&near);
    let before = far.submit_on(&[], "true");
    far.ended(before);
    far.forgotten();
    far.wrap(
        "case \"$*\" in *near*) test -e \"$0.open\" || { echo 'No route to host' >&2; exit 255; };; esac",
    );
    far.set_host("near");
    far.run_here(&["daemon", "reload"]).success();
    let id = far.submit_on(&[], "echo \"$HOME\"");
    far.until(id, "it can't be submitted", |task| {
        let why = task.elsewhere.as_ref().and_then(|there| there.unknown_because.as_deref());
        why.is_some_and(|why| why.contains("No route to host"))
    });
    kill(&mut far, |far| fs::write(far.path("ssh.open"), "").unwrap());
    let task = far.ended(id);
    assert_eq!((task.status, task.run), (Status::Completed, 1), "{:?}", task.error);
    assert_eq!(far.here().output(id), format!("{}\n", near.daemon.home().display()).into_bytes());
}

#[test]
fn r151_remote_task_survives_kill_and_change_of_host() {
    // The daemon's connection to it ends first.
    let near = Far::named("near", TestDaemon::start());
    let mut far = Far::with_here("durable = true");
    far.join(&near);
    let (open, until_open) = gate(&far, "open");
    let old = far.submit_on(&[], &format!("{until_open}; echo \"$HOME\"; exit 4"));
    far.running(old);
    record_all(&mut far);
    kill(&mut far, |far| far.set_host("near"));
    let new = far.submit_on(&[], "echo \"$HOME\"");
    far.until(new, "the reason", |task| {
        let reason = task.elsewhere.as_ref().and_then(|there| there.reason.as_deref());
        reason.is_some_and(|reason| reason.contains("the previous host"))
    });
    record_all(&mut far);
    // The next daemon does not know it from the configuration either.
    kill(&mut far, |_| ());
    far.until(old, "it is known", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_none())
    });
    far.running(old);
    assert!(near.tasks_there().is_empty());
    fs::write(open, "").unwrap();
    let task = far.ended(old);
    assert_eq!((task.exit, task.run), (Some(Exit::Code(4)), 1), "{:?}", task.error);
    assert_eq!(far.ended(new).status, Status::Completed);
    let home = |far: &Far| format!("{}\n", far.daemon.home().display()).into_bytes();
    assert_eq!((far.here().output(old), far.here().output(new)), (home(&far), home(&near)));
    far.forgotten();
    near.forgotten();
}

#[test]
fn r151_remote_task_survives_kill_and_corrected_host() {
    let mut far = Far::with_here("durable = true");
    let (open, until_open) = gate(&far, "open");
    let id = far.submit_on(&[], &format!("{until_open}; exit 4"));
    far.running(id);
    kill(&mut far, |far| far.set_host("nowhere.invalid"));
    let why = |task: &Task| task.elsewhere.as_ref().and_then(|there| there.unknown_because.clone());
    far.until(id, "the wrong host", |task| why(task).is_some_and(|why| why.contains("nowhere.invalid")));
    far.set_host(HOST);
    far.run_here(&["daemon", "reload"]).success();
    let task = far.until(id, "it is known", |task| why(task).is_none());
    assert_eq!(task.status, Status::Running);
    fs::write(open, "").unwrap();
    let task = far.ended(id);
    assert_eq!((task.exit, task.run), (Some(Exit::Code(4)), 1), "{:?}", task.error);
    far.forgotten();
}

/// Returns a machine whose daemon is a new one with another host, `near`, after a kill, and the task on the previous
/// one, to which ssh can't connect for this reason.
#[track_caller]
fn without_previous(near: &Far, reason: &str) -> (Far, TaskId) {
    let mut far = Far::with_here("durable = true");
    far.join(near);
    let old = far.submit_on(&[], "exec sleep 1000");
    far.running(old);
    kill(&mut far, |far| {
        far.set_host("near");
        far.wrap(&format!("case \"$*\" in *'-- far'*) echo '{reason}' >&2; exit 255;; esac"));
    });
    (far, old)
}

#[test]
fn r151_task_on_a_previous_host_that_refuses_connections_is_lost() {
    // The daemon's connection to it ends first.
    let near = Far::named("near", TestDaemon::start());
    let (mut far, old) = without_previous(&near, "me@far: Permission denied (publickey).");
    let task = far.ended(old);
    assert_eq!(task.failure.map(|failure| failure.kind), Some(FailureKind::Lost));
    let error = task.error.unwrap();
    assert!(error.contains("far, the previous host") && error.contains("Permission denied"), "{error}");
    let log = fs::read_to_string(far.here().state_dir().join("bgd.log")).unwrap();
    assert!(log.contains("tasks may be left on the previous host"), "{log}");
    let new = far.submit_on(&[], "echo \"$HOME\"");
    assert_eq!(far.ended(new).status, Status::Completed);
    assert_eq!(far.here().output(new), format!("{}\n", near.daemon.home().display()).into_bytes());
    // The configured host now is the only one.
    kill(&mut far, |_| ());
    let new = far.submit_on(&[], "exit 3");
    assert_eq!(far.ended(new).exit, Some(Exit::Code(3)));
}

#[test]
fn r151_cancel_of_tasks_on_an_unreachable_previous_host_lets_others_go_to_the_next() {
    // The daemon's connection to it ends first.
    let near = Far::named("near", TestDaemon::start());
    let (mut far, old) = without_previous(&near, "No route to host");
    let new = far.submit_on(&[], "echo \"$HOME\"");
    far.until(old, "the advice", |task| {
        let why = task.elsewhere.as_ref().and_then(|there| there.unknown_because.as_deref());
        why.is_some_and(|why| why.contains("No route to host") && why.contains("cancel its tasks"))
    });
    assert_eq!(
        (far.here().task(old).status, far.here().task(new).status),
        (Status::Running, Status::Pending)
    );
    far.run_here(&["cancel", "--grace", "100ms", &old.to_string()]).success();
    assert_eq!(far.ended(new).status, Status::Completed);
    assert_eq!(far.here().output(new), format!("{}\n", near.daemon.home().display()).into_bytes());
}
