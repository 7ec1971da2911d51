//! R70: child processes of other programs are handed over while they run: what happens to their output.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bgd_shared::client::Client;
use bgd_shared::event::EventKind;
use bgd_shared::handoff;
use bgd_shared::request::{
    ClearParams, HandoffParams, HandoffStream, OutputParams, SignalParams, Stream, TaskClear, TaskOutput,
    TaskSignal,
};
use bgd_shared::task::{Exit, Origin, Output, Status};
use bgd_tests::handed::{Job, line_of, message};
use bgd_tests::user::{must_be_root, on_a_small_disk};
use bgd_tests::{Process, TestDaemon, wait};

#[test]
fn r70_handed_over_child_continues_as_the_same_process() {
    let daemon = TestDaemon::start();
    let mut watch = daemon.watch();
    let (mut job, mut reader) = Job::shell(&daemon, "echo before; read x; echo after; exit 7");
    assert_eq!(line_of(&mut reader), "before");
    let params = HandoffParams {
        description: "a build".into(),
        session: Some("s".into()),
        channel: Some("desktop".into()),
        tags: vec!["t".into()],
        ..job.params()
    };
    let streams = [(HandoffStream::Stdout, reader.as_fd())];
    let mut client = daemon.client();
    let given = handoff::hand_over_as(&mut client, &job.child, params, &streams).unwrap();
    let task = &given.task;
    assert_eq!(given.message, message(task));
    assert_eq!((task.origin, task.status, task.pid), (Origin::Handoff, Status::Running, Some(job.pid())));
    assert_eq!((task.description.as_str(), task.session.as_deref()), ("a build", Some("s")));
    assert_eq!((task.channel.as_deref(), &task.tags[..]), (Some("desktop"), &["t".to_owned()][..]));
    assert_eq!(task.argv.as_ref().unwrap()[..2], ["/bin/sh".into(), "-c".into()]);
    assert_eq!(task.cwd.as_os_str(), daemon.home().as_os_str());
    assert!(!task.foreground && !task.pty && task.started_at.unwrap() <= task.created_at);
    for kind in [EventKind::Submitted, EventKind::Started, EventKind::Backgrounded] {
        assert_eq!(watch.next_event().kind, kind);
    }
    job.say("go on");
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.exit.clone()), (Status::Failed, Some(Exit::Code(7))));
    assert_eq!(daemon.output(task.id), b"after\n");
    assert_eq!((ended.output.bytes, ended.lingering), (6, false));
    assert_eq!(job.wait().code(), Some(7), "its parent has it, too");
    assert_eq!(watch.until(|event| event.kind.is_terminal()).task, ended);
}

/// As after Ctrl-Z in a shell, which has let the job go once it is handed over.
#[test]
fn r70_stopped_child_continues_once_it_is_handed_over() {
    let daemon = TestDaemon::start();
    let (mut job, mut reader) = Job::shell(&daemon, "echo before; kill -STOP $$; echo after; exit 7");
    assert_eq!(line_of(&mut reader), "before");
    let child = Process::open(job.pid()).unwrap();
    let has_stopped = || fs::read_to_string(child.proc("stat")).unwrap().contains(") T ");
    wait::poll_until("a child that stops itself", || has_stopped().then_some(()));
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.exit, daemon.output(task.id)), (Some(Exit::Code(7)), b"after\n".to_vec()));
    assert_eq!(job.wait().code(), Some(7));
}

/// A running one may have stopped its own children on purpose.
#[test]
fn r70_handoff_of_running_child_continues_none_that_it_has_stopped() {
    let daemon = TestDaemon::start();
    let line = "sleep 1000 & kill -STOP $!; echo $!; read x; kill -KILL $!; exit 7";
    let (mut job, mut reader) = Job::shell(&daemon, line);
    let sleeper = Process::open(line_of(&mut reader).parse().unwrap()).unwrap();
    let has_stopped = || fs::read_to_string(sleeper.proc("stat")).unwrap().contains(") T ");
    wait::poll_until("a stopped process", || has_stopped().then_some(()));
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    // What was ordered at the handoff is carried out before what comes later.
    daemon
        .client()
        .call::<TaskSignal>(&SignalParams { id: task.id.into(), signal: "WINCH".into(), tree: false })
        .unwrap();
    assert!(has_stopped());
    job.say("go on");
    assert_eq!(daemon.block(&[task.id])[0].exit, Some(Exit::Code(7)));
    job.wait();
}

/// Starts a program that writes this many bytes of numbered lines.
fn numbers(bytes: u64, stdout: impl Into<Stdio>) -> Child {
    let line = format!("seq 1 100000000 | head -c {bytes}");
    Command::new("/bin/sh").args(["-c", &line]).stdout(stdout).spawn().unwrap()
}

