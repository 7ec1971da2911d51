//! A durable daemon (R125, R127, R128): everything it has answered for is there again after a kill.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use bgd_tests::clock::WallClock;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    DaemonUpgrade, DurableStatus, Hello, HelloParams, ListParams, SubmitParams, SubscribeParams, TaskList,
    UpgradeParams,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::user::must_be_root;
use bgd_tests::{Process, TestDaemon, Watch, wait};

#[track_caller]
fn crash(daemon: &mut TestDaemon) {
    daemon.kill9();
    daemon.launch();
}

#[test]
fn r125_acknowledged_tasks_survive_kill() {
    let mut daemon = TestDaemon::durable("");
    let before = daemon.client().call::<Hello>(&HelloParams::default()).unwrap();
    let ended = daemon.submit_shell("echo said; exit 3");
    assert_eq!(daemon.block(&[ended])[0].exit, Some(Exit::Code(3)));
    let held = daemon.run(&["submit", "--hold", "--", "echo", "later"]).success().word::<TaskId>();
    let seq = daemon.status().seq;

    crash(&mut daemon);

    let after = daemon.client().call::<Hello>(&HelloParams::default()).unwrap();
    assert_eq!(after.instance, before.instance, "ids and numbers mean the same");
    assert_ne!(after.pid, before.pid);
    assert!(daemon.status().seq >= seq, "no event number comes twice");
    assert_eq!(daemon.status().durable, Some(DurableStatus::Written));
    let task = daemon.task(ended);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    assert_eq!(daemon.output(ended), b"said\n");
    assert_eq!(daemon.task(held).status, Status::Pending);
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
    assert_eq!(daemon.output(held), b"later\n");
}

#[test]
fn r125_environments_are_stored_once_and_readable_only_by_owner() {
    let daemon = TestDaemon::durable("");
    let secret = "S".repeat(1000);
    for _ in 0..20 {
        let mut command = daemon.bgctl(&["submit", "--hold", "--", "true"]);
        assert!(command.env("SECRET", &secret).output().unwrap().status.success());
    }
    let folder = daemon.state_dir().join("journal");
    let (mut bytes, mut times) = (0, 0);
    for entry in fs::read_dir(&folder).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{:?}", entry.path());
        let text = fs::read(entry.path()).unwrap();
        bytes += text.len();
        times += String::from_utf8_lossy(&text).matches(&secret).count();
    }
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert!((1..=2).contains(&times), "in the log and in the file at most: {times} in {bytes} bytes");
}

#[test]
fn r127_waiting_tasks_keep_waiting_after_kill() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 1");
    let submit = |args: &[&str]| {
        let all = [&["submit"], args].concat();
        daemon.run(&all).success().word::<TaskId>()
    };
    let first = submit(&["--hold", "--", "true"]);
    let then = submit(&["--after", &first.to_string(), "--", "echo", "then"]);
    let late = submit(&["--in", "1h", "--", "true"]);
    daemon.run(&["group", "set", "other", "--slots", "3"]).success();
    daemon.run(&["group", "pause", "other"]).success();
    let paused = submit(&["--group", "other", "--", "true"]);
    let again = submit(&["--retry", "3", "--retry-delay", "1h", "--", "false"]);
    wait::poll_until("its first attempt has failed", || {
        Some(daemon.task(again)).filter(|task| task.attempts.len() == 1 && task.status == Status::Pending)
    });
    let notified = daemon.submit_in("session", "true");
    daemon.block(&[notified]);
    let inbox = daemon.inbox("session").len();
    assert!(inbox > 0);
    let starts = |daemon: &TestDaemon, id| daemon.task(id).waiting;
    let (late_at, again_at) = (starts(&daemon, late), starts(&daemon, again));

    crash(&mut daemon);

    assert_eq!(daemon.inbox("session").len(), inbox);
    assert_eq!((starts(&daemon, late), starts(&daemon, again)), (late_at, again_at));
    for id in [first, then, late, paused, again] {
        assert_eq!(daemon.task(id).status, Status::Pending);
    }
    let groups = daemon.run(&["group", "list", "--json"]).success();
    let text = groups.stdout_text();
    assert!(text.contains("\"other\"") && text.contains("\"slots\":3"), "{text}");
    daemon.run(&["group", "continue", "other"]).success();
    assert_eq!(daemon.block(&[paused])[0].status, Status::Completed);
    daemon.run(&["release", &first.to_string()]).success();
    assert_eq!(daemon.block(&[then])[0].status, Status::Completed);
    daemon.cancel(&[late, again]);
}

