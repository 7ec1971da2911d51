//! Upgrades in place while notices are being delivered (R121): queues, retries, running commands, and lines held for
//! terminals continue.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;

use bgd_tests::chats::{Api, ChatServer, Message};
use bgd_tests::hooks::{HookServer, Reply};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::Notice;
use bgd_tests::shared::request::{ChannelStatus, SubmitParams};
use bgd_tests::templates::{self, shell_agent};
use bgd_tests::upgrades::{in_time, upgrade, upgrade_under_load};
use bgd_tests::{Process, TestDaemon, wait};

use super::channel_tty::{
    BASH, DONE, Gate, HELD, occupied_has_no_notice, occupy, open, origin, params_from, submit_from,
};

#[track_caller]
fn with_hook(script: &str, settings: &str) -> TestDaemon {
    let config = format!(
        "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"exec\"\nstarted = false\n\
         command = [\"/bin/sh\", \"-c\", '''{script}''']\n{settings}\n"
    );
    TestDaemon::builder().config(config).env("BGD_LOG", "debug").start()
}

#[track_caller]
fn with_server(server: &HookServer) -> TestDaemon {
    TestDaemon::builder().config(webhook(server)).start()
}

#[track_caller]
fn ended(daemon: &TestDaemon, line: &str) -> TaskId {
    let id = daemon.submit_shell(line);
    daemon.block(&[id]);
    id
}

#[track_caller]
fn settled(daemon: &TestDaemon) -> ChannelStatus {
    wait::poll_until("an empty queue", || Some(daemon.channel("ops")).filter(|channel| channel.queued == 0))
}

fn keys(server: &HookServer) -> Vec<String> {
    server.requests().iter().map(|request| request.header("idempotency-key").unwrap().to_owned()).collect()
}

fn key(task: TaskId) -> String {
    format!("{task}/1")
}

#[test]
fn r121_running_channel_command_and_queue_survive_upgrade() {
    // Its standard input exceeds the capacity of a pipe, and is read only after the upgrade.
    let script = "cd; echo $BGD_NOTICE_KEY >> keys; echo before; [ -e begun ] && exec cat > /dev/null
        echo $$ > begun.new; mv begun.new begun; read line < hook; cat > told; echo after; exit 3";
    let daemon = with_hook(script, "");
    let gate = Gate::new(&daemon, "hook");
    let first = ended(&daemon, "head -c 60000 /dev/zero | tr '\\0' '\"'");
    let process = daemon.recorded_process("begun");
    let others = [ended(&daemon, "true"), ended(&daemon, "true")];

    (0..3).for_each(|_| _ = upgrade(&daemon));

    assert!(process.is_alive());
    assert_eq!(daemon.channel("ops").queued, 3);
    gate.open();
    let status = settled(&daemon);
    assert_eq!((status.sent, status.failed), (2, 1));
    let error = status.last_error.unwrap_or_default();
    assert!(error.ends_with("exited with code 3; it wrote: before / after"), "{error}");
    let notice: Notice = serde_json::from_slice(&fs::read(daemon.home().join("told")).unwrap()).unwrap();
    assert_eq!((notice.task.id, notice.result.expect("a result").bytes), (first, 60000));
    let keys = fs::read_to_string(daemon.home().join("keys")).unwrap();
    assert_eq!(keys.lines().collect::<Vec<_>>(), [key(first), key(others[0]), key(others[1])], "each once");
    assert!(daemon.processes().len() == 1, "{:?}", daemon.processes());
}

#[test]
fn r121_hung_channel_command_times_out_after_upgrade() {
    in_time(|timeout| {
        let seconds = timeout.as_secs();
        let daemon = with_hook(
            "cat > /dev/null; echo words; echo $$ > \"$HOME/begun\"; exec sleep 1000",
            &format!("timeout = \"{seconds}s\""),
        );
        ended(&daemon, "true");
        let begun = daemon.home().join("begun");
        let pid = wait::poll_until("its process id, unless it was ended before", || {
            let is_ended = daemon.channel("ops").failed == 1;
            let line = fs::read_to_string(&begun).ok().filter(|line| line.ends_with('\n'));
            (line.is_some() || is_ended).then_some(line)
        });
        let Some(pid) = pid else { return false };
        let process = Process::open(pid.trim_end().parse().expect("a process id"));
        upgrade(&daemon);
        let is_in_time = process.is_some_and(|process| process.is_alive());
        let error = settled(&daemon).last_error.unwrap_or_default();
        let expected = format!("was ended: it ran longer than {seconds}s; it wrote: words");
        assert!(error.ends_with(&expected), "{error}");
        assert!(daemon.processes().len() == 1, "{:?}", daemon.processes());
        is_in_time
    });
}

