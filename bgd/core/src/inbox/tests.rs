//! Tests of the inboxes.

use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::time::Timestamp;

use super::*;
use crate::task::{Spec, State, Task};

/// Creates a notice with this many bytes of text.
fn notice(bytes: usize) -> Arc<Notice> {
    let spec = Spec { description: Some("x".repeat(bytes).into()), cwd: Arc::default(), ..Spec::of_daemon() };
    let state = State::Starting { stop: None, env: None, give_up_at: None };
    let task = Task::new(TaskId::from_u128(1), Arc::new(spec), Timestamp::default(), state);
    let (kind, at) = (NoticeKind::Completed, Timestamp::default());
    let notice = Notice { number: 1, kind, at, active: None, is_removed: false, task: Box::new(task) };
    assert_eq!(notice.text_bytes(), bytes);
    Arc::new(notice)
}

fn wait(client: u64, session: &str, after: u64) -> InboxWait {
    let to = ReplyTo { client, call: 1 };
    InboxWait { to, session: session.into(), after, limit: 1, deadline: Mono(1) }
}

fn numbers(inboxes: &Inboxes, session: &str) -> Vec<u64> {
    inboxes.read(0, session, 0, usize::MAX).0.iter().map(|(number, _)| *number).collect()
}

fn ids(ended: &Ended) -> Vec<u64> {
    ended.iter().map(|(id, _)| id.0).collect()
}

fn is_empty(inboxes: &Inboxes) -> bool {
    let Inboxes { by_session, items, bytes, losses, waits, by_client, .. } = inboxes;
    by_session.is_empty()
        && items.is_empty()
        && *bytes == 0
        && losses.is_empty()
        && waits.is_empty()
        && by_client.is_empty()
}

#[test]
fn r55_item_ends_the_waits_it_satisfies() {
    let (mut inboxes, news) = (Inboxes::default(), notice(0));
    let [a, b] = ["a", "b"].map(Arc::<str>::from);
    for (client, session, after) in [(1, "a", 2), (2, "a", 0), (3, "b", 0), (2, "a", 1)] {
        inboxes.wait(wait(client, session, after));
    }
    assert_eq!(ids(&inboxes.add(&a, news.clone(), 9)), [2]);
    assert_eq!(ids(&inboxes.add(&a, news.clone(), 9)), [4]);
    assert_eq!(ids(&inboxes.add(&b, news.clone(), 9)), [3]);
    assert_eq!(ids(&inboxes.disconnect(1)), [1]);
    assert_eq!((numbers(&inboxes, "a"), numbers(&inboxes, "b")), (vec![1, 2], vec![3]));
    assert_eq!(
        (inboxes.has_any(0, "a", 1), inboxes.has_any(0, "a", 2), inboxes.has_any(0, "c", 0)),
        (true, false, false)
    );
    inboxes.remove("a");
    assert_eq!(inboxes.acknowledge(0, "b", 3), (1, 0));
    assert!(is_empty(&inboxes), "{inboxes:?}");
    inboxes.add(&a, news, 9);
    assert_eq!(numbers(&inboxes, "a"), [4], "an inbox that is new gives no number again");
}

#[test]
fn r55_waits_are_answered_oldest_first_and_all_on_shutdown() {
    let mut inboxes = Inboxes::default();
    for after in [5, 0, 3] {
        inboxes.wait(wait(1, "a", after));
    }
    inboxes.wait(wait(2, "b", 0));
    inboxes.last = 9;
    assert_eq!(ids(&inboxes.add(&"a".into(), notice(0), 1)), [1, 2, 3]);
    inboxes.wait(wait(2, "a", 10));
    assert_eq!(ids(&inboxes.end_waits()), [4, 5]);
    inboxes.remove("a");
    assert!(is_empty(&inboxes), "{inboxes:?}");
}

