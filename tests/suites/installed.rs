//! What `bgctl` installs in its user's home: completions, manual pages and systemd units. Each can be removed again,
//! and other people's files in these places stay.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use bgctl::manual::PAGES;
use bgd_tests::user::Programs;
use bgd_tests::{Outcome, Terminal, TestDaemon, executable};
use serde_json::Value;

/// Returns a command of a user who has set no folder but the home.
fn command(home: &TestDaemon, args: &[&str]) -> Command {
    let mut command = home.bgctl(args);
    command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    command
}

fn run(home: &TestDaemon, args: &[&str]) -> Outcome {
    Outcome::of(&mut command(home, args))
}

/// Returns a home with the folders that every user has.
fn home() -> TestDaemon {
    let home = TestDaemon::home_only();
    for folder in [".config", ".local/share"] {
        fs::create_dir_all(home.home().join(folder)).unwrap();
    }
    home
}

/// Returns every path below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            paths.push(entry.path());
        }
    }
    paths.sort();
    paths
}

#[test]
fn r170_completions_uninstall_leaves_no_trace_and_spares_foreign_files() {
    let home = home();
    let before = below(home.home());
    for shell in ["bash", "zsh", "fish", "nushell"] {
        run(&home, &["completions", "install", shell]).success();
    }
    let one = run(&home, &["completions", "uninstall", "zsh"]).success().stdout_text();
    assert!(one.ends_with("/.local/share/zsh/site-functions/_bgctl\n") && one.lines().count() == 1, "{one}");
    let rest: Value = run(&home, &["--json", "completions", "uninstall"]).success().json();
    assert_eq!(rest["removed"].as_array().unwrap().len(), 3, "{rest}");
    assert_eq!(below(home.home()), before);
    let none = run(&home, &["completions", "uninstall"]).success().stdout_text();
    assert_eq!(none, "nothing is installed\n");

    let own = home.home().join(".config/fish/completions/bgctl.fish");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "# mine\n").unwrap();
    let bash = run(&home, &["completions", "install", "bash"]).success().stdout_text();
    let bash = bash.lines().next().unwrap().strip_prefix("installed ").unwrap();
    for args in [&["uninstall"][..], &["install", "fish"]] {
        let refused = run(&home, &[&["completions"], args].concat()).expect_code(65);
        assert!(refused.stderr.contains(own.to_str().unwrap()), "{}", refused.stderr);
        assert_eq!(fs::read_to_string(&own).unwrap(), "# mine\n");
        assert!(Path::new(bash).exists(), "nothing is removed if one of them is somebody's own");
    }
}

#[test]
fn r170_man_finds_installed_pages_until_they_are_uninstalled() {
    let home = home();
    // As after `cargo install`.
    let bin = home.home().join(".cargo/bin");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join("bgctl");
    executable::copy(&bgd_tests::bgctl_path(), &program);
    let before = below(home.home());
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        let path = format!("{}:/usr/bin:/bin", bin.display());
        Outcome::of(command.args(args).env_clear().env("HOME", home.home()).env("PATH", path))
    };
    let man = |section: &str, page: &str| {
        let mut man = Command::new("man");
        man.args(["-w", section, page]).env_clear().env("HOME", home.home());
        let outcome = Outcome::of(man.env("PATH", format!("{}:/usr/bin:/bin", bin.display())));
        (outcome.code == 0).then(|| PathBuf::from(outcome.stdout_text().trim()))
    };
    let folder = home.home().join(".cargo/share/man");
    let stdout = run(&["man", "install"]).success().stdout_text();
    assert_eq!(
        stdout,
        format!("installed {} pages in {}\n", PAGES.len(), folder.display()),
        "no MANPATH is needed"
    );
    for page in PAGES {
        let path = page.file(&folder);
        assert_eq!(man(&page.section.to_string(), page.name), Some(path.clone()));
        assert_eq!(run(&["man", page.name]).success().stdout, fs::read(path).unwrap(), "{}", page.name);
    }
    run(&["man", "install"]).success();
    // The last but one: whatever precedes it is left unchanged, too.
    let foreign = &PAGES[PAGES.len() - 2];
    let (page, first) = (foreign.file(&folder), PAGES[0].file(&folder));
    fs::write(&page, ".TH notes 1\n").unwrap();
    let older = format!("{}.\\\" older\n", PAGES[0].text);
    fs::write(&first, &older).unwrap();
    for verb in ["install", "uninstall"] {
        let refused = run(&["man", verb]).expect_code(65);
        assert!(refused.stderr.contains(&format!("{} exists", page.display())), "{}", refused.stderr);
        assert_eq!(fs::read_to_string(&first).unwrap(), older, "{verb} touches nothing");
    }
    fs::remove_file(page).unwrap();
    run(&["man", "uninstall"]).success();
    assert_eq!(below(home.home()), before);
    assert_ne!(man("5", "bgd-config"), Some(folder.join("man5/bgd-config.5")));
}

