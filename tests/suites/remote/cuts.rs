//! Connections that are lost while something waits on them.

use std::fs;
use std::io::{BufRead as _, BufReader};

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::wait;

use super::{begin, blocked, tasks};

#[test]
fn r142_a_block_goes_on_after_a_cut() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; exit 4", gate.display());
    let id = far.run(&["submit", "--shell", &line]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &[], &id);
    far.cut();
    block.wait_text("the connection to far is lost; connecting again");
    block.wait_text("connected to far again");
    fs::write(gate, "").unwrap();
    assert_eq!(block.ended().code(), Some(4));
}

#[test]
fn r142_an_output_is_followed_over_a_cut_without_a_gap() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line = format!("seq 20000; until [ -e {} ]; do sleep 0.05; done; seq 20001 40000", gate.display());
    let id = far.run(&["submit", "--shell", &line]).word::<TaskId>().to_string();
    let mut follow = begin(&far, &["output", "--follow", &id]);
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line == "20000"));
    far.cut();
    let mut errors = BufReader::new(follow.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(errors.by_ref().any(|line| line.ends_with("connected to far again")));
    fs::write(gate, "").unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, (20001..=40000).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    assert!(follow.wait().unwrap().success());
}

#[test]
fn r142_a_submit_whose_answer_is_lost_runs_once() {
    let far = Far::start();
    // The first connection carries the greeting's answer, and no more.
    let used = far.path("used");
    far.wrap(&format!(
        "case \"$*\" in *dial*) if [ ! -e {used} ]; then echo >{used}; $SSH \"$@\" | head -n 1; exit 255; fi;; esac",
        used = used.display()
    ));
    let id: TaskId = far.run(&["submit", "--", "true"]).success().word();
    assert_eq!(tasks(&far).iter().map(|task| task.id).collect::<Vec<_>>(), [id]);
}

#[test]
fn r142_a_host_that_stays_away_is_given_up() {
    let far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &["--connect-timeout", "1s"], &id);
    far.wrap("echo gone >&2; exit 255");
    far.cut();
    block.wait_text("far: ssh can't connect: gone");
    assert_eq!(block.ended().code(), Some(69));
    assert_eq!(far.daemon.task(id.parse().unwrap()).status, Status::Running);
}

#[test]
fn r142_what_was_cut_leaves_nothing_over_there() {
    let far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &["--connect-timeout", "1s"], &id);
    far.wrap("exit 255");
    far.cut();
    assert_eq!(block.ended().code(), Some(69));
    // The connection of this question alone is left.
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
}

#[test]
fn r142_a_daemon_that_was_restarted_meanwhile_is_another_one() {
    let mut far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &[], &id);
    // It comes back before the connection does.
    let hold = far.path("hold");
    far.wrap(&format!("while [ -e {} ]; do sleep 0.05; done", hold.display()));
    fs::write(&hold, "").unwrap();
    far.cut();
    block.wait_text("connecting again");
    far.daemon.restart();
    fs::remove_file(hold).unwrap();
    block.wait_text("far: the daemon was restarted meanwhile: its tasks are lost");
    assert_eq!(block.ended().code(), Some(69));
}

#[test]
fn r142_a_selection_is_waited_for_by_its_ids() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; exit 4", gate.display());
    let id: TaskId = far.run(&["submit", "--tag", "t", "--shell", &line]).word();
    far.daemon.wait_running(id);
    let mut block = far.terminal(&["block", "--timeout", "none", "--tag", "t", "--status", "running"]);
    wait::poll_until("the wait", || (far.daemon.status().subscriptions == 1).then_some(()));
    let hold = far.path("hold");
    far.wrap(&format!("while [ -e {} ]; do sleep 0.05; done", hold.display()));
    fs::write(&hold, "").unwrap();
    far.cut();
    block.wait_text("connecting again");
    fs::write(gate, "").unwrap();
    far.daemon.wait_status(id, Status::Failed);
    fs::remove_file(hold).unwrap();
    assert_eq!(block.ended().code(), Some(1));
}
