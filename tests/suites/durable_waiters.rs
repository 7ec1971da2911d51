//! Clients that wait while a durable daemon is killed (R126): they continue with the next one.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use bgd_tests::shared::client::Client;
use bgd_tests::shared::holder;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::proc;
use bgd_tests::shared::request::{DaemonStatusOf, ListParams, NoParams, TaskList};
use bgd_tests::shared::task::Status;
use bgd_tests::user::must_be_root;
use bgd_tests::{Process, Terminal, TestDaemon, wait};
use rustix::process::Signal;
use serde_json::Value;

use super::channel_tty::Gate;
use super::durable_held_up::{has_run_once, injected, with_unreadable_program};

pub(super) const GOES_ON: &str = "bgctl: the daemon has ended; the next one takes over its tasks\n";

fn begin(daemon: &TestDaemon, args: &[&str]) -> Child {
    spawn(&mut daemon.bgctl(args))
}

pub(super) fn spawn(bgctl: &mut Command) -> Child {
    bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bgctl")
}

/// Counts the connections of others, through a connection of its own.
pub(super) struct Clients(Client);

impl Clients {
    /// Waits until nobody else is connected, as clients that are about to leave must not be counted as new ones.
    #[track_caller]
    pub(super) fn none(daemon: &TestDaemon) -> Self {
        let mut clients = Self(daemon.client());
        clients.connected(0);
        clients
    }

    /// Waits until this many connections have been made.
    #[track_caller]
    pub(super) fn connected(&mut self, count: u64) {
        wait::poll_until("the clients", || {
            let status = self.0.call::<DaemonStatusOf>(&NoParams {}).unwrap();
            (status.connections == count + 1).then_some(())
        });
    }
}

/// Waits until a connected client waits for its answer: earlier, it would mistake the next daemon for the first one.
#[track_caller]
fn asleep(client: &Child) {
    let pid = client.id().cast_signed();
    wait::poll_until("its wait", || (proc::state(pid) == Some('S')).then_some(()));
}

/// Waits until nothing is on its way between these clients and the daemon: all of them sleep at the same time. Then each
/// client waits for an answer that comes only with an event.
#[track_caller]
pub(super) fn at_rest<'a>(daemon: &TestDaemon, clients: impl Iterator<Item = &'a Child>) {
    let open = |pid| Process::open(pid).expect("it lives");
    let processes: Vec<Process> =
        clients.map(|client| client.id().cast_signed()).chain([daemon.pid()]).map(open).collect();
    // Returns how often each thread has gone to sleep; `None` if one is awake.
    let sleeps = || {
        let threads = processes.iter().flat_map(Process::threads);
        let of = |thread: i32| {
            let count = proc::status(thread, "voluntary_ctxt_switches")?;
            (proc::state(thread) == Some('S')).then_some((thread, count))
        };
        threads.map(of).collect::<Option<Vec<_>>>()
    };
    // Whatever sleeps in both looks, and has not woken up, has slept between them.
    wait::poll_until("rest", || {
        let before = sleeps()?;
        (sleeps()? == before).then_some(())
    });
}

/// Starts this block, and returns once it waits and nobody else is connected.
#[track_caller]
pub(super) fn blocked(daemon: &TestDaemon, mut block: Command) -> Child {
    let mut clients = Clients::none(daemon);
    let block = spawn(&mut block);
    clients.connected(1);
    asleep(&block);
    block
}

/// Returns the exit code and both output streams.
pub(super) fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Ends the daemon that a client has started, and checks that nothing is left but the clients.
#[track_caller]
pub(super) fn stop(daemon: &TestDaemon) {
    daemon.run(&["daemon", "stop", "--cancel"]).success();
    let is_client =
        |process: &Process| process.cmdline().split(' ').next().is_some_and(|name| name.ends_with("bgctl"));
    daemon.processes().iter().filter(|process| !is_client(process)).for_each(Process::gone);
}

