//! opencode as an agent, over the HTTP of its own server: the real program, started by the daemon or already running,
//! with a scripted model on loopback; and events that get lost on the way.

use bgd_shared::id::TaskId;
use bgd_shared::task::Status;
use bgd_tests::agents::Permission;
use bgd_tests::proxy::{Accident, Fate, Proxy};
use bgd_tests::real::cases::{self, Shell};
use bgd_tests::real::{Real, Served};
use serde_json::json;

fn server() -> Real {
    Real::opencode_server(Permission::Allow, "deny")
}

#[test]
fn r20_text_streams_and_r30_conversation_survives_killed_agent() {
    let real = server();
    let stdout = real.daemon.run(&["agents", "--check", "server"]).success().stdout_text();
    let row: Vec<&str> = stdout.trim_end().split('\t').collect();
    assert_eq!((row[0], row[1], row[3], row[4]), ("server", "opencode", "1.18.33", "resume"), "{stdout}");
    cases::text_streams(&real);
    cases::a_conversation_goes_on(&real);
}

#[test]
fn r160_usage_is_read_from_messages_and_summed_over_runs() {
    let real = server();
    let id = real.turn("SAY it once");
    let known = |id| {
        let usage = real.daemon.task(id).agent_usage.expect("it says so");
        (usage.input_tokens, usage.output_tokens, usage.context_tokens)
    };
    // The model reports this with each answer.
    assert_eq!(known(id), (Some(7), Some(3), Some(10)));
    assert_eq!(real.daemon.task(id).agent_usage.unwrap().cost.unwrap().currency, "USD");
    real.daemon.resume(id, "SAY it twice");
    real.daemon.block(&[id]);
    assert_eq!(known(id), (Some(14), Some(6), Some(10)), "both runs");
}

#[test]
fn r36_accepted_resume_can_fail_later() {
    cases::a_resume_that_was_accepted_may_fail(&server());
}

#[test]
fn model_errors_are_reported_and_endless_retries_are_cut_off() {
    let real =
        Real::start(|place| vec![place.opencode_server(Permission::Allow).with("stalled_after", "1s")]);
    for status in [400, 401] {
        let reason = format!("the model answers with {status}");
        cases::an_error_of_the_model_has_its_reason(&real, status, &reason);
    }
    let why = real.failed(real.submit("CUT half"));
    assert!(why.contains("length limit"), "{why}");
    cases::endless_patience_has_an_end(&real);
}

#[test]
fn r05_cancel_ends_turn_with_its_commands() {
    let real = server();
    cases::a_held_turn_is_cancelled(&real);
    cases::a_turn_is_cancelled_with_its_command(&real, &Shell::OPENCODE);
}

#[test]
fn permission_requests_are_denied_allowed_or_passed_to_user() {
    cases::what_opencode_asks(|place| place.opencode_server(Permission::Ask));
}

#[test]
fn r11_ten_sessions_share_process_and_end_with_daemon() {
    let real = Real::start(|place| vec![place.opencode_server(Permission::Allow).with("max_sessions", 10)]);
    let [one, ten] = cases::ten_sessions_share_a_process(real);
    println!("opencode serve: {one} kB with one session, {ten} kB with ten");
}

/// A daemon configured with the URL of a server, without a proxy in between.
fn at_a_server() -> (Real, Served) {
    let mut real = Real::home();
    let served = Served::start(&real);
    real.launch(|place| vec![place.opencode_server(Permission::Allow).at(&served.url())]);
    (real, served)
}

#[test]
fn r35_resume_of_session_deleted_on_server_leaves_task_completed() {
    let (real, served) = at_a_server();
    let id = real.turn("SAY it once");
    assert_eq!(served.send(&real, "DELETE", &format!("/session/{}", real.session(id))).json(), true);
    cases::an_expired_session_leaves_the_task_as_it_was(&real, id);
    // A server that the daemon did not start survives the cancel of a turn and the end of the daemon.
    let (id, command) = cases::with_a_command(&real, &Shell::OPENCODE);
    cases::is_cancelled(&real, id);
    command.gone();
    let id = real.turn("SAY still here");
    assert_eq!(served.prompts(&real, &real.session(id)), 1);
}

