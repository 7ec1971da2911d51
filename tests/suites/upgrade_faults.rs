//! Faults of upgrades in place (R120 to R123): whatever interferes, each call has one answer, and nothing is lost or
//! done twice.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::thread;

use bgd_tests::handed::Job;
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::{ErrorKind, RpcError};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    DaemonShutdown, DaemonUpgrade, ExitParams, HandoffStream, Hello, HelloParams, ShutdownParams,
    SubmitParams, TaskExit, UpgradeParams, UpgradeResult,
};
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{
    exit_of, failing, is_too_busy, params, refused, release, until, upgrade, upgrade_under_load,
};
use bgd_tests::wait::PATIENCE;
use bgd_tests::{Outcome, Process, Raw, TestDaemon, Viewer, bgd_path, executable, wait};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::Resource;
use serde_json::{Value, json};

type Upgraded = Result<UpgradeResult, ClientError>;

/// Upgrades to this program, on a thread.
fn upgrading(daemon: &TestDaemon, binary: &Path) -> thread::JoinHandle<Upgraded> {
    let (mut client, params) = (daemon.client(), params(binary));
    thread::spawn(move || client.call::<DaemonUpgrade>(&params))
}

/// Returns a program that reads the state slowly, until [`let_go`].
#[track_caller]
fn slow(daemon: &TestDaemon) -> PathBuf {
    mkfifo(&daemon.home().join("go"), Mode::S_IRWXU).expect("a named pipe");
    failing(daemon, "slow")
}

/// Waits until that program reads the state.
#[track_caller]
fn tried(daemon: &TestDaemon) {
    wait::for_file(&daemon.home().join("trying"));
}

#[track_caller]
fn let_go(daemon: &TestDaemon) {
    wait::for_reader(&daemon.home().join("go"), "go\n");
}

#[track_caller]
fn refusal(upgraded: Upgraded) -> RpcError {
    match upgraded {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("it is not refused: {other:?}"),
    }
}

fn refusal_or_none(upgraded: Upgraded) -> Option<RpcError> {
    upgraded.is_err().then(|| refusal(upgraded))
}

/// Requests another upgrade while one is under way, which must be refused.
#[track_caller]
fn second(daemon: &TestDaemon) {
    let error = refusal(daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()));
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused);
    assert_eq!(error.message, "not upgraded, and nothing has changed: another upgrade is under way");
}

fn program(daemon: &TestDaemon) -> PathBuf {
    fs::read_link(daemon.process().proc("exe")).expect("a process that may be looked at")
}

/// Returns the lowest number above those of all open descriptors.
fn descriptors(daemon: &TestDaemon) -> u64 {
    let all = fs::read_dir(daemon.process().proc("fd")).expect("the daemon's descriptors").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    numbers.max().expect("it has some") + 1
}

#[test]
fn r120_second_upgrade_is_refused_while_first_is_being_tried() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let slow = slow(&daemon);
    let first = upgrading(&daemon, &slow);
    tried(&daemon);
    (0..3).for_each(|_| second(&daemon));
    assert_eq!(program(&daemon), bgd_path());
    let_go(&daemon);
    assert_eq!(first.join().unwrap().expect("it is upgraded").active, 1);
    assert_eq!(program(&daemon), slow);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r120_second_upgrade_is_refused_while_first_waits_for_requests() {
    let daemon = TestDaemon::start();
    // On a busy machine, the first one may have waited too long before the request ends.
    wait::poll_until("an upgrade that waits long enough", || first_of_six_upgrades(&daemon).then_some(()));
}

