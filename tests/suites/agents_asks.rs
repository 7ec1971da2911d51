//! Permissions: an agent asks, and is denied, allowed, or waits until somebody answers.

use std::fs;
use std::path::Path;

use bgd_tests::shared::agent::{AnswerParams, NeedsInput, OptionKind};
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::{ErrorKind, RpcError};
use bgd_tests::shared::event::{Event, EventKind};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{AgentAnswer, SubmitParams};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::{FakeDaemon, Watch, bgctl_path, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const ASK: &str = "permissions = \"ask\"";

#[track_caller]
fn answer(daemon: &FakeDaemon, id: TaskId, request: u64, option: &str) -> Result<Task, RpcError> {
    let params = AnswerParams { id: id.into(), request, option: Some(option.to_owned()) };
    match daemon.client().call::<AgentAnswer>(&params) {
        Ok(result) => Ok(result.task),
        Err(ClientError::Rpc(error)) => Err(error),
        Err(error) => panic!("agent.answer: {error}"),
    }
}

#[track_caller]
fn asked(watch: &mut Watch, id: TaskId, request: u64) -> NeedsInput {
    let asks = |event: &Event| {
        let asked = event.task.progress.needs_input.as_ref();
        event.task.id == id && asked.is_some_and(|asked| asked.request == request)
    };
    watch.until(|event| event.kind == EventKind::NeedsInput && asks(event)).task.progress.needs_input.unwrap()
}

#[test]
fn permission_requests_are_denied_by_default() {
    let daemon = FakeDaemon::start(&[], "");
    let task = daemon.completed("ask May I?");
    assert_eq!(daemon.result(task.id), "denied");
    let task = daemon.completed("ask-many 20");
    assert_eq!(daemon.result(task.id), vec!["denied"; 20].join("\n"));
}

#[test]
fn configured_allow_grants_each_permission_request_once() {
    let daemon = FakeDaemon::start(&[], "permissions = \"allow\"");
    let task = daemon.completed("ask May I?; say \\n; ask-many 2");
    assert_eq!(daemon.result(task.id), "allowed: allow-once\n".repeat(3).trim_end());
}

#[test]
fn permission_request_waits_for_answer() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask Run make?; say \\n; ask And make install?");
    let question = asked(&mut watch, id, 1);
    assert!(question.question.contains("Run make?") && question.expires_at.is_some());
    assert_eq!(question.waiting, 0);
    let kinds: Vec<_> = question.options.iter().map(|option| option.kind).collect();
    let all =
        [OptionKind::AllowOnce, OptionKind::AllowAlways, OptionKind::RejectOnce, OptionKind::RejectAlways];
    assert_eq!(kinds, all);
    let task = daemon.task(id);
    assert_eq!((task.status, task.progress.needs_input.as_ref()), (Status::Running, Some(&question)));

    let error = answer(&daemon, id, 1, "maybe").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidParams);
    assert!(error.data.hint.as_deref().unwrap_or_default().contains("allow-once"), "{error:?}");
    assert_eq!(answer(&daemon, id, 7, "allow-once").unwrap_err().kind(), ErrorKind::AlreadyFinished);
    let task = answer(&daemon, id, 1, "allow-always").unwrap();
    assert_eq!(task.progress.needs_input, None);
    asked(&mut watch, id, 2);
    assert_eq!(answer(&daemon, id, 1, "allow-once").unwrap_err().kind(), ErrorKind::AlreadyFinished);
    answer(&daemon, id, 2, "reject-once").unwrap();
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!(task.progress.needs_input, None);
    assert_eq!(daemon.result(id), "allowed: allow-always\ndenied");
    assert_eq!(answer(&daemon, id, 2, "allow-once").unwrap_err().kind(), ErrorKind::AlreadyFinished);
}

#[test]
fn bgctl_shows_and_answers_permission_request() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask Run make?; await go; say \\n; ask Again?");
    asked(&mut watch, id, 1);
    let text = id.to_string();
    assert!(daemon.run(&["list"]).success().stdout_text().contains("(asks)"));
    let shown = daemon.run(&["answer", &text]).success().stdout_text();
    assert!(shown.contains("question 1: Run make?") && shown.contains("allow-once"), "{shown}");
    assert!(daemon.run(&["status", &text]).success().stdout_text().contains("Run make?"));
    daemon.run(&["answer", &text, "maybe"]).expect_code(2);
    daemon.run(&["answer", &text, "allow", "--request", "2"]).expect_code(65);
    let said = daemon.run(&["answer", &text, "allow", "--request", "1"]).success().stdout_text();
    assert!(said.contains("answered question 1: Allow once"), "{said}");
    daemon.run(&["answer", &text, "allow"]).expect_code(65);
    daemon.touch("go");
    asked(&mut watch, id, 2);
    daemon.run(&["answer", &text, "Reject always"]).success();
    daemon.run(&["block", &text]).success();
    assert_eq!(daemon.result(id), "allowed: allow-once\ndenied");
    daemon.run(&["answer", &TaskId::random().to_string()]).expect_code(66);
}

