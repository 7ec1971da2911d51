//! The tools that start, inspect, cancel and remove tasks.

mod block;
mod clear;
mod progress;
mod seek;

use std::collections::HashMap;
use std::sync::Arc;

use bgd_shared::agent::{AgentInfo, AgentListParams, AgentSettings};
use bgd_shared::id::{TaskId, TaskRef, made_up_key};
use bgd_shared::limits::{LIST_PAGE, OUTPUT_CHUNK_BYTES};
use bgd_shared::order::{After, WaitingFor};
use bgd_shared::request::{
    AgentList, BlockParams, CancelParams, Chosen, IdParams, LOCAL_EXECUTOR, ListParams, ListResult,
    OutputParams, SubmitParams, TaskBlock, TaskCancel, TaskGet, TaskList, TaskOutput, TaskResultOf,
    TaskSubmit,
};
use bgd_shared::task::{Kind, Status, Task};
use rmcp::model::RequestId;

pub use self::clear::Removable;
use super::answer::{Body, ToolAnswer};
use super::arguments::Arguments;
use super::catalogue;
use super::refusal::Refusal;
use super::shared::Shared;
use super::variables::{DEPTH, with_variable};
use super::waits::Wait;
use super::words;
use crate::render::survivors;

/// Maximum number of tasks in one list.
const LISTED: usize = 50;

/// The longest command line in bytes: the system limits an argument to 128 KiB including its terminating NUL.
const COMMAND_BYTES: usize = 128 * 1024 - 1;

/// The outcome of a call.
#[derive(Debug)]
pub enum Reply {
    Now(Box<ToolAnswer>),
    /// An MCP task that the client polls for the answer.
    Later(Arc<Wait>),
}

/// The reason why tasks of other sessions are hidden.
const OWN_ONLY: &str = "this server shows the tasks of its own session only. The user can show you others with \
     `bgctl`, or with `--all-sessions` in the command of this server.";

impl From<ToolAnswer> for Reply {
    fn from(answer: ToolAnswer) -> Self {
        Self::Now(Box::new(answer))
    }
}

/// Says which parameters a resume does not consider although they differ from what its task has (R37); empty if none.
fn ignored_by_resume(arguments: &Arguments, task: &Task) -> Result<&'static str, Refusal> {
    let (agent, description) = (arguments.text("agent")?, arguments.text("description")?);
    let differs = |given: Option<String>, known: Option<&str>| {
        given.is_some_and(|given| known.is_none_or(|known| known.trim() != given.trim()))
    };
    Ok(match (differs(agent, task.agent.as_deref()), differs(description, Some(&task.description))) {
        (false, false) => "",
        (true, false) => " It is the agent of the task: \"agent\" was ignored.",
        (false, true) => " The task keeps its description: \"description\" was ignored.",
        (true, true) => {
            " The task keeps its agent and its description: \"agent\" and \"description\" were ignored."
        }
    })
}

