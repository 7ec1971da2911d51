//! The settings that a session gets before its first prompt: the mode, the model and the options named by the
//! configuration or a submit, and a mode in which the agent asks where none is named.

use bgd_shared::agent::{AgentSettings, Setting};
use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use bgd_shared::request::{SubmitParams, TaskSubmit};
use bgd_shared::task::Status;
use bgd_tests::templates::shell_agent;
use bgd_tests::{FakeDaemon, Outcome};

/// The modes of claude-agent-acp 0.101: the first one, in which it starts, does not ask.
const MODES: [&str; 4] = ["--modes", "auto,default,plan", "--models", "small,big"];

#[test]
fn deny_and_ask_switch_agent_to_asking_mode_unless_mode_is_set() {
    for (config, set) in [
        ("", "mode=default"),
        ("permissions = \"ask\"", "mode=default"),
        ("permissions = \"allow\"", ""),
        ("mode = \"plan\"", "mode=plan"),
        ("mode = \"auto\"", ""),
        ("model = \"big\"\nconfig = { quiet = true }", "model=big quiet=true mode=default"),
    ] {
        let daemon = FakeDaemon::start(&MODES, &format!("keep_warm = \"0s\"\n{config}"));
        let task = daemon.completed("settings");
        daemon.wait_agents_gone();
        assert_eq!((daemon.result(task.id), task.warning), (format!("set: {set}"), None), "{config}");
        // Another process gets the settings again.
        daemon.resume(task.id, "settings");
        daemon.ends_as(task.id, Status::Completed);
        assert_eq!(daemon.result(task.id), format!("set: {set}"), "{config}");
    }
}

