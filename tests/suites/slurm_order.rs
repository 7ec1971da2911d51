//! The order of a cluster's tasks: those that come after others, some of which the cluster itself handles, and those
//! that are merely submitted one after the other.

use std::fs;
use std::path::PathBuf;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::CancelReason;
use bgd_tests::shared::request::{ListParams, TaskList};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::slurm::{Builder, Site};
use bgd_tests::wait;

/// A task that records its runs and then ends with this code as soon as a file exists. Returns that file, too.
fn gated(site: &Site, code: u8) -> (TaskId, PathBuf) {
    let gate = site.daemon.home().join(format!("gate-{code}"));
    let line =
        format!("echo first >>{0}.runs; until [ -e {0} ]; do sleep 0.1; done; exit {code}", gate.display());
    let id = site.submit(&[], &line);
    site.running(id);
    wait::for_lines(&gate.with_extension("runs"), 1, "first");
    (id, gate)
}

fn after(site: &Site, condition: &str, line: &str) -> TaskId {
    site.submit(&["--after", condition], line)
}

/// A batch of three tasks after another one.
fn three_after(site: &Site, first: TaskId) -> TaskId {
    let items = site.daemon.home().join("items");
    fs::write(&items, "1\n2\n3\n").unwrap();
    let (first, items) = (first.to_string(), items.to_str().unwrap());
    site.run(&["submit", "--on", "hpc", "--after", &first, "--each", items, "--", "echo", "{}"]).word()
}

#[track_caller]
fn assert_cancelled_for(site: &Site, id: TaskId, other: TaskId) -> Task {
    let task = site.ended(id);
    assert_eq!(
        (task.status, task.cancel_reason),
        (Status::Cancelled, Some(CancelReason::Dependency)),
        "{task:?}"
    );
    assert!(task.error.as_ref().unwrap().contains(&other.to_string()), "{task:?}");
    assert_eq!(task.started_at, None);
    task
}

#[test]
fn r150_success_dependencies_are_delegated_to_cluster_as_root() {
    let site = Site::start();
    let (first, gate) = gated(&site, 0);
    let second = after(&site, &first.to_string(), &format!("cat {}.runs", gate.display()));
    // Submitted individually, as an element of an array could be followed only once it runs.
    site.job(second);
    let third = after(&site, &second.to_string(), "echo third");
    site.job(third);
    let batch = three_after(&site, first);
    let depends = |id: TaskId| site.cluster.field(&site.job(id), "Dependency").unwrap();
    assert!(depends(second).starts_with(&format!("afterok:{}", site.job(first))), "{}", depends(second));
    assert!(depends(third).starts_with(&format!("afterok:{}", site.job(second))), "{}", depends(third));
    let waits = site.until(second, "the cluster says why", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.reason.as_deref() == Some("Dependency"))
    });
    assert_eq!(waits.status, Status::Pending);
    fs::write(&gate, "").unwrap();
    assert_eq!(site.ended(third).status, Status::Completed);
    assert_eq!(site.output(second), "first\n");
    site.run(&["block", "--timeout", "none", "--batch", &batch.to_string()]).success();
    let [one, two] = [first, second].map(|id| site.daemon.task(id));
    assert!(two.after.iter().all(|one| one.met) && one.completed_at <= two.completed_at);
    assert!(site.cluster.programs().calls("sbatch").len() <= 4);
    // A task that has already ended is no longer a condition.
    let late = after(&site, &first.to_string(), "true");
    assert_eq!(site.ended(late).status, Status::Completed);
}

#[test]
fn r103_unsatisfiable_dependency_cancels_cluster_tasks_as_root() {
    let site = Site::start();
    let (first, gate) = gated(&site, 3);
    let second = after(&site, &first.to_string(), "true");
    let third = after(&site, &second.to_string(), "true");
    let batch = three_after(&site, first);
    for id in [second, third] {
        site.until(id, "it waits there", |task| {
            task.elsewhere.as_ref().is_some_and(|there| there.reason.as_deref() == Some("Dependency"))
        });
    }
    fs::write(&gate, "").unwrap();
    assert_cancelled_for(&site, second, first);
    assert_cancelled_for(&site, third, second);
    site.run(&["block", "--timeout", "none", "--batch", &batch.to_string()]);
    let list = site.run(&["list", "--batch", &batch.to_string(), "--json"]).success().stdout_text();
    assert_eq!(list.matches("\"cancel_reason\":\"dependency\"").count(), 3, "{list}");
    wait::poll_until("nothing waits there", || {
        site.cluster.jobs().iter().all(|(_, state)| state != "PENDING").then_some(())
    });
    // A task that is cancelled, here or by others, has not succeeded either.
    let (first, _) = gated(&site, 0);
    let second = after(&site, &first.to_string(), "true");
    site.job(second);
    site.daemon.cancel(&[first]);
    assert_cancelled_for(&site, second, first);
    let (first, _) = gated(&site, 1);
    let second = after(&site, &first.to_string(), "true");
    site.job(second);
    site.cluster.run(&["scancel", &site.job(first)]).success();
    assert_cancelled_for(&site, second, first);
}

