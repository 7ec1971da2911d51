//! Faults of clusters, on real parts: nodes and controllers that fail, places that are full or gone, ids that are
//! reused, clocks that are wrong.

use std::fs;
use std::path::PathBuf;

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonUpgrade, ListParams, TaskList, UpgradeParams};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::slurm::{Builder, Site};
use bgd_tests::{executable, wait};

/// A task that ends with 0 as soon as a file exists. Returns that file, too.
fn gated(site: &Site, options: &[&str]) -> (TaskId, PathBuf) {
    let gate = site.daemon.home().join("gate");
    let line = format!("echo begins; until [ -e {} ]; do sleep 0.1; done; echo ends", gate.display());
    let id = site.submit(options, &line);
    site.until(id, "its output", |task| task.output.bytes == 7);
    (id, gate)
}

#[test]
fn r148_preempted_job_waits_again_or_fails_with_reason_as_root() {
    let partitions = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
                      PartitionName=low Nodes=ALL State=UP PriorityTier=1 PreemptMode=REQUEUE\n\
                      PartitionName=cheap Nodes=ALL State=UP PriorityTier=1 PreemptMode=CANCEL\n\
                      PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF";
    let site = Site::of(Builder::default().conf(partitions), "");
    let (first, gate) = gated(&site, &["--partition", "low", "--cpus", "16"]);
    let job = site.job(first);
    let high = site.submit(&["--partition", "high", "--cpus", "16"], "sleep 1000");
    let task = site.until(first, "it waits again", |task| task.status == Status::Pending);
    assert_eq!(task.elsewhere.unwrap().requeued, 1);
    site.running(high);
    site.daemon.cancel(&[high]);
    fs::write(gate, "").unwrap();
    site.cluster.start_requeued(&job);
    let task = site.ended(first);
    assert_eq!((task.status, site.output(first)), (Status::Completed, "begins\nbegins\nends\n".to_owned()));
    let cheap = site.submit(&["--partition", "cheap", "--cpus", "16"], "echo begins; sleep 1000");
    site.until(cheap, "its output", |task| task.output.bytes == 7);
    let high = site.submit(&["--partition", "high", "--cpus", "16"], "true");
    let task = site.ended(cheap);
    assert!(
        task.status == Status::Failed && task.error.as_ref().unwrap().contains("in favour of another"),
        "{task:?}"
    );
    assert_eq!(site.ended(high).status, Status::Completed);
}

#[test]
fn r148_jobs_of_failed_node_fail_with_cause_or_wait_again_as_root() {
    let site = Site::start();
    let (again, gate) = gated(&site, &[]);
    let job = site.job(again);
    let fails = site.submit(&["--option=--no-requeue"], "sleep 1000");
    site.running(fails);
    site.cluster.stop_node();
    let node = format!("NodeName={}", site.cluster.node());
    site.cluster.run(&["scontrol", "update", &node, "State=DOWN", "Reason=lost"]).success();
    let task = site.ended(fails);
    assert_eq!((task.status, task.failure.unwrap().kind), (Status::Failed, FailureKind::Node));
    let task = site.until(again, "it waits again", |task| task.status == Status::Pending);
    assert_eq!(task.elsewhere.unwrap().requeued, 1);
    // Nobody has signalled the processes of the lost node. What they record at their end is about a run that is over.
    fs::write(gate, "").unwrap();
    site.daemon.task_processes().iter().for_each(bgd_tests::Process::kill);
    site.cluster.steps_ended();
    let asked = site.cluster.programs().calls("squeue").len() as u64;
    site.cluster.programs().wait_for_calls("squeue", asked + 2);
    assert_eq!(site.daemon.task(again).status, Status::Pending);
    assert_eq!(site.daemon.cancel(&[again])[0].status, Status::Cancelled);
    site.cluster.wait_for_state(&job, "CANCELLED");
}

#[test]
fn r146_submission_waits_while_queue_is_full_as_root() {
    // Jobs that have ended count for a while.
    let site = Site::of(Builder::default().conf("MaxJobCount=3\nMaxArraySize=2\nMinJobAge=2"), "");
    let long: Vec<TaskId> = (0..2).map(|_| site.submit(&[], "sleep 1000")).collect();
    for id in &long {
        site.running(*id);
    }
    let late = site.submit(&[], "echo late");
    let later = site.submit(&[], "echo later");
    site.cluster.programs().wait_for_calls("sbatch", 4);
    site.daemon.cancel(&long[..1]);
    for (id, output) in [(late, "late\n"), (later, "later\n")] {
        assert_eq!(site.ended(id).status, Status::Completed);
        assert_eq!(site.output(id), output, "once");
    }
}

