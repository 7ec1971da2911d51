//! Output while and after a task runs (R20, R21, R07): exact bytes, offsets, the end, the tail, following.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    DaemonStatusOf, Encoding, IdParams, NoParams, OutputParams, OutputResult, ResultResult, Stdin, Stream,
    SubmitParams, TaskOutput, TaskResultOf, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;
use bgd_tests::{Outcome, Raw, Relay, Terminal, TestDaemon, wait};
use serde_json::json;

fn read(daemon: &TestDaemon, id: TaskId, offset: i64, limit: u64) -> OutputResult {
    let params = OutputParams { id: id.into(), offset: Some(offset), limit: Some(limit), stream: None };
    daemon.client().call::<TaskOutput>(&params).expect("task.output")
}

fn ended(daemon: &TestDaemon, line: &str) -> TaskId {
    let id = daemon.submit_shell(line);
    daemon.block(&[id]);
    id
}

fn echo(daemon: &TestDaemon) -> TaskId {
    let params = SubmitParams { argv: Some(vec!["cat".into()]), stdin: Some(Stdin::Pipe), ..daemon.params() };
    daemon.submit_with(&params).id
}

fn write(daemon: &TestDaemon, id: TaskId, text: &str, eof: bool) {
    let params = WriteParams { id: id.into(), data: text.into(), encoding: Encoding::Utf8, eof };
    daemon.client().call::<TaskWrite>(&params).expect("task.write");
}

/// A `bgctl` that keeps running, and its lines of output.
fn follow(daemon: &TestDaemon, args: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = daemon.bgctl(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("bgctl");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines.map(|line| line.expect("a line of text")))
}

#[test]
fn r20_part_of_a_text_ends_with_whole_character() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, r"printf 'a\303\251b\303'");
    for (offset, limit, data, next) in [(0, 2, "a", 1), (1, 2, "é", 3), (0, 4, "aéb", 4), (0, 3, "aé", 3)]
    {
        let part = read(&daemon, id, offset, limit);
        assert_eq!((&*part.data, part.encoding, part.next), (data, Encoding::Utf8, next));
    }
    // Nothing is left out: neither a part of a single character nor the end of the output.
    for (offset, limit, next) in [(1, 1, 2), (0, 100, 5)] {
        let part = read(&daemon, id, offset, limit);
        assert_eq!((part.encoding, part.next), (Encoding::Base64, next));
    }
}

#[test]
fn r20_running_task_returns_its_output_so_far_and_progress() {
    let daemon = TestDaemon::start();
    let id = echo(&daemon);
    daemon.wait_running(id);
    let nothing = read(&daemon, id, 0, 100);
    assert_eq!((nothing.data.as_str(), nothing.next, nothing.eof), ("", 0, false));
    assert_eq!(nothing.task.status, Status::Running);
    write(&daemon, id, "one\ntwo", false);
    wait::for_bytes(nothing.task.output.path.as_ref(), 7);
    let some = read(&daemon, id, 0, 100);
    assert_eq!((some.data.as_str(), some.next, some.eof), ("one\ntwo", 7, false));
    assert_eq!(some.task.progress.output_bytes, 7);
    assert_eq!(some.task.progress.last_line.as_deref(), Some("two"));
    assert_eq!(daemon.task(id).progress.last_line.as_deref(), Some("two"));
    assert_eq!(some.task.retrieved_at, None, "that is for results");
    write(&daemon, id, "", true);
    daemon.block(&[id]);
    let end = read(&daemon, id, 7, 100);
    assert_eq!((end.data.as_str(), end.offset, end.next, end.eof), ("", 7, 7, true));
}

#[test]
fn r20_task_output_refuses_a_block_param() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "true");
    let mut client = Raw::connect(daemon.socket());
    let good = client.call(1, "task.output", &json!({"id": id}));
    assert!(good["result"].is_object(), "{good}");
    let refused = client.call(2, "task.output", &json!({"id": id, "block": true}));
    assert_eq!(refused["error"]["data"]["kind"], "invalid_params", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`block`"), "{refused}");
}

