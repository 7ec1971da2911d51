//! Parent sessions: how `bgctl` finds them, the channel that follows from one (R50, R52), their end (R54), and several
//! readers of one inbox (R55).

use std::fs;
use std::process::{Child, Command, Stdio};

use bgd_shared::client::Client;
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::InboxItem;
use bgd_shared::proc;
use bgd_shared::request::{
    DaemonStatusOf, Hello, HelloParams, InboxAck, InboxAckParams, InboxRead, InboxReadParams, ListParams,
    NoParams, SessionEnd, SessionEndParams, SubmitParams, TaskList, TaskSubmit,
};
use bgd_shared::task::Status;
use bgd_tests::{Outcome, Process, Terminal, TestDaemon, Watch, bgctl_path, wait};
use rustix::process::Signal;

/// A shell in a terminal without anything that names a parent session.
fn shell(daemon: &TestDaemon) -> Terminal {
    let mut shell = Terminal::shell(daemon);
    assert_eq!(shell.run_line("unset BGD_SESSION SSH_CONNECTION TMUX TMUX_PANE"), 0);
    shell
}

#[track_caller]
fn text(daemon: &TestDaemon, file: &str) -> String {
    fs::read_to_string(daemon.home().join(file)).expect("a file in the home").trim_end().to_owned()
}

/// A `bgctl` without a terminal and without a parent session in its environment.
fn without_terminal(daemon: &TestDaemon, args: &[&str]) -> Command {
    let bgctl = daemon.bgctl(&[]);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(bgctl_path()).args(args).env_clear().current_dir(daemon.home());
    command.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env_remove("BGD_SESSION");
    command
}

fn tasks(daemon: &TestDaemon) -> Vec<TaskId> {
    let all = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    all.into_iter().map(|task| task.id).collect()
}

#[test]
fn a_plain_terminal_is_a_parent_session() {
    let daemon = TestDaemon::start();
    let mut shell = shell(&daemon);
    assert_eq!(shell.run_line("tty > tty; bgctl session key > key"), 0);
    let key = text(&daemon, "key");
    assert!(key.starts_with(&format!("tty:{}@", text(&daemon, "tty"))), "{key}");
    // The other streams of a shell's job need not be the terminal.
    assert_eq!(shell.run_line("bgctl submit --channel none -- true < /dev/null > id 2> /dev/null"), 0);
    let task = daemon.task(text(&daemon, "id").parse().unwrap());
    assert_eq!(task.session, Some(key.clone()));
    assert_eq!(
        shell.run_line("bgctl list -q --session . > mine; bgctl list -q --session tty:other > other"),
        0
    );
    assert_eq!((text(&daemon, "mine"), text(&daemon, "other")), (task.id.to_string(), String::new()));
    daemon.block(&[task.id]);
    assert_eq!(shell.run_line("bgctl --json session key > key; bgctl inbox --ack --json > told"), 0);
    assert_eq!(text(&daemon, "key"), format!("{{\"session\":\"{key}\"}}"));
    assert!(text(&daemon, "told").contains(&task.id.to_string()));
}

#[test]
fn next_shell_on_same_terminal_device_is_another_session() {
    let daemon = TestDaemon::start();
    // Two sessions, one after the other, on the same device.
    let script = r#"
import fcntl, os, pty, sys, termios
front, back = pty.openpty()
for key in ["first", "second"]:
    if os.fork() == 0:
        os.setsid()
        fcntl.ioctl(back, termios.TIOCSCTTY, 0)
        os.dup2(os.open(key, os.O_CREAT | os.O_WRONLY), 1)
        os.execv("/bin/sh", ["sh", "-c", sys.argv[1] + " session key; " + sys.argv[1] + " session key"])
    os.wait()
"#;
    let bgctl = daemon.bgctl(&[]);
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(bgctl_path()).env_clear().current_dir(daemon.home());
    python.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("BGD_SESSION");
    Outcome::of(&mut python).success();
    let [first, second] = ["first", "second"].map(|name| text(&daemon, name));
    let same = |text: &str| text.lines().all(|line| Some(line) == text.lines().next());
    assert!(same(&first) && same(&second) && first.lines().count() == 2, "{first} {second}");
    let device = |text: &str| text.split('@').next().map(str::to_owned);
    assert_eq!(device(&first), device(&second));
    assert_ne!(first, second);
}