#[test]
fn r125_upgrade_keeps_journal() {
    let mut daemon = TestDaemon::durable("");
    let before = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    let after = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.run(&["release", &before.to_string()]).success();
    assert_eq!(daemon.block(&[before])[0].status, Status::Completed);
    crash(&mut daemon);
    assert_eq!(daemon.task(before).status, Status::Completed);
    assert_eq!(daemon.task(after).status, Status::Pending);
}

#[test]
fn r125_reload_and_upgrade_do_not_change_durability() {
    let mut daemon = TestDaemon::durable("");
    daemon.write_config("durable = false");
    let reload = daemon.run(&["daemon", "reload"]).success();
    assert!(reload.stdout_text().contains("durable"), "{}", reload.stdout_text());
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    assert_eq!(daemon.status().durable, Some(DurableStatus::Written));
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.write_config("durable = true");
    crash(&mut daemon);
    assert_eq!(daemon.task(held).status, Status::Pending);

    let daemon = TestDaemon::start();
    daemon.write_config("durable = true");
    daemon.run(&["daemon", "reload"]).success();
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    assert_eq!(daemon.status().durable, Some(DurableStatus::No));
    assert!(!daemon.state_dir().join("journal").exists());
}

#[test]
fn r125_output_event_numbers_are_not_reused_after_kill() {
    let mut daemon = TestDaemon::durable("");
    let mut watch = daemon.watch();
    let task = daemon.submit_shell("while :; do echo more; done");
    watch.until_kind(task, EventKind::Started);
    let seq = watch.until_kind(task, EventKind::Output).seq;
    crash(&mut daemon);
    let goes_on_after = daemon.status().seq;
    assert!(goes_on_after >= seq, "it goes on after {seq}: {goes_on_after}");
    let since = SubscribeParams { since: Some(goes_on_after), ..SubscribeParams::default() };
    let next = Watch::new(daemon.client(), &since).until_kind(task, EventKind::Output).seq;
    assert!(next > seq, "{next} after {seq}");
    daemon.cancel(&[task]);
}

#[test]
fn r127_non_durable_daemon_ends_leftovers_of_durable_one() {
    let mut daemon = TestDaemon::durable("");
    endless(&daemon);
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.kill9();
    daemon.write_config("");
    daemon.launch();
    assert!(daemon.task_processes().is_empty());
    assert!(daemon.stop().success());
    daemon.write_config("durable = true");
    daemon.launch();
    assert_eq!(daemon.task(held).status, Status::Pending, "its journal is still there");
}

#[test]
fn r125_non_durable_daemon_writes_no_journal() {
    let daemon = TestDaemon::start();
    daemon.block(&[daemon.submit(&["true"])]);
    assert!(!daemon.state_dir().join("journal").exists());
    assert_eq!(daemon.status().durable, Some(DurableStatus::No));
}

#[test]
fn r125_stopped_journal_has_no_environment_of_cleared_tasks() {
    let mut daemon = TestDaemon::durable("");
    let token = "s3cr3t-".repeat(1000);
    let env = Some([("TOKEN".into(), token.as_str().into())].into_iter().collect());
    let params = SubmitParams { argv: Some(vec!["true".into()]), env, ..daemon.params() };
    daemon.block(&[daemon.submit_with(&params).id]);
    let journal = daemon.state_dir().join("journal");
    let contains_token = || {
        let files = fs::read_dir(&journal).unwrap();
        let files = files.map(|file| fs::read(file.unwrap().path()).unwrap());
        files.into_iter().any(|bytes| bytes.windows(14).any(|part| part == b"s3cr3t-s3cr3t-"))
    };
    assert!(contains_token());
    daemon.run(&["clear", "--all-sessions"]).success();
    assert!(daemon.stop().success());
    assert!(!contains_token());
}

