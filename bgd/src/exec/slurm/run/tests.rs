//! The effects of notes and of the cluster's answers on a run.

use bgd_shared::id::TaskId;

use super::*;
use crate::core::{Cause, Conclusion, Elsewhere, Verdict};
use crate::exec::host::SIGTERM;

fn run() -> (Run, Instant) {
    let env = Arc::new(Vec::new().into_iter().collect());
    let place = RunPlace { slots: [].into(), group: None, attempt: None, priority: 0, after: [].into() };
    let job = Job::new(Arc::new(Spec::of_daemon()), env, Box::new(place));
    let (mut run, now) = (Run::new(1, job), Instant::now());
    run.accepted(now, JobId::parse("6_3").unwrap());
    (run, now + Duration::from_secs(1))
}

/// Returns how it has ended, if all notes have just been read.
fn found(run: &Run, now: Instant) -> Option<Conclusion> {
    run.conclusion(now, Some(now))
}

const START: (NoteKind, u32) = (NoteKind::Start, 0);
const EXIT: (NoteKind, u32) = (NoteKind::Exit, 0);

fn second(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn r147_exit_code_0_is_final_and_others_wait_for_the_cause() {
    let (mut run, now) = run();
    assert_eq!(run.noted(now, START, b"n1 7\n", None).len(), 1);
    run.noted(now, EXIT, b"0 0\n", None);
    assert_eq!(found(&run, now).unwrap().verdict, Verdict::ByExit);
    let (mut run, now) = self::run();
    run.noted(now, START, b"n1 7\n", None);
    run.noted(now, EXIT, b"143 15\n", None);
    assert_eq!(found(&run, now + second(99)), None, "the cluster was not asked");
    run.listed(now, now + second(1), "TIMEOUT", "TimeLimit");
    let verdict = found(&run, now + second(1)).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Failed(Cause::Timeout, _)), "{verdict:?}");
}

#[test]
fn r151_reason_why_a_run_is_unknown_is_news_once_and_again_after_its_start() {
    let (mut run, now) = run();
    let [down, silent] = ["down", "silent"].map(Arc::<str>::from);
    assert!(run.note_unknown(&down) && !run.note_unknown(&down));
    assert!(run.note_unknown(&silent) && !run.note_unknown(&silent) && run.note_unknown(&down));
    run.noted(now, START, b"n1 7\n", None);
    assert!(run.unknown.is_some() && run.note_unknown(&down) && !run.note_unknown(&down));
}

#[test]
fn r148_cancelled_run_that_starts_meanwhile_has_its_grace() {
    let (mut run, now) = run();
    assert!(!run.has_no_grace());
    run.stop = Some(SIGTERM);
    assert!(run.has_no_grace(), "it waits");
    run.noted(now, START, b"n1 7\n", None);
    assert!(!run.has_no_grace());
    run.stop = Some(SIGKILL);
    assert!(run.has_no_grace());
}

#[test]
fn r148_requeued_job_is_pending_and_its_old_notes_are_ignored() {
    let (mut run, now) = run();
    run.noted(now, START, b"n1 7\n", None);
    // The answer is older than the start.
    assert!(run.listed(now, now, "PENDING", "Resources").is_empty());
    run.noted(now, EXIT, b"143 15\n", None);
    run.listed(now, now + second(1), "COMPLETING", "None");
    assert_eq!(found(&run, now + second(20)), None);
    let facts = run.listed(now, now + second(2), "PENDING", "BeginTime");
    assert!(matches!(&facts[..], [Fact::Elsewhere(PlaceFact::Requeued { .. })]), "{facts:?}");
    assert!(run.noted(now, EXIT, b"143 15\n", None).is_empty());
    assert_eq!(found(&run, now + second(99)), None);
    run.noted(now, (NoteKind::Start, 1), b"n1 7\n", None);
    run.noted(now, (NoteKind::Exit, 1), b"0 0\n", None);
    assert_eq!(found(&run, now).unwrap().exit, Some(Exit::Code(0)));
}

