//! R113 beyond the verbs that list, show and end tasks: `signal`, `attach` and `events` accept selectors, too, and
//! shells complete their values.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use bgd_shared::id::TaskId;
use bgd_shared::task::{Exit, Status};
use bgd_tests::{Outcome, TestDaemon, wait};
use serde_json::Value;

fn run(daemon: &TestDaemon, args: &[&str]) -> Outcome {
    Outcome::of(daemon.bgctl(args).env("BGD_SESSION", "s"))
}

fn submitted(daemon: &TestDaemon, args: &[&str]) -> TaskId {
    run(daemon, &[&["submit"], args].concat()).success().word()
}

/// A task that reports when it is ready for signals, and exits with 7 on SIGUSR1.
fn listening(daemon: &TestDaemon, tag: &str) -> TaskId {
    let line = "trap 'exit 7' USR1; echo listening; while :; do read x < never; done";
    let id = submitted(daemon, &["--tag", tag, "--cwd", daemon.home().to_str().unwrap(), "--shell", line]);
    wait::for_line(daemon.task(id).output.path.as_ref(), "listening");
    id
}

#[test]
fn r113_signal_reaches_the_selected_running_tasks() {
    let daemon = TestDaemon::start();
    nix::unistd::mkfifo(&daemon.home().join("never"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let over = submitted(&daemon, &["--tag", "web", "--", "true"]);
    daemon.block(&[over]);
    let held = submitted(&daemon, &["--tag", "web", "--hold", "--", "true"]);
    let [one, two, other] = ["web", "web", "other"].map(|tag| listening(&daemon, tag));
    let outcome = run(&daemon, &["signal", "--tag", "web", "USR1", "--tree"]).success();
    assert_eq!((outcome.stdout.len(), &*outcome.stderr), (0, ""));
    for task in daemon.block(&[one, two]) {
        assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(7))));
    }
    assert_eq!(daemon.task(other).status, Status::Running);
    let none = run(&daemon, &["signal", "--tag", "web", "--status", "running", "USR1"]).expect_code(66);
    assert!(none.stderr.contains("no task matches"), "{}", none.stderr);
    assert!(none.stderr.contains("only running tasks get a signal"), "{}", none.stderr);
    run(&daemon, &["signal", "--tag", "web", "USR1"]).expect_code(65);
    assert_eq!(daemon.task(held).status, Status::Pending);
    run(&daemon, &["signal", "--tag", "other", "NO"]).expect_code(2);
    for (words, why) in [
        (&["signal", "3f2a"][..], "`3f2a` is not enough: give a task and a signal"),
        (&["signal", "--tag", "web", "3f2a", "HUP"], "omit one of them"),
        (&["signal", "3f", "HUP"], "is too short"),
    ] {
        let wrong = run(&daemon, words).expect_code(2);
        assert!(wrong.stderr.contains(why), "{words:?}: {}", wrong.stderr);
    }
    run(&daemon, &["signal", "@", "KILL", "--tree"]).success();
    daemon.block(&[other]);
    daemon.cancel(&[held]);
}

#[test]
fn r113_status_shows_several_named_tasks_in_their_order() {
    let daemon = TestDaemon::start();
    let [one, two] = ["one", "two"].map(|word| daemon.submitted(&["--", "echo", word]));
    daemon.block(&[one, two]);
    let [first, second] = [two, one].map(|id| id.to_string());
    let pages = run(&daemon, &["status", &first, &second]).success().stdout_text();
    assert!(pages.find(&first).is_some_and(|at| Some(at) < pages.find(&second)), "{pages}");
    let lines = run(&daemon, &["--json", "status", &first, &second]).success().stdout_text();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let missing = run(&daemon, &["status", &first, "00000000"]).expect_code(66);
    assert!(missing.stderr.contains("there is no task 00000000"), "{}", missing.stderr);
}

#[test]
fn r113_empty_session_selects_no_task() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    assert_eq!(daemon.task(id).session, None);
    for verb in [
        &["signal", "--session", "", "TERM"][..],
        &["cancel", "--session", ""],
        &["pause", "--session", ""],
        &["block", "--session", ""],
        &["list", "--session", ""],
    ] {
        let refused = run(&daemon, verb).expect_code(2);
        assert!(refused.stderr.contains("'--session <KEY>' is empty"), "{verb:?}: {}", refused.stderr);
    }
    assert_eq!(daemon.task(id).status, Status::Running);
    daemon.cancel(&[id]);
}

