//! Example tests of the requirements about agent tasks that the core implements.

use crate::wire::{failures, refusals};
use bgd_core::{
    Begin, CoreError, Effect, Fact, Finished, Input, LeavePolicy, Note, Outcome, Refusal, Reply, Request,
    Selection,
};
use bgd_core::{Snapshot, State, StopReason};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::BlockMode::All;
use bgd_shared::task::Status;

use super::support::{
    ASK_TIMEOUT, Desk, FIRST_PROMPT, KILL, STALLED_AFTER, TERM, asked, blocked, decisions, ends, events,
    exited, forgotten, id, ids, only_reply, prompt, prompts, refs, refusal, refused, replies, session_of,
    starts, tools, turn_ended, turn_failed,
};

fn started() -> Fact {
    Fact::Started { pid: None }
}

/// Returns kind, message and hint as a client gets them.
fn message(error: &CoreError) -> (ErrorKind, String, String) {
    let error = refusals::of_core(error.clone());
    (error.data.kind, error.message, error.data.hint.unwrap_or_default())
}

/// Describes what a refused resume must not change.
fn end_of(task: &Snapshot) -> String {
    let agent = task.agent.as_ref().map(|agent| (agent.prompt.clone(), agent.session.clone()));
    format!("{:?} {:?} {} {agent:?}", task.state, task.retrieved_at, task.resume_count)
}

#[test]
fn r01_prompt_start_carries_environment_and_prompt() {
    let mut desk = Desk::new(1);
    let effects = desk.ask(Request::Submit(Box::new(prompt(id(1), STALLED_AFTER, ASK_TIMEOUT))));
    let Some(Effect::Start { run: 1, begin: Begin::Prompt { env, prompt, session: None, .. }, .. }) =
        effects.last()
    else {
        panic!("{effects:?}")
    };
    assert_eq!((&**prompt, env.0.len()), (FIRST_PROMPT, 1));
    assert_eq!(desk.status(id(1)), Status::Running, "it has a slot");
}

#[test]
fn r02_prompts_and_commands_share_one_queue() {
    let mut desk = Desk::new(1);
    let first = desk.at_work(1);
    let command = desk.submit(2);
    let effects = desk.ask(Request::Submit(Box::new(prompt(id(3), STALLED_AFTER, ASK_TIMEOUT))));
    assert!(prompts(&effects).is_empty());
    assert_eq!(starts(&desk.fact(first, turn_ended())), [command]);
    let effects = desk.fact(command, Fact::StartFailed { failure: "no".into() });
    assert_eq!(prompts(&effects), [(id(3), 1, None)]);
}

#[test]
fn r04_status_follows_the_turn() {
    let refusal = || Fact::Refused(Box::new(Refusal::new(ErrorKind::AgentUnavailable, "no such program")));
    let cases = [
        (vec![started(), turn_ended()], Status::Completed, None),
        (vec![started(), turn_failed("overloaded")], Status::Failed, Some("overloaded")),
        (vec![refusal()], Status::Failed, Some("no such program")),
        (vec![refused()], Status::Failed, Some("there is no such session (submit a new task)")),
    ];
    for (facts, status, error) in cases {
        let mut desk = Desk::new(1);
        let task = desk.prompted(1);
        for fact in facts {
            assert_eq!(events(&desk.fact(task, fact)).len(), 1);
        }
        let task = desk.task(task);
        assert_eq!((task.status(), failures::error(&task).as_deref()), (status, error));
    }
}

#[test]
fn r05_cancelled_turn_counts_as_cancelled_whatever_its_outcome() {
    for last in [turn_ended(), turn_failed("it was cancelled")] {
        let mut desk = Desk::new(1);
        let task = desk.at_work(1);
        assert_eq!(ends(&desk.cancel(ids(&[task]))), [(task, TERM)]);
        assert_eq!(ends(&desk.wait(5000)), [(task, KILL)]);
        let effects = desk.fact(task, last);
        assert_eq!(events(&effects), [(EventKind::Cancelled, task)]);
        assert!(matches!(only_reply(&effects), Reply::Tasks(tasks) if failures::error(&tasks[0]).is_none()));
    }
}

