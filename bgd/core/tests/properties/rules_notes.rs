//! Example tests of the notes about an agent's turn, and of its consumption.

use bgd_core::{Fact, Note, Request, Rule, Snapshot};
use bgd_shared::event::EventKind;

use super::support::{
    ASK_TIMEOUT, Desk, STALLED_AFTER, asked, consumed, decisions, denied, events, id, ids, planned, prompt,
    turn_ended, turn_failed,
};

#[test]
fn new_run_clears_the_notes_of_the_previous_one() {
    let mut desk = Desk::new(1);
    let fact = |note, text: &str| Fact::Noted { note, text: text.into() };
    let task = desk.at_work(1);
    desk.fact(task, fact(Note::Warning, "asks nobody"));
    desk.fact(task, fact(Note::LastWords, "429, try 2"));
    desk.fact(task, fact(Note::Suspect, "an error"));
    desk.fact(task, turn_ended());
    let notes = desk.task(task).agent.unwrap().notes.clone();
    assert_eq!(notes.texts().collect::<Vec<_>>(), ["429, try 2", "an error", "asks nobody"]);
    desk.fact(task, fact(Note::Suspect, "too late"));
    desk.resume(task);
    desk.fact_of_run(task, 2, Fact::Started { pid: None });
    let notes = desk.task(task).agent.unwrap().notes.clone();
    assert_eq!(notes.texts().collect::<Vec<_>>(), [""; 0], "it may have another mode now");
    desk.fact_of_run(task, 2, fact(Note::Warning, "asks nobody"));
    assert_eq!(desk.task(task).agent.unwrap().notes.warning.as_deref(), Some("asks nobody"));
}

#[test]
fn new_run_has_no_denied_requests_of_the_previous_one() {
    let of = |desk: &Desk, task| {
        let agent = desk.task(task).agent.unwrap();
        (agent.denied, agent.last_denied.as_deref().map(str::to_owned))
    };
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    desk.fact(task, denied(2, "run rm"));
    desk.fact(task, turn_ended());
    assert_eq!(of(&desk, task), (2, Some("run rm".to_owned())), "until the next run");
    desk.resumed(task, 2);
    assert_eq!(of(&desk, task), (0, None));
    desk.fact_of_run(task, 2, denied(1, "write"));
    assert_eq!(of(&desk, task), (1, Some("write".to_owned())));
    // Another attempt is a run of its own, too.
    let mut retried = prompt(id(2), STALLED_AFTER, ASK_TIMEOUT);
    retried.plan.again =
        Some(Rule::Retry { times: 1, delay_ms: 0, max_delay_ms: 0, codes: [].into(), signal: false });
    let mut desk = Desk::new(1);
    desk.ask(Request::Submit(Box::new(retried)));
    desk.fact(id(2), Fact::Started { pid: None });
    desk.fact(id(2), denied(1, "run rm"));
    desk.fact(id(2), turn_failed("the model is overloaded"));
    desk.fact_of_run(id(2), 2, Fact::Started { pid: None });
    assert_eq!(of(&desk, id(2)), (0, None));
}

#[test]
fn request_denied_because_too_many_questions_are_open_is_counted() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    for key in 0..64 {
        assert_eq!(events(&desk.fact(task, asked(key))), [(EventKind::NeedsInput, task)]);
    }
    let effects = desk.fact(task, asked(64));
    assert_eq!(decisions(&effects), [(64, None)]);
    assert_eq!(events(&effects), [(EventKind::Progress, task)]);
    let agent = desk.task(task).agent.unwrap();
    assert_eq!((agent.denied, agent.last_denied.as_deref()), (1, Some("may I?")));
    // A turn that is being ended gets no more permissions: that is the user's decision.
    desk.cancel(ids(&[task]));
    assert_eq!(decisions(&desk.fact(task, asked(65))), [(65, None)]);
    assert_eq!(desk.task(task).agent.unwrap().denied, 1);
}

#[test]
fn r160_usage_reported_after_the_turn_counts_without_event() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    assert_eq!(events(&desk.fact(task, consumed(8))), [(EventKind::Progress, task)]);
    desk.fact(task, turn_ended());
    let before = desk.task(task);
    assert_eq!(events(&desk.fact(task, consumed(16))), []);
    let total = |task: &Snapshot| task.agent.as_ref().unwrap().consumed.as_deref().unwrap().total();
    assert_eq!((total(&before).input_tokens, total(&desk.task(task)).input_tokens), (Some(8), Some(16)));
    assert_eq!(events(&desk.fact(task, planned(1))), [], "a plan for nothing");
    assert!(desk.task(task).agent.unwrap().steps.is_empty());
}
