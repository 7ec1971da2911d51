//! Types the commands of bgd-remote(7) for users of a cluster, with stand-ins for the programs.

use std::fs;
use std::process::Command;

use bgd_tests::docs;
use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::request::ListResult;
use bgd_tests::shared::resources::Resources;
use bgd_tests::shared::task::Status;
use bgd_tests::slurm::Cluster;
use bgd_tests::{Outcome, TestDaemon, bgctl_path, executable};

fn block(language: &str, number: usize) -> String {
    let text = docs::read("man/bgd-remote.md");
    let (_, section) = text.split_once("\n## A Slurm cluster\n").expect("the guide has this section");
    let mut blocks = docs::code_blocks(section).into_iter().filter(|(of, _)| *of == language);
    blocks.nth(number).expect("the section has so many blocks").1.to_owned()
}

/// A cluster as the section assumes it.
fn cluster() -> Cluster {
    Cluster::builder().gpu().conf("PartitionName=long Nodes=ALL State=UP").start()
}

/// Types the lines of the section in the daemon's home, and checks the results.
fn type_lines(daemon: &TestDaemon, folder: &std::path::Path) {
    executable::write(&folder.join("train.sh"), "#!/bin/sh\necho trained\n");
    executable::write(&folder.join("simulate"), "#!/bin/sh\necho \"simulated $1\"\n");
    fs::write(daemon.home().join("cases.txt"), "a\nb\nc\n").unwrap();
    let bgctl = bgctl_path();
    let programs = bgctl.parent().expect("a folder").display();
    let mut shell = Command::new("bash");
    shell.env_clear().envs(daemon.environment()).env("BGD_SESSION", "s").current_dir(daemon.home());
    shell.args(["-euc", &format!("PATH={programs}:$PATH\n{}", block("sh", 0))]);
    let stdout = Outcome::of(&mut shell).success().stdout_text();
    assert!(stdout.contains("hpc\tslurm") && stdout.contains("works"), "{stdout}");
    let list = || -> ListResult { daemon.run(&["--json", "list", "--all"]).success().json() };
    let ids: Vec<_> = list().tasks.iter().map(|task| task.id).collect();
    daemon.block(&ids);
    let tasks = list().tasks;
    assert_eq!(tasks.len(), 4);
    assert!(tasks.iter().all(|task| task.status == Status::Completed), "{tasks:?}");
    let mut outputs: Vec<String> =
        ids.iter().map(|id| String::from_utf8(daemon.output(*id)).unwrap()).collect();
    outputs.sort();
    assert_eq!(outputs, ["simulated a\n", "simulated b\n", "simulated c\n", "trained\n"]);
    let asked =
        Resources { cpus: Some(4), memory_bytes: Some(8 << 30), gpus: Some(1), ..Resources::default() };
    assert!(tasks.iter().any(|task| task.resources == asked && task.time_limit_ms == Some(7_200_000)));
}

#[test]
fn r146_cluster_example_of_guide_works_as_root() {
    let cluster = cluster();
    let config = block("toml", 0).replace("/home/me/.cache/bgd", cluster.work().to_str().unwrap());
    let daemon = TestDaemon::builder().config(config).env("SLURM_CONF", cluster.conf()).start();
    type_lines(&daemon, daemon.home());
}

#[test]
fn r146_login_node_example_of_guide_works_as_root() {
    let cluster = cluster();
    let login = Far::of(TestDaemon::home_only());
    login.set_session(&[("SLURM_CONF", cluster.conf().to_str().unwrap())]);
    let config = block("toml", 1)
        .replace("/home/me/.cache/bgd", cluster.work().to_str().unwrap())
        .replace("me@login.example.org", HOST);
    let config = format!("{config}ssh = \"{}\"\n", login.path("ssh").display());
    let daemon = TestDaemon::builder().config(config).start();
    // The programs are in the remote home folder.
    type_lines(&daemon, login.daemon.home());
}
