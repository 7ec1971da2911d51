//! No job, whatever it does and whatever happens to it, holds up the keeper or the next daemon of a durable one (R126):
//! everything else continues after a kill.

use std::fs;
use std::io::BufReader;
use std::num::NonZeroI32;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::fds;
use bgd_tests::shared::holder::Note;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonUpgrade, SubmitParams, TerminalSize};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::tracer::Tracer;
use bgd_tests::upgrades::{failing, params};
use bgd_tests::user::{Programs, as_user, must_be_root, unused_uid};
use bgd_tests::{Outcome, Process, TestDaemon, Word, executable, wait};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

fn durable() -> TestDaemon {
    TestDaemon::durable("max_concurrent_tasks = 9")
}

/// Holds a lease on the given file: opening it blocks for up to 45 seconds, as on a slow disk. Reports when it has the
/// lease and when somebody waits, and releases it at the end of its input.
const LEASE: &str = r#"use Fcntl; $| = 1; $SIG{IO} = sub { print "asked\n" };
    open(my $file, "<", shift) or die; fcntl($file, Fcntl::F_SETLEASE, Fcntl::F_WRLCK) or die "$!"; print "held\n";
    <STDIN>;"#;

/// A program that can't be read for the time being.
pub(super) struct Withheld {
    path: PathBuf,
    holder: Child,
    says: BufReader<ChildStdout>,
}

impl Withheld {
    /// Makes a shell script with these lines.
    #[track_caller]
    fn script(path: PathBuf, lines: &str) -> Self {
        executable::write(&path, &format!("#!/bin/sh\n{lines}\n"));
        let mut command = Command::new("perl");
        command.args(["-e", LEASE]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("perl");
        let says = BufReader::new(holder.stdout.take().expect("a pipe"));
        let mut with_unreadable_program = Self { path, holder, says };
        with_unreadable_program.until("held");
        with_unreadable_program
    }

    #[track_caller]
    fn until(&mut self, word: &str) {
        assert_eq!(wait::next_line(&mut self.says), word);
    }

    /// Waits until somebody is about to run the program.
    #[track_caller]
    fn wanted(&mut self) {
        self.until("asked");
    }

    /// Makes the program readable.
    #[track_caller]
    pub(super) fn release(mut self) {
        drop(self.holder.stdin.take());
        assert!(self.holder.wait().expect("a child can be waited for").success());
    }
}

/// The script of a task that may run only once.
const ONCE: &str = "echo ran >> \"$HOME/ran\"; exit 9";

/// Submits such a task with an unreadable program, and waits until the daemon is about to run it.
#[track_caller]
pub(super) fn with_unreadable_program(daemon: &TestDaemon, pty: Option<TerminalSize>) -> (Withheld, TaskId) {
    let mut program = Withheld::script(daemon.home().join("job"), ONCE);
    let argv = Some(vec![program.path.as_os_str().into()]);
    let task = daemon.submit_with(&SubmitParams { argv, pty, ..daemon.params() }).id;
    program.wanted();
    (program, task)
}

/// Waits for the end of such a task, and checks that it ran once.
#[track_caller]
pub(super) fn has_run_once(daemon: &TestDaemon, task: TaskId) {
    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(9)));
    assert_eq!(fs::read_to_string(daemon.home().join("ran")).expect("it ran"), "ran\n");
}

/// Other tasks that continue: each ends with its own code on request.
struct Others {
    tasks: Vec<(TaskId, i32)>,
    pids: Vec<Option<i32>>,
    go: PathBuf,
}

impl Others {
    #[track_caller]
    fn start(daemon: &TestDaemon) -> Self {
        let go = daemon.home().join("go-others");
        let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
        let submit = |code: i32| {
            let shell = format!("echo begun; {wait}; exit {code}");
            let pty = (code % 2 == 0).then_some(TerminalSize { rows: 24, cols: 80 });
            let params = SubmitParams { shell: Some(shell.as_str().into()), pty, ..daemon.params() };
            (daemon.submit_with(&params).id, code)
        };
        let tasks: Vec<_> = (3..7).map(submit).collect();
        let pids = tasks.iter().map(|(task, _)| daemon.wait_running(*task).pid).collect();
        Self { tasks, pids, go }
    }

