//! R106: a running task is paused with its whole tree, and continues; whatever ends a task also ends a paused one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use bgd_tests::cgroups::Delegated;
use bgd_tests::handed::Job;
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    ClearParams, Encoding, HandoffStream, SelectParams, SignalParams, SubmitParams, TaskClear, TaskContinue,
    TaskPause, TaskSignal, TaskWrite, TerminalSize, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::upgrades::in_time;
use bgd_tests::{Process, Terminal, TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Nothing here may need SIGKILL, which would come only after an hour.
const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"";

fn select(ids: &[TaskId]) -> SelectParams {
    SelectParams { ids: ids.iter().copied().map(Into::into).collect(), ..SelectParams::default() }
}

fn pause(daemon: &TestDaemon, ids: &[TaskId]) -> Result<Vec<Task>, ClientError> {
    Ok(daemon.client().call::<TaskPause>(&select(ids))?.tasks)
}

fn go_on(daemon: &TestDaemon, ids: &[TaskId]) -> Result<Vec<Task>, ClientError> {
    Ok(daemon.client().call::<TaskContinue>(&select(ids))?.tasks)
}

/// Returns the states of the tasks' processes, by pid.
fn states(daemon: &TestDaemon) -> BTreeMap<i32, char> {
    let state = |process: Process| {
        let text = fs::read_to_string(process.proc("stat")).ok()?;
        Some((process.pid(), text.rsplit_once(") ")?.1.chars().next()?))
    };
    daemon.task_processes().into_iter().filter_map(state).collect()
}

/// Reports whether every process of the tasks is stopped by a signal.
fn all_stopped(states: &BTreeMap<i32, char>) -> bool {
    !states.is_empty() && states.values().all(|state| *state == 'T')
}

/// Opens the gate at which tasks wait, even if nobody reads from it because they are paused.
fn open_gate(daemon: &TestDaemon) -> fs::File {
    let path = daemon.home().join("gate");
    let mut gate = fs::File::options().read(true).write(true).open(path).unwrap();
    gate.write_all(b"go on\n").unwrap();
    gate
}

fn gated(daemon: &TestDaemon) {
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
}

/// A leader, a child, one in its own session, and one that has lost its parent; all record that they run.
const FAMILY: &str = "sh -c 'echo >> there; exec sleep 1000' &
    setsid sh -c 'sh -c \"echo >> there; exec sleep 1000\" & echo >> there; exec sleep 1000' &
    setsid -f sh -c 'echo >> there; exec sleep 1000'
    read x < gate; echo went on; exit 7";

fn family(daemon: &TestDaemon) -> TaskId {
    let id = daemon.submit_shell(FAMILY);
    wait::for_lines(&daemon.home().join("there"), 4, "");
    // `setsid -f` may outlive the first words of the program that it has started.
    wait::poll_until("the end of setsid", || (states(daemon).len() == 5).then_some(()));
    id
}

#[test]
fn r106_pause_stops_every_process_of_a_task_until_it_continues() {
    let daemon = TestDaemon::start();
    gated(&daemon);
    let mut watch = daemon.watch();
    let id = family(&daemon);
    let paused = pause(&daemon, &[id]).unwrap().remove(0);
    assert_eq!((paused.status, paused.paused), (Status::Running, true));
    let before = states(&daemon);
    assert!(all_stopped(&before) && before.len() == 5, "{before:?}");
    let event = watch.until(|event| event.kind == EventKind::Paused);
    assert!(event.task.paused && daemon.task(id).paused);
    // Pausing again is neither an error nor an event.
    assert!(pause(&daemon, &[id]).unwrap()[0].paused);
    let gate = open_gate(&daemon);
    assert_eq!(states(&daemon), before);
    assert_eq!(daemon.output(id), b"");

    assert!(!go_on(&daemon, &[id]).unwrap()[0].paused);
    let next = watch.until(|event| matches!(event.kind, EventKind::Paused | EventKind::Continued));
    assert_eq!((next.kind, next.task.paused), (EventKind::Continued, false));
    let task = daemon.block(&[id]).remove(0);
    drop(gate);
    assert_eq!((task.exit, daemon.output(id)), (Some(Exit::Code(7)), b"went on\n".to_vec()));
    assert!(!daemon.cancel(&[id])[0].lingering);
}

/// A stopped process takes up no descriptor.
#[test]
fn r106_pause_stops_more_processes_than_the_daemon_may_have_descriptors() {
    let daemon = TestDaemon::builder().config("tree = \"session\"").prelude("ulimit -n 64").start();
    let line = "for i in $(seq 100); do sleep 1000 & done; echo >> there; wait";
    let id = daemon.submit_shell(line);
    wait::for_lines(&daemon.home().join("there"), 1, "");
    for _ in 0..3 {
        pause(&daemon, &[id]).unwrap();
        let paused = states(&daemon);
        assert!(all_stopped(&paused) && paused.len() == 101, "{paused:?}");
        go_on(&daemon, &[id]).unwrap();
        let running = states(&daemon);
        assert!(running.values().all(|state| *state != 'T'), "{running:?}");
    }
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r106_processes_started_during_a_pause_are_stopped_too() {
    let daemon = TestDaemon::start();
    let many = "while :; do sleep 1000 & kill -9 $!; (sleep 1000 & kill -9 $!); done 2>/dev/null & ";
    let id = daemon.submit_shell(&format!("{}echo >> there; wait", many.repeat(3)));
    wait::for_lines(&daemon.home().join("there"), 1, "");
    for _ in 0..10 {
        pause(&daemon, &[id]).unwrap();
        let stopped = || states(&daemon).into_iter().filter(|(_, state)| *state != 'Z').collect();
        let before: BTreeMap<i32, char> = stopped();
        assert!(all_stopped(&before), "{before:?}");
        assert_eq!(stopped(), before);
        go_on(&daemon, &[id]).unwrap();
    }
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r106_process_stopped_before_the_pause_stays_stopped_after_it() {
    let daemon = TestDaemon::start();
    gated(&daemon);
    let id = daemon.submit_shell(
        "sh -c 'echo $$ > note.new; mv note.new note; kill -STOP $$; sleep 1000' & read x < gate",
    );
    let pid = wait::for_line(&daemon.home().join("note"), "").parse().unwrap();
    wait::poll_until("a process that stops itself", || (states(&daemon)[&pid] == 'T').then_some(()));
    pause(&daemon, &[id]).unwrap();
    pause(&daemon, &[id]).unwrap();
    assert!(all_stopped(&states(&daemon)));
    go_on(&daemon, &[id]).unwrap();
    let _gate = open_gate(&daemon);
    daemon.block(&[id]);
    assert_eq!(states(&daemon)[&pid], 'T');
    daemon.cancel(&[id]);
}

fn continues_what_has_stopped_by_itself(daemon: &TestDaemon) {
    let note = daemon.home().join("note");
    let id = daemon.submit_shell(
        "sh -c 'echo $$ > note.new; mv note.new note; kill -STOP $$; echo went on; exec sleep 1000' & wait",
    );
    let pid = wait::for_line(&note, "").parse().unwrap();
    wait::poll_until("a process that stops itself", || (states(daemon)[&pid] == 'T').then_some(()));
    // The first one ends the pause, before which the process had stopped.
    pause(daemon, &[id]).unwrap();
    go_on(daemon, &[id]).unwrap();
    assert_eq!(states(daemon)[&pid], 'T');
    assert!(!go_on(daemon, &[id]).unwrap()[0].paused);
    wait::for_line(daemon.task(id).output.path.as_ref(), "went on");
    assert!(!states(daemon).values().any(|state| *state == 'T'));
    daemon.cancel(&[id]);
}

#[test]
fn r106_continue_without_a_pause_continues_stopped_process() {
    continues_what_has_stopped_by_itself(&TestDaemon::start());
}

#[test]
fn r106_continue_without_a_pause_continues_stopped_process_in_a_cgroup_as_root() {
    let cgroup = Delegated::new();
    continues_what_has_stopped_by_itself(&cgroup.daemon(LONG_GRACE));
}

#[test]
fn r106_task_that_is_just_starting_is_stopped_when_pause_returns() {
    let daemon = TestDaemon::start();
    for _ in 0..20 {
        let id = daemon.submit_shell("exec sleep 1000");
        assert!(pause(&daemon, &[id]).unwrap()[0].paused);
        let states = states(&daemon);
        assert!(all_stopped(&states), "{states:?}");
        daemon.cancel(&[id]);
    }
}

/// Exits with 0 on SIGTERM, and prints that it did.
const WILLING: &str = "trap 'echo ended; exit 0' TERM; echo >> there; sleep 1000 & wait";

fn willing(daemon: &TestDaemon, more: SubmitParams) -> TaskId {
    let there = daemon.home().join("there");
    let _ = fs::remove_file(&there);
    let id = daemon.submit_with(&SubmitParams { shell: Some(WILLING.into()), ..more }).id;
    wait::for_lines(&there, 1, "");
    id
}

/// Reports whether the task could be paused before its time limit.
fn ends_at_limit_when_paused(daemon: &TestDaemon, limit: Duration) -> bool {
    let there = daemon.home().join("there");
    let _ = fs::remove_file(&there);
    let time_limit_ms = Some(u64::try_from(limit.as_millis()).unwrap());
    let params = SubmitParams { shell: Some(WILLING.into()), time_limit_ms, ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    let is_active = || daemon.task(id).status.is_active();
    wait::poll_until("its begin", || (there.exists() || !is_active()).then_some(()));
    let is_paused = there.exists() && pause(daemon, &[id]).is_ok_and(|tasks| tasks[0].paused);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.timed_out), (Status::Failed, true));
    if is_paused {
        assert_eq!(task.exit, Some(Exit::Code(0)));
    }
    is_paused
}

/// Any way of ending a task ends it by its first signal, paused or not.
fn ends_when_paused(daemon: &mut TestDaemon) {
    let id = willing(daemon, daemon.params());
    pause(daemon, &[id]).unwrap();
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.exit, task.paused), (Status::Cancelled, Some(Exit::Code(0)), false));
    assert_eq!(daemon.output(id), b"ended\n");

    in_time(|limit| ends_at_limit_when_paused(daemon, limit));

    let id = willing(daemon, daemon.params());
    pause(daemon, &[id]).unwrap();
    let params = ClearParams { ids: Some(vec![id.into()]), all: true, ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).unwrap().cleared, 1);

    let id = willing(daemon, daemon.params());
    pause(daemon, &[id]).unwrap();
    assert!(daemon.stop().success());
    assert!(!daemon.task_processes().iter().any(Process::is_alive));
}

