//! The effects of a machine's reports on a run.

use super::*;

const THERE: TaskId = TaskId::from_u128(7);

/// Returns a state of the task on its machine, with this much output.
fn state(status: &str, bytes: u64) -> Task {
    serde_json::from_value(serde_json::json!({
        "id": THERE, "kind": "process", "origin": "submit", "status": status, "description": "x", "cwd": "/",
        "run": 1, "resume_count": 0, "created_at": "2026-01-01T00:00:00.000Z", "started_at": "2026-01-01T00:00:01.000Z", "exit": null,
        "progress": {"output_bytes": bytes}, "output": {"bytes": bytes, "dropped_bytes": 0, "path": "/x"},
    }))
    .unwrap()
}

/// Returns a run whose task was seen running.
fn running() -> Run {
    let mut run = Run::new(1, Arc::new(Spec::of_daemon()), SubmitParams::default());
    assert!(matches!(run.next(), Some(Step::Submit(_))));
    run.learn_answer(&state("running", 0));
    run
}

fn paused(facts: &[Fact]) -> Option<bool> {
    facts.iter().find_map(|fact| match fact {
        Fact::Elsewhere(PlaceFact::Paused { paused }) => Some(*paused),
        _ => None,
    })
}

#[test]
fn r145_state_older_than_an_event_does_not_undo_a_pause() {
    let mut run = running();
    run.learn(&state("running", 5));
    assert!(matches!(run.next(), Some(Step::Read { .. })));
    let is_paused = Task { paused: true, ..state("running", 5) };
    assert_eq!(paused(&run.learn(&is_paused)), Some(true));
    // The answer to the read is handled once the output is written.
    run.copied(Stream::Stdout, 5, 0);
    assert_eq!(paused(&run.learn_answer(&state("running", 9))), None);
    // Its other contents count.
    assert!(matches!(run.next(), Some(Step::Read { offset: 5, .. })));
    assert_eq!(paused(&run.learn_answer(&state("running", 9))), Some(false), "nothing newer is known");
}
