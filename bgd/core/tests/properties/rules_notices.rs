//! Example tests of the requirements about notices.

use std::sync::Arc;

use bgd_core::{
    Begin, Cancel, CoreError, CoreLimits, Effect, Fact, Input, LeavePolicy, Notice, Reply, Request, Selection,
};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::limits::{INBOX_WAITS, PROMPT_BYTES};
use bgd_shared::notice::NoticeKind::{self, Completed, Failed, NeedsInput, Started};
use bgd_shared::request::{BlockMode, BlockUntil};

use crate::wire::refusals;

use super::support::{
    ASK_TIMEOUT, Desk, HUP, STALLED_AFTER, TERM, asked, command, configure, ends, exited, id, ids, limits,
    only_reply, prompt, refs, refusal, refused, replies, turn_ended, turn_failed,
};

const GONE: Input = Input::Disconnected { client: 1 };
const SESSION: &str = "tmux:%1";

fn started() -> Fact {
    Fact::Started { pid: Some(100) }
}

/// Returns the notices by the fields that identify them to consumers.
fn notified(effects: &[Effect]) -> Vec<(NoticeKind, TaskId, u32)> {
    let notices = effects.iter().filter_map(|effect| match effect {
        Effect::Notice { notice, .. } => Some((notice.kind, notice.task.id, notice.task.run)),
        _ => None,
    });
    notices.collect()
}

fn only_notice(effects: &[Effect]) -> &Notice {
    let notices = effects.iter().filter_map(|effect| match effect {
        Effect::Notice { notice, .. } => Some(notice),
        _ => None,
    });
    let notices: Vec<&Arc<Notice>> = notices.collect();
    assert_eq!(notices.len(), 1, "{effects:?}");
    notices[0]
}

/// Submits a task of the session, as client 1.
fn submit(desk: &mut Desk, number: u16) -> TaskId {
    let mut command = command(id(number));
    command.spec.session = Some(SESSION.into());
    assert_eq!(replies(&desk.ask(Request::Submit(Box::new(command)))).len(), 1);
    id(number)
}

/// Submits a task of the session that runs and completes.
fn finished(desk: &mut Desk, number: u16) -> TaskId {
    let task = submit(desk, number);
    assert_eq!(notified(&desk.fact(task, started())), [(Started, task, 1)]);
    assert_eq!(notified(&desk.fact(task, exited(0, false))), [(Completed, task, 1)]);
    task
}

fn read(after: u64, wait_ms: u64, limit: usize) -> Request {
    Request::ReadInbox { session: SESSION.into(), after, wait_ms, limit }
}

/// Returns the only reply, which is from an inbox: numbers and tasks, whether there are more, and how many are lost.
fn inbox(effects: &[Effect]) -> (Vec<(u64, TaskId)>, bool, u64) {
    let Reply::Inbox { items, more, lost } = only_reply(effects) else { panic!("{effects:?}") };
    (items.iter().map(|(number, notice)| (*number, notice.task.id)).collect(), *more, *lost)
}

fn acknowledge(desk: &mut Desk, upto: u64) -> (u64, u64) {
    let effects = desk.ask(Request::AckInbox { session: SESSION.into(), upto });
    let Reply::Acknowledged { acknowledged, left } = only_reply(&effects) else { panic!("{effects:?}") };
    (*acknowledged, *left)
}

fn own(desk: &mut Desk, client: u64) {
    let effects = desk.ask_as(client, Request::OwnSession { session: SESSION.into() });
    assert!(matches!(only_reply(&effects), Reply::Owned));
}

#[test]
fn r51_started_notice_is_sent_once_and_not_for_resumes() {
    let mut desk = Desk::new(1);
    let task = desk.prompted(1);
    assert_eq!(notified(&desk.fact(task, Fact::Session { id: "s".into() })), []);
    assert_eq!(notified(&desk.fact(task, started())), [(Started, task, 1)]);
    assert_eq!(notified(&desk.fact(task, turn_ended())), [(Completed, task, 1)]);
    assert_eq!(notified(&desk.resume(task)), []);
    assert_eq!(notified(&desk.fact_of_run(task, 2, started())), []);
    assert_eq!(notified(&desk.fact_of_run(task, 2, turn_failed("no"))), [(Failed, task, 2)]);
}

#[test]
fn r51_started_notice_is_sent_only_for_background_starts() {
    let mut desk = Desk::new(9);
    assert_eq!(notified(&desk.adopt(1)), [(Started, id(1), 1)]);
    let shown = desk.foreground(command(id(2)));
    assert_eq!(notified(&desk.fact(shown, started())), []);
    assert_eq!(notified(&desk.detach(shown)), [], "its user has seen it start");
    let early = desk.foreground(command(id(3)));
    assert_eq!(notified(&desk.detach(early)), []);
    assert_eq!(notified(&desk.fact(early, started())), [(Started, early, 1)]);
}

