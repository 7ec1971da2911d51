//! The entries for `bgctl mcp` in agents' configurations, exactly as in bgd-mcp(7), used by the agents: they find the
//! server, use it, and its tasks end when the agents exit (R54). The model is on loopback.

use std::fs;
use std::process::Command;

use bgd_shared::event::EventKind;
use bgd_tests::agents::{self, Permission};
use bgd_tests::docs;
use bgd_tests::mcp::{Mcp, REVISION};
use bgd_tests::real::Real;
use bgd_tests::{Outcome, TestDaemon, bgctl_path, executable};
use serde_json::{Value, json};

/// Returns the guide's code blocks in this language.
fn blocks(language: &str) -> Vec<String> {
    docs::blocks("man/bgd-mcp.md", language)
}

/// The agent's instructions: start a command that does not end by itself, and list the tasks.
fn orders(prefix: &str) -> String {
    format!(
        "TOOL {prefix}background_command {{\"command\": \"exec sleep 1000\"}}\nTOOL {prefix}background_list {{}}"
    )
}

/// Runs the agent to its end, and asserts that it had the tools and that its command has ended with it.
#[track_caller]
fn it_has_the_tools_until_it_exits(real: &Real, prompt: &str, agent: impl FnOnce() -> Outcome) {
    let mut watch = real.daemon.watch();
    let said = agent().success();
    let turns = real.model.turns();
    let last = turns.iter().rfind(|request| request.last_words().contains(prompt));
    let last = last.unwrap_or_else(|| panic!("no turn: {}\n{}", said.stdout_text(), said.stderr));
    let [started, listed] = &last.tool_results()[..] else {
        panic!("{:?}\n{:#?}", last.tools, last.messages)
    };
    for result in [started, listed] {
        println!("{result}\n");
        assert!(result.contains("exec sleep 1000"), "{result}");
    }
    let task = watch.until(|event| event.kind == EventKind::Submitted).task;
    for result in [started, listed] {
        assert!(result.contains(&task.id.to_string()), "{result}");
    }
    assert!(task.session.is_some_and(|session| session.starts_with("mcp:")));
    watch.until_kind(task.id, EventKind::Cancelled);
    watch.until_kind(task.id, EventKind::Cleared);
}

#[test]
fn opencode_gets_the_tools_from_its_entry_in_the_guide() {
    let [opencode, _cursor] = &blocks("json")[..] else {
        panic!("other entries than these: {:#?}", blocks("json"))
    };
    let mut real = Real::installed();
    real.daemon.launch();
    fs::write(real.daemon.home().join("opencode.json"), opencode).unwrap();
    let prompt = orders("bgd_");
    fs::write(real.daemon.home().join("prompt"), &prompt).unwrap();
    it_has_the_tools_until_it_exits(&real, &prompt, || real.shell("opencode run <prompt"));
}

#[test]
fn codex_gets_the_tools_from_its_command_in_the_guide() {
    let [commands] = &blocks("sh")[..] else { panic!("other blocks than this: {:#?}", blocks("sh")) };
    let programs: Vec<_> = commands.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(programs, ["claude", "codex", "gemini"]);
    let add = commands.lines().find(|line| line.starts_with("codex ")).expect("it is among them");
    let mut real = Real::home();
    real.daemon.launch();
    let home = real.daemon.home();
    let prompt = orders("mcp__bgd__");
    fs::write(home.join("prompt"), &prompt).unwrap();
    let mut agent = Command::new("sh");
    let lines = format!("{add}\ncodex exec --skip-git-repo-check \"$(cat prompt)\"");
    agent.args(["-e", "-u", "-c", &lines]).env_clear().envs(real.daemon.environment());
    agent.envs(agents::codex_env(home, &real.model.url(), Permission::Allow)).current_dir(home);
    let folders = [agents::codex(), bgctl_path()].map(|program| program.parent().unwrap().to_owned());
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    agent.env(
        "PATH",
        std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&inherited))).unwrap(),
    );
    it_has_the_tools_until_it_exits(&real, &prompt, || Outcome::of(&mut agent));
}

/// Starts the server named by an entry, and asks it for its tools.
#[track_caller]
fn it_serves(daemon: &TestDaemon, words: &[&str]) {
    let (program, args) = words.split_first().expect("a command");
    let mut command = Command::new(bgctl_path().with_file_name(program));
    command.args(args).env_clear().envs(daemon.environment());
    let mut mcp = Mcp::spawn(command);
    mcp.initialize(REVISION, "test", &json!({}));
    let tools = mcp.result("tools/list", &json!({}));
    assert!(tools.to_string().contains("\"background_command\""), "{tools}");
    assert!(mcp.close().success());
}

#[test]
fn guide_commands_start_a_working_server() {
    let daemon = TestDaemon::start();
    let path = format!("{}:/usr/bin:/bin", daemon.home().display());
    let commands = &blocks("sh")[0];
    for (agent, before) in [
        ("claude", &["mcp", "add", "--scope", "user", "bgd", "--"][..]),
        ("codex", &["mcp", "add", "bgd", "--"]),
        ("gemini", &["mcp", "add", "--scope", "user", "bgd"]),
    ] {
        // Stand-ins: of these agents only Codex is installed, and it runs in another test.
        executable::write(&daemon.home().join(agent), "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
        let line = commands.lines().find(|line| line.starts_with(agent)).expect("it is among them");
        let mut shell = Command::new("sh");
        let said = Outcome::of(shell.args(["-euc", line]).env("PATH", &path)).success().stdout_text();
        let words: Vec<&str> = said.lines().collect();
        let server = words.strip_prefix(before).unwrap_or_else(|| panic!("{words:?}"));
        it_serves(&daemon, server);
    }
}

#[test]
fn guide_file_for_most_agents_starts_a_working_server() {
    let daemon = TestDaemon::start();
    let file: Value = serde_json::from_str(&blocks("json")[1]).unwrap();
    let entry = &file["mcpServers"]["bgd"];
    let args = entry["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let words: Vec<&str> = entry["command"].as_str().into_iter().chain(args).collect();
    it_serves(&daemon, &words);
}