#[test]
fn r21_result_is_returned_and_first_retrieval_is_recorded() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "echo done");
    assert_eq!(daemon.task(id).retrieved_at, None);
    let result = daemon.client().call::<TaskResultOf>(&IdParams { id: id.into() }).unwrap();
    let first = result.task.retrieved_at;
    assert_eq!((result.result.as_str(), result.truncated_bytes, first.is_some()), ("done\n", 0, true));
    assert_eq!(read(&daemon, id, 0, 100).task.retrieved_at, first, "the first time counts");
    let id = ended(&daemon, "echo done");
    assert!(read(&daemon, id, 0, 0).task.retrieved_at.is_some(), "output counts too");
    let failed = ended(&daemon, "false");
    assert_eq!(read(&daemon, failed, 0, 10).task.retrieved_at, None);
}

#[test]
fn r07_bgctl_prints_results_of_completed_tasks_only() {
    let daemon = TestDaemon::start();
    let good = ended(&daemon, "echo fine").to_string();
    assert_eq!(daemon.run(&["output", "--result", &good]).success().stdout, b"fine\n");
    let result: ResultResult = daemon.run(&["--json", "output", "--result", &good]).success().json();
    assert_eq!(result.result, "fine\n");
    let bad = ended(&daemon, "echo partly; exit 1").to_string();
    let outcome = daemon.run(&["output", "--result", &bad]).expect_code(65);
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("failed"), "{}", outcome.stderr);
    assert_eq!(daemon.run(&["output", &bad]).success().stdout, b"partly\n");
}

#[test]
fn long_result_is_truncated_to_its_tail_and_bgctl_prints_all_of_it() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "seq 1 100000");
    let wanted = (1..=100_000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    let result = daemon.client().call::<TaskResultOf>(&IdParams { id: id.into() }).unwrap();
    assert_eq!(result.truncated_bytes, wanted.len() as u64 - 256 * 1024);
    assert_eq!(result.result, wanted[wanted.len() - 256 * 1024..]);
    assert_eq!(daemon.run(&["output", "--result", &id.to_string()]).success().stdout, wanted.as_bytes());
}

#[test]
fn offsets_limits_and_eof_are_exact() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "printf 0123456789");
    for (offset, limit, data, from, next, eof) in [
        (0, 4, "0123", 0, 4, false),
        (4, 100, "456789", 4, 10, true),
        (10, 5, "", 10, 10, true),
        (99, 5, "", 10, 10, true),
        (-3, 100, "789", 7, 10, true),
        (-3, 2, "78", 7, 9, false),
        (-99, 2, "01", 0, 2, false),
        (5, 0, "", 5, 5, false),
        (i64::MIN, 1, "0", 0, 1, false),
        (i64::MAX, 1, "", 10, 10, true),
    ] {
        let part = read(&daemon, id, offset, limit);
        let found = (part.data.as_str(), part.offset, part.next, part.eof);
        assert_eq!(found, (data, from, next, eof), "{offset} {limit}");
    }
    let params = OutputParams { id: id.into(), offset: None, limit: Some(262_145), stream: None };
    let error = daemon.client().call::<TaskOutput>(&params).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
}

#[test]
fn arbitrary_bytes_are_returned_unchanged() {
    let daemon = TestDaemon::start();
    let bytes: Vec<u8> = (0..=255_u8).cycle().take(700_001).collect();
    fs::write(daemon.home().join("bytes"), &bytes).unwrap();
    let id = ended(&daemon, "cat bytes");
    assert_eq!(read(&daemon, id, 0, 100).encoding, Encoding::Utf8);
    assert_eq!(read(&daemon, id, 0, 256).encoding, Encoding::Base64);
    assert!(daemon.output(id) == bytes, "by pieces of the wire");
    assert!(daemon.run(&["output", &id.to_string()]).success().stdout == bytes, "by bgctl to a pipe");
    let copy = daemon.home().join("copy");
    let mut bgctl = daemon.bgctl(&["output", &id.to_string()]);
    assert!(bgctl.stdout(fs::File::create(&copy).unwrap()).status().unwrap().success());
    assert!(fs::read(copy).unwrap() == bytes, "by bgctl to a file");
}

