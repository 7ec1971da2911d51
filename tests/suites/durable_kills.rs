//! A durable daemon that is killed (R126): running tasks continue, and exits are known even if they happened meanwhile.

use std::fs;
use std::path::PathBuf;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::proc;
use bgd_tests::shared::request::{
    DaemonUpgrade, Encoding, EventsSubscribe, Stdin, SubmitParams, SubscribeParams, TaskSubmit, TaskWrite,
    TerminalSize, UpgradeParams, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::{Process, TestDaemon, Viewer, wait};
use rustix::process::Resource;

#[track_caller]
fn process(daemon: &TestDaemon, task: TaskId) -> Process {
    let pid = daemon.wait_running(task).pid.expect("a running task has a process");
    Process::open(pid).expect("it runs")
}

/// Returns a script that waits for a file in the home, and its path.
fn waits_for(daemon: &TestDaemon, name: &str) -> (String, PathBuf) {
    (format!("until [ -e \"$HOME/{name}\" ]; do sleep 0.02; done"), daemon.home().join(name))
}

#[test]
fn r126_running_tasks_survive_kill_and_their_exits_are_known() {
    let mut daemon = TestDaemon::durable("");
    let (first, first_file) = waits_for(&daemon, "first");
    let (second, second_file) = waits_for(&daemon, "second");
    let ended = daemon.submit_shell(&format!("echo begun; {first}; echo over; exit 7"));
    let killed = daemon.submit_shell("exec sleep 1000");
    let goes_on = daemon.submit_shell(&format!("echo begun; {second}; echo over; exit 3"));
    let next = daemon.run(&["submit", "--after", &format!("{goes_on}:fail"), "--", "echo", "next"]);
    let next = next.success().word::<TaskId>();
    let (one, two) = (process(&daemon, ended), process(&daemon, killed));
    let three = daemon.wait_running(goes_on);
    // The daemon answers once everything before it is in the journal.
    daemon.run(&["submit", "--hold", "--", "true"]).success();

    daemon.kill9();
    fs::write(first_file, "").unwrap();
    one.gone();
    two.kill();
    daemon.launch();

    let all = daemon.block(&[ended, killed]);
    assert_eq!((all[0].status, &all[0].exit), (Status::Failed, &Some(Exit::Code(7))));
    assert_eq!((all[1].status, &all[1].exit), (Status::Failed, &Some(Exit::Signal(9))));
    assert_eq!(daemon.output(ended), b"begun\nover\n");
    let task = daemon.task(goes_on);
    assert_eq!((task.status, task.pid, task.started_at), (Status::Running, three.pid, three.started_at));
    fs::write(second_file, "").unwrap();
    let task = daemon.block(&[goes_on]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(3))));
    assert_eq!(daemon.output(goes_on), b"begun\nover\n");
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
}

#[test]
fn r126_twenty_kills_lose_no_task_and_start_none_twice() {
    loses_nothing(Submit::Plainly, TestDaemon::kill9);
}

#[test]
fn r126_twenty_kills_lose_no_terminal_job_and_start_none_twice() {
    loses_nothing(Submit::InTerminals, TestDaemon::kill9);
}

/// This includes tasks that are just being started.
#[test]
fn r131_twenty_stops_lose_no_task_and_start_none_twice() {
    loses_nothing(Submit::Plainly, |daemon| assert!(daemon.stop().success()));
}

#[test]
fn r131_twenty_stops_lose_no_terminal_job_and_start_none_twice() {
    loses_nothing(Submit::InTerminals, |daemon| assert!(daemon.stop().success()));
}

/// A replacement keeper does not have everything at once.
#[test]
fn r126_kill_loses_nothing_after_earlier_kill_of_daemon_and_keeper() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 4");
    for round in 0..10 {
        daemon.keeper().kill();
        daemon.kill9();
        daemon.launch();
        let all = submit_ten(&daemon, Submit::Plainly, round);
        daemon.kill9();
        daemon.launch();
        have_run(&daemon, &all);
    }
}

/// The environment of a task that is being started is not dropped.
#[test]
fn r126_twenty_kills_lose_no_task_without_kept_environments() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 4\nlimits.environments = \"0B\"");
    end_twenty_times(&mut daemon, Submit::Plainly, TestDaemon::kill9);
}

/// How tasks are submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Submit {
    Plainly,
    InTerminals,
}