/// Requests six upgrades while the first one waits for a request to end, and then lets that end. Reports whether the
/// first one was done; otherwise it was given up before.
#[track_caller]
fn first_of_six_upgrades(daemon: &TestDaemon) -> bool {
    // An exit that is reported too early is answered at the end of the process, and an upgrade waits for that.
    let (mut job, pipe) = Job::shell(daemon, "read go; exit 7");
    let mut client = daemon.client();
    let task = job.hand_over(&mut client, &[(HandoffStream::Stdout, pipe.as_fd())]).id;
    drop(pipe);
    let mut reporter = daemon.client();
    let exit_params = ExitParams { id: task.into(), exit: Exit::Code(7) };
    let report = thread::spawn(move || reporter.call::<TaskExit>(&exit_params));
    wait::poll_until("an upgrade waits", || {
        let error = refusal_or_none(daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()))?;
        assert!(error.message.contains("is not known yet") && is_too_busy(&error.message), "{error:?}");
        Some(())
    });
    let mut raw = Raw::connect(daemon.socket());
    (1..=6).for_each(|call| raw.request(call, "daemon.upgrade", &json!({})));
    let mut answers: Vec<_> = (2..=6).map(|_| raw.receive().expect("an answer")).collect();
    job.say("go");
    job.wait_dead();
    job.wait();
    report.join().unwrap().expect("the end is known");
    answers.push(raw.receive().expect("an answer"));
    assert_eq!(exit_of(daemon, task), Exit::Code(7));
    let given_up = |answer: &Value| answer["id"] == 1 && is_too_busy(&answer.to_string());
    if answers.iter().any(given_up) {
        return false;
    }
    for (answer, call) in answers.iter().zip([2, 3, 4, 5, 6, 1]) {
        assert_eq!(answer["id"], call);
        if call == 1 {
            assert!(answer["result"]["to"].is_string(), "{answer}");
            continue;
        }
        assert_eq!(answer["error"]["data"]["kind"], "upgrade_refused", "{answer}");
        assert!(answer.to_string().contains("another upgrade is under way"), "{answer}");
    }
    true
}

/// Concurrent upgrades are done one after the other, or refused.
#[test]
fn r120_concurrent_upgrades_are_each_answered_once() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    for _ in 0..5 {
        let all: Vec<_> = (0..8).map(|_| upgrading(&daemon, &bgd_path())).collect();
        let mut done = 0;
        for upgraded in all {
            match upgraded.join().unwrap() {
                Ok(_) => done += 1,
                refused => assert!(refusal(refused).message.ends_with("another upgrade is under way")),
            }
        }
        assert!(done > 0);
    }
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r123_shutdown_request_aborts_upgrade_being_tried() {
    let mut daemon = TestDaemon::builder().config("[grace]\ncancel = \"1h\"").start();
    let task = daemon.submit_shell("trap '' TERM; mkfifo ready; read line < ready; sleep 1000");
    wait::for_file(&daemon.home().join("ready"));
    let slow = slow(&daemon);
    let upgrading = upgrading(&daemon, &slow);
    let stuck = stuck(&daemon);
    let mut ends = daemon.client();
    let ending = thread::spawn(move || ends.call::<DaemonShutdown>(&ShutdownParams::default()));
    assert_eq!(refusal(upgrading.join().unwrap()).kind(), ErrorKind::ShuttingDown);
    stuck.gone();
    daemon.run(&["signal", &task.to_string(), "KILL", "--tree"]).success();
    assert_eq!(ending.join().unwrap().expect("it ends in order").cancelled, 1);
    assert!(daemon.ended().success());
}

/// Returns the process of a program that hangs while it reads the state.
#[track_caller]
fn stuck(daemon: &TestDaemon) -> Process {
    tried(daemon);
    let pid = fs::read_to_string(daemon.home().join("trying")).expect("it has said so");
    Process::open(pid.parse().expect("a pid")).expect("it hangs")
}

#[test]
fn r122_program_hung_reading_state_does_not_delay_daemon() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let upgrading = upgrading(&daemon, &failing(&daemon, "stuck"));
    let stuck = stuck(&daemon);
    for _ in 0..20 {
        let next = daemon.submit_shell("echo said");
        assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
        assert_eq!(daemon.output(next), b"said\n");
        daemon.run(&["clear", &next.to_string()]).success();
    }
    daemon.run(&["daemon", "reload"]).success();
    second(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
    stuck.kill();
    let error = refusal(upgrading.join().unwrap());
    assert!(error.message.contains("the program was tried: it failed (signal: 9 (SIGKILL)"), "{error:?}");
    upgrade(&daemon);
}