    /// Checks that they run as before, and end as they should.
    #[track_caller]
    fn go_on(self, daemon: &TestDaemon) {
        for ((task, _), pid) in self.tasks.iter().zip(self.pids) {
            let task = daemon.task(*task);
            assert_eq!((task.status, task.pid), (Status::Running, pid), "{task:?}");
        }
        fs::write(self.go, "").expect("a file in the home");
        for (task, code) in self.tasks {
            assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(code)));
        }
    }
}

fn keeper_socket(daemon: &TestDaemon) -> PathBuf {
    let instances = fs::read_dir(daemon.state_dir().join("instances")).expect("a folder of the daemon");
    let mut sockets = instances.map(|entry| entry.expect("an entry").path().join("keeper"));
    sockets.find(|path| path.exists()).expect("its keeper has a socket")
}

/// Returns the keeper once its socket shows which process it is: until it listens, the socket names its daemon, and the
/// next one can't continue it.
fn listening_keeper(daemon: &TestDaemon) -> Process {
    let (keeper, path) = (daemon.keeper(), keeper_socket(daemon));
    wait::poll_until("the keeper listens", || {
        (fds::peer_pid(&stranger(&path)) == Some(keeper.pid())).then_some(())
    });
    keeper
}

fn state_of(process: &Process) -> char {
    state_in(&process.proc("stat"))
}

fn state_in(path: &Path) -> char {
    let stat = fs::read_to_string(path).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
}

/// The leader was about to start the job, and has a copy of the keeper's socket.
#[test]
fn r126_terminal_leader_stopped_at_job_start_does_not_delay_next_daemon() {
    let mut daemon = durable();
    let others = Others::start(&daemon);
    let (program, task) = with_unreadable_program(&daemon, Some(TerminalSize { rows: 24, cols: 80 }));
    daemon.kill9();
    let of_task = format!("--terminal-leader {task}");
    let leader = daemon.processes().into_iter().find(|process| process.cmdline().ends_with(&of_task));
    let leader = leader.expect("its leader");
    leader.signal(Signal::STOP).expect("a process of this user");
    program.release();
    wait::for_file(&daemon.home().join("ran"));
    // It can't be stopped before the job has begun.
    wait::poll_until("its stop", || (state_of(&leader) == 'T').then_some(()));

    daemon.launch();

    has_run_once(&daemon, task);
    others.go_on(&daemon);
}

/// The process has copies of all descriptors that the daemon had open.
#[test]
fn r126_temporarily_unreadable_program_does_not_delay_next_daemon() {
    for pty in [None, Some(TerminalSize { rows: 24, cols: 80 })] {
        let mut daemon = durable();
        let others = Others::start(&daemon);
        let (program, task) = with_unreadable_program(&daemon, pty);
        for _ in 0..2 {
            daemon.kill9();
            daemon.launch();
            assert_eq!(daemon.task(task).status, Status::Running);
        }
        program.release();
        has_run_once(&daemon, task);
        others.go_on(&daemon);
    }
}

/// The process has a copy of the daemon's socket, to which the kernel keeps connecting clients.
#[test]
fn r01_unreadable_program_does_not_block_clients_of_killed_daemon() {
    let home = TestDaemon::builder().config("durable = true").home_only();
    home.run(&["daemon", "start"]).success();
    let (program, task) = with_unreadable_program(&home, None);
    let before = home.process();
    before.kill();
    let listed = home.run(&["--no-start", "list"]).expect_code(69);
    assert!(listed.stderr.contains("no daemon is"), "{}", listed.stderr);
    let listed = home.run(&["list", "--quiet"]).success();
    assert_eq!(listed.word::<TaskId>(), task);
    program.release();
    has_run_once(&home, task);
    let daemon = home.process();
    home.run(&["daemon", "stop", "--cancel"]).success();
    daemon.gone();
}