#[test]
fn r05_cancel_reaches_a_starting_agent_at_once() {
    let mut desk = Desk::new(1);
    let task = desk.prompted(1);
    assert_eq!(ends(&desk.cancel(ids(&[task]))), [(task, TERM)]);
    let effects = desk.fact(task, refused());
    assert_eq!(events(&effects), [(EventKind::Cancelled, task)], "that it did not begin is what we wanted");
    assert_eq!(replies(&effects).len(), 1);
    let late = desk.prompted(2);
    assert_eq!(ends(&desk.cancel(ids(&[late]))), [(late, TERM)]);
    let effects = desk.fact(late, started());
    assert_eq!((events(&effects), ends(&effects)), (vec![(EventKind::Started, late)], vec![(late, TERM)]));
}

#[test]
fn r05_ending_turn_has_all_questions_denied() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    for key in [7, 8] {
        assert_eq!(events(&desk.fact(task, asked(key))), [(EventKind::NeedsInput, task)]);
    }
    let effects = desk.cancel(ids(&[task]));
    assert_eq!(decisions(&effects), [(7, None), (8, None)]);
    assert_eq!(events(&effects), [(EventKind::Progress, task)], "subscribers see that it asks no more");
    assert!(matches!(effects.first(), Some(Effect::End { .. })), "a denial may end the turn: {effects:?}");
    assert_eq!(refusal(&desk.answer(task, 1, "yes")), &CoreError::NotAsked(task, 1, None));
    assert_eq!(decisions(&desk.fact(task, asked(9))), [(9, None)]);
}

#[test]
fn r05_resume_cancelled_before_acceptance_leaves_task_unchanged() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    let before = end_of(&desk.task(task));
    assert!(replies(&desk.resume(task)).is_empty());
    assert_eq!(ends(&desk.cancel(Selection::All { session: None })), [(task, TERM)]);
    let effects = desk.fact_of_run(task, 2, refused());
    let [Reply::Error(error), Reply::Tasks(tasks)] = replies(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((error, tasks[0].status()), (&CoreError::Withdrawn(task), Status::Completed));
    assert!(events(&effects).is_empty());
    assert_eq!(end_of(&desk.task(task)), before);
}

#[test]
fn r05_resume_cancelled_after_acceptance_is_a_cancelled_run() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(replies(&desk.cancel(ids(&[task]))).is_empty());
    let effects = desk.fact_of_run(task, 2, started());
    assert_eq!(events(&effects), [(EventKind::Resumed, task)]);
    assert_eq!(ends(&effects), [(task, TERM)]);
    assert!(matches!(only_reply(&effects), Reply::Task(shown) if shown.status() == Status::Resumed));
    let effects = desk.fact_of_run(task, 2, turn_ended());
    assert_eq!(events(&effects), [(EventKind::Cancelled, task)]);
}

#[test]
fn r08_resumed_task_is_counted_as_resumed() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    assert_eq!((desk.core.summary().completed, desk.core.summary().active()), (1, 0), "not yet");
    assert_eq!(events(&desk.fact_of_run(task, 2, started())), [(EventKind::Resumed, task)]);
    assert_eq!((desk.core.summary().resumed, desk.core.summary().active()), (1, 1));
}

#[test]
fn r10_task_being_resumed_is_cleared_only_with_active_tasks() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    let effects = desk.ask(Request::Clear { which: ids(&[task]), active_too: false });
    let (kind, message, _) = message(refusal(&effects));
    assert_eq!(kind, ErrorKind::BeingResumed);
    assert!(message.contains("is being resumed, so it can't be cleared"), "{message}");
    let all = Selection::All { session: None };
    let effects = desk.ask(Request::Clear { which: all, active_too: false });
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 0, .. }));
    assert_eq!(ends(&desk.ask(Request::Clear { which: ids(&[task]), active_too: true })), [(task, TERM)]);
    let effects = desk.fact_of_run(task, 2, refused());
    let [Reply::Error(_), Reply::Cleared { cleared: 1, .. }] = replies(&effects)[..] else {
        panic!("{effects:?}")
    };
}

