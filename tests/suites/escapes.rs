//! Whatever a child does to escape, every cancel is answered and no process is left (R05, R09, R11, R54).
//!
//! None of these daemons has a cgroup for its tasks.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    ClearParams, DaemonShutdown, SessionEnd, SessionEndParams, ShutdownParams, SubmitParams, TaskClear,
    TerminalSize,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::{Process, TestDaemon, bgctl_path, wait};
use rustix::process::Signal;

/// Starts a process in its own session, with an empty environment, without any descriptor of its task and without a
/// parent; it records its pid and stays. The task itself ends at once.
const ESCAPE: &str = "home=$PWD; setsid env -i sh -c '
    exec </dev/null >/dev/null 2>&1; cd /
    (sh -c \"echo \\$\\$ > $0/note.new; mv $0/note.new $0/note; exec sleep 1000\" &)' \"$home\" & exit 0";

/// Like [`ESCAPE`], for a process that also removes its remaining mark, but only on request.
const SHED: &str = "home=$PWD; mkfifo gate; setsid env -i sh -c '
    exec </dev/null >/dev/null 2>&1; cd /; PATH=/usr/bin:/bin
    echo $$ > $0/note.new; mv $0/note.new $0/note
    read word < $0/gate; prlimit --locks=unlimited:unlimited --pid $$; echo done > $0/shed.new
    mv $0/shed.new $0/shed; exec sleep 1000' \"$home\" & exit 0";

/// Like [`SHED`], but the task ends only once that mark is removed, so nothing has seen it.
const SHED_UNSEEN: &str = "home=$PWD; setsid env -i sh -c '
    exec </dev/null >/dev/null 2>&1; cd /; PATH=/usr/bin:/bin
    prlimit --locks=unlimited:unlimited --pid $$; echo $$ > $0/note.new; mv $0/note.new $0/note
    exec sleep 1000' \"$home\" & until [ -e note ]; do sleep 0.01; done";

#[track_caller]
pub(crate) fn recorded_process(daemon: &TestDaemon) -> Process {
    let process = daemon.recorded_process("note");
    fs::remove_file(daemon.home().join("note")).expect("the note");
    process
}

/// A finished task, and a process that has escaped from it.
#[track_caller]
fn escaped(daemon: &TestDaemon) -> (TaskId, Process) {
    let id = daemon.submit_shell(ESCAPE);
    let process = recorded_process(daemon);
    let environ = fs::read(process.proc("environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("BGD_"));
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    (id, process)
}

#[test]
fn r05_cancel_ends_escaped_process_of_finished_task() {
    let daemon = TestDaemon::start();
    assert_eq!(daemon.status().tree, "session");
    let (id, process) = escaped(&daemon);
    assert!(!daemon.cancel(&[id])[0].lingering);
    assert!(!process.is_alive());
    let (id, process) = escaped(&daemon);
    daemon.run(&["cancel", &id.to_string()]).success();
    assert!(!process.is_alive());
}

#[test]
fn r05_cancel_ends_escaped_process_of_running_task() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell(&ESCAPE.replace("& exit 0", "& sleep 1000"));
    let process = recorded_process(&daemon);
    daemon.wait_running(id);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!process.is_alive());
    // The same holds in a terminal, where the leader and the job carry the mark.
    let id = in_terminal(&daemon, &ESCAPE.replace("& exit 0", "& sleep 1000"));
    let process = recorded_process(&daemon);
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!process.is_alive());
}

#[test]
fn r10_r54_clear_and_session_end_end_escaped_processes() {
    let daemon = TestDaemon::start();
    let (id, process) = escaped(&daemon);
    let params = ClearParams { ids: Some(vec![id.into()]), ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).unwrap().cleared, 1);
    assert!(!process.is_alive());

    let submit = SubmitParams { shell: Some(ESCAPE.into()), session: Some("s:1".into()), ..daemon.params() };
    let id = daemon.submit_with(&submit).id;
    let process = recorded_process(&daemon);
    assert!(daemon.block(&[id])[0].lingering);
    let ended = daemon.client().call::<SessionEnd>(&SessionEndParams { session: "s:1".into() }).unwrap();
    assert_eq!((ended.cancelled, ended.cleared), (0, 1));
    assert!(!process.is_alive());
}