#[test]
fn r126_waiters_and_followers_continue_with_next_daemon() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let id = daemon.submit_shell("seq 20000; read x <gate; seq 20001 40000; exit 4");
    daemon.wait_running(id);
    let id = id.to_string();
    let mut clients = Clients::none(&daemon);
    // The last wait is for a status that means nothing once the task has ended.
    let waits = [
        (begin(&daemon, &["block", &id]), 1),
        (begin(&daemon, &["block", "--exit-code", "--timeout", "1h", &id]), 4),
        (begin(&daemon, &["block", "--line", "^40000$", &id]), 0),
        (begin(&daemon, &["block", "--status", "running"]), 1),
    ];
    let mut followed = begin(&daemon, &["output", "--follow", &id]);
    let mut lines = BufReader::new(followed.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line == "20000"));
    // The search has its own connection for events.
    clients.connected(6);
    for (client, _) in &waits {
        asleep(client);
    }
    asleep(&followed);
    let before = daemon.process();
    daemon.kill9();
    let mut errors = BufReader::new(followed.stderr.take().unwrap());
    let mut message = String::new();
    errors.read_line(&mut message).unwrap();
    assert_eq!(message, GOES_ON);
    assert_ne!(daemon.pid(), before.pid());
    gate.open();
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, (20001..=40000).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    assert!(followed.wait().unwrap().success());
    for (child, code) in waits {
        let (exited, written, stderr) = ended(child);
        assert_eq!(exited, Some(code), "{written} {stderr}");
        // A client that waits for a line may find it in the file before it notices the kill.
        assert!(stderr == GOES_ON || code == 0 && stderr.is_empty(), "{stderr}");
    }
    stop(&daemon);
}

/// A process that the daemon was about to run has copies of its connections while its program can't be read.
#[test]
fn r126_waiter_abandons_connection_held_open_only_by_starting_process() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 2");
    let gate = Gate::new(&daemon, "gate");
    let id = daemon.submit_shell("read x <gate");
    daemon.wait_running(id);
    let block = blocked(&daemon, daemon.bgctl(&["block", &id.to_string()]));
    let (program, task) = with_unreadable_program(&daemon, None);
    daemon.kill9();
    gate.open();
    let (exited, written, stderr) = ended(block);
    assert_eq!((exited, &*stderr), (Some(0), GOES_ON), "{written}");
    program.release();
    has_run_once(&daemon, task);
    stop(&daemon);
}