#[test]
fn r121_line_held_since_before_reload_survives_upgrade() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    submit_from(&daemon, &origin(&terminal), "true");
    let log = daemon.state_dir().join("bgd.log");
    wait::for_lines(&log, 1, HELD);
    daemon.write_config("[channels.tty]\ntype = \"tty\"\nstarted = true\n");
    daemon.run(&["daemon", "reload"]).success();
    // The channel begins to watch another terminal.
    let mut other = open(&daemon, &BASH);
    submit_from(&daemon, &origin(&other), "true");
    other.wait_text(DONE);
    upgrade(&daemon);
    terminal.type_keys("\x04");
    terminal.wait_text(DONE);
    wait::poll_until("an empty queue", || (daemon.channel("tty").queued == 0).then_some(()));
}

#[test]
fn r121_line_held_for_removed_channel_is_given_up_in_upgrade() {
    let config = "[channels.mine]\ntype = \"tty\"\n";
    let daemon = TestDaemon::builder().config(config).env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    occupy(&mut terminal);
    let params = params_from(&daemon, &origin(&terminal), "true");
    daemon.submit_with(&SubmitParams { channel: Some("mine".into()), ..params });
    let log = daemon.state_dir().join("bgd.log");
    wait::for_lines(&log, 1, HELD);
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    assert_eq!(daemon.channel("mine").queued, 1, "it is still shown once the program ends");
    upgrade(&daemon);
    wait::for_lines(&log, 1, "its channel is no longer configured, and the daemon is being upgraded");
    assert!(daemon.status().channels.iter().all(|channel| channel.queued == 0));
    terminal.type_keys("\x04");
    terminal.wait_line("$");
}

#[test]
fn r121_notices_of_channel_turned_into_inbox_are_over_after_upgrade() {
    let daemon = with_hook("cat > /dev/null; echo begun > \"$HOME/begun\"; exec sleep 1000", "");
    ended(&daemon, "true");
    wait::for_file(&daemon.home().join("begun"));
    ended(&daemon, "true");
    assert_eq!(daemon.channel("ops").queued, 2);
    daemon.write_config("default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"inbox\"\n");
    daemon.run(&["daemon", "reload"]).success();
    upgrade(&daemon);
    settled(&daemon);
    wait::poll_until("its command is ended", || (daemon.processes().len() == 1).then_some(()));
    upgrade(&daemon);
    assert_eq!(daemon.channel("ops").queued, 0);
}

/// Returns a daemon whose channel runs a command that ends once the gate is opened. Waits until it runs for the task.
#[track_caller]
fn with_gated_hook() -> (TestDaemon, Gate, TaskId) {
    let daemon = with_hook("cat > /dev/null; echo begun > \"$HOME/begun\"; read line < \"$HOME/hook\"", "");
    let gate = Gate::new(&daemon, "hook");
    let task = ended(&daemon, "true");
    wait::for_file(&daemon.home().join("begun"));
    (daemon, gate, task)
}

fn webhook(server: &HookServer) -> String {
    let url = server.url("/");
    format!(
        "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"webhook\"\nurl = \"{url}\"\nstarted = false\n"
    )
}

#[test]
fn r121_command_of_channel_turned_into_webhook_is_ended_before_it_is_sent_after_upgrade() {
    let (daemon, _gate, first) = with_gated_hook();
    let second = ended(&daemon, "true");
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    daemon.write_config(&webhook(&server));
    daemon.run(&["daemon", "reload"]).success();
    upgrade(&daemon);
    server.wait_count(1);
    wait::poll_until("its command is ended", || (daemon.processes().len() == 1).then_some(()));
    server.release(1);
    let status = settled(&daemon);
    assert_eq!((status.sent, status.failed), (2, 0));
    assert_eq!(keys(&server), [key(first), key(second)]);
}