#[test]
fn r146_full_queue_does_not_delay_orders_for_running_jobs_as_root() {
    let site = Site::start();
    let first = site.submit(&[], "trap 'exit 5' USR1; echo up; while :; do sleep 0.1; done");
    site.until(first, "it is ready for the signal", |task| task.output.bytes == 3);
    let full =
        "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2; exit 1";
    site.cluster.programs().before("sbatch", full);
    let late = site.submit(&[], "echo late");
    site.until(late, "the refusal", |task| {
        let reason = task.elsewhere.as_ref().and_then(|there| there.reason.as_deref());
        reason.is_some_and(|reason| reason.contains("accepts no more jobs"))
    });
    site.run(&["signal", &first.to_string(), "USR1"]).success();
    assert_eq!(site.ended(first).exit, Some(Exit::Code(5)));
    assert_eq!(site.daemon.task(first).elsewhere.and_then(|there| there.refused), None);
    site.cluster.programs().restore("sbatch");
    assert_eq!(site.ended(late).status, Status::Completed);
    assert_eq!(site.output(late), "late\n");
}

#[test]
fn r146_task_for_inactive_partition_waits_with_reason_until_it_is_active_or_cancelled_as_root() {
    let site = Site::start();
    let set = |state: &str| {
        site.cluster.run(&["scontrol", "update", "PartitionName=other", &format!("State={state}")]).success();
    };
    set("INACTIVE");
    let cancelled = site.submit(&["--partition", "other", "--time-limit", "1ms"], "true");
    let runs = site.submit(&["--partition", "other"], "echo ran");
    for id in [cancelled, runs] {
        let task = site.until(id, "the obstacle", |task| {
            let reason = task.elsewhere.as_ref().and_then(|there| there.reason.as_deref());
            reason.is_some_and(|reason| reason.contains("Required partition not available"))
        });
        assert_eq!(task.status, Status::Pending, "its limits count from its start");
    }
    let task = site.daemon.cancel(&[cancelled]).remove(0);
    assert_eq!((task.status, task.lingering, task.started_at), (Status::Cancelled, false, None));
    set("UP");
    assert_eq!(site.ended(runs).status, Status::Completed);
    assert_eq!(site.output(runs), "ran\n");
}

#[test]
fn r147_corrected_work_folder_applies_without_restart_as_root() {
    let site = Site::start();
    let right = fs::read_to_string(site.daemon.config_path()).unwrap();
    let wrong = right.replace(&site.cluster.work().display().to_string(), "/proc/wrong");
    site.daemon.write_config(&wrong);
    site.run(&["daemon", "reload"]).success();
    let checked = site.run(&["executors", "--check", "hpc"]).expect_code(69).stdout_text();
    assert!(checked.contains("/proc/wrong"), "{checked}");
    let task = site.ended(site.submit(&[], "true"));
    assert!(task.error.as_ref().unwrap().contains("/proc/wrong"), "{task:?}");
    site.daemon.write_config(&right);
    let reloaded = site.run(&["daemon", "reload"]).success().stdout_text();
    assert!(reloaded.contains("changed: executors.hpc.work_folder\n"), "{reloaded}");
    site.run(&["executors", "--check", "hpc"]).success();
    let id = site.submit(&[], "echo works");
    assert_eq!((site.ended(id).status, site.output(id)), (Status::Completed, "works\n".to_owned()));
    // Jobs and outputs are there now, so the folder stays until a restart; other keys apply at once.
    site.daemon
        .write_config(&wrong.replace("[executors.hpc.env]", "partition = \"nowhere\"\n[executors.hpc.env]"));
    let reloaded = site.run(&["daemon", "reload"]).success().stdout_text();
    let waits = "needs a restart: executors.hpc.work_folder\n";
    assert!(
        reloaded.contains(waits) && !reloaded.contains("changed: executors.hpc.work_folder"),
        "{reloaded}"
    );
    assert_eq!(site.run(&["daemon", "reload"]).success().stdout_text(), waits, "until it is in effect");
    let task = site.ended(site.submit(&[], "true"));
    assert!(task.error.as_ref().unwrap().contains("`partition`"), "{task:?}");
    assert_eq!(site.output(id), "works\n");
}

