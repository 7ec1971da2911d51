//! Programs that cannot be started, and processes that refuse to end.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::failure::{Failure, FailureKind};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    CancelParams, ClearParams, IdParams, SubmitParams, TaskCancel, TaskClear, TaskResultOf,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::upgrades::in_time;
use bgd_tests::user::must_be_root;
use bgd_tests::{Process, Terminal, TestDaemon, executable, wait};
use rustix::process::Signal;

/// A grace period that never expires unless the test wants it to.
const LONG_GRACE: &str = "[grace]\ncancel = \"1h\"";

#[track_caller]
fn fails_with(daemon: &TestDaemon, argv: &[&str], word: &str) -> Task {
    let id = daemon.submit(argv);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, Status::Failed, "{argv:?}");
    let error = task.error.as_deref().unwrap_or_default();
    assert!(error.contains(word), "{argv:?}: {error}");
    task
}

fn script(daemon: &TestDaemon, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = daemon.home().join(name);
    executable::write(&path, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn output_path(daemon: &TestDaemon, id: TaskId) -> PathBuf {
    PathBuf::from(daemon.task(id).output.path)
}

#[test]
fn r04_program_that_cannot_start_fails_with_error_that_names_it() {
    let daemon = TestDaemon::start();
    let task =
        fails_with(&daemon, &["no-such-program-here"], "no-such-program-here: command not found in PATH");
    assert_eq!((task.pid, task.exit), (None, None));
    fails_with(&daemon, &["/no/such/program"], "/no/such/program: no such program");
    fails_with(&daemon, &["/tmp"], "/tmp: Is a directory");

    let plain = script(&daemon, "plain", "#!/bin/sh\n", 0o644);
    fails_with(&daemon, &[plain.to_str().unwrap()], "not executable (permission denied)");
    let no_interpreter = script(&daemon, "orphaned", "#!/no/such/interpreter\n", 0o755);
    fails_with(&daemon, &[no_interpreter.to_str().unwrap()], "its interpreter");
    let garbage = script(&daemon, "garbage", "\u{7f}ELF\u{1}nothing", 0o755);
    // The shell runs what has no known format, as execvp(3) has it, and can't read this.
    fails_with(&daemon, &[garbage.to_str().unwrap()], "exited with code 12");
    // The daemon is unaffected.
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
}

#[test]
fn r04_task_failure_has_kind_errno_exit_code_and_signal() {
    let daemon = TestDaemon::start();
    let plain = script(&daemon, "plain", "#!/bin/sh\n", 0o644);
    let failure = |argv: &[&str]| daemon.block(&[daemon.submit(argv)])[0].failure.clone().expect("it fails");
    let numbers = |failure: &Failure| (failure.kind, failure.errno, failure.code, failure.signal);
    for (argv, expected) in [
        (&["no-such-program-here"][..], (FailureKind::Spawn, Some(2), Some(127), None)),
        (&[plain.to_str().unwrap()], (FailureKind::Spawn, Some(13), Some(126), None)),
        (&["sh", "-c", "exit 3"], (FailureKind::Exit, None, Some(3), None)),
        (&["sh", "-c", "kill -USR1 $$"], (FailureKind::Signal, None, None, Some(10))),
    ] {
        assert_eq!(numbers(&failure(argv)), expected, "{argv:?}");
    }
    let with = |argv: &[&str]| SubmitParams {
        argv: Some(argv.iter().map(|&word| word.into()).collect()),
        ..daemon.params()
    };
    let gone = SubmitParams { cwd: Some("/no/such/folder".into()), ..with(&["true"]) };
    let task = daemon.submit_with(&gone);
    let task = daemon.block(&[task.id]).remove(0);
    let failed = task.failure.expect("it fails");
    assert_eq!(numbers(&failed), (FailureKind::Spawn, Some(2), None, None), "the program is not to blame");
    assert_eq!(Some(failed.message), task.error);
    let late = SubmitParams { time_limit_ms: Some(1), ..with(&["sleep", "1000"]) };
    let late = daemon.submit_with(&late).id;
    let late = daemon.block(&[late]).remove(0);
    assert_eq!(numbers(&late.failure.expect("it fails")), (FailureKind::Timeout, None, None, None));
    let refused = daemon.client().call::<TaskResultOf>(&IdParams { id: late.id.into() });
    let Err(ClientError::Rpc(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.data.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].failure, None);
}

#[test]
fn r04_program_is_not_found_in_path_that_ends_with_a_file() {
    let daemon = TestDaemon::start();
    let file = script(&daemon, "file", "", 0o644);
    let mut params = SubmitParams { argv: Some(vec!["no-such-program-here".into()]), ..daemon.params() };
    for path in [format!("/usr/bin:{}", file.display()), file.display().to_string()] {
        let env = params.env.take().unwrap_or_default().0;
        let rest = env.into_iter().filter(|(name, _)| &**name != "PATH");
        params.env = Some(rest.chain([("PATH".into(), path.as_str().into())]).collect());
        let failed = daemon.block(&[daemon.submit_with(&params).id])[0].failure.clone().expect("it fails");
        assert_eq!((failed.errno, failed.code), (Some(2), Some(127)), "{failed:?}");
        assert_eq!(failed.message, "no-such-program-here: command not found in PATH");
    }
    let below = format!("{}/program", file.display());
    fails_with(&daemon, &[&below], &format!("{below}: Not a directory"));
}

#[test]
fn r04_script_without_shebang_runs_in_shell() {
    let daemon = TestDaemon::start();
    let path = script(&daemon, "bare", "echo \"$0|$1\"\n", 0o755);
    let id = daemon.submit(&[path.to_str().unwrap(), "an argument"]);
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), format!("{}|an argument\n", path.display()).as_bytes());
}

