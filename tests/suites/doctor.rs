//! R168: `bgctl doctor` finds what does not work and says what to do. R169: completions are installed where the shells
//! look for them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use bgd_tests::far::Far;
use bgd_tests::prompts::fake_agent;
use bgd_tests::shared::request::{ChannelStatus, ListResult, SubmitParams};
use bgd_tests::slurm::Site;
use bgd_tests::templates::shell_agent;
use bgd_tests::upgrades::upgrade;
use bgd_tests::{FakeDaemon, Outcome, Terminal, TestDaemon, bgctl_path, executable, helper_path, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

/// Asserts that each failed check has a hint.
fn assert_hints(report: &Value) {
    let fails = report["checks"].as_array().unwrap().iter().filter(|check| check["state"] == "fails");
    let without: Vec<_> = fails.filter(|check| check["hint"].as_str().is_none_or(str::is_empty)).collect();
    assert!(without.is_empty(), "{without:#?}");
}

fn check<'a>(report: &'a Value, part: &str, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["part"] == part && check["name"] == name);
    found.unwrap_or_else(|| panic!("no {part}/{name} in {report:#}"))
}

#[test]
fn r168_healthy_daemon_fails_no_check() {
    let daemon = TestDaemon::start();
    let outcome = daemon.run(&["doctor"]).success();
    let page = outcome.stdout_text();
    for line in ["machine\n", "\ndaemon\n", "\nagents\n", "\nchannels\n", "\nexecutors\n", "\nshell\n"] {
        assert!(page.contains(line), "{line:?} is not in {page}");
    }
    assert!(page.contains(&format!("pid {}", daemon.pid())), "{page}");
    assert!(page.contains("\nEverything works, ") && !page.contains('\x1b'), "{page}");
    let report: Value = daemon.run(&["--json", "doctor"]).success().json();
    assert_eq!(report["ok"], true);
    for name in ["program", "socket", "socket's folder", "state folder"] {
        assert_eq!(check(&report, "daemon", name)["state"], "ok", "{name}");
    }
    for name in ["kernel", "process handles", "exit codes", "inotify"] {
        assert_ne!(check(&report, "machine", name)["state"], "fails", "{name}");
    }
    assert_eq!(check(&report, "machine", "process handles")["found"], "pidfd works");
    assert_eq!(check(&report, "channels", "notifications")["state"], "note");
    assert!(daemon.run(&["list", "-q"]).success().stdout.is_empty(), "it leaves no task behind");
}

