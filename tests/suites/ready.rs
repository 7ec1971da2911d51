//! R110: when a task is ready, by every kind of readiness check.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::{After, Condition, Retry};
use bgd_tests::shared::request::{
    BlockMode, BlockParams, BlockResult, BlockUntil, Stdin, SubmitParams, TaskBlock, TaskSubmit, TerminalSize,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::upgrades::in_time;
use bgd_tests::user::must_be_root;
use bgd_tests::{TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::Signal;

use super::fault_watches::without_inotify;

/// A daemon with gates at which its tasks wait by reading a line.
fn gated() -> TestDaemon {
    let daemon = TestDaemon::start();
    make_gates(&daemon);
    daemon
}

/// Like [`gated`], with a proxy in the environment that does not exist.
fn gated_behind_a_proxy() -> TestDaemon {
    let names = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
    let builder = TestDaemon::builder();
    let daemon =
        names.into_iter().fold(builder, |builder, name| builder.env(name, "http://127.0.0.1:1")).start();
    make_gates(&daemon);
    daemon
}

/// Each gate serves one task at a time, once: a second read may still find it open.
fn make_gates(daemon: &TestDaemon) {
    for name in ["gate", "end"] {
        mkfifo(&daemon.home().join(name), Mode::S_IRWXU).unwrap();
    }
}

fn open_gate(daemon: &TestDaemon, name: &str) {
    wait::for_reader(&daemon.home().join(name), "go on\n");
}

fn shell(daemon: &TestDaemon, line: &str, ready: &str) -> SubmitParams {
    let ready = Some(ready.parse().unwrap());
    SubmitParams { shell: Some(line.into()), ready, ..daemon.params() }
}

/// Waits until tasks are ready or have ended.
fn until_ready(daemon: &TestDaemon, ids: &[TaskId]) -> BlockResult {
    let ids = ids.iter().copied().map(Into::into).collect();
    let params = BlockParams { ids, timeout_ms: None, until: BlockUntil::Ready, ..BlockParams::default() };
    daemon.client().call::<TaskBlock>(&params).unwrap()
}

/// Asserts that a task at the gate is not ready before the gate opens, is ready after that, and continues to run.
#[track_caller]
fn becomes_ready_behind_the_gate(daemon: &TestDaemon, id: TaskId) -> Task {
    let mut watch = daemon.watch();
    daemon.wait_running(id);
    assert_eq!(daemon.task(id).ready_at, None);
    open_gate(daemon, "gate");
    let is_news = |kind: EventKind| kind == EventKind::Ready || kind.is_terminal();
    let event = watch.until(|event| event.task.id == id && is_news(event.kind));
    assert_eq!((event.kind, event.task.status), (EventKind::Ready, Status::Running));
    assert_eq!(event.task.ready_at, Some(event.at));
    let blocked = until_ready(daemon, &[id]);
    assert_eq!((&*blocked.active, &*blocked.finished, blocked.timed_out), (&[id][..], &[][..], false));
    assert_eq!(blocked.tasks[0].ready_at, event.task.ready_at);
    event.task
}

const LINE: &str = "line:^Listening on \\d+$";

#[test]
fn r110_matching_output_line_makes_task_ready() {
    let daemon = gated();
    let says = "echo 'Not Listening on 80'; printf 'Listening on '; read x < gate; echo 8080";
    let id = daemon.submit_with(&shell(&daemon, &format!("{says}; exec sleep 1000"), LINE)).id;
    wait::for_bytes(daemon.task(id).output.path.as_ref(), 31);
    becomes_ready_behind_the_gate(&daemon, id);

    let on_stderr = format!("echo to stdout; ({says}) >&2; exec sleep 1000");
    let params = SubmitParams { split: true, ..shell(&daemon, &on_stderr, LINE) };
    becomes_ready_behind_the_gate(&daemon, daemon.submit_with(&params).id);

    let in_colours =
        "read x < gate; printf '\\033[32mListening\\033[0m on \\033[1m80\\033[0m\\n'; exec sleep 1000";
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    let params = SubmitParams { pty, ..shell(&daemon, in_colours, LINE) };
    becomes_ready_behind_the_gate(&daemon, daemon.submit_with(&params).id);
}

#[test]
fn r110_matching_line_after_a_lot_of_output_is_found() {
    let daemon = gated();
    let line = "head -c 3000000 /dev/zero | tr '\\0' x; yes | head -n 300000; read x < gate; echo; echo Listening on 1";
    let id = daemon.submit_with(&shell(&daemon, &format!("{line}; exec sleep 1000"), LINE)).id;
    becomes_ready_behind_the_gate(&daemon, id);
}

#[test]
fn r110_each_attempt_becomes_ready_separately() {
    let daemon = gated();
    let mut watch = daemon.watch();
    let line = "echo Listening on 1; [ -e tried ] && exec sleep 1000; read x < end; touch tried; exit 3";
    let line = format!("[ -e tried ] && read x < gate; {line}");
    let retry = Some(Retry { times: 1, delay_ms: Some(0), max_delay_ms: None, codes: vec![], signal: false });
    let id = daemon.submit_with(&SubmitParams { retry, ..shell(&daemon, &line, LINE) }).id;
    assert!(watch.until_kind(id, EventKind::Ready).task.ready_at.is_some());
    open_gate(&daemon, "end");
    assert_eq!(watch.until_kind(id, EventKind::Retrying).task.ready_at, None);
    // The output of the first attempt is in the same file.
    assert_eq!(watch.until_kind(id, EventKind::Started).task.ready_at, None);
    becomes_ready_behind_the_gate(&daemon, id);
}

/// Returns a TCP socket that is bound to a port, but does not listen.
fn port() -> (OwnedFd, u16) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.port())
}

