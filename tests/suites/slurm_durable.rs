//! Jobs of a cluster outlive a durable daemon (R151): after a kill or a stop the next daemon finds them again, and each
//! has run once, with the cluster on this machine and behind a login node.

use std::fs;
use std::path::{Path, PathBuf};

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonUpgrade, ListParams, TaskList, UpgradeParams};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::wait;
use nix::sys::signal::Signal;
use rustix::process::Resource;

/// Returns a file of the cluster, and a shell command that waits for it.
fn gate(site: &Site, name: &str) -> (PathBuf, String) {
    let path = site.cluster.path(name);
    let line = format!("until [ -e {} ]; do sleep 0.1; done", path.display());
    (path, line)
}

/// Kills the daemon, runs `meanwhile`, and starts the next one.
#[track_caller]
fn kill(site: &mut Site, meanwhile: impl FnOnce(&Site)) {
    site.daemon.kill_by(Signal::SIGKILL);
    meanwhile(site);
    site.daemon.launch();
}

fn lines_of(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

fn all(site: &Site) -> Vec<Task> {
    let mut tasks = site.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    tasks.reverse();
    tasks
}

fn goes_on_after_a_kill(mut site: Site) {
    let (first, until_first) = gate(&site, "first");
    let (second, until_second) = gate(&site, "second");
    let ran = site.cluster.path("ran");
    let note = |what: &str| format!("echo {what} >>{}", ran.display());
    let ends = site.submit(&[], &format!("{}; echo begun; {until_first}; echo over; exit 7", note("ends")));
    let goes_on = site.submit(
        &["--split"],
        &format!("{}; echo begun; echo err >&2; {until_second}; echo over; exit 3", note("on")),
    );
    let (ends_job, goes_on_job) = (site.running(ends), site.running(goes_on));
    let waits = site.submit(&["--cpus", "16"], &format!("{}; exit 5", note("waits")));
    let waits_job = site.job(waits);
    let held = site.submit(&["--hold"], "true");
    let next = site.submit(&["--after", &format!("{goes_on}:fail")], &note("next"));
    site.until(goes_on, "its output is here", |task| task.output.bytes >= 6);
    let started = site.daemon.task(goes_on).started_at;
    kill(&mut site, |site| {
        fs::write(first, "").unwrap();
        site.cluster.wait_for_state(&ends_job, "FAILED");
    });
    let task = site.ended(ends);
    assert_eq!((task.status, task.exit, task.run), (Status::Failed, Some(Exit::Code(7)), 1));
    assert_eq!(site.output(ends), "begun\nover\n");
    let task = site.daemon.task(goes_on);
    assert_eq!((task.status, task.started_at), (Status::Running, started));
    assert_eq!(site.job(goes_on), goes_on_job);
    assert_eq!((site.daemon.task(waits).status, site.job(waits)), (Status::Pending, waits_job));
    site.daemon.cancel(&[held]);
    fs::write(second, "").unwrap();
    assert_eq!(site.ended(goes_on).exit, Some(Exit::Code(3)));
    let errors = site.run(&["output", "--stderr", &goes_on.to_string()]).success().stdout_text();
    assert_eq!((site.output(goes_on), &*errors), ("begun\nover\n".to_owned(), "err\n"));
    assert_eq!(site.ended(waits).exit, Some(Exit::Code(5)));
    assert_eq!(site.ended(next).status, Status::Completed);
    assert_eq!(lines_of(&ran), 4);
    // An orderly end with nothing left on the cluster leaves no files, and keeps finished tasks.
    site.daemon.stop();
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.daemon.launch();
    assert_eq!(site.output(ends), "begun\nover\n");
}

#[test]
fn r151_jobs_survive_daemon_kill_and_their_results_are_collected_as_root() {
    goes_on_after_a_kill(Site::durable(Builder::default()));
}

#[test]
fn r151_jobs_behind_login_node_survive_daemon_kill_as_root() {
    goes_on_after_a_kill(Site::far_durable(Builder::default()));
}

fn is_controlled_after_a_kill(mut site: Site) {
    let line = "trap 'echo usr; exit 5' USR1; echo up; while :; do sleep 0.1; done";
    let first = site.submit(&["--cpus", "8"], line);
    let other = site.submit(&["--cpus", "8"], "exec sleep 1000");
    site.until(first, "it is ready for the signal", |task| task.output.bytes == 3);
    let other_job = site.running(other);
    let second = site.submit(&["--cpus", "16"], "true");
    let job = site.job(second);
    kill(&mut site, |_| ());
    let (first_id, second_id) = (first.to_string(), second.to_string());
    site.run(&["edit", &second_id, "--priority", "-7"]).success();
    wait::poll_until("the priority", || (site.cluster.field(&job, "Nice")? == "7").then_some(()));
    site.run(&["hold", &second_id]).success();
    wait::poll_until("the hold", || (site.cluster.field(&job, "Reason")? == "JobHeldUser").then_some(()));
    site.run(&["pause", &first_id]).success();
    kill(&mut site, |_| ());
    assert!(site.daemon.task(first).paused);
    site.run(&["continue", &first_id]).success();
    site.cluster.wait_for_state(&site.job(first), "RUNNING");
    site.run(&["signal", &first_id, "USR1"]).success();
    assert_eq!(site.ended(first).exit, Some(Exit::Code(5)));
    assert_eq!(site.daemon.cancel(&[other])[0].status, Status::Cancelled);
    site.cluster.wait_for_state(&other_job, "CANCELLED");
    assert_eq!(site.daemon.task(second).status, Status::Pending);
    site.run(&["release", &second_id]).success();
    assert_eq!(site.ended(second).status, Status::Completed);
}

#[test]
fn r151_jobs_can_be_controlled_after_daemon_kill_as_root() {
    is_controlled_after_a_kill(Site::durable(Builder::default()));
}

#[test]
fn r151_jobs_behind_login_node_can_be_controlled_after_daemon_kill_as_root() {
    is_controlled_after_a_kill(Site::far_durable(Builder::default()));
}

/// Kills the daemon while `sbatch` hangs: before the cluster has the job, after that, and after the job has ended.
fn is_found_again(mut site: Site) {
    let ran = site.cluster.path("ran");
    let conf = site.cluster.conf().display().to_string();
    for (stage, submits) in [(0, ""), (1, "/usr/bin/sbatch \"$@\" >&2;"), (2, "/usr/bin/sbatch \"$@\" >&2;")]
    {
        let once = site.cluster.path(&format!("once{stage}"));
        let hangs = site.cluster.path(&format!("hangs{stage}"));
        let lines = format!(
            "if [ ! -e {once} ]; then touch {once}; export SLURM_CONF={conf}; {submits} touch {hangs}; \
             exec sleep 1000; fi",
            once = once.display(),
            hangs = hangs.display(),
        );
        site.cluster.programs().before("sbatch", &lines);
        let _ = fs::remove_file(&ran);
        let id = site.submit(&[], &format!("echo once >>{}; exit 6", ran.display()));
        wait::for_file(&hangs);
        if stage == 2 {
            wait::poll_until("it has ended", || (lines_of(&ran) == 1).then_some(()));
        }
        kill(&mut site, |_| ());
        let task = site.ended(id);
        assert_eq!((task.exit, task.run), (Some(Exit::Code(6)), 1), "stage {stage}: {:?}", task.error);
        assert_eq!(lines_of(&ran), 1, "stage {stage}");
    }
}

#[test]
fn r151_submission_interrupted_by_daemon_kill_runs_once_as_root() {
    is_found_again(Site::durable(Builder::default()));
}

#[test]
fn r151_login_node_submission_interrupted_by_daemon_kill_runs_once_as_root() {
    is_found_again(Site::far_durable(Builder::default()));
}

#[test]
fn r151_controller_down_at_restart_leaves_jobs_undecided_as_root() {
    let mut site = Site::durable(Builder::default());
    let (open, until_open) = gate(&site, "open");
    let id = site.submit(&[], &format!("{until_open}; exit 4"));
    site.running(id);
    kill(&mut site, |site| site.cluster.stop_controller());
    let task = site.until(id, "it is not known", |task| unknown(task).is_some());
    assert_eq!(task.status, Status::Running);
    fs::write(open, "").unwrap();
    site.cluster.start_controller();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(4)));
}

