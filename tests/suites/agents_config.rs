//! The configuration of agents: mistakes are reported with key and reason and change nothing, a reload reports what it
//! has applied, and programs are looked up where the submitter would find them.

use std::fs;
use std::path::{Path, PathBuf};

use bgd_shared::agent::{AgentInfo, AgentListParams, AgentProtocol, Permissions};
use bgd_shared::client::ClientError;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::request::{AgentList, DaemonReload, NoParams, ReloadResult, SubmitParams, TaskSubmit};
use bgd_shared::task::Status;
use bgd_shared::text::{Env, OsText};
use bgd_tests::templates::{Gate, REMEMBER, remembering_agent, shell_agent};
use bgd_tests::{FakeDaemon, Process, TestDaemon, executable};

/// Invalid lines for `[agents.x]`, and what the error must mention.
const WRONG: &[(&str, &[&str])] = &[
    ("protocol = \"smoke\"", &["smoke", "acp", "opencode", "template"]),
    ("protocol = 3", &["`agents.x.protocol` must be a string in quotes"]),
    ("protocol = \"template\"", &["`agents.x.command`", "is missing"]),
    ("command = []", &["`agents.x.command`", "is empty"]),
    ("command = [\"\"]", &["`agents.x.command`", "is empty"]),
    ("command = \"sh -c x\"", &["`agents.x.command` must be a list of strings, such as"]),
    ("command = [\"./a\"]", &["`agents.x.command`", "./a", "absolute"]),
    ("command = [\"~/a\"]", &["`agents.x.command`", "~/a", "absolute"]),
    ("command = [\"a\\u0000b\"]", &["`agents.x.command`", "NUL"]),
    ("mode = \"\"", &["`agents.x.mode`", "1 to 256 bytes"]),
    ("config = { a = 1 }", &["`agents.x.config", "must be a string in quotes, or true or false"]),
    (
        "protocol = \"template\"\ncommand = [\"a\"]\nmodel = \"b\"",
        &["`agents.x.model`", "protocol = \"acp\""],
    ),
    ("command = [\"a\", 3]", &["each value in `agents.x.command` must be a string in quotes"]),
    (
        "protocol = \"template\"\ncommand = [\"a\", \"{session}\"]",
        &["`agents.x.command`", "{session}", "`resume`"],
    ),
    ("command = [\"a\"]\nresume = [\"a\", \"{session}\"]", &["`agents.x.resume`", "template"]),
    (
        "protocol = \"template\"\ncommand = [\"a\"]\nsession = \"/id\"\nresume = [\"a\", \"{prompt}\"]",
        &["`agents.x.resume`", "{session}"],
    ),
    (
        "protocol = \"template\"\ncommand = [\"a\", \"{prompt}\"]\nsession = \"/id\"\nresume = [\"a\", \"{session}\"]",
        &["`agents.x.resume`", "{prompt}"],
    ),
    (
        "protocol = \"template\"\ncommand = [\"a\", \"{prompt_file}\"]\nsession = \"/id\"\nresume = [\"a\", \"{session}\"]",
        &["`agents.x.resume`", "{prompt_file}"],
    ),
    (
        "protocol = \"template\"\ncommand = [\"a\"]\nresume = [\"a\", \"{session}\"]",
        &["`agents.x.resume`", "needs `session`"],
    ),
    (
        "protocol = \"template\"\ncommand = [\"a\"]\nresume = [\"a\\u0000\", \"{session}\"]",
        &["`agents.x.resume`", "NUL"],
    ),
    ("command = [\"a\"]\nsession = \"/id\"", &["`agents.x.session`", "template"]),
    ("command = [\"a\"]\nresult = \"/id\"", &["`agents.x.result`", "template"]),
    ("protocol = \"template\"\ncommand = [\"a\"]\nsession = \"id\"", &["`agents.x.session`", "JSON pointer"]),
    ("protocol = \"template\"\ncommand = [\"a\"]\nresult = \"\"", &["`agents.x.result`", "JSON pointer"]),
    ("url = \"http://127.0.0.1:1\"", &["`agents.x.url`", "opencode"]),
    ("url = 3", &["`agents.x.url` must be a string in quotes; it is a number"]),
    ("command = [\"a\"]\nenv = { A = 3 }", &["each value in `agents.x.env` must be a string"]),
    ("command = [\"a\"]\nenv = { \"A=B\" = \"c\" }", &["`agents.x.env`", "A=B", "not a valid variable name"]),
    ("command = [\"a\"]\nenv = { \"\" = \"c\" }", &["`agents.x.env`", "not a valid variable name"]),
    ("command = [\"a\"]\nenv = { A = \"b\\u0000\" }", &["`agents.x.env`", "A", "NUL"]),
    ("command = [\"a\"]\npermissions = \"maybe\"", &["maybe", "deny", "allow", "ask"]),
    ("command = [\"a\"]\nmax_sessions = 0", &["`agents.x.max_sessions`", "1 to 1000"]),
    ("command = [\"a\"]\nmax_sessions = 1001", &["`agents.x.max_sessions`", "1 to 1000"]),
    ("command = [\"a\"]\nmax_sessions = -1", &["max_sessions"]),
    ("command = [\"a\"]\nkeep_warm = 5", &["`agents.x.keep_warm` must be a duration such as \"5s\""]),
    ("command = [\"a\"]\nkeep_warm = \"soon\"", &["keep_warm", "not a duration such as"]),
    ("command = [\"a\"]\nstalled_after = \"0s\"", &["`agents.x.stalled_after`", "is 0"]),
    ("command = [\"a\"]\nstart_timeout = \"0ms\"", &["`agents.x.start_timeout`", "is 0"]),
    ("command = [\"a\"]\nask_timeout = \"0s\"", &["`agents.x.ask_timeout`", "is 0"]),
    ("command = [\"a\"]\nask_timeout = \"200 years\"", &["ask_timeout", "100 years"]),
    ("command = [\"a\"]\ncomand = [\"a\"]", &["`agents.x.comand`", "did you mean `agents.x.command`"]),
    (
        "command = [\"a\"]\npermission = \"ask\"",
        &["`agents.x.permission`", "did you mean `agents.x.permissions`"],
    ),
    ("command = [\"a\"]\ntimeout = \"5s\"", &["unknown key `agents.x.timeout`"]),
];

