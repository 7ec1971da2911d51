//! Broken, hostile and slow clients: each hurts only itself.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use bgd_tests::raw::kind;
use bgd_tests::shared::client::Client;
use bgd_tests::shared::event::{Gap, News};
use bgd_tests::shared::request::{
    DaemonReload, DaemonStatusOf, NoParams, OutputParams, SubscribeParams, TaskOutput,
};
use bgd_tests::shared::task::Status;
use bgd_tests::upgrades::upgrade;
use bgd_tests::wait::poll_until;
use bgd_tests::{Process, Raw, TestDaemon, Watch, wait};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::process::Signal;
use serde_json::{Value, json};

const FRAME_BYTES: usize = 1 << 20;

fn connect(daemon: &TestDaemon) -> Raw {
    Raw::connect(daemon.socket())
}

/// Returns a process's peak memory in kB.
fn peak(process: &Process) -> u64 {
    process.status_value("VmHWM").unwrap()
}

#[test]
fn frames_up_to_limit_are_accepted_and_longer_ones_refused() {
    let daemon = TestDaemon::start();
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#;
    let mut client = connect(&daemon);
    let mut line = hello.as_bytes().to_vec();
    line.resize(FRAME_BYTES - 1, b' ');
    line.push(b'\n');
    client.send(&line).unwrap();
    assert_eq!(client.receive().unwrap()["id"], 1);

    line.insert(0, b' ');
    client.send(&line).unwrap();
    let answer = client.receive().unwrap();
    assert_eq!((kind(&answer), &answer["id"]), ("frame_too_large", &Value::Null));
    assert!(answer["error"]["message"].as_str().unwrap().contains("1048576 bytes"), "{answer}");
    client.closed();

    // The limit is configurable, and answers to earlier requests still arrive.
    daemon.write_config("[limits]\nframe_bytes = 4096");
    daemon.client().call::<DaemonReload>(&NoParams {}).unwrap();
    let mut client = connect(&daemon);
    client.send(format!("{hello}\n{}\n", "x".repeat(5000)).as_bytes()).unwrap();
    let mut answers = [client.receive().unwrap(), client.receive().unwrap()];
    // Answers may come in any order.
    answers.sort_by_key(|answer| answer["id"].is_null());
    assert_eq!(answers[0]["id"], 1);
    assert_eq!(kind(&answers[1]), "frame_too_large");
    client.closed();
}

#[test]
fn incomplete_frame_is_dropped_when_connection_closes() {
    let daemon = TestDaemon::start();
    let mut client = connect(&daemon);
    client.send(br#"{"jsonrpc":"2.0","id":1,"method":"daemon.shutdown""#).unwrap();
    drop(client);
    daemon.until_connections(1);

    // After a half-close, earlier requests are answered, but half a line is not.
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    (&stream)
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"hello\"}\n{\"jsonrpc\":\"2.0\",\"id\":8")
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &stream, &mut text).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["id"], 7);
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
}

#[test]
fn invalid_json_is_refused_and_connection_stays_open() {
    let daemon = TestDaemon::start();
    let mut client = connect(&daemon);
    let mut binary: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').collect();
    binary.push(b'\n');
    for garbage in [&binary[..], b"GET / HTTP/1.1\r\n", b"{\n", b"\xff\xfe\xfd\n", b"{}}\n", b"\0\n"] {
        client.send(garbage).unwrap();
        let answer = client.receive().unwrap();
        assert_eq!((kind(&answer), &answer["error"]["code"]), ("parse_error", &json!(-32700)));
        assert_eq!(answer["id"], Value::Null);
    }
    assert!(client.is_served());
    for wrong in ["[]", "1", "null", "\"hello\"", "{}", r#"{"jsonrpc":"1.0","id":1,"method":"hello"}"#] {
        client.send(format!("{wrong}\n").as_bytes()).unwrap();
        let answer = client.receive().unwrap();
        assert!(["parse_error", "invalid_request"].contains(&kind(&answer)), "{wrong}: {answer}");
    }
    client.send(b"\n\n   \n\r\n").unwrap();
    assert!(client.is_served(), "empty lines are skipped");
}