#[test]
fn r151_login_node_unreachable_at_restart_leaves_jobs_undecided_as_root() {
    let mut site = Site::far_durable(Builder::default());
    let (open, until_open) = gate(&site, "open");
    let id = site.submit(&[], &format!("echo begun; {until_open}; exit 4"));
    site.running(id);
    site.cut();
    kill(&mut site, |_| ());
    let task = site.until(id, "it is not known", |task| unknown(task).is_some());
    assert_eq!(task.status, Status::Running);
    fs::write(open, "").unwrap();
    site.mend();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(4)));
    assert_eq!(site.output(id), "begun\n");
}

fn is_left_by_a_stop(mut site: Site) {
    let (open, until_open) = gate(&site, "open");
    let runs = site.submit(&["--cpus", "16"], &format!("echo begun; {until_open}; exit 3"));
    let job = site.running(runs);
    let waits = site.submit(&["--cpus", "16"], "exec sleep 1000");
    let waiting = site.job(waits);
    let words = site.run(&["daemon", "stop"]).success().stdout_text();
    assert_eq!(words, "stopped; 2 tasks keep running, and the next daemon finds them again\n");
    assert!(site.daemon.ended().success());
    assert_eq!(site.cluster.field(&job, "JobState").as_deref(), Some("RUNNING"));
    fs::write(open, "").unwrap();
    site.cluster.wait_for_state(&job, "FAILED");
    site.daemon.launch();
    assert_eq!(site.ended(runs).exit, Some(Exit::Code(3)));
    assert_eq!(site.output(runs), "begun\n");
    site.run(&["daemon", "stop", "--cancel"]).success();
    assert!(site.daemon.ended().success());
    site.cluster.wait_for_state(&waiting, "CANCELLED");
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.daemon.launch();
    assert_eq!(
        (site.daemon.task(waits).status, site.output(runs)),
        (Status::Cancelled, "begun\n".to_owned())
    );
}

