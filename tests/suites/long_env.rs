//! A task gets the complete environment, however long it is: one that would make a line too long is sent in a sealed
//! memory file (`env_fd`), which the daemon checks closely.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::Command;

use bgd_shared::error::ErrorKind;
use bgd_shared::fds;
use bgd_shared::limits::ENV_BYTES;
use bgd_shared::request::{SubmitParams, TaskSubmit};
use bgd_shared::task::Status;
use bgd_shared::text::Env;
use bgd_tests::mcp::Mcp;
use bgd_tests::templates::shell_agent;
use bgd_tests::user::must_be_root;
use bgd_tests::{Outcome, Raw, Terminal, TestDaemon};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde_json::{Value, json};

/// Twelve values of this length exceed a line, but not the system's usual limits.
const VALUE_BYTES: usize = 100_000;

const VARIABLES: usize = 12;

/// Prints the number and the total length of these variables as the task sees them.
const COUNT: &str = "env | grep -c '^LONG_[0-9]*=xxx' ; env | grep '^LONG_' | wc -c";

/// The expected output: each line has its name, an equals sign and its newline.
fn counted() -> String {
    let names: usize = (0..VARIABLES).map(|number| format!("LONG_{number}=\n").len()).sum();
    format!("{VARIABLES}\n{}\n", names + VARIABLES * VALUE_BYTES)
}

fn with_long_env(mut command: Command) -> Command {
    command.envs((0..VARIABLES).map(|number| (format!("LONG_{number}"), "x".repeat(VALUE_BYTES))));
    command
}

#[test]
fn long_environment_reaches_submitted_foreground_and_agent_tasks() {
    let daemon = TestDaemon::builder().config(shell_agent("counter", COUNT, "")).start();
    let run = |args: &[&str]| Outcome::of(&mut with_long_env(daemon.bgctl(args))).success();
    let id = run(&["submit", "--shell", COUNT]).word();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(String::from_utf8_lossy(&daemon.output(id)), counted());
    assert_eq!(run(&["run", "--shell", COUNT]).stdout_text(), counted(), "in the foreground");
    let outcome = run(&["run", "--agent", "counter", "count"]);
    for number in counted().lines() {
        assert!(outcome.stdout_text().contains(number), "by an agent: {}", outcome.stdout_text());
    }
    run(&["agents"]);
}

#[test]
fn command_line_too_long_for_one_request_is_refused() {
    let daemon = TestDaemon::start();
    let long = vec!["x".repeat(VALUE_BYTES); VARIABLES];
    for verb in ["submit", "run"] {
        let args: Vec<&str> =
            [verb, "--", "true"].into_iter().chain(long.iter().map(String::as_str)).collect();
        let refused = daemon.run(&args).expect_code(70);
        assert!(
            refused.stderr.contains("the command line is too long for one request"),
            "{}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("1048576 bytes") && refused.stderr.contains("in a file"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn long_environment_reaches_terminal_and_console_jobs() {
    let daemon = TestDaemon::start();
    let sum = counted().lines().last().unwrap().to_owned();
    let mut run = Terminal::open(&with_long_env(daemon.bgctl(&["run", "--shell", COUNT])));
    run.wait_text(&sum);
    assert!(run.ended().success());
    let mut console = Terminal::open(&with_long_env(daemon.bgctl(&["console", "--session", "here"])));
    console.wait_line("~>");
    console.type_line(COUNT);
    console.wait_text(&sum);
    console.wait_line("~>");
    console.type_line("exit");
    assert!(console.ended().success());
}

#[test]
fn long_environment_reaches_commands_of_mcp_tools() {
    let daemon = TestDaemon::start();
    let mut mcp = Mcp::spawn(with_long_env(daemon.bgctl(&["mcp", "--structured"])));
    mcp.initialize(bgd_tests::mcp::REVISION, "test", &json!({}));
    let id = mcp.command(COUNT);
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(String::from_utf8_lossy(&daemon.output(id)), counted());
    assert!(mcp.close().success());
}

#[test]
fn environment_too_long_for_any_program_is_a_clear_error() {
    let daemon = TestDaemon::start();
    let env = |bytes: usize| -> Env { [("A".into(), "x".repeat(bytes - 3).into())].into_iter().collect() };
    let params = |bytes| SubmitParams { env: Some(env(bytes)), ..daemon.params() };
    let params = |bytes| SubmitParams { argv: Some(vec!["/bin/true".into()]), ..params(bytes) };
    // The system allows no more than 128 KiB in a single string.
    let id = daemon.submit_with(&params(ENV_BYTES)).id;
    let task = daemon.block(&[id]).remove(0);
    let error = task.error.unwrap();
    assert!(error.contains("the environment are too long") && error.contains("128 KiB"), "{error}");
    let error = daemon.client().call::<TaskSubmit>(&params(ENV_BYTES + 1)).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams), "{error}");
    assert!(error.to_string().contains(&ENV_BYTES.to_string()), "{error}");
}