#[test]
fn r106_paused_task_ends_within_its_grace() {
    ends_when_paused(&mut TestDaemon::builder().config(LONG_GRACE).start());
}

#[test]
fn r106_paused_task_in_a_cgroup_ends_within_its_grace_as_root() {
    let cgroup = Delegated::new();
    ends_when_paused(&mut cgroup.daemon(LONG_GRACE));
    assert!(cgroup.inside().is_empty());
}

#[test]
fn r106_pause_freezes_the_cgroup_of_a_task_as_root() {
    let cgroup = Delegated::new();
    let daemon = cgroup.daemon(LONG_GRACE);
    gated(&daemon);
    let id = family(&daemon);
    let own = cgroup.inside().into_iter().find(|path| path.ends_with(id.to_string())).unwrap();
    let is_frozen = || fs::read_to_string(own.join("cgroup.events")).unwrap().contains("frozen 1");
    assert!(!is_frozen());
    pause(&daemon, &[id]).unwrap();
    assert!(is_frozen());
    assert!(!all_stopped(&states(&daemon)), "no signal was needed, which they could see");
    let gate = open_gate(&daemon);
    go_on(&daemon, &[id]).unwrap();
    assert!(!is_frozen());
    assert_eq!(daemon.block(&[id])[0].exit, Some(Exit::Code(7)));
    drop(gate);
    daemon.cancel(&[id]);

    // A process that has left the cgroup is stopped by a signal.
    let away = format!("echo $$ > {}/cgroup.procs; echo >> there; exec sleep 1000", cgroup.path().display());
    let id = willing_with(&daemon, &format!("sh -c '{away}' & {WILLING}"), 2);
    pause(&daemon, &[id]).unwrap();
    let stopped = states(&daemon).into_values().filter(|state| *state == 'T').count();
    assert_eq!(stopped, 1);
    assert_eq!(daemon.cancel(&[id])[0].exit, Some(Exit::Code(0)));

    // No process is left frozen behind a leader that somebody else has killed.
    let id = willing_with(&daemon, &format!("(echo >> there; read x < gate; echo late) & {WILLING}"), 2);
    pause(&daemon, &[id]).unwrap();
    Process::open(daemon.task(id).pid.unwrap()).unwrap().kill();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.paused), (Status::Failed, false));
    let _gate = open_gate(&daemon);
    wait::for_line(task.output.path.as_ref(), "late");
    daemon.cancel(&[id]);
}