#[test]
fn r04_missing_working_folder_is_named_in_error() {
    let daemon = TestDaemon::start();
    let gone = daemon.home().join("gone");
    let file = script(&daemon, "file", "", 0o644);
    for (folder, why) in [(gone, "No such file or directory"), (file, "Not a directory")] {
        let params = SubmitParams {
            argv: Some(vec!["true".into()]),
            cwd: Some(folder.as_os_str().into()),
            ..daemon.params()
        };
        let task = daemon.block(&[daemon.submit_with(&params).id]).remove(0);
        assert_eq!(task.status, Status::Failed);
        let wanted = format!("cannot enter the folder {}: {why}", folder.display());
        assert_eq!(task.error.as_deref(), Some(wanted.as_str()));
    }
}

#[test]
fn r05_child_that_ignores_sigterm_is_killed_after_grace() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"200ms\"").start();
    let id = daemon.submit_shell("trap '' TERM; echo deaf; while :; do sleep 1000; done");
    let leader = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    wait::for_line(&output_path(&daemon, id), "deaf");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Signal(9))));
    assert!(!leader.is_alive());
    assert_eq!(daemon.task_processes().len(), 0);
}

#[test]
fn r05_child_forked_after_sigterm_is_signalled_too() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let id = daemon.submit_shell("trap 'sleep 1000 & exit 0' TERM; echo up; while :; do sleep 0.01; done");
    daemon.wait_running(id);
    wait::for_line(&output_path(&daemon, id), "up");
    assert_eq!(daemon.cancel(&[id]).remove(0).status, Status::Cancelled);
    assert_eq!(daemon.task_processes().len(), 0);
}

#[test]
fn r05_child_that_swallows_sigterm_before_exec_is_signalled_again() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    // A child that is still a copy of its parent, with its handler, as every child is for a moment; and a parent that
    // waits for it. The leader's handler runs another program, which must not receive the signal.
    let script = "trap 'exec sh help' TERM
        (trap ': > swallowed' TERM
         (trap ': > told' TERM; echo up; until [ -e told ]; do :; done; exec sleep 1000)
         : > waited_for) & while :; do wait; done";
    fs::write(daemon.home().join("help"), "until [ -e waited_for ]; do sleep 0.01; done; echo done > tidied")
        .unwrap();
    let id = daemon.submit_shell(script);
    wait::for_line(&output_path(&daemon, id), "up");
    assert_eq!(daemon.cancel(&[id]).remove(0).status, Status::Cancelled);
    assert!(daemon.home().join("told").exists() && daemon.home().join("tidied").exists());
    assert_eq!(daemon.task_processes().len(), 0);
}

#[test]
fn r05_sigterm_handler_may_start_helpers_for_cleanup() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let script = "trap 'sh help; exit 0' TERM; echo up > child; while :; do sleep 0.01; done";
    fs::write(daemon.home().join("tidy"), script).unwrap();
    let help = "echo up > helps; until [ -e go ]; do sleep 0.01; done; echo done > tidied";
    fs::write(daemon.home().join("help"), help).unwrap();
    let id = daemon.submit_shell("sh tidy & wait");
    let leader = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    wait::for_file(&daemon.home().join("child"));
    let mut client = daemon.client();
    let cancel = thread::spawn(move || {
        client.call::<TaskCancel>(&CancelParams { ids: vec![id.into()], ..CancelParams::default() })
    });
    leader.gone();
    wait::for_file(&daemon.home().join("helps"));
    fs::write(daemon.home().join("go"), "").unwrap();
    cancel.join().unwrap().unwrap();
    assert!(daemon.home().join("tidied").exists());
}