/// Invalid files, and what the error must mention.
const WRONG_FILES: &[(&str, &[&str])] = &[
    ("default_agent = \"nobody\"", &["`default_agent`", "nobody", "claude, codex"]),
    ("default_agent = 3", &["`default_agent` must be a string in quotes"]),
    ("default_agnet = \"codex\"", &["did you mean `default_agent`"]),
    ("[agent.x]\ncommand = [\"a\"]", &["unknown key `agent`", "did you mean `agents`"]),
    ("[agents.\"two words\"]\ncommand = [\"a\"]", &["agents.two words", "not a valid agent name"]),
    ("[agents.\"\"]\ncommand = [\"a\"]", &["not a valid agent name", "1 to 64 bytes"]),
    ("[agents.\"tab\\there\"]\ncommand = [\"a\"]", &["not a valid agent name"]),
    (
        "[agents.nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn]\ncommand = [\"a\"]",
        &["not a valid agent name", "64 bytes"],
    ),
    ("agents = 3", &["`agents` must be a table: [agents.NAME]"]),
    ("[agents]\nx = 3", &["`agents.x` must be a table: [agents.x]"]),
];

fn wrong_files() -> Vec<(String, &'static [&'static str])> {
    let tables = WRONG.iter().map(|(lines, parts)| (format!("[agents.x]\n{lines}\n"), *parts));
    tables.chain(WRONG_FILES.iter().map(|(file, parts)| ((*file).to_owned(), *parts))).collect()
}

#[track_caller]
fn names(message: &str, file: &Path, parts: &[&str]) {
    for part in parts.iter().copied().chain(file.to_str()) {
        assert!(message.contains(part), "{part:?} is not named in: {message}");
    }
}

