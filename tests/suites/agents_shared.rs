//! Which process a prompt goes to and how long that process lives; and `agent.list`: agents that are unknown, not
//! installed or not logged in.

use bgd_tests::prompts::fake;
use bgd_tests::shared::agent::{AgentInfo, AgentListParams, AgentListResult, Continuation};
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::{ErrorKind, RpcError};
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{AgentList, SubmitParams, TaskSubmit};
use bgd_tests::shared::task::Status;
use bgd_tests::{FakeDaemon, Outcome, Process, TestDaemon, helper_path};

fn waiting(daemon: &FakeDaemon, params: &SubmitParams) -> (TaskId, i32) {
    let id = daemon.submit_with(params).id;
    (id, daemon.wait_running(id).pid.unwrap())
}

#[track_caller]
fn list(daemon: &FakeDaemon, check: bool, names: &[&str]) -> Result<Vec<AgentInfo>, RpcError> {
    let names = names.iter().map(ToString::to_string).collect();
    let params =
        AgentListParams { env: daemon.prompt_params("x").env, check, names, ..AgentListParams::default() };
    match daemon.client().call::<AgentList>(&params) {
        Ok(result) => Ok(result.agents),
        Err(ClientError::Rpc(error)) => Err(error),
        Err(error) => panic!("agent.list: {error}"),
    }
}

#[track_caller]
fn submit_refused(daemon: &TestDaemon, params: &SubmitParams) -> RpcError {
    match daemon.client().call::<TaskSubmit>(params) {
        Err(ClientError::Rpc(error)) => error,
        other => panic!("it is not refused: {other:?}"),
    }
}

#[test]
fn prompts_share_agent_process_but_use_their_own_folders() {
    let daemon = fake();
    let folder = daemon.home().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    let (one, pid) = waiting(&daemon, &daemon.prompt_params("touch here; await go; say one"));
    let elsewhere = SubmitParams {
        cwd: Some(folder.as_os_str().into()),
        ..daemon.prompt_params("touch here; await go; say other")
    };
    let (other, same) = waiting(&daemon, &elsewhere);
    assert_eq!(pid, same);
    bgd_tests::wait::for_file(&folder.join("here"));
    bgd_tests::wait::for_file(&daemon.home().join("here"));
    std::fs::write(folder.join("go"), "").unwrap();
    daemon.ends_as(other, Status::Completed);
    assert_eq!(daemon.task(one).status, Status::Running);
    daemon.touch("go");
    daemon.ends_as(one, Status::Completed);
    assert_eq!((daemon.result(one), daemon.result(other)), ("one".into(), "other".into()));
    assert_eq!(daemon.fake_home().started().len(), 1);
}

#[test]
fn sessions_per_process_never_exceed_max_sessions() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 5", &[], "max_sessions = 2");
    let params = daemon.prompt_params("await go");
    let pids: Vec<i32> = (0..5).map(|_| waiting(&daemon, &params).1).collect();
    assert_eq!((pids[0], pids[2]), (pids[1], pids[3]));
    assert!(pids[0] != pids[2] && pids[2] != pids[4] && pids[4] != pids[0], "{pids:?}");
    daemon.touch("go");
}

#[test]
fn environments_differing_only_in_shell_variables_share_process() {
    let daemon = FakeDaemon::with("max_concurrent_tasks = 8", &[], "");
    let (_, pid) = waiting(&daemon, &daemon.prompt_params("await go"));
    for (name, value) in [("PWD", "/tmp"), ("TMUX", "/tmp/tmux-0/default,1,2"), ("SHLVL", "3")] {
        let params = daemon.prompt_params_with("await go", name, value);
        assert_eq!(waiting(&daemon, &params).1, pid, "{name}");
    }
    let params = daemon.prompt_params_with("await go", "API_KEY", "another account");
    let (_, other) = waiting(&daemon, &params);
    assert_ne!(other, pid);
    let umask = SubmitParams { umask: Some(0o077), ..daemon.prompt_params("await go") };
    let (_, third) = waiting(&daemon, &umask);
    assert!(third != pid && third != other);
    daemon.touch("go");
}

#[test]
fn resume_goes_to_process_that_holds_session() {
    let daemon = FakeDaemon::start(&[], "max_sessions = 1");
    let ids = [daemon.prompt("await go; say one"), daemon.prompt("await go; say other")];
    let pids = ids.map(|id| daemon.wait_running(id).pid);
    assert_ne!(pids[0], pids[1]);
    daemon.touch("go");
    daemon.block(&ids);
    for (id, pid) in ids.into_iter().zip(pids).rev() {
        daemon.resume(id, "count");
        assert_eq!(daemon.ends_as(id, Status::Completed).pid, pid);
        assert_eq!(daemon.result(id), "2");
    }
    let home = daemon.fake_home();
    assert!(home.received("session/load").is_empty() && home.received("session/resume").is_empty());
}

