//! Upgrades in place (R120 to R123): the program is replaced, and everything that the daemon manages continues.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    BlockParams, DaemonShutdown, Encoding, Hello, HelloParams, ShutdownParams, Stdin, SubmitParams,
    TaskBlock, TaskWrite, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{
    exit_of, failing, has_only_threads, lasting_threads, refused, release, until, upgrade, upgrade_under_load,
};
use bgd_tests::user::{Programs, must_be_root, not_as_root, unused_uid};
use bgd_tests::{Outcome, Process, Raw, TestDaemon, executable, helper_path, wait};
use serde_json::{Value, json};

#[test]
fn r121_tasks_clients_and_events_survive_upgrade() {
    let daemon = TestDaemon::start();
    let hello = || daemon.client().call::<Hello>(&HelloParams::default()).unwrap();
    let before = hello();
    let mut watch = daemon.watch();
    let task = until(&daemon, "first", 7);
    let piped =
        SubmitParams { shell: Some("cat; exit 3".into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let piped = daemon.submit_with(&piped).id;
    daemon.wait_running(piped);
    let mut waits = daemon.client();
    let blocked = thread::spawn(move || waits.call::<TaskBlock>(&BlockParams::until_ended(task)));
    // Half of a request, whose rest is sent after the upgrade.
    let mut raw = Raw::connect(daemon.socket());
    let request =
        json!({"jsonrpc": "2.0", "id": 1, "method": "task.get", "params": {"id": task}}).to_string();
    let (half, rest) = request.split_at(request.len() / 2);
    raw.send(half.as_bytes()).unwrap();

    let result = upgrade(&daemon);

    assert_eq!(result.active, 2, "{result:?}");
    let after = hello();
    assert_eq!((after.pid, after.instance), (before.pid, before.instance));
    raw.send(format!("{rest}\n").as_bytes()).unwrap();
    assert_eq!(raw.receive().expect("an answer")["result"]["task"]["id"], json!(task));
    let write = WriteParams { id: piped.into(), data: "after".into(), encoding: Encoding::Utf8, eof: true };
    daemon.client().call::<TaskWrite>(&write).expect("its standard input is open");
    release(&daemon, "first");
    let block = blocked.join().unwrap().expect("the wait goes on");
    assert_eq!((block.tasks[0].status, block.tasks[0].exit.clone()), (Status::Failed, Some(Exit::Code(7))));
    assert_eq!(daemon.output(task), b"begun\nreleased\n");
    assert_eq!((exit_of(&daemon, piped), daemon.output(piped)), (Exit::Code(3), b"after".to_vec()));
    let new = daemon.submit(&["sh", "-c", "exit 9"]);
    assert_eq!(exit_of(&daemon, new), Exit::Code(9));
    for expected in 1.. {
        let event = watch.next_event();
        assert_eq!(event.seq, expected, "no event is missing, and none comes twice");
        if event.task.id == new && event.kind == EventKind::Failed {
            break;
        }
    }
}

#[test]
fn r121_large_replies_are_completed_after_upgrade() {
    const ANSWERS: u64 = 8;
    let daemon = TestDaemon::start();
    let task = daemon.submit_shell("seq 100000 140000");
    daemon.block(&[task]);
    let (said, limit) = (daemon.output(task), 200_000);
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    for id in 1..=ANSWERS {
        let params = json!({"id": task, "offset": id * 1000, "limit": limit});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "task.output", "params": params});
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    }
    // In the middle of the first answer. The last ones have no room in the socket.
    let mut begin = vec![0; 100_000];
    stream.read_exact(&mut begin).unwrap();
    for _ in 0..3 {
        upgrade(&daemon);
    }
    let mut lines = BufReader::new(begin.chain(&stream));
    for id in 1..=ANSWERS {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        let begin = usize::try_from(id * 1000).unwrap();
        assert_eq!(answer["id"], id);
        let data = answer["result"]["data"].as_str().unwrap();
        assert!(data.as_bytes() == &said[begin..begin + data.len()], "answer {id} is whole");
        assert_eq!(data.len(), limit.min(said.len() - begin));
    }
}

