//! R62: a job that a key stops as its last viewer leaves continues, as nobody is left to continue it. One that somebody
//! else stops stays stopped.

use std::fs;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    DetachParams, SelectParams, SignalParams, SubmitParams, TaskContinue, TaskDetach, TaskPause, TaskSignal,
};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::upgrades::upgrade_under_load;
use bgd_tests::{TestDaemon, Viewer, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Stops once the key has come and the gate is open; ends once it is continued. If the gate opens so late that the
/// daemon may no longer wait for the stop, it ends without one. Perl blocks the signal in its handler, so the stop
/// comes when that returns.
const STOPS_LATE: &str = "perl -e '
    $| = 1;
    $SIG{TSTP} = sub {
        $began = time; print \"stopping\\n\"; open(GATE, \"<\", \"gate\");
        if (time - $began > 1) { print \"too late\\n\"; exit }
        $SIG{TSTP} = \"DEFAULT\"; kill TSTP => $$; $stops = 1
    };
    print \"ready\\n\"; select undef, undef, undef, 0.02 until $stops; print \"goes on\\n\"'";

/// Ends once it is continued.
const SAYS_GOES_ON: &str = "perl -e '$| = 1; $SIG{CONT} = sub { print \"goes on\\n\"; exit };
    print \"ready\\n\"; select undef, undef, undef, 0.02 while 1'";

fn moves(daemon: &TestDaemon, viewer: &mut Viewer, id: TaskId) {
    viewer.call::<TaskDetach>(&DetachParams { id: id.into(), background: true });
    assert!(!daemon.task(id).foreground);
}

fn with_gate() -> TestDaemon {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    daemon
}

/// Lets a job stop, and waits until it has continued to its end. Returns false if the gate was opened too late.
#[track_caller]
fn stops_and_goes_on(daemon: &TestDaemon, id: TaskId) -> bool {
    wait::for_reader(&daemon.home().join("gate"), "");
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    let output = String::from_utf8(daemon.output(id)).unwrap();
    let is_in_time = output.ends_with("goes on\r\n");
    assert!(is_in_time || output.ends_with("too late\r\n"), "{output}");
    is_in_time
}

/// Tries until a job stops in time, which it may not on a busy machine.
#[track_caller]
fn in_time(mut attempt: impl FnMut() -> bool) {
    wait::poll_until("a job that stops in time", || attempt().then_some(()));
}

/// Runs this line, and moves it to the background after Ctrl-Z but before it stops.
#[track_caller]
fn moves_before_it_stops(daemon: &TestDaemon, line: &str) -> (Viewer, TaskId) {
    let (mut viewer, task) = Viewer::run(daemon, &daemon.in_terminal(line));
    viewer.until_shown("ready");
    viewer.type_keys(task.id, "\x1a");
    viewer.until_shown("stopping");
    moves(daemon, &mut viewer, task.id);
    (viewer, task.id)
}

#[test]
fn r62_job_that_stops_after_backgrounding_is_continued() {
    let daemon = with_gate();
    // Alone, and in a shell that stops before it does.
    for line in [format!("exec {STOPS_LATE}"), format!("{STOPS_LATE}; exit $?")] {
        in_time(|| {
            let (_viewer, task) = moves_before_it_stops(&daemon, &line);
            stops_and_goes_on(&daemon, task)
        });
    }
}

#[test]
fn r62_job_that_stops_after_backgrounding_is_continued_though_a_viewer_looks() {
    let daemon = with_gate();
    in_time(|| {
        let (_viewer, task) = moves_before_it_stops(&daemon, STOPS_LATE);
        // As `top` does for its preview: it would not continue the job.
        let mut looks = Viewer::attach(&daemon, task, None);
        looks.until_seen("stopping");
        stops_and_goes_on(&daemon, task)
    });
}

#[test]
fn r62_job_that_a_new_viewer_stops_stays_stopped() {
    let daemon = with_gate();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("exec sleep 1000"));
    let job = daemon.wait_running(task.id);
    viewer.type_keys(task.id, "x");
    moves(&daemon, &mut viewer, task.id);
    let mut types = Viewer::attach(&daemon, task.id, None);
    types.type_keys(task.id, "\x1a");
    types.until("a stopped job", |viewer| viewer.stops == 1);
    stays_stopped(&daemon, &job);
    daemon.cancel(&[task.id]);
}

#[test]
fn r62_job_stopped_before_backgrounding_is_continued() {
    let daemon = with_gate();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal(SAYS_GOES_ON));
    viewer.until_shown("ready");
    viewer.type_keys(task.id, "\x1a");
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    moves(&daemon, &mut viewer, task.id);
    assert_eq!(daemon.block(&[task.id])[0].status, Status::Completed);
}

#[test]
fn r62_job_that_stops_after_backgrounding_is_continued_after_upgrade() {
    let daemon = with_gate();
    in_time(|| {
        let (_viewer, task) = moves_before_it_stops(&daemon, STOPS_LATE);
        upgrade_under_load(&daemon);
        stops_and_goes_on(&daemon, task)
    });
}