#[test]
fn ssh_login_is_a_parent_session() {
    let daemon = TestDaemon::start();
    let mut shell = shell(&daemon);
    assert_eq!(shell.run_line("export SSH_CONNECTION='192.0.2.7 51514 192.0.2.1 22'"), 0);
    assert_eq!(shell.run_line("bgctl session key > key"), 0);
    assert_eq!(text(&daemon, "key"), "ssh:192.0.2.7:51514");
    assert_eq!(shell.run_line("TMUX=/tmp/tmux-0/default,1,0 TMUX_PANE=%3 bgctl session key > key"), 0);
    assert_eq!(text(&daemon, "key"), "tmux:%3@1", "tmux may go on when the login has ended");
    assert_eq!(shell.run_line("SSH_CONNECTION=nonsense bgctl session key > key; tty > tty"), 0);
    let key = text(&daemon, "key");
    assert!(key.starts_with(&format!("tty:{}@", text(&daemon, "tty"))), "{key}");
    // Without a terminal, nobody can see it.
    let mut alone = without_terminal(&daemon, &["session", "key"]);
    alone.env("SSH_CONNECTION", "192.0.2.7 51514 192.0.2.1 22");
    let outcome = Outcome::of(&mut alone).expect_code(2);
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("BGD_SESSION"), "{}", outcome.stderr);
}

