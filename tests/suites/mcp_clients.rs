//! `bgctl mcp` with the public clients of its protocol: the Python library, in every revision that it negotiates, and
//! the inspector's command line.

use std::process::Command;

use bgd_shared::request::{ListParams, TaskList};
use bgd_tests::mcp::{INLINE_REVISION, REVISION};
use bgd_tests::{Outcome, TestDaemon, agents, bgctl_path, bgd_path};
use serde_json::Value;

/// Uses all tools through the Python library.
const SCRIPT: &str = include_str!("mcp_clients/client.py");

/// Returns a client's command that starts a `bgctl mcp` in this home.
fn with_environment(daemon: &TestDaemon, mut command: Command) -> Command {
    command.env_clear().envs(daemon.environment()).env("BGD_DAEMON", bgd_path());
    command.current_dir(daemon.home());
    command
}

#[track_caller]
fn by_python(mode: &str) -> String {
    let daemon = TestDaemon::start();
    let mut command = with_environment(&daemon, Command::new(agents::mcp_python()));
    command.args(["-c", SCRIPT]).arg(bgctl_path()).arg(mode);
    let said = Outcome::of(&mut command).success().stdout_text();
    let tasks = daemon.client().call::<TaskList>(&ListParams::default());
    assert!(tasks.unwrap().tasks.is_empty(), "the session has ended");
    said
}

#[test]
fn python_library_uses_every_tool_after_a_handshake() {
    assert_eq!(by_python("legacy").lines().next(), Some(REVISION));
}

#[test]
fn python_library_uses_every_tool_without_a_handshake() {
    assert_eq!(by_python("auto").lines().next(), Some(INLINE_REVISION));
    assert_eq!(by_python(INLINE_REVISION).lines().next(), Some(INLINE_REVISION));
}

/// Runs the inspector, which starts a server for each call.
#[track_caller]
fn inspect(daemon: &TestDaemon, args: &[&str]) -> Value {
    let mut command = with_environment(daemon, Command::new("node"));
    command.arg(agents::inspector()).arg("--cli").arg(bgctl_path()).args([
        "mcp",
        "--structured",
        "--keep",
        "--session",
        "s",
    ]);
    // The inspector passes on only a few variables of its own environment.
    for (name, value) in daemon.environment() {
        let (name, value) = (name.into_string().unwrap(), value.into_string().unwrap());
        if name.starts_with("BGD_SOCKET") || name.starts_with("XDG_") {
            command.arg("-e").arg(format!("{name}={value}"));
        }
    }
    let said = Outcome::of(command.args(args)).success().stdout_text();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn inspector_lists_and_calls_the_tools() {
    let daemon = TestDaemon::start();
    let listed = inspect(&daemon, &["--method", "tools/list", "--strict"]);
    assert_eq!(listed["tools"].as_array().unwrap().len(), 7, "{listed}");
    let call = |tool: &str, args: &[&str]| {
        let args = args.iter().flat_map(|arg| ["--tool-arg", arg]);
        let all: Vec<&str> =
            ["--method", "tools/call", "--tool-name", tool].into_iter().chain(args).collect();
        inspect(&daemon, &all)
    };
    let started = call("background_command", &["command=echo hello"]);
    let id = started["structuredContent"]["task"]["task_id"].as_str().unwrap().to_owned();
    daemon.block(&[id.parse().unwrap()]);
    // This call has another server process, which has not reported the end yet.
    let listed = call("background_list", &[]);
    assert_eq!(listed["structuredContent"]["told"][0]["task_id"], id.as_str(), "{listed}");
    let looked = call("background_output", &[&format!("task_id={id}")]);
    assert_eq!(looked["structuredContent"]["output"], "hello", "{looked}");
    let waited = call("background_block", &[&format!("task_ids=[\"{id}\"]")]);
    assert_eq!(waited["structuredContent"]["timed_out"], false, "{waited}");
    let cleared = call("background_clear", &[]);
    assert_eq!(cleared["structuredContent"]["cleared"], 1, "{cleared}");
}
