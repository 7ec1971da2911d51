//! Events: every completion is announced (R55), in order, without holes, after its effect; replay and gaps.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use bgd_shared::error::ErrorKind;
use bgd_shared::event::{Event, EventKind, Gap, News};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    ClearParams, DaemonStatusOf, EventsSubscribe, IdParams, NoParams, OutputParams, SubmitParams,
    SubscribeParams, TaskClear, TaskGet, TaskOutput,
};
use bgd_shared::task::Status;
use bgd_tests::{Raw, Relay, TestDaemon, Watch, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

fn subscribe(daemon: &TestDaemon, params: &SubscribeParams) -> Watch {
    Watch::new(daemon.client(), params)
}

fn since(seq: u64) -> SubscribeParams {
    SubscribeParams { since: Some(seq), ..SubscribeParams::default() }
}

fn in_session(daemon: &TestDaemon, session: &str) -> TaskId {
    let params = SubmitParams { shell: Some(":".into()), session: Some(session.into()), ..daemon.params() };
    daemon.submit_with(&params).id
}

/// Returns the events that mark stages in the life of a task, in the order of their arrival.
fn life(watch: &mut Watch, id: TaskId) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind: &EventKind| !kind.is_terminal()) {
        let event = watch.until(|event| event.task.id == id);
        if event.kind != EventKind::Output {
            kinds.push(event.kind);
        }
    }
    kinds
}

#[test]
fn r55_completion_event_is_sent_with_or_without_blocked_client() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let [alone, awaited] = [(); 2].map(|()| daemon.submit(&["true"]));
    daemon.block(&[awaited]);
    for id in [alone, awaited] {
        let mut replay = subscribe(&daemon, &since(0));
        assert_eq!(
            replay.until(|event| event.task.id == id && event.kind.is_terminal()).kind,
            EventKind::Completed
        );
    }
    let mut seen: Vec<TaskId> =
        (0..2).map(|_| watch.until(|event| event.kind.is_terminal()).task.id).collect();
    seen.sort_unstable();
    let mut wanted = vec![alone, awaited];
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
}

#[test]
fn r55_subscriber_receives_every_cancellation_of_a_shutdown() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    // Many times the capacity of the daemon and a socket for one reader.
    let params = SubmitParams {
        shell: Some(":".into()),
        description: Some("x".repeat(500)),
        hold: true,
        ..daemon.params()
    };
    let held: Vec<TaskId> = (0..600).map(|_| daemon.submit_with(&params).id).collect();
    watch.until(|event| Some(&event.task.id) == held.last());
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.run(&["daemon", "stop"]).success());
        let mut left: HashSet<TaskId> = held.into_iter().collect();
        while !left.is_empty() {
            let event = watch.until(|event| event.kind == EventKind::Cancelled);
            assert!(left.remove(&event.task.id), "told once");
        }
    });
}

#[test]
fn each_task_lifecycle_emits_events_in_order() {
    use EventKind::{Cancelled, Completed, Failed, Started, Submitted};
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let mut watch = daemon.watch();
    let good = daemon.submit(&["true"]);
    assert_eq!(life(&mut watch, good), [Submitted, Started, Completed]);
    let bad = daemon.submit(&["false"]);
    assert_eq!(life(&mut watch, bad), [Submitted, Started, Failed]);
    let missing = daemon.submit(&["no-such-program-here"]);
    assert_eq!(life(&mut watch, missing), [Submitted, Failed], "it never ran");
    let running = daemon.submit(&["sleep", "1000"]);
    let pending = daemon.submit(&["true"]);
    daemon.wait_running(running);
    daemon.cancel(&[pending]);
    assert_eq!(life(&mut subscribe(&daemon, &since(0)), pending), [Submitted, Cancelled]);
    daemon.cancel(&[running]);
    assert_eq!(life(&mut watch, running), [Submitted, Started, Cancelled]);
    let clear = ClearParams { ids: Some(vec![good.into()]), ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&clear).unwrap();
    assert_eq!(watch.until_kind(good, EventKind::Cleared).task.status, Status::Completed);
}

