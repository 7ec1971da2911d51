//! Inboxes: notices to a parent session stay until they are acknowledged (R55), on the wire and by `bgctl`.

use std::io::{self, BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdout, Stdio};

use bgd_shared::client::Client;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::message::error_line;
use bgd_shared::notice::{InboxItem, NoticeKind, Part};
use bgd_shared::request::{
    ClearParams, DaemonStatusOf, DaemonUpgrade, InboxAck, InboxAckParams, InboxAckResult, InboxList,
    InboxListParams, InboxRead, InboxReadParams, InboxReadResult, NoParams, SessionEnd, SessionEndParams,
    TaskClear, UpgradeParams,
};
use bgd_shared::task::Status;
use bgd_tests::{FakeDaemon, Raw, Relay, TestDaemon, bgctl_path, wait};

use crate::no_answer::Stopped;

fn read(daemon: &TestDaemon, params: &InboxReadParams) -> InboxReadResult {
    let params = InboxReadParams { session: "s".into(), ..params.clone() };
    daemon.client().call::<InboxRead>(&params).expect("inbox.read")
}

fn acknowledge(daemon: &TestDaemon, upto: u64) -> InboxAckResult {
    daemon
        .client()
        .call::<InboxAck>(&InboxAckParams { session: "s".into(), upto, ..InboxAckParams::default() })
        .expect("inbox.ack")
}

fn done(daemon: &TestDaemon, line: &str) -> TaskId {
    let id = daemon.submit_in("s", line);
    daemon.block(&[id]);
    id
}

/// Returns how many items the inbox has lost, and how many it still has.
fn lost_and_left(daemon: &TestDaemon) -> (u64, usize) {
    let inbox = read(daemon, &InboxReadParams::default());
    (inbox.lost, inbox.items.len())
}

/// Returns the tasks that the inbox has notices about.
fn notified_tasks(daemon: &TestDaemon) -> Vec<TaskId> {
    daemon.inbox("s").into_iter().map(|item| item.notice.task.id).collect()
}

