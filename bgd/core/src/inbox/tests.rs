//! Tests of the inboxes.

use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::time::Timestamp;
use proptest::collection::vec;
use proptest::sample::select;
use proptest::strategy::Strategy;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};

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
    let Inboxes { by_session, items, bytes, losses, waits, by_client, reserved, .. } = inboxes;
    by_session.is_empty()
        && reserved.is_empty()
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
    assert!(is_empty(&inboxes), "{inboxes:?}");
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

#[test]
fn r129_total_memory_of_all_inboxes_can_be_limited() {
    let (mut inboxes, news) = (Inboxes::default(), notice(1000));
    inboxes.limit(Some(10_000));
    for number in 0..100 {
        inboxes.add(&["a", "b"][number % 2].into(), news.clone(), 1000);
        assert!(inboxes.held() <= 10_000);
    }
    let kept = 10_000 / (1000 + ITEM_BYTES);
    assert_eq!(
        (inboxes.items.len(), inboxes.counts().lost),
        (kept, 100 - kept as u64),
        "the oldest are lost"
    );
    inboxes.limit(Some(1));
    assert_eq!(numbers(&inboxes, "b"), [100], "the newest is always kept");
    // Restored items are only dropped once this is recorded.
    let mut restored = Inboxes::default();
    restored.limit(Some(1));
    let items = [1, 2, 3].map(|number| (number, "a".into(), news.clone()));
    restored.fill(&InboxCounts { last: 3, lost: 0 }, items, []);
    assert_eq!(numbers(&restored, "a"), [1, 2, 3]);
    restored.track();
    assert_eq!((numbers(&restored, "a"), restored.counts().lost), (vec![3], 2));
    assert_eq!(restored.take_touched().items, [1, 2].into());
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

/// A step of a client of two inboxes.
#[derive(Clone, Debug)]
enum Step {
    Add { session: &'static str },
    Read { client: u64, session: &'static str, after: u64 },
    Reserve { client: u64, session: &'static str, number: u64 },
    Acknowledge { client: u64, session: &'static str, upto: u64 },
    AcknowledgeOne { session: &'static str, number: u64 },
    Leave { client: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let of_client = || (1..4_u64, select(vec!["a", "b"]), 0..20_u64);
    let session = || select(vec!["a", "b"]);
    prop_oneof![
        6 => session().prop_map(|session| Step::Add { session }),
        6 => of_client().prop_map(|(client, session, after)| Step::Read { client, session, after }),
        6 => of_client().prop_map(|(client, session, number)| Step::Reserve { client, session, number }),
        2 => of_client().prop_map(|(client, session, upto)| Step::Acknowledge { client, session, upto }),
        2 => (session(), 0..20_u64).prop_map(|(session, number)| Step::AcknowledgeOne { session, number }),
        2 => (1..4_u64).prop_map(|client| Step::Leave { client }),
    ]
}

/// The items that each inbox of a history has at most.
const MOST: usize = 3;

/// Two inboxes beside a naive model of them.
#[derive(Default)]
struct Checked {
    inboxes: Inboxes,
    /// The number of each item, its session, and who has reserved it.
    items: Vec<(u64, &'static str, Option<u64>)>,
    lost: Vec<(u64, &'static str)>,
    /// The number of each waiting read, its client, its session, and the number after which it wants items.
    reads: Vec<(u64, u64, &'static str, u64)>,
    newest: u64,
    newest_read: u64,
}

impl Checked {
    /// Returns the numbers of the items that the client can get.
    fn free(&self, client: u64, session: &str, after: u64) -> Vec<u64> {
        let is_free = |(number, of, by): &&(u64, &str, Option<u64>)| {
            *of == session && *number > after && by.is_none_or(|by| by == client)
        };
        self.items.iter().filter(is_free).map(|(number, ..)| *number).collect()
    }

    fn count(&self, session: &str) -> u64 {
        self.items.iter().filter(|(_, of, _)| *of == session).count() as u64
    }

    /// Removes the items of a session that `is_gone` accepts, by number and owner. Returns how many were removed and how
    /// many are left.
    fn remove(&mut self, session: &str, upto: u64, is_gone: impl Fn(u64, Option<u64>) -> bool) -> (u64, u64) {
        let before = self.count(session);
        self.items.retain(|(number, of, by)| *of != session || !is_gone(*number, *by));
        if self.lost.iter().all(|(number, of)| *of != session || *number <= upto) {
            self.lost.retain(|(_, of)| *of != session);
        }
        let left = self.count(session);
        (before - left, left)
    }

    /// Carries out a step in both. Returns the waiting reads that it has ended.
    fn carry_out(&mut self, step: &Step) -> Result<Vec<u64>, TestCaseError> {
        match *step {
            Step::Add { session } => {
                self.newest += 1;
                self.items.push((self.newest, session, None));
                if self.count(session) > MOST as u64
                    && let Some(oldest) = self.items.iter().position(|(_, of, _)| *of == session)
                {
                    let (number, ..) = self.items.remove(oldest);
                    self.lost.push((number, session));
                }
                return Ok(ids(&self.inboxes.add(&session.into(), notice(0), MOST)));
            }
            Step::Read { client, session, after } => self.read(client, session, after)?,
            Step::Reserve { client, session, number } => {
                let mut all = self.items.iter_mut();
                let item = all.find(|(other, of, _)| (*other, *of) == (number, session));
                let is_theirs = item.is_some_and(|(.., by)| *by.get_or_insert(client) == client);
                let counts = (u64::from(is_theirs), self.count(session));
                prop_assert_eq!(self.inboxes.reserve(client, session, number), counts);
            }
            Step::Acknowledge { client, session, upto } => {
                let is_gone =
                    |number: u64, by: Option<u64>| number <= upto && by.is_none_or(|by| by == client);
                let counts = self.remove(session, upto, is_gone);
                prop_assert_eq!(self.inboxes.acknowledge(client, session, upto), counts);
            }
            Step::AcknowledgeOne { session, number } => {
                let counts = self.remove(session, number, |other, _| other == number);
                prop_assert_eq!(self.inboxes.acknowledge_one(session, number), counts);
            }
            Step::Leave { client } => {
                self.reads.retain(|(_, of, ..)| *of != client);
                for (.., by) in &mut self.items {
                    by.take_if(|by| *by == client);
                }
                self.inboxes.disconnect(client);
                return Ok(ids(&self.inboxes.release(client)));
            }
        }
        Ok(Vec::new())
    }

    /// Reads an inbox. If there is nothing to get, the read waits.
    fn read(&mut self, client: u64, session: &'static str, after: u64) -> Result<(), TestCaseError> {
        let free = self.free(client, session, after);
        let (items, lost) = self.inboxes.read(client, session, after, MOST);
        prop_assert_eq!(items.iter().map(|(number, _)| *number).collect::<Vec<_>>(), &free[..]);
        prop_assert_eq!(lost, self.lost.iter().filter(|(_, of)| *of == session).count() as u64);
        prop_assert_eq!(self.inboxes.has_any(client, session, after), !free.is_empty());
        if free.is_empty() {
            self.newest_read += 1;
            self.reads.push((self.newest_read, client, session, after));
            prop_assert_eq!(self.inboxes.wait(wait(client, session, after)).0, self.newest_read);
        }
        Ok(())
    }

    /// Checks that exactly those reads have ended that can get an item now, and that the same ones still wait.
    fn check(&mut self, ended: &[u64]) -> Result<(), TestCaseError> {
        let reads = std::mem::take(&mut self.reads);
        let has_any = |(_, client, session, after): &(u64, u64, &'static str, u64)| {
            !self.free(*client, session, *after).is_empty()
        };
        let (over, waiting): (Vec<_>, Vec<_>) = reads.into_iter().partition(has_any);
        self.reads = waiting;
        prop_assert_eq!(ended, over.into_iter().map(|(id, ..)| id).collect::<Vec<_>>());
        let waiting: Vec<u64> = self.reads.iter().map(|(id, ..)| *id).collect();
        prop_assert_eq!(self.inboxes.waits.keys().map(|id| id.0).collect::<Vec<_>>(), waiting);
        let owners = self.items.iter().filter_map(|(number, _, by)| Some((*number, (*by)?)));
        prop_assert_eq!(&self.inboxes.reserved, &owners.collect::<BTreeMap<_, _>>());
        Ok(())
    }
}

proptest! {
    #[test]
    fn r55_each_waiting_read_ends_once_as_soon_as_there_is_an_item_that_nobody_else_has_reserved(
        steps in vec(step(), 1..60)
    ) {
        let mut both = Checked::default();
        for step in &steps {
            let ended = both.carry_out(step)?;
            both.check(&ended)?;
        }
        for client in 1..4 {
            let ended = both.carry_out(&Step::Leave { client })?;
            both.check(&ended)?;
        }
        for session in ["a", "b"] {
            both.inboxes.remove(session);
        }
        prop_assert!(is_empty(&both.inboxes), "{:?}", both.inboxes);
    }
}