fn python(daemon: &TestDaemon, script: &str, socket: &OwnedFd, ready: &str) -> TaskId {
    let argv = Some(["python3", "-c", script].map(Into::into).to_vec());
    let ready = Some(ready.parse().unwrap());
    let params = SubmitParams { argv, ready, stdin: Some(Stdin::Fd), ..daemon.params() };
    daemon.client().call_with_fds::<TaskSubmit>(&params, &[socket.as_fd()]).unwrap().task.id
}

#[test]
fn r110_listening_port_makes_task_ready() {
    let daemon = gated();
    let script = "import socket; s = socket.socket(fileno=0); open('gate').readline(); s.listen(); s.accept(); \
                  open('end').readline()";
    for host in ["", "127.0.0.1:", "localhost:"] {
        let (socket, port) = port();
        let id = python(&daemon, script, &socket, &format!("tcp:{host}{port}"));
        drop(socket);
        becomes_ready_behind_the_gate(&daemon, id);
        open_gate(&daemon, "end");
        let task = daemon.block(&[id]).remove(0);
        assert_eq!(task.status, Status::Completed);
        assert!(task.ready_at.is_some(), "it was ready, and stays so");
    }
}

#[test]
fn r110_successful_http_reply_makes_task_ready_despite_proxy_settings() {
    let daemon = gated_behind_a_proxy();
    let script = r#"
import http.server, socket, threading
status = 503
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(status if self.path == "/health?deep=1" else 404)
        self.end_headers()
        open("asked", "a").write(f"{status} {self.path}\n")
server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=0)
server.socket.listen()
threading.Thread(target=server.serve_forever, daemon=True).start()
open("gate").readline()
status = int(open("status").read())
open("end").readline()
"#;
    for status in [204, 302] {
        fs::write(daemon.home().join("status"), status.to_string()).unwrap();
        let _ = fs::remove_file(daemon.home().join("asked"));
        let (socket, port) = port();
        let id = python(&daemon, script, &socket, &format!("http:http://localhost:{port}/health?deep=1"));
        drop(socket);
        // A failing answer changes nothing, however often it is repeated.
        wait::for_lines(&daemon.home().join("asked"), 2, "503 /health?deep=1");
        becomes_ready_behind_the_gate(&daemon, id);
        daemon.cancel(&[id]);
    }
}

#[test]
fn r110_existing_file_makes_task_ready() {
    let daemon = gated();
    let line = "read x < gate; mkdir -p run/deep; echo $$ > run/deep/pid; exec sleep 1000";
    let id = daemon.submit_with(&shell(&daemon, line, "file:run/deep/pid")).id;
    becomes_ready_behind_the_gate(&daemon, id);

    let path = daemon.home().join("run/socket");
    let line = "touch run/other; read x < gate; mv run/other run/socket; exec sleep 1000";
    let id = daemon.submit_with(&shell(&daemon, line, &format!("file:{}", path.display()))).id;
    wait::for_file(&daemon.home().join("run/other"));
    becomes_ready_behind_the_gate(&daemon, id);
    // A file that already exists needs no wait.
    let id = daemon.submit_with(&shell(&daemon, "exec sleep 1000", "file:run/socket")).id;
    assert!(until_ready(&daemon, &[id]).tasks[0].ready_at.is_some());
}

