//! The command line as users and scripts meet it: every verb through the real `bgctl`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::request::{DaemonStatus, HelloResult, ListResult, TaskResult};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use bgd_tests::templates::remembering_agent;
use bgd_tests::{Outcome, Terminal, TestDaemon, bgctl_path, executable, wait};
use serde_json::Value;

/// Verbs with arguments that make them succeed: `ID` stands for a task that has ended, `RUNNING` for one that runs and
/// has a pipe, `HELD` for one that is held, and `AGENT` for an answered prompt. The other verbs are in [`OTHERS`].
const GOOD: &[&[&str]] = &[
    &["submit", "--", "true"],
    &["submit", "--agent", "echo", "-d", "text", "a prompt"],
    &["submit", "--prompt", "a prompt", "-d", "text"],
    &["submit", "--resume", "AGENT", "a prompt"],
    &["resume", "AGENT", "a prompt"],
    &["agents"],
    &["agents", "--check", "echo"],
    &["executors"],
    &["doctor"],
    &["rerun", "ID"],
    &["list"],
    &["ls", "--all"],
    &["status", "ID"],
    &["output", "ID"],
    &["output", "--result", "ID"],
    &["block", "ID"],
    &["signal", "RUNNING", "CONT"],
    &["write", "RUNNING", "-n", "text"],
    &["group", "list"],
    &["group", "set", "extra", "--slots", "2"],
    &["group", "pause", "extra"],
    &["group", "continue", "extra"],
    &["group", "remove", "extra"],
    &["hold", "HELD"],
    &["edit", "HELD", "--priority", "1"],
    &["release", "HELD"],
    &["block", "--line", "x", "ID"],
    &["pause", "RUNNING"],
    &["continue", "RUNNING"],
    &["cancel", "ID"],
    &["cancel", "--all"],
    &["clear", "ID"],
    &["clear", "--all", "--all-sessions"],
    &["session", "end", "nobody"],
    &["daemon", "start"],
    &["daemon", "status"],
    &["daemon", "reload"],
    &["daemon", "stop"],
];

/// Verbs that print something other than one object, such as a script, or a line for each event. `answer` needs an agent
/// that asks.
const OTHERS: &[&str] = &[
    "run",
    "top",
    "attach",
    "console",
    "mcp",
    "handoff",
    "answer",
    "events",
    "inbox",
    "dial",
    "completions",
    "man",
    "shell-init",
    "shell-prompt",
];