/// Ends a daemon that is busy with short tasks twenty times, and checks that each task has run once.
#[track_caller]
fn loses_nothing(submit: Submit, ends: impl Fn(&mut TestDaemon)) {
    end_twenty_times(&mut TestDaemon::durable("max_concurrent_tasks = 4"), submit, ends);
}

#[track_caller]
fn end_twenty_times(daemon: &mut TestDaemon, submit: Submit, ends: impl Fn(&mut TestDaemon)) {
    let mut all = Vec::new();
    for round in 0..20 {
        all.extend(submit_ten(daemon, submit, round));
        ends(daemon);
        daemon.launch();
    }
    have_run(daemon, &all);
}

/// A task, its output file, and its exit code.
type Short = (TaskId, PathBuf, i32);

#[track_caller]
fn submit_ten(daemon: &TestDaemon, submit: Submit, round: usize) -> Vec<Short> {
    let pty = (submit == Submit::InTerminals).then_some(TerminalSize { rows: 24, cols: 80 });
    let submit = |code| {
        let file = daemon.home().join(format!("ran-{round}-{code}"));
        let shell = format!("echo ran >> {}; exit {code}", file.display());
        let params = SubmitParams { shell: Some(shell.as_str().into()), pty, ..daemon.params() };
        (daemon.submit_with(&params).id, file, code)
    };
    (0..10).map(submit).collect()
}

/// Checks that each of these runs once and ends as it should.
#[track_caller]
fn have_run(daemon: &TestDaemon, all: &[Short]) {
    let ids: Vec<TaskId> = all.iter().map(|(task, ..)| *task).collect();
    for (task, (_, file, code)) in daemon.block(&ids).iter().zip(all) {
        assert_eq!(fs::read_to_string(file).unwrap_or_default().lines().count(), 1, "{task:?}");
        assert_eq!(task.exit, Some(Exit::Code(*code)), "{task:?}");
    }
}

/// The daemon dies before it knows that the job was started.
#[test]
fn r126_job_that_kills_daemon_at_start_continues_and_runs_once() {
    let mut daemon = TestDaemon::durable("");
    for (pty, output) in [(None, "over\n"), (Some(TerminalSize { rows: 24, cols: 80 }), "over\r\n")] {
        for round in 0..10 {
            let ran = format!("ran-{round}-{}", pty.is_some());
            let (go, file) = waits_for(&daemon, &format!("go-{ran}"));
            let shell = format!("kill -9 {}; echo ran >> {ran}; {go}; echo over; exit 3", daemon.pid());
            let (shell, key) = (Some(shell.as_str().into()), Some(ran.clone()));
            let session = Some("kills".to_owned());
            let params = SubmitParams { shell, key, session, pty, ..daemon.params() };
            // The answer may not have been sent.
            let _ = daemon.client().call::<TaskSubmit>(&params);
            daemon.ended();
            daemon.launch();
            let task = daemon.submit_with(&params).id;
            daemon.wait_running(task);
            fs::write(file, "").unwrap();
            let task = daemon.block(&[task]).remove(0);
            assert_eq!(task.exit, Some(Exit::Code(3)), "{task:?}");
            assert_eq!(String::from_utf8_lossy(&daemon.output(task.id)), output);
            assert_eq!(fs::read_to_string(daemon.home().join(ran)).unwrap(), "ran\n");
        }
    }
}

#[test]
fn r130_exit_while_journal_is_unwritable_is_known_after_kill() {
    let mut daemon = TestDaemon::durable("");
    let (script, file) = waits_for(&daemon, "go");
    let task = daemon.submit_shell(&format!("{script}; echo over; exit 7"));
    process(&daemon, task);
    daemon.process().limit(Resource::Fsize, Some(64));
    fs::write(file, "").unwrap();
    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(7)), "it goes on");
    // Nobody has written the end to the journal.
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(7)));
    assert_eq!(daemon.output(task), b"over\n");
}

#[test]
fn r126_whole_tree_that_outlived_daemon_is_cancelled() {
    let mut daemon = TestDaemon::durable("");
    let script = "setsid env -i sleep 1000 & setsid sleep 1000 & sleep 1000 & echo begun; exec sleep 1000";
    let task = daemon.submit_shell(script);
    let other = daemon.submit_shell("(setsid env -i sleep 1000 &); echo left");
    for task in [task, other] {
        wait::poll_until("it has begun", || (!daemon.output(task).is_empty()).then_some(()));
    }
    wait::poll_until("its leader has ended", || daemon.task(other).exit);
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.task(task).status, Status::Running);

    daemon.cancel(&[task]);
    daemon.run(&["clear", &other.to_string()]).success();

    assert!(daemon.task_processes().is_empty(), "{:?}", daemon.task_processes());
}