#[test]
fn event_numbers_have_no_gaps_and_all_subscribers_see_same_events() {
    let daemon = TestDaemon::start();
    let mut watches = [daemon.watch(), daemon.watch()];
    let ids: Vec<TaskId> = (0..60).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&ids);
    let last = daemon.status().seq;
    let mut heard: Vec<Vec<Event>> = Vec::new();
    for watch in &mut watches {
        let events: Vec<Event> = (watch.subscribed.seq..last).map(|_| watch.next_event()).collect();
        let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(numbers, (watch.subscribed.seq + 1..=last).collect::<Vec<_>>());
        assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at));
        heard.push(events);
    }
    let mut replay = subscribe(&daemon, &since(0));
    assert_eq!(replay.subscribed.seq, last);
    heard.push((0..last).map(|_| replay.next_event()).collect());
    assert!(heard[0] == heard[1] && heard[1] == heard[2], "a replay is what was told");
    for id in ids {
        let of = |kind| heard[0].iter().filter(|event| event.task.id == id && event.kind == kind).count();
        let kinds = [EventKind::Submitted, EventKind::Started, EventKind::Completed];
        assert_eq!(kinds.map(of), [1, 1, 1]);
    }
}

#[test]
fn event_is_sent_after_its_effect_is_visible() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let mut client = daemon.client();
    for _ in 0..30 {
        let id = daemon.submit_shell("echo x");
        let mut look = |kind| {
            watch.until_kind(id, kind);
            client.call::<TaskGet>(&IdParams { id: id.into() }).unwrap().task
        };
        look(EventKind::Submitted);
        assert!(look(EventKind::Started).pid.is_some());
        let task = look(EventKind::Completed);
        assert_eq!((task.status, task.output.bytes), (Status::Completed, 2));
        assert_eq!(daemon.output(id), b"x\n");
    }
}

#[test]
fn since_replays_later_events_and_continues_live() {
    let daemon = TestDaemon::start();
    let first = daemon.submit(&["true"]);
    daemon.block(&[first]);
    let middle = daemon.status().seq;
    let second = daemon.submit(&["true"]);
    daemon.block(&[second]);
    let mut watch = subscribe(&daemon, &since(middle));
    let event = watch.next_event();
    assert_eq!((event.seq, event.task.id, event.kind), (middle + 1, second, EventKind::Submitted));
    watch.until_kind(second, EventKind::Completed);
    let third = daemon.submit(&["true"]);
    assert_eq!(watch.until(|event| event.task.id == third).kind, EventKind::Submitted);
    let from_the_future = daemon.client().call::<EventsSubscribe>(&since(u64::MAX)).unwrap_err();
    assert_eq!(
        from_the_future.kind(),
        Some(ErrorKind::InvalidParams),
        "the number comes from another daemon"
    );
    watch.until_kind(third, EventKind::Completed);
    let mut without = daemon.watch();
    let fifth = daemon.submit(&["true"]);
    assert_eq!(without.next_event().task.id, fifth, "without `since` only what comes is told");
    daemon.block(&[fifth]);
}

#[test]
fn events_missing_from_history_are_reported_as_one_gap() {
    let config = "[limits]\nevent_history_bytes = 4096\n";
    let daemon = TestDaemon::builder().config(config).start();
    let ids: Vec<TaskId> = (0..40).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&ids);
    let last = daemon.status().seq;
    let mut watch = subscribe(&daemon, &since(3));
    let gap = match watch.next_params().news {
        News::Gap(gap) => gap,
        News::Event(event) => panic!("{event:?}"),
    };
    let Gap { from, to, ended, .. } = gap;
    assert_eq!((from, ended), (4, false));
    assert!(to > 4 && to < last, "{gap:?}");
    for seq in to + 1..=last {
        assert_eq!(watch.next_event().seq, seq, "the rest is there, without holes");
    }
    let more = daemon.submit(&["true"]);
    watch.until_kind(more, EventKind::Completed);
}

