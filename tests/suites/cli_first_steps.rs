//! Where a new user stumbles: the messages are true, and nothing is lost.

use bgd_shared::id::TaskId;
use bgd_shared::limits::LIST_PAGE_DEFAULT;
use bgd_shared::request::SubmitResult;
use bgd_shared::task::Status;
use bgd_tests::clock::WallClock;
use bgd_tests::{Outcome, Terminal, TestDaemon};

#[test]
fn restart_with_broken_configuration_stops_nothing() {
    let home = TestDaemon::home_only();
    let id: TaskId = home.run(&["submit", "--", "sleep", "1000"]).success().word();
    home.wait_running(id);
    let daemon = home.process();
    home.write_config("max_concurrent_tasks = 0\n");
    let refused = home.run(&["daemon", "restart"]).expect_code(78);
    let path = home.config_path();
    let place = format!("{}: line 1, column 1", path.display());
    let expected = format!("bgctl: nothing was stopped: {place}: `max_concurrent_tasks` is 0");
    assert!(refused.stderr.starts_with(&expected) && refused.stdout.is_empty(), "{}", refused.stderr);
    let json = home.run(&["--json", "daemon", "restart"]).expect_code(78).stderr;
    assert!(json.contains("\"kind\":\"config_invalid\""), "{json}");
    assert_eq!(home.task(id).status, Status::Running);
    assert_eq!(home.process().pid(), daemon.pid());
    home.write_config("max_concurrent_tasks = 3\n");
    home.run(&["daemon", "restart"]).success();
    daemon.gone();
    home.run(&["daemon", "stop"]).success();
}

#[test]
fn starting_daemon_at_explicit_socket_is_announced_on_terminal() {
    let daemon = TestDaemon::home_only();
    let mut shell = Terminal::shell(&daemon);
    shell.resize((24, 200));
    let socket = daemon.home().join("mistyped/bgd.sock").display().to_string();
    shell.type_line(&format!("bgctl --socket {socket} list"));
    shell.wait_text(&format!("bgctl: no daemon was running at {socket}: started one\n"));
    shell.wait_prompt();
    shell.clear();
    // Not printed where the daemon is running, nor where nobody has named a path.
    assert_eq!(shell.run_line("bgctl --socket mistyped/bgd.sock list && bgctl list"), 0);
    let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
    assert_eq!(shown.matches("started one").count(), 1, "{shell:?}");
    assert_eq!(shell.run_line("bgctl daemon stop && bgctl --socket mistyped/bgd.sock daemon stop"), 0);
    // Readers of standard error would take it for a failure.
    assert_eq!(daemon.run(&["--socket", &socket, "list"]).success().stderr, "");
    daemon.run(&["--socket", &socket, "daemon", "stop"]).success();
}

#[test]
fn submit_with_existing_key_reports_existing_task() {
    let daemon = TestDaemon::start();
    let words = ["submit", "--session", "s", "--key", "nightly", "--"];
    let submit = |command: &[&str]| daemon.run(&[&words[..], command].concat()).success();
    let first = submit(&["true"]);
    assert_eq!(first.stderr, "");
    daemon.block(&[first.word()]);
    let other = daemon.run(&["submit", "--session", "t", "--key", "nightly", "--", "true"]).success();
    assert_ne!(other.stdout, first.stdout, "a key counts in its session");
    let again = submit(&["no-such-program"]);
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(again.stderr, "bgctl: a task with the key nightly already exists: completed\n");
    let json = |key: &str| -> SubmitResult {
        daemon.run(&["--json", "submit", "--session", "s", "--key", key, "--", "true"]).success().json()
    };
    let again = json("nightly");
    assert!(again.existing && again.task.id == first.word::<TaskId>(), "{again:?}");
    assert!(!json("weekly").existing);
}

#[test]
fn r142_repeated_key_is_answered_after_its_channel_executor_or_agent_was_removed() {
    let daemon = TestDaemon::builder()
        .config(
            "[channels.hook]\ntype = \"exec\"\ncommand = [\"true\"]\n\
             [executors.away]\ntype = \"ssh\"\nhost = \"away\"\nssh = \"/bin/false\"\n\
             [agents.echo]\nprotocol = \"template\"\ncommand = [\"cat\"]\n",
        )
        .start();
    let all = [
        &["submit", "--key", "a", "--channel", "hook", "--", "true"][..],
        &["submit", "--key", "b", "--on", "away", "--", "true"],
        &["submit", "--key", "c", "--agent", "echo", "-d", "says hello", "hello"],
    ];
    let first = all.map(|words| daemon.run(words).success().word::<TaskId>());
    daemon.block(&first);
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    for (words, first) in all.iter().zip(first) {
        assert_eq!(daemon.run(words).success().word::<TaskId>(), first, "{words:?}");
        // Without a task of that key, they are errors.
        let other: Vec<&str> = words.iter().map(|word| if word.len() == 1 { "z" } else { *word }).collect();
        daemon.run(&other).expect_code(2);
    }
}

#[test]
fn existing_key_is_reported_although_the_clock_was_set_back() {
    let clock = WallClock::new();
    let daemon = TestDaemon::builder().prelude(clock.prelude()).start();
    clock.set(3600);
    let submit = || daemon.run(&["submit", "--key", "nightly", "--", "true"]).success();
    daemon.block(&[submit().word()]);
    clock.set(0);
    let again = submit();
    assert!(again.stderr.contains("a task with the key nightly already exists"), "{}", again.stderr);
}

