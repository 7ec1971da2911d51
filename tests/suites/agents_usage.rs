//! What agents consume and the plans they work by (R160, R161), on a real daemon: with a fake agent, with recordings of
//! real ones, and with template agents. The suites of real agents check these, too.

use bgd_shared::consumption::{AgentUsage, StepStatus};
use bgd_shared::event::EventKind;
use bgd_shared::task::{Status, Task};
use bgd_tests::templates::{shell_agent, toml_words};
use bgd_tests::{FakeDaemon, Terminal, TestDaemon, wait};

/// Tokens read, written and cached, those in the context, its size, and the cost.
type Known = (Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<(f64, String)>);

fn known(task: &Task) -> Known {
    let usage = task.agent_usage.clone().unwrap_or_default();
    let AgentUsage { input_tokens, output_tokens, cached_tokens, context_tokens, context_size, cost } = usage;
    let cost = cost.map(|cost| (cost.amount.units(), cost.currency));
    (input_tokens, output_tokens, cached_tokens, context_tokens, context_size, cost)
}

fn dollars(units: f64) -> (f64, String) {
    (units, "USD".to_owned())
}

const SPENDS: &str = r#"usage {"used":20000,"size":200000,"cost":{"amount":0.5,"currency":"USD"}}"#;

#[test]
fn r160_usage_is_reported_during_run_and_accumulates_over_runs() {
    let daemon = FakeDaemon::start(&[], "keep_warm = \"1h\"");
    let mut watch = daemon.watch();
    let tokens =
        r#"tokens {"inputTokens":1000,"outputTokens":50,"cachedReadTokens":9000,"totalTokens":10050}"#;
    let task = daemon.submit_with(&daemon.prompt_params(&format!("{SPENDS}; {tokens}; say so; await go")));
    let event = watch.until(|event| event.task.agent_usage.is_some());
    assert_eq!(event.kind, EventKind::Progress);
    assert_eq!(known(&event.task), (None, None, None, Some(20_000), Some(200_000), Some(dollars(0.5))));
    std::fs::write(daemon.home().join("go"), "").unwrap();
    let first = daemon.ends_as(task.id, Status::Completed);
    let all = (Some(1000), Some(50), Some(9000), Some(20_000), Some(200_000), Some(dollars(0.5)));
    assert_eq!(known(&first), all);
    // The conversation has cost 0.75 in total so far.
    let more = r#"usage {"used":30000,"size":200000,"cost":{"amount":0.75,"currency":"USD"}}"#;
    let tokens = r#"tokens {"inputTokens":10,"outputTokens":5,"totalTokens":15}"#;
    daemon.resume(task.id, &format!("{more}; {tokens}; say more"));
    let second = daemon.ends_as(task.id, Status::Completed);
    let all = (Some(1010), Some(55), Some(9000), Some(30_000), Some(200_000), Some(dollars(0.75)));
    assert_eq!(known(&second), all);
    // An amount lower than the last one means that the agent was restarted.
    let anew = r#"usage {"used":1,"size":200000,"cost":{"amount":0.25,"currency":"USD"}}"#;
    daemon.resume(task.id, &format!("{anew}; say again"));
    let third = daemon.ends_as(task.id, Status::Completed);
    assert_eq!(known(&third).5, Some(dollars(1.0)));
}

#[test]
fn r160_usage_is_shown_in_status_list_json_and_top() {
    let daemon = FakeDaemon::start(&[], "");
    let tokens = r#"tokens {"inputTokens":12345,"outputTokens":800,"totalTokens":13145}"#;
    let task = daemon.completed(&format!("{SPENDS}; {tokens}; say so"));
    let id = task.id.to_string();
    let page = daemon.run(&["status", &id]).success().stdout_text();
    for line in [
        "consumed:    12.3k tokens in, 800 out",
        "context:     20.0k of 200.0k tokens (10%)",
        "cost:        0.50 USD",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
    }
    let columns = ["list", "--columns", "tokens,context,cost", "--sort", "-cost"];
    assert_eq!(daemon.run(&columns).success().stdout_text(), "13.1k\t10%\t0.50 USD\n");
    let json = daemon.run(&["--json", "status", &id]).success().json::<serde_json::Value>();
    let usage = json.get("task").unwrap_or(&json)["agent_usage"].clone();
    assert_eq!((usage["input_tokens"].as_u64(), usage["cost"]["amount"].as_f64()), (Some(12_345), Some(0.5)));
    let mut shell = Terminal::shell(&daemon);
    shell.resize((24, 230));
    shell.type_line("bgctl top");
    shell.wait_text("TOKENS CONTEXT COST");
    shell.wait_text("13.1k  10%     0.50 USD");
    shell.wait_text("12.3k tokens in, 800 out, 0.50 USD");
    shell.type_keys("q");
    shell.wait_prompt();
}