#[test]
fn settings_that_agent_does_not_offer_fail_task() {
    for (flags, config, why) in [
        (&MODES[..], "mode = \"yolo\"", "the agent has no mode \"yolo\""),
        (&MODES, "model = \"huge\"", "the agent has no model \"huge\""),
        (&MODES, "config = { speed = \"9\" }", "did not accept the option \"speed\""),
        (&[], "mode = \"plan\"", "can't use the mode \"plan\""),
    ] {
        let daemon = FakeDaemon::start(flags, config);
        let error = daemon.ends_as(daemon.prompt("say x"), Status::Failed).error.unwrap_or_default();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn submitter_is_warned_when_agent_has_no_asking_mode() {
    let daemon = FakeDaemon::start(&["--modes", "build,plan"], "");
    let submit = || {
        let mut bgctl = daemon.bgctl(&["submit", "--agent", "fake", "-d", "x", "say x"]);
        let outcome = Outcome::of(bgctl.env("FAKE_ACP_HOME", daemon.fake_home().0)).success();
        let id = outcome.stdout_text().trim().parse().unwrap();
        (daemon.ends_as(id, Status::Completed), outcome.stderr.clone())
    };
    let (task, _) = submit();
    let warning = task.warning.unwrap();
    assert!(
        warning.contains("permissions = \"deny\" may have no effect") && warning.contains("(build, plan)"),
        "{warning}"
    );
    let (_, stderr) = submit();
    assert!(stderr.contains(&format!("bgctl: warning: {warning}")), "{stderr}");
    let page = daemon.run(&["status", &task.id.to_string()]).success().stdout_text();
    assert!(page.contains("warning:     permissions"), "{page}");
    let daemon = FakeDaemon::start(&["--modes", "build,plan"], "mode = \"build\"");
    assert_eq!(daemon.completed("say x").warning, None, "the user has chosen");
}

#[test]
fn submit_settings_override_configuration_and_persist_across_resumes() {
    let named = |mode: Option<&str>, model: Option<&str>, quiet: Option<Setting>| AgentSettings {
        mode: mode.map(Into::into),
        model: model.map(Into::into),
        config: quiet.map(|quiet| ("quiet".to_owned(), quiet)).into_iter().collect(),
    };
    let text = |text: &str| Some(Setting::Text(text.to_owned()));
    for keep_warm in ["1h", "0s"] {
        let daemon = FakeDaemon::start(
            &MODES,
            &format!("keep_warm = \"{keep_warm}\"\nmode = \"auto\"\nmodel = \"big\""),
        );
        let is_warm = keep_warm != "0s";
        let mut applied = String::new();
        let mut expect = |task: TaskId, set: &str, again: &str| {
            if !is_warm {
                daemon.wait_agents_gone();
            }
            applied = if is_warm { format!("{applied} {set}") } else { again.to_owned() };
            assert_eq!(
                daemon.result(task),
                format!("set: {}", applied.trim_start()),
                "keep_warm = {keep_warm}"
            );
        };
        let first = named(Some("plan"), Some("small"), text("true"));
        let id = daemon
            .submit_with(&SubmitParams { settings: first.clone(), ..daemon.prompt_params("settings") })
            .id;
        let task = daemon.ends_as(id, Status::Completed);
        assert_eq!(task.settings, first);
        // The model is the agent's initial one.
        expect(id, "quiet=true mode=plan", "quiet=true mode=plan");
        daemon.resume(id, "settings");
        daemon.ends_as(id, Status::Completed);
        expect(id, "model=small quiet=true mode=plan", "quiet=true mode=plan");
        let task = daemon.resume_with(id, "settings", named(None, Some("big"), text("false")));
        assert_eq!(task.settings, named(Some("plan"), Some("big"), text("false")));
        daemon.ends_as(id, Status::Completed);
        expect(id, "model=big quiet=false mode=plan", "model=big mode=plan");
    }
}

#[test]
fn warm_session_is_updated_to_settings_of_each_run() {
    let config = |more: &str| format!("keep_warm = \"1h\"\n{more}");
    let daemon =
        FakeDaemon::start(&MODES, &config("mode = \"plan\"\nmodel = \"big\"\nconfig = { quiet = true }"));
    let id = daemon.completed("settings").id;
    let mut expected = "set: model=big quiet=true mode=plan".to_owned();
    assert_eq!(daemon.result(id), expected);
    let pid = daemon.task(id).pid;
    for (more, set) in [
        // Without a mode in the configuration, the strictest one applies; everything else goes back to its
        // initial value.
        ("", " model=small quiet=false mode=default"),
        ("permissions = \"ask\"", " mode=default"),
        // The mode that the agent itself starts with.
        ("permissions = \"allow\"", " mode=auto"),
        ("permissions = \"allow\"\nmodel = \"small\"", " model=small"),
        ("permissions = \"allow\"", ""),
        ("permissions = \"deny\"", " mode=default"),
    ] {
        daemon.configure(&MODES, &config(more));
        daemon.run(&["daemon", "reload"]).success();
        daemon.resume(id, "settings");
        let task = daemon.ends_as(id, Status::Completed);
        expected.push_str(set);
        assert_eq!((daemon.result(id), task.pid), (expected.clone(), pid), "{more}");
    }
}

#[test]
fn resume_with_unavailable_mode_changes_nothing() {
    for (keep_warm, set) in [("1h", "set: mode=default mode=default"), ("0s", "set: mode=default")] {
        let daemon = FakeDaemon::start(&MODES, &format!("keep_warm = \"{keep_warm}\""));
        let until_closed = || {
            if keep_warm == "0s" {
                daemon.wait_agents_gone();
            }
        };
        let task = daemon.completed("say one");
        until_closed();
        let mode = AgentSettings { mode: Some("yolo".into()), ..AgentSettings::default() };
        let error = daemon.try_resume_with(task.id, "say two", mode).unwrap_err();
        assert!(error.message.contains("the agent has no mode \"yolo\""), "{error}");
        assert!(error.data.hint.unwrap_or_default().contains("auto, default, plan"));
        let now = daemon.task(task.id);
        assert_eq!((now.status, now.settings, now.resume_count), (Status::Completed, task.settings, 0));
        assert_eq!(daemon.result(task.id), "one");
        until_closed();
        daemon.resume(task.id, "settings");
        daemon.ends_as(task.id, Status::Completed);
        assert_eq!(daemon.result(task.id), set, "{keep_warm}");
    }
}

#[test]
fn naming_a_mode_clears_permission_warning() {
    for keep_warm in ["1h", "0s"] {
        let daemon = FakeDaemon::start(&["--modes", "build,plan"], &format!("keep_warm = \"{keep_warm}\""));
        let task = daemon.completed("say x");
        assert!(task.warning.is_some());
        daemon.resume(task.id, "say y");
        assert_eq!(daemon.ends_as(task.id, Status::Completed).warning, task.warning);
        let mode = AgentSettings { mode: Some("plan".into()), ..AgentSettings::default() };
        daemon.resume_with(task.id, "say z", mode.clone());
        assert_eq!(daemon.ends_as(task.id, Status::Completed).warning, None);
        let params = SubmitParams { settings: mode, ..daemon.prompt_params("say x") };
        assert_eq!(daemon.submit_with(&params).warning, None, "and none is told at submit");
    }
}

#[test]
fn warning_of_session_opened_before_reload_is_not_reported_after_it() {
    for more in ["mode = \"build\"", "permissions = \"allow\""] {
        let flags = ["--modes", "build,plan", "--initialize-after", "begin"];
        let daemon = FakeDaemon::start(&flags, "");
        let id = daemon.prompt("say x");
        daemon.configure(&flags, more);
        daemon.run(&["daemon", "reload"]).success();
        daemon.touch("begin");
        assert!(daemon.ends_as(id, Status::Completed).warning.is_some());
        let task = daemon.submit_with(&daemon.prompt_params("say y"));
        assert_eq!(task.warning, None, "{more}");
        daemon.ends_as(task.id, Status::Completed);
    }
}

#[test]
fn invalid_settings_are_refused_at_submit() {
    let daemon = FakeDaemon::start(&MODES, "");
    let home = daemon.fake_home().0;
    let refused = |params: &SubmitParams, parts: &[&str]| {
        let error = daemon.client().call::<TaskSubmit>(params).unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::InvalidParams), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };
    let of_mode = |mode: &str| AgentSettings { mode: Some(mode.into()), ..AgentSettings::default() };
    let many = (0..33).map(|number| (number.to_string(), Setting::Flag(true))).collect();
    for (settings, parts) in [
        (of_mode(""), &["`settings.mode`", "1 to 256 bytes on one line"][..]),
        (of_mode(&"m".repeat(257)), &["`settings.mode`", "1 to 256 bytes"]),
        (of_mode("a\nb"), &["`settings.mode`", "on one line"]),
        (AgentSettings { config: many, ..AgentSettings::default() }, &["`settings.config`", "more than 32"]),
    ] {
        refused(&SubmitParams { settings: settings.clone(), ..daemon.prompt_params("say x") }, parts);
        let error = daemon.try_resume_with(TaskId::random(), "x", settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
    }
    let command =
        SubmitParams { argv: Some(vec!["true".into()]), settings: of_mode("plan"), ..daemon.params() };
    refused(&command, &["`settings` requires `prompt`"]);
    daemon.write_config(&shell_agent("x", "echo \"$1\"", ""));
    daemon.run(&["daemon", "reload"]).success();
    let template = SubmitParams { settings: of_mode("plan"), ..daemon.prompt_for("x", "go") };
    refused(&template, &["the agent \"x\" does not support --mode", "template"]);
    let usage_error = |args: &[&str]| {
        let mut bgctl = daemon.bgctl(args);
        Outcome::of(bgctl.env("FAKE_ACP_HOME", &home)).expect_code(2).stderr.clone()
    };
    for args in [&["submit", "--mode", "plan", "--", "true"][..], &["run", "--mode", "plan", "--", "true"]] {
        let words = usage_error(args);
        assert!(
            words.contains("--mode requires a prompt for an agent") && words.contains("--agent NAME"),
            "{words}"
        );
    }
    let words = usage_error(&["resume", "3f2a", "--config", "x", "go on"]);
    assert!(words.contains("KEY=VALUE"), "{words}");
}

#[test]
fn bgctl_sets_mode_model_and_options_and_status_shows_them() {
    let daemon = FakeDaemon::start(&MODES, "");
    let set = ["--mode", "plan", "--model", "big", "--config", "quiet=true"];
    let submit = [&["submit", "--agent", "fake", "-d", "x"][..], &set, &["settings"]].concat();
    let id = daemon.bgctl_with_fake(&submit).success().stdout_text().trim().to_owned();
    let task = daemon.ends_as(id.parse().unwrap(), Status::Completed);
    assert_eq!(daemon.result(task.id), "set: model=big quiet=true mode=plan");
    let page = daemon.run(&["status", &id]).success().stdout_text();
    for line in ["mode:        plan", "model:       big", "options:     quiet=true"] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    let json = daemon.run(&["--json", "status", &id]).success().stdout_text();
    assert!(json.contains(r#""settings":{"mode":"plan","model":"big","config":{"quiet":"true"}}"#), "{json}");
    daemon.run(&["resume", &id, "--mode", "default", "settings"]).success();
    assert_eq!(daemon.ends_as(task.id, Status::Completed).settings.mode.as_deref(), Some("default"));
    assert!(daemon.result(task.id).ends_with("model=big quiet=true mode=default"));
    daemon.run(&["submit", "--resume", &id, "--model", "small", "settings"]).success();
    assert_eq!(daemon.ends_as(task.id, Status::Completed).settings.model.as_deref(), Some("small"));
    assert!(daemon.result(task.id).ends_with("model=small quiet=true mode=default"));
    let run = [&["run", "--agent", "fake"][..], &set, &["settings"]].concat();
    let said = daemon.bgctl_with_fake(&run).success().stdout_text();
    assert!(said.contains("set: model=big quiet=true mode=plan"), "{said}");
}
