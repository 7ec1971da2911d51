//! R168: `bgctl doctor` finds what does not work and says what to do. R169: completions are installed where the shells
//! look for them.

use std::fs;
use std::process::Command;

use bgd_tests::{Outcome, TestDaemon};
use serde_json::Value;

/// Returns the check of this name.
fn check<'a>(report: &'a Value, part: &str, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["part"] == part && check["name"] == name);
    found.unwrap_or_else(|| panic!("no {part}/{name} in {report:#}"))
}

#[test]
fn r168_a_healthy_daemon_fails_no_check() {
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
    assert_eq!(check(&report, "daemon", "program")["state"], "ok");
    assert_eq!(check(&report, "channels", "notifications")["state"], "note");
    assert!(daemon.run(&["list", "-q"]).success().stdout.is_empty(), "it leaves no task behind");
}

#[test]
fn r168_what_does_not_work_is_named_with_what_to_do() {
    let config = "[agents.mine]\nprotocol = \"template\"\ncommand = [\"no-such-program\"]\n\
                  [executors.far]\ntype = \"ssh\"\nhost = \"nobody@127.0.0.1\"\nconnect_timeout = \"5s\"\n";
    let daemon = TestDaemon::builder().config(config).start();
    daemon.write_config("max_concurrent_tasks = \"many\"\n");
    let report: Value = daemon.run(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(report["ok"], false);
    for (part, name) in [("agents", "mine"), ("executors", "far"), ("daemon", "configuration")] {
        let found = check(&report, part, name);
        assert_eq!(found["state"], "fails", "{found}");
    }
    assert!(check(&report, "agents", "mine")["hint"].as_str().unwrap().contains("[agents.mine]"));
    let text = daemon.run(&["doctor"]).expect_code(69).stdout_text();
    assert!(text.contains("FAILS  mine"), "{text}");
    assert!(text.contains("3 checks failed"), "{text}");
}

#[test]
fn r168_without_a_daemon_the_rest_is_checked() {
    let home = TestDaemon::home_only();
    let report: Value = home.run(&["--json", "--no-start", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "daemon", "answers")["state"], "fails");
    check(&report, "machine", "kernel");
    check(&report, "shell", "completions");
    assert!(home.processes().is_empty());
}

#[test]
fn r168_a_test_notification_goes_through_each_channel_on_request() {
    let config = "[channels.good]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", \"cat > told\"]\n\
                  [channels.bad]\ntype = \"exec\"\ncommand = [\"sh\", \"-c\", \"echo broken >&2; exit 3\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    let report: Value = daemon.run(&["--json", "doctor", "--notify"]).expect_code(69).json();
    assert_eq!(check(&report, "channels", "good")["found"], "the test notification was delivered");
    let bad = check(&report, "channels", "bad");
    assert!(bad["state"] == "fails" && bad["found"].as_str().unwrap().contains('3'), "{bad}");
    assert!(daemon.run(&["list", "-q"]).success().stdout.is_empty(), "it leaves no task behind");
}

#[test]
fn r124_r168_a_program_that_was_replaced_is_noticed() {
    let mut daemon = TestDaemon::home_only();
    let bin = daemon.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("bgd");
    fs::copy(bgd_tests::bgd_path(), &program).unwrap();
    let run = |args: &[&str]| {
        let mut command = daemon.bgctl(args);
        Outcome::of(command.env("BGD_DAEMON", &program))
    };
    run(&["daemon", "start"]).success();
    let status = || run(&["daemon", "status"]).success().stdout_text();
    assert!(!status().contains("program:"), "{}", status());
    let next = bin.join("next");
    fs::copy(bgd_tests::bgd_path(), &next).unwrap();
    fs::rename(&next, &program).unwrap();
    let report: Value = run(&["--json", "doctor"]).success().json();
    let found = check(&report, "daemon", "program");
    assert_eq!(found["state"], "note", "{found}");
    let line = format!("{} was replaced since this daemon started", program.display());
    assert!(status().contains(&line), "{}", status());
    assert!(found["hint"].as_str().unwrap().contains("bgctl daemon restart"), "{found}");
    fs::remove_file(&program).unwrap();
    let report: Value = run(&["--json", "doctor"]).expect_code(69).json();
    assert_eq!(check(&report, "daemon", "program")["state"], "fails");
    assert!(status().contains(&format!("{} was removed", program.display())), "{}", status());
    run(&["daemon", "stop"]).success();
    drop(daemon.try_launch());
}

/// The file that completions go to, for each shell.
const FILES: [(&str, &str); 3] = [
    ("bash", ".local/share/bash-completion/completions/bgctl"),
    ("zsh", ".local/share/zsh/site-functions/_bgctl"),
    ("fish", ".config/fish/completions/bgctl.fish"),
];

#[test]
fn r169_completions_are_installed_for_the_users_shell() {
    let home = TestDaemon::home_only();
    let run = |args: &[&str], shell: &str| {
        let mut command = home.bgctl(args);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
        Outcome::of(command.env("SHELL", format!("/usr/bin/{shell}")))
    };
    for (shell, file) in FILES {
        let before: Value = run(&["--json", "--no-start", "doctor"], shell).expect_code(69).json();
        assert_eq!(check(&before, "shell", "completions")["state"], "note", "{shell}");
        let path = home.home().join(file);
        let told = run(&["completions", "install"], shell).success().stdout_text();
        assert!(told.starts_with(&format!("installed {}\n", path.display())), "{told}");
        assert_eq!(fs::read(&path).unwrap(), home.run(&["completions", shell]).success().stdout);
        // A second time, and for a named shell, it is the same.
        run(&["completions", "install", shell], "tcsh").success();
        if shell == "zsh" {
            let line = told.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
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
fn r169_zsh_completes_with_the_line_that_the_installation_prints() {
    let home = TestDaemon::home_only();
    let mut install = home.bgctl(&["completions", "install", "zsh"]);
    install.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    let told = Outcome::of(&mut install).success().stdout_text();
    let line = told.lines().find(|line| line.trim_start().starts_with("fpath=")).unwrap();
    let script = format!("{line}\nautoload -Uz compinit && compinit -D -u; print -r -- $_comps[bgctl]");
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-c", &script]).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    let output = zsh.output().expect("zsh, which tests/run installs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "_bgctl", "{output:?}");
}
