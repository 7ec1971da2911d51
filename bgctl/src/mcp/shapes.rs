//! The structured content of the tools' answers, with its declared schemas, for clients that ask for it
//! (`--structured`). Some clients give a model only this and not the text, so nothing may be in the text alone.

use std::sync::Arc;

use bgd_shared::notice::InboxItem;
use bgd_shared::order::CancelReason;
use bgd_shared::show;
use bgd_shared::task::{Exit, Kind, Status, Summary, Task};
use bgd_shared::time::Timestamp;
use rmcp::model::JsonObject;
use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;
use serde_json::Value;

use crate::render::order::waiting;
use crate::render::wall::Clock;
use crate::render::{bounded_line, clean, clean_lines};

/// The minimum CPU time in milliseconds for which a run's usage is reported.
const USED_MS: u64 = 1000;

/// Maximum number of characters of a description, a command or an error.
const LINE_CHARS: usize = 500;

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct TaskFacts {
    /// The value to pass as `task_id` to the other tools.
    pub task_id: String,
    /// `pending`, `running`, `resumed`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// `command` or `agent`; `unknown` if only a newer version of bgctl knows it.
    pub kind: String,
    /// Its description, as given by the caller.
    pub description: String,
    /// The machine or cluster that it runs on, if not on the daemon's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Since when that place has been unreachable: the task may have ended there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<String>,
    /// What a pending task waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// For a command started with `ready`: whether it is, or was, ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// True if the user has paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The agent of an agent task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How many times it was resumed.
    pub resumed: u32,
    /// Whether it belongs to another session.
    pub foreign: bool,
    /// The exit code of a command that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it failed or was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why an agent's success is doubtful.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// An agent's last message besides its answer, such as that it is retrying.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_words: Option<String>,
    /// What an agent can do although its permissions are meant to prevent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// When it was submitted.
    pub created_at: String,
    /// How long it has run, or ran, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_time_ms: Option<u64>,
    /// The number of bytes of output so far.
    pub output_bytes: u64,
    /// How many of these bytes were dropped because the daemon's limit was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
    /// Which part of its output is missing because the daemon could not write it, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_warning: Option<String>,
    /// The last line of a running task's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    /// True if it has ended but processes that it started are still running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lingering: Option<bool>,
    /// How many tool calls an agent has made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// The resources that the latest run of a command used, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// The tokens that an agent has consumed in all runs, and their cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed: Option<String>,
    /// An agent's plan: `[x]` is done, `[>]` is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<String>>,
    /// The question that an agent is waiting to have answered: only the user may answer, with `bgctl answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// The result, if not reported before: an agent's answer or a command's output, or a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Whether it was cancelled because its daemon ended, which removes its output as well.
    #[serde(skip)]
    pub ended_with_daemon: bool,
}

/// Something that happened since the last answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct News {
    /// The task concerned.
    pub task_id: String,
    /// `completed`, `failed`, `cancelled` or `needs_input`; `unknown` if only a newer version of bgctl knows it.
    pub event: String,
    /// The full report, with the task's result or a part of it.
    pub text: String,
}

/// Number of tasks by status.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Counts {
    /// Waiting to start.
    pub pending: u64,
    /// Running.
    pub running: u64,
    /// Working on a further prompt.
    pub resumed: u64,
    /// Ended successfully.
    pub completed: u64,
    /// Ended with a failure.
    pub failed: u64,
    /// Ended by request.
    pub cancelled: u64,
}

/// The part common to all answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Head {
    /// Tasks that have ended since the last answer of any of these tools.
    #[serde(rename = "told")]
    pub notices: Vec<News>,
    /// Other news, such as that the daemon was restarted.
    pub notes: Vec<String>,
    /// What was done.
    pub message: String,
    /// What to do next.
    pub next: String,
}

/// Answer of `background_task` and `background_command`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Started {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// The task.
    pub task: TaskFacts,
}

/// Answer of `background_output`.
#[allow(clippy::struct_field_names, reason = "what models read is called what it is")]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Output {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// The task.
    pub task: TaskFacts,
    /// The result of a completed task; otherwise the output so far.
    pub output: String,
    /// Whether `output` is incomplete.
    pub truncated: bool,
    /// The file with all output that was kept.
    pub output_file: String,
}

/// Answer of `background_block`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Blocked {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// Whether the timeout expired before the condition was met.
    pub timed_out: bool,
    /// Whether the wait was shortened because it exceeded this server's maximum.
    pub cut: bool,
    /// All tasks named in the call.
    pub tasks: Vec<TaskFacts>,
    /// The ids of the ended tasks.
    pub finished: Vec<String>,
    /// The ids of the tasks that have not ended.
    pub active: Vec<String>,
    /// The matching line, if it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// Answer of `background_cancel`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Cancelled {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// The tasks, in their current state.
    pub tasks: Vec<TaskFacts>,
    /// How many further tasks are not shown.
    pub not_shown: usize,
}

/// Answer of `background_list`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Listed {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// The tasks, newest first.
    pub tasks: Vec<TaskFacts>,
    /// Whether there are older tasks that are not shown.
    pub more: bool,
    /// The number of tasks by status.
    pub summary: Counts,
}