#[test]
fn r151_stopping_durable_daemon_leaves_jobs_running_as_root() {
    is_left_by_a_stop(Site::durable(Builder::default()));
}

#[test]
fn r151_stopping_durable_daemon_leaves_login_node_jobs_running_as_root() {
    is_left_by_a_stop(Site::far_durable(Builder::default()));
}

#[test]
fn r151_output_of_attempts_before_and_after_a_stop_is_in_one_file_as_root() {
    let mut site = Site::durable(Builder::default());
    let mut watch = site.daemon.watch();
    let id = site.submit(&["--retry", "1", "--retry-delay", "5s"], "echo try; exit 5");
    watch.until_kind(id, EventKind::Retrying);
    drop(watch);
    site.run(&["daemon", "stop"]).success();
    assert!(site.daemon.ended().success());
    site.daemon.launch();
    let task = site.ended(id);
    assert_eq!((task.exit, task.attempts.len()), (Some(Exit::Code(5)), 1));
    assert_eq!(site.output(id), "try\ntry\n");
    assert_eq!(task.output.bytes, 8);
    site.daemon.stop();
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.daemon.launch();
    assert_eq!(site.output(id), "try\ntry\n");
}

#[test]
fn r130_job_cancelled_while_its_submission_waits_for_the_journal_is_never_submitted_as_root() {
    let site = Site::durable(Builder::default());
    let programs = site.cluster.programs();
    let (open, until_open) = gate(&site, "open");
    programs.before("scontrol", &until_open);
    let id = site.submit(&[], "true");
    programs.wait_for_calls("scontrol", 1);
    // The submission must be written down first, and that fails from now on.
    site.daemon.process().limit(Resource::Fsize, Some(64));
    fs::write(open, "").unwrap();
    wait::poll_until("the journal can't be written", || {
        site.daemon.status().warnings.iter().any(|warning| warning.contains("journal")).then_some(())
    });
    assert_eq!(site.daemon.cancel(&[id])[0].status, Status::Cancelled);
    site.daemon.process().limit(Resource::Fsize, None);
    let next = wait::poll_until("a submit is accepted", || {
        let outcome = site.run(&["submit", "--on", "hpc", "--", "true"]);
        (outcome.code == 0).then(|| outcome.word::<TaskId>())
    });
    assert_eq!(site.ended(next).status, Status::Completed);
    assert_eq!(programs.calls("sbatch").len(), 1);
    assert!(site.daemon.task(id).started_at.is_none());
}

fn is_carried(site: &Site) {
    let (open, until_open) = gate(site, "open");
    let ran = site.cluster.path("ran");
    let runs = site.submit(&["--cpus", "16"], &format!("echo begun; {until_open}; echo over; exit 3"));
    let job = site.running(runs);
    site.until(runs, "its output is here", |task| task.output.bytes == 6);
    let waits = site.submit(&["--cpus", "16"], &format!("echo ran >>{}", ran.display()));
    let waiting = site.job(waits);
    for _ in 0..3 {
        site.daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    }
    // While it is being submitted.
    let under_way = site.submit(&["--cpus", "16"], &format!("echo ran >>{}", ran.display()));
    site.daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    assert_eq!((site.daemon.task(runs).status, site.job(runs)), (Status::Running, job));
    assert_eq!((site.daemon.task(waits).status, site.job(waits)), (Status::Pending, waiting));
    fs::write(open, "").unwrap();
    assert_eq!(site.ended(runs).exit, Some(Exit::Code(3)));
    assert_eq!(site.output(runs), "begun\nover\n");
    let ended = site.daemon.block(&[waits, under_way]);
    assert!(ended.iter().all(|task| task.status == Status::Completed), "{ended:?}");
    assert_eq!(lines_of(&ran), 2);
}

