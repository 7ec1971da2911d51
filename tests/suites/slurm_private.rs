//! What others on the machine and on the cluster may see of a job, how often the cluster is queried, and commands that
//! never answer.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use bgd_tests::Process;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Site, unknown};

#[test]
fn r147_job_environment_is_hidden_from_other_users_as_root() {
    let site = Site::start();
    let id = site.submit(&["--env", "TOKEN=s3cr3t-w0rd"], "test -n \"$TOKEN\" && exec sleep 1000");
    let job = site.running(id);
    let shown = site.cluster.run(&["scontrol", "show", "job", "--details", &job]).success().stdout_text();
    assert!(shown.contains("JobName=bgd-") && !shown.contains("s3cr3t-w0rd"), "{shown}");
    let script = site.cluster.run(&["scontrol", "write", "batch_script", &job, "-"]).success().stdout_text();
    assert!(script.contains("SLURM_JOB_ID") && !script.contains("s3cr3t-w0rd"), "{script}");
    for process in site.daemon.processes().iter().chain(&site.daemon.task_processes()) {
        let line = Process::cmdline(process);
        assert!(!line.contains("s3cr3t-w0rd"), "{line}");
    }
    let folder = site.folders().remove(0);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let batch = fs::read_dir(folder.join("jobs")).unwrap().next().unwrap().unwrap().path();
    let file = fs::read_dir(batch).unwrap().next().unwrap().unwrap().path();
    assert!(fs::read_to_string(&file).unwrap().contains("s3cr3t-w0rd"));
    assert_eq!(mode(&file), 0o600);
    site.daemon.cancel(&[id]);
}

#[test]
fn r149_polling_slows_when_quiet_and_stops_without_jobs_as_root() {
    let site = Site::start();
    let calls = || ["squeue", "scontrol", "sacct"].map(|name| site.cluster.programs().calls(name).len());
    let here = |line: &str| -> TaskId { site.run(&["submit", "--shell", line]).word() };
    let gate = site.daemon.home().join("gate");
    let id = site.submit(&[], &format!("until [ -e {} ]; do sleep 0.1; done; exit 3", gate.display()));
    site.running(id);
    let [before, ..] = calls();
    site.cluster.programs().wait_for_calls("squeue", before as u64 + 2);
    // The waits grow: 2, 3, 4.5, 6.75 s.
    site.ended(here("sleep 14"));
    let [after, settings, records] = calls();
    assert!(after - before <= 5, "{} queries", after - before);
    // A recorded exit is read without waiting for the next query; its cause is queried at once.
    fs::write(gate, "").unwrap();
    assert_eq!(site.ended(id).exit, Some(Exit::Code(3)));
    let ended = calls();
    assert!(ended[0] > after, "the cluster may know why it failed");
    site.ended(here("sleep 6"));
    assert_eq!(calls(), ended, "nobody is asked for nothing");
    assert_eq!((settings, records), (1, 0));
    assert_eq!(ended[1..], [1, 0]);
}

#[test]
fn r151_hung_squeue_and_scancel_time_out_as_root() {
    let site = Site::start();
    let id = site.submit(&[], "sleep 1000");
    let job = site.running(id);
    let once = |name: &str| {
        let file = site.cluster.path(&format!("once-{name}"));
        let lines = format!("if [ ! -e {0} ]; then touch {0}; exec sleep 1000; fi", file.display());
        site.cluster.programs().before(name, &lines);
    };
    // It is unknown only until the next answer.
    let mut watch = site.daemon.watch();
    once("squeue");
    let event = watch.until(|event| {
        let is_hung = |why: &str| why.contains("squeue did not end within");
        event.task.id == id && unknown(&event.task).is_some_and(is_hung)
    });
    assert_eq!(event.task.status, Status::Running, "nothing is decided");
    site.until(id, "it is known again", |task| unknown(task).is_none());
    once("scancel");
    let task = site.daemon.cancel(&[id]).remove(0);
    assert_eq!(task.status, Status::Cancelled);
    site.cluster.wait_for_state(&job, "CANCELLED");
}