/// The lock still names its process; otherwise the socket, of which only a copy is left, would look like another
/// program's.
#[test]
fn r126_unreadable_program_does_not_delay_daemon_after_upgrade_from_nameless_one() {
    let mut daemon = durable();
    let nameless = params(&failing(&daemon, "nameless"));
    daemon.client().call::<DaemonUpgrade>(&nameless).expect("it is upgraded");
    let note = Note::read(&daemon.socket_path().beside("lock"));
    assert_eq!(note.pid.map(NonZeroI32::get), Some(daemon.pid()), "{note:?}");
    let (program, task) = with_unreadable_program(&daemon, None);
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.task(task).status, Status::Running);
    program.release();
    has_run_once(&daemon, task);
}

#[test]
fn r126_stopped_keeper_is_continued_by_next_daemon() {
    let mut daemon = durable();
    let others = Others::start(&daemon);
    listening_keeper(&daemon).signal(Signal::STOP).expect("a process of this user");
    daemon.kill9();
    daemon.launch();
    others.go_on(&daemon);
}

/// Connects to the keeper as a daemon does, and then does nothing.
#[track_caller]
fn stranger(path: &Path) -> OwnedFd {
    let own = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let own = own.expect("a socket");
    connect(&own, &SocketAddrUnix::new(path).expect("a short path")).expect("a keeper listens");
    own
}

#[test]
fn r126_idle_connection_to_keeper_does_not_delay_it() {
    let mut daemon = durable();
    let others = Others::start(&daemon);
    let path = keeper_socket(&daemon);
    let mut strangers = vec![stranger(&path)];
    daemon.kill9();
    strangers.push(stranger(&path));
    daemon.launch();
    strangers.push(stranger(&path));
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].exit, Some(Exit::Code(0)));
    others.go_on(&daemon);
}

/// A process that a debugger has stopped does not continue on SIGCONT.
#[test]
fn r126_no_daemon_starts_while_keeper_is_unresponsive_as_root() {
    let mut daemon = durable();
    let others = Others::start(&daemon);
    let stopped = Tracer::stop(&listening_keeper(&daemon));
    daemon.kill9();

    let failure = daemon.try_launch().expect_err("it does not start without its keeper");

    assert_eq!(failure.status.code(), Some(69), "{failure}");
    let Word::Error { exit: 69, message } = &failure.word else { panic!("{failure}") };
    assert!(
        message.contains("the keeper of running tasks") && message.contains("does not answer"),
        "{message}"
    );
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).expect("a log");
    assert!(log.lines().any(|line| line.contains("ERROR") && line.contains(message)), "{log}");
    drop(stopped);
    daemon.launch();
    others.go_on(&daemon);
}

/// The daemon's locks are free by then, but a debugger has not yet handled the end of its threads; a disk that does not
/// answer delays the end of a process as well.
#[test]
fn r126_task_is_started_once_although_killed_daemon_lingers_as_root() {
    must_be_root();
    let (programs, uid) = (Programs::copy(), unused_uid());
    // Root's next daemon would see the process that is being started, and end it.
    let build = || TestDaemon::builder().config("durable = true").prelude(programs.exec());
    let mut home = as_user(uid, || build().home_only());
    // So that nobody here has to wait for its end.
    let mut start = Command::new(programs.path().join("bgctl"));
    start.env_clear().envs(home.environment()).env("BGD_DAEMON", programs.path().join("bgd"));
    start.args(["daemon", "start"]).current_dir(home.home());
    as_user(uid, || Outcome::of(&mut start).success());
    let before = as_user(uid, || home.process());
    let mut tracer = Tracer::at_birth(&before);
    let params = SubmitParams { shell: Some(ONCE.into()), ..home.params() };
    let task = as_user(uid, || home.submit_with(&params).id);
    let born = tracer.born();
    before.signal(Signal::KILL).expect("a process of this machine");
    wait::poll_until("all of its threads have ended", || {
        let of = |thread: i32| state_in(&before.proc(&format!("task/{thread}/stat")));
        before.threads().into_iter().all(|thread| matches!(of(thread), 'Z' | 'X')).then_some(())
    });
    assert!(before.is_alive() && born.is_alive());

    as_user(uid, || home.launch());
    as_user(uid, || has_run_once(&home, task));
    drop(tracer);
    born.gone();

    as_user(uid, || {
        has_run_once(&home, task);
        drop(home);
    });
}

