//! The entries for `bgctl mcp` in agents' configurations, exactly as in bgd-mcp(7), used by the agents: they
//! find the server, use it, and its tasks end when they exit (R54). The model is on loopback.

use std::fs;
use std::process::Command;

use bgd_shared::event::EventKind;
use bgd_tests::agents::{self, Permission};
use bgd_tests::docs;
use bgd_tests::real::Real;
use bgd_tests::{Outcome, bgctl_path};

/// The code blocks in this language in the guide.
fn blocks(language: &str) -> Vec<String> {
    docs::blocks("man/bgd-mcp.md", language)
}

/// The agent's orders: to start a command that does not end by itself, and to list the tasks.
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
fn opencode_has_the_tools_by_its_entry_in_the_guide() {
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
fn codex_has_the_tools_by_its_command_in_the_guide() {
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