#[test]
fn subscription_filters_by_tasks_or_parent_session() {
    let daemon = TestDaemon::start();
    let mine = in_session(&daemon, "mine");
    daemon.block(&[mine]);
    let only = |ids: &[TaskId], session: Option<&str>| {
        let ids = ids.iter().copied().map(Into::into).collect();
        subscribe(&daemon, &SubscribeParams { ids, session: session.map(Into::into), ..since(0) })
    };
    let mut by_session = only(&[], Some("mine"));
    let mut by_id = only(&[mine], None);
    let other = in_session(&daemon, "other");
    daemon.block(&[other]);
    let again = in_session(&daemon, "mine");
    daemon.block(&[again]);
    let mut seen = Vec::new();
    while seen.last() != Some(&(again, EventKind::Completed)) {
        let event = by_session.next_event();
        assert_eq!(event.task.session.as_deref(), Some("mine"));
        seen.push((event.task.id, event.kind));
    }
    assert!(seen.contains(&(mine, EventKind::Completed)), "also in a replay");
    let clear = ClearParams { ids: Some(vec![mine.into()]), ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&clear).unwrap();
    while by_id.next_event().kind != EventKind::Cleared {}
    let unknown = SubscribeParams { ids: vec![TaskId::random().into()], ..SubscribeParams::default() };
    assert!(daemon.client().call::<EventsSubscribe>(&unknown).is_err());
}

#[test]
fn subscriptions_on_one_connection_have_distinct_ids() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let all = client.call::<EventsSubscribe>(&SubscribeParams::default()).unwrap().subscription;
    let of_session = SubscribeParams { session: Some("s".into()), ..SubscribeParams::default() };
    let some = client.call::<EventsSubscribe>(&of_session).unwrap().subscription;
    assert_ne!(all, some);
    let id = in_session(&daemon, "s");
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let params = client.next_news().unwrap();
        if let News::Event(event) = params.news
            && event.kind.is_terminal()
        {
            assert_eq!(event.task.id, id);
            ends.push(params.subscription);
        }
    }
    ends.sort_unstable();
    assert_eq!(ends, [all, some]);
}

