//! Regressions between clients and the daemon: the socket and what may be in its place, passed descriptors, answers
//! that nobody waits for, and half-closed connections.

use std::fs;
use std::io::{IoSlice, PipeReader, PipeWriter, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use bgd_shared::client::Client;
use bgd_shared::error::ErrorKind;
use bgd_shared::request::{
    BlockMode, BlockParams, DaemonStatusOf, Encoding, EventsSubscribe, NoParams, OutputParams, Stdin,
    SubmitParams, SubscribeParams, TaskSubmit, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;
use bgd_tests::raw::kind;
use bgd_tests::{Process, Raw, TestDaemon, Word, wait};
use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, sendmsg, shutdown};
use nix::sys::stat::Mode;
use rustix::process::Signal;
use serde_json::{Value, json};

#[track_caller]
fn until(daemon: &TestDaemon, what: &str, mut is_so: impl FnMut(&mut Client) -> bool) {
    let mut client = daemon.client();
    wait::poll_until(what, || is_so(&mut client).then_some(()));
}

/// Returns the number of the daemon's open descriptors while one more client is connected.
fn descriptors_now(daemon: &TestDaemon) -> usize {
    let mut client = daemon.client();
    client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    daemon.process().descriptors().unwrap()
}

#[track_caller]
fn until_descriptors(daemon: &TestDaemon, count: usize) {
    let process = daemon.process();
    until(daemon, &format!("at most {count} open descriptors"), |client| {
        client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
        process.descriptors().unwrap() <= count
    });
}

/// Asserts that no process holds the other end of this pipe any more.
#[track_caller]
fn is_abandoned(mut writer: PipeWriter) {
    assert!(wait::readable(writer.as_fd(), wait::PATIENCE), "somebody holds the reading end");
    assert_eq!(writer.write(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

/// Asserts that the daemon refuses to start, for this reason.
#[track_caller]
fn refuses_to_start(home: &mut TestDaemon, why: &str) {
    let failure = home.try_launch().expect_err("it must not start");
    let Word::Error { exit, message } = &failure.word else { panic!("{failure}") };
    assert_eq!((*exit, failure.status.code()), (77, Some(77)), "{failure}");
    for part in [home.socket().to_str().unwrap(), why] {
        assert!(message.contains(part) && failure.stderr.contains(part), "{failure}");
    }
}

#[test]
fn foreign_file_or_live_socket_at_socket_path_is_never_removed() {
    let mut home = TestDaemon::home_only();
    fs::DirBuilder::new().mode(0o700).create(home.socket().parent().unwrap()).unwrap();
    fs::write(home.socket(), "my thesis").unwrap();
    refuses_to_start(&mut home, "is not a socket");
    assert_eq!(fs::read(home.socket()).unwrap(), b"my thesis");
    let said = home.run(&["list"]).expect_code(77);
    assert!(said.stderr.contains(home.socket().to_str().unwrap()), "{}", said.stderr);
    assert_eq!(fs::read(home.socket()).unwrap(), b"my thesis");
    fs::remove_file(home.socket()).unwrap();

    let other = UnixListener::bind(home.socket()).unwrap();
    refuses_to_start(&mut home, "is the socket of another program");
    assert!(fs::symlink_metadata(home.socket()).unwrap().file_type().is_socket());
    UnixStream::connect(home.socket()).expect("the other program is still there");

    // Once that program has ended, its socket is as stale as one of a daemon.
    drop(other);
    home.launch();
    assert_eq!(home.block(&[home.submit(&["true"])])[0].status, Status::Completed);
}

#[test]
fn daemon_survives_closed_reader_of_its_stderr_log() {
    let mut daemon = TestDaemon::builder()
        .arg("--log")
        .arg("stderr")
        .env("BGD_LOG", "trace")
        .prelude("exec 2>\"$HOME/log\"")
        .home_only();
    let path = daemon.home().join("log");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let reader = fs::File::options().read(true).custom_flags(flags).open(&path).unwrap();
    daemon.launch();
    assert!(wait::readable(reader.as_fd(), wait::PATIENCE), "it logs there");
    drop(reader);
    for round in 0..10 {
        let id = daemon.submit(&["echo", "alive"]);
        assert_eq!(daemon.block(&[id])[0].status, Status::Completed, "round {round}");
        assert_eq!(daemon.output(id), b"alive\n");
        daemon.process().signal(Signal::HUP).unwrap();
    }
    assert!(daemon.stop().success());
}

#[test]
fn notifications_with_long_replies_do_not_stall_their_connection() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("head -c 1000000 /dev/zero | tr '\\0' y");
    daemon.block(&[id]);
    let params = OutputParams { id: id.into(), offset: None, limit: Some(262_144), stream: None };
    let unknown = json!({"id": "00000000-0000-4000-8000-000000000000", "limit": 262_144});
    let mut client = Raw::connect(daemon.socket());
    for params in [json!(params), unknown] {
        let line = json!({"jsonrpc": "2.0", "method": "task.output", "params": params});
        for _ in 0..20 {
            client.send(format!("{line}\n").as_bytes()).unwrap();
            assert!(client.is_served());
        }
        // The same all at once.
        client.send(format!("{line}\n").repeat(100).as_bytes()).unwrap();
        assert!(client.is_served());
    }
}

fn with_stdin(daemon: &TestDaemon, key: Option<&str>) -> SubmitParams {
    let argv = ["sh", "-c", "cat; exec sleep 1000"].map(Into::into).to_vec();
    let key = key.map(str::to_owned);
    SubmitParams { argv: Some(argv), stdin: Some(Stdin::Fd), key, ..daemon.params() }
}

fn pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

#[test]
fn descriptor_sent_with_a_known_key_is_closed() {
    let daemon = TestDaemon::start();
    let params = with_stdin(&daemon, Some("only once"));
    let mut client = daemon.client();
    let (reader, mut first) = pipe();
    let id = client.call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]).unwrap().task.id;
    drop(reader);
    daemon.wait_running(id);
    daemon.until_connections(2);
    let before = descriptors_now(&daemon);
    for _ in 0..20 {
        let (reader, writer) = pipe();
        let again = client.call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]).unwrap().task.id;
        assert_eq!(again, id);
        drop(reader);
        is_abandoned(writer);
    }
    until_descriptors(&daemon, before);
    first.write_all(b"the first is read").unwrap();
    drop(first);
    assert_eq!(wait::for_bytes(daemon.task(id).output.path.as_ref(), 17), b"the first is read");
    daemon.cancel(&[id]);
}