#[test]
fn r51_each_question_is_notified_once_when_it_is_first_in_line() {
    let mut desk = Desk::new(1);
    let task = desk.at_work(1);
    assert_eq!(notified(&desk.fact(task, asked(70))), [(NeedsInput, task, 1)]);
    let (second, third) = (desk.fact(task, asked(80)), desk.fact(task, asked(90)));
    assert_eq!((notified(&second), notified(&third)), (vec![], vec![]), "one at a time");
    assert_eq!(notified(&desk.fact(task, Fact::Withdrawn { key: 80 })), [], "the first still waits");
    let effects = desk.answer(task, 1, "yes");
    let notice = only_notice(&effects);
    let question = notice.task.agent.as_ref().unwrap().questions.front().unwrap().request;
    assert_eq!((notice.kind, question), (NeedsInput, 3));
    assert_eq!(notified(&desk.answer(task, 3, "no")), []);
}

#[test]
fn r51_open_question_is_notified_on_detach() {
    let mut desk = Desk::new(1);
    let task = desk.foreground(prompt(id(1), STALLED_AFTER, ASK_TIMEOUT));
    for fact in [started(), asked(70)] {
        assert_eq!(notified(&desk.fact(task, fact)), []);
    }
    assert_eq!(notified(&desk.detach(task)), [(NeedsInput, task, 1)]);
}

#[test]
fn r51_notice_drops_the_environment_and_truncates_the_prompt() {
    let mut desk = Desk::new(1);
    let mut command = prompt(id(1), STALLED_AFTER, ASK_TIMEOUT);
    command.prompt = Some("é".repeat(PROMPT_BYTES).into());
    assert_eq!(replies(&desk.ask(Request::Submit(Box::new(command)))).len(), 1);
    let effects = desk.fact(id(1), started());
    let agent = only_notice(&effects).task.agent.as_deref().unwrap();
    assert_eq!(*agent.env, bgd_shared::text::Env::default());
    assert!((PROMPT_BYTES + 1..PROMPT_BYTES + 5).contains(&agent.prompt.len()), "{}", agent.prompt.len());
    let task = desk.task(id(1)).agent.unwrap();
    assert_eq!((task.prompt.len(), *task.env == super::support::env(0)), (2 * PROMPT_BYTES, true));
}

#[test]
fn r54_session_ends_when_its_last_owner_disconnects() {
    let mut desk = Desk::new(1);
    for client in [1, 2] {
        own(&mut desk, client);
    }
    let done = finished(&mut desk, 1);
    let running = submit(&mut desk, 2);
    assert_eq!(notified(&desk.fact(running, started())), [(Started, running, 1)]);
    let waiting = submit(&mut desk, 3);
    let theirs = desk.submit(4);
    assert!(desk.input(GONE).is_empty(), "another one owns it too");
    let effects = desk.input(Input::Disconnected { client: 2 });
    assert_eq!(
        (ends(&effects), notified(&effects)),
        (vec![(running, TERM)], vec![(NoticeKind::Cancelled, waiting, 1)])
    );
    let effects = desk.fact(running, exited(0, false));
    assert_eq!((notified(&effects), replies(&effects).len()), (vec![(NoticeKind::Cancelled, running, 1)], 0));
    for task in [done, running, waiting] {
        assert_eq!(desk.core.get(&task.into()).unwrap_err(), CoreError::NotFound(task.to_string()));
    }
    assert!(desk.status(theirs).is_active());
    assert_eq!((desk.core.inboxes().items, desk.core.inboxes().lost), (0, 0));
    assert!(desk.input(Input::Disconnected { client: 2 }).is_empty(), "it owns nothing any more");
}

#[test]
fn r54_inbox_of_ended_session_omits_earlier_cancelled_tasks() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1);
    assert_eq!(notified(&desk.fact(task, started())), [(Started, task, 1)]);
    assert!(replies(&desk.cancel(ids(&[task]))).is_empty());
    assert!(replies(&desk.ask(Request::EndSession { session: SESSION.into() })).is_empty());
    let next = submit(&mut desk, 2);
    assert_eq!(
        notified(&desk.fact(task, exited(0, false))),
        [(NoticeKind::Cancelled, task, 1)],
        "its channel does"
    );
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (vec![], false, 0));
    assert_eq!(notified(&desk.fact(next, started())), [(Started, next, 1)]);
    assert_eq!(notified(&desk.fact(next, exited(0, false))), [(Completed, next, 1)]);
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (vec![(1, next)], false, 0), "one of the same key has begun");
}

