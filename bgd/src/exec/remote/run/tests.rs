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

#[test]
fn r145_run_is_submitted_only_after_its_preparation_even_if_the_connection_breaks() {
    let mut run = Run::new(1, Arc::new(Spec::of_daemon()), SubmitParams::default());
    run.is_busy = true;
    run.cut();
    assert!(run.next().is_none());
    run.prepared([3, 0]);
    run.is_busy = false;
    assert!(matches!(run.next(), Some(Step::Submit(_))));
    // From then on, only calls are pending, and they get no answer.
    run.is_busy = true;
    run.cut();
    assert!(matches!(run.next(), Some(Step::Submit(_))));
}

#[test]
fn r145_known_end_outlives_the_machine_and_only_uncopied_output_is_lost() {
    let mut run = running();
    assert!(!run.has_ended());
    run.learn(&state("completed", 9));
    assert!(matches!(run.next(), Some(Step::Read { .. })));
    run.copied(Stream::Stdout, 4, 0);
    run.cut();
    assert!(run.has_ended());
    assert_eq!(run.miss_rest(), Some((Stream::Stdout, 5)));
    // If the connection breaks again, nothing is counted twice.
    run.cut();
    assert!(matches!(run.next(), Some(Step::Look(THERE))));
    assert_eq!(run.miss_rest(), None);
    assert!(matches!(run.next(), Some(Step::Conclude(end)) if end.status == Status::Completed));
    // It is being reported, whatever happens to the connection.
    run.cut();
    assert!(run.has_ended() && run.miss_rest().is_none() && run.next().is_none());
}

#[test]
fn r151_run_that_waits_for_a_previous_host_was_not_submitted() {
    let left = |awaits: Option<&str>, reason: Option<&str>| Elsewhere {
        awaits: awaits.map(Into::into),
        reason: reason.map(Into::into),
        ..Elsewhere::default()
    };
    let may_exist = |known: &Elsewhere, there| {
        let mut run = Run {
            was_sent: true,
            awaited: awaited(known),
            there,
            ..Run::new(1, Arc::new(Spec::of_daemon()), SubmitParams::default())
        };
        run.unsend_if_it_awaits("far");
        run.may_exist()
    };
    let awaits = left(Some("far"), Some("in whatever words"));
    assert!(!may_exist(&awaits, None));
    assert!(may_exist(&awaits, Some(THERE)), "it was submitted there after all");
    let earlier = "for the end of the tasks on far, the previous host";
    assert!(!may_exist(&left(None, Some(earlier)), None), "an earlier version has recorded it");
    let near = "for the end of the tasks on near, the previous host";
    for (awaits, reason) in
        [(None, None), (None, Some("pending there")), (None, Some(near)), (Some("near"), Some(earlier))]
    {
        assert!(may_exist(&left(awaits, reason), None), "{awaits:?} {reason:?}");
    }
}

#[test]
fn r145_order_whose_answer_was_lost_is_compared_with_the_next_state() {
    let mut run = running();
    run.ordered(&Control::Pause);
    run.cut();
    run.learn_answer(&state("running", 0));
    assert_eq!(run.take_late(), [Control::Pause]);
    // It has arrived nevertheless, and a later order replaces another one.
    for (lost, later, expected) in [
        (Control::Pause, None, vec![]),
        (Control::Pause, Some(Control::Continue), vec![Control::Continue]),
        (Control::Continue, Some(Control::Pause), vec![]),
    ] {
        run.ordered(&lost);
        run.cut();
        assert!(later.is_none_or(|later| run.takes(&later)));
        run.learn_answer(&Task { paused: true, ..state("running", 0) });
        assert_eq!(run.take_late(), expected, "{lost:?}");
    }
    // An answered order is not repeated, and a signal is never sent later.
    run.ordered(&Control::Continue);
    run.answered();
    assert!(!run.takes(&Control::Signal { signal: 10, tree: false }));
    run.cut();
    run.learn_answer(&Task { paused: true, ..state("running", 0) });
    assert!(run.take_late().is_empty());
}

#[test]
fn r151_answer_to_an_order_goes_to_all_that_want_the_same() {
    let hold = |held, is_again| Control::Hold { held, is_again };
    let priority = |priority, before| Control::Priority { priority, before };
    assert!(want_same(&hold(true, false), &hold(true, true)));
    assert!(want_same(&priority(5, 0), &priority(5, 7)));
    for (one, other) in [
        (hold(true, false), hold(false, false)),
        (priority(5, 0), priority(6, 0)),
        (Control::Pause, Control::Continue),
        (Control::Pause, hold(true, false)),
        (Control::Detach { client: 1 }, Control::Detach { client: 1 }),
    ] {
        assert!(!want_same(&one, &other), "{one:?} and {other:?}");
    }
}