#[test]
fn r113_attach_takes_the_one_selected_active_task() {
    let daemon = TestDaemon::start();
    let over = submitted(&daemon, &["--tag", "shell", "--", "true"]);
    daemon.block(&[over]);
    let id = submitted(&daemon, &["--tag", "shell", "--stdin-pipe", "--shell", "echo here; read x"]);
    wait::for_line(daemon.task(id).output.path.as_ref(), "here");
    let mut attached = daemon.bgctl(&["attach", "--tag", "shell"]);
    let mut attached = attached.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(attached.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "here", "the one that has not ended");
    let other = submitted(&daemon, &["--tag", "shell", "--hold", "--", "true"]);
    let several = run(&daemon, &["attach", "--tag", "shell"]).expect_code(66);
    assert!(several.stderr.contains("2 tasks match, but only one can be given"), "{}", several.stderr);
    for id in [id, other] {
        assert!(several.stderr.contains(&format!("\n  {id}\n")), "{}", several.stderr);
    }
    run(&daemon, &["write", &id.to_string(), "--eof"]).success();
    assert!(lines.next().is_none());
    attached.wait().unwrap();
    let none = run(&daemon, &["attach", "--tag", "nobody"]).expect_code(66);
    assert!(none.stderr.contains("no active task matches"), "{}", none.stderr);
    run(&daemon, &["attach", "--tag", "shell", "3f2a"]).expect_code(2);
    daemon.cancel(&[other]);
}

#[test]
fn r113_events_are_limited_to_selected_tasks() {
    let daemon = TestDaemon::start();
    run(&daemon, &["group", "set", "gpu", "--slots", "1"]).success();
    let one = submitted(&daemon, &["--tag", "a", "--", "false"]);
    let two = submitted(&daemon, &["--tag", "b", "--group", "gpu", "--", "true"]);
    daemon.block(&[one]);
    let last = submitted(
        &daemon,
        &["--tag", "a", "--tag", "b", "--group", "gpu", "--after", &two.to_string(), "--", "true"],
    );
    daemon.block(&[one, two, last]);
    let first = |options: &[&str], count: usize| -> Vec<(TaskId, String)> {
        let mut events = daemon.bgctl(&[&["events", "--since", "0"], options].concat());
        let mut events = events.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(events.stdout.take().unwrap()).lines().take(count);
        let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        events.kill().unwrap();
        events.wait().unwrap();
        let of = |line: &Value| {
            (line["task"]["id"].as_str().unwrap().parse().unwrap(), line["kind"].as_str().unwrap().to_owned())
        };
        lines.iter().map(of).collect()
    };
    let kinds = |id: TaskId, kinds: &[&str]| -> Vec<(TaskId, String)> {
        kinds.iter().map(|kind| (id, (*kind).to_owned())).collect()
    };
    assert_eq!(
        first(&["--tag", "a", "--status", "failed,completed"], 2),
        [kinds(one, &["failed"]), kinds(last, &["completed"])].concat()
    );
    assert_eq!(first(&["--tag", "a", "--tag", "b"], 3), kinds(last, &["submitted", "started", "completed"]));
    assert_eq!(first(&["--group", "gpu"], 1), kinds(two, &["submitted"]));
    assert_eq!(
        first(&["--group", "gpu", "--session", "s", "--task", &last.to_string()], 1),
        kinds(last, &["submitted"])
    );
}