#[test]
fn r123_shutdown_kills_program_hung_reading_state() {
    let mut daemon = TestDaemon::start();
    let upgrading = upgrading(&daemon, &failing(&daemon, "stuck"));
    let stuck = stuck(&daemon);
    assert!(daemon.stop().success());
    assert_eq!(refusal(upgrading.join().unwrap()).kind(), ErrorKind::ShuttingDown);
    stuck.gone();
    let log = fs::read_to_string(daemon.state_dir().join("bgd.log")).expect("a log");
    assert!(!log.contains("a disk does not answer"), "it waits for nothing: {log}");
}

#[test]
fn r123_truncated_or_damaged_program_is_refused() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let whole = fs::read(bgd_path()).expect("a program");
    let path = daemon.home().join("cut");
    let try_out = |bytes: &[u8]| {
        let draft = daemon.home().join("cut.part");
        fs::write(&draft, bytes).expect("a file in the home");
        executable::copy(&draft, &path);
        refused(&daemon, &path);
        assert_eq!(program(&daemon), bgd_path());
    };
    for bytes in [0, 4, 64, 4096, 1 << 20] {
        try_out(&whole[..bytes]);
    }
    // Damaged, but of the same length: its machine type, entry point, program header offset, and all of its code.
    for (from, bytes) in [(18, 2), (24, 8), (32, 8), (4096, whole.len() - 4096)] {
        let mut damaged = whole.clone();
        damaged[from..][..bytes].fill(0xff);
        try_out(&damaged);
    }
    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r123_only_durable_daemon_refuses_program_unable_to_read_journal() {
    let plain = TestDaemon::start();
    plain
        .client()
        .call::<DaemonUpgrade>(&params(&failing(&plain, "journal-less")))
        .expect("it has no journal");
    let daemon = TestDaemon::durable("");
    let task = until(&daemon, "first", 7);
    let text = refused(&daemon, &failing(&daemon, "journal-less"));
    assert!(text.contains("it is bgd 0.0.9, which can't read the journal of this one (format 2)"), "{text}");
    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

/// The upgrades of a test under load, which pace its clients: every upgrade carries all tasks so far.
#[derive(Default)]
struct Pace {
    /// The number of upgrades that have begun; `None` after the last one.
    begun: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Pace {
    /// The number of tasks per upgrade that a client submits at most.
    const TASKS: u64 = 50;

    /// Lets the clients submit during the next upgrade, or ends them.
    fn set(&self, begun: Option<u64>) {
        *self.begun.lock().expect("no panic") = begun;
        self.changed.notify_all();
    }

    /// Waits until a client with this many tasks may submit another one. Returns false once the last upgrade is over.
    #[track_caller]
    fn goes_on(&self, submitted: u64) -> bool {
        let has_enough =
            |begun: &mut Option<u64>| begun.is_some_and(|begun| submitted >= begun * Self::TASKS);
        let begun = self.begun.lock().expect("no panic");
        let (begun, waited) = self.changed.wait_timeout_while(begun, PATIENCE, has_enough).expect("no panic");
        assert!(!waited.timed_out(), "the next upgrade does not come");
        begun.is_some()
    }
}

/// Submits tasks on one connection, as fast as the daemon accepts them and the upgrades come. Each writes its number
/// into the ledger.
fn submits(daemon: &TestDaemon, client: u64, pace: &Pace) -> BTreeSet<u64> {
    const AT_ONCE: usize = 8;
    let mut raw = Raw::connect(daemon.socket());
    let mut params = serde_json::to_value(daemon.params()).expect("params");
    let (mut open, mut all) = (BTreeSet::new(), BTreeSet::new());
    for number in (client * 1_000_000)..(client + 1) * 1_000_000 {
        let is_last = !pace.goes_on(number % 1_000_000);
        if !is_last {
            params["shell"] = format!("echo {number} >> \"$HOME/ledger\"").into();
            raw.request(number, "task.submit", &params);
            open.insert(number);
        }
        while open.len() >= AT_ONCE || (is_last && !open.is_empty()) {
            let answer = raw.receive().expect("an answer");
            let number = answer["id"].as_u64().expect("a number");
            assert!(open.remove(&number), "{number} was not asked, or is answered twice");
            assert!(answer["result"]["task"]["id"].is_string(), "{answer}");
            all.insert(number);
        }
        if is_last {
            break;
        }
    }
    all
}

#[test]
fn r121_submits_are_answered_and_run_once_during_upgrades_under_load() {
    let daemon = TestDaemon::start();
    let pace = Pace::default();
    pace.set(Some(0));
    let all: BTreeSet<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                scope.spawn({
                    let (daemon, pace) = (&daemon, &pace);
                    move || submits(daemon, client, pace)
                })
            })
            .collect();
        for upgrade in 1..=15 {
            pace.set(Some(upgrade));
            upgrade_under_load(&daemon);
        }
        pace.set(None);
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let summary = wait::poll_until("all have ended", || {
        let summary = daemon.status().summary;
        (summary.active() == 0).then_some(summary)
    });
    assert_eq!((summary.completed, summary.failed), (all.len() as u64, 0), "{summary:?}");
    let ledger = fs::read_to_string(daemon.home().join("ledger")).expect("a ledger");
    let mut ran: Vec<u64> = ledger.lines().map(|line| line.parse().expect("a number")).collect();
    ran.sort_unstable();
    assert_eq!(ran, all.into_iter().collect::<Vec<_>>(), "each has run once");
    println!("{} tasks", ran.len());
}