#[test]
fn deeply_nested_json_is_refused_or_skipped_and_connection_stays_open() {
    let daemon = TestDaemon::start();
    let mut client = connect(&daemon);
    let deep = 100_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = format!("{}1{}", open.repeat(deep), close.repeat(deep));
        // As a line of its own, never closed, as params, as a value in them, and as the id.
        for (line, expected) in [
            (nested.clone(), "invalid_request"),
            (open.repeat(deep), "parse_error"),
            (format!(r#"{{"jsonrpc":"2.0","id":1,"method":"hello","params":{nested}}}"#), "invalid_params"),
            (
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"task.submit","params":{{"env":{nested}}}}}"#),
                "invalid_params",
            ),
            (format!(r#"{{"jsonrpc":"2.0","id":{nested},"method":"hello"}}"#), "invalid_request"),
        ] {
            assert!(line.len() < FRAME_BYTES, "its length alone would be refused");
            client.send(format!("{line}\n").as_bytes()).unwrap();
            let answer = client.receive().expect("an answer");
            assert_eq!(kind(&answer), expected, "{}: {answer}", &line[..60]);
        }
        // As a member that requests do not have.
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"hello","more":{nested}}}"#);
        client.send(format!("{line}\n").as_bytes()).unwrap();
        let answer = client.receive().expect("an answer");
        assert!(answer["result"].is_object(), "{answer}");
    }
    assert!(client.is_served());
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
}

#[test]
fn endless_frame_is_refused_without_growing_memory() {
    let daemon = TestDaemon::start();
    let process = daemon.process();
    let idle = peak(&process);
    for _ in 0..4 {
        let mut client = connect(&daemon);
        let chunk = vec![b'['; 1 << 16];
        let mut sent = 0;
        while sent < 256 << 20 && client.send(&chunk).is_ok() {
            sent += chunk.len();
        }
        assert!(sent < 3 << 20, "{sent} bytes of one frame were taken");
        assert_eq!(kind(&client.receive().unwrap()), "frame_too_large");
        client.closed();
    }
    let most = peak(&process);
    assert!(most < idle + 8 * 1024, "{idle} kB grew to {most} kB");
    daemon.until_connections(1);
}

#[test]
fn refused_connection_fails_writes_and_still_gets_earlier_replies() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    let mut client = connect(&daemon);
    client.request(1, "task.block", &json!({"ids": [id], "timeout_ms": null}));
    let chunk = vec![b'['; 1 << 16];
    let mut sent = 0;
    let error = loop {
        match client.send(&chunk) {
            Ok(()) => sent += chunk.len(),
            Err(error) => break error,
        }
        assert!(sent < 3 << 20, "{sent} bytes of one frame were taken");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
    assert_eq!(kind(&client.receive().unwrap()), "frame_too_large");
    daemon.cancel(&[id]);
    let answer = client.receive().expect("the reply to the request before");
    assert_eq!((&answer["id"], &answer["result"]["finished"]), (&json!(1), &json!([id])), "{answer}");
    client.closed();
}

#[test]
fn r121_connection_refused_before_upgrade_fails_writes_after_it() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("head -c 1000000 /dev/zero | tr '\\0' y");
    daemon.block(&[id]);
    let mut client = connect(&daemon);
    // This answer fills the socket, so the client can't be told yet what comes after it.
    client.request(1, "task.output", &json!({"id": id, "offset": 0, "limit": 700_000}));
    assert!(wait::readable(client.as_fd(), wait::PATIENCE));
    // The daemon reads all of this before it refuses it.
    client.send(&vec![b'['; FRAME_BYTES]).unwrap();
    (0..20).for_each(|_| assert!(connect(&daemon).is_served()));
    upgrade(&daemon);
    assert_eq!(client.receive().expect("the reply to the request before")["id"], 1);
    assert_eq!(kind(&client.receive().unwrap()), "frame_too_large");
    let chunk = vec![b'['; 1 << 16];
    let error = (0..64).find_map(|_| client.send(&chunk).err()).expect("it reads no more");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
    client.closed();
}

