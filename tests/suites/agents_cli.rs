//! The agent verbs as users meet them: through the real `bgctl`, with template agents.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use bgd_shared::agent::AgentListResult;
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockResult, ResultResult, TaskResult};
use bgd_shared::task::Status;
use bgd_tests::templates::{Gate, REMEMBER, reading_agent, remembering_agent, shell_agent};
use bgd_tests::{Outcome, Terminal, TestDaemon, wait};
use serde_json::Value;

use super::cli::on_a_terminal;

/// A home with an agent that remembers, and waits at a gate on request, and one that does not remember.
fn daemon() -> TestDaemon {
    let line = format!("[ \"$1\" != wait ] || {{ read _ < \"$HOME/gate\"; }}; {REMEMBER}");
    let config = [
        "default_agent = \"echo\"\n",
        &remembering_agent("mem", &line),
        &shell_agent("echo", "echo \"$1\"", ""),
    ];
    TestDaemon::builder().config(config.concat()).start()
}

#[track_caller]
fn answered(daemon: &TestDaemon, args: &[&str]) -> String {
    let id = daemon.submitted(args).to_string();
    daemon.run(&["block", &id]).success();
    id
}

#[track_caller]
fn result(daemon: &TestDaemon, id: &str) -> String {
    daemon.run(&["output", "--result", id]).success().stdout_text().trim_end().to_owned()
}

#[track_caller]
fn with_input(daemon: &TestDaemon, args: &[&str], input: &[u8]) -> std::process::Output {
    let mut bgctl = daemon.bgctl(args);
    bgctl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bgctl.spawn().unwrap();
    // A `bgctl` that refuses reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[test]
fn r37_submit_and_resume_verbs_continue_the_same_task() {
    let daemon = daemon();
    let id = answered(&daemon, &["--agent", "mem", "-d", "remember", "one"]);
    assert_eq!(result(&daemon, &id), "one;");
    for (args, wanted) in [
        (&["submit", "--resume", &id, "two"][..], "one;two;"),
        (&["submit", "--resume", &id[..8], "--prompt", "three"], "one;two;three;"),
        (
            &["submit", "--resume", &id, "--agent", "nobody", "-d", "not looked at", "four"],
            "one;two;three;four;",
        ),
        (&["resume", &id[..4], "five"], "one;two;three;four;five;"),
        (&["resume", &id, "--", "--six"], "one;two;three;four;five;--six;"),
    ] {
        let printed = daemon.run(args).success().stdout_text();
        assert_eq!(printed, format!("{id}\n"), "{args:?}");
        daemon.run(&["block", &id]).success();
        assert_eq!(result(&daemon, &id), wanted);
    }
    let task = daemon.task(id.parse().unwrap());
    assert_eq!((task.description.as_str(), task.agent.as_deref()), ("remember", Some("mem")));
}

#[test]
fn prompt_without_agent_goes_to_default_agent() {
    let daemon = daemon();
    let id = answered(&daemon, &["--prompt", "to whom it may concern", "-d", "x"]);
    assert_eq!(result(&daemon, &id), "to whom it may concern");
    assert_eq!(daemon.task(id.parse().unwrap()).agent.as_deref(), Some("echo"));
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    let stderr = daemon.run(&["submit", "--prompt", "x", "-d", "x"]).expect_code(2).stderr;
    assert!(stderr.contains("default_agent") && stderr.contains("codex"), "{stderr}");
}

/// The rest of a request is more than the first of these prompts leaves room for. A control character takes six bytes.
#[test]
fn prompt_that_makes_its_request_too_long_is_named_with_its_length_there() {
    let daemon = daemon();
    let id = answered(&daemon, &["--agent", "mem", "-d", "x", "one"]);
    for (input, bytes) in [(vec![b'a'; 1_048_560], "1048562 bytes"), (vec![1; 500_000], "3000002 bytes")] {
        for args in [
            &["submit", "--agent", "mem", "-d", "x", "-"][..],
            &["run", "--agent", "mem", "-d", "x", "-"],
            &["resume", &id, "-"],
        ] {
            let output = with_input(&daemon, args, &input);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(70), "{args:?}: {stderr}");
            let message = format!("the prompt is too long for one request: it takes {bytes}");
            assert!(stderr.contains(&message), "{args:?}: {stderr}");
            assert!(stderr.contains("1048576 bytes") && stderr.contains("into a file"), "{stderr}");
        }
    }
}