#[test]
fn r121_jobs_survive_upgrade_as_root() {
    is_carried(&Site::start());
}

#[test]
fn r121_jobs_behind_login_node_survive_upgrade_as_root() {
    is_carried(&Site::far(Builder::default()));
}

/// Kills the daemon twenty times while forty jobs, half of them of arrays, are submitted, wait, run and end.
fn loses_nothing(mut site: Site) {
    let ran = site.cluster.path("ran");
    let items = site.cluster.path("items");
    let mut expected = 0;
    let line = |name: &str, code: i32| {
        format!("echo {name} >>{}; echo begun; sleep 0.2; echo over; exit {code}", ran.display())
    };
    for round in 0..20 {
        if round % 2 == 0 {
            for code in 0..2 {
                let _: TaskId = site.submit(&[], &line(&format!("{round}-{code}"), code));
            }
        } else {
            fs::write(&items, format!("{round}-0\n{round}-1\n")).unwrap();
            let command = line("$0", 3);
            let each =
                ["submit", "--on", "hpc", "--each", items.to_str().unwrap(), "--", "sh", "-c", &command];
            site.run(&each).success();
        }
        expected += 2;
        let last = all(&site).last().unwrap().id;
        // At a different moment of their lives in each round.
        match round % 5 {
            0 => {}
            1 => _ = site.until(last, "it is there", |task| task.elsewhere.is_some()),
            2 | 3 => _ = site.until(last, "it has begun", |task| task.started_at.is_some()),
            _ => _ = site.until(last, "it has ended", |task| task.completed_at.is_some()),
        }
        kill(&mut site, |_| ());
    }
    let tasks = all(&site);
    assert_eq!(tasks.len(), expected);
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    for (place, task) in site.daemon.block(&ids).iter().enumerate() {
        let (round, number) = (place / 2, i32::try_from(place % 2).unwrap());
        let code = if round % 2 == 0 { number } else { 3 };
        assert_eq!(task.exit, Some(Exit::Code(code)), "{task:?}");
        assert_eq!(site.output(task.id), "begun\nover\n", "{task:?}");
    }
    let mut names: Vec<String> = fs::read_to_string(&ran).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(names.len(), expected, "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), expected);
}

#[test]
fn r151_twenty_daemon_kills_lose_no_job_and_start_none_twice_as_root() {
    loses_nothing(Site::durable(Builder::default()));
}

#[test]
fn r151_twenty_daemon_kills_lose_no_job_behind_login_node_as_root() {
    loses_nothing(Site::far_durable(Builder::default()));
}

#[test]
fn r151_jobs_without_a_known_task_are_cancelled_as_root() {
    let mut site = Site::durable(Builder::default());
    let left = site.submit(&["--cpus", "16"], "exec sleep 1000");
    let job = site.running(left);
    // The journal is lost, and with it everything about the job but its name.
    kill(&mut site, |site| {
        let folder = site.daemon.state_dir().join("journal");
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            fs::write(&entry, "no journal").unwrap();
        }
    });
    site.cluster.wait_for_state(&job, "CANCELLED");
}

#[test]
fn r151_job_is_found_in_its_work_folder_after_restart_with_another_one_as_root() {
    let mut site = Site::durable(Builder::default());
    let (open, until_open) = gate(&site, "open");
    let id = site.submit(&[], &format!("echo begun; {until_open}; echo over; exit 3"));
    let job = site.running(id);
    site.until(id, "its output is here", |task| task.output.bytes == 6);
    let (before, after) = (site.cluster.work(), site.cluster.path("other"));
    fs::create_dir(&after).unwrap();
    kill(&mut site, |site| {
        let config = fs::read_to_string(site.daemon.config_path()).unwrap();
        let [from, to] = [&before, &after].map(|folder| folder.display().to_string());
        site.daemon.write_config(&config.replace(&from, &to));
    });
    assert_eq!((site.daemon.task(id).status, site.job(id)), (Status::Running, job));
    fs::write(open, "").unwrap();
    let task = site.ended(id);
    assert_eq!(task.exit, Some(Exit::Code(3)), "{task:?}");
    assert_eq!(site.output(id), "begun\nover\n");
    assert!(site.run(&["daemon", "reload"]).success().stdout_text().contains("executors.hpc.work_folder"));
    // With nothing left, the next daemon uses the new folder.
    site.daemon.stop();
    assert!(fs::read_dir(&before).unwrap().next().is_none());
    site.daemon.launch();
    let next = site.submit(&[], "echo there");
    assert_eq!((site.ended(next).status, site.output(next)), (Status::Completed, "there\n".to_owned()));
    assert!(fs::read_dir(&after).unwrap().next().is_some());
}
