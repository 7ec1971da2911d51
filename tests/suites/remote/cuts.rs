//! Connections that are lost while something waits on them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};

use bgd_tests::far::Far;

use bgd_tests::shared::id::{TaskId, TaskRef};
use bgd_tests::shared::request::{ListParams, TaskList};
use bgd_tests::shared::task::Status;
use bgd_tests::upgrades::in_time;
use bgd_tests::{Relay, wait};

use super::{begin, blocked, hold_connections, tasks, wait_drawn};

#[test]
fn r142_block_resumes_after_connection_loss() {
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
fn r142_output_follow_resumes_without_gap_after_connection_loss() {
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
fn r142_submit_with_lost_reply_runs_once() {
    let far = Far::start();
    // The first connection carries only the answer to the greeting.
    let used = far.path("used");
    far.wrap(&format!(
        "case \"$*\" in *dial*) if [ ! -e {used} ]; then echo >{used}; $SSH \"$@\" | head -n 1; exit 255; fi;; esac",
        used = used.display()
    ));
    let outcome = far.run(&["submit", "--", "true"]).success();
    assert!(outcome.stderr.contains("connected to far again"), "{}", outcome.stderr);
    let id: TaskId = outcome.word();
    assert_eq!(tasks(&far).iter().map(|task| task.id).collect::<Vec<_>>(), [id]);
    // With a key of the user, that task did not exist before either.
    fs::remove_file(&used).unwrap();
    let submit = || far.run(&["submit", "--key", "nightly", "--", "true"]).success();
    let first = submit();
    assert!(first.stderr.contains("connected to far again"), "{}", first.stderr);
    assert!(!first.stderr.contains("already exists"), "{}", first.stderr);
    assert_eq!(tasks(&far).len(), 2);
    let again = submit();
    assert_eq!(again.word::<TaskId>(), first.word());
    assert!(again.stderr.contains("a task with the key nightly already exists"), "{}", again.stderr);
}

#[test]
fn r142_repeatable_request_with_lost_reply_is_retried() {
    let far = Far::start();
    let used = far.path("used");
    // The first connection carries only this many answers, including that to the greeting.
    let cut_after = |answers: usize, words: &[&str]| {
        let _ = fs::remove_file(&used);
        far.wrap(&format!(
            "case \"$*\" in *dial*) if [ ! -e {used} ]; then echo >{used}; $SSH \"$@\" | sed -u {answers}q; exit 255; fi;; esac",
            used = used.display()
        ));
        let outcome = far.run(words).success();
        assert!(outcome.stderr.contains("connected to far again"), "{words:?}: {}", outcome.stderr);
        outcome
    };
    let failed: TaskId = far.run(&["submit", "--", "false"]).word();
    far.daemon.wait_status(failed, Status::Failed);
    let new: TaskId = cut_after(1, &["rerun", &failed.to_string()]).word();
    assert_eq!(tasks(&far).iter().map(|task| task.id).collect::<Vec<_>>(), [new, failed]);
    let long: TaskId = far.run(&["submit", "--", "sleep", "1000"]).word();
    far.daemon.wait_running(long);
    let id = long.to_string();
    assert_eq!(cut_after(1, &["pause", &id]).stdout_text(), format!("{id} paused\n"));
    assert_eq!(cut_after(1, &["continue", &id]).stdout_text(), format!("{id} continued\n"));
    cut_after(1, &["group", "set", "g", "--slots", "2"]);
    // `cancel` first asks which tasks have processes left.
    let other = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    assert_eq!(cut_after(1, &["cancel", &other]).stdout_text(), format!("{other} cancelled\n"));
    assert_eq!(cut_after(2, &["cancel", &id]).stdout_text(), format!("{id} cancelled\n"));
}

#[test]
fn r142_signal_with_lost_reply_is_reported_and_not_retried() {
    let far = Far::start();
    let id = far.run(&["submit", "--shell", "trap 'echo usr' USR1; echo up; while :; do sleep 0.05; done"]);
    let id: TaskId = id.success().word();
    wait::poll_until("the trap", || (far.daemon.output(id) == b"up\n").then_some(()));
    let used = far.path("used");
    far.wrap(&format!(
        "case \"$*\" in *dial*) if [ ! -e {used} ]; then echo >{used}; $SSH \"$@\" | sed -u 1q; exit 255; fi;; esac",
        used = used.display()
    ));
    let outcome = far.run(&["signal", &id.to_string(), "USR1"]).expect_code(69);
    assert!(outcome.stderr.contains("the request may have been carried out"), "{}", outcome.stderr);
    wait::poll_until("the signal", || (far.daemon.output(id) == b"up\nusr\n").then_some(()));
    // Another signal arrives after everything sent before.
    far.run(&["signal", &id.to_string(), "USR1"]).success();
    wait::poll_until("another signal", || (far.daemon.output(id).ends_with(b"usr\nusr\n")).then_some(()));
    assert_eq!(far.daemon.output(id), b"up\nusr\nusr\n");
}

#[test]
fn r142_block_gives_up_when_host_stays_unreachable() {
    let far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>();
    in_time(|timeout| gives_up_after_cut(&far, id, &format!("{}s", timeout.as_secs())));
    assert_eq!(far.daemon.task(id).status, Status::Running);
}

/// Reports whether the first connection was made within this timeout, which the next one then exceeds.
fn gives_up_after_cut(far: &Far, id: TaskId, timeout: &str) -> bool {
    far.wrap("");
    let named = id.to_string();
    let mut block =
        far.terminal(&["--connect-timeout", timeout, "block", "--exit-code", "--timeout", "none", &named]);
    let is_drawn = |text: &str| text.contains("sleep 10");
    block.wait("how far the task is", |screen| {
        is_drawn(&screen.contents()) || screen.contents().contains("no answer within")
    });
    if !is_drawn(&block.screen()) {
        return false;
    }
    far.wrap("echo gone >&2; exit 255");
    far.cut();
    block.wait_text("far: ssh can't connect: gone");
    assert_eq!(block.ended().code(), Some(69));
    true
}

#[test]
fn r142_lost_connections_are_closed_on_remote_machine() {
    let far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &["--connect-timeout", "1h"], &id);
    far.wrap("exit 255");
    far.cut();
    block.wait_text("connecting again");
    // Only the connection of this question is left.
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
    assert!(block.process().is_alive(), "it still tries");
    block.process().kill();
}

#[test]
fn r142_block_fails_when_daemon_restarted_during_connection_loss() {
    let mut far = Far::start();
    let id = far.run(&["submit", "--", "sleep", "1000"]).word::<TaskId>().to_string();
    let mut block = blocked(&far, &[], &id);
    // The daemon is back before the connection is.
    let hold = hold_connections(&far);
    far.cut();
    block.wait_text("connecting again");
    far.daemon.restart();
    fs::remove_file(hold).unwrap();
    block.wait_text("far: the daemon was restarted meanwhile: its tasks are lost");
    assert_eq!(block.ended().code(), Some(69));
}

#[test]
fn r142_block_on_selection_resumes_with_original_ids() {
    let far = Far::start();
    let gate = far.daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; exit 4", gate.display());
    let id: TaskId = far.run(&["submit", "--tag", "t", "--shell", &line]).word();
    far.daemon.wait_running(id);
    let mut block = far.terminal(&["block", "--timeout", "none", "--tag", "t", "--status", "running"]);
    wait_drawn(&far, &mut block, id);
    let hold = hold_connections(&far);
    far.cut();
    block.wait_text("connecting again");
    fs::write(gate, "").unwrap();
    far.daemon.wait_status(id, Status::Failed);
    fs::remove_file(hold).unwrap();
    assert_eq!(block.ended().code(), Some(1));
}

/// A task that writes `words` once its gate is open, and the gate.
fn gated(far: &Far, options: &[&str], words: &str) -> (String, std::path::PathBuf) {
    let gate = far.daemon.home().join("gate");
    let line = format!("echo first; until [ -e {} ]; do sleep 0.05; done; {words}", gate.display());
    let id = far.run(&[&["submit"], options, &["--shell", &line]].concat()).word::<TaskId>();
    far.daemon.wait_running(id);
    // Connections of the previous steps must not be mistaken for the next one.
    wait::poll_until("the end of the connections", || (far.daemon.status().connections == 1).then_some(()));
    (id.to_string(), gate)
}

#[test]
fn r142_wait_for_line_resumes_after_connection_loss() {
    let far = Far::start();
    let (id, gate) = gated(&far, &[], "echo wanted");
    let mut block = far.terminal(&["block", "--line", "want", "--since", "-3", "--timeout", "none", &id]);
    wait::poll_until("the wait", || (far.daemon.status().subscriptions == 1).then_some(()));
    far.cut();
    block.wait_text("connected to far again");
    fs::write(&gate, "").unwrap();
    block.wait_text("wanted");
    assert_eq!(block.ended().code(), Some(0));
}

#[test]
fn r142_attached_terminal_is_restored_after_connection_loss() {
    let far = Far::start();
    let (id, gate) = gated(&far, &["--pty"], "echo last; read line; exit 6");
    let mut attach = far.terminal(&["attach", &id]);
    attach.wait_text("first");
    far.cut();
    // The message about the connection is overwritten when the screen is redrawn.
    wait::poll_until("the connection", || (far.connections() == 2).then_some(()));
    fs::write(gate, "").unwrap();
    attach.wait_text("last");
    attach.type_line("typed");
    assert_eq!(attach.ended().code(), Some(6));
}

#[test]
fn r142_attached_text_output_resumes_without_repetition() {
    let far = Far::start();
    let (id, gate) = gated(&far, &[], "echo last; exit 6");
    let mut attach = far.terminal(&["attach", &id]);
    attach.wait_text("first");
    far.cut();
    attach.wait_text("connected to far again");
    fs::write(gate, "").unwrap();
    assert_eq!(attach.ended().code(), Some(6));
    let shown = String::from_utf8_lossy(&attach.shown()).into_owned();
    assert_eq!(["first", "last"].map(|text| shown.matches(text).count()), [1, 1], "{shown}");
}

#[test]
fn r142_wait_for_notice_resumes_after_connection_loss() {
    let far = Far::start();
    let relay = Relay::start(far.daemon.home(), far.daemon.socket());
    far.set_session(&[("BGD_SOCKET", relay.socket().to_str().unwrap())]);
    let (_, gate) = gated(&far, &["--session", "s", "-d", "gated"], "true");
    relay.cut_behind("\"wait_ms\":600000");
    let mut inbox = far.terminal(&["inbox", "--session", "s", "--wait", "10m", "--ack"]);
    inbox.wait_text("connected to far again");
    fs::write(gate, "").unwrap();
    inbox.wait_text("gated");
    assert_eq!(inbox.ended().code(), Some(0));
    assert_eq!(far.run(&["inbox", "--session", "s"]).success().stdout_text(), "");
}

#[test]
fn r142_batch_interrupted_at_any_stage_is_submitted_once() {
    let far = Far::start();
    // The first connection carries this many answers, including that to the greeting, and is cut at the next request.
    let (items, asked, answered) = (far.path("items"), far.path("asked"), far.path("answered"));
    fs::write(&items, "x\n".repeat(10_001)).unwrap();
    let submit = |answers: usize| {
        let _ = fs::remove_file(&asked).and_then(|()| fs::remove_file(&answered));
        far.wrap(&format!(
            "case \"$*\" in *dial*) if [ ! -e {asked} ]; then mkfifo {asked} {answered}; \
             $SSH \"$@\" <{asked} >{answered} & exec 3>{asked} 4<{answered}; \
             for n in $(seq {answers}); do read -r line; printf '%s\\n' \"$line\" >&3; \
             read -r line <&4; printf '%s\\n' \"$line\"; done; \
             read -r line; printf '%s\\n' \"$line\" >&3; kill $!; exit 255; fi;; esac",
            asked = asked.display(),
            answered = answered.display()
        ));
        far.run(&["--json", "submit", "--each", items.to_str().unwrap(), "--hold", "--", "true"])
    };
    // Neither the first part is answered, nor the last one, which submits the batch.
    for (answers, total) in [(1, 10_001), (2, 20_002)] {
        let outcome = submit(answers).success();
        assert!(asked.exists(), "it was cut");
        let batch: serde_json::Value = serde_json::from_str(&outcome.stdout_text()).unwrap();
        let ids: BTreeSet<TaskId> = serde_json::from_value(batch["tasks"].clone()).unwrap();
        assert_eq!(ids.len(), 10_001);
        assert_eq!(far.daemon.status().summary.total(), total);
        let named: TaskRef = batch["batch"].as_str().unwrap().parse().unwrap();
        let mut found = BTreeSet::new();
        let mut query = ListParams { batch: Some(named), limit: Some(1000), ..ListParams::default() };
        let mut client = far.daemon.client();
        loop {
            let page = client.call::<TaskList>(&query).unwrap();
            found.extend(page.tasks.iter().map(|task| task.id));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, ids);
    }
}
