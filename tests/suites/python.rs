//! The Python package in `python/`: its clients against real daemons, its types, the programs of its README, and its
//! wheel from the build to the removal. The tests themselves are in `python/tests`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use bgd_tests::docs::root;
use bgd_tests::{Outcome, TestDaemon, agents, bgctl_path, bgd_path};

/// A Python that finds the package and `bgctl`, in a home of its own.
fn python(home: &TestDaemon) -> Command {
    let mut command = Command::new(agents::type_checker());
    let folder = bgctl_path().parent().expect("a program is in a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: OsString =
        std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path))).expect("folders");
    command.env_clear().envs(home.environment()).env("PATH", path).env("BGD_DAEMON", bgd_path());
    command.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(root().join("python/tests"));
    command
}

/// Runs the tests of a module, which start daemons below the home.
#[track_caller]
fn passes(module: &str) {
    let home = TestDaemon::home_only();
    let mut command = python(&home);
    let said = Outcome::of(command.args(["-W", "error", "-m", "unittest", "--buffer", module])).success();
    assert!(said.stderr.contains("\nOK\n"), "a test was left out: {}", said.stderr);
}

#[test]
fn r170_python_client_submits_waits_and_reads() {
    passes("test_client");
}

#[test]
fn r170_python_asyncio_client_submits_waits_and_reads() {
    passes("test_async");
}

#[test]
fn r170_python_clients_report_every_kind_of_error() {
    passes("test_errors");
}

#[test]
fn r170_python_clients_handle_missing_ended_and_silent_daemons() {
    passes("test_ends");
}

#[test]
fn r170_python_clients_continue_with_the_next_durable_daemon() {
    passes("test_durable");
}

#[test]
fn r170_python_clients_hand_over_children_without_losing_a_byte() {
    passes("test_handoff");
}

#[test]
fn r170_python_clients_read_growing_and_truncated_outputs() {
    passes("test_output");
}

#[test]
fn r170_python_clients_fit_batches_and_input_into_requests_of_any_limit() {
    passes("test_frames");
}

#[test]
fn r170_programs_in_the_python_readme_work() {
    passes("test_readme");
}

#[test]
fn r170_python_package_passes_strict_type_checks() {
    let home = TestDaemon::home_only();
    let cache = home.home().join("cache");
    let check = |args: &[&str]| {
        let mut command = python(&home);
        // The first version that the checker knows.
        command.args(["-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir"]).arg(&cache);
        Outcome::of(command.env("MYPYPATH", root().join("python")).args(args)).success();
    };
    check(&["--package", "bgd"]);
    check(&[".", "../build_wheel.py"]);
}

#[test]
fn r170_wheel_is_built_installed_used_and_removed() {
    let home = TestDaemon::home_only();
    let programs = home.home().join("programs");
    fs::create_dir(&programs).unwrap();
    for program in [bgd_path(), bgctl_path()] {
        stripped(&program, &programs.join(program.file_name().expect("a program has a name")));
    }
    let mut command = python(&home);
    command.env_remove("BGD_DAEMON").env("BGD_TEST_PROGRAMS", &programs);
    let said =
        Outcome::of(command.args(["-W", "error", "-m", "unittest", "--buffer", "test_wheel"])).success();
    assert!(said.stderr.contains("\nOK\n"), "a test was left out: {}", said.stderr);
}

/// Copies a program without its debug information, which takes longer to pack than everything else.
fn stripped(from: &Path, to: &Path) {
    Outcome::of(Command::new("strip").arg("-o").arg(to).arg(from)).success();
}
