//! Paths of the programs under test. They are built once per test process, in the profile of the test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub fn bgd_path() -> PathBuf {
    folder().join("bgd")
}

pub fn bgctl_path() -> PathBuf {
    folder().join("bgctl")
}

/// Returns the path of a small program of this package, such as `stamp`.
pub fn helper_path(name: &str) -> PathBuf {
    let path = profile_folder().join(name);
    if !path.exists() {
        // Cargo builds the program before it runs a suite, but not for the unit tests of this library.
        build(&["-p", env!("CARGO_PKG_NAME"), "--bin", name]);
    }
    path
}

/// Returns the path of an example in the package for authors of clients.
pub fn example_path(name: &str) -> PathBuf {
    let path = profile_folder().join("examples").join(name);
    if !path.exists() {
        build(&["-p", "bgd-shared", "--example", name]);
    }
    path
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| match env::var_os("BGD_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build(&["-p", "bgd", "-p", "bgctl"]),
    })
}

/// Returns `…/target/debug`, for a test at `…/target/debug/deps/suite-0123` or a program at `…/target/debug/bench`.
fn profile_folder() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a program is in a folder");
    match folder.file_name() {
        Some(name) if name == "deps" => folder.parent().expect("deps is in a folder").to_owned(),
        _ => folder.to_owned(),
    }
}

/// Returns the `…/target` above the profile's folder.
pub fn target_folder() -> PathBuf {
    profile_folder().parent().expect("a profile's folder is in the target folder").to_owned()
}

/// Builds in the profile of this program and returns the folder with the results.
fn build(what: &[&str]) -> PathBuf {
    let folder = profile_folder();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet"]).args(what).arg("--manifest-path");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
    command.arg("--target-dir").arg(target_folder());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let status =
        command.status().expect("cargo can be run; or set BGD_BIN_DIR to the folder of the programs");
    assert!(status.success(), "{what:?} can't be built");
    folder
}
