//! Renders the page about a task.

use std::fmt::Write as _;

use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::show;
use bgd_shared::task::{Exit, Kind, Progress, Task};
use bgd_shared::time::Timestamp;

use super::order::{attempt, cancel_reason, dependency, restarts, retries, waiting};
use super::question;
use super::table::{run_time, signal_name, status};
use super::wall::Clock;
use super::{bounded, bytes, clean, quoted, survivors};

/// Maximum length of a prompt on a page, in characters.
const PROMPT_CHARS: usize = 500;

/// Lines of `name: value` with aligned values.
#[derive(Default)]
pub(super) struct Page(pub(super) String);

impl Page {
    pub(super) fn line(&mut self, name: &str, value: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.0, "{:<13}{}", format!("{name}:"), clean(value));
    }

    /// Adds a text of one or more lines, each aligned with the value column.
    fn lines(&mut self, name: &str, value: &str) {
        let mut lines = value.split('\n');
        self.line(name, lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(self.0, "{:<13}{}", "", clean(line));
        }
    }

    pub(super) fn maybe(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    fn time(&mut self, name: &str, at: Option<Timestamp>, clock: &Clock) {
        if let Some(at) = at {
            self.line(
                name,
                &format!("{} ({} ago)", clock.show(at), show::elapsed(clock.now.millis_since(at))),
            );
        }
    }
}

/// Renders everything about a task, with times relative to this clock.
pub fn task(task: &Task, clock: &Clock) -> String {
    let mut page = Page::default();
    page.line("id", &task.id.to_string());
    page.line("status", &status(task, clock));
    page.line("description", &task.description);
    attention(&mut page, task, clock.now);
    work(&mut page, task);
    page.line("folder", &task.cwd.to_string_lossy());
    page.maybe("session", task.session.as_deref());
    page.maybe("channel", task.channel.as_deref());
    page.maybe("key", task.key.as_deref());
    page.maybe("time limit", task.time_limit_ms.map(show::duration).as_deref());
    if !task.tags.is_empty() {
        page.line("tags", &task.tags.join(", "));
    }
    order(&mut page, task, clock);
    page.maybe("pid", task.pid.map(|pid| pid.to_string()).as_deref());
    if task.foreground {
        page.line("foreground", "yes");
    }
    if task.resume_count > 0 {
        let times =
            if task.resume_count == 1 { "once".to_owned() } else { format!("{} times", task.resume_count) };
        page.line("resumed", &times);
    }
    page.time("submitted", Some(task.created_at), clock);
    page.time("started", task.started_at, clock);
    page.maybe("ready when", task.ready.as_ref().map(ToString::to_string).as_deref());
    page.maybe("ready in", task.ready_timeout_ms.map(show::duration).as_deref());
    page.time("ready", task.ready_at, clock);
    page.time("ended", task.completed_at, clock);
    page.time("retrieved", task.retrieved_at, clock);
    if task.started_at.is_some() {
        page.line("run time", &run_time(task, clock.now));
    }
    page.maybe("used", task.usage.as_ref().map(show::usage).as_deref());
    consumed(&mut page, task);
    page.maybe("cancelled", task.cancel_reason.and_then(cancel_reason));
    page.maybe("exit", task.exit.as_ref().map(exit).as_deref());
    page.maybe("error", task.error.as_deref());
    page.maybe("suspect", task.suspect.as_deref());
    page.maybe("warning", task.warning.as_deref());
    if task.lingering {
        let text = survivors(task);
        page.line(
            "lingering",
            text.as_deref().unwrap_or(
                "its main process has ended, but others are still running; `bgctl cancel` ends them",
            ),
        );
    }
    output(&mut page, task, clock);
    page.0
}

/// Adds what the agent has consumed.
fn consumed(page: &mut Page, task: &Task) {
    let Some(usage) = &task.agent_usage else { return };
    page.maybe("consumed", show::agent_tokens(usage).as_deref());
    page.maybe("context", show::agent_context(usage).as_deref());
    page.maybe("cost", usage.cost.as_ref().map(show::cost).as_deref());
}