#[test]
fn client_that_never_reads_costs_little_memory_and_delays_nobody() {
    const REQUESTS: u64 = 400;
    const CHUNK: usize = 256 * 1024;
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("head -c 10000000 /dev/zero | tr '\\0' y");
    daemon.block(&[id]);
    let process = daemon.process();
    let params = |offset: i64| OutputParams {
        id: id.into(),
        offset: Some(offset),
        limit: Some(CHUNK as u64),
        stream: None,
    };
    let mut other = daemon.client();
    let mut read_all = |rounds: usize| {
        for round in 0..rounds {
            let part =
                other.call::<TaskOutput>(&params((round * CHUNK % 9_000_000).cast_signed() as i64)).unwrap();
            assert_eq!(part.data.len(), CHUNK);
        }
    };
    read_all(50);
    let before = process.status_value("VmRSS").unwrap();

    // It does not read the 100 MB that are being sent to it.
    let mut deaf = connect(&daemon);
    // Sent in one piece, because a daemon that waits for its reader does not read either.
    let mut requests = String::new();
    for number in 0..REQUESTS {
        let request = json!({"jsonrpc": "2.0", "id": number, "method": "task.output", "params": params(0)});
        requests += &request.to_string();
        requests.push('\n');
    }
    deaf.send(requests.as_bytes()).unwrap();
    // The daemon serves readers of output in turn, so the deaf client has had its turns by now.
    read_all(200);
    let task = daemon.submit(&["echo", "others are served"]);
    daemon.block(&[task]);
    assert_eq!(daemon.output(task), b"others are served\n");
    let most = peak(&process);
    assert!(most < before + 30 * 1024, "{before} kB grew to {most} kB");

    // When it finally reads, every answer is there.
    let mut answered = vec![false; usize::try_from(REQUESTS).unwrap()];
    for _ in 0..REQUESTS {
        let answer = deaf.receive().expect("an answer");
        assert_eq!(answer["result"]["data"].as_str().map(str::len), Some(CHUNK), "{}", answer["error"]);
        answered[usize::try_from(answer["id"].as_u64().unwrap()).unwrap()] = true;
    }
    assert!(answered.iter().all(|answered| *answered));

    // If it disconnects instead, its requests are dropped.
    deaf.send(requests.as_bytes()).unwrap();
    drop(deaf);
    daemon.until_connections(2);
    assert!(peak(&process) < before + 30 * 1024);
}

#[test]
fn replies_with_many_tasks_cost_little_memory_while_unread() {
    const TASKS: usize = 3000;
    const REQUESTS: u64 = 25;
    let daemon = TestDaemon::start();
    let lines = daemon.home().join("lines");
    fs::write(&lines, "x\n".repeat(TASKS)).unwrap();
    daemon.run(&["submit", "--hold", "--each", lines.to_str().unwrap(), "--", "true"]).success();
    let (mut deaf, mut other, process) = (connect(&daemon), daemon.client(), daemon.process());
    let all = json!({"matching": {"status": ["pending"]}});
    let count = |answer: &Value| answer["result"]["tasks"].as_array().map(Vec::len);
    assert_eq!(count(&deaf.call(0, "task.hold", &all)), Some(TASKS));
    let before = peak(&process);
    // Sent in one piece, because a daemon that waits for its reader does not read either.
    let request = |id| json!({"jsonrpc": "2.0", "id": id, "method": "task.hold", "params": all});
    let requests: Vec<String> = (0..REQUESTS).map(|id| request(id).to_string() + "\n").collect();
    deaf.send(requests.concat().as_bytes()).unwrap();
    // Other clients get their turn after everything accepted from this one.
    other.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    let most = peak(&process);
    assert!(most < before + 30 * 1024, "{before} kB grew to {most} kB");
    for id in 0..REQUESTS {
        let answer = deaf.receive().expect("an answer");
        assert_eq!((answer["id"].as_u64(), count(&answer)), (Some(id), Some(TASKS)), "{}", answer["error"]);
    }
    // A wait delays no other request of its client.
    deaf.request(1, "task.block", &all);
    assert!(deaf.is_served());
}

#[test]
fn slow_reader_gets_every_reply_even_without_free_descriptors() {
    const REQUESTS: u64 = 60;
    let daemon = TestDaemon::start();
    let text = "x".repeat(100_000);
    let id = daemon.submit(&["true", &text]);
    daemon.block(&[id]);
    let (mut deaf, process) = (connect(&daemon), daemon.process());
    assert!(deaf.is_served());
    let held = process.descriptors().unwrap();
    for limit in [None, Some(held as u64)] {
        process.limit(rustix::process::Resource::Nofile, limit);
        // Far more than its socket holds.
        (0..REQUESTS).for_each(|number| deaf.request(number, "task.get", &json!({"id": id})));
        for _ in 0..REQUESTS {
            let answer = deaf.receive().expect("an answer");
            assert_eq!(answer["result"]["task"]["argv"][1].as_str(), Some(&*text), "{}", answer["error"]);
        }
    }
}