#[test]
fn r126_events_continue_without_gap_and_inbox_follows_next_daemon() {
    let mut daemon = TestDaemon::durable("");
    let mut clients = Clients::none(&daemon);
    let mut events = begin(&daemon, &["events"]);
    let mut inbox = begin(&daemon, &["inbox", "--follow", "--session", "mine"]);
    clients.connected(2);
    asleep(&events);
    asleep(&inbox);
    wait::poll_until("a subscription", || (daemon.status().subscriptions == 1).then_some(()));
    let gate = Gate::new(&daemon, "gate");
    let submit = ["submit", "--session", "mine", "--shell", "read x <gate; echo well"];
    let id = daemon.run(&submit).success().word::<TaskId>();
    let mut seqs = Vec::new();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut until = |kind: &str| loop {
        let line = lines.next().unwrap().unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["task"]["id"], id.to_string(), "{line}");
        seqs.push(event["seq"].as_u64().unwrap());
        if event["kind"] == kind {
            break;
        }
    };
    until("started");
    daemon.kill9();
    let mut errors = BufReader::new(inbox.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(errors.next().unwrap(), GOES_ON.trim_end());
    gate.open();
    until("completed");
    assert!(seqs.windows(2).all(|two| two[0] + 1 == two[1]), "{seqs:?}");
    let mut items = BufReader::new(inbox.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(items.any(|line| line.contains(&id.short())));
    for mut child in [events, inbox] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    stop(&daemon);
}

#[test]
fn r126_events_from_before_a_restart_are_reported_as_missing() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit(&["true"]);
    daemon.block(&[id]);
    let before = daemon.status();
    daemon.kill9();
    daemon.launch();
    let mut events = begin(&daemon, &["events", "--since", &format!("{}:0", before.instance)]);
    let line = BufReader::new(events.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let gap: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((gap["kind"].as_str(), gap["from"].as_u64()), (Some("gap"), Some(1)), "{line}");
    assert!(gap["to"].as_u64() >= Some(before.seq), "{line}");
    events.kill().unwrap();
    events.wait().unwrap();
    stop(&daemon);
}

#[test]
fn r126_attached_terminal_continues_with_next_daemon() {
    let mut daemon = TestDaemon::durable("");
    let line = "printf say:; read x; echo \"you said $x\"; read y";
    let id = daemon.run(&["submit", "--pty", "--shell", line]).success().word::<TaskId>();
    daemon.wait_output(id, "say:");
    let mut terminal = Terminal::open(&daemon.bgctl(&["attach", &id.to_string()]));
    terminal.wait_text("say:");
    daemon.kill9();
    // The client reports it, and draws over the message at once.
    terminal.wait_shown("the next one", |shown| count(shown, GOES_ON) == 1);
    terminal.type_line("hello");
    terminal.wait_text("you said hello");
    terminal.type_line("");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    stop(&daemon);
}

/// How many times the text was shown.
fn count(shown: &[u8], text: &str) -> usize {
    String::from_utf8_lossy(shown).matches(text.trim_end()).count()
}

#[test]
fn r126_attached_text_output_continues_where_it_was() {
    // The second one ends while nobody is watching.
    for is_stopped in [false, true] {
        let mut daemon = TestDaemon::durable("");
        let gate = Gate::new(&daemon, "gate");
        let id = daemon.submit_shell("echo first; read x <gate; echo second; exit 3");
        daemon.wait_output(id, "first");
        let mut terminal = Terminal::open(&daemon.bgctl(&["attach", &id.to_string()]));
        terminal.wait_text("first");
        let bgctl = terminal.process();
        if is_stopped {
            bgctl.signal(Signal::STOP).unwrap();
            wait::poll_until("its stop", || (proc::state(bgctl.pid()) == Some('T')).then_some(()));
        }
        daemon.kill9();
        if is_stopped {
            daemon.launch();
            gate.open();
            daemon.block(&[id]);
            bgctl.signal(Signal::CONT).unwrap();
        } else {
            terminal.wait_shown("the next one", |shown| count(shown, GOES_ON) == 1);
            gate.open();
        }
        assert_eq!(terminal.ended().code(), Some(3));
        let shown = terminal.shown();
        for text in ["first", "second", GOES_ON] {
            assert_eq!(count(&shown, text), 1, "{text} in {}", String::from_utf8_lossy(&shown));
        }
        stop(&daemon);
    }
}

#[test]
fn r126_waiter_fails_if_tasks_are_lost_or_daemon_was_stopped() {
    for (config, kills) in [("", true), ("durable = true", false)] {
        let mut daemon = TestDaemon::builder().config(config).start();
        let id = daemon.submit_shell("exec sleep 1000");
        daemon.wait_running(id);
        let block = blocked(&daemon, daemon.bgctl(&["block", &id.to_string()]));
        if kills {
            daemon.kill9();
        } else {
            daemon.stop();
        }
        let (exited, _, stderr) = ended(block);
        assert_eq!(exited, Some(69), "{stderr}");
        assert!(!stderr.contains("takes over its tasks"), "{stderr}");
        assert_eq!(stderr.contains("was stopped; tasks it did not cancel keep running"), !kills, "{stderr}");
        assert_eq!(holder::of(daemon.socket_path()), None, "no daemon was started");
        daemon.launch();
        daemon.run(&["daemon", "stop", "--cancel"]).success();
    }
}

#[test]
fn r131_waiter_reports_tasks_lost_with_a_removed_journal() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit_shell("exec sleep 1000");
    let process = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    let name = id.to_string();
    for args in [&["block", &*name][..], &["events"]] {
        let waits = blocked(&daemon, daemon.bgctl(args));
        fs::remove_dir_all(daemon.state_dir()).unwrap();
        daemon.stop();
        let (exited, _, stderr) = ended(waits);
        assert_eq!(exited, Some(69), "{stderr}");
        let parts = ["its tasks are lost", "journal.db was removed", "put the journal's folder back"];
        assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
        assert!(!stderr.contains("the next daemon takes"), "{stderr}");
        daemon.launch();
        process.gone();
    }
    daemon.run(&["daemon", "stop"]).success();
}