#[test]
fn bgctl_shows_the_tail_or_the_output_since_an_offset() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "seq 1 50000; printf last").to_string();
    let output = |args: &[&str]| {
        let args = [&["output"], args, &[&id]].concat();
        daemon.run(&args).success().stdout_text()
    };
    assert_eq!(output(&["--tail", "3"]), "49999\n50000\nlast");
    assert_eq!(output(&["--tail", "0"]), "");
    assert_eq!(output(&["--tail", "60000"]).lines().count(), 50_001);
    assert_eq!(output(&["--since", "-4"]), "last");
    assert!(output(&["--since", "2"]).starts_with("2\n3\n"));
    assert_eq!(output(&["--since", "99999999"]), "");
    let part: OutputResult = daemon.run(&["--json", "output", "--tail", "1", &id]).success().json();
    assert_eq!((part.data.as_str(), part.eof), ("last", true));
    let part: OutputResult = daemon.run(&["--json", "output", &id]).success().json();
    let rest = daemon.run(&["output", "--since", &part.next.to_string(), &id]).success().stdout_text();
    assert_eq!(part.data + &rest, output(&[]), "`next` is where to go on");
}

#[test]
fn bgctl_selects_the_stream_of_a_split_task() {
    let daemon = TestDaemon::start();
    let line = "echo out; echo err >&2";
    let id: TaskId = daemon.run(&["submit", "--split", "--shell", line]).success().word();
    daemon.block(&[id]);
    let id = id.to_string();
    for (option, text) in [("--stdout", "out\n"), ("--stderr", "err\n")] {
        let outcome = daemon.run(&["output", option, &id]).success();
        assert_eq!((outcome.stdout_text().as_str(), outcome.stderr.as_str()), (text, ""));
        let part: OutputResult = daemon.run(&["--json", "output", option, &id]).success().json();
        assert_eq!(part.data, text);
    }
    // Without an option, nobody must mistake one stream for the whole output.
    for words in [&["output", &id][..], &["output", "-f", &id]] {
        let outcome = daemon.run(words).success();
        let expected = format!(
            "bgctl: 4 B of standard error are stored separately: `bgctl output --stderr {}`\n",
            &id[..8]
        );
        assert_eq!((outcome.stdout_text(), outcome.stderr), ("out\n".to_owned(), expected));
    }
    let silent: TaskId = daemon.run(&["submit", "--split", "--", "echo", "out"]).success().word();
    daemon.block(&[silent]);
    assert_eq!(daemon.run(&["output", &silent.to_string()]).success().stderr, "");
    let whole = ended(&daemon, line).to_string();
    for words in [&["output", "--stderr", &whole][..], &["output", "-f", "--stderr", &whole]] {
        let outcome = daemon.run(words).expect_code(65);
        assert!(outcome.stderr.contains("--split"), "{}", outcome.stderr);
        let outcome = daemon.run(&[&["--json"], words].concat()).expect_code(65);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains("not_split"), "{outcome:?}");
    }
}