#[test]
fn r121_lingering_and_escaped_processes_stay_tracked_after_upgrade() {
    let daemon = TestDaemon::start();
    let lingering = daemon.submit_shell("setsid -f sh -c 'mkfifo rest; read line < rest'; exit 5");
    wait::for_file(&daemon.home().join("rest"));
    daemon.block(&[lingering]);
    let mut watch = daemon.watch();
    let escaped = "env -i setsid -f sh -c 'echo $$ > escaped.new; mv escaped.new escaped; exec sleep 1000' \
                   >/dev/null 2>&1; mkfifo stays; read line < stays";
    let escaped = daemon.submit_shell(escaped);
    wait::for_file(&daemon.home().join("stays"));
    let process = daemon.recorded_process("escaped");

    upgrade(&daemon);

    // A new task, whose mark must be different.
    let new = daemon.submit(&["true"]);
    assert_eq!(exit_of(&daemon, new), Exit::Code(0));
    assert!(process.is_alive());
    assert!(daemon.task(lingering).lingering, "{:?}", daemon.task(lingering));
    release(&daemon, "rest");
    wait::poll_until("nothing lingers", || (!daemon.task(lingering).lingering).then_some(()));
    assert_eq!(daemon.task(lingering).exit, Some(Exit::Code(5)));
    daemon.cancel(&[escaped]);
    process.gone();
    watch.until_kind(escaped, EventKind::Cancelled);
}

#[test]
fn r121_pending_tasks_keep_waiting_after_upgrade() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let run = |args: &[&str]| daemon.run(args).success().word::<TaskId>();
    let first = until(&daemon, "first", 0);
    let mut submit = daemon.bgctl(&["submit", "--session", "s", "--", "sh", "-c", "echo $MARK"]);
    let pending = Outcome::of(submit.env("MARK", "of its submitter")).success().word::<TaskId>();
    let after = run(&["submit", "--after", &format!("{pending}:ok"), "--", "true"]);
    let delayed = run(&["submit", "--in", "1h", "--", "true"]);
    let held = run(&["submit", "--hold", "--", "true"]);
    daemon.run(&["group", "set", "g", "--slots", "2"]).success();
    daemon.run(&["group", "pause", "g"]).success();
    let grouped = run(&["submit", "--group", "g", "--", "true"]);
    let retried = run(&["submit", "--retry", "2", "--retry-delay", "0s", "--", "false"]);

    upgrade(&daemon);

    for task in [pending, after, delayed, held, grouped, retried] {
        assert_eq!(daemon.task(task).status, Status::Pending, "{task}");
    }
    release(&daemon, "first");
    let ended = daemon.block(&[first, pending, after]);
    assert!(ended.iter().all(|task| task.status == Status::Completed), "{ended:?}");
    daemon.run(&["release", &held.to_string()]).success();
    daemon.run(&["group", "continue", "g"]).success();
    daemon.block(&[held, grouped]);
    assert_eq!((daemon.block(&[retried])[0].status, daemon.task(retried).attempt), (Status::Failed, Some(3)));
    // The submitter's environment is kept for a rerun, and its inbox has the end of the task.
    let again = run(&["rerun", &pending.to_string()]);
    assert_eq!(exit_of(&daemon, again), Exit::Code(0));
    for id in [pending, again] {
        assert_eq!(daemon.output(id), b"of its submitter\n");
    }
    assert_eq!(daemon.inbox("s")[0].notice.task.id, pending);
    assert_eq!(daemon.task(delayed).status, Status::Pending);
    daemon.cancel(&[delayed]);
}

#[test]
fn r121_unread_standard_input_survives_upgrade() {
    let daemon = TestDaemon::start();
    let line = "mkfifo go; read go < go; cksum; exit 6";
    let params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let task = daemon.submit_with(&params).id;
    wait::for_file(&daemon.home().join("go"));
    let parts: Vec<String> = (0..5).map(|n| format!("{n}").repeat(100_000)).collect();
    let mut raw = Raw::connect(daemon.socket());
    let mut gone = Raw::connect(daemon.socket());
    let write = |n: usize, part: &str| json!({"id": task, "data": part, "eof": n == 4});
    for (n, part) in parts.iter().enumerate() {
        // One whose client does not wait for the answer.
        let raw = if n == 2 { &mut gone } else { &mut raw };
        raw.request(n as u64, "task.write", &write(n, part));
        assert!(raw.is_served(), "it was taken");
    }
    drop(gone);
    (0..3).for_each(|_| _ = upgrade(&daemon));
    release(&daemon, "go");
    for n in [0, 1, 3, 4] {
        let answer = raw.receive().expect("an answer");
        assert_eq!((&answer["id"], &answer["result"]["written"]), (&json!(n), &json!(100_000)));
    }
    assert_eq!(exit_of(&daemon, task), Exit::Code(6));
    fs::write(daemon.home().join("all"), parts.concat()).unwrap();
    let all = Command::new("cksum").stdin(File::open(daemon.home().join("all")).unwrap()).output().unwrap();
    assert_eq!(daemon.output(task), all.stdout);
}

