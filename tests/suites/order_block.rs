//! What `bgctl block` does besides waiting for an end: it waits for a line (R111), and shows people the progress of
//! tasks (R114).

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::order::Retry;
use bgd_shared::request::{self, Encoding, SubmitParams, TaskWrite, WriteParams};
use bgd_shared::task::Status;
use bgd_tests::user::must_be_root;
use bgd_tests::{Terminal, TestDaemon, wait};
use serde_json::{Value, json};

fn piped(daemon: &TestDaemon, line: &str) -> TaskId {
    let stdin = Some(request::Stdin::Pipe);
    daemon.submit_with(&SubmitParams { shell: Some(line.into()), stdin, ..daemon.params() }).id
}

fn write(daemon: &TestDaemon, id: TaskId, text: &str) {
    let params = WriteParams { id: id.into(), data: text.into(), encoding: Encoding::Utf8, eof: false };
    daemon.client().call::<TaskWrite>(&params).expect("task.write");
}

/// A block that has begun to wait.
struct Waiting(Child);

impl Waiting {
    /// Starts a block and waits until it is the only subscriber.
    fn begin(daemon: &TestDaemon, args: &[&str]) -> Self {
        Self::listening(daemon, daemon.bgctl(&[&["block"], args].concat()), 1)
    }

    /// Starts a block and waits until the daemon has `all` subscribers.
    fn listening(daemon: &TestDaemon, command: Command, all: u64) -> Self {
        let begun = Self::started(command);
        wait::poll_until("it listens", || (daemon.status().subscriptions >= all).then_some(()));
        begun
    }

    fn started(mut command: Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(child.spawn().expect("bgctl starts"))
    }

    fn ended(mut self) -> (i32, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.0.wait().unwrap().code().unwrap(), out, err)
    }
}

#[test]
fn r111_block_prints_line_already_written_or_still_to_come() {
    let daemon = TestDaemon::start();
    let id = piped(&daemon, "echo starting; read x; echo 'listening on port 80'; read x; echo late");
    let name = id.to_string();
    let waits = Waiting::begin(&daemon, &["--line", "port \\d+$", "--timeout", "none", &name]);
    write(&daemon, id, "\n");
    assert_eq!(waits.ended(), (0, "listening on port 80\n".to_owned(), String::new()));
    let at_once = daemon.run(&["block", "--line", "^start", "--timeout", "0", &name]).success();
    assert_eq!((&*at_once.stdout_text(), &*at_once.stderr), ("starting\n", ""));
    daemon.cancel(&[id]);
}

#[test]
fn r111_task_end_without_line_exits_with_1_and_timeout_with_75() {
    let daemon = TestDaemon::start();
    let id = piped(&daemon, "echo one; read x; exit 3");
    let name = id.to_string();
    wait::for_line(daemon.task(id).output.path.as_ref(), "one");
    let late = daemon.run(&["block", "--line", "two", "--timeout", "0", &name]).expect_code(75);
    assert_eq!(late.stderr, format!("bgctl: {id} has not written a matching line yet\n"));
    let waits = Waiting::begin(&daemon, &["--line", "two", &name]);
    write(&daemon, id, "\n");
    let expected = format!("bgctl: {id} ended without a matching line: failed (3)\n");
    assert_eq!(waits.ended(), (1, String::new(), expected.clone()));
    let again = daemon.run(&["block", "--line", "two", &name]).expect_code(1);
    assert_eq!((again.stdout.len(), again.stderr), (0, expected));
    let missing = daemon.submit(&["no-such-program"]);
    daemon.block(&[missing]);
    daemon.run(&["block", "--line", "x", &missing.to_string()]).expect_code(1);
}

#[test]
fn r111_since_continues_after_a_found_line() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["printf", "a 1\\nb\\na \\3772\\na 3"]);
    daemon.block(&[id]);
    let name = id.to_string();
    let mut since = "0".to_owned();
    let mut found = Vec::new();
    loop {
        let words = ["--json", "block", "--line", "^a", "--since", &since, &name];
        let outcome = daemon.run(&words);
        let line: Value = outcome.json();
        since = line["next"].to_string();
        if line["line"].is_null() {
            outcome.expect_code(1);
            break;
        }
        found.push((line["offset"].clone(), line["encoding"].clone()));
    }
    let expected = [(0, "utf-8"), (6, "base64"), (11, "utf-8")];
    assert_eq!(found, expected.map(|(at, encoding)| (Value::from(at), Value::from(encoding))));
    let last = daemon.run(&["block", "--line", "^a", "--since", "-3", &name]).success();
    assert_eq!(last.stdout_text(), "a 3\n");
}

