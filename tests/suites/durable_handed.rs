//! Processes handed over by other programs to a durable daemon (R126, R131): they continue when it is killed or
//! stopped, with their output and true exit codes.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use bgd_tests::handed::{Job, ended_with_open_pipe, line_of};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{HandoffStream, Stream};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{exit_of, upgrade};
use bgd_tests::user::must_be_root;
use bgd_tests::{TestDaemon, Viewer, wait};

use super::durable::ReadOnly;
use super::durable_kills::kill_keeper;

fn durable() -> TestDaemon {
    TestDaemon::durable("[limits]\noutput_bytes = \"4GiB\"")
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Stop,
}

impl End {
    const ALL: [Self; 2] = [Self::Kill, Self::Stop];

    fn of(self, daemon: &mut TestDaemon) {
        match self {
            Self::Kill => daemon.kill9(),
            Self::Stop => assert!(daemon.stop().success()),
        }
    }

    fn again(self, daemon: &mut TestDaemon) {
        self.of(daemon);
        daemon.launch();
    }
}

/// The kind of output of a handed-over process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Pipe,
    UnixSocket,
    /// A blocking one.
    TcpSocket,
}

impl To {
    const ALL: [Self; 3] = [Self::Pipe, Self::UnixSocket, Self::TcpSocket];

    /// Returns the daemon's end and that of the process.
    fn ends(self) -> (OwnedFd, OwnedFd) {
        match self {
            Self::Pipe => {
                let (reader, writer) = std::io::pipe().expect("a pipe");
                (reader.into(), writer.into())
            }
            Self::UnixSocket => {
                let (near, far) = UnixStream::pair().expect("a pair of sockets");
                (near.into(), far.into())
            }
            Self::TcpSocket => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
                let near = TcpStream::connect(listener.local_addr().expect("its address"));
                let (far, _) = listener.accept().expect("a connection");
                (near.expect("a connection").into(), far.into())
            }
        }
    }
}

fn handed(daemon: &TestDaemon, line: &str, to: To) -> (Job, TaskId) {
    let (near, far) = to.ends();
    let mut command = Command::new("sh");
    command.args(["-c", line]).stderr(far.try_clone().expect("a copy")).stdout(far);
    let job = Job::start(daemon, &mut command);
    drop(command);
    let id = job.hand_over(&mut daemon.client(), &[(HandoffStream::Stdout, near.as_fd())]).id;
    (job, id)
}

#[test]
fn r126_handed_over_process_survives_kill_and_stop() {
    for end in End::ALL {
        for to in To::ALL {
            let mut daemon = durable();
            let line = "while read word; do test $word = end && exit 7; echo \"<$word>\"; done";
            let (mut job, id) = handed(&daemon, line, to);
            job.say("one");
            wait::poll_until("it is kept", || (daemon.output(id) == b"<one>\n").then_some(()));
            end.of(&mut daemon);
            job.say("two");
            daemon.launch();
            assert_eq!(daemon.task(id).status, Status::Running, "{end:?}");
            job.say("three");
            wait::poll_until("it is kept", || {
                (daemon.output(id) == b"<one>\n<two>\n<three>\n").then_some(())
            });
            upgrade(&daemon);
            end.again(&mut daemon);
            // The process ends while no daemon runs, and its parent has reaped it.
            end.of(&mut daemon);
            job.say("four");
            job.say("end");
            job.wait_dead();
            assert_eq!(job.wait().code(), Some(7));
            daemon.launch();
            assert_eq!(exit_of(&daemon, id), Exit::Code(7), "{end:?} {to:?}");
            assert_eq!(daemon.output(id), b"<one>\n<two>\n<three>\n<four>\n");
        }
    }
}

