//! The tools as a client lists them: names, parameters, and descriptions written for a model.

use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::limits::BLOCK_TIMEOUT_MS;
use bgd_shared::request::BlockUntil;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::shapes::{self, Blocked, Cancelled, Cleared, Listed, Output, Started};

/// A parameter of a tool.
#[derive(Debug)]
pub struct Parameter {
    pub name: &'static str,
    /// The description for the model.
    pub about: &'static str,
    pub form: Form,
    pub required: bool,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Text,
    Texts,
    /// A duration in milliseconds.
    Wait,
    /// A boolean.
    Flag,
    Status,
    /// A task state to wait for.
    Until,
    /// A place other than the daemon's machine. Omitted if none is configured.
    Place,
}

/// Facts about the daemon and the client that the tool descriptions depend on.
#[derive(Clone, Debug, Default)]
pub struct Available {
    /// The sentence about the available agents.
    pub agents: String,
    /// The configured places other than the daemon's machine (R145).
    pub places: Vec<String>,
    /// The longest wait in milliseconds; `None` if there is no maximum.
    pub longest_wait_ms: Option<u64>,
}

#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    /// Its display name.
    pub title: &'static str,
    /// The description: when to use the tool, what it returns, what to do next.
    pub about: &'static str,
    pub parameters: &'static [Parameter],
    /// Whether it starts tasks.
    pub starts: bool,
}

const fn parameter(name: &'static str, form: Form, about: &'static str) -> Parameter {
    Parameter { name, about, form, required: false }
}

const fn required(name: &'static str, form: Form, about: &'static str) -> Parameter {
    Parameter { name, about, form, required: true }
}

/// R117: the tasks that a new task waits for.
const AFTER: Parameter = parameter(
    "after",
    Form::Texts,
    "start it after these tasks: [\"ID\"] (completed), or \"ID:any\" (ended), \"ID:fail\", \"ID:start\", \"ID:ready\"",
);

/// R117: the group whose slots a task uses.
const GROUP: Parameter = parameter("group", Form::Text, "a slot group created by the user, such as \"gpu\"");

/// R37: starts and resumes agents.
pub const TASK: Spec = Spec {
    name: "background_task",
    title: "Start or resume an agent",
    about: "Give a prompt to another AI agent (a subagent), which works in the background. Use it for self-contained \
        work: research, a review, changes elsewhere. It works in this server's folder and does not know this conversation: put all it needs into the prompt.\n\
        New: give description and prompt. Resume: give resume and prompt; the agent remembers the \
        conversation.\n\
        Returns a task_id at once. Continue with other work: a later result of these tools starts with the answer. If nothing else is left to do, wait with background_block.",
    parameters: &[
        parameter("resume", Form::Text, "the task_id of a completed agent task"),
        parameter("description", Form::Text, "what it is about, in 3 to 5 words"),
        required(
            "prompt",
            Form::Text,
            "what the agent should do; {after.output} in it becomes the output of the first task in after",
        ),
        parameter("agent", Form::Text, "name, if not the default"),
        parameter("model", Form::Text, "the model's id"),
        AFTER,
        GROUP,
    ],
    starts: true,
};

/// Starts a command.
pub const COMMAND: Spec = Spec {
    name: "background_command",
    title: "Start a shell command",
    about: "Run a shell command in the background. Use it for anything that takes more than a few seconds: \
         builds, tests, \
        servers, downloads. It runs in /bin/sh with this server's environment and no input; do not add & or nohup.\n\
        Returns a task_id at once. Continue with other work: a later result of these tools reports its end and last output. Use after to start the next command now.",
    parameters: &[
        required("command", Form::Text, "the command line for /bin/sh"),
        parameter("cwd", Form::Text, "the folder to run in; default: this server's"),
        parameter("description", Form::Text, "what it does, in a few words; default: the command"),
        AFTER,
        GROUP,
        parameter(
            "ready",
            Form::Text,
            "how to tell that a server is up: tcp:8000, http://localhost:8000/, line:REGEX (in its output), \
             file:PATH",
        ),
        parameter(
            "on",
            Form::Place,
            "run it on this machine or cluster instead; cwd is then an absolute path there",
        ),
    ],
    starts: true,
};

/// R20, R21: shows one task.
pub const OUTPUT: Spec = Spec {
    name: "background_output",
    title: "Show a task",
    about: "Show a background task: its status, and its result if completed, else its output so far. Never waits: \
         do not poll with it. Long output is truncated (to the end for a command, to the beginning for an agent); \
         a file has all of it.",
    parameters: &[required("task_id", Form::Text, "the task's id, or at least its first 4 characters")],
    starts: false,
};