#[test]
fn r54_job_losing_terminal_and_session_gets_one_signal() {
    let mut desk = Desk::new(1);
    own(&mut desk, 1);
    let mut job = command(id(1));
    job.spec.session = Some(SESSION.into());
    let job = desk.foreground(job);
    assert_eq!(notified(&desk.fact(job, started())), []);
    assert_eq!(ends(&desk.input(GONE)), [(job, HUP)]);
    let effects = desk.fact(job, exited(0, false));
    assert_eq!(notified(&effects), [(NoticeKind::Cancelled, job, 1)], "nobody saw it end");
    assert!(matches!(effects[..], [.., Effect::Event { .. }]), "it is cleared: {effects:?}");
    assert_eq!(desk.core.summary().total(), 0);
}

#[test]
fn r55_every_kind_of_end_is_notified_once() {
    let cancel = |task| Input::Request {
        to: bgd_core::ReplyTo { client: 3, call: 1 },
        request: Request::Cancel(Cancel { which: ids(&[task]), signal: None, grace_ms: None }),
    };
    let fact = |task, fact| Input::Fact { task, run: 1, fact };
    let failure = || Fact::StartFailed { failure: "no".into() };
    let task = id(1);
    let cases = [
        (vec![cancel(task)], NoticeKind::Cancelled, "it never started"),
        (vec![fact(task, started()), fact(task, exited(0, true))], Completed, "others of its tree live on"),
        (vec![fact(task, started()), cancel(task), fact(task, exited(0, false))], NoticeKind::Cancelled, ""),
        (vec![fact(task, failure())], Failed, "it could not start"),
        (vec![cancel(task), fact(task, failure())], NoticeKind::Cancelled, "nor be cancelled"),
    ];
    for (number, (inputs, kind, why)) in cases.into_iter().enumerate() {
        for blocks in [false, true] {
            let mut desk = Desk::new(1);
            let other = (number == 0).then(|| desk.running(2));
            desk.submit(1);
            if blocks {
                assert!(desk.block(&[task], None, bgd_shared::request::BlockMode::All).is_empty());
            }
            let mut news: Vec<_> =
                inputs.iter().flat_map(|input| notified(&desk.input(input.clone()))).collect();
            news.retain(|(kind, ..)| kind.is_end());
            assert_eq!(news, [(kind, task, 1)], "{why}");
            let late = [Fact::TreeEmpty, exited(1, false), failure()];
            let late = late.into_iter().flat_map(|late| notified(&desk.fact(task, late)));
            assert_eq!(late.count(), 0, "{why}");
            assert!(other.is_none_or(|other| desk.status(other).is_active()));
        }
    }
}

#[test]
fn r55_end_of_a_foreground_job_is_not_notified() {
    let mut desk = Desk::new(2);
    let (seen, left) = (desk.job(1), desk.job(2));
    assert_eq!(notified(&desk.fact(seen, exited(1, false))), []);
    assert_eq!(notified(&desk.detach(left)), []);
    assert_eq!(notified(&desk.fact(left, exited(1, false))), [(Failed, left, 1)]);
    let (hurt, early) = (desk.job(3), desk.foreground(command(id(4))));
    assert_eq!(notified(&desk.input(GONE)), []);
    assert_eq!(notified(&desk.fact(hurt, exited(0, false))), [(NoticeKind::Cancelled, hurt, 1)]);
    let effects = desk.fact(early, Fact::StartFailed { failure: "no".into() });
    assert_eq!(notified(&effects), [(NoticeKind::Cancelled, early, 1)]);
}

#[test]
fn r55_refused_resume_sends_no_notice() {
    let mut desk = Desk::new(1);
    let task = desk.answered(1);
    assert!(
        desk.resume(task)
            .iter()
            .all(|effect| matches!(effect, Effect::Start { begin: Begin::Prompt { .. }, .. }))
    );
    assert_eq!(notified(&desk.fact_of_run(task, 2, refused())), []);
    desk.resumed(task, 3);
    assert_eq!(notified(&desk.fact_of_run(task, 3, turn_ended())), [(Completed, task, 3)]);
}