/// Asserts that the foreground's output and the background's output add up to what was written.
#[track_caller]
fn check_whole(bytes: u64, foreground: &[u8], background: &Path) {
    let mut child = numbers(bytes, Stdio::piped());
    let mut wanted = child.stdout.take().unwrap();
    let mut got = foreground.chain(File::open(background).unwrap());
    let (mut one, mut other) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut offset = 0;
    loop {
        let count = wanted.read(&mut one).unwrap();
        if count == 0 {
            break;
        }
        got.read_exact(&mut other[..count]).unwrap_or_else(|error| panic!("behind {offset}: {error}"));
        assert!(one[..count] == other[..count], "other bytes behind {offset}");
        offset += count as u64;
    }
    assert_eq!((offset, got.read(&mut other).unwrap()), (bytes, 0));
    child.wait().unwrap();
}

/// Hands over a job after `behind` bytes of its output, and checks that the two parts are complete.
#[track_caller]
fn cut(daemon: &TestDaemon, bytes: u64, behind: usize, reader: OwnedFd, writer: OwnedFd) {
    let mut job = Job::of(numbers(bytes, writer));
    let mut reader = File::from(reader);
    let mut foreground = vec![0; behind];
    reader.read_exact(&mut foreground).unwrap();
    let task = job.hand_over_pipe(daemon, &reader);
    drop(reader);
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.output.bytes), (Status::Completed, bytes - behind as u64));
    check_whole(bytes, &foreground, ended.output.path.as_ref());
    assert!(job.wait().success());
}

#[test]
fn r62_handoff_in_mid_stream_neither_loses_nor_repeats_output() {
    let daemon = TestDaemon::start();
    let (reader, writer) = io::pipe().unwrap();
    cut(&daemon, 256 << 20, 20_000_123, reader.into(), writer.into());
    let (reader, writer) = UnixStream::pair().unwrap();
    cut(&daemon, 64 << 20, 1_234_567, reader.into(), writer.into());
    for _ in 0..20 {
        // The job may have ended by then, with only its output left.
        let (reader, writer) = io::pipe().unwrap();
        cut(&daemon, 100_000, 12_345, reader.into(), writer.into());
    }
}

#[test]
fn r70_two_pipes_give_two_streams_and_one_pipe_gives_one() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let pair = |client: &mut Client, kinds: [HandoffStream; 2]| {
        let (out, err) = (io::pipe().unwrap(), io::pipe().unwrap());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read x; echo out; echo err >&2"]).stdout(out.1).stderr(err.1);
        let mut job = Job::start(&daemon, &mut command);
        drop(command);
        let ends = kinds.map(|kind| match kind {
            HandoffStream::Stderr => (kind, err.0.as_fd()),
            _ => (kind, out.0.as_fd()),
        });
        let task = job.hand_over(client, &ends);
        job.say("go on");
        let task = daemon.block(&[task.id]).remove(0);
        job.wait();
        task
    };
    for kinds in
        [[HandoffStream::Stdout, HandoffStream::Stderr], [HandoffStream::Stderr, HandoffStream::Stdout]]
    {
        let task = pair(&mut client, kinds);
        assert_eq!(daemon.output(task.id), b"out\n");
        assert_eq!(daemon.stream(task.id, Stream::Stderr), b"err\n");
        assert_eq!((task.output.bytes, task.output.stderr_path.is_some()), (8, true));
    }
    let (reader, writer) = io::pipe().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read x; echo err >&2"]).stdout(Stdio::null()).stderr(writer);
    let mut job = Job::start(&daemon, &mut command);
    drop(command);
    let task = job.hand_over(&mut client, &[(HandoffStream::Stderr, reader.as_fd())]);
    job.say("go on");
    daemon.block(&[task.id]);
    assert_eq!(daemon.output(task.id), b"err\n");
    assert_eq!(task.output.stderr_path, None);
}

#[test]
fn r70_job_without_streams_has_empty_output() {
    let daemon = TestDaemon::start();
    let mut job = Job::start(&daemon, Command::new("cat").stdout(Stdio::null()));
    let task = job.hand_over(&mut daemon.client(), &[]);
    assert_eq!(daemon.output(task.id), b"");
    drop(job.child.stdin.take());
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.output.bytes), (Status::Completed, 0));
    assert_eq!(daemon.output(task.id), b"");
}

#[test]
fn r70_descendants_keep_writing_after_the_job_ends() {
    let daemon = TestDaemon::start();
    let line = "read x; exec 3<&0; echo now
        setsid sh -c 'read x <&3; echo later; read x <&3; seq 100000; touch done' &";
    let (mut job, reader) = Job::shell(&daemon, line);
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    job.say("go on");
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.output.bytes), (Status::Completed, 4));
    let mut watch = daemon.watch();
    job.say("go on");
    assert_eq!(wait::for_bytes(ended.output.path.as_ref(), 10), b"now\nlater\n");
    // Clearing a task discards its output without any effect on its descendants.
    let params = ClearParams { ids: Some(vec![task.id.into()]), ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).unwrap().cleared, 1);
    assert_eq!(watch.until(|event| event.task.id == task.id).kind, EventKind::Cleared);
    wait::for_no_file(ended.output.path.as_ref());
    job.say("go on");
    wait::for_file(&daemon.home().join("done"));
}