impl Shared {
    /// `background_task`: starts or resumes an agent (R37).
    pub(super) async fn task(self: &Arc<Self>, arguments: &Arguments) -> Result<ToolAnswer, Refusal> {
        let prompt = arguments.text("prompt")?;
        // There is no mode parameter: only the user decides what an agent may do without asking.
        let model = arguments.text("model")?.map(|model| model.trim().to_owned());
        let settings = AgentSettings { model, ..AgentSettings::default() };
        let (after, group) = self.order(arguments).await?;
        if let Some(resume) = arguments.task("resume")? {
            if !after.is_empty() || group.is_some() {
                return Err(Refusal::new(
                    "background_task: \"after\" and \"group\" can't be combined with \"resume\": the agent gets \
                     the prompt at once. Omit them, or start a new task.",
                ));
            }
            let Some(prompt) = prompt else { return Err(arguments.missing(&["prompt"])) };
            let asked = self.own_task(&resume, "resumed").await?;
            let ignored = ignored_by_resume(arguments, &asked)?;
            let params = SubmitParams {
                resume: Some(resume),
                prompt: Some(prompt),
                settings,
                ..SubmitParams::default()
            };
            // A resume has no key that would make repeating the call harmless.
            let outcome = self.link.call_once::<TaskSubmit>(params).await;
            let task = outcome.map_err(|failure| Refusal::of_resume(failure, &asked))?.task;
            let next = format!(
                "The agent is working on it, with the whole earlier conversation. {}",
                words::while_running(&[task.id.to_string()])
            );
            let opening = format!("The agent has the prompt; this is resume {}.{ignored}", task.resume_count);
            return Ok(self.about(&[task], Body::Started).with(opening, next));
        }
        let (description, agent) = (arguments.text("description")?, arguments.text("agent")?);
        let agents = if agent.is_none() { Some(self.known_agents().await?) } else { None };
        let has_default = |agents: &[AgentInfo]| agents.iter().any(|agent| agent.default);
        let all = [
            ("description", description.is_none()),
            ("prompt", prompt.is_none()),
            ("agent", agents.as_deref().is_some_and(|agents| !has_default(agents))),
        ];
        let missing: Vec<&str> =
            all.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            let refusal = arguments.missing(&missing);
            let none = agents.filter(|agents| !agents.iter().any(|agent| agent.available));
            let Some(none) = none else { return Err(refusal) };
            return Err(Refusal::new(format!("{refusal}\n{}", catalogue::agents(&none))));
        }
        let params = SubmitParams {
            prompt,
            agent: agent.map(|agent| agent.trim().to_owned()),
            description,
            settings,
            after,
            group,
            ..self.template.clone()
        };
        self.start(params).await
    }

    /// Returns the agents that the daemon knows, with the one that gets a prompt that names none.
    async fn known_agents(self: &Arc<Self>) -> Result<Vec<AgentInfo>, Refusal> {
        Ok(self.link.call::<AgentList>(self.agent_params()).await?.agents)
    }

    /// Returns the params that list the agents as a task started here finds them.
    pub(super) fn agent_params(&self) -> AgentListParams {
        let SubmitParams { inherit, env, .. } = self.template.clone();
        AgentListParams { inherit, env, ..AgentListParams::default() }
    }

    /// `background_command`: starts a command.
    pub(super) async fn command(self: &Arc<Self>, arguments: &Arguments) -> Result<ToolAnswer, Refusal> {
        let Some(command) = arguments.text("command")? else { return Err(arguments.missing(&["command"])) };
        let on = arguments.text("on")?.map(|on| on.trim().to_owned()).filter(|on| on != LOCAL_EXECUTOR);
        if on.is_none() && command.len() > COMMAND_BYTES {
            return Err(Refusal::new(format!(
                "background_command: \"command\" is too long: it has {} bytes, and at most {COMMAND_BYTES} fit into an \
                 argument of /bin/sh: write it to a file, and run that.",
                command.len()
            )));
        }
        let (after, group) = self.order(arguments).await?;
        let mut params = SubmitParams {
            shell: Some(command.into()),
            description: arguments.text("description")?,
            after,
            group,
            ready: arguments.ready("ready")?,
            // The command's own `bgctl` calls belong to this session too. Agents do not get the variable: several
            // sessions may share an agent's process.
            ..with_variable(self.template.clone(), "BGD_SESSION", &self.session)
        };
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let folder = match (&on, self.link.address().host()) {
            (Some(_), _) => arguments.folder_elsewhere("cwd")?,
            (None, None) => arguments.folder("cwd", home.map(Into::into))?,
            (None, Some(_)) => arguments.folder_there("cwd")?,
        };
        if on.is_some() {
            // An agent started there must know its depth, too.
            params.chosen = Chosen { cwd: folder.is_some(), env: vec![DEPTH.to_owned()] };
            params.on = on;
        }
        if let Some(folder) = folder {
            params.cwd = Some(folder.into_os_string().into());
        }
        self.start(params).await
    }

    /// Returns the conditions of a new task and its slot group (R117). The task's prompt may quote the output of the
    /// tasks in the conditions, so this server must be allowed to show them.
    async fn order(self: &Arc<Self>, arguments: &Arguments) -> Result<(Vec<After>, Option<String>), Refusal> {
        let mut after = Vec::new();
        for (id, condition) in arguments.after("after")? {
            after.push(After { id: self.readable(&id).await?.id.into(), condition });
        }
        Ok((after, arguments.text("group")?.map(|group| group.trim().to_owned())))
    }

    async fn start(self: &Arc<Self>, params: SubmitParams) -> Result<ToolAnswer, Refusal> {
        let task = if self.keeps {
            // If the connection breaks, the call may be repeated: with the same key, it submits the same task.
            let params = SubmitParams { key: Some(made_up_key()), ..params };
            self.link.call::<TaskSubmit>(params).await?.task
        } else {
            // A broken connection ends the session, and the task with it.
            self.link.call_once::<TaskSubmit>(params).await?.task
        };
        let opening = match task.waiting.as_ref().map(|waiting| waiting.reason) {
            _ if task.status == Status::Cancelled => {
                "It was cancelled at once: a task in \"after\" did not end as required."
            }
            Some(WaitingFor::Paused) => {
                "It is in the background now, and starts when the user continues its paused group."
            }
            Some(WaitingFor::After) => "It is in the background now, and starts when its conditions are met.",
            Some(WaitingFor::Slot) => "It is in the background now, and starts as soon as a slot is free.",
            Some(WaitingFor::Journal) => {
                "It is in the background now, and starts when the daemon can write its journal again."
            }
            Some(
                WaitingFor::Held
                | WaitingFor::Until
                | WaitingFor::Retry
                | WaitingFor::Batch
                | WaitingFor::Elsewhere
                | WaitingFor::Unknown,
            ) => "It is in the background now, and has not started yet.",
            None if task.status == Status::Pending => "It is in the background now, and is being started.",
            // The first answer was lost, and the task has started meanwhile.
            None => "It is in the background now.",
        };
        let next = words::after(&task, true);
        Ok(self.about(&[task], Body::Started).with(opening, next))
    }

    /// `background_output`: shows a task (R20, R21).
    pub(super) async fn output(self: &Arc<Self>, arguments: &Arguments) -> Result<ToolAnswer, Refusal> {
        let Some(id) = arguments.task("task_id")? else { return Err(arguments.missing(&["task_id"])) };
        let task = self.readable(&id).await?;
        let (task, bytes, is_part) = if task.status == Status::Completed {
            let result = self.link.call::<TaskResultOf>(IdParams { id: task.id.into() }).await?;
            (result.task, result.encoding.decode(result.result), result.truncated_bytes > 0)
        } else {
            let params = OutputParams {
                id: task.id.into(),
                offset: Some(
                    -i64::try_from(OUTPUT_CHUNK_BYTES.min(words::OUTPUT_BYTES as u64)).unwrap_or(i64::MAX),
                ),
                limit: Some(OUTPUT_CHUNK_BYTES),
                stream: None,
            };
            let chunk = self.link.call::<TaskOutput>(params).await?;
            // The task may have ended meanwhile. Then the notification reports the result, and this answer shows the
            // earlier state.
            let task = if task.status.is_active() { task } else { chunk.task };
            (task, chunk.encoding.decode(chunk.data), chunk.offset > 0)
        };
        let bytes =
            bytes.map_err(|error| Refusal::new(format!("The daemon's answer can't be parsed: {error}.")))?;
        // For a task that has not completed, show the end of its output, even if it is an agent.
        let kind = if task.status == Status::Completed { task.kind } else { Kind::Process };
        let excerpt = words::excerpt(&String::from_utf8_lossy(&bytes), words::OUTPUT_BYTES, kind);
        let truncated = excerpt.is_cut || is_part;
        let mut next = words::after(&task, self.is_own(&task));
        if truncated {
            let file = &task.output.path;
            let rest = match task.output.dropped_bytes {
                0 => format!("the file {file} has everything."),
                1 => format!("the file {file} has the rest; 1 byte was dropped at the size limit."),
                dropped => {
                    format!("the file {file} has the rest; {dropped} bytes were dropped at the size limit.")
                }
            };
            next = format!("This is truncated: {rest} {next}");
        }
        let body = Body::Output { output: excerpt.text, truncated, file: task.output.path.clone() };
        Ok(self.about(&[task], body).with("", next))
    }

    /// `background_cancel`: cancels tasks of this session (R05).
    pub(super) async fn cancel(
        self: &Arc<Self>,
        arguments: &Arguments,
        request: &RequestId,
    ) -> Result<ToolAnswer, Refusal> {
        let named = self.cancellable(arguments).await?;
        let (is_all, is_one) = (named.is_none(), named.as_ref().is_some_and(|tasks| tasks.len() == 1));
        let named: Vec<Task> = named.into_iter().flatten().collect();
        let resuming = self.resuming(&named).await?;
        let (active, over): (Vec<Task>, Vec<Task>) = named
            .into_iter()
            .partition(|task| task.status.is_active() || task.lingering || resuming.contains_key(&task.id));
        let ids: Vec<TaskRef> = active.iter().map(|task| task.id.into()).collect();
        let (params, ends) = if is_all {
            let ends = self.active().await?.into_iter().map(|(id, _)| id).collect();
            let session = Some(self.session.clone());
            (CancelParams { all: true, session, ..CancelParams::default() }, ends)
        } else if let Some(first) = over.first().filter(|_| ids.is_empty()) {
            let opening = if is_one {
                format!("It is already {}: nothing to cancel.", first.status)
            } else {
                format!("All {} have already ended: nothing to cancel.", over.len())
            };
            let next = if is_one { words::after(first, self.is_own(first)) } else { String::new() };
            return Ok(self.about(&over, Body::Cancelled).with(opening, next));
        } else {
            let ends = active.iter().map(|task| task.id).collect();
            (CancelParams { ids: ids.clone(), ..CancelParams::default() }, ends)
        };
        self.ledger.awaits(request, ends);
        let call = tokio::time::timeout(self.max_block, self.link.end::<TaskCancel>(params)).await;
        let Ok(result) = call else {
            // Their grace period is longer than clients wait for an answer.
            let mut tasks = over;
            for id in &ids {
                tasks.push(self.readable(id).await?);
            }
            let opening = "They are being ended but need more time. A later result will report it.";
            return Ok(self.about(&tasks, Body::Cancelled).with(opening, ""));
        };
        let mut tasks = result?.tasks;
        let is_withdrawn = |task: &Task| resuming.get(&task.id) == Some(&task.resume_count);
        let left: Vec<String> = tasks.iter().filter_map(survivors).collect();
        let mut opening = match (tasks.len(), is_one) {
            (1, true) if tasks.iter().all(is_withdrawn) => {
                "The resume was withdrawn: the agent does not get the prompt.".to_owned()
            }
            (0, _) => "No task of this session was active: nothing to cancel.".to_owned(),
            (count, _) if !left.is_empty() => words::unconfirmed(count, &left),
            (1, true) => "It has ended, including all its processes.".to_owned(),
            (1, false) => "1 task has ended, including all its processes.".to_owned(),
            (count, _) => format!("{count} tasks have ended, including all their processes."),
        };
        if !over.is_empty() {
            opening = format!("{opening} {} had already ended.", over.len());
        }
        tasks.extend(over);
        Ok(self.about(&tasks, Body::Cancelled).with(opening, ""))
    }

    /// Returns those of the tasks that are about to be resumed, although their status is still that of the previous
    /// turn, with how many times they were resumed before.
    async fn resuming(self: &Arc<Self>, tasks: &[Task]) -> Result<HashMap<TaskId, u32>, Refusal> {
        let ended = tasks.iter().filter(|task| task.kind == Kind::Agent && !task.status.is_active());
        let ids: Vec<TaskRef> = ended.map(|task| task.id.into()).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let now = self.link.call::<TaskBlock>(BlockParams::look(ids)).await?;
        let is_begun = |task: &&Task| now.active.contains(&task.id);
        Ok(now.tasks.iter().filter(is_begun).map(|task| (task.id, task.resume_count)).collect())
    }

    /// Returns the tasks that `background_cancel` names, without duplicates; `None` for `all`.
    async fn cancellable(self: &Arc<Self>, arguments: &Arguments) -> Result<Option<Vec<Task>>, Refusal> {
        let ids = arguments.tasks("task_ids")?;
        let ids = match arguments.task("task_id")? {
            Some(id) => Some(ids.into_iter().flatten().chain([id]).collect()),
            None => ids,
        };
        match (ids, arguments.flag("all")?) {
            (None, true) => Ok(None),
            (Some(_), true) => Err(Refusal::new(
                "background_cancel: give \"task_ids\", \"task_id\" or \"all\": true, not both.",
            )),
            (None, false) => Err(Refusal::new(
                "background_cancel: give \"task_ids\" or \"task_id\" (these tasks), or \"all\": true (every \
                 active task of this session).",
            )),
            (Some(ids), false) if ids.is_empty() => Err(Refusal::new(
                "background_cancel: \"task_ids\" is empty: give tasks, or \"all\": true for every active task of \
                 this session.",
            )),
            (Some(ids), false) => {
                let mut tasks: Vec<Task> = Vec::new();
                for id in &ids {
                    let task = self.own_task(id, "cancelled").await?;
                    if tasks.iter().all(|known| known.id != task.id) {
                        tasks.push(task);
                    }
                }
                Ok(Some(tasks))
            }
        }
    }

    /// `background_list`: lists tasks with their status (R06).
    pub(super) async fn list(self: &Arc<Self>, arguments: &Arguments) -> Result<ToolAnswer, Refusal> {
        let status = arguments.status("status")?.into_iter().collect();
        let all = arguments.flag("all")?;
        if all && !self.all_sessions {
            return Err(Refusal::new(format!("\"all\": {OWN_ONLY} Omit it.")));
        }
        let params = ListParams {
            session: (!all).then(|| self.session.clone()),
            status,
            text: arguments.text("text")?,
            since: arguments.since("since")?,
            limit: Some(LISTED),
            ..ListParams::default()
        };
        let page = self.newest(params).await?;
        let more = page.next.is_some();
        let whose = if all { "all sessions" } else { "this session" };
        let counts: Vec<String> = Status::ALL
            .iter()
            .filter(|status| page.summary.count(**status) > 0)
            .map(|status| format!("{} {status}", page.summary.count(*status)))
            .collect();
        let opening = if counts.is_empty() {
            format!("No tasks of {whose}.")
        } else {
            format!(
                "Tasks of {whose}: {}.{}",
                counts.join(", "),
                if page.tasks.is_empty() { " None of them match." } else { "" }
            )
        };
        let next = if more { format!("Only the newest {LISTED} are shown.") } else { String::new() };
        let body = Body::Listed { more, summary: page.summary.into() };
        let answer = self.about(&page.tasks, body).with(opening, next);
        // A list entry has fewer details than the notification of a task's end, so that is still to be reported.
        Ok(ToolAnswer { reported: HashMap::new(), ..answer })
    }

    /// Lists up to [`LISTED`] tasks. Fetches further pages as needed: a page of a text search may be incomplete.
    async fn newest(&self, mut params: ListParams) -> Result<ListResult, Refusal> {
        let mut page = self.link.call::<TaskList>(params.clone()).await?;
        while page.tasks.len() < LISTED && page.next.is_some() {
            params.after = page.next;
            params.limit = Some(LISTED - page.tasks.len());
            let next = self.link.call::<TaskList>(params.clone()).await?;
            page.tasks.extend(next.tasks);
            page.next = next.next;
        }
        Ok(page)
    }

    /// Returns the active runs of this session's tasks.
    async fn active(self: &Arc<Self>) -> Result<Vec<(TaskId, u32)>, Refusal> {
        let status = Status::ALL.into_iter().filter(|status| status.is_active()).collect();
        let session = Some(self.session.clone());
        let mut params =
            ListParams { session, status, limit: Some(LIST_PAGE), after: None, ..ListParams::default() };
        let mut runs = Vec::new();
        loop {
            let page = self.link.call::<TaskList>(params.clone()).await?;
            runs.extend(page.tasks.iter().map(|task| (task.id, task.run)));
            params.after = page.next;
            if params.after.is_none() {
                return Ok(runs);
            }
        }
    }

    fn about(&self, tasks: &[Task], body: Body) -> ToolAnswer {
        ToolAnswer::about(tasks, &self.session, body)
    }

    /// Returns a task that this server may show: one of its own session or, with `all_sessions`, any task given by its
    /// full id.
    async fn readable(self: &Arc<Self>, id: &TaskRef) -> Result<Task, Refusal> {
        let task = self.link.call::<TaskGet>(IdParams { id: id.clone() }).await?.task;
        self.check_readable(id, &task)?;
        Ok(task)
    }

    fn check_readable(&self, id: &TaskRef, task: &Task) -> Result<(), Refusal> {
        if self.is_own(task) || self.all_sessions && id.exact().is_some() {
            return Ok(());
        }
        if !self.all_sessions {
            return Err(Refusal::new(format!("Task {} belongs to another session: {OWN_ONLY}", task.id)));
        }
        Err(Refusal::new(format!(
            "{:?} matches no task of this session, but one of another: to look at that, give its full id \
             (background_list {{\"all\": true}} shows it).",
            id.as_str()
        )))
    }

    /// Returns a task of this session, for tools that change it.
    async fn own_task(self: &Arc<Self>, id: &TaskRef, what: &str) -> Result<Task, Refusal> {
        let task = self.link.call::<TaskGet>(IdParams { id: id.clone() }).await?.task;
        if self.is_own(&task) {
            return Ok(task);
        }
        Err(Refusal::new(format!(
            "Task {} belongs to another session, and can't be {what} from here. Ask the user to do it with `bgctl`.",
            task.id
        )))
    }

    pub(in crate::mcp) fn is_own(&self, task: &Task) -> bool {
        task.session.as_deref() == Some(&*self.session)
    }
}
