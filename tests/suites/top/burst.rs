//! Much at once: bursts of events, lost events, sizes that change while output comes (R163).

use bgd_shared::event::News;
use bgd_shared::request::{CancelParams, SubmitManyParams, SubmitParams, TaskCancel, TaskSubmitMany};
use bgd_tests::TestDaemon;
use rustix::process::Signal;

use super::{sized, top};

/// Submits this many held tasks, and cancels them all at once: two events each, as fast as events can come.
fn burst(daemon: &TestDaemon, count: usize) {
    let task = SubmitParams { hold: true, ..daemon.params() };
    let argvs = vec![vec!["true".into()]; count];
    let params = SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() };
    let mut client = daemon.client();
    let ids = client.call::<TaskSubmitMany>(&params).unwrap().ids;
    for part in ids.chunks(1000) {
        let ids = part.iter().map(|id| (*id).into()).collect();
        client.call::<TaskCancel>(&CancelParams { ids, ..CancelParams::default() }).unwrap();
    }
}

#[test]
fn r163_top_counts_every_task_of_an_event_burst() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    top.wait_text("no tasks");
    burst(&daemon, 10_000);
    top.wait_text("nothing needs you | 10000 done\n");
    assert_eq!(daemon.status().summary.cancelled, 10_000);
    daemon.run(&["clear", "--all-sessions"]).success();
    top.wait_text("no tasks");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r163_top_reloads_list_after_losing_events() {
    let daemon = TestDaemon::start();
    let mut top = top(&daemon);
    top.wait_text("no tasks");
    let process = top.process();
    process.signal(Signal::STOP).unwrap();
    let mut unread = daemon.watch();
    burst(&daemon, 10_000);
    burst(&daemon, 10_000);
    // That is more than the daemon keeps for a client that does not read, such as this one.
    while !matches!(unread.next_params().news, News::Gap(gap) if gap.ended) {}
    process.signal(Signal::CONT).unwrap();
    top.wait_text("nothing needs you | 20000 done\n");
    assert_eq!(daemon.status().summary.cancelled, 20_000);
}

#[test]
fn r163_top_survives_resizes_during_heavy_output() {
    let daemon = TestDaemon::start();
    let line = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo \"line $i of many, which are all long enough to be cut\"; done; echo the very end";
    let id = daemon.run(&["submit", "-d", "flood", "--shell", line]).success().word();
    let mut top = sized(&daemon, &[], (20, 120));
    top.wait_text("flood");
    top.type_keys("f");
    top.wait_text("(follows)");
    for size in [(5, 20), (40, 200), (2, 9), (30, 120), (20, 300), (20, 120)] {
        top.resize(size);
        if size.1 >= 120 {
            top.wait_text("(follows)");
        }
    }
    daemon.block(&[id]);
    top.wait_text("the very end\n");
    top.wait_text("1 done");
    top.type_keys("q");
    assert!(top.ended().success());
}

#[test]
fn r163_top_with_100000_tasks_uses_at_most_60_mb() {
    let daemon = TestDaemon::start();
    for _ in 0..10 {
        burst(&daemon, 10_000);
    }
    let mut top = top(&daemon);
    top.wait_text("nothing needs you | 100000 done\n");
    let oldest = daemon.run(&["list", "--all", "--quiet"]).success().stdout_text();
    let oldest = oldest.lines().last().unwrap();
    // Each key that reads or sorts all of them.
    for name in ["session", "group", "batch", "dependency", "status"] {
        top.type_keys("\t");
        top.wait_text(&format!("folded by {name}\n"));
    }
    top.type_keys("G");
    top.wait_text(&format!(" {} cancelled ", &oldest[..8]));
    top.type_keys("/true");
    top.wait_text("/true (100000)\n");
    top.type_keys(format!("\x15{oldest}\r"));
    top.wait_text(&format!("/{oldest} (1)\n"));
    // Memory that is not anonymous is the program itself, which is not optimised in these tests.
    let kb = top.process().status_value("RssAnon").unwrap();
    assert!(kb * 1024 <= 60_000_000, "{kb} KiB");
    top.type_keys("q");
    assert!(top.ended().success());
}