#[test]
fn r55_notice_counts_other_active_tasks_of_the_session() {
    let mut desk = Desk::new(1);
    let (first, second) = (submit(&mut desk, 1), submit(&mut desk, 2));
    let alone = desk.submit(3);
    let counts =
        [(first, started(), Some(1)), (first, exited(0, false), Some(1)), (second, started(), Some(0))];
    for (task, fact, active) in counts {
        assert_eq!(only_notice(&desk.fact(task, fact)).active, active);
    }
    assert_eq!(only_notice(&desk.fact(second, exited(1, false))).active, Some(0));
    assert_eq!(only_notice(&desk.fact(alone, started())).active, None, "it has no parent session");
}

#[test]
fn r55_inbox_repeats_items_until_acknowledged() {
    let mut desk = Desk::new(1);
    let tasks = [1, 2, 3].map(|number| finished(&mut desk, number));
    let all: Vec<(u64, TaskId)> = (1..).zip(tasks).collect();
    for _ in 0..2 {
        assert_eq!(inbox(&desk.ask(read(0, 500, 9))), (all.clone(), false, 0));
    }
    assert_eq!(inbox(&desk.ask(read(0, 0, 2))), (all[..2].to_vec(), true, 0));
    assert_eq!(inbox(&desk.ask(read(2, 0, 2))), (all[2..].to_vec(), false, 0));
    let which = Selection::All { session: None };
    assert_eq!(replies(&desk.ask(Request::Clear { which, active_too: true })).len(), 1);
    assert_eq!(
        inbox(&desk.ask(read(0, 0, 9))),
        (all.clone(), false, 0),
        "its tasks are cleared, and it is not"
    );
    assert_eq!([2, 2, 1].map(|upto| acknowledge(&mut desk, upto)), [(2, 1), (0, 1), (0, 1)]);
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (all[2..].to_vec(), false, 0));
    assert_eq!(acknowledge(&mut desk, u64::MAX), (1, 0));
    let next = finished(&mut desk, 4);
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (vec![(4, next)], false, 0), "only what was there then");
}

#[test]
fn r55_waiting_read_gets_one_reply() {
    let mut desk = Desk::new(1);
    assert!(desk.ask(read(0, 100, 9)).is_empty());
    assert!(desk.ask(read(7, 300, 9)).is_empty());
    let task = submit(&mut desk, 1);
    assert_eq!(replies(&desk.fact(task, started())).len(), 0, "a start is no item");
    let effects = desk.fact(task, exited(0, false));
    assert_eq!(inbox(&effects), (vec![(1, task)], false, 0));
    assert!(desk.wait(299).is_empty(), "no timer of it is left");
    assert_eq!(inbox(&desk.wait(1)), (vec![], false, 0), "its item never came");
    assert!(desk.ask(read(1, 100, 9)).is_empty());
    assert!(desk.input(GONE).is_empty());
    assert_eq!(desk.core.deadline(), None);
    assert_eq!(inbox(&desk.ask(read(1, 0, 9))), (vec![], false, 0));
}

#[test]
fn r55_full_inbox_counts_its_losses() {
    let mut desk = Desk::new(1);
    let few = |inbox_items| configure(CoreLimits { inbox_items, ..limits(1) });
    assert!(desk.input(few(3)).is_empty());
    let tasks: Vec<TaskId> = (1..=4).map(|number| finished(&mut desk, number)).collect();
    assert_eq!(inbox(&desk.ask(read(0, 0, 1))), (vec![(2, tasks[1])], true, 1));
    let next = [5, 6].map(|number| finished(&mut desk, number));
    assert_eq!(acknowledge(&mut desk, 2), (0, 3));
    let rest = vec![(4, tasks[3]), (5, next[0]), (6, next[1])];
    assert_eq!(
        inbox(&desk.ask(read(2, 0, 9))),
        (rest, false, 3),
        "what was lost behind it was not swallowed"
    );
    assert_eq!(acknowledge(&mut desk, 4), (1, 2));
    assert_eq!(inbox(&desk.ask(read(0, 0, 0))), (vec![], true, 0));
    assert!(desk.input(few(1)).is_empty());
    let last = finished(&mut desk, 7);
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (vec![(7, last)], false, 2), "the limit is a lower one now");
    assert_eq!(desk.core.inboxes().lost, 5);
}

#[test]
fn r55_waiting_read_survives_the_end_of_its_session() {
    let mut desk = Desk::new(1);
    assert!(desk.ask(read(0, 1000, 9)).is_empty());
    let effects = desk.ask(Request::EndSession { session: SESSION.into() });
    assert!(matches!(only_reply(&effects), Reply::SessionEnded { cancelled: 0, cleared: 0, .. }));
    let task = submit(&mut desk, 1);
    assert!(replies(&desk.fact(task, started())).is_empty());
    assert_eq!(inbox(&desk.fact(task, exited(0, false))), (vec![(1, task)], false, 0));
}

