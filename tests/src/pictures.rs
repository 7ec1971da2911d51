//! The pictures of the README: the output of real programs in a real terminal. Ids and times differ from run to run and
//! are replaced, so that a test can compare the files with freshly made ones.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bgd_shared::id::TaskId;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::docs::root;
use crate::svg::Picture;
use crate::{FakeDaemon, Terminal, TestDaemon, bgctl_path, executable, wait};

/// The command that remakes the pictures.
pub const REFRESH: &str = "cargo run -p bgd-tests --bin pictures";

/// A file with a picture.
#[derive(Debug)]
pub struct File {
    pub path: &'static str,
    pub text: String,
}

/// The ids that replace those of a picture's tasks, in the order of their submission.
const IDS: [&str; 8] = [
    "3f2a9c1e-5d04-4b7a-9e61-c2f80d3b7a15",
    "b81d64f0-2c9e-4f13-8a57-0e9d4c62f7b3",
    "7c05e2ad-91b6-4d28-b3f4-5a178ed0c946",
    "d94f3b68-0a7c-4e51-96d2-e83b5f01a72c",
    "15ae80c7-6f32-49bd-8d0e-7b94c6a2e3f1",
    "e6720b9d-c415-4a86-a1f9-3d5e08b7c264",
    "42d9f61a-7e83-4c0b-95a8-f16c2d7e0b39",
    "a03c58e4-b2f7-4691-8c3d-96e1f4ab7d50",
];

/// The ages that replace those of the tasks, the latest first.
const TIMES: [[&str; 2]; 7] = [
    ["12s", "8s"],
    ["48s", ""],
    ["1m 4s", "1s"],
    ["2m 10s", "3s"],
    ["2m 31s", "2m 31s"],
    ["4m 2s", ""],
    ["7m 55s", ""],
];

/// The output of a build.
const BUILD: &str = "green='\\033[1;32m' off='\\033[0m'\n\
    for name in proto wire core exec agents server; do printf \"$green   Compiling$off $name v0.4.0\\n\"; done\n\
    printf \"$green    Building$off [==========>           ] 42%%: cli\\n\"\n";

/// Makes all pictures.
///
/// # Panics
/// The output of a program lacks something that the picture needs.
pub fn files() -> Vec<File> {
    vec![File { path: "man/top.svg", text: top() }, File { path: "man/ctrl-b.svg", text: ctrl_b() }]
}

/// Writes the files that are out of date, and returns their paths.
///
/// # Errors
/// A file can't be written.
pub fn write() -> std::io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for file in files() {
        let path = root().join(file.path);
        if fs::read_to_string(&path).ok().as_deref() != Some(&file.text) {
            fs::write(&path, file.text)?;
            written.push(path);
        }
    }
    Ok(written)
}

/// Replaces the ids of a picture's tasks.
fn rename(picture: &mut Picture, ids: &[TaskId]) {
    for (id, name) in ids.iter().zip(IDS) {
        picture.replace(&id.to_string(), name);
        picture.replace(&id.short(), &name[..8]);
    }
}

/// Submits a task with these arguments of `bgctl submit`.
fn submit(daemon: &TestDaemon, args: &[&str]) -> TaskId {
    daemon.run(&[&["submit"], args].concat()).success().word()
}

