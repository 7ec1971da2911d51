//! Each package is built from the programs under test, installed where nothing of bgd exists, used there for the main
//! job, and removed without a trace.
//!
//! The programs are those that the suites use anyway, without their symbols; `.ci/dist` and `packages/deb` make the
//! packages for users in the same way from other programs.

mod cargo;
mod recipes;
mod script;

use std::fs;
use std::path::Path;
use std::process::Command;

use bgctl::manual::PAGES;
use bgd_tests::Outcome;
use bgd_tests::docs::root as repository;
use bgd_tests::packages::{MAIN_JOB, deb, programs, tarball};
use bgd_tests::root::Root;
use bgd_tests::systemd::{Session, Systemd};

/// Asserts that a session without any setup has the socket, the pages and the completions of the package.
fn use_deb(alice: &mut Session<'_>) {
    let said = |alice: &mut Session<'_>, line: &str| alice.run(line).success().stdout_text();
    assert_eq!(said(alice, "systemctl --user is-active bgd.socket"), "active\n");
    alice.run("systemctl --user is-active bgd.service").expect_code(3);
    // With this variable, bgctl never starts a daemon: the manager has to.
    let job = MAIN_JOB.replace("bgctl", "bgctl --no-start");
    assert_eq!(said(alice, &job), "from a task\n");
    let status: serde_json::Value = alice.run("bgctl daemon status --json").success().json();
    assert_eq!(status["tree"], "cgroup", "{status}");
    assert_eq!(status["tree_reason"], "in the cgroup of the unit that started bgd", "{status}");
    for page in PAGES {
        let path = page.file(Path::new("/usr/share/man"));
        assert_eq!(said(alice, &format!("man -w {}", page.name)), format!("{}.gz\n", path.display()));
    }
    let load = ". /usr/share/bash-completion/bash_completion; _completion_loader bgctl; complete -p bgctl";
    assert!(said(alice, &format!("bash -c '{load}'")).contains("bgctl"));
    assert_eq!(said(alice, "systemd-analyze --user --man=no verify bgd.socket bgd.service 2>&1"), "");
    alice.run("bgctl daemon stop").success();
}

#[test]
fn r170_deb_needs_no_setup_and_leaves_no_trace_as_root() {
    let root = Root::unpack();
    let package = root.path().join("mnt/bgd.deb");
    fs::copy(deb(), &package).unwrap();
    let machine = Systemd::boot_in(root.path());
    // The first start and the first login write files of their own.
    machine.login().logout();
    machine.logged_out();
    let before = root.files();
    machine.run(&["dpkg", "-i", "/mnt/bgd.deb"]).success();
    let mut alice = machine.login();
    use_deb(&mut alice);
    alice.logout();
    machine.logged_out();
    machine.run(&["dpkg", "--purge", "bgd"]).success();
    drop(machine);
    root.expect_files(&before);
}

#[test]
fn r172_task_runs_at_once_in_the_session_that_installed_the_deb_as_root() {
    let root = Root::unpack();
    fs::copy(deb(), root.path().join("mnt/bgd.deb")).unwrap();
    let machine = Systemd::boot_in(root.path());
    let mut alice = machine.login();
    machine.run(&["dpkg", "-i", "/mnt/bgd.deb"]).success();
    assert_eq!(alice.run(MAIN_JOB).success().stdout_text(), "from a task\n");
    let status: serde_json::Value = alice.run("bgctl daemon status --json").success().json();
    assert_eq!(status["tree"], "cgroup", "{status}");
    // An upgrade to the same version leaves the daemon and its tasks alone.
    machine.run(&["dpkg", "-i", "/mnt/bgd.deb"]).success();
    let after: serde_json::Value = alice.run("bgctl daemon status --json").success().json();
    assert_eq!(after["pid"], status["pid"]);
    // A socket that an administrator has disabled stays disabled.
    machine.run(&["systemctl", "--global", "disable", "bgd.socket"]).success();
    machine.run(&["dpkg", "-i", "/mnt/bgd.deb"]).success();
    machine.run(&["systemctl", "--global", "is-enabled", "bgd.socket"]).expect_code(1);
    alice.run("bgctl daemon stop").success();
}

#[test]
fn r170_lintian_finds_no_error_in_the_deb() {
    let mut lintian = Command::new("lintian");
    // lintian warns that root runs it, and without this option refuses to.
    lintian.args(["--allow-root", "--fail-on", "error", "--no-tag-display-limit"]).arg(deb());
    let outcome = Outcome::of(&mut lintian).success();
    let said = outcome.stdout_text();
    // An upload to Debian would close the bug that announces it; there is none.
    let known = ["initial-upload-closes-no-bugs"];
    let other: Vec<&str> = said.lines().filter(|line| !known.iter().any(|tag| line.contains(tag))).collect();
    assert!(other.is_empty(), "{other:?}\n{}", outcome.stderr);
}

