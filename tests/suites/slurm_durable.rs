//! R151 of a durable daemon: what ran on a cluster when it was killed has failed and is ended there, and what had ended
//! stays, with its output.

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::task::{Exit, Status};
use bgd_tests::slurm::{Builder, Site};
use bgd_tests::wait;
use nix::sys::signal::Signal;

#[test]
fn r151_a_durable_daemon_ends_what_ran_there_and_keeps_what_had_ended_as_root() {
    let mut site = Site::durable(Builder::default());
    let ended = site.submit(&["--split"], "echo out; echo err >&2; exit 3");
    assert_eq!(site.ended(ended).exit, Some(Exit::Code(3)));
    let ran = site.submit(&["--cpus", "16"], "echo began; exec sleep 1000");
    let job = site.running(ran);
    site.until(ran, "its output is here", |task| task.output.bytes == 6);
    let waited = site.submit(&["--cpus", "16"], "echo never");
    let waiting = site.job(waited);
    site.daemon.kill_by(Signal::SIGKILL);
    assert_eq!(site.cluster.field(&job, "JobState").as_deref(), Some("RUNNING"));
    site.daemon.launch();
    for (id, job) in [(ran, &job), (waited, &waiting)] {
        let task = site.daemon.task(id);
        let failure = task.failure.expect("it has failed");
        assert_eq!((task.status, failure.kind), (Status::Failed, FailureKind::Lost), "{:?}", task.error);
        assert!(task.error.is_some_and(|error| error.contains("the daemon was killed")));
        site.cluster.wait_for_state(job, "CANCELLED");
    }
    // The files of the jobs are removed; the outputs are ours by now.
    wait::poll_until("its files are removed", || site.folders().is_empty().then_some(()));
    let outputs = |site: &Site| {
        assert_eq!(site.output(ended), "out\n");
        let errors = site.run(&["output", "--stderr", &ended.to_string()]).success().stdout_text();
        assert_eq!(errors, "err\n");
        assert_eq!(site.output(ran), "began\n");
    };
    outputs(&site);
    // The same after an orderly end, and they go with their tasks.
    let next = site.submit(&[], "echo next");
    assert_eq!(site.ended(next).status, Status::Completed);
    site.daemon.stop();
    assert!(site.folders().is_empty(), "{:?}", site.folders());
    site.daemon.launch();
    outputs(&site);
    assert_eq!(site.output(next), "next\n");
    let path = site.daemon.task(next).output.path;
    site.run(&["clear", &next.to_string()]).success();
    assert!(!std::path::Path::new(&path).exists());
}
