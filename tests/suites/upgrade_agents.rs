//! Agents across an upgrade in place (R121): their processes stay the same, conversations continue, and so do turns
//! that are under way, with their questions. No output of an agent is lost or repeated.

use std::fs;
use std::path::Path;
use std::thread;

use bgd_tests::agents::Permission;
use bgd_tests::real::Real;
use bgd_tests::real::cases::Shell;
use bgd_tests::shared::agent::AnswerParams;
use bgd_tests::shared::event::{Event, EventKind};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{AgentAnswer, Stream};
use bgd_tests::shared::task::Status;
use bgd_tests::templates::{Gate, REMEMBER, reading_agent, remembering_agent, shell_agent, toml_words};
use bgd_tests::upgrades::{has_only_threads, lasting_threads, upgrade, upgrade_under_load};
use bgd_tests::{FakeDaemon, Outcome, TestDaemon, Watch, wait};

#[track_caller]
fn answer(daemon: &TestDaemon, id: TaskId, request: u64, option: &str) {
    let params = AnswerParams { id: id.into(), request, option: Some(option.to_owned()) };
    daemon.client().call::<AgentAnswer>(&params).expect("the question is open");
}

#[track_caller]
fn asked(watch: &mut Watch, id: TaskId, request: u64) {
    let asks = |event: &Event| {
        let asked = event.task.progress.needs_input.as_ref();
        event.task.id == id && asked.is_some_and(|asked| asked.request == request)
    };
    watch.until(|event| event.kind == EventKind::NeedsInput && asks(event));
}

#[track_caller]
fn output_is(daemon: &TestDaemon, id: TaskId, text: &str) {
    wait::poll_until(text, || (daemon.output(id) == text.as_bytes()).then_some(()));
}

fn descriptors(daemon: &TestDaemon) -> usize {
    daemon.process().descriptors().unwrap()
}

#[test]
fn r121_conversation_between_prompts_keeps_its_process_after_upgrade() {
    let daemon = FakeDaemon::start(&[], "");
    let first = daemon.completed("say one");
    let other = daemon.completed("say other");
    upgrade(&daemon);
    for (id, pid) in [(first.id, first.pid), (other.id, other.pid)] {
        daemon.resume(id, "count");
        let task = daemon.ends_as(id, Status::Completed);
        assert_eq!((task.pid, daemon.result(id)), (pid, "2".to_owned()));
    }
    let new = daemon.completed("say new");
    assert_eq!(new.pid, first.pid, "the process takes new conversations, too");
    let home = daemon.fake_home();
    assert!(home.received("session/load").is_empty() && home.received("session/resume").is_empty());
    assert_eq!((home.received("initialize").len(), home.started().len()), (1, 1));
}

#[test]
fn r121_turn_in_progress_continues_after_upgrade() {
    const TEXT: &str = "half a word";
    let daemon = FakeDaemon::start(&[], "");
    let id = daemon.prompt("say half a wo; await go; say rd");
    output_is(&daemon, id, "half a wo");
    let before = daemon.task(id);
    let mut watch = daemon.watch();
    upgrade(&daemon);
    upgrade(&daemon);
    assert_eq!(daemon.task(id).status, Status::Running);
    daemon.touch("go");
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!((task.pid, task.agent_session, task.run), (before.pid, before.agent_session, 1));
    assert_eq!(daemon.result(id), TEXT);
    assert_eq!(daemon.output(id), format!("{TEXT}\n").into_bytes());
    watch.until_kind(id, EventKind::Completed);
    assert_eq!(daemon.fake_home().received("session/prompt").len(), 1, "the prompt is given once");
    daemon.resume(id, "count");
    assert_eq!(daemon.ends_as(id, Status::Completed).pid, before.pid);
}

#[test]
fn r121_pending_question_can_be_answered_after_upgrade() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut watch = daemon.watch();
    let id = daemon.prompt("say so:; ask Run make?; say \\n; ask And make install?");
    asked(&mut watch, id, 1);
    let question = daemon.task(id).progress.needs_input;
    upgrade(&daemon);
    assert_eq!(daemon.task(id).progress.needs_input, question, "nobody is asked again");
    daemon.run(&["answer", &id.to_string(), "allow-always"]).success();
    asked(&mut watch, id, 2);
    upgrade(&daemon);
    answer(&daemon, id, 2, "reject-once");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.output(id), b"so:allowed: allow-always\ndenied\n");
}

