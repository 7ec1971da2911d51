//! Verbs for the remote daemon that the other parts of this suite don't need: each works there as it does here.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use bgd_tests::far::Far;
use bgd_tests::mcp::{Mcp, REVISION};
use bgd_tests::prompts::fake_agent;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::WaitingFor;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::upgrades::is_too_busy;
use bgd_tests::{Outcome, Terminal, TestDaemon, bgctl_path, executable, wait};
use serde_json::{Value, json};

use super::tasks;

/// A condition for a remote task.
type Check<'a> = &'a dyn Fn(&Task) -> bool;

/// Runs a command, and finds these words on its standard output.
#[track_caller]
fn says(far: &Far, args: &[&str], words: &str) -> Outcome {
    let outcome = far.run(args).success();
    assert!(outcome.stdout_text().contains(words), "{args:?}: {words:?}: {}", outcome.stdout_text());
    outcome
}

/// A machine whose daemon has the agent `fake`, which asks its task's submitter.
fn with_agent() -> Far {
    let daemon = TestDaemon::home_only();
    let home = daemon.home().join("fake");
    fs::create_dir(&home).unwrap();
    let more = format!("permissions = \"ask\"\nenv.FAKE_ACP_HOME = \"{}\"", home.display());
    daemon.write_config(&fake_agent(&[], &more));
    let mut far = Far::of(daemon);
    far.daemon.launch();
    far
}