#[test]
fn r11_daemon_shutdown_ends_escaped_processes() {
    let mut daemon = TestDaemon::start();
    let (_, process) = escaped(&daemon);
    daemon.client().call::<DaemonShutdown>(&ShutdownParams::default()).unwrap();
    assert!(daemon.ended().success());
    assert!(!process.is_alive());
    daemon.launch();
    let (_, process) = escaped(&daemon);
    assert!(daemon.stop().success());
    assert!(!process.is_alive());
}

#[test]
fn r09_next_daemon_ends_escaped_process_of_killed_daemon() {
    let mut daemon = TestDaemon::start();
    let (_, process) = escaped(&daemon);
    daemon.kill9();
    assert!(process.is_alive());
    daemon.launch();
    assert!(!process.is_alive());
}

#[test]
fn r05_cancel_ends_process_that_shed_its_mark_after_being_seen() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell(SHED);
    let process = recorded_process(&daemon);
    assert!(daemon.block(&[id])[0].lingering);
    wait::for_reader(&daemon.home().join("gate"), "go\n");
    wait::for_file(&daemon.home().join("shed"));
    assert!(!daemon.cancel(&[id])[0].lingering);
    assert!(!process.is_alive());
}

/// Nothing shows the daemon any more whose process it was.
#[test]
fn r11_shutdown_ends_process_that_shed_its_mark_unseen() {
    let mut daemon = TestDaemon::start();
    let id = daemon.submit_shell(SHED_UNSEEN);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, false));
    let process = recorded_process(&daemon);
    assert!(process.is_alive());
    assert!(daemon.stop().success());
    assert!(!process.is_alive());
}

/// A debugger that holds a process and does not react: not even SIGKILL removes the process.
struct Debugger(Child);

impl Debugger {
    fn attach(process: &Process, folder: &Path) -> Self {
        let log = folder.join("strace.log");
        fs::write(&log, "").unwrap();
        let mut command = Command::new("strace");
        command.args(["-o", "/dev/null", "-p", &process.pid().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().expect("strace");
        wait::for_line(&log, "attached");
        let debugger = Self(child);
        debugger.process().signal(Signal::STOP).unwrap();
        debugger
    }

    fn process(&self) -> Process {
        Process::open(self.0.id().cast_signed()).expect("strace lives")
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn held(daemon: &TestDaemon) -> (TaskId, Process, Debugger) {
    held_task(daemon, daemon.submit(&["sleep", "1000"]))
}

fn held_task(daemon: &TestDaemon, id: TaskId) -> (TaskId, Process, Debugger) {
    let leader = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    let debugger = Debugger::attach(&leader, daemon.home());
    (id, leader, debugger)
}

#[test]
fn r05_cancel_returns_while_debugger_holds_process() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"10ms\"").start();
    let (id, leader, debugger) = held(&daemon);
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, true));
    let Some(Exit::Unknown(why)) = &task.exit else { panic!("{task:?}") };
    assert!(why.contains("after SIGKILL"), "{why}");
    // The task can be cleared in this state if it is named, and its process is gone once the debugger lets go.
    let clear = |ids| {
        let params = ClearParams { ids, ..ClearParams::default() };
        daemon.client().call::<TaskClear>(&params).unwrap().cleared
    };
    assert_eq!((clear(None), clear(Some(vec![id.into()]))), (0, 1));
    assert!(leader.is_alive());
    drop(debugger);
    leader.gone();
}

#[test]
fn r11_second_signal_ends_daemon_while_debugger_holds_process() {
    let mut daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let (_, leader, debugger) = held(&daemon);
    let process = daemon.process();
    process.signal(Signal::TERM).unwrap();
    let log = daemon.state_dir().join("bgd.log");
    wait::for_line(&log, "shutting down");
    process.signal(Signal::TERM).unwrap();
    assert!(daemon.ended().success());
    assert!(!daemon.socket().exists());
    assert!(leader.is_alive());
    drop(debugger);
    leader.gone();
}