#[test]
fn r123_upgrade_is_refused_when_state_cannot_be_written() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let process = daemon.process();
    process.limit(Resource::Fsize, Some(64));
    let text = refused(&daemon, &bgd_path());
    assert!(text.contains("the state can't be written: File too large"), "{text}");
    // Even if it fails only when the program is to take over.
    process.limit(Resource::Fsize, None);
    let slow = slow(&daemon);
    let upgrading = upgrading(&daemon, &slow);
    tried(&daemon);
    process.limit(Resource::Fsize, Some(64));
    let_go(&daemon);
    let error = refusal(upgrading.join().unwrap());
    assert!(error.message.contains("the state can't be written: File too large"), "{error:?}");
    process.limit(Resource::Fsize, None);
    assert_eq!(program(&daemon), bgd_path());
    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

/// Echoes the lines that it reads, until one says `end`.
const REPEATS: &str = "echo ready; while read word; do test $word = end && exit 9; echo \"<$word>\"; done";

#[test]
fn r123_upgrade_succeeds_or_is_refused_under_any_descriptor_limit() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let (mut viewer, terminal) = Viewer::run(&daemon, &daemon.in_terminal(REPEATS));
    viewer.until_shown("ready\r\n");
    let (process, mut client) = (daemon.process(), daemon.client());
    let instance = client.call::<Hello>(&HelloParams::default()).unwrap().instance;
    let least = descriptors(&daemon);
    let (mut done, mut whys) = (0, BTreeSet::new());
    for limit in least..least + 64 {
        process.limit(Resource::Nofile, Some(limit));
        match client.call::<DaemonUpgrade>(&UpgradeParams::default()) {
            Ok(_) => done += 1,
            outcome => _ = whys.insert(refusal(outcome).message),
        }
        let hello = client.call::<Hello>(&HelloParams::default()).expect("the connection goes on");
        assert_eq!((hello.pid, &hello.instance), (process.pid(), &instance), "{limit}");
        assert_eq!(program(&daemon), bgd_path());
    }
    assert!(done > 0 && !whys.is_empty(), "{done}");
    assert!(whys.iter().all(|why| why.starts_with("not upgraded, and nothing has changed: ")), "{whys:?}");
    println!("{done} of 64 were done; why not: {whys:#?}");
    process.limit(Resource::Nofile, None);
    upgrade(&daemon);
    viewer.type_keys(terminal.id, "end\r");
    assert_eq!(viewer.ended(terminal.id).exit, Some(Exit::Code(9)));
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