#[test]
fn r168_failed_checks_are_reported_with_hints() {
    let config = "[agents.mine]\nprotocol = \"template\"\ncommand = [\"no-such-program\"]\n\
                  [channels.nop]\ntype = \"exec\"\ncommand = [\"/no/such\"]\n\
                  [executors.far]\ntype = \"ssh\"\nhost = \"nobody@127.0.0.1\"\nconnect_timeout = \"5s\"\n";
    let daemon = TestDaemon::builder().config(config).start();
    daemon.write_config("max_concurrent_tasks = \"many\"\n");
    let report: Value = daemon.run(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(report["ok"], false);
    for (part, name) in
        [("agents", "mine"), ("channels", "nop"), ("executors", "far"), ("daemon", "configuration")]
    {
        let found = check(&report, part, name);
        assert_eq!(found["state"], "fails", "{found}");
    }
    assert_hints(&report);
    assert!(check(&report, "agents", "mine")["hint"].as_str().unwrap().contains("[agents.mine]"));
    assert_eq!(check(&report, "channels", "nop")["found"], "/no/such: no such program");
    let text = daemon.run(&["doctor"]).expect_code(69).stdout_text();
    assert!(text.contains("FAILS  mine"), "{text}");
    assert!(text.contains("4 checks failed"), "{text}");
}

#[test]
fn r168_files_with_secrets_that_other_users_can_read_are_noted() {
    let config = "[channels.chat]\ntype = \"telegram\"\ntoken_file = \"~/token\"\nchat_id = \"1\"\n\
                  [agents.mine]\nprotocol = \"template\"\ncommand = [\"true\"]\nenv = { KEY = \"secret\" }\n";
    let daemon = TestDaemon::builder().config(config).start();
    let token = daemon.home().join("token");
    fs::write(&token, "1:token").unwrap();
    for (mode, state) in [(0o644, "note"), (0o640, "note"), (0o600, "ok")] {
        let files = [("config's mode", daemon.config_path()), ("token's file", token.clone())];
        for (_, path) in &files {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let report: Value = daemon.run(&["--json", "doctor"]).json();
        for (name, path) in files {
            let found = check(&report, "daemon", name);
            assert_eq!(found["state"], state, "{mode:o}: {found}");
            let hint = format!("chmod 600 {}", path.display());
            assert_eq!(found["hint"].as_str(), (state == "note").then_some(hint.as_str()), "{found}");
        }
    }
    daemon.write_config("max_concurrent_tasks = 2\n");
    fs::set_permissions(daemon.config_path(), Permissions::from_mode(0o644)).unwrap();
    daemon.run(&["daemon", "reload"]).success();
    let report: Value = daemon.run(&["--json", "doctor"]).json();
    assert_eq!(check(&report, "daemon", "config's mode")["state"], "ok", "it has no secrets");
}

#[test]
fn r168_killed_previous_daemon_is_noted_but_fails_no_check() {
    let mut daemon = TestDaemon::start();
    let runs = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(runs);
    daemon.kill9();
    daemon.run(&["list"]).success();
    let report: Value = daemon.run(&["--json", "doctor"]).success().json();
    let past = check(&report, "daemon", "past");
    assert_eq!(past["state"], "note");
    assert!(past["found"].as_str().unwrap().contains("was killed"), "{past}");
    assert!(past["hint"].as_str().unwrap().contains("durable = true"), "{past}");
    assert_eq!(check(&report, "daemon", "output")["state"], "ok");
}

#[test]
fn r168_other_checks_run_without_daemon() {
    let home = TestDaemon::home_only();
    let report: Value = home.run(&["--json", "--no-start", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "daemon", "answers")["state"], "fails");
    check(&report, "machine", "kernel");
    check(&report, "shell", "completions");
    assert!(home.processes().is_empty());
}

#[test]
fn r168_notify_option_sends_test_notification_through_each_channel() {
    let config = "[channels.good]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", \"cat > told\"]\n\
                  [channels.bad]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", \"echo broken >&2; exit 3\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    let report: Value = daemon.run(&["--json", "doctor", "--notify"]).expect_code(69).json();
    assert_eq!(check(&report, "channels", "good")["found"], "the test notification was delivered");
    assert_hints(&report);
    let bad = check(&report, "channels", "bad");
    assert!(bad["state"] == "fails" && bad["found"].as_str().unwrap().contains('3'), "{bad}");
    assert!(daemon.run(&["list", "-q"]).success().stdout.is_empty(), "it leaves no task behind");
}

#[test]
fn r168_channel_whose_latest_notification_failed_fails() {
    let config = "[channels.ops]\ntype = \"exec\"\nstarted = false\n\
                  command = [\"sh\", \"-c\", \"cd; [ -e good ] || { echo oops >&2; exit 3; }\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    let notify = |daemon: &TestDaemon, is_over: fn(&ChannelStatus) -> bool| {
        let params = SubmitParams { channel: Some("ops".into()), ..daemon.params() };
        daemon.submit_with(&SubmitParams { shell: Some("true".into()), ..params });
        wait::poll_until("a notice", || is_over(&daemon.channel("ops")).then_some(()));
    };
    let found = |daemon: &TestDaemon, code| {
        let report: Value = daemon.run(&["--json", "doctor"]).expect_code(code).json();
        check(&report, "channels", "ops").clone()
    };
    daemon.touch("good");
    notify(&daemon, |channel| channel.sent == 1);
    assert_eq!(found(&daemon, 0)["state"], "ok");
    fs::remove_file(daemon.home().join("good")).unwrap();
    notify(&daemon, |channel| channel.failed == 1);
    upgrade(&daemon);
    let failed = found(&daemon, 69);
    assert_eq!(failed["state"], "fails", "{failed}");
    let words = failed["found"].as_str().unwrap();
    assert!(words.starts_with("the latest notification failed: ") && words.contains("oops"), "{failed}");
    assert!(
        failed["hint"].as_str().unwrap().starts_with("`bgctl doctor --notify` tries it again; "),
        "{failed}"
    );
    daemon.touch("good");
    notify(&daemon, |channel| channel.sent == 2);
    assert_eq!(found(&daemon, 0)["state"], "ok");
    fs::remove_file(daemon.home().join("good")).unwrap();
    notify(&daemon, |channel| channel.failed == 2);
    assert_eq!(found(&daemon, 69)["state"], "fails");
    // An unrelated setting says nothing about the channel, but a new command does.
    daemon.write_config(&format!("max_concurrent_tasks = 3\n{config}"));
    daemon.run(&["daemon", "reload"]).success();
    assert_eq!(found(&daemon, 69)["state"], "fails");
    daemon.write_config(&config.replace("exit 3", "exit 0"));
    daemon.run(&["daemon", "reload"]).success();
    assert_eq!(found(&daemon, 0)["state"], "ok");
}

#[test]
fn r168_channel_advice_disappears_once_followed() {
    let daemon = TestDaemon::start();
    let doctor = |args: &[&str], code| -> Value {
        let mut doctor = daemon.bgctl(&[&["--json", "doctor"], args].concat());
        Outcome::of(doctor.env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")).expect_code(code).json()
    };
    let before = doctor(&[], 0);
    let hint = check(&before, "channels", "notifications")["hint"].as_str().unwrap();
    let line = hint.split_once("set ").unwrap().1.split(';').next().unwrap();
    daemon.write_config(&format!("{line}\n"));
    daemon.run(&["daemon", "reload"]).success();
    let after = doctor(&[], 0);
    assert_eq!(check(&after, "channels", "desktop")["state"], "ok");
    assert!(!after.to_string().contains("default_deliver_to"), "{after:#}");
    // Without a desktop, there is nothing to correct in the channel's table.
    let tried = doctor(&["--notify"], 69);
    let desktop = check(&tried, "channels", "desktop");
    assert_eq!(desktop["state"], "fails", "{desktop}");
    let hint = desktop["hint"].as_str().unwrap();
    assert!(hint.contains("desktop session") && !hint.contains("[channels.desktop]"), "{hint}");
}

#[test]
fn r168_missing_channel_is_described_as_configured() {
    let daemon = TestDaemon::start();
    for (config, words) in [
        ("", "only in your terminal"),
        ("default_deliver_to = []", "default_deliver_to is empty"),
        ("default_deliver_to = [\"inbox\"]", "(bgctl inbox)"),
    ] {
        daemon.write_config(config);
        daemon.run(&["daemon", "reload"]).success();
        let report: Value = daemon.run(&["--json", "doctor"]).success().json();
        let found = check(&report, "channels", "notifications")["found"].as_str().unwrap().to_owned();
        assert!(found.contains(words), "{config}: {found}");
        assert_eq!(found.contains("your terminal"), config.is_empty(), "{found}");
    }
}

#[test]
fn r168_earlier_failed_notice_is_not_blamed_on_test_notification() {
    let line = "echo > begun; read x < gate; exec \"$0\"";
    let fake = helper_path("fake_acp");
    let agent = format!("[agents.slow]\ncommand = [\"sh\", \"-c\", '''cd; {line}''', {fake:?}]\n");
    let channel = "[channels.ops]\ntype = \"exec\"\nstarted = false\ncommand = [\"sh\", \"-c\", \"cd; ! [ -e broken ]\"]\n";
    let daemon = TestDaemon::builder().config(format!("{channel}{agent}")).start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    daemon.touch("broken");
    std::thread::scope(|scope| {
        let doctor = scope.spawn(|| daemon.run(&["--json", "doctor", "--notify"]));
        // The checks have begun: the agent is being started.
        wait::for_file(&daemon.home().join("begun"));
        let params =
            SubmitParams { shell: Some("true".into()), channel: Some("ops".into()), ..daemon.params() };
        daemon.submit_with(&params);
        wait::poll_until("a failed notice", || (daemon.channel("ops").failed == 1).then_some(()));
        fs::remove_file(daemon.home().join("broken")).unwrap();
        wait::for_reader(&daemon.home().join("gate"), "go\n");
        let report: Value = doctor.join().expect("doctor").json();
        assert_eq!(check(&report, "channels", "ops")["found"], "the test notification was delivered");
    });
}

#[test]
fn r168_test_notification_needs_no_slot_and_leaves_no_task() {
    let config = "max_concurrent_tasks = 1\n\
                  [channels.good]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", \"cat > told\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    let busy = [daemon.submit_shell("exec sleep 1000"), daemon.submit_shell("exec sleep 1000")];
    let doctor = |code| -> Value { daemon.run(&["--json", "doctor", "--notify"]).expect_code(code).json() };
    assert_eq!(check(&doctor(0), "channels", "good")["found"], "the test notification was delivered");
    // If nothing can start, doctor says so rather than blaming the channel.
    daemon.run(&["group", "pause", "default"]).success();
    let report = doctor(69);
    let found = check(&report, "channels", "good");
    assert!(found["found"].as_str().unwrap().contains("is pending (default paused)"), "{found}");
    assert_eq!(found["hint"], "bgctl group continue default");
    let left: ListResult = daemon.run(&["--json", "list", "--all"]).success().json();
    assert_eq!(left.tasks.iter().rev().map(|task| task.id).collect::<Vec<_>>(), busy);
}

#[test]
fn r168_configuration_changed_since_last_reload_is_noted() {
    let daemon = TestDaemon::start();
    let found = || {
        let report: Value = daemon.run(&["--json", "doctor"]).success().json();
        check(&report, "daemon", "configuration").clone()
    };
    assert!(found()["found"].as_str().unwrap().ends_with("does not exist"), "{}", found());
    let assert_stale = |words: &str| {
        let found = found();
        assert_eq!(
            (&found["state"], &found["hint"]),
            (&"note".into(), &"bgctl daemon reload".into()),
            "{found}"
        );
        assert!(found["found"].as_str().unwrap().contains(words), "{found}");
        daemon.run(&["daemon", "reload"]).success();
    };
    daemon.write_config("max_concurrent_tasks = 2\n");
    assert_stale("not in effect");
    assert_eq!(found()["state"], "ok");
    daemon.write_config("max_concurrent_tasks = 3\n");
    let file = fs::File::options().append(true).open(daemon.config_path()).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    assert_stale("was changed");
    assert_eq!(found()["state"], "ok");
    fs::remove_file(daemon.config_path()).unwrap();
    assert_stale("was removed");
    assert_eq!(found()["state"], "ok");
}

#[test]
fn r168_files_open_to_others_are_reported_with_chmod_command() {
    let daemon = TestDaemon::start();
    let (state, socket) = (daemon.state_dir(), daemon.socket().to_owned());
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(&state, 0o755);
    open(&socket, 0o666);
    let report: Value = daemon.run(&["--json", "doctor"]).expect_code(69).json();
    for (name, path, mode) in [("state folder", &state, "700"), ("socket", &socket, "600")] {
        let found = check(&report, "daemon", name);
        assert_eq!(found["hint"], format!("chmod {mode} {}", path.display()), "{found}");
        let words = ["-c", found["hint"].as_str().unwrap()];
        Outcome::of(Command::new("sh").args(words)).success();
    }
    daemon.run(&["doctor"]).success();
}

#[test]
fn r168_socket_folder_open_to_others_is_reported_with_chmod_command() {
    let daemon = TestDaemon::start();
    let folder = daemon.socket().parent().unwrap();
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let report: Value = daemon.run(&["--json", "doctor"]).expect_code(69).json();
    let found = check(&report, "daemon", "answers");
    assert_eq!(found["hint"], format!("chmod 700 {}", folder.display()), "{found}");
    Outcome::of(Command::new("sh").args(["-c", found["hint"].as_str().unwrap()])).success();
    daemon.run(&["doctor"]).success();
}

#[test]
fn r168_agent_check_reports_login_state_and_how_to_log_in() {
    let daemon = FakeDaemon::start(&[], "");
    let program = daemon.home().join("codex-acp");
    symlink(helper_path("fake_acp"), &program).unwrap();
    let entry = format!("[agents.codex]\ncommand = [{:?}]\n", program.to_str().unwrap());
    daemon.write_config(&format!("{entry}{}", fake_agent(&[], "")));
    daemon.run(&["daemon", "reload"]).success();
    let doctor = || -> Value { daemon.bgctl_with_fake(&["--json", "doctor"]).success().json() };
    let report = doctor();
    let found = check(&report, "agents", "codex");
    assert_eq!(found["state"], "note", "{found}");
    assert!(found["found"].as_str().unwrap().contains("~/.codex/auth.json"), "{found}");
    assert!(found["hint"].as_str().unwrap().starts_with("codex login"), "{found}");
    // Nothing is known about this one.
    let other = check(&report, "agents", "fake");
    assert!(other["state"] == "ok" && other["found"].as_str().unwrap().contains("first prompt"), "{other}");
    // A login stored in the system's keyring.
    let bin = daemon.home().join("bin");
    fs::create_dir(&bin).unwrap();
    executable::write(&bin.join("codex"), "#!/bin/sh\n[ \"$*\" = 'login status' ]\n");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let found = || {
        let mut command = daemon.bgctl(&["--json", "doctor"]);
        command.env("FAKE_ACP_HOME", daemon.fake_home().0).env("PATH", &path);
        let report: Value = Outcome::of(&mut command).success().json();
        check(&report, "agents", "codex")["found"].as_str().unwrap().to_owned()
    };
    // A user without a codex folder is not logged in, and asking codex would create the folder.
    assert!(found().contains("~/.codex/auth.json"), "{}", found());
    fs::create_dir(daemon.home().join(".codex")).unwrap();
    assert!(found().ends_with("logged in (`codex login status`)"), "{}", found());
    fs::write(daemon.home().join(".codex/auth.json"), "{\"tokens\": {}}").unwrap();
    let found = doctor();
    let found = check(&found, "agents", "codex");
    assert!(found["state"] == "ok" && found["found"].as_str().unwrap().contains("logged in"), "{found}");
}

#[test]
fn r168_template_agent_is_not_said_to_start() {
    let daemon = TestDaemon::builder().config(shell_agent("mine", "exit 1", "")).start();
    let report: Value = daemon.run(&["--json", "doctor"]).json();
    let found = check(&report, "agents", "mine");
    assert_eq!(found["found"], "was found, but not started; its first prompt shows whether it works");
}

#[test]
fn r168_real_codex_login_status_exit_code_reflects_auth_file() {
    let daemon = TestDaemon::home_only();
    let status = |code| {
        let mut codex = Command::new(bgd_tests::agents::codex());
        codex.args(["login", "status"]).env_clear().env("HOME", daemon.home()).env("PATH", "/usr/bin:/bin");
        Outcome::of(&mut codex).expect_code(code);
    };
    status(1);
    fs::create_dir_all(daemon.home().join(".codex")).unwrap();
    fs::write(daemon.home().join(".codex/auth.json"), "{\"OPENAI_API_KEY\": \"x\"}").unwrap();
    status(0);
}

#[test]
fn r168_ssh_executor_is_checked() {
    let far = Far::with_here("");
    let report: Value = far.run_here(&["--json", "doctor"]).success().json();
    let found = check(&report, "executors", "far");
    assert!(found["state"] == "ok" && found["found"].as_str().unwrap().starts_with("works"), "{found}");
    // The remote daemon, through the same connection; local matters are not judged.
    let there: Value = far.run(&["--json", "doctor"]).success().json();
    check(&there, "daemon", "answers");
    assert!(there["checks"].as_array().unwrap().iter().all(|check| check["part"] != "machine"), "{there:#}");
    far.wrap("echo 'no route to host' >&2; exit 255");
    let report: Value = far.run_here(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "executors", "far")["state"], "fails");
    assert_hints(&report);
}

#[test]
fn r168_slurm_executor_is_checked_as_root() {
    let site = Site::start();
    let report: Value = site.run(&["--json", "doctor"]).success().json();
    assert_eq!(check(&report, "executors", "hpc")["state"], "ok", "{report:#}");
    site.cluster.stop_controller();
    let report: Value = site.run(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "executors", "hpc")["state"], "fails");
    assert_hints(&report);
    site.cluster.start_controller();
}