fn willing_with(daemon: &TestDaemon, line: &str, count: u64) -> TaskId {
    let there = daemon.home().join("there");
    let _ = fs::remove_file(&there);
    let id = daemon.submit_shell(line);
    wait::for_lines(&there, count, "");
    id
}

#[test]
fn r106_terminal_job_can_be_paused() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    let shell = Some("stty -echo; echo up; while read x; do echo got $x; done".into());
    let id = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() }).id;
    let path = daemon.task(id).output.path;
    wait::for_line(path.as_ref(), "up");
    pause(&daemon, &[id]).unwrap();
    let job = daemon.task(id).pid.unwrap();
    assert_eq!(states(&daemon)[&job], 'T');
    let params = WriteParams { id: id.into(), data: "word\n".into(), encoding: Encoding::Utf8, eof: false };
    daemon.client().call::<TaskWrite>(&params).unwrap();
    assert_eq!(states(&daemon)[&job], 'T');
    assert!(!String::from_utf8_lossy(&daemon.output(id)).contains("got"));
    go_on(&daemon, &[id]).unwrap();
    wait::for_line(path.as_ref(), "got word");
    pause(&daemon, &[id]).unwrap();
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r106_handed_over_job_can_be_paused() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let (mut job, reader) = Job::shell(&daemon, "echo $$; sleep 1000 & read x; echo got $x; kill $!");
    let task = job.hand_over(&mut daemon.client(), &[(HandoffStream::Stdout, reader.as_fd())]);
    drop(reader);
    wait::for_line(task.output.path.as_ref(), "");
    pause(&daemon, &[task.id]).unwrap();
    let leader = Process::open(job.pid()).unwrap();
    let state = |process: &Process| fs::read_to_string(process.proc("stat")).unwrap().contains(") T ");
    assert!(state(&leader));
    job.say("word");
    assert!(state(&leader));
    go_on(&daemon, &[task.id]).unwrap();
    assert_eq!(job.wait().code(), Some(0));
    let ended = daemon.block(&[task.id]).remove(0);
    assert_eq!(ended.status, Status::Completed);
    assert!(String::from_utf8_lossy(&daemon.output(task.id)).ends_with("got word\n"));
}

