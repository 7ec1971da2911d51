//! R60 to R68, each on its own and all together in random histories.

use proptest::prelude::*;

use crate::error::{ErrorKind, RpcError};
use crate::foreground::{Answer, Can, Finished, Foreground, Key, Outcome, Press};
use crate::id::TaskId;

const SENTENCE: &str =
    "Command was manually backgrounded by user with ID 00000000-0000-0000-0000-000000000001";

fn backgrounded() -> Answer {
    Answer::Backgrounded(TaskId::from_u128(1))
}

/// Returns a foreground with these jobs, numbered from 0.
fn foreground<const N: usize>(jobs: [Can; N]) -> Foreground<usize> {
    let mut foreground = Foreground::new(Key::default());
    for (id, can) in jobs.into_iter().enumerate() {
        foreground.started(id, can);
    }
    foreground
}

#[test]
fn r60_hint_is_shown_while_a_job_can_be_backgrounded() {
    let mut jobs = foreground([]);
    assert_eq!(jobs.hint(), None);
    jobs.started(0, Can::Direct);
    jobs.started(1, Can::No("it is a shell".into()));
    assert_eq!(jobs.hint(), None);
    jobs.started(2, Can::Yes);
    jobs.started(3, Can::Direct);
    assert_eq!(jobs.hint().as_deref(), Some("[Ctrl-B] Background"));
    assert_eq!(jobs.finished(&2), Finished::Show);
    assert_eq!(jobs.hint(), None);
}

#[test]
fn r60_hint_names_the_chosen_key_and_is_absent_without_one() {
    for (key, hint) in [("ctrl-]", Some("[Ctrl-]] Background")), ("none", None)] {
        let mut jobs = Foreground::new(key.parse().unwrap());
        jobs.started((), Can::Yes);
        assert_eq!(jobs.hint().as_deref(), hint);
    }
}

#[test]
fn r61_backgrounded_job_has_exactly_this_result() {
    let mut jobs = foreground([Can::Yes]);
    assert_eq!(jobs.pressed(), Press::Take(0));
    assert_eq!(jobs.hint(), None);
    assert_eq!(jobs.answered(&0, backgrounded()), Some(Outcome::Backgrounded(0, SENTENCE.to_owned())));
    assert!(jobs.is_empty());
    assert_eq!(jobs.finished(&0), Finished::Elsewhere);
}

#[test]
fn r63_latest_eligible_job_is_taken() {
    let mut jobs = foreground([Can::Yes, Can::Yes, Can::No("it is a shell".into()), Can::Direct]);
    assert_eq!(jobs.pressed(), Press::Take(1));
    assert!(jobs.answered(&1, backgrounded()).is_some());
    jobs.started(4, Can::Yes);
    assert_eq!(jobs.pressed(), Press::Take(4));
    assert!(jobs.answered(&4, backgrounded()).is_some());
    assert_eq!(jobs.pressed(), Press::Take(0));
}

#[test]
fn r63_job_that_could_not_be_taken_stays_the_latest() {
    let mut jobs = foreground([Can::Yes, Can::Yes]);
    assert_eq!(jobs.pressed(), Press::Take(1));
    let error = RpcError::new(ErrorKind::RegistryFull, "the daemon holds 5 tasks");
    let message =
        "This job could not be backgrounded and keeps running here: the daemon holds 5 tasks".to_owned();
    assert_eq!(jobs.answered(&1, Answer::from(&error)), Some(Outcome::Stays(1, message)));
    jobs.started(0, Can::Yes);
    assert_eq!(jobs.pressed(), Press::Take(1), "a second start of a job changes nothing");
}

#[test]
fn r64_direct_jobs_keep_the_key() {
    let mut jobs = foreground([Can::Direct, Can::Direct]);
    assert_eq!(jobs.pressed(), Press::Pass);
    assert_eq!(jobs.finished(&0), Finished::Show);
    assert_eq!(jobs.pressed(), Press::Pass);
}