#[test]
fn r55_losses_count_until_a_later_item_is_acknowledged() {
    let (mut inboxes, session) = (Inboxes::default(), Arc::from("a"));
    for _ in 0..5 {
        inboxes.add(&session, notice(3), 2);
    }
    assert_eq!((numbers(&inboxes, "a"), inboxes.read(0, "a", 9, 1).1, inboxes.bytes), (vec![4, 5], 3, 6));
    assert_eq!((inboxes.acknowledge(0, "a", 2), inboxes.read(0, "a", 0, 0).1), ((0, 2), 3));
    assert_eq!((inboxes.acknowledge(0, "a", 3), inboxes.read(0, "a", 0, 0).1), ((0, 2), 0));
    inboxes.add(&session, notice(3), 1);
    assert_eq!((numbers(&inboxes, "a"), inboxes.read(0, "a", 0, 0).1), (vec![6], 2), "a lower limit");
    inboxes.add(&session, notice(3), 0);
    assert_eq!(numbers(&inboxes, "a"), [7], "what is new is kept in any case");
    let InboxesStatus { sessions, items, lost } = inboxes.status();
    assert_eq!((sessions, items, lost), (1, 1, 6));
    inboxes.remove("a");
    assert!(is_empty(&inboxes), "{inboxes:?}");
}

#[test]
fn r55_reserved_item_is_for_its_client_until_that_is_gone() {
    let (mut inboxes, news, session) = (Inboxes::default(), notice(1), Arc::from("a"));
    let seen = |inboxes: &Inboxes, client| -> Vec<u64> {
        inboxes.read(client, "a", 0, 9).0.iter().map(|(number, _)| *number).collect()
    };
    for _ in 0..3 {
        inboxes.add(&session, news.clone(), 9);
    }
    assert_eq!((inboxes.reserve(1, "a", 1), inboxes.reserve(2, "a", 1)), ((1, 3), (0, 3)));
    assert_eq!((inboxes.reserve(1, "a", 1), inboxes.reserve(1, "a", 9)), ((1, 3), (0, 3)));
    assert_eq!((seen(&inboxes, 1), seen(&inboxes, 2)), (vec![1, 2, 3], vec![2, 3]));
    assert_eq!(inboxes.acknowledge(2, "a", 2), (1, 2), "what another one has reserved stays");
    assert_eq!((inboxes.reserve(2, "a", 3), inboxes.has_any(3, "a", 0)), ((1, 2), false));
    inboxes.wait(wait(3, "a", 0));
    inboxes.wait(wait(4, "a", 1));
    assert_eq!(inboxes.acknowledge_one("a", 3), (1, 1), "none before it");
    assert_eq!(ids(&inboxes.release(2)), [0; 0]);
    assert_eq!(ids(&inboxes.release(1)), [1], "the one that has not seen it");
    assert_eq!((seen(&inboxes, 3), inboxes.acknowledge(3, "a", 1)), (vec![1], (1, 0)));
    inboxes.disconnect(4);
    assert!(is_empty(&inboxes) && inboxes.reserved.is_empty(), "{inboxes:?}");
    inboxes.add(&session, news.clone(), 9);
    inboxes.reserve(1, "a", 4);
    inboxes.add(&session, news, 1);
    assert_eq!((seen(&inboxes, 2), inboxes.reserved.len()), (vec![5], 0), "as it was dropped");
    inboxes.reserve(1, "a", 5);
    inboxes.remove("a");
    assert!(is_empty(&inboxes) && inboxes.reserved.is_empty(), "{inboxes:?}");
}

#[test]
fn r125_losses_are_restored_from_what_was_touched() {
    let (mut inboxes, mut losses, mut items) = (Inboxes::default(), BTreeMap::new(), BTreeMap::new());
    inboxes.track();
    let mut note = |inboxes: &mut Inboxes| {
        let touched = inboxes.take_touched();
        for number in touched.losses {
            losses.remove(&number);
            losses.extend(inboxes.loss(number).map(|loss| (number, loss)));
        }
        for number in touched.items {
            items.remove(&number);
            items.extend(inboxes.item(number).map(|item| (number, item)));
        }
        let mut again = Inboxes::default();
        let rows = items.iter().map(|(number, (session, notice))| (*number, session.clone(), notice.clone()));
        let lost = losses.iter().map(|(number, (session, lost))| (*number, session.clone(), *lost));
        again.fill(&inboxes.counts(), rows, lost);
        for session in ["a", "b"] {
            let read = |inboxes: &Inboxes| (numbers(inboxes, session), inboxes.read(0, session, 0, 0).1);
            assert_eq!(read(&again), read(inboxes), "{session}");
        }
        assert_eq!((again.counts(), &again.losses), (inboxes.counts(), &inboxes.losses));
        again
    };
    for (session, limit) in [("a", 1), ("b", 1), ("a", 1), ("b", 3), ("a", 3), ("a", 2), ("b", 1)] {
        inboxes.add(&session.into(), notice(1), limit);
        note(&mut inboxes);
    }
    assert_eq!(["a", "b"].map(|session| inboxes.read(0, session, 0, 0).1), [2, 2]);
    inboxes.acknowledge(0, "a", 2);
    let mut again = note(&mut inboxes);
    assert_eq!(again.read(0, "a", 0, 0).1, 2, "of a later item");
    again.acknowledge(0, "a", 6);
    again.remove("b");
    assert!(is_empty(&again), "{again:?}");
    inboxes.acknowledge(0, "a", 6);
    note(&mut inboxes);
    inboxes.remove("b");
    assert!(is_empty(&note(&mut inboxes)));
}