#[test]
fn r168_shell_setup_is_checked_and_hints_fix_it() {
    let home = TestDaemon::home_only();
    let doctor = |path: &str| -> Value {
        let mut command = home.bgctl(&["--json", "--no-start", "doctor"]);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME").env("SHELL", "/bin/bash");
        Outcome::of(command.env("PATH", path)).expect_code(69).json()
    };
    let programs = bgctl_path().parent().unwrap().display().to_string();
    let with = format!("{programs}:/usr/bin:/bin");
    let before = doctor("/usr/bin:/bin");
    for name in ["bgctl", "key", "prompt"] {
        let found = check(&before, "shell", name);
        assert!(found["state"] == "note" && found["hint"].is_string(), "{found}");
    }
    assert_eq!(check(&before, "shell", "bgctl")["hint"], format!("export PATH={programs}:\"$PATH\""));
    // Follow its hints.
    let line = |name: &str| {
        let hint = check(&before, "shell", name)["hint"].as_str().unwrap().to_owned();
        hint.split("     in ").next().unwrap().to_owned()
    };
    let lines = format!("{}\n# bgctl shell-prompt\n", line("key"));
    fs::write(home.home().join(".bashrc"), &lines).unwrap();
    let after = doctor(&with);
    assert_eq!(check(&after, "shell", "prompt")["state"], "note", "a comment does nothing");
    fs::write(home.home().join(".bashrc"), format!("{lines}{}\n", line("prompt"))).unwrap();
    let after = doctor(&with);
    for name in ["bgctl", "key", "prompt", "completions"] {
        assert_eq!(check(&after, "shell", name)["state"], "ok", "{name}");
    }
}