#[test]
fn r113_shells_complete_selector_values() {
    let daemon = TestDaemon::start();
    run(&daemon, &["group", "set", "gpu", "--slots", "2"]).success();
    let id =
        submitted(&daemon, &["--tag", "nightly", "--group", "gpu", "--hold", "-d", "train it", "--", "true"]);
    let file = daemon.home().join("numbers");
    fs::write(&file, "1\n2\n").unwrap();
    let batch: String =
        run(&daemon, &["submit", "--each", file.to_str().unwrap(), "--", "echo"]).success().word();
    run(&daemon, &["block", &format!("@{batch}")]).success();
    let candidates = |words: &[&str]| {
        let place = (words.len() - 1).to_string();
        let mut command = daemon.bgctl(&[&["--"], words].concat());
        command.env("BGCTL_COMPLETE", "fish").env("_CLAP_COMPLETE_INDEX", place).env("_CLAP_IFS", "\n");
        // None are offered if the daemon does not answer soon enough for a shell.
        wait::poll_until("candidates in time", || {
            let stdout = Outcome::of(&mut command).success().stdout_text().trim_end().to_owned();
            (!stdout.is_empty()).then_some(stdout)
        })
    };
    let verbs = [
        "list", "status", "output", "attach", "block", "cancel", "clear", "hold", "release", "pause",
        "continue", "signal", "events",
    ];
    for verb in verbs {
        let of = |option: &str| candidates(&["bgctl", verb, option, ""]);
        assert_eq!(of("--tag"), "nightly", "{verb}");
        let groups = of("--group");
        let groups: Vec<&str> = groups.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(groups, ["default", "gpu"], "{verb}");
        assert_eq!(of("--session"), "s", "{verb}");
        assert_eq!(of("--batch"), format!("{batch}\t2 tasks"), "{verb}");
        assert!(of("--status").lines().any(|line| line == "failed"), "{verb}: {}", of("--status"));
        let commas = candidates(&["bgctl", verb, "--status", "failed,c"]);
        assert!(commas.lines().any(|line| line == "failed,completed"), "{verb}: {commas}");
    }
    let line = format!("{}\tpending: train it", id.short());
    for words in [
        &["bgctl", "submit", "--after", ""][..],
        &["bgctl", "edit", ""],
        &["bgctl", "edit", "3f2a", "--after", ""],
        &["bgctl", "hold", ""],
        &["bgctl", "cancel", ""],
        &["bgctl", "signal", ""],
        &["bgctl", "events", "--task", ""],
    ] {
        assert!(
            candidates(words).lines().any(|candidate| candidate == line),
            "{words:?}: {}",
            candidates(words)
        );
    }
    for words in [
        &["bgctl", "submit", "--tag", ""][..],
        &["bgctl", "run", "--tag", ""],
        &["bgctl", "handoff", "--tag", ""],
    ] {
        assert_eq!(candidates(words), "nightly", "{words:?}");
    }
    for words in [
        &["bgctl", "submit", "--group", "g"][..],
        &["bgctl", "group", "pause", "g"],
        &["bgctl", "edit", "3f2a", "--group", "g"],
    ] {
        assert!(candidates(words).starts_with("gpu\t"), "{words:?}");
    }
    daemon.cancel(&[id]);
}

#[test]
fn r169_shells_offer_options_only_after_a_dash() {
    let daemon = TestDaemon::start();
    let id = submitted(&daemon, &["--hold", "-d", "train it", "--", "true"]);
    let candidates = |shell: &str, words: &[&str]| {
        let place = (words.len() - 1).to_string();
        let mut command = daemon.bgctl(&[&["--"], words].concat());
        command.env("BGCTL_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", place);
        let stdout = Outcome::of(command.env("_CLAP_IFS", "\n")).success().stdout_text();
        match shell {
            "nushell" => {
                let values: Vec<serde_json::Value> = serde_json::from_str(&stdout).unwrap();
                values.iter().map(|one| one["value"].as_str().unwrap().to_owned()).collect()
            }
            _ => stdout.lines().map(str::to_owned).collect::<Vec<String>>(),
        }
    };
    let is_option = |line: &String| line.starts_with('-');
    for shell in ["bash", "zsh", "fish", "nushell"] {
        let verbs = candidates(shell, &["bgctl", ""]);
        assert!(verbs.iter().any(|line| line.starts_with("submit")), "{shell}: {verbs:?}");
        assert!(!verbs.iter().any(is_option), "{shell}: {verbs:?}");
        // None are offered if the daemon does not answer soon enough for a shell.
        let ids = wait::poll_until("candidates in time", || {
            Some(candidates(shell, &["bgctl", "status", ""])).filter(|ids| !ids.is_empty())
        });
        assert!(matches!(&ids[..], [one] if one.starts_with(&id.short())), "{shell}: {ids:?}");
        assert_eq!(candidates(shell, &["bgctl", "list", ""]), Vec::<String>::new(), "{shell}");
        let options = candidates(shell, &["bgctl", "status", "--j"]);
        assert!(matches!(&options[..], [one] if one.starts_with("--json")), "{shell}: {options:?}");
        assert!(candidates(shell, &["bgctl", "list", "-"]).iter().all(is_option), "{shell}");
    }
    daemon.cancel(&[id]);
}