#[test]
fn tasks_that_a_daemon_without_durable_does_not_show_are_counted_and_come_back() {
    let mut daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let config = daemon.config_path();
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, "").unwrap();
    assert!(daemon.stop().success());
    let script = daemon.run(&["list", "-q"]).success();
    assert_eq!([script.stdout_text(), script.stderr], ["", ""], "a script has asked for nothing else");
    daemon.run(&["daemon", "stop"]).success();
    let first = daemon.run(&["daemon", "start"]).success();
    let journal = daemon.state_dir().join("journal");
    let says =
        format!("1 task from when the daemon was durable is kept in {}; to see it, set", journal.display());
    assert!(first.stderr.contains(&format!("bgctl: {says} `durable = true`")), "{}", first.stderr);
    let status = daemon.status();
    assert!(status.notes.iter().any(|note| note.starts_with(&says)), "{status:?}");
    assert!(status.warnings.iter().any(|warning| warning.starts_with(&says)), "{status:?}");
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    assert!(log.contains("which are not shown"), "{log}");
    fs::write(&config, before).unwrap();
    let again = daemon.run(&["daemon", "restart"]).success();
    assert!(!again.stderr.contains("is kept in"), "{}", again.stderr);
    assert_eq!(daemon.task(held).status, Status::Pending);
    daemon.run(&["daemon", "stop"]).success();
}

/// Makes the folder that the file `read-only` in the home names read-only for a daemon.
const READ_ONLY: &str = "if [ -e \"$HOME/read-only\" ]; then
    export READ_ONLY=\"$(cat \"$HOME/read-only\")\"
    script='mount --bind \"$READ_ONLY\" \"$READ_ONLY\" && mount -o remount,bind,ro \"$READ_ONLY\" && exec \"$0\" \"$@\"'
    exec unshare -m sh -c \"$script\" \"$0\" \"$@\" 3>&1 >/dev/null
fi";

#[test]
fn r130_daemon_refuses_to_start_on_read_only_disk_and_keeps_journal_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::builder().config("durable = true").prelude(READ_ONLY).start();
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.kill9();
    let journal = daemon.state_dir().join("journal");
    fs::write(daemon.home().join("read-only"), journal.as_os_str().as_encoded_bytes()).unwrap();

    let failure = daemon.try_launch().expect_err("it can't be durable");

    assert_eq!(failure.status.code(), Some(69), "{failure}");
    let words = failure.to_string();
    assert!(words.contains(&format!("the journal {} can't be used", journal.display())), "{words}");
    assert!(words.contains("Read-only file system"), "{words}");
    let damaged = fs::read_dir(&journal).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(damaged, 0, "it is not taken for a damaged one");

    fs::remove_file(daemon.home().join("read-only")).unwrap();
    daemon.launch();
    assert_eq!(daemon.task(held).status, Status::Pending);
}

/// Submits a task that runs until the daemon is killed. Returns once it runs.
pub fn endless(daemon: &TestDaemon) -> TaskId {
    let task = daemon.submit_shell("echo begun; exec sleep 1000");
    let output = daemon.wait_running(task).output.path;
    wait::for_line(output.as_ref(), "begun");
    task
}

#[test]
fn r127_running_task_fails_and_its_tree_ends_if_daemon_and_keeper_are_killed() {
    let mut daemon = TestDaemon::durable("");
    let ran = endless(&daemon);
    let (ended, next) =
        (daemon.submit(&["true"]), daemon.run(&["submit", "--after", &format!("{ran}:fail"), "--", "true"]));
    daemon.block(&[ended]);
    let next = next.success().word::<TaskId>();

    daemon.kill9();
    daemon.keepers().iter().for_each(Process::kill);
    daemon.launch();

    let task = daemon.task(ran);
    let why = "the daemon and the keeper were killed";
    assert_eq!((task.status, task.error.as_deref()), (Status::Failed, Some(why)));
    assert_eq!(daemon.output(ran), b"begun\n");
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed, "what waited for that goes on");
    assert!(daemon.task_processes().is_empty());
    assert_eq!(daemon.task(ended).status, Status::Completed);
}

const HOUR: i64 = 3600;

/// Returns the ids that `bgctl list -q` prints with these arguments, newest first.
fn listed(daemon: &TestDaemon, args: &[&str]) -> Vec<TaskId> {
    let list = daemon.run(&[&["list", "-q"], args].concat()).success();
    list.stdout_text().lines().map(|id| id.parse().expect("an id")).collect()
}

