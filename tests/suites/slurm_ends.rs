//! Ends that a job can't record: what the accounting and the controller know of them, and the consequences while these
//! do not answer.

use std::fs;

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::wait;

/// A job that kills its own script and then itself, so that nothing is recorded.
const KILLED: &str = "kill -9 $PPID $$";

/// The same once a file exists.
fn killed_by(gate: &str) -> String {
    format!("until [ -e {gate} ]; do sleep 0.1; done; {KILLED}")
}

#[test]
fn r147_no_job_is_declared_lost_before_accounting_answers_as_root() {
    let site = Site::of(Builder::default().accounting(), "");
    let gates = ["first", "second"].map(|name| site.daemon.home().join(name));
    let lines = gates.each_ref().map(|gate| killed_by(gate.to_str().unwrap()));
    let tasks = lines.each_ref().map(|line| site.submit(&[], line));
    for id in tasks {
        site.running(id);
    }
    let programs = site.cluster.programs();
    let go = site.cluster.path("go");
    let asked = |name: &str, more: u64| {
        let before = programs.calls(name).len() as u64;
        programs.wait_for_calls(name, before + more);
    };
    // In this order, as the accounting must not be asked while it still answers.
    programs.before("sacct", "echo 'sacct: error: Problem talking to the database' >&2; exit 1");
    programs.before("squeue", "exit 0");
    asked("sacct", 3);
    let task = site.until(tasks[0], "it says why it is not known", |task| {
        unknown(task).is_some_and(|why| why.contains("accounting"))
    });
    assert_eq!(task.status, Status::Running, "nothing is decided");
    // The command hangs.
    let hang = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    programs.before("sacct", &hang);
    asked("sacct", 1);
    asked("squeue", 3);
    for id in tasks {
        assert_eq!(site.daemon.task(id).status, Status::Running, "nothing is decided");
    }
    // The command answers: one job has ended as it reports, and so has the other one, later.
    fs::write(&gates[0], "").unwrap();
    fs::write(&gates[1], "").unwrap();
    for id in tasks {
        let job = site.job(id);
        site.cluster.wait_for_state(&job, "FAILED");
    }
    wait::poll_until("the records", || {
        let query = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode"];
        let text = site.cluster.run(&query).success().stdout_text();
        (text.lines().filter(|line| *line == "FAILED|0:9").count() == 2).then_some(())
    });
    fs::write(&go, "").unwrap();
    for id in tasks {
        let task = site.ended(id);
        assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Signal(9))));
        assert_eq!(task.failure.unwrap().kind, FailureKind::Signal);
    }
    // A job that the accounting does not know either is lost.
    let lost = site.submit(&[], "sleep 1000");
    programs.restore("squeue");
    site.running(lost);
    programs.before("squeue", "exit 0");
    programs.before("sacct", "exit 0");
    assert_eq!(site.ended(lost).failure.unwrap().kind, FailureKind::Lost);
    wait::poll_until("the end of its process", || site.daemon.task_processes().is_empty().then_some(()));
}

#[test]
fn r148_job_killed_with_its_script_ends_with_that_signal_as_root() {
    let site = Site::start();
    let killed = site.submit(&[], KILLED);
    let task = site.ended(killed);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Signal(9))), "{:?}", task.error);
    assert_eq!(task.failure.unwrap().kind, FailureKind::Signal);
    // Somebody else cancels the job through the cluster.
    let other = site.submit(&[], "sleep 1000");
    let job = site.running(other);
    site.cluster.run(&["scancel", "--full", "--signal=KILL", &job]).success();
    assert_eq!(site.ended(other).status, Status::Cancelled);
    // A version of Slurm that does not report exits.
    let old = "case \"$*\" in *exit_code*) echo 'squeue: error: Invalid job format specification' >&2; exit 1;; esac";
    site.cluster.programs().before("squeue", old);
    let task = site.ended(site.submit(&[], KILLED));
    assert!(task.error.as_ref().unwrap().contains("killed at once"), "{:?}", task.error);
}

#[test]
fn r148_cluster_time_limit_is_reported_as_timeout_as_root() {
    let site = Site::start();
    let id = site.submit(&["--option=--time=5"], "sleep 1000");
    let job = site.running(id);
    // The controller checks every half minute.
    site.cluster.run(&["scontrol", "update", &format!("JobId={job}"), "EndTime=now+2seconds"]).success();
    let task = site.ended(id);
    assert_eq!((task.status, task.failure.unwrap().kind), (Status::Failed, FailureKind::Timeout));
    assert!(task.error.as_ref().unwrap().contains("time limit on the cluster"), "{:?}", task.error);
}