#[test]
fn tmux_pane_is_a_parent_session() {
    let daemon = TestDaemon::start();
    let bgctl = daemon.bgctl(&[]);
    let mut tmux = Command::new("tmux");
    tmux.args(["-f", "/dev/null", "-S"]).arg(daemon.home().join("work"));
    tmux.args(["new-session", "bash --norc --noprofile -i"]).current_dir(daemon.home());
    let variables = bgctl.get_envs().filter_map(|(name, value)| Some((name, value?)));
    tmux.envs(variables.filter(|(name, _)| *name != "BGD_SESSION")).env("PS1", "$ ").env("SHELL", "/bin/sh");
    tmux.env("PATH", format!("{}:/usr/bin:/bin", bgctl_path().parent().unwrap().display()));
    let mut terminal = Terminal::open(&tmux);
    terminal.wait_line("$");
    terminal
        .type_line("echo $TMUX_PANE > pane; echo $TMUX > server; bgctl session key > key; echo done >> key");
    wait::for_line(&daemon.home().join("key"), "done");
    // A server other than the default one, whose panes are also counted from 0, as are those of the next one there.
    let server = text(&daemon, "server");
    let pid = server.split(',').nth(1).expect("the server's pid");
    let key = format!("tmux:work{}@{pid}", text(&daemon, "pane"));
    assert!(key.starts_with("tmux:work%") && text(&daemon, "key") == format!("{key}\ndone"), "{key}");
    terminal.type_line("bgctl submit --channel none -- true > id; echo done >> id");
    wait::for_line(&daemon.home().join("id"), "done");
    let id = text(&daemon, "id").lines().next().unwrap().parse().unwrap();
    assert_eq!(daemon.task(id).session, Some(key));
    terminal.type_line("exit");
    assert!(terminal.ended().success());
    wait::poll_until("the end of tmux's server", || daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn latest_task_is_not_that_of_the_same_pane_of_an_earlier_tmux_server() {
    let daemon = TestDaemon::start();
    let mut shell = shell(&daemon);
    assert_eq!(shell.run_line("export TMUX=/tmp/tmux-0/default,17,0 TMUX_PANE=%0"), 0);
    assert_eq!(shell.run_line("bgctl submit --channel none -- true > id"), 0);
    let earlier: TaskId = text(&daemon, "id").parse().unwrap();
    assert_eq!(shell.run_line("bgctl --json status @ > status"), 0);
    assert!(text(&daemon, "status").contains(&earlier.to_string()));
    assert_eq!(shell.run_line("export TMUX=/tmp/tmux-0/default,18,0"), 0);
    assert_eq!(shell.run_line("bgctl --json status @ > status"), 66, "its server has ended");
}

#[test]
fn session_variable_overrides_terminal_and_option_overrides_both() {
    let daemon = TestDaemon::start();
    let mut shell = shell(&daemon);
    let mut session_of = |words: &str| {
        assert_eq!(shell.run_line(&format!("{words} --channel none -- true > id")), 0);
        daemon.task(text(&daemon, "id").parse().unwrap()).session
    };
    assert_eq!(session_of("BGD_SESSION=mine bgctl submit").as_deref(), Some("mine"));
    assert_eq!(session_of("BGD_SESSION=mine bgctl submit --session other").as_deref(), Some("other"));
    assert_eq!(session_of("BGD_SESSION=mine bgctl submit --session .").as_deref(), Some("mine"));
    assert_eq!(session_of("BGD_SESSION= bgctl submit"), None, "an empty one is none");
    assert_eq!(session_of("BGD_SESSION=mine bgctl submit --session ''"), None);
    assert!(session_of("bgctl submit").unwrap().starts_with("tty:"));
    let mut alone = without_terminal(&daemon, &["submit", "--", "true"]);
    let id: TaskId = Outcome::of(&mut alone).success().word();
    assert_eq!(daemon.task(id).session, None);
}

#[test]
fn session_scoped_verbs_leave_other_sessions_alone() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 16").start();
    let ours = |args: &[&str]| Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "ours"));
    let (other, none) = (daemon.submit_in("other", "sleep 1000"), daemon.submit(&["sleep", "1000"]));
    let other_done = daemon.submit_in("other", "true");
    daemon.block(&[other_done]);
    let strangers = [other, none, other_done];
    for session in [".", "ours"] {
        let [runs, done] = [daemon.submit_in("ours", "sleep 1000"), daemon.submit_in("ours", "true")];
        daemon.block(&[done]);
        daemon.wait_running(runs);
        let listed = ours(&["list", "-q", "--session", session]).success().stdout_text();
        assert_eq!(listed, format!("{done}\n{runs}\n"));
        let stdout = ours(&["inbox", "--session", session, "--json", "--ack"]).success().stdout_text();
        assert!(stdout.contains(&done.to_string()) && stdout.lines().count() == 1, "{stdout}");
        assert_eq!(ours(&["clear", "--session", session]).success().stdout_text(), "cleared 1\n");
        let cancelled = ours(&["cancel", "--all", "--session", session]).success().stdout_text();
        assert_eq!(cancelled, format!("{runs} cancelled\n"));
        daemon.submit_in("ours", "sleep 1000");
        let cleared = ours(&["clear", "--all", "--session", session]).success().stdout_text();
        assert_eq!(cleared, "cleared 2\n");
        daemon.submit_in("ours", "sleep 1000");
        let ended = ours(&["session", "end", session]).success().stdout_text();
        assert_eq!(ended, "cancelled 1, cleared 1\n");
        assert!(daemon.inbox("ours").is_empty(), "its inbox has ended, too");
        let mut left = tasks(&daemon);
        left.sort_unstable();
        let mut wanted = strangers.to_vec();
        wanted.sort_unstable();
        assert_eq!(left, wanted);
    }
    assert_eq!(daemon.inbox("other").len(), 1);
    for id in [other, none] {
        assert!(daemon.task(id).status.is_active());
    }
}