#[test]
fn descriptor_of_refused_or_unstarted_submit_is_closed() {
    let config = "max_concurrent_tasks = 1\n[limits]\ntasks = 2";
    let daemon = TestDaemon::builder().config(config).start();
    let first = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(first);
    let mut client = daemon.client();
    daemon.until_connections(2);
    let before = descriptors_now(&daemon);
    let params = with_stdin(&daemon, None);
    let (reader, waiting) = pipe();
    let queued = client.call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]).unwrap().task;
    drop(reader);
    assert_eq!(queued.status, Status::Pending);
    for _ in 0..20 {
        let (reader, writer) = pipe();
        let refused = client.call_with_fds::<TaskSubmit>(&params, &[reader.as_fd()]).unwrap_err();
        assert_eq!(refused.kind(), Some(ErrorKind::RegistryFull), "{refused}");
        drop(reader);
        is_abandoned(writer);
    }
    until_descriptors(&daemon, before + 1);
    daemon.cancel(&[queued.id]);
    is_abandoned(waiting);
    until_descriptors(&daemon, before);
    daemon.cancel(&[first]);
}

/// Sends bytes with copies of a pipe's read end.
fn send_with(client: &Raw, bytes: &[u8], reader: &PipeReader, count: usize) -> nix::Result<usize> {
    let raw: Vec<RawFd> = vec![reader.as_raw_fd(); count];
    let rights = [ControlMessage::ScmRights(&raw)];
    let slices = [IoSlice::new(bytes)];
    sendmsg::<()>(client.as_fd().as_raw_fd(), &slices, &rights, MsgFlags::MSG_NOSIGNAL, None)
}