/// A running `bgctl inbox`.
struct Reader {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Reader {
    fn start(daemon: &TestDaemon, args: &[&str]) -> Self {
        let mut bgctl = daemon.bgctl(&[&["inbox", "--session", "s"], args].concat());
        bgctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bgctl.spawn().expect("bgctl");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> InboxItem {
        serde_json::from_str(&self.lines.next().expect("a line").expect("a line")).expect("an item")
    }

    fn kill(self) {
        self.killed();
    }

    /// Kills it and returns its stderr.
    fn killed(mut self) -> String {
        self.child.kill().unwrap();
        self.ended().1
    }

    /// Returns its exit code and stderr.
    fn ended(self) -> (Option<i32>, String) {
        let Self { mut child, lines } = self;
        drop(lines);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (child.wait().unwrap().code(), said)
    }
}

#[test]
fn r55_completion_reaches_inbox_with_or_without_blocked_client() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let alone = daemon.submit_in("s", "echo alone");
    watch.until(|event| event.task.id == alone && event.kind.is_terminal());
    let awaited = done(&daemon, "echo awaited; exit 3");
    let looked_at = done(&daemon, "echo looked at");
    daemon.output(looked_at);
    let cancelled = daemon.submit_in("s", "sleep 1000");
    daemon.cancel(&[cancelled]);
    daemon.submit_in("other", "true");
    let items = daemon.inbox("s");
    let kinds: Vec<_> = items.iter().map(|item| (item.notice.task.id, item.notice.kind)).collect();
    assert_eq!(
        kinds,
        [
            (alone, NoticeKind::Completed),
            (awaited, NoticeKind::Failed),
            (looked_at, NoticeKind::Completed),
            (cancelled, NoticeKind::Cancelled)
        ]
    );
    let notice = &items[0].notice;
    assert_eq!((notice.key.clone(), notice.resume, notice.active), (format!("{alone}/1"), false, Some(0)));
    let result = notice.result.as_ref().unwrap();
    assert_eq!((result.text.as_str(), result.bytes, result.part), ("alone\n", 6, Part::All));
    assert!(notice.title.starts_with(&format!("[BACKGROUND TASK COMPLETED] {} in ", alone.short())));
    assert!(notice.title.ends_with(": \"echo alone\""), "{}", notice.title);
    assert!(notice.text.starts_with(&notice.title) && notice.text.ends_with("\nalone"), "{}", notice.text);
    let failed = &items[1].notice;
    let expected = format!("[BACKGROUND TASK FAILED] {} exited with code 3, after ", failed.task.id.short());
    assert!(failed.title.starts_with(&expected), "{}", failed.title);
    assert!(failed.title.ends_with(": \"echo awaited; exit 3\""), "{}", failed.title);
    assert!(items.windows(2).all(|pair| pair[0].number < pair[1].number));
}

#[test]
fn item_is_returned_until_acknowledged_and_never_after() {
    let daemon = TestDaemon::start();
    let ids: Vec<TaskId> = (0..5).map(|_| done(&daemon, "true")).collect();
    let items = daemon.inbox("s");
    assert_eq!(daemon.inbox("s"), items, "again");
    assert_eq!(notified_tasks(&daemon), ids);
    let behind =
        InboxReadParams { after: Some(items[1].number), limit: Some(2), ..InboxReadParams::default() };
    let page = read(&daemon, &behind);
    assert_eq!((page.items, page.more), (items[2..4].to_vec(), true));
    let result = acknowledge(&daemon, items[1].number);
    assert_eq!((result.acknowledged, result.left), (2, 3));
    assert_eq!(notified_tasks(&daemon), ids[2..]);
    let again = acknowledge(&daemon, items[1].number);
    assert_eq!((again.acknowledged, again.left), (0, 3), "twice is as once");
    let last = done(&daemon, "true");
    assert_eq!(notified_tasks(&daemon), [&ids[2..], &[last]].concat());
    assert_eq!(acknowledge(&daemon, u64::MAX).left, 0);
    assert!(notified_tasks(&daemon).is_empty());
    let next = done(&daemon, "true");
    assert_eq!(
        notified_tasks(&daemon),
        [next],
        "a number that was not given yet acknowledges nothing to come"
    );
}

#[test]
fn notice_survives_clearing_its_task_and_goes_with_its_session() {
    let daemon = TestDaemon::start();
    let id = done(&daemon, "echo text");
    daemon.client().call::<TaskClear>(&ClearParams::default()).unwrap();
    let items = daemon.inbox("s");
    assert_eq!((items.len(), items[0].notice.task.id, items[0].notice.kind), (1, id, NoticeKind::Completed));
    let other = daemon.submit_in("other", "true");
    daemon.block(&[other]);
    daemon.client().call::<SessionEnd>(&SessionEndParams { session: "s".into() }).unwrap();
    assert!(daemon.inbox("s").is_empty(), "nobody is there any more to read it");
    assert_eq!(daemon.inbox("other").len(), 1);
}

#[test]
fn full_inbox_drops_oldest_and_reports_count() {
    let daemon = TestDaemon::builder().config("[limits]\ninbox_items = 3\n").start();
    let ids: Vec<TaskId> = (0..5).map(|_| done(&daemon, "true")).collect();
    let page = read(&daemon, &InboxReadParams::default());
    assert_eq!((notified_tasks(&daemon), page.lost), (ids[2..].to_vec(), 2));
    let inboxes = daemon.status().inboxes;
    assert_eq!((inboxes.sessions, inboxes.items, inboxes.lost), (1, 3, 2));
    let shown = daemon.run(&["inbox", "--session", "s"]).success();
    assert!(
        shown.stderr.contains("the inbox was full (limits.inbox_items), so the oldest 2 were dropped"),
        "{}",
        shown.stderr
    );
    let json = daemon.run(&["--json", "inbox", "--session", "s", "--ack"]).success();
    assert_eq!((json.stderr.as_str(), json.stdout_text().lines().count()), ("{\"lost\":2}\n", 3));
    let after = daemon.run(&["inbox", "--session", "s"]).success();
    assert_eq!((after.stderr.as_str(), after.stdout_text().as_str()), ("", ""), "that was told");
    assert_eq!(daemon.status().inboxes.lost, 2, "the count of the daemon goes on");
}

#[test]
fn each_agent_run_gets_a_notice_with_its_own_result() {
    let daemon = FakeDaemon::start(&[], "");
    let params = daemon.prompt_params("say one");
    let params = bgd_shared::request::SubmitParams { session: Some("s".into()), ..params };
    let id = daemon.submit_with(&params).id;
    daemon.ends_as(id, Status::Completed);
    daemon.resume(id, "say two");
    daemon.ends_as(id, Status::Completed);
    daemon.resume(id, "error -32603 no more");
    daemon.ends_as(id, Status::Failed);
    let items = daemon.inbox("s");
    let reported: Vec<_> = items
        .iter()
        .map(|InboxItem { notice, .. }| {
            let result = notice.result.as_ref().map(|result| result.text.as_str());
            (notice.key.clone(), notice.kind, notice.resume, result)
        })
        .collect();
    assert_eq!(
        reported,
        [
            (format!("{id}/1"), NoticeKind::Completed, false, Some("one")),
            (format!("{id}/2"), NoticeKind::Completed, true, Some("two")),
            (format!("{id}/3"), NoticeKind::Failed, true, None),
        ]
    );
    let titles: Vec<_> = items.iter().map(|item| item.notice.title.split(']').next().unwrap()).collect();
    let wanted = ["[BACKGROUND TASK COMPLETED", "[BACKGROUND RESUME COMPLETED", "[BACKGROUND RESUME FAILED"];
    assert_eq!(titles, wanted);
}

#[test]
fn agent_question_notice_contains_the_answer_command() {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let params = daemon.prompt_params("ask Run make?");
    let params = bgd_shared::request::SubmitParams { session: Some("s".into()), ..params };
    let id = daemon.submit_with(&params).id;
    let wait = InboxReadParams { wait_ms: Some(60_000), ..InboxReadParams::default() };
    let asked = read(&daemon, &wait).items.remove(0).notice;
    assert_eq!((asked.kind, asked.key), (NoticeKind::NeedsInput, format!("{id}/1/question-1")));
    let command = asked.text.lines().find(|line| line.starts_with("bgctl answer ")).expect("how to answer");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    daemon.run(&words).success();
    daemon.ends_as(id, Status::Completed);
    assert_eq!(notified_tasks(&daemon), [id, id]);
}

#[test]
fn new_item_wakes_waiter_without_polling() {
    let daemon = TestDaemon::start();
    let mut strace = daemon.bgctl(&[]);
    let log = daemon.home().join("calls");
    let mut traced = std::process::Command::new("strace");
    traced.args(["-e", "trace=poll,ppoll", "-o"]).arg(&log).arg(bgctl_path());
    traced.args(["inbox", "--session", "s", "--wait", "none", "--ack"]).env_clear();
    traced.envs(strace.env("TERM", "dumb").get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = traced.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("strace");
    // Checking, as it connects, whether the daemon's process has ended does not wait.
    let looks = |line: &str| line.contains("], 1, 0") || line.contains("tv_sec=0, tv_nsec=0");
    let sleeps = |line: &&str| line.contains("events=POLLIN}") && !looks(line);
    wait::for_change(&log, || {
        std::fs::read_to_string(&log).ok().filter(|text| text.lines().any(|line| sleeps(&line)))
    });
    // It sleeps in that call, and no other work is going on.
    let id = done(&daemon, "echo woken");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("[BACKGROUND TASK COMPLETED]") && text.ends_with("\nwoken\n"), "{text}");
    assert!(text.contains(&format!("ID {id}")), "{text}");
    let calls = std::fs::read_to_string(&log).unwrap();
    let sleeps: Vec<&str> = calls.lines().filter(sleeps).collect();
    assert_eq!(sleeps.len(), 1, "{calls}");
    assert!(sleeps[0].contains(", -1)") || sleeps[0].contains("NULL"), "{calls}");
    assert!(notified_tasks(&daemon).is_empty(), "it was acknowledged");
}

#[test]
fn wait_ends_with_first_item_or_timeout() {
    let daemon = TestDaemon::start();
    let args = ["inbox", "--session", "s", "--wait"];
    let outcome = daemon.run(&[&args[..], &["1ms"]].concat()).expect_code(75);
    assert_eq!((outcome.stdout_text(), outcome.stderr), (String::new(), String::new()));
    daemon.run(&["inbox", "--session", "s"]).success();
    let id = done(&daemon, "true");
    for wait in ["0", "1h", "none"] {
        let there = daemon.run(&[&args[..], &[wait, "--json"]].concat()).success();
        assert_eq!(there.json::<InboxItem>().notice.task.id, id, "what is there is not waited for");
    }
    let mut raw = bgd_tests::Raw::connect(daemon.socket());
    let params = serde_json::json!({"session": "nobody", "wait_ms": 1});
    let answer = raw.call(1, "inbox.read", &params);
    assert_eq!(answer["result"]["items"], serde_json::json!([]));
}

#[test]
fn new_item_wakes_every_waiter_of_its_session() {
    let daemon = TestDaemon::start();
    let mut clients = [daemon.client(), daemon.client(), daemon.client()];
    let params =
        InboxReadParams { session: "s".into(), wait_ms: Some(3_600_000), ..InboxReadParams::default() };
    let calls: Vec<u64> =
        clients.iter_mut().map(|client| client.send::<InboxRead>(&params, &[]).unwrap()).collect();
    let other = InboxReadParams { session: "other".into(), ..params };
    let mut stranger = daemon.client();
    let strange = stranger.send::<InboxRead>(&other, &[]).unwrap();
    // The replies show that the daemon has already received the reads before them.
    for client in clients.iter_mut().chain([&mut stranger]) {
        client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    }
    let id = done(&daemon, "true");
    for (client, call) in clients.iter_mut().zip(calls) {
        let items = client.answer::<InboxRead>(call).unwrap().items;
        assert_eq!(items.into_iter().map(|item| item.notice.task.id).collect::<Vec<_>>(), [id]);
    }
    let mine = daemon.submit_in("other", "true");
    let items = stranger.answer::<InboxRead>(strange).unwrap().items;
    assert_eq!(items.into_iter().map(|item| item.notice.task.id).collect::<Vec<_>>(), [mine]);
}

#[test]
fn follow_prints_each_item_once_and_survives_daemon_restarts() {
    let mut daemon = TestDaemon::start();
    let early = done(&daemon, "true");
    let mut plain = Reader::start(&daemon, &["--follow", "--json"]);
    let mut limited = Reader::start(&daemon, &["--follow", "--json", "--limit", "3"]);
    assert_eq!((plain.next().notice.task.id, limited.next().notice.task.id), (early, early));
    for _ in 0..2 {
        let id = done(&daemon, "true");
        assert_eq!((plain.next().notice.task.id, limited.next().notice.task.id), (id, id));
    }
    assert_eq!(limited.ended().0, Some(0), "so many, and no more");
    for _ in 0..20 {
        let id = done(&daemon, "true");
        assert_eq!(plain.next().notice.task.id, id);
    }
    assert_eq!(notified_tasks(&daemon).len(), 23, "nobody has acknowledged anything");
    // The next daemon numbers from 1 again, and unacknowledged items are gone.
    let mut words = Reader::start(&daemon, &["--follow"]);
    words.lines.next().unwrap().unwrap();
    for _ in 0..2 {
        daemon.restart();
        let id = done(&daemon, "true");
        assert_eq!(plain.next().notice.task.id, id);
        assert!(words.lines.any(|line| line.unwrap().contains(&id.to_string())), "{id}");
    }
    let instance = daemon.status().instance;
    let said = plain.killed();
    assert!(
        said.lines().count() == 2 && said.contains(&format!("{{\"instance\":\"{instance}\"}}\n")),
        "{said}"
    );
    let said = words.killed();
    assert_eq!(said.matches("the daemon was restarted; unacknowledged notifications are lost").count(), 2);
}

/// Returns the next connection over which a request comes, with the request.
fn asked(listener: &UnixListener) -> (UnixStream, String) {
    loop {
        let (stream, _) = wait::poll_until("a connection", || listener.accept().ok());
        stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        let mut line = String::new();
        // Others only look whether somebody listens.
        if BufReader::new(&stream).read_line(&mut line).unwrap() > 0 {
            return (stream, line);
        }
    }
}

#[test]
fn follow_goes_on_with_a_next_daemon_that_is_full_at_first() {
    let mut daemon = TestDaemon::start();
    let early = done(&daemon, "true");
    let mut reader = Reader::start(&daemon, &["--follow", "--json", "--limit", "2"]);
    assert_eq!(reader.next().notice.task.id, early);
    // First, as the client waits for an answer only a few seconds.
    let next = TestDaemon::start();
    let id = done(&next, "true");
    daemon.stop();
    let listener = UnixListener::bind(daemon.socket()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut stream, _) = asked(&listener);
    let full =
        RpcError::new(ErrorKind::TooManyConnections, "the daemon has reached its limit of connections");
    stream.write_all(&error_line(None, &full)).unwrap();
    drop(stream);
    // From now on the next daemon answers at the same socket.
    let (stream, request) = asked(&listener);
    let mut onward = UnixStream::connect(next.socket()).unwrap();
    onward.write_all(request.as_bytes()).unwrap();
    let ways = [(stream.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, stream)];
    let ways = ways.map(|(mut from, mut to)| {
        std::thread::spawn(move || {
            // It ends with either side.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        })
    });
    assert_eq!(reader.next().notice.task.id, id);
    let (code, said) = reader.ended();
    assert!(code == Some(0) && !said.contains("has ended"), "{code:?}: {said}");
    for way in ways {
        way.join().unwrap();
    }
}

#[test]
fn follow_goes_on_once_full_daemon_that_still_greets_has_room() {
    for durable in [false, true] {
        let config = format!("durable = {durable}\n[limits]\nconnections = 4\n");
        let daemon = TestDaemon::builder().config(config).start();
        let relay = Relay::start(daemon.home(), daemon.socket());
        // Beside it a daemon notes whether it is durable.
        let [note, noted] =
            [relay.socket(), daemon.socket()].map(|socket| format!("{}.lock", socket.display()));
        symlink(noted, note).unwrap();
        let early = done(&daemon, "true");
        let socket = relay.socket().to_str().unwrap();
        let mut reader = Reader::start(&daemon, &["--follow", "--socket", socket]);
        assert!(reader.lines.any(|line| line.unwrap().contains(&early.to_string())));
        relay.hold();
        let late = done(&daemon, "true");
        let others = [(); 4].map(|()| Raw::served(daemon.socket()));
        relay.release();
        let mut said = BufReader::new(reader.child.stderr.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().ends_with("trying again until it has room")), "{durable}");
        drop(others);
        assert!(reader.lines.any(|line| line.unwrap().contains(&late.to_string())), "{durable}");
        reader.child.kill().unwrap();
        reader.child.wait().unwrap();
        assert_eq!(said.count(), 0, "it says so once");
    }
}

#[test]
fn follow_exits_with_its_reader_while_no_daemon_runs() {
    let mut daemon = TestDaemon::start();
    let id = done(&daemon, "true");
    let mut reader = Reader::start(&daemon, &["--follow", "--json"]);
    assert_eq!(reader.next().notice.task.id, id);
    daemon.stop();
    assert_eq!(reader.ended().0, Some(141), "nobody reads it");
    assert!(!daemon.socket().exists(), "it has started none");
}

#[test]
fn follow_acknowledges_and_survives_sigstop_of_the_daemon() {
    let daemon = TestDaemon::start();
    let mut acks = Reader::start(&daemon, &["-f", "--json", "--ack"]);
    for _ in 0..20 {
        let id = done(&daemon, "true");
        assert_eq!(acks.next().notice.task.id, id);
    }
    // The daemon is stopped while the reader waits.
    drop(Stopped::now(&daemon));
    let last = done(&daemon, "true");
    assert_eq!(acks.next().notice.task.id, last);
    // The next item is printed only once this one has been acknowledged.
    let behind = done(&daemon, "true");
    assert_eq!(acks.next().notice.task.id, behind);
    assert!(!notified_tasks(&daemon).contains(&last));
    acks.kill();
}

#[test]
fn unread_notices_are_never_acknowledged() {
    let daemon = TestDaemon::start();
    let id = done(&daemon, "echo text");
    for args in [&["inbox", "--ack"][..], &["inbox", "--ack", "--json"], &["inbox", "--ack", "--wait", "1h"]]
    {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut bgctl = daemon.bgctl(&[args, &["--session", "s"]].concat());
        let status = bgctl.stdin(Stdio::null()).stdout(writer).status().unwrap();
        assert_eq!(status.code(), Some(141));
        assert_eq!(notified_tasks(&daemon), [id]);
    }
    let mut full = daemon.bgctl(&["inbox", "--ack", "--session", "s"]);
    full.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::null());
    assert_eq!(full.status().unwrap().code(), Some(70));
    // What it reserved is free again as soon as the daemon has seen its end.
    wait::poll_until("the notice", || (notified_tasks(&daemon) == [id]).then_some(()));

    let mut follower = Reader::start(&daemon, &["--follow", "--ack", "--json"]);
    follower.next();
    let (code, said) = follower.ended();
    assert_eq!((code, said.as_str()), (Some(141), ""), "it ends with its reader, though nothing comes");
    let next = done(&daemon, "true");
    assert_eq!(notified_tasks(&daemon), [next]);
}

#[test]
fn long_inbox_is_returned_in_pages() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 8").start();
    let ids: Vec<TaskId> = (0..250).map(|_| daemon.submit_in("s", ":")).collect();
    daemon.block(&ids);
    let numbers = |args: &[&str]| -> Vec<u64> {
        let outcome = daemon.run(&[&["--json", "inbox", "--session", "s"], args].concat()).success();
        let text = outcome.stdout_text();
        text.lines().map(|line| serde_json::from_str::<InboxItem>(line).unwrap().number).collect()
    };
    let all = numbers(&[]);
    assert_eq!(all.len(), 250);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(numbers(&["--limit", "120"]), all[..120]);
    assert_eq!(numbers(&["--limit", "120", "--ack"]), all[..120]);
    assert_eq!(numbers(&["--ack"]), all[120..]);
    assert!(numbers(&[]).is_empty());
}