#[test]
fn follow_shows_each_line_immediately_and_ends_with_the_task() {
    let daemon = TestDaemon::start();
    for json in [false, true] {
        let id = echo(&daemon);
        daemon.wait_running(id);
        write(&daemon, id, "before\n", false);
        wait::for_line(daemon.task(id).output.path.as_ref(), "before");
        let id_text = id.to_string();
        let args =
            if json { vec!["--json", "output", "-f", &id_text] } else { vec!["output", "-f", &id_text] };
        let (mut child, mut lines) = follow(&daemon, &args);
        let mut next = || {
            let line = lines.next()?;
            Some(if json { serde_json::from_str::<OutputResult>(&line).unwrap().data } else { line + "\n" })
        };
        assert_eq!(next().as_deref(), Some("before\n"));
        for text in ["live\n", "still\n"] {
            write(&daemon, id, text, false);
            assert_eq!(next().as_deref(), Some(text), "the task still runs");
        }
        assert_eq!(daemon.task(id).status, Status::Running);
        write(&daemon, id, "end\n", true);
        let rest: String = std::iter::from_fn(&mut next).collect();
        assert_eq!(rest, "end\n");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn r20_follow_restarts_at_the_beginning_of_a_truncated_file() {
    let daemon = TestDaemon::start();
    for json in [false, true] {
        let id = echo(&daemon);
        daemon.wait_running(id);
        let id_text = id.to_string();
        let mut args = vec!["output", "-f", &id_text];
        if json {
            args.insert(0, "--json");
        }
        let (mut child, mut lines) = follow(&daemon, &args);
        let mut next = || {
            let line = lines.next()?;
            Some(if json { serde_json::from_str::<OutputResult>(&line).unwrap().data } else { line + "\n" })
        };
        write(&daemon, id, "a long first line\n", false);
        assert_eq!(next().as_deref(), Some("a long first line\n"));
        fs::File::options().write(true).truncate(true).open(daemon.task(id).output.path).unwrap();
        for text in ["short\n", "the end\n"] {
            write(&daemon, id, text, false);
            assert_eq!(next().as_deref(), Some(text), "json: {json}");
        }
        write(&daemon, id, "", true);
        let rest: String = std::iter::from_fn(&mut next).collect();
        assert_eq!(rest, "");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn r06_prefix_is_resolved_once_even_if_a_later_task_matches_it() {
    let daemon = TestDaemon::start();
    let relay = Relay::start(daemon.home(), daemon.socket());
    let id = echo(&daemon);
    daemon.wait_running(id);
    let socket = relay.socket().to_str().unwrap();
    let prefix = &id.to_string()[..4];
    let bgctl = |args: &[&str]| daemon.bgctl(&[&["--socket", socket], args, &[prefix]].concat());
    // More than fits into one request, or into one answer.
    let text = daemon.home().join("text");
    fs::write(&text, "x".repeat(1_000_000)).unwrap();
    assert!(bgctl(&["write"]).stdin(fs::File::open(text).unwrap()).status().unwrap().success());
    daemon.block(&[id]);
    for args in [&["output"][..], &["--json", "output", "--tail", "3"], &["--json", "output", "-f"]] {
        let length = Outcome::of(&mut bgctl(args)).success().stdout.len();
        assert!(length > 100_000, "{args:?}: {length}");
    }
    let named = relay.said().matches(&format!("\"{prefix}\"")).count();
    assert_eq!(named, 4, "once for each command");
}

#[test]
fn follow_of_pending_task_waits_for_its_start() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let first = echo(&daemon);
    let second = daemon.submit_shell("echo my turn");
    let (mut child, mut lines) = follow(&daemon, &["output", "--follow", &second.to_string()]);
    daemon.wait_running(first);
    write(&daemon, first, "", true);
    assert_eq!(lines.next().as_deref(), Some("my turn"));
    assert_eq!(lines.next(), None);
    assert!(child.wait().unwrap().success());
    let third = echo(&daemon);
    let never = daemon.submit_shell("echo never");
    let (mut child, mut lines) = follow(&daemon, &["output", "--follow", &never.to_string()]);
    daemon.cancel(&[never]);
    assert_eq!(lines.next(), None, "one that is cancelled first has none");
    assert!(child.wait().unwrap().success());
    daemon.cancel(&[third]);
}

#[test]
fn follow_of_pending_task_exits_when_its_reader_closes() {
    let daemon = TestDaemon::start();
    let id = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>().to_string();
    for more in [&[][..], &["--json"]] {
        let mut follow = daemon.bgctl(&[more, &["output", "-f", &id]].concat());
        let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(141), "although it never begins");
    }
}

#[test]
fn follow_of_task_cleared_meanwhile_ends_as_with_task() {
    let daemon = TestDaemon::start();
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let mut client = daemon.client();
    let mut connections = || client.call::<DaemonStatusOf>(&NoParams {}).unwrap().connections;
    wait::poll_until("the end of others", || (connections() == 1).then_some(()));
    let mut follows = daemon.bgctl(&["output", "-f", &held.to_string()]);
    let follows = follows.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = follows.spawn().unwrap();
    // It has looked at the task, and listens for its start.
    wait::poll_until("its connections", || (connections() == 3).then_some(()));
    daemon.run(&["clear", "--all", "--all-sessions"]).success();
    let outcome = child.wait_with_output().unwrap();
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert!(outcome.status.success() && said.contains("was cleared before it had run"), "{said}");
    for args in [&["output", "-f"][..], &["--json", "output", "-f"]] {
        let id = echo(&daemon);
        daemon.wait_running(id);
        write(&daemon, id, "so far\n", false);
        let (mut child, mut lines) = follow(&daemon, &[args, &[&id.to_string()]].concat());
        assert!(lines.next().is_some_and(|line| line.contains("so far")));
        daemon.run(&["clear", "--all", "--all-sessions"]).success();
        lines.for_each(drop);
        assert!(child.wait().unwrap().success(), "{args:?}");
    }
}

#[test]
fn follow_exits_when_its_reader_closes() {
    let daemon = TestDaemon::start();
    let id = echo(&daemon);
    daemon.wait_running(id);
    let mut child = daemon
        .bgctl(&["output", "-f", &id.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    write(&daemon, id, "line\n", false);
    let mut line = [0; 5];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut line).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(141), "although nothing more is written");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    daemon.cancel(&[id]);
}

#[test]
fn follow_exits_with_69_when_daemon_is_killed() {
    let mut daemon = TestDaemon::start();
    let id = echo(&daemon);
    daemon.wait_running(id);
    write(&daemon, id, "so far\n", false);
    let (mut child, mut lines) = follow(&daemon, &["output", "-f", &id.to_string()]);
    assert_eq!(lines.next().as_deref(), Some("so far"));
    daemon.kill9();
    assert_eq!(lines.next(), None);
    assert_eq!(child.wait().unwrap().code(), Some(69));
    daemon.launch();
}

#[test]
fn growing_output_emits_events() {
    let daemon = TestDaemon::start();
    let id = echo(&daemon);
    daemon.wait_running(id);
    let mut watch = daemon.watch();
    write(&daemon, id, "12345\n", false);
    let event = watch.until_kind(id, EventKind::Output);
    assert_eq!((event.task.output.bytes, event.task.progress.output_bytes), (6, 6));
    assert!(event.task.progress.updated_at.is_some());
    write(&daemon, id, "", true);
    assert_eq!(watch.until_kind(id, EventKind::Completed).task.output.bytes, 6);
}

#[test]
fn r20_output_erased_by_truncating_its_file_is_reported_as_lost() {
    let daemon = TestDaemon::start();
    let line = "echo the first line; read x; echo oops >/dev/stderr; read x; echo last";
    let params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let mut watch = daemon.watch();
    let id = daemon.submit_with(&params).id;
    watch.until(|event| event.task.output.bytes == 15);
    write(&daemon, id, "go on\n", false);
    let task = watch.until(|event| event.task.output.lost_bytes > 0).task;
    assert_eq!((task.output.lost_bytes, task.status), (15, Status::Running));
    write(&daemon, id, "go on\n", false);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.output.bytes, task.output.lost_bytes), (10, 15));
    let outcome = daemon.run(&["output", &id.to_string()]).success();
    assert_eq!(outcome.stdout_text(), "oops\nlast\n");
    let why = "bgctl: output incomplete: 15 bytes lost: its file was truncated, as by `>/dev/stderr`";
    assert!(outcome.stderr.starts_with(why), "{}", outcome.stderr);
}