/// R22 to R25: waits for tasks.
pub const BLOCK: Spec = Spec {
    name: "background_block",
    title: "Wait for tasks",
    about: "Wait until all given tasks have ended, one asks the user a question, or the timeout expires. Use it \
         only when you can't continue without them. Returns their statuses and new results; after a timeout they \
         keep running.",
    parameters: &[
        required("task_ids", Form::Texts, "the tasks, at most 100"),
        parameter("timeout", Form::Wait, "in milliseconds"),
        parameter("until", Form::Until, "ready: wait only until they are ready"),
        parameter(
            "line",
            Form::Text,
            "a regex such as \"on port \\d+\": wait until the single task prints a matching line, and return it",
        ),
    ],
    starts: false,
};

/// R05: cancels tasks.
pub const CANCEL: Spec = Spec {
    name: "background_cancel",
    title: "Cancel tasks",
    about: "Cancel background tasks of this session, ending all their processes. Returns when they have ended, or \
         says that they need more time. Their output is kept.",
    parameters: &[
        parameter("task_ids", Form::Texts, "the tasks to cancel"),
        parameter("task_id", Form::Text, "the same for one task"),
        parameter("all", Form::Flag, "true: every active task of this session"),
    ],
    starts: false,
};

/// R06, R38: lists tasks.
pub const LIST: Spec = Spec {
    name: "background_list",
    title: "List tasks",
    about: "List the newest 50 background tasks of this session, with ids, statuses and what they wait for. \
        resumed: an agent works on a follow-up prompt.",
    parameters: &[
        parameter("status", Form::Status, "only tasks with this status"),
        parameter("text", Form::Text, "only those with this text"),
        parameter("since", Form::Text, "omit what ended before 2h (ago), 14:30, a date"),
        parameter("all", Form::Flag, "true: those of all sessions, if allowed (--all-sessions)"),
    ],
    starts: false,
};

/// R10: removes ended tasks.
pub const CLEAR: Spec = Spec {
    name: "background_clear",
    title: "Delete finished tasks",
    about: "Delete the finished tasks of this session and their output. A deleted agent task can't be resumed.",
    parameters: &[
        parameter("task_ids", Form::Texts, "only these; default: all finished tasks"),
        parameter("all", Form::Flag, "true: active tasks too, cancelling them first"),
    ],
    starts: false,
};

pub const TOOLS: [&Spec; 7] = [&TASK, &COMMAND, &OUTPUT, &BLOCK, &CANCEL, &LIST, &CLEAR];

/// Returns the tool of this name.
pub fn find(name: &str) -> Option<&'static Spec> {
    TOOLS.into_iter().find(|tool| tool.name == name)
}

impl Spec {
    /// Returns the tool as a client lists it. The sentence about agents is appended to the description of the tool that
    /// has an agent parameter. `structured` declares the schema of the answer.
    pub fn listed(&self, available: &Available, structured: bool) -> Tool {
        let about = if self.name == TASK.name {
            format!("{}\n{}", self.about, available.agents)
        } else {
            self.about.to_owned()
        };
        let tool = Tool::new(self.name, about, self.input(available))
            .with_title(self.title)
            .with_annotations(self.annotations());
        if structured { tool.with_raw_output_schema(self.output()) } else { tool }
    }

    /// Reports whether the tool has this parameter, be it listed or not.
    pub fn declares(&self, name: &str) -> bool {
        self.parameters.iter().any(|known| known.name == name)
    }

    /// Returns the parameters that a client gets to see. `has_places`: places other than the daemon's machine are
    /// configured.
    pub fn listed_parameters(&self, has_places: bool) -> impl Iterator<Item = &'static Parameter> {
        let is_there = move |parameter: &&Parameter| has_places || !matches!(parameter.form, Form::Place);
        self.parameters.iter().filter(is_there)
    }

    fn input(&self, available: &Available) -> Arc<JsonObject> {
        let properties = self.listed_parameters(!available.places.is_empty());
        let properties: JsonObject =
            properties.map(|parameter| (parameter.name.to_owned(), parameter.schema(available))).collect();
        let required: Vec<&str> = self
            .parameters
            .iter()
            .filter(|parameter| parameter.required)
            .map(|parameter| parameter.name)
            .collect();
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), "object".into());
        schema.insert("properties".to_owned(), properties.into());
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        Arc::new(schema)
    }

    fn output(&self) -> Arc<JsonObject> {
        match self.name {
            "background_output" => shapes::schema::<Output>(),
            "background_block" => shapes::schema::<Blocked>(),
            "background_cancel" => shapes::schema::<Cancelled>(),
            "background_list" => shapes::schema::<Listed>(),
            "background_clear" => shapes::schema::<Cleared>(),
            _ => shapes::schema::<Started>(),
        }
    }

    fn annotations(&self) -> ToolAnnotations {
        let ends = self.name == CANCEL.name || self.name == CLEAR.name;
        let looks = !self.starts && !ends;
        // Commands and agents may do anything. The title is set on the tool itself.
        ToolAnnotations::new().read_only(looks).destructive(self.starts || ends).open_world(self.starts)
    }
}

