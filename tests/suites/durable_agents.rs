//! Agents of a durable daemon (R127): a turn cut off by a kill fails, and its conversation can continue.

use std::fs;
use std::path::Path;

use bgd_tests::agents::Permission;
use bgd_tests::real::Real;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::Retry;
use bgd_tests::shared::request::SubmitParams;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::templates::toml_words;
use bgd_tests::{FakeDaemon, TestDaemon, wait};
use rustix::process::Resource;

fn durable() -> FakeDaemon {
    FakeDaemon::with("durable = true", &[], "")
}

#[track_caller]
fn crash(daemon: &mut TestDaemon) {
    // The daemon answers once everything before it is in the journal.
    daemon.run(&["submit", "--hold", "--", "true"]).success();
    daemon.kill9();
    daemon.launch();
}

/// Waits until the output of a task ends with this text.
#[track_caller]
fn output_ends(daemon: &FakeDaemon, id: TaskId, text: &str) {
    wait::poll_until(text, || daemon.output(id).ends_with(text.as_bytes()).then_some(()));
}

#[track_caller]
fn is_interrupted(task: &Task) {
    let kind = task.failure.as_ref().map(|failure| failure.kind);
    assert_eq!((task.status, kind), (Status::Failed, Some(FailureKind::Interrupted)));
    assert_eq!(task.error.as_deref(), Some("interrupted: the daemon was killed"));
    assert_eq!(task.exit, None, "no exit code is made up");
}

#[test]
fn r130_resume_that_cannot_be_written_is_refused_and_can_be_repeated() {
    let daemon = durable();
    let id = daemon.prompt("say before");
    daemon.block(&[id]);
    let resume = || daemon.run(&["resume", &id.to_string(), "say after"]);
    daemon.process().limit(Resource::Fsize, Some(64));
    // The core has begun to resume the task before the daemon knows that this can't be written.
    let refused = resume().expect_code(70);
    assert!(refused.stderr.contains("the journal can't be written: "), "{}", refused.stderr);
    assert_eq!(daemon.task(id).status, Status::Completed);
    daemon.process().limit(Resource::Fsize, None);
    wait::poll_until("a resume is accepted", || (resume().code == 0).then_some(()));
    daemon.block(&[id]);
    let output = daemon.output(id);
    assert!(output.windows(5).any(|part| part == b"after"), "{}", output.escape_ascii());
}

#[test]
fn r127_turn_cut_by_kill_is_interrupted_and_can_be_resumed() {
    let mut daemon = durable();
    let id = daemon.prompt("say before; await go");
    output_ends(&daemon, id, "before");
    let session = daemon.task(id).agent_session;
    assert!(session.is_some());

    crash(&mut daemon);

    is_interrupted(&daemon.task(id));
    assert!(daemon.task_processes().is_empty());
    daemon.resume(id, "say during; await go");
    output_ends(&daemon, id, "during");

    crash(&mut daemon);

    is_interrupted(&daemon.task(id));
    daemon.resume(id, "say after");
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!((task.agent_session, task.resume_count, daemon.result(id)), (session, 2, "after".to_owned()));
    assert_eq!(daemon.fake_home().received("session/new").len(), 1, "it is one conversation");
}

#[test]
fn r127_conversation_continues_after_kill_between_turns() {
    let mut daemon = durable();
    let task = daemon.completed("say one");
    crash(&mut daemon);
    assert_eq!(daemon.result(task.id), "one");
    daemon.resume(task.id, "count");
    daemon.ends_as(task.id, Status::Completed);
    assert_eq!(daemon.result(task.id), "2");
}

#[test]
fn r33_turn_cancelled_before_kill_cannot_be_resumed() {
    let mut daemon = durable();
    let id = daemon.prompt("say begun; await go");
    output_ends(&daemon, id, "begun");
    daemon.cancel(&[id]);
    crash(&mut daemon);
    assert_eq!(daemon.task(id).status, Status::Cancelled);
    assert_eq!(daemon.try_resume(id, "say more").unwrap_err().kind(), ErrorKind::NotResumable);
}

fn has_prompt_file(daemon: &TestDaemon, id: TaskId) -> bool {
    let output = daemon.task(id).output.path;
    Path::new(&output).with_extension("prompt").exists()
}

#[test]
fn r127_prompt_file_is_removed_after_interrupted_turn_and_recreated_for_retry() {
    let line = "cat \"$1\"; until [ -e \"$HOME/go\" ]; do sleep 0.02; done";
    let words = toml_words(&["sh", "-c", line, "agent", "{prompt_file}"]);
    let config = format!("durable = true\n[agents.x]\nprotocol = \"template\"\ncommand = {words}\n");
    let mut daemon = TestDaemon::builder().config(config).start();
    let retry = Retry { times: 2, delay_ms: Some(1), max_delay_ms: None, codes: Vec::new(), signal: false };
    let tried = SubmitParams { retry: Some(retry), ..daemon.prompt_for("x", "again ") };
    let (tried, cut) = (daemon.submit_with(&tried).id, daemon.submit_prompt("x", "once"));
    let says = |daemon: &TestDaemon, id: TaskId, words: &str| {
        wait::poll_until(words, || (daemon.output(id) == words.as_bytes()).then_some(()));
    };
    says(&daemon, tried, "again ");
    says(&daemon, cut, "once");
    assert!(has_prompt_file(&daemon, cut));

    crash(&mut daemon);

    is_interrupted(&daemon.task(cut));
    assert!(!has_prompt_file(&daemon, cut));
    says(&daemon, tried, "again \nagain ");
    fs::write(daemon.home().join("go"), "").unwrap();
    assert_eq!(daemon.block(&[tried])[0].status, Status::Completed);
    assert!(!has_prompt_file(&daemon, tried));
}

/// A turn of a real agent is cut off by a kill; the same conversation continues with the next daemon.
#[track_caller]
fn a_real_conversation_goes_on(mut real: Real) {
    real.daemon.stop();
    let config = fs::read_to_string(real.daemon.config_path()).unwrap();
    real.daemon.write_config(&format!("durable = true\n{config}"));
    real.daemon.launch();
    let id = real.turn("SAY first");
    real.daemon.run(&["resume", &id.to_string(), "SLOW gate 3"]).success();
    real.model.wait_for_turn("SLOW gate 3");
    real.model.release("gate");
    wait::poll_until("its begin", || real.output(id).trim_end().ends_with("chunk 1").then_some(()));
    let session = real.session(id);

    crash(&mut real.daemon);

    is_interrupted(&real.daemon.task(id));
    real.nothing_left();
    assert_eq!(real.follow_up(id, "SAY again"), "again");
    assert_eq!(real.session(id), session);
    let history = real.history(id);
    for prompt in ["SAY first", "SLOW gate 3", "SAY again"] {
        assert!(history.iter().any(|said| said.contains(prompt)), "{prompt} in {history:?}");
    }
    real.daemon.run(&["daemon", "stop", "--cancel"]).success();
}

#[test]
fn r127_interrupted_opencode_acp_turn_can_be_resumed() {
    a_real_conversation_goes_on(Real::opencode(Permission::Allow, "allow"));
}

#[test]
fn r127_interrupted_opencode_server_turn_can_be_resumed() {
    a_real_conversation_goes_on(Real::opencode_server(Permission::Allow, "allow"));
}