#[test]
fn json_output_of_verbs_is_exactly_one_line() {
    let named = GOOD.iter().map(|words| if words[0] == "ls" { "list" } else { words[0] });
    let named: BTreeSet<&str> = named.chain(OTHERS.iter().copied()).collect();
    assert_eq!(named, bgctl::cli::Verb::NAMES.iter().copied().collect());
    let line = "echo '{\"session_id\":\"s\",\"result\":\"x\"}'";
    let config = format!("default_agent = \"echo\"\n{}", remembering_agent("echo", line));
    let mut daemon = TestDaemon::builder().config(config).start();
    for args in GOOD {
        let done = daemon.submitted(&["--", "echo", "x"]).to_string();
        let agent = daemon.submitted(&["--agent", "echo", "-d", "text", "a prompt"]).to_string();
        let running = daemon.submitted(&["--stdin-pipe", "--", "cat"]);
        daemon.run(&["block", &done, &agent]).success();
        daemon.wait_running(running);
        let running = running.to_string();
        let held = daemon.submitted(&["--hold", "--", "true"]).to_string();
        let word = |arg: &&'static str| match *arg {
            "ID" => done.clone(),
            "RUNNING" => running.clone(),
            "HELD" => held.clone(),
            "AGENT" => agent.clone(),
            other => other.to_owned(),
        };
        let words: Vec<String> = args.iter().map(word).collect();
        let words: Vec<&str> = ["--json"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let outcome = daemon.run(&words).success();
        assert!(outcome.stderr.is_empty(), "{words:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout_text().matches('\n').count(), 1, "{words:?}: {}", outcome.stdout_text());
        let value: Value = outcome.json();
        assert!(value.is_object(), "{words:?}");
        if !words.contains(&"stop") {
            daemon.run(&["clear", "--all", "--all-sessions"]).success();
        }
    }
    assert!(daemon.ended().success());
}

#[test]
fn errors_go_to_stderr_with_hint_and_leave_stdout_empty() {
    let daemon = TestDaemon::start();
    let unknown = TaskId::random().to_string();
    let failed = daemon.submitted(&["--", "false"]).to_string();
    daemon.run(&["block", &failed]).expect_code(1);
    for (args, kind, code) in [
        (&["status", &unknown][..], "task_not_found", 66),
        (&["output", "--result", &failed], "not_complete", 65),
        (&["signal", &failed, "TERM"], "not_running", 65),
        (&["signal", &failed, "BOGUS"], "invalid_params", 2),
        (&["block"], "usage", 2),
        (&["list", "--limit", "0"], "usage", 2),
        (&["bogus"], "usage", 2),
    ] {
        let outcome = daemon.run(args).expect_code(code);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{args:?}");
        let json = daemon.run(&[&["--json"], args].concat()).expect_code(code);
        assert!(json.stdout.is_empty(), "{args:?}");
        assert_eq!(json.stderr.matches('\n').count(), 1, "{args:?}: {}", json.stderr);
        let value: Value = serde_json::from_str(&json.stderr).expect("an object");
        let data = &value["error"]["data"];
        assert_eq!((&data["kind"], &data["exit_code"]), (&Value::from(kind), &Value::from(code)), "{args:?}");
        assert!(!value["error"]["message"].as_str().unwrap().is_empty());
    }
    let stderr = daemon.run(&["status", &unknown]).expect_code(66).stderr;
    assert!(stderr.starts_with("bgctl: ") && stderr.contains("\nhint: "), "{stderr}");
}

#[test]
fn cancel_reports_what_it_ended_and_that_it_is_waiting() {
    let daemon = TestDaemon::start();
    let left = daemon.submit_shell("sleep 1000 > /dev/null 2>&1 &");
    daemon.block(&[left]);
    assert!(daemon.task(left).lingering);
    let id = left.to_string();
    let stdout = daemon.run(&["cancel", &id]).success().stdout_text();
    assert_eq!(stdout, format!("{id} already completed; ended its remaining processes\n"));
    assert!(daemon.task_processes().is_empty());
    assert_eq!(daemon.run(&["cancel", &id]).success().stdout_text(), format!("{id} already completed\n"));

    let deaf = daemon.submit_shell("trap '' TERM; echo up; while :; do sleep 1000; done");
    wait::for_line(daemon.task(deaf).output.path.as_ref(), "up");
    let mut terminal = Terminal::bgctl(&daemon, &["cancel", "--grace", "1h", &deaf.to_string()]);
    terminal.wait_text("waiting for the task to end");
    daemon.run(&["cancel", "--grace", "0", &deaf.to_string()]).success();
    assert!(terminal.ended().success());
}

#[test]
fn common_aliases_work_or_suggest_the_right_verb() {
    let home = TestDaemon::home_only();
    for (word, verb) in [
        ("kill", "bgctl cancel ID"),
        ("stop", "bgctl cancel ID"),
        ("rm", "bgctl clear ID"),
        ("tail", "bgctl output --tail 20 ID"),
        ("restart", "bgctl daemon restart"),
        ("retry", "bgctl rerun"),
        ("last", "bgctl list --limit 1"),
        ("watch", "bgctl list --watch"),
    ] {
        let stderr = home.run(&[word, "3f2a"]).expect_code(2).stderr;
        assert!(stderr.contains(verb) && !stderr.contains("similar"), "{word}: {stderr}");
        let json = home.run(&["--json", word]).expect_code(2).stderr;
        assert!(json.contains(verb), "{word}: {json}");
    }
    let root = home.run(&["--help"]).success().stdout_text();
    assert_eq!(home.run(&["help"]).success().stdout_text(), root);
    for words in [&["submit"][..], &["daemon", "stop"], &["wait"]] {
        let help = home.run(&[&["help"], words].concat()).success().stdout_text();
        assert_eq!(help, home.run(&[words, &["--help"]].concat()).success().stdout_text(), "{words:?}");
    }
    assert!(home.run(&["help", "kill"]).expect_code(2).stderr.contains("bgctl cancel ID"));
    assert!(home.processes().is_empty(), "nothing of this starts a daemon");

    let daemon = TestDaemon::start();
    let id = daemon.submitted(&["--", "echo", "x"]);
    daemon.block(&[id]);
    let id = id.to_string();
    for (word, verb) in
        [("ps", "list"), ("jobs", "list"), ("show", "status"), ("logs", "output"), ("wait", "block")]
    {
        let words: &[&str] = if verb == "list" { &["-q"] } else { &[&id] };
        let outcome = daemon.run(&[&[word], words].concat()).success().stdout_text();
        assert!(outcome.contains(if verb == "output" { "x" } else { &*id }), "{word}: {outcome}");
    }
    daemon.run(&["fg", &id]).success();
}

#[test]
fn doomed_submit_is_refused_or_warned_about_immediately() {
    let config = "default_deliver_to = [\"inbox\"]\n[channels.slack]\ntype = \"slack\"\ntoken = \"x\"\n";
    let daemon = TestDaemon::builder().config(config).start();
    let quoted = daemon.run(&["submit", "make -j8"]).expect_code(2);
    assert!(quoted.stdout.is_empty(), "{}", quoted.stdout_text());
    for part in ["drop the quotes", "bgctl submit -- make -j8", "--shell 'make -j8'"] {
        assert!(quoted.stderr.contains(part), "{}", quoted.stderr);
    }
    let run = daemon.run(&["run", "make -j8"]).expect_code(127);
    assert!(run.stderr.contains("drop the quotes"), "{}", run.stderr);
    for (words, named) in [
        (&["--", "nosuchprogram", "x"][..], "no program nosuchprogram in PATH"),
        (&["--", "./nosuchprogram"], "no program ./nosuchprogram:"),
        (&["--env", "PATH=/nowhere", "--", "ls"], "no program ls in PATH"),
        (&["--cwd", "/nowhere", "--", "true"], "no folder /nowhere"),
        (&["--channel", "slack", "--", "true"], "channel slack can't deliver"),
    ] {
        let outcome = daemon.run(&[&["submit"], words].concat()).success();
        let warning = &outcome.stderr;
        assert!(warning.starts_with("bgctl: warning: ") && warning.contains(named), "{words:?}: {warning}");
        assert_eq!(warning.lines().count(), 1, "{words:?}: {warning}");
        daemon.task(outcome.word());
        let json = daemon.run(&[&["--json", "submit"], words].concat()).success();
        assert_eq!(json.stderr, "", "{words:?}");
    }
    for words in [
        &["--", "true"][..],
        &["--channel", "inbox", "--session", "s", "--", "true"],
        &["--shell", "nosuchprogram"],
    ] {
        assert_eq!(daemon.run(&[&["submit"], words].concat()).success().stderr, "", "{words:?}");
    }
    // A program may have a space in its name.
    let path = daemon.home().join("two words");
    executable::copy("/bin/true".as_ref(), &path);
    daemon.run(&["submit", path.to_str().unwrap()]).success();
    assert_eq!(daemon.run(&["run", path.to_str().unwrap()]).success().stderr, "");
}

#[test]
fn restart_reports_cancelled_and_removed_tasks() {
    let home = TestDaemon::home_only();
    assert!(home.run(&["daemon", "restart"]).success().stdout_text().starts_with("restarted, pid "));
    let first = home.process();
    let done = home.submitted(&["--", "true"]);
    home.block(&[done]);
    let runs = home.submitted(&["--", "sleep", "1000"]);
    home.wait_running(runs);
    let outcome = home.run(&["daemon", "restart"]).success();
    let (program, version) = (bgd_tests::bgd_path().display().to_string(), env!("CARGO_PKG_VERSION"));
    let expected = format!(
        "bgctl: restarting bgd {version} with {program} ({version}) cancels 1 active task and removes 1 finished task \
         with its output\n"
    );
    assert_eq!(outcome.stderr, expected);
    first.gone();
    let second = home.process();
    assert_eq!(outcome.stdout_text(), format!("restarted, pid {}\n", second.pid()));
    assert_eq!(home.status().summary.total(), 0);
    let json: HelloResult = home.run(&["--json", "daemon", "restart"]).success().json();
    assert_eq!(json.pid, home.process().pid());
    home.run(&["daemon", "stop"]).success();
}

#[test]
fn no_start_flag_starts_no_daemon() {
    let home = TestDaemon::home_only();
    for args in [&["--no-start", "list"][..], &["submit", "--no-start", "--", "true"], &["daemon", "status"]]
    {
        let outcome = home.run(args).expect_code(69);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains("daemon start"), "{}", outcome.stderr);
    }
    assert_eq!(home.run(&["daemon", "stop"]).success().stdout_text(), "no daemon is running\n");
    assert!(!home.socket().exists() && home.processes().is_empty());
}

