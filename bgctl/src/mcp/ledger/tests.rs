//! Tests of the ledger.

use bgd_shared::notice::{Notice, NoticeKind};

use super::*;
use crate::render::samples::task;

fn items(numbers: &[u64]) -> Vec<InboxItem> {
    let notice = Notice {
        key: String::new(),
        kind: NoticeKind::Completed,
        at: bgd_shared::time::Timestamp::from_unix_ms(0),
        resume: false,
        title: String::new(),
        text: String::new(),
        active: None,
        duration_ms: None,
        result: None,
        task: task(),
    };
    numbers.iter().map(|number| InboxItem { number: *number, notice: notice.clone() }).collect()
}

fn claim(ledger: &Ledger, request: i64, numbers: &[u64]) -> Vec<u64> {
    let claimed = ledger.claim(&RequestId::Number(request), "one", items(numbers), |_| true);
    claimed.iter().map(|item| item.number).collect()
}

/// Writes an answer. Returns the items that may be acknowledged then.
fn write(ledger: &Ledger, request: i64) -> Vec<u64> {
    ledger.sends(&RequestId::Number(request));
    ledger.sent(&RequestId::Number(request), true);
    ledger.unacknowledged().map_or_else(Vec::new, |done| done.numbers)
}

fn begin(requests: &[i64]) -> Ledger {
    let ledger = Ledger::default();
    for request in requests {
        ledger.begins(&RequestId::Number(*request));
    }
    ledger
}

#[test]
fn item_is_claimed_by_one_answer_and_acknowledged_once_written() {
    let ledger = begin(&[1, 2]);
    assert_eq!(claim(&ledger, 1, &[3, 7]), [3, 7]);
    assert_eq!(claim(&ledger, 2, &[3, 7, 8]), [8]);
    assert_eq!(write(&ledger, 2), [8], "3 and 7 are not written");
    ledger.confirm_acknowledged("one", &[8]);
    assert_eq!(write(&ledger, 1), [3, 7]);
    ledger.begins(&RequestId::Number(3));
    assert_eq!(claim(&ledger, 3, &[7, 9]), [9], "7 is still to be acknowledged");
    ledger.confirm_acknowledged("one", &[3, 7]);
    assert_eq!(ledger.unacknowledged(), None);
    assert_eq!(ledger.state.lock().items.len(), 1, "only 9 is left to report");
}

#[test]
fn older_daemon_gets_acknowledgements_up_to_the_first_unwritten_item() {
    let ledger = begin(&[1, 2]);
    assert_eq!(claim(&ledger, 1, &[3, 7]), [3, 7]);
    ledger.gives_to_all("two");
    assert!(ledger.may_reserve("one"), "it is another daemon");
    ledger.gives_to_all("one");
    assert!(!ledger.may_reserve("one"));
    assert_eq!(claim(&ledger, 2, &[3, 7, 8]), [8]);
    assert_eq!(write(&ledger, 2), [0; 0], "3 and 7 are not written");
    assert_eq!(write(&ledger, 1), [3, 7, 8]);
    let done = ledger.unacknowledged().unwrap();
    assert_eq!((done.upto, done.whole), (8, true));
    ledger.confirm_acknowledged("one", &done.numbers);
    ledger.begins(&RequestId::Number(3));
    assert_eq!(claim(&ledger, 3, &[7, 8, 9]), [9], "an inbox that was read before the acknowledgement");
    assert_eq!(ledger.claim(&RequestId::Number(3), "two", items(&[1]), |_| true).len(), 1);
    assert!(ledger.may_reserve("two"));
}