impl Parameter {
    fn schema(&self, available: &Available) -> Value {
        match self.form {
            Form::Place => json!({"type": "string", "enum": available.places, "description": self.about}),
            Form::Text => json!({"type": "string", "description": self.about}),
            Form::Texts => json!({"type": "array", "items": {"type": "string"}, "description": self.about}),
            Form::Wait => {
                let default = BLOCK_TIMEOUT_MS.min(available.longest_wait_ms.unwrap_or(BLOCK_TIMEOUT_MS));
                let about = format!("{}; default: {default}", self.about);
                json!({"type": "integer", "minimum": 0, "description": about})
            }
            Form::Flag => json!({"type": "boolean", "description": self.about}),
            Form::Until => {
                json!({"type": "string", "enum": [BlockUntil::Ended, BlockUntil::Ready], "description": self.about})
            }
            Form::Status => {
                let known: Vec<&str> =
                    bgd_shared::task::Status::ALL.iter().map(|status| status.as_str()).collect();
                json!({"type": "string", "enum": known, "description": self.about})
            }
        }
    }
}

/// Returns the sentence about the available agents.
pub fn agents(agents: &[AgentInfo]) -> String {
    let available: Vec<String> = agents
        .iter()
        .filter(|agent| agent.available)
        .map(|agent| if agent.default { format!("{} (the default)", agent.name) } else { agent.name.clone() })
        .collect();
    if available.is_empty() {
        return "No agent is available on this machine, so this tool does not work: `bgctl agents` shows the user \
             how to install one."
            .to_owned();
    }
    format!("Available agents: {}.", available.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r80_tools_have_the_expected_names_and_parameters() {
        let shown: Vec<String> = TOOLS
            .iter()
            .map(|tool| {
                let names: Vec<_> = tool.parameters.iter().map(|parameter| parameter.name).collect();
                format!("{}({})", tool.name, names.join(", "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "background_task(resume, description, prompt, agent, model, after, group)",
                "background_command(command, cwd, description, after, group, ready, on)",
                "background_output(task_id)",
                "background_block(task_ids, timeout, until, line)",
                "background_cancel(task_ids, task_id, all)",
                "background_list(status, text, since, all)",
                "background_clear(task_ids, all)",
            ]
        );
    }

    #[test]
    fn tool_annotations_mark_read_only_and_destructive_tools() {
        let of = |spec: &Spec| {
            let tool = spec.listed(&Available::default(), false);
            let hints = tool.annotations.unwrap();
            (hints.read_only_hint.unwrap(), hints.destructive_hint.unwrap(), hints.open_world_hint.unwrap())
        };
        assert_eq!(of(&LIST), (true, false, false));
        assert_eq!(of(&OUTPUT), (true, false, false));
        assert_eq!(of(&BLOCK), (true, false, false));
        assert_eq!(of(&CANCEL), (false, true, false));
        assert_eq!(of(&CLEAR), (false, true, false));
        assert_eq!(of(&COMMAND), (false, true, true));
        assert_eq!(of(&TASK), (false, true, true));
    }

    #[test]
    fn task_tool_description_lists_available_agents() {
        assert!(agents(&[]).starts_with("No agent is available"));
        let available = Available { agents: "Available agents: codex.".to_owned(), ..Available::default() };
        let tool = TASK.listed(&available, false);
        assert!(tool.description.unwrap().ends_with("\nAvailable agents: codex."));
        assert!(!COMMAND.listed(&available, false).description.unwrap().contains("codex"));
    }

    #[test]
    fn r22_block_tool_describes_actual_default_timeout() {
        let of = |longest_wait_ms| {
            let tool = BLOCK.listed(&Available { longest_wait_ms, ..Available::default() }, false);
            tool.input_schema["properties"]["timeout"]["description"].as_str().unwrap().to_owned()
        };
        assert_eq!(of(Some(50_000)), "in milliseconds; default: 50000");
        assert_eq!(of(Some(300_000)), "in milliseconds; default: 60000");
        assert_eq!(of(None), "in milliseconds; default: 60000");
    }

    #[test]
    fn r145_on_parameter_lists_places_if_any_are_configured() {
        let on = |places: &[&str]| {
            let places = places.iter().map(ToString::to_string).collect();
            let tool = COMMAND.listed(&Available { places, ..Available::default() }, false);
            tool.input_schema["properties"].get("on").map(|on| on["enum"].clone())
        };
        assert_eq!(on(&[]), None);
        assert_eq!(on(&["far", "hpc"]), Some(json!(["far", "hpc"])));
    }
}
