//! Journals that are damaged, foreign or in use, and disks that are full (R130, R123): the daemon starts with whatever
//! is readable, or says why it does not start, and running tasks continue.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::upgrades::{exit_of, release, until, upgrade};
use bgd_tests::user::on_a_small_disk_as;
use bgd_tests::{Process, TestDaemon, wait};

fn journal(daemon: &TestDaemon) -> PathBuf {
    daemon.state_dir().join("journal")
}

/// Runs a query on the journal of a daemon that is not running, and leaves everything in the database file.
#[track_caller]
pub fn query(daemon: &TestDaemon, query: &str) {
    let code =
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.close()";
    let mut python = Command::new("python3");
    let status = python.args(["-c", code]).arg(journal(daemon).join("journal.db")).arg(query).status();
    assert!(status.expect("python3 starts").success(), "{query}");
}

fn set_aside(daemon: &TestDaemon) -> Vec<PathBuf> {
    let all = fs::read_dir(journal(daemon)).expect("a journal").flatten().map(|entry| entry.path());
    let is_damaged =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("damaged-"));
    all.filter(is_damaged).collect()
}

#[track_caller]
fn process(daemon: &TestDaemon, task: TaskId) -> Process {
    Process::open(daemon.wait_running(task).pid.expect("a running task has a process")).expect("it runs")
}

/// This holds even if the daemon is killed again before it has written anything itself.
#[test]
fn r130_tasks_held_by_keeper_continue_despite_damaged_journal_head() {
    for kills in [1, 2] {
        let mut daemon = TestDaemon::durable("");
        let [goes_on, ends] = [("first", 7), ("second", 5)].map(|(name, code)| until(&daemon, name, code));
        let limited =
            daemon.run(&["submit", "--time-limit", "1h", "--", "sleep", "1000"]).success().word::<TaskId>();
        let terminal = daemon.run(&["submit", "--pty", "cat"]).success().word::<TaskId>();
        let delayed = daemon.run(&["submit", "--in", "1h", "--", "true"]).success().word::<TaskId>();
        let all = [goes_on, limited, terminal].map(|task| process(&daemon, task));
        let end = process(&daemon, ends);
        daemon.kill9();
        release(&daemon, "second");
        end.gone();
        query(&daemon, "UPDATE entry SET value = x'00' WHERE name = 'head'");

        for _ in 0..kills {
            daemon.launch();
            assert!(all.iter().all(Process::is_alive));
            if kills > 1 {
                daemon.kill9();
            }
        }
        if kills > 1 {
            daemon.launch();
        } else {
            let warnings = daemon.status().warnings.join("; ");
            assert!(warnings.contains("the journal was damaged"), "{warnings}");
            assert_eq!(set_aside(&daemon).len(), 1);
        }

        for (task, process) in [goes_on, limited, terminal].into_iter().zip(&all) {
            let task = daemon.task(task);
            assert_eq!((task.status, task.pid), (Status::Running, Some(process.pid())), "{task:?}");
        }
        assert_eq!(exit_of(&daemon, ends), Exit::Code(5));
        assert_eq!(daemon.task(delayed).status, Status::Pending);
        // The daemon can tell a task started now from those that continued.
        let next = daemon.submit(&["sleep", "1000"]);
        let other = process(&daemon, next);
        daemon.cancel(&[next]);
        other.gone();
        assert!(all.iter().all(Process::is_alive));
        release(&daemon, "first");
        assert_eq!(exit_of(&daemon, goes_on), Exit::Code(7));
        daemon.run(&["write", &terminal.to_string(), "\u{4}"]).success();
        assert_eq!(exit_of(&daemon, terminal), Exit::Code(0));
        daemon.cancel(&[limited, delayed]);
    }
}