/// Only whoever restarts the daemon starts the next one: `--no-start` would not.
#[test]
fn r131_waiters_and_followers_continue_after_restart() {
    let mut daemon = TestDaemon::durable("");
    let gate = Gate::new(&daemon, "gate");
    let submit = ["submit", "--session", "mine", "--shell", "echo begun; read x <gate; echo done; exit 4"];
    let id = daemon.run(&submit).success().word::<TaskId>();
    daemon.wait_output(id, "begun");
    let name = id.to_string();
    let mut clients = Clients::none(&daemon);
    let mut waits = [
        (begin(&daemon, &["block", "--exit-code", &name]), 4),
        (begin(&daemon, &["--no-start", "block", "--timeout", "1h", &name]), 1),
        (begin(&daemon, &["block", "--line", "^done$", &name]), 0),
        (begin(&daemon, &["inbox", "--session", "mine", "--wait", "1h"]), 0),
        (begin(&daemon, &["output", "--follow", &name]), 0),
    ];
    let mut events = begin(&daemon, &["events", "--task", &name]);
    // The search has its own connection for events.
    clients.connected(7);
    at_rest(&daemon, waits.iter().map(|(client, _)| client).chain([&events]));
    daemon.run(&["daemon", "restart"]).success();
    assert!(daemon.ended().success());
    for client in waits.iter_mut().map(|(client, _)| client).chain([&mut events]) {
        let mut message = String::new();
        BufReader::new(client.stderr.take().unwrap()).read_line(&mut message).unwrap();
        assert_eq!(message, GOES_ON);
    }
    gate.open();
    for (child, code) in waits {
        let (exited, written, _) = ended(child);
        assert_eq!(exited, Some(code), "{written}");
        assert!(written.lines().any(|line| line == "done" || line.contains(&id.short())), "{written}");
    }
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"failed\"")));
    events.kill().unwrap();
    events.wait().unwrap();
    stop(&daemon);
}

#[test]
fn r126_stop_ends_events_and_makes_inbox_wait_for_next_daemon() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(id);
    let mut clients = Clients::none(&daemon);
    let events = begin(&daemon, &["events"]);
    clients.connected(1);
    asleep(&events);
    drop(clients);
    let mut inbox = begin(&daemon, &["inbox", "--session", "s", "--follow", "--limit", "2"]);
    let mut items = BufReader::new(inbox.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut completed = || items.find(|line| line.starts_with("[BACKGROUND TASK COMPLETED]"));
    daemon.run(&["submit", "--session", "s", "--", "true"]).success();
    // From now on it is following.
    completed().expect("the first one");
    daemon.stop();
    let (exited, _, said) = ended(events);
    assert_eq!(exited, Some(69), "{said}");
    assert!(said.contains("was stopped; tasks it did not cancel keep running"), "{said}");
    let mut words = BufReader::new(inbox.stderr.take().unwrap()).lines();
    assert_eq!(words.next().unwrap().unwrap(), "bgctl: the daemon has ended; waiting for the next one");
    daemon.launch();
    daemon.run(&["submit", "--session", "s", "--", "true"]).success();
    completed().expect("the second one");
    assert!(inbox.wait().unwrap().success());
    daemon.run(&["daemon", "stop", "--cancel"]).success();
}

#[test]
fn r126_waiter_does_not_restart_daemon_killed_during_stop() {
    let mut daemon = TestDaemon::durable("[grace]\ncancel = \"1h\"");
    let line = "trap 'echo asked' TERM; echo begun; while :; do sleep 0.1; done";
    let id = daemon.submit_shell(line);
    daemon.wait_output(id, "begun");
    let block = blocked(&daemon, daemon.bgctl(&["block", &id.to_string()]));
    let stop = begin(&daemon, &["daemon", "stop", "--cancel"]);
    daemon.wait_output(id, "asked");
    daemon.kill9();
    let (exited, _, stderr) = ended(block);
    assert_eq!(exited, Some(69), "{stderr}");
    // The daemon is gone, as requested.
    ended(stop);
    assert_eq!(holder::of(daemon.socket_path()), None, "no daemon was started");
    daemon.launch();
    daemon.run(&["signal", &id.to_string(), "KILL"]).success();
    daemon.block(&[id]);
    daemon.run(&["daemon", "stop", "--cancel"]).success();
}