#[test]
fn clear_without_ids_affects_current_session_only() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 16").start();
    let ours = |args: &[&str]| Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "ours"));
    let (others, none) = (daemon.submit_in("other", "true"), daemon.submit(&["true"]));
    let others_run = daemon.submit_in("other", "sleep 1000");
    let [done, runs] = [daemon.submit_in("ours", "true"), daemon.submit_in("ours", "sleep 1000")];
    daemon.block(&[others, none, done]);
    daemon.wait_running(runs);
    // What `bgctl clear $(…)` becomes when nothing was found.
    let outcome = ours(&["clear"]).success();
    assert_eq!((outcome.stdout_text().as_str(), outcome.stderr.as_str()), ("cleared 1\n", ""));
    let again = ours(&["clear"]).success();
    assert_eq!(again.stdout_text(), "cleared 0\n");
    assert!(again.stderr.contains("(ours)") && again.stderr.contains("--all-sessions"), "{}", again.stderr);
    assert_eq!(ours(&["clear", "--all"]).success().stdout_text(), "cleared 1\n");
    let left = tasks(&daemon);
    assert!(left.len() == 3 && [others, none, others_run].iter().all(|id| left.contains(id)), "{left:?}");
    for words in [&["clear", "--"][..], &["clear", "--all", "--"], &["clear", ""], &["clear", "--all", ""]] {
        let outcome = ours(words).expect_code(2);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{words:?}");
    }
    let mut alone = without_terminal(&daemon, &["clear"]);
    let outcome = Outcome::of(&mut alone).expect_code(2);
    assert!(outcome.stderr.contains("--all-sessions"), "{}", outcome.stderr);
    assert_eq!(tasks(&daemon).len(), 3);
    assert_eq!(ours(&["clear", "--all-sessions"]).success().stdout_text(), "cleared 2\n");
    assert_eq!(tasks(&daemon), [others_run]);
    assert_eq!(ours(&["clear", "--all", "--all-sessions"]).success().stdout_text(), "cleared 1\n");
}

const CHANNELS: &str = "default_deliver_to = [\"ops\"]\n\
    [channels.ops]\ntype = \"exec\"\ncommand = [\"true\"]\n\
    [channels.discord]\ntype = \"exec\"\ncommand = [\"true\"]\n";

#[test]
fn r50_channel_is_the_named_one_else_from_session_else_default() {
    let daemon = TestDaemon::builder().config(CHANNELS).start();
    let plain = TestDaemon::start();
    let channel = |daemon: &TestDaemon, named: Option<&str>, session: Option<&str>| {
        let (channel, session) = (named.map(Into::into), session.map(Into::into));
        let argv = Some(vec!["true".into()]);
        let task = daemon.submit_with(&SubmitParams { argv, channel, session, ..daemon.params() });
        daemon.block(&[task.id]).remove(0).channel
    };
    assert_eq!(channel(&daemon, Some("inbox"), Some("discord:4711")).as_deref(), Some("inbox"));
    assert_eq!(channel(&daemon, Some("none"), Some("discord:4711")).as_deref(), Some("none"));
    assert_eq!(channel(&daemon, None, Some("discord:4711")).as_deref(), Some("discord"));
    assert_eq!(channel(&daemon, None, Some("mcp:9f2c")).as_deref(), Some("ops"));
    assert_eq!(channel(&daemon, None, None).as_deref(), Some("ops"));
    assert_eq!(channel(&daemon, None, Some("console:7")).as_deref(), Some("ops"));
    assert_eq!(channel(&plain, None, Some("mcp:9f2c")).as_deref(), Some("inbox"), "bgctl mcp reads it");
    assert_eq!(channel(&plain, None, None), None);
    assert_eq!(channel(&plain, None, Some("console:7")).as_deref(), Some("none"), "the console tells itself");

    let params = SubmitParams { channel: Some("nobody".into()), ..daemon.params() };
    let params = SubmitParams { argv: Some(vec!["true".into()]), ..params };
    let error = daemon.client().call::<TaskSubmit>(&params).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
    let outcome = daemon.run(&["submit", "--channel", "nobody", "--", "true"]).expect_code(2);
    assert!(outcome.stderr.contains("\"nobody\"") && outcome.stderr.contains("ops"), "{}", outcome.stderr);
    let given = daemon.run(&["submit", "--channel", "ops", "--session", "discord:1", "--", "true"]).success();
    let task = daemon.block(&[given.word()]).remove(0);
    assert_eq!(task.channel.as_deref(), Some("ops"));
}

const UNSENT: &str = "no notification of its end was sent";