#[test]
fn notice_text_has_no_control_characters_and_blank_lines_between_notices() {
    let daemon = TestDaemon::start();
    done(&daemon, "printf '\\033[2Jred\\007\\r\\n'");
    done(&daemon, "exit 3");
    let text = daemon.run(&["inbox", "--session", "s"]).success().stdout_text();
    assert!(!text.contains(['\x1b', '\x07', '\r']), "{text:?}");
    let (first, second) = text.split_once("\n\n[BACKGROUND TASK FAILED]").expect("two notices");
    assert!(first.starts_with("[BACKGROUND TASK COMPLETED]") && first.contains("[2Jred"), "{text}");
    assert!(second.contains("exit code 3") && second.ends_with('\n') && !second.ends_with("\n\n"), "{text}");
    assert!(text.contains("no other task of this session is active"), "{text}");
}

#[test]
fn all_sessions_flag_shows_inboxes_one_after_another() {
    let daemon = TestDaemon::start();
    let all = |args: &[&str]| daemon.run(&[&["inbox", "--all-sessions", "--json"], args].concat()).success();
    assert_eq!(all(&[]).stdout_text(), "");
    let sessions = ["tty:/dev/pts/4@1", "b", "a"];
    let end_task = |session: &str| {
        let id = daemon.submit_in(session, "true");
        daemon.block(&[id]);
        id
    };
    let [first, second, third] = sessions.map(end_task);
    let later = end_task(sessions[0]);
    let shown = |args: &[&str]| -> Vec<TaskId> {
        let text = all(args).stdout_text();
        let items = text.lines().map(|line| serde_json::from_str::<InboxItem>(line).expect("an item"));
        items.map(|item| item.notice.task.id).collect()
    };
    assert_eq!(shown(&[]), [first, later, second, third]);
    assert_eq!(shown(&["--limit", "3"]), [first, later, second]);
    assert_eq!(shown(&["--limit", "3", "--ack"]), [first, later, second]);
    assert_eq!(shown(&[]), [third], "what was printed is acknowledged, wherever it was");
    let mut client = daemon.client();
    let page = |client: &mut Client, after| {
        let params = InboxListParams { after: Some(after), limit: Some(1) };
        client.call::<InboxList>(&params).unwrap()
    };
    end_task("c");
    let one = page(&mut client, 0);
    assert!(one.more && one.inboxes.len() == 1 && one.inboxes[0].session == "a", "{one:?}");
    let two = page(&mut client, one.inboxes[0].oldest);
    assert!(!two.more && two.inboxes[0].session == "c" && two.inboxes[0].items == 1, "{two:?}");
    for limit in [0, 101] {
        let params = InboxListParams { after: None, limit: Some(limit) };
        assert!(client.call::<InboxList>(&params).unwrap_err().to_string().contains("1 to 100"));
    }
    daemon.run(&["inbox", "--all-sessions", "--follow"]).expect_code(2);
}