#[test]
fn r103_other_conditions_are_evaluated_by_daemon_as_root() {
    let site = Site::start();
    let (first, gate) = gated(&site, 3);
    let any = after(&site, &format!("{first}:any"), "true");
    let fails = after(&site, &format!("{first}:fail"), "true");
    let runs = after(&site, &format!("{first}:start"), "true");
    assert_eq!(site.ended(runs).status, Status::Completed);
    for id in [any, fails] {
        let task = site.daemon.task(id);
        assert!(task.status == Status::Pending && task.elsewhere.is_none(), "{task:?}");
    }
    fs::write(&gate, "").unwrap();
    for id in [any, fails] {
        assert_eq!(site.ended(id).status, Status::Completed);
    }
    // The cluster would treat a job that never started as one that has ended.
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let waits = site.submit(&["--cpus", "16"], "true");
    site.job(waits);
    let any = after(&site, &format!("{waits}:any"), "true");
    site.daemon.cancel(&[waits]);
    assert_cancelled_for(&site, any, waits);
    site.daemon.cancel(&[all]);
    // A task that may be retried has not failed for good.
    let file = site.daemon.home().join("tried");
    let line = format!("test -e {0} || {{ touch {0}; exit 1; }}", file.display());
    let tried = site.submit(&["--retry", "1", "--retry-delay", "0s"], &line);
    let next = after(&site, &tried.to_string(), "true");
    assert_eq!(site.ended(next).status, Status::Completed);
    assert_eq!(site.daemon.task(tried).attempt, Some(2));
}

#[test]
fn r103_dependencies_span_local_and_cluster_tasks_as_root() {
    let site = Site::start();
    let gate = site.daemon.home().join("local");
    let line = format!("until [ -e {} ]; do sleep 0.1; done", gate.display());
    let here: TaskId = site.run(&["submit", "--shell", &line]).word();
    let (there, gate_there) = gated(&site, 0);
    let both = site.submit(&["--after", &here.to_string(), "--after", &there.to_string()], "echo both");
    let local: TaskId = site.run(&["submit", "--after", &both.to_string(), "--", "true"]).word();
    assert!(site.daemon.task(both).elsewhere.is_none());
    fs::write(&gate, "").unwrap();
    // The remaining condition is the cluster's.
    let job = site.job(both);
    let depends = site.cluster.field(&job, "Dependency").unwrap();
    assert!(depends.starts_with(&format!("afterok:{}", site.job(there))), "{depends}");
    assert_eq!(site.daemon.task(local).status, Status::Pending);
    fs::write(&gate_there, "").unwrap();
    assert_eq!(site.ended(local).status, Status::Completed);
}

#[test]
fn r150_dependent_still_waits_for_requeued_task_as_root() {
    let site = Site::start();
    let (first, gate) = gated(&site, 0);
    let second = after(&site, &first.to_string(), &format!("cat {}.runs", gate.display()));
    let (job, next) = (site.job(first), site.job(second));
    site.cluster.run(&["scontrol", "requeue", &job]).success();
    site.until(first, "it waits again", |task| task.status == Status::Pending);
    assert_eq!(site.cluster.field(&next, "JobState").as_deref(), Some("PENDING"));
    site.cluster.start_requeued(&job);
    wait::for_lines(&gate.with_extension("runs"), 2, "first");
    fs::write(&gate, "").unwrap();
    assert_eq!(site.ended(second).status, Status::Completed);
    assert_eq!(site.output(second), "first\nfirst\n");
}

