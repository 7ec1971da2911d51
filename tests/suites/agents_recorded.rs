//! Recordings of real agents that cannot run in the tests: how they report a failure of the model, what they replay,
//! how they separate messages, and which mode they start in. `recorded/README.md` describes how they were recorded.

use std::fs;

use bgd_shared::task::Status;
use bgd_tests::FakeDaemon;

/// The fake model's only answer.
const ANSWER: &str = "Hello from the fake model.";

/// The prompt that the model answered with the status 400.
const FAILS: &str = "FAIL400";

fn recorded(name: &str, more: &str) -> FakeDaemon {
    let file = format!("{}/suites/recorded/{name}.ndjson", env!("CARGO_MANIFEST_DIR"));
    FakeDaemon::start(&["--recorded", &file], more)
}

/// Returns the modes set before the first prompt, and the number of prompts.
fn modes_set(daemon: &FakeDaemon) -> (Vec<String>, usize) {
    let home = daemon.fake_home();
    let methods: Vec<String> = home
        .journal()
        .iter()
        .filter_map(|line| line["received"]["method"].as_str().map(str::to_owned))
        .collect();
    let first = methods.iter().position(|method| method == "session/prompt").expect("a prompt");
    let before = methods[..first].iter().filter(|method| *method == "session/set_mode").count();
    let set = home.received("session/set_mode");
    let modes =
        set.iter().take(before).map(|message| message["params"]["modeId"].as_str().unwrap().to_owned());
    (modes.collect(), home.received("session/prompt").len())
}

#[test]
fn gemini_replay_after_session_load_is_not_output() {
    let daemon = recorded("gemini-cli-0.61.0-load", "keep_warm = \"0s\"");
    let task = daemon.completed("Say hello.");
    assert_eq!(daemon.result(task.id), ANSWER);
    daemon.wait_agents_gone();
    daemon.resume(task.id, "Say it again.");
    let task = daemon.ends_as(task.id, Status::Completed);
    assert_eq!(daemon.fake_home().received("session/load").len(), 1, "it is another process");
    assert_eq!(daemon.result(task.id), ANSWER);
    let output = fs::read_to_string(&task.output.path).unwrap();
    assert_eq!(output.matches(ANSWER).count(), 2, "once for each prompt: {output:?}");
    assert!(!output.contains("session_context") && !output.contains("Say hello."), "{output:?}");
}

#[test]
fn model_error_fails_task_however_agent_reports_it() {
    for (name, why) in [
        // The thread has the status `systemError`, but the turn ends normally.
        ("codex-acp-2.6.0-error-400", "Invalid value for parameter"),
        // The turn ends normally, without a word.
        ("kimi-code-2.1.0-error-400", "without an answer"),
        // The error is the whole answer.
        ("copilot-1.0.102-error-400", "Error: 400 Invalid value for parameter"),
        // An error reported by the protocol's own means.
        ("claude-agent-acp-0.101.0-modes", "API Error: 400 Invalid value for parameter"),
    ] {
        let daemon = recorded(name, "keep_warm = \"1h\"");
        let task = daemon.completed("Hello");
        assert_eq!((daemon.result(task.id), task.suspect), (ANSWER.to_owned(), None), "{name}");
        daemon.resume(task.id, FAILS);
        let error = daemon.ends_as(task.id, Status::Failed).error.unwrap_or_default();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn codex_warning_is_output_but_not_part_of_answer() {
    let daemon = recorded("codex-acp-2.6.0-error-400", "");
    let task = daemon.completed("Hello");
    assert_eq!(daemon.result(task.id), ANSWER);
    let output = fs::read_to_string(&task.output.path).unwrap();
    assert!(
        output.starts_with("Warning: Model metadata") && output.ends_with(&format!("\n\n{ANSWER}\n")),
        "{output:?}"
    );
}

#[test]
fn agents_starting_in_non_asking_mode_are_switched_to_asking_mode() {
    for (name, permissions, mode) in [
        ("claude-agent-acp-0.101.0-modes", "deny", Some("default")),
        ("claude-agent-acp-0.101.0-modes", "ask", Some("default")),
        ("claude-agent-acp-0.101.0-modes", "allow", None),
        ("codex-acp-2.6.0-error-400", "deny", Some("read-only")),
        ("codex-acp-2.6.0-error-400", "allow", None),
        // The agents start in this mode.
        ("gemini-cli-0.61.0-load", "deny", None),
        ("copilot-1.0.102-error-400", "deny", None),
        ("kimi-code-2.1.0-error-400", "deny", None),
    ] {
        let daemon = recorded(name, &format!("permissions = \"{permissions}\""));
        let task = daemon.completed("Hello");
        let expected: Vec<String> = mode.into_iter().map(str::to_owned).collect();
        assert_eq!(modes_set(&daemon), (expected, 1), "{name}, {permissions}");
        assert_eq!(task.warning, None, "{name}, {permissions}");
    }
}
