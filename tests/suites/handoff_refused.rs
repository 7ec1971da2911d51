//! R64, R66, R70: what can't be handed over, why, and that refusals leave nothing behind.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use bgd_shared::client::Client;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::request::HandoffStream::{self, File as OwnFile, Pty, Stderr, Stdout};
use bgd_shared::request::{ExitParams, HandoffParams, OriginKind, TaskExit};
use bgd_shared::task::{Exit, Status};
use bgd_tests::handed::{Job, line_of, pidfd_of, refused};
use bgd_tests::user::{must_be_root, unused_uid};
use bgd_tests::{TestDaemon, bgctl_path, wait};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A daemon and a connection, with the number of open descriptors to detect leaks.
struct Scene {
    daemon: TestDaemon,
    client: Client,
    open: usize,
}

impl Scene {
    fn new() -> Self {
        let daemon = TestDaemon::start();
        let mut client = daemon.client();
        // The first offer starts the draining thread, which has its own descriptors.
        let (mut job, reader) = Job::shell(&daemon, "read x");
        let task = job.hand_over(&mut client, &[(HandoffStream::Stdout, reader.as_fd())]);
        let pipe = fs::read_link(format!("/proc/self/fd/{}", reader.as_fd().as_raw_fd())).unwrap();
        let pipe = pipe.display().to_string();
        drop(reader);
        job.say("go on");
        daemon.block(&[task.id]);
        let mut scene = Self { daemon, client, open: 0 };
        // The daemon closes its pidfd, pipe and output a moment after it has announced the end.
        let is_its = |link: &String| link.contains("pidfd") || *link == pipe || link.contains(".out");
        let end = Instant::now() + wait::PATIENCE;
        while scene.links().iter().any(is_its) {
            assert!(Instant::now() < end, "{:?}", scene.links());
        }
        scene.open = scene.fds();
        scene
    }

    /// Returns the daemon's open files, without sockets: other connections come and go in the background.
    fn links(&self) -> Vec<String> {
        let fds = fs::read_dir(self.daemon.process().proc("fd")).unwrap().flatten();
        // A descriptor that was closed meanwhile is gone.
        let links = fds.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string()));
        links.filter(|link| !link.starts_with("socket:")).collect()
    }

    fn fds(&self) -> usize {
        self.links().len()
    }

    #[track_caller]
    fn refuse(&mut self, params: &HandoffParams, fds: &[BorrowedFd<'_>]) -> RpcError {
        let before = self.daemon.status().summary.total();
        let error = refused(&mut self.client, params, fds);
        assert_eq!(self.fds(), self.open, "a descriptor was left open: {error}");
        assert_eq!(self.daemon.status().summary.total(), before);
        let output = self.daemon.state_dir().join("instances");
        let files = fs::read_dir(output).unwrap().flatten().map(|entry| entry.path().join("output"));
        let count: usize = files.map(|folder| fs::read_dir(folder).into_iter().flatten().count()).sum();
        assert_eq!(count as u64, before, "an output was left: {error}");
        error
    }
}

#[test]
fn r70_only_parent_or_sibling_may_hand_over_a_process() {
    let mut scene = Scene::new();
    // A grandchild of this process: its parent may hand it over, and so may other children of that parent,
    // such as the `bgctl` that a shell runs.
    let line = "sleep 1000 & echo $!; read go; $BGCTL handoff --pid $! --description it 2>&1; kill $!; wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).env_clear().envs(scene.daemon.environment()).env("BGCTL", bgctl_path());
    let (mut job, mut reader) = Job::piped(&scene.daemon, &mut shell);
    let pid: i32 = line_of(&mut reader).parse().unwrap();
    let pidfd = pidfd_of(pid);
    let params = HandoffParams { pid, ..job.params() };
    let error = scene.refuse(&params, &[pidfd.as_fd()]);
    assert_eq!(error.kind(), ErrorKind::ForeignProcess, "{error}");
    let me = std::process::id();
    let word =
        format!("process {pid} is not a child of process {me}, which hands it over, nor of its parent");
    assert_eq!(error.message, word);
    job.say("go");
    assert!(line_of(&mut reader).contains("manually backgrounded"), "the shell's own bgctl may");
    job.wait();
}