#[test]
fn r121_all_writes_accepted_for_standard_input_survive_upgrade() {
    const WRITES: u64 = 70;
    let daemon = TestDaemon::start();
    let line = "mkfifo go; read go < go; wc -c; exit 6";
    let params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let task = daemon.submit_with(&params).id;
    wait::for_file(&daemon.home().join("go"));
    let mut raw = Raw::connect(daemon.socket());
    // The first one fills the pipe, and is in progress when the others come.
    raw.request(0, "task.write", &json!({"id": task, "data": "x".repeat(100_000)}));
    (0..2).for_each(|_| assert!(raw.is_served()));
    (1..WRITES).for_each(|n| raw.request(n, "task.write", &json!({"id": task, "data": "x"})));
    let mut refused = 0;
    // The second answer comes after all that the daemon has to say about the writes.
    for last in [WRITES, WRITES + 1] {
        raw.request(last, "hello", &json!({}));
        loop {
            let answer = raw.receive().expect("an answer");
            if answer["id"] == json!(last) {
                break;
            }
            assert_eq!(answer["error"]["data"]["kind"], "too_many_requests", "{answer}");
            refused += 1;
        }
    }
    (0..2).for_each(|_| _ = upgrade(&daemon));
    release(&daemon, "go");
    for _ in refused..WRITES {
        let answer = raw.receive().expect("an answer");
        assert!(answer["result"]["written"].is_u64(), "{answer}");
    }
    raw.call(0, "task.write", &json!({"id": task, "data": "", "eof": true}));
    assert_eq!(exit_of(&daemon, task), Exit::Code(6));
    let bytes = format!("{}\n", 100_000 + WRITES - refused - 1);
    assert_eq!(String::from_utf8_lossy(&daemon.output(task)), bytes);
}

#[test]
fn r121_pending_write_fails_at_end_of_task_and_delays_no_upgrade() {
    let daemon = TestDaemon::start();
    let line = "exec 3<&0; sleep 1000 <&3 & exec 3<&-; mkfifo go; read go < go; exit 6";
    let params = SubmitParams { shell: Some(line.into()), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let task = daemon.submit_with(&params).id;
    wait::for_file(&daemon.home().join("go"));
    let mut raw = Raw::connect(daemon.socket());
    raw.request(1, "task.write", &json!({"id": task, "data": "x".repeat(200_000)}));
    assert!(raw.is_served(), "it waits");
    release(&daemon, "go");
    assert_eq!(exit_of(&daemon, task), Exit::Code(6));
    upgrade(&daemon);
    let answer = raw.receive().expect("an answer");
    assert_eq!((&answer["id"], &answer["error"]["data"]["kind"]), (&json!(1), &json!("not_running")));
    assert!(daemon.task(task).lingering);
    daemon.cancel(&[task]);
}

#[test]
fn r121_hundred_upgrades_under_load_lose_and_leak_nothing() {
    const UPGRADES: usize = 100;
    let daemon = TestDaemon::start();
    let open = || daemon.process().descriptors().unwrap();
    let stays = until(&daemon, "stays", 4);
    upgrade(&daemon);
    let (descriptors, threads) = (open(), lasting_threads(&daemon));
    let memory = daemon.process().own_memory_kb();
    let is_over = AtomicBool::new(false);
    let submitted = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut all = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let task = daemon.submit(&["sh", "-c", "exit 6"]);
                assert_eq!(exit_of(&daemon, task), Exit::Code(6));
                assert!(all.insert(task), "an id comes once");
            }
            all
        });
        for _ in 0..UPGRADES {
            upgrade_under_load(&daemon);
        }
        is_over.store(true, Ordering::Relaxed);
        load.join().expect("the load")
    });
    let summary = daemon.status().summary;
    assert_eq!((summary.failed, summary.running), (submitted.len() as u64, 1), "{summary:?}");
    assert!(!submitted.is_empty());
    wait::poll_until("as many descriptors as before", || (open() <= descriptors).then_some(()));
    has_only_threads(&daemon, &threads);
    // The tasks and their events use some memory.
    let most = memory + 2048 + 4 * submitted.len() as u64;
    wait::poll_until("as little memory as before", || {
        (daemon.process().own_memory_kb() <= most).then_some(())
    });
    release(&daemon, "stays");
    assert_eq!(exit_of(&daemon, stays), Exit::Code(4));
}