#[test]
fn r170_pages_go_to_user_data_folder_with_manpath_hint() {
    let home = home();
    let programs = Programs::copy();
    let mut install = Command::new(programs.path().join("bgctl"));
    let outcome = Outcome::of(install.args(["man", "install"]).env_clear().env("HOME", home.home()));
    let folder = home.home().join(".local/share/man");
    let line = format!("  export MANPATH={}:", folder.display());
    assert!(outcome.success().stdout_text().lines().any(|written| written == line));
    let value = format!("{}:", folder.display());
    let mut man = Command::new("man");
    man.args(["-w", "bgd-config"]).env_clear().env("PATH", "/usr/bin:/bin").env("MANPATH", value);
    let path = folder.join("man5/bgd-config.5");
    assert_eq!(Outcome::of(&mut man).success().stdout_text().trim(), path.to_str().unwrap());
    run(&home, &["man", "no-such-page"]).expect_code(2);
}

#[test]
fn r168_doctor_reports_installed_pages_that_man_does_not_find() {
    let home = home();
    let programs = Programs::copy();
    let run = |args: &[&str], manpath: &str| {
        let mut command = Command::new(programs.path().join("bgctl"));
        command.args(args).env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
        Outcome::of(command.env("MANPATH", manpath))
    };
    let manual = |manpath: &str| {
        let args = ["--json", "--no-start", "--socket", "/nowhere/socket", "doctor"];
        let report: Value = run(&args, manpath).expect_code(69).json();
        let checks = report["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "manual").unwrap()
    };
    assert_eq!(manual("")["hint"], "bgctl man install");
    run(&["man", "install"], "").success();
    let folder = home.home().join(".local/share/man").display().to_string();
    let unseen = manual("");
    assert!(unseen["found"].as_str().unwrap().contains(&folder), "{unseen}");
    assert_eq!(unseen["hint"], format!("export MANPATH={folder}:"));
    assert_eq!(manual(&format!("{folder}:"))["state"], "ok");
}

#[test]
fn r170_units_are_uninstalled_with_the_link_that_enabled_the_socket() {
    let home = home();
    let before = below(home.home());
    run(&home, &["daemon", "install"]).success();
    let units = home.home().join(".config/systemd/user");
    let wants = units.join("sockets.target.wants");
    fs::create_dir(&wants).unwrap();
    symlink(units.join("bgd.socket"), wants.join("bgd.socket")).unwrap();
    let stdout = run(&home, &["daemon", "uninstall"]).success().stdout_text();
    assert!(stdout.contains("systemctl --user stop bgd.socket bgd.service"), "{stdout}");
    assert_eq!(below(home.home()), before);
    assert_eq!(run(&home, &["daemon", "uninstall"]).success().stdout_text(), "nothing is installed\n");

    // bgctl recognises its own unit even if it names another path, but not one that somebody has changed.
    run(&home, &["daemon", "install"]).success();
    let service = units.join("bgd.service");
    let text = fs::read_to_string(&service).unwrap();
    let moved: String =
        text.lines()
            .map(|line| {
                if line.starts_with("ExecStart=") {
                    "ExecStart=/opt/bgd\n".into()
                } else {
                    format!("{line}\n")
                }
            })
            .collect();
    fs::write(&service, format!("{moved}Nice=5\n")).unwrap();
    let refused = run(&home, &["daemon", "uninstall"]).expect_code(65);
    assert!(refused.stderr.contains("bgd.service exists"), "{}", refused.stderr);
    assert!(units.join("bgd.socket").exists(), "nothing is removed");
    fs::write(&service, moved).unwrap();
    run(&home, &["daemon", "install"]).success();
    assert_eq!(fs::read_to_string(&service).unwrap(), text);
    run(&home, &["daemon", "uninstall"]).success();
    assert_eq!(below(home.home()), before);
}

#[test]
fn r170_page_is_readable_on_a_terminal_without_installation() {
    let home = TestDaemon::home_only();
    let mut command = home.bgctl(&["man", "bgd-order"]);
    command.env("MANPAGER", "cat");
    let mut shown = Terminal::sized(&command, (200, 80));
    shown.wait_text("\nNAME\n");
    assert!(shown.ended().success());
    let screen = shown.screen();
    assert!(screen.contains("bgd-order") && !screen.contains(".SH"), "{screen}");
    // Without a name, it is the manual of bgctl itself.
    let alone = home.run(&["man"]).success().stdout;
    assert_eq!(alone, home.run(&["man", "bgctl"]).success().stdout);
    // Without `man`, the source of the page is better than nothing.
    let mut shell = Terminal::shell(&home);
    shell.type_line("b=$(command -v bgctl); PATH=/nonexistent $b man bgd-order");
    shell.wait_text(".SH \"SEE ALSO\"");
    shell.wait_prompt();
    // The same if `man` can't read a page from its input.
    let man = home.home().join("man");
    executable::write(&man, "#!/bin/sh\ncat >read; echo 'man: invalid option -- l' >&2; exit 1\n");
    let mut shell = Terminal::shell(&home);
    shell.type_line("b=$(command -v bgctl); PATH=$HOME:/usr/bin:/bin $b man bgd-order; echo code $?");
    shell.wait_text(".SH \"SEE ALSO\"");
    shell.wait_text("code 0");
    assert!(home.home().join("read").exists(), "it was asked");
}