#[test]
fn r129_finished_tasks_survive_kills_until_they_expire() {
    let clock = WallClock::new();
    let config = "durable = true\n[history]\ndays = 2";
    let mut daemon = TestDaemon::builder().config(config).prelude(clock.prelude()).start();
    let old = daemon.submit_shell("echo old");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.block(&[old]);
    clock.set(30 * HOUR);
    let young = daemon.submit_shell("echo young");
    daemon.block(&[young]);
    crash(&mut daemon);
    assert_eq!(listed(&daemon, &[]), [young, held, old]);
    assert_eq!(daemon.output(old), b"old\n");
    let path = PathBuf::from(daemon.task(old).output.path);
    assert!(path.is_file());

    daemon.kill9();
    clock.set(49 * HOUR);
    daemon.launch();

    assert_eq!(listed(&daemon, &[]), [young, held], "what waits is not history");
    assert_eq!(daemon.output(young), b"young\n");
    wait::poll_until("its output is removed", || (!path.exists()).then_some(()));

    clock.set(79 * HOUR);
    let last = daemon.submit_shell("echo last");
    daemon.block(&[last]);
    assert_eq!(listed(&daemon, &[]), [last, held], "it goes while the daemon runs, too");
    crash(&mut daemon);
    assert_eq!(listed(&daemon, &[]), [last, held], "and does not come back");

    clock.set(-100 * HOUR);
    crash(&mut daemon);
    assert_eq!(listed(&daemon, &[]), [last, held], "nothing is older because the clock was set back");
    assert_eq!(daemon.output(last), b"last\n");
}

#[test]
fn r129_history_size_limit_removes_oldest_finished_tasks_first() {
    let mut daemon = TestDaemon::durable("[history]\nbytes = \"1MiB\"");
    let write = |kib: u32| format!("head -c {kib}K /dev/zero");
    let mut watch = daemon.watch();
    let mut all = Vec::new();
    for kib in [600, 300, 500] {
        let id = daemon.submit_shell(&write(kib));
        daemon.block(&[id]);
        all.push(id);
    }
    watch.until_kind(all[0], EventKind::Cleared);
    assert_eq!(listed(&daemon, &[]), [all[2], all[1]]);
    crash(&mut daemon);
    assert_eq!(listed(&daemon, &[]), [all[2], all[1]]);
    let mut watch = daemon.watch();
    let large = daemon.submit_shell(&write(2000));
    assert_eq!(daemon.block(&[large])[0].status, Status::Completed);
    watch.until_kind(all[2], EventKind::Cleared);
    assert_eq!(listed(&daemon, &[]), [large], "the last one stays, however large it is");
    assert_eq!(daemon.output(large).len(), 2000 << 10);
}

#[test]
fn r104_output_is_kept_while_a_pending_task_needs_it() {
    let mut daemon = TestDaemon::durable("[history]\nbytes = \"1MiB\"");
    let write = "head -c 600K /dev/zero";
    let needed = daemon.submit_shell(write);
    daemon.block(&[needed]);
    let line = r#"wc -c <"$BGD_AFTER_FILE_1""#;
    let args = ["submit", "--hold", "--after", &needed.to_string(), "--shell", line];
    let waits = daemon.run(&args).success().word::<TaskId>();
    crash(&mut daemon);
    let mut watch = daemon.watch();
    let others = [0, 1].map(|_| {
        let id = daemon.submit_shell(write);
        daemon.block(&[id]);
        id
    });
    watch.until_kind(others[0], EventKind::Cleared);
    assert_eq!(listed(&daemon, &[]), [others[1], waits, needed]);
    daemon.run(&["release", &waits.to_string()]).success();
    assert_eq!(daemon.block(&[waits])[0].status, Status::Completed);
    assert_eq!(daemon.output(waits), format!("{}\n", 600 << 10).as_bytes());
    watch.until_kind(needed, EventKind::Cleared);
    assert_eq!(listed(&daemon, &[]), [others[1], waits], "then it is history");
}

#[test]
fn r129_non_durable_daemon_ignores_history_size_limit() {
    let daemon = TestDaemon::builder().config("[history]\nbytes = \"1MiB\"").start();
    let tasks = [0, 1].map(|_| daemon.submit_shell("head -c 2M /dev/zero"));
    daemon.block(&tasks);
    assert_eq!(listed(&daemon, &[]), [tasks[1], tasks[0]]);
}