#[test]
fn dash_reads_prompt_from_standard_input() {
    let daemon = TestDaemon::builder()
        .config([reading_agent("count", "wc -c", ""), remembering_agent("mem", REMEMBER)].concat())
        .start();
    let long = vec![b'x'; 1_000_000];
    let output = with_input(&daemon, &["submit", "--agent", "count", "-d", "long", "-"], &long);
    assert!(output.status.success(), "{output:?}");
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    daemon.run(&["block", &id]).success();
    assert_eq!(result(&daemon, &id), "1000000");
    let id = answered(&daemon, &["--agent", "mem", "-d", "x", "one"]);
    assert!(with_input(&daemon, &["resume", &id, "-"], b"two").status.success());
    daemon.run(&["block", &id]).success();
    assert_eq!(result(&daemon, &id), "one;two;");
    for (input, code, part) in [
        (&b""[..], 2, "prompt on standard input is empty"),
        (b" \n\t", 2, "is empty"),
        (b"\xff", 2, "UTF-8"),
        (&vec![b'x'; 2_000_000], 70, "too long"),
    ] {
        let output = with_input(&daemon, &["resume", &id, "-"], input);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(part) && stderr.contains("hint: ") && output.stdout.is_empty(), "{stderr}");
    }
    assert_eq!(daemon.task(id.parse().unwrap()).resume_count, 1, "what is refused changes nothing");
}

#[test]
fn r30_prompt_is_typed_before_a_resume_connects() {
    let daemon = daemon();
    let id = answered(&daemon, &["--session", "mine", "--agent", "mem", "-d", "x", "one"]);
    let mut resume = daemon.bgctl(&["resume", "@", "-"]);
    let mut resume = Terminal::open(resume.env("BGD_SESSION", "mine"));
    resume.wait_text("enter the prompt");
    // Only that of this question.
    wait::poll_until("no connection", || (daemon.status().connections == 1).then_some(()));
    resume.type_line("two");
    resume.type_keys("\x04");
    assert_eq!(resume.ended().code(), Some(0));
    daemon.run(&["block", &id]).success();
    assert!(result(&daemon, &id).starts_with("one;two"));
}

/// Runs `bgctl` without and with `--json`; both must fail with this code and this kind.
#[track_caller]
fn refused(daemon: &TestDaemon, args: &[&str], code: i32, kind: &str, parts: &[&str]) {
    let outcome = daemon.run(args).expect_code(code);
    assert!(outcome.stdout.is_empty(), "{args:?}: {}", outcome.stdout_text());
    for part in parts {
        assert!(outcome.stderr.contains(part), "{args:?} says nothing of {part:?}: {}", outcome.stderr);
    }
    let json = daemon.run(&[&["--json"], args].concat()).expect_code(code);
    let value: Value = serde_json::from_str(&json.stderr).expect("one object");
    assert_eq!(value["error"]["data"]["kind"], kind, "{args:?}: {value}");
    assert_eq!(value["error"]["data"]["exit_code"], code, "{args:?}: {value}");
}

