//! Notices of a durable daemon (R127): those that a channel has not delivered when the daemon is killed are delivered
//! by the next daemon, under the same key.

use std::fs;

use bgd_tests::hooks::{HookServer, Reply};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::{Notice, Part};
use bgd_tests::upgrades::upgrade;
use bgd_tests::{Terminal, TestDaemon, wait};

use super::channel_tty::{BASH, DONE, Gate, HELD, occupied_has_no_notice, occupy, open, origin, submit_from};

#[track_caller]
fn with_server(server: &HookServer, more: &str) -> TestDaemon {
    let url = server.url("/");
    let config = format!(
        "durable = true\ndefault_deliver_to = [\"hook\"]\n{more}\n\
         [channels.hook]\ntype = \"webhook\"\nurl = \"{url}\"\nstarted = false\n"
    );
    TestDaemon::builder().config(config).start()
}

#[track_caller]
fn with_hook(script: &str) -> TestDaemon {
    let config = format!(
        "durable = true\ndefault_deliver_to = [\"hook\"]\n[channels.hook]\ntype = \"exec\"\nstarted = false\n\
         command = [\"/bin/sh\", \"-c\", '''{script}''']\n"
    );
    TestDaemon::builder().config(config).start()
}

#[track_caller]
fn ended(daemon: &TestDaemon) -> TaskId {
    let id = daemon.submit(&["true"]);
    daemon.block(&[id]);
    id
}

/// Returns once the journal has everything that the daemon knows now: an answer to a submit comes after it.
#[track_caller]
fn all_is_written(daemon: &TestDaemon) {
    daemon.status();
    daemon.run(&["submit", "--hold", "--channel", "none", "--", "true"]).success();
}

#[track_caller]
fn crash(daemon: &mut TestDaemon) {
    all_is_written(daemon);
    daemon.kill9();
    daemon.launch();
}

/// Returns the keys of all requests to a server.
fn keys(server: &HookServer) -> Vec<String> {
    server.requests().iter().map(|request| request.header("idempotency-key").unwrap().to_owned()).collect()
}

fn key(task: TaskId) -> String {
    format!("{task}/1")
}

#[test]
fn r127_only_undelivered_notices_are_restored_after_kill() {
    let server = HookServer::start();
    let mut daemon = with_server(&server, "");
    let first = ended(&daemon);
    server.wait_count(1);
    wait::poll_until("it is delivered", || (daemon.channel("hook").sent == 1).then_some(()));
    // The notice reaches the server, which does not answer before the daemon is killed.
    server.order(Reply::status(200).held());
    let cut = ended(&daemon);
    server.wait_count(2);
    let queued = [ended(&daemon), ended(&daemon)];

    crash(&mut daemon);

    let requests = server.wait_count(5);
    let expected = [key(first), key(cut), key(cut), key(queued[0]), key(queued[1])];
    assert_eq!(keys(&server), expected);
    assert_eq!(requests[2].body, requests[1].body, "it is the same notice");
    wait::poll_until("they are delivered", || (daemon.channel("hook").sent == 3).then_some(()));

    crash(&mut daemon);

    let last = ended(&daemon);
    server.wait_count(6);
    assert_eq!(keys(&server)[5], key(last), "nothing is delivered again");
    assert_eq!(server.requests().len(), 6);
}

#[test]
fn r127_delivery_retry_count_survives_kill() {
    let server = HookServer::start();
    for reply in
        [Reply::status(503), Reply::status(503).held(), Reply::status(503), Reply::status(200).held()]
    {
        server.order(reply);
    }
    let mut daemon = with_server(&server, "");
    let task = ended(&daemon);
    server.wait_count(2);
    let tries = |daemon: &TestDaemon| daemon.channel("hook").retry.map(|retry| retry.tries);
    assert_eq!(tries(&daemon), Some(1));

    crash(&mut daemon);

    // The second attempt, which was never answered, is repeated, and still counts as the second.
    server.wait_count(4);
    assert_eq!(tries(&daemon), Some(2));
    assert_eq!(keys(&server), vec![key(task); 4]);
    server.release(2);
    wait::poll_until("it is delivered", || (daemon.channel("hook").sent == 1).then_some(()));
    crash(&mut daemon);
    assert_eq!(daemon.channel("hook").queued, 0, "it is not delivered again");
}