/// Answer of `background_clear`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Cleared {
    /// The part common to all answers.
    #[serde(flatten)]
    pub head: Head,
    /// How many tasks were removed.
    pub cleared: u64,
}

/// Returns the schema of an answer, without keywords that only some schema readers understand.
pub fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    let mut schema =
        schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    schema.remove("$schema");
    schema.remove("title");
    schema.remove("description");
    let mut value = Value::from(schema);
    tidy(&mut value);
    Arc::new(match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    })
}

/// Removes `format: uint64` and the like, which cause warnings in validators.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(values) => values.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the facts about a task that a model gets to see.
pub fn facts(task: &Task, session: &str) -> TaskFacts {
    let (exit_code, signal) = match &task.exit {
        // How a process reacted to its timeout is irrelevant; the error mentions the timeout.
        _ if task.timed_out => (None, None),
        Some(Exit::Code(code)) => (Some(*code), None),
        Some(Exit::Signal(signal)) => (None, Some(*signal)),
        Some(Exit::Unknown(_)) | None => (None, None),
    };
    let is_active = task.status.is_active();
    TaskFacts {
        task_id: task.id.to_string(),
        status: task.status.as_str().to_owned(),
        kind: match task.kind {
            Kind::Process => "command",
            Kind::Agent => "agent",
            Kind::Unknown => "unknown",
        }
        .to_owned(),
        description: line(&task.description),
        on: task.on.as_deref().map(clean),
        unknown_since: task
            .elsewhere
            .as_ref()
            .and_then(|place| place.unknown_since)
            .filter(|_| is_active)
            .map(|since| since.to_string()),
        waits: waiting(task, &Clock::system(Timestamp::now())).filter(|_| task.status == Status::Pending),
        ready: task.ready.is_some().then_some(task.ready_at.is_some()),
        paused: Some(true).filter(|_| task.paused && is_active),
        agent: task.agent.clone(),
        resumed: task.resume_count,
        foreign: task.session.as_deref() != Some(session),
        exit_code,
        signal,
        error: task.error.as_deref().map(line),
        suspect: task.suspect.as_deref().map(line),
        last_words: task.progress.last_words.as_deref().filter(|_| is_active).map(line),
        warning: task.warning.as_deref().map(line),
        created_at: task.created_at.to_string(),
        run_time_ms: task.run_time_ms(Timestamp::now()),
        output_bytes: task.output.bytes.max(task.progress.output_bytes),
        ended_with_daemon: task.cancel_reason == Some(CancelReason::Shutdown),
        dropped_bytes: Some(task.output.dropped_bytes).filter(|bytes| *bytes > 0),
        output_warning: task.output.loss(),
        last_line: task.progress.last_line.as_deref().filter(|_| is_active).map(line),
        lingering: Some(true).filter(|_| task.lingering && !is_active),
        tool_calls: (task.kind == Kind::Agent).then_some(task.progress.tool_calls),
        // The usage of a short run is of no interest and costs tokens.
        used: task.usage.as_ref().filter(|used| used.cpu_ms() >= USED_MS).map(show::usage),
        consumed: task.agent_usage.as_ref().and_then(show::agent_usage).map(|words| line(&words)),
        plan: Some(task.progress.plan.iter().map(show::step).collect())
            .filter(|plan: &Vec<_>| !plan.is_empty()),
        asks: task
            .progress
            .needs_input
            .as_ref()
            .filter(|_| is_active)
            .map(|asked| clean_lines(&asked.question)),
        result: None,
    }
}

/// Cleans a text and shortens it to one line.
pub fn line(text: &str) -> String {
    bounded_line(text.trim(), LINE_CHARS)
}

/// Combines an inbox item with the text that reports it.
pub fn news(item: &InboxItem, text: String) -> News {
    News { task_id: item.notice.task.id.to_string(), event: item.notice.kind.as_str().to_owned(), text }
}

impl From<Summary> for Counts {
    fn from(summary: Summary) -> Self {
        Self {
            pending: summary.pending,
            running: summary.running,
            resumed: summary.resumed,
            completed: summary.completed,
            failed: summary.failed,
            cancelled: summary.cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_contain_all_fields_the_schema_requires() {
        let task = facts(&crate::render::samples::task(), "s");
        let started = serde_json::to_value(Started { head: Head::default(), task }).unwrap();
        let schema = schema::<Started>();
        for name in schema["required"].as_array().unwrap() {
            assert!(started.get(name.as_str().unwrap()).is_some(), "{name}");
        }
        for name in schema["properties"]["task"]["required"].as_array().unwrap() {
            assert!(started["task"].get(name.as_str().unwrap()).is_some(), "{name}");
        }
    }

    #[test]
    fn schemas_are_objects_without_references() {
        for schema in [
            schema::<Started>(),
            schema::<Output>(),
            schema::<Blocked>(),
            schema::<Cancelled>(),
            schema::<Listed>(),
            schema::<Cleared>(),
        ] {
            let text = serde_json::to_string(&*schema).unwrap();
            assert_eq!(schema["type"], "object", "{text}");
            assert!(!text.contains("$ref") && !text.contains("\"format\""), "{text}");
            let required = schema["required"].as_array().unwrap();
            assert!(required.contains(&"told".into()) && required.contains(&"next".into()), "{text}");
        }
    }
}