#[test]
fn r64_process_started_directly_by_user_is_not_handed_over() {
    let mut scene = Scene::new();
    let (job, reader) = Job::shell(&scene.daemon, "read x");
    let params = HandoffParams {
        origin_kind: OriginKind::Direct,
        streams: vec![HandoffStream::Stdout],
        ..job.params()
    };
    let error = scene.refuse(&params, &[job.pidfd.as_fd(), reader.as_fd()]);
    assert_eq!(error.kind(), ErrorKind::NotBackgroundable);
    assert!(error.message.contains(&job.pid().to_string()), "{error}");
}

#[test]
fn r66_handoff_of_ended_process_is_refused_with_its_exit() {
    let mut scene = Scene::new();
    for (line, how) in
        [("exit 0", "exited with code 0"), ("exit 9", "exited with code 9"), ("kill -9 $$", "signal 9")]
    {
        for reaped in [false, true] {
            let (mut job, reader) = Job::shell(&scene.daemon, line);
            job.wait_dead();
            if reaped {
                job.wait();
            }
            let params = HandoffParams { streams: vec![HandoffStream::Stdout], ..job.params() };
            let error = scene.refuse(&params, &[job.pidfd.as_fd(), reader.as_fd()]);
            assert_eq!(error.kind(), ErrorKind::AlreadyFinished);
            // Linux reports the exit of a reaped process from 6.15 on.
            assert!(error.message.contains(how), "{error}");
            assert_eq!(error.data.task, None);
        }
    }
}

#[test]
fn r70_handoff_refuses_pidfd_that_does_not_match_pid() {
    let mut scene = Scene::new();
    let (job, _reader) = Job::shell(&scene.daemon, "read x");
    let (other, _other_reader) = Job::shell(&scene.daemon, "read x");
    let (mut gone, _gone_reader) = Job::shell(&scene.daemon, ":");
    gone.wait();
    let pipe = io::pipe().unwrap().0;
    let thread = PidfdFlags::from_bits_retain(0o200);
    let of_thread = pidfd_open(Pid::from_raw(job.pid()).unwrap(), thread);
    let invalid = ErrorKind::InvalidParams;
    let mut cases = vec![
        (other.pidfd.as_fd(), invalid, format!("a pidfd of process {}", other.pid())),
        (pipe.as_fd(), invalid, "descriptor 0 is not a pidfd".to_owned()),
        // The pid may have been reused: the pidfd is what counts.
        (gone.pidfd.as_fd(), ErrorKind::AlreadyFinished, format!("process {} has already ended", job.pid())),
    ];
    if let Ok(handle) = &of_thread {
        cases.push((handle.as_fd(), invalid, "PIDFD_THREAD".to_owned()));
    }
    for (handle, kind, words) in cases {
        let error = scene.refuse(&job.params(), &[handle]);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message.contains(&words), "{error}");
    }
}

#[test]
fn r70_handoff_refuses_process_of_another_user_as_root() {
    must_be_root();
    let mut scene = Scene::new();
    let (reader, writer) = io::pipe().unwrap();
    let mut command = Command::new("/bin/cat");
    let uid = unused_uid();
    command.uid(uid).stdout(writer);
    let job = Job::start(&scene.daemon, &mut command);
    drop(command);
    let params = HandoffParams { streams: vec![HandoffStream::Stdout], ..job.params() };
    let error = scene.refuse(&params, &[job.pidfd.as_fd(), reader.as_fd()]);
    assert_eq!(error.kind(), ErrorKind::ForeignProcess);
    assert!(error.message.contains(&uid.to_string()), "{error}");
    // A single foreign uid of the four is enough.
    for user in ["--ruid", "--euid"] {
        let mut command = Command::new("setpriv");
        command.args([user, &unused_uid().to_string(), "--clear-groups", "sh", "-c", "echo up; read x"]);
        let (job, mut reader) = Job::piped(&scene.daemon, &mut command);
        assert_eq!(bgd_tests::handed::line_of(&mut reader), "up");
        let error = scene.refuse(&job.params(), &[job.pidfd.as_fd()]);
        assert_eq!(error.kind(), ErrorKind::ForeignProcess, "{error}");
    }
}

#[test]
fn r70_handoff_refuses_daemon_its_ancestors_and_kernel_threads() {
    let mut scene = Scene::new();
    for pid in [scene.daemon.pid(), std::process::id().cast_signed()] {
        let params = HandoffParams { pid, ..scene_params() };
        let error = scene.refuse(&params, &[pidfd_of(pid).as_fd()]);
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        assert!(error.message.contains("the daemon itself"), "{error}");
    }
    // A kernel thread.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        let error = scene.refuse(&HandoffParams { pid: 2, ..scene_params() }, &[pidfd_of(2).as_fd()]);
        let is_roots = rustix::process::geteuid().is_root();
        let kind = if is_roots { ErrorKind::InvalidParams } else { ErrorKind::ForeignProcess };
        assert_eq!(error.kind(), kind, "{error}");
    }
}