/// A failed allocation ends a process, so the upgrade checks for enough memory first.
#[test]
fn r122_upgrade_succeeds_or_is_refused_under_various_memory_limits() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let shell = Some(format!(": {}", "x".repeat(100_000)).as_str().into());
    let held = SubmitParams { shell, hold: true, ..daemon.params() };
    (0..50).for_each(|_| _ = daemon.submit_with(&held));
    let (process, mut client) = (daemon.process(), daemon.client());
    let instance = client.call::<Hello>(&HelloParams::default()).unwrap().instance;
    let (mut done, mut whys) = (0, BTreeSet::new());
    for more in [2048, 512, 128, 32, 8, 0] {
        let size = process.status_value("VmSize").expect("its size, in KiB");
        process.limit(Resource::As, Some((size << 10) + (more << 20)));
        match client.call::<DaemonUpgrade>(&UpgradeParams::default()) {
            Ok(_) => done += 1,
            outcome => _ = whys.insert(refusal(outcome).message),
        }
        let hello = client.call::<Hello>(&HelloParams::default()).expect("the connection goes on");
        assert_eq!((hello.pid, &hello.instance), (process.pid(), &instance), "{more} MiB");
        process.limit(Resource::As, None);
    }
    assert!(done > 0 && !whys.is_empty(), "{done}");
    assert!(whys.iter().all(|why| why.starts_with("not upgraded, and nothing has changed: ")), "{whys:?}");
    println!("{done} were done; why not: {whys:#?}");
    upgrade(&daemon);
    assert_eq!(daemon.status().summary.pending, 50);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
    daemon.run(&["clear", "--all", "--all-sessions"]).success();
}

/// Upgrades to a program that is killed as soon as it is to take over.
#[track_caller]
fn die(daemon: &mut TestDaemon) {
    let path = failing(daemon, "killed");
    let outcome = daemon.run(&["daemon", "upgrade", "--binary", path.to_str().unwrap()]).expect_code(69);
    let words = "the daemon ended during the upgrade: the new program died while taking over";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(daemon.ended().signal(), Some(9));
}

#[test]
fn r122_program_dying_during_takeover_counts_as_killed_daemon() {
    let mut daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let process = Process::open(daemon.wait_running(task).pid.expect("a process")).expect("it runs");
    die(&mut daemon);
    assert!(process.is_alive(), "until the next daemon");
    daemon.launch();
    process.gone();
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn r126_durable_daemon_loses_nothing_when_new_program_dies_during_takeover() {
    let mut daemon = TestDaemon::durable("");
    let [goes_on, ends] = [("first", 7), ("second", 5)].map(|(name, code)| until(&daemon, name, code));
    let process = Process::open(daemon.wait_running(ends).pid.expect("a process")).expect("it runs");
    let terminal = daemon.run(&["submit", "--pty", "--shell", REPEATS]).success().word::<TaskId>();
    let held = daemon.run(&["submit", "--hold", "--", "echo", "later"]).success().word::<TaskId>();
    daemon.wait_running(terminal);
    die(&mut daemon);
    release(&daemon, "second");
    process.gone();
    daemon.launch();
    assert_eq!(exit_of(&daemon, ends), Exit::Code(5));
    assert_eq!(daemon.task(goes_on).status, Status::Running);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, goes_on), Exit::Code(7));
    assert_eq!(daemon.output(goes_on), b"begun\nreleased\n");
    daemon.run(&["write", &terminal.to_string(), "end\n"]).success();
    assert_eq!(exit_of(&daemon, terminal), Exit::Code(9));
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!((exit_of(&daemon, held), daemon.output(held)), (Exit::Code(0), b"later\n".to_vec()));
}