/// Applies this strace(1) rule to system calls of one thread of the daemon. Ends with the daemon.
#[track_caller]
pub(super) fn injected(daemon: &Process, thread: &str, rule: &str) -> Child {
    let thread = daemon.thread(thread);
    let mut strace = Command::new("strace");
    strace.args(["-o", "/dev/null", "-e", &format!("inject={rule}"), "-p", &thread.to_string()]);
    let mut strace = strace.stderr(Stdio::piped()).spawn().expect("strace");
    let said = wait::next_line(&mut BufReader::new(strace.stderr.as_mut().expect("a pipe")));
    assert!(said.contains("attached"), "{said}");
    strace
}

/// The next daemon then knows that the keeper was ended, and that something unknown to it may have begun.
#[test]
fn r126_daemon_killed_while_replacing_keeper_starts_nothing_twice_as_root() {
    must_be_root();
    for call in ["bind", "rename"] {
        let mut daemon = durable();
        let (program, task) = with_unreadable_program(&daemon, None);
        let process = daemon.process();
        let mut strace = injected(&process, "keeper", &format!("/^{call}:signal=KILL"));
        daemon.keeper().kill();
        process.gone();
        daemon.kill9();
        strace.wait().expect("a child can be waited for");

        daemon.launch();

        program.release();
        let task = daemon.block(&[task]).remove(0);
        assert_eq!(task.failure.map(|failure| failure.kind), Some(FailureKind::Lost), "at {call}");
        let ran = fs::read_to_string(daemon.home().join("ran")).unwrap_or_default();
        assert!(ran.lines().count() <= 1, "{ran}");
    }
}

/// The killed keeper had held the task until its end was written; the next keeper gets nothing of it.
#[test]
fn r126_ended_task_is_not_rerun_if_keeper_and_daemon_die_before_recording_as_root() {
    must_be_root();
    let mut daemon = durable();
    let (program, task) = with_unreadable_program(&daemon, None);
    // The journal says that the task is being started, and no more.
    let process = daemon.process();
    let mut strace = injected(&process, "journal", "/^pwrite:delay_enter=600s");
    program.release();
    wait::poll_until("it has ended", || daemon.task(task).exit.filter(|exit| *exit == Exit::Code(9)));
    let gone = daemon.keeper();
    gone.kill();
    wait::poll_until("there is another keeper", || {
        daemon.keepers().iter().any(|keeper| keeper.pid() != gone.pid()).then_some(())
    });
    // By now the daemon has noticed the end, if it ever will.
    daemon.status();
    process.signal(Signal::KILL).expect("a process of this machine");
    // strace has stopped the thread, which then ends without the write.
    strace.kill().expect("a child can be killed");
    strace.wait().expect("a child can be waited for");
    daemon.kill9();

    daemon.launch();

    let task = daemon.block(&[task]).remove(0);
    assert_eq!(task.failure.map(|failure| failure.kind), Some(FailureKind::Lost));
    assert_eq!(fs::read_to_string(daemon.home().join("ran")).expect("it ran"), "ran\n");
}
