//! Orders for tasks on another machine that are given while it can't be reached (R145): they are carried out as soon as
//! it can be, or refused.

use std::fs;
use std::process::Stdio;

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::{CancelReason, WaitingFor};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::{Terminal, TestDaemon, upgrades, wait};

/// Cuts the connection for now.
#[track_caller]
fn shut(far: &mut Far, id: TaskId) {
    far.wrap("echo 'No route to host' >&2; exit 255");
    far.cut_here();
    far.until(id, "it is not known", is_unknown);
}

fn is_unknown(task: &Task) -> bool {
    task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_some())
}

/// Returns the task there of a task here.
#[track_caller]
fn of_there(far: &Far, id_there: &str) -> Task {
    far.tasks_there().into_iter().find(|task| task.id.to_string() == id_there).expect("it is there")
}

#[track_caller]
fn id_there(far: &mut Far, id: TaskId) -> String {
    wait::poll_until("an id there", || far.here().task(id).elsewhere?.id)
}

/// Gives a pause and a continue without a connection, runs `meanwhile`, and checks that both are carried out with the
/// next connection.
#[track_caller]
fn pauses_and_continues(config: &str, meanwhile: impl FnOnce(&mut Far)) {
    let mut far = Far::with_here(config);
    let [runs, stands] = [0; 2].map(|_| far.submit_on(&[], "exec sleep 1000"));
    let [runs_there, stands_there] = [runs, stands].map(|id| {
        far.running(id);
        id_there(&mut far, id)
    });
    far.run_here(&["pause", &stands.to_string()]).success();
    wait::poll_until("it is paused there", || of_there(&far, &stands_there).paused.then_some(()));
    shut(&mut far, runs);
    far.run_here(&["pause", &runs.to_string()]).success();
    far.run_here(&["continue", &stands.to_string()]).success();
    meanwhile(&mut far);
    for id in [runs, stands] {
        far.until(id, "it is not known", is_unknown);
    }
    assert_eq!((far.here().task(runs).paused, far.here().task(stands).paused), (true, false));
    far.wrap("");
    wait::poll_until("both orders are carried out there", || {
        let paused = [&runs_there, &stands_there].map(|id| of_there(&far, id).paused);
        (paused == [true, false]).then_some(())
    });
    far.until(runs, "it is known", |task| !is_unknown(task));
    assert_eq!((far.here().task(runs).paused, far.here().task(stands).paused), (true, false));
    // The same order as before changes nothing.
    far.run_here(&["continue", &runs.to_string()]).success();
    wait::poll_until("it goes on there", || (!of_there(&far, &runs_there).paused).then_some(()));
    let ended = far.here().cancel(&[runs, stands]);
    assert!(ended.iter().all(|task| task.status == Status::Cancelled && !task.lingering), "{ended:?}");
}

#[test]
fn r145_pause_and_continue_without_connection_are_carried_out_with_the_next() {
    pauses_and_continues("", |_| ());
}

#[test]
fn r145_pause_and_continue_without_connection_are_carried_out_after_an_upgrade() {
    pauses_and_continues("durable = true", |far| _ = upgrades::upgrade_under_load(far.here()));
}

#[test]
fn r151_pause_and_continue_without_connection_are_carried_out_after_a_restart() {
    pauses_and_continues("durable = true", |far| far.here().restart());
}

#[test]
fn r145_hold_and_priority_without_connection_are_carried_out_with_the_next() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("");
    let first = far.submit_on(&[], "exec sleep 1000");
    far.running(first);
    let [held, released] = [0; 2].map(|_| far.submit_on(&[], "echo ran"));
    let [held_there, released_there] = [held, released].map(|id| id_there(&mut far, id));
    far.run_here(&["hold", &released.to_string()]).success();
    let waits_for = |far: &Far, id: &str| of_there(far, id).waiting.map(|waiting| waiting.reason);
    wait::poll_until("it is held there", || {
        (waits_for(&far, &released_there) == Some(WaitingFor::Held)).then_some(())
    });
    shut(&mut far, held);
    far.run_here(&["hold", &held.to_string()]).success();
    far.run_here(&["release", &released.to_string()]).success();
    far.run_here(&["edit", &released.to_string(), "--priority", "7"]).success();
    far.wrap("");
    wait::poll_until("all orders are carried out there", || {
        let reasons = [&held_there, &released_there].map(|id| waits_for(&far, id));
        let is_raised = of_there(&far, &released_there).priority == 7;
        (reasons == [Some(WaitingFor::Held), Some(WaitingFor::Slot)] && is_raised).then_some(())
    });
    let task = far.until(held, "it is known", |task| !is_unknown(task));
    assert_eq!(task.waiting.map(|waiting| waiting.reason), Some(WaitingFor::Held));
    far.here().cancel(&[first]);
    assert_eq!(far.ended(released).status, Status::Completed);
    far.run_here(&["release", &held.to_string()]).success();
    assert_eq!(far.ended(held).status, Status::Completed);
}

