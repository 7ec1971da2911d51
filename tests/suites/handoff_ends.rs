//! R66, R70, R05, R11: how handed-over jobs end, and that their recorded exit is the true one.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::handoff;
use bgd_shared::request::{
    CancelParams, HandoffStream, ListParams, SignalParams, TaskCancel, TaskList, TaskSignal,
};
use bgd_shared::task::{Exit, Status, Task};
use bgd_tests::handed::{Job, line_of};
use bgd_tests::{Process, TestDaemon, wait};

/// How a parent treats a child that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// Waits from the beginning, so the child is reaped at once.
    Waits,
    /// Waits once the daemon has reported how the child ended.
    Later,
}

/// Hands over a shell command that continues when it reads a line, and lets it end.
#[track_caller]
fn ended(daemon: &TestDaemon, client: &mut Client, line: &str, parent: Parent) -> Task {
    let (mut job, reader) = Job::shell(daemon, &format!("read x; {line}"));
    let task = job.hand_over(client, &[(HandoffStream::Stdout, reader.as_fd())]);
    drop(reader);
    if parent == Parent::Waits {
        let mut stdin = job.child.stdin.take();
        let waits = thread::spawn(move || job.wait());
        io::Write::write_all(stdin.as_mut().unwrap(), b"go on\n").unwrap();
        waits.join().unwrap();
    } else {
        job.say("go on");
    }
    daemon.block(&[task.id]).remove(0)
}

#[test]
fn r70_exit_of_handed_over_job_is_exact_whenever_its_parent_waits() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let cases = [
        ("exit 0", Exit::Code(0)),
        ("exit 1", Exit::Code(1)),
        ("exit 255", Exit::Code(255)),
        ("kill -TERM $$", Exit::Signal(15)),
        ("kill -KILL $$", Exit::Signal(9)),
        ("ulimit -c 0; kill -SEGV $$", Exit::Signal(11)),
        ("kill -42 $$", Exit::Signal(42)),
    ];
    for parent in [Parent::Waits, Parent::Later] {
        for (line, exit) in &cases {
            let task = ended(&daemon, &mut client, line, parent);
            assert_eq!(task.exit.as_ref(), Some(exit), "{line} {parent:?}");
            let status = if *exit == Exit::Code(0) { Status::Completed } else { Status::Failed };
            assert_eq!(task.status, status);
        }
    }
}

