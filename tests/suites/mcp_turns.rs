//! `bgctl mcp` and the turns of agents: a resume that has not been received yet, and questions that are no longer open.

use std::fs;

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::mcp::Mcp;
use bgd_tests::{FakeDaemon, Process, wait};
use serde_json::{Value, json};

fn start(mcp: &mut Mcp, prompt: &str) -> TaskId {
    let task = json!({"agent": "fake", "description": "a prompt", "prompt": prompt});
    mcp.done("background_task", &task).id()
}

fn of(id: TaskId) -> Value {
    json!({"task_id": id.to_string()})
}

#[test]
fn r05_cancel_withdraws_resume_that_agent_has_not_received() {
    let daemon = FakeDaemon::start(&["--initialize-after", "begin"], "keep_warm = \"0s\"");
    daemon.touch("begin");
    let mut mcp = Mcp::with_fakes(&daemon);
    let id = start(&mut mcp, "say one");
    let task = daemon.ends_as(id, Status::Completed);
    if let Some(agent) = Process::open(task.pid.unwrap()) {
        agent.gone();
    }
    fs::remove_file(daemon.home().join("begin")).unwrap();
    let resume = json!({"resume": id.to_string(), "prompt": "say two"});
    let request = mcp.ask("tools/call", &json!({"name": "background_task", "arguments": resume}));
    daemon.fake_home().wait_started(2);
    assert_eq!(daemon.task(id).status, Status::Completed, "not resumed yet");
    let cancelled = mcp.done("background_cancel", &of(id));
    assert!(cancelled.text.contains("The resume was withdrawn"), "{}", cancelled.text);
    assert_eq!(cancelled.content["tasks"][0]["status"], "completed", "{}", cancelled.text);
    let refused = mcp.answer(request);
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    daemon.touch("begin");
    let again = mcp.done("background_cancel", &of(id));
    assert!(again.text.contains("It is already completed: nothing to cancel."), "{}", again.text);
    assert_eq!(daemon.result(id), "one", "the agent never got the prompt");
}

#[test]
fn r81_question_that_is_no_longer_open_is_not_reported() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut mcp = Mcp::with_fakes(&daemon);
    let id = start(&mut mcp, "await go; ask Run make?; ask And make install?");
    daemon.wait_running(id);
    // The server hears of it only with its next answer.
    daemon.touch("go");
    let asked = |question: &str| {
        wait::poll_until(question, || {
            daemon.task(id).progress.needs_input.filter(|asked| asked.question.contains(question))
        });
    };
    asked("Run make?");
    daemon.run(&["answer", &id.to_string(), "allow"]).success();
    asked("And make install?");
    let answer = mcp.done("background_list", &json!({}));
    assert!(answer.head().contains("And make install?"), "{}", answer.text);
    assert!(!answer.head().contains("Run make?"), "{}", answer.text);
    daemon.run(&["answer", &id.to_string(), "deny"]).success();
    daemon.ends_as(id, Status::Completed);
    let answer = mcp.done("background_list", &json!({}));
    assert!(answer.head().contains("COMPLETED"), "{}", answer.text);
    assert!(!answer.head().contains("NEEDS INPUT"), "{}", answer.text);
}