#[test]
fn task_that_stops_after_typing_viewer_left_is_continued() {
    let daemon = with_gate();
    let params = SubmitParams { foreground: false, ..daemon.in_terminal(STOPS_LATE) };
    let attempt = |leaves: bool| {
        let id = daemon.submit_with(&params).id;
        // A viewer that only looks, as `top` does, continues nothing.
        let mut looks = Viewer::attach(&daemon, id, None);
        looks.until_seen("ready");
        let mut types = Viewer::attach(&daemon, id, None);
        types.type_keys(id, "\x1a");
        types.until_seen("stopping");
        if leaves {
            types.call::<TaskDetach>(&DetachParams { id: id.into(), background: false });
        } else {
            // A child that another test is starting may keep the connection open until after the stop; then the job is
            // continued when the connection ends.
            drop(types);
            daemon.run(&["list"]).success();
        }
        stops_and_goes_on(&daemon, id)
    };
    for leaves in [false, true] {
        in_time(|| attempt(leaves));
    }
}

#[test]
fn r142_stopped_job_that_stays_is_continued_when_its_client_is_gone() {
    let daemon = with_gate();
    let params = SubmitParams { stays: true, ..daemon.in_terminal(SAYS_GOES_ON) };
    let (mut viewer, task) = Viewer::run(&daemon, &params);
    viewer.until_shown("ready");
    viewer.type_keys(task.id, "\x1a");
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    drop(viewer);
    assert_eq!(daemon.block(&[task.id])[0].status, Status::Completed);
    assert!(String::from_utf8(daemon.output(task.id)).unwrap().ends_with("goes on\r\n"));
}

#[test]
fn r121_job_stopped_by_viewer_is_continued_if_that_leaves_after_upgrade() {
    let daemon = with_gate();
    let params = SubmitParams { foreground: false, ..daemon.in_terminal(SAYS_GOES_ON) };
    for leaves in [false, true] {
        let id = daemon.submit_with(&params).id;
        let mut viewer = Viewer::attach(&daemon, id, None);
        viewer.until_seen("ready");
        viewer.type_keys(id, "\x1a");
        viewer.until("a stopped job", |viewer| viewer.stops == 1);
        upgrade_under_load(&daemon);
        if leaves {
            viewer.call::<TaskDetach>(&DetachParams { id: id.into(), background: false });
        } else {
            drop(viewer);
        }
        assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    }
}

/// Returns the state of a task's process, as in `/proc`.
#[track_caller]
fn state(task: &Task) -> char {
    let text = fs::read_to_string(format!("/proc/{}/stat", task.pid.expect("it runs"))).expect("a process");
    text.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next()).expect("a state")
}

/// Asserts that a job is stopped, and stays stopped for as long as it takes another job to be continued.
#[track_caller]
fn stays_stopped(daemon: &TestDaemon, job: &Task) {
    wait::poll_until("a stopped job", || (state(job) == 'T').then_some(()));
    in_time(|| {
        let (_viewer, other) = moves_before_it_stops(daemon, STOPS_LATE);
        stops_and_goes_on(daemon, other)
    });
    assert_eq!(state(job), 'T');
}

#[test]
fn job_stopped_by_signal_request_after_backgrounding_stays_stopped() {
    let daemon = with_gate();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("exec sleep 1000"));
    let job = daemon.wait_running(task.id);
    moves(&daemon, &mut viewer, task.id);
    let stop = SignalParams { id: task.id.into(), signal: "TSTP".into(), tree: true };
    viewer.call::<TaskSignal>(&stop);
    stays_stopped(&daemon, &job);
    daemon.cancel(&[task.id]);
}

#[test]
fn r106_paused_job_stays_paused_when_backgrounded() {
    let daemon = with_gate();
    let (mut viewer, task) = Viewer::run(&daemon, &daemon.in_terminal("exec sleep 1000"));
    let job = daemon.wait_running(task.id);
    let select = SelectParams { ids: vec![task.id.into()], ..SelectParams::default() };
    viewer.call::<TaskPause>(&select);
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    moves(&daemon, &mut viewer, task.id);
    stays_stopped(&daemon, &job);
    daemon.cancel(&[task.id]);
}

#[test]
fn r106_job_stopped_by_viewer_before_pause_continues_with_the_task() {
    let daemon = with_gate();
    let params = SubmitParams { foreground: false, ..daemon.in_terminal(SAYS_GOES_ON) };
    let id = daemon.submit_with(&params).id;
    let mut viewer = Viewer::attach(&daemon, id, None);
    viewer.until_seen("ready");
    viewer.type_keys(id, "\x1a");
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    let select = SelectParams { ids: vec![id.into()], ..SelectParams::default() };
    let mut client = daemon.client();
    client.call::<TaskPause>(&select).unwrap();
    drop(viewer);
    stays_stopped(&daemon, &daemon.task(id));
    client.call::<TaskContinue>(&select).unwrap();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
}
