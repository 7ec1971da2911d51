//! codex-acp as an agent: the real program, started by the daemon, with a scripted model on loopback.

use std::fs;
use std::path::{Path, PathBuf};

use bgd_tests::agents::Permission;
use bgd_tests::real::Real;
use bgd_tests::real::cases::{self, Shell};

fn codex() -> Real {
    Real::codex(Permission::Allow, "deny")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn r20_text_streams_and_r30_conversation_survives_killed_agent() {
    let real = codex();
    cases::text_streams(&real);
    cases::a_conversation_goes_on(&real);
}

#[test]
fn r35_resume_of_deleted_session_leaves_task_completed() {
    let real = codex();
    let id = real.turn("SAY it once");
    real.process(id).kill();
    let session = real.session(id);
    let rollouts = files(&real.daemon.home().join(".codex/sessions"));
    let mine = rollouts.iter().find(|path| path.to_string_lossy().contains(&session));
    fs::remove_file(mine.expect("the session has a file")).unwrap();
    cases::an_expired_session_leaves_the_task_as_it_was(&real, id);
}

#[test]
fn r36_accepted_resume_can_fail_later() {
    cases::a_resume_that_was_accepted_may_fail(&codex());
}

#[test]
fn model_of_submit_is_used_until_resume_names_another() {
    let real = codex();
    let id = real.submit_with(&["--model", "gpt-5.4", "--mode", "auto"], "SAY one");
    real.completed(id);
    let model = |words: &str| real.model.wait_for_turn(words).model;
    assert_eq!(model("SAY one"), "gpt-5.4");
    real.follow_up(id, "SAY two");
    assert_eq!(model("SAY two"), "gpt-5.4", "it holds for the follow-up");
    real.daemon.run(&["resume", &id.to_string(), "--model", "gpt-5.5", "SAY three"]).success();
    real.completed(id);
    assert_eq!(model("SAY three"), "gpt-5.5");
    let why = real.failed(real.submit_with(&["--mode", "yolo"], "SAY four"));
    assert!(why.contains("no mode \"yolo\"") && why.contains("read-only, auto, full-access"), "{why}");
}

#[test]
fn model_errors_fail_task_with_their_reason() {
    let real = codex();
    for (status, reason) in [
        (400, "the model answers with 400"),
        (401, "401 Unauthorized: the model answers with 401"),
        (500, "high demand"),
    ] {
        cases::an_error_of_the_model_has_its_reason(&real, status, reason);
    }
    let why = real.failed(real.submit("CUT half"));
    assert!(why.contains("max_output_tokens"), "{why}");
}

#[test]
fn r05_cancel_ends_turn_with_its_commands() {
    let real = codex();
    cases::a_held_turn_is_cancelled(&real);
    cases::a_turn_is_cancelled_with_its_command(&real, &Shell::CODEX);
}

#[test]
fn turn_beside_cancelled_one_completes_before_process_and_command_end() {
    let real = codex();
    // codex lets the command of a cancelled turn run on, and that command could belong to any session of the process.
    cases::a_turn_beside_a_cancelled_one_completes(&real, &Shell::CODEX, |process, _| {
        let fresh = real.turn("SAY elsewhere");
        assert_ne!(real.process(fresh).pid(), process.pid(), "no new turn comes into it");
    });
}

#[test]
fn permission_requests_are_denied_allowed_or_passed_to_user() {
    let real = Real::start(|place| {
        let entry = place.codex(Permission::Ask);
        ["ask", "allow", "deny"].map(|name| entry.clone().named(name).with("permissions", name)).to_vec()
    });
    cases::a_question_is_answered(&real, &Shell::CODEX_OUTSIDE);
    let order = Shell::CODEX_OUTSIDE.order("echo $((6 * 7)) | tee made");
    let why = real.failed(real.submit_to("deny", &[], &order));
    assert!(why.contains("a permission was denied"), "{why}");
    assert!(!real.daemon.home().join("made").exists());
    let id = real.submit(&order).to_string();
    real.daemon.run(&["answer", &id, "--wait"]).success();
    real.daemon.run(&["answer", &id, "deny"]).success();
    let why = real.failed(id.parse().unwrap());
    assert!(why.contains("you denied a permission"), "{why}");
    assert!(!real.daemon.home().join("made").exists());
    let id = real.submit_to("allow", &[], &order);
    real.completed(id);
    assert!(real.answer(id).contains("42"));
    assert_eq!(fs::read_to_string(real.daemon.home().join("made")).unwrap(), "42\n");
}

#[test]
fn r11_ten_sessions_share_process_and_end_with_daemon() {
    let real = Real::start(|place| vec![place.codex(Permission::Allow).with("max_sessions", 10)]);
    let [one, ten] = cases::ten_sessions_share_a_process(real);
    println!("codex-acp: {one} kB with one session, {ten} kB with ten");
}