#[test]
fn r52_end_without_channel_logs_warning_with_hint_and_start_is_silent() {
    let daemon = TestDaemon::start();
    let log = daemon.state_dir().join("bgd.log");
    let lines = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.contains(UNSENT)).map(str::to_owned).collect::<Vec<_>>()
    };
    let nobody = SubmitParams { channel: Some("none".into()), ..daemon.params() };
    let quiet = daemon.submit_with(&SubmitParams { argv: Some(vec!["true".into()]), ..nobody }).id;
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.block(&[quiet]);
    daemon.wait_running(runs);
    assert_eq!((lines(), daemon.status().undelivered), (Vec::new(), 0));
    daemon.cancel(&[runs]);
    let line = wait::for_line(&log, UNSENT);
    assert!(line.contains("WARN") && line.contains(&runs.to_string()), "{line}");
    assert!(line.contains("default_deliver_to") && line.contains("bgd-config(5)"), "{line}");
    assert_eq!((lines().len(), daemon.status().undelivered), (1, 1));
    let page = daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(page.contains("not sent:    1 "), "{page}");
}

#[test]
fn console_shows_its_notices_once_and_none_counts_as_undelivered() {
    for (config, channel) in [("", "none"), (CHANNELS, "ops")] {
        let daemon = TestDaemon::builder().config(config).start();
        let mut console = Terminal::bgctl(&daemon, &["console"]);
        console.wait_line("~>");
        console.type_line("echo up; exec sleep 1000");
        console.wait_text("\nup\n");
        console.type_keys("\x02");
        console.wait_text("Command was manually backgrounded");
        console.wait_line("~>");
        let [id] = tasks(&daemon)[..] else { panic!("one task") };
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!(task.channel.as_deref(), Some(channel));
        assert!(task.session.unwrap().starts_with("console:"));
        console.wait_text("[BACKGROUND TASK CANCELLED] ");
        console.wait_line("~>");
        assert_eq!(console.screen().matches("BACKGROUND TASK CANCELLED").count(), 1);
        console.type_line("exit");
        assert!(console.ended().success());
        assert_eq!(daemon.status().undelivered, 0);
    }
}

fn owns(daemon: &TestDaemon, session: &str) -> Client {
    let mut client = daemon.client();
    let params = HelloParams { session: Some(session.into()), owns: true, ..HelloParams::default() };
    client.call::<Hello>(&params).unwrap();
    client
}

/// Waits until these tasks are cleared, and asserts that no others are.
#[track_caller]
fn only_cleared(watch: &mut Watch, ids: &[TaskId]) {
    let mut left = ids.to_vec();
    while !left.is_empty() {
        let id = watch.until(|event| event.kind == EventKind::Cleared).task.id;
        let place = left.iter().position(|known| *known == id).expect("one of these");
        left.swap_remove(place);
    }
}

#[test]
fn r54_ending_a_session_cancels_and_clears_only_its_tasks() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 4").start();
    let done = daemon.submit_in("s", "true");
    daemon.block(&[done]);
    let runs: Vec<TaskId> = (0..3).map(|_| daemon.submit_in("s", "sleep 1000 & sleep 1000")).collect();
    let other = daemon.submit_in("s2", "sleep 1000");
    let pending = daemon.submit_in("s", "sleep 1000");
    for id in runs.iter().chain([&other]) {
        daemon.wait_running(*id);
    }
    let mut watch = daemon.watch();
    let result = daemon.client().call::<SessionEnd>(&SessionEndParams { session: "s".into() }).unwrap();
    assert_eq!((result.cancelled, result.cleared), (4, 5));
    only_cleared(&mut watch, &[&[done, pending], &runs[..]].concat());
    assert_eq!(tasks(&daemon), [other]);
    assert_eq!(daemon.task(other).status, Status::Running);
    assert!(daemon.inbox("s").is_empty());
    let again = daemon.client().call::<SessionEnd>(&SessionEndParams { session: "s".into() }).unwrap();
    assert_eq!((again.cancelled, again.cleared), (0, 0));
}