#[test]
fn r110_file_makes_task_ready_when_its_folder_is_exchanged() {
    let daemon = gated();
    let home = daemon.home();
    // A link to the folder, and a folder above it.
    for (ready, begin, exchange) in [
        ("file:current/ready", "mkdir old new; ln -s old current", "ln -s new n; mv -T n current"),
        ("file:far/out/ready", "mkdir -p far/out; mkdir -p other/out", "mv far gone; mv other far"),
    ] {
        let line = format!(
            "read x < gate; touch new/ready; mkdir -p other/out; touch other/out/ready; {exchange}; exec sleep 1000"
        );
        let made = std::process::Command::new("sh").args(["-c", begin]).current_dir(home).status().unwrap();
        assert!(made.success());
        let id = daemon.submit_with(&shell(&daemon, &line, ready)).id;
        becomes_ready_behind_the_gate(&daemon, id);
        daemon.cancel(&[id]);
    }
}

/// Sends to the socket named in its environment, like every program with `sd_notify`.
const NOTIFY: &str = r#"
import os, socket, sys
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect(os.environ["NOTIFY_SOCKET"])
"#;

fn notify_sockets(daemon: &TestDaemon) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(daemon.socket().parent().unwrap()).unwrap().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(".notify-")).collect()
}

#[test]
fn r110_notify_message_makes_task_ready() {
    let daemon = gated();
    fs::write(daemon.home().join("notify.py"), format!("{NOTIFY}\nsender.send(sys.argv[1].encode())\n"))
        .unwrap();
    let notify = |words: &str| format!("python3 notify.py '{words}'");
    let not =
        ["STATUS=nearly", "READY=0", "xREADY=1\nREADY=11"].map(|words| format!("{} && ", notify(words)));
    let line =
        format!("{}read x < gate; {}; read x < end", not.concat(), notify("STATUS=up\nREADY=1\nMAINPID=1"));
    // The socket in the submitter's environment belongs to another service.
    let mut params = shell(&daemon, &line, "notify");
    let other = daemon.home().join("other");
    let name = |(name, _): &(Box<str>, _)| &**name != "NOTIFY_SOCKET";
    let env = params.env.take().unwrap().0.into_iter().filter(name);
    params.env = Some(env.chain([("NOTIFY_SOCKET".into(), other.as_os_str().into())]).collect());
    let id = daemon.submit_with(&params).id;
    becomes_ready_behind_the_gate(&daemon, id);
    assert_eq!(notify_sockets(&daemon).len(), 1);
    open_gate(&daemon, "end");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    wait::poll_until("the end of its socket", || notify_sockets(&daemon).is_empty().then_some(()));

    // systemd's own program, which waits until the message has been received.
    let line = "read x < gate; systemd-notify --ready --status=up; read x < end; systemd-notify --status=still; exit 4";
    let id = daemon.submit_with(&shell(&daemon, line, "notify")).id;
    becomes_ready_behind_the_gate(&daemon, id);
    open_gate(&daemon, "end");
    assert_eq!(daemon.block(&[id])[0].exit, Some(Exit::Code(4)));
}

#[test]
fn r110_notify_message_of_another_task_is_ignored() {
    let daemon = gated();
    let line = format!(
        "cat > notify.py <<'EOF'\n{NOTIFY}\nsender.send(b'READY=1')\nEOF\necho $NOTIFY_SOCKET > told.new"
    );
    let line = format!("{line}\nmv told.new told\nread x < gate\npython3 notify.py\nexec sleep 1000");
    let id = daemon.submit_with(&shell(&daemon, &line, "notify")).id;
    let path = wait::for_line(&daemon.home().join("told"), "");
    // It stays alive while the daemon inspects it, as it waits for an EOF that does not come.
    let script =
        format!("{NOTIFY}\nsender.send(b'READY=1')\nopen('sent', 'w').write('sent\\n')\nsys.stdin.read()");
    let line = format!("NOTIFY_SOCKET={path} exec python3 -c \"$SCRIPT\"");
    let mut params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let env = params.env.take().unwrap().0.into_iter();
    params.env = Some(env.chain([("SCRIPT".into(), script.into())]).collect());
    let stranger = daemon.submit_with(&params).id;
    wait::for_line(&daemon.home().join("sent"), "sent");
    wait::for_line(&daemon.state_dir().join("bgd.log"), "a process of another task says");
    becomes_ready_behind_the_gate(&daemon, id);
    daemon.cancel(&[stranger]);
}