/// Node gives a process two sockets for `stdio: 'pipe'`: with the pipes that they are drained through, these are more
/// descriptors than one message to the keeper carries.
#[test]
fn r126_handed_over_process_with_two_sockets_survives_kill_stop_and_new_keeper() {
    let mut daemon = durable();
    let [(near, far), (near_err, far_err)] = [To::UnixSocket, To::TcpSocket].map(To::ends);
    let line = "while read word; do test $word = end && exit 7; echo \"<$word>\"; echo \"[$word]\" >&2; done";
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdout(far).stderr(far_err);
    let mut job = Job::start(&daemon, &mut command);
    drop(command);
    let streams = [(HandoffStream::Stdout, near.as_fd()), (HandoffStream::Stderr, near_err.as_fd())];
    let id = job.hand_over(&mut daemon.client(), &streams).id;
    drop((near, near_err));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut say = |job: &mut Job, daemon: &TestDaemon, word: &str| {
        job.say(word);
        out.extend(format!("<{word}>\n").into_bytes());
        err.extend(format!("[{word}]\n").into_bytes());
        wait::poll_until("both streams are drained", || {
            let both = [Stream::Stdout, Stream::Stderr].map(|stream| daemon.stream(id, stream));
            (both == [out.clone(), err.clone()]).then_some(())
        });
    };
    say(&mut job, &daemon, "before");
    for end in End::ALL {
        end.again(&mut daemon);
        assert_eq!(daemon.task(id).status, Status::Running, "{end:?}");
        say(&mut job, &daemon, "again");
    }
    kill_keeper(&daemon);
    End::Kill.again(&mut daemon);
    say(&mut job, &daemon, "kept");
    upgrade(&daemon);
    say(&mut job, &daemon, "upgraded");
    job.say("end");
    job.wait_dead();
    job.wait();
    assert_eq!(exit_of(&daemon, id), Exit::Code(7));
}

fn output(daemon: &TestDaemon, id: TaskId) -> PathBuf {
    PathBuf::from(daemon.task(id).output.path)
}

#[test]
fn r126_idle_tcp_socket_delays_neither_other_outputs_nor_upgrade() {
    let mut daemon = durable();
    let line = "while read word; do test $word = end && exit 7; echo \"<$word>\"; done";
    let mut all = [To::TcpSocket, To::Pipe].map(|to| handed(&daemon, line, to));
    for (job, id) in &mut all {
        job.say("word");
        wait::poll_until("it is kept", || (daemon.output(*id) == b"<word>\n").then_some(()));
    }
    upgrade(&daemon);
    for (job, id) in &mut all {
        job.say("end");
        job.wait_dead();
        job.wait();
        assert_eq!(exit_of(&daemon, *id), Exit::Code(7));
    }
    assert!(daemon.stop().success());
}

#[test]
fn r126_kills_neither_lose_nor_repeat_drained_bytes() {
    const BYTES: u64 = 300_000_000;
    for to in To::ALL {
        let mut daemon = durable();
        let bytes = format!("seq 1000000000 | head -c {BYTES}");
        let (mut job, id) = handed(&daemon, &format!("read go; {bytes}; exit 3"), to);
        job.say("go");
        for part in 1..=8 {
            let size = || fs::metadata(output(&daemon, id)).map_or(0, |meta| meta.len());
            wait::poll_until("more of it", || (size() > part * BYTES / 10).then_some(()));
            End::Kill.again(&mut daemon);
        }
        job.wait_dead();
        job.wait();
        assert_eq!(exit_of(&daemon, id), Exit::Code(3));
        let compare = format!("{bytes} | cmp - '{}'", output(&daemon, id).display());
        let compared = Command::new("sh").args(["-c", &compare]).output().expect("sh");
        assert!(compared.status.success(), "{to:?}: {compared:?}");
        assert_eq!(daemon.task(id).output.bytes, BYTES);
    }
}

#[test]
fn r126_whole_handed_over_tree_is_cancelled_after_kill() {
    let mut daemon = durable();
    let (mut job, id) = handed(&daemon, "sleep 1000 & sleep 1000 & echo up; wait", To::Pipe);
    wait::poll_until("it is up", || (daemon.output(id) == b"up\n").then_some(()));
    End::Kill.again(&mut daemon);
    daemon.cancel(&[id]);
    job.wait_dead();
    job.wait();
    assert_eq!(daemon.block(&[id])[0].status, Status::Cancelled);
    daemon.task_processes().iter().for_each(|process| process.gone());
}

