//! Example tests of the requirements about foreground jobs and hand-overs that the core implements.

use crate::wire::{failures, refusals};
use bgd_core::{
    Begin, Cancel, Command, Control, CoreError, CoreLimits, Effect, Fact, Input, LeavePolicy, Reply, Request,
    Selection, State,
};
use bgd_core::{StopReason, Unmovable};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind::{Backgrounded, Cancelled, Completed, Failed, Started, Submitted};
use bgd_shared::id::TaskId;
use bgd_shared::limits::FOREGROUND_JOBS;
use bgd_shared::request::BlockMode::All;
use bgd_shared::request::BlockUntil;
use bgd_shared::task::{Exit, Status};

use super::support::{
    ASK_TIMEOUT, Desk, HUP, KILL, STALLED_AFTER, TERM, asked, blocked, command, configure, decisions, ends,
    events, exited, id, ids, limits, only_reply, prompt, prompts, refusal, refused, replies, starts,
    turn_ended,
};

const GONE: Input = Input::Disconnected { client: 1 };

fn started() -> Fact {
    Fact::Started { pid: Some(100) }
}

/// Submits an agent's turn in the foreground.
fn turn(desk: &mut Desk, number: u16) -> TaskId {
    desk.foreground(prompt(id(number), STALLED_AFTER, ASK_TIMEOUT))
}

/// Submits a job that the user started directly, and that is running.
fn direct(desk: &mut Desk, number: u16) -> TaskId {
    let mut command = command(id(number));
    command.spec.direct = true;
    let task = desk.foreground(command);
    assert_eq!(events(&desk.fact(task, started())), [(Started, task)]);
    task
}

fn unmovable(effects: &[Effect]) -> Unmovable {
    let CoreError::NotBackgroundable(_, why) = refusal(effects) else { panic!("{effects:?}") };
    assert_eq!(effects.len(), 1, "a refusal does nothing: {effects:?}");
    *why
}

#[test]
fn r01_key_returns_an_existing_foreground_job() {
    let mut desk = Desk::new(1);
    let mut first = command(id(1));
    first.key = Some("nightly".into());
    let mut again = first.clone();
    let job = desk.foreground(first);
    (again.id, again.foreground) = (id(2), true);
    let to = desk.ask_as(2, Request::Submit(Box::new(again)));
    assert!(matches!(only_reply(&to), Reply::Task(task) if task.id == job && task.foreground == Some(1)));
    assert!(desk.input(Input::Disconnected { client: 2 }).is_empty(), "it is not that client's job");
}

#[test]
fn r02_foreground_job_starts_at_once_but_occupies_a_slot() {
    let mut desk = Desk::new(2);
    let (first, second) = (desk.running(1), desk.running(2));
    let waiting = desk.submit(3);
    let (job, prompt) = (desk.job(4), turn(&mut desk, 5));
    assert_eq!((desk.status(waiting), desk.status(job)), (Status::Pending, Status::Running));
    for task in [first, second] {
        assert!(starts(&desk.fact(task, exited(0, false))).is_empty(), "the jobs have the slots");
    }
    assert!(starts(&desk.detach(job)).is_empty(), "it keeps its slot in the background");
    assert_eq!(starts(&desk.fact(prompt, refused())), [waiting]);
}

#[test]
fn r10_clear_with_active_ends_and_removes_a_foreground_job() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    let clear = |active_too| Request::Clear { which: ids(&[job]), active_too };
    assert_eq!(refusal(&desk.ask(clear(false))), &CoreError::StillActive(job, Status::Running));
    assert_eq!(ends(&desk.ask(clear(true))), [(job, TERM)]);
    let effects = desk.fact(job, exited(0, false));
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 1, .. }));
    assert_eq!(refusal(&desk.detach(job)), &CoreError::NotFound(job.to_string()));
    assert!(desk.input(GONE).is_empty());
}