#[test]
fn r106_pause_of_a_task_that_is_not_running_fails_and_pauses_nothing() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let running = daemon.submit(&["sleep", "1000"]);
    daemon.wait_running(running);
    let pending = daemon.submit(&["true"]);
    let error = pause(&daemon, &[running, pending]).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::NotRunning));
    let ClientError::Rpc(error) = error else { panic!("{error}") };
    assert!(error.message.contains(&format!("task {pending} is pending")), "{error:?}");
    assert!(error.data.hint.as_deref().is_some_and(|hint| hint.contains("bgctl hold")), "{error:?}");
    assert!(!daemon.task(running).paused, "all or none");
    daemon.cancel(&[running]);
    daemon.block(&[pending]);
    for done in [pause(&daemon, &[pending]), go_on(&daemon, &[pending])] {
        assert_eq!(done.unwrap_err().kind(), Some(ErrorKind::NotRunning));
    }
    assert_eq!(pause(&daemon, &[TaskId::random()]).unwrap_err().kind(), Some(ErrorKind::TaskNotFound));
}

#[test]
fn r106_paused_task_keeps_its_slot() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    gated(&daemon);
    let first = daemon.submit_shell("read x < gate");
    daemon.wait_running(first);
    pause(&daemon, &[first]).unwrap();
    let second = daemon.submit(&["true"]);
    let _gate = open_gate(&daemon);
    assert_eq!(daemon.task(second).status, Status::Pending);
    go_on(&daemon, &[first]).unwrap();
    let tasks = daemon.block(&[first, second]);
    assert!(tasks[1].started_at >= tasks[0].completed_at);
}