#[test]
fn submit_starts_daemon_if_none_is_running() {
    let home = TestDaemon::home_only();
    let id = home.submitted(&["--", "echo", "hello"]);
    home.run(&["block", &id.to_string()]).success();
    assert_eq!(home.run(&["output", &id.to_string()]).success().stdout, b"hello\n");
    let process = home.process();
    let again: HelloResult = home.run(&["--json", "daemon", "start"]).success().json();
    assert_eq!(again.pid, process.pid());
    assert!(home.run(&["daemon", "start"]).success().stdout_text().starts_with("already running"));
    home.run(&["daemon", "stop"]).success();
    process.gone();
    assert!(!home.socket().exists());
    assert!(home.run(&["daemon", "start"]).success().stdout_text().starts_with("started, pid"));
}

#[test]
fn socket_comes_from_option_environment_or_default() {
    let home = TestDaemon::home_only();
    let other = home.home().join("other/bgd.sock");
    fs::create_dir(other.parent().unwrap()).unwrap();
    fs::set_permissions(other.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    let status = |args: &[&str], env: Option<&str>| -> DaemonStatus {
        let mut bgctl = home.bgctl(&[args, &["--json", "daemon", "status"]].concat());
        bgctl.env_remove("BGD_SOCKET");
        if let Some(socket) = env {
            bgctl.env("BGD_SOCKET", socket);
        }
        Outcome::of(&mut bgctl).success().json()
    };
    let other = other.to_str().unwrap();
    home.run(&["--socket", other, "daemon", "start"]).success();
    home.run(&["daemon", "start"]).success();
    let by_option = status(&["--socket", other], None);
    let by_variable = status(&[], Some(other));
    let by_default = status(&[], None);
    assert_eq!(by_option.instance, by_variable.instance);
    assert_ne!(by_option.instance, by_default.instance);
    assert_eq!(by_default.socket, home.socket().to_str().unwrap());
    let relative = home.run(&["--socket", "other/bgd.sock", "--json", "daemon", "status"]).success();
    assert_eq!(relative.json::<DaemonStatus>().instance, by_option.instance, "from where the user is");
    home.run(&["--socket", other, "daemon", "stop"]).success();
}

#[test]
fn list_prints_columns_or_ids_only() {
    let daemon = TestDaemon::start();
    let good = daemon.submitted(&["-d", "a good one", "--session", "s", "--", "true"]);
    let bad = daemon.submitted(&["--shell", "exit 3"]);
    daemon.block(&[good, bad]);
    let text = daemon.run(&["list"]).success().stdout_text();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0][0], rows[0][1], rows[0][4]), (&*bad.short(), "failed (3)", "exit 3"));
    assert_eq!((rows[1][0], rows[1][1], rows[1][4]), (&*good.short(), "completed", "a good one"));
    assert_eq!(daemon.run(&["ls", "-q"]).success().stdout_text(), format!("{bad}\n{good}\n"));
    let only = |args: &[&str]| daemon.run(&[&["list", "-q"], args].concat()).success().stdout_text();
    assert_eq!(only(&["--session", "s"]), format!("{good}\n"));
    assert_eq!(only(&["--status", "failed,running"]), format!("{bad}\n"));
    assert_eq!(only(&["--status", "pending"]), "");
    let page = daemon.run(&["list", "-q", "--limit", "1"]).success();
    assert_eq!(page.stdout_text(), format!("{bad}\n"));
    assert_eq!(page.stderr, "", "whoever says how many knows that there may be more");
    let result: ListResult = daemon.run(&["--json", "list", "--all"]).success().json();
    assert_eq!((result.tasks.len(), result.summary.total(), result.next), (2, 2, None));
}