#[test]
fn r122_upgrade_rolls_back_when_new_program_cannot_take_over() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let text = refused(&daemon, &failing(&daemon, "turning-back"));
    assert!(text.contains("it can't be built again"), "{text}");
    assert_eq!(fs::read_link(daemon.process().proc("exe")).unwrap(), bgd_tests::bgd_path());
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
    upgrade(&daemon);
}

/// A daemon that `bgctl` has started from this path in its home.
struct Installed {
    daemon: TestDaemon,
    path: PathBuf,
}

impl Installed {
    /// Starts a real one. Failing programs fail in the way that their file is named after.
    #[track_caller]
    fn start(name: &str) -> Self {
        Self::configured(name, "")
    }

    #[track_caller]
    fn configured(name: &str, config: &str) -> Self {
        let daemon = TestDaemon::home_only();
        daemon.write_config(config);
        let path = daemon.home().join("bin").join(name);
        fs::create_dir(daemon.home().join("bin")).unwrap();
        let installed = Self { daemon, path };
        installed.install(&bgd_tests::bgd_path());
        installed.run(&["daemon", "start"]).success();
        installed
    }

    /// Replaces the program, as a package manager does.
    #[track_caller]
    fn install(&self, program: &Path) {
        let next = self.path.with_extension("new");
        executable::copy(program, &next);
        fs::rename(next, &self.path).unwrap();
    }

    fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.daemon.bgctl(args).env("BGD_DAEMON", &self.path))
    }

    /// Checks what `daemon status` and `doctor` report about the program; nothing if it is the running one.
    #[track_caller]
    fn says(&self, words: Option<&str>) {
        let status = self.run(&["daemon", "status"]).success().stdout_text();
        let doctor: Value = self.run(&["--json", "doctor"]).json();
        let mut checks = doctor["checks"].as_array().expect("checks").iter();
        let found = checks.find(|check| check["part"] == "daemon" && check["name"] == "program");
        let found = found.map(Value::to_string).unwrap_or_default();
        match words {
            Some(words) => {
                let line = format!("{} {words}", self.path.display());
                assert!(status.contains(&line), "{line}: {status}");
                let begin = format!("{} was re", self.path.display());
                assert!(found.contains(&begin), "{begin}: {found}");
            }
            None => assert!(!status.contains("program:"), "{status}"),
        }
    }
}

#[test]
fn r122_daemon_tracks_its_program_path_after_rollback() {
    let installed = Installed::start("turning-back");
    let task = until(&installed.daemon, "first", 7);
    for _ in 0..2 {
        installed.install(&helper_path("next_bgd"));
        installed.says(Some("was replaced since this daemon started"));
        let refused = installed.run(&["daemon", "upgrade"]).expect_code(65);
        assert!(refused.stderr.contains("it can't be built again"), "{}", refused.stderr);
        installed.says(Some("was replaced since this daemon started"));
        fs::remove_file(&installed.path).unwrap();
        installed.says(Some("was removed"));
        let refused = installed.run(&["daemon", "upgrade"]).expect_code(65);
        let words = format!("{}: it can't be opened: No such file", installed.path.display());
        assert!(refused.stderr.contains(&words), "{}", refused.stderr);
        installed.install(&bgd_tests::bgd_path());
        installed.run(&["daemon", "upgrade"]).success();
        installed.says(None);
    }
    release(&installed.daemon, "first");
    assert_eq!(exit_of(&installed.daemon, task), Exit::Code(7));
}