#[test]
fn r10_task_being_cleared_cannot_be_resumed() {
    let clear = |tasks: &[TaskId]| Request::Clear { which: ids(tasks), active_too: true };
    let mut desk = Desk::new(2);
    let (done, running) = (desk.answered(1), desk.running(2));
    assert!(replies(&desk.ask(clear(&[done, running]))).is_empty());
    assert_eq!(refusal(&desk.resume(done)), &CoreError::BeingCleared(done));
    let effects = desk.fact(running, exited(0, false));
    assert!(matches!(only_reply(&effects), Reply::Cleared { cleared: 2, .. }));
    assert_eq!(desk.core.summary().total(), 0);
}

#[test]
fn r11_shutdown_withdraws_resumes_and_exits_after_the_last_turn() {
    let mut desk = Desk::new(1);
    let (task, other) = (desk.answered(1), desk.answered(2));
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(replies(&desk.resume(other)).is_empty());
    let effects = desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert_eq!(ends(&effects), [(task, TERM), (other, TERM)]);
    assert_eq!(refusal(&desk.resume(task)), &CoreError::ShuttingDown);
    assert_eq!(refusal(&desk.fact_of_run(task, 2, refused())), &CoreError::ShuttingDown);
    assert_eq!(events(&desk.fact_of_run(other, 2, started())), [(EventKind::Resumed, other)]);
    let effects = desk.fact_of_run(other, 2, turn_failed("it was cancelled"));
    assert!(matches!(only_reply(&effects), Reply::ShutDown { cancelled: 2, left: 0 }));
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    assert_eq!(failures::error(&desk.task(other)).as_deref(), Some("the daemon was shut down"));
}

#[test]
fn r21_resume_resets_retrieved_at() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    let retrieve = || Request::Retrieve { id: task.into(), complete: true };
    assert!(matches!(only_reply(&desk.ask(retrieve())), Reply::Task(_)));
    assert!(desk.task(task).retrieved_at.is_some());
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(matches!(only_reply(&desk.ask(retrieve())), Reply::Task(_)), "the old result is still there");
    assert_eq!(events(&desk.fact_of_run(task, 2, started())), [(EventKind::Resumed, task)]);
    assert_eq!(desk.task(task).retrieved_at, None);
    let effects = desk.ask(retrieve());
    assert_eq!(refusal(&effects), &CoreError::NotComplete(task, Status::Resumed, None));
    assert!(message(refusal(&effects)).1.contains("is not complete yet"));
}

#[test]
fn r22_task_that_ends_twice_counts_once_for_a_block() {
    let mut desk = Desk::new(2);
    let (task, other) = (desk.at_work(1), desk.running(2));
    assert!(desk.block(&[task, other], None, All).is_empty());
    assert!(replies(&desk.fact(task, turn_ended())).is_empty());
    desk.resumed(task, 2);
    assert!(replies(&desk.fact_of_run(task, 2, turn_ended())).is_empty(), "the other still runs");
    let named = vec![(task, Status::Completed), (other, Status::Completed)];
    assert_eq!(blocked(&desk.fact(other, exited(0, false))), (named, false));
}

#[test]
fn r25_block_after_resume_waits_for_the_new_run() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(desk.block(&[task], None, All).is_empty(), "even before the prompt is there");
    assert_eq!(replies(&desk.fact_of_run(task, 2, started())).len(), 1, "only the resume is answered");
    assert!(desk.block(&[task], None, All).is_empty());
    let effects = desk.fact_of_run(task, 2, turn_failed("overloaded"));
    assert_eq!(replies(&effects).len(), 2);
    for reply in replies(&effects) {
        let Reply::Blocked { tasks, timed_out: false, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(tasks[0].status(), Status::Failed);
    }
}

#[test]
fn r25_block_after_refused_resume_returns_old_result() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(desk.block(&[task], None, All).is_empty());
    let effects = desk.fact_of_run(task, 2, refused());
    let [Reply::Error(_), Reply::Blocked { tasks, timed_out: false, .. }] = replies(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(tasks[0].status(), Status::Completed);
}

