//! The packages of the programs under test, without their symbols: for the suites to install, and for the bench to
//! time.
//!
//! `.ci/dist` and `packages/deb` make the released packages in the same way from other programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::binaries::{bgctl_path, bgd_path, target_folder};
use crate::docs::root as repository;
use crate::outcome::Outcome;

/// The main job, in the words of a first user. It prints the output of a task.
pub const MAIN_JOB: &str =
    "id=$(bgctl submit -- echo from a task); bgctl block $id >/dev/null; bgctl output $id";

/// Returns the folder in which packages are made.
pub fn folder() -> PathBuf {
    target_folder().join("tests-packages")
}

/// Returns the folder of the programs under test as packages contain them: without symbols.
pub fn programs() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        // The folder of its profile, where cargo-deb searches for the programs.
        let programs = folder().join("deb");
        fs::create_dir_all(&programs).expect("a folder for packages");
        for program in [bgd_path(), bgctl_path()] {
            let mut strip = Command::new("strip");
            strip
                .arg("-o")
                .arg(programs.join(program.file_name().expect("a program has a name")))
                .arg(&program);
            Outcome::of(&mut strip).success();
        }
        programs
    });
    made.clone()
}

/// Returns the Debian package. Needs cargo-deb, which `tests/run` installs.
pub fn deb() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        programs();
        let path = folder().join("bgd.deb");
        let mut command = Command::new(repository().join("packages/deb"));
        command.args(["--no-build", "--fast", "--offline", "--output"]).arg(&path);
        command.current_dir(repository()).env("CARGO_TARGET_DIR", folder());
        command.env("CARGO_DEB", target_folder().join("tools/bin/cargo-deb"));
        Outcome::of(&mut command).success();
        path
    });
    made.clone()
}

/// Returns the tarball for any Linux.
pub fn tarball() -> PathBuf {
    let mut command = Command::new(repository().join("packages/tarball"));
    let made = Outcome::of(command.arg(programs()).arg(folder().join("tar"))).success();
    PathBuf::from(made.stdout_text().trim())
}

/// Returns the wheel for Python, for this system only, as the programs need not be static.
pub fn wheel() -> PathBuf {
    let mut command = Command::new("python3");
    command
        .arg(repository().join("python/build_wheel.py"))
        .args(["--linux", "--level", "1", "--programs"])
        .arg(programs());
    let made = Outcome::of(command.arg("--out").arg(folder().join("wheel"))).success();
    PathBuf::from(made.stdout_text().trim())
}
