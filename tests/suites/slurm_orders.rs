//! User commands for a task that a cluster has, or is about to get: holds, priorities, pauses.

use std::fs;

use bgd_tests::shared::order::WaitingFor;
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::{Process, wait};

/// Returns the states of a task's processes, as the kernel reports them.
fn states(site: &Site) -> Vec<char> {
    let state = |process: Process| {
        let stat = fs::read_to_string(process.proc("stat")).ok()?;
        stat.rsplit(')').next()?.trim().chars().next()
    };
    site.daemon.task_processes().into_iter().filter_map(state).collect()
}

/// Waits until every process of the task is stopped, or none is.
#[track_caller]
fn until_stopped(site: &Site, stopped: bool) {
    wait::poll_until("the state of its processes", || {
        let states = states(site);
        (states.len() == 3 && states.iter().all(|state| (*state == 'T') == stopped)).then_some(())
    });
}

/// Returns what the cluster last refused.
fn refused(task: &Task) -> &str {
    task.elsewhere.as_ref().and_then(|there| there.refused.as_deref()).unwrap_or_default()
}

#[test]
fn r150_commands_given_before_submission_apply_on_cluster_as_root() {
    for site in [Site::start(), Site::far(Builder::default())] {
        site.cluster.stop_controller();
        let held = site.submit(&[], "echo ran");
        let lowered = site.submit(&["--priority", "-10"], "sleep 1000");
        for id in [held, lowered] {
            site.until(id, "it can't be submitted", |task| unknown(task).is_some());
        }
        let id = held.to_string();
        site.run(&["hold", &id]).success();
        site.run(&["edit", &id, "--priority", "-5"]).success();
        site.cluster.start_controller();
        let running = site.running(lowered);
        let job = site.job(held);
        let fields =
            |job: &str| ["JobState", "Reason", "Nice"].map(|name| site.cluster.field(job, name).unwrap());
        assert_eq!(fields(&running)[2], "10");
        assert_eq!(fields(&job), ["PENDING", "JobHeldUser", "5"]);
        let task = site.daemon.task(held);
        assert_eq!((task.status, task.priority), (Status::Pending, -5));
        site.run(&["release", &id]).success();
        assert_eq!(site.ended(held).status, Status::Completed);
        site.daemon.cancel(&[lowered]);
    }
}

#[test]
fn r150_commands_given_during_submission_follow_it_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let [go, hangs] = ["go", "hangs"].map(|name| site.cluster.path(name));
    let hang = format!("touch {}; until [ -e {} ]; do sleep 0.1; done", hangs.display(), go.display());
    site.cluster.programs().before("sbatch", &hang);
    let waits = site.submit(&["--cpus", "16"], "true");
    wait::for_file(&hangs);
    let id = waits.to_string();
    site.run(&["hold", &id]).success();
    site.run(&["edit", &id, "--priority", "-3"]).success();
    fs::write(go, "").unwrap();
    let job = site.job(waits);
    wait::poll_until("the hold and the priority", || {
        let field = |name| site.cluster.field(&job, name);
        (field("Reason")? == "JobHeldUser" && field("Nice")? == "3").then_some(())
    });
    site.daemon.cancel(&[all]);
    site.run(&["release", &id]).success();
    assert_eq!(site.ended(waits).status, Status::Completed);
}

#[test]
fn r150_raised_priority_is_refused_with_reason_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let raised = site.submit(&["--cpus", "16", "--priority", "7"], "true");
    site.until(raised, "the refusal", |task| refused(task).contains("only lower"));
    assert_eq!(site.cluster.field(&site.job(raised), "Nice").as_deref(), Some("0"));
    site.daemon.cancel(&[all]);
    assert_eq!(site.ended(raised).status, Status::Completed);
}

#[test]
fn r150_hold_refused_by_cluster_is_reverted_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let waits = site.submit(&["--cpus", "16"], "true");
    site.job(waits);
    site.cluster.programs().before("scontrol", "echo 'Access/permission denied' >&2; exit 1");
    let answer = site.run(&["hold", &waits.to_string()]).expect_code(70);
    assert!(answer.stderr.contains("can't be held now: Access/permission denied"), "{}", answer.stderr);
    let answer = site.run(&["edit", &waits.to_string(), "--priority", "-5"]).expect_code(70);
    assert!(answer.stderr.contains("priority now: Access/permission denied"), "{}", answer.stderr);
    let task = site.until(waits, "the refusal", |task| {
        refused(task).contains("denied")
            && task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingFor::Elsewhere)
    });
    assert_eq!(task.status, Status::Pending, "and it is not held");
    let answer = site.run(&["edit", &waits.to_string(), "--priority", "7"]).expect_code(70);
    assert!(answer.stderr.contains("only lower a priority"), "{}", answer.stderr);
    site.until(waits, "the priority that the cluster kept", |task| {
        refused(task).contains("only lower") && task.priority == 0
    });
    site.daemon.cancel(&[all]);
    assert_eq!(site.ended(waits).status, Status::Completed);
}