#[test]
fn r121_notice_delivered_by_command_of_changed_channel_is_not_sent_again() {
    // The upgrade waits only a moment for the command.
    in_time(|_| {
        let (daemon, _gate, _) = with_gated_hook();
        let server = HookServer::start();
        daemon.write_config(&webhook(&server));
        daemon.run(&["daemon", "reload"]).success();
        // Opened for reading too, so that opening does not wait for the command.
        let mut gate = File::options().read(true).write(true).open(daemon.home().join("hook")).unwrap();
        std::thread::scope(|scope| {
            let upgraded = scope.spawn(|| upgrade(&daemon));
            gate.write_all(b"go\n").unwrap();
            upgraded.join().expect("it is upgraded");
        });
        let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
        let (before, _) = log.split_once("the next program takes over").expect("it says so");
        if !before.contains("a notice was delivered") {
            return false;
        }
        let status = settled(&daemon);
        assert_eq!((status.sent, status.failed), (1, 0));
        let after = ended(&daemon, "true");
        server.wait_count(1);
        assert_eq!(keys(&server), [key(after)]);
        true
    });
}

#[test]
fn r121_command_of_removed_channel_delays_upgrade_only_for_a_moment() {
    let (daemon, _gate, _) = with_gated_hook();
    let _others = [ended(&daemon, "true"), ended(&daemon, "true")];
    assert_eq!(daemon.channel("ops").queued, 3);
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    upgrade(&daemon);
    let log = daemon.state_dir().join("bgd.log");
    wait::for_lines(&log, 3, "its channel is no longer configured, and the daemon is being upgraded");
    assert!(daemon.status().channels.iter().all(|channel| channel.queued == 0));
    wait::poll_until("its command is ended", || (daemon.processes().len() == 1).then_some(()));
}

#[test]
fn r121_notice_retry_count_survives_upgrade() {
    let server = HookServer::start();
    for reply in
        [Reply::status(503), Reply::status(503).held(), Reply::status(503), Reply::status(200).held()]
    {
        server.order(reply);
    }
    let daemon = with_server(&server);
    let task = ended(&daemon, "true");
    let next = ended(&daemon, "true");
    server.wait_count(2);

    upgrade(&daemon);

    // The second attempt was never answered; it is repeated under the same key, and still counts as the second.
    server.wait_count(4);
    assert_eq!(daemon.channel("ops").retry.map(|retry| retry.tries), Some(2));
    server.release(2);
    assert_eq!(settled(&daemon).sent, 2);
    assert_eq!(keys(&server), [vec![key(task); 4], vec![key(next)]].concat());
}

#[test]
fn r121_notice_acknowledged_during_upgrade_is_not_sent_again() {
    // The upgrade waits only a moment for the answer.
    in_time(|_| {
        let server = HookServer::start();
        server.order(Reply::status(200).held());
        let daemon = with_server(&server);
        let tasks = [ended(&daemon, "true"), ended(&daemon, "true")];
        server.wait_count(1);
        std::thread::scope(|scope| {
            let upgraded = scope.spawn(|| upgrade(&daemon));
            server.release(1);
            upgraded.join().expect("it is upgraded");
        });
        assert_eq!(settled(&daemon).sent, 2);
        let (sent, once) = (keys(&server), tasks.map(key));
        if sent.len() == 3 {
            assert_eq!(sent, [&once[..1], &once].concat());
            return false;
        }
        assert_eq!(sent, once);
        true
    });
}

#[test]
fn r121_notice_waiting_for_retry_is_sent_after_upgrade() {
    let server = HookServer::start();
    server.order(Reply::later(503, "5"));
    let daemon = with_server(&server);
    let task = ended(&daemon, "true");
    wait::poll_until("it is tried again", || daemon.channel("ops").retry);
    upgrade(&daemon);
    assert_eq!(settled(&daemon).sent, 1);
    assert_eq!(keys(&server), [key(task), key(task)]);
}