#[test]
fn r130_daemon_recovers_readable_tasks_and_sets_damaged_journal_aside() {
    let mut daemon = TestDaemon::durable("");
    let runs = until(&daemon, "first", 7);
    let process = process(&daemon, runs);
    let held: Vec<TaskId> = (0..200)
        .map(|number| daemon.run(&["submit", "--hold", "--", "echo", &number.to_string()]).success().word())
        .collect();
    daemon.kill9();
    query(&daemon, "PRAGMA wal_checkpoint(TRUNCATE)");
    let path = journal(&daemon).join("journal.db");
    let mut bytes = fs::read(&path).unwrap();
    // The last page, which has the latest tasks.
    let page = bytes.len() - 4096;
    bytes[page..].fill(0xa5);
    fs::write(&path, &bytes).unwrap();

    daemon.launch();

    let warnings = daemon.status().warnings.join("; ");
    assert!(
        warnings.contains("the journal was damaged") && warnings.contains("tasks could be read"),
        "{warnings}"
    );
    let [aside] = &set_aside(&daemon)[..] else { panic!("one is kept: {:?}", set_aside(&daemon)) };
    assert_eq!(fs::read(aside.join("journal.db")).unwrap(), bytes, "as it was");
    let known = held.iter().filter(|task| daemon.run(&["status", &task.to_string()]).code == 0).count();
    assert!((100..200).contains(&known), "{known}");
    assert!(process.is_alive());
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, runs), Exit::Code(7));
    let next = daemon.submit(&["true"]);
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
    daemon.run(&["daemon", "stop"]).success();
    assert!(daemon.ended().success());
    daemon.launch();
    assert!(daemon.status().warnings.iter().all(|warning| !warning.contains("journal")), "it is whole again");
    assert_eq!(daemon.task(next).status, Status::Completed);
}