#[test]
fn wait_returns_one_item_at_a_time_by_default() {
    let daemon = TestDaemon::start();
    let ids = [done(&daemon, "echo one"), done(&daemon, "echo two"), done(&daemon, "echo three")];
    let next = |args: &[&str]| -> Vec<TaskId> {
        let args = [&["inbox", "--session", "s", "--json", "--wait", "1h"], args].concat();
        let text = daemon.run(&args).success().stdout_text();
        let items = text.lines().map(|line| serde_json::from_str::<InboxItem>(line).expect("an item"));
        items.map(|item| item.notice.task.id).collect()
    };
    assert_eq!(next(&[]), [ids[0]]);
    assert_eq!(next(&["--ack"]), [ids[0]]);
    assert_eq!(notified_tasks(&daemon), ids[1..], "only what was printed is acknowledged");
    assert_eq!(next(&["--limit", "5", "--ack"]), ids[1..]);
}

#[test]
fn r125_count_of_lost_items_survives_kills_stops_and_upgrades_until_acknowledged() {
    let config = "durable = true\n[limits]\ninbox_items = 2\n";
    let mut daemon = TestDaemon::builder().config(config).start();
    for _ in 0..5 {
        done(&daemon, "true");
    }
    assert_eq!(lost_and_left(&daemon), (3, 2));
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    assert_eq!(lost_and_left(&daemon), (3, 2), "after an upgrade");
    daemon.kill9();
    daemon.launch();
    assert_eq!(lost_and_left(&daemon), (3, 2), "after a kill");
    done(&daemon, "true");
    assert_eq!(lost_and_left(&daemon), (4, 2), "another one counts");
    daemon.restart();
    assert_eq!(lost_and_left(&daemon), (4, 2), "after a stop");
    acknowledge(&daemon, u64::MAX);
    daemon.restart();
    assert_eq!(lost_and_left(&daemon), (0, 0), "the reader knows of the loss");
}