#[test]
fn daemon_refuses_to_start_with_invalid_agent_configuration() {
    let home = TestDaemon::home_only();
    for (file, parts) in wrong_files() {
        home.write_config(&file);
        let outcome = home.run(&["daemon", "start"]).expect_code(78);
        names(&outcome.stderr, &home.config_path(), parts);
    }
    // The daemons report the reason before they end.
    home.processes().iter().for_each(Process::gone);
}

fn reload(daemon: &TestDaemon) -> Result<ReloadResult, RpcError> {
    match daemon.client().call::<DaemonReload>(&NoParams {}) {
        Ok(result) => Ok(result),
        Err(ClientError::Rpc(error)) => Err(error),
        Err(error) => panic!("daemon.reload: {error}"),
    }
}

fn infos(daemon: &TestDaemon, env: Option<Env>) -> Vec<AgentInfo> {
    let params = AgentListParams { env, ..AgentListParams::default() };
    daemon.client().call::<AgentList>(&params).expect("agent.list").agents
}

fn info(daemon: &TestDaemon, name: &str) -> Option<AgentInfo> {
    infos(daemon, None).into_iter().find(|info| info.name == name)
}

#[test]
fn reload_of_invalid_agent_configuration_changes_nothing() {
    let daemon = TestDaemon::builder().config(shell_agent("x", "echo \"$1\"", "")).start();
    let before = infos(&daemon, None);
    for (file, parts) in wrong_files() {
        daemon.write_config(&file);
        let error = reload(&daemon).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{file}: {error}");
        names(&error.message, &daemon.config_path(), parts);
    }
    assert_eq!(infos(&daemon, None), before);
    let stderr = daemon.run(&["daemon", "reload"]).expect_code(78).stderr;
    assert!(stderr.contains("stays in effect"), "{stderr}");
    let id = daemon.submit_prompt("x", "still here");
    daemon.block(&[id]);
    assert_eq!(daemon.result(id), "still here");
}