/// After a kill, most of a journal is only in its log.
#[test]
fn r130_damaged_log_is_reported_and_costs_no_running_task() {
    let mut daemon = TestDaemon::durable("");
    let runs = until(&daemon, "first", 7);
    let process = process(&daemon, runs);
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.kill9();
    let log = journal(&daemon).join("journal.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    // In the first version of the first page. A crash may have torn the last transaction, but no earlier one.
    bytes[1000] ^= 1;
    fs::write(&log, &bytes).unwrap();

    daemon.launch();

    let warnings = daemon.status().warnings.join("; ");
    for part in ["the journal was damaged (its log is damaged in the middle)", "2 tasks could be read"] {
        assert!(warnings.contains(part), "{warnings}");
    }
    let [aside] = &set_aside(&daemon)[..] else { panic!("one is kept: {:?}", set_aside(&daemon)) };
    assert_eq!(fs::read(aside.join("journal.db-wal")).unwrap(), bytes, "as it was");
    assert_eq!(daemon.task(held).status, Status::Pending);
    assert!(process.is_alive());
    release(&daemon, "first");
    assert_eq!(exit_of(&daemon, runs), Exit::Code(7));
    daemon.cancel(&[held]);
}

/// Otherwise, the daemon would seem to have had no tasks, and would remove their outputs.
#[test]
fn r130_removed_log_or_journal_is_reported_and_outputs_are_kept() {
    let mut daemon = TestDaemon::durable("");
    let said = daemon.submit(&["echo", "said"]);
    daemon.block(&[said]);
    daemon.kill9();
    fs::remove_file(journal(&daemon).join("journal.db-wal")).unwrap();
    daemon.launch();
    let warnings = daemon.status().warnings.join("; ");
    assert!(warnings.contains("all that its daemon has written is missing"), "{warnings}");
    let [aside] = &set_aside(&daemon)[..] else { panic!("one is kept: {:?}", set_aside(&daemon)) };
    let output = format!("{said}.out");
    assert_eq!(fs::read(aside.join("output").join(output)).unwrap(), b"said\n");

    let said = daemon.submit(&["echo", "said"]);
    daemon.block(&[said]);
    let instance = daemon.status().instance;
    daemon.run(&["daemon", "stop"]).success();
    assert!(daemon.ended().success());
    fs::remove_dir_all(journal(&daemon)).unwrap();
    daemon.launch();
    let warnings = daemon.status().warnings.join("; ");
    let output = daemon.state_dir().join("instances").join(instance).join("output");
    let expected = format!(
        "the journal does not know 1 task of an earlier daemon: their outputs are in {}",
        output.display()
    );
    assert!(warnings.contains(&expected), "{warnings}");
    assert_eq!(fs::read(output.join(format!("{said}.out"))).unwrap(), b"said\n");
}

#[test]
fn r130_second_durable_daemon_refuses_to_share_state_folder() {
    let daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    let other = daemon.home().join("run/other.sock");
    let other = other.to_str().unwrap();
    for _ in 0..2 {
        let refused = daemon.run(&["--socket", other, "daemon", "start"]).expect_code(69);
        let folder = journal(&daemon).display().to_string();
        let pid = format!("pid {}", daemon.pid());
        assert!(refused.stderr.contains(&folder) && refused.stderr.contains(&pid), "{}", refused.stderr);
    }
    assert!(!Path::new(other).exists());
    assert!(set_aside(&daemon).is_empty());
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
}

#[test]
fn r130_daemon_starting_on_full_disk_keeps_tasks_and_refuses_submits() {
    let mut daemon = on_a_small_disk_as("size=4m", "durable = true", FILLED);
    let held = daemon.run(&["submit", "--hold", "--", "echo", "said"]).success().word::<TaskId>();
    let disk = PathBuf::from(format!(
        "/proc/{}/root{}",
        daemon.pid(),
        daemon.state_dir().parent().unwrap().display()
    ));
    // The daemon has nothing to write at this moment.
    let saved = daemon.home().join("saved");
    assert!(Command::new("cp").arg("-a").arg(&disk).arg(&saved).status().unwrap().success());
    daemon.kill9();

    daemon.launch();

    assert_eq!(daemon.task(held).status, Status::Pending);
    let refused = wait::poll_until("a submit is refused", || {
        let outcome = daemon.run(&["submit", "--hold", "--", "true"]);
        (outcome.code != 0).then_some(outcome)
    });
    assert!(refused.stderr.contains("the journal can't be written: the disk is full"), "{}", refused.stderr);
    let fill = format!("/proc/{}/root{}/fill", daemon.pid(), daemon.state_dir().parent().unwrap().display());
    fs::remove_file(fill).unwrap();
    wait::poll_until("a submit is accepted", || {
        (daemon.run(&["submit", "--hold", "--", "true"]).code == 0).then_some(())
    });
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
}

/// Gives a daemon the disk image saved in its home, if any, and fills its free space.
const FILLED: &str = "if [ -e \"$HOME/saved\" ]; then
    cp -a \"$HOME/saved/.\" \"$XDG_STATE_HOME\" && dd if=/dev/zero of=\"$XDG_STATE_HOME/fill\" bs=4096 2>/dev/null
fi; true";

#[test]
fn r123_journal_of_newer_format_is_refused_and_left_unchanged() {
    let mut daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.run(&["daemon", "stop"]).success();
    assert!(daemon.ended().success());
    query(
        &daemon,
        "UPDATE entry SET value = CAST(replace(value, '\"format\":2', '\"format\":3') AS BLOB) WHERE name = 'head'",
    );
    let bytes = || fs::read(journal(&daemon).join("journal.db")).unwrap();
    let before = bytes();
    for _ in 0..2 {
        let failure = daemon.second();
        assert_eq!(failure.status.code(), Some(69), "{failure}");
        let words = failure.to_string();
        assert!(words.contains("a newer bgd wrote it (format 3)"), "{words}");
        assert!(bytes() == before && set_aside(&daemon).is_empty(), "nothing has changed");
    }
    query(
        &daemon,
        "UPDATE entry SET value = CAST(replace(value, '\"format\":3', '\"format\":2') AS BLOB) WHERE name = 'head'",
    );
    daemon.launch();
    assert_eq!(daemon.task(held).status, Status::Pending);
}

#[test]
fn r130_warning_about_damaged_journal_remains_after_upgrade() {
    let mut daemon = TestDaemon::durable("");
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();
    daemon.kill9();
    query(&daemon, "UPDATE entry SET value = x'00' WHERE name = 'head'");
    daemon.launch();
    let before = daemon.status().warnings;
    assert!(before.iter().any(|warning| warning.contains("the journal was damaged")), "{before:?}");

    for _ in 0..2 {
        upgrade(&daemon);
        assert_eq!(daemon.status().warnings, before);
    }

    daemon.cancel(&[held]);
}