/// The next daemon keeps the order until it knows the task's state there.
#[test]
fn r151_hold_before_the_first_connection_is_refused_if_the_task_has_started_there() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("durable = true");
    let first = far.submit_on(&[], "exec sleep 1000");
    far.running(first);
    let id = far.submit_on(&[], "exec sleep 1000");
    let [first_there, there] = [first, id].map(|id| id_there(&mut far, id));
    let [asked, open] = ["asked", "open"].map(|name| far.path(name));
    let gate = "do sleep 0.05; done";
    far.wrap(&format!("touch {}; until [ -e {} ]; {gate}", asked.display(), open.display()));
    far.here().restart();
    wait::for_file(&asked);
    far.daemon.cancel(&[first_there.parse().unwrap()]);
    wait::poll_until("it runs there", || (of_there(&far, &there).status == Status::Running).then_some(()));
    let mut hold = far.here().bgctl(&["hold", &id.to_string()]);
    let hold = hold.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    far.until(id, "the hold has arrived", |task| {
        task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingFor::Held)
    });
    fs::write(open, "").unwrap();
    let refused = hold.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(70), "{why}");
    assert!(why.contains("can't be held now: "), "{why}");
    far.running(id);
    far.here().cancel(&[id]);
}

/// It may start there before the machine can be reached again.
#[test]
fn r145_cancelled_task_that_waited_there_lingers_until_the_machine_is_back() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("");
    let first = far.submit_on(&[], "exec sleep 1000");
    far.running(first);
    let id = far.submit_on(&[], "exec sleep 1000");
    let there = id_there(&mut far, id);
    shut(&mut far, id);
    let task = far.here().cancel(&[id]).remove(0);
    assert_eq!((task.status, task.lingering, task.started_at), (Status::Cancelled, true, None));
    assert!(matches!(task.exit, Some(Exit::Unknown(why)) if why.contains("may still run there")));
    assert_eq!(of_there(&far, &there).status, Status::Pending);
    far.wrap("");
    let task = far.until(id, "it is known to be gone", |task| !task.lingering);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::User)));
    let left = far.tasks_there().into_iter().find(|task| task.id.to_string() == there);
    assert!(left.is_none_or(|task| task.status == Status::Cancelled));
    far.here().cancel(&[first]);
}

#[test]
fn r151_cancel_on_a_terminal_says_at_once_that_the_machine_cannot_be_asked() {
    let mut far = Far::with_here("");
    let given: [&[&str]; 3] = [&[], &["--tag", "x"], &["--all"]];
    for words in given {
        let id = far.submit_on(&["--tag", "x"], "exec sleep 1000");
        far.running(id);
        shut(&mut far, id);
        let named = id.to_string();
        let words = if words.is_empty() { vec![named.as_str()] } else { words.to_vec() };
        let mut terminal = Terminal::bgctl(far.here(), &[vec!["cancel", "--grace", "1h"], words].concat());
        terminal.wait_text("far can't be asked now: what runs there is ended as soon as that is possible");
        assert!(far.here().task(id).status.is_active(), "and it is still waited for");
        far.wrap("");
        assert!(terminal.ended().success());
        assert_eq!(far.ended(id).status, Status::Cancelled);
    }
}

#[test]
fn r145_last_of_several_orders_without_connection_counts() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&[], "exec sleep 1000");
    far.running(id);
    let there = id_there(&mut far, id);
    shut(&mut far, id);
    far.run_here(&["pause", &id.to_string()]).success();
    far.run_here(&["continue", &id.to_string()]).success();
    far.run_here(&["pause", &id.to_string()]).success();
    far.wrap("");
    wait::poll_until("it is paused there", || of_there(&far, &there).paused.then_some(()));
    far.here().cancel(&[id]);
}

#[test]
fn r145_signal_without_connection_is_refused() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&[], "trap 'echo usr' USR1; echo up; while :; do sleep 0.1; done");
    far.here().wait_output(id, "up");
    shut(&mut far, id);
    let refused = far.run_here(&["signal", &id.to_string(), "USR1"]).expect_code(70);
    assert!(refused.stderr.contains("can't be signalled now: far "), "{}", refused.stderr);
    far.wrap("");
    far.until(id, "it is known", |task| !is_unknown(task));
    far.run_here(&["signal", &id.to_string(), "USR1"]).success();
    far.here().wait_output(id, "usr");
    assert_eq!(far.here().output(id), b"up\nusr\n", "only the second one has arrived");
    far.here().cancel(&[id]);
}