#[test]
fn r65_key_does_nothing_without_a_foreground_job() {
    let mut jobs = foreground([Can::Yes]);
    assert_eq!(jobs.finished(&0), Finished::Show);
    assert_eq!(jobs.pressed(), Press::Nothing);
    assert_eq!(jobs.answered(&0, backgrounded()), None);
}

#[test]
fn r66_job_that_finished_before_detach_has_its_real_result() {
    // The daemon sees the end first, then the parent.
    let mut jobs = foreground([Can::Yes]);
    assert_eq!(jobs.pressed(), Press::Take(0));
    let error = RpcError::new(ErrorKind::AlreadyFinished, "the task has ended");
    assert_eq!(jobs.answered(&0, Answer::from(&error)), Some(Outcome::Finished(0)));
    assert_eq!(jobs.finished(&0), Finished::Elsewhere);

    // The parent sees the end first, then the daemon, if it answers at all.
    for answer in [Answer::AlreadyFinished, Answer::Failed("the daemon is gone".into())] {
        let mut jobs = foreground([Can::Yes]);
        assert_eq!(jobs.pressed(), Press::Take(0));
        assert_eq!(jobs.finished(&0), Finished::Wait);
        assert_eq!(jobs.answered(&0, answer), Some(Outcome::Finished(0)));
        assert!(jobs.is_empty());
    }

    // The job finishes after the hand-over, and the parent sees that before the answer.
    let mut jobs = foreground([Can::Yes]);
    assert_eq!(jobs.pressed(), Press::Take(0));
    assert_eq!(jobs.finished(&0), Finished::Wait);
    assert_eq!(jobs.answered(&0, backgrounded()), Some(Outcome::Backgrounded(0, SENTENCE.to_owned())));
}

#[test]
fn r67_key_is_ignored_while_a_job_is_being_detached() {
    let mut jobs = foreground([Can::Yes, Can::Yes]);
    assert_eq!(jobs.pressed(), Press::Take(1));
    for _ in 0..20 {
        assert_eq!(jobs.pressed(), Press::Ignore);
    }
    jobs.started(2, Can::Yes);
    assert_eq!(jobs.pressed(), Press::Ignore);
    assert_eq!(jobs.finished(&1), Finished::Wait);
    assert_eq!(jobs.pressed(), Press::Ignore);
    assert!(jobs.answered(&1, Answer::AlreadyFinished).is_some());
    assert_eq!(jobs.pressed(), Press::Take(2));
}

#[test]
fn r68_job_that_cannot_be_backgrounded_says_why() {
    let mut jobs = foreground([Can::No("it is a shell".into()), Can::No("it is old".into()), Can::Direct]);
    assert_eq!(jobs.pressed(), Press::Refuse("This job can't be backgrounded: it is old".to_owned()));
    assert_eq!(jobs.finished(&1), Finished::Show);
    assert_eq!(jobs.pressed(), Press::Refuse("This job can't be backgrounded: it is a shell".to_owned()));
}

/// A step of a history. Indices choose among all jobs ever started.
#[derive(Clone, Debug)]
enum Step {
    Start(Can),
    Finish(prop::sample::Index),
    Press,
    Answer(prop::sample::Index, Answer),
    /// The answer for the job whose hand-over is in flight.
    RightAnswer(Answer),
}

fn step() -> impl Strategy<Value = Step> {
    let can = prop_oneof![3 => Just(Can::Yes), 1 => Just(Can::Direct), 1 => Just(Can::No("no".into()))];
    let answer = || {
        prop_oneof![Just(backgrounded()), Just(Answer::AlreadyFinished), Just(Answer::Failed("no".into()))]
    };
    prop_oneof![
        3 => can.prop_map(Step::Start),
        2 => any::<prop::sample::Index>().prop_map(Step::Finish),
        4 => Just(Step::Press),
        1 => (any::<prop::sample::Index>(), answer()).prop_map(|(index, answer)| Step::Answer(index, answer)),
        2 => answer().prop_map(Step::RightAnswer),
    ]
}

/// The true state of a job, whatever the foreground assumes.
struct Truth {
    can: Can,
    /// Whether its process has ended.
    ended: bool,
    /// How many results of it were shown.
    results: usize,
}