#[test]
fn killed_server_fails_turn_and_restarted_server_continues_conversation() {
    let (real, mut served) = at_a_server();
    let id = real.turn("one");
    let held = real.submit_until_asked("HOLD till death");
    served.kill();
    let why = real.failed(held);
    assert!(why.contains("server"), "{why}");
    assert_eq!(real.daemon.task(id).status, Status::Completed);
    let refused = real.daemon.run(&["resume", &id.to_string(), "SAY nobody is there"]).expect_code(69).stderr;
    assert!(refused.contains("server"), "{refused}");
    assert_eq!(real.daemon.task(id).status, Status::Completed, "it can be tried again");

    let served = Served::start_at(&real, served.address());
    assert_eq!(real.follow_up(id, "SAY second"), "second");
    assert_eq!(real.history(id), ["one", "SAY second"]);
    assert_eq!(served.prompts(&real, &real.session(id)), 2);
}

#[test]
fn turn_lost_in_server_restart_fails() {
    let (real, mut served) = at_a_server();
    let held = real.submit_until_asked("HOLD till death");
    served.kill();
    let served = Served::start_at(&real, served.address());
    let why = real.failed(held);
    assert!(!why.is_empty());
    let id = real.turn("SAY all is well");
    assert_eq!(served.prompts(&real, &real.session(id)), 1);
}

/// A daemon with several agents at one server, each behind its own proxy.
fn behind_proxies<const COUNT: usize>(names: [&str; COUNT]) -> (Real, Served, [Proxy; COUNT]) {
    let mut real = Real::home();
    let served = Served::start(&real);
    let proxies = names.map(|_| Proxy::start(served.address()));
    real.launch(|place| {
        let entry = place.opencode_server(Permission::Allow);
        let pairs = names.iter().zip(&proxies);
        pairs.map(|(name, proxy)| entry.clone().named(name).at(&proxy.url())).collect()
    });
    (real, served, proxies)
}

fn is_idle(event: &str) -> bool {
    event.contains("session.idle") || event.contains("\"type\":\"idle\"")
}

#[track_caller]
fn prompt(real: &Real, agent: &str, prompt: &str) -> TaskId {
    real.submit_to(agent, &[], prompt)
}

#[test]
fn r26_end_of_turn_is_detected_without_idle_event() {
    let (real, _served, [lost, silent, refused]) = behind_proxies(["lost", "silent", "refused"]);
    lost.streams(&[Fate::Pass, Fate::Refuse]);
    lost.cut_before(is_idle);
    // On a busy machine, one of the streams may be silent long enough to be abandoned; the next one is just as silent.
    silent.streams(&[Fate::Swallow; 16]);
    refused.streams(&[Fate::Refuse]);
    let ids = ["lost", "silent", "refused"].map(|agent| prompt(&real, agent, &format!("SAY {agent}")));
    for (id, text) in ids.iter().zip(["lost", "silent", "refused"]) {
        real.completed(*id);
        assert_eq!((real.answer(*id), real.output(*id)), (text.to_owned(), format!("{text}\n")));
    }
    assert_eq!((lost.log().begun, lost.log().ended), (1, 1), "its events ended before the idle one");
    assert_eq!(silent.log().ended, 0, "its events were awaited all the time");
    assert_eq!(refused.log().begun, 0);
    // The end of a follow-up is detected, too: R25.
    assert_eq!(real.follow_up(ids[1], "SAY again"), "again");
}