#[test]
fn r20_output_whose_file_was_removed_is_reported_as_lost() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let id = echo(&daemon);
    daemon.wait_running(id);
    write(&daemon, id, "hello\n", false);
    let task = watch.until(|event| event.task.output.bytes == 6).task;
    fs::remove_file(&task.output.path).unwrap();
    write(&daemon, id, "", true);
    let output = daemon.block(&[id]).remove(0).output;
    assert_eq!((output.bytes, output.lost_bytes), (0, 6));
    assert_eq!(output.lost_because.as_deref(), Some("its file was removed while the task ran"));
}

#[test]
fn task_that_wrote_nothing_has_empty_output() {
    let daemon = TestDaemon::start();
    let id = ended(&daemon, "true");
    let part = read(&daemon, id, 0, 10);
    assert_eq!((part.data.as_str(), part.eof, part.task.progress.last_line), ("", true, None));
    assert_eq!(daemon.run(&["output", &id.to_string()]).success().stdout, b"");
    let missing = daemon.submit(&["no-such-program-here"]);
    daemon.block(&[missing]);
    assert!(read(&daemon, missing, 0, 10).eof);
    for options in [&["output"][..], &["output", "--follow"], &["output", "--tail", "3"]] {
        let outcome = daemon.run(&[options, &[&missing.to_string()]].concat()).success();
        assert_eq!(outcome.stdout, b"");
        assert!(
            outcome.stderr.contains("no-such-program-here: command not found"),
            "{options:?}: {}",
            outcome.stderr
        );
    }
    assert_eq!(daemon.stream(missing, Stream::Stderr), b"");
}