/// Returns a cluster that accepts one job at a time from this user, in the account `lab`, with a task that is that job.
fn limited_to_one_job() -> (Site, TaskId) {
    let site = Site::of(
        Builder::default().accounting().conf("AccountingStorageEnforce=associations,limits,qos"),
        "",
    );
    let manage = |words: &[&str]| site.cluster.run(&[&["sacctmgr", "--immediate"], words].concat());
    manage(&["add", "account", "lab", "Cluster=test"]).success();
    manage(&["add", "user", "root", "Account=lab", "Cluster=test", "DefaultAccount=lab"]);
    manage(&["modify", "user", "root", "set", "MaxSubmitJobs=1"]).success();
    let allowed = wait::poll_until("the association", || {
        let id = site.submit(&["--account", "lab"], "sleep 1000");
        site.until(id, "the answer", |task| {
            task.status != Status::Pending || task.elsewhere.as_ref().is_some_and(|there| there.id.is_some())
        });
        (site.daemon.task(id).error.is_none()).then_some(id)
    });
    (site, allowed)
}

#[test]
fn r146_submission_not_allowed_by_accounts_is_refused_with_advice_as_root() {
    let (site, allowed) = limited_to_one_job();
    let task = site.ended(site.submit(&["--account", "nobody"], "true"));
    let error = task.error.unwrap();
    assert!(error.contains("account") && error.contains("sacctmgr"), "{error}");
    assert_eq!(task.failure.unwrap().kind, FailureKind::Spawn);
    site.daemon.cancel(&[allowed]);
}

#[test]
fn r146_tasks_beyond_job_limit_of_account_wait_with_reason_until_a_job_ends_as_root() {
    let (site, allowed) = limited_to_one_job();
    let items = site.daemon.home().join("items");
    fs::write(&items, "1\n2\n3\n").unwrap();
    // Together they become an array, which exceeds the limit as a whole, however long it waits.
    let submit = ["submit", "--on", "hpc", "--account", "lab", "--each", items.to_str().unwrap()];
    let batch = site.run(&[&submit[..], &["--", "echo"]].concat()).success().word::<TaskId>();
    let late = site.submit(&["--account", "lab"], "echo late");
    let mut waiting = site.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    waiting.retain(|task| task.batch == Some(batch) || task.id == late);
    assert_eq!(waiting.len(), 4);
    for task in &waiting {
        let reason = |task: &Task| task.elsewhere.as_ref()?.reason.clone();
        let is_limited = |task: &Task| reason(task).is_some_and(|why| why.contains("AssocMaxSubmitJobLimit"));
        let task = site.until(task.id, "the limit", is_limited);
        assert_eq!(task.status, Status::Pending);
    }
    let shown = site.run(&["status", &late.to_string()]).success().stdout_text();
    assert!(shown.contains("it accepts no more jobs now: AssocMaxSubmitJobLimit"), "{shown}");
    let calls = site.cluster.programs().calls("sbatch");
    assert!(calls.iter().any(|call| call.contains("--array=0-")), "{calls:?}");
    site.daemon.cancel(&[allowed]);
    for task in waiting {
        assert_eq!(site.ended(task.id).status, Status::Completed);
        assert_eq!(site.output(task.id).lines().count(), 1, "once");
    }
}

#[test]
fn r147_missing_work_folder_is_reported_and_recreated_as_root() {
    let site = Site::start();
    let (first, gate) = gated(&site, &[]);
    fs::remove_dir_all(&site.folders()[0]).unwrap();
    fs::write(gate, "").unwrap();
    let task = site.ended(first);
    assert!(
        task.status == Status::Failed && task.error.as_ref().unwrap().contains("work folder"),
        "{task:?}"
    );
    let id = site.submit(&[], "echo works");
    assert_eq!((site.ended(id).status, site.output(id)), (Status::Completed, "works\n".to_owned()));
}