/// Returns params of a process that is not a child.
fn scene_params() -> HandoffParams {
    serde_json::from_str(r#"{"pid": 0, "description": "x"}"#).unwrap()
}

#[test]
fn r70_handoff_refuses_process_that_belongs_to_a_task() {
    let mut scene = Scene::new();
    // Processes of a task that the daemon started: the leader, and a process that left its session.
    let line = "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000' & sleep 1000";
    let own = scene.daemon.submit_shell(line);
    let leader = scene.daemon.wait_running(own).pid.unwrap();
    let away: i32 = wait::for_line(&scene.daemon.home().join("pid"), "").parse().unwrap();
    // Processes of a handed-over job: the leader, a child of it, and a process of its group that is no child.
    let mut command = Command::new("/bin/sh");
    let line = "sleep 1000 >/dev/null 2>&1 & echo $!; (sleep 1000 >/dev/null 2>&1 & echo $!); read x; read x";
    command.args(["-c", line]).process_group(0);
    let (mut job, mut reader) = Job::piped(&scene.daemon, &mut command);
    let mut number = || bgd_tests::handed::line_of(&mut reader).parse::<i32>().unwrap();
    let (child, orphan) = (number(), number());
    let handed = job.hand_over(&mut scene.client, &[(HandoffStream::Stdout, reader.as_fd())]);
    drop(reader);
    scene.open = scene.fds();
    for (pid, task) in
        [(leader, own), (away, own), (job.pid(), handed.id), (child, handed.id), (orphan, handed.id)]
    {
        let params = HandoffParams { pid, ..scene_params() };
        let error = refused(&mut scene.client, &params, &[pidfd_of(pid).as_fd()]);
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        assert!(error.message.contains(&task.to_string()), "{error}");
        assert_eq!(scene.fds(), scene.open);
    }
    assert_eq!(scene.daemon.cancel(&[own, handed.id]).len(), 2);
    job.wait();
}

#[test]
fn r70_handoff_refuses_descriptors_of_wrong_kind_or_number() {
    let mut scene = Scene::new();
    let (job, reader) = Job::shell(&scene.daemon, "read x");
    let file: OwnedFd = File::create(scene.daemon.home().join("f")).unwrap().into();
    let writer: OwnedFd = io::pipe().unwrap().1.into();
    let datagram: OwnedFd = UnixDatagram::unbound().unwrap().into();
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    let pipe = reader.as_fd();
    let cases: Vec<(Vec<HandoffStream>, Vec<BorrowedFd<'_>>, &str)> = vec![
        (vec![Stdout], vec![file.as_fd()], "the descriptor for `stdout` is a regular file;"),
        (
            vec![Stdout, Stderr],
            vec![pipe, writer.as_fd()],
            "the descriptor for `stderr` is the write end of a pipe;",
        ),
        (vec![Stderr], vec![datagram.as_fd()], "the descriptor for `stderr` is a socket of another kind;"),
        (vec![Pty], vec![pipe], "the descriptor for `pty` is the read end of a pipe;"),
        (vec![OwnFile], vec![null.as_fd()], "the descriptor for `file` is a character device;"),
        (vec![Stdout, Stderr], vec![pipe, pipe], "is the same pipe as"),
        (vec![Stdout], vec![], "came with 1 descriptor,"),
        (vec![Stdout], vec![pipe, pipe], "came with 3 descriptors"),
        (vec![Stdout, Stdout], vec![pipe, pipe], "at most once"),
        (vec![Pty, Stdout], vec![pipe, pipe], "can't be combined"),
    ];
    for (streams, others, words) in cases {
        let params = HandoffParams { streams, ..job.params() };
        let fds: Vec<_> = std::iter::once(job.pidfd.as_fd()).chain(others).collect();
        let error = scene.refuse(&params, &fds);
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    let none = scene.refuse(&job.params(), &[]);
    assert!(none.message.contains("0 descriptors"), "{none}");
}

#[test]
fn invalid_handoff_params_are_refused_and_valid_ones_used() {
    let mut scene = Scene::new();
    let (job, _reader) = Job::shell(&scene.daemon, "read x");
    let good = job.params();
    let cases = [
        (HandoffParams { pid: 1, ..good.clone() }, "`pid` is 1"),
        (HandoffParams { pid: -5, ..good.clone() }, "`pid` is -5"),
        (HandoffParams { description: " ".into(), ..good.clone() }, "`description` is blank"),
        (HandoffParams { description: "x".repeat(5000), ..good.clone() }, "`description` has 5000 bytes"),
        (HandoffParams { argv: Some(vec![]), ..good.clone() }, "`argv` has no program"),
        (HandoffParams { argv: Some(vec!["a\0b".into()]), ..good.clone() }, "`argv` contains a NUL"),
        (HandoffParams { session: Some(String::new()), ..good.clone() }, "`session` is empty"),
        (
            HandoffParams { started_at: Some("2999-01-01T00:00:00Z".parse().unwrap()), ..good.clone() },
            "in the future",
        ),
    ];
    for (params, words) in cases {
        let error = scene.refuse(&params, &[job.pidfd.as_fd()]);
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        assert!(error.message.contains(words), "{error}");
    }
    // The daemon determines what the params omit, and accepts what they contain.
    let given = HandoffParams {
        argv: Some(vec!["make".into(), "all".into()]),
        started_at: Some("2020-01-02T03:04:05.678Z".parse().unwrap()),
        ..good
    };
    let task = bgd_shared::handoff::hand_over_as(&mut scene.client, &job.child, given, &[]).unwrap().task;
    assert_eq!(task.argv.unwrap(), ["make".into(), "all".into()]);
    assert_eq!(task.started_at.unwrap().to_string(), "2020-01-02T03:04:05.678Z");
    assert_eq!(scene.daemon.cancel(&[task.id])[0].status, Status::Cancelled);
}

#[test]
fn full_registry_leaves_job_and_output_with_its_parent() {
    let daemon = TestDaemon::builder().config("[limits]\ntasks = 1\n").start();
    daemon.block(&[daemon.submit(&["true"])]);
    let (mut job, mut reader) = Job::shell(&daemon, "echo mine; read x; echo mine, too");
    let mut client = daemon.client();
    let params = HandoffParams { streams: vec![HandoffStream::Stdout], ..job.params() };
    for _ in 0..3 {
        let error = refused(&mut client, &params, &[job.pidfd.as_fd(), reader.as_fd()]);
        assert_eq!(error.kind(), ErrorKind::RegistryFull);
    }
    job.say("go on");
    assert!(job.wait().success());
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "mine\nmine, too\n", "nothing was taken out of its pipe");
}

#[test]
fn exit_report_is_accepted_only_for_handed_over_tasks() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let own = daemon.submit(&["true"]);
    let mut report =
        |id: bgd_shared::id::TaskId, exit| client.call::<TaskExit>(&ExitParams { id: id.into(), exit });
    let error = report(own, Exit::Code(0)).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
    for exit in [Exit::Code(256), Exit::Code(-1), Exit::Signal(0), Exit::Signal(65)] {
        assert_eq!(report(own, exit).unwrap_err().kind(), Some(ErrorKind::InvalidParams));
    }
    let unknown = report(bgd_shared::id::TaskId::random(), Exit::Code(0)).unwrap_err();
    assert_eq!(unknown.kind(), Some(ErrorKind::TaskNotFound));
    let mut job = Job::start(&daemon, Command::new("cat").stdout(Stdio::null()));
    let task = job.hand_over(&mut daemon.client(), &[]);
    assert!(job.wait().success());
    assert_eq!(daemon.block(&[task.id])[0].exit, Some(Exit::Code(0)));
    // Here the daemon knew the exit itself, and keeps it.
    let reported = report(task.id, Exit::Code(3)).unwrap().task;
    assert_eq!((reported.status, reported.exit), (Status::Completed, Some(Exit::Code(0))));
}

#[test]
fn r70_bgctl_does_not_take_a_descriptor_of_its_own_for_a_named_one() {
    let daemon = TestDaemon::start();
    for streams in ["--stdout 3", "--file 4", "--stdout 0 --stderr 5"] {
        let bgctl = bgctl_path();
        let line = format!(
            "sleep 1000 & {} handoff --pid $! {streams} 3>&- 4>&- 5>&- 0<&1; code=$?; kill $!; exit $code",
            bgctl.display()
        );
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &line]).env_clear().envs(daemon.environment()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{streams}: {errors}");
        let (_, last) = streams.rsplit_once("--").unwrap();
        assert!(errors.contains(&format!("--{last}: this descriptor is not open")), "{streams}: {errors}");
    }
}
