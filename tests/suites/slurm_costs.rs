//! R164 on a cluster: the usage of jobs according to the accounting. It is reported late, so it is added to tasks that
//! have ended.

use std::fs;
use std::path::Path;
use std::time::Instant;

use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{DaemonUpgrade, ListParams, TaskList, TaskResult, UpgradeParams};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::slurm::{Builder, Site};
use bgd_tests::wait;
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;

/// The number of elements of the array.
const ELEMENTS: usize = 40;

/// Computes for a quarter of a second of CPU time and holds 64 MiB until the file exists. The nodes measure memory once
/// a second.
fn work(gate: &Path) -> String {
    let gate = gate.display();
    format!(
        "exec perl -e 'while ((times)[0] < 0.25) {{ $n++ }} $x = q(x) x (64 << 20); \
         select undef, undef, undef, 0.05 until -e q({gate}); print length $x'"
    )
}

/// Lets a job end once the node has measured its memory.
fn let_end(site: &Site, id: TaskId, gate: &Path) {
    let step = format!("{}.batch", site.running(id));
    let query = ["sstat", "--noheader", "--parsable2", "--noconvert", "--format=MaxRSS", "--jobs", &step];
    wait::poll_until("a measure of its memory", || {
        let text = site.cluster.run(&query).stdout_text();
        text.trim().parse().is_ok_and(|bytes: u64| bytes >= 64 * MIB).then_some(())
    });
    fs::write(gate, "").unwrap();
}

fn assert_counts(task: &Task) {
    let usage = task.usage.expect("what it used is known");
    assert!((240..60_000).contains(&usage.user_ms), "{usage:?}");
    assert!(
        usage.peak_memory_bytes.is_some_and(|bytes| (64 * MIB..1024 * MIB).contains(&bytes)),
        "{usage:?}"
    );
}

fn with_costs(site: &Site, id: TaskId) -> Task {
    site.until(id, "its costs are known", |task| task.usage.is_some())
}

#[test]
fn r164_cluster_job_reports_its_usage_as_root() {
    let site = Site::of(Builder::default().accounting(), "");
    let gate = site.cluster.path("gate");
    let id = site.submit(&[], &work(&gate));
    let_end(&site, id, &gate);
    let task = site.ended(id);
    assert_eq!(task.status, Status::Completed, "{task:?}");
    assert_counts(&with_costs(&site, id));
    let page = site.run(&["status", &id.to_string()]).success().stdout_text();
    let line = page.lines().find(|line| line.contains("of CPU")).unwrap_or_else(|| panic!("{page}"));
    assert!(line.trim_start().starts_with("used") && line.contains("MiB of memory"), "{line}");
    let json = site.run(&["status", "--json", &id.to_string()]).success().stdout_text();
    let shown: TaskResult = serde_json::from_str(&json).unwrap();
    assert_counts(&shown.task);
    // The same for an array, with few queries; and nothing for tasks that have never run.
    let items = site.cluster.path("items");
    fs::write(&items, "x\n".repeat(ELEMENTS)).unwrap();
    let held = site.submit(&["--hold"], "true");
    site.run(&["cancel", &held.to_string()]).success();
    let calls = |name| site.cluster.programs().calls(name).len();
    let asked = || calls("squeue") + calls("sacct");
    let (begun, before) = (Instant::now(), asked());
    let each = items.to_str().unwrap();
    let batch: TaskId = site.run(&["submit", "--on", "hpc", "--each", each, "--", "false"]).word();
    site.run(&["block", "--batch", &batch.to_string()]);
    let listed = site.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    let elements: Vec<Task> = listed.into_iter().filter(|task| ![id, held].contains(&task.id)).collect();
    assert_eq!(elements.len(), ELEMENTS);
    for element in &elements {
        let task = with_costs(&site, element.id);
        assert_eq!(task.status, Status::Failed);
        assert!(task.usage.unwrap().user_ms < 10_000, "{task:?}");
    }
    let (seconds, asked) = (begun.elapsed().as_secs() + 1, asked() - before);
    assert!(asked as u64 <= seconds, "{asked} queries in {seconds} s");
    assert_eq!(site.daemon.task(held).usage, None);
}

#[test]
fn r164_late_usage_is_added_without_delaying_tasks_as_root() {
    let site = Site::far(Builder::default().accounting());
    let programs = site.cluster.programs();
    programs.before("sacct", "exit 0");
    let gate = site.cluster.path("gate");
    let mut watch = site.daemon.watch();
    let id = site.submit(&[], &work(&gate));
    let follower = site.submit(&["--after", &id.to_string()], "echo next");
    let_end(&site, id, &gate);
    // Its task and the next one end as if there were no accounting.
    assert_eq!(site.ended(id).usage, None);
    let task = site.ended(follower);
    assert_eq!((task.status, site.output(follower).as_str()), (Status::Completed, "next\n"));
    programs.wait_for_calls("sacct", 1);
    programs.before("sacct", "echo 'sacct: error: Problem talking to the database' >&2; exit 1");
    let before = programs.calls("sacct").len() as u64;
    programs.wait_for_calls("sacct", before + 1);
    programs.restore("sacct");
    // Subscribers to events are notified.
    let event = watch.until(|event| event.task.id == id && event.task.usage.is_some());
    assert_eq!((event.kind, event.task.status), (EventKind::Progress, Status::Completed));
    assert_counts(&event.task);
    assert_counts(&site.daemon.task(id));
}

/// A job has ended, and its usage is reported only after `changes` has put another daemon or program in place.
fn are_reported_after(mut site: Site, changes: impl Fn(&mut Site)) {
    let programs = site.cluster.programs();
    programs.before("sacct", "exit 0");
    let gate = site.cluster.path("gate");
    let id = site.submit(&[], &work(&gate));
    let_end(&site, id, &gate);
    assert_eq!(site.ended(id).usage, None);
    changes(&mut site);
    assert_eq!((site.daemon.task(id).status, site.daemon.task(id).usage), (Status::Completed, None));
    site.cluster.programs().restore("sacct");
    assert_counts(&with_costs(&site, id));
}

#[test]
fn r164_usage_is_still_collected_after_upgrade_as_root() {
    are_reported_after(Site::of(Builder::default().accounting(), ""), |site| {
        site.daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    });
}

#[test]
fn r164_usage_is_still_collected_after_durable_restart_as_root() {
    are_reported_after(Site::durable(Builder::default().accounting()), |site| {
        site.daemon.kill_by(Signal::SIGKILL);
        site.daemon.launch();
    });
    are_reported_after(Site::far_durable(Builder::default().accounting()), |site| {
        site.daemon.stop();
        site.daemon.launch();
    });
}

#[test]
fn r164_cluster_without_accounting_is_never_queried_for_usage_as_root() {
    let site = Site::start();
    let id = site.submit(&[], "exit 3");
    assert_eq!(site.ended(id).usage, None);
    // Another job is handled to its end meanwhile.
    site.ended(site.submit(&[], "true"));
    assert_eq!(site.cluster.programs().calls("sacct"), [""; 0]);
    assert_eq!(site.daemon.task(id).usage, None);
}
