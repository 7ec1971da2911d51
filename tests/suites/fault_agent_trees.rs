//! Agent processes that refuse to end, or that have children: nothing outlives its purpose.

use std::fs;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::{FakeDaemon, Process, wait};

/// Survives EOF on its input and SIGTERM, and has a child in its own session.
const STUBBORN: &[&str] = &["--ignore-eof", "--ignore-sigterm", "--child"];

/// Returns the agent's process and its child.
#[track_caller]
fn family(daemon: &FakeDaemon, id: TaskId) -> [Process; 2] {
    let agent = daemon.agent_process(id);
    let child = daemon.fake_home().noted_process(&format!("child.{}", agent.pid()));
    [agent, child]
}

/// Starts a turn of an agent. Returns the task and a process that the turn has started.
#[track_caller]
fn with_spawned(daemon: &FakeDaemon, rest: &str) -> (TaskId, Process) {
    let id = daemon.prompt(&format!("spawn; {rest}"));
    (id, daemon.fake_home().noted_process("spawned"))
}

#[test]
fn r11_daemon_stop_ends_stubborn_agent_and_its_child() {
    for prompt in ["hang", "await go"] {
        let mut daemon = FakeDaemon::start(STUBBORN, "");
        let id = daemon.prompt(prompt);
        let family = family(&daemon, id);
        if prompt == "await go" {
            // The agent is idle, and kept warm.
            daemon.touch("go");
            daemon.ends_as(id, Status::Completed);
        }
        assert!(family.iter().all(Process::is_alive));
        assert!(daemon.stop().success());
        assert!(!family.iter().any(Process::is_alive), "{prompt}: {family:?}");
    }
}

#[test]
fn idle_stubborn_agent_is_ended_with_its_child() {
    let daemon = FakeDaemon::start(STUBBORN, "keep_warm = \"0s\"");
    let id = daemon.prompt("await go; say done");
    let family = family(&daemon, id);
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    family.iter().for_each(Process::gone);
}

#[test]
fn r05_cancel_ends_stubborn_agent_and_its_child() {
    let daemon = FakeDaemon::start(STUBBORN, "");
    let id = daemon.prompt("hang");
    let family = family(&daemon, id);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!family.iter().any(Process::is_alive), "{family:?}");
}

#[test]
fn r04_child_of_dead_agent_is_ended() {
    for end in ["die 9", "close-stdout; hang"] {
        let daemon = FakeDaemon::start(STUBBORN, "");
        let id = daemon.prompt(&format!("await go; {end}"));
        let family = family(&daemon, id);
        daemon.touch("go");
        daemon.ends_as(id, Status::Failed);
        family.iter().for_each(Process::gone);
    }
}

#[test]
fn agents_check_leaves_no_stubborn_agent_process() {
    let daemon = FakeDaemon::start(STUBBORN, "");
    daemon.bgctl_with_fake(&["agents", "--check", "fake"]).success();
    assert_eq!(daemon.task_processes().len(), 0);
}

#[test]
fn agent_that_never_initializes_is_ended_with_its_child() {
    let flags = [STUBBORN, &["--initialize-never"]].concat();
    let daemon = FakeDaemon::start(&flags, "start_timeout = \"1s\"");
    // Repeat until one was quick enough to start its child.
    loop {
        daemon.ends_as(daemon.prompt("say never"), Status::Failed);
        let noted = fs::read_dir(&daemon.fake_home().0).unwrap().flatten().map(|entry| entry.file_name());
        let is_child = |name: &str| name.strip_prefix("child.").is_some_and(|pid| pid.parse::<i32>().is_ok());
        if noted.into_iter().any(|name| name.to_str().is_some_and(is_child)) {
            break;
        }
    }
    wait::poll_until("the end of both", || daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn r05_cancel_ends_process_started_by_the_turn() {
    let daemon = FakeDaemon::start(&[], "");
    let (id, spawned) = with_spawned(&daemon, "hang");
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!spawned.is_alive());
}

#[test]
fn r05_process_of_cancelled_turn_ends_when_neighbouring_turn_finishes() {
    let daemon = FakeDaemon::start(&[], "");
    let neighbour = daemon.prompt("await go; say done");
    let process = daemon.agent_process(neighbour);
    let (id, spawned) = with_spawned(&daemon, "hang");
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(process.is_alive(), "it works for another");
    daemon.touch("go");
    daemon.ends_as(neighbour, Status::Completed);
    process.gone();
    spawned.gone();
}

#[test]
fn process_of_completed_turn_lives_as_long_as_its_agent() {
    let daemon = FakeDaemon::start(&[], "");
    let (id, spawned) = with_spawned(&daemon, "say done");
    let task = daemon.ends_as(id, Status::Completed);
    assert!(spawned.is_alive(), "it may be a server that the next turn wants");
    Process::open(task.pid.unwrap()).unwrap().kill();
    spawned.gone();
}

#[test]
fn r09_next_daemon_ends_agent_processes_of_killed_daemon() {
    for flags in [&[][..], STUBBORN] {
        let mut daemon = FakeDaemon::start(flags, "");
        let (id, spawned) = with_spawned(&daemon, "say half; hang");
        let mut left = vec![daemon.agent_process(id), spawned];
        daemon.wait_output(id, "half");
        if !flags.is_empty() {
            let [_, child] = family(&daemon, id);
            left.push(child);
        }
        let output = daemon.task(id).output.path;
        daemon.kill9();
        daemon.launch();
        left.iter().for_each(Process::gone);
        assert!(!std::path::Path::new(&output).exists());
        assert_eq!(daemon.status().summary.total(), 0);
        assert_eq!(daemon.task_processes().len(), 0);
        daemon.completed("say fine");
    }
}
