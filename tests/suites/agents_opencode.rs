//! opencode as an agent, over the Agent Client Protocol: the real program, started by the daemon, with a scripted model
//! on loopback.

use bgd_tests::agents::Permission;
use bgd_tests::real::Real;
use bgd_tests::real::cases::{self, Shell};

fn opencode() -> Real {
    Real::opencode(Permission::Allow, "deny")
}

#[test]
fn r20_text_streams_and_r30_conversation_survives_killed_agent() {
    let real = opencode();
    cases::text_streams(&real);
    cases::a_conversation_goes_on(&real);
}

#[test]
fn r35_resume_of_deleted_session_leaves_task_completed() {
    let real = opencode();
    let id = real.turn("SAY it once");
    // A running process would still have the session in memory.
    real.process(id).kill();
    real.run_opencode(&["session", "delete", &real.session(id)]).success();
    cases::an_expired_session_leaves_the_task_as_it_was(&real, id);
}

#[test]
fn r36_accepted_resume_can_fail_later() {
    cases::a_resume_that_was_accepted_may_fail(&opencode());
}

#[test]
fn model_errors_are_reported_and_endless_retries_are_cut_off() {
    let real = Real::start(|place| vec![place.opencode(Permission::Allow).with("stalled_after", "1s")]);
    for status in [400, 401] {
        cases::an_error_of_the_model_has_its_reason(
            &real,
            status,
            &format!("the model answers with {status}"),
        );
    }
    cases::endless_patience_has_an_end(&real);
}

#[test]
fn r05_cancel_ends_turn_with_its_commands() {
    let real = opencode();
    cases::a_held_turn_is_cancelled(&real);
    cases::a_turn_is_cancelled_with_its_command(&real, &Shell::OPENCODE);
}

#[test]
fn turn_beside_cancelled_one_completes() {
    cases::a_turn_beside_a_cancelled_one_completes(&opencode(), &Shell::OPENCODE, |process, command| {
        command.gone();
        assert!(process.is_alive());
    });
}

#[test]
fn permission_requests_are_denied_allowed_or_passed_to_user() {
    let (real, denied) = cases::what_opencode_asks(|place| place.opencode(Permission::Ask));
    assert_eq!(real.answer(denied), "", "it gives the word back");
    assert_eq!(real.model.turns().len(), 6, "no step comes after a denial");
}

#[test]
fn r11_ten_sessions_share_process_and_end_with_daemon() {
    let real = Real::start(|place| vec![place.opencode(Permission::Allow).with("max_sessions", 10)]);
    let [one, ten] = cases::ten_sessions_share_a_process(real);
    println!("opencode acp: {one} kB with one session, {ten} kB with ten");
}

#[test]
fn agent_check_reports_version_without_sending_prompt() {
    let real = Real::start(|place| vec![place.opencode(Permission::Allow), place.codex(Permission::Allow)]);
    let stdout = real.daemon.run(&["agents", "--check", "opencode", "codex"]).success().stdout_text();
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2, "{stdout}");
    for (row, (name, version)) in rows.iter().zip([("opencode", "1.18.33"), ("codex", "0.16.0")]) {
        assert_eq!((row[0], row[1], row[3], row[4]), (name, "acp", version, "resume"), "{stdout}");
    }
    real.nothing_left();
    assert!(real.model.requests().is_empty(), "no prompt is sent");
}
