//! A durable daemon after a restart of the machine (R128), which has a new boot id and possibly another clock. The
//! power cut happens in a virtual machine with its own kernel.

use std::fs;

use bgd_tests::clock::WallClock;
use bgd_tests::kernel::{End, Machine};
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::shared::time::Timestamp;
use bgd_tests::upgrades::upgrade;
use bgd_tests::user::must_be_root;
use bgd_tests::{TestDaemon, parallel, wait};
use serde_json::Value;

use super::durable::endless;
use super::durable_damaged::query;

const HOUR: i64 = 3600;

/// More hours than any retry lasts: a retry waits for a random part of its delay.
const LONG: i64 = 1000;

/// Makes a daemon with a file `boot` in its home believe that this is the machine's boot id.
const OTHER_BOOT: &str = "if [ -e \"$HOME/boot\" ]; then
    script='mount --bind \"$HOME/boot\" /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"'
    exec unshare -m sh -c \"$script\" \"$0\" \"$@\" 3>&1 >/dev/null
fi";

#[test]
fn r128_reboot_fails_running_tasks_and_keeps_pending_ones_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::builder().config("durable = true").prelude(OTHER_BOOT).start();
    let ran = endless(&daemon);
    let again = daemon.run(&["submit", "--retry", "1", "--retry-delay", "1h", "--", "sleep", "1000"]);
    let again = again.success().word::<TaskId>();
    daemon.wait_running(again);
    let delayed = daemon.run(&["submit", "--in", "1h", "--", "true"]).success().word::<TaskId>();
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();

    daemon.kill9();
    fs::write(daemon.home().join("boot"), "another\n").unwrap();
    daemon.launch();

    let task = daemon.task(ran);
    assert_eq!((task.status, task.error.as_deref()), (Status::Failed, Some("the machine was restarted")));
    assert_eq!(task.failure.map(|failure| failure.kind), Some(FailureKind::Lost));
    assert!(matches!(task.exit, Some(Exit::Unknown(_))), "no code is made up: {:?}", task.exit);
    assert_eq!(daemon.output(ran), b"begun\n", "it has not run again");
    let again = daemon.task(again);
    assert_eq!((again.status, again.attempts.len()), (Status::Pending, 1));
    assert!(daemon.task(delayed).waiting.is_some());
    daemon.run(&["release", &held.to_string()]).success();
    assert_eq!(daemon.block(&[held])[0].status, Status::Completed);
    assert!(daemon.task_processes().is_empty(), "what the killed daemon left is ended");
}

#[test]
fn r128_clock_change_during_reboot_lengthens_no_wait_as_root() {
    must_be_root();
    parallel::for_each([(-24 * HOUR, false), (2 * LONG * HOUR, true)], |(set, is_early)| {
        let clock = WallClock::new();
        let prelude = format!("{}\n{OTHER_BOOT}", clock.prelude());
        let mut daemon = TestDaemon::builder().config("durable = true").prelude(prelude).start();
        let submit = |args: &[&str]| daemon.run(&[&["submit"], args].concat()).success().word::<TaskId>();
        let soon = submit(&["--in", "3s", "--", "true"]);
        let late = submit(&["--in", "1h", "--", "true"]);
        let again = submit(&["--retry", "1", "--retry-delay", &format!("{LONG}h"), "--", "false"]);
        wait::poll_until("an attempt has failed", || {
            let task = daemon.task(again);
            (task.attempts.len() == 1 && task.status == Status::Pending).then_some(())
        });
        // The daemon answers once everything before it is in the journal.
        submit(&["--hold", "--", "true"]);

        daemon.kill9();
        clock.set(set);
        fs::write(daemon.home().join("boot"), "another\n").unwrap();
        daemon.launch();

        assert_eq!(daemon.block(&[soon])[0].status, Status::Completed, "whatever the clock says");
        let waits = |task: TaskId| daemon.task(task).waiting.and_then(|waiting| waiting.until);
        if is_early {
            assert_eq!(daemon.block(&[late])[0].status, Status::Completed, "its time has come");
            assert_eq!(daemon.block(&[again])[0].status, Status::Failed);
        } else {
            for (task, hours) in [(late, 1), (again, LONG)] {
                let most = Timestamp::now().unix_ms() + (set + hours * HOUR) * 1000;
                let until = waits(task).expect("it waits").unix_ms();
                assert!(until <= most, "it waits {hours} h at most, and says so: {until} {most}");
            }
            daemon.cancel(&[late, again]);
        }
    });
}

/// The clock of this boot is younger than the core's.
#[test]
fn r128_waits_begun_after_reboot_last_no_longer_over_kill_and_upgrade() {
    let mut daemon = TestDaemon::durable("");
    assert!(daemon.stop().success());
    // As after a boot that lasted 10,000 days.
    let set = |name: &str, key: &str, value: &str| {
        let changed = format!("CAST(json_set(CAST(value AS TEXT), '$.{key}', {value}) AS BLOB)");
        query(&daemon, &format!("UPDATE entry SET value = {changed} WHERE name = '{name}'"));
    };
    set("head", "boot", "'another'");
    set("counters", "mono", "864000000000");
    daemon.launch();
    for next in [upgraded, |daemon: &mut TestDaemon| {
        daemon.kill9();
        daemon.launch();
    }] {
        let submit = |args: &[&str]| daemon.run(&[&["submit"], args].concat()).success().word::<TaskId>();
        let limited = submit(&["--time-limit", "5s", "--", "sleep", "1000"]);
        let again = submit(&["--retry", "1", "--retry-delay", "5s", "--", "false"]);
        daemon.wait_running(limited);
        let delayed = submit(&["--in", "3s", "--", "true"]);

        next(&mut daemon);

        let ended = daemon.block(&[limited, again, delayed]);
        let statuses: Vec<_> = ended.iter().map(|task| task.status).collect();
        assert_eq!(statuses, [Status::Failed, Status::Failed, Status::Completed], "{ended:?}");
        assert_eq!(ended[1].attempts.len(), 1, "{ended:?}");
    }
}