#[test]
fn bgctl_events_prints_one_json_object_per_line() {
    let daemon = TestDaemon::start();
    let first = in_session(&daemon, "s");
    daemon.block(&[first]);
    let spawn = |args: &[&str]| {
        let mut bgctl = daemon.bgctl(args);
        bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("bgctl")
    };
    let first_id = first.to_string();
    for args in [
        &["events", "--since", "0"][..],
        &["--json", "events", "--since", "0"],
        &["events", "--since", "0", "--session", "s"],
        &["events", "--since", "0", "--task", &first_id],
    ] {
        let mut child = spawn(args);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || serde_json::from_str::<Event>(&lines.next().unwrap().unwrap()).expect("an event");
        assert_eq!(
            (next().kind, next().kind, next().kind),
            (EventKind::Submitted, EventKind::Started, EventKind::Completed)
        );
        let clear = ClearParams::default();
        if args.contains(&"--task") {
            daemon.client().call::<TaskClear>(&clear).unwrap();
            assert_eq!(next().kind, EventKind::Cleared);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn bgctl_events_exits_with_message_when_daemon_stops() {
    let mut daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    let mut bgctl = daemon.bgctl(&["events", "--since", "0"]);
    let mut child = bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains(&id.to_string()));
    daemon.stop();
    assert_eq!(child.wait().unwrap().code(), Some(69));
    drop(lines);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.starts_with("bgctl: the daemon has ended\n"), "{said}");
}

/// A running `bgctl events` and its output.
struct Printed {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Printed {
    fn of(daemon: &TestDaemon, args: &[&str]) -> Self {
        let mut bgctl = daemon.bgctl(args);
        bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bgctl.spawn().expect("bgctl");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> (Event, String) {
        let line = self.lines.next().expect("a line").expect("a line");
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let cursor = value["cursor"].as_str().expect("a cursor").to_owned();
        (serde_json::from_value(value).expect("an event"), cursor)
    }

    /// Returns its exit code and stderr.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn events_resume_from_cursor_and_cursor_of_old_daemon_is_an_error() {
    let mut daemon = TestDaemon::start();
    let mut expected = 1;
    let mut cursor = "0".to_owned();
    for _ in 0..5 {
        let id = daemon.submit(&["true"]);
        daemon.block(&[id]);
        let mut printed = Printed::of(&daemon, &["events", "--since", &cursor]);
        for _ in 0..2 {
            let (event, next) = printed.next();
            assert_eq!(event.seq, expected, "nothing twice, and nothing lost");
            assert_eq!(next, format!("{}:{expected}", daemon.status().instance));
            expected += 1;
            cursor = next;
        }
        // More were printed, but not processed.
        printed.kill();
    }
    daemon.restart();
    let (code, said) = Printed::of(&daemon, &["events", "--since", &cursor]).ended();
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("another one is running") && said.contains("--since 0"), "{said}");
    assert!(said.contains("unless it was durable"), "nobody knows whether it was: {said}");
    let error = daemon.run(&["--json", "events", "--since", &cursor]).expect_code(69).stderr;
    assert!(error.contains("\"kind\":\"other_instance\""), "{error}");
}

#[test]
fn subscribe_refuses_instance_of_another_daemon() {
    let daemon = TestDaemon::start();
    let instance = daemon.watch().subscribed.instance;
    assert_eq!(instance, daemon.status().instance);
    let mine = SubscribeParams { instance: Some(instance.clone()), ..since(0) };
    subscribe(&daemon, &mine);
    let other = SubscribeParams { instance: Some("other".into()), ..since(0) };
    let error = daemon.client().call::<EventsSubscribe>(&other).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
    assert!(error.to_string().contains("other") && error.to_string().contains(&instance), "{error}");
}

#[test]
fn r26_bgctl_events_loses_nothing_when_connection_breaks() {
    let mut daemon = TestDaemon::start();
    let relay = Relay::start(daemon.home(), daemon.socket());
    let socket = relay.socket().to_str().unwrap();
    let mut printed = Printed::of(&daemon, &["--socket", socket, "events", "--since", "0"]);
    let mut other = Printed::of(&daemon, &["--socket", socket, "events", "--since", "0", "--session", "s"]);
    let first = in_session(&daemon, "s");
    let mut seq = 0;
    let mut until_end_of = |id| loop {
        let (event, _) = printed.next();
        seq += 1;
        assert_eq!(event.seq, seq, "nothing twice, and nothing lost");
        if event.task.id == id && event.kind.is_terminal() {
            break;
        }
    };
    let mut last = 0;
    let mut next_end = || loop {
        let (event, _) = other.next();
        assert!(event.seq > last && event.task.session.as_deref() == Some("s"));
        last = event.seq;
        if event.kind.is_terminal() {
            break event.task.id;
        }
    };
    until_end_of(first);
    assert_eq!(next_end(), first);
    for round in 0..20 {
        let id = in_session(&daemon, if round % 2 == 0 { "s" } else { "t" });
        // While events are in flight.
        relay.cut();
        until_end_of(id);
        if round % 2 == 0 {
            assert_eq!(next_end(), id);
        }
    }
    // Both reconnect to another daemon.
    relay.hold();
    daemon.restart();
    relay.release();
    for printed in [printed, other] {
        let (code, said) = printed.ended();
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains("another one is running"), "{said}");
    }
}

#[test]
fn r26_bgctl_events_prints_last_events_of_tasks_cleared_while_connection_was_lost() {
    let daemon = TestDaemon::start();
    let relay = Relay::start(daemon.home(), daemon.socket());
    let socket = relay.socket().to_str().unwrap();
    for (count, session) in [(1, None), (2, Some("s"))] {
        let params = SubmitParams { hold: true, session: session.map(Into::into), ..daemon.params() };
        let params = SubmitParams { argv: Some(vec!["true".into()]), ..params };
        let ids: Vec<TaskId> = (0..count).map(|_| daemon.submit_with(&params).id).collect();
        let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut args = vec!["--socket", socket, "events", "--since", "0"];
        args.extend(names.iter().flat_map(|name| ["--task", name]));
        args.extend(session.iter().flat_map(|session| ["--session", session]));
        let mut printed = Printed::of(&daemon, &args);
        // From now on it continues after a lost connection.
        let mut seen = vec![printed.next().0];
        relay.hold();
        daemon.submit_with(&params);
        daemon.cancel(&ids);
        daemon
            .run(&[&["clear"], &names.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())
            .success();
        daemon.submit_with(&params);
        relay.release();
        while seen.iter().filter(|event| event.kind == EventKind::Cleared).count() < count {
            seen.push(printed.next().0);
        }
        for id in ids {
            let of_task = seen.iter().filter(|event| event.task.id == id);
            let kinds: Vec<EventKind> = of_task.map(|event| event.kind).collect();
            assert_eq!(kinds, [EventKind::Submitted, EventKind::Cancelled, EventKind::Cleared]);
        }
        // Nothing more can come.
        let (code, said) = printed.ended();
        assert_eq!(code, Some(66), "{said}");
    }
}

#[test]
fn bgctl_events_exits_when_its_reader_closes_while_idle() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["true"]);
    daemon.block(&[id]);
    let mut printed = Printed::of(&daemon, &["events", "--since", "0"]);
    printed.next();
    let Printed { mut child, lines } = printed;
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn r55_event_reports_when_output_of_lingering_task_is_complete() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let mut watch = daemon.watch();
    let id = daemon.submit_shell("(read x < gate; echo late) & echo hi");
    watch.until_kind(id, EventKind::Completed);
    let mut client = daemon.client();
    let mut read = |offset| {
        let params = OutputParams { id: id.into(), offset: Some(offset), limit: None, stream: None };
        client.call::<TaskOutput>(&params).unwrap()
    };
    let before = read(0);
    assert_eq!((before.data.as_str(), before.eof, before.task.lingering), ("hi\n", false, true));
    for options in [&["--json"][..], &[]] {
        let name = id.to_string();
        let args = [&["output", "--follow"], options, &[&name]].concat();
        assert!(daemon.run(&args).success().stdout_text().contains("hi"), "it ends with the task");
    }

    wait::for_reader(&daemon.home().join("gate"), "go\n");

    let settled = watch.until(|event| event.task.id == id);
    assert_eq!((settled.kind, settled.task.lingering), (EventKind::Progress, false));
    let after = read(3);
    assert_eq!((after.data.as_str(), after.eof), ("late\n", true));
}