#[test]
fn empty_output_is_explained_on_a_terminal_only() {
    let daemon = TestDaemon::start();
    let running = daemon.submit(&["sleep", "100000"]);
    let done = ended(&daemon, "true");
    let mut shell = Terminal::shell(&daemon);
    for (id, expected) in [
        (running, "is running and has written nothing yet; `bgctl output --follow"),
        (done, "has written nothing\n"),
    ] {
        shell.type_line(&format!("bgctl output {id}"));
        shell.wait_text(&format!("bgctl: {} {expected}", id.short()));
        shell.wait_prompt();
    }
    // A program gets whatever output exists, without a message.
    assert_eq!(shell.run_line(&format!("bgctl output {done} 2> errors; [ ! -s errors ]")), 0);
}

const LEFT_OUT: &str =
    "bgctl: the screen of a full-screen program is left out; a pipe or a file gets every byte\n";

fn submit_in_terminal(daemon: &TestDaemon, options: &[&str], line: &str) -> TaskId {
    daemon.run(&[&["submit", "--pty"][..], options, &["--shell", line]].concat()).success().word()
}

#[test]
fn output_neither_queries_a_terminal_nor_changes_its_modes() {
    let daemon = TestDaemon::start();
    let line = r"printf 'o\033[31mn\033[me\033[6n\033[?1000h\033[?1049hfull\033[?1049l\ntw\033[Do\n'";
    let id = ended(&daemon, line);
    let all = "o\x1b[31mn\x1b[me\x1b[6n\x1b[?1000h\x1b[?1049hfull\x1b[?1049l\ntw\x1b[Do\n";
    assert_eq!(daemon.run(&["output", &id.to_string()]).success().stdout_text(), all);
    let mut shell = Terminal::shell(&daemon);
    for options in ["", "--follow", "--tail 9", "--result"] {
        shell.clear();
        shell.type_line(&format!("bgctl output {options} {id}"));
        shell.wait_text(LEFT_OUT);
        shell.wait_text("one\nto\n");
        shell.wait_prompt();
    }
    let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
    for sequence in ["\x1b[6n", "\x1b[?1000h", "\x1b[?1049h", "full\x1b"] {
        assert!(!shown.contains(sequence), "{sequence:?}: {shell:?}");
    }
}