#[test]
fn r110_task_that_is_not_ready_in_time_is_ended() {
    let config = "max_concurrent_tasks = 5\n[grace]\ncancel = \"1h\"";
    let daemon = TestDaemon::builder().config(config).start();
    in_time(|timeout| all_end_if_not_ready(&daemon, timeout));
    assert_eq!(notify_sockets(&daemon).len(), 0);
}

/// Starts tasks that never become ready. Reports whether all of them had begun before this timeout.
fn all_end_if_not_ready(daemon: &TestDaemon, timeout: Duration) -> bool {
    let line = "trap 'echo ended; exit 0' TERM; echo starting; sleep 1000 & wait";
    let signs = ["line:^Listening", "tcp:1", "http:http://127.0.0.1:1/", "file:never", "notify"];
    let ready_timeout_ms = u64::try_from(timeout.as_millis()).ok();
    let submitted = signs.map(|ready| {
        let params = SubmitParams { ready_timeout_ms, ..shell(daemon, line, ready) };
        (ready, daemon.submit_with(&params).id)
    });
    let mut have_all_begun = true;
    for (ready, id) in submitted {
        let blocked = until_ready(daemon, &[id]);
        assert_eq!(&*blocked.finished, &[id]);
        let task = &blocked.tasks[0];
        assert_eq!((task.status, task.timed_out, task.ready_at), (Status::Failed, false, None), "{ready}");
        assert_eq!(task.error, Some(format!("not ready after {}s", timeout.as_secs())));
        assert_eq!(task.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Timeout));
        have_all_begun &= daemon.output(id) == b"starting\nended\n";
        assert_eq!(task.ready.as_ref().map(ToString::to_string).as_deref(), Some(ready));
        assert_eq!(task.ready_timeout_ms, ready_timeout_ms);
    }
    have_all_begun
}

/// As when the machine has more to do than it can.
#[test]
fn r110_task_that_wrote_its_line_in_time_while_its_daemon_stood_still_is_ready() {
    let daemon = TestDaemon::start();
    in_time(|limit| {
        for name in ["go", "done"] {
            let _ = fs::remove_file(daemon.home().join(name));
        }
        let line = "until [ -e go ]; do sleep 0.02; done; echo up; echo >done; exec sleep 1000";
        let ready_timeout_ms = u64::try_from(limit.as_millis()).ok();
        let begun = Instant::now();
        let id =
            daemon.submit_with(&SubmitParams { ready_timeout_ms, ..shell(&daemon, line, "line:^up$") }).id;
        let runs = daemon.wait_running_in_time(id).is_some();
        let running = Instant::now();
        let process = daemon.process();
        process.signal(Signal::STOP).unwrap();
        fs::write(daemon.home().join("go"), "").unwrap();
        if runs {
            wait::for_file(&daemon.home().join("done"));
        }
        let is_in_time = runs && begun.elapsed() < limit;
        if is_in_time {
            // Much too late even for a daemon that has little time.
            let late = limit + Duration::from_secs(2);
            wait::poll_until("the time to pass", || (running.elapsed() > late).then_some(()));
        }
        process.signal(Signal::CONT).unwrap();
        let blocked = until_ready(&daemon, &[id]);
        assert!(!is_in_time || blocked.tasks[0].ready_at.is_some(), "{blocked:?}");
        daemon.cancel(&[id]);
        is_in_time
    });
}

#[test]
fn r110_task_that_ends_first_was_never_ready() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    for (line, status) in [("exit 3", Status::Failed), ("exit 0", Status::Completed)] {
        for ready in ["line:^Listening", "tcp:1", "file:never", "notify"] {
            let id = daemon.submit_with(&shell(&daemon, line, ready)).id;
            let blocked = until_ready(&daemon, &[id]);
            assert_eq!((blocked.tasks[0].status, blocked.tasks[0].ready_at), (status, None));
            let first = watch.until(|event| event.task.id == id && event.kind != EventKind::Output);
            assert_eq!(first.kind, EventKind::Submitted);
            let end = watch.until(|event| {
                assert_ne!(event.kind, EventKind::Ready);
                event.kind.is_terminal()
            });
            assert_eq!(end.task.id, id);
        }
    }
    assert_eq!(notify_sockets(&daemon).len(), 0);
}