/// Adds what the task waits for, its place in the queue, and its earlier attempts.
fn order(page: &mut Page, task: &Task, clock: &Clock) {
    elsewhere(page, task, clock);
    page.maybe("waits", waiting(task, clock).as_deref());
    // The line above names the time unless something else comes first.
    let is_named = task.waiting.as_ref().is_some_and(|waiting| waiting.until.is_some());
    let start_at = task.start_at.filter(|_| !is_named);
    page.maybe("not before", start_at.map(|at| clock.near(at)).as_deref());
    page.maybe("retries", task.retry.as_ref().map(retries).as_deref());
    page.maybe("restarts", task.restart.map(restarts));
    // By default, a task on an executor is in the group of the executor's name.
    if task.group != DEFAULT_GROUP && Some(&task.group) != task.on.as_ref() {
        page.line("group", &task.group);
    }
    if let Some(batch) = task.batch {
        page.line("batch", &batch.to_string());
    }
    if let Some(old) = task.rerun_of {
        page.line("rerun of", &old.to_string());
    }
    if task.priority != 0 {
        page.line("priority", &task.priority.to_string());
    }
    if task.slots != 1 {
        page.line("slots", &task.slots.to_string());
    }
    page.maybe("slot", task.slot.map(|slot| slot.to_string()).as_deref());
    for after in &task.after {
        page.line("after", &dependency(after));
    }
    page.maybe("attempt", task.attempt.map(|attempt| attempt.to_string()).as_deref());
    for tried in &task.attempts {
        page.line("  before", &attempt(tried, clock));
    }
}

/// Adds where the task runs, what it requests there, and its known state.
fn elsewhere(page: &mut Page, task: &Task, clock: &Clock) {
    page.maybe("on", task.on.as_deref());
    let asked = &task.resources;
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    page.maybe("cpus", number(asked.cpus).as_deref());
    page.maybe("memory", asked.memory_bytes.map(bytes).as_deref());
    page.maybe("gpus", number(asked.gpus).as_deref());
    page.maybe("partition", asked.partition.as_deref());
    page.maybe("account", asked.account.as_deref());
    page.maybe("qos", asked.qos.as_deref());
    if !asked.options.is_empty() {
        page.line("options", &asked.options.join(" "));
    }
    let Some(known) = &task.elsewhere else { return };
    page.maybe("id there", known.id.as_deref());
    if known.requeued > 0 {
        page.line("requeued", &known.requeued.to_string());
    }
    page.time("not known", known.unknown_since, clock);
    page.maybe("because", known.unknown_because.as_deref());
    page.maybe("refused", known.refused.as_deref());
}

/// Adds the agent's open question, or that the agent has been silent for long.
fn attention(page: &mut Page, task: &Task, now: Timestamp) {
    if !task.status.is_active() {
        return;
    }
    if let Some(asked) = &task.progress.needs_input {
        page.lines("asks", &bounded(asked.question.trim_end(), question::QUESTION_CHARS));
        let widest = asked.options.iter().map(|option| option.id.chars().count()).max().unwrap_or(0);
        for option in &asked.options {
            page.line("  option", &question::line(option, widest));
        }
        page.line("  answer", &question::how(task.id));
        page.maybe("  else", question::expiry(asked, now).as_deref());
        page.maybe("  queued", question::behind(asked).as_deref());
    } else if task.progress.stalled {
        page.line("stalled", "its agent has been silent for a long time; `bgctl cancel` ends it");
    }
    page.maybe("last output", task.progress.last_words.as_deref());
}

/// Adds what the task runs.
fn work(page: &mut Page, task: &Task) {
    if let Some(argv) = &task.argv {
        page.line("command", &quoted(argv));
    }
    if let Some(line) = &task.shell {
        page.lines("shell", line.to_string_lossy().trim_end());
    }
    if let Some(agent) = &task.agent {
        let session = task.agent_session.as_ref().map(|session| format!(", its session {session}"));
        page.line("agent", &format!("{agent}{}", session.unwrap_or_default()));
    }
    page.maybe("mode", task.settings.mode.as_deref());
    page.maybe("model", task.settings.model.as_deref());
    if !task.settings.config.is_empty() {
        let options = task.settings.config.iter().map(|(name, value)| format!("{name}={value}"));
        page.line("options", &options.collect::<Vec<_>>().join(", "));
    }
    page.maybe(
        "prompt",
        task.prompt.as_deref().map(|prompt| bounded(prompt.trim_end(), PROMPT_CHARS)).as_deref(),
    );
}