#[test]
fn bgctl_events_ends_at_full_daemon_and_loses_nothing_when_repeated() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 4").start();
    let relay = Relay::start(daemon.home(), daemon.socket());
    let early = in_session(&daemon, "s");
    daemon.block(&[early]);
    let socket = relay.socket().to_str().unwrap();
    let mut printed = Printed::of(&daemon, &["--socket", socket, "events", "--since", "0"]);
    let cursor = loop {
        let (event, cursor) = printed.next();
        if event.kind.is_terminal() {
            break cursor;
        }
    };
    relay.hold();
    let late = in_session(&daemon, "s");
    daemon.block(&[late]);
    let mut others: Vec<Raw> = (0..4).map(|_| Raw::served(daemon.socket())).collect();
    relay.release();
    // Whether it was connected before or not, and whether the daemon greets it or not.
    let again = || Printed::of(&daemon, &["events", "--since", &cursor]).ended();
    let mut ends = vec![printed.ended(), again()];
    let mut client = daemon.client();
    let mut connections = || client.call::<DaemonStatusOf>(&NoParams {}).unwrap().connections;
    wait::poll_until("the end of the refused ones", || (connections() == 5).then_some(()));
    others.extend((0..3).map(|_| Raw::served(daemon.socket())));
    ends.push(again());
    for (code, said) in ends {
        assert_eq!(code, Some(69), "{said}");
        assert!(said.starts_with("bgctl: the daemon has") && said.contains("limit"), "{said}");
        assert!(said.contains("\nhint: ") && said.contains("limits.connections"), "{said}");
        assert!(!said.contains("ended"), "{said}");
    }
    let error = daemon.run(&["--json", "events", "--since", &cursor]).expect_code(69).stderr;
    assert!(error.contains("\"kind\":\"too_many_connections\""), "{error}");
    drop(others);
    wait::poll_until("room", || (connections() == 1).then_some(()));
    let mut printed = Printed::of(&daemon, &["events", "--since", &cursor]);
    let (event, _) = printed.next();
    assert_eq!((event.task.id, event.kind), (late, EventKind::Submitted));
    printed.kill();
}