#[test]
fn r147_full_work_folder_fails_tasks_that_need_space_as_root() {
    let site = Site::of(Builder::default().work_bytes(256 * 1024), "");
    let ballast = site.cluster.work().join("ballast");
    let full = |bytes: usize| {
        // As much as fits.
        let _ = fs::write(&ballast, vec![0; bytes]);
    };
    full(1 << 20);
    let task = site.ended(site.submit(&[], "true"));
    assert!(task.error.as_ref().unwrap().contains("No space left"), "{task:?}");
    assert!(site.cluster.programs().calls("sbatch").is_empty() && site.cluster.jobs().is_empty());
    fs::remove_file(&ballast).unwrap();
    let id = site.submit(&[], "head -c 1000000 /dev/zero || exit 7");
    let task = site.ended(id);
    assert!(task.status == Status::Failed, "{task:?}");
    assert!(!task.error.as_ref().unwrap().contains("Batch script"), "{task:?}");
    site.run(&["clear", "--all-sessions"]).success();
    wait::poll_until("its output is removed", || {
        (fs::read_dir(site.folders()[0].join("output")).unwrap().count() == 0).then_some(())
    });
    let id = site.submit(&[], "echo works");
    assert_eq!((site.ended(id).status, site.output(id)), (Status::Completed, "works\n".to_owned()));
}

#[test]
fn r147_reused_job_id_is_recognized_as_another_job_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let old = site.submit(&["--cpus", "16"], "echo old");
    let id = site.job(old);
    site.daemon.cancel(&[all]);
    site.ended(old);
    // The controller forgets everything, and starts numbering again, while nobody looks.
    let (gone, _) = gated(&site, &["--cpus", "16"]);
    let waits = site.submit(&["--cpus", "16"], "echo waits");
    let number: u64 = site.job(waits).parse().unwrap();
    assert!(number > id.parse().unwrap());
    let refuse = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1";
    site.cluster.programs().before("squeue", refuse);
    site.cluster.reset_controller();
    let mut new = waits;
    for _ in 1..=number {
        new = site.submit(&["--cpus", "16", "--hold"], "true");
        site.run(&["release", &new.to_string()]).success();
        site.job(new);
    }
    assert_eq!(site.job(new), number.to_string());
    // Its id belongs to another job now, so it is lost at once.
    let task = site.ended(waits);
    assert_eq!((task.status, task.failure.unwrap().kind), (Status::Failed, FailureKind::Lost));
    site.cluster.programs().restore("squeue");
    assert_eq!(site.ended(new).status, Status::Completed);
    let task = site.ended(gone);
    assert_eq!(task.status, Status::Failed, "{task:?}");
}

#[test]
fn r147_wrong_node_clock_keeps_task_times_in_order_as_root() {
    for start in [Site::start, || Site::far(Builder::default())] {
        keeps_times_in_order(&start());
    }
}

#[track_caller]
fn keeps_times_in_order(site: &Site) {
    for shift in ["1 hour", "1 hour ago"] {
        // A job moves its records to their places with this program, and a record's time is that of its file.
        let text = format!("#!/bin/sh\ntouch -d '{shift}' \"$3\"\nexec /bin/mv \"$@\"\n");
        executable::write(&site.cluster.programs().path().join("mv"), &text);
        let path = format!("PATH={}:/usr/bin:/bin", site.cluster.programs().path().display());
        let id = site.submit(&["--env", &path, "--time-limit", "10m"], "sleep 3; exit 3");
        let task = site.ended(id);
        assert_eq!(task.exit, Some(Exit::Code(3)), "{task:?}");
        let times = [task.created_at, task.started_at.unwrap(), task.completed_at.unwrap()];
        assert!(times.is_sorted(), "{times:?}");
        let lasted = task.completed_at.unwrap().unix_ms() - task.started_at.unwrap().unix_ms();
        assert!((1000..3_600_000).contains(&lasted), "{task:?}");
    }
}

#[test]
fn r151_jobs_of_removed_executor_are_cancelled_as_root() {
    for mut site in [Site::start(), Site::far(Builder::default())] {
        let id = site.submit(&[], "sleep 1000");
        let job = site.running(id);
        site.daemon.kill9();
        site.daemon.write_config("");
        site.daemon.launch();
        site.cluster.wait_for_state(&job, "CANCELLED");
        wait::poll_until("its files are removed", || site.folders().is_empty().then_some(()));
        let notes = site.daemon.state_dir().join("executors");
        wait::poll_until("its note is removed", || {
            (fs::read_dir(&notes).unwrap().count() == 0).then_some(())
        });
    }
}