fn upgraded(daemon: &mut TestDaemon) {
    upgrade(daemon);
}

/// Starts a durable daemon on the machine's disk.
const ON_DISK: &str = r#"set -e
export XDG_STATE_HOME=/run/disk/state
mkdir -p ~/.config/bgd
echo 'durable = "sync"' >~/.config/bgd/config.toml
"#;

/// Leaves tasks of every kind, and a file that nobody flushes.
const BEFORE_CUT: &str = r#"
ended=$(bgctl submit --shell 'exit 3')
bgctl block "$ended" --timeout none >&2 || true
ran=$(bgctl submit --shell 'sleep 1000')
until bgctl status --json "$ran" | grep -q '"started_at"'; do sleep 0.1; done
bgctl submit --in 1h --shell true >/dev/null
bgctl submit -d last --hold --shell 'exit 4' >/dev/null
echo flushed by nobody >/run/disk/state/unflushed
"#;

/// Prints all tasks, then the held one after its end.
const AFTER_CUT: &str = r#"
cat /run/disk/state/unflushed >&2 2>/dev/null || true
bgctl list --all --json
last=$(bgctl list -q --status pending --grep last)
bgctl release "$last" >&2
bgctl block "$last" --timeout none >&2 || true
bgctl status --json "$last"
bgctl daemon stop --cancel >&2
"#;

#[test]
fn r128_power_cut_loses_nothing_acknowledged_with_sync_as_root() {
    let machine = Machine::new();
    machine.run_as_alice(&format!("{ON_DISK}{BEFORE_CUT}"), End::Cut).success();

    let after = machine.run_as_alice(&format!("{ON_DISK}{AFTER_CUT}"), End::TurnedOff).success();

    assert!(!after.stderr.contains("flushed by nobody"), "it was no power cut: {}", after.stderr);
    let values = serde_json::Deserializer::from_slice(&after.stdout).into_iter();
    let values: Vec<Value> = values.map(|value| value.expect("JSON")).collect();
    let [listed, last] = &values[..] else { panic!("{values:#?}") };
    let found = |task: &Value| [&task["status"], &task["error"], &task["exit"]["code"]].map(Value::to_string);
    let mut all: Vec<_> = listed["tasks"].as_array().expect("tasks").iter().map(found).collect();
    all.sort();
    let wanted = [
        ["\"failed\"", "\"exited with code 3\"", "3"],
        ["\"failed\"", "\"the machine was restarted\"", "null"],
        ["\"pending\"", "null", "null"],
        ["\"pending\"", "null", "null"],
    ];
    assert_eq!(all, wanted, "{listed:#}");
    assert_eq!(last["task"]["exit"]["code"], 4, "{last:#}");
}

/// Without a restart of the machine, the kernel's own clock, which nobody can set, continues.
#[test]
fn r127_clock_change_between_daemons_or_before_upgrade_changes_no_wait() {
    parallel::for_each([-24 * HOUR, 400 * HOUR], |set| {
        let clock = WallClock::new();
        let mut daemon = TestDaemon::builder().config("durable = true").prelude(clock.prelude()).start();
        let submit = |daemon: &TestDaemon, args: &[&str]| {
            daemon.run(&[&["submit"], args].concat()).success().word::<TaskId>()
        };
        let soon = submit(&daemon, &["--in", "2s", "--", "true"]);
        let late = submit(&daemon, &["--in", "1h", "--", "true"]);
        let again = submit(&daemon, &["--retry", "1", "--retry-delay", &format!("{LONG}h"), "--", "false"]);
        let has_failed = |task: &Task| task.attempts.len() == 1 && task.status == Status::Pending;
        wait::poll_until("an attempt has failed", || has_failed(&daemon.task(again)).then_some(()));

        daemon.kill9();
        clock.set(set);
        daemon.launch();
        assert_eq!(daemon.block(&[soon])[0].status, Status::Completed);
        let soon = submit(&daemon, &["--in", "2s", "--", "true"]);
        clock.set(-set);
        upgrade(&daemon);
        assert_eq!(daemon.block(&[soon])[0].status, Status::Completed);

        assert_eq!(daemon.task(late).status, Status::Pending);
        assert!(has_failed(&daemon.task(again)));
        daemon.cancel(&[late, again]);
    });
}

/// The time of another boot's clock must not count again in the one after.
#[test]
fn r128_wait_shortened_by_reboot_stays_short_after_another_restart() {
    let clock = WallClock::new();
    let mut daemon = TestDaemon::builder().config("durable = true").prelude(clock.prelude()).start();
    let late = daemon.run(&["submit", "--in", "1h", "--", "true"]).success().word::<TaskId>();
    assert!(daemon.stop().success());
    query(
        &daemon,
        "UPDATE entry SET value = CAST(json_set(CAST(value AS TEXT), '$.boot', 'another') AS BLOB)
         WHERE name = 'head'",
    );
    // The machine was off until shortly before the end.
    clock.set(HOUR - 5);
    daemon.launch();
    // The daemon answers once everything before it is in the journal.
    let held = daemon.run(&["submit", "--hold", "--", "true"]).success().word::<TaskId>();

    daemon.kill9();
    daemon.launch();

    assert_eq!(daemon.block(&[late])[0].status, Status::Completed);
    daemon.cancel(&[held]);
}