#[test]
fn r26_text_is_complete_when_event_stream_breaks() {
    let (real, _served, [proxy]) = behind_proxies(["server"]);
    // The events come back at once in the first round, and never again in the second.
    for (gate, next) in [("back", Fate::Pass), ("gone", Fate::Refuse)] {
        let id = real.submit_until_asked(&format!("SLOW {gate} 4"));
        real.model.release(gate);
        real.wait_output(id, "chunk 1");
        proxy.streams(&[next]);
        let before = proxy.log();
        proxy.cut_before(|event| event.contains("chunk 2 "));
        real.model.release(gate);
        proxy.wait_for(|log| log.ended > before.ended);
        if next == Fate::Pass {
            // Now the rest arrives as events again, none of which says which part of the text it belongs to.
            proxy.wait_for(|log| log.begun > before.begun);
        }
        for _ in 3..=4 {
            real.model.release(gate);
        }
        real.completed(id);
        assert_eq!(real.answer(id), "chunk 1 chunk 2 chunk 3 chunk 4");
        assert_eq!(real.output(id).trim_end(), "chunk 1 chunk 2 chunk 3 chunk 4");
    }
}

#[test]
fn r26_prompt_is_sent_once_when_reply_or_events_are_lost() {
    let (real, served, [events, answer]) = behind_proxies(["events", "answer"]);
    events.next_request("/prompt_async", Accident::EventsEnd);
    answer.next_request("/prompt_async", Accident::NoAnswer);
    let ids = ["events", "answer"].map(|agent| prompt(&real, agent, &format!("SLOW {agent} 2")));
    for (id, gate) in ids.into_iter().zip(["events", "answer"]) {
        real.model.wait_for_turn(&format!("SLOW {gate} 2"));
        for _ in 1..=2 {
            real.model.release(gate);
        }
        real.completed(id);
        assert_eq!(real.output(id).trim_end(), "chunk 1 chunk 2");
        assert_eq!(served.prompts(&real, &real.session(id)), 1);
        assert_eq!(real.model.turns_of(&real.session(id)).len(), 1);
    }
    assert_eq!(events.log().ended, 1);
    let given =
        |log: &bgd_tests::proxy::Log| log.requests.iter().filter(|it| it.contains("prompt_async")).count();
    assert_eq!((given(&events.log()), given(&answer.log())), (1, 1));
}

#[test]
fn r39_unrelated_idle_events_do_not_end_turn() {
    let (real, served, [proxy]) = behind_proxies(["server"]);
    let held = real.submit("SLOW held 3");
    real.model.wait_for_turn("SLOW held 3");
    let session = real.session(held);
    // Another session of the same server becomes idle, twice.
    let other = real.turn("SAY other");
    assert_eq!(real.follow_up(other, "SAY more"), "more");
    real.model.release("held");
    real.wait_output(held, "chunk 1");
    // A late idle event of an earlier run says nothing about this one.
    for _ in 0..2 {
        let idle = json!({"id": "evt_late", "type": "session.idle", "properties": {"sessionID": session}});
        let looks = proxy.log().requests.len();
        proxy.inject(&json!({"directory": real.daemon.home(), "project": "global", "payload": idle}));
        proxy.wait_for(|log| log.requests[looks..].iter().any(|request| request.contains("/message?")));
    }
    real.model.release("held");
    real.wait_output(held, "chunk 1 chunk 2");
    assert_eq!(real.daemon.task(held).status, Status::Running);
    real.model.release("held");
    real.completed(held);
    assert_eq!(real.answer(held), "chunk 1 chunk 2 chunk 3");

    // Somebody else aborts it, which two idle events announce. The first one comes before the message is complete.
    let id = real.turn("SAY before");
    let session = real.session(id);
    real.daemon.run(&["resume", &id.to_string(), "HOLD aborted"]).success();
    real.model.wait_for_turn("HOLD aborted");
    assert_eq!(served.send(&real, "POST", &format!("/session/{session}/abort")).json(), true);
    let why = real.failed(id);
    assert!(why.contains("cancelled"), "{why}");
    // The resulting events do not concern the tasks that have ended.
    assert_eq!(real.daemon.task(held).status, Status::Completed);
    assert_eq!(real.follow_up(held, "SAY after"), "after");
}