#[test]
fn r121_time_of_next_notice_retry_survives_upgrades() {
    let server = HookServer::start();
    server.order(Reply::later(503, "60"));
    let daemon = with_server(&server);
    let task = ended(&daemon, "true");
    let retry = || wait::poll_until("it waits for the next try", || daemon.channel("ops").retry);
    let before = retry();
    for _ in 0..3 {
        upgrade(&daemon);
        assert_eq!(retry(), before);
    }
    assert_eq!(keys(&server), [key(task)], "the server asked to wait");
}

#[test]
fn r121_each_notice_arrives_once_over_twenty_upgrades_under_load() {
    const TASKS: usize = 40;
    let daemon = with_hook("cat > /dev/null; echo $BGD_NOTICE_KEY >> \"$HOME/keys\"", "");
    let tasks: Vec<TaskId> = std::thread::scope(|scope| {
        let load = scope.spawn(|| (0..TASKS).map(|_| ended(&daemon, "true")).collect());
        (0..20).for_each(|_| _ = upgrade_under_load(&daemon));
        load.join().expect("the load")
    });
    let status = settled(&daemon);
    assert_eq!((status.sent, status.failed, status.dropped), (TASKS as u64, 0, 0));
    let text = fs::read_to_string(daemon.home().join("keys")).unwrap();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    text.lines().for_each(|line| *times.entry(line).or_default() += 1);
    for task in tasks {
        assert_eq!(times.get(&*key(task)), Some(&1), "{task}: {text}");
    }
    assert!(daemon.processes().len() == 1, "{:?}", daemon.processes());
}

#[test]
fn r121_typing_indicator_survives_upgrade_and_ends_with_work() {
    let server = ChatServer::start(Api::Telegram);
    let agent = shell_agent("good", "read _ < \"$HOME/$1\"; echo the answer of $1", "");
    let channel = format!(
        "[channels.telegram]\ntype = \"telegram\"\napi_base = \"{}\"\ntoken = \"t0ken\"\n",
        server.base()
    );
    let daemon = TestDaemon::builder().config(channel + &agent).start();
    let mut gates = ["a", "b"].map(|name| templates::Gate::new(daemon.home(), name));
    let submit = |prompt: &str, chat: &str| {
        let session = Some(format!("telegram:{chat}"));
        daemon.submit_with(&SubmitParams { session, ..daemon.prompt_for("good", prompt) }).id
    };
    let is_typing = |message: &Message, chat: &str| message.chat == chat && message.text.is_none();
    let shown = |chat: &str| server.messages().iter().filter(|message| is_typing(message, chat)).count();
    let wait_shown = |chat: &str, times: usize| {
        server.wait_for(|messages| {
            let shown = messages.iter().filter(|message| is_typing(message, chat)).count();
            (shown >= times).then_some(())
        });
    };
    let task = submit("a", "1");
    wait_shown("1", 1);
    upgrade(&daemon);
    // More than those already under way.
    wait_shown("1", shown("1") + 2);
    gates[0].open();
    daemon.block(&[task]);
    server.wait_text("the answer of a");
    let last = submit("b", "2");
    // What was under way to the other chat when its work ended has arrived by then.
    wait_shown("2", 2);
    let before = shown("1");
    upgrade(&daemon);
    // All chats have the same period.
    wait_shown("2", shown("2") + 2);
    assert_eq!(shown("1"), before, "nothing is typed where nobody works");
    gates[1].open();
    daemon.block(&[last]);
    server.wait_text("the answer of b");
    for answer in ["the answer of a", "the answer of b"] {
        let says = |message: &Message| message.text.as_ref().is_some_and(|text| text.contains(answer));
        let notices = server.messages().iter().filter(|message| says(message)).count();
        assert_eq!(notices, 1, "each notice comes once");
    }
}