#[test]
fn r70_exit_of_unreaped_zombie_is_recorded() {
    let daemon = TestDaemon::start();
    let script = r#"
import json, os, socket, subprocess, sys
child = subprocess.Popen(["/bin/sh", "-c", "read x; echo $x; exit 43"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
fds = [os.pidfd_open(child.pid), child.stdout.fileno()]
params = {"pid": child.pid, "description": "of python", "streams": ["stdout"]}
call = {"jsonrpc": "2.0", "id": 1, "method": "task.handoff", "params": params}
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(os.environ["BGD_SOCKET"])
    socket.send_fds(daemon, [json.dumps(call).encode() + b"\n"], fds)
    print(json.loads(daemon.makefile().readline())["result"]["task"]["id"], flush=True)
child.stdin.write(b"go on\n")
child.stdin.close()
sys.stdin.readline()
print(child.wait(), flush=True)
"#;
    let mut python = Command::new("python3");
    python.args(["-c", script]).env_clear().envs(daemon.environment());
    let (mut parent, mut said) = Job::piped(&daemon, &mut python);
    let id = line_of(&mut said).parse().unwrap();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.exit, Some(Exit::Code(43)));
    assert_eq!(daemon.output(id), b"go on\n");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", task.pid.unwrap())).unwrap();
    assert!(stat.contains(") Z "), "it waits for its parent still: {stat}");
    parent.say("now");
    assert_eq!(line_of(&mut said), "43");
}

#[test]
fn r66_job_that_ends_during_handoff_is_either_handed_over_or_finished() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let mut handed = Vec::new();
    let mut seed = u64::from(std::process::id());
    for round in 0..200 {
        // Any sequence that differs from run to run will do.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (code, pause) = (round % 256, (seed >> 33) % 2500);
        let (mut job, mut reader) = Job::shell(&daemon, &format!("read x; echo out of {round}; exit {code}"));
        let waits = round % 2 == 0;
        let (offer, answer) = mpsc::channel();
        let mut stdin = job.child.stdin.take().unwrap();
        io::Write::write_all(&mut stdin, b"go on\n").unwrap();
        // The next steps happen at a random moment before its end, or exactly at its end.
        wait::readable_within(job.pidfd.as_fd(), Duration::from_micros(pause));
        if waits {
            // Its parent may reap it at any moment.
            let pidfd = job.pidfd.try_clone().unwrap();
            let params = job.params();
            let mut other = daemon.client();
            let pipe = reader.try_clone().unwrap();
            let offering = thread::spawn(move || {
                let params =
                    bgd_shared::request::HandoffParams { streams: vec![HandoffStream::Stdout], ..params };
                let fds = [pidfd.as_fd(), pipe.as_fd()];
                let given = other.call_with_fds::<bgd_shared::request::TaskHandoff>(&params, &fds);
                offer.send(given).unwrap();
            });
            assert_eq!(job.wait().code(), Some(code));
            offering.join().unwrap();
        } else {
            offer.send(job.offer(&mut client, &[(HandoffStream::Stdout, reader.as_fd())])).unwrap();
        }
        match answer.recv_timeout(wait::PATIENCE).unwrap() {
            Ok(given) => handed.push((given.task.id, round, code)),
            Err(ClientError::Rpc(error)) => {
                assert_eq!(error.kind(), ErrorKind::AlreadyFinished, "{error}");
                assert_eq!(line_of(&mut reader), format!("out of {round}"), "its output is its parent's");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(job.wait().code(), Some(code));
    }
    let ids: Vec<_> = handed.iter().map(|(id, ..)| *id).collect();
    let tasks = daemon.block(&ids);
    for (task, (id, round, code)) in tasks.iter().zip(&handed) {
        assert_eq!((task.id, task.exit.as_ref()), (*id, Some(&Exit::Code(*code))));
        assert_eq!(daemon.output(*id), format!("out of {round}\n").as_bytes());
    }
    let page = client.call::<TaskList>(&ListParams { limit: Some(1000), ..ListParams::default() }).unwrap();
    assert_eq!(page.tasks.len(), handed.len(), "no task of one that had finished");
    println!("{} of 200 were handed over, the others had finished", handed.len());
}

fn cancel(daemon: &TestDaemon, id: bgd_shared::id::TaskId, grace_ms: u64) -> Task {
    let params = CancelParams { ids: vec![id.into()], grace_ms: Some(grace_ms), ..CancelParams::default() };
    daemon.client().call::<TaskCancel>(&params).expect("task.cancel").tasks.remove(0)
}

#[test]
fn r05_cancel_ends_whole_tree_of_handed_over_job() {
    let daemon = TestDaemon::start();
    // A child, and a descendant that left the session and ignores SIGTERM, with children that heed and ignore it.
    let line =
        "sleep 1000 & setsid sh -c 'sleep 1000 & trap \"\" TERM; echo up; while :; do sleep 1000; done' &
        wait";
    for group in [false, true] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        if group {
            command.process_group(0);
        }
        let (mut job, mut reader) = Job::piped(&daemon, &mut command);
        assert_eq!(line_of(&mut reader), "up");
        let task = job.hand_over_pipe(&daemon, &reader);
        drop(reader);
        // The daemon and the job's processes.
        assert!(daemon.task_processes().len() >= 4, "{:?}", daemon.task_processes());
        let task = cancel(&daemon, task.id, 50);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
        assert_eq!(task.exit, Some(Exit::Signal(15)));
        assert_eq!(job.wait().signal(), Some(15));
        for process in daemon.task_processes() {
            process.gone();
        }
    }
}

#[test]
fn r05_cancel_of_handed_over_job_spares_its_siblings() {
    let daemon = TestDaemon::start();
    // Both are in the group and the session of this test, and one is not handed over.
    let (mut job, reader) = Job::shell(&daemon, "read x");
    let (mut brother, _pipe) = Job::shell(&daemon, "read x; exit 5");
    let task = job.hand_over_pipe(&daemon, &reader);
    assert_eq!(cancel(&daemon, task.id, 60_000).status, Status::Cancelled);
    job.wait();
    brother.say("go on");
    assert_eq!(brother.wait().code(), Some(5));
}

#[test]
fn rest_of_job_process_group_lingers_until_cancel() {
    let daemon = TestDaemon::start();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read x; sleep 1000 & echo $!"]).process_group(0);
    let (mut job, mut reader) = Job::piped(&daemon, &mut command);
    let task = job.hand_over(&mut daemon.client(), &[]);
    job.say("go on");
    let sleeper = Process::open(line_of(&mut reader).parse().unwrap()).unwrap();
    job.wait();
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!((ended.status, ended.lingering), (Status::Completed, true));
    assert!(sleeper.is_alive());
    assert!(!cancel(&daemon, task.id, 60_000).lingering);
    sleeper.gone();
    assert_eq!(daemon.task(task.id).status, Status::Completed);
}

#[test]
fn signal_reaches_the_job_alone_or_its_whole_tree() {
    let daemon = TestDaemon::start();
    let line = "trap 'echo parent' USR1; exec 3<&0
        (trap 'echo child' USR1; echo up; until read x; do :; done) <&3 &
        echo up; while kill -0 $!; do wait $!; done";
    let (mut job, mut reader) = Job::shell(&daemon, line);
    assert_eq!([line_of(&mut reader), line_of(&mut reader)], ["up", "up"]);
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    let path = task.output.path.clone();
    let signal = |signal: &str, tree| {
        let params = SignalParams { id: task.id.into(), signal: signal.to_owned(), tree };
        daemon.client().call::<TaskSignal>(&params).unwrap();
    };
    signal("USR1", false);
    wait::for_line(path.as_ref(), "parent");
    assert!(!String::from_utf8(daemon.output(task.id)).unwrap().contains("child"));
    signal("USR1", true);
    wait::for_line(path.as_ref(), "child");
    assert_eq!(cancel(&daemon, task.id, 60_000).status, Status::Cancelled);
    job.wait();
}

#[test]
fn r11_shutdown_ends_handed_over_job() {
    let mut daemon = TestDaemon::start();
    let (mut job, reader) = Job::shell(&daemon, "setsid sleep 1000 & echo up; wait");
    let mut reader = reader;
    assert_eq!(line_of(&mut reader), "up");
    job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    assert!(daemon.stop().success());
    assert_eq!(job.wait().signal(), Some(15));
    assert!(daemon.processes().is_empty(), "{:?}", daemon.processes());
}

#[test]
fn handed_over_job_gets_broken_pipe_when_daemon_is_killed() {
    let mut daemon = TestDaemon::start();
    let (mut job, reader) = Job::shell(&daemon, "while read x; do echo $x; done");
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    job.say("kept");
    wait::for_line(task.output.path.as_ref(), "kept");
    daemon.kill9();
    // A child that another test is starting may have the pipe open a moment longer.
    wait::poll_until("its end", || {
        let input = job.child.stdin.as_mut().expect("a standard input");
        // It may have ended already.
        let _ = io::Write::write_all(input, b"lost\n");
        wait::readable(job.pidfd.as_fd(), Duration::ZERO).then_some(())
    });
    assert_eq!(job.wait().signal(), Some(13));
}

/// Starts a daemon on a kernel that does not report the exit of processes that others have reaped.
fn on_an_older_kernel() -> TestDaemon {
    let strace = "exec strace -D -qq -f --seccomp-bpf -o /dev/null -e trace=ioctl \
        -e inject=ioctl:error=ENOTTY \"$0\" \"$@\" 3>&1 >/dev/null";
    TestDaemon::builder().prelude(strace).start()
}

#[test]
fn r70_on_older_kernel_exit_is_reported_by_parent_or_unknown() {
    let daemon = on_an_older_kernel();
    let mut client = daemon.client();
    // Before the job is reaped, its exit is visible.
    assert_eq!(ended(&daemon, &mut client, "exit 3", Parent::Later).exit, Some(Exit::Code(3)));

    let run = |client: &mut Client, line: &str| {
        let (mut job, reader) = Job::shell(&daemon, &format!("read x; {line}"));
        let task = job.hand_over(client, &[(HandoffStream::Stdout, reader.as_fd())]);
        // Stop the daemon, so that it is too late to see the exit.
        let stopped = Process::open(daemon.pid()).unwrap();
        stopped.signal(rustix::process::Signal::STOP).unwrap();
        job.say("go on");
        let status = job.wait();
        stopped.signal(rustix::process::Signal::CONT).unwrap();
        (task.id, status)
    };
    // Reported by the parent.
    for (line, exit) in [("exit 4", Exit::Code(4)), ("kill -9 $$", Exit::Signal(9))] {
        let (id, status) = run(&mut client, line);
        let reported = handoff::report_exit(&mut client, id, status).unwrap();
        assert_eq!(
            (reported.status, reported.exit.as_ref()),
            (Status::Failed, Some(&exit)),
            "the effect comes first"
        );
        assert_eq!(daemon.block(&[id])[0].exit, Some(exit));
    }
    // Nobody is left who could report it, or nobody does.
    for stays in [false, true] {
        let mut other = daemon.client();
        let (id, status) = run(&mut other, "exit 5");
        let kept = stays.then_some(other);
        let task = daemon.block(&[id]).remove(0);
        let Some(Exit::Unknown(why)) = &task.exit else { panic!("it is made up: {task:?}") };
        assert_eq!(
            (task.status, task.error),
            (Status::Failed, Some(format!("its exit status is unknown: {why}")))
        );
        // Now it is too late.
        let late = handoff::report_exit(&mut client, id, status).unwrap();
        assert!(matches!(late.exit, Some(Exit::Unknown(_))));
        drop(kept);
    }
}
