//! Example tests of the notes about an agent's turn, and of its consumption.

use bgd_core::{Fact, Note, Snapshot};
use bgd_shared::event::EventKind;

use super::support::{Desk, consumed, events, planned, turn_ended};

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