#[test]
fn r121_cancel_after_upgrade_ends_turn_and_withdraws_question() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let mut watch = daemon.watch();
    let id = daemon.prompt("say begun; ask May I?");
    asked(&mut watch, id, 1);
    upgrade(&daemon);
    daemon.cancel(&[id]);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.progress.needs_input), (Status::Cancelled, None));
    assert_eq!(daemon.fake_home().received("session/cancel").len(), 1);
}

#[test]
fn r121_check_of_silent_agent_does_not_delay_upgrade() {
    let line = "touch begun; exec sleep 1000";
    let config = format!("[agents.mute]\ncommand = {}\n", toml_words(&["sh", "-c", line]));
    let daemon = TestDaemon::builder().config(config).start();
    let mut check = daemon.bgctl(&["agents", "--check", "mute"]);
    let check = thread::spawn(move || Outcome::of(&mut check));
    wait::for_file(&daemon.home().join("begun"));
    upgrade(&daemon);
    let checked = check.join().unwrap().expect_code(69).stdout_text();
    let why = "mute\tacp\tdoes not start: its check was given up, as the daemon was upgraded: try again\t";
    assert!(checked.starts_with(why), "{checked}");
    wait::poll_until("its end", || daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn r121_queued_prompts_are_sent_after_upgrade() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 1", &[], "");
    let first = daemon.prompt("await go; say one");
    daemon.wait_running(first);
    let second = daemon.prompt("say two");
    upgrade(&daemon);
    daemon.touch("go");
    daemon.ends_as(second, Status::Completed);
    assert_eq!((daemon.result(first), daemon.result(second)), ("one".into(), "two".into()));
}

#[test]
fn r121_ten_turns_over_twenty_upgrades_lose_and_leak_nothing() {
    const TURNS: usize = 10;
    const UPGRADES: usize = 20;
    let config = format!("max_concurrent_tasks = {TURNS}");
    let daemon = FakeDaemon::with(&config, &[], "permissions = \"ask\"\nmax_sessions = 3");
    let script = |turn: usize| {
        let step = |number: usize| format!("say {turn}.{number}\\n; await go{number}; ");
        (0..UPGRADES).map(step).collect::<String>() + "ask May I?"
    };
    let turns: Vec<TaskId> = (0..TURNS).map(|turn| daemon.prompt(&script(turn))).collect();
    let said = |turn: usize, until: usize| -> String {
        (0..until).flat_map(|number| [turn.to_string(), format!(".{number}\n")]).collect()
    };
    let mut before = None;
    for number in 0..UPGRADES {
        for (turn, id) in turns.iter().enumerate() {
            output_is(&daemon, *id, &said(turn, number + 1));
        }
        if number == 1 {
            // Everything has been made again after the first upgrade.
            before = Some((descriptors(&daemon), lasting_threads(&daemon)));
        }
        // Some of their output comes while the program changes.
        if number % 2 == 0 {
            daemon.touch(&format!("go{number}"));
        }
        upgrade_under_load(&daemon);
        daemon.touch(&format!("go{number}"));
    }
    for id in &turns {
        wait::poll_until("it asks", || daemon.task(*id).progress.needs_input.map(drop));
    }
    let (opened, threads) = before.expect("there were upgrades");
    wait::poll_until("as many descriptors as before", || (descriptors(&daemon) <= opened).then_some(()));
    has_only_threads(&daemon, &threads);
    for (turn, id) in turns.iter().enumerate() {
        answer(&daemon, *id, 1, "allow-once");
        daemon.ends_as(*id, Status::Completed);
        let all = format!("{}allowed: allow-once\n", said(turn, UPGRADES));
        assert_eq!(String::from_utf8_lossy(&daemon.output(*id)), all);
    }
    assert_eq!(daemon.fake_home().received("session/prompt").len(), TURNS);
    assert_eq!(daemon.fake_home().started().len(), 4);
}

#[test]
fn r121_agent_with_prompt_on_command_line_survives_upgrade() {
    let agent =
        shell_agent("x", "echo \"got $1\"; echo note >&2; read line < gate; echo \"$line\"; exit 0", "");
    let agents = format!("{agent}\n{}", remembering_agent("y", REMEMBER));
    let daemon = TestDaemon::builder().config(agents).start();
    let mut gate = Gate::new(daemon.home(), "gate");
    let remembered = daemon.submit_prompt("y", "one");
    daemon.block(&[remembered]);
    let id = daemon.submit_prompt("x", "a prompt");
    output_is(&daemon, id, "got a prompt\n");
    upgrade(&daemon);
    assert_eq!(daemon.task(id).status, Status::Running);
    gate.open();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, daemon.result(id)), (Status::Completed, "got a prompt".into()));
    assert_eq!(daemon.stream(id, Stream::Stderr), b"note\n");
    daemon.resume(remembered, "two");
    daemon.block(&[remembered]);
    assert_eq!(daemon.result(remembered), "one;two;");
}