#[test]
fn r54_session_ends_with_its_last_owning_connection() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let (first, second, stranger) = (owns(&daemon, "s"), owns(&daemon, "s"), owns(&daemon, "s2"));
    let ids = [daemon.submit_in("s", "sleep 1000"), daemon.submit_in("s", "true")];
    let other = daemon.submit_in("s2", "sleep 1000");
    daemon.wait_running(ids[0]);
    daemon.block(&ids[1..]);
    drop(first);
    // The daemon handles connections in order, so it has already processed the disconnect of `first`.
    let mut third = owns(&daemon, "s3");
    third.call::<Hello>(&HelloParams::default()).unwrap();
    assert_eq!(daemon.task(ids[0]).status, Status::Running, "there is another owner");
    drop(second);
    only_cleared(&mut watch, &ids);
    assert_eq!(tasks(&daemon), [other]);
    drop(stranger);
    only_cleared(&mut watch, &[other]);
    // A connection that only names its session owns nothing.
    let mut named = daemon.client();
    named.call::<Hello>(&HelloParams { session: Some("s4".into()), ..HelloParams::default() }).unwrap();
    let stays = daemon.submit_in("s4", "sleep 1000");
    drop(named);
    let ended = daemon.submit_in("s3", "true");
    daemon.block(&[ended]);
    drop(third);
    only_cleared(&mut watch, &[ended]);
    assert!(daemon.task(stays).status.is_active());
}

/// A program that owns a session until it ends.
fn owner(daemon: &TestDaemon, session: &str) -> Child {
    let script = "import json, socket, sys\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.connect(sys.argv[1])\n\
        hello = {'jsonrpc': '2.0', 'id': 1, 'method': 'hello', 'params': {'session': sys.argv[2], 'owns': True}}\n\
        s.sendall(json.dumps(hello).encode() + b'\\n')\n\
        print(s.makefile().readline(), flush=True)\n\
        s.recv(1)\n";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(daemon.socket()).arg(session);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("python3");
    let mut said = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).expect("its answer");
    child
}

#[test]
fn r54_session_ends_when_its_owner_is_killed() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut child = owner(&daemon, "s");
    let runs = daemon.submit_in("s", "setsid sleep 1000 & sleep 1000");
    let other = daemon.submit_in("s2", "sleep 1000");
    let leader = Process::open(daemon.wait_running(runs).pid.unwrap()).unwrap();
    daemon.wait_running(other);
    child.kill().unwrap();
    child.wait().unwrap();
    let cancelled = watch.until_kind(runs, EventKind::Cancelled).task;
    assert_eq!(cancelled.status, Status::Cancelled);
    only_cleared(&mut watch, &[runs]);
    assert!(!leader.is_alive());
    assert_eq!(tasks(&daemon), [other]);
}

#[test]
fn r113_session_variable_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStrExt as _;
    let daemon = TestDaemon::start();
    let run = |args: &[&str]| {
        Outcome::of(daemon.bgctl(args).env("BGD_SESSION", std::ffi::OsStr::from_bytes(b"chat\xff")))
    };
    for words in ["session key", "submit -- true", "list --session .", "clear", "inbox", "status @", "mcp"] {
        let refused = run(&words.split(' ').collect::<Vec<_>>()).expect_code(2);
        assert!(refused.stderr.contains("BGD_SESSION is not UTF-8"), "{words}: {}", refused.stderr);
    }
    assert!(tasks(&daemon).is_empty());
    run(&["submit", "--session", "other", "--", "true"]).success();
    let mut console = daemon.bgctl(&["console"]);
    let mut console = Terminal::open(console.env("BGD_SESSION", std::ffi::OsStr::from_bytes(b"chat\xff")));
    console.wait_text("BGD_SESSION is not UTF-8");
    assert_eq!(console.ended().code(), Some(2));
}

#[test]
fn r113_session_key_in_a_pipe_is_exact() {
    let daemon = TestDaemon::start();
    let run = |args: &[&str]| Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "a\tb")).success();
    let id: TaskId = run(&["submit", "--", "true"]).word();
    let key = run(&["session", "key"]).stdout_text();
    assert_eq!(key, "a\tb\n");
    assert_eq!(run(&["list", "-q", "--session", key.trim_end()]).word::<TaskId>(), id);
}