#[test]
fn r111_line_of_split_task_is_found_in_either_stream() {
    let daemon = TestDaemon::start();
    let shell = Some("echo up 1; read x; echo up 2 >&2; read x; echo up 3".into());
    let params = SubmitParams { shell, split: true, stdin: Some(request::Stdin::Pipe), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    let name = id.to_string();
    let waits = Waiting::begin(&daemon, &["--line", "^up 2", "--timeout", "20s", &name]);
    write(&daemon, id, "\n");
    assert_eq!(waits.ended(), (0, "up 2\n".to_owned(), String::new()));
    write(&daemon, id, "\n");
    daemon.block(&[id]);
    daemon.run(&["block", "--line", "^up", "--since", "-1,-1", &name]).expect_code(1);
    let mut since = "0,0".to_owned();
    let mut found = Vec::new();
    loop {
        let outcome = daemon.run(&["--json", "block", "--line", "^up", "--since", &since, &name]);
        let line: Value = outcome.json();
        since = format!("{},{}", line["next"], line["next_stderr"]);
        if line["line"].is_null() {
            outcome.expect_code(1);
            break;
        }
        found.push([line["line"].clone(), line["offset"].clone(), line["stream"].clone()]);
    }
    let expected = json!([["up 1", 0, null], ["up 3", 5, null], ["up 2", 0, "stderr"]]);
    assert_eq!((json!(found), &*since), (expected, "10,5"));
    // An offset from the beginning is one of standard output alone, and one from the end is for both.
    daemon.run(&["block", "--line", "2$", "--since", "0", &name]).expect_code(1);
    let last = daemon.run(&["block", "--line", "2$", "--since", "-3", &name]).success();
    assert_eq!(last.stdout_text(), " 2\n");
}

#[test]
fn r111_pending_task_is_waited_for() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let gate = piped(&daemon, "read x");
    let id = daemon.submit_shell("echo up");
    let waits = Waiting::begin(&daemon, &["--line", "up", &id.to_string()]);
    let late = daemon.run(&["block", "--line", "up", "--timeout", "0", &id.to_string()]).expect_code(75);
    assert!(late.stderr.contains("has not started: pending"), "{}", late.stderr);
    write(&daemon, gate, "\n");
    assert_eq!(waits.ended(), (0, "up\n".to_owned(), String::new()));
}