/// Submits a task whose first attempt is never ready, and can't be ended on the cluster as every `scancel` fails.
/// Returns the task, and the job of that attempt.
fn gives_up_first_attempt(site: &Site) -> (TaskId, String) {
    let config = fs::read_to_string(site.daemon.config_path()).unwrap();
    site.daemon.write_config(&format!("[grace]\ncancel = \"100ms\"\n{config}"));
    site.run(&["daemon", "reload"]).success();
    let fails = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1";
    site.cluster.programs().before("scancel", fails);
    let first = site.daemon.home().join("first");
    let line = format!("[ ! -e {0} ] || echo up; touch {0}; exec sleep 1000", first.display());
    let ready = ["--restart", "always", "--ready", "line:^up$", "--ready-timeout", "1s"];
    let id = site.submit(&ready, &line);
    (id, site.running(id))
}

#[test]
fn r150_order_for_job_that_can_not_be_changed_now_is_repeated_as_root() {
    let site = Site::start();
    site.running(site.submit(&["--cpus", "16"], "exec sleep 1000"));
    let second = site.submit(&["--cpus", "16"], "true");
    let (id, job) = (second.to_string(), site.job(second));
    let tried = site.daemon.home().join("tried");
    let fails = format!(
        "case $1 in uhold|update) [ -e {0} ] || {{ touch {0}; \
         echo \"Job update not available right now, the DB index is being set, try again in a bit for job {job}\" >&2; \
         exit 1; }};; esac",
        tried.display()
    );
    site.cluster.programs().before("scontrol", &fails);
    site.run(&["hold", &id]).success();
    assert_eq!(site.cluster.field(&job, "Reason").as_deref(), Some("JobHeldUser"));
    fs::remove_file(&tried).unwrap();
    site.run(&["edit", &id, "--priority", "-7"]).success();
    assert_eq!(site.cluster.field(&job, "Nice").as_deref(), Some("7"));
    let task = site.daemon.task(second);
    assert_eq!((task.priority, task.elsewhere.unwrap().refused), (-7, None));
}

#[test]
fn r151_job_of_attempt_that_was_given_up_is_ended_as_root() {
    let site = Site::start();
    let (id, job) = gives_up_first_attempt(&site);
    let task = site.until(id, "another attempt", |task| task.ready_at.is_some());
    // On a busy machine, the second attempt may not be seen to be ready in time either.
    assert!(!task.attempts.is_empty(), "{task:?}");
    assert_eq!(task.status, Status::Running);
    assert_ne!(site.job(id), job);
    assert_eq!(site.cluster.field(&job, "JobState").as_deref(), Some("RUNNING"), "nobody could end it");
    let programs = site.cluster.programs();
    programs.wait_for_calls("scancel", programs.calls("scancel").len() as u64 + 2);
    programs.restore("scancel");
    site.cluster.wait_for_state(&job, "CANCELLED");
    let now = site.daemon.task(id);
    assert_eq!((now.status, now.run, now.attempts.len()), (Status::Running, task.run, task.attempts.len()));
    site.daemon.cancel(&[id]);
    let folder = site.folders().remove(0);
    wait::poll_until("no files of jobs are left", || {
        fs::read_dir(folder.join("jobs")).unwrap().next().is_none().then_some(())
    });
}

#[test]
fn r151_job_that_was_given_up_before_upgrade_is_ended_although_scancel_fails_once_as_root() {
    let site = Site::start();
    let (id, job) = gives_up_first_attempt(&site);
    let task = site.until(id, "another attempt", |task| task.ready_at.is_some());
    assert_ne!(site.job(id), job);
    site.daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    let programs = site.cluster.programs();
    // When the second call begins, the first has failed.
    programs.wait_for_calls("scancel", programs.calls("scancel").len() as u64 + 2);
    programs.restore("scancel");
    site.cluster.wait_for_state(&job, "CANCELLED");
    let now = site.daemon.task(id);
    assert_eq!((now.status, now.run), (Status::Running, task.run));
}
