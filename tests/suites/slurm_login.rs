//! A cluster behind a login node that fails in the middle of something: orders, submissions, folders.

use std::fs;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::wait;

#[test]
fn r150_orders_reach_a_job_through_a_login_node_as_root() {
    let site = Site::far(Builder::default());
    let line = "trap 'echo usr; exit 5' USR1; echo up; while :; do sleep 0.1; done";
    let first = site.submit(&["--cpus", "16"], line);
    site.until(first, "it is ready for the signal", |task| task.output.bytes == 3);
    let second = site.submit(&["--cpus", "16"], "true");
    let (first_id, second_id, job) = (first.to_string(), second.to_string(), site.job(second));
    site.run(&["edit", &second_id, "--priority", "-7"]).success();
    wait::poll_until("the priority", || (site.cluster.field(&job, "Nice")? == "7").then_some(()));
    site.run(&["hold", &second_id]).success();
    wait::poll_until("the hold", || (site.cluster.field(&job, "Reason")? == "JobHeldUser").then_some(()));
    let first_job = site.job(first);
    site.run(&["pause", &first_id]).success();
    site.cluster.wait_for_state(&first_job, "STOPPED");
    assert!(site.daemon.task(first).paused);
    site.run(&["continue", &first_id]).success();
    site.cluster.wait_for_state(&first_job, "RUNNING");
    assert!(!site.daemon.task(first).paused);
    // The controller is away for a while, and nothing is decided.
    site.cluster.stop_controller();
    site.until(first, "it is not known", |task| unknown(task).is_some());
    site.cluster.start_controller();
    site.until(first, "it is known", |task| unknown(task).is_none());
    site.run(&["signal", &first_id, "USR1"]).success();
    assert_eq!(site.ended(first).exit, Some(Exit::Code(5)));
    assert_eq!(site.daemon.task(second).status, Status::Pending);
    site.run(&["release", &second_id]).success();
    assert_eq!(site.ended(second).status, Status::Completed);
}

#[test]
fn r151_a_submission_that_is_cut_at_any_stage_runs_once_as_root() {
    let site = Site::far(Builder::default());
    let wire = site.login().wire();
    let file = site.login().daemon.home().join("times");
    let whole = site.submit(&[], "true");
    assert_eq!(site.ended(whole).status, Status::Completed);
    let bytes = wire.carried();
    for stage in 1..8 {
        site.connections().iter().for_each(bgd_tests::Process::kill);
        let _ = fs::remove_file(&file);
        wire.cut_after(bytes * stage / 8);
        let id = site.submit(&[], &format!("echo once >>{}", file.display()));
        assert_eq!(site.ended(id).status, Status::Completed, "stage {stage}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "once\n", "stage {stage}");
    }
}

#[test]
fn r151_a_submission_through_a_login_node_whose_answer_was_lost_runs_once_as_root() {
    let site = Site::far(Builder::default());
    let (file, once) = (site.login().daemon.home().join("times"), site.cluster.path("once"));
    let lines = format!(
        "if [ ! -e {once} ]; then touch {once}; SLURM_CONF={conf} /usr/bin/sbatch \"$@\" >&2; \
         echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1; fi",
        once = once.display(),
        conf = site.cluster.conf().display(),
    );
    site.cluster.programs().before("sbatch", &lines);
    let id = site.submit(&[], &format!("echo once >>{}", file.display()));
    assert_eq!(site.ended(id).status, Status::Completed);
    assert_eq!(fs::read_to_string(&file).unwrap(), "once\n");
    assert_eq!(site.cluster.programs().calls("sbatch").len(), 1);
}

#[test]
fn r147_a_work_folder_over_there_that_is_gone_or_full_is_told_as_root() {
    let site = Site::far(Builder::default().work_bytes(256 * 1024));
    let gate = site.login().daemon.home().join("gate");
    let line = format!("echo begins; until [ -e {} ]; do sleep 0.1; done", gate.display());
    let first: TaskId = site.submit(&[], &line);
    site.until(first, "its output", |task| task.output.bytes == 7);
    fs::remove_dir_all(&site.folders()[0]).unwrap();
    fs::write(gate, "").unwrap();
    let task = site.ended(first);
    assert!(
        task.status == Status::Failed && task.error.as_ref().unwrap().contains("work folder"),
        "{task:?}"
    );
    let ballast = site.cluster.work().join("ballast");
    // As much as fits.
    let _ = fs::write(&ballast, vec![0; 1 << 20]);
    let task = site.ended(site.submit(&[], "true"));
    assert_eq!(task.status, Status::Failed);
    assert!(task.error.as_ref().unwrap().contains("cannot write its files"), "{task:?}");
    fs::remove_file(&ballast).unwrap();
    let id = site.submit(&[], "echo works");
    assert_eq!((site.ended(id).status, site.output(id)), (Status::Completed, "works\n".to_owned()));
}