#[test]
fn item_of_another_reader_is_claimed_again_if_it_comes_back() {
    let ledger = begin(&[1, 2, 3]);
    assert_eq!(claim(&ledger, 1, &[3, 4]), [3, 4]);
    ledger.yields(&RequestId::Number(1), "one", &HashSet::from([3]));
    let item = &items(&[3])[0];
    assert_eq!(ledger.state.lock().is_reported("one", item), Some(true), "it is in the other's answer");
    assert_eq!(write(&ledger, 1), [4]);
    ledger.confirm_acknowledged("one", &[4]);
    assert!(ledger.state.lock().items.is_empty());
    // The other one has ended without an answer.
    ledger.begins_at("one", Some(3), &ledger.last());
    assert_eq!(claim(&ledger, 2, &[3]), [3]);
    // Its request is cancelled while the item is being reserved, and yet another reader is faster.
    ledger.cancelled(&RequestId::Number(2));
    ledger.yields(&RequestId::Number(2), "one", &HashSet::from([3]));
    assert_eq!(ledger.claim_kept(&RequestId::Number(3), |_| true), []);
    assert_eq!(claim(&ledger, 3, &[3]), [3]);
    assert_eq!(write(&ledger, 3), [3]);
}

#[test]
fn items_of_cancelled_request_go_to_the_next_one() {
    let ledger = begin(&[1, 2, 3]);
    assert_eq!(claim(&ledger, 1, &[3]), [3]);
    ledger.cancelled(&RequestId::Number(1));
    assert_eq!(claim(&ledger, 1, &[3, 4]), [0; 0], "no answer is sent to it");
    assert_eq!(claim(&ledger, 2, &[3, 4]), [3, 4]);
    ledger.sends(&RequestId::Number(2));
    ledger.cancelled(&RequestId::Number(2));
    assert_eq!(claim(&ledger, 3, &[3, 4]), [0; 0], "it came too late");
    assert_eq!(write(&ledger, 2), [3, 4]);
}

#[test]
fn items_of_unwritten_answer_are_claimed_again() {
    let ledger = begin(&[1, 2]);
    assert_eq!(claim(&ledger, 1, &[3]), [3]);
    ledger.sent(&RequestId::Number(1), false);
    assert_eq!(ledger.unacknowledged(), None);
    assert_eq!(claim(&ledger, 2, &[3]), [3]);
}

#[test]
fn unclaimed_item_holds_back_acknowledgement_of_later_ones_to_older_daemon() {
    let ledger = begin(&[1, 2]);
    ledger.begins_at("one", None, &ledger.last());
    ledger.gives_to_all("one");
    let only_second = ledger.claim(&RequestId::Number(1), "one", items(&[3, 4]), |item| item.number == 4);
    assert_eq!(only_second.len(), 1);
    assert_eq!(write(&ledger, 1), [0; 0]);
    assert_eq!(claim(&ledger, 2, &[3, 4]), [3]);
    assert_eq!(write(&ledger, 2), [3, 4]);
}

#[test]
fn item_numbers_restart_with_another_daemon() {
    let ledger = begin(&[1, 2]);
    assert_eq!(claim(&ledger, 1, &[3]), [3]);
    assert_eq!(write(&ledger, 1), [3]);
    let claimed = ledger.claim(&RequestId::Number(2), "two", items(&[1]), |_| true);
    assert_eq!(claimed.len(), 1);
}

#[test]
fn note_is_repeated_until_written() {
    let ledger = begin(&[1, 2, 3]);
    let [one, two, three] = [1, 2, 3].map(RequestId::Number);
    ledger.record_lost("one", 4);
    ledger.record_lost("one", 4);
    let notes = ledger.claim_notes(&one);
    assert!(matches!(&notes[..], [note] if note.starts_with("4 older reports")), "{notes:?}");
    assert_eq!(ledger.claim_notes(&two), [""; 0], "it is in another answer");
    ledger.cancelled(&one);
    assert_eq!(ledger.claim_notes(&two), notes);
    assert_eq!(write(&ledger, 2), [0; 0]);
    ledger.note("more");
    assert_eq!(ledger.claim_notes(&three), ["more"]);
}