/// Whether it was ready decides whether the tasks after it run.
#[test]
fn r110_task_that_becomes_ready_and_ends_at_once_was_ready() {
    let daemon = TestDaemon::start();
    fs::write(daemon.home().join("notify.py"), format!("{NOTIFY}\nsender.send(b'READY=1')\n")).unwrap();
    let mut watch = daemon.watch();
    let is_so = |params: &SubmitParams, watch: &mut bgd_tests::Watch| {
        let id = daemon.submit_with(params).id;
        let is_news = |kind: EventKind| kind == EventKind::Ready || kind.is_terminal();
        let first = watch.until(|event| event.task.id == id && is_news(event.kind));
        assert_eq!(first.kind, EventKind::Ready, "{params:?}");
        let end = watch.until(|event| event.task.id == id && event.kind.is_terminal());
        assert_eq!(end.task.ready_at, first.task.ready_at);
    };
    let says = "echo Listening on 1";
    for round in 0..5 {
        is_so(&shell(&daemon, says, LINE), &mut watch);
        let split = SubmitParams { split: true, ..shell(&daemon, &format!("{says} >&2"), LINE) };
        is_so(&split, &mut watch);
        let pty = Some(TerminalSize { rows: 24, cols: 80 });
        is_so(&SubmitParams { pty, ..shell(&daemon, says, LINE) }, &mut watch);
        let much = format!("head -c 3000000 /dev/zero | tr '\\0' x; echo; {says}");
        is_so(&shell(&daemon, &much, LINE), &mut watch);
        let file = format!("there-{round}");
        is_so(&shell(&daemon, &format!("touch {file}"), &format!("file:{file}")), &mut watch);
        is_so(&shell(&daemon, "python3 notify.py", "notify"), &mut watch);
        is_so(&shell(&daemon, "exec python3 notify.py", "notify"), &mut watch);
    }
}

#[test]
fn r110_concurrent_tasks_become_ready_separately() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 4").start();
    let line = |gate: &str| format!("mkfifo {gate}; read x < {gate}; echo Listening on 1; exec sleep 1000");
    let [first, second] = ["a", "b"].map(|gate| daemon.submit_with(&shell(&daemon, &line(gate), LINE)).id);
    let notify = "mkfifo c; read x < c; systemd-notify --ready; exec sleep 1000";
    let third = daemon.submit_with(&shell(&daemon, notify, "notify")).id;
    let fourth = daemon.submit_with(&shell(&daemon, "exec sleep 1000", "notify")).id;
    let open = |gate: &str| {
        let gate = daemon.home().join(gate);
        wait::for_file(&gate);
        wait::for_reader(&gate, "go on\n");
    };
    let ready = || {
        let is_ready = |id: &TaskId| daemon.task(*id).ready_at.is_some();
        [first, second, third, fourth].map(|id| is_ready(&id))
    };
    let any = |ids: &[TaskId]| {
        let ids = ids.iter().copied().map(Into::into).collect();
        let (mode, until) = (BlockMode::Any, BlockUntil::Ready);
        let params = BlockParams { ids, timeout_ms: None, mode, until, ..BlockParams::default() };
        daemon.client().call::<TaskBlock>(&params).unwrap();
    };
    open("b");
    any(&[first, second, third, fourth]);
    assert_eq!(ready(), [false, true, false, false]);
    open("c");
    any(&[first, third, fourth]);
    assert_eq!(ready(), [false, true, true, false]);
    open("a");
    until_ready(&daemon, &[first, second, third]);
    assert_eq!(ready(), [true, true, true, false]);
}