#[test]
fn r126_standard_input_pause_and_readiness_survive_kill() {
    let mut daemon = TestDaemon::durable("");
    let cat = daemon.submit_with(&SubmitParams {
        argv: Some(vec!["cat".into()]),
        stdin: Some(Stdin::Pipe),
        ..daemon.params()
    });
    let paused = daemon.submit_shell("exec sleep 1000");
    let (script, file) = waits_for(&daemon, "ready");
    let server = daemon.run(&[
        "submit",
        "--ready",
        "line:^up",
        "--shell",
        &format!("{script}; echo up; exec sleep 1000"),
    ]);
    let server = server.success().word::<TaskId>();
    let process = process(&daemon, paused);
    daemon.wait_running(cat.id);
    daemon.wait_running(server);
    daemon.run(&["pause", &paused.to_string()]).success();
    daemon.kill9();
    daemon.launch();

    let write =
        WriteParams { id: cat.id.into(), data: "typed\n".into(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&write).unwrap();
    assert_eq!(daemon.block(&[cat.id])[0].exit, Some(Exit::Code(0)));
    assert_eq!(daemon.output(cat.id), b"typed\n");
    assert!(daemon.task(paused).paused);
    daemon.run(&["continue", &paused.to_string()]).success();
    assert!(!fs::read_to_string(process.proc("stat")).unwrap().contains(") T "), "it runs again");
    assert_eq!(daemon.task(server).ready_at, None);
    fs::write(file, "").unwrap();
    wait::poll_until("it is ready", || daemon.task(server).ready_at);
    daemon.cancel(&[paused, server]);
}

#[test]
fn r126_upgrade_keeps_surviving_tasks_and_keeper() {
    let mut daemon = TestDaemon::durable("");
    let (script, file) = waits_for(&daemon, "go");
    let tasks = [1, 2].map(|code| {
        let task = daemon.submit_shell(&format!("{script}; exit {code}"));
        daemon.wait_running(task);
        daemon.kill9();
        daemon.launch();
        daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
        task
    });
    assert_eq!(daemon.keepers().len(), 1);
    daemon.kill9();
    fs::write(file, "").unwrap();
    daemon.launch();
    let exits: Vec<_> = daemon.block(&tasks).into_iter().map(|task| task.exit).collect();
    assert_eq!(exits, [Some(Exit::Code(1)), Some(Exit::Code(2))]);
}

/// Kills the keeper, and waits until its successor holds everything.
#[track_caller]
pub(super) fn kill_keeper(daemon: &TestDaemon) {
    let gone = daemon.keeper();
    gone.kill();
    daemon.wait_for_new_keeper(&gone);
}

/// The keeper's socket is in that folder: the next daemon could not reach the keeper.
#[test]
fn r126_running_tasks_survive_a_kill_after_the_instance_folder_was_removed() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 8");
    let (script, file) = waits_for(&daemon, "go");
    let before = daemon.submit_shell(&format!("{script}; exit 7"));
    daemon.wait_running(before);
    let gone = daemon.keeper();
    fs::remove_dir_all(daemon.state_dir().join("instances")).unwrap();
    let after = daemon.submit_shell(&format!("{script}; exit 8"));
    daemon.wait_running(after);
    daemon.wait_for_new_keeper(&gone);
    wait::poll_until("only one keeper is left", || (daemon.keepers().len() == 1).then_some(()));
    daemon.kill9();
    daemon.launch();
    assert_eq!([before, after].map(|task| daemon.task(task).status), [Status::Running; 2]);
    fs::write(file, "").unwrap();
    let exits = daemon.block(&[before, after]).into_iter().map(|task| task.exit);
    assert!(exits.eq([Some(Exit::Code(7)), Some(Exit::Code(8))]));
}

/// The daemon's new program is the keeper's parent, too.
#[test]
fn r126_keeper_killed_after_upgrade_leaves_no_zombie() {
    let daemon = TestDaemon::durable("");
    let task = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(task);
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    kill_keeper(&daemon);
    wait::poll_until("the killed keeper is reaped", || {
        let is_zombie = |child: &i32| proc::state(*child) == Some('Z');
        (!proc::children(daemon.pid()).iter().any(is_zombie)).then_some(())
    });
    daemon.cancel(&[task]);
}

