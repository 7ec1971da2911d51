//! A controller that was reset reuses ids. Other people's jobs that have them now are never touched.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{ListParams, TaskList};
use bgd_tests::shared::task::Status;
use bgd_tests::slurm::Site;
use bgd_tests::wait;

/// A task with the id 1 on the cluster, and two that are elements of the array 2. All of them run.
fn ours(site: &Site) -> [TaskId; 3] {
    let single = site.submit(&[], "exec sleep 1000");
    assert_eq!(site.running(single), "1");
    let items = site.daemon.home().join("items");
    fs::write(&items, "1000\n1001\n").unwrap();
    let each = items.to_str().unwrap();
    site.run(&["submit", "--on", "hpc", "--each", each, "--", "sleep", "{}"]).success();
    let listed = site.daemon.client().call::<TaskList>(&ListParams::default()).unwrap();
    let elements: Vec<TaskId> = listed.tasks.iter().map(|task| task.id).filter(|id| *id != single).collect();
    let mut ids: Vec<String> = elements.iter().map(|id| site.running(*id)).collect();
    ids.sort();
    assert_eq!(ids, ["2_0", "2_1"]);
    [single, elements[0], elements[1]]
}

/// Resets the controller, and gives all our ids to other people's jobs. Returns the file in which these record the
/// signals that they get.
fn give_ids_to_others(site: &Site) -> PathBuf {
    let signals = site.cluster.work().join("signals");
    site.cluster.reset_controller();
    // A node on which two jobs with the same id meet accepts no more jobs.
    site.cluster.steps_ended();
    let line = format!(
        "for name in TERM USR1 CONT; do trap \"echo $name >>{}\" $name; done; while :; do sleep 0.1; done",
        signals.display()
    );
    let wrap = format!("--wrap={line}");
    let submit = |options: &[&str]| {
        // For a second, a node refuses a job with the id of one that it has just ended.
        let begin = ["sbatch", "--parsable", "--output=/dev/null", "--begin=now+2"];
        let words = [&begin[..], options, &[wrap.as_str()]].concat();
        site.cluster.run(&words).success().stdout_text().trim().to_owned()
    };
    assert_eq!([submit(&[]), submit(&["--array=0-1"])], ["1", "2"]);
    for id in FOREIGN {
        site.cluster.wait_for_state(id, "RUNNING");
    }
    signals
}

const FOREIGN: [&str; 3] = ["1", "2_0", "2_1"];

/// Asserts that other people's jobs were left alone.
#[track_caller]
fn untouched(site: &Site, signals: &PathBuf) {
    // Earlier commands have been carried out once this one has.
    let last = site.submit(&[], "exec sleep 1000");
    site.running(last);
    assert_eq!(site.daemon.cancel(&[last])[0].status, Status::Cancelled);
    for id in FOREIGN {
        assert_eq!(site.cluster.field(id, "JobState").as_deref(), Some("RUNNING"), "{id}");
    }
    assert!(!signals.exists(), "{:?}", fs::read_to_string(signals));
}

#[test]
fn r147_lost_jobs_never_cancel_foreign_jobs_with_same_id_as_root() {
    let site = Site::start();
    let ours = ours(&site);
    let go = site.cluster.path("go");
    let hang = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    site.cluster.programs().before("squeue", &hang);
    let signals = give_ids_to_others(&site);
    fs::write(go, "").unwrap();
    for id in ours {
        let task = site.ended(id);
        assert_eq!((task.status, task.failure.unwrap().kind), (Status::Failed, FailureKind::Lost));
    }
    untouched(&site, &signals);
}

#[test]
fn r150_commands_never_reach_foreign_jobs_with_same_id_as_root() {
    let site = Site::start();
    let [single, first, second] = ours(&site);
    let [go, hangs] = ["go", "hangs"].map(|name| site.cluster.path(name));
    let hang = format!("until [ -e {} ]; do touch {}; sleep 0.1; done", go.display(), hangs.display());
    site.cluster.programs().before("squeue", &hang);
    let signals = give_ids_to_others(&site);
    let ids = [single, first, second].map(|id| id.to_string());
    let orders: Vec<Vec<&str>> = vec![
        vec!["cancel", &ids[0]],
        vec!["cancel", &ids[1]],
        vec!["signal", &ids[2], "USR1"],
        vec!["pause", &ids[2]],
    ];
    let mut given: Vec<_> = orders
        .iter()
        .map(|words| site.daemon.bgctl(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        .collect();
    wait::for_file(&hangs);
    fs::write(go, "").unwrap();
    for order in &mut given {
        order.wait().unwrap();
    }
    for id in [single, first, second] {
        site.ended(id);
    }
    untouched(&site, &signals);
}
