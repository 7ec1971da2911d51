//! The clusters of the other suites: the properties that they rely on hold.

use bgd_tests::slurm::Cluster;
use bgd_tests::wait;

fn submit(cluster: &Cluster, options: &[&str], script: &str) -> String {
    let wrap = format!("--wrap={script}");
    let words = [&["sbatch", "--parsable"], options, &[wrap.as_str()]].concat();
    cluster.run(&words).success().stdout_text().trim().to_owned()
}

#[test]
fn job_runs_and_reports_its_exit_code_as_root() {
    let cluster = Cluster::start();
    let output = cluster.work().join("out");
    let option = format!("--output={}", output.display());
    let job = submit(&cluster, &[&option], "echo $SLURMD_NODENAME; exit 4");
    cluster.wait_for_state(&job, "FAILED");
    assert_eq!(cluster.field(&job, "ExitCode").as_deref(), Some("4:0"));
    assert_eq!(std::fs::read_to_string(output).unwrap().trim(), cluster.node());
    assert_eq!(cluster.field("99", "JobState"), None);
}

#[test]
fn clusters_are_independent_and_controllers_can_restart_as_root() {
    let (one, other) = (Cluster::start(), Cluster::start());
    let job = submit(&one, &["--output=/dev/null"], "exec sleep 1000");
    one.wait_for_state(&job, "RUNNING");
    assert!(other.jobs().is_empty(), "{:?}", other.jobs());
    one.stop_controller();
    one.start_controller();
    assert_eq!(one.jobs(), [(job.clone(), "RUNNING".to_owned())]);
    one.stop_node();
    one.start_node();
    one.run(&["scancel", &job]).success();
    one.wait_for_state(&job, "CANCELLED");
    one.idle();
}

#[test]
fn commands_are_counted_and_can_be_made_to_fail_as_root() {
    let cluster = Cluster::start();
    let programs = cluster.programs();
    let squeue = || bgd_tests::Outcome::of(&mut std::process::Command::new(programs.path().join("squeue")));
    squeue().success();
    programs.before("squeue", "echo nothing works >&2; exit 3");
    assert_eq!(squeue().expect_code(3).stderr, "nothing works\n");
    programs.restore("squeue");
    squeue().success();
    programs.wait_for_calls("squeue", 3);
    assert_eq!(programs.calls("squeue").len(), 3);
    assert!(programs.calls("sbatch").is_empty());
}

#[test]
fn exceeding_memory_limit_kills_job_as_root() {
    let cluster = Cluster::builder().memory_limits().start();
    let script = "exec perl -e 'my $x = q(x) x 200_000_000; sleep 1000'";
    let job = submit(&cluster, &["--output=/dev/null", "--mem=20"], script);
    cluster.wait_for_state(&job, "OUT_OF_MEMORY");
}

#[test]
fn accounting_records_job_results_as_root() {
    let cluster = Cluster::builder().accounting().start();
    let job = submit(&cluster, &["--output=/dev/null"], "exit 4");
    let query = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode"];
    let expected = format!("{job}|FAILED|4:0");
    wait::poll_until("the record of the job", || {
        cluster.run(&query).success().stdout_text().lines().any(|line| line == expected).then_some(())
    });
}
