//! A cluster behind a login node that fails in the middle of commands, submissions and changes of folders.

use std::fs;

use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Output, Status};
use bgd_tests::slurm::{Builder, Site, unknown};
use bgd_tests::user::on_a_small_disk;
use bgd_tests::wait;

#[test]
fn r150_commands_reach_job_through_login_node_as_root() {
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
fn r151_submission_cut_at_any_stage_runs_once_as_root() {
    let site = Site::far(Builder::default());
    let wire = site.login().wire();
    let file = site.login().daemon.home().join("times");
    let whole = site.submit(&[], "true");
    assert_eq!(site.ended(whole).status, Status::Completed);
    // The user has set no interval; with BatchMode, Debian's ssh has one of 5 minutes.
    let is_kept_alive = |ssh: &bgd_tests::Process| ssh.cmdline().contains("ServerAliveInterval=15");
    assert!(site.connections().iter().any(is_kept_alive), "{:?}", site.connections());
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
fn r147_missing_or_full_login_node_work_folder_is_reported_as_root() {
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

#[test]
fn r151_changed_login_node_host_key_fails_task_at_once_as_root() {
    let site = Site::far(Builder::default());
    site.login().change_key("host");
    let task = site.ended(site.submit(&[], "true"));
    let error = task.error.unwrap();
    let words =
        ["Host key verification failed", "ssh far true", site.login().path("known").to_str().unwrap()]
            .map(str::to_owned);
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    assert!(site.cluster.jobs().is_empty());
}

#[test]
fn r150_local_full_disk_loses_login_node_output_and_reports_loss_as_root() {
    let site = Site::far_of(Builder::default(), on_a_small_disk("size=20m"));
    let id = site.submit(&[], "head -c 60000000 /dev/zero | tr '\\0' x; exit 3");
    let task = site.ended(id);
    // Its end is known nevertheless.
    assert_eq!((task.status, &task.exit), (Status::Failed, &Some(Exit::Code(3))), "{task:?}");
    let loss = task.output.loss().unwrap_or_default();
    assert!(loss.contains("No space left on device"), "{loss}");
    // Every byte written is either here or counted as lost.
    let Output { bytes, lost_bytes, dropped_bytes, .. } = task.output;
    assert_eq!((bytes + lost_bytes, dropped_bytes), (60_000_000, 0));
    assert!(bytes > 0 && site.daemon.output(id).len() as u64 == bytes, "{bytes}");
    site.run(&["clear", &id.to_string()]).success();
    let next = site.submit(&[], "echo next");
    assert_eq!((site.ended(next).status, site.output(next)), (Status::Completed, "next\n".to_owned()));
}

#[test]
fn r151_hung_sbatch_on_login_node_submits_once_as_root() {
    let site = Site::far(Builder::default());
    let file = site.login().daemon.home().join("times");
    // Once before the cluster has the job, and once after.
    for (stage, submits) in [(0, ""), (1, "/usr/bin/sbatch \"$@\" >&2;")] {
        let once = site.cluster.path(&format!("once{stage}"));
        let lines = format!(
            "if [ ! -e {once} ]; then touch {once}; export SLURM_CONF={conf}; {submits} exec sleep 1000; fi",
            once = once.display(),
            conf = site.cluster.conf().display(),
        );
        site.cluster.programs().before("sbatch", &lines);
        let _ = fs::remove_file(&file);
        // It is unknown only until the next look for it.
        let mut watch = site.daemon.watch();
        let id = site.submit(&[], &format!("echo once >>{}", file.display()));
        let task = watch.until(|event| event.task.id == id && unknown(&event.task).is_some()).task;
        assert!(unknown(&task).unwrap().contains("did not answer within"), "{task:?}");
        assert_eq!(site.ended(id).status, Status::Completed, "stage {stage}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "once\n", "stage {stage}");
    }
}

#[test]
fn r151_silent_login_node_leaves_jobs_undecided_as_root() {
    let site = Site::far(Builder::default());
    let wire = site.login().wire();
    let gate = site.login().daemon.home().join("gate");
    let line = format!("until [ -e {} ]; do sleep 0.1; done; echo ends; exit 4", gate.display());
    let id = site.submit(&[], &line);
    let job = site.running(id);
    wire.freeze();
    fs::write(&gate, "").unwrap();
    site.cluster.wait_for_state(&job, "FAILED");
    // A query may take half a minute; then the task shows since when its state has been unknown.
    let unknown = || site.daemon.task(id).elsewhere.and_then(|elsewhere| elsewhere.unknown_since);
    wait::poll_until("a query that takes half a minute", unknown);
    assert_eq!(site.daemon.task(id).status, Status::Running);
    let later = site.submit(&[], "echo later");
    assert_eq!(site.daemon.task(later).status, Status::Pending);
    wire.thaw();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(4)));
    assert_eq!(site.output(id), "ends\n");
    assert_eq!((site.ended(later).status, site.output(later)), (Status::Completed, "later\n".to_owned()));
    assert_eq!(site.cluster.jobs().len(), 2, "nothing was submitted twice");
}