#[test]
fn reload_reports_changed_agent_keys() {
    let daemon = TestDaemon::start();
    for (file, changed) in [
        ("[agents.x]\ncommand = [\"a\"]\n", &["agents.x.command"][..]),
        ("[agents.x]\ncommand = [\"a\"]\n", &[]),
        ("[agents.x]\ncommand = [\"b\"]\nenv = { A = \"1\" }\n", &["agents.x.command", "agents.x.env.A"]),
        (
            "default_agent = \"x\"\n[agents.x]\ncommand = [\"b\"]\npermissions = \"ask\"\n",
            &["agents.x.env.A", "agents.x.permissions", "default_agent"],
        ),
        (
            "[agents.y]\ncommand = [\"b\"]\n",
            &["agents.x.command", "agents.x.permissions", "agents.y.command", "default_agent"],
        ),
        ("", &["agents.y.command"]),
    ] {
        daemon.write_config(file);
        let result = reload(&daemon).unwrap();
        let mut reported = result.changed;
        reported.sort();
        assert_eq!((reported.as_slice(), result.needs_restart.len()), (&owned(changed)[..], 0), "{file}");
    }
    daemon.write_config("[agents.x]\ncommand = [\"a\"]\n");
    let stdout = daemon.run(&["daemon", "reload"]).success().stdout_text();
    assert!(stdout.contains("agents.x.command"), "{stdout}");
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[test]
fn reload_adds_and_removes_agents() {
    let line = format!("[ \"$1\" != wait ] || {{ read _ < \"$HOME/gate\"; }}; {REMEMBER}");
    let with = format!("max_concurrent_tasks = 1\n{}", remembering_agent("x", &line));
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1\n").start();
    let mut gate = Gate::new(daemon.home(), "gate");
    assert_eq!(info(&daemon, "x"), None);
    daemon.write_config(&with);
    reload(&daemon).unwrap();
    assert!(info(&daemon, "x").is_some_and(|info| info.configured && info.available));
    let done = daemon.submit_prompt("x", "one");
    daemon.block(&[done]);
    let running = daemon.submit_prompt("x", "wait");
    let queued = daemon.submit_prompt("x", "too late");
    daemon.write_config("max_concurrent_tasks = 1\n");
    reload(&daemon).unwrap();
    assert_eq!(info(&daemon, "x"), None);
    gate.open();
    assert_eq!(daemon.block(&[running])[0].status, Status::Completed, "what runs is not touched");
    assert_eq!(daemon.result(running), "wait;");
    let failed = daemon.block(&[queued]).remove(0);
    let error = failed.error.unwrap_or_default();
    assert_eq!(failed.status, Status::Failed);
    assert!(error.contains("unknown agent \"x\"") && error.contains("claude, codex"), "{error}");
    let refused = daemon.try_resume(done, "two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UnknownAgent, "{refused}");
    assert!(
        refused.message.contains("unknown agent \"x\"") && refused.message.contains(&done.to_string()),
        "{refused}"
    );
    assert!(refused.data.hint.unwrap_or_default().contains("[agents.NAME]"));
    let task = daemon.task(done);
    assert_eq!((task.status, task.resume_count), (Status::Completed, 0));
    assert_eq!(daemon.result(done), "one;");
    daemon.write_config(&with);
    reload(&daemon).unwrap();
    daemon.resume(done, "two");
    assert_eq!(daemon.block(&[done])[0].status, Status::Completed);
    assert_eq!(daemon.result(done), "one;two;", "with the agent the conversation is back");
}

#[test]
fn queued_prompt_uses_agent_configuration_at_start_time() {
    let agent = |word: &str| {
        let line = format!("[ \"$1\" != wait ] || {{ read _ < \"$HOME/gate\"; }}; echo {word}");
        format!("max_concurrent_tasks = 1\n{}", shell_agent("x", &line, ""))
    };
    let daemon = TestDaemon::builder().config(agent("old")).start();
    let mut gate = Gate::new(daemon.home(), "gate");
    let [running, queued] = ["wait", "go"].map(|prompt| daemon.submit_prompt("x", prompt));
    daemon.write_config(&agent("new"));
    reload(&daemon).unwrap();
    gate.open();
    daemon.block(&[running, queued]);
    assert_eq!((daemon.result(running), daemon.result(queued)), ("old".to_owned(), "new".to_owned()));
}

#[test]
fn built_in_agents_need_no_configuration() {
    let daemon = TestDaemon::start();
    let empty: Env = [("PATH".into(), OsText::from("/nowhere"))].into_iter().collect();
    let known = infos(&daemon, Some(empty));
    let names: Vec<&str> = known.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["claude", "codex", "copilot", "gemini", "goose", "opencode"]);
    for info in &known {
        assert_eq!(
            (info.protocol, info.permissions),
            (AgentProtocol::Acp, Permissions::Deny),
            "{}",
            info.name
        );
        assert!(!info.configured && !info.default && !info.available && info.program.is_none());
        assert!(info.install.is_some(), "{}", info.name);
    }
    // Single keys of a known agent can be overridden; with another command, its installation hint is gone.
    daemon.write_config("default_agent = \"codex\"\n[agents.codex]\npermissions = \"ask\"\n[agents.goose]\ncommand = [\"no-goose\"]\n");
    reload(&daemon).unwrap();
    let codex = info(&daemon, "codex").unwrap();
    assert!(codex.configured && codex.default && codex.permissions == Permissions::Ask);
    assert_eq!(codex.command, [OsText::from("codex-acp")]);
    let goose = info(&daemon, "goose").unwrap();
    assert_eq!((goose.available, goose.install), (false, None));
}

fn program(daemon: &TestDaemon, folder: &str, text: &str) -> PathBuf {
    let folder = daemon.home().join(folder);
    fs::create_dir(&folder).unwrap();
    let file = folder.join("some-agent");
    executable::write(&file, &format!("#!/bin/sh\n{text}\n"));
    folder
}

fn with_path(params: SubmitParams, folder: &Path) -> SubmitParams {
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let others = params.env.unwrap().0.into_iter().filter(|(name, _)| &**name != "PATH");
    let env = others.chain([("PATH".into(), OsText::from(path.as_str()))]).collect();
    SubmitParams { env: Some(env), ..params }
}

#[test]
fn agent_program_is_looked_up_in_submitter_path() {
    let daemon = TestDaemon::builder()
        .config("[agents.x]\nprotocol = \"template\"\ncommand = [\"some-agent\", \"{prompt}\"]\n")
        .start();
    let folders = [program(&daemon, "a", "echo \"a: $1\""), program(&daemon, "b", "echo \"b: $1\"")];
    let refused = daemon.client().call::<TaskSubmit>(&daemon.prompt_for("x", "go")).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::AgentUnavailable), "{refused}");
    assert!(refused.to_string().contains("some-agent") && refused.to_string().contains("PATH"), "{refused}");
    assert_eq!(daemon.status().summary.total(), 0, "nothing was submitted");
    for (folder, wanted) in folders.iter().zip(["a: go", "b: go"]) {
        let params = with_path(daemon.prompt_for("x", "go"), folder);
        let found = infos(&daemon, params.env.clone()).into_iter().find(|info| info.name == "x").unwrap();
        let file = folder.join("some-agent");
        assert_eq!(found.program, Some(OsText::from(file.into_os_string())));
        let id = daemon.submit_with(&params).id;
        daemon.block(&[id]);
        assert_eq!(daemon.result(id), wanted);
    }
    // The agent's configuration can have a PATH of its own.
    let path = format!("env = {{ PATH = \"{}:/usr/bin:/bin\" }}", folders[1].display());
    daemon.write_config(&format!(
        "[agents.x]\nprotocol = \"template\"\ncommand = [\"some-agent\", \"{{prompt}}\"]\n{path}\n"
    ));
    reload(&daemon).unwrap();
    let id = daemon.submit_prompt("x", "go");
    daemon.block(&[id]);
    assert_eq!(daemon.result(id), "b: go");
}