#[test]
fn r126_replacement_keeper_takes_over_all_running_tasks() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 8");
    let (script, file) = waits_for(&daemon, "go");
    let commands = [1, 2].map(|code| daemon.submit_shell(&format!("echo begun; {script}; exit {code}")));
    let terminal = daemon.run(&["submit", "--pty", "--shell", REPEATS]).success().word::<TaskId>();
    let argv = Some(["sh", "-c", "cat; exit 4"].map(Into::into).to_vec());
    let piped = SubmitParams { argv, stdin: Some(Stdin::Pipe), ..daemon.params() };
    let piped = daemon.submit_with(&piped).id;
    let lingering = daemon.submit_shell("setsid -f sh -c 'mkfifo rest; read line < rest'; exit 5");
    wait::for_file(&daemon.home().join("rest"));
    commands.into_iter().chain([terminal, piped]).for_each(|task| _ = daemon.wait_running(task));
    let mut viewer = Viewer::attach(&daemon, terminal, Some((24, 80)));
    viewer.until("its prompt", |viewer| viewer.screen().contains("ready"));
    // The first keeper is a child of the daemon, the next one a child of a daemon that is gone.
    for _ in 0..3 {
        kill_keeper(&daemon);
        daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
        kill_keeper(&daemon);
        daemon.kill9();
        daemon.launch();
        assert!(commands.into_iter().all(|task| daemon.task(task).status == Status::Running));
        // Tasks that start meanwhile are held, too.
        assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].exit, Some(Exit::Code(0)));
    }
    let write = WriteParams { id: piped.into(), data: "typed\n".into(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&write).unwrap();
    assert_eq!(
        (daemon.block(&[piped])[0].exit.clone(), daemon.output(piped)),
        (Some(Exit::Code(4)), b"typed\n".to_vec())
    );
    let mut viewer = Viewer::attach(&daemon, terminal, Some((24, 80)));
    assert!(viewer.screen().contains("ready"), "{viewer:?}");
    viewer.type_keys(terminal, "word\r");
    viewer.until("the answer", |viewer| viewer.screen().contains("<word>"));
    viewer.type_keys(terminal, "end\r");
    assert_eq!(viewer.ended(terminal).exit, Some(Exit::Code(9)));
    assert!(daemon.task(lingering).lingering, "{:?}", daemon.task(lingering));
    wait::for_reader(&daemon.home().join("rest"), "over\n");
    wait::poll_until("nothing lingers", || (!daemon.task(lingering).lingering).then_some(()));
    fs::write(file, "").unwrap();
    let exits: Vec<_> = daemon.block(&commands).into_iter().map(|task| task.exit).collect();
    assert_eq!(exits, [Some(Exit::Code(1)), Some(Exit::Code(2))]);
}

