//! The cases that every real agent must pass, regardless of its protocol. The suites choose the agent and add its
//! specific cases.

use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;

use super::{AgentHome, Entry, Real};
use crate::process::{Process, processes_of};
use crate::wait;

/// Maximum time until the daemon notices that an agent is dead: milliseconds suffice, but machines are busy.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A tool of an agent that runs a command line.
#[derive(Clone, Copy, Debug)]
pub struct Shell {
    pub tool: &'static str,
    /// The argument that holds the command line.
    pub argument: &'static str,
    /// Additional arguments, as JSON members.
    pub more: &'static str,
}

impl Shell {
    pub const OPENCODE: Self = Self { tool: "bash", argument: "command", more: r#""description": "run it""# };

    pub const CODEX: Self = Self { tool: "exec_command", argument: "cmd", more: r#""login": false"# };

    /// codex's tool outside its sandbox, for which codex asks for permission.
    pub const CODEX_OUTSIDE: Self = Self {
        more: r#""sandbox_permissions": "require_escalated", "justification": "to see""#,
        ..Self::CODEX
    };

    /// Returns a prompt that makes the model call the tool.
    pub fn order(&self, line: &str) -> String {
        let Self { tool, argument, more } = self;
        format!("TOOL {tool} {{\"{argument}\": {line:?}, {more}}}")
    }
}

/// R01, R20, R21, R07: the text of a turn can be read while it runs, and the result when it is over.
#[track_caller]
pub fn text_streams(real: &Real) {
    let id = real.submit_until_asked("SLOW gate 2");
    let word = id.to_string();
    assert_eq!(real.daemon.wait_running(id).resume_count, 0);
    real.model.release("gate");
    real.wait_output(id, "chunk 1");
    assert_eq!(real.daemon.run(&["output", &word]).success().stdout_text().trim_end(), "chunk 1");
    let stderr = real.daemon.run(&["output", "--result", &word]).expect_code(65).stderr;
    assert!(stderr.contains("not complete"), "{stderr}");
    real.model.release("gate");
    real.daemon.run(&["block", &word]).success();
    assert_eq!(real.daemon.run(&["output", &word]).success().stdout_text().trim_end(), "chunk 1 chunk 2");
    assert_eq!(real.answer(id), "chunk 1 chunk 2");
}

/// R30 to R34, R38: a conversation of several turns, with the agent killed between two of them.
#[track_caller]
pub fn a_conversation_goes_on(real: &Real) {
    let id = real.turn("one");
    let word = id.to_string();
    assert_eq!(real.follow_up(id, "SAY second"), "second");
    assert_eq!(real.history(id), ["one", "SAY second"]);
    let listed = real.daemon.run(&["list"]).success().stdout_text();
    assert!(listed.contains("(resumed)"), "{listed}");

    let process = real.process(id);
    let session = real.session(id);
    process.kill();
    let stdout = real.daemon.run(&["resume", &word, "HOLD here\nSAY third"]).success().stdout_text();
    assert_eq!(stdout.trim(), word, "it comes back while there is no answer");
    real.model.wait_for_turn("HOLD here");
    let task = real.daemon.task(id);
    assert_eq!((task.status, task.resume_count), (Status::Resumed, 2));
    let stderr = real.daemon.run(&["resume", &word, "too early"]).expect_code(65).stderr;
    assert!(stderr.contains("currently being resumed"), "{stderr}");
    real.model.release("here");
    real.completed(id);
    assert_eq!(real.answer(id), "third");
    assert_eq!(real.history(id), ["one", "SAY second", "HOLD here\nSAY third"]);
    assert_eq!(real.output(id), "answer to: one\n\nsecond\n\nthird\n", "no turn is played back into it");
    assert_eq!(real.session(id), session);
    assert_ne!(real.process(id).pid(), process.pid());
}

/// R35: the agent has lost a session, which was deleted after the task completed.
#[track_caller]
pub fn an_expired_session_leaves_the_task_as_it_was(real: &Real, id: TaskId) {
    let before = real.daemon.task(id);
    let answer = real.answer(id);
    let stderr = real.daemon.run(&["resume", &id.to_string(), "and then?"]).expect_code(65).stderr;
    assert!(stderr.contains("new task"), "{stderr}");
    let error = real.daemon.try_resume(id, "and then?").expect_err("the session is gone");
    assert_eq!(error.data.kind.as_str(), "session_expired", "{error:?}");
    let after = real.daemon.task(id);
    assert_eq!((after.status, after.run, after.resume_count), (Status::Completed, before.run, 0));
    assert_eq!(real.answer(id), answer);
    assert_eq!(real.output(id), format!("{answer}\n"));
    // Only the session is gone, not the agent.
    let other = real.turn("SAY another one");
    assert_eq!(real.answer(other), "another one");
}

/// R36: the model fails a turn that was resumed, and the agent dies in the middle of another one.
#[track_caller]
pub fn a_resume_that_was_accepted_may_fail(real: &Real) {
    let ids = [real.turn("SAY one"), real.turn("SAY two")];
    real.daemon.run(&["resume", &ids[0].to_string(), "ERROR 400"]).success();
    let why = real.failed(ids[0]);
    assert!(why.contains("the model answers with 400"), "{why}");

    real.daemon.run(&["resume", &ids[1].to_string(), "HOLD till death"]).success();
    real.model.wait_for_turn("HOLD till death");
    assert_eq!(real.daemon.task(ids[1]).status, Status::Resumed);
    let began = Instant::now();
    real.process(ids[1]).kill();
    let why = real.failed(ids[1]);
    assert!(why.contains("was ended by signal 9"), "{why}");
    assert!(began.elapsed() < AT_ONCE, "it was noticed after {:?}", began.elapsed());
    for id in ids {
        let task = real.daemon.task(id);
        assert_eq!((task.run, task.resume_count), (2, 1));
        let stderr = real.daemon.run(&["resume", &id.to_string(), "again"]).expect_code(65).stderr;
        assert!(stderr.contains("only completed tasks can be resumed"), "{stderr}");
    }
}

/// An error of the model becomes the task's, with its reason.
#[track_caller]
pub fn an_error_of_the_model_has_its_reason(real: &Real, status: u16, reason: &str) {
    let id = real.submit(&format!("ERROR {status}"));
    let why = real.failed(id);
    assert!(why.contains(reason), "{why}");
}

/// An error that the agent retries forever: only a time limit or a cancel ends the turn. The agent has a
/// `stalled_after` of a second.
#[track_caller]
pub fn endless_patience_has_an_end(real: &Real) {
    let limited = real.submit_to(&real.agent, &["--time-limit", "3s"], "ERROR 500");
    let mut watch = real.daemon.watch();
    let other = real.submit("ERROR 500");
    watch.until(|event| event.task.id == other && event.task.progress.stalled);
    let why = real.failed(limited);
    assert!(why.contains("timed out after 3s"), "{why}");
    is_cancelled(real, other);
    real.nothing_left();
}

/// Cancels a task by `bgctl`. The agent must end the turn by itself, because the grace period is too long to matter.
#[track_caller]
pub fn is_cancelled(real: &Real, id: TaskId) {
    real.daemon.run(&["cancel", "--grace", "1h", &id.to_string()]).success();
    assert_eq!(real.daemon.task(id).status, Status::Cancelled);
}

/// R05: a turn that waits for the model ends, and so does the agent, which has no other work.
#[track_caller]
pub fn a_held_turn_is_cancelled(real: &Real) {
    let id = real.submit_until_asked("HOLD never");
    is_cancelled(real, id);
    real.model.wait_for_leaving("HOLD never");
    real.nothing_left();
    // The next turn gets another process.
    assert_eq!(real.answer(real.turn("SAY next")), "next");
}

/// Starts a turn that runs a command. Returns the task and the command's process.
#[track_caller]
pub fn with_a_command(real: &Real, shell: &Shell) -> (TaskId, Process) {
    let file = real.daemon.home().join("pid");
    let id = real.submit(&shell.order("echo $$ > pid; exec sleep 1000"));
    let pid = wait::for_line(&file, "").parse().expect("a number");
    let command = Process::open(pid).expect("the command runs");
    if let Some(agent) = real.daemon.task(id).pid.and_then(Process::open) {
        assert_ne!(session_of(&command), session_of(&agent), "it has a session of its own");
    }
    (id, command)
}

/// R05: a command that the agent runs ends with the turn, although it has a session of its own.
#[track_caller]
pub fn a_turn_is_cancelled_with_its_command(real: &Real, shell: &Shell) {
    let (id, command) = with_a_command(real, shell);
    is_cancelled(real, id);
    command.gone();
    real.nothing_left();
}

/// A turn in the process of a cancelled one completes, and then that process ends, as it gets no new turns. `meanwhile`
/// is called with the process and the cancelled turn's command.
#[track_caller]
pub fn a_turn_beside_a_cancelled_one_completes(
    real: &Real,
    shell: &Shell,
    meanwhile: impl FnOnce(&Process, &Process),
) {
    let neighbour = real.submit_until_asked("HOLD neighbour");
    let (id, command) = with_a_command(real, shell);
    let process = real.process(id);
    assert_eq!(real.process(neighbour).pid(), process.pid());
    is_cancelled(real, id);
    meanwhile(&process, &command);
    assert_eq!(real.daemon.task(neighbour).status, Status::Running);
    real.model.release("neighbour");
    real.completed(neighbour);
    assert_eq!(real.answer(neighbour), "answer to: HOLD neighbour");
    process.gone();
    command.gone();
}

fn session_of(process: &Process) -> Option<i32> {
    let pid = nix::unistd::Pid::from_raw(process.pid());
    nix::unistd::getsid(Some(pid)).ok().map(nix::unistd::Pid::as_raw)
}

/// Questions of an opencode that asks are passed on, allowed or denied, according to its `permissions`. Returns the
/// daemon, and the task whose request was denied.
#[track_caller]
pub fn what_opencode_asks(agent: impl FnOnce(&AgentHome<'_>) -> Entry) -> (Real, TaskId) {
    let real = Real::start(|place| {
        let entry = agent(place);
        // The other agents end once they have answered, so that at most two of them run.
        [("ask", "1h"), ("allow", "0s"), ("deny", "0s")]
            .map(|(name, warm)| entry.clone().named(name).with("permissions", name).with("keep_warm", warm))
            .to_vec()
    });
    a_question_is_answered(&real, &Shell::OPENCODE);
    let order = Shell::OPENCODE.order("echo $((6 * 7)) | tee made");
    let [denied, allowed] = ["deny", "allow"].map(|agent| {
        let id = real.submit_to(agent, &[], &order);
        real.completed(id);
        assert_eq!(real.daemon.home().join("made").exists(), agent == "allow");
        id
    });
    assert_eq!(real.answer(allowed), "the tool said: 42");
    let id = real.submit(&order).to_string();
    real.daemon.run(&["answer", &id, "--wait"]).success();
    real.daemon.run(&["answer", &id, "deny"]).success();
    real.completed(id.parse().unwrap());
    (real, denied)
}

/// A question of the agent is answered by `bgctl answer`. Both the agent's `permissions` and its own settings
/// are set to ask.
#[track_caller]
pub fn a_question_is_answered(real: &Real, shell: &Shell) {
    let order = shell.order("echo $((6 * 7))");
    let id = real.submit(&order).to_string();
    let asked = real.daemon.run(&["answer", &id, "--wait"]).success().stdout_text();
    assert!(asked.contains("echo $((6 * 7))"), "{asked}");
    let listed = real.daemon.run(&["list"]).success().stdout_text();
    assert!(listed.contains("(asks)"), "{listed}");
    real.daemon.run(&["answer", &id, "allow"]).success();
    let id = id.parse().expect("an id");
    let task = real.completed(id);
    let answer = real.answer(id);
    assert!(answer.starts_with("the tool said: ") && answer.contains("42"), "{answer}");
    assert_eq!(task.progress.tool_calls, 1, "{:?}", task.progress);
    assert_eq!(task.progress.needs_input, None);
}

/// Returns the memory of all agents and the processes they have started, in kB.
#[track_caller]
pub fn memory_kb(real: &Real) -> u64 {
    real.daemon.task_processes().iter().filter_map(|process| process.status_value("VmRSS")).sum()
}

/// Ten sessions share one process, using little more memory than a single one. Then the daemon ends in the middle of
/// their turns, and they end with it. The agent's `max_sessions` must be at least ten. Returns the memory with one
/// session and with ten, in kB.
#[track_caller]
pub fn ten_sessions_share_a_process(mut real: Real) -> [u64; 2] {
    let first = real.turn("SAY first");
    let process = real.process(first);
    let one = memory_kb(&real);
    let ids: Vec<TaskId> = (2..=10).map(|number| real.submit(&format!("HOLD all\nSAY {number}"))).collect();
    for number in 2..=10 {
        real.model.wait_for_turn(&format!("HOLD all\nSAY {number}"));
    }
    for _ in &ids {
        real.model.release("all");
    }
    for (id, number) in ids.iter().zip(2..) {
        real.completed(*id);
        assert_eq!(real.answer(*id), number.to_string(), "answers go to their own tasks");
    }
    let ten = memory_kb(&real);
    let pids: Vec<_> = ids.iter().map(|id| real.daemon.task(*id).pid).collect();
    assert_eq!(pids, [Some(process.pid()); 9]);
    assert!(ten * 2 <= one * 3, "{ten} kB with ten sessions, {one} kB with one");

    for id in ids.iter().chain([&first]) {
        real.daemon.run(&["resume", &id.to_string(), &format!("HOLD {id}")]).success();
        real.model.wait_for_turn(&format!("HOLD {id}"));
    }
    assert_eq!(real.daemon.status().active, 10);
    assert!(real.daemon.stop().success());
    let left = processes_of(real.daemon.home());
    assert!(left.iter().all(|process| process.wait_gone(Duration::from_secs(5))), "{left:?}");
    [one, ten]
}