#[test]
fn r110_dependent_task_starts_when_the_server_is_ready() {
    let daemon = gated();
    let server =
        daemon.submit_with(&shell(&daemon, "read x < gate; echo Listening on 1; exec sleep 1000", LINE)).id;
    let after = |id: TaskId| SubmitParams {
        shell: Some("true".into()),
        after: vec![After { id: id.into(), condition: Condition::Ready }],
        ..daemon.params()
    };
    let tests = daemon.submit_with(&after(server)).id;
    let ready = becomes_ready_behind_the_gate(&daemon, server);
    let tested = daemon.block(&[tests]).remove(0);
    assert_eq!(tested.status, Status::Completed);
    assert!(tested.started_at >= ready.ready_at);

    let never = daemon.submit_with(&shell(&daemon, "exec sleep 1000", LINE)).id;
    let waits = daemon.submit_with(&after(never)).id;
    daemon.cancel(&[never]);
    assert_eq!(daemon.block(&[waits])[0].status, Status::Cancelled);
}

#[test]
fn r110_invalid_ready_checks_are_refused() {
    let daemon = TestDaemon::start();
    let refused = |params: &SubmitParams| {
        let error = daemon.client().call::<TaskSubmit>(params).unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
        error.to_string()
    };
    let plain = SubmitParams { shell: Some("true".into()), ..daemon.params() };
    let raw = |ready: &str| {
        let mut json = serde_json::to_value(&plain).unwrap();
        json["ready"] = ready.into();
        let line = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "task.submit", "params": json});
        let mut stream = std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["data"]["kind"], "invalid_params", "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    for (ready, what) in [
        ("soon", "not one of line:REGEX"),
        ("line:a(b", "unclosed group"),
        ("line:(?:x{1000}){1000}", "more than 1048576 bytes"),
        (&nested("(", 101, ")"), "nested parentheses/brackets (100)"),
        ("tcp:70000", "\"70000\" is not a port: give a number from 1 to 65535"),
        ("http:https://localhost/", "does not begin with http://"),
        ("file:", "the path is missing"),
        (&format!("line:{}", "x".repeat(5000)), "5005 bytes; at most 4096"),
    ] {
        let message = raw(ready);
        assert!(message.contains("ready") && message.contains(what), "{ready}: {message}");
    }
    let ready = Some("tcp:80".parse().unwrap());
    let late = SubmitParams { ready_timeout_ms: Some(5), ..plain.clone() };
    assert!(refused(&late).contains("`ready_timeout_ms` requires `ready`"));
    let never = SubmitParams { ready: ready.clone(), ready_timeout_ms: Some(0), ..plain.clone() };
    assert!(refused(&never).contains("`ready_timeout_ms` is 0"));
    let (prompt, description) = (Some("hello".into()), Some("an agent".into()));
    let agent = SubmitParams { prompt, description, ready, ..daemon.params() };
    assert!(refused(&agent).contains("`ready` requires a command, not `prompt`"));
    assert_eq!(daemon.status().summary.total(), 0, "nothing was submitted");
}

/// Returns a pattern for a character in `depth` groups that begin and end like this.
fn nested(begin: &str, depth: usize, end: &str) -> String {
    format!("line:{}L{}", begin.repeat(depth), end.repeat(depth))
}

#[test]
fn r110_pattern_with_maximum_nesting_is_matched() {
    let daemon = gated();
    let line = "read x < gate; echo Listening on 1; exec sleep 1000";
    for ready in [nested("(", 100, ")"), nested("(?:", 50, ")*"), nested("(?:", 33, "i?)*")] {
        becomes_ready_behind_the_gate(&daemon, daemon.submit_with(&shell(&daemon, line, &ready)).id);
    }
}

#[test]
fn r110_notify_socket_of_killed_daemon_is_removed_by_the_next() {
    let mut daemon = TestDaemon::start();
    // A new process holds the daemon's socket until its `exec`, so wait until the task runs.
    daemon.submit_with(&shell(&daemon, "echo >> there; exec sleep 1000", "notify"));
    wait::for_lines(&daemon.home().join("there"), 1, "");
    assert_eq!(notify_sockets(&daemon).len(), 1);
    daemon.kill9();
    assert_eq!(notify_sockets(&daemon).len(), 1);
    daemon.launch();
    assert_eq!(notify_sockets(&daemon).len(), 0);
}

#[test]
fn r110_line_and_file_make_task_ready_without_inotify_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().prelude(without_inotify()).start();
    make_gates(&daemon);
    let line = "read x < gate; touch there; echo Listening on 1; exec sleep 1000";
    for ready in [LINE, "file:there"] {
        becomes_ready_behind_the_gate(&daemon, daemon.submit_with(&shell(&daemon, line, ready)).id);
        fs::remove_file(daemon.home().join("there")).unwrap();
    }
}