#[test]
fn r55_of_two_readers_each_is_woken_by_an_item_that_no_other_has() {
    let daemon = TestDaemon::start();
    let mut bgctl = daemon.bgctl(&["inbox", "--session", "s", "--wait", "none", "--ack"]);
    let reader = bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = reader.id().cast_signed();
    // It waits, and is stopped before it can acknowledge what the daemon sends.
    wait::poll_until("its wait", || (proc::state(pid) == Some('S')).then_some(()));
    let process = Process::open(pid).expect("it waits");
    process.signal(Signal::STOP).unwrap();
    let first = daemon.submit_in("s", "true");
    daemon.run(&["inbox", "--session", "s", "--wait", "none", "--ack"]).success();
    process.signal(Signal::CONT).unwrap();
    let second = daemon.submit_in("s", "true");
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    let (written, second) = (String::from_utf8(output.stdout).unwrap(), second.to_string());
    assert!(written.contains(&second), "{first} was for another reader: {written}");
    daemon.run(&["inbox", "--session", "s", "--wait", "0", "--ack"]).expect_code(75);
}

#[test]
fn r55_several_waiting_readers_print_one_notification_each() {
    let daemon = TestDaemon::start();
    let readers = [(); 3].map(|()| {
        let mut bgctl = daemon.bgctl(&["--json", "inbox", "--session", "s", "--wait", "none", "--ack"]);
        let reader = bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = reader.id().cast_signed();
        wait::poll_until("its wait", || (proc::state(pid) == Some('S')).then_some(()));
        reader
    });
    let mut ids = [(); 3].map(|()| daemon.submit_in("s", "true"));
    let mut printed = readers.map(|reader| {
        let output = reader.wait_with_output().unwrap();
        assert!(output.status.success());
        let item: InboxItem = serde_json::from_slice(&output.stdout).expect("one item");
        item.notice.task.id
    });
    ids.sort_unstable();
    printed.sort_unstable();
    assert_eq!(printed, ids);
    daemon.run(&["inbox", "--session", "s", "--wait", "0", "--ack"]).expect_code(75);
}

#[test]
fn r55_follower_prints_no_item_that_another_reader_was_faster_to_get() {
    let daemon = TestDaemon::start();
    let mut bgctl = daemon.bgctl(&["--json", "inbox", "--session", "s", "--follow", "--ack", "--limit", "1"]);
    let reader = bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = reader.id().cast_signed();
    // It waits, and is stopped before it can print what the daemon sends.
    wait::poll_until("its wait", || (proc::state(pid) == Some('S')).then_some(()));
    let process = Process::open(pid).expect("it waits");
    process.signal(Signal::STOP).unwrap();
    let first = daemon.submit_in("s", "true");
    daemon.block(&[first]);
    let printed = daemon.run(&["--json", "inbox", "--session", "s", "--ack"]).success().stdout_text();
    assert!(printed.contains(&first.to_string()), "{printed}");
    process.signal(Signal::CONT).unwrap();
    let second = daemon.submit_in("s", "true");
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    let item: InboxItem = serde_json::from_slice(&output.stdout).expect("one item");
    assert_eq!(item.notice.task.id, second);
}

#[test]
fn r55_item_reserved_by_a_reader_that_is_gone_goes_to_another() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_in("s", "true");
    daemon.block(&[id]);
    let upto = daemon.inbox("s")[0].number;
    let reserve = InboxAckParams { session: "s".into(), upto, reserve: true, ..InboxAckParams::default() };
    let mut first = daemon.client();
    let ours = first.call::<InboxAck>(&reserve).unwrap();
    assert_eq!((ours.acknowledged, ours.left), (1, 1));
    let mut second = daemon.client();
    assert_eq!(second.call::<InboxAck>(&reserve).unwrap().acknowledged, 0);
    assert!(daemon.inbox("s").is_empty());
    let params =
        InboxReadParams { session: "s".into(), wait_ms: Some(3_600_000), ..InboxReadParams::default() };
    let call = second.send::<InboxRead>(&params, &[]).unwrap();
    // The reply shows that the daemon has already received the read before it.
    second.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    drop(first);
    let items = second.answer::<InboxRead>(call).unwrap().items;
    assert_eq!(items.into_iter().map(|item| item.notice.task.id).collect::<Vec<_>>(), [id]);
    let one = InboxAckParams { only: true, reserve: false, ..reserve };
    assert_eq!(second.call::<InboxAck>(&one).unwrap().acknowledged, 1);
    assert!(daemon.inbox("s").is_empty());
}