#[test]
fn r129_list_filters_by_time_and_text() {
    let clock = WallClock::new();
    let daemon = TestDaemon::builder().config("durable = true").prelude(clock.prelude()).start();
    clock.set(-5 * HOUR);
    let old = daemon.run(&["submit", "--", "echo", "the Old Build"]).success().word::<TaskId>();
    let held = daemon.run(&["submit", "--hold", "--tag", "build", "--", "true"]).success().word::<TaskId>();
    daemon.block(&[old]);
    clock.set(0);
    let described = ["submit", "--description", "Build it", "--", "false"];
    let young = daemon.run(&described).success().word::<TaskId>();
    daemon.block(&[young]);

    assert_eq!(listed(&daemon, &["--since", "4h"]), [young, held], "what has not ended is there");
    assert_eq!(listed(&daemon, &["--since", "6h"]), [young, held, old]);
    assert_eq!(listed(&daemon, &["--since", "4h", "--status", "failed"]), [young]);
    assert_eq!(listed(&daemon, &["--grep", "BUILD"]), [young, held, old]);
    assert_eq!(listed(&daemon, &["--grep", "old build"]), [old]);
    assert_eq!(listed(&daemon, &["--grep", "build", "--since", "4h", "--limit", "1"]), [young]);
    assert_eq!(listed(&daemon, &["--grep", "nothing like it"]), []);

    for (args, expected) in [
        (["--since", "soon"], "\"soon\" is not a time; use 2h (ago)"),
        (["--since", "2999-01-01"], "2999-01-01 is in the future"),
        (["--grep", ""], "the value of '--grep <TEXT>' is empty"),
    ] {
        let refused = daemon.run(&[&["list"], &args[..]].concat()).expect_code(2);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    let long = "x".repeat(5000);
    let refused = daemon.run(&["list", "--grep", &long]);
    assert!(refused.code != 0 && refused.stderr.contains("`text`"), "{}", refused.stderr);
    let params = ListParams { text: Some(String::new()), ..ListParams::default() };
    let error = daemon.client().call::<TaskList>(&params).expect_err("an empty text");
    assert!(error.to_string().contains("`text` is empty"), "{error}");
}

/// Makes the kernel refuse a daemon's journal writes until this is dropped, as on a disk that has turned read-only.
pub(super) struct ReadOnly(std::process::Child);

impl ReadOnly {
    #[track_caller]
    pub fn of(daemon: &TestDaemon) -> Self {
        let journal = daemon.state_dir().join("journal");
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-e", "trace=pwrite64,openat,ftruncate"]);
        strace.args(["-e", "inject=pwrite64,openat,ftruncate:error=EROFS", "-o", "/dev/null"]);
        for file in ["journal.db", "journal.db-wal", "probe"] {
            strace.arg("-P").arg(journal.join(file));
        }
        let mut strace =
            strace.args(["-p", &daemon.pid().to_string()]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(strace.stderr.take().unwrap());
        let is_over = |line: &String| line.is_empty() || line.contains(" attached");
        let last = std::iter::repeat_with(|| wait::next_line(&mut said)).find(is_over);
        assert!(last.is_some_and(|line| !line.is_empty()), "strace is not attached");
        // It may say more.
        std::thread::spawn(move || said.lines().for_each(drop));
        Self(strace)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let process = Process::open(self.0.id().cast_signed()).expect("strace runs");
        process.signal(rustix::process::Signal::TERM).expect("strace can be ended");
        self.0.wait().expect("strace ends");
    }
}

#[test]
fn r130_journal_turning_read_only_refuses_submits_and_keeps_running_tasks_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::durable("");
    let running = daemon.submit_shell("mkfifo go; read line < go; exit 7");
    wait::for_file(&daemon.home().join("go"));
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let known = daemon.status().summary.total();

    let read_only = ReadOnly::of(&daemon);

    for _ in 0..2 {
        let refused = daemon.run(&["submit", "--hold", "--", "true"]).expect_code(70);
        assert!(
            refused.stderr.contains("the journal can't be written: the disk is read-only"),
            "{refused:?}"
        );
    }
    assert_eq!(daemon.status().summary.total(), known, "what was refused is not there");
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("the journal can't be written (the disk is read-only)"), "{warnings}");
    wait::for_reader(&daemon.home().join("go"), "on\n");
    assert_eq!(daemon.block(&[running])[0].exit, Some(Exit::Code(7)), "it goes on to its end");
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.task(held).pid, None, "its start is held back");

    drop(read_only);

    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
    let after = wait::poll_until("a submit is accepted", || {
        let outcome = daemon.run(&["submit", "--hold", "--", "true"]);
        (outcome.code == 0).then(|| outcome.word::<TaskId>())
    });
    assert!(daemon.status().warnings.iter().all(|warning| !warning.contains("journal")));
    crash(&mut daemon);
    assert_eq!(daemon.task(running).exit, Some(Exit::Code(7)), "its end was written down after that");
    assert_eq!((daemon.task(held).status, daemon.task(after).status), (Status::Completed, Status::Pending));
    assert_eq!(daemon.status().summary.total(), known + 1);
}