/// A request as claude-agent-acp 0.101 sends it: the title is the model's own description of the command.
const LIES: &str = r#"ask-call {"title":"List files","kind":"execute","rawInput":{"command":"rm -rf build","description":"List files"},"locations":[{"path":"/srv/build"}],"content":[{"type":"diff","path":"/srv/a","oldText":"old","newText":"new"}]}"#;

#[test]
fn question_shows_actual_command_before_its_title() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let params = SubmitParams { session: Some("s".into()), ..daemon.prompt_params(LIES) };
    let id = daemon.submit_with(&params).id;
    let question = asked(&mut watch, id, 1).question;
    let lines = [
        "command: rm -rf build",
        "paths: /srv/build",
        "changes: /srv/a (line 1)",
        "  -old",
        "  +new",
        "input: {\"description\":\"List files\"}",
        "title: List files (execute)",
    ];
    assert_eq!(question.lines().collect::<Vec<_>>(), lines);
    let text = id.to_string();
    for args in [&["answer", &text][..], &["status", &text]] {
        let shown = daemon.run(args).success().stdout_text();
        let places: Vec<Option<usize>> = lines.iter().map(|line| shown.find(line)).collect();
        assert!(places.is_sorted() && places[0].is_some(), "{places:?} in\n{shown}");
    }
    let shown = daemon.run(&["status", &text, "--json"]).success().stdout_text();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["task"]["progress"]["needs_input"]["question"], question);
    let stdout = daemon.run(&["inbox", "--session", "s"]).success().stdout_text();
    assert!(stdout.contains("command: rm -rf build"), "{stdout}");
    answer(&daemon, id, 1, "reject-once").unwrap();
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!(task.progress.last_denied, None, "somebody decided that");
}

#[test]
fn unanswered_question_is_denied_after_ask_timeout() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"\nask_timeout = \"200ms\"");
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask Anybody here?; await go");
    asked(&mut watch, id, 1);
    let event = watch.until(|event| event.task.progress.needs_input.is_none());
    assert_eq!((event.kind, event.task.status), (EventKind::Progress, Status::Running));
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "denied");
}

#[test]
fn agent_waiting_for_answer_is_not_marked_stalled() {
    let daemon =
        FakeDaemon::start(&[], "permissions = \"ask\"\nask_timeout = \"600ms\"\nstalled_after = \"50ms\"");
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask Anybody here?");
    asked(&mut watch, id, 1);
    // The end of the question would also clear the mark, so every change before it is looked at.
    watch.until(|event| {
        assert!(!event.task.progress.stalled, "{:?}", event.task);
        event.task.progress.needs_input.is_none()
    });
    daemon.ends_as(id, Status::Completed);
}

#[test]
fn queued_questions_are_shown_in_order_and_answered_in_any_order() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask-many 3");
    watch.until(|event| {
        let asked = event.task.progress.needs_input.as_ref();
        asked.is_some_and(|asked| (asked.request, asked.waiting) == (1, 2))
    });
    let next = answer(&daemon, id, 2, "allow-once").unwrap().progress.needs_input.unwrap();
    assert_eq!((next.request, next.waiting), (1, 1));
    let next = answer(&daemon, id, 1, "reject-once").unwrap().progress.needs_input.unwrap();
    assert_eq!((next.request, next.waiting), (3, 0));
    assert!(next.question.contains("Question 3?"), "{}", next.question);
    answer(&daemon, id, 3, "allow-always").unwrap();
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "denied\nallowed: allow-once\nallowed: allow-always");
}

#[test]
fn questions_beyond_the_limit_are_denied() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask-many 70");
    watch.until(|event| event.task.progress.needs_input.as_ref().is_some_and(|asked| asked.waiting == 63));
    // An answer makes room for another question, so wait until all surplus questions have been denied.
    daemon.fake_home().wait_for(|journal| {
        let denied = journal.iter().filter(|line| line["received"]["result"]["outcome"].is_object());
        denied.count() == 6
    });
    for request in 1..=64 {
        answer(&daemon, id, request, "allow-once").unwrap();
    }
    daemon.ends_as(id, Status::Completed);
    let result = daemon.result(id);
    let count = |word: &str| result.lines().filter(|line| *line == word).count();
    assert_eq!((count("allowed: allow-once"), count("denied")), (64, 6));
}

#[test]
fn questions_of_tasks_sharing_a_process_are_kept_apart() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let one = daemon.prompt("ask One?");
    assert!(asked(&mut watch, one, 1).question.contains("One?"));
    let other = daemon.prompt("ask Other?");
    assert!(asked(&mut watch, other, 1).question.contains("Other?"));
    assert_eq!(daemon.task(one).pid, daemon.task(other).pid);
    answer(&daemon, other, 1, "reject-once").unwrap();
    daemon.ends_as(other, Status::Completed);
    answer(&daemon, one, 1, "allow-once").unwrap();
    daemon.ends_as(one, Status::Completed);
    assert_eq!((daemon.result(one), daemon.result(other)), ("allowed: allow-once".into(), "denied".into()));
}