#[test]
fn r126_pipes_outliving_their_task_are_still_drained_after_kill() {
    let mut daemon = durable();
    let (id, mut writer) = ended_with_open_pipe(&daemon);
    for word in ["second\n", "third\n"] {
        daemon.kill9();
        writer.write_all(word.as_bytes()).expect("somebody has it open");
        daemon.launch();
    }
    drop(writer);
    wait::poll_until("all of it", || (daemon.output(id) == b"first\nsecond\nthird\n").then_some(()));
    assert_eq!(daemon.task(id).exit, Some(Exit::Code(3)));
    daemon.run(&["clear", &id.to_string()]).success();
}

#[test]
fn r126_handed_over_terminal_survives_kill_and_stop() {
    let mut daemon = durable();
    let line = "echo ready; while read word; do test $word = end && exit 9; echo \"<$word>\"; done";
    let (mut job, mut said, id) = Job::in_terminal(&daemon, line);
    wait::poll_until("it is ready", || (daemon.output(id) == b"ready\r\n").then_some(()));
    for (end, word) in End::ALL.into_iter().zip(["one", "two"]) {
        end.again(&mut daemon);
        let mut viewer = Viewer::attach(&daemon, id, Some((24, 80)));
        viewer.until_seen("ready");
        viewer.type_keys(id, &format!("{word}\r"));
        viewer.until_seen(&format!("<{word}>"));
    }
    let mut viewer = Viewer::attach(&daemon, id, Some((24, 80)));
    viewer.type_keys(id, "end\r");
    job.say("");
    assert_eq!(line_of(&mut said), "9");
    assert_eq!(exit_of(&daemon, id), Exit::Code(9));
    let shown = "ready\r\none\r\n<one>\r\ntwo\r\n<two>\r\nend\r\n";
    assert_eq!(String::from_utf8_lossy(&daemon.output(id)), shown);
}

#[test]
fn r130_process_handed_over_with_read_only_journal_is_followed_to_its_end_as_root() {
    must_be_root();
    let daemon = durable();
    // Answered once it is in the journal, after the changes of the start: if these can't be written, nothing may be
    // handed over.
    daemon.submitted(&["--hold", "--", "true"]);
    let read_only = ReadOnly::of(&daemon);
    // The first change that can't be written to the journal.
    let (mut job, id) = handed(&daemon, "read word; echo \"<$word>\"; exit 7", To::Pipe);
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("the journal can't be written"), "{warnings}");
    assert_eq!(daemon.task(id).status, Status::Running);
    drop(read_only);
    job.say("on");
    assert_eq!(exit_of(&daemon, id), Exit::Code(7));
    assert_eq!(daemon.output(id), b"<on>\n");
}

#[test]
fn r131_stop_leaves_handed_over_process_running_unless_asked_to_cancel() {
    let mut daemon = durable();
    let (mut job, id) = handed(&daemon, "read word; exit 5", To::Pipe);
    let stopped = daemon.run(&["daemon", "stop"]).success();
    assert_eq!(stopped.stdout_text(), "stopped; 1 task keeps running, and the next daemon finds it again\n");
    assert!(daemon.ended().success());
    daemon.launch();
    assert_eq!(daemon.task(id).status, Status::Running);
    let stopped = daemon.run(&["daemon", "stop", "--cancel"]).success();
    assert_eq!(stopped.stdout_text(), "stopped; 1 task was cancelled\n");
    assert!(daemon.ended().success());
    job.wait_dead();
    job.wait();
    daemon.launch();
    assert_eq!(daemon.task(id).status, Status::Cancelled);
}

#[test]
fn r126_replacement_keeper_takes_over_handed_over_processes() {
    let mut daemon = durable();
    let line = "while read word; do test $word = end && exit 7; echo \"<$word>\"; done";
    let mut all = To::ALL.map(|to| handed(&daemon, line, to));
    kill_keeper(&daemon);
    End::Kill.again(&mut daemon);
    for (job, id) in &mut all {
        job.say("word");
        job.say("end");
        job.wait_dead();
        job.wait();
        assert_eq!(exit_of(&daemon, *id), Exit::Code(7));
        assert_eq!(daemon.output(*id), b"<word>\n");
    }
}
