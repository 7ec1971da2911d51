//! The commands of bgd-authors(7) for authors of programs, some of which are in the README, too.

use std::process::Command;

use bgd_tests::{Outcome, TestDaemon, bgctl_path, docs, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Blocks of the README that are in no guide.
pub const TYPED: [&str; 0] = [];

/// Runs a command in the repository, as the user of this daemon.
fn run(daemon: &TestDaemon, program: &str, args: &[&str]) -> String {
    let folder = bgctl_path().parent().unwrap().display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(daemon.environment()).env("PATH", path).env_remove("BGD_SOCKET");
    Outcome::of(command.current_dir(docs::root())).success().stdout_text()
}

#[test]
fn r171_guide_program_queries_the_daemon() {
    let daemon = TestDaemon::start();
    daemon.run(&["block", &daemon.submit(&["true"]).to_string()]).success();
    let python = docs::blocks("man/bgd-authors.md", "python");
    let program = python.iter().find(|lines| lines.starts_with("import ")).expect("it is there");
    let said = run(&daemon, "python3", &["-c", program]);
    assert!(said.contains("'completed': 1"), "{said}");
}

#[test]
fn r171_guide_handoff_shows_two_lines_and_keeps_the_rest() {
    let daemon = TestDaemon::start();
    let lines = docs::blocks("man/bgd-authors.md", "sh");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    // The third line waits until the id has been shown: on a busy machine the loop could end before.
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let line = line.replace("sleep 1", &format!("[ $i != 2 ] || read x <{}", gate.display()));
    let said = run(&daemon, "sh", &["-c", &line]);
    let id = said.strip_prefix("1\n2\nCommand was manually backgrounded by user with ID ").expect(&said);
    wait::for_reader(&gate, "\n");
    daemon.run(&["block", "--timeout", "none", id.trim_end()]).success();
    assert_eq!(daemon.run(&["output", id.trim_end()]).success().stdout_text(), "3\n4\n");
}

#[test]
fn guide_and_examples_use_the_same_internal_names() {
    let examples =
        ["handoff.js", "handoff_asyncio.py"].map(|name| docs::read(&format!("shared/examples/{name}")));
    let guide = docs::read("man/bgd-authors.md");
    let names = ["child.stdout._handle", "readStop()", "stdout.pause()", "handle.fd"];
    let asyncio = ["_transport.get_pipe_transport(1)", "pause_reading()", "stdout._buffer"];
    for (example, names) in examples.iter().zip([&names[..], &asyncio]) {
        for name in names {
            assert!(guide.contains(name) && example.contains(name), "{name}");
        }
    }
}