#[test]
fn every_refusal_has_exit_code_error_kind_and_message() {
    let daemon = daemon();
    let mut gate = Gate::new(daemon.home(), "gate");
    let unknown = TaskId::random().to_string();
    let command = answered(&daemon, &["--", "true"]);
    let nameless = answered(&daemon, &["--agent", "echo", "-d", "x", "hello"]);
    let done = answered(&daemon, &["--agent", "mem", "-d", "x", "one"]);
    let waiting = daemon.submitted(&["--agent", "mem", "-d", "x", "wait"]).to_string();
    let cancelled = daemon.submitted(&["--agent", "mem", "-d", "x", "wait"]).to_string();
    daemon.run(&["cancel", &cancelled]).success();
    let only = "only completed tasks can be resumed";
    for (args, code, kind, parts) in [
        (
            &["submit", "--agent", "nobody", "-d", "x", "hi"][..],
            2,
            "unknown_agent",
            &[
                "unknown agent \"nobody\"",
                "claude, codex, copilot, echo, gemini, goose, mem, opencode",
                "[agents.NAME]",
            ][..],
        ),
        (&["agents", "nobody"], 2, "unknown_agent", &["unknown agent \"nobody\"", "echo"]),
        (&["resume", &unknown, "go on"], 66, "task_not_found", &[&unknown]),
        (&["resume", &nameless, "go on"], 65, "session_expired", &["can't be resumed", "submit a new task"]),
        (&["resume", &command, "go on"], 65, "not_resumable", &["only agent tasks can be resumed"]),
        (&["resume", &waiting, "go on"], 65, "not_resumable", &[only, "running", "bgctl block"]),
        (&["resume", &cancelled, "go on"], 65, "not_resumable", &[only, "cancelled", "submit a new task"]),
        (&["submit", "--resume", &cancelled, "go on"], 65, "not_resumable", &[only]),
        (&["resume", &done, " "], 2, "prompt_required", &["is empty", "hint: "]),
        (&["submit", "--agent", "mem", "-d", "x", ""], 2, "prompt_required", &["is empty"]),
        (&["submit", "--agent", "mem", "-d", "x"], 2, "usage", &["needs a PROMPT"]),
        (&["submit", "--agent", "mem", "hello"], 2, "usage", &["needs a description", "-d TEXT"]),
        (&["submit", "--prompt", "hello"], 2, "usage", &["needs a description"]),
        (
            &["submit", "--agent", "mem", "-d", " ", "hello"],
            2,
            "invalid_params",
            &["`description` is missing"],
        ),
        (&["submit", "--agent", "mem", "-d", "x", "two", "words"], 2, "usage", &["one argument", "quote it"]),
        (&["submit", "--agent", "mem", "-d", "x", "--shell", "true"], 2, "usage", &["cannot be used with"]),
        (&["submit", "--agent", "mem", "-d", "x", "--stdin", "hi"], 2, "usage", &["cannot be used with"]),
        (&["resume", &done], 2, "usage", &["<PROMPT>"]),
        (&["resume", &done, "two", "words"], 2, "usage", &["quote it"]),
        (&["answer", &done], 65, "no_question", &["no open question", "completed"]),
        (&["answer", &waiting, "allow"], 65, "no_question", &["no open question", "running"]),
        (&["answer", &command, "allow"], 65, "no_question", &["runs a command"]),
        (&["answer", &unknown], 66, "task_not_found", &[&unknown]),
        (&["signal", &waiting, "INT"], 70, "unsupported", &["can't be signalled", "bgctl cancel"]),
        (&["write", &waiting, "hi"], 65, "unsupported", &["no standard input"]),
        (&["output", "--result", &waiting], 65, "not_complete", &["not complete yet", "running"]),
        (&["clear", &waiting], 65, "not_complete", &["running"]),
    ] {
        refused(&daemon, args, code, kind, parts);
    }
    gate.open();
    daemon.run(&["block", &waiting]).success();
    daemon.run(&["resume", &waiting, "wait"]).success();
    let parts = ["is currently being resumed", "bgctl block"];
    refused(&daemon, &["resume", &waiting, "again"], 65, "being_resumed", &parts);
    refused(&daemon, &["submit", "--resume", &waiting, "again"], 65, "being_resumed", &parts);
    refused(&daemon, &["output", "--result", &waiting], 65, "not_complete", &["not complete yet", "resumed"]);
    gate.open();
    daemon.run(&["block", &waiting]).success();
    assert_eq!(result(&daemon, &waiting), "wait;wait;", "no refused prompt got through");
}

