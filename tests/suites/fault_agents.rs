//! Agents that break the protocol, or crash: the daemon accepts or ignores what they send, or ends their own turns, but
//! nobody else's.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use bgd_tests::prompts::fake;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::SubmitParams;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::templates::shell_agent;
use bgd_tests::upgrades::in_time;
use bgd_tests::{FakeDaemon, Raw, TestDaemon, wait};
use rustix::process::Signal;
use serde_json::json;

/// Enforces an ignored cancel quickly.
const SHORT_GRACE: &str = "[grace]\ncancel = \"300ms\"";

/// Submits a prompt that the agent must complete in spite of everything, and then another one.
#[track_caller]
fn survives(daemon: &FakeDaemon, prompt: &str, result: &str) {
    let task = daemon.completed(prompt);
    assert_eq!(daemon.result(task.id), result, "{prompt}");
    daemon.resume(task.id, "count");
    let after = daemon.ends_as(task.id, Status::Completed);
    assert_eq!((daemon.result(task.id).as_str(), after.pid), ("2", task.pid), "{prompt}");
}

/// Submits a prompt that must fail with these words, and checks that the next one gets another process.
#[track_caller]
fn breaks(daemon: &FakeDaemon, prompt: &str, words: &[&str]) -> TaskId {
    let (task, error) = daemon.failed(prompt);
    for word in words {
        assert!(error.contains(word), "{prompt}: {error}");
    }
    assert_ne!(daemon.completed("say next").pid, task.pid, "{prompt}");
    task.id
}

#[test]
fn non_protocol_lines_are_ignored() {
    let daemon = FakeDaemon::start(&["--greeting", "Welcome to Fake!", "--greeting", "{\"a\": 1}"], "");
    survives(&daemon, "garbage Loading the model...; say fine", "fine");
    survives(&daemon, "garbage {\"jsonrpc\"; garbage []; garbage 7; say fine", "fine");
    survives(&daemon, "bytes; say fine; bytes", "fine");
    survives(&daemon, "junk-line 1000000; say fine", "fine");
}

#[test]
fn unknown_updates_do_not_affect_the_turn() {
    let daemon = fake();
    survives(&daemon, "say fi; unknown-update; say ne", "fine");
    let task = daemon.completed("think x; plan; unknown-update");
    assert_eq!((daemon.result(task.id).as_str(), task.progress.tool_calls), ("", 0));
}

#[test]
fn surplus_replies_are_ignored() {
    let daemon = fake();
    survives(&daemon, "answer-twice; say fine", "fine");
    survives(&daemon, "answer-other; say fine", "fine");
    let other = daemon.prompt("await go; say there");
    survives(&daemon, "answer-other; answer-twice; say fine", "fine");
    daemon.touch("go");
    daemon.ends_as(other, Status::Completed);
    assert_eq!(daemon.result(other), "there");
}

#[test]
fn unsupported_agent_request_is_refused_and_turn_continues() {
    let daemon = fake();
    for method in ["fs/read_text_file", "fs/write_text_file", "terminal/create", "fake/unheard_of"] {
        survives(&daemon, &format!("client-request {method}"), "-32601");
    }
    assert!(!daemon.home().join("written-by-fake_acp").exists());
}

#[test]
fn long_line_is_accepted_and_endless_line_ends_the_connection() {
    let daemon = fake();
    let process = daemon.process();
    let task = daemon.completed("line 8000000; say !");
    assert_eq!(task.output.bytes, 8_000_002);
    let result = daemon.result(task.id);
    assert!(result.ends_with("xxx!") && result.len() < 2_000_000, "{}", result.len());
    let before = process.status_value("VmHWM").unwrap();
    for prompt in ["say half; line 100000000; say never", "say half; junk-line 100000000; say never"] {
        let id = breaks(&daemon, prompt, &["16 MiB"]);
        assert_eq!(daemon.output(id), b"half\n");
    }
    let most = process.status_value("VmHWM").unwrap();
    assert!(most < before + 80 * 1024, "{before} kB grew to {most} kB");
}