/// Adds the output so far.
fn output(page: &mut Page, task: &Task, clock: &Clock) {
    let dropped = task.output.dropped_bytes + task.output.stderr_dropped_bytes;
    let mut size = bytes(task.output.bytes);
    if dropped > 0 {
        let _ = write!(size, ", {} of it dropped (limits.output_bytes)", bytes(dropped));
    }
    page.line("output", &size);
    page.maybe("warning", task.output.loss().as_deref());
    if !task.output.path.is_empty() {
        page.line("file", &task.output.path);
    }
    page.maybe("stderr file", task.output.stderr_path.as_deref());
    page.maybe("last line", task.progress.last_line.as_deref());
    if task.kind == Kind::Agent {
        let steps: Vec<String> = task.progress.plan.iter().map(show::step).collect();
        if !steps.is_empty() {
            page.lines("plan", &steps.join("\n"));
        }
        page.line("tools", &tools(&task.progress));
        page.maybe("denied", denied(&task.progress).as_deref());
    }
    page.time("last active", task.progress.updated_at, clock);
}

/// Describes how many tools the agent has called, and which it called last.
fn tools(progress: &Progress) -> String {
    match (progress.tool_calls, progress.last_tools.as_slice()) {
        (0, _) => "none called".to_owned(),
        (count, []) => format!("{count} called"),
        (count, last) => format!("{count} called; last: {}", last.join(", ")),
    }
}

/// Describes the permissions that the agent was denied without asking the user; `None` if there are none.
pub fn denied(progress: &Progress) -> Option<String> {
    let last = progress.last_denied.as_deref().map(clean);
    match (progress.denied, last) {
        (0, _) => None,
        (1, None) => Some("once".to_owned()),
        (1, Some(what)) => Some(format!("once: {what}")),
        (count, None) => Some(format!("{count} times")),
        (count, Some(what)) => Some(format!("{count} times, most recently: {what}")),
    }
}