#[test]
fn output_of_attempts_after_one_that_died_on_the_alternate_screen_is_shown() {
    let daemon = TestDaemon::start();
    let again = daemon.home().join("again").display().to_string();
    let line = format!(
        r"[ -e '{again}' ] && {{ echo second; exit; }}; : > '{again}'; printf 'first\n\033[?1049hcells'; read x; exit 1"
    );
    let id = submit_in_terminal(&daemon, &["--retry", "1", "--retry-delay", "1ms"], &line);
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl output --follow {id}"));
    shell.wait_text("first\n");
    shell.wait_text(LEFT_OUT);
    write(&daemon, id, "go\n", false);
    shell.wait_text("second\n");
    shell.wait_prompt();
    let part = read(&daemon, id, 0, 1000);
    assert_eq!(part.attempt_offset, part.data.find("second").map(|offset| offset as u64), "{part:?}");
    for options in ["", "--result", "--tail 2", "--since 1"] {
        shell.clear();
        shell.type_line(&format!("bgctl output {options} {id}"));
        shell.wait_text("second\n");
        shell.wait_prompt();
    }
    assert!(!String::from_utf8_lossy(&shell.shown()).contains("cells"), "{shell:?}");
}

#[test]
fn part_of_an_output_that_begins_on_the_alternate_screen_is_left_out_up_to_its_end() {
    let daemon = TestDaemon::start();
    let line =
        r"printf 'before\n\033[?1049h'; printf 'cell\ncell\ncells\n'; printf '\033[?1049l'; echo after";
    let id = submit_in_terminal(&daemon, &[], line);
    daemon.block(&[id]);
    let length = daemon.output(id).len();
    assert!(daemon.output(id).starts_with(b"before\r\n\x1b[?1049hcell\r\n"));
    let mut shell = Terminal::shell(&daemon);
    let from_the_end = format!("--since -{}", length - 18);
    for options in ["--tail 3", "--tail 3 --follow", "--since 18", &from_the_end] {
        shell.clear();
        shell.type_line(&format!("bgctl output {options} {id}"));
        shell.wait_text(&format!("{LEFT_OUT}after\n"));
        shell.wait_prompt();
    }
    assert!(!String::from_utf8_lossy(&shell.shown()).contains("cell"), "{shell:?}");
}

#[test]
fn r113_selected_tasks_without_the_requested_output_are_left_out() {
    let daemon = TestDaemon::start();
    let submit = |args: &[&str]| -> TaskId {
        daemon.run(&[&["submit", "--tag", "t"], args].concat()).success().word()
    };
    let mixed = submit(&["--shell", "echo mixed; exit 1"]);
    let [one, two] = ["one", "two"]
        .map(|word| submit(&["--split", "--shell", &format!("echo {word}; echo error {word} >&2")]));
    daemon.block(&[mixed, one, two]);
    let select = ["--tag", "t"];
    let shown = daemon.run(&[&["output", "--stderr"], &select[..]].concat()).success();
    assert_eq!(shown.stdout_text(), "error one\nerror two\n");
    let shown = daemon.run(&[&["--json", "output", "--stderr"], &select[..]].concat()).success();
    assert_eq!(shown.stdout_text().lines().count(), 2, "{shown:?}");
    // A task that has not completed determines the exit code, but the results of the others are printed.
    let results = daemon.run(&[&["output", "--result"], &select[..]].concat()).expect_code(65);
    assert_eq!(String::from_utf8_lossy(&results.stdout), "one\ntwo\n");
    assert!(results.stderr.contains(&mixed.to_string()), "{}", results.stderr);
    // Alone, it fails as usual.
    daemon.run(&["output", "--stderr", &mixed.to_string()]).expect_code(65);
    daemon.run(&["output", "--stderr", "--tag", "t", "--status", "failed"]).expect_code(65);
}