#[test]
fn r150_task_is_shown_paused_while_its_processes_are_stopped_as_root() {
    let site = Site::start();
    let id = site.submit(&[], "sleep 1000; true");
    let job = site.running(id);
    let word = id.to_string();
    until_stopped(&site, false);
    site.run(&["pause", &word]).success();
    assert!(site.daemon.task(id).paused);
    until_stopped(&site, true);
    site.run(&["continue", &word]).success();
    assert!(!site.daemon.task(id).paused);
    until_stopped(&site, false);
    // A command that the cluster refuses is taken back.
    site.cluster.programs().before("scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1");
    let answer = site.run(&["pause", &word]).expect_code(70);
    assert!(answer.stderr.contains("can't be paused now: Access/permission denied"), "{}", answer.stderr);
    let answer = site.run(&["signal", &word, "USR1"]).expect_code(70);
    assert!(answer.stderr.contains("can't be signalled now: Access/permission denied"), "{}", answer.stderr);
    let task = site.until(id, "the refusal", |task| refused(task).contains("denied"));
    assert!(!task.paused && states(&site).iter().all(|state| *state != 'T'), "{task:?}");
    site.cluster.programs().restore("scancel");
    // The command is carried out, but the answer is lost: the cluster's next one reports it.
    let lost = "SLURM_CONF=$folder/../slurm.conf /usr/bin/scancel \"$@\"; \
                echo 'scancel: error: Socket timed out on send/recv operation' >&2; exit 1";
    site.cluster.programs().before("scancel", lost);
    let answer = site.run(&["pause", &word]).expect_code(70);
    assert!(answer.stderr.contains("Socket timed out"), "{}", answer.stderr);
    site.cluster.programs().restore("scancel");
    until_stopped(&site, true);
    site.until(id, "it is known to be paused", |task| task.paused);
    // Somebody else continues it.
    site.cluster.run(&["scancel", "--full", "--signal=CONT", &job]).success();
    site.until(id, "it goes on", |task| !task.paused);
    until_stopped(&site, false);
    site.daemon.cancel(&[id]);
}

#[test]
fn r150_orders_wait_for_slow_cluster_as_root() {
    let site = Site::start();
    let id = site.submit(&["--cpus", "16"], "sleep 1000; true");
    site.running(id);
    let waits = site.submit(&["--cpus", "16"], "true");
    let job = site.job(waits);
    // Longer than an order for a process of this machine may take.
    for name in ["scancel", "scontrol"] {
        site.cluster.programs().before(name, "sleep 7");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| site.run(&["pause", &id.to_string()]).success());
        scope.spawn(|| site.run(&["hold", &waits.to_string()]).success());
    });
    assert!(site.daemon.task(id).paused);
    until_stopped(&site, true);
    assert_eq!(site.cluster.field(&job, "Reason").as_deref(), Some("JobHeldUser"));
    for name in ["scancel", "scontrol"] {
        site.cluster.programs().restore(name);
    }
    site.daemon.cancel(&[id, waits]);
}

#[test]
fn r148_external_hold_and_release_are_followed_as_root() {
    let site = Site::start();
    let all = site.submit(&["--cpus", "16"], "sleep 1000");
    site.running(all);
    let waits = site.submit(&["--cpus", "16"], "true");
    let job = site.job(waits);
    site.cluster.run(&["scontrol", "uhold", &job]).success();
    site.until(waits, "the reason", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.reason.as_deref() == Some("JobHeldUser"))
    });
    site.daemon.cancel(&[all]);
    site.cluster.idle();
    assert_eq!(site.daemon.task(waits).status, Status::Pending);
    site.cluster.run(&["scontrol", "release", &job]).success();
    assert_eq!(site.ended(waits).status, Status::Completed);
}

#[test]
fn r150_cancel_refused_by_cluster_is_repeated_as_root() {
    let site = Site::start();
    let ids = [0; 2].map(|_| site.submit(&[], "sleep 1000"));
    let jobs = ids.map(|id| site.running(id));
    let once = site.cluster.path("once");
    let lines = format!(
        "[ -e {0} ] || {{ touch {0}; echo 'Kill job error on job id 1: Access/permission denied' >&2; exit 1; }}",
        once.display()
    );
    site.cluster.programs().before("scancel", &lines);
    let words = ids.map(|id| id.to_string());
    // SIGKILL would follow only after the grace.
    site.run(&["cancel", "--grace", "1h", &words[0], &words[1]]).success();
    for (id, job) in ids.into_iter().zip(jobs) {
        let task = site.daemon.task(id);
        assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
        site.cluster.wait_for_state(&job, "CANCELLED");
    }
}