#[test]
fn missing_agent_program_is_reported_with_install_command() {
    let daemon = TestDaemon::builder()
        .env("PATH", "/nowhere")
        .config("[agents.mine]\nprotocol = \"template\"\ncommand = [\"no-such-program\"]\n")
        .start();
    let codex = ["codex", "codex-acp", "PATH", "npm install -g @agentclientprotocol/codex-acp"];
    refused(&daemon, &["submit", "--agent", "codex", "-d", "x", "hi"], 69, "agent_unavailable", &codex);
    let mine = ["\"mine\"", "no-such-program", "[agents.mine]"];
    refused(&daemon, &["submit", "--agent", "mine", "-d", "x", "hi"], 69, "agent_unavailable", &mine);
    let stdout = daemon.run(&["agents", "codex"]).success().stdout_text();
    let columns: Vec<&str> = stdout.trim_end().split('\t').collect();
    assert_eq!(columns[2], "not installed: npm install -g @agentclientprotocol/codex-acp");
    assert_eq!(daemon.run(&["list", "-q"]).success().stdout, b"", "nothing was submitted");
}

#[test]
fn agents_verb_prints_columns_json_or_table() {
    let daemon = TestDaemon::builder()
        .env("PATH", "/usr/bin:/bin")
        .config(
            [
                "default_agent = \"echo\"\n",
                &remembering_agent("mem", REMEMBER),
                &shell_agent("echo", "echo \"$1\"", "permissions = \"allow\""),
            ]
            .concat(),
        )
        .start();
    let text = daemon.run(&["agents"]).success().stdout_text();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, ["claude", "codex", "copilot", "echo (default)", "gemini", "goose", "mem", "opencode"]);
    assert_eq!(rows[3][1..6], ["template", "ready", "-", "-", "allow"]);
    assert!(rows[3][6].starts_with("sh -c 'echo \"$1\"'"), "{rows:?}");
    let checked = daemon.run(&["agents", "--check", "mem", "echo"]).success();
    assert!(checked.stderr.is_empty(), "{}", checked.stderr);
    let rows = checked.stdout_text();
    let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split('\t').collect()).collect();
    let short: Vec<[&str; 3]> = rows.iter().map(|row| [row[0], row[2], row[4]]).collect();
    let state = "found, not started";
    assert_eq!(
        short,
        [["mem", state, "resume"], ["echo (default)", state, "no"]],
        "as they were named, with what was checked and what continues"
    );
    let result: AgentListResult = daemon.run(&["--json", "agents", "mem"]).success().json();
    let program = result.agents[0].program.as_ref().map(|file| file.to_string_lossy().into_owned());
    assert!(program.is_some_and(|file| file.ends_with("/sh")) && result.agents.len() == 1);
    let table = on_a_terminal(&daemon, "agents mem goose", &[("NO_COLOR", "1")]);
    assert!(table.contains("NAME") && table.contains("not installed"), "{table}");
    assert!(table.contains("goose is not installed; install it with: brew install"), "{table}");
    assert!(daemon.task_processes().is_empty(), "no agent was started");
}

#[test]
fn agents_check_fails_if_a_named_agent_is_not_installed() {
    let config = shell_agent("echo", "echo \"$1\"", "") + "[agents.gone]\ncommand = [\"no-such-agent\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    let text = daemon.run(&["agents", "--check", "echo", "gone"]).expect_code(69).stdout_text();
    let states: Vec<Option<&str>> = text.lines().map(|line| line.split('\t').nth(2)).collect();
    assert_eq!(states, [Some("found, not started"), Some("not installed")], "{text}");
    let listed: AgentListResult = daemon.run(&["--json", "agents", "--check", "gone"]).expect_code(69).json();
    assert!(!listed.agents[0].available && listed.agents[0].error.is_none(), "{listed:?}");
    daemon.run(&["agents", "gone"]).success();
    // Without names, what is not installed is no failure. In this folder are no programs.
    let all = Outcome::of(daemon.bgctl(&["agents", "--check"]).env("PATH", daemon.home())).success();
    assert!(all.stdout_text().contains("gone\tacp\tnot installed"), "{}", all.stdout_text());
}