#[test]
fn removed_agent_program_refuses_resume_and_submit() {
    let text = "printf '{\"session_id\":\"s1\",\"result\":\"%s\"}' \"$1\"";
    let daemon = TestDaemon::home_only();
    let file = program(&daemon, "a", text).join("some-agent");
    let name = file.to_str().unwrap();
    let words = |last: &str| format!("[{name:?}, \"{{prompt}}\"{last}]");
    daemon.write_config(&format!(
        "[agents.x]\nprotocol = \"template\"\ncommand = {}\nresume = {}\nsession = \"/session_id\"\nresult = \"/result\"\n",
        words(""),
        words(", \"{session}\"")
    ));
    daemon.run(&["daemon", "start"]).success();
    let id = daemon.submit_prompt("x", "one");
    daemon.block(&[id]);
    fs::remove_file(&file).unwrap();
    let refused = daemon.try_resume(id, "two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AgentUnavailable, "{refused}");
    assert!(refused.message.contains(name), "{refused}");
    let task = daemon.task(id);
    assert_eq!((task.status, task.resume_count), (Status::Completed, 0));
    assert_eq!(daemon.result(id), "one");
    let refused = daemon.client().call::<TaskSubmit>(&daemon.prompt_for("x", "three")).unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::AgentUnavailable), "{refused}");
    assert!(refused.to_string().contains(name), "{refused}");
}

#[test]
fn reload_applies_ask_timeout_and_silence_limit_to_the_next_turn() {
    let limits = |ask_timeout: &str, stalled_after: &str| {
        format!("permissions = \"ask\"\nask_timeout = \"{ask_timeout}\"\nstalled_after = \"{stalled_after}\"")
    };
    let daemon = FakeDaemon::start(&[], &limits("1h", "1h"));
    let task = daemon.completed("say x");
    daemon.configure(&[], &limits("200ms", "1h"));
    reload(&daemon).unwrap();
    daemon.resume(task.id, "ask Anybody here?");
    let task = daemon.ends_as(task.id, Status::Completed);
    assert_eq!((daemon.result(task.id).as_str(), task.progress.denied), ("denied", 1));
    daemon.configure(&[], &limits("1h", "200ms"));
    reload(&daemon).unwrap();
    let mut watch = daemon.watch();
    daemon.resume(task.id, "await go");
    watch.until(|event| event.task.progress.stalled);
    daemon.touch("go");
    daemon.ends_as(task.id, Status::Completed);
}