#[test]
fn r11_shutdown_ends_foreground_jobs_even_if_their_clients_leave_first() {
    let mut desk = Desk::new(1);
    let (job, moved) = (desk.job(1), desk.job(2));
    assert_eq!(
        ends(&desk.ask_as(2, Request::Shutdown { grace_ms: Some(60_000), leaves: LeavePolicy::All })),
        [(job, TERM), (moved, TERM)]
    );
    assert!(matches!(only_reply(&desk.detach(moved)), Reply::Backgrounded(_)), "the prompt is free at least");
    assert_eq!(ends(&desk.input(GONE)), [(job, HUP)]);
    assert_eq!(ends(&desk.wait(5000)), [(job, KILL)], "it has lost its terminal, which is a shorter grace");
    assert_eq!(events(&desk.fact(job, exited(0, false))), [(Cancelled, job)]);
    assert_eq!(
        failures::error(&desk.task(job)).as_deref(),
        Some("the daemon was shut down"),
        "the first reason is kept"
    );
    let effects = desk.fact(moved, exited(0, false));
    assert!(matches!(only_reply(&effects), Reply::ShutDown { cancelled: 2, left: 0 }));
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    assert_eq!(refusal(&desk.detach(moved)), &CoreError::EndedFirst(moved, Status::Cancelled));
}

#[test]
fn r54_end_of_session_ends_its_foreground_jobs() {
    let mut desk = Desk::new(1);
    let mut command = command(id(1));
    command.spec.session = Some("tmux:%1".into());
    let job = desk.foreground(command);
    assert_eq!(events(&desk.fact(job, started())), [(Started, job)]);
    assert_eq!(ends(&desk.ask_as(2, Request::EndSession { session: "tmux:%1".into() })), [(job, TERM)]);
    let effects = desk.fact(job, exited(0, false));
    assert!(matches!(only_reply(&effects), Reply::SessionEnded { cancelled: 1, cleared: 1, .. }));
    assert!(desk.input(GONE).is_empty());
}

#[test]
fn r61_detach_hides_job_then_sends_event_then_replies() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    let effects = desk.detach(job);
    let [
        Effect::Control { task: hidden, control: Control::Detach { client: 1 }, .. },
        Effect::Event { kind: Backgrounded, task: reported, .. },
        Effect::Reply { to, reply: Reply::Backgrounded(shown) },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((*hidden, reported.id, shown.id, to.client), (job, job, job, 1));
    assert_eq!((reported.foreground, shown.foreground), (None, None));
}

#[test]
fn r62_backgrounded_job_stays_the_same_run() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    assert!(desk.block(&[job], None, All).is_empty());
    let before = desk.task(job);
    assert_eq!(before.foreground, Some(1));
    assert_eq!(replies(&desk.detach(job)).len(), 1, "who waits for it goes on waiting");
    let after = desk.task(job);
    assert_eq!((&after.state, after.run, after.foreground), (&before.state, 1, None));
    assert!(ends(&desk.input(GONE)).is_empty(), "it does not need its client any more");
    assert_eq!(events(&desk.fact(job, exited(3, false))), [(Failed, job)]);
    assert_eq!(failures::error(&desk.task(job)).as_deref(), Some("exited with code 3"));
}

#[test]
fn r62_job_detached_while_starting_runs_in_the_background() {
    let mut desk = Desk::new(1);
    let job = desk.foreground(command(id(1)));
    assert_eq!(events(&desk.detach(job)), [(Backgrounded, job)]);
    assert!(desk.input(GONE).is_empty());
    let effects = desk.fact(job, started());
    assert_eq!((events(&effects), ends(&effects)), (vec![(Started, job)], vec![]));
}

#[test]
fn r62_time_limit_keeps_counting_across_detach() {
    let mut desk = Desk::new(1);
    let mut command = command(id(1));
    command.spec.time_limit_ms = Some(1000);
    let job = desk.foreground(command);
    assert_eq!(events(&desk.fact(job, started())), [(Started, job)]);
    assert!(desk.wait(600).is_empty());
    assert_eq!(events(&desk.detach(job)), [(Backgrounded, job)]);
    assert_eq!(ends(&desk.wait(400)), [(job, TERM)]);
}