#[test]
fn r113_batches_too_large_for_one_call_are_refused_before_any_change() {
    let daemon = TestDaemon::builder().config("limits.frame_bytes = 16384\n").start();
    let items = daemon.home().join("items");
    let batch = |count: usize| -> String {
        fs::write(&items, "x\n".repeat(count)).unwrap();
        let words = ["--hold", "--each", items.to_str().unwrap(), "--", "true"];
        format!("@{}", submitted(&daemon, &words))
    };
    let [one, two, small, other] = [300, 301, 50, 60].map(batch);
    for verb in ["cancel", "hold", "block", "clear", "rerun"] {
        let refused = run(&daemon, &[verb, &one, &two]).expect_code(2);
        assert!(refused.stderr.contains("these are 601 tasks, too many for one call"), "{}", refused.stderr);
        assert!(refused.stderr.contains("give one batch per call, with --batch"), "{}", refused.stderr);
    }
    run(&daemon, &["events", "--task", &one, "--task", &two]).expect_code(2);
    assert_eq!(daemon.status().summary.total(), 711);
    // Batches that fit into one call are handled together.
    let ended = run(&daemon, &["cancel", &small, &other]).success();
    assert_eq!(ended.stdout_text().lines().count(), 110);
    for batch in [&one, &two] {
        run(&daemon, &["cancel", batch]).success();
    }
    assert_eq!(daemon.status().summary.active(), 0);
}

#[test]
fn r113_events_refuse_selections_that_no_task_can_match() {
    let daemon = TestDaemon::start();
    // Without a refusal, the command would wait.
    let refused = |options: &[&str], code: i32, why: &str| {
        let mut events = daemon.bgctl(&[&["events"], options].concat());
        let mut events = events.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut message = String::new();
        BufReader::new(events.stderr.take().unwrap()).read_line(&mut message).unwrap();
        assert_eq!((events.wait().unwrap().code(), message.contains(why)), (Some(code), true), "{message}");
    };
    refused(&["--tag", ""], 2, "tag");
    refused(&["--tag", "", "--since", "0"], 2, "tag");
    refused(&["--group", "nope"], 2, "unknown group");
    refused(&["--batch", "9c1e"], 66, "there is no batch");
    // The events of what is gone can still be read.
    let items = daemon.home().join("items");
    fs::write(&items, "x\n").unwrap();
    let batch = run(&daemon, &["submit", "--each", items.to_str().unwrap(), "--", "true"]).success();
    let batch = batch.stdout_text().trim().to_owned();
    run(&daemon, &["block", "--batch", &batch]).success();
    run(&daemon, &["clear", "--all-sessions"]).success();
    let mut events = daemon.bgctl(&["events", "--since", "0", "--batch", &batch]);
    let mut events = events.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(events.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"submitted\""), "{line}");
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn r106_ended_tasks_of_several_batches_are_left_out() {
    let daemon = TestDaemon::start();
    run(&daemon, &["group", "set", "later", "--slots", "1"]).success();
    run(&daemon, &["group", "pause", "later"]).success();
    let items = daemon.home().join("items");
    fs::write(&items, "x\ny\n").unwrap();
    let [one, two] = [(); 2].map(|()| {
        submitted(&daemon, &["--group", "later", "--each", items.to_str().unwrap(), "--", "true"]).to_string()
    });
    let first = run(&daemon, &["list", "--quiet", "--batch", &one]).success().stdout_text();
    let ended = first.lines().next().unwrap();
    run(&daemon, &["cancel", ended]).success();
    let held = || {
        let listed = run(&daemon, &["list"]).success().stdout_text();
        listed.lines().filter(|line| line.contains("pending (held)")).count()
    };
    let (one, two) = (format!("@{one}"), format!("@{two}"));
    run(&daemon, &["hold", &one, ended]).expect_code(65);
    run(&daemon, &["hold", &one, "@ffffffff"]).expect_code(66);
    assert_eq!(held(), 0, "tasks given one by one must all fit");
    let outcome = run(&daemon, &["--json", "hold", &one, &two, &one]).success();
    let answer: Value = serde_json::from_str(&outcome.stdout_text()).expect("one object");
    let tasks = answer["tasks"].as_array().unwrap();
    assert!(tasks.len() == 3 && tasks.iter().all(|task| task["status"] == "pending"), "{answer}");
    assert_eq!(held(), 3);
    let stdout = run(&daemon, &["release", &one, &two]).success().stdout_text();
    assert_eq!((stdout.lines().count(), held()), (3, 0));
    run(&daemon, &["cancel", &one, &two]).success();
}