#[test]
fn truncated_list_reports_remaining_tasks_unless_limit_was_given() {
    let daemon = TestDaemon::start();
    let ids: Vec<TaskId> = (0..=LIST_PAGE_DEFAULT).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&ids);
    let list = |words: &[&str]| daemon.run(&[&["list"], words].concat()).success();
    assert_eq!(list(&[]).stderr, "1 more; --all shows them\n");
    for words in [&["--limit", "3"][..], &["-q", "--limit", "3"], &["-q"], &["--all"]] {
        assert_eq!(list(words).stderr, "", "{words:?}");
    }
}

#[test]
fn reload_distinguishes_removed_keys_from_changed_keys() {
    let agent = "[agents.x]\ncommand = [\"true\"]\n";
    let daemon = TestDaemon::builder()
        .config(format!("max_concurrent_tasks = 100\n[limits]\ntasks = 50\n{agent}"))
        .start();
    daemon.write_config("tree = \"session\"\n[limits]\ntasks = 60\n");
    let stdout = daemon.run(&["daemon", "reload"]).success().stdout_text();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"changed: limits.tasks"), "{stdout}");
    assert_eq!(lines.last(), Some(&"needs a restart: tree"), "{stdout}");
    for line in ["back to default: max_concurrent_tasks", "removed: agents.x.command"] {
        assert!(lines.contains(&line), "{stdout}");
    }
}

#[test]
fn errors_use_command_line_terms_not_parameter_names() {
    let daemon = TestDaemon::start();
    let running = daemon.submit(&["sleep", "1000"]).to_string();
    daemon.wait_running(running.parse().unwrap());
    let cases: &[(i32, &[&str], &str)] = &[
        (2, &["submit", ""], "no command given"),
        (2, &["run", "--", "", "x"], "no command given"),
        (2, &["submit", "--prompt", "do it", "-d", "d"], "no agent given"),
        (65, &["write", &running, "x"], "--stdin-pipe"),
        (65, &["clear", &running], "bgctl clear --all ID"),
        (2, &["block", ""], "the task id is empty"),
        (2, &["handoff", "--pid", "1"], "--pid 1: not a process that can be handed over"),
    ];
    for (code, words, expected) in cases {
        let stderr = daemon.run(words).expect_code(*code).stderr;
        assert!(stderr.contains(expected), "{words:?}: {stderr}");
        assert!(!stderr.contains("`all`") && !stderr.contains("`argv`"), "{stderr}");
    }
}

#[test]
fn error_messages_state_task_status_as_a_clause() {
    let daemon = TestDaemon::start();
    let failed = daemon.submit_shell("exit 3").to_string();
    daemon.block(&[failed.parse().unwrap()]);
    let stderr = daemon.run(&["output", "--result", &failed]).expect_code(65).stderr;
    assert!(stderr.contains("has no result: it failed: exited with code 3"), "{stderr}");
    let stderr = daemon.run(&["signal", &failed, "HUP"]).expect_code(65).stderr;
    assert!(stderr.contains("is not running: it failed\n"), "{stderr}");
    let outcome = daemon.run(&["clear", "--session", "nobody"]).success();
    assert_eq!(outcome.stderr, "no finished tasks in session nobody; `bgctl list` shows all tasks\n");
}

#[test]
fn json_flag_of_wrapped_command_does_not_select_json_errors() {
    let daemon = TestDaemon::start();
    let home = TestDaemon::home_only();
    for (outcome, is_json) in [
        (home.run(&["--no-start", "run", "ls", "--json", "title"]), false),
        (daemon.run(&["run", "--cwd", "/nope", "ls", "--json"]), false),
        (daemon.run(&["-H", "a,b", "run", "ls", "--json"]), false),
        (home.run(&["--json", "--no-start", "run", "ls"]), true),
        (home.run(&["--no-start", "list", "--json"]), true),
        (daemon.run(&["-H", "a,b", "status", "x", "--json"]), true),
    ] {
        assert_ne!(outcome.code, 0);
        assert_eq!(outcome.stderr.starts_with('{'), is_json, "{}", outcome.stderr);
    }
}

#[test]
fn write_to_unknown_task_fails_before_reading_terminal() {
    let daemon = TestDaemon::start();
    let unknown = TaskId::random().to_string();
    let mut terminal = Terminal::bgctl(&daemon, &["write", &unknown]);
    assert_eq!(terminal.ended().code(), Some(66), "{terminal:?}");
}

#[test]
fn r166_list_watch_refuses_json() {
    let daemon = TestDaemon::start();
    let mut terminal = Terminal::bgctl(&daemon, &["--json", "list", "--watch"]);
    assert_eq!(terminal.ended().code(), Some(2), "{terminal:?}");
    assert!(terminal.screen().contains("--json can't be combined with"), "{terminal:?}");
}

#[test]
fn unwritable_help_output_is_a_failure() {
    let home = TestDaemon::home_only();
    for args in [&["--help"][..], &["--version"], &["list", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let outcome = Outcome::of(home.bgctl(args).stdout(full)).expect_code(70);
        assert!(outcome.stderr.contains("can't write to standard output"), "{}", outcome.stderr);
    }
}

#[test]
fn clear_names_finished_tasks_that_it_keeps_for_their_processes() {
    let daemon = TestDaemon::start();
    let left = daemon.submit_shell("sleep 1000 > /dev/null 2>&1 &");
    daemon.block(&[left]);
    let cleared = daemon.run(&["clear", "--all-sessions"]).success();
    assert_eq!(cleared.stdout_text(), "cleared 0\n");
    let short = left.short();
    let kept = format!("kept 1 finished task with running processes; `bgctl cancel {short}` ends those\n");
    assert_eq!(cleared.stderr, kept);
    daemon.run(&["cancel", &short]).success();
    assert_eq!(daemon.run(&["clear", "--all-sessions"]).success().stdout_text(), "cleared 1\n");
}