#[test]
fn too_many_descriptors_for_one_line_are_refused_and_closed() {
    let daemon = TestDaemon::start();
    let before = descriptors_now(&daemon);
    // At once; in two pieces; and one by one, as a line that never ends.
    for pieces in [&[9][..], &[100], &[8, 8], &[1; 9]] {
        let (reader, writer) = pipe();
        let mut client = Raw::connect(daemon.socket());
        for count in pieces {
            assert_eq!(send_with(&client, b"{", &reader, *count), Ok(1));
        }
        drop(reader);
        let answer = client.receive().expect("a word");
        assert_eq!((kind(&answer), &answer["id"]), ("invalid_request", &Value::Null), "{answer}");
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(message, "request refused: more than 8 descriptors came with one line");
        client.closed();
        is_abandoned(writer);
    }
    // Eight are allowed, and closed with their connection.
    let (reader, writer) = pipe();
    let client = Raw::connect(daemon.socket());
    send_with(&client, b"{", &reader, 8).unwrap();
    drop((reader, client));
    is_abandoned(writer);
    daemon.until_connections(1);
    until_descriptors(&daemon, before);
}

fn close_writing_side(client: &Raw) {
    shutdown(client.as_fd().as_raw_fd(), Shutdown::Write).unwrap();
}

fn endless_block(id: bgd_shared::id::TaskId) -> Value {
    json!(BlockParams {
        ids: vec![id.into()],
        timeout_ms: None,
        mode: BlockMode::default(),
        ..BlockParams::default()
    })
}

#[test]
fn half_closed_client_that_disconnects_is_forgotten() {
    let daemon = TestDaemon::start();
    let id = daemon.submit(&["sleep", "1000"]);
    let clients: Vec<Raw> = (0..20)
        .map(|number| {
            let mut client = Raw::connect(daemon.socket());
            client.request(number, "task.block", &endless_block(id));
            client.request(100 + number, "events.subscribe", &json!({}));
            assert_eq!(client.receive().unwrap()["id"], 100 + number);
            close_writing_side(&client);
            client
        })
        .collect();
    // They wait for their answers, so they are still connected.
    daemon.until_connections(21);
    drop(clients);
    daemon.until_connections(1);
    assert_eq!(daemon.status().subscriptions, 0);
    daemon.cancel(&[id]);
}

#[test]
fn half_closed_client_that_still_reads_gets_its_reply() {
    let daemon = TestDaemon::start();
    let params = SubmitParams { argv: Some(vec!["cat".into()]), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    let mut waiting = Raw::connect(daemon.socket());
    waiting.request(1, "task.block", &endless_block(id));
    close_writing_side(&waiting);
    let mut gone = Raw::connect(daemon.socket());
    gone.request(1, "task.block", &endless_block(id));
    close_writing_side(&gone);
    drop(gone);
    daemon.until_connections(2);
    let params = WriteParams { id: id.into(), data: String::new(), encoding: Encoding::default(), eof: true };
    daemon.client().call::<TaskWrite>(&params).unwrap();
    let answer = waiting.receive().expect("its answer");
    assert_eq!(answer["result"]["finished"], json!([id]), "{answer}");
    waiting.closed();
}

#[test]
fn page_of_long_tasks_is_bounded_and_pages_cover_all_tasks() {
    const SCRIPT: usize = 100_000;
    let daemon = TestDaemon::start();
    let line = format!("true {}", "x".repeat(SCRIPT));
    let mut ids: Vec<String> = (0..100).map(|_| daemon.submit_shell(&line).to_string()).collect();
    let mut client = Raw::connect(daemon.socket());
    let mut seen: Vec<String> = Vec::new();
    let mut pages = 0;
    let mut params = json!({"limit": 1000});
    loop {
        let answer = client.call(pages, "task.list", &params);
        pages += 1;
        let tasks = answer["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert!(!tasks.is_empty(), "a page has a task at least");
        let longest = tasks.iter().map(|task| task.to_string().len()).max().unwrap();
        assert!(longest > SCRIPT, "a task says all of what it runs");
        let bytes = answer.to_string().len();
        assert!(bytes <= (1 << 20) + longest + 4096, "a page of {bytes} bytes");
        seen.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        match &answer["result"]["next"] {
            Value::Null => break,
            next => params["after"] = next.clone(),
        }
    }
    ids.reverse();
    assert_eq!(seen, ids, "each once, the newest first");
    assert!((9..=100).contains(&pages), "{pages} pages");
    let listed = daemon.run(&["list", "-q"]).success().stdout_text();
    assert_eq!(listed.lines().count(), 100, "bgctl walks the pages");
}

#[test]
fn subscriptions_per_connection_are_bounded() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for _ in 0..64 {
        client.call::<EventsSubscribe>(&SubscribeParams::default()).unwrap();
    }
    let refused = client.call::<EventsSubscribe>(&SubscribeParams::default()).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::TooManyRequests), "{refused}");
    assert_eq!(client.call::<DaemonStatusOf>(&NoParams {}).unwrap().subscriptions, 64, "it is served on");
    let _watch = daemon.watch();
    assert_eq!(daemon.status().subscriptions, 65, "others have their own");
    drop(client);
    daemon.until_connections(2);
    assert_eq!(daemon.status().subscriptions, 1);
}