#[test]
fn r121_rest_of_long_prompt_reaches_agent_after_upgrade() {
    let line = "head -c 10 > begun; read line < gate; cat > rest; wc -c < rest";
    let daemon = TestDaemon::builder().config(reading_agent("x", line, "")).start();
    let mut gate = Gate::new(daemon.home(), "gate");
    // Much more than the capacity of a pipe.
    let prompt: String = (0..100_000).flat_map(|number| [format!("{number:07}"), "\n".to_owned()]).collect();
    let id = daemon.submit_prompt("x", &prompt);
    wait::for_file(&daemon.home().join("begun"));
    upgrade(&daemon);
    gate.open();
    daemon.block(&[id]);
    let read = |name: &str| fs::read(Path::new(daemon.home()).join(name)).expect("it was written");
    assert_eq!([read("begun"), read("rest")].concat(), prompt.as_bytes());
}

/// A turn of a real agent continues across upgrades: in the middle of its text, then at a question, then in a
/// follow-up.
#[track_caller]
fn a_real_turn_goes_on(real: &Real, shell: &Shell) {
    let id = real.submit_until_asked("SLOW gate 3");
    real.model.release("gate");
    real.wait_output(id, "chunk 1");
    let pid = real.daemon.task(id).pid;
    // Once its events were interrupted, a server has the rest of a streamed text only at the text's end.
    for _ in 0..2 {
        upgrade(&real.daemon);
        real.model.release("gate");
    }
    let task = real.completed(id);
    assert_eq!((real.answer(id), task.pid), ("chunk 1 chunk 2 chunk 3".to_owned(), pid));
    assert_eq!(real.output(id).trim_end(), "chunk 1 chunk 2 chunk 3");

    let asking = real.submit(&shell.order("echo $((6 * 7))")).to_string();
    real.daemon.run(&["answer", &asking, "--wait"]).success();
    let asks = asking.parse().expect("an id");
    let question = real.daemon.task(asks).progress.needs_input;
    upgrade(&real.daemon);
    assert_eq!(real.daemon.task(asks).progress.needs_input, question, "nobody is asked again");
    real.daemon.run(&["answer", &asking, "allow"]).success();
    real.completed(asks);
    assert!(real.answer(asks).contains("42"), "{}", real.answer(asks));
    upgrade(&real.daemon);
    assert_eq!(real.follow_up(id, "SAY again"), "again");
    assert_eq!(real.daemon.task(id).pid, pid, "it is still the same process");
}

#[test]
fn r121_opencode_server_turn_survives_upgrade() {
    a_real_turn_goes_on(&Real::opencode_server(Permission::Ask, "ask"), &Shell::OPENCODE);
}

#[test]
fn r121_opencode_acp_turn_survives_upgrade() {
    a_real_turn_goes_on(&Real::opencode(Permission::Ask, "ask"), &Shell::OPENCODE);
}

#[test]
fn r121_codex_turn_survives_upgrade() {
    a_real_turn_goes_on(&Real::codex(Permission::Ask, "ask"), &Shell::CODEX_OUTSIDE);
}