#[test]
fn idle_agent_process_ends_after_keep_warm_period() {
    let daemon = FakeDaemon::start(&[], "keep_warm = \"100ms\"");
    let id = daemon.prompt("await go; say one");
    let process = daemon.agent_process(id);
    daemon.touch("go");
    daemon.ends_as(id, Status::Completed);
    process.gone();
    let task = daemon.completed("say two");
    assert_ne!(task.pid, Some(process.pid()));

    let daemon = fake();
    let pids: Vec<_> = (0..3).map(|_| daemon.completed("say one").pid).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]) && Process::open(pids[0].unwrap()).unwrap().is_alive());
}

#[test]
fn configured_agent_environment_overrides_submitter_environment() {
    let daemon = FakeDaemon::start(&["--version-name", "x"], "env = { FAKE_ACP_HOME = \"/proc/nowhere\" }");
    let id = daemon.prompt("say never");
    let task = daemon.ends_as(id, Status::Failed);
    let error = task.error.unwrap();
    assert!(error.contains("fake_acp") && error.contains("exited with code 2"), "{error}");
}

/// What it wrote is part of the error, and may read like the daemon's own words.
#[test]
fn agent_that_ends_instead_of_speaking_the_protocol_is_reported_with_exit_code_and_output() {
    let line = "read -r request; echo its process is not licensed; exit 3";
    let config = format!("[agents.x]\ncommand = [\"sh\", \"-c\", \"{line}\"]");
    let daemon = TestDaemon::builder().config(config).start();
    let id = daemon.submit_prompt("x", "say never");
    let error = daemon.block(&[id])[0].error.clone().unwrap();
    assert!(error.contains("it wrote: its process is not licensed"), "{error}");
    assert!(error.contains("(its process exited with code 3)"), "{error}");
}

#[test]
fn agent_list_reports_availability_without_starting_agents() {
    let daemon = FakeDaemon::with("default_agent = \"fake\"", &[], "");
    let all = list(&daemon, false, &[]).unwrap();
    assert!(all.is_sorted_by(|one, other| one.name < other.name));
    let fake = all.iter().find(|agent| agent.name == "fake").unwrap();
    assert!(fake.configured && fake.available && fake.default);
    assert!(fake.program.as_ref().unwrap().to_string_lossy().ends_with("fake_acp"));
    assert_eq!((&fake.check, &fake.error, &fake.install), (&None, &None, &None));
    assert!(all.iter().any(|agent| agent.name == "codex" && !agent.configured));
    assert!(daemon.fake_home().journal().is_empty(), "nothing was started");
    assert_eq!(list(&daemon, false, &["nobody"]).unwrap_err().kind(), ErrorKind::UnknownAgent);
    assert_eq!(daemon.run(&["agents", "fake"]).success().stdout_text().split('\t').nth(2), Some("ready"));
    daemon.run(&["agents", "nobody"]).expect_code(2);
}

#[test]
fn agent_check_starts_and_ends_agent() {
    for (flags, continuation) in [
        (&["--version-name", "Fake/9.8"][..], Continuation::Resume),
        (&["--version-name", "Fake/9.8", "--no-resume"], Continuation::Load),
        (&["--version-name", "Fake/9.8", "--no-resume", "--no-load", "--ignore-eof"], Continuation::None),
    ] {
        let daemon = FakeDaemon::start(flags, "");
        let info = list(&daemon, true, &["fake"]).unwrap().remove(0);
        let check = info.check.unwrap();
        assert_eq!((check.name.as_deref(), check.version.as_deref()), (Some("Fake"), Some("9.8")));
        assert_eq!((check.continuation, info.error), (continuation, None));
        assert_eq!(daemon.task_processes().len(), 0);
    }
}