#[test]
fn r127_hook_cut_by_kill_runs_again_with_same_key() {
    let script = "cat > \"$HOME/told\"; [ -e \"$HOME/go\" ]; stays=$?; echo $BGD_NOTICE_KEY >> \"$HOME/keys\"; [ $stays = 0 ] || exec sleep 1000";
    let mut daemon = with_hook(script);
    let keys = daemon.home().join("keys");
    let task = ended(&daemon);
    let next = ended(&daemon);
    wait::for_lines(&keys, 1, "");
    fs::write(daemon.home().join("go"), "").unwrap();

    crash(&mut daemon);

    wait::for_lines(&keys, 3, "");
    let text = fs::read_to_string(&keys).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), [key(task), key(task), key(next)]);
    wait::poll_until("both are delivered", || (daemon.channel("hook").sent == 2).then_some(()));
    assert_eq!(daemon.processes().len(), 1 + daemon.keepers().len(), "the one that was cut is ended");
}

#[test]
fn r127_stop_leaves_undelivered_notices_to_next_daemon() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = with_server(&server, "");
    let tasks = [ended(&daemon), ended(&daemon)];
    server.wait_count(1);
    assert!(daemon.stop().success());
    daemon.launch();
    server.wait_count(3);
    assert_eq!(keys(&server), [key(tasks[0]), key(tasks[0]), key(tasks[1])]);
    wait::poll_until("both are delivered", || (daemon.channel("hook").sent == 2).then_some(()));

    let mut daemon = with_hook(
        "[ -e \"$HOME/go\" ]; stays=$?; echo $BGD_NOTICE_KEY >> \"$HOME/keys\"; [ $stays = 0 ] || exec sleep 1000",
    );
    let task = ended(&daemon);
    wait::for_lines(&daemon.home().join("keys"), 1, "");
    fs::write(daemon.home().join("go"), "").unwrap();
    assert!(daemon.stop().success());
    daemon.launch();
    wait::for_lines(&daemon.home().join("keys"), 2, "");
    let text = fs::read_to_string(daemon.home().join("keys")).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), [key(task), key(task)]);
}

#[test]
fn r127_notice_of_cleared_task_keeps_result_after_kill() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = with_server(&server, "");
    let tasks = [1, 2].map(|number| daemon.submit_shell(&format!("echo result {number}")));
    daemon.block(&tasks);
    server.wait_count(1);
    let paths = tasks.map(|task| std::path::PathBuf::from(daemon.task(task).output.path));
    daemon.run(&["clear", &tasks[0].to_string(), &tasks[1].to_string()]).success();

    crash(&mut daemon);

    for request in &server.wait_count(3)[1..] {
        let notice: Notice = serde_json::from_slice(&request.body).unwrap();
        let result = notice.result.as_ref().expect("a result");
        assert!(result.text.starts_with("result ") && result.part == Part::All, "{result:?}");
    }
    wait::poll_until("their outputs are removed", || paths.iter().all(|path| !path.exists()).then_some(()));
}

#[test]
fn r127_restored_notices_do_not_exceed_queue_limit() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = with_server(&server, "[limits]\nchannel_queue = 3");
    let tasks: Vec<TaskId> = (0..5).map(|_| ended(&daemon)).collect();
    server.wait_count(1);
    assert_eq!(daemon.channel("hook").dropped, 2);
    crash(&mut daemon);
    server.wait_count(4);
    wait::poll_until("they are delivered", || (daemon.channel("hook").sent == 3).then_some(()));
    assert_eq!(keys(&server), [key(tasks[0]), key(tasks[0]), key(tasks[1]), key(tasks[2])]);
}

#[test]
fn r127_notice_of_removed_channel_is_counted_as_undelivered_once() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = with_server(&server, "");
    ended(&daemon);
    server.wait_count(1);
    all_is_written(&daemon);
    daemon.kill9();
    daemon.write_config("durable = true");
    daemon.launch();
    assert_eq!(daemon.status().undelivered, 1);
    crash(&mut daemon);
    assert_eq!(daemon.status().undelivered, 0, "it is forgotten");
}

#[test]
fn r127_output_of_cleared_task_is_removed_with_its_notice_if_the_channel_was_removed() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = with_server(&server, "");
    let task = daemon.submit_shell("echo result");
    daemon.block(&[task]);
    server.wait_count(1);
    let path = std::path::PathBuf::from(daemon.task(task).output.path);
    daemon.run(&["clear", &task.to_string()]).success();
    all_is_written(&daemon);
    daemon.kill9();
    assert!(path.exists(), "its notice needs it");
    daemon.write_config("durable = true");
    daemon.launch();
    wait::poll_until("its output is removed", || (!path.exists()).then_some(()));
}