#[test]
fn r05_cancel_reaches_agent_before_its_question_is_withdrawn() {
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask Sure?; touch went-on");
    asked(&mut watch, id, 1);
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.progress.needs_input), (Status::Cancelled, None));
    let journal = daemon.fake_home().journal();
    let place = |wanted: &dyn Fn(&serde_json::Value) -> bool| {
        journal.iter().position(|line| wanted(&line["received"])).expect("it was received")
    };
    let cancel = place(&|message| message["method"] == "session/cancel");
    let answer = place(&|message| message["result"]["outcome"]["outcome"] == "cancelled");
    assert!(cancel < answer, "else the agent could take the end of its turn for its own");
    assert!(!daemon.home().join("went-on").exists());
}

#[test]
fn r05_cancel_ends_turn_that_asks_forever() {
    for permissions in ["deny", "allow", "ask"] {
        let daemon = FakeDaemon::start(&[], &format!("permissions = \"{permissions}\""));
        let mut watch = daemon.watch();
        let id = daemon.prompt("ask-forever");
        for request in 1..=3 {
            if permissions == "ask" {
                asked(&mut watch, id, request);
                answer(&daemon, id, request, "allow-once").unwrap();
            }
        }
        daemon.wait_running(id);
        assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled, "{permissions}");
    }
}

/// Returns a shell command that starts a program which waits for a task id, answers the first question of that task and
/// reports the outcome.
fn answers(home: &Path, name: &str) -> String {
    let bgctl = bgctl_path();
    let (home, bgctl) = (home.display(), bgctl.display());
    format!(
        "read id < {home}/gate-{name}; {bgctl} --socket {home}/run/bgd/bgd.sock answer $id allow-once \
         > {home}/said-{name} 2>&1; echo code $? >> {home}/said-{name}"
    )
}

#[test]
fn agent_descendants_cannot_answer_its_question() {
    // Two programs that the agent starts: a child, and one that hides from it, without a mark and in a session of its
    // own. Both find the home through the agent's variable.
    let line = "({ read line < $FAKE_ACP_HOME/child; eval \"$line\"; } >/dev/null 2>&1 &); \
                setsid env -i PATH=\"$PATH\" F=\"$FAKE_ACP_HOME\" sh -c '(read line < $F/orphan; eval \"$line\") &' \
                </dev/null >/dev/null 2>&1; exec \"$0\"";
    let daemon = FakeDaemon::in_shell(line, ASK);
    let fake_home = daemon.fake_home().0;
    fs::create_dir_all(&fake_home).unwrap();
    for name in ["child", "orphan"] {
        mkfifo(&fake_home.join(name), Mode::S_IRWXU).unwrap();
        mkfifo(&daemon.home().join(format!("gate-{name}")), Mode::S_IRWXU).unwrap();
    }
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask May I?");
    asked(&mut watch, id, 1);
    for name in ["child", "orphan"] {
        wait::for_reader(&fake_home.join(name), answers(daemon.home(), name) + "\n");
        wait::for_reader(&daemon.home().join(format!("gate-{name}")), format!("{id}\n"));
        let said = daemon.home().join(format!("said-{name}"));
        assert_eq!(wait::for_line(&said, "code "), "code 77", "{}", fs::read_to_string(&said).unwrap());
        let said = fs::read_to_string(&said).unwrap();
        assert!(said.contains("can't answer its own question"), "{said}");
    }
    assert!(daemon.task(id).progress.needs_input.is_some(), "it still waits");
    answer(&daemon, id, 1, "reject-once").unwrap();
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "denied");
}

#[test]
fn agent_that_gives_up_names_who_denied() {
    let daemon = FakeDaemon::start(&[], "");
    let (_, error) = daemon.failed("ask May I?; stop cancelled");
    assert!(error.contains("a permission was denied (permissions in [agents.fake])"), "{error}");
    let daemon = FakeDaemon::start(&[], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask May I?; stop cancelled");
    asked(&mut watch, id, 1);
    answer(&daemon, id, 1, "reject-once").unwrap();
    let error = daemon.ends_as(id, Status::Failed).error.unwrap();
    assert_eq!(error, "the agent gave up when you denied a permission");
}

#[test]
fn request_without_rejecting_option_can_be_denied() {
    let daemon = FakeDaemon::start(&["--no-reject"], ASK);
    let mut watch = daemon.watch();
    let id = daemon.prompt("ask May I?; say \\n; ask And again?");
    let kinds: Vec<_> = asked(&mut watch, id, 1).options.iter().map(|option| option.kind).collect();
    assert_eq!(kinds, [OptionKind::AllowOnce, OptionKind::AllowAlways]);
    let said = daemon.run(&["answer", &id.to_string(), "deny"]).success().stdout_text();
    assert!(said.contains("answered question 1: denied"), "{said}");
    asked(&mut watch, id, 2);
    daemon.run(&["answer", &id.to_string(), "allow"]).success();
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "denied\nallowed: allow-once");
}