#[test]
fn reading_a_reply_does_not_wake_the_daemon() {
    const ROUNDS: u64 = 50;
    let daemon = TestDaemon::start();
    let process = daemon.process();
    let slept = || {
        poll_until("the daemon to sleep", || {
            let status = fs::read_to_string(process.proc("status")).unwrap();
            status.contains("\nState:\tS").then(|| process.status_value("voluntary_ctxt_switches").unwrap())
        })
    };
    let mut client = connect(&daemon);
    let mut woken = 0;
    for number in 0..ROUNDS {
        client.request(number, "hello", &json!({}));
        assert!(wait::readable(client.as_fd(), wait::PATIENCE));
        let before = slept();
        client.receive().unwrap();
        woken += slept() - before;
    }
    // It may have had other work now and then.
    assert!(woken < ROUNDS / 2, "{woken} times for {ROUNDS} answers");
}

#[test]
fn r55_subscriber_that_never_reads_loses_subscription_and_gets_final_gap() {
    let config = "[limits]\nevent_history_bytes = 16384\nwrite_queue_bytes = 4096";
    let daemon = TestDaemon::builder().config(config).start();
    let process = daemon.process();
    let before = peak(&process);
    let mut deaf = Watch::new(daemon.client(), &SubscribeParams::default());
    // Far more than its socket, its queue and the history hold together.
    let ids: Vec<_> = (0..800).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&ids);
    assert!(peak(&process) < before + 30 * 1024);
    assert_eq!(daemon.status().subscriptions, 0);

    let mut next = deaf.subscribed.seq + 1;
    let gap: Gap = loop {
        match deaf.next_params().news {
            News::Event(event) => {
                assert_eq!(event.seq, next);
                next += 1;
            }
            News::Gap(gap) => break gap,
        }
    };
    assert!(gap.ended, "{gap:?}");
    assert_eq!(gap.from, next);
    assert!(gap.to >= gap.from);
    // A new subscription on the same connection gets the rest, as far as it is kept.
    let mut again = deaf.again(&SubscribeParams { since: Some(gap.to), ..Default::default() });
    let last = daemon.submit(&["true"]);
    let mut seen = 0;
    while seen < 3 {
        if let News::Event(event) = again.next_params().news {
            seen += u32::from(event.task.id == last);
        }
    }
}

#[track_caller]
fn may_open(descriptors: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < descriptors {
        setrlimit(Resource::RLIMIT_NOFILE, descriptors.min(hard), hard).unwrap();
    }
    assert!(hard >= descriptors, "this test needs a hard limit of {descriptors} open files");
}

#[test]
fn connections_above_the_limit_are_refused_and_others_served() {
    may_open(4096);
    let daemon = TestDaemon::start();
    let mut clients: Vec<Raw> = (0..1024).map(|_| connect(&daemon)).collect();
    for client in &mut clients {
        assert!(client.is_served());
    }
    let mut refused: Vec<Raw> = (1024..2000).map(|_| connect(&daemon)).collect();
    // A few connections are reserved for the daemon's own methods, and silent ones are dropped to make room.
    let mut kept = refused.split_off(976 - 4);
    for client in &mut refused {
        assert_eq!(kind(&client.receive().expect("a word")), "too_many_connections");
        client.closed();
    }
    assert!(kept.iter_mut().all(Raw::is_served));
    daemon.run(&["list"]).expect_code(69);
    // As soon as one closes, another may connect.
    drop((refused, kept));
    clients.truncate(1000);
    // The first one asks, as a new connection may still be one too many.
    let mut connections =
        || clients[0].call(1, "daemon.status", &json!({}))["result"]["connections"].as_u64();
    poll_until("the end of the others", || (connections() == Some(1000)).then_some(()));
    daemon.run(&["list"]).success();
}