#[test]
fn r124_r168_replaced_or_removed_daemon_program_is_reported() {
    let daemon = TestDaemon::home_only();
    let bin = daemon.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("bgd");
    executable::copy(bgd_tests::bgd_path().as_ref(), &program);
    let run = |args: &[&str]| {
        let mut command = daemon.bgctl(args);
        Outcome::of(command.env("BGD_DAEMON", &program))
    };
    run(&["daemon", "start"]).success();
    let status = || run(&["daemon", "status"]).success().stdout_text();
    assert!(!status().contains("program:"), "{}", status());
    let next = bin.join("next");
    executable::copy(bgd_tests::bgd_path().as_ref(), &next);
    fs::rename(&next, &program).unwrap();
    let report: Value = run(&["--json", "doctor"]).success().json();
    let found = check(&report, "daemon", "program");
    assert_eq!(found["state"], "note", "{found}");
    let line = format!("{} was replaced since this daemon started", program.display());
    assert!(status().contains(&line), "{}", status());
    assert!(found["hint"].as_str().unwrap().contains("bgctl daemon upgrade"), "{found}");
    // A person who uses it is told as well, once; programs are not.
    let list = daemon.bgctl(&["list"]);
    let shown = || {
        let mut terminal = Terminal::open(&list);
        terminal.ended();
        String::from_utf8_lossy(&terminal.shown()).into_owned()
    };
    assert_eq!(run(&["list"]).success().stderr, "");
    let hint =
        format!("bgctl: {} was replaced since the daemon started; `bgctl daemon upgrade`", program.display());
    // Without a quick answer of the daemon, it says nothing and asks again the next time.
    wait::poll_until(&hint, || shown().contains(&hint).then_some(()));
    assert!(!shown().contains("bgctl:"), "only once a day");
    fs::remove_file(&program).unwrap();
    let report: Value = run(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "daemon", "program")["state"], "fails");
    assert!(status().contains(&format!("{} was removed", program.display())), "{}", status());
    run(&["daemon", "stop"]).success();
}