/// Draws `bgctl top` with a task in each state, one of which is selected and shows its output.
fn top() -> String {
    let daemon = FakeDaemon::start(&[], "permissions = \"ask\"");
    let waits = "exec sleep 1000";
    let backup = submit(&daemon, &["-d", "nightly backup", "--", "true"]);
    let tests = submit(&daemon, &["-d", "unit tests", "--shell", "echo '1 of 212 failed'; exit 101"]);
    daemon.block(&[backup, tests]);
    let server = submit(&daemon, &["-d", "web server", "--shell", waits]);
    let train = submit(&daemon, &["-d", "train --seed 7", "--shell", &format!("echo 3/8; {waits}")]);
    let build = submit(&daemon, &["-d", "cargo build", "--shell", &format!("{BUILD}{waits}")]);
    let deploy = submit(&daemon, &["-d", "deploy", "--hold", "--", "true"]);
    for id in [server, train, build] {
        daemon.wait_running(id);
    }
    let params = bgd_shared::request::SubmitParams {
        description: Some("opencode: clean up".to_owned()),
        ..daemon.prompt_params("ask May I run: rm -rf build?")
    };
    let agent = daemon.submit_with(&params).id;
    // `top` begins at what waits for the user.
    wait::poll_until("the agent asks", || daemon.task(agent).progress.needs_input.map(drop));
    let mut command: Command = daemon.bgctl(&["top"]);
    let mut top = Terminal::sized(command.env("COLORTERM", ""), (16, 116));
    top.wait_text("1 question and 1 failure need you");
    for line in [" 42%  cargo build", " 37%  train --seed 7"] {
        top.wait_text(line);
    }
    // From the question down to the build.
    top.type_keys("\x1b[B".repeat(4));
    // Its list shows only the last line.
    top.wait_text("Compiling server v0.4.0");
    top.wait_text("42%: cli");
    let mut picture = Picture::of(top.emulated());
    top.type_keys("q");
    top.ended();
    rename(&mut picture, &[backup, tests, server, train, build, deploy, agent]);
    let header = picture.line(1);
    let at = |name| header.find(name).unwrap_or_else(|| panic!("no {name} in {header:?}"));
    for (id, [age, quiet]) in IDS[..7].iter().rev().zip(TIMES) {
        let row = (2..picture.height()).find(|row| picture.line(*row)[1..].starts_with(&id[..8]));
        let row = row.unwrap_or_else(|| panic!("{id} is not shown"));
        picture.write(row, at("AGE"), &format!("{age:7}"));
        picture.write(row, at("QUIET"), &format!("{quiet:7}"));
    }
    picture.svg("bgctl top: an agent that asks, a failed job, running ones with their progress, and the output of one")
}

/// Draws a build that Ctrl-B moves to the background, and the notice of its end.
fn ctrl_b() -> String {
    let daemon = TestDaemon::start();
    let gate = daemon.home().join("gate");
    mkfifo(&gate, Mode::S_IRWXU).expect("a fifo in the home");
    executable::write(&daemon.home().join("cargo"), &format!("#!/bin/sh\n{BUILD}read x <$HOME/gate\n"));
    let mut shell = Command::new("bash");
    let programs = bgctl_path().parent().expect("a program is in a folder").display().to_string();
    let path = format!("{}:{programs}:/usr/bin:/bin", daemon.home().display());
    shell.args(["--norc", "--noprofile", "-i"]).envs(daemon.environment()).env_remove("BGD_SESSION");
    shell.env("PATH", path).env("PS1", "$ ").current_dir(daemon.home());
    let mut shell = Terminal::sized(&shell, (20, 90));
    shell.wait_prompt();
    shell.type_line("bgctl run -- cargo build");
    shell.wait_text("Building [");
    shell.type_keys("\x02");
    shell.wait_text("backgrounded by user");
    shell.wait_prompt();
    shell.type_line("bgctl list --columns id,status,description");
    shell.wait_text(" running ");
    shell.wait_prompt();
    let id: TaskId = daemon.run(&["list", "-q"]).success().word();
    wait::for_reader(&gate, "\n");
    shell.wait_text("\n[BACKGROUND TASK COMPLETED] ");
    shell.wait_line("$");
    shell.type_keys("git comm");
    shell.wait_line("$ git comm");
    let mut picture = Picture::of(shell.emulated());
    rename(&mut picture, &[id]);
    let notice = (0..picture.height()).map(|row| picture.line(row)).find(|line| line.starts_with("[BACK"));
    let time = notice.as_deref().and_then(|line| line.split_once(" in ")?.1.split_once(':'));
    let (time, _) = time.unwrap_or_else(|| panic!("no time in {notice:?}"));
    picture.replace(&format!(" in {time}:"), " in 1m 4s:");
    picture.trim();
    shell.type_keys("\x15");
    picture.svg(
        "Ctrl-B moves a running command to the background, and a line above the prompt says how it ended",
    )
}