#[test]
fn r38_list_and_status_mark_resumed_tasks() {
    let daemon = daemon();
    let id = answered(&daemon, &["--agent", "mem", "-d", "what for", "first prompt"]);
    let other = answered(&daemon, &["--agent", "echo", "-d", "another", "hello"]);
    let row = |id: &str| -> Vec<String> {
        let text = daemon.run(&["list"]).success().stdout_text();
        let line = text.lines().find(|line| line.starts_with(&id[..8])).expect("a line").to_owned();
        line.split('\t').map(str::to_owned).collect()
    };
    assert_eq!(
        (row(&id)[0].as_str(), row(&id)[1].as_str(), row(&id)[4].as_str()),
        (&id[..8], "completed", "what for")
    );
    for count in ["once", "2 times"] {
        daemon.run(&["resume", &id, "next prompt"]).success();
        daemon.run(&["block", &id]).success();
        assert_eq!(row(&id)[0], format!("{} (resumed)", &id[..8]));
        let page = daemon.run(&["status", &id]).success().stdout_text();
        let line = |name: &str| page.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(line("resumed:").ends_with(count), "{page}");
        assert!(line("prompt:").ends_with("next prompt") && line("status:").ends_with("completed"), "{page}");
        assert!(line("agent:").contains("mem, its session s"), "{page}");
        assert!(line("stderr file:").contains(&id) && line("tools:").ends_with("none called"), "{page}");
    }
    assert_eq!(row(&other)[0], other[..8], "the mark is of the one only");
    let ids = daemon.run(&["list", "-q"]).success().stdout_text();
    assert_eq!(ids, format!("{other}\n{id}\n"), "no mark where programs read");
}

#[test]
fn r25_block_after_resume_waits_for_new_answer() {
    let daemon = daemon();
    let mut gate = Gate::new(daemon.home(), "gate");
    let id = answered(&daemon, &["--agent", "mem", "-d", "x", "one"]);
    let resumed: TaskResult = daemon.run(&["--json", "resume", &id, "wait"]).success().json();
    assert_eq!((resumed.task.status, resumed.task.resume_count), (Status::Resumed, 1));
    let blocked = daemon.run(&["--json", "block", "--timeout", "1ms", &id]).expect_code(75);
    assert!(blocked.json::<BlockResult>().timed_out);
    let mut block = daemon.bgctl(&["block", "--exit-code", &id]);
    let mut child = block.stdout(Stdio::null()).spawn().unwrap();
    gate.open();
    assert!(child.wait().unwrap().success(), "an agent's task has no code of its own: 0 if it completed");
    let result: ResultResult = daemon.run(&["--json", "output", "--result", &id]).success().json();
    assert_eq!(result.result, "one;wait;");
    let bad = daemon.submitted(&["--agent", "mem", "-d", "x", "wait"]).to_string();
    daemon.run(&["cancel", &bad]).success();
    daemon.run(&["block", "--exit-code", &bad]).expect_code(1);
    daemon.run(&["block", &bad, &id]).expect_code(1);
}

#[test]
fn submit_options_reach_the_agent() {
    let daemon =
        TestDaemon::builder().config(shell_agent("x", "pwd; printenv VARIABLE BGD_SOCKET", "")).start();
    let folder = daemon.home().join("sub");
    fs::create_dir(&folder).unwrap();
    let args = [
        "--agent",
        "x",
        "--cwd",
        "sub",
        "--env",
        "VARIABLE=a b",
        "--tag",
        "t",
        "--session",
        "s",
        "-d",
        "x",
        "hi",
    ];
    let id = answered(&daemon, &args);
    let wanted = format!("{}\na b\n{}", folder.display(), daemon.socket().display());
    assert_eq!(result(&daemon, &id), wanted);
    let task = daemon.task(id.parse().unwrap());
    assert_eq!((task.session.as_deref(), task.tags.len()), (Some("s"), 1));
    let again: Vec<String> = (0..2)
        .map(|_| daemon.submitted(&["--agent", "x", "-d", "x", "--key", "k", "hi"]).to_string())
        .collect();
    assert_eq!(again[0], again[1], "a key makes a submit repeatable");
    daemon.run(&["block", &again[0]]).expect_code(1);
}
