//! Types what bgd-order(7) tells users of ordered work to type, with stand-ins for the programs.

use std::fs;
use std::process::Command;

use bgd_shared::id::TaskId;
use bgd_shared::order::CancelReason;
use bgd_shared::request::ListResult;
use bgd_shared::task::{Status, Task};
use bgd_tests::docs;
use bgd_tests::templates::shell_agent;
use bgd_tests::{Outcome, TestDaemon, bgctl_path, executable, ports};

/// Writes a program into the home, where the lines are typed.
fn program(daemon: &TestDaemon, name: &str, line: &str) {
    executable::write(&daemon.home().join(name), &format!("#!/bin/sh\n{line}\n"));
}

fn typed(daemon: &TestDaemon, lines: &str) -> Outcome {
    let home = daemon.home().display();
    let bgctl = bgctl_path();
    let folder = bgctl.parent().expect("a folder").display();
    let mut shell = Command::new("bash");
    shell.env_clear().envs(daemon.environment()).env("BGD_SESSION", "s").current_dir(daemon.home());
    shell.args(["-euc", &format!("PATH={home}:{folder}:$PATH\n{lines}")]);
    Outcome::of(&mut shell).success()
}

fn tasks(daemon: &TestDaemon) -> Vec<Task> {
    let mut list: ListResult = daemon.run(&["--json", "list", "--all"]).success().json();
    list.tasks.reverse();
    list.tasks
}

fn block(number: usize) -> String {
    docs::blocks("man/bgd-order.md", "sh").swap_remove(number)
}

#[test]
fn r100_guide_example_with_two_gpus_works() {
    let daemon = TestDaemon::start();
    program(&daemon, "train", "echo \"device $CUDA_VISIBLE_DEVICES $*\"");
    let stdout = typed(&daemon, &block(0)).stdout_text();
    assert!(stdout.lines().any(|line| line.starts_with("gpu\t")), "{stdout}");
    let tasks = tasks(&daemon);
    assert_eq!(tasks.len(), 5);
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    daemon.block(&ids);
    for (seed, id) in (1..).zip(&ids[..4]) {
        let output = String::from_utf8(daemon.output(*id)).unwrap();
        let of = |device: u32| format!("device {device} --seed {seed}\n");
        assert!([of(0), of(1)].contains(&output), "{output}");
    }
}

#[test]
fn r110_guide_example_with_a_server_works() {
    let daemon = TestDaemon::start();
    program(&daemon, "npm", "curl --silent --output /dev/null localhost:$PORT && echo tested");
    let port = ports::unused();
    let lines = format!("export PORT={port}\n{}", block(2).replace("8000", &port.to_string()));
    let stdout = typed(&daemon, &lines).stdout_text();
    assert!(stdout.contains("completed") && stdout.contains("nothing was missing so far"), "{stdout}");
    let [server, tests] = &tasks(&daemon)[..] else { panic!("{stdout}") };
    assert_eq!((server.status, tests.status), (Status::Cancelled, Status::Completed), "{stdout}");
    assert!(server.ready_at <= tests.started_at, "{stdout}");
    assert_eq!(daemon.output(tests.id), b"tested\n");
}

#[test]
fn r103_guide_example_of_a_night_with_a_failing_build_works() {
    let agent = shell_agent("opencode", "echo \"$1\"", "");
    let daemon = TestDaemon::builder().config(agent).start();
    program(&daemon, "make", "echo \"error: no rule $BGD_ATTEMPT\"; exit 2");
    program(&daemon, "deploy", "echo deployed");
    // Do not wait minutes for a build that fails.
    let stdout = typed(&daemon, &block(1).replace("1m..10m", "1ms..2ms")).stdout_text();
    assert!(stdout.contains("`- ") && stdout.contains("pending (until "), "{stdout}");
    let ids: Vec<TaskId> = tasks(&daemon).iter().map(|task| task.id).collect();
    let [build, tests, deploy, mend] = &daemon.block(&ids)[..] else { panic!("{stdout}") };
    assert_eq!((build.status, build.attempt), (Status::Failed, Some(3)));
    for never in [tests, deploy] {
        assert_eq!((never.status, never.cancel_reason), (Status::Cancelled, Some(CancelReason::Dependency)));
    }
    assert_eq!(mend.status, Status::Completed);
    let said = String::from_utf8(daemon.output(mend.id)).unwrap();
    assert!(said.contains("fix it: error: no rule 1\nerror: no rule 2\nerror: no rule 3"), "{said}");
}

#[test]
fn r112_guide_example_of_a_sweep_works_and_r116_its_failed_tasks_rerun() {
    let daemon = TestDaemon::start();
    // Two seeds fail the first time.
    program(
        &daemon,
        "train",
        "echo \"seed $2\"; case $2 in 7|42) mkdir seen-$2 2>/dev/null && exit 3;; esac; true",
    );
    program(&daemon, "flac", "cp \"$1\" \"$3\"");
    fs::write(daemon.home().join("a song.wav"), "song").unwrap();
    let stdout = typed(&daemon, &block(3)).stdout_text();
    let all = tasks(&daemon);
    let of = |status: Status| all.iter().filter(|task| task.status == status).count();
    daemon.block(&[all.last().expect("the last one is of the flacs").id]);
    assert_eq!((all.len(), of(Status::Failed)), (103, 2), "{stdout}");
    assert!(stdout.contains("failed"), "{stdout}");
    let again: Vec<&Task> = all.iter().filter(|task| task.rerun_of.is_some()).collect();
    let outputs: Vec<_> =
        again.iter().map(|task| String::from_utf8(daemon.output(task.id)).unwrap()).collect();
    assert_eq!(outputs, ["seed 7\n", "seed 42\n"]);
    assert!(again.iter().all(|task| task.status == Status::Completed), "{stdout}");
    assert_eq!(fs::read(daemon.home().join("a song.flac")).unwrap(), b"song");
}