#[test]
fn r131_stop_with_cancel_fails_if_stopped_daemon_left_tasks() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 1");
    let running = endless(&daemon);
    let pending = daemon.submit(&["true"]);
    daemon.stop();
    let refused = daemon.run(&["daemon", "stop", "--cancel"]).expect_code(69);
    assert!(refused.stderr.contains("may have left tasks running"), "{}", refused.stderr);
    assert_eq!(daemon.task_processes().len(), 1, "and nothing has been started");
    daemon.launch();
    daemon.run(&["daemon", "stop", "--cancel"]).success();
    assert!(daemon.ended().success());
    daemon.processes().iter().for_each(Process::gone);
    let nothing = daemon.run(&["daemon", "stop", "--cancel"]).success();
    assert_eq!(nothing.stdout_text(), "no daemon is running\n");
    daemon.launch();
    assert_eq!(daemon.task(running).status, Status::Cancelled);
    assert_eq!(daemon.block(&[pending])[0].status, Status::Completed);
}

#[test]
fn r131_second_stop_does_not_revoke_stop_with_cancel() {
    for by_signal in [false, true] {
        let mut daemon = TestDaemon::durable("[grace]\ncancel = \"1h\"");
        let id = daemon.submit_shell("trap 'echo asked' TERM; echo begun; while :; do sleep 0.1; done");
        daemon.wait_output(id, "begun");
        let task = Process::open(daemon.wait_running(id).pid.expect("it runs")).expect("it runs");
        let mut first = daemon.bgctl(&["daemon", "stop", "--cancel"]);
        let first =
            first.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bgctl");
        daemon.wait_output(id, "asked");
        let cancelled = "stopped; 1 task was cancelled\n";
        if by_signal {
            assert!(daemon.stop().success());
        } else {
            let second = daemon.run(&["daemon", "stop", "--grace", "0"]).success();
            assert_eq!(second.stdout_text(), cancelled);
            assert!(daemon.ended().success());
        }
        let first = first.wait_with_output().expect("bgctl");
        assert_eq!(String::from_utf8_lossy(&first.stdout), cancelled);
        task.gone();
    }
}

#[test]
fn r131_stop_with_cancel_leaves_pending_tasks_to_next_daemon() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 1");
    let ended = daemon.submit(&["echo", "said"]);
    daemon.block(&[ended]);
    let running = endless(&daemon);
    let pending = daemon.submit(&["echo", "next"]);
    let delayed = daemon.run(&["submit", "--in", "1h", "--", "true"]).success().word::<TaskId>();

    let stopped = daemon.run(&["daemon", "stop", "--cancel"]).success();
    assert_eq!(stopped.stdout_text(), "stopped; 1 task was cancelled\n");
    assert!(daemon.ended().success());
    // The keeper ends once it notices the end of its daemon.
    daemon.processes().iter().for_each(Process::gone);
    daemon.launch();

    let task = daemon.task(running);
    assert_eq!((task.status, task.error.as_deref()), (Status::Cancelled, Some("the daemon was shut down")));
    assert_eq!((daemon.task(ended).status, daemon.output(ended)), (Status::Completed, b"said\n".to_vec()));
    assert_eq!(daemon.block(&[pending])[0].status, Status::Completed);
    assert_eq!(daemon.output(pending), b"next\n");
    assert_eq!(daemon.task(delayed).status, Status::Pending);
}