#[test]
fn block_with_or_asks_returns_when_a_task_asks() {
    use bgd_shared::request::BlockMode::{AllOrAsks, AnyOrAsks};
    let mut desk = Desk::new(2);
    let (task, other) = (desk.at_work(1), desk.at_work(2));
    assert!(desk.block(&[task, other], None, All).is_empty());
    assert!(desk.block(&[task, other], None, AllOrAsks).is_empty());
    assert!(desk.block(&[other], None, AnyOrAsks).is_empty(), "the question of another is none of its");
    let named = vec![(task, Status::Running), (other, Status::Running)];
    assert_eq!(blocked(&desk.fact(task, asked(1))), (named.clone(), false));
    assert_eq!(blocked(&desk.block(&[task, other], None, AnyOrAsks)), (named, false), "it still asks");
    assert!(replies(&desk.fact(task, asked(2))).is_empty(), "the others go on");
}

#[test]
fn r30_resume_continues_the_agent_session() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    let effects = desk.resume(task);
    let [Effect::Start { run: 2, begin: Begin::Prompt { env, prompt, session, .. }, .. }] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((&**prompt, session.as_deref()), ("and now?", Some(&*session_of(task))));
    assert_eq!(env.0.len(), 1, "the agent's process may have to be started again");
}

#[test]
fn r30_agent_session_id_may_change() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    desk.resumed(task, 2);
    assert!(desk.fact_of_run(task, 2, Fact::Session { id: "another".into() }).is_empty());
    assert_eq!(events(&desk.fact_of_run(task, 2, turn_ended())), [(EventKind::Completed, task)]);
    assert_eq!(prompts(&desk.resume(task)), [(task, 3, Some("another".to_owned()))]);
}

#[test]
fn r31_resume_replies_when_the_prompt_is_accepted() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    let shown = desk.task(task);
    assert_eq!((shown.status(), shown.resume_count), (Status::Completed, 0));
    desk.now.wall = desk.now.wall.plus_ms(70);
    let effects = desk.fact_of_run(task, 2, Fact::Started { pid: Some(9) });
    let Reply::Task(shown) = only_reply(&effects) else { panic!("{effects:?}") };
    assert_eq!((shown.status(), shown.resume_count), (Status::Resumed, 1));
    assert_eq!(shown.agent.as_ref().map(|agent| &*agent.prompt), Some("and now?"));
    assert!(
        matches!(shown.state, State::Running { pid: Some(9), started_at, .. } if started_at == desk.now.wall)
    );
    assert!(matches!(effects[0], Effect::Event { kind: EventKind::Resumed, .. }), "told before answered");
}

#[test]
fn r31_resume_takes_a_slot_without_waiting_for_one() {
    let mut desk = Desk::new(1);
    let (task, running) = (desk.answered(1), desk.running(2));
    let waiting = desk.submit(3);
    desk.resumed(task, 2);
    assert!(starts(&desk.fact(running, exited(0, false))).is_empty(), "the resumed one has the slot");
    assert_eq!(starts(&desk.fact_of_run(task, 2, turn_ended())), [waiting]);
}

#[test]
fn r31_resume_survives_disconnect_of_its_client() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(replies(&desk.resume(task)).is_empty());
    assert!(desk.input(Input::Disconnected { client: 1 }).is_empty());
    assert_eq!(events(&desk.fact_of_run(task, 2, started())), [(EventKind::Resumed, task)]);
    assert_eq!(events(&desk.fact_of_run(task, 2, turn_ended())), [(EventKind::Completed, task)]);
}

#[test]
fn r32_each_resume_completes_the_task_again() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    for run in 2..5 {
        desk.resumed(task, run);
        let late = desk.fact_of_run(task, run - 1, turn_failed("late"));
        assert!(late.is_empty(), "of an earlier run: {late:?}");
        desk.now.wall = desk.now.wall.plus_ms(1000);
        let effects = desk.fact_of_run(task, run, turn_ended());
        assert_eq!(events(&effects), [(EventKind::Completed, task)]);
        assert!(desk.fact_of_run(task, run, turn_failed("again")).is_empty(), "it has ended");
        let shown = desk.task(task);
        assert_eq!(shown.resume_count, run - 1);
        let State::Finished(Finished { completed_at, .. }) = shown.state else { panic!("{shown:?}") };
        assert_eq!(completed_at, desk.now.wall);
    }
}

