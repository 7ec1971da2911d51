//! Groups and batches of a durable daemon (R125, R130): their limits hold over restarts, and where they are lost with a
//! damaged journal, nothing starts before the user agrees.

use std::fs;

use bgd_tests::TestDaemon;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::WaitingFor;
use bgd_tests::shared::request::GroupListResult;
use bgd_tests::shared::task::Status;

use super::durable_damaged::query;

/// Returns each group with its slots and whether it is paused.
fn groups(daemon: &TestDaemon) -> Vec<(String, u64, bool)> {
    let stdout = daemon.run(&["--json", "group", "list"]).success().stdout_text();
    let list: GroupListResult = serde_json::from_str(&stdout).expect("the groups");
    list.groups.into_iter().map(|group| (group.name, group.slots.into(), group.paused)).collect()
}

fn restart(daemon: &mut TestDaemon) {
    daemon.run(&["daemon", "stop"]).success();
    assert!(daemon.ended().success());
    daemon.launch();
}

#[test]
fn r130_groups_and_batches_whose_limits_are_lost_start_nothing_until_continued() {
    let config = "durable = true\nmax_concurrent_tasks = 3\n[groups.gpu]\nslots = 2";
    let mut daemon = TestDaemon::builder().config(config).start();
    daemon.run(&["group", "set", "mine", "--slots", "2"]).success();
    daemon.run(&["group", "pause", "mine"]).success();
    let waiting = daemon.submitted(&["--group", "mine", "--", "true"]);
    let runs = daemon.submitted(&["--group", "gpu", "--", "sleep", "1000"]);
    daemon.wait_running(runs);
    let items = daemon.home().join("items");
    fs::write(&items, "1\n2\n3\n").unwrap();
    let words = ["--each", items.to_str().unwrap(), "--jobs", "1", "--", "sleep", "100{}"];
    let batch = daemon.submitted(&words).to_string();
    let members = |daemon: &TestDaemon| -> Vec<TaskId> {
        let ids = daemon.run(&["list", "--quiet", "--batch", &batch]).success().stdout_text();
        ids.lines().rev().map(|id| id.parse().expect("an id")).collect()
    };
    let all = members(&daemon);
    daemon.wait_running(all[0]);
    daemon.kill9();
    query(&daemon, "UPDATE entry SET value = x'00' WHERE name = 'groups'; UPDATE batch SET value = x'00'");

    daemon.launch();

    let warnings = daemon.status().warnings.join("; ");
    for words in ["the slots and pauses of groups are lost", "the limits of a batch are lost"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    let expected = [("default", 3, true), ("gpu", 2, false), ("mine", 1, true)];
    assert_eq!(groups(&daemon), expected.map(|(name, slots, paused)| (name.to_owned(), slots, paused)));
    assert_eq!(members(&daemon), all);
    let statuses = || all.iter().map(|task| daemon.task(*task).status).collect::<Vec<_>>();
    let (running, pending) = (Status::Running, Status::Pending);
    assert_eq!(statuses(), [running, pending, pending]);
    assert_eq!([runs, waiting].map(|task| daemon.task(task).status), [running, pending]);
    daemon.run(&["group", "continue", "mine"]).success();
    assert_eq!(daemon.block(&[waiting])[0].status, Status::Completed);
    daemon.run(&["group", "continue", "default"]).success();
    let reason = daemon.task(all[1]).waiting.map(|waiting| waiting.reason);
    assert_eq!((statuses(), reason), (vec![running, pending, pending], Some(WaitingFor::Held)));
    daemon.run(&["release", "--batch", &batch]).success();
    for task in &all {
        daemon.wait_running(*task);
    }
    daemon.cancel(&[&[runs], &all[..]].concat());
}

#[test]
fn r125_group_removed_from_configuration_outlives_restart_only_with_tasks() {
    const DURABLE: &str = "durable = true\n";
    let groups_of = |names: &[&str]| -> String {
        names.iter().map(|name| format!("[groups.{name}]\nslots = 2")).collect::<Vec<_>>().join("\n")
    };
    for reloads in [false, true] {
        let config = DURABLE.to_owned() + &groups_of(&["busy", "free", "kept"]);
        let mut daemon = TestDaemon::builder().config(config).start();
        daemon.run(&["group", "set", "mine", "--slots", "2"]).success();
        let task = daemon.submitted(&["--group", "busy", "--hold", "--", "true"]);
        daemon.write_config(&(DURABLE.to_owned() + &groups_of(&["kept"])));
        if reloads {
            daemon.run(&["daemon", "reload"]).success();
        }
        let names =
            |daemon: &TestDaemon| groups(daemon).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        assert_eq!(names(&daemon), ["default", "busy", "free", "kept", "mine"], "until the daemon ends");

        restart(&mut daemon);
        assert_eq!(names(&daemon), ["default", "busy", "kept", "mine"]);
        daemon.run(&["release", &task.to_string()]).success();
        assert_eq!(daemon.block(&[task])[0].status, Status::Completed);

        restart(&mut daemon);
        assert_eq!(names(&daemon), ["default", "kept", "mine"]);
        assert_eq!(daemon.task(task).status, Status::Completed);
    }
}