#[test]
fn r11_single_stop_ends_while_debugger_holds_process() {
    let mut daemon = TestDaemon::builder().config("[grace]\ncancel = \"10ms\"").start();
    let (_, leader, debugger) = held(&daemon);
    assert!(daemon.stop().success());
    assert!(!daemon.socket().exists());
    assert!(leader.is_alive());
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    assert!(log.contains("some processes do not end"), "{log}");
    drop(debugger);
    leader.gone();
}

#[test]
fn r10_r54_clear_and_session_end_return_while_debugger_holds_process() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"10ms\"").start();
    let (_, first, first_debugger) = held(&daemon);
    let all = ClearParams { all: true, ..ClearParams::default() };
    daemon.client().call::<TaskClear>(&all).unwrap();
    let argv = Some(vec!["sleep".into(), "1000".into()]);
    let params = SubmitParams { argv, session: Some("s:1".into()), ..daemon.params() };
    let (_, second, second_debugger) = held_task(&daemon, daemon.submit_with(&params).id);
    let ended = daemon.client().call::<SessionEnd>(&SessionEndParams { session: "s:1".into() }).unwrap();
    assert_eq!(ended.cancelled, 1);
    assert!(first.is_alive() && second.is_alive());
    drop((first_debugger, second_debugger));
    first.gone();
    second.gone();
}

/// A submitter may have its own mark as its hard limit, which a task inherits and can't raise.
#[test]
fn r05_task_submitted_by_another_task_does_not_carry_its_mark() {
    let daemon = TestDaemon::start();
    let home = daemon.home();
    fs::write(home.join("escape"), ESCAPE).unwrap();
    let outer = daemon.submit_shell(&format!(
        "mark=$(prlimit --locks --pid $$ --output SOFT --noheadings | tr -d ' ')
        prlimit --locks=$mark:$mark --pid $$; echo $mark
        '{}' --socket '{}' submit -- sh '{}/escape'; exec sleep 1000",
        bgctl_path().display(),
        daemon.socket().display(),
        home.display()
    ));
    let process = recorded_process(&daemon);
    let said = fs::read_to_string(&daemon.wait_running(outer).output.path).unwrap();
    let limits = fs::read_to_string(process.proc("limits")).unwrap();
    let locks = limits.lines().find_map(|line| line.strip_prefix("Max file locks")).unwrap();
    let mut locks = locks.split_whitespace();
    // The highest limit that is below every mark, and its submitter's limit.
    assert_eq!([locks.next(), locks.next()], [Some("4611686018427387903"), said.lines().next()], "{said}");
    assert_eq!(daemon.cancel(&[outer])[0].status, Status::Cancelled);
    assert!(process.is_alive(), "it is of another task");
}

/// Starts a job in a terminal that runs this shell command.
fn in_terminal(daemon: &TestDaemon, line: &str) -> TaskId {
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    daemon.submit_with(&SubmitParams { shell: Some(line.into()), pty, ..daemon.params() }).id
}

#[test]
fn r05_job_that_stops_its_terminal_leader_can_be_cancelled() {
    // Nothing here may need SIGKILL, which would come only after an hour.
    let mut daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    for _ in 0..20 {
        let id = in_terminal(&daemon, "kill -STOP $PPID; echo stopped; exec sleep 1000");
        let task = daemon.wait_running(id);
        wait::for_line(Path::new(&task.output.path), "stopped");
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
        // The leader was continued, and could report how the job ended.
        assert_eq!(task.exit, Some(Exit::Signal(15)));
    }
    // While they start, too.
    for _ in 0..20 {
        let id = in_terminal(&daemon, "kill -STOP $PPID; exec sleep 1000");
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
    }
    in_terminal(&daemon, "kill -STOP $PPID; exec sleep 1000");
    assert!(daemon.stop().success());
}

#[test]
fn r04_job_that_stops_its_terminal_leader_reports_its_own_exit() {
    let daemon = TestDaemon::start();
    for _ in 0..20 {
        let id = in_terminal(&daemon, "kill -STOP $PPID; exit 3");
        let task = daemon.block(&[id]).remove(0);
        assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    }
}
