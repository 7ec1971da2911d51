//! Streams that are followed across cuts: nothing is lost, and nothing comes twice (R142).

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Child;

use bgd_tests::far::Far;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::Status;
use bgd_tests::{Relay, wait};
use serde_json::Value;

use super::{begin, hold_connections};

fn lines(from: impl std::io::Read) -> impl Iterator<Item = String> {
    BufReader::new(from).lines().map(Result::unwrap)
}

/// Ends a follower that would run forever.
fn end(mut follower: Child) {
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Cuts the connection, and keeps it from being made again until `meanwhile` is done.
fn cut_while(far: &Far, errors: &mut impl Iterator<Item = String>, meanwhile: impl FnOnce()) {
    let hold = hold_connections(far);
    far.cut();
    assert!(errors.any(|line| line.ends_with("the connection to far is lost; connecting again")));
    meanwhile();
    fs::remove_file(hold).unwrap();
    assert!(errors.any(|line| line.ends_with("connected to far again")));
}

#[test]
fn r141_output_follower_exits_when_its_reader_closes() {
    let far = Far::start();
    let id = far.daemon.submit_shell("echo first; exec sleep 1000");
    let id_text = id.to_string();
    for more in [&[][..], &["--json"]] {
        let mut follower = begin(&far, &[more, &["output", "-f", &id_text]].concat());
        let mut printed = lines(follower.stdout.take().unwrap());
        assert!(printed.next().unwrap().contains("first"));
        drop(printed);
        assert_eq!(follower.wait().unwrap().code(), Some(141), "although nothing more is written");
    }
    far.daemon.cancel(&[id]);
}

#[test]
fn r142_each_event_arrives_once_despite_connection_losses() {
    let far = Far::start();
    let mut events = begin(&far, &["events", "--since", "0"]);
    let mut errors = lines(events.stderr.take().unwrap());
    let mut printed = lines(events.stdout.take().unwrap());
    let mut seen: Vec<String> = Vec::new();
    let mut until = |id: TaskId| {
        let id = id.to_string();
        loop {
            let line = printed.next().unwrap();
            let is_it = line.contains(&id) && line.contains("\"status\":\"completed\"");
            seen.push(line);
            if is_it {
                return;
            }
        }
    };
    let task = || far.daemon.ends_as(far.daemon.submit(&["true"]), Status::Completed).id;
    for _ in 0..3 {
        until(task());
        // Some while there is no connection, and some just before it is cut.
        let racing = far.daemon.submit_shell("true");
        let mut last = racing;
        cut_while(&far, &mut errors, || last = [task(), task()][1]);
        until(last);
        far.daemon.block(&[racing]);
    }
    let last = task();
    until(last);
    end(events);
    // What a reader sees that was never cut off.
    let mut here = far.daemon.bgctl(&["events", "--since", "0"]);
    let mut here = here.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let expected: Vec<String> = lines(here.stdout.take().unwrap()).take(seen.len()).collect();
    end(here);
    assert_eq!(seen, expected);
    let seqs: Vec<u64> = seen
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert!(seqs.windows(2).all(|two| two[1] == two[0] + 1), "{seqs:?}");
}

#[test]
fn r142_each_notice_arrives_once_despite_connection_losses() {
    let far = Far::start();
    let relay = Relay::start(far.daemon.home(), far.daemon.socket());
    far.set_session(&[("BGD_SOCKET", relay.socket().to_str().unwrap())]);
    let notified = |name: &str| {
        let id = far.daemon.submit_in("s", &format!(": {name}"));
        far.daemon.block(&[id]);
        id.short()
    };
    let mut expected = vec![notified("before")];
    let mut inbox = begin(&far, &["inbox", "--session", "s", "--follow", "--ack"]);
    let mut errors = lines(inbox.stderr.take().unwrap());
    // The first line of each contains the beginning of the task's id.
    let mut printed = lines(inbox.stdout.take().unwrap())
        .filter_map(|line| Some(line.strip_prefix("[BACKGROUND TASK COMPLETED] ")?[..8].to_owned()));
    let mut seen: Vec<String> = Vec::new();
    let mut next = |count: usize| {
        seen.extend(printed.by_ref().take(count));
        seen.clone()
    };
    assert_eq!(next(1), expected);
    for _ in 0..2 {
        cut_while(&far, &mut errors, || expected.extend([notified("one"), notified("two")]));
        assert_eq!(next(2), expected);
    }
    // One item is reserved, and another printed, and the answer to its reservation or acknowledgement is lost.
    for call in ["\"reserve\":true", "\"only\":true,\"instance\""] {
        relay.cut_behind(call);
        expected.push(notified("unanswered"));
        assert_eq!(next(1), expected);
        assert!(errors.any(|line| line.ends_with("connected to far again")));
    }
    expected.push(notified("after"));
    assert_eq!(next(1), expected);
    wait::poll_until("the last acknowledgement", || far.daemon.inbox("s").is_empty().then_some(()));
    end(inbox);
}