#[test]
fn list_all_fetches_every_page() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let first = daemon.submit(&["sleep", "1000"]);
    for _ in 0..1100 {
        daemon.submit(&["true"]);
    }
    let all = daemon.run(&["list", "-q", "--all"]).success().stdout_text();
    assert_eq!(all.lines().count(), 1101);
    assert_eq!(all.lines().last(), Some(&*first.to_string()));
    let some = daemon.run(&["list"]).success();
    assert_eq!((some.stdout_text().lines().count(), some.stderr.contains("1001 more")), (100, true));
    let ids = daemon.run(&["list", "-q"]).success();
    assert_eq!(
        (ids.stdout_text().lines().count(), &*ids.stderr),
        (1101, ""),
        "other programs must miss none"
    );
    let limited = daemon.run(&["list", "-q", "--limit", "1050"]).success();
    assert_eq!(limited.stdout_text().lines().count(), 1050);
}

#[test]
fn status_has_no_colour_outside_terminal_and_uses_local_time() {
    let daemon = TestDaemon::start();
    let id = daemon.submitted(&["-d", "two\nlines \u{1b}[31m", "--tag", "t", "--shell", "echo out; exit 3"]);
    daemon.block(&[id]);
    let text = daemon.run(&["status", &id.to_string()[..8]]).success().stdout_text();
    for part in [&id.to_string(), "failed", "exited with code 3", "echo out; exit 3", "out"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    let task = daemon.run(&["--json", "status", &id.to_string()]).success().json::<TaskResult>().task;
    assert_eq!((task.status, task.tags), (Status::Failed, vec!["t".to_owned()]));
    // Nine hours ahead of UTC, and without milliseconds.
    let there = Timestamp::from_unix_ms(task.created_at.unix_ms() + 9 * 3_600_000).to_string();
    let there = there[..19].replace('T', " ");
    let mut tokyo = daemon.bgctl(&["status", &id.to_string()]);
    let page = Outcome::of(tokyo.env("TZ", "JST-9")).success().stdout_text();
    assert!(page.contains(&format!("submitted:   {there} (")), "{there}: {page}");
}

#[test]
fn time_limit_is_reported_consistently_as_timeout() {
    let daemon = TestDaemon::start();
    let limited = |limit: &str, line: &str| {
        let words = ["--session", "s", "--key", line, "--time-limit", limit, "--shell", line];
        daemon.submitted(&words).to_string()
    };
    let runs = limited("1h", "sleep 1000");
    daemon.wait_running(runs.parse().unwrap());
    let page = daemon.run(&["status", &runs]).success().stdout_text();
    for line in ["time limit:  1h", "key:         sleep 1000"] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    // One task that the signal kills, and one that catches it and exits with a code.
    for line in ["exec sleep 1001", "trap 'exit 3' TERM; while :; do sleep 0.01; done"] {
        let id = limited("200ms", line);
        let stdout = daemon.run(&["block", &id]).expect_code(1).stdout_text();
        daemon.run(&["block", "--exit-code", &id]).expect_code(124);
        let list = daemon.run(&["list", "--limit", "1"]).success().stdout_text();
        let page = daemon.run(&["status", &id]).success().stdout_text();
        for text in [&stdout, &list, &page] {
            assert!(text.contains("failed (timed out after 200ms)"), "{text}");
            assert!(!text.contains("failed (SIG") && !text.contains("failed (3)"), "{text}");
        }
        let inbox = daemon.inbox("s");
        let notice = &inbox.iter().find(|item| item.notice.task.id.to_string() == id).unwrap().notice;
        assert!(notice.title.contains(" timed out after 200ms: \""), "{}", notice.title);
        assert!(!notice.text.contains("signal 15") && !notice.text.contains("exit code"), "{}", notice.text);
    }
    daemon.run(&["run", "--time-limit", "200ms", "--", "sleep", "1000"]).expect_code(124);
}

/// Runs `bgctl` on a terminal, provided by util-linux's `script`.
pub(super) fn on_a_terminal(daemon: &TestDaemon, args: &str, environment: &[(&str, &str)]) -> String {
    let mut script = Command::new("script");
    let line = format!("{} {args}", bgctl_path().display());
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env_clear().envs(daemon.environment()).env("TERM", "xterm").envs(environment.iter().copied());
    let output = script.stdin(Stdio::null()).output().expect("`script` of Debian's bsdutils");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn colour_is_used_only_on_terminals_and_respects_no_color() {
    let daemon = TestDaemon::start();
    let id = daemon.submitted(&["--", "false"]);
    daemon.block(&[id]);
    let table = on_a_terminal(&daemon, "list", &[]);
    assert!(table.contains("\u{1b}[") && table.contains("ID"), "{table:?}");
    let plain = on_a_terminal(&daemon, "list", &[("NO_COLOR", "1")]);
    assert!(!plain.contains("\u{1b}[3") && plain.contains(&id.short()), "{plain:?}");
    assert!(!daemon.run(&["list"]).success().stdout.contains(&0x1b));
    let asked = daemon.run(&["list", "--color", "always"]).success().stdout_text();
    assert!(asked.contains("\u{1b}[") && asked.starts_with("ID "), "{asked:?}");
    let mut despite = daemon.bgctl(&["list", "--color", "always"]);
    let despite = Outcome::of(despite.env("NO_COLOR", "1")).success().stdout_text();
    assert!(despite.contains("\u{1b}[38;5;") && !despite.contains("\u{1b}[m"), "{despite:?}");
    let refused = on_a_terminal(&daemon, "list --color never", &[]);
    assert!(!refused.contains("\u{1b}[3") && refused.contains("ID "), "{refused:?}");
}

#[test]
fn list_fits_narrow_terminals_and_watch() {
    let daemon = TestDaemon::start();
    let id = daemon.submitted(&["-d", "a description of more than forty characters", "--", "false"]);
    daemon.block(&[id]);
    let in_columns = |columns: u16, words: &[&str]| {
        let mut terminal = Terminal::sized(&daemon.bgctl(words), (10, columns));
        assert!(terminal.ended().success());
        terminal.screen()
    };
    for columns in [30, 40, 80] {
        let screen = in_columns(columns, &["list"]);
        let row = screen.lines().nth(1).unwrap();
        assert!(row.starts_with(&id.short()) && row.contains("failed (1)"), "{columns}: {screen}");
        assert_eq!(screen.lines().filter(|line| !line.trim().is_empty()).count(), 2, "{columns}: {screen}");
    }
    // The terminal has no size.
    let screen = on_a_terminal(&daemon, "list", &[]);
    assert!(screen.contains("a description of more than forty characters"), "{screen}");

    // watch(1) shows both outputs in its own terminal and passes on its width.
    let mut watch = Command::new("watch");
    watch.args(["--no-title", "--", bgctl_path().to_str().unwrap(), "list"]);
    watch.env_clear().envs(daemon.environment());
    let mut watch = Terminal::sized(&watch, (10, 40));
    watch.wait_text("a descripti…");
    let screen = watch.screen();
    assert!(screen.lines().nth(1).unwrap().contains("  failed (1)  "), "{screen}");
    assert!(watch.close().code().is_some());
    // A script that only runs under it gets the usual output.
    let mut script = Command::new("/bin/sh");
    script.args(["-c", "exec 2>&1; $0 list | cut -f 2", bgctl_path().to_str().unwrap()]);
    script.env_clear().envs(daemon.environment()).env("COLUMNS", "40");
    assert_eq!(Outcome::of(&mut script).success().stdout_text(), "failed (1)\n");
}

#[test]
fn locale_without_utf8_gets_ascii_signs_and_unchanged_text_of_the_user() {
    let daemon = TestDaemon::start();
    daemon.submitted(&["--hold", "-d", "é and more than forty other characters, to be cut", "--", "true"]);
    for (locale, sign, other) in [("C.UTF-8", "…", "..."), ("C", "...", "…")] {
        let table = on_a_terminal(&daemon, "list", &[("LC_ALL", locale), ("COLUMNS", "60")]);
        let row = table.lines().find(|line| line.contains("é and more")).unwrap_or_else(|| panic!("{table}"));
        assert!(row.contains(sign) && !row.contains(other), "{locale}: {row}");
    }
}

#[test]
fn write_signal_cancel_clear_and_session_end_take_effect() {
    let daemon = TestDaemon::start();
    let id = daemon.submitted(&["--stdin-pipe", "--", "cat"]).to_string();
    daemon.run(&["write", &id, "no newline "]).success();
    daemon.run(&["write", &id, "-n", "newline"]).success();
    let mut from_stdin = daemon.bgctl(&["write", &id]);
    let mut child = from_stdin.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\x00from stdin").unwrap();
    assert!(child.wait().unwrap().success());
    daemon.run(&["block", &id]).success();
    assert_eq!(daemon.run(&["output", &id]).success().stdout, b"no newline newline\n\xff\0from stdin");

    let ids = [daemon.submitted(&["--", "sleep", "1000"]), daemon.submitted(&["--", "sleep", "1000"])];
    daemon.wait_running(ids[0]);
    let (one, two) = (ids[0].to_string(), ids[1].to_string());
    daemon.run(&["signal", &one, "KILL"]).success();
    daemon.run(&["block", "--exit-code", &one]).expect_code(137);
    let text = daemon.run(&["cancel", &one, &two]).success().stdout_text();
    assert_eq!(text, format!("{one} already failed\n{two} cancelled\n"));
    assert_eq!(daemon.run(&["clear", &one]).success().stdout_text(), "cleared 1\n");
    assert_eq!(daemon.run(&["clear", "--all-sessions"]).success().stdout_text(), "cleared 2\n");
    let mut in_session = daemon.bgctl(&["submit", "--", "sleep", "1000"]);
    let task: TaskId = Outcome::of(in_session.env("BGD_SESSION", "tmux:%3")).success().word();
    assert_eq!(daemon.task(task).session.as_deref(), Some("tmux:%3"));
    daemon.run(&["session", "end", "tmux:%3"]).success();
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn closed_stdout_ends_bgctl_silently_with_code_141() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let id = daemon.submit_shell("yes | head -c 3000000");
    daemon.block(&[id]);
    daemon.submit(&["sleep", "1000"]);
    for _ in 0..600 {
        daemon.submit_with(&bgd_shared::request::SubmitParams {
            argv: Some(vec!["true".into()]),
            description: Some("x".repeat(300)),
            ..daemon.params()
        });
    }
    let id = id.to_string();
    for args in [&["output", &id][..], &["list", "--all"], &["--json", "list", "--all"]] {
        let mut bgctl = daemon.bgctl(args);
        let mut child =
            bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 2]).unwrap();
        drop(stdout);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(141), ""), "{args:?}");
    }
}