#[test]
fn r70_fifo_opened_for_reading_and_writing_ends_with_its_writers() {
    let daemon = TestDaemon::start();
    let path = daemon.home().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = File::options().read(true).write(true).open(&path).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo before; read x; echo after"]);
    command.stdout(File::options().write(true).open(&path).unwrap());
    let mut job = Job::start(&daemon, &mut command);
    command.stdout(Stdio::null());
    let task = job.hand_over_pipe(&daemon, &both);
    drop(both);
    job.say("go on");
    assert_eq!(daemon.block(&[task.id]).remove(0).status, Status::Completed);
    assert_eq!(daemon.output(task.id), b"before\nafter\n");
    wait::poll_until("the daemon to close the FIFO", || {
        let mut descriptors = std::fs::read_dir(daemon.process().proc("fd")).unwrap().flatten();
        let is_open = descriptors.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path));
        (!is_open).then_some(())
    });
}

#[test]
fn output_of_handed_over_job_is_bounded() {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start();
    let (reader, writer) = io::pipe().unwrap();
    let mut job = Job::of(numbers(16 << 20, writer));
    let task = job.hand_over_pipe(&daemon, &reader);
    let ended = daemon.block(&[task.id]).remove(0);
    job.wait();
    assert_eq!(ended.output.bytes, 16 << 20);
    let kept = ended.output.bytes - ended.output.dropped_bytes;
    assert!((1 << 19..=(1 << 20) + (1 << 16)).contains(&kept), "{kept} bytes are kept");
    let last = OutputParams { id: task.id.into(), offset: Some(-1000), limit: None, stream: None };
    let last = daemon.client().call::<TaskOutput>(&last).unwrap();
    assert_eq!(last.data.len(), 1000);
    assert!(!last.data.contains('\0'));
}

#[test]
fn full_disk_does_not_stop_handed_over_job_as_root() {
    // A daemon in a user namespace cannot see how a job outside of it has ended.
    must_be_root();
    let daemon = on_a_small_disk("size=20m");
    let (pipe_end, pipe) = io::pipe().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let cases: [(OwnedFd, OwnedFd); 2] = [(pipe_end.into(), pipe.into()), (near.into(), far.into())];
    for (reader, writer) in cases {
        let mut job = Job::of(numbers(64 << 20, writer));
        let task = job.hand_over_pipe(&daemon, &reader);
        drop(reader);
        let ended = daemon.block(&[task.id]).remove(0);
        assert_eq!((ended.status, ended.exit), (Status::Completed, Some(Exit::Code(0))));
        // Every byte written is either in the file or counted as lost.
        let Output { bytes, lost_bytes, dropped_bytes, .. } = ended.output;
        assert_eq!((bytes + lost_bytes, dropped_bytes), (64 << 20, 0));
        assert!(bytes < 21 << 20, "{bytes} bytes");
        job.wait();
    }
    let warnings = daemon.status().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("nearly full")), "{warnings:?}");
    let log = daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(log.contains("nearly full"), "{log}");
}

#[test]
fn r70_job_survives_death_of_its_parent_right_after_handoff() {
    let daemon = TestDaemon::start();
    let script = r#"
import json, os, signal, socket, subprocess, sys
child = subprocess.Popen(["/bin/sh", "-c", "cat; exit 42"], stdin=sys.stdin, stdout=subprocess.PIPE)
fds = [os.pidfd_open(child.pid), child.stdout.fileno()]
params = {"pid": child.pid, "description": "of python", "streams": ["stdout"]}
call = {"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params}
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(os.environ["BGD_SOCKET"])
    socket.send_fds(daemon, [json.dumps(call).encode() + b"\n"], fds)
    if sys.argv[1] == "after":
        daemon.makefile().readline()
    os.kill(os.getpid(), signal.SIGKILL)
"#;
    for when in ["at once", "after"] {
        let mut watch = daemon.watch();
        let mut parent = Command::new("python3");
        parent.args(["-c", script, when]).env_clear().envs(daemon.environment());
        let mut parent = Job::start(&daemon, &mut parent);
        let task = watch.until(|event| event.kind == EventKind::Backgrounded).task;
        parent.wait_dead();
        let job = Process::open(task.pid.unwrap()).unwrap();
        assert!(job.is_alive());
        parent.say("to the job");
        drop(parent.child.stdin.take());
        let ended = daemon.block(&[task.id]).remove(0);
        assert_eq!((ended.status, ended.exit), (Status::Failed, Some(Exit::Code(42))));
        assert_eq!(daemon.output(task.id), b"to the job\n");
    }
}