#[test]
fn r63_detach_affects_only_the_named_job() {
    let mut desk = Desk::new(1);
    let (first, second, third) = (desk.job(1), desk.job(2), desk.job(3));
    assert_eq!(events(&desk.detach(second)), [(Backgrounded, second)]);
    let shown = [first, second, third].map(|job| desk.task(job).foreground);
    assert_eq!(shown, [Some(1), None, Some(1)]);
    assert_eq!(ends(&desk.input(GONE)), [(first, HUP), (third, HUP)]);
}

#[test]
fn r64_direct_job_cannot_be_backgrounded() {
    let mut desk = Desk::new(1);
    let job = direct(&mut desk, 1);
    let effects = desk.detach(job);
    assert_eq!(unmovable(&effects), Unmovable::Direct);
    let error = refusals::of_core(refusal(&effects).clone());
    assert_eq!(error.data.kind, ErrorKind::NotBackgroundable);
    assert!(error.message.ends_with("the user started it directly"), "{}", error.message);
    assert_eq!(desk.task(job).foreground, Some(1));
    assert_eq!(ends(&desk.input(GONE)), [(job, HUP)], "it ends with its terminal as any other");
}

#[test]
fn r66_detach_of_an_ended_job_is_refused() {
    let code = |code| Fact::Exited { exit: Exit::Code(code), others: false, at: None };
    let cases = [
        (code(0), Completed, Status::Completed),
        (code(3), Failed, Status::Failed),
        (exited(0, true), Completed, Status::Completed),
    ];
    for (fact, kind, status) in cases {
        let mut desk = Desk::new(1);
        let job = desk.job(1);
        let effects = desk.fact(job, fact);
        assert_eq!(events(&effects), [(kind, job)]);
        let effects = desk.detach(job);
        assert_eq!(refusal(&effects), &CoreError::EndedFirst(job, status));
        assert_eq!(effects.len(), 1, "{effects:?}");
        assert_eq!(refusals::of_core(refusal(&effects).clone()).data.kind, ErrorKind::AlreadyFinished);
        assert!(desk.input(GONE).is_empty(), "what it left behind is nobody's job");
    }
}

#[test]
fn r66_detach_of_job_that_failed_to_start_is_refused() {
    let mut desk = Desk::new(1);
    let job = desk.foreground(command(id(1)));
    assert_eq!(events(&desk.fact(job, Fact::StartFailed { failure: "no".into() })), [(Failed, job)]);
    assert_eq!(refusal(&desk.detach(job)), &CoreError::EndedFirst(job, Status::Failed));
}

#[test]
fn r66_job_being_cancelled_can_still_be_detached() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    assert!(replies(&desk.cancel(ids(&[job]))).is_empty());
    assert_eq!(events(&desk.detach(job)), [(Backgrounded, job)]);
    assert!(desk.input(GONE).is_empty());
    assert_eq!(ends(&desk.wait(5000)), [(job, KILL)]);
    assert_eq!(events(&desk.fact(job, exited(0, false))), [(Cancelled, job)]);
    assert_eq!(failures::error(&desk.task(job)).as_deref(), None, "a user asked for it");
}

#[test]
fn r67_second_detach_changes_nothing() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    assert_eq!(events(&desk.detach(job)), [(Backgrounded, job)]);
    for _ in 0..20 {
        assert_eq!(unmovable(&desk.detach(job)), Unmovable::InBackground);
    }
}

#[test]
fn r67_only_the_client_showing_a_job_can_detach_it() {
    let mut desk = Desk::new(2);
    let (job, other) = (desk.job(1), desk.running(2));
    let detach = |task: TaskId| Request::Detach { id: task.into() };
    assert_eq!(unmovable(&desk.ask_as(2, detach(job))), Unmovable::OfAnother);
    assert_eq!(unmovable(&desk.ask_as(2, detach(other))), Unmovable::InBackground);
    assert_eq!(desk.task(job).foreground, Some(1));
    assert_eq!(refusal(&desk.detach(id(9))), &CoreError::NotFound(id(9).to_string()));
}