#[derive(Default)]
struct World {
    jobs: Vec<Truth>,
    handed: Option<usize>,
}

impl World {
    /// Returns the jobs that have no result yet and are not being handed over, latest first.
    fn latest(&self) -> impl Iterator<Item = (usize, &Can)> {
        let there = |(id, job): &(usize, &Truth)| job.results == 0 && Some(*id) != self.handed;
        self.jobs.iter().enumerate().rev().filter(there).map(|(id, job)| (id, &job.can))
    }

    fn pressed(&mut self, press: &Press<usize>) {
        let latest = self.latest().find(|(_, can)| **can == Can::Yes).map(|(id, _)| id);
        let refused = self.latest().any(|(_, can)| matches!(can, Can::No(_)));
        let expected = match (self.handed, latest) {
            (Some(_), _) => Press::Ignore,
            (None, Some(id)) => Press::Take(id),
            (None, None) if refused => Press::Refuse("This job can't be backgrounded: no".to_owned()),
            (None, None) if self.latest().next().is_some() => Press::Pass,
            (None, None) => Press::Nothing,
        };
        assert_eq!(*press, expected);
        if let Press::Take(id) = press {
            assert!(!self.jobs[*id].ended, "a finished job is taken");
            self.handed = Some(*id);
        }
    }

    fn finished(&mut self, id: usize, finished: Finished) {
        let job = &mut self.jobs[id];
        job.ended = true;
        let expected = match (job.results, self.handed == Some(id)) {
            (0, false) => Finished::Show,
            (0, true) => Finished::Wait,
            _ => Finished::Elsewhere,
        };
        assert_eq!(finished, expected);
        job.results += usize::from(finished == Finished::Show);
    }

    fn answered(&mut self, id: usize, answer: &Answer, outcome: Option<Outcome<usize>>) {
        if self.handed != Some(id) {
            assert_eq!(outcome, None);
            return;
        }
        self.handed = None;
        let job = &mut self.jobs[id];
        match outcome.expect("the answer is for this job") {
            Outcome::Backgrounded(of, message) => {
                assert_eq!((of, answer, message.as_str()), (id, &backgrounded(), SENTENCE));
                job.results += 1;
            }
            Outcome::Finished(of) => {
                assert_eq!(of, id);
                assert!(*answer == Answer::AlreadyFinished || (job.ended && *answer != backgrounded()));
                job.results += 1;
            }
            Outcome::Stays(of, _) => {
                assert_eq!(of, id);
                assert!(!job.ended && matches!(answer, Answer::Failed(_)));
            }
        }
    }
}

proptest! {
    #[test]
    fn random_histories_break_no_rule(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::default();
        let mut jobs = Foreground::new(Key::default());
        for step in steps {
            let some = |index: prop::sample::Index| {
                (!world.jobs.is_empty()).then(|| index.index(world.jobs.len()))
            };
            match step {
                Step::Start(can) => {
                    jobs.started(world.jobs.len(), can.clone());
                    world.jobs.push(Truth { can, ended: false, results: 0 });
                }
                Step::Press => world.pressed(&jobs.pressed()),
                Step::Finish(index) => {
                    let Some(id) = some(index) else { continue };
                    world.finished(id, jobs.finished(&id));
                }
                Step::Answer(index, answer) => {
                    let Some(id) = some(index) else { continue };
                    world.answered(id, &answer, jobs.answered(&id, answer.clone()));
                }
                Step::RightAnswer(answer) => {
                    let Some(id) = world.handed else { continue };
                    world.answered(id, &answer, jobs.answered(&id, answer.clone()));
                }
            }
            prop_assert!(world.jobs.iter().all(|job| job.results <= 1), "a job has two results");
            let can = world.latest().any(|(_, can)| *can == Can::Yes);
            prop_assert_eq!(jobs.hint().is_some(), can);
            prop_assert_eq!(jobs.is_empty(), world.handed.is_none() && world.latest().next().is_none());
        }
    }
}