#[test]
fn r121_held_terminal_notices_stay_held_after_upgrade() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "debug").start();
    let (mut terminal, mut closed) = (open(&daemon, &BASH), open(&daemon, &BASH));
    let from = origin(&terminal);
    occupy(&mut terminal);
    let log = daemon.state_dir().join("bgd.log");
    for number in 1..=2 {
        submit_from(&daemon, &from, "true");
        wait::for_lines(&log, number, HELD);
    }
    let gate = Gate::new(&daemon, "gate");
    submit_from(&daemon, &origin(&closed), "read x <gate; exit 3");
    closed.close();
    gate.open();
    wait::poll_until("a line is missed", || (daemon.channel("tty").failed == 1).then_some(()));

    (0..2).for_each(|_| _ = upgrade(&daemon));

    assert_eq!(daemon.channel("tty").queued, 2);
    occupied_has_no_notice(&mut terminal);
    terminal.type_keys("\x04");
    terminal.wait("two lines", |screen| screen.contents().matches(DONE).count() == 2);
    wait::poll_until("they are delivered", || (daemon.channel("tty").sent == 2).then_some(()));
    // The line of the closed terminal goes to the next one in which somebody uses `bgctl`.
    terminal.type_line("bgctl list >list");
    terminal.wait_text("[BACKGROUND TASK FAILED] ");
    upgrade(&daemon);
    assert_eq!(terminal.screen().matches("[BACKGROUND TASK").count(), 3, "{terminal:?}");
}

/// A line comes right above a new prompt, and elsewhere where something may have been typed.
#[test]
fn r121_empty_and_half_typed_prompts_are_distinguished_after_upgrade() {
    let daemon = TestDaemon::builder().env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    let (first, second) = (Gate::new(&daemon, "first"), Gate::new(&daemon, "second"));
    let from = origin(&terminal);
    submit_from(&daemon, &from, "read x <first");
    // A program that has already ended is not known.
    wait::for_lines(&daemon.state_dir().join("bgd.log"), 1, "the keys of a terminal are watched");
    terminal.type_line("seq 5");
    terminal.wait_text("\n5\n$");
    (0..2).for_each(|_| _ = upgrade(&daemon));
    first.open();
    terminal.wait_text(DONE);
    terminal.wait_line("$");
    let screen = terminal.screen();
    assert!(screen.find("\n5\n").unwrap() < screen.find(DONE).unwrap(), "{terminal:?}");

    submit_from(&daemon, &from, "read x <second");
    terminal.type_keys("echo half-typed");
    terminal.wait_line("$ echo half-typed");
    (0..2).for_each(|_| _ = upgrade(&daemon));
    second.open();
    terminal.wait("two lines", |screen| screen.contents().matches(DONE).count() == 2);
    terminal.wait_line("$ echo half-typed");
    terminal.type_line("-line");
    terminal.wait_text("\nhalf-typed-line\n$");
}

#[test]
fn r121_held_notices_beyond_queue_limit_are_only_counted_after_upgrade() {
    let config = "[limits]\nchannel_queue = 3";
    let daemon = TestDaemon::builder().config(config).env("BGD_LOG", "debug").start();
    let mut terminal = open(&daemon, &BASH);
    let from = origin(&terminal);
    occupy(&mut terminal);
    let log = daemon.state_dir().join("bgd.log");
    let hold = |numbers: std::ops::RangeInclusive<u64>| {
        for number in numbers {
            submit_from(&daemon, &from, "true");
            wait::for_lines(&log, number, HELD);
            wait::for_lines(&log, number.saturating_sub(3), "a held notice is only counted");
        }
    };
    hold(1..=5);

    upgrade(&daemon);

    // The channel counts its own once it is working again.
    wait::poll_until("all that are held", || (daemon.channel("tty").queued == 5).then_some(()));
    hold(6..=7);
    let status = daemon.channel("tty");
    assert_eq!((status.queued, status.dropped), (7, 0));
    terminal.type_keys("\x04");
    terminal.wait_text("[BACKGROUND TASKS] and 2 more completed (bgctl inbox shows them)\n$");
    let status = wait::poll_until("they are delivered", || {
        Some(daemon.channel("tty")).filter(|channel| channel.queued == 0)
    });
    assert_eq!((status.sent, status.failed), (7, 0));
}
