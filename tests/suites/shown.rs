//! The description of a task, the question of its agent and a quotation in an error can't deceive anybody: none of them
//! reaches a terminal or a log unescaped. A task's output stays exact.

use std::fs;
use std::process::Command;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::request::SubmitParams;
use bgd_tests::shared::show::is_hidden;
use bgd_tests::shared::task::Status;
use bgd_tests::{FakeDaemon, Outcome, TestDaemon, wait};
use serde_json::Value;

/// Reverses the direction, hides, joins, clears the screen in two ways, and ends in a tag.
const EVIL: &str = "a\u{202e}b\u{200b}c\u{200d}d\u{9b}2Je\u{2066}f\x1b[2Jg\u{feff}h\u{e0041}";

/// How it is displayed.
const SHOWN: &str = "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}2Je\u{fffd}f\u{fffd}[2Jg\u{fffd}h\u{fffd}";

/// Asserts that nothing in a text is hidden, and that it shows [`EVIL`].
#[track_caller]
fn shows(text: &str) {
    assert!(text.contains(SHOWN), "{text:?}");
    is_plain(text);
}

#[track_caller]
fn is_plain(text: &str) {
    let hidden: Vec<char> = text.chars().filter(|c| !matches!(c, '\n' | '\t') && is_hidden(*c)).collect();
    assert!(hidden.is_empty(), "{hidden:?} in {text:?}");
}

/// Returns the JSON that a command has printed, in which nothing is hidden.
#[track_caller]
fn json(outcome: &Outcome) -> Value {
    let text = outcome.stdout_text();
    is_plain(&text);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn hidden_characters_in_task_names_are_replaced_in_lists_and_pages() {
    let daemon = TestDaemon::start();
    let params = SubmitParams {
        argv: Some(vec!["printf".into(), "%s".into(), EVIL.into()]),
        description: Some(EVIL.into()),
        session: Some(EVIL.into()),
        tags: vec![EVIL.into()],
        ..daemon.params()
    };
    let id = daemon.submit_with(&params).id;
    daemon.block(&[id]);
    let id = &*id.to_string();
    for args in [&["list"][..], &["status", id], &["block", id], &["inbox", "--session", EVIL]] {
        let outcome = daemon.run(args);
        shows(&outcome.stdout_text());
        is_plain(&outcome.stderr);
    }
    let task = json(&daemon.run(&["status", id, "--json"]).success());
    assert_eq!(task["task"]["description"], EVIL, "JSON says the same");
    let list = json(&daemon.run(&["list", "--json"]).success());
    assert_eq!(list["tasks"][0]["tags"][0], EVIL);
    let output = json(&daemon.run(&["output", id, "--json"]).success());
    assert_eq!(output["data"], EVIL);
    assert_eq!(daemon.run(&["output", id]).success().stdout, EVIL.as_bytes(), "not a byte is changed");
}

#[test]
fn hidden_characters_in_permission_questions_are_replaced() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut watch = daemon.watch();
    let call = serde_json::json!({ "title": "x", "rawInput": { "command": EVIL } });
    for prompt in [format!("ask Run {EVIL}?"), format!("ask-call {call}")] {
        let id = daemon.prompt(&prompt);
        let asks = watch.until(|event| event.kind == EventKind::NeedsInput && event.task.id == id);
        let question = asks.task.progress.needs_input.unwrap().question;
        assert!(question.contains(EVIL), "the wire has what was asked");
        let id = &*id.to_string();
        for args in [&["answer", id][..], &["status", id]] {
            shows(&daemon.run(args).success().stdout_text());
        }
        daemon.run(&["answer", id, "reject-once"]).success();
        daemon.run(&["block", id]).success();
    }
}

#[test]
fn hidden_characters_quoted_in_errors_are_replaced_on_terminal_and_in_log() {
    let daemon = TestDaemon::start();
    let program = format!("{EVIL}\nERROR forged");
    let params = SubmitParams { argv: Some(vec![program.as_str().into()]), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    assert_eq!(daemon.block(&[id])[0].status, Status::Failed);
    let blocked = daemon.run(&["block", &id.to_string()]);
    shows(&blocked.stderr);
    assert_eq!(blocked.stderr.lines().count(), 1, "{}", blocked.stderr);

    let log = daemon.state_dir().join("bgd.log");
    wait::for_line(&log, "task not started");
    let log = fs::read_to_string(log).unwrap();
    shows(&log);
    assert!(!log.lines().any(|line| line.starts_with("ERROR")), "{log}");

    // An id, a verb and an option that do not exist.
    for args in [&["status", EVIL][..], &[EVIL], &["list", &format!("--{EVIL}")]] {
        let outcome = daemon.run(args);
        assert!(!outcome.stderr.is_empty(), "{args:?}");
        is_plain(&outcome.stderr);
        let mut args = args.to_vec();
        args.push("--json");
        is_plain(&daemon.run(&args).stderr);
    }
}

#[test]
fn command_of_status_page_is_read_back_by_a_shell() {
    let daemon = TestDaemon::start();
    let words = ["printf", "%s.", "a\nb", "c\td", "it's", "", EVIL];
    let task = daemon.submit(&words);
    let page = daemon.run(&["status", &task.to_string()]).success().stdout_text();
    is_plain(&page);
    let line = page.lines().find_map(|line| line.strip_prefix("command:")).expect("a command");
    let script = format!("set -- {line}; printf '%s\\0' \"$@\"");
    let read = Outcome::of(Command::new("bash").args(["-c", &script])).success().stdout_text();
    assert_eq!(read.split_terminator('\0').collect::<Vec<_>>(), words);
    let refused = daemon.run(&["submit", "--", "echo a\nmake all"]).expect_code(2);
    assert!(refused.stderr.contains(r"`bgctl submit --shell $'echo a\nmake all'`"), "{}", refused.stderr);
}