#[test]
fn r151_launches_that_failed_before_the_script_are_no_requeue() {
    let started = Timestamp::from_unix_ms(7000);
    let is_requeue = |fact: &Fact| matches!(fact, Fact::Elsewhere(PlaceFact::Requeued { .. }));
    let (mut run, now) = run();
    let start = |run: &mut Run, restarts, at| run.noted(now, (NoteKind::Start, restarts), b"n1 7\n", at);
    assert!(run.listed(now, now, "RUNNING", "None").iter().all(|fact| !is_requeue(fact)));
    assert!(!start(&mut run, 1, Some(started)).iter().any(is_requeue), "the first launch noted nothing");
    let known = KnownRun {
        task: TaskId::random(),
        run: 1,
        spec: Arc::clone(&run.job.spec),
        env: None,
        place: Box::new(RunPlace {
            slots: [].into(),
            group: None,
            attempt: None,
            priority: 0,
            after: [].into(),
        }),
        elsewhere: Elsewhere { id: Some("6_3".into()), started: Some(started), ..Elsewhere::default() },
        has_started: true,
        is_held: false,
        is_paused: false,
        is_ready: true,
        stop: None,
        base: [0; 2],
    };
    let mut next = Run::restore(now, &known, Arc::new(Vec::new().into_iter().collect()));
    assert!(start(&mut next, 1, Some(started)).is_empty(), "the previous daemon has read it");
    assert_eq!(next.restarts(), 1);
    assert!(start(&mut next, 2, Some(Timestamp::from_unix_ms(9000))).iter().any(is_requeue));
    let restored = || Run::restore(now, &known, Arc::new(Vec::new().into_iter().collect()));
    let mut next = restored();
    assert!(start(&mut next, 1, Some(Timestamp::from_unix_ms(9000))).iter().any(is_requeue), "meanwhile");
    // Behind a login node, the note of the start is not read again.
    let exit = |run: &mut Run| run.noted(now, (NoteKind::Exit, 1), b"0 0\n", None);
    assert!(!exit(&mut restored()).iter().any(is_requeue));
    assert!(!exit(&mut next).iter().any(is_requeue), "its start was noted");
}

#[test]
fn r150_paused_state_follows_the_cluster_queue() {
    let (mut run, now) = run();
    let paused = |run: &mut Run, at, state| {
        run.listed(now, now + second(at), state, "None").into_iter().find_map(|fact| match fact {
            Fact::Elsewhere(PlaceFact::Paused { paused }) => Some(paused),
            _ => None,
        })
    };
    assert_eq!(paused(&mut run, 1, "RUNNING"), None);
    run.distrust_answers(now + second(3));
    assert_eq!(paused(&mut run, 2, "STOPPED"), None, "the question was older");
    // A user may do the same on the cluster, or the answer to our own order was lost.
    assert_eq!(paused(&mut run, 5, "STOPPED"), Some(true));
    assert_eq!(paused(&mut run, 6, "SUSPENDED"), None);
    run.distrust_answers(now + second(8));
    assert_eq!(paused(&mut run, 7, "RUNNING"), None);
    assert_eq!(paused(&mut run, 10, "RUNNING"), Some(false));
    paused(&mut run, 11, "STOPPED");
    paused(&mut run, 12, "PENDING");
    assert_eq!(paused(&mut run, 13, "STOPPED"), Some(true), "each start begins anew");
}

#[test]
fn r150_answers_are_ignored_until_the_last_pause_or_continuation_has_its_effect() {
    let (mut run, now) = run();
    let is_news = |run: &mut Run, at, state| {
        let facts = run.listed(now, now + second(at), state, "None");
        facts.iter().any(|fact| matches!(fact, Fact::Elsewhere(PlaceFact::Paused { .. })))
    };
    run.orders_pause();
    run.orders_pause();
    assert!(run.pause_settled(now, Some(true)).is_none(), "they are still to continue");
    assert!(!is_news(&mut run, 9, "STOPPED"), "they have not continued yet");
    assert!(run.pause_settled(now + second(10), Some(false)).is_some());
    assert!(!is_news(&mut run, 11, "STOPPED"), "the signal may be on its way to the nodes");
    assert!(is_news(&mut run, 12, "STOPPED"), "somebody else has stopped them");
    // The first answer that counts shows what somebody else has done meanwhile, or that the order had no effect.
    for (ordered, state) in [(true, "RUNNING"), (false, "SUSPENDED")] {
        run.orders_pause();
        assert!(run.pause_settled(now + second(20), Some(ordered)).is_some());
        assert!(is_news(&mut run, 22, state), "{state}");
    }
    run.orders_pause();
    assert!(run.pause_settled(now + second(30), None).is_none(), "it was refused");
    assert!(!is_news(&mut run, 32, "SUSPENDED"), "nothing has changed");
}

