//! The recipes for Homebrew and nix. The tests use neither's registry: Ruby runs the formula's steps with stand-ins for
//! Homebrew's methods, and nix itself evaluates and builds the derivation with stand-ins for nixpkgs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bgd_tests::docs::root as repository;
use bgd_tests::packages::{MAIN_JOB, programs};
use bgd_tests::{Outcome, TestDaemon};
use tempfile::TempDir;

/// Returns every file below a folder, by its relative path.
fn files(folder: &Path) -> Vec<String> {
    let mut find = Command::new("find");
    find.arg(folder).args(["-type", "f", "-printf", "%P\\n"]);
    let mut files: Vec<_> =
        Outcome::of(&mut find).success().stdout_text().lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// Returns every page, compressed or not, as packages name it.
fn pages(end: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(repository().join("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(|last: char| last.is_ascii_digit()))
        .map(|name| format!("share/man/man{}/{name}{end}", &name[name.len() - 1..]))
        .collect();
    names.sort();
    names
}

#[track_caller]
fn expect_files(folder: &Path, wanted: &[&str], end_of_pages: &str) {
    let mut all: Vec<String> = wanted.iter().copied().map(str::to_owned).collect();
    all.extend(pages(end_of_pages));
    all.sort();
    assert_eq!(files(folder), all);
}

#[test]
fn r170_formula_installs_everything_and_passes_its_own_test() {
    let home = TestDaemon::home_only();
    let prefix = TempDir::new().unwrap();
    let mut ruby = Command::new("ruby");
    ruby.arg(repository().join("tests/suites/packages/formula.rb"));
    ruby.arg(repository().join("packages/homebrew/bgd.rb"));
    ruby.args([prefix.path(), &programs(), home.home()]).current_dir(repository());
    ruby.env_clear().env("HOME", home.home()).env("PATH", "/usr/bin:/bin");
    let said = Outcome::of(&mut ruby).success().stdout_text();
    assert!(said.ends_with("stopped\nused\n"), "{said}");
    let wanted = [
        "bin/bgctl",
        "bin/bgd",
        "etc/bash_completion.d/bgctl",
        "share/doc/bgd/bgd-protocol.schema.json",
        "share/fish/vendor_completions.d/bgctl.fish",
        "share/nushell/vendor/autoload/bgctl.nu",
        "share/zsh/site-functions/_bgctl",
    ];
    expect_files(prefix.path(), &wanted, "");
}

/// Runs nix with a separate store.
fn nix_build(store: &Path) -> PathBuf {
    let stub = repository().join("tests/suites/packages/nixpkgs.nix");
    let pkgs = format!("import {} {{ programs = \"{}\"; }}", stub.display(), programs().display());
    let mut nix = Command::new("nix-build");
    nix.arg(repository().join("packages/nix")).args(["--no-out-link", "--arg", "pkgs", &pkgs]);
    for option in [["sandbox", "false"], ["substitute", "false"], ["build-users-group", ""]] {
        nix.arg("--option").args(option);
    }
    nix.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", store);
    nix.env("NIX_STORE_DIR", store.join("store")).env("NIX_LOCALSTATE_DIR", store.join("var"));
    nix.env("NIX_STATE_DIR", store.join("var/nix")).env("NIX_LOG_DIR", store.join("log"));
    nix.env("NIX_CONF_DIR", store.join("etc"));
    PathBuf::from(Outcome::of(&mut nix).success().stdout_text().trim())
}

#[test]
fn r170_nix_builds_a_working_package() {
    let home = TestDaemon::home_only();
    let store = TempDir::new().unwrap();
    let package = nix_build(store.path());
    let version = env!("CARGO_PKG_VERSION");
    assert!(package.to_str().unwrap().ends_with(&format!("-bgd-{version}")), "{package:?}");
    let wanted = [
        "bin/bgctl",
        "bin/bgd",
        "share/bash-completion/completions/bgctl",
        "share/doc/bgd/CHANGELOG.md",
        "share/doc/bgd/LICENSE",
        "share/doc/bgd/bgd-protocol.schema.json",
        "share/fish/vendor_completions.d/bgctl.fish",
        "share/nushell/vendor/autoload/bgctl.nu",
        "share/systemd/user/bgd.service",
        "share/systemd/user/bgd.socket",
        "share/zsh/site-functions/_bgctl",
    ];
    expect_files(&package, &wanted, ".gz");
    let unit = fs::read_to_string(package.join("share/systemd/user/bgd.service")).unwrap();
    let exec = format!("ExecStart={}/bin/bgd", package.display());
    assert!(unit.lines().any(|line| line == exec), "{unit}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-euc", &format!("{MAIN_JOB}; bgctl daemon stop")]).env_clear();
    shell.env("HOME", home.home()).env("XDG_RUNTIME_DIR", home.home());
    shell.env("PATH", format!("{}:/usr/bin:/bin", package.join("bin").display()));
    assert_eq!(Outcome::of(&mut shell).success().stdout_text(), "from a task\nstopped\n");
    // Nix makes its store read-only; a user who is not root could not remove it.
    Outcome::of(Command::new("chmod").args(["-R", "u+w"]).arg(store.path())).success();
}