#[test]
fn r111_output_of_first_attempt_is_available_between_attempts() {
    let daemon = TestDaemon::start();
    // The delay is random: a short one is improbable.
    let a_year = Some(365 * 24 * 3_600_000);
    let retry = Retry { times: 1, delay_ms: a_year, max_delay_ms: a_year, codes: Vec::new(), signal: false };
    let (shell, retry) = (Some("echo hello; exit 1".into()), Some(retry));
    let id = daemon.submit_with(&SubmitParams { shell, retry, ..daemon.params() }).id;
    wait::poll_until("its second attempt is waited for", || {
        let task = daemon.task(id);
        (task.status == Status::Pending && !task.attempts.is_empty()).then_some(())
    });
    let name = id.to_string();
    let found = daemon.run(&["block", "--line", "hel+o", "--timeout", "10s", &name]).success();
    assert_eq!(found.stdout_text(), "hello\n");
    let none = daemon.run(&["block", "--line", "nothing", "--timeout", "0", &name]).expect_code(75);
    assert_eq!(none.stderr, format!("bgctl: {id} has not written a matching line yet\n"));
    let mut follows = daemon.bgctl(&["output", "-f", &name]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(follows.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hello\n");
    daemon.cancel(&[id]);
    follows.wait().unwrap();
}

#[test]
fn r111_output_is_read_through_daemon_if_file_cannot_be_opened_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let id = piped(&daemon, "echo first; read x; echo second; read x");
    watch.until(|event| event.task.id == id && event.task.output.bytes > 0);
    let path = daemon.task(id).output.path;
    let folder = Path::new(&path).parent().expect("a folder");
    // As in a container that shares nothing but the socket.
    let bgctl = daemon.bgctl(&["block", "--line", "second", &id.to_string()]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none \"$0\" && exec \"$@\"";
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(folder);
    command.arg(bgctl.get_program()).args(bgctl.get_args()).env_clear();
    command.envs(bgctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let waits = Waiting::listening(&daemon, command, 2);
    write(&daemon, id, "\n");
    assert_eq!(waits.ended(), (0, "second\n".to_owned(), String::new()));
    daemon.cancel(&[id]);
}

#[test]
fn r111_block_exits_with_69_when_daemon_is_killed() {
    let mut daemon = TestDaemon::start();
    let id = piped(&daemon, "read x");
    let waits = Waiting::begin(&daemon, &["--line", "x", &id.to_string()]);
    daemon.kill9();
    let (code, out, err) = waits.ended();
    assert_eq!((code, &*out), (69, ""), "{err}");
    assert!(err.contains("hint: "), "{err}");
}

#[test]
fn r111_invalid_pattern_or_usage_is_refused() {
    let home = TestDaemon::home_only();
    for (words, expected) in [
        (&["--line", "(", "3f2a"][..], "unclosed group"),
        (&["--line", "\\w{1000}{1000}", "3f2a"], "needs more than 1048576 bytes"),
        (&["--line", "x", "3f2a", "91bc"], "--line takes exactly one task"),
        (&["--line", "x", "--any", "3f2a"], "cannot be used with"),
        (&["--since", "5", "3f2a"], "--line"),
        (&["--line", "x"], "no task given"),
    ] {
        let stderr = home.run(&[&["block"], words].concat()).expect_code(2).stderr;
        assert!(stderr.contains(expected), "{words:?}: {stderr}");
    }
    assert!(home.processes().is_empty(), "nothing of this starts a daemon");
}

#[test]
fn r114_block_on_many_tasks_shows_a_bar_and_removes_it_at_the_end() {
    let daemon = TestDaemon::start();
    let gates: Vec<TaskId> = ["read x", "read x; exit 1", "read x"].map(|line| piped(&daemon, line)).into();
    for gate in &gates {
        daemon.wait_running(*gate);
    }
    let names: Vec<String> = gates.iter().map(ToString::to_string).collect();
    let words: Vec<&str> = ["block"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut terminal = Terminal::bgctl(&daemon, &words);
    terminal.wait_text("0/3, 3 running");
    write(&daemon, gates[0], "\n");
    terminal.wait_text("1/3, 2 running, about");
    write(&daemon, gates[1], "\n");
    terminal.wait_text("2/3, 1 failed, 1 running, about");
    write(&daemon, gates[2], "\n");
    assert_eq!(terminal.ended().code(), Some(1));
    let shown = terminal.screen();
    assert!(!shown.contains("/3") && !shown.contains('['), "{shown}");
    assert!(names.iter().all(|name| shown.contains(name)), "{shown}");
}

#[test]
fn r24_block_on_a_terminal_reports_task_cleared_meanwhile() {
    let daemon = TestDaemon::start();
    let ids = [piped(&daemon, "read x"), piped(&daemon, "read x")];
    let names = ids.map(|id| id.to_string());
    for id in ids {
        daemon.wait_running(id);
    }
    let mut terminal = Terminal::bgctl(&daemon, &["block", &names[0], &names[1]]);
    terminal.wait_text("0/2, 2 running");
    write(&daemon, ids[0], "\n");
    terminal.wait_text("1/2, 1 running");
    daemon.run(&["clear", &names[0]]).success();
    write(&daemon, ids[1], "\n");
    assert_eq!(terminal.ended().code(), Some(0), "{}", terminal.screen());
    let shown = terminal.screen();
    assert!(names.iter().all(|name| shown.contains(name)), "{shown}");
}

#[test]
fn r114_single_task_shows_its_last_line_and_pipes_show_nothing() {
    let daemon = TestDaemon::start();
    let line = Some("echo compiling one; read x; echo compiling two; read x".into());
    let (stdin, description) = (Some(request::Stdin::Pipe), Some("a build".to_owned()));
    let id = daemon.submit_with(&SubmitParams { shell: line, stdin, description, ..daemon.params() }).id;
    let name = id.to_string();
    let mut terminal = Terminal::bgctl(&daemon, &["block", &name]);
    terminal.wait_text("s compiling one");
    let mut json = Terminal::bgctl(&daemon, &["--json", "block", &name]);
    let waits = Waiting::started(daemon.bgctl(&["block", &name]));
    write(&daemon, id, "\n");
    terminal.wait_text("s compiling two");
    write(&daemon, id, "\n");
    assert!(terminal.ended().success() && json.ended().success());
    let shown = terminal.screen();
    assert!(!shown.contains("compiling two") && shown.contains("completed"), "{shown}");
    assert!(json.screen().starts_with('{'), "{}", json.screen());
    let (code, out, err) = waits.ended();
    assert_eq!((code, &*err), (0, ""));
    assert_eq!(out.lines().count(), 1, "{out}");
}

#[test]
fn r114_timeout_ends_the_bar() {
    let daemon = TestDaemon::start();
    let ids = [piped(&daemon, "read x"), piped(&daemon, "read x")].map(|id| id.to_string());
    let mut terminal = Terminal::bgctl(&daemon, &["block", "--timeout", "1s", &ids[0], &ids[1]]);
    assert_eq!(terminal.ended().code(), Some(75));
    assert!(!terminal.screen().contains("/2"), "{}", terminal.screen());
    daemon.run(&["cancel", &ids[0], &ids[1]]).success();
    let mut any = Terminal::bgctl(&daemon, &["block", "--any", &ids[0], &ids[1]]);
    assert_eq!(any.ended().code(), Some(1));
}