/// The file that completions go to, for each shell.
const FILES: [(&str, &str); 4] = [
    ("bash", ".local/share/bash-completion/completions/bgctl"),
    ("zsh", ".local/share/zsh/site-functions/_bgctl"),
    ("fish", ".config/fish/completions/bgctl.fish"),
    ("nushell", ".local/share/nushell/vendor/autoload/bgctl.nu"),
];

#[test]
fn r169_completions_are_installed_for_user_shell() {
    let home = TestDaemon::home_only();
    let run = |args: &[&str], shell: &str| {
        let mut command = home.bgctl(args);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
        let program = if shell == "nushell" { "nu" } else { shell };
        // As on a machine with the package bash-completion.
        command.env("XDG_DATA_DIRS", home.home().join("share"));
        Outcome::of(command.env("SHELL", format!("/usr/bin/{program}")))
    };
    let loader = home.home().join("share/bash-completion/bash_completion");
    fs::create_dir_all(loader.parent().unwrap()).unwrap();
    fs::write(&loader, "").unwrap();
    for (shell, file) in FILES {
        let before: Value = run(&["--json", "--no-start", "doctor"], shell).expect_code(69).json();
        assert_eq!(check(&before, "shell", "completions")["state"], "note", "{shell}");
        let path = home.home().join(file);
        let stdout = run(&["completions", "install"], shell).success().stdout_text();
        assert!(stdout.starts_with(&format!("installed {}\n", path.display())), "{stdout}");
        assert_eq!(fs::read(&path).unwrap(), home.run(&["completions", shell]).success().stdout);
        // Repeating it, and naming the shell, gives the same result.
        run(&["completions", "install", shell], "tcsh").success();
        if shell == "zsh" {
            let line = stdout.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
            fs::write(home.home().join(".zshrc"), format!("{line}\nautoload -Uz compinit && compinit\n"))
                .unwrap();
        }
        let after: Value = run(&["--json", "--no-start", "doctor"], shell).expect_code(69).json();
        assert_eq!(check(&after, "shell", "completions")["state"], "ok", "{shell}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
    }
    let refused = run(&["completions", "install"], "tcsh").expect_code(2);
    assert!(refused.stderr.contains("bgctl completions install bash"), "{}", refused.stderr);
    run(&["completions", "bash", "zsh"], "bash").expect_code(2);
}

#[test]
fn r169_bash_without_its_package_completes_with_printed_line() {
    let home = TestDaemon::home_only();
    let run = |args: &[&str]| {
        let mut command = home.bgctl(args);
        command.env_remove("XDG_DATA_HOME").env("XDG_DATA_DIRS", "/nowhere").env("SHELL", "/bin/bash");
        Outcome::of(&mut command)
    };
    let doctor = || {
        let report: Value = run(&["--json", "--no-start", "doctor"]).expect_code(69).json();
        check(&report, "shell", "completions").clone()
    };
    let stdout = run(&["completions", "install"]).success().stdout_text();
    assert!(stdout.contains("package bash-completion") && !stdout.contains("new shells"), "{stdout}");
    let line = stdout.lines().find_map(|line| line.strip_prefix("  ")).expect("a line for .bashrc");
    let before = doctor();
    assert_eq!(before["state"], "note", "{before}");
    assert!(before["hint"].as_str().unwrap().starts_with(&format!("{line}     in ")), "{before}");
    fs::write(home.home().join(".bashrc"), format!("{line}\n")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ". ~/.bashrc; complete -p bgctl"]);
    bash.env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    assert!(Outcome::of(&mut bash).success().stdout_text().contains("_clap_complete_bgctl"));
    assert_eq!(doctor()["state"], "ok", "{}", doctor());
}

#[test]
fn r169_zsh_loads_completion_with_printed_fpath_line() {
    let home = TestDaemon::home_only();
    let mut install = home.bgctl(&["completions", "install", "zsh"]);
    install.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    let stdout = Outcome::of(&mut install).success().stdout_text();
    let line = stdout.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
    let script = format!("{line}\nautoload -Uz compinit && compinit -D -u; print -r -- $_comps[bgctl]");
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-c", &script]).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    let output = zsh.output().expect("zsh, which tests/run installs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "_bgctl", "{output:?}");
}

#[test]
fn r169_printed_fpath_line_may_name_a_folder_with_blanks_and_quotes() {
    let home = TestDaemon::home_only();
    let data = home.home().join("it's my data");
    let mut install = home.bgctl(&["completions", "install", "zsh"]);
    install.env("XDG_DATA_HOME", &data);
    let stdout = Outcome::of(&mut install).success().stdout_text();
    let line = stdout.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-c", &format!("{line}\nprint -r -- $fpath[1]")]);
    let output =
        zsh.env_clear().env("PATH", "/usr/bin:/bin").output().expect("zsh, which tests/run installs");
    let folder = data.join("zsh/site-functions").display().to_string();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), folder, "{output:?}");
}