#[test]
fn r140_remote_tasks_can_be_controlled() {
    let far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    let first: TaskId =
        far.run(&["submit", "--stdin-pipe", "--shell", "read line; echo \"got $line\""]).word();
    far.daemon.wait_running(first);
    let second: TaskId = far.run(&["submit", "-d", "old", "--", "true"]).word();
    let [one, two] = [first, second].map(|id| id.to_string());
    let there = |id: TaskId| far.daemon.task(id);
    let paused = |task: &Task| task.paused;
    let waits = |task: &Task| task.waiting.as_ref().map(|waiting| waiting.reason);
    // Each verb, its task, and the condition that the remote daemon then reports.
    let steps: [(&[&str], TaskId, Check<'_>); 7] = [
        (&["hold", &two], second, &|task| waits(task) == Some(WaitingFor::Held)),
        (&["edit", &two, "--priority", "7", "-d", "new"], second, &|task| {
            (task.priority, &*task.description) == (7, "new")
        }),
        (&["release", &two], second, &|task| waits(task) == Some(WaitingFor::Slot)),
        (&["pause", &one], first, &paused),
        (&["continue", &one], first, &|task| !task.paused && task.status == Status::Running),
        (&["write", &one, "-n", "words"], first, &|_| true),
        (&["block", "--timeout", "none", &one, &two], second, &|task| task.status == Status::Completed),
    ];
    for (args, id, is_so) in steps {
        far.run(args).success();
        let task = there(id);
        assert!(is_so(&task), "{args:?}: {task:?}");
    }
    says(&far, &["output", &one], "got words\n");
    let again: TaskId = far.run(&["rerun", &two]).word();
    assert_eq!((there(again).rerun_of, &*there(again).description), (Some(second), "new"));
    assert_eq!([first, second, again].map(|id| there(id).key), [None, None, None], "nobody gave them a key");
    far.run(&["block", &again.to_string()]).success();
    assert_eq!(far.connections(), 1);
}

#[test]
fn r140_groups_and_sessions_are_those_of_remote_daemon() {
    let far = Far::start();
    far.run(&["group", "set", "gpu", "--slots", "2"]).success();
    far.run(&["group", "pause", "gpu"]).success();
    let id: TaskId = far.run(&["submit", "--group", "gpu", "--session", "work", "--", "true"]).word();
    assert_eq!(far.daemon.task(id).waiting.unwrap().reason, WaitingFor::Paused);
    says(&far, &["group", "list"], "gpu\t");
    far.run(&["group", "continue", "gpu"]).success();
    far.run(&["block", &id.to_string()]).success();
    far.run(&["group", "remove", "gpu"]).success();
    assert!(!far.run(&["group", "list"]).success().stdout_text().contains("gpu"));
    says(&far, &["inbox", "--all-sessions"], &id.to_string());
    says(&far, &["session", "end", "work"], "cancelled 0, cleared 1\n");
    assert!(tasks(&far).is_empty());
    // On the other machine, a terminal's key alone could mean one of its own terminals.
    let mut key = far.bgctl(&["session", "key"]);
    key.env_remove("BGD_SESSION");
    let mut key = Terminal::open(&key);
    key.wait_text("from:");
    assert!(key.screen().contains(":tty:/dev/pts/"), "{key:?}");
}

#[test]
fn r167_bgctl_without_verb_shows_remote_overview() {
    let far = Far::start();
    let id: TaskId = far.run(&["submit", "-d", "fails over there", "--", "false"]).word();
    far.daemon.block(&[id]);
    let mut alone = far.terminal(&[]);
    alone.wait_text("ended:\n");
    alone.wait_text("fails over there");
    alone.wait_text("bgctl output ");
    assert_eq!(alone.ended().code(), Some(0));
    // In a pipe, it behaves as without a host.
    let piped = far.run(&[]).expect_code(2);
    assert!(piped.stderr.contains("Usage: bgctl"), "{}", piped.stderr);
}

#[test]
fn r141_remote_agent_is_prompted_answered_and_resumed() {
    let far = with_agent();
    says(&far, &["agents"], "fake\t");
    says(&far, &["agents", "--check", "fake"], "fake\t");
    let id = far.run(&["submit", "--agent", "fake", "-d", "asks", "ask may I"]).word::<TaskId>().to_string();
    says(&far, &["answer", &id, "--wait"], "may I");
    says(&far, &["answer", &id, "allow"], "answered question 1");
    far.run(&["block", &id]).success();
    says(&far, &["output", "--result", &id], "allowed: ");
    far.run(&["resume", &id, "count"]).success();
    far.run(&["block", &id]).success();
    says(&far, &["output", "--result", &id], "2");
    // In the foreground: as text in a pipe, and in a terminal until Ctrl-B.
    says(&far, &["run", "--agent", "fake", "say words"], "words\n");
    let mut run = far.terminal(&["run", "--agent", "fake", "say half; hang"]);
    run.wait_text("half");
    run.type_keys("\x02");
    run.wait_text("Command was manually backgrounded by user with ID");
    assert_eq!(run.ended().code(), Some(0));
    let left: Vec<Task> = tasks(&far).into_iter().filter(|task| task.status == Status::Running).collect();
    assert_eq!(left.len(), 1);
    far.run(&["cancel", &left[0].id.to_string()]).success();
}

/// A machine whose daemon has two agents: `here`, a program in the `PATH` of this machine only, and `there`, one in that
/// of the other machine's logins only.
fn with_programs() -> Far {
    let daemon = TestDaemon::home_only();
    let far = Far::of(daemon);
    let config = ["here", "there"].map(|name| {
        let folder = if name == "here" { far.path("programs") } else { far.daemon.home().join("programs") };
        fs::create_dir(&folder).unwrap();
        executable::write(&folder.join(format!("only-{name}")), "#!/bin/sh\n");
        format!("[agents.{name}]\nprotocol = \"template\"\ncommand = [\"only-{name}\", \"{{prompt}}\"]\n")
    });
    far.daemon.write_config(&config.concat());
    let programs = bgctl_path().parent().unwrap().to_owned();
    let path = [programs, far.daemon.home().join("programs"), "/usr/bin".into(), "/bin".into()];
    let path = std::env::join_paths(path).unwrap();
    far.set_session(&[("PATH", path.to_str().unwrap())]);
    far
}

/// Adds the programs of this machine to the `PATH` of a command.
fn with_path(far: &Far, mut command: Command) -> Command {
    let known = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(far.path("programs")).chain(std::env::split_paths(&known));
    command.env("PATH", std::env::join_paths(path).unwrap());
    command
}

#[test]
fn r141_agents_are_looked_up_in_environment_of_remote_tasks() {
    let mut far = with_programs();
    far.daemon.launch();
    // The check fails, as one of those that are named is not installed there.
    for (args, code) in [
        (&["--json", "agents", "here", "there"][..], 0),
        (&["--json", "agents", "--check", "here", "there"], 69),
    ] {
        let listed: Value = Outcome::of(&mut with_path(&far, far.bgctl(args))).expect_code(code).json();
        let is_there =
            |at: usize| (listed["agents"][at]["name"].clone(), listed["agents"][at]["available"].clone());
        assert_eq!(is_there(0), (json!("here"), json!(false)), "{listed}");
        assert_eq!(is_there(1), (json!("there"), json!(true)), "{listed}");
    }
    let mut mcp = Mcp::spawn(with_path(&far, far.bgctl(&["mcp", "--structured"])));
    mcp.initialize(REVISION, "test", &json!({}));
    mcp.done("background_list", &json!({}));
    let tools = mcp.result("tools/list", &json!({})).to_string();
    assert!(tools.contains("Available agents: there."), "{tools}");
}

#[test]
fn r141_wait_for_question_resumes_after_connection_loss() {
    let far = with_agent();
    let gate = far.daemon.home().join("go");
    let prompt = format!("await {}; ask may I", gate.display());
    let id = far.run(&["submit", "--agent", "fake", "-d", "asks", &prompt]).word::<TaskId>();
    let mut answer = far.terminal(&["answer", &id.to_string(), "--wait", "allow"]);
    wait::poll_until("the wait", || (far.daemon.status().subscriptions == 1).then_some(()));
    far.cut();
    answer.wait_text("connected to far again");
    fs::write(gate, "").unwrap();
    answer.wait_text("answered question 1");
    assert_eq!(answer.ended().code(), Some(0));
    far.run(&["block", &id.to_string()]).success();
}

#[test]
fn r140_doctor_and_status_report_on_remote_machine() {
    let far = with_agent();
    says(&far, &["executors"], "local\tlocal\t");
    let page = says(&far, &["doctor"], &format!("pid {}", far.daemon.pid())).stdout_text();
    assert!(page.contains("fake"), "{page}");
    // The kernel, the shell and the logout of this machine don't matter to the other one.
    let report: Value = far.run(&["--json", "doctor"]).success().json();
    let parts: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|check| check["part"].as_str().unwrap()).collect();
    assert!(parts.contains(&"daemon") && parts.contains(&"agents"), "{report}");
    assert!(!parts.contains(&"machine") && !parts.contains(&"shell"), "{report}");
    let id = far.run(&["submit", "--", "true"]).word::<TaskId>().to_string();
    far.run(&["block", &id]).success();
    says(&far, &["daemon", "status", "--openmetrics"], "# EOF\n");
    far.daemon.write_config("nonsense = 1");
    let report: Value = far.run(&["--json", "doctor"]).expect_code(69).json();
    let configuration =
        report["checks"].as_array().unwrap().iter().find(|one| one["name"] == "configuration");
    assert!(configuration.unwrap()["found"].as_str().unwrap().contains("nonsense"), "{report}");
    far.run(&["daemon", "reload"]).expect_code(78);
}

