//! `cargo install`, and the contents that a crate needs to be published.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bgd_tests::docs::root as repository;
use bgd_tests::packages::{MAIN_JOB, folder};
use bgd_tests::root::Root;
use bgd_tests::{Outcome, target_folder};

use super::script_of;

/// A copy of cargo's compiled files for another build, which compiles only the packages of this workspace, with the
/// features that they have without the tests, and leaves the programs under test alone. Dropping it removes the copy.
struct Compiled(PathBuf);

impl Compiled {
    fn copy() -> Self {
        let folder = target_folder().join("tests-install");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("debug")).unwrap();
        // Cargo changes its own records, but never the compiled files.
        for (name, how) in [("deps", "-al"), ("build", "-al"), (".fingerprint", "-a")] {
            let from = target_folder().join("debug").join(name);
            Outcome::of(Command::new("cp").arg(how).arg(from).arg(folder.join("debug"))).success();
        }
        Self(folder)
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cargo(words: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(words).current_dir(repository());
    cargo
}

/// Installs a package below a root like `cargo install`, in the profile of the tests.
fn install(package: &str, root: &Path, compiled: &Compiled) {
    let mut install = cargo(&["install", "--debug", "--locked", "--offline", "--path", package, "--root"]);
    install.arg(root).env("CARGO_TARGET_DIR", &compiled.0).env("CARGO_INCREMENTAL", "0");
    Outcome::of(&mut install).success();
}

#[test]
fn r170_cargo_and_bgctl_installs_work_and_leave_no_trace_as_root() {
    let root = Root::unpack();
    // Folders that every user has.
    for folder in ["root/.config", "root/.local/share", "root/.cargo/bin"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    let before = root.files();
    let cargo_root = root.path().join("root/.cargo");
    {
        let compiled = Compiled::copy();
        install("bgd", &cargo_root, &compiled);
        install("bgctl", &cargo_root, &compiled);
    }
    let steps = [
        "bgctl completions install; bgctl man install; bgctl daemon install",
        MAIN_JOB,
        "bgctl daemon stop",
        "man -w bgctl; systemd-analyze --user --man=no verify ~/.config/systemd/user/bgd.socket",
        "bgctl completions uninstall; bgctl man uninstall; bgctl daemon uninstall",
    ];
    let said = root.run(&[], &script_of(&steps)).success().stdout_text();
    for wanted in ["from a task", "/root/.cargo/share/man/man1/bgctl.1"] {
        assert!(said.lines().any(|line| line == wanted), "{wanted} is not in\n{said}");
    }
    for package in ["bgctl", "bgd"] {
        Outcome::of(cargo(&["uninstall", package, "--root"]).arg(&cargo_root)).success();
    }
    // Cargo's own records, which say that nothing is installed.
    for notes in [".crates.toml", ".crates2.json", ".package-cache"] {
        let _ = fs::remove_file(cargo_root.join(notes));
    }
    root.expect_files(&before);
}

#[test]
fn r170_each_crate_is_packaged_with_the_files_it_includes() {
    let made = folder().join("crates");
    let mut package = cargo(&["package", "--no-verify", "--allow-dirty", "--offline", "--locked"]);
    package
        .args(["-p", "bgd-shared", "-p", "bgd-core", "-p", "bgd", "-p", "bgctl"])
        .env("CARGO_TARGET_DIR", &made);
    Outcome::of(&mut package).success();
    for name in ["bgd-shared", "bgd-core", "bgd", "bgctl"] {
        let name = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let file = made.join(format!("package/{name}.crate"));
        let list = Outcome::of(Command::new("tar").arg("-tvzf").arg(file)).success().stdout_text();
        let mut wanted = vec!["LICENSE".to_owned(), "README.md".to_owned()];
        if name.starts_with("bgctl") {
            let links = fs::read_dir(repository().join("bgctl/files")).unwrap();
            wanted.extend(links.map(|link| format!("files/{}", link.unwrap().file_name().to_str().unwrap())));
        }
        for file in wanted {
            let end = format!(" {name}/{file}");
            // A regular file, as a link would lead out of the package.
            let is_there = list.lines().any(|line| line.starts_with('-') && line.ends_with(&end));
            assert!(is_there, "{end} is not in\n{list}");
        }
    }
    fs::remove_dir_all(made).unwrap();
}

#[test]
fn r170_bgctl_includes_every_manual_page() {
    let mut pages: Vec<String> = fs::read_dir(repository().join("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(|last: char| last.is_ascii_digit()))
        .collect();
    pages.sort();
    let mut known: Vec<_> =
        bgctl::manual::PAGES.iter().map(|page| format!("{}.{}", page.name, page.section)).collect();
    known.sort();
    assert_eq!(known, pages);
}