#[test]
fn r05_cancel_ends_children_that_fork_away_or_leave_the_session() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let id = daemon.submit_shell(
        "(sh -c 'echo $$ > forked; exec sleep 1000' &)
         setsid -f sh -c 'echo $$ > session; exec sleep 1000'
         (setsid sh -c '(setsid sh -c \"echo \\$\\$ > both; exec sleep 1000\" &)' &)
         sleep 1000",
    );
    let away = ["forked", "session", "both"].map(|name| daemon.recorded_process(name));
    let leader = daemon.wait_running(id).pid.unwrap();
    assert_eq!(daemon.task(id).status, Status::Running);
    assert!(away.iter().all(Process::is_alive));
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!(task.status, Status::Cancelled);
    // All are dead by the time cancel answers, not some time later.
    assert!(away.iter().all(|process| !process.is_alive()), "{away:?}");
    assert!(Process::open(leader).is_none_or(|leader| !leader.is_alive()));
}

#[test]
fn r05_cancel_ends_child_that_closed_its_output() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let id = daemon.submit_shell("echo before; exec >&- 2>&- <&-; echo $$ > note; sleep 1000");
    let shell = daemon.recorded_process("note");
    let task = daemon.task(id);
    assert_eq!((task.status, task.progress.last_line.as_deref()), (Status::Running, Some("before")));
    assert_eq!(daemon.cancel(&[id])[0].status, Status::Cancelled);
    assert!(!shell.is_alive());
    assert_eq!(daemon.output(id), b"before\n");
}

#[test]
fn r05_cancel_ends_stopped_child_within_grace() {
    let daemon = TestDaemon::builder().config(LONG_GRACE).start();
    // A second process reports when the first one has really stopped.
    let id = daemon.submit_shell(
        "(until grep -q '^State:.T' /proc/$$/status; do :; done; echo stopped > flag) & kill -STOP $$; sleep 1000",
    );
    wait::for_line(&daemon.home().join("flag"), "stopped");
    let task = daemon.task(id);
    assert_eq!(task.status, Status::Running);
    let task = daemon.cancel(&[task.id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Signal(15))));
}

fn lingering(daemon: &TestDaemon) -> (TaskId, Process) {
    let id = daemon
        .submit_shell("setsid -f sh -c 'echo $$ > note.new; mv note.new note; exec sleep 1000'; echo done");
    let child = daemon.recorded_process("note");
    fs::remove_file(daemon.home().join("note")).unwrap();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.exit, task.lingering), (Status::Completed, Some(Exit::Code(0)), true));
    (id, child)
}

#[test]
fn r06_lingering_process_is_shown_and_ended_by_cancel_clear_and_shutdown() {
    let mut daemon = TestDaemon::builder().config(LONG_GRACE).start();
    let (id, child) = lingering(&daemon);
    let page = daemon.run(&["status", &id.to_string()]).success().stdout_text();
    assert!(page.contains("its main process has ended, but others are still running"), "{page}");
    let task = daemon.cancel(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, false));
    assert!(!child.is_alive());

    let (id, child) = lingering(&daemon);
    let params = ClearParams { ids: Some(vec![id.into()]), ..ClearParams::default() };
    assert_eq!(daemon.client().call::<TaskClear>(&params).unwrap().cleared, 1);
    child.gone();

    let (_, child) = lingering(&daemon);
    assert!(daemon.stop().success());
    assert!(!child.is_alive());
}

#[test]
fn r20_output_continues_while_children_of_ended_leader_hold_it() {
    let daemon = TestDaemon::start();
    let fifo = daemon.home().join("fifo");
    let id = daemon.submit_shell("mkfifo fifo; (read word < fifo; echo \"late $word\") & echo first");
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Completed, true));
    wait::for_reader(&fifo, "word\n");
    wait::for_line(&output_path(&daemon, id), "late");
    let said = daemon.run(&["output", "--follow", &id.to_string()]).success();
    assert_eq!(said.stdout_text(), "first\nlate word\n");
    wait::poll_until("the end of its children", || (!daemon.task(id).lingering).then_some(()));
}

#[test]
fn r04_task_fails_when_its_leader_is_killed_externally() {
    let daemon = TestDaemon::start();
    let id = daemon.submit_shell("sleep 1000 & echo $! > note; wait");
    let child = daemon.recorded_process("note");
    let leader = Process::open(daemon.wait_running(id).pid.unwrap()).unwrap();
    leader.signal(Signal::KILL).unwrap();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Signal(9))));
    assert_eq!(task.error.as_deref(), Some("ended by signal 9 (SIGKILL)"));
    assert!(task.lingering && child.is_alive());
    assert!(!daemon.cancel(&[id])[0].lingering);
    assert!(!child.is_alive());
}