#[test]
fn each_verb_has_help_with_examples() {
    let home = TestDaemon::home_only();
    let root = home.run(&["--help"]).success().stdout_text();
    for verb in bgctl::cli::Verb::NAMES {
        assert!(root.contains(verb), "{verb}");
        let outcome = home.run(&[verb, "--help"]).success();
        let text = outcome.stdout_text();
        assert!(outcome.stderr.is_empty());
        assert!(
            text.to_lowercase().contains("examples:") && text.contains(&format!("bgctl {verb}")),
            "{verb}"
        );
    }
    assert!(home.run(&["--version"]).success().stdout_text().starts_with("bgctl "));
    assert!(home.processes().is_empty(), "help starts no daemon");
}

#[test]
fn daemon_status_and_reload_report_current_settings() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 5\n").start();
    let text = daemon.run(&["daemon", "status"]).success().stdout_text();
    for part in [daemon.socket(), &daemon.config_path(), &daemon.state_dir()] {
        assert!(text.contains(part.to_str().unwrap()), "{text}");
    }
    assert!(daemon.run(&["daemon", "reload"]).success().stdout_text().contains("nothing has changed"));
    daemon.write_config("max_concurrent_tasks = 6\n");
    let stdout = daemon.run(&["daemon", "reload"]).success().stdout_text();
    assert_eq!(stdout, "changed: max_concurrent_tasks\n");
    let status: DaemonStatus = daemon.run(&["--json", "daemon", "status"]).success().json();
    assert_eq!((status.limits.max_concurrent_tasks, status.pid), (6, daemon.pid()));
    let task: Task = daemon.run(&["--json", "submit", "--", "true"]).success().json::<TaskResult>().task;
    daemon.block(&[task.id]);
}