#[test]
fn r148_exit_of_a_killed_job_is_queried_from_the_cluster() {
    let killed = || {
        let (mut run, now) = run();
        run.noted(now, START, b"n1 7\n", None);
        run.listed(now, now + second(1), "FAILED", "JobLaunchFailure");
        assert!(!run.wants_exit(now) && run.wants_exit(now + second(9)));
        assert_eq!(found(&run, now + second(9)), None);
        (run, now)
    };
    let (mut run, now) = killed();
    run.script_ended(Some(ScriptExit { code: 0, signal: 9 }));
    let end = found(&run, now + second(9)).unwrap();
    assert_eq!((end.exit, end.verdict), (Some(Exit::Signal(9)), Verdict::ByExit));
    let (mut run, now) = killed();
    run.script_ended(None);
    let verdict = found(&run, now + second(9)).unwrap().verdict;
    assert!(matches!(&verdict, Verdict::Failed(_, why) if why.contains("killed")), "{verdict:?}");
}

#[test]
fn r147_forgotten_job_is_lost_unless_its_exit_was_noted() {
    let (mut run, now) = run();
    run.is_forgotten(now);
    let verdict = found(&run, now).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Failed(Cause::Lost, _)), "{verdict:?}");
    let (mut run, now) = self::run();
    run.noted(now, EXIT, b"0 0\n", None);
    run.is_forgotten(now);
    assert_eq!(found(&run, now).unwrap().verdict, Verdict::ByExit);
}

#[test]
fn r147_accounting_is_queried_before_a_job_counts_as_lost() {
    let gone = |run: &mut Run, now: Instant| {
        run.noted(now, START, b"n1 7\n", None);
        for at in 0..5 {
            assert!(run.unlisted(now + second(at), true) && found(run, now + second(99)).is_none());
        }
        assert!(run.awaits_record());
    };
    let (mut run, now) = run();
    gone(&mut run, now);
    // Its record gets its name a moment after its start.
    run.recorded(now, None);
    assert!(run.unlisted(now + second(6), true) && found(&run, now + second(99)).is_none());
    run.recorded(now, None);
    let verdict = found(&run, now).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Failed(Cause::Lost, _)), "{verdict:?}");
    let (mut run, now) = self::run();
    gone(&mut run, now);
    run.recorded(now, Some(("FAILED", Some(ScriptExit { code: 0, signal: 9 }))));
    assert_eq!(found(&run, now + second(9)).unwrap().exit, Some(Exit::Signal(9)));
    // After a reset of the controller, the accounting reports the job as running forever.
    let (mut run, now) = self::run();
    gone(&mut run, now);
    run.recorded(now, Some(("RUNNING", None)));
    assert!(run.unlisted(now + second(6), true) && found(&run, now + second(99)).is_none());
    run.recorded(now, Some(("RUNNING", None)));
    assert!(run.unlisted(now + second(7), true) && found(&run, now).is_some());
    // The accounting also knows the reason if the queue has forgotten the job at once.
    let (mut run, now) = self::run();
    run.noted(now, EXIT, b"143 15\n", None);
    run.unlisted(now, true);
    assert_eq!(found(&run, now), None);
    run.recorded(now, Some(("TIMEOUT", None)));
    let verdict = found(&run, now).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Failed(Cause::Timeout, _)), "{verdict:?}");
}

#[test]
fn r147_vanished_job_counts_as_cancelled_or_lost() {
    let (mut run, now) = run();
    assert!(!run.unlisted(now.checked_sub(second(2)).unwrap(), false), "the question was older than the job");
    assert!(run.unlisted(now, false) && found(&run, now).is_none());
    run.unlisted(now + second(1), false);
    assert_eq!(found(&run, now).unwrap().verdict, Verdict::Cancelled);
    let (mut run, now) = self::run();
    run.noted(now, START, b"n1 7\n", None);
    run.unlisted(now, false);
    run.unlisted(now + second(1), false);
    let verdict = found(&run, now).unwrap().verdict;
    assert!(matches!(verdict, Verdict::Failed(Cause::Lost, _)), "{verdict:?}");
}