#[test]
fn r20_gigabyte_line_does_not_grow_daemon_memory() {
    const COUNT: u64 = 1_000_000_000;
    let daemon = TestDaemon::start();
    let process = daemon.process();
    let idle = process.status_value("VmHWM").unwrap();
    let id = daemon.submit_shell(&format!("head -c {COUNT} /dev/zero | tr '\\0' x"));
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.output.bytes), (Status::Completed, COUNT));
    let task = daemon.task(id);
    assert_eq!(task.progress.last_line, Some("x".repeat(200)));
    assert_eq!(daemon.run(&["output", "--tail", "1", &id.to_string()]).success().stdout.len() as u64, COUNT);

    let mut command = daemon.bgctl(&["output", &id.to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut count = 0;
    loop {
        let read = pipe.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        assert!(buffer[..read].iter().all(|byte| *byte == b'x'));
        count += read as u64;
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(count, COUNT);
    let most = process.status_value("VmHWM").unwrap();
    assert!(most < idle + 8 * 1024, "{idle} kB grew to {most} kB");
}

#[test]
fn r20_non_utf8_output_is_returned_byte_for_byte() {
    let daemon = TestDaemon::start();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_003).chain(*b"\nend \xff\xfe\n").collect();
    fs::write(daemon.home().join("bytes"), &bytes).unwrap();
    let id = daemon.submit(&["cat", "bytes"]);
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), bytes);
    assert_eq!(daemon.run(&["output", &id.to_string()]).success().stdout, bytes);
    assert_eq!(daemon.run(&["output", "--result", &id.to_string()]).success().stdout, bytes);
    let last = daemon.task(id).progress.last_line.unwrap();
    assert_eq!(last, "end \u{fffd}\u{fffd}");
    // The list of tasks and the page of a task are valid text nevertheless.
    assert!(Path::new(&daemon.task(id).output.path).exists());
    assert!(daemon.run(&["status", &id.to_string()]).success().stdout_text().contains("end"));
}

/// As when the machine has more to do than it can.
#[test]
fn run_that_ended_in_time_while_its_daemon_stood_still_has_not_timed_out() {
    let daemon = TestDaemon::start();
    in_time(|limit| {
        let begun = Instant::now();
        let _ = fs::remove_file(daemon.home().join("go"));
        let params = SubmitParams {
            shell: Some("until [ -e go ]; do sleep 0.02; done".into()),
            time_limit_ms: u64::try_from(limit.as_millis()).ok(),
            ..daemon.params()
        };
        let task = daemon.submit_with(&params).id;
        let job = daemon.wait_running_in_time(task).and_then(|task| Process::open(task.pid?));
        let process = daemon.process();
        process.signal(Signal::STOP).unwrap();
        let job = job.filter(|_| begun.elapsed() < limit);
        let is_in_time = job.is_some();
        fs::write(daemon.home().join("go"), "").unwrap();
        if let Some(job) = job {
            job.gone();
            wait::poll_until("the time to pass", || (begun.elapsed() > limit).then_some(()));
        }
        process.signal(Signal::CONT).unwrap();
        let ended = daemon.block(&[task]);
        assert!(!is_in_time || ended[0].status == Status::Completed, "{ended:?}");
        is_in_time
    });
}

/// As in a container without it: nothing shows which processes belong to a task.
#[test]
fn status_and_cancel_say_that_processes_may_be_left_if_the_daemon_cannot_read_proc_as_root() {
    must_be_root();
    let hide = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let prelude = format!("exec unshare --mount sh -c '{hide}' \"$0\" \"$@\" 3>&1 >/dev/null");
    let hidden = TestDaemon::builder().prelude(prelude).start();
    let warnings = hidden.status().warnings;
    assert!(warnings.iter().any(|text| text.starts_with("/proc can't be read")), "{warnings:?}");
    // The client can read it in both cases.
    let cancel = |daemon: &TestDaemon| {
        let id = daemon.submit(&["sleep", "1000"]).to_string();
        let mut terminal = Terminal::bgctl(daemon, &["cancel", &id]);
        assert!(terminal.ended().success());
        let screen = terminal.screen();
        assert!(screen.contains(&format!("{id} cancelled")), "{screen}");
        screen
    };
    let screen = cancel(&hidden);
    assert!(screen.contains("warning: /proc can't be read"), "{screen}");
    let screen = cancel(&TestDaemon::start());
    assert!(!screen.contains("warning"), "{screen}");
}