#[test]
fn items_of_cancelled_request_keep_their_first_content() {
    let ledger = begin(&[1, 2]);
    assert_eq!(claim(&ledger, 1, &[3]), [3]);
    ledger.cancelled(&RequestId::Number(1));
    let mut gone = items(&[3]);
    gone[0].notice.title = "its task is gone".to_owned();
    let claimed = ledger.claim(&RequestId::Number(2), "one", gone, |_| true);
    assert_eq!(claimed[0].notice.title, "");
}

#[test]
fn items_gone_from_the_inbox_hold_back_no_acknowledgement() {
    let ledger = begin(&[1, 2, 3, 4]);
    let only_first = ledger.claim(&RequestId::Number(1), "one", items(&[3, 4, 5]), |item| item.number == 3);
    assert_eq!(only_first.len(), 1);
    // Another client acknowledges everything up to 5.
    ledger.begins_at("one", Some(6), &ledger.last());
    assert_eq!(claim(&ledger, 2, &[6]), [6]);
    assert_eq!(write(&ledger, 2), [6]);
    ledger.confirm_acknowledged("one", &[6]);
    // The items of a request that is never answered go into the next answer, although the inbox is empty.
    let before = ledger.last();
    assert_eq!(before.upto, 6);
    ledger.begins_at("one", None, &before);
    ledger.cancelled(&RequestId::Number(1));
    let kept = ledger.claim_kept(&RequestId::Number(3), |_| true);
    assert_eq!(kept.iter().map(|item| item.number).collect::<Vec<_>>(), [3]);
    assert_eq!(write(&ledger, 3), [3]);
    ledger.confirm_acknowledged("one", &[3]);
    assert_eq!(ledger.claim_kept(&RequestId::Number(4), |_| true), []);
    assert!(ledger.state.lock().items.is_empty());
    // An item that arrives while an empty inbox is being read does not count as having left it.
    let before = ledger.last();
    ledger.begins(&RequestId::Number(5));
    assert_eq!(ledger.claim(&RequestId::Number(4), "one", items(&[7]), |_| false), []);
    ledger.begins_at("one", None, &before);
    assert_eq!(claim(&ledger, 5, &[7]), [7]);
}

#[test]
fn requests_with_a_duplicate_id_claim_nothing() {
    let ledger = begin(&[1]);
    assert_eq!(claim(&ledger, 1, &[3]), [3]);
    ledger.begins(&RequestId::Number(1));
    assert_eq!(claim(&ledger, 1, &[3]), [0; 0]);
    assert_eq!(write(&ledger, 1), [0; 0]);
    ledger.begins(&RequestId::Number(2));
    assert_eq!(claim(&ledger, 2, &[3]), [3]);
}

#[test]
fn item_state_is_undecided_until_its_answer_is_written() {
    let ledger = begin(&[1, 2]);
    let item = &items(&[3])[0];
    let now = |ledger: &Ledger| ledger.state.lock().is_reported("one", item);
    assert_eq!(now(&ledger), Some(false));
    ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
    assert_eq!(now(&ledger), None, "it is waited for");
    assert_eq!(claim(&ledger, 2, &[3]), [3]);
    ledger.cancelled(&RequestId::Number(1));
    assert_eq!(now(&ledger), None, "it is on its way in another answer");
    assert_eq!(write(&ledger, 2), [3]);
    assert_eq!(now(&ledger), Some(true));
    ledger.confirm_acknowledged("one", &[3]);
    assert_eq!(now(&ledger), Some(true), "also once it is acknowledged");
    assert_eq!(ledger.state.lock().is_reported("two", item), Some(false), "another daemon's");
}

#[test]
fn awaited_item_missing_from_the_answer_counts_as_unreported() {
    let ledger = begin(&[1]);
    let item = &items(&[3])[0];
    ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
    assert_eq!(write(&ledger, 1), [0; 0]);
    assert_eq!(ledger.state.lock().is_reported("one", item), Some(false));
    ledger.awaits(&RequestId::Number(1), vec![item.notice.task.id]);
    assert_eq!(ledger.state.lock().is_reported("one", item), Some(false), "its request is over");
}