#[test]
fn r151_no_conclusion_before_notes_were_looked_for() {
    let ended = |state| {
        let (mut run, now) = run();
        run.noted(now, START, b"n1 7\n", None);
        run.listed(now, now, state, "None");
        (run, now)
    };
    for state in ["COMPLETED", "TIMEOUT"] {
        let (mut run, now) = ended(state);
        for looked in [None, Some(now), Some(now + second(2))] {
            assert_eq!(run.conclusion(now + second(999), looked), None, "{state} {looked:?}");
        }
        run.is_unread = true;
        assert_eq!(found(&run, now + second(999)), None, "its note can't be read");
        run.is_unread = false;
        assert!(run.conclusion(now + second(999), Some(now + second(3))).is_some());
        // The note takes precedence over the cluster's report, whenever it comes.
        run.noted(now, EXIT, b"0 0\n", None);
        assert_eq!(run.conclusion(now, None).unwrap().exit, Some(Exit::Code(0)));
    }
    // A cancelled job is concluded without waiting for its note.
    let (mut run, now) = ended("CANCELLED");
    run.stop = Some(15);
    assert_eq!(run.conclusion(now, None).unwrap().verdict, Verdict::Cancelled);
}

#[test]
fn r151_forgotten_job_is_lost_only_after_its_notes_were_looked_for() {
    let (mut run, now) = run();
    run.is_forgotten(now);
    for looked in [None, now.checked_sub(second(1))] {
        assert_eq!(run.conclusion(now + second(99), looked), None);
    }
    run.noted(now, START, b"n1 7\n", None);
    assert!(
        matches!(found(&run, now).unwrap().verdict, Verdict::Failed(Cause::Lost, _)),
        "it runs for nobody"
    );
    run.noted(now, EXIT, b"3 0\n", None);
    assert_eq!(run.conclusion(now, None).unwrap().exit, Some(Exit::Code(3)));
}

#[test]
fn r147_start_note_read_after_exit_note_changes_nothing() {
    let (mut run, now) = run();
    run.noted(now, EXIT, b"0 0\n", None);
    run.noted(now, START, b"n1 7\n", None);
    assert_eq!(run.conclusion(now, None).unwrap().exit, Some(Exit::Code(0)));
}

#[test]
fn r147_time_of_a_start_is_reported_once_even_if_the_start_is_known() {
    let at = Some(Timestamp::from_unix_ms(7000));
    let time = |facts: Vec<Fact>| match facts.as_slice() {
        [Fact::Elsewhere(PlaceFact::Started { at })] => Some(*at),
        _ => None,
    };
    let (mut run, now) = run();
    assert_eq!(time(run.listed(now, now, "RUNNING", "None")), Some(None));
    assert_eq!(time(run.noted(now, START, b"n1 7\n", at)), Some(at));
    assert!(run.noted(now, START, b"n1 7\n", at).is_empty());
    let (mut run, now) = self::run();
    assert_eq!(time(run.noted(now, EXIT, b"3 0\n", None)), Some(None), "it is read first");
    assert_eq!(time(run.noted(now, START, b"n1 7\n", at)), Some(at));
}

#[test]
fn r150_refused_end_is_repeated_less_and_less_often_and_reported_once() {
    let (mut run, _) = run();
    run.is_to_end(SIGTERM);
    let refusals: Vec<(Duration, bool)> = (0..9).map(|_| run.end_refused("permission denied")).collect();
    assert_eq!(refusals[0], (second(5), true));
    assert!(refusals[1..].iter().all(|(_, is_news)| !is_news), "{refusals:?}");
    let pauses: Vec<u64> = refusals.iter().map(|(pause, _)| pause.as_secs()).collect();
    assert_eq!(pauses, [5, 10, 20, 40, 40, 40, 40, 40, 40]);
    assert_eq!(run.end_refused("invalid partition"), (second(40), true));
    // Whoever cancels it again hears the answer.
    run.is_to_end(SIGTERM);
    assert_eq!(run.end_refused("invalid partition"), (second(5), true));
}