#[test]
fn r122_removed_output_folder_is_recreated_by_upgrade() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let instances = daemon.state_dir().join("instances");
    let may_go_on = || {
        let next = daemon.submit_shell("echo said");
        assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
        assert_eq!(daemon.output(next), b"said\n");
        // It holds the lock of its folder, so a daemon that cleans up leaves its tasks alone.
        let other = daemon.home().join("other/bgd.sock");
        let other = ["--socket", other.to_str().unwrap(), "daemon"];
        daemon.run(&[&other[..], &["start"]].concat()).success();
        assert_eq!(daemon.task(task).status, Status::Running);
        daemon.run(&[&other[..], &["stop"]].concat()).success();
    };
    fs::remove_dir_all(&instances).unwrap();
    upgrade(&daemon);
    may_go_on();
    fs::remove_dir_all(&instances).unwrap();
    let text = refused(&daemon, &failing(&daemon, "late"));
    assert!(text.contains("it failed late"), "{text}");
    may_go_on();
    // The next program removes it, recreates it, and fails only then.
    let text = refused(&daemon, &failing(&daemon, "removing"));
    assert!(text.contains("it failed late"), "{text}");
    may_go_on();
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r123_upgrade_is_refused_without_journal_or_output_folder() {
    let daemon = TestDaemon::durable("");
    let task = until(&daemon, "first", 7);
    let (state, aside) = (daemon.state_dir(), daemon.home().join("aside"));
    let journal = state.join("journal");
    fs::rename(&journal, &aside).unwrap();
    for is_another in [false, true] {
        if is_another {
            fs::create_dir(&journal).unwrap();
            fs::copy(aside.join("journal.db"), journal.join("journal.db")).unwrap();
        }
        let text = refused(&daemon, &bgd_path());
        // The start of the task may still be on its way to the journal, which then can't be written.
        let why = format!("{} was removed, moved or replaced", journal.join("journal.db").display());
        assert!(text.contains(&why), "{text}");
    }
    fs::remove_dir_all(&journal).unwrap();
    fs::rename(&aside, &journal).unwrap();
    // What could not be written has been.
    let has_trouble = || daemon.warnings().iter().any(|warning| warning.contains("journal"));
    wait::poll_until("the journal", || (!has_trouble()).then_some(()));

    fs::rename(&state, &aside).unwrap();
    fs::write(&state, "in the way").unwrap();
    let text = refused(&daemon, &bgd_path());
    assert!(text.contains("was removed and can't be recreated: "), "{text}");
    fs::remove_file(&state).unwrap();
    fs::rename(&aside, &state).unwrap();

    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}

#[test]
fn r122_upgrade_rolls_back_when_new_program_hangs_during_takeover() {
    let daemon = TestDaemon::start();
    let task = until(&daemon, "first", 7);
    let mut client = daemon.client();
    client.call::<Hello>(&HelloParams::default()).unwrap();
    let hanging = failing(&daemon, "hanging");
    let mut asks = daemon.bgctl(&["daemon", "upgrade", "--binary", hanging.to_str().unwrap()]);
    let asked = thread::spawn(move || Outcome::of(&mut asks));
    let log = daemon.state_dir().join("bgd.log");
    let is_pipe = || fs::metadata(&log).is_ok_and(|meta| meta.file_type().is_fifo());
    wait::poll_until("its log is a pipe", || is_pipe().then_some(()));
    // Clients wait longer for a daemon that announces a takeover than for a silent one.
    let mut lists = daemon.bgctl(&["list"]);
    let listed = thread::spawn(move || Outcome::of(&mut lists));
    // While one of its threads executes a program, a process has no `exe` for a moment.
    let program = || fs::read_link(daemon.process().proc("exe")).ok();
    wait::poll_until("the program before goes on", || (program()? == bgd_path()).then_some(()));
    // The next program has the same log.
    let _log = nix::fcntl::open(&log, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()).expect("the log");
    let listed = listed.join().unwrap().success();
    assert!(listed.stdout_text().contains("running"), "{listed:?}");
    let outcome = asked.join().unwrap().expect_code(65);
    assert!(outcome.stderr.contains("it did not take over within 10 s"), "{}", outcome.stderr);
    client.call::<Hello>(&HelloParams::default()).expect("the connection goes on");
    upgrade(&daemon);
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, task), Exit::Code(7));
}