#[test]
fn r160_recorded_real_agents_report_usage() {
    for (name, expected) in [
        (
            "claude-agent-acp-0.101.0-modes",
            (Some(10), Some(5), None, Some(15), Some(1_000_000), Some(dollars(0.000_14))),
        ),
        ("codex-acp-2.6.0-error-400", (Some(10), Some(5), None, Some(15), Some(258_400), None)),
        ("copilot-1.0.102-error-400", (Some(10), Some(5), None, Some(8997), Some(128_000), None)),
        ("gemini-cli-0.61.0-load", (Some(10), Some(5), None, None, None, None)),
        ("kimi-code-2.1.0-error-400", (None, None, None, Some(15), Some(100_000), None)),
    ] {
        let file = format!("{}/suites/recorded/{name}.ndjson", env!("CARGO_MANIFEST_DIR"));
        let daemon = FakeDaemon::start(&["--recorded", &file], "");
        let task = daemon.completed("Hello");
        // Some agents report it only after the end of the turn.
        wait::poll_until(&format!("{expected:?} of {name}"), || {
            (known(&daemon.task(task.id)) == expected).then_some(())
        });
    }
}

#[test]
fn r160_template_agent_usage_is_read_from_its_output() {
    let line = r#"printf '{"s":"x","r":"hi","usage":{"in":%s,"out":"7"},"total_cost_usd":0.25}\n' "${#1}""#;
    let resume = toml_words(&["sh", "-c", line, "agent", "{prompt}", "{session}"]);
    let more = format!(
        "resume = {resume}\nsession = \"/s\"\nresult = \"/r\"\n\
         tokens = {{ input = \"/usage/in\", output = \"/usage/out\" }}\ncost = \"/total_cost_usd\"\n"
    );
    let silent = shell_agent("silent", "echo hi", "tokens = { input = \"/in\" }\ncost = \"/cost\"");
    let daemon = TestDaemon::builder().config(shell_agent("x", line, &more) + &silent).start();
    let id = daemon.submit_prompt("x", "four");
    daemon.block(&[id]);
    assert_eq!(known(&daemon.task(id)), (Some(4), Some(7), None, None, None, Some(dollars(0.25))));
    daemon.resume(id, "fourty");
    daemon.block(&[id]);
    assert_eq!(known(&daemon.task(id)), (Some(10), Some(14), None, None, None, Some(dollars(0.5))));
    let id = daemon.submit_prompt("silent", "x");
    assert_eq!((daemon.block(&[id])[0].status, daemon.task(id).agent_usage), (Status::Completed, None));
}

#[test]
fn r161_plan_is_shown_with_step_states_and_cleared_by_next_run() {
    let daemon = FakeDaemon::start(&[], "keep_warm = \"1h\"");
    let mut watch = daemon.watch();
    let task = daemon.submit_with(&daemon.prompt_params("plan; tool run tests; say half; await go"));
    let event = watch.until(|event| !event.task.progress.plan.is_empty());
    assert_eq!(event.kind, EventKind::Progress);
    let states: Vec<_> =
        event.task.progress.plan.iter().map(|step| (step.text.as_str(), step.status)).collect();
    assert_eq!(
        states,
        [("Read the prompt", StepStatus::Completed), ("Do as it says", StepStatus::InProgress)]
    );
    watch.until(|event| event.task.progress.tool_calls == 1);
    let mut shell = Terminal::shell(&daemon);
    shell.resize((24, 230));
    shell.type_line("bgctl top");
    for text in ["[x] Read the prompt", "[>] Do as it says", "1 tool call: run tests", "half"] {
        shell.wait_text(text);
    }
    shell.type_keys("q");
    shell.wait_prompt();
    let page = daemon.run(&["status", &task.id.to_string()]).success().stdout_text();
    assert!(page.contains("plan:        [x] Read the prompt\n             [>] Do as it says\n"), "{page}");
    std::fs::write(daemon.home().join("go"), "").unwrap();
    let ended = daemon.ends_as(task.id, Status::Completed);
    assert_eq!(ended.progress.plan.len(), 2, "it says what was done");
    daemon.resume(task.id, "say more");
    assert!(daemon.ends_as(task.id, Status::Completed).progress.plan.is_empty());
}

#[test]
fn r161_plan_length_and_step_text_are_bounded() {
    let daemon = FakeDaemon::start(&[], "");
    let task = daemon.completed("long-plan 1000");
    let plan = daemon.task(task.id).progress.plan;
    assert_eq!(plan.len(), 32);
    assert!(plan.iter().all(|step| step.text.chars().count() <= 200), "{plan:?}");
}