/// A process that has stopped itself, and a leader that waits for it.
const STOPPED_ITSELF: &str =
    "sh -c 'echo $$ > note.new; mv note.new note; kill -STOP $$; echo went on' & wait";

/// A task that is sent SIGCONT while it is paused continues when its pause ends, with those that had stopped before.
fn stays_paused(daemon: &TestDaemon, is_stopped: impl Fn() -> bool) {
    for tree in [true, false] {
        let id = daemon.submit_shell(STOPPED_ITSELF);
        let note = daemon.home().join("note");
        let child: i32 = wait::for_line(&note, "").parse().unwrap();
        fs::remove_file(&note).unwrap();
        wait::poll_until("one that stops itself", || (states(daemon)[&child] == 'T').then_some(()));
        pause(daemon, &[id]).unwrap();
        assert!(is_stopped());
        let params = SignalParams { id: id.into(), signal: "CONT".into(), tree };
        daemon.client().call::<TaskSignal>(&params).unwrap();
        assert!(is_stopped() && daemon.task(id).paused);
        assert!(!go_on(daemon, &[id]).unwrap()[0].paused);
        if tree {
            assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
            assert_eq!(daemon.output(id), b"went on\n");
        } else {
            // Only the leader got the signal.
            wait::poll_until("a leader that waits", || {
                (states(daemon)[&daemon.task(id).pid.unwrap()] == 'S').then_some(())
            });
            assert_eq!(states(daemon)[&child], 'T');
            daemon.cancel(&[id]);
        }
    }
}

#[test]
fn r106_sigcont_does_not_end_a_pause() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    stays_paused(&daemon, || all_stopped(&states(&daemon)));
}

#[test]
fn r106_sigcont_does_not_end_a_pause_in_a_cgroup_as_root() {
    let cgroup = Delegated::new();
    let daemon = cgroup.daemon(LONG_GRACE);
    let is_frozen = || {
        let contents =
            cgroup.inside().into_iter().map(|path| fs::read_to_string(path.join("cgroup.events")).unwrap());
        contents.into_iter().any(|text| text.contains("frozen 1"))
    };
    stays_paused(&daemon, is_frozen);
}

#[test]
fn r106_paused_job_stays_paused_when_attached() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    let shell = Some("echo up; while read x; do echo got $x; done".into());
    let id = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() }).id;
    wait::for_line(daemon.task(id).output.path.as_ref(), "up");
    pause(&daemon, &[id]).unwrap();
    let job = daemon.task(id).pid.unwrap();
    let mut terminal = Terminal::bgctl(&daemon, &["attach", &id.to_string()]);
    terminal
        .wait_text(&format!("\nbgctl: the task is paused; `bgctl continue {}` continues it\n", id.short()));
    // It is sent once the request to continue has been answered. The terminal itself echoes it.
    terminal.type_keys("word\r");
    terminal.wait_text("\nword\n");
    terminal.type_keys("\x02");
    assert!(terminal.ended().success(), "{terminal:?}");
    assert_eq!(states(&daemon)[&job], 'T');
    go_on(&daemon, &[id]).unwrap();
    wait::for_line(daemon.task(id).output.path.as_ref(), "got word");
    daemon.cancel(&[id]);
}