#[test]
fn r33_only_completed_tasks_can_be_resumed() {
    let mut desk = Desk::new(4);
    let (failed, running, starting) = (desk.at_work(1), desk.at_work(2), desk.prompted(3));
    assert_eq!(events(&desk.fact(failed, turn_failed("overloaded"))).len(), 1);
    let (ending, cancelled) = (desk.at_work(4), desk.at_work(5));
    assert_eq!(ends(&desk.cancel(ids(&[ending, cancelled]))).len(), 2);
    assert_eq!(events(&desk.fact(cancelled, turn_ended())).len(), 1);
    desk.prompted(6);
    let effects = desk.ask(Request::Submit(Box::new(prompt(id(7), STALLED_AFTER, ASK_TIMEOUT))));
    assert_eq!(replies(&effects).len(), 1);
    let cases = [
        (failed, Status::Failed, "submit a new task"),
        (running, Status::Running, "`bgctl block` waits for it"),
        (starting, Status::Running, "`bgctl block` waits for it"),
        (ending, Status::Running, "`bgctl block` waits for it"),
        (cancelled, Status::Cancelled, "submit a new task"),
        (id(7), Status::Pending, "`bgctl block` waits for it"),
    ];
    for (task, status, hint) in cases {
        let effects = desk.resume(task);
        assert_eq!(effects.len(), 1, "{effects:?}");
        assert_eq!(refusal(&effects), &CoreError::NotResumable(task, status));
        let expected = format!("only completed tasks can be resumed; task {task} is {status}");
        assert_eq!(
            message(refusal(&effects)),
            (ErrorKind::NotResumable, expected, hint.to_owned()),
            "with the current status"
        );
        assert_eq!(desk.task(task).run, 1);
    }
}

#[test]
fn r33_command_task_cannot_be_resumed() {
    let mut desk = Desk::new(1);
    for task in [desk.finished(1, 0), desk.running(2)] {
        let effects = desk.resume(task);
        assert_eq!(refusal(&effects), &CoreError::NoAgent(task));
        assert_eq!(message(refusal(&effects)).0, ErrorKind::NotResumable);
    }
}

#[test]
fn r34_task_being_resumed_cannot_be_resumed_again() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    let refuses = |desk: &mut Desk| {
        let effects = desk.resume(task);
        assert_eq!(effects.len(), 1, "{effects:?}");
        let expected = format!("task {task} is currently being resumed");
        let (kind, message, _) = message(refusal(&effects));
        assert_eq!((kind, message), (ErrorKind::BeingResumed, expected));
    };
    assert!(replies(&desk.resume(task)).is_empty());
    refuses(&mut desk);
    assert_eq!(replies(&desk.fact_of_run(task, 2, started())).len(), 1);
    refuses(&mut desk);
    assert_eq!(ends(&desk.cancel(ids(&[task]))), [(task, TERM)]);
    refuses(&mut desk);
}

#[test]
fn r35_resume_of_expired_session_leaves_task_unchanged() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert_eq!(replies(&desk.ask(Request::Retrieve { id: task.into(), complete: true })).len(), 1);
    let before = end_of(&desk.task(task));
    for run in 2..4 {
        desk.now.wall = desk.now.wall.plus_ms(1000);
        assert_eq!(prompts(&desk.resume(task)), [(task, run, Some(session_of(task)))]);
        let effects = desk.fact_of_run(task, run, refused());
        assert!(events(&effects).is_empty(), "nothing has happened");
        assert_eq!(refusal(&effects), &CoreError::Refused(task, Box::new(forgotten())));
        let expected = format!("task {task} can't be resumed: there is no such session");
        assert_eq!(
            message(refusal(&effects)),
            (ErrorKind::SessionExpired, expected, "submit a new task".to_owned())
        );
        assert_eq!(end_of(&desk.task(task)), before);
        for late in [started(), turn_ended(), refused()] {
            assert!(desk.fact_of_run(task, run, late).is_empty());
        }
    }
}