/// Returns a memory file with this content.
fn memory_file(text: &[u8], seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("env", flags).unwrap());
    file.write_all(text).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn submit_raw(daemon: &TestDaemon, params: &Value, descriptors: &[BorrowedFd<'_>]) -> Value {
    let mut raw = Raw::connect(daemon.socket());
    let mut all = json!({"shell": "echo \"<$MARK>\"", "cwd": "/", "env_fd": true});
    all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
    let line = format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": "task.submit", "params": all}));
    assert_eq!(fds::send(&raw, line.as_bytes(), descriptors).unwrap(), line.len());
    let answer = raw.receive().expect("an answer");
    assert!(raw.is_served(), "the connection goes on");
    answer
}

const SEALED: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

#[test]
fn environment_file_is_checked_strictly() {
    let daemon = TestDaemon::start();
    let plain = daemon.home().join("plain");
    fs::write(&plain, "MARK=1\0").unwrap();
    let too_long = [vec![b'A'; ENV_BYTES - 1], b"=\0".to_vec()].concat();
    let sealed = |text: &[u8]| memory_file(text, SEALED);
    let cases = [
        (Some(File::open(plain).unwrap()), json!({}), "sealed"),
        (Some(memory_file(b"MARK=1\0", SealFlags::WRITE)), json!({}), "sealed"),
        (Some(sealed(b"MARK=1")), json!({}), "NUL"),
        (Some(sealed(b"MARK\0")), json!({}), "NAME=value"),
        (Some(sealed(b"=1\0")), json!({}), "is not a valid variable name"),
        (Some(sealed(&too_long)), json!({}), "at most 6291456"),
        (Some(sealed(b"MARK=1\0")), json!({"env": {}}), "can't be combined"),
        (Some(sealed(b"MARK=1\0")), json!({"stdin": "fd"}), "came without a descriptor"),
        (None, json!({}), "came without a descriptor"),
    ];
    for (file, params, word) in cases {
        let descriptors: Vec<_> = file.iter().map(File::as_fd).collect();
        let answer = submit_raw(&daemon, &params, &descriptors);
        assert_eq!(answer["error"]["data"]["kind"], "invalid_params", "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{word}: {answer}");
    }
    let file = sealed(b"MARK=here\0PATH=/bin\0");
    let answer = submit_raw(&daemon, &json!({}), &[file.as_fd()]);
    let id = answer["result"]["task"]["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.output(id), b"<here>\n");
}

#[test]
fn long_environment_is_not_kept_in_memory_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config("[limits]\nenvironments = \"0B\"").start();
    let secret = format!("secret-{}", bgd_shared::id::TaskId::random());
    let long = "x".repeat(VALUE_BYTES);
    let env: Env = [("TOKEN", &secret), ("LONG", &long)]
        .into_iter()
        .map(|(name, value)| (name.into(), value.as_str().into()))
        .collect();
    let params = SubmitParams { argv: Some(vec!["/bin/true".into()]), env: Some(env), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    assert_eq!(daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(daemon.process().remembers(&secret), 0);
}
