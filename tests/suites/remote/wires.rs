//! A link that is slow, silent, or cut at any moment.

use std::fs;
use std::time::Duration;

use bgd_tests::far::Far;
use bgd_tests::mcp::{Mcp, REVISION};
use bgd_tests::shared::id::TaskId;
use bgd_tests::user::on_a_small_disk;
use bgd_tests::{bgctl_path, executable, wait};
use serde_json::json;

use super::{begin, blocked, tasks};

/// The number of moments of a submit at which it is cut.
const STAGES: usize = 24;

#[test]
fn r141_every_verb_works_over_a_slow_link() {
    let far = Far::start();
    let wire = far.wire();
    wire.delay(Duration::from_millis(200));
    let id = far.run(&["submit", "-d", "slow", "--session", "s", "--", "echo", "words"]).success();
    let id = id.word::<TaskId>().to_string();
    far.run(&["block", &id]).success();
    assert!(far.run(&["list"]).success().stdout_text().contains("slow"));
    assert!(far.run(&["status", &id]).success().stdout_text().contains("completed"));
    assert_eq!(far.run(&["output", "--follow", &id]).success().stdout_text(), "words\n");
    assert!(far.run(&["inbox", "--session", "s", "--ack"]).success().stdout_text().contains("slow"));
    let mut run = far.terminal(&["run", "--shell", "echo up; read line; echo \"got $line\"; exit 3"]);
    run.wait_text("up");
    run.type_line("typed");
    run.wait_text("got typed");
    assert_eq!(run.ended().code(), Some(3));
    fs::write(far.path("input"), "of a pipe\n").unwrap();
    let mut piped = far.bgctl(&["run", "--", "cat"]);
    let piped = piped.stdin(fs::File::open(far.path("input")).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), "of a pipe\n");
    let mut console = far.terminal(&["console"]);
    console.wait_text("far:~>");
    console.type_line("exit 4");
    assert_eq!(console.ended().code(), Some(4));
    let mut mcp = Mcp::spawn(far.bgctl(&["mcp"]));
    mcp.initialize(REVISION, "test", &json!({}));
    let listed = mcp.call("background_list", &json!({"all_sessions": true}));
    assert!(!listed.text.is_empty());
    assert!(mcp.close().success());
    let long = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut events = begin(&far, &["events", "--since", "0", "--task", &long]);
    far.run(&["signal", &long, "CONT"]).success();
    far.run(&["cancel", &long]).success();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(events.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("cancelled")));
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn r142_submit_cut_at_any_moment_runs_at_most_once() {
    let far = Far::start();
    let wire = far.wire();
    submit_named(&far, "whole");
    let whole = wire.carried();
    let mut carried_out = 0;
    for stage in 0..STAGES {
        far.hang_up();
        wire.cut_after(1 + whole * stage / STAGES);
        carried_out += submit_named(&far, &format!("stage {stage}"));
    }
    assert!(carried_out > 0 && carried_out < STAGES, "the cuts came at other moments: {carried_out}");
}

#[test]
fn r142_submit_cut_at_any_moment_of_its_request_runs_at_most_once() {
    let far = Far::start();
    let wire = far.wire();
    submit_named(&far, "opens");
    let before = wire.carried_there();
    submit_named(&far, "whole");
    // All of that uses an existing connection: an ssh session, the greeting, the request.
    let whole = wire.carried_there() - before;
    let mut carried_out = 0;
    for stage in 0..STAGES {
        far.run(&["list"]).success();
        wire.cut_asking_after(1 + whole * stage / STAGES);
        carried_out += submit_named(&far, &format!("stage {stage}"));
    }
    assert!(carried_out > STAGES / 2, "most are carried out by another connection: {carried_out}");
}

/// Submits a task with this name, whatever happens to the connection. Returns how often it was executed.
#[track_caller]
fn submit_named(far: &Far, name: &str) -> usize {
    let outcome = far.run(&["submit", "-d", name, "--", "true"]);
    let count = tasks(far).iter().filter(|task| task.description == name).count();
    match outcome.code {
        0 => assert_eq!(count, 1, "{name}: {}", outcome.stderr),
        // The outcome is unknown: there was no connection yet, or it can't be restored.
        69 => assert!(count <= 1, "{name}: {}", outcome.stderr),
        code => panic!("{name}: {code}: {}", outcome.stderr),
    }
    count
}

#[test]
fn r142_dead_link_is_dropped_and_reconnected() {
    let far = Far::start();
    let wire = far.wire();
    far.configure_ssh("ServerAliveInterval 1\nServerAliveCountMax 1");
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; exit 4", gate.display());
    let id = far.run(&["submit", "--shell", &line]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &[], &id);
    wire.freeze();
    block.wait_text("the connection to far is lost; connecting again");
    wire.thaw();
    block.wait_text("connected to far again");
    fs::write(gate, "").unwrap();
    assert_eq!(block.ended().code(), Some(4));
}

#[test]
fn r143_protocol_mismatch_with_remote_machine_is_reported() {
    let far = Far::start();
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    let other = format!(
        "#!/bin/sh\n{} \"$@\" | sed -u 's/\"protocol\":[0-9]*/\"protocol\":99/'\n",
        bgctl_path().display()
    );
    executable::write(&programs.join("bgctl"), &other);
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
    let refused = far.run(&["submit", "--", "true"]).expect_code(69);
    assert!(refused.stderr.contains("speaks protocol 99, this bgctl protocol"), "{}", refused.stderr);
    assert!(refused.stderr.contains("hint: install the same version on both machines"), "{}", refused.stderr);
    assert!(tasks(&far).is_empty());
}

#[test]
fn r141_full_disk_on_remote_machine_is_reported_locally() {
    let far = Far::of(on_a_small_disk("size=80m"));
    let id = far.run(&["submit", "--shell", "exec tr '\\0' x </dev/zero"]).word::<TaskId>().to_string();
    far.run(&["block", &id]).expect_code(1);
    assert!(far.run(&["status", &id]).success().stdout_text().contains("exited with code 1"));
    let page = far.run(&["daemon", "status"]).success();
    assert!((page.stdout_text() + &page.stderr).contains("nearly full"));
    // Existing output arrives, and a job in a pipe needs no space.
    let copied = far.bgctl(&["output", &id]).output().unwrap();
    assert!(copied.stdout.len() > 70_000_000, "{}", copied.stdout.len());
    assert_eq!(far.run(&["run", "--", "echo", "out"]).success().stdout_text(), "out\n");
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
}