#[test]
fn r35_task_without_agent_session_cannot_be_resumed() {
    let mut desk = Desk::new(1);
    let task = desk.prompted(1);
    for fact in [started(), turn_ended()] {
        assert_eq!(events(&desk.fact(task, fact)).len(), 1);
    }
    let effects = desk.resume(task);
    let (kind, _, hint) = message(refusal(&effects));
    assert_eq!(kind, ErrorKind::SessionExpired);
    assert!(hint.starts_with("submit a new task"), "{hint}");
    assert_eq!((desk.status(task), desk.task(task).run), (Status::Completed, 1));
}

#[test]
fn r36_resume_failing_after_acceptance_fails_the_task() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    desk.resumed(task, 2);
    assert!(desk.fact_of_run(task, 2, refused()).is_empty(), "too late for that");
    let effects = desk.fact_of_run(task, 2, turn_failed("the agent's process exited with code 1"));
    assert_eq!(events(&effects), [(EventKind::Failed, task)]);
    let shown = desk.task(task);
    assert_eq!(failures::error(&shown).as_deref(), Some("the agent's process exited with code 1"));
    assert_eq!((shown.status(), shown.resume_count), (Status::Failed, 1));
    assert_eq!(refusal(&desk.resume(task)), &CoreError::NotResumable(task, Status::Failed));
}

#[test]
fn r54_end_of_session_cancels_a_pending_resume() {
    let mut desk = Desk::new(1);
    let mut command = prompt(id(1), STALLED_AFTER, ASK_TIMEOUT);
    command.spec.session = Some("tmux:%1".into());
    assert_eq!(prompts(&desk.ask(Request::Submit(Box::new(command)))).len(), 1);
    for fact in [Fact::Session { id: "s".into() }, started(), turn_ended()] {
        assert!(replies(&desk.fact(id(1), fact)).is_empty());
    }
    assert!(replies(&desk.resume(id(1))).is_empty());
    let effects = desk.ask(Request::EndSession { session: "tmux:%1".into() });
    assert_eq!(ends(&effects), [(id(1), TERM)]);
    assert_eq!(replies(&desk.fact_of_run(id(1), 2, started())).len(), 1);
    let effects = desk.fact_of_run(id(1), 2, turn_ended());
    assert!(matches!(only_reply(&effects), Reply::SessionEnded { cancelled: 1, cleared: 1, .. }));
    let Effect::Event { kind: EventKind::Cancelled, task, .. } = &effects[0] else { panic!("{effects:?}") };
    let State::Finished(finished) = &task.state else { panic!("{task:?}") };
    assert_eq!(finished.outcome, Outcome::Cancelled(StopReason::SessionEnded));
}

#[test]
fn question_waits_for_its_answer() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    for key in [70, 80] {
        assert_eq!(events(&desk.fact(task, asked(key))), [(EventKind::NeedsInput, task)]);
    }
    let error = CoreError::NotAsked(task, 3, Some(1));
    assert_eq!(refusal(&desk.answer(task, 3, "yes")), &error);
    assert_eq!(message(&error).2, "the open question is 1");
    let error = CoreError::NoSuchOption(task, "maybe".into(), vec!["yes".into(), "no".into()]);
    assert_eq!(refusal(&desk.answer(task, 2, "maybe")), &error);
    assert_eq!(message(&error).2, "the options are yes, no");
    let effects = desk.answer(task, 2, "yes");
    assert_eq!(decisions(&effects), [(80, Some("yes"))]);
    assert_eq!(events(&effects), [(EventKind::NeedsInput, task)], "the first still waits");
    assert!(matches!(only_reply(&effects), Reply::Task(shown) if shown.id == task));
    assert_eq!(refusal(&desk.answer(task, 2, "no")), &CoreError::NotAsked(task, 2, Some(1)));
    let effects = desk.fact(task, Fact::Withdrawn { key: 70 });
    assert_eq!((events(&effects), decisions(&effects)), (vec![(EventKind::Progress, task)], vec![]));
    assert_eq!(refusal(&desk.answer(task, 1, "no")), &CoreError::NotAsked(task, 1, None));
}