#[test]
fn burst_above_the_limit_gets_answers_or_the_reason_and_leaves_nothing() {
    let daemon = TestDaemon::builder().config("[limits]\nconnections = 16\n").start();
    let mut inside = Raw::served(daemon.socket());
    let mut connections = || inside.call(1, "daemon.status", &json!({}))["result"]["connections"].as_u64();
    poll_until("a daemon without other clients", || (connections() == Some(1)).then_some(()));
    let clients = burst(&daemon, 100);
    let mut served = Vec::new();
    for mut client in clients {
        let answer = client.receive().expect("an answer or the reason");
        if answer["error"].is_null() {
            served.push(client);
            continue;
        }
        assert_eq!(kind(&answer), "too_many_connections");
        assert!(!answer.to_string().contains("sent no request"), "{answer}");
        assert_eq!(client.read_line(&mut Vec::new()).expect("an end without an error"), 0);
    }
    // Four more than the limit are reserved for the daemon's own methods.
    assert_eq!(served.len(), 19);
    assert_eq!(connections(), Some(20));
    drop(served);
    poll_until("the end of the others", || (connections() == Some(1)).then_some(()));
}

/// Returns connections that have sent `hello`. The daemon finds all of them, and what they have sent, at once.
fn burst(daemon: &TestDaemon, count: usize) -> Vec<Raw> {
    let process = daemon.process();
    process.signal(Signal::STOP).unwrap();
    let stat = || fs::read_to_string(process.proc("stat")).unwrap();
    poll_until("a stopped daemon", || stat().contains(") T ").then_some(()));
    let mut clients: Vec<Raw> = (0..count).map(|_| connect(daemon)).collect();
    for client in &mut clients {
        client.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n").unwrap();
    }
    process.signal(Signal::CONT).unwrap();
    clients
}

#[test]
fn burst_without_free_descriptors_is_served_as_silent_connections_are_closed_one_by_one() {
    let daemon = TestDaemon::builder().prelude("ulimit -n 64").start();
    let mut inside = Raw::served(daemon.socket());
    let mut connections = || inside.call(1, "daemon.status", &json!({}))["result"]["connections"].as_u64();
    poll_until("a daemon without other clients", || (connections() == Some(1)).then_some(()));
    let mut silent = Vec::new();
    // Of the 64, a quarter is reserved, and one is needed to find that out: another connection is only served if a silent
    // one is closed for it.
    while daemon.process().descriptors().unwrap() < 47 {
        silent.push(connect(&daemon));
        let count = 1 + silent.len() as u64;
        poll_until("one more connection", || (connections() == Some(count)).then_some(()));
    }
    let clients = burst(&daemon, 10);
    assert!(silent.len() > clients.len(), "only {} silent ones", silent.len());
    for mut client in clients {
        let answer = client.receive().expect("an answer");
        assert!(answer["error"].is_null(), "a silent one was closed, but not yet: {answer}");
    }
}

#[test]
fn two_thousand_connections_are_served_when_limit_allows() {
    may_open(4096);
    let daemon = TestDaemon::builder()
        .config("[limits]\nconnections = 4000")
        .prelude("ulimit -Sn 64") // the daemon raises it
        .start();
    // Excluding that of the program's file, whose size is irrelevant here.
    let memory = || daemon.process().status_value("RssAnon").unwrap();
    let before = memory();
    let mut clients: Vec<Raw> = (0..2000).map(|_| connect(&daemon)).collect();
    for client in &mut clients {
        assert!(client.is_served());
    }
    assert_eq!(daemon.status().connections, 2001);
    let used = memory() - before;
    assert!(used < 2000 * 4, "{used} kB for 2,000 quiet connections");
    drop(clients);
    daemon.until_connections(1);
}

#[test]
fn r22_disconnected_waiter_is_forgotten() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    for number in 0..50 {
        let mut client = connect(&daemon);
        client.request(number, "task.block", &json!({"ids": [id], "timeout_ms": null}));
        client.request(number, "events.subscribe", &json!({}));
    }
    daemon.until_connections(1);
    assert_eq!(daemon.status().subscriptions, 0);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    let mut client: Client = daemon.client();
    assert_eq!(client.call::<DaemonStatusOf>(&NoParams {}).unwrap().summary.cancelled, 1);
    assert!(!fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap().contains("ERROR"));
}