#[test]
fn r170_deb_puts_completions_where_shells_look_for_them() {
    let mut contents = Command::new("dpkg-deb");
    let contents = Outcome::of(contents.arg("-c").arg(deb())).success().stdout_text();
    let has = |path: &str| contents.lines().any(|line| line.ends_with(&format!(" .{path}")));
    let searched = |shell: &str, script: &str| {
        let mut command = Command::new(shell);
        command.arg(if shell == "zsh" { "-fc" } else { "-c" }).arg(script);
        let outcome =
            Outcome::of(command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent"));
        outcome.stdout_text().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let zsh = searched("zsh", "print -l $fpath");
    assert!(zsh.iter().any(|folder| has(&format!("{folder}/_bgctl"))), "{zsh:?}\n{contents}");
    let fish = searched("fish", "printf '%s\\n' $fish_complete_path");
    assert!(fish.iter().any(|folder| has(&format!("{folder}/bgctl.fish"))), "{fish:?}\n{contents}");
    let mut nu = Command::new(bgd_tests::agents::nushell());
    nu.args(["-c", "$nu.vendor-autoload-dirs | str join (char newline)"])
        .env_clear()
        .env("HOME", "/nonexistent");
    let nu = Outcome::of(&mut nu).success().stdout_text();
    assert!(nu.lines().any(|folder| has(&format!("{folder}/bgctl.nu"))), "{nu}\n{contents}");
}

#[test]
fn r170_deb_and_static_programs_use_separate_build_profiles() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    assert!(read("packages/deb").contains("--profile \"${PROFILE:-deb}\""));
    assert!(read("Cargo.toml").contains("[profile.deb]\ninherits = \"dist\"\n"));
    assert!(read(".ci/dist").contains("\"$target/dist/"));
}

#[test]
fn r170_programs_that_need_a_library_are_refused_for_the_tarball() {
    // The programs under test are not static.
    let mut alone = Command::new(repository().join("packages/try-alone"));
    let refused = Outcome::of(alone.arg(programs())).expect_code(1);
    assert!(refused.stderr.contains("is one of them not static?"), "{}", refused.stderr);
    let dist = fs::read_to_string(repository().join(".ci/dist")).unwrap();
    let (tried, packed) = (dist.find("packages/try-alone"), dist.find("packages/tarball"));
    assert!(tried.is_some() && tried < packed, "only what works becomes the tarball");
}

/// Joins several steps into one script.
fn script_of(steps: &[&str]) -> String {
    steps.join("\n")
}

#[test]
fn r170_tarball_is_installed_used_and_removed_by_its_own_script_as_root() {
    let root = Root::unpack();
    let before = root.files();
    let archive = tarball();
    let name = archive.file_name().unwrap().to_str().unwrap();
    assert_eq!(name, format!("bgd-{}-x86_64-linux.tar.gz", env!("CARGO_PKG_VERSION")));
    let (job, files): (&str, &[&Path]) = (MAIN_JOB, &[&archive]);
    let unpack = "cd /tmp; tar -xzf bgd-*.tar.gz; cd bgd-*/; cat LICENSE INSTALL >/dev/null";
    let check =
        "readlink -f $(man -w bgctl bgd-config); grep ExecStart= /usr/local/share/systemd/user/bgd.service;
        systemd-analyze --user --man=no verify bgd.service; bgctl --json doctor --no-start || :";
    let steps = [unpack, "./install", job, check, "./install", job, "bgctl daemon stop"];
    let said = root.run(files, &script_of(&steps)).success().stdout_text();
    let lines: Vec<&str> = said.lines().collect();
    for wanted in [
        "installed in /usr/local",
        "from a task",
        "/usr/local/share/man/man1/bgctl.1.gz",
        "/usr/local/share/man/man5/bgd-config.5.gz",
        "ExecStart=/usr/local/bin/bgd",
    ] {
        assert!(lines.contains(&wanted), "{wanted} is not in\n{said}");
    }
    assert_eq!(lines.iter().filter(|line| **line == "from a task").count(), 2, "{said}");
    let said = root.run(files, &script_of(&[unpack, "./install --remove"])).success().stdout_text();
    assert_eq!(said, "removed from /usr/local\n");
    root.expect_files(&before);
    let again = root.run(files, &script_of(&[unpack, "./install --remove"])).expect_code(1);
    assert!(again.stderr.contains("nothing is installed in /usr/local"), "{}", again.stderr);

    // Other people's files in the package's folders stay; installed for a user only, the package goes to the home.
    let own = script_of(&[
        unpack,
        "mkdir /tmp/home; export HOME=/tmp/home PATH=/tmp/home/.local/bin:$PATH",
        "./install $HOME/.local",
        job,
        "bgctl daemon stop",
        "man -w bgctl; grep ExecStart= $HOME/.local/share/systemd/user/bgd.service",
        "touch $HOME/.local/bin/mine; ./install --remove $HOME/.local; find $HOME",
    ]);
    let said = root.run(files, &own).success().stdout_text();
    for wanted in
        ["from a task", "/tmp/home/.local/share/man/man1/bgctl.1.gz", "ExecStart=/tmp/home/.local/bin/bgd"]
    {
        assert!(said.lines().any(|line| line == wanted), "{wanted} is not in\n{said}");
    }
    let left = said.split_once("removed from /tmp/home/.local\n").unwrap().1;
    assert_eq!(left, "/tmp/home\n/tmp/home/.local\n/tmp/home/.local/bin\n/tmp/home/.local/bin/mine\n");
    root.expect_files(&before);
}