#[test]
fn r69_agent_turn_can_be_backgrounded_like_any_job() {
    let mut desk = Desk::new(1);
    let task = turn(&mut desk, 1);
    assert!(desk.fact(task, Fact::Session { id: "a name".into() }).is_empty());
    assert_eq!(events(&desk.fact(task, Fact::Started { pid: None })), [(Started, task)]);
    assert_eq!(events(&desk.fact(task, asked(5))).len(), 1);
    let effects = desk.detach(task);
    assert_eq!((events(&effects), decisions(&effects)), (vec![(Backgrounded, task)], vec![]));
    assert_eq!(decisions(&desk.answer(task, 1, "yes")), [(5, Some("yes"))], "it still waits for its answer");
    assert!(desk.input(GONE).is_empty());
    assert_eq!(events(&desk.fact(task, turn_ended())), [(Completed, task)]);
}

#[test]
fn r69_resume_of_a_foreground_turn_runs_in_the_background() {
    let mut desk = Desk::new(1);
    let task = turn(&mut desk, 1);
    for fact in [Fact::Session { id: "a name".into() }, Fact::Started { pid: None }, turn_ended()] {
        assert!(replies(&desk.fact(task, fact)).is_empty());
    }
    assert_eq!(prompts(&desk.resume(task)).len(), 1);
    assert_eq!(unmovable(&desk.detach(task)), Unmovable::InBackground, "it is about to run there");
    assert_eq!(desk.task(task).foreground, None);
    assert!(ends(&desk.input(GONE)).is_empty());
}

#[test]
fn r70_adopted_process_runs_in_the_background_at_once() {
    let mut desk = Desk::new(1);
    let (running, waiting) = (desk.running(1), desk.submit(2));
    let effects = desk.adopt(3);
    assert_eq!(events(&effects), [(Submitted, id(3)), (Started, id(3)), (Backgrounded, id(3))]);
    let adopted = |effect: &Effect| matches!(effect, Effect::Start { task, run: 1, begin: Begin::HandedOver, .. } if *task == id(3));
    assert_eq!(effects.iter().filter(|effect| adopted(effect)).count(), 1);
    let Reply::Backgrounded(shown) = only_reply(&effects) else { panic!("{effects:?}") };
    let State::Running { pid: Some(200), started_at, time_limit: None } = shown.state else {
        panic!("{shown:?}")
    };
    assert_eq!(started_at.unix_ms(), desk.now.wall.unix_ms() - 7000, "since when it really runs");
    assert!(starts(&desk.fact(running, exited(0, false))).is_empty(), "it has a slot");
    assert!(desk.input(GONE).is_empty(), "who handed it over may go");
    assert_eq!(unmovable(&desk.detach(id(3))), Unmovable::InBackground);
    let effects = desk.fact(id(3), exited(0, false));
    assert_eq!((events(&effects), starts(&effects)), (vec![(Completed, id(3))], vec![waiting]));
}

#[test]
fn r70_full_or_closing_daemon_refuses_to_adopt_a_process() {
    let mut full = Desk::new(1);
    assert!(full.input(configure(CoreLimits { tasks: 1, ..limits(1) })).is_empty());
    let running = full.running(1);
    let mut closing = Desk::new(1);
    closing.running(1);
    assert_eq!(
        ends(&closing.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All })),
        [(running, TERM)]
    );
    let mut closed = Desk::new(1);
    assert!(matches!(
        closed.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All }).last(),
        Some(Effect::Exit)
    ));
    let cases =
        [(full, CoreError::Full(1)), (closing, CoreError::ShuttingDown), (closed, CoreError::ShuttingDown)];
    for (mut desk, error) in cases {
        let effects = desk.adopt(2);
        assert_eq!(refusal(&effects), &error);
        assert_eq!(effects.len(), 1, "nobody is told to look after it: {effects:?}");
    }
}

#[test]
fn r70_key_of_an_adopted_process_is_ignored() {
    let mut desk = Desk::new(1);
    let mut order = command(id(1));
    order.key = Some("nightly".into());
    let mut submitted = order.clone();
    submitted.id = id(2);
    let started_at = desk.now.wall;
    let adopt = Request::Adopt { command: Box::new(order), pid: 7, started_at };
    assert!(matches!(only_reply(&desk.ask(adopt)), Reply::Backgrounded(_)));
    let effects = desk.ask(Request::Submit(Box::new(submitted)));
    assert!(matches!(only_reply(&effects), Reply::Task(task) if task.id == id(2)));
}