#[test]
fn r140_remote_upgrade_works_and_remote_units_are_refused() {
    let far = Far::start();
    let pid = far.daemon.pid().to_string();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>();
    far.daemon.wait_running(id);
    let upgraded = wait::poll_until("an upgrade", || {
        let outcome = far.run(&["daemon", "upgrade"]);
        (!is_too_busy(&outcome.stderr)).then_some(outcome)
    });
    let upgraded = upgraded.success().stdout_text();
    assert!(upgraded.contains(" replaced in "), "{upgraded}");
    says(&far, &["daemon", "status"], &pid);
    assert_eq!(far.daemon.task(id).status, Status::Running);
    for verb in ["install", "uninstall"] {
        let refused = far.run(&["daemon", verb]);
        assert!(refused.code != 0 && refused.stderr.contains("machine"), "{verb}: {}", refused.stderr);
    }
}

#[test]
fn r140_watched_remote_list_stays_current_after_connection_loss() {
    let far = Far::start();
    let mut list = far.terminal(&["list", "--watch"]);
    list.wait_text("no tasks");
    let id: TaskId = far.run(&["submit", "-d", "watched", "--", "sleep", "1000"]).word();
    list.wait_text("watched");
    far.cut();
    list.wait_text("connected to far again");
    far.daemon.cancel(&[id]);
    list.wait_text("cancelled");
    list.type_keys("\x03");
    assert!(!list.ended().success());
}

