//! Pages: everything about one task, and about the daemon.

use std::fmt::Write as _;

use bgd_shared::request::DaemonStatus;
use bgd_shared::task::{Exit, Kind, Status, Task};
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::table::{between, run_time, signal_name, status};
use super::{bytes, clean};
use crate::duration::show_ms;

/// Lines of `name: value`, the values below each other.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, value: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.0, "{:<13}{}", format!("{name}:"), clean(value));
    }

    fn maybe(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    fn time(&mut self, name: &str, at: Option<Timestamp>, now: Timestamp) {
        if let Some(at) = at {
            self.line(name, &format!("{at} ({} ago)", show_ms(between(at, now))));
        }
    }
}

/// Everything about a task.
pub fn task(task: &Task, now: Timestamp) -> String {
    let mut page = Page::default();
    page.line("id", &task.id.to_string());
    page.line("status", &status(task));
    page.line("description", &task.description);
    work(&mut page, task);
    page.line("folder", &task.cwd.to_string_lossy());
    page.maybe("session", task.session.as_deref());
    page.maybe("channel", task.channel.as_deref());
    if !task.tags.is_empty() {
        page.line("tags", &task.tags.join(", "));
    }
    page.maybe("pid", task.pid.map(|pid| pid.to_string()).as_deref());
    if task.foreground {
        page.line("foreground", "yes");
    }
    if task.resume_count > 0 {
        page.line("resumed", &format!("{} times", task.resume_count));
    }
    page.time("submitted", Some(task.created_at), now);
    page.time("started", task.started_at, now);
    page.time("ended", task.completed_at, now);
    page.time("retrieved", task.retrieved_at, now);
    if task.started_at.is_some() {
        page.line("run time", &run_time(task, now));
    }
    page.maybe("exit", task.exit.as_ref().map(exit).as_deref());
    page.maybe("error", task.error.as_deref());
    if task.lingering {
        page.line("lingering", "its first process has ended, others of it live on; `bgctl cancel` ends them");
    }
    output(&mut page, task, now);
    page.0
}

/// What the task does.
fn work(page: &mut Page, task: &Task) {
    if let Some(argv) = &task.argv {
        let words: Vec<String> = argv.iter().map(quoted).collect();
        page.line("command", &words.join(" "));
    }
    page.maybe("shell", task.shell.as_ref().map(|line| line.to_string_lossy()).as_deref());
    page.maybe("agent", task.agent.as_deref());
    page.maybe("conversation", task.agent_session.as_deref());
    page.maybe("prompt", task.prompt.as_deref());
}

/// What came of it so far.
fn output(page: &mut Page, task: &Task, now: Timestamp) {
    let dropped = task.output.dropped_bytes + task.output.stderr_dropped_bytes;
    let mut size = bytes(task.output.bytes);
    if dropped > 0 {
        let _ = write!(size, ", {} of it dropped (limits.output_bytes)", bytes(dropped));
    }
    page.line("output", &size);
    if !task.output.path.is_empty() {
        page.line("file", &task.output.path);
    }
    page.maybe("stderr file", task.output.stderr_path.as_deref());
    page.maybe("last line", task.progress.last_line.as_deref());
    if task.kind == Kind::Agent {
        let last = task.progress.last_tools.join(", ");
        page.line("tools", &format!("{} called; last: {last}", task.progress.tool_calls));
    }
    page.time("last moved", task.progress.updated_at, now);
}

fn exit(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("code {code}"),
        Exit::Signal(signal) => format!("signal {signal} ({})", signal_name(*signal)),
        Exit::Unknown(why) => format!("unknown: {why}"),
    }
}

/// An argument as a shell would have to be given it, so that the line can be copied.
fn quoted(word: &OsText) -> String {
    let text = word.to_string_lossy();
    let is_plain = |character: char| character.is_alphanumeric() || "-_./=:,+@%^".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// How the daemon is.
pub fn daemon(status: &DaemonStatus) -> String {
    let mut page = Page::default();
    page.line("daemon", &format!("bgd {}, pid {}", status.version, status.pid));
    page.line("up", &show_ms(status.uptime_ms));
    let counts: Vec<String> = Status::ALL
        .into_iter()
        .filter(|state| status.summary.count(*state) > 0)
        .map(|state| format!("{} {state}", status.summary.count(state)))
        .collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    page.line("tasks", &counts);
    page.line("active", &format!("{}, {} at once", status.active, status.limits.max_concurrent_tasks));
    page.line("memory", &bytes(status.memory_bytes));
    page.line("connections", &format!("{}, {} subscriptions", status.connections, status.subscriptions));
    page.line("last event", &status.seq.to_string());
    page.line("socket", &status.socket);
    page.line("state", &status.state_dir);
    let note = if status.config_loaded { "" } else { " (not in force; all values are the defaults)" };
    page.line("config", &format!("{}{note}", status.config));
    page.line("trees by", &status.tree);
    page.line("instance", &status.instance);
    for warning in &status.warnings {
        page.line("warning", warning);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn a_page_names_everything_that_is_known() {
        let mut failed = Task {
            status: Status::Failed,
            argv: Some(vec!["printf".into(), "it's %s".into(), "".into()]),
            exit: Some(Exit::Signal(15)),
            error: Some("timed out after 1s".into()),
            tags: vec!["a".into(), "b".into()],
            started_at: Some(Timestamp::from_unix_ms(1_001_000)),
            completed_at: Some(Timestamp::from_unix_ms(1_002_000)),
            ..samples::task()
        };
        failed.output.bytes = 2048;
        failed.output.dropped_bytes = 1024;
        let page = task(&failed, Timestamp::from_unix_ms(1_062_000));
        for line in [
            "id:          3f2a9c1e-0000-4000-8000-000000000001",
            "status:      failed (SIGTERM)",
            r"command:     printf 'it'\''s %s' ''",
            "ended:       1970-01-01T00:16:42.000Z (1m 00s ago)",
            "run time:    1s",
            "exit:        signal 15 (SIGTERM)",
            "error:       timed out after 1s",
            "tags:        a, b",
            "output:      2.0 KiB, 1.0 KiB of it dropped (limits.output_bytes)",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("session:"));
    }
}