#[test]
fn r142_staying_job_survives_disconnect_and_is_reclaimed_by_key() {
    let mut desk = Desk::new(1);
    let mut job = command(id(1));
    (job.foreground, job.spec.stays, job.key) = (true, true, Some("key".into()));
    desk.ask(Request::Submit(Box::new(job.clone())));
    desk.fact(id(1), Fact::Started { pid: Some(100) });
    let effects = desk.input(GONE);
    assert_eq!((events(&effects), ends(&effects)), (vec![(Backgrounded, id(1))], vec![]));
    assert_eq!((desk.task(id(1)).foreground, desk.status(id(1))), (None, Status::Running));
    // A second connection takes over the job, then a third one, as the second was lost unnoticed.
    let again = || Request::Submit(Box::new(Command { id: id(2), ..job.clone() }));
    for (client, hidden) in [(2, vec![]), (2, vec![]), (3, vec![2])] {
        let effects = desk.ask_as(client, again());
        assert!(matches!(only_reply(&effects), Reply::Task(task) if task.id == id(1)), "{effects:?}");
        let was_shown = |effect: &Effect| match effect {
            Effect::Control { control: Control::Detach { client }, .. } => Some(*client),
            _ => None,
        };
        assert_eq!(effects.iter().filter_map(was_shown).collect::<Vec<_>>(), hidden);
        assert_eq!(desk.task(id(1)).foreground, Some(client));
    }
    assert!(ends(&desk.input(Input::Disconnected { client: 2 })).is_empty());
    assert_eq!(desk.task(id(1)).foreground, Some(3));
    let moved = desk.ask_as(3, Request::Detach { id: id(1).into() });
    assert!(matches!(only_reply(&moved), Reply::Backgrounded(_)), "{moved:?}");
    // A job that has ended belongs to no client.
    desk.fact(id(1), exited(0, false));
    desk.ask_as(4, again());
    assert_eq!((desk.task(id(1)).foreground, desk.status(id(1))), (None, Status::Completed));
    assert_eq!(desk.core.summary().total(), 1);
}

#[test]
fn r71_disconnect_hangs_up_the_jobs_of_the_client() {
    let mut desk = Desk::new(1);
    let (job, background, direct) = (desk.job(1), desk.submit(2), direct(&mut desk, 3));
    let mut theirs = command(id(4));
    theirs.foreground = true;
    assert_eq!(starts(&desk.ask_as(2, Request::Submit(Box::new(theirs)))), [id(4)]);
    assert!(desk.block(&[job], None, All).is_empty());
    let effects = desk.input(GONE);
    assert_eq!(ends(&effects), [(job, HUP), (direct, HUP)]);
    assert!(replies(&effects).is_empty() && events(&effects).is_empty(), "{effects:?}");
    assert_eq!([job, direct].map(|task| desk.task(task).foreground), [None, None]);
    assert_eq!((desk.task(id(4)).foreground, desk.status(background)), (Some(2), Status::Pending));
    assert!(desk.wait(4999).is_empty());
    assert_eq!(ends(&desk.wait(1)), [(job, KILL), (direct, KILL)]);
    for task in [job, direct] {
        let effects = desk.fact(task, Fact::Exited { exit: Exit::Signal(9), others: false, at: None });
        assert_eq!(events(&effects), [(Cancelled, task)]);
        assert!(replies(&effects).is_empty(), "nobody is there to be told");
        assert_eq!(
            failures::error(&desk.task(task)).as_deref(),
            Some("its terminal was closed or its client ended")
        );
    }
}

#[test]
fn foreground_jobs_per_connection_are_limited() {
    let mut desk = Desk::new(1);
    let mut job = |number: usize| {
        let mut command = command(id(u16::try_from(number).unwrap()));
        command.foreground = true;
        desk.ask(Request::Submit(Box::new(command)))
    };
    for number in 1..=FOREGROUND_JOBS {
        assert_eq!(starts(&job(number)).len(), 1);
    }
    let effects = job(FOREGROUND_JOBS + 1);
    assert_eq!(refusal(&effects), &CoreError::TooManyJobs(FOREGROUND_JOBS));
    assert_eq!(refusals::of_core(refusal(&effects).clone()).kind(), ErrorKind::TooManyRequests);
}