/// The answer is sent by the daemon's first thread; for a batch, it is the second one, after that to `hello`.
#[test]
fn r126_submit_with_lost_reply_is_executed_once_as_root() {
    must_be_root();
    for (is_batch, has_key) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut daemon = TestDaemon::durable("");
        let items = daemon.home().join("items");
        fs::write(&items, "item\n").unwrap();
        let batch = ["--each", items.to_str().unwrap()];
        let (each, answer, why) = if is_batch {
            (&batch[..], 2, "may have accepted the whole batch")
        } else {
            (&[][..], 1, "may have been carried out")
        };
        let key = if has_key { &["--key", "k"][..] } else { &[] };
        let mut strace = injected(&daemon.process(), "bgd", &format!("sendmsg:signal=KILL:when={answer}"));
        let submitted = daemon.run(&[&["submit", "--hold"], each, key, &["--", "true"]].concat());
        strace.wait().unwrap();
        daemon.kill9();
        if has_key {
            let submitted = submitted.success();
            assert!(submitted.stderr.contains(GOES_ON), "{submitted:?}");
            assert!(!submitted.stderr.contains("exists"), "{submitted:?}");
        } else {
            let refused = submitted.expect_code(69);
            assert!(refused.stderr.contains(why), "{}", refused.stderr);
            daemon.launch();
        }
        let tasks = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
        assert_eq!(tasks.len(), 1, "{tasks:?}");
        daemon.run(&["daemon", "stop", "--cancel"]).success();
    }
}

#[test]
fn r126_rerun_with_lost_reply_is_executed_once_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::durable("");
    let failed = daemon.submit(&["false"]);
    daemon.block(&[failed]);
    let mut strace = injected(&daemon.process(), "bgd", "sendmsg:signal=KILL");
    let rerun = daemon.run(&["rerun", &failed.to_string()]).success();
    strace.wait().unwrap();
    daemon.kill9();
    assert!(rerun.stderr.contains(GOES_ON), "{}", rerun.stderr);
    let tasks = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    assert_eq!(tasks.len(), 2, "{tasks:?}");
    stop(&daemon);
}

#[test]
fn r126_waits_for_several_tasks_continue_without_cleared_ones() {
    let mut daemon = TestDaemon::durable("");
    let gates = ["one", "two"].map(|name| Gate::new(&daemon, name));
    let ended = daemon.submit(&["true"]);
    let ids = [ended, daemon.submit_shell("read x <one"), daemon.submit_shell("read x <two")];
    daemon.block(&[ended]);
    for id in &ids[1..] {
        daemon.wait_running(*id);
    }
    let [ended, first, last] = ids.map(|id| id.to_string());
    let mut clients = Clients::none(&daemon);
    let of_known = begin(&daemon, &["block", &ended, &last]);
    let of_unknown = begin(&daemon, &["block", &first, &last]);
    let mut events = begin(&daemon, &["events", "--task", &ended, "--task", &last]);
    clients.connected(3);
    for client in [&of_known, &of_unknown, &events] {
        asleep(client);
    }
    wait::poll_until("a subscription", || (daemon.status().subscriptions == 1).then_some(()));
    gates[0].open();
    daemon.block(&[ids[1]]);
    daemon.run(&["clear", &ended, &first]).success();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines().map(Result::unwrap);
    let kind = |line: String| serde_json::from_str::<Value>(&line).unwrap()["kind"].clone();
    assert_eq!(lines.next().map(kind), Some("cleared".into()));
    daemon.kill9();
    let mut errors = BufReader::new(events.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(errors.next().unwrap(), GOES_ON.trim_end());
    gates[1].open();
    // What only the killed daemon knew is a gap.
    let line = lines.find(|line| !line.contains("\"gap\"")).unwrap();
    assert_eq!((line.contains(&last), kind(line)), (true, "completed".into()));
    events.kill().unwrap();
    events.wait().unwrap();
    let (code, written, stderr) = self::ended(of_known);
    assert_eq!((code, &*stderr), (Some(0), GOES_ON), "{written}");
    let shown = |written: &str| {
        written.lines().map(|line| line.split('\t').take(2).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(shown(&written), [format!("{ended} completed"), format!("{last} completed")]);
    // Nobody can know how this one ended.
    let (code, written, stderr) = self::ended(of_unknown);
    assert_eq!((code, shown(&written)), (Some(66), vec![format!("{last} completed")]), "{stderr}");
    assert!(stderr.contains(&format!("task {first} was cleared before")), "{stderr}");
    stop(&daemon);
}