#[test]
fn daemon_stop_waits_for_no_subscriber_and_closes_its_stream() {
    let mut daemon = TestDaemon::start();
    let mut bgctl = daemon.bgctl(&["events"]);
    let mut events = bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let subscribed =
        |client: &mut Client| client.call::<DaemonStatusOf>(&NoParams {}).unwrap().subscriptions == 1;
    until(&daemon, "one subscription", subscribed);
    let mut raw = Raw::connect(daemon.socket());
    assert!(raw.call(1, "events.subscribe", &json!({}))["error"].is_null());
    daemon.run(&["daemon", "stop"]).success();
    raw.closed();
    assert!(daemon.ended().success());
    let process = Process::open(events.id().cast_signed()).unwrap();
    process.gone();
    events.wait().unwrap();
    assert!(!daemon.socket().exists());
}

#[test]
fn positional_fields_are_refused_at_every_depth() {
    let daemon = TestDaemon::start();
    let mut client = Raw::connect(daemon.socket());
    let submit = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"task.submit","params":{rest}}}"#);
    let cwd = daemon.home().display();
    for (line, wanted) in [
        (r#"["2.0",1,"hello",{}]"#.to_owned(), "invalid_request"),
        (r#"["2.0","hello"]"#.to_owned(), "invalid_request"),
        (submit(r#"[["true"]]"#), "invalid_params"),
        (submit(&format!(r#"{{"argv":["true"],"cwd":"{cwd}","pty":[24,80]}}"#)), "invalid_params"),
        (
            submit(&format!(r#"{{"argv":["true"],"cwd":"{cwd}","rlimits":{{"nofile":[64,64]}}}}"#)),
            "invalid_params",
        ),
    ] {
        client.send(format!("{line}\n").as_bytes()).unwrap();
        let answer = client.receive().expect("an answer");
        assert_eq!(kind(&answer), wanted, "{line}: {answer}");
        if wanted == "invalid_request" {
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &Value::Null), "{answer}");
        }
    }
    assert!(client.is_served(), "the connection stays");
    assert_eq!(daemon.status().summary.total(), 0, "nothing was started");
}

/// The configuration is read on a thread with a small stack.
#[test]
fn deeply_nested_configuration_is_refused_and_daemon_survives() {
    let daemon = TestDaemon::start();
    for key in ["x", "agents.x.command", "agents.x.env.A", "channels.x.type", "executors.x.kind", "groups.x"]
    {
        for (begin, end) in [("[", "]"), ("{ a = ", "}")] {
            for depth in [78, 79, 80, 1000] {
                daemon.write_config(&format!("{key} = {}1{}\n", begin.repeat(depth), end.repeat(depth)));
                let stderr = daemon.run(&["daemon", "reload"]).expect_code(78).stderr;
                assert!(stderr.contains("stays in effect"), "{key}, {depth}: {stderr}");
            }
        }
    }
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
}
