//! Processes whose first thread has ended, as after `pthread_exit` in `main`: `/proc` shows them as zombies, but their other
//! threads run (R05, R09, R11, R70, R106).
//!
//! None of these daemons has a cgroup for its tasks.

use std::fs;
use std::path::Path;

use bgd_tests::handed::Job;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    SelectParams, SubmitParams, TaskContinue, TaskPause, TaskUsage, TerminalSize, UsageParams,
};
use bgd_tests::shared::task::Status;
use bgd_tests::{Process, TestDaemon, wait};

use crate::escapes::recorded_process;

/// Nothing here may need SIGKILL, which would come only after an hour.
const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"";

/// Runs a program that records its pid, and whose first thread ends while another thread stays.
const LEADERLESS: &str = "python3 -c '
import ctypes, os, threading, time
held = b\"x\" * (64 << 20)
threading.Thread(target=time.sleep, args=(1000,)).start()
with open(\"note.new\", \"w\") as note: print(os.getpid(), file=note)
os.rename(\"note.new\", \"note\")
ctypes.CDLL(None).pthread_exit(None)'";

fn state(folder: &Path) -> Option<char> {
    fs::read_to_string(folder.join("stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Waits until that program's first thread has ended.
#[track_caller]
fn leaderless(daemon: &TestDaemon) -> Process {
    let process = recorded_process(daemon);
    wait::poll_until("the end of its first thread", || (state(&process.proc("")) == Some('Z')).then_some(()));
    assert!(process.is_alive());
    process
}

/// Returns the states of its threads that have not ended.
fn states(process: &Process) -> Vec<char> {
    let threads = process.threads().into_iter();
    let states = threads.filter_map(|thread| state(&process.proc(&format!("task/{thread}"))));
    states.filter(|state| *state != 'Z').collect()
}

/// Returns a task that has ended, and a process of this kind that it has left.
#[track_caller]
fn left(daemon: &TestDaemon) -> (TaskId, Process) {
    let id = daemon.submit_shell(&format!("setsid -f {LEADERLESS}"));
    let process = leaderless(daemon);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    (id, process)
}

#[test]
fn r05_task_whose_first_thread_has_ended_can_be_cancelled() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    assert_eq!(daemon.status().tree, "session");
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    for (pty, line) in [(None, ""), (None, "sleep 1000 & "), (pty, "")] {
        let shell = Some(format!("{line}exec {LEADERLESS}").into());
        let id = daemon.submit_with(&SubmitParams { shell, pty, ..daemon.params() }).id;
        let process = leaderless(&daemon);
        assert_eq!(daemon.wait_running(id).pid, Some(process.pid()));
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
        assert!(!process.is_alive());
    }
}

#[test]
fn r05_cancel_ends_child_whose_first_thread_has_ended() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    for line in [format!("{LEADERLESS} & wait"), format!("setsid -f {LEADERLESS}; sleep 1000")] {
        let id = daemon.submit_shell(&line);
        let process = leaderless(&daemon);
        let task = daemon.cancel(&[id]).remove(0);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
        assert!(!process.is_alive());
    }
}

#[test]
fn r05_process_whose_first_thread_has_ended_lingers_until_cancel() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let (id, process) = left(&daemon);
    assert!(!daemon.cancel(&[id])[0].lingering);
    assert!(!process.is_alive());
}

#[test]
fn r09_r11_stop_or_next_start_ends_process_whose_first_thread_has_ended() {
    let mut daemon = TestDaemon::start();
    let (_, process) = left(&daemon);
    assert!(daemon.stop().success());
    assert!(!process.is_alive());
    daemon.launch();
    let (_, process) = left(&daemon);
    daemon.kill9();
    assert!(process.is_alive());
    daemon.launch();
    assert!(!process.is_alive());
}

#[test]
fn r05_r70_handed_over_process_whose_first_thread_has_ended_can_be_cancelled() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let home = daemon.home();
    let (mut job, pipe) = Job::shell(&daemon, &format!("cd '{}'; exec {LEADERLESS}", home.display()));
    let process = leaderless(&daemon);
    let task = job.hand_over_pipe(&daemon, &pipe);
    assert_eq!(process.pid(), job.pid());
    let task = daemon.cancel(&[task.id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
    assert!(!process.is_alive());
    job.wait();
}

#[test]
fn r106_r164_process_whose_first_thread_has_ended_is_measured_and_paused() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let id = daemon.submit_shell(&format!("exec {LEADERLESS}"));
    let process = leaderless(&daemon);
    daemon.wait_running(id);
    let params = UsageParams { ids: vec![id.into()] };
    // A task that can't be measured in time is left out.
    let now =
        wait::poll_until("its usage", || daemon.client().call::<TaskUsage>(&params).unwrap().usages.pop());
    assert!(now.memory_bytes > 64 << 20, "{now:?}");
    let select = SelectParams { ids: vec![id.into()], ..SelectParams::default() };
    daemon.client().call::<TaskPause>(&select).unwrap();
    assert_eq!(states(&process), ['T']);
    daemon.client().call::<TaskContinue>(&select).unwrap();
    wait::poll_until("it goes on", || (states(&process) == ['S']).then_some(()));
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!process.is_alive());
}