#[test]
fn r140_stopped_remote_daemon_is_not_started_again_by_its_service_manager() {
    let far = Far::of(TestDaemon::home_only());
    far.set_session(&[("BGD_DAEMON", bgd_tests::bgd_path().to_str().unwrap())]);
    // Like a service manager that listens: whoever connects finds a daemon.
    let asked = far.path("asked");
    far.wrap(&format!(
        "case \"$*\" in *dial*) echo >>{}; $SSH -n far bgctl daemon start >&2;; esac",
        asked.display()
    ));
    let connections = || fs::read_to_string(&asked).unwrap_or_default().lines().count();
    says(&far, &["daemon", "start"], "pid ");
    let before = connections();
    let stopped = says(&far, &["daemon", "stop"], "stopped");
    assert_eq!(connections(), before + 1, "{stopped:?}");
    assert!(!far.daemon.socket().exists());
    says(&far, &["daemon", "start"], "pid ");
    says(&far, &["daemon", "restart"], "pid ");
    says(&far, &["daemon", "stop"], "stopped");
}

#[test]
fn r20_separate_streams_of_remote_task_are_not_mistaken_for_each_other() {
    let far = Far::start();
    let submit = |options: &[&str]| {
        let line = ["--shell", "echo out; echo err >&2"];
        let id: TaskId = far.run(&[&["submit"], options, &line].concat()).word();
        far.daemon.block(&[id]);
        id.to_string()
    };
    let [whole, split] = [submit(&[]), submit(&["--split"])];
    let refused = far.run(&["output", "--stderr", &whole]).expect_code(65);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("--split"), "{refused:?}");
    says(&far, &["output", "--stderr", &split], "err\n");
    for words in [&["output", &split][..], &["output", "-f", &split], &["output", "--tail", "1", &split]] {
        let shown = far.run(words).success();
        let expected =
            format!("4 B of standard error are stored separately: `bgctl output --stderr {}`", &split[..8]);
        assert!(shown.stdout == b"out\n" && shown.stderr.contains(&expected), "{shown:?}");
    }
    for words in [&["output", "--stdout", &split][..], &["output", &whole]] {
        assert_eq!(far.run(words).success().stderr, "");
    }
}

#[test]
fn r20_output_so_far_ends_even_if_the_task_writes_faster_than_it_is_read() {
    let far = Far::start();
    let id: TaskId = far.run(&["submit", "--", "sleep", "1000"]).word();
    let path = far.daemon.wait_running(id).output.path;
    let mut file = fs::File::options().append(true).open(path).unwrap();
    let id = id.to_string();
    for mut command in [far.daemon.bgctl(&["output", &id]), far.bgctl(&["output", &id])] {
        let mut length = file.metadata().unwrap().len();
        let first = length + 600_000;
        let (mut output, mut count) = (None, 0);
        loop {
            // Whenever some of it was read, the file has grown as much, before `bgctl` can write the rest of its piece.
            while length < first + count {
                file.write_all(&[b'x'; 1000]).unwrap();
                length += 1000;
            }
            let output = output.get_or_insert_with(|| command.stdout(Stdio::piped()).spawn().unwrap());
            let more = output.stdout.as_mut().unwrap().read(&mut [0; 1000]).unwrap();
            if more == 0 {
                assert!(output.wait().unwrap().success());
                break;
            }
            count += more as u64;
            assert!(count < first + 2_000_000, "it goes on");
        }
        assert!(count >= first);
    }
    far.daemon.cancel(&[id.parse().unwrap()]);
}

/// An older daemon refuses the parameter that reserves a notification, and gives it to all readers.
#[test]
fn r55_waiting_reader_takes_a_notification_from_a_daemon_that_can_not_reserve_it() {
    let far = Far::start();
    let requests = far.replace_in_requests("\"reserve\":true", "\"unknown\":true");
    let id = far.daemon.submit_in("s", "true");
    far.daemon.block(&[id]);
    says(&far, &["--json", "inbox", "--session", "s", "--wait", "10m", "--ack"], &id.to_string());
    assert!(far.daemon.inbox("s").is_empty());
    assert!(fs::read_to_string(requests).unwrap().contains("\"unknown\":true"));
}
