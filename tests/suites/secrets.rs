//! Data that passes through the daemon's memory stays no longer than needed, and no other program of the user can read
//! it: environments, and prompts of cleared tasks.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use bgd_shared::id::TaskId;
use bgd_shared::request::{
    ClearParams, DaemonReload, NoParams, SubmitParams, TaskClear, TaskSubmit, TerminalSize,
};
use bgd_shared::task::{Status, Task};
use bgd_shared::text::Env;
use bgd_tests::user::{Programs, as_user, must_be_root, unused_uid};
use bgd_tests::{Process, TestDaemon};
use nix::sys::signal::Signal;

/// Keeps no environment for a rerun.
const NONE_KEPT: &str = "[limits]\nenvironments = \"0B\"";

/// The harness's environment plus a secret, both verbatim and in a form that JSON has to escape.
fn with_secret(daemon: &TestDaemon, secret: &str) -> SubmitParams {
    let params = daemon.params();
    let own = params.env.clone().unwrap_or_default();
    let key = format!("-----BEGIN KEY-----\n\"{secret}\"\n-----END KEY-----\n");
    let bytes = [secret.as_bytes(), &[0xff]].concat();
    let secrets = [("TOKEN", secret.as_bytes().to_vec()), ("KEY", key.into_bytes()), ("BYTES", bytes)];
    let added = secrets.into_iter().map(|(name, value)| (name.into(), value.into()));
    let env: Env = own.0.iter().cloned().chain(added).collect();
    SubmitParams { env: Some(env), ..params }
}

/// Returns a text that exists nowhere yet. Its first half alone reveals nothing.
fn secret() -> String {
    format!("secret-{}", TaskId::random())
}

#[track_caller]
fn ended(daemon: &TestDaemon, params: &SubmitParams) -> Task {
    let id = daemon.submit_with(params).id;
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, Status::Completed, "{task:?}");
    task
}

#[track_caller]
fn clear(daemon: &TestDaemon) {
    daemon.client().call::<TaskClear>(&ClearParams::default()).unwrap();
}

#[test]
fn environment_is_wiped_once_task_has_started_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config(NONE_KEPT).start();
    let process = daemon.process();
    let secret = secret();
    let params = SubmitParams { shell: Some("test -n \"$TOKEN\"".into()), ..with_secret(&daemon, &secret) };
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    for params in
        [params.clone(), SubmitParams { split: true, ..params.clone() }, SubmitParams { pty, ..params }]
    {
        ended(&daemon, &params);
        assert_eq!(process.remembers(&secret), 0, "{params:?}");
    }
    clear(&daemon);
    assert_eq!(process.remembers(&secret), 0, "all is cleared");
}

#[test]
fn r116_environment_kept_for_rerun_is_wiped_with_its_task_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let process = daemon.process();
    let secret = secret();
    ended(
        &daemon,
        &SubmitParams { shell: Some("test -n \"$TOKEN\"".into()), ..with_secret(&daemon, &secret) },
    );
    assert!(process.remembers(&secret) > 0, "it can be run again");
    daemon.write_config(NONE_KEPT);
    daemon.client().call::<DaemonReload>(&NoParams {}).expect("daemon.reload");
    assert_eq!(process.remembers(&secret), 0, "none is kept any more");
    daemon.write_config("");
    daemon.client().call::<DaemonReload>(&NoParams {}).expect("daemon.reload");
    ended(
        &daemon,
        &SubmitParams { shell: Some("test -n \"$TOKEN\"".into()), ..with_secret(&daemon, &secret) },
    );
    assert!(process.remembers(&secret) > 0, "it can be run again");
    clear(&daemon);
    assert_eq!(process.remembers(&secret), 0, "all is cleared");
}

#[test]
fn terminal_leader_keeps_nothing_of_job_environment_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config(NONE_KEPT).start();
    let secret = secret();
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    let params = SubmitParams { shell: Some("sleep 1000".into()), pty, ..with_secret(&daemon, &secret) };
    let id = daemon.submit_with(&params).id;
    daemon.wait_running(id);
    let processes = daemon.task_processes();
    let leaders: Vec<&Process> =
        processes.iter().filter(|process| process.cmdline().contains("--terminal-leader")).collect();
    assert_eq!(leaders.len(), 1, "{processes:?}");
    assert_eq!(leaders[0].remembers(&secret), 0);
    assert_eq!(daemon.process().remembers(&secret), 0);
    daemon.cancel(&[id]);
}

#[test]
fn environment_of_cancelled_or_refused_task_is_wiped_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n[limits]\ntasks = 2").start();
    let process = daemon.process();
    let secret = secret();
    let first = daemon.submit(&["sleep", "1000"]);
    let params = SubmitParams { shell: Some("true".into()), ..with_secret(&daemon, &secret) };
    let waiting = daemon.submit_with(&params).id;
    assert!(process.remembers(&secret) > 0, "it is needed yet");
    daemon.client().call::<TaskSubmit>(&params).expect_err("there are two");
    daemon.cancel(&[waiting]);
    clear(&daemon);
    assert_eq!(process.remembers(&secret), 0);
    daemon.cancel(&[first]);
}

#[test]
fn other_programs_of_user_cannot_read_daemon_memory_as_root() {
    let programs = Programs::copy();
    as_user(unused_uid(), || {
        let daemon = TestDaemon::builder().prelude(programs.exec()).start();
        let id = daemon.submit(&["sleep", "1000"]);
        let task = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
        for file in ["mem", "environ"] {
            let refused = fs::File::open(daemon.process().proc(file)).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{file}: {refused}");
            // The daemon's tasks are as accessible as programs that a shell starts.
            fs::File::open(task.proc(file)).unwrap();
        }
        daemon.cancel(&[id]);
    });
}

#[test]
fn daemon_killed_by_sigquit_leaves_no_core_file_as_root() {
    must_be_root();
    let may_leave = "cd \"$HOME\"; ulimit -c unlimited";
    let home = tempfile::tempdir().unwrap();
    let mut other = Command::new("sh");
    other.args(["-c", &format!("{may_leave}; kill -QUIT $$")]).env("HOME", home.path());
    assert!(other.status().unwrap().core_dumped(), "this machine lets others leave one");
    let mut daemon = TestDaemon::builder().prelude(may_leave).start();
    let status = daemon.kill_by(Signal::SIGQUIT);
    assert_eq!((status.signal(), status.core_dumped()), (Some(Signal::SIGQUIT as i32), false));
}
