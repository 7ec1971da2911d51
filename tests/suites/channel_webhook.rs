//! The channel `webhook` against servers that are good, slow, broken and malicious.

use std::fs;
use std::thread;

use bgd_shared::id::TaskId;
use bgd_shared::notice::{Notice, NoticeKind, Part};
use bgd_shared::request::{ChannelStatus, SubmitParams};
use bgd_tests::hooks::{ClosedPort, HookServer, Reply, Request};
use bgd_tests::upgrades::upgrade;
use bgd_tests::{TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Returns the table of a webhook that is notified only of ends.
fn hook(name: &str, url: &str, more: &str) -> String {
    format!("[channels.{name}]\ntype = \"webhook\"\nurl = \"{url}\"\nstarted = false\n{more}\n")
}

fn daemon(config: String) -> TestDaemon {
    TestDaemon::builder().config(config).start()
}

#[track_caller]
fn run_for(daemon: &TestDaemon, channel: &str, argv: &[&str]) -> TaskId {
    let argv = argv.iter().map(|arg| (*arg).into()).collect();
    let params = SubmitParams { argv: Some(argv), channel: Some(channel.to_owned()), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    daemon.block(&[id]);
    id
}

#[track_caller]
fn notice(request: &Request) -> Notice {
    serde_json::from_slice(&request.body).unwrap_or_else(|error| panic!("{error}: {request:?}"))
}

/// Returns the channel's counters of notices: sent, failed, dropped.
#[track_caller]
fn counts(daemon: &TestDaemon, name: &str) -> (u64, u64, u64) {
    let channel = daemon.channel(name);
    (channel.sent, channel.failed, channel.dropped)
}

/// Waits for the notice about a task, which arrives after all earlier ones.
#[track_caller]
fn wait_for_notice(server: &HookServer, id: TaskId) -> Request {
    let id = id.to_string();
    server.wait_for(|requests| {
        requests.iter().find(|request| request.json()["task"]["id"] == id.as_str()).cloned()
    })
}

fn log(daemon: &TestDaemon) -> std::path::PathBuf {
    daemon.state_dir().join("bgd.log")
}

#[test]
fn r51_webhook_receives_start_completion_failure_and_cancellation() {
    let server = HookServer::start();
    let config = format!(
        "default_deliver_to = [\"hook\"]\n[channels.hook]\ntype = \"webhook\"\nurl = \"{}\"\n\
         headers = {{ X-Key = \"k3y\", User-Agent = \"mine\" }}\n",
        server.url("/hooks?a=b")
    );
    let daemon = daemon(config);
    // The first and the last byte of a long result are both there.
    let long = daemon.submit_shell("printf A; head -c 40000 /dev/zero | tr '\\0' x; printf Z");
    let bad = daemon.submit_shell("echo why; exit 3");
    let endless = daemon.submit(&["sleep", "1000"]);
    daemon.block(&[long, bad]);
    daemon.wait_running(endless);
    daemon.cancel(&[endless]);
    let requests = server.wait_count(6);
    let mut received = Vec::new();
    for request in &requests {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/hooks?a=b"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!((request.header("x-key"), request.header("user-agent")), (Some("k3y"), Some("mine")));
        let notice = notice(request);
        assert_eq!(request.header("idempotency-key"), Some(notice.key.as_str()));
        received.push((notice.task.id, notice.kind, notice));
    }
    received.sort_by_key(|(id, kind, _)| (*id, *kind));
    let find = |id, kind| {
        let found = received.iter().find(|(other, of, _)| (*other, *of) == (id, kind));
        &found.unwrap_or_else(|| panic!("{id} {kind:?}: {received:#?}")).2
    };
    for id in [long, bad, endless] {
        assert_eq!(find(id, NoticeKind::Started).key, format!("{id}/1/started"));
    }
    let completed = find(long, NoticeKind::Completed);
    let result = completed.result.as_ref().expect("a result");
    assert_eq!((result.part, result.bytes, result.text.len()), (Part::All, 40002, 40002));
    assert!(result.text.starts_with("Ax") && result.text.ends_with("xZ"));
    assert!(completed.title.starts_with("[BACKGROUND TASK COMPLETED] "), "{}", completed.title);
    let failed = find(bad, NoticeKind::Failed);
    assert!(failed.text.contains("exit code 3") && failed.text.contains("why"), "{}", failed.text);
    assert_eq!(find(endless, NoticeKind::Cancelled).key, format!("{endless}/1"));
    // These are counted before the next notice is sent.
    run_for(&daemon, "hook", &["true"]);
    server.wait_count(8);
    assert!(daemon.channel("hook").sent >= 6);
}

#[test]
fn webhook_sends_user_agent_with_version() {
    let server = HookServer::start();
    let daemon = daemon(hook("hook", &server.url("/"), ""));
    run_for(&daemon, "hook", &["true"]);
    let request = server.wait_count(1).remove(0);
    let agent = format!("bgd/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(request.header("user-agent"), Some(agent.as_str()));
}

/// Asserts that these replies lead to a retry that delivers the notice.
#[track_caller]
fn tried_again(bad: &[Reply], more: &str) {
    let server = HookServer::start();
    for reply in bad {
        server.order(reply.clone());
    }
    let daemon = daemon(hook("hook", &server.url("/"), more));
    let id = run_for(&daemon, "hook", &["true"]);
    let requests = server.wait_count(bad.len() + 1);
    for request in &requests {
        assert_eq!(request.header("idempotency-key"), Some(format!("{id}/1").as_str()));
        assert_eq!(request.body, requests[0].body);
    }
    wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
    assert_eq!(counts(&daemon, "hook").1, 0);
    assert_eq!(server.requests().len(), bad.len() + 2, "once it is delivered, it is not sent again");
}

#[test]
fn pending_retry_is_shown_with_its_last_error() {
    let server = HookServer::start();
    server.order(Reply::later(503, "0"));
    server.order(Reply::Held(Box::new(Reply::later(503, "0"))));
    let daemon = daemon(hook("hook", &server.url("/s3cret"), ""));
    run_for(&daemon, "hook", &["true"]);
    server.wait_count(2);
    let status = daemon.channel("hook");
    let retry = status.retry.expect("it is being tried again");
    let met = format!("{} answers with 503 Service Unavailable", server.url(""));
    assert_eq!((retry.tries, retry.most, retry.error.as_str()), (1, 5, met.as_str()));
    assert_eq!((status.queued, status.failed, status.last_error), (1, 0, None));
    let page = daemon.run(&["daemon", "status"]).success().stdout_text();
    let line = page.lines().find(|line| line.contains("hook (webhook)")).expect("its line");
    let shown = format!("0 sent, 1 queued; trying again, 1 of 5 tries done, last: {met} (");
    assert!(line.contains(&shown) && line.ends_with(" ago)"), "{line}");
    server.release(1);
    wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
    let status = daemon.channel("hook");
    assert_eq!((status.retry, status.last_error_at), (None, None));
}

#[test]
fn busy_server_is_retried_until_delivered() {
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let busy = [(429, "0"), (503, past)];
    tried_again(&busy.map(|(status, after)| Reply::later(status, after)), "");
}

#[test]
fn busy_server_decides_when_it_is_tried_again() {
    let server = HookServer::start();
    server.order(Reply::later(503, "60"));
    let daemon = daemon(hook("hook", &server.url("/"), ""));
    run_for(&daemon, "hook", &["true"]);
    let retry = wait::poll_until("it is tried again", || daemon.channel("hook").retry);
    let seconds = (retry.next_at.unix_ms() - retry.at.unix_ms()) / 1000;
    // The daemon's own first pause is a second or two.
    assert!((30..=60).contains(&seconds), "{retry:?}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn server_error_is_retried_until_delivered() {
    tried_again(&[Reply::status(500)], "");
}

#[test]
fn closed_connection_is_retried_until_delivered() {
    tried_again(&[Reply::Close], "");
}

#[test]
fn hanging_server_is_retried_after_timeout() {
    tried_again(&[Reply::Silence], "timeout = \"5s\"");
}

#[test]
fn unreachable_server_is_retried_until_it_listens() {
    let port = ClosedPort::new();
    let daemon = daemon(hook("hook", &format!("http://{}/", port.address()), ""));
    run_for(&daemon, "hook", &["true"]);
    assert_eq!(daemon.channel("hook").sent, 0);
    let listener = port.listen();
    let (stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line).unwrap();
    assert_eq!(line, "POST / HTTP/1.1\r\n");
}

/// Failures that would repeat are not retried; each case names its error.
#[test]
fn permanent_failures_are_not_retried() {
    let (server, other) = (HookServer::start(), HookServer::start());
    let to_other = other.url("/");
    let to_name = server.url("/").replace("127.0.0.1", "localhost");
    let daemon = daemon(hook("hook", &server.url("/"), "headers = { X-Key = \"s3cr3t\" }"));
    let cases = [
        (Reply::status(400), "answers with 400 Bad Request"),
        (Reply::status(401), "answers with 401 Unauthorized"),
        (Reply::status(404), "answers with 404 Not Found"),
        (Reply::status(410), "answers with 410 Gone"),
        (Reply::redirect(302, "/elsewhere"), "(302 Found), which can change the method of the request"),
        (Reply::redirect(303, "/elsewhere"), "(303 See Other), which"),
        (Reply::redirect(307, &to_other), "which must not receive the request"),
        (Reply::redirect(308, &to_name), "which must not receive the request"),
        (Reply::redirect(307, "ftp://127.0.0.1/"), "which must not receive the request"),
        (Reply::redirect(307, "http://"), "but not to a valid address"),
        (
            Reply::Answer { status: 307, headers: Vec::new(), body: String::new() },
            "but not to a valid address",
        ),
    ];
    for (number, (reply, why)) in (1..).zip(cases) {
        server.order(reply.clone());
        run_for(&daemon, "hook", &["true"]);
        wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
        let channel = daemon.channel("hook");
        assert_eq!(channel.failed, number, "{reply:?}");
        let error = channel.last_error.unwrap();
        assert!(error.contains(why) && error.contains(&server.url("")), "{reply:?}: {error}");
        let requests = server.requests();
        assert_eq!(requests.len(), usize::try_from(2 * number).unwrap(), "{reply:?}");
        assert!(requests.iter().all(|request| request.path == "/"));
    }
    assert!(other.requests().is_empty());
}

#[test]
fn long_retry_after_fails_notices_without_further_requests() {
    let server = HookServer::start();
    server.order(Reply::later(503, "7200"));
    let mut daemon = daemon(hook("hook", &server.url("/"), ""));
    for _ in 0..3 {
        run_for(&daemon, "hook", &["true"]);
    }
    let line = wait::for_line(&log(&daemon), "not delivered");
    let why = "answers with 503 Service Unavailable; the server asked to wait for 3";
    assert!(line.contains(why), "{line}");
    // All of them are finished before the daemon ends.
    daemon.stop();
    assert_eq!(server.requests().len(), 1);
    assert!(!fs::read_to_string(log(&daemon)).unwrap().contains("before its notices are delivered"));
}

#[test]
fn redirect_within_same_server_keeps_request() {
    let server = HookServer::start();
    server.order(Reply::redirect(307, "/new?x=1"));
    server.order(Reply::redirect(308, &server.url("/newer")));
    let daemon = daemon(hook("hook", &server.url("/old"), "headers = { Authorization = \"Bearer s3cr3t\" }"));
    run_for(&daemon, "hook", &["true"]);
    let requests = server.wait_count(3);
    let paths: Vec<_> = requests.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/old", "/new?x=1", "/newer"]);
    for request in &requests {
        assert_eq!((request.method.as_str(), &request.body), ("POST", &requests[0].body));
        assert_eq!(request.header("authorization"), Some("Bearer s3cr3t"));
    }
    // A redirect loop ends.
    (0..4).for_each(|_| server.order(Reply::redirect(307, "/round")));
    run_for(&daemon, "hook", &["true"]);
    wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
    let channel = daemon.channel("hook");
    assert_eq!((channel.failed, server.requests().len()), (1, 8));
    assert!(channel.last_error.unwrap().contains("three redirects"));
}

#[test]
fn endless_response_body_is_not_awaited() {
    let server = HookServer::start();
    let daemon = daemon(hook("hook", &server.url("/"), "timeout = \"1h\""));
    for reply in [Reply::Endless(200), Reply::Stuck(200), Reply::Endless(404), Reply::Stuck(404)] {
        server.order(reply);
        run_for(&daemon, "hook", &["true"]);
    }
    wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
    assert_eq!(counts(&daemon, "hook").1, 2);
    assert_eq!(server.requests().len(), 5);
    let memory = daemon.status().memory_bytes;
    assert!(memory < 64 << 20, "{memory} bytes");
}

#[test]
fn r51_hanging_channel_delays_neither_tasks_nor_other_channels() {
    let (slow, good) = (HookServer::start(), HookServer::start());
    slow.order(Reply::Silence);
    let config = hook("slow", &slow.url("/"), "timeout = \"1h\"") + &hook("good", &good.url("/"), "");
    let mut daemon = daemon(format!("{config}[limits]\nchannel_queue = 2\n"));
    run_for(&daemon, "slow", &["true"]);
    slow.wait_count(1);
    for _ in 0..5 {
        run_for(&daemon, "slow", &["true"]);
        wait_for_notice(&good, run_for(&daemon, "good", &["true"]));
    }
    // One notice is being sent and one is queued.
    let status = daemon.channel("slow");
    assert_eq!((status.queued, status.sent, status.dropped), (2, 0, 4));
    wait::for_line(&log(&daemon), "a notice was dropped: its queue is full");
    assert_eq!(counts(&daemon, "good").2, 0);
    // Nor does a dead server delay the end of the daemon.
    assert!(daemon.stop().success());
    wait::for_line(&log(&daemon), "the daemon ends before its notices are delivered");
    assert_eq!(slow.requests().len(), 1);
}

#[test]
fn notices_queued_before_reload_go_to_old_server() {
    let (old, new) = (HookServer::start(), HookServer::start());
    old.order(Reply::status(200).held());
    let daemon = daemon(hook("hook", &old.url("/"), ""));
    let before: Vec<_> = (0..3).map(|_| run_for(&daemon, "hook", &["true"])).collect();
    old.wait_count(1);
    daemon.write_config(&(hook("hook", &new.url("/"), "") + "[limits]\nchannel_queue = 4\n"));
    daemon.run(&["daemon", "reload"]).success();
    new.order(Reply::status(200).held());
    let after = run_for(&daemon, "hook", &["true"]);
    wait_for_notice(&new, after);
    // Notices queued for the old server count towards the limit, too.
    assert_eq!(daemon.channel("hook").queued, 4);
    run_for(&daemon, "hook", &["true"]);
    assert_eq!(counts(&daemon, "hook"), (0, 0, 1));
    old.release(1);
    let received: Vec<_> = old.wait_count(3).iter().map(|request| notice(request).task.id).collect();
    assert_eq!(received, before);
    new.release(1);
    wait_for_notice(&new, run_for(&daemon, "hook", &["true"]));
    wait::poll_until("the end of its queue", || (daemon.channel("hook").queued == 0).then_some(()));
    // A channel that is gone from the configuration gets no notices, and is listed because it has lost one.
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    let channels = daemon.status().channels;
    let [gone] = &channels[..] else { panic!("{channels:?}") };
    assert_eq!((&*gone.name, &*gone.kind, gone.queued, gone.dropped), ("hook", "gone", 0, 1));
    assert!(daemon.run(&["daemon", "status"]).success().stdout_text().contains("hook (gone): "));
}

#[test]
fn r51_removed_channel_without_losses_is_no_longer_listed() {
    let server = HookServer::start();
    let daemon = daemon(hook("hook", &server.url("/"), ""));
    wait_for_notice(&server, run_for(&daemon, "hook", &["true"]));
    wait::poll_until("the end of its queue", || (daemon.channel("hook").queued == 0).then_some(()));
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    assert!(daemon.status().channels.is_empty());
}

#[test]
fn daemon_stop_waits_for_deliverable_notices() {
    let server = HookServer::start();
    server.order(Reply::status(200).held());
    let mut daemon = daemon(hook("hook", &server.url("/"), "") + "[grace]\ncancel = \"1h\"\n");
    let ids: Vec<_> = (0..3).map(|_| run_for(&daemon, "hook", &["true"])).collect();
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let params = SubmitParams {
        shell: Some("trap '' TERM; echo ready; read x <gate".into()),
        channel: Some("hook".to_owned()),
        ..daemon.params()
    };
    let cancelled = daemon.submit_with(&params).id;
    daemon.wait_running(cancelled);
    daemon.wait_output(cancelled, "ready");
    server.wait_count(1);
    let log = log(&daemon);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait::for_line(&log, "shutting down");
            server.release(1);
            server.wait_count(3);
            // Channels get only a short time after the last task's end.
            wait::for_reader(&gate, "\n");
        });
        assert!(daemon.stop().success());
    });
    let received: Vec<_> = server.requests().iter().map(|request| notice(request).task.id).collect();
    assert_eq!(received, [ids, vec![cancelled]].concat());
}

/// Otherwise they would delay an upgrade for as long as the server is gone.
#[test]
fn r122_notices_of_removed_channel_are_not_retried() {
    let port = ClosedPort::new();
    let daemon = daemon(hook("gone", &format!("http://{}/", port.address()), ""));
    let params = || SubmitParams {
        argv: Some(vec!["true".into()]),
        channel: Some("gone".to_owned()),
        ..daemon.params()
    };
    for _ in 0..10 {
        daemon.submit_with(&params());
    }
    wait::poll_until("a try", || daemon.channel("gone").retry);

    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();

    let is_over = |channel: &ChannelStatus| channel.kind == "gone" && channel.queued == 0;
    let failed = wait::poll_until("the end of its notices", || {
        Some(daemon.channel("gone")).filter(is_over).map(|channel| channel.failed)
    });
    upgrade(&daemon);
    assert_eq!(daemon.channel("gone").failed, failed, "they are still known to be lost");
}