#[test]
fn r122_daemon_tracks_its_program_path_when_replaced_during_upgrade() {
    let installed = Installed::start("slow");
    let beside = |name: &str| installed.path.with_file_name(name);
    nix::unistd::mkfifo(&beside("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    installed.install(&helper_path("next_bgd"));
    thread::scope(|scope| {
        let upgrading = scope.spawn(|| installed.run(&["daemon", "upgrade"]));
        wait::for_file(&beside("trying"));
        installed.install(&bgd_tests::bgd_path());
        wait::for_reader(&beside("go"), "go\n");
        upgrading.join().unwrap().success();
    });
    installed.says(Some("was replaced since this daemon started"));
    installed.run(&["daemon", "upgrade"]).success();
    installed.says(None);
}

/// Root may see that the keeper, and any other daemon, runs the previous program.
#[test]
fn r131_durable_tasks_survive_stops_after_upgrades_to_other_files_as_root() {
    must_be_root();
    let installed = Installed::configured("bgd", "durable = true\n");
    let daemon = &installed.daemon;
    let task = until(daemon, "first", 7);
    let keeper = daemon.keeper();
    let elsewhere = daemon.home().join("next");
    executable::copy(&bgd_tests::bgd_path(), &elsewhere);
    let in_its_place = &["daemon", "upgrade"][..];
    let to_another = &["daemon", "upgrade", "--binary", elsewhere.to_str().unwrap()][..];
    for upgrade in [in_its_place, to_another] {
        installed.install(&bgd_tests::bgd_path());
        installed.run(upgrade).success();
        let stopped = installed.run(&["daemon", "stop"]).success().stdout_text();
        assert!(stopped.contains("1 task keeps running"), "{stopped}");
        installed.run(&["daemon", "start"]).success();
        assert!(keeper.is_alive());
        assert_eq!((daemon.task(task).status, daemon.task(task).run), (Status::Running, 1));
    }
    release(daemon, "first");
    assert_eq!(exit_of(daemon, task), Exit::Code(7));

    // A keeper that holds nothing any more ends by itself, and removes its socket.
    installed.run(to_another).success();
    installed.run(&["daemon", "stop", "--cancel"]).success();
    keeper.gone();
    let instance = fs::read_dir(daemon.state_dir().join("instances")).unwrap().next().expect("its folder");
    assert!(!instance.unwrap().path().join("keeper").exists(), "it was killed");
}

#[test]
fn r121_daemon_started_by_a_task_outlives_upgraded_daemon_as_root() {
    must_be_root();
    let installed = Installed::start("bgd");
    let socket = installed.daemon.home().join("other/bgd.sock");
    let other = ["--socket", socket.to_str().unwrap(), "daemon"];
    let bgctl = bgd_tests::bgctl_path();
    let submit = [&["submit", "--", bgctl.to_str().unwrap()], &other[..], &["start"]].concat();
    let task = installed.run(&submit).success().word::<TaskId>();
    assert_eq!(exit_of(&installed.daemon, task), Exit::Code(0));
    let status: Value = installed.run(&[&other[..], &["status", "--json"]].concat()).json();
    let started = status["pid"].as_i64().and_then(|pid| Process::open(i32::try_from(pid).ok()?));
    let started = started.expect("a daemon");
    assert_ne!(started.pid(), installed.daemon.pid());

    installed.install(&bgd_tests::bgd_path());
    installed.run(&["daemon", "upgrade"]).success();
    installed.run(&["daemon", "stop"]).success();

    assert!(started.is_alive());
    installed.run(&[&other[..], &["stop"]].concat()).success();
    started.gone();
}

/// The next program has built the complete daemon when it fails, and drops it: the previous program has lost nothing by
/// that.
#[test]
fn r122_upgrade_rolls_back_when_new_program_fails_late() {
    let daemon = TestDaemon::start();
    let open = || daemon.process().descriptors().unwrap();
    let task = until(&daemon, "first", 7);
    let terminal: TaskId = daemon.run(&["submit", "--pty", "cat"]).success().word();
    daemon.wait_running(terminal);
    let mut events = daemon.client();
    events.call::<Hello>(&HelloParams::default()).unwrap();
    let before = open();
    let late = failing(&daemon, "late");
    for _ in 0..3 {
        let text = refused(&daemon, &late);
        assert!(text.contains("it failed late"), "{text}");
        assert_eq!(fs::read_link(daemon.process().proc("exe")).unwrap(), bgd_tests::bgd_path());
        events.call::<Hello>(&HelloParams::default()).expect("the connection goes on");
    }
    wait::poll_until("as many descriptors as before", || (open() <= before).then_some(()));
    // It still has its locks: no other daemon starts beside it.
    daemon.second();
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
    upgrade(&daemon);
    daemon.run(&["write", &terminal.to_string(), "\u{4}"]).success();
    assert_eq!(exit_of(&daemon, terminal), Exit::Code(0));
}

#[test]
fn r123_unsuitable_programs_are_refused_without_effect() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let at = |name: &str| daemon.home().join(name);
    fs::write(at("script"), "#!/bin/sh\nexec sleep 1\n").unwrap();
    fs::set_permissions(at("script"), Permissions::from_mode(0o755)).unwrap();
    let open = failing(&daemon, "open");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    for (path, why) in [
        (at("missing"), "it can't be opened: No such file"),
        (daemon.home().to_owned(), "it is not a file"),
        (at("script"), "it is not an ELF executable"),
        (open, "other users may write to it (mode 777)"),
        (PathBuf::from("/bin/true"), "it is not a bgd"),
        (failing(&daemon, "older"), "it is bgd 0.0.9, which can't read the state of this one (format 2)"),
        (failing(&daemon, "another"), "it read a different state from the one it was given"),
        (failing(&daemon, "dying"), "it failed: bgd: no memory is left"),
        (failing(&daemon, "shot"), "it failed (signal: 9 (SIGKILL)"),
        (failing(&daemon, "silent"), "it does not answer within 5 s"),
    ] {
        let text = refused(&daemon, &path);
        assert!(text.contains(why), "{path:?}: {text}");
    }
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r123_a_program_of_another_user_is_refused_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let foreign = failing(&daemon, "foreign");
    std::os::unix::fs::chown(&foreign, Some(1), Some(1)).unwrap();
    let text = refused(&daemon, &foreign);
    assert!(text.contains("it belongs to uid 1, which is neither you (uid 0) nor root"), "{text}");
}

#[test]
fn r121_reload_after_upgrade_names_keys_that_still_need_a_restart() {
    let daemon = TestDaemon::start();
    let reload = || daemon.run(&["daemon", "reload"]).success().stdout_text();
    daemon.write_config("durable = true\ntree = \"session\"");
    let reported = reload();
    assert!(
        ["durable", "tree"].iter().all(|key| reported.contains(&format!("needs a restart: {key}"))),
        "{reported}"
    );
    for _ in 0..2 {
        upgrade(&daemon);
        assert_eq!(reload(), reported);
    }
}

#[test]
fn r123_daemon_shutting_down_refuses_upgrade() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let task = daemon.submit_shell("trap '' TERM; echo begun; mkfifo ready; read line < ready; sleep 1000");
    wait::for_file(&daemon.home().join("ready"));
    let mut ends = daemon.client();
    let ending = thread::spawn(move || ends.call::<DaemonShutdown>(&ShutdownParams::default()));
    let outcome = wait::poll_until("the daemon ends", || {
        let outcome = daemon.run(&["daemon", "upgrade"]);
        (outcome.code == 69).then_some(outcome)
    });
    assert!(outcome.stderr.contains("shutting down"), "{}", outcome.stderr);
    // By now it knows beforehand that no task will be kept.
    let again = daemon.run(&["daemon", "upgrade"]).expect_code(69);
    assert!(!again.stderr.contains("keeps running"), "{}", again.stderr);
    daemon.run(&["signal", &task.to_string(), "KILL", "--tree"]).success();
    ending.join().unwrap().expect("it ends in order");
}

/// It only reads the state: a lack of memory must not end the daemon instead.
#[test]
fn r122_trial_of_the_next_program_is_the_first_to_end_if_memory_runs_out() {
    let programs = Programs::copy();
    not_as_root(unused_uid(), || {
        let mut command = Command::new(programs.path().join("bgd"));
        command.arg("--try-carried").stdin(Stdio::piped()).stderr(Stdio::null());
        let mut trial = command.spawn().expect("bgd runs");
        let score = format!("/proc/{}/oom_score_adj", trial.id());
        wait::poll_until("it wants to be ended first", || {
            fs::read_to_string(&score).is_ok_and(|score| score == "1000\n").then_some(())
        });
        drop(trial.stdin.take());
        assert!(!trial.wait().expect("it ends").success(), "there was no state");
    });
}