#[test]
fn r150_dependency_chain_is_submitted_at_once_through_login_node_as_root() {
    let site = Site::far(Builder::default());
    let (first, gate) = gated(&site, 0);
    let mut last = first;
    let mut chain = Vec::new();
    for number in 0..5 {
        last = after(&site, &last.to_string(), &format!("echo {number}"));
        chain.push(last);
    }
    for id in &chain {
        assert_ne!(site.job(*id), "");
    }
    fs::write(&gate, "").unwrap();
    assert_eq!(site.ended(last).status, Status::Completed);
    let outputs: Vec<String> = chain.iter().map(|id| site.output(*id)).collect();
    assert_eq!(outputs, ["0\n", "1\n", "2\n", "3\n", "4\n"]);
}

#[test]
fn r150_cluster_batch_stops_at_max_fails_and_failed_tasks_rerun_as_root() {
    let site = Site::start();
    let (items, mended) = (site.daemon.home().join("items"), site.daemon.home().join("mended"));
    fs::write(&items, "0\n1\n0\n3\n0\n0\n").unwrap();
    let line = format!("test -e {} || exit $0", mended.display());
    let submit =
        ["submit", "--on", "hpc", "--each", items.to_str().unwrap(), "--jobs", "1", "--max-fails", "2"];
    let batch = site.run(&[&submit[..], &["--", "sh", "-c", &line]].concat()).success().word::<TaskId>();
    let batch = batch.to_string();
    site.run(&["block", "--timeout", "none", "--batch", &batch]).expect_code(1);
    let here = || {
        let mut tasks = site.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
        tasks.reverse();
        tasks
    };
    let (completed, failed, cancelled) = (Status::Completed, Status::Failed, Status::Cancelled);
    let tasks = here();
    let statuses: Vec<Status> = tasks.iter().map(|task| task.status).collect();
    assert_eq!(statuses, [completed, failed, completed, failed, cancelled, cancelled]);
    assert_eq!(tasks[5].cancel_reason, Some(CancelReason::MaxFails));
    assert_eq!(site.cluster.jobs().len(), 4, "the last two were never given to the cluster");
    fs::write(mended, "").unwrap();
    let again = site.run(&["rerun", "--failed", &format!("@{batch}")]).success().stdout_text();
    site.run(&[&["block", "--timeout", "none"], &again.lines().collect::<Vec<_>>()[..]].concat()).success();
    let reruns: Vec<_> = here().into_iter().skip(6).map(|task| (task.rerun_of, task.on)).collect();
    let hpc = Some("hpc".to_owned());
    assert_eq!(reruns, [(Some(tasks[1].id), hpc.clone()), (Some(tasks[3].id), hpc)]);
}

/// Submits tasks with these numbers of processors, one after the other, and returns the numbers of their jobs.
fn numbers(site: &Site, cpus: &[u32]) -> Vec<u64> {
    let tasks: Vec<TaskId> =
        cpus.iter().map(|cpus| site.submit(&["--cpus", &cpus.to_string()], "true")).collect();
    fs::write(site.cluster.programs().path().join("all"), "").unwrap();
    let number = |id: &TaskId| site.job(*id).split('_').next().and_then(|number| number.parse().ok());
    tasks.iter().map(|id| number(id).expect("a number")).collect()
}

#[test]
fn r146_jobs_reach_cluster_in_submission_order_as_root() {
    let site = Site::start();
    site.ended(site.submit(&[], "true"));
    let programs = site.cluster.programs();
    // The first one reaches the cluster once all of them are submitted here.
    let all = "until [ -e $folder/all ]; do sleep 0.1; done";
    programs.before("sbatch", &format!("! mkdir $folder/slow 2>/dev/null || {all}"));
    let jobs = numbers(&site, &[1, 2, 1, 3]);
    assert!(jobs.is_sorted_by(|one, next| one < next), "{jobs:?}");
    // The first one does not reach the cluster at first, which is reported once all of them are submitted here.
    let fails = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1";
    fs::remove_file(programs.path().join("all")).unwrap();
    programs.before("sbatch", &format!("! mkdir $folder/failed 2>/dev/null || {{ {all}; {fails}; }}"));
    let jobs = numbers(&site, &[3, 1, 1, 2]);
    assert!(jobs[0] < jobs[1] && jobs[1] == jobs[2] && jobs[2] < jobs[3], "{jobs:?}");
}