#[test]
fn r55_total_item_count_of_all_inboxes_is_bounded() {
    let (mut inboxes, news) = (Inboxes::default(), notice(1));
    let rest = 1000;
    for session in 0..INBOXES_ITEMS + rest {
        inboxes.add(&format!("{session}").into(), news.clone(), 10);
    }
    let status = inboxes.status();
    let (sessions, items, lost) = (INBOXES_ITEMS as u64, inboxes.items.len(), rest as u64);
    assert_eq!((status.sessions, items, status.lost), (sessions, INBOXES_ITEMS, lost));
    assert_eq!(
        (numbers(&inboxes, "0"), inboxes.read(0, "0", 0, 1).1),
        (vec![], 1),
        "the oldest, and it is told"
    );
    for session in 0..INBOXES_ITEMS + rest {
        inboxes.add(&format!("later {session}").into(), news.clone(), 10);
    }
    let sizes = [inboxes.items.len(), inboxes.bytes, inboxes.losses.len()];
    assert_eq!(sizes, [INBOXES_ITEMS; 3], "losses are forgotten too");
    assert_eq!(inboxes.by_session.len(), 2 * INBOXES_ITEMS);
    assert_eq!(inboxes.read(0, "0", 0, 1).1, 0, "the oldest loss");
}

#[test]
fn r55_total_text_size_of_all_inboxes_is_bounded() {
    let (mut inboxes, third) = (Inboxes::default(), notice(INBOXES_BYTES / 3));
    for session in ["a", "b", "a", "c"] {
        inboxes.add(&session.into(), third.clone(), 10);
    }
    assert_eq!(["a", "b", "c"].map(|session| numbers(&inboxes, session)), [vec![3], vec![2], vec![4]]);
    assert_eq!((inboxes.bytes, inboxes.read(0, "a", 0, 1).1), (INBOXES_BYTES / 3 * 3, 1));
    inboxes.add(&"d".into(), notice(INBOXES_BYTES + 1), 10);
    assert_eq!((inboxes.items.len(), numbers(&inboxes, "d")), (1, vec![5]), "the newest is always kept");
}

/// Would not finish in time if every item required a search through all of them.
#[test]
fn inbox_handles_100000_items_and_10000_waits() {
    let (mut inboxes, news, session) = (Inboxes::default(), notice(1), Arc::from("a"));
    for client in 0..10_000 {
        inboxes.wait(wait(client, "a", u64::MAX));
        inboxes.wait(wait(client, "a", 99_999));
    }
    for number in 1..100_000 {
        assert!(inboxes.add(&session, news.clone(), 50_000).is_empty());
        assert_eq!(inboxes.read(0, "a", number - 1, 9).0.len(), 1);
    }
    assert_eq!(inboxes.add(&session, news, 50_000).len(), 10_000);
    assert_eq!((0..10_000).map(|client| inboxes.disconnect(client).len()).sum::<usize>(), 10_000);
    let acknowledged: u64 = (0..100_001).map(|upto| inboxes.acknowledge(0, "a", upto).0).sum();
    assert_eq!(acknowledged, 50_000);
    assert!(is_empty(&inboxes), "{inboxes:?}");
}