#[test]
fn unanswered_question_is_denied_after_timeout() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    assert!(desk.wait(1000).is_empty());
    assert_eq!(events(&desk.fact(task, asked(7))).len(), 1);
    assert!(desk.wait(ASK_TIMEOUT - 1).is_empty(), "whoever waits for an answer may be silent");
    let effects = desk.wait(1);
    assert_eq!(decisions(&effects), [(7, None)]);
    assert_eq!(events(&effects), [(EventKind::Progress, task)]);
    assert!(desk.wait(STALLED_AFTER - 1).is_empty(), "its silence begins now");
    assert_eq!(events(&desk.wait(1)), [(EventKind::Progress, task)]);
    assert!(desk.task(task).agent.is_some_and(|agent| agent.stalled));
}

#[test]
fn silent_agent_is_marked_stalled_but_never_ended() {
    let moves: [(Fact, usize); 3] = [
        (Fact::Activity, 1),
        (tools(1, "read"), 1),
        (Fact::Output { bytes: [5, 0], dropped: [0; 2], publish: true }, 2),
    ];
    for (fact, expected) in moves {
        let mut desk = Desk::new(1);
        let task = desk.at_work(1);
        assert_eq!(events(&desk.wait(STALLED_AFTER)), [(EventKind::Progress, task)]);
        assert_eq!(desk.core.deadline(), None, "nothing more happens to it");
        assert_eq!(events(&desk.fact(task, fact)).len(), expected);
        assert!(desk.task(task).agent.is_some_and(|agent| !agent.stalled));
        assert_eq!(desk.core.deadline(), Some(desk.now.mono.plus_ms(STALLED_AFTER)));
    }
}

#[test]
fn end_of_turn_discards_open_questions() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    assert_eq!(events(&desk.fact(task, asked(1))).len(), 1);
    let effects = desk.fact(task, turn_ended());
    assert_eq!((events(&effects), decisions(&effects)), (vec![(EventKind::Completed, task)], vec![]));
    assert!(desk.task(task).agent.is_some_and(|agent| agent.questions.is_empty()));
    assert_eq!(desk.core.deadline(), None);
    desk.resumed(task, 2);
    assert_eq!(events(&desk.fact_of_run(task, 2, asked(1))).len(), 1);
    assert_eq!(decisions(&desk.answer(task, 2, "no")), [(1, Some("no"))], "numbers go on over runs");
}

#[test]
fn time_limit_restarts_with_a_resume() {
    let mut desk = Desk::new(1);
    let mut command = prompt(id(1), 1_000_000, ASK_TIMEOUT);
    command.spec.time_limit_ms = Some(1500);
    assert_eq!(prompts(&desk.ask(Request::Submit(Box::new(command)))).len(), 1);
    for fact in [Fact::Session { id: session_of(id(1)).into() }, started()] {
        assert!(replies(&desk.fact(id(1), fact)).is_empty());
    }
    assert!(desk.wait(1400).is_empty());
    assert_eq!(events(&desk.fact(id(1), turn_ended())).len(), 1);
    assert!(replies(&desk.resume(id(1))).is_empty());
    assert!(desk.wait(60_000).is_empty(), "a prompt on its way has no limit of its own");
    assert_eq!(replies(&desk.fact_of_run(id(1), 2, started())).len(), 1);
    assert!(desk.wait(1499).is_empty());
    let words = Fact::Noted { note: Note::LastWords, text: "429, try 2".into() };
    assert_eq!(events(&desk.fact_of_run(id(1), 2, words)), [(EventKind::Progress, id(1))]);
    assert_eq!(ends(&desk.wait(1)), [(id(1), TERM)]);
    let effects = desk.fact_of_run(id(1), 2, turn_ended());
    assert_eq!(events(&effects), [(EventKind::Failed, id(1))]);
    assert_eq!(
        failures::error(&desk.task(id(1))).as_deref(),
        Some("timed out after 1.500s; the agent's last output: 429, try 2")
    );
}

#[test]
fn agent_turn_refuses_signals() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    let effects = desk.ask(Request::Signal { id: refs(&[task])[0].clone(), signal: TERM, tree: true });
    assert_eq!(refusal(&effects), &CoreError::NoSignals(task));
    assert_eq!(message(refusal(&effects)).0, ErrorKind::Unsupported);
}
