//! The two commands at the beginning of the README, with a stand-in for `cargo`, which pretends to have built
//! everything already.

use std::process::Command;

use bgd_tests::{Outcome, TestDaemon, bgctl_path, bgd_path, docs, executable};

use super::block;

/// Blocks of the README that are in no guide.
pub const TYPED: [&str; 2] = ["cargo build", "tests/run"];

#[test]
fn r172_first_command_shows_output_of_a_background_job() {
    let home = TestDaemon::home_only();
    let programs = [bgctl_path(), bgd_path()].map(|path| path.display().to_string()).join(" ");
    let stand_in =
        format!("#!/bin/sh\n[ \"$*\" = build ] && mkdir -p target/debug && ln -s {programs} target/debug\n");
    executable::write(&home.home().join("cargo"), &stand_in);
    let path = format!("{}:/usr/bin:/bin", home.home().display());
    let mut shell = Command::new("bash");
    shell.env_clear().envs(home.environment()).env("PATH", path).current_dir(home.home());
    let said = Outcome::of(shell.args(["-euc", &block(TYPED[0])])).success().stdout_text();
    let row = said.strip_prefix("step 1\nstep 2\nstep 3\n").unwrap_or_else(|| panic!("{said}"));
    assert!(row.contains("\tcompleted\t") && row.ends_with("\tfirst job\n"), "{row}");
    home.run(&["daemon", "stop"]).success();
}

#[test]
fn r172_second_command_is_the_test_runner_that_ci_uses() {
    assert_eq!(block(TYPED[1]), "tests/run\n");
    assert!(docs::read(".ci/run").ends_with("\nexec tests/run\n"), "continuous integration runs the same");
    let help = Outcome::of(Command::new("tests/run").arg("--help").current_dir(docs::root())).success();
    assert!(help.stdout_text().contains("\n  tests/run    "), "{}", help.stdout_text());
}