#[test]
fn r127_notices_held_for_terminal_are_restored_after_kill() {
    let mut daemon = TestDaemon::builder().config("durable = true").env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    let from = origin(&terminal);
    occupy(&mut terminal);
    let log = daemon.state_dir().join("bgd.log");
    for number in 1..=2 {
        submit_from(&daemon, &from, "true");
        wait::for_lines(&log, number, HELD);
    }

    crash(&mut daemon);

    assert_eq!(daemon.channel("tty").queued, 2);
    occupied_has_no_notice(&mut terminal);
    terminal.type_keys("\x04");
    terminal.wait("two lines", |screen| screen.contents().matches(DONE).count() == 2);
    wait::poll_until("they are delivered", || (daemon.channel("tty").sent == 2).then_some(()));
    crash(&mut daemon);
    assert_eq!(daemon.status().channels.iter().map(|channel| channel.queued).sum::<u64>(), 0);
}

/// Returns once the daemon has missed a notice because its terminal is closed.
#[track_caller]
fn has_missed(daemon: &TestDaemon) {
    wait::poll_until("the missed notice", || (daemon.channel("tty").failed == 1).then_some(()));
}

/// Returns a durable daemon that has missed a notice.
#[track_caller]
fn with_missed_notice() -> TestDaemon {
    let daemon = TestDaemon::builder().config("durable = true").env("BGD_LOG", "debug").start();
    let gate = Gate::new(&daemon, "gate");
    let mut closed = open(&daemon, &BASH);
    submit_from(&daemon, &origin(&closed), "read x <gate");
    closed.close();
    gate.open();
    has_missed(&daemon);
    daemon
}

/// Opens a terminal in which a program has the foreground after `bgctl` was used there, as the `count`-th of this
/// daemon that missed notices are passed on to.
#[track_caller]
fn occupied_visitor(daemon: &TestDaemon, count: u64) -> Terminal {
    let mut terminal = open(daemon, &BASH);
    terminal.type_line("bgctl list -q >/dev/null; echo u''p; cat");
    terminal.wait_text("\nup\n");
    wait::for_lines(&daemon.state_dir().join("bgd.log"), count, "missed notices are passed on");
    terminal
}

/// Returns once the missed notices that were shown are no longer in the journal.
#[track_caller]
fn has_forgotten_missed(daemon: &TestDaemon) {
    wait::for_lines(&daemon.state_dir().join("bgd.log"), 1, "missed notices leave the journal");
}

#[test]
fn r127_missed_notice_held_for_next_terminal_is_shown_after_kill() {
    let mut daemon = with_missed_notice();
    let mut next = occupied_visitor(&daemon, 1);
    crash(&mut daemon);
    has_missed(&daemon);
    // This terminal is closed before it could show the line, too.
    occupied_visitor(&daemon, 2).close();
    crash(&mut daemon);
    has_missed(&daemon);
    next.type_keys("\x04");
    next.wait_line("$");
    next.run_line("bgctl list -q >/dev/null");
    has_forgotten_missed(&daemon);
    crash(&mut daemon);
    next.run_line("bgctl list -q >/dev/null");
    let shown = String::from_utf8_lossy(&next.shown()).into_owned();
    assert_eq!(shown.matches(DONE).count(), 1, "once: {shown:?}");
    assert!(daemon.status().channels.iter().all(|channel| channel.failed == 0), "its row is gone");
}

#[test]
fn r127_missed_notice_held_during_upgrade_leaves_journal_once_shown() {
    let mut daemon = with_missed_notice();
    let mut next = occupied_visitor(&daemon, 1);
    upgrade(&daemon);
    next.type_keys("\x04");
    next.wait_text(DONE);
    has_forgotten_missed(&daemon);
    crash(&mut daemon);
    assert!(daemon.status().channels.iter().all(|channel| channel.failed == 0), "its row is gone");
}

#[test]
fn r127_notice_missed_by_closed_terminal_goes_to_next_one_after_kill() {
    let mut daemon = with_missed_notice();

    crash(&mut daemon);

    has_missed(&daemon);
    let mut next = open(&daemon, &BASH);
    next.run_line("bgctl list -q >/dev/null");
    // It may have been shown before the screen was cleared.
    next.wait_shown(DONE, |shown| String::from_utf8_lossy(shown).contains(DONE));
    has_forgotten_missed(&daemon);
    crash(&mut daemon);
    next.run_line("bgctl list -q >/dev/null");
    let shown = String::from_utf8_lossy(&next.shown()).into_owned();
    assert_eq!(shown.matches("[BACKGROUND").count(), 1, "once: {shown:?}");
    assert!(daemon.status().channels.iter().all(|channel| channel.failed == 0), "its row is gone");
}
