//! Checks of a cluster behind a login node: which connection they use, and when it is closed.

use std::fs;
use std::process::Stdio;

use bgd_tests::clock::MonotonicClock;
use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::task::Status;
use bgd_tests::slurm::{Builder, Site};
use bgd_tests::{Outcome, Process, TestDaemon, executable, wait};

/// Returns the ssh processes that hold a connection to a login node.
fn connections(daemon: &TestDaemon) -> Vec<Process> {
    let holds = |process: &Process| process.cmdline().contains("ControlMaster=yes");
    daemon.processes().into_iter().filter(holds).collect()
}

/// A login node with programs that stand for Slurm's: no job is needed, and so no cluster. `scontrol` runs these lines.
/// Returns it with the configuration of a daemon that can only reach this node.
fn login_node(scontrol: &str) -> (Far, String) {
    let login = Far::of(TestDaemon::home_only());
    let programs = login.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    for (name, lines) in [("scontrol", scontrol), ("squeue", ""), ("scancel", ""), ("sbatch", "")] {
        executable::write(&programs.join(name), &format!("#!/bin/sh\n{lines}\n"));
    }
    login.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
    let config = format!(
        "[executors.hpc]\ntype = \"slurm\"\nwork_folder = \"{}\"\nhost = \"{HOST}\"\nssh = \"{}\"\n",
        login.daemon.home().display(),
        login.path("ssh").display()
    );
    (login, config)
}

#[test]
fn r146_reload_keeps_connection_to_login_node_unless_what_it_is_made_of_changes() {
    let (login, config) = login_node("");
    let daemon = TestDaemon::builder().config(&config).start();
    let check = || daemon.run(&["executors", "--check", "hpc"]).success();
    let pids = || -> Vec<i32> { connections(&daemon).iter().map(Process::pid).collect() };
    check();
    let open = pids();
    for more in ["", "partition = \"x\"\n"] {
        daemon.write_config(&format!("{config}{more}"));
        daemon.run(&["daemon", "reload"]).success();
        check();
        assert_eq!((login.connections(), pids()), (1, open.clone()), "{more:?}");
    }
    daemon.write_config(&format!("{config}[executors.hpc.env]\nSLURM_TIME_FORMAT = \"standard\"\n"));
    daemon.run(&["daemon", "reload"]).success();
    check();
    assert_eq!(login.connections(), 2);
}

#[test]
fn r151_connection_to_login_node_is_closed_a_minute_after_last_check() {
    let clock = MonotonicClock::new();
    let files = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| files.path().join(name));
    let scontrol = format!(": >{}; until [ -e {} ]; do sleep 0.02; done", begun.display(), gate.display());
    let (login, config) = login_node(&scontrol);
    let daemon = TestDaemon::builder().config(config).prelude(clock.prelude()).start();
    fs::write(&gate, "").unwrap();
    daemon.run(&["executors", "--check", "hpc"]).success();
    assert_eq!(connections(&daemon).len(), 1);

    // The time since the first check is over in the midst of another one.
    fs::remove_file(&gate).unwrap();
    fs::remove_file(&begun).unwrap();
    clock.advance_to(45);
    let mut check = daemon.bgctl(&["executors", "--check", "hpc"]);
    let checks = check.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    wait::for_file(&begun);
    clock.advance_to(61);
    daemon.status();
    fs::write(&gate, "").unwrap();
    let checked = checks.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    assert_eq!(login.connections(), 1, "one connection for both checks");

    clock.advance_to(125);
    wait::poll_until("the end of the connection", || {
        // Each call wakes the daemon, which sleeps by the real clock.
        daemon.status();
        connections(&daemon).is_empty().then_some(())
    });
    daemon.run(&["executors", "--check", "hpc"]).success();
    assert_eq!(login.connections(), 2, "the next check opens another one");
}

#[test]
fn r146_check_after_reload_tests_new_work_folder_over_current_connection_as_root() {
    let site = Site::far(Builder::default());
    let id = site.submit(&[], "sleep 1000");
    site.running(id);
    let connection = || -> Vec<i32> { site.connections().iter().map(Process::pid).collect() };
    let work = format!("work_folder = \"{}\"", site.cluster.work().display());
    let config = fs::read_to_string(site.daemon.config_path()).unwrap();
    let move_to = |folder: &str| -> Outcome {
        site.daemon.write_config(&config.replace(&work, &format!("work_folder = \"{folder}\"")));
        site.run(&["daemon", "reload"]).success();
        site.run(&["executors", "--check", "hpc"])
    };
    let checked = move_to("/proc/wrong").expect_code(69).stdout_text();
    assert!(checked.contains("cannot write to /proc/wrong/"), "{checked}");
    let other = site.cluster.path("other").display().to_string();
    let checked = move_to(&other).success().stdout_text();
    assert!(checked.contains(&format!("work_folder: {other}/")), "{checked}");
    // The tasks keep their connection, and a check takes it, too.
    let (open, count) = (connection(), site.login().connections());
    site.run(&["executors", "--check", "hpc"]).success();
    assert_eq!((connection(), site.login().connections()), (open, count));
    assert_eq!(site.daemon.task(id).status, Status::Running);
    assert_eq!(site.daemon.cancel(&[id])[0].status, Status::Cancelled);
}