#[test]
fn r126_closed_standard_input_stays_closed_after_kill() {
    let mut daemon = TestDaemon::durable("");
    let (script, file) = waits_for(&daemon, "go");
    let argv = ["sh", "-c", &format!("cat; {script}; cat; exit 4")].map(Into::into).to_vec();
    let params = SubmitParams { argv: Some(argv), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let task = daemon.submit_with(&params).id;
    let write = WriteParams { id: task.into(), data: "typed\n".into(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&write).unwrap();
    wait::poll_until("it is read", || (daemon.output(task) == b"typed\n").then_some(()));
    daemon.kill9();
    daemon.launch();

    fs::write(file, "").unwrap();

    assert_eq!(daemon.block(&[task])[0].exit, Some(Exit::Code(4)));
    assert_eq!(daemon.output(task), b"typed\n");
}

#[test]
fn r131_event_and_notice_numbers_never_go_back_after_stops() {
    let mut daemon = TestDaemon::durable("");
    let seq = |daemon: &TestDaemon| {
        daemon.client().call::<EventsSubscribe>(&SubscribeParams::default()).unwrap().seq
    };
    let mut notice = 0;
    for round in 0..4 {
        // Nothing happens in every other round.
        if round % 2 == 0 {
            let task = daemon.submit_in("s", "true");
            daemon.block(&[task]);
            let last = daemon.inbox("s").last().unwrap().number;
            assert!(last > notice, "{round}: {last} after {notice}");
            notice = last;
        }
        // Everything is in the journal before the answer.
        let last_seq = seq(&daemon);
        assert!(last_seq > 0);
        assert!(daemon.stop().success());
        daemon.launch();
        assert!(seq(&daemon) >= last_seq, "{round}: {} after {last_seq}", seq(&daemon));
    }
}

#[test]
fn r131_stop_and_sigterm_leave_tasks_running_for_next_daemon() {
    let mut daemon = TestDaemon::durable("max_concurrent_tasks = 3");
    let (script, file) = waits_for(&daemon, "go");
    let tasks = [1, 2].map(|code| daemon.submit_shell(&format!("(sleep 1000 &); {script}; exit {code}")));
    let ended = daemon.submit_shell("(setsid env -i sleep 1000 &); echo left");
    let mut pids = tasks.map(|task| daemon.wait_running(task).pid);
    daemon.block(&[ended]);
    let pending = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();

    let stopped = daemon.run(&["daemon", "stop"]).success();
    let words = "stopped; 2 tasks keep running, and the next daemon finds them again\n";
    assert_eq!(stopped.stdout_text(), words);
    assert!(daemon.ended().success());
    assert_eq!(daemon.keepers().len(), 1);
    daemon.launch();
    assert!(daemon.stop().success(), "by SIGTERM");
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).unwrap();
    let said = log.lines().filter(|line| line.contains("stopping: 0 tasks were cancelled, 2 keep running"));
    assert_eq!(said.count(), 2, "{log}");
    daemon.launch();

    let mut now = tasks.map(|task| daemon.task(task).pid);
    pids.sort_unstable();
    now.sort_unstable();
    assert_eq!(now, pids);
    assert_eq!(daemon.task(pending).status, Status::Pending);
    fs::write(file, "").unwrap();
    let exits = daemon.block(&tasks).into_iter().map(|task| task.exit);
    assert!(exits.eq([Some(Exit::Code(1)), Some(Exit::Code(2))]));
    let all = [tasks[0], tasks[1], ended].map(|task| task.to_string());
    daemon.run(&["clear", &all[0], &all[1], &all[2]]).success();
    assert!(daemon.task_processes().is_empty(), "{:?}", daemon.task_processes());
    daemon.cancel(&[pending]);
}

#[test]
fn r131_task_lost_with_keeper_after_stop_says_so_and_restart_keeps_tasks_running() {
    let mut daemon = TestDaemon::durable("");
    let lost = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(lost);
    assert!(daemon.stop().success());
    daemon.keepers().iter().for_each(Process::kill);
    daemon.launch();
    let why = "the keeper was killed while the daemon was stopped";
    assert_eq!(daemon.task(lost).error.as_deref(), Some(why));
    let restarted = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(restarted);
    let words = daemon.run(&["daemon", "restart"]).success();
    for part in [
        "keeps 1 active task if it can outlive the daemon and 1 finished task with its output",
        "1 task keeps running",
    ] {
        assert!(words.stderr.contains(part), "{words:?}");
    }
    assert!(daemon.ended().success());
    assert_eq!(daemon.task(restarted).status, Status::Running);
    daemon.cancel(&[restarted]);
}

#[test]
fn r131_restart_into_non_durable_daemon_reports_ended_tasks() {
    let mut daemon = TestDaemon::durable("");
    let task = daemon.submit_shell("exec sleep 1000");
    daemon.wait_running(task);
    daemon.write_config("durable = false");
    let words = daemon.run(&["daemon", "restart"]).success();
    assert!(words.stderr.contains("the next daemon is not durable, and has ended 1 task"), "{words:?}");
    assert!(!words.stderr.contains("and the next daemon finds"), "{words:?}");
    assert!(daemon.ended().success());
    assert_eq!(daemon.task_processes().len(), 0);
    daemon.run(&["daemon", "stop"]).success();
    daemon.write_config("durable = true");
    daemon.run(&["daemon", "start"]).success();
    let why = "a daemon without `durable` has ended it";
    assert_eq!(daemon.task(task).error.as_deref(), Some(why), "nobody has killed the keeper");
}

/// Echoes the lines that it reads, until one says `end`.
const REPEATS: &str = "echo ready; while read word; do test $word = end && exit 9; echo \"<$word>\"; done";

#[test]
fn r126_terminal_task_keeps_screen_and_job_across_kill_and_stop() {
    let mut daemon = TestDaemon::durable("");
    let id = daemon.run(&["submit", "--pty", "--shell", REPEATS]).success().word::<TaskId>();
    let mut viewer = Viewer::attach(&daemon, id, Some((24, 80)));
    viewer.until("its prompt", |viewer| viewer.screen().contains("ready"));
    viewer.type_keys(id, "first\r");
    wait::poll_until("it is kept", || {
        String::from_utf8_lossy(&daemon.output(id)).contains("<first>").then_some(())
    });
    for stop in [false, true] {
        if stop {
            assert!(daemon.stop().success());
        } else {
            daemon.kill9();
        }
        daemon.launch();
        let viewer = Viewer::attach(&daemon, id, Some((24, 80)));
        assert!(viewer.screen().contains("<first>"), "{viewer:?}");
    }
    let mut viewer = Viewer::attach(&daemon, id, Some((24, 80)));
    viewer.type_keys(id, "second\r");
    viewer.until("the answer", |viewer| viewer.screen().contains("<second>"));
    viewer.type_keys(id, "\u{1a}");
    viewer.until("a stopped job", |viewer| viewer.stops == 1);
    daemon.run(&["signal", &id.to_string(), "CONT"]).success();
    viewer.type_keys(id, "end\r");
    let ended = viewer.ended(id);
    assert_eq!((ended.status, ended.exit), (Status::Failed, Some(Exit::Code(9))));
}

#[test]
fn r126_screen_after_kill_is_that_of_the_running_attempt() {
    let mut daemon = TestDaemon::durable("");
    let line =
        "test -e again && { echo second; read go; exit; }; touch again; printf '\\033[?1049hfirst'; exit 1";
    let args = ["submit", "--pty", "--retry", "1", "--retry-delay", "1ms", "--shell", line];
    let id = daemon.run(&args).success().word::<TaskId>();
    wait::poll_until("the second attempt", || daemon.output(id).ends_with(b"second\r\n").then_some(()));
    daemon.kill9();
    daemon.launch();
    let mut viewer = Viewer::attach(&daemon, id, None);
    assert_eq!((&*viewer.screen(), viewer.emulated().alternate_screen()), ("second", false));
    viewer.type_keys(id, "go\r");
    assert_eq!(viewer.ended(id).status, Status::Completed);
}

#[test]
fn r126_terminal_job_ending_without_daemon_keeps_exit_and_output() {
    let mut daemon = TestDaemon::durable("");
    let (script, file) = waits_for(&daemon, "go");
    let line = format!("{script}; echo last words; exit 6");
    let task = daemon.run(&["submit", "--pty", "--shell", &line]).success().word::<TaskId>();
    let process = process(&daemon, task);
    daemon.kill9();
    fs::write(file, "").unwrap();
    process.gone();
    daemon.launch();
    let ended = daemon.block(&[task]).remove(0);
    assert_eq!(ended.exit, Some(Exit::Code(6)));
    assert_eq!(daemon.output(task), b"last words\r\n");
}

/// As on a user's machine, nobody waits for the daemon as a child, so it is an orphan like the processes of its
/// predecessor.
#[test]
fn r126_daemon_started_by_bgctl_is_not_counted_among_terminal_task_processes() {
    let home = TestDaemon::builder().config("durable = true").home_only();
    let in_terminal = |line: &str| home.run(&["submit", "--pty", "--shell", line]).success().word::<TaskId>();
    let (script, file) = waits_for(&home, "go");
    let ends = in_terminal(&format!("{script}; exit 6"));
    let cancelled = in_terminal("exec sleep 1000");
    let other = home.submit_shell("exec sleep 1000");
    for task in [ends, cancelled, other] {
        home.wait_running(task);
    }
    home.process().kill();
    home.run(&["daemon", "start"]).success();
    let daemon = home.process();
    fs::write(file, "").unwrap();
    let task = home.block(&[ends]).remove(0);
    assert_eq!((task.exit, task.lingering), (Some(Exit::Code(6)), false));
    home.run(&["cancel", &cancelled.to_string()]).success();
    assert_eq!(home.block(&[cancelled])[0].status, Status::Cancelled);
    assert_eq!((home.process().pid(), home.task(other).status), (daemon.pid(), Status::Running));
    home.run(&["daemon", "stop", "--cancel"]).success();
    daemon.gone();
}
