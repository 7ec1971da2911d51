//! `bgctl daemon status`, and the same as `OpenMetrics` text, parsed by Prometheus' own client (R08).

use std::io::Write as _;
use std::process::{Command, Stdio};

use bgd_tests::shared::order::Retry;
use bgd_tests::shared::request::SubmitParams;
use bgd_tests::shared::task::Status;
use bgd_tests::{TestDaemon, wait};
use serde_json::{Value, json};

/// Reads `OpenMetrics` text and prints its families and samples as JSON.
const PARSER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
out = {}
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        key = sample.name + json.dumps(sample.labels, sort_keys=True)
        assert key not in out, key
        value = int(sample.value) if sample.value == int(sample.value) else sample.value
        out[key] = {'type': family.type, 'unit': family.unit, 'help': family.documentation, 'value': value}
print(json.dumps(out))
";

/// Returns the samples of the daemon, by name and labels.
fn samples(daemon: &TestDaemon) -> Value {
    let text = daemon.run(&["daemon", "status", "--openmetrics"]).success().stdout_text();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    // Readers of the older text format, such as node_exporter's textfile collector, know only these types.
    for of in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').nth(1)) {
        assert!(["counter", "gauge", "histogram"].contains(&of), "{of}");
    }
    // The interpreter that Debian's package is made for.
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser refuses\n{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn value<'a>(samples: &'a Value, name: &str, labels: &Value) -> &'a Value {
    let sample = &samples[format!("{name}{}", spaced(labels))];
    assert!(!sample["help"].as_str().unwrap_or_default().is_empty(), "{name} {labels} is not in {samples:#}");
    &sample["value"]
}

/// Returns the labels as Python formats them.
fn spaced(labels: &Value) -> String {
    let labels = labels.as_object().unwrap().iter().map(|(name, value)| format!("\"{name}\": {value}"));
    format!("{{{}}}", labels.collect::<Vec<_>>().join(", "))
}

#[track_caller]
fn count(samples: &Value, name: &str, labels: &Value) -> u64 {
    value(samples, name, labels).as_u64().unwrap_or_else(|| panic!("{name} {labels} is no count"))
}

#[track_caller]
fn plain(samples: &Value, name: &str) -> u64 {
    count(samples, name, &json!({}))
}

const CONFIG: &str = "max_concurrent_tasks = 2\ndefault_deliver_to = [\"a\\\"b\\\\\"]\n\
    [channels.'a\"b\\']\ntype = \"exec\"\ncommand = [\"true\"]\n";

#[test]
fn r08_openmetrics_reports_the_figures_of_the_daemon() {
    let daemon = TestDaemon::builder().config(CONFIG).start();
    let fresh = samples(&daemon);
    assert_eq!(plain(&fresh, "bgd_events_total"), 0);
    let done = daemon.submit_in("s", "true");
    let failed = daemon.submit_in("s", "false");
    daemon.block(&[done, failed]);
    let running = [daemon.submit(&["sleep", "1000"]), daemon.submit(&["sleep", "1000"])];
    for id in running {
        daemon.wait_running(id);
    }
    let pending = daemon.submit(&["true"]);
    let watch = daemon.watch();
    let status = daemon.status();
    let samples = samples(&daemon);
    let tasks = |status: &str| count(&samples, "bgd_tasks", &json!({"status": status}));
    assert_eq!(
        ["pending", "running", "resumed", "completed", "failed", "cancelled"].map(tasks),
        [1, 2, 0, 1, 1, 0]
    );
    for (name, figure) in [
        ("bgd_queue_length", 1),
        ("bgd_slots", 2),
        ("bgd_subscriptions", 1),
        ("bgd_events_total", status.seq),
        ("bgd_inboxes", 1),
        ("bgd_inbox_items", 2),
        ("bgd_inbox_lost_total", 0),
        ("bgd_untold_total", 0),
        ("bgd_warnings", status.warnings.len() as u64),
        ("bgd_task_wait_seconds_count", 4),
        ("bgd_task_run_seconds_count", 2),
    ] {
        assert_eq!(plain(&samples, name), figure, "{name}");
    }
    assert!(plain(&samples, "bgd_resident_memory_bytes") > 100_000);
    assert!(plain(&samples, "bgd_connections") >= 2);
    let up = value(&samples, "bgd_uptime_seconds", &json!({})).as_f64().unwrap();
    assert!(up > 0.0 && up < 3600.0, "{up} seconds");
    let info = json!({"instance": status.instance, "version": status.version});
    assert_eq!(count(&samples, "bgd_info", &info), 1);
    let all = json!({"le": "+Inf"});
    assert_eq!(count(&samples, "bgd_task_wait_seconds_bucket", &all), 4);
    assert_eq!(count(&samples, "bgd_task_run_seconds_bucket", &all), 2);
    let day = json!({"le": "86400.0"});
    assert_eq!(count(&samples, "bgd_task_run_seconds_bucket", &day), 2);
    let of = |outcome| json!({"channel": "a\"b\\", "outcome": outcome, "type": "exec"});
    let notices =
        ["sent", "failed", "dropped"].map(|outcome| count(&samples, "bgd_notices_total", &of(outcome)));
    let queued = count(&samples, "bgd_notices_queued", &json!({"channel": "a\"b\\", "type": "exec"}));
    // A start and an end of each, except for the running ones.
    assert_eq!(notices.iter().sum::<u64>() + queued, 6);
    for (name, kind) in [
        ("bgd_events_total{}", "counter"),
        ("bgd_task_wait_seconds_count{}", "histogram"),
        ("bgd_connections{}", "gauge"),
    ] {
        assert_eq!(samples[name]["type"], kind, "{name}");
    }
    assert_eq!(samples["bgd_resident_memory_bytes{}"]["unit"], "bytes");
    drop(watch);
    daemon.cancel(&[&running[..], &[pending]].concat());
}