/// All of them may be answered at once, and the client may not read.
#[test]
fn r55_waiting_reads_per_connection_are_limited() {
    let mut desk = Desk::new(1);
    for _ in 0..INBOX_WAITS {
        assert!(desk.ask(read(0, 1000, 9)).is_empty());
    }
    let effects = desk.ask(read(0, 1000, 9));
    assert_eq!(refusal(&effects), &CoreError::TooManyReads(INBOX_WAITS));
    assert_eq!(refusals::of_core(refusal(&effects).clone()).kind(), ErrorKind::TooManyRequests);
    assert_eq!(inbox(&desk.ask(read(0, 0, 9))), (vec![], false, 0), "this one does not wait");
    assert!(desk.ask_as(2, read(0, 1000, 9)).is_empty(), "others have their own");
    let task = submit(&mut desk, 1);
    desk.fact(task, started());
    assert_eq!(replies(&desk.fact(task, exited(0, false))).len(), INBOX_WAITS + 1);
    assert!(desk.ask(read(1, 1000, 9)).is_empty(), "those that were answered do not count");
}

#[test]
fn r11_waiting_reads_get_last_item_then_shutdown_error() {
    let mut desk = Desk::new(1);
    let task = submit(&mut desk, 1);
    assert_eq!(notified(&desk.fact(task, started())), [(Started, task, 1)]);
    assert!(desk.ask(read(0, 1000, 9)).is_empty());
    assert!(
        replies(&desk.ask_as(2, Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All })).is_empty()
    );
    assert!(desk.ask(read(1, 1000, 9)).is_empty(), "more may come until then");
    let effects = desk.fact(task, exited(0, false));
    let [Reply::Inbox { items, .. }, Reply::ShutDown { .. }, Reply::Error(CoreError::ShuttingDown)] =
        replies(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(items.len(), 1);
    assert!(matches!(effects.last(), Some(Effect::Exit)), "{effects:?}");
    assert_eq!(desk.core.deadline(), None);
    assert_eq!(refusal(&desk.ask(read(1, 1000, 9))), &CoreError::ShuttingDown);
    assert_eq!(refs(&[task]).len(), inbox(&desk.ask(read(0, 1000, 9))).0.len());
}

/// Returns the clients that see the only notice anyway, and whether the notice marks the task as removed.
fn seen(effects: &[Effect]) -> (Vec<u64>, bool) {
    let seen = effects.iter().filter_map(|effect| match effect {
        Effect::Notice { notice, seen_by } => Some((seen_by.iter().copied().collect(), notice.is_removed)),
        _ => None,
    });
    let seen: Vec<(Vec<u64>, bool)> = seen.collect();
    assert_eq!(seen.len(), 1, "{effects:?}");
    seen[0].clone()
}

#[test]
fn r51_notice_lists_clients_that_see_the_end_anyway() {
    let mut desk = Desk::new(1);
    let block = |task| Request::Block {
        which: Selection::Ids(refs(&[task])),
        timeout_ms: Some(50),
        mode: BlockMode::All,
        until: BlockUntil::Ended,
    };
    let cancel =
        |task| Request::Cancel(Cancel { which: Selection::Ids(refs(&[task])), signal: None, grace_ms: None });
    let running = submit(&mut desk, 1);
    let pending = submit(&mut desk, 2);
    assert_eq!(seen(&desk.fact(running, started())), (vec![], false));
    // At once, by the client that cancels.
    assert_eq!(seen(&desk.ask(cancel(pending))), (vec![1], false));
    desk.ask(block(running));
    desk.ask(cancel(running));
    assert_eq!(seen(&desk.fact(running, exited(0, false))), (vec![1], false));
    let late = submit(&mut desk, 3);
    desk.fact(late, started());
    desk.ask(block(late));
    desk.wait(50);
    assert_eq!(seen(&desk.fact(late, exited(0, false))), (vec![], false), "nobody waits any more");
    let removed = submit(&mut desk, 4);
    desk.fact(removed, started());
    desk.ask(Request::Clear { which: Selection::Ids(refs(&[removed])), active_too: true });
    assert_eq!(seen(&desk.fact(removed, exited(0, false))), (vec![1], true));
    let last = submit(&mut desk, 5);
    desk.fact(last, started());
    desk.ask(Request::Shutdown { grace_ms: None, leaves: LeavePolicy::All });
    assert_eq!(seen(&desk.fact(last, exited(0, false))), (vec![], false), "the end of all is told");
}