#[test]
fn r71_job_exiting_successfully_on_sighup_counts_as_cancelled() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    assert_eq!(ends(&desk.input(GONE)), [(job, HUP)]);
    assert!(desk.fact(job, exited(0, true)).is_empty(), "others of its tree live on");
    assert_eq!(events(&desk.fact(job, Fact::TreeEmpty)), [(Cancelled, job)]);
    assert_eq!(desk.core.deadline(), None);
}

#[test]
fn r71_job_still_starting_at_disconnect_is_ended_once_it_runs() {
    let mut desk = Desk::new(1);
    let (job, failing, task) =
        (desk.foreground(command(id(1))), desk.foreground(command(id(2))), turn(&mut desk, 3));
    assert_eq!(ends(&desk.input(GONE)), [(task, HUP)], "an agent may take its time to start");
    let effects = desk.fact(job, started());
    assert_eq!((events(&effects), ends(&effects)), (vec![(Started, job)], vec![(job, HUP)]));
    assert_eq!(ends(&desk.wait(5000)), [(job, KILL)]);
    let effects = desk.fact(failing, Fact::StartFailed { failure: "no such program".into() });
    assert_eq!(events(&effects), [(Cancelled, failing)]);
    assert_eq!(events(&desk.fact(task, refused())), [(Cancelled, task)]);
    for task in [failing, task] {
        assert_eq!(
            failures::error(&desk.task(task)).as_deref(),
            Some("its terminal was closed or its client ended")
        );
    }
}

#[test]
fn r71_disconnect_denies_the_open_question_of_an_agent() {
    let mut desk = Desk::new(1);
    let task = turn(&mut desk, 1);
    assert_eq!(events(&desk.fact(task, Fact::Started { pid: None })), [(Started, task)]);
    assert_eq!(events(&desk.fact(task, asked(5))).len(), 1);
    let effects = desk.input(GONE);
    assert_eq!((ends(&effects), decisions(&effects)), (vec![(task, HUP)], vec![(5, None)]));
    assert_eq!(events(&desk.fact(task, turn_ended())), [(Cancelled, task)]);
}

#[test]
fn r71_job_being_cancelled_gets_sighup_but_no_longer_grace() {
    let cancel = |signal, grace_ms| {
        let which = Selection::All { session: None };
        Request::Cancel(Cancel { which, signal, grace_ms })
    };
    // The signals sent at once, and when SIGKILL follows.
    let cases = [
        (cancel(None, Some(100)), vec![HUP], Some(100)),
        (cancel(None, Some(60_000)), vec![HUP], Some(5000)),
        (cancel(Some(KILL), None), vec![], None),
    ];
    for (cancel, signals, grace) in cases {
        let mut desk = Desk::new(1);
        let job = desk.job(1);
        assert!(replies(&desk.ask_as(2, cancel)).is_empty());
        let sent: Vec<i32> = ends(&desk.input(GONE)).iter().map(|(_, signal)| *signal).collect();
        assert_eq!(sent, signals);
        assert_eq!(desk.core.deadline(), grace.map(|grace| desk.now.mono.plus_ms(grace)));
        let effects = desk.fact(job, exited(0, false));
        assert!(matches!(only_reply(&effects), Reply::Tasks(_)), "who cancelled it is answered");
        let State::Finished(finished) = desk.task(job).state else { panic!("it goes on") };
        assert_eq!(finished.outcome, bgd_core::Outcome::Cancelled(StopReason::Cancelled));
    }
}

#[test]
fn r71_waiters_for_an_abandoned_job_get_a_reply_when_it_ends() {
    let mut desk = Desk::new(1);
    let job = desk.job(1);
    let which = Selection::Ids(vec![job.into()]);
    let block = Request::Block { which, timeout_ms: None, mode: All, until: BlockUntil::Ended };
    assert!(desk.ask_as(2, block).is_empty());
    assert!(replies(&desk.input(GONE)).is_empty());
    assert_eq!(blocked(&desk.fact(job, exited(0, false))), (vec![(job, Status::Cancelled)], false));
}