#[test]
fn r08_run_time_counts_each_attempt_and_no_wait_for_the_next() {
    let daemon = TestDaemon::start();
    let submit = |delay_ms| {
        let (delay_ms, max_delay_ms, codes) = (Some(delay_ms), Some(delay_ms), Vec::new());
        let retry = Some(Retry { times: 2, delay_ms, max_delay_ms, codes, signal: false });
        daemon.submit_with(&SubmitParams { shell: Some("exit 3".into()), retry, ..daemon.params() }).id
    };
    let all = submit(0);
    assert_eq!(daemon.block(&[all])[0].attempts.len(), 2);
    // The delay is random: that of a second or less is improbable.
    let waits = submit(365 * 24 * 3600 * 1000);
    wait::poll_until("it waits for its next attempt", || {
        let task = daemon.task(waits);
        (task.status == Status::Pending && !task.attempts.is_empty()).then_some(())
    });
    assert_eq!(daemon.status().ran.count, 4);
    let task = daemon.cancel(&[waits]).remove(0);
    assert_eq!((task.status, task.attempts.len()), (Status::Cancelled, 1));
    assert_eq!(daemon.status().ran.count, 4);
}

#[test]
fn r08_wait_time_counts_only_the_first_start() {
    let daemon = TestDaemon::start();
    let retry = Retry { times: 2, delay_ms: Some(0), max_delay_ms: None, codes: Vec::new(), signal: false };
    let params = SubmitParams { shell: Some("exit 3".into()), retry: Some(retry), ..daemon.params() };
    let task = daemon.block(&[daemon.submit_with(&params).id])[0].clone();
    assert!(!task.attempts.is_empty(), "{task:?}");
    assert_eq!(daemon.status().waited.count, 1);
}

#[test]
fn r08_status_page_shows_the_figures_as_plain_text() {
    let daemon = TestDaemon::start();
    let page = || daemon.run(&["daemon", "status"]).success().stdout_text();
    assert!(!page().contains("waited:") && !page().contains("inboxes:"), "{}", page());
    let ids = [daemon.submit_in("s", "true"), daemon.submit_in("t", "true")];
    daemon.block(&ids);
    let page = page();
    for part in [
        "\ntasks:       2 completed\n",
        "\nwaited:      2 times, ",
        "\nran:         2 times, ",
        "\ninboxes:     2 notices for 2 sessions\n",
        "\nnot sent:    2 notifications without a channel",
        &format!("\ninstance:    {}\n", daemon.status().instance),
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let refused = daemon.run(&["daemon", "status", "--openmetrics", "--json"]).expect_code(2);
    assert!(refused.stdout.is_empty());
    let mut daemon = daemon;
    daemon.stop();
    let gone = daemon.run(&["daemon", "status", "--openmetrics"]).expect_code(69);
    assert!(gone.stdout.is_empty());
}