#[test]
fn agent_check_reports_why_agent_fails_to_start() {
    let daemon = FakeDaemon::start(&["--exit-at-start", "3", "--stderr", "no licence here"], "");
    let info = list(&daemon, true, &["fake"]).unwrap().remove(0);
    let error = info.error.unwrap();
    assert!(info.check.is_none() && error.contains("code 3") && error.contains("no licence here"), "{error}");
    let outcome = daemon.bgctl_with_fake(&["--json", "agents", "--check", "fake"]).expect_code(69);
    let listed: AgentListResult = outcome.json();
    assert!(listed.agents[0].error.as_ref().unwrap().contains("no licence here"));
    let text = daemon.bgctl_with_fake(&["agents", "--check", "fake"]).expect_code(69).stdout_text();
    assert!(text.contains("does not start: ") && text.contains("no licence here"), "{text}");
}

#[test]
fn agent_checks_run_concurrently() {
    // The agents `a` and `b` answer only once `c` has started.
    let fake = helper_path("fake_acp").to_string_lossy().into_owned();
    let agent = |name: &str, line: &str| {
        format!("[agents.{name}]\ncommand = [\"sh\", \"-c\", '{line}', \"{fake}\"]\n")
    };
    let config = [
        agent("a", "exec \"$0\" --initialize-after \"$FAKE_ACP_HOME/c\""),
        agent("b", "exec \"$0\" --initialize-after \"$FAKE_ACP_HOME/c\""),
        agent("c", "touch \"$FAKE_ACP_HOME/c\"; exec \"$0\""),
    ];
    let daemon = TestDaemon::builder().config(config.concat()).start();
    let home = daemon.home().join("fake");
    std::fs::create_dir_all(&home).unwrap();
    let mut bgctl = daemon.bgctl(&["--json", "agents", "--check", "a", "b", "c"]);
    let listed: AgentListResult = Outcome::of(bgctl.env("FAKE_ACP_HOME", home)).success().json();
    let names: Vec<&str> = listed.agents.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for info in &listed.agents {
        assert!(info.check.is_some(), "{info:?}");
    }
}

#[test]
fn unknown_agent_is_refused_with_known_agents_listed() {
    let daemon = fake();
    let nobody = SubmitParams { agent: Some("nobody".into()), ..daemon.prompt_params("say x") };
    let error = submit_refused(&daemon, &nobody);
    assert_eq!(error.kind(), ErrorKind::UnknownAgent);
    assert!(error.message.contains("\"nobody\"") && error.data.hint.unwrap().contains("fake"));
    daemon.run(&["submit", "--agent", "nobody", "-d", "d", "say x"]).expect_code(2);
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn submit_to_agent_with_missing_program_is_refused() {
    let config = "[agents.fake]\ncommand = [\"/no/such/agent\", \"--acp\"]\n[agents.other]\ncommand = [\"no-such-agent\"]";
    let daemon = TestDaemon::builder().config(config).start();
    let error = submit_refused(&daemon, &daemon.prompt_params("say x"));
    assert_eq!(error.kind(), ErrorKind::AgentUnavailable);
    assert!(error.message.contains("/no/such/agent"), "{error}");
    let other = SubmitParams { agent: Some("other".into()), ..daemon.prompt_params("say x") };
    let error = submit_refused(&daemon, &other);
    assert!(error.message.contains("not found in PATH") && error.data.hint.is_some(), "{error}");
    let outcome = daemon.run(&["submit", "--agent", "other", "-d", "d", "say x"]).expect_code(69);
    assert!(outcome.stderr.contains("no-such-agent") && outcome.stdout.is_empty(), "{}", outcome.stderr);
    assert_eq!(daemon.status().summary.total(), 0);
}

#[test]
fn agent_that_is_not_logged_in_fails_task_with_login_hint() {
    let daemon = FakeDaemon::start(&["--auth-required"], "");
    let (_, error) = daemon.failed("say x");
    assert!(error.contains("not logged in") && error.contains("Fake login"), "{error}");
}

#[test]
fn bgctl_sends_prompt_to_default_agent() {
    let daemon = FakeDaemon::with("default_agent = \"fake\"", &[], "");
    let args = ["submit", "--prompt", "say hello", "-d", "greets"];
    let id: TaskId = daemon.bgctl_with_fake(&args).success().word();
    daemon.run(&["block", &id.to_string()]).success();
    assert_eq!(daemon.run(&["output", &id.to_string()]).success().stdout_text(), "hello\n");
    assert_eq!(daemon.run(&["output", "--result", &id.to_string()]).success().stdout_text(), "hello");
    let args = ["submit", "--agent", "fake", "-d", "fails", "error -32603 no"];
    let id: TaskId = daemon.bgctl_with_fake(&args).success().word();
    daemon.run(&["block", &id.to_string()]).expect_code(1);
    daemon.run(&["output", "--result", &id.to_string()]).expect_code(65);
}