#[test]
fn r05_cancel_ends_agent_process_of_turn_that_never_ends() {
    let daemon = FakeDaemon::with(SHORT_GRACE, &[], "");
    for prompt in ["say half; no-answer", "ignore-cancel; say half; hang"] {
        let id = daemon.prompt(prompt);
        let process = daemon.agent_process(id);
        daemon.wait_output(id, "half");
        // The agent is asked first; the second cancel shortens its grace period to the configured one.
        let session = daemon.task(id).agent_session;
        let mut patient = Raw::connect(daemon.socket());
        patient.request(1, "task.cancel", &json!({"ids": [id], "grace_ms": 3_600_000}));
        daemon.fake_home().wait_for(|_| {
            let cancels = daemon.fake_home().received("session/cancel");
            cancels.iter().any(|cancel| cancel["params"]["sessionId"].as_str() == session.as_deref())
        });
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!((task.status, daemon.output(id)), (Status::Cancelled, b"half\n".to_vec()), "{prompt}");
        assert!(!process.is_alive(), "{prompt}");
        daemon.completed("say next");
    }
    let cancels = daemon.fake_home().received("session/cancel");
    let asked: HashSet<_> = cancels.iter().map(|cancel| cancel["params"]["sessionId"].as_str()).collect();
    assert_eq!(asked.len(), 2, "it was asked first");
}

#[test]
fn r05_cancel_ends_agent_that_hangs_after_rejecting_a_prompt() {
    let daemon = FakeDaemon::with(SHORT_GRACE, &["--list-after", "never"], "");
    let id = daemon.prompt("say half; error -32603 no");
    // It is asked whether it still has the session, and does not answer. Until then, the turn counts as starting.
    daemon.fake_home().wait_received("session/list", 1);
    let process = daemon.task_processes().remove(0);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!process.is_alive(), "it was not ended by force");
}