fn exit(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("code {code}"),
        Exit::Signal(signal) => format!("signal {signal} ({})", signal_name(*signal)),
        Exit::Unknown(why) => format!("unknown: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use crate::render::wall::Zone;
    use bgd_shared::agent::{AgentSettings, NeedsInput, Setting};
    use bgd_shared::consumption::{AgentUsage, Amount, Cost, PlanStep, StepStatus};
    use bgd_shared::id::TaskId;
    use bgd_shared::order::{CancelReason, Condition, Dependency, Restart, Retry, Waiting, WaitingFor};
    use bgd_shared::task::Attempt;
    use bgd_shared::task::Status;

    fn clock(now: i64) -> Clock {
        Clock::of(Timestamp::from_unix_ms(now), Zone::UTC)
    }

    #[test]
    fn task_page_shows_all_known_facts() {
        let mut failed = Task {
            status: Status::Failed,
            argv: Some(vec!["printf".into(), "it's %s".into(), "".into()]),
            exit: Some(Exit::Signal(15)),
            error: Some("timed out after 1s".into()),
            timed_out: true,
            key: Some("build-42".into()),
            time_limit_ms: Some(1000),
            tags: vec!["a".into(), "b".into()],
            started_at: Some(Timestamp::from_unix_ms(1_001_000)),
            completed_at: Some(Timestamp::from_unix_ms(1_002_000)),
            ..samples::task()
        };
        failed.output.bytes = 2048;
        failed.output.dropped_bytes = 1024;
        failed.output.lost_bytes = 7;
        failed.output.lost_because = Some("No space left on device".into());
        let page = task(&failed, &clock(1_062_000));
        for line in [
            "id:          3f2a9c1e-0000-4000-8000-000000000001",
            "status:      failed (timed out after 1s) +output-lost",
            "key:         build-42",
            "time limit:  1s",
            r"command:     printf 'it'\''s %s' ''",
            "ended:       1970-01-01 00:16:42 (1m 00s ago)",
            "run time:    1s",
            "exit:        signal 15 (SIGTERM)",
            "error:       timed out after 1s",
            "tags:        a, b",
            "output:      2.0 KiB, 1.0 KiB of it dropped (limits.output_bytes)",
            "warning:     output incomplete: 7 bytes lost: No space left on device",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("session:"));
    }

    #[test]
    fn r115_task_page_shows_what_a_pending_task_waits_for() {
        let first = TaskId::from_u128(0x91bc_04d2 << 96);
        let tried = Attempt {
            attempt: 1,
            started_at: Timestamp::from_unix_ms(900_000),
            completed_at: Timestamp::from_unix_ms(901_000),
            exit: Some(Exit::Code(7)),
            error: None,
            usage: None,
            offset: 0,
            stderr_offset: None,
        };
        let until = Some(Timestamp::from_unix_ms(1_010_000));
        let pending = Task {
            group: "gpu".into(),
            priority: -3,
            slots: 2,
            after: vec![Dependency { id: first, condition: Condition::Any, met: true }],
            waiting: Some(Waiting { reason: WaitingFor::Retry, ids: Vec::new(), until }),
            attempt: Some(1),
            attempts: vec![tried],
            ready: Some("tcp:8000".parse().unwrap()),
            ready_at: Some(Timestamp::from_unix_ms(990_000)),
            ..samples::task()
        };
        let shown = task(&pending, &clock(1_000_000));
        for line in [
            "status:      pending (retry at 00:16:50)",
            "waits:       until its next attempt at 00:16:50",
            "group:       gpu",
            "priority:    -3",
            "slots:       2",
            "after:       91bc04d2-0000-0000-0000-000000000000 any (met)",
            "attempt:     1",
            "ready when:  tcp:8000",
            "ready:       1970-01-01 00:16:30 (10s ago)",
            "  before:    1 from 1970-01-01 00:15:00, exited with code 7; its output starts at 0",
        ] {
            assert!(shown.lines().any(|known| known == line), "{line} is not in\n{shown}");
        }
        let reason = Some(CancelReason::Dependency);
        let cancelled =
            Task { status: Status::Cancelled, cancel_reason: reason, slot: Some(2), ..samples::task() };
        let shown = task(&cancelled, &clock(1_000_000));
        assert!(
            shown.contains("cancelled:   a task that it waited for did not end as required\n"),
            "{shown}"
        );
        assert!(shown.contains("slot:        2\n") && !shown.contains("group:"), "{shown}");
    }

    #[test]
    fn r115_task_page_shows_start_time_and_retries_behind_what_comes_first() {
        let retry = Retry {
            times: 3,
            delay_ms: Some(1000),
            max_delay_ms: Some(300_000),
            codes: vec![75],
            signal: false,
        };
        let start_at = Some(Timestamp::from_unix_ms(1_010_000));
        let waiting = |reason, until| Some(Waiting { reason, ids: Vec::new(), until });
        let held = Task {
            waiting: waiting(WaitingFor::Held, None),
            start_at,
            retry: Some(retry.clone()),
            ..samples::task()
        };
        let shown = task(&held, &clock(1_000_000));
        for line in ["not before:  00:16:50", "retries:     up to 3, on exit code 75"] {
            assert!(shown.lines().any(|known| known == line), "{line} is not in\n{shown}");
        }
        let next = Task { waiting: waiting(WaitingFor::Until, start_at), retry: None, ..held };
        let shown = task(&next, &clock(1_000_000));
        assert!(shown.contains("until 00:16:50") && !shown.contains("not before:"), "{shown}");
        for (codes, signal, on) in [
            (vec![], false, "up to 3"),
            (vec![1, 75], false, "up to 3, on exit codes 1, 75"),
            (vec![75], true, "up to 3, on exit code 75 or a signal"),
            (vec![], true, "up to 3, on a signal"),
        ] {
            assert_eq!(retries(&Retry { codes, signal, ..retry.clone() }), on);
        }
        let kept = Task { restart: Some(Restart::OnFailure), ..samples::task() };
        assert!(task(&kept, &clock(1_000_000)).contains("restarts:    on failure\n"));
    }

    #[test]
    fn task_page_shows_run_time_of_the_daemon_even_if_the_clock_was_set() {
        let at = |ms| Some(Timestamp::from_unix_ms(ms));
        let (started_at, run_ms) = (at(1_001_000), Some(2_000));
        for completed_at in [at(900_000), at(41_000_000)] {
            let ended =
                Task { status: Status::Completed, started_at, completed_at, run_ms, ..samples::task() };
            let page = task(&ended, &clock(50_000_000));
            assert!(page.contains("run time:    2s\n"), "{page}");
            let older = task(&Task { run_ms: None, ..ended }, &clock(50_000_000));
            assert!(!older.contains("run time:    2s\n"), "{older}");
        }
    }

    #[test]
    fn agent_task_page_shows_activity_and_open_question() {
        let mut asking = Task {
            kind: Kind::Agent,
            status: Status::Resumed,
            argv: None,
            agent: Some("codex".into()),
            settings: AgentSettings {
                mode: Some("plan".into()),
                model: None,
                config: [
                    ("effort".into(), Setting::Text("high".into())),
                    ("fast".into(), Setting::Flag(true)),
                ]
                .into(),
            },
            agent_session: Some("s-1".into()),
            prompt: Some(format!("{}\n", "why ".repeat(1000))),
            resume_count: 1,
            ..samples::task()
        };
        let question = "command: make\n  install\ntitle: List files";
        asking.progress.needs_input = Some(NeedsInput { question: question.into(), ..samples::question() });
        asking.progress.stalled = true;
        asking.progress.last_words = Some("429, try 2".into());
        asking.suspect = Some("its answer looks like an error".into());
        asking.warning = Some("it asks nobody".into());
        asking.progress.tool_calls = 5;
        asking.progress.last_tools = vec!["read".into(), "grep".into()];
        asking.progress.denied = 2;
        asking.progress.last_denied = Some("rm x".into());
        let page = task(&asking, &clock(1_000_000));
        for line in [
            "status:      resumed (asks)",
            "asks:        command: make",
            "               install",
            "             title: List files",
            "  option:    once    Allow once (allows it once)",
            "  option:    reject  No (denies it once)",
            "  else:      denied in 5m 00s unless answered",
            "last output: 429, try 2",
            "suspect:     its answer looks like an error",
            "warning:     it asks nobody",
            "agent:       codex, its session s-1",
            "mode:        plan",
            "options:     effort=high, fast=true",
            "denied:      2 times, most recently: rm x",
            "resumed:     once",
            "tools:       5 called; last: read, grep",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
        assert!(page.contains("bgctl answer 3f2a9c1e OPTION"));
        assert!(!page.contains("stalled:") && !page.contains("behind it"), "{page}");
        let prompt = page.lines().find(|line| line.starts_with("prompt:")).unwrap();
        assert!(prompt.ends_with("… (3999 characters)") && prompt.len() < 600, "{prompt}");
        asking.progress.needs_input = None;
        assert!(task(&asking, &clock(1_000_000)).contains("stalled:     its agent has been silent"));
        asking.status = Status::Failed;
        assert!(!task(&asking, &clock(1_000_000)).contains("stalled"));
    }

    #[test]
    fn r161_agent_task_page_shows_plan_and_consumption() {
        let mut asking = Task { kind: Kind::Agent, agent: Some("codex".into()), ..samples::task() };
        let step = |text: &str, status| PlanStep { text: text.into(), status };
        asking.progress.plan = vec![
            step("read the code", StepStatus::Completed),
            step("mend \x1b[2Jit", StepStatus::InProgress),
            step("test it", StepStatus::Pending),
        ];
        asking.agent_usage = Some(AgentUsage {
            input_tokens: Some(12_345),
            output_tokens: Some(800),
            cached_tokens: None,
            context_tokens: Some(45_000),
            context_size: Some(200_000),
            cost: Amount::of(1.2).map(|amount| Cost { amount, currency: "USD".into() }),
        });
        let page = task(&asking, &clock(1_000_000));
        for line in [
            "plan:        [x] read the code",
            "             [>] mend \u{fffd}[2Jit",
            "             [ ] test it",
            "consumed:    12.3k tokens in, 800 out",
            "context:     45.0k of 200.0k tokens (22%)",
            "cost:        1.20 USD",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
    }
}