#[test]
fn r04_agent_process_of_turn_that_ignores_its_time_limit_is_ended() {
    let daemon = FakeDaemon::with(SHORT_GRACE, &[], "");
    let params = SubmitParams { time_limit_ms: Some(200), ..daemon.prompt_params("no-answer") };
    let id = daemon.submit_with(&params).id;
    let task = daemon.ends_as(id, Status::Failed);
    assert_eq!(task.error.as_deref(), Some("timed out after 200ms"));
    wait::poll_until("its process's end", || daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn r05_neighbour_of_forcibly_ended_turn_fails_with_reason() {
    let daemon = FakeDaemon::with(SHORT_GRACE, &[], "");
    let (stubborn, neighbour) = (daemon.prompt("no-answer"), daemon.prompt("say half; hang"));
    assert_eq!(daemon.wait_running(stubborn).pid, daemon.wait_running(neighbour).pid);
    daemon.wait_output(neighbour, "half");
    assert_eq!(daemon.cancel(&[stubborn])[0].status, Status::Cancelled);
    let task = daemon.ends_as(neighbour, Status::Failed);
    assert!(task.error.unwrap().contains("another turn of it did not end"));
}

#[test]
fn r05_cancelled_turn_stays_cancelled_whatever_the_agent_replies() {
    let daemon = fake();
    for prompt in
        ["cancel-as-end-turn; say half; hang", "ignore-cancel; say half; await late; error -32603 no"]
    {
        let id = daemon.prompt(prompt);
        daemon.wait_output(id, "half");
        let mut raw = bgd_tests::Raw::connect(daemon.socket());
        raw.request(1, "task.cancel", &serde_json::json!({"ids": [id]}));
        let session = daemon.task(id).agent_session;
        daemon.fake_home().wait_for(|journal| {
            let is_cancel = |message: &serde_json::Value| {
                message["method"] == "session/cancel"
                    && message["params"]["sessionId"].as_str() == session.as_deref()
            };
            journal.iter().any(|line| is_cancel(&line["received"]))
        });
        if prompt.contains("late") {
            daemon.touch("late");
        }
        let answer = raw.receive().unwrap();
        assert_eq!(answer["result"]["tasks"][0]["status"], "cancelled", "{prompt}");
    }
}

#[test]
fn r04_agent_death_fails_turn_with_exit_reason_and_stderr() {
    let daemon = fake();
    breaks(&daemon, "say half; die 9", &["exited with code 9"]);
    breaks(&daemon, "die 9", &["exited with code 9"]);
    breaks(&daemon, "say half; die 0", &["exited with code 0"]);
    breaks(&daemon, "stderr out of memory; abort", &["signal 6", "out of memory"]);
    let id = breaks(&daemon, "say half; close-stdout; hang", &["closed its output"]);
    assert_eq!(daemon.output(id), b"half\n");
}

#[test]
fn r04_agent_death_fails_all_turns_of_that_process_only() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 3", &[], "max_sessions = 2");
    let dies = daemon.prompt("await go; stderr I was ill; die 9");
    let neighbour = {
        daemon.wait_running(dies);
        daemon.prompt("say half; hang")
    };
    assert_eq!(daemon.wait_running(neighbour).pid, daemon.wait_running(dies).pid);
    let lives = daemon.prompt("await end; say alive");
    assert_ne!(daemon.wait_running(lives).pid, daemon.wait_running(dies).pid);
    daemon.wait_output(neighbour, "half");
    daemon.touch("go");
    for id in [dies, neighbour] {
        let error = daemon.ends_as(id, Status::Failed).error.unwrap();
        assert!(error.contains("code 9") && error.contains("I was ill"), "{error}");
    }
    daemon.touch("end");
    daemon.ends_as(lives, Status::Completed);
    assert_eq!(daemon.result(lives), "alive");
}

#[test]
fn text_after_turn_end_is_kept_without_changing_the_result() {
    let daemon = fake();
    let mut watch = daemon.watch();
    let task = daemon.completed("late and one more thing\\n; say done");
    daemon.wait_output(task.id, "[late] and one more thing");
    let now = daemon.task(task.id);
    assert_eq!((now.status, now.completed_at), (Status::Completed, task.completed_at));
    assert_eq!(
        (daemon.result(task.id).as_str(), daemon.output(task.id).as_slice()),
        ("done", b"done\n[late] and one more thing\n".as_slice())
    );
    daemon.resume(task.id, "say again");
    daemon.ends_as(task.id, Status::Completed);
    assert_eq!(daemon.result(task.id), "again");
    let mut ends = 0;
    while ends < 2 {
        let event = watch.next_event();
        ends += usize::from(event.kind.is_terminal());
        assert!(event.task.run == 1 || ends > 0);
    }
}

#[test]
fn text_after_turn_end_beyond_its_limit_is_reported_as_lost() {
    const KEPT: usize = 64 * 1024;
    let daemon = fake();
    let description = Some("late".to_owned());
    let prompt = format!("late {}; say done", "x".repeat(70_000));
    let id = daemon.submit_with(&SubmitParams { description, ..daemon.prompt_params(&prompt) }).id;
    daemon.ends_as(id, Status::Completed);
    let output =
        wait::poll_until("the loss", || Some(daemon.task(id).output).filter(|output| output.lost_bytes > 0));
    let why = "an agent may write at most 64 KiB after its turn";
    assert_eq!((output.lost_bytes, output.lost_because.as_deref()), (70_000 - KEPT as u64, Some(why)));
    let all = "done\n[late] ".len() + KEPT;
    wait::poll_until("the rest", || (daemon.output(id).len() == all).then_some(()));
    assert_eq!(daemon.result(id), "done");
}

#[test]
fn r04_agent_start_failure_reports_the_reason() {
    for (flags, words) in [
        (&["--exit-at-start", "3", "--stderr", "no licence here"][..], &["code 3", "no licence here"][..]),
        (&["--exit-at-start", "0"], &["code 0"]),
        (&["--protocol-version", "2"], &["protocol version 2"]),
        (&["--greeting", "usage: fake [FILE]", "--exit-at-start", "2"], &["usage: fake [FILE]", "code 2"]),
    ] {
        let daemon = FakeDaemon::start(flags, "");
        let ids = [daemon.prompt("say never"), daemon.prompt("say never")];
        for id in ids {
            let task = daemon.ends_as(id, Status::Failed);
            let error = task.error.unwrap();
            assert!(words.iter().all(|word| error.contains(word)), "{flags:?}: {error}");
            assert_eq!((task.started_at, task.pid), (None, None));
        }
        wait::poll_until("its end", || daemon.task_processes().is_empty().then_some(()));
    }
}

#[test]
fn r04_silent_agent_fails_after_start_timeout() {
    let flags = ["--initialize-never", "--ignore-sigterm", "--ignore-eof"];
    let daemon = FakeDaemon::start(&flags, "start_timeout = \"500ms\"");
    let error = loop {
        let error = daemon.ends_as(daemon.prompt("say never"), Status::Failed).error.unwrap();
        // An agent that was too slow even to begin shows nothing.
        if !daemon.fake_home().started().is_empty() {
            break error;
        }
    };
    assert!(error.contains("within 500ms") && error.contains("start_timeout"), "{error}");
    wait::poll_until("the agent's end", || daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn agent_is_started_again_after_an_earlier_start_timeout() {
    let daemon = FakeDaemon::start(&["--initialize-after", "begin"], "start_timeout = \"500ms\"");
    daemon.failed("say never");
    daemon.touch("begin");
    let mut before = None;
    wait::poll_until("two turns of one program in a row", || {
        let task = daemon.block(&[daemon.prompt("say fine")]).remove(0);
        let is_done = task.status == Status::Completed;
        // The agent may be slow as well, even a warm one.
        let is_late = task.error.as_deref().is_some_and(|why| why.contains("within 500ms"));
        assert!(is_done || is_late, "{task:?}");
        let last = std::mem::replace(&mut before, task.pid.filter(|_| is_done));
        (before.is_some() && before == last).then_some(())
    });
}

#[test]
fn r20_flood_of_agent_updates_is_throttled_and_fully_counted() {
    const CALLS: u64 = 5000;
    let daemon = fake();
    let mut watch = daemon.watch();
    let (begin, mut events) = (Instant::now(), 0);
    let id = daemon.prompt(&format!("flood {CALLS}; tool last"));
    while !watch.next_event().kind.is_terminal() {
        events += 1;
    }
    // At most four times a second for each of three kinds, plus the events of its beginning and its end.
    let most = 12 * (begin.elapsed().as_secs() + 1) + 10;
    assert!(events <= most, "{events} events, at most {most} are expected");
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!(task.progress.tool_calls, CALLS + 1);
    assert_eq!(task.progress.last_tools, [(CALLS - 1).to_string(), CALLS.to_string(), "last".to_owned()]);
    let plan: Vec<_> = task.progress.plan.iter().map(|step| step.text.clone()).collect();
    assert_eq!(plan, [CALLS.to_string()]);
    let task = daemon.task(id);
    assert_eq!(task.agent_usage.and_then(|usage| usage.context_tokens), Some(CALLS));
}

#[test]
fn r20_daemon_replies_and_cancels_while_agent_floods_it() {
    let daemon = fake();
    let id = daemon.prompt("flood 0");
    let many = |task: &Task| task.progress.tool_calls > 1000;
    wait::poll_until("a flood", || Some(daemon.task(id)).filter(many));
    let listed = daemon.run(&["list"]).success().stdout_text();
    assert!(listed.contains("running"), "{listed}");
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r04_agent_that_stops_opening_sessions_is_replaced() {
    let daemon = FakeDaemon::start(&["--new-sessions", "1"], "start_timeout = \"3s\"\nkeep_warm = \"1h\"");
    let hung = daemon.completed("say first").pid;
    let (_, error) = daemon.failed("say never");
    assert!(error.contains("opened no session within 3s"), "{error}");
    wait::poll_until("its end", || daemon.task_processes().is_empty().then_some(()));
    assert_ne!(daemon.completed("say next").pid, hung);
}

#[test]
fn r05_agent_that_hung_opening_cancelled_session_is_not_reused() {
    let daemon = FakeDaemon::start(&["--new-sessions", "2"], "keep_warm = \"1h\"");
    let neighbour = daemon.prompt("await go; say fine");
    let hung = daemon.wait_running(neighbour).pid;
    assert_eq!(daemon.completed("say second").pid, hung);
    let id = daemon.prompt("say never");
    wait::poll_until("that it is being opened", || {
        (daemon.fake_home().received("session/new").len() == 3).then_some(())
    });
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert_ne!(daemon.completed("say next").pid, hung);
    // Turns in that process may finish.
    daemon.touch("go");
    assert_eq!(daemon.ends_as(neighbour, Status::Completed).pid, hung);
}

/// As when the machine has more to do than it can.
#[test]
fn turn_that_ended_in_time_while_its_daemon_stood_still_has_not_timed_out() {
    let line = "echo >begun; until [ -e go ]; do sleep 0.02; done; echo over; echo >ended";
    let daemon = TestDaemon::builder().config(shell_agent("x", line, "")).start();
    in_time(|limit| {
        let begun = Instant::now();
        for name in ["begun", "go", "ended"] {
            let _ = fs::remove_file(daemon.home().join(name));
        }
        let time_limit_ms = u64::try_from(limit.as_millis()).ok();
        let params = SubmitParams { time_limit_ms, ..daemon.prompt_for("x", "hello") };
        let task = daemon.submit_with(&params).id;
        let runs = wait::poll_until("its program runs, or was too late", || {
            let runs = daemon.home().join("begun").exists();
            (runs || !daemon.task(task).status.is_active()).then_some(runs)
        });
        let process = daemon.process();
        process.signal(Signal::STOP).unwrap();
        let is_in_time = runs && begun.elapsed() < limit;
        fs::write(daemon.home().join("go"), "").unwrap();
        if is_in_time {
            wait::for_file(&daemon.home().join("ended"));
            let late = limit + Duration::from_secs(2);
            wait::poll_until("the time to pass", || (begun.elapsed() > late).then_some(()));
        }
        process.signal(Signal::CONT).unwrap();
        let ended = daemon.block(&[task]);
        assert!(!is_in_time || ended[0].status == Status::Completed, "{ended:?}");
        is_in_time
    });
}
