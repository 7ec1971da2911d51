//! The server as rmcp sees it: its identity, its capabilities and the dispatch of requests. Anything a model should
//! read is a tool result, never a protocol error.

use std::collections::HashSet;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::limits::{INBOX_PAGE_DEFAULT, LIST_PAGE};
use bgd_shared::notice::{InboxItem, NoticeKind};
use bgd_shared::request::{
    AgentList, ExecutorList, ExecutorListParams, InboxAck, InboxAckParams, InboxRead, InboxReadParams,
    ListParams, TaskList,
};
use bgd_shared::task::{Status, Task};
#[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
use rmcp::model::SetLevelRequestParams;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, CreateTaskResult,
    CustomRequest, CustomResult, DetailedTask, ErrorCode, ErrorData, GetTaskParams, GetTaskResult,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ProtocolVersion, RequestId,
    ServerCapabilities, ServerConfig, ServerResult, SubscriptionFilter, TaskPayload, TaskStatus,
    ToolsCapability, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use tokio::task::JoinSet;

use super::answer::{self, Outgoing, Sieve, Source, ToolAnswer};
use super::arguments::{Arguments, quoted, written};
use super::catalogue::{self, Available, TOOLS};
use super::push::CLAUDE_CHANNEL;
use super::refusal::Refusal;
use super::shared::Shared;
use super::tools::{Removable, Reply};
use super::variables::DEPTH;
use super::waits::Outcome;
use crate::link::may_be_older;

/// How much of the inbox to read for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// As much as fits.
    Fitting,
    /// All of it, to find out what does not fit.
    All,
}

#[derive(Clone, Debug)]
pub struct Server(pub Arc<Shared>);

const AGENTS_LATER: &str = "The agents are looked up on the first call of one of these tools; background_task \
     with an unknown agent lists the known ones.";

const INSTRUCTIONS: &str = "Background tasks: shell commands (background_command) and other AI agents \
    (background_task) that run while you do other work. Starting one returns a task_id at once. Do not poll: when a task has ended, the next result of any of these tools starts with its result, above a line `---`. Use background_block only when you can't continue without a task. If your client supports it, ends also arrive as events <channel source=\"bgd\" task_id=\"…\" event=\"completed\">: act on the result in them; do not reply to them. The user sees the tasks with `bgctl list`.";

/// The fate of the tasks when the client ends.
const ENDS: &str = "The tasks and their output are deleted when the program that you run in ends.";

/// The same, with `--keep`.
const KEPT: &str = "The tasks keep running when the program that you run in ends.";

impl Shared {
    /// Returns the instructions for the model.
    fn instructions(&self) -> String {
        let ends = if self.keeps { KEPT } else { ENDS };
        let why_not = self.why_not().map(|why| format!("\n{why}")).unwrap_or_default();
        let place = self.link.address().host().map(|host| {
            format!(
                "\nThe tasks run on another machine, {host}, and begin in the user's home folder there; paths of folders \
                 and files are paths on it."
            )
        });
        format!("{INSTRUCTIONS} {ends}{}{why_not}", place.unwrap_or_default())
    }

    /// Returns why this server may not start tasks; `None` if it may.
    pub fn why_not(&self) -> Option<String> {
        why_not(&self.depth, self.most_depth)
    }

    /// Builds the MCP result of a tool call, with the notifications at its head.
    pub async fn finish(self: &Arc<Self>, request: &RequestId, outcome: Outcome) -> CallToolResult {
        let news = self.news(request, outcome.as_ref().ok(), Extent::Fitting).await;
        self.result(outcome, news)
    }

    /// Builds a text-only result, unless the user asked for structured content: with agents that show both to their
    /// model, the user would pay for it twice.
    fn result(&self, outcome: Outcome, news: Outgoing) -> CallToolResult {
        let mut result = answer::result(outcome, news);
        result.structured_content.take_if(|_| !self.structured);
        result
    }

    /// Collects the inbox items for the answer to a request: those that the answer itself reports, and the oldest of
    /// the others as far as they fit.
    async fn news(
        self: &Arc<Self>,
        request: &RequestId,
        answer: Option<&ToolAnswer>,
        extent: Extent,
    ) -> Outgoing {
        let mut news = Outgoing::default();
        let mut sieve = Sieve::new(answer);
        let mut after = 0;
        loop {
            let known = self.ledger.last();
            let params = InboxReadParams {
                session: self.session.clone(),
                after: Some(after),
                limit: Some(INBOX_PAGE_DEFAULT),
                ..InboxReadParams::default()
            };
            // Without a daemon there are no notifications, and no daemon is started for them; the answer itself reports
            // that the daemon is gone.
            let page = match self.link.call_running::<InboxRead>(&params).await {
                Ok(Some(page)) => page,
                Ok(None) => {
                    news.source = Source::NoDaemon;
                    break;
                }
                Err(_) => break,
            };
            news.source = Source::Instance(page.instance.clone());
            self.ledger.record_lost(&page.instance, page.lost);
            if after == 0 {
                let first = page.items.first().map(|item| item.number);
                self.ledger.begins_at(&page.instance, first, &known);
                news.items.extend(self.ledger.claim_kept(request, |item| sieve.takes(item)));
            }
            let end = page.items.last().map_or(after, |item| item.number);
            let claimed = self.ledger.claim(request, &page.instance, page.items, |item| sieve.takes(item));
            news.items.extend(self.reserved(request, &page.instance, claimed).await);
            let is_enough = extent == Extent::Fitting && sieve.is_enough();
            if !page.more || end == after || is_enough {
                break;
            }
            after = end;
        }
        (news.more, news.unreported) = sieve.left();
        news.items = self.without_closed_questions(news.items).await;
        // Reading the inbox may have found the broken connection just now.
        if let Some(broken) = self.link.take_broken() {
            self.ledger.note(broken);
        }
        news.notes = self.ledger.claim_notes(request);
        news
    }

    /// Reserves the items that the answer to a request claims, and returns those that no other reader of the session
    /// has got. If this server is killed before it has acknowledged them, another reader gets them.
    async fn reserved(&self, request: &RequestId, instance: &str, items: Vec<InboxItem>) -> Vec<InboxItem> {
        if !self.ledger.may_reserve(instance) {
            return items;
        }
        // All at once: one after the other would take a round trip each.
        let mut calls = JoinSet::new();
        for item in &items {
            let params = InboxAckParams {
                session: self.session.clone(),
                upto: item.number,
                only: true,
                reserve: true,
                instance: Some(instance.to_owned()),
            };
            let link = Arc::clone(&self.link);
            calls.spawn(async move { (params.upto, link.call_running::<InboxAck>(&params).await) });
        }
        let mut elsewhere = HashSet::new();
        while let Some(call) = calls.join_next().await {
            match call {
                Ok((number, Ok(Some(reserved)))) if reserved.acknowledged == 0 => {
                    elsewhere.insert(number);
                }
                Ok((_, Err(failure))) if may_be_older(&failure) => self.ledger.gives_to_all(instance),
                // Without an answer, it is better to report the item twice than not at all.
                _ => {}
            }
        }
        self.ledger.yields(request, instance, &elsewhere);
        items.into_iter().filter(|item| !elsewhere.contains(&item.number)).collect()
    }

    /// Drops the reports of questions that have been answered, denied or withdrawn meanwhile: there is nothing left to
    /// tell the user.
    async fn without_closed_questions(&self, mut items: Vec<InboxItem>) -> Vec<InboxItem> {
        let is_question = |item: &InboxItem| item.notice.kind == NoticeKind::NeedsInput;
        if items.iter().any(is_question)
            && let Some(open) = self.open_questions().await
        {
            items.retain(|item| !is_question(item) || self.still_asks(&item.notice.task, &open));
        }
        items
    }

    /// Reports whether the question that a task was asking still waits for an answer, as far as is known.
    fn still_asks(&self, then: &Task, open: &HashSet<(TaskId, u64)>) -> bool {
        let is_listed = then.session.as_ref() == Some(&self.session);
        let asked = then.progress.needs_input.as_ref();
        asked.is_none_or(|question| !is_listed || open.contains(&(then.id, question.request)))
    }

    /// Returns the open questions of this session, each by its task and its number; `None` without a daemon. One call
    /// for all of them: many agents may ask at once.
    async fn open_questions(&self) -> Option<HashSet<(TaskId, u64)>> {
        let mut params = ListParams {
            session: Some(self.session.clone()),
            status: Status::ALL.into_iter().filter(|status| status.is_active()).collect(),
            limit: Some(LIST_PAGE),
            ..ListParams::default()
        };
        let mut open = HashSet::new();
        loop {
            let page = self.link.call_running::<TaskList>(&params).await.ok()??;
            let asks = |task: &Task| Some((task.id, task.progress.needs_input.as_ref()?.request));
            open.extend(page.tasks.iter().filter_map(asks));
            params.after = page.next;
            if params.after.is_none() {
                return Some(open);
            }
        }
    }

    /// Returns the facts that the tool list depends on.
    async fn available(self: &Arc<Self>) -> Available {
        Available { agents: self.agents().await, places: self.places().await, longest_wait_ms: None }
    }

    /// Returns the configured places other than the daemon's machine.
    async fn places(&self) -> Vec<String> {
        let params = ExecutorListParams::default();
        let places = match self.link.call_running::<ExecutorList>(&params).await {
            Ok(Some(result)) => result.executors,
            // Without the places, the tools still work on the daemon's machine.
            Ok(None) | Err(_) => Vec::new(),
        };
        places.into_iter().filter(|place| place.kind != "local").map(|place| place.name).collect()
    }

    /// Returns the sentence about agents for the tool list.
    async fn agents(self: &Arc<Self>) -> String {
        let params = self.agent_params();
        // A tool list is no reason to start a daemon: many agents request it and use none of the tools.
        match self.link.call_running::<AgentList>(&params).await {
            Ok(Some(result)) => catalogue::agents(&result.agents),
            Ok(None) => {
                self.push.owes_list();
                AGENTS_LATER.to_owned()
            }
            Err(failure) => format!("The agents could not be looked up: {}", failure.message),
        }
    }

    async fn call(
        self: &Arc<Self>,
        name: &str,
        given: JsonObject,
        removable: Option<Removable>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Reply, Refusal> {
        let Some(tool) = catalogue::find(name) else {
            let known: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
            return Err(Refusal::new(format!(
                "There is no tool {:?}. The tools are: {}.",
                quoted(name),
                known.join(", ")
            )));
        };
        if tool.starts
            && let Some(why) = self.why_not()
        {
            return Err(Refusal::new(why));
        }
        let arguments = match Arguments::new(tool, given) {
            Ok(arguments) => arguments,
            Err(undeclared) => return Err(undeclared.refusal(!self.places().await.is_empty())),
        };
        match tool.name {
            "background_task" => self.task(&arguments).await.map(Reply::from),
            "background_command" => self.command(&arguments).await.map(Reply::from),
            "background_output" => self.output(&arguments).await.map(Reply::from),
            "background_block" => self.block(&arguments, context).await,
            "background_cancel" => self.cancel(&arguments, &context.id).await.map(Reply::from),
            "background_list" => self.list(&arguments).await.map(Reply::from),
            _ => {
                let removable = removable.unwrap_or_default();
                self.clear(&arguments, removable, &context.id).await.map(Reply::from)
            }
        }
    }
}

impl rmcp::ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder().enable_tasks().build();
        let mut tools = ToolsCapability::default();
        tools.list_changed = Some(true);
        capabilities.tools = Some(tools);
        capabilities.logging = Some(JsonObject::new());
        let channel = (CLAUDE_CHANNEL.to_owned(), JsonObject::new());
        capabilities.experimental = Some([channel].into());
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("bgd", env!("CARGO_PKG_VERSION")).with_title("bgd: background tasks"),
            )
            .with_instructions(self.0.instructions())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.0.push.meets(&context);
        let may_start = self.0.why_not().is_none();
        let there = if may_start { self.0.available().await } else { Available::default() };
        let available = Available { longest_wait_ms: self.0.longest_wait_ms(&context), ..there };
        let tools = TOOLS.iter().filter(|tool| may_start || !tool.starts);
        Ok(ListToolsResult::with_all_items(
            tools.map(|tool| tool.listed(&available, self.0.structured)).collect(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0.push.meets(&context);
        let _asking = self.0.push.asks(&context);
        let given = request.arguments.unwrap_or_default();
        let mut first = Outgoing::default();
        let mut removable = None;
        if request.name == catalogue::CLEAR.name {
            // The results disappear with the tasks, so they are reported first. Tasks that end from now on stay.
            let found = self.0.removable(&given).await;
            first = self.0.news(&context.id, None, Extent::All).await;
            let unreported = std::mem::take(&mut first.unreported);
            removable =
                Some(Removable { unreported, is_reported: self.0.ledger.takes(&context.id), ..found });
        }
        let outcome = match self.0.call(&request.name, given, removable, &context).await {
            Ok(Reply::Later(wait)) => return Ok(CreateTaskResult::new(wait.task()).into()),
            Ok(Reply::Now(answer)) => Ok(*answer),
            Err(refusal) => Err(refusal),
        };
        let second = self.0.news(&context.id, outcome.as_ref().ok(), Extent::Fitting).await;
        Ok(self.0.result(outcome, first.and(second)).into())
    }

    /// Clients of 2026-07-28 receive only the change notifications that they ask for.
    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // rmcp limits this to what the capabilities offer.
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.0.push.tell_lists_to(context.sink(), context.cancelled()).await;
        Ok(())
    }

    /// Handles requests that rmcp can't parse. A malformed tool call is still answered as a tool call.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method != "tools/call" {
            return Err(not_understood(&request));
        }
        let is_legacy =
            context.protocol_version().is_none_or(|version| version < ProtocolVersion::V_2026_07_28);
        let text = |name| request.params.as_ref()?.get(name)?.as_str();
        // Some models and clients send an object as a string.
        let response = match (text("name"), text("arguments").and_then(written)) {
            (Some(name), Some(arguments)) => {
                let params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
                self.call_tool(params, context).await?
            }
            (name, _) => {
                let refusal = match name {
                    Some(name) => {
                        format!("{}: \"arguments\" must be an object of parameters.", quoted(name))
                    }
                    None => "A tool call needs \"name\", a string.".to_owned(),
                };
                self.0.finish(&context.id, Err(Refusal::new(refusal))).await.into()
            }
        };
        let mut result = ServerResult::from(response);
        if is_legacy {
            result.strip_result_type_for_legacy_peer();
        }
        let value = serde_json::to_value(result).unwrap_or_default();
        Ok(CustomResult::new(value))
    }

    #[allow(deprecated, reason = "clients of the revisions up to 2025-11-25 use it")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.push.meets(&context);
        self.0.push.sets(request.level);
        Ok(())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let wait = self.0.waits.get(&request.task_id).ok_or_else(|| unknown(&request.task_id))?;
        let task = wait.task();
        let payload = match (task.status, wait.outcome()) {
            (TaskStatus::Completed, Some(outcome)) => {
                let make = async || {
                    let result = self.0.finish(&context.id, outcome).await;
                    let object = serde_json::to_value(result).ok();
                    let object = object.and_then(|value| value.as_object().cloned()).unwrap_or_default();
                    // A result without a receiver may lack items, so it must not be kept.
                    if self.0.ledger.takes(&context.id) { Ok(object) } else { Err(object) }
                };
                TaskPayload::Completed { result: wait.result(make).await }
            }
            (TaskStatus::Cancelled, _) => TaskPayload::Cancelled,
            _ => TaskPayload::Working,
        };
        Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
    }

    /// Does nothing: a wait never asks the client for input.
    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.waits.get(&request.task_id).map(drop).ok_or_else(|| unknown(&request.task_id))
    }

    /// Cancels the wait; the tasks keep running.
    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let wait = self.0.waits.get(&request.task_id).ok_or_else(|| unknown(&request.task_id))?;
        wait.cancel();
        Ok(())
    }
}

/// The methods of this server, except `tools/call`, with their params.
const METHODS: [(&str, &str); 7] = [
    ("initialize", "\"protocolVersion\", \"capabilities\" and \"clientInfo\""),
    ("logging/setLevel", "\"level\": one of debug, info, notice, warning, error, critical, alert, emergency"),
    ("subscriptions/listen", "which notifications to send"),
    ("tasks/cancel", "\"taskId\", a string"),
    ("tasks/get", "\"taskId\", a string"),
    ("tasks/update", "\"taskId\", a string, and \"inputResponses\""),
    ("tools/list", "an object, or omitted"),
];

/// Creates the error for a request that rmcp could not parse: an unknown method, or invalid params.
fn not_understood(request: &CustomRequest) -> ErrorData {
    match METHODS.iter().find(|(method, _)| *method == request.method) {
        Some((method, wanted)) => {
            ErrorData::invalid_params(format!("the params of {method} must be: {wanted}"), None)
        }
        None => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, quoted(&request.method), None),
    }
}

/// Returns why a server of this depth starts no tasks; `None` if the depth is below `most`.
fn why_not(depth: &Result<u32, String>, most: u32) -> Option<String> {
    let (why, way) = match depth {
        Ok(depth) if *depth < most => return None,
        Ok(0) => ("the user has disabled them (`--depth 0`)".to_owned(), "`bgctl mcp --depth 1`".to_owned()),
        Ok(depth) => (
            format!("you run in a background task of another agent ({DEPTH} is {depth})"),
            format!("`bgctl mcp --depth {}`", depth.saturating_add(1)),
        ),
        Err(text) => (
            format!("{DEPTH}, which counts the levels of agents, is \"{}\", not a number", quoted(text)),
            format!("`export {DEPTH}=0` where the program that you run in is started"),
        ),
    };
    Some(format!(
        "background_task and background_command are not available here because {why}: do the work yourself. The \
         user can \
         allow them with {way}."
    ))
}

fn unknown(id: &str) -> ErrorData {
    let message = format!("unknown task {:?}: this server's tasks are waits of background_block", quoted(id));
    ErrorData::invalid_params(message, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_for_not_starting_tasks_fits_each_case() {
        for (depth, most) in [(0, 1), (1, 2), (0, u32::MAX)] {
            assert_eq!(why_not(&Ok(depth), most), None, "{depth} {most}");
        }
        let off = why_not(&Ok(0), 0).unwrap();
        assert!(off.contains("`--depth 0`") && off.contains("`bgctl mcp --depth 1`"), "{off}");
        assert!(!off.contains("another agent"), "{off}");
        let within = why_not(&Ok(2), 2).unwrap();
        assert!(within.contains("in a background task of another agent"), "{within}");
        assert!(within.contains("BGD_MCP_DEPTH is 2") && within.contains("--depth 3`"), "{within}");
        let unreadable = why_not(&Err("x".repeat(1000)), u32::MAX).unwrap();
        assert!(unreadable.contains("BGD_MCP_DEPTH") && unreadable.contains("not a number"), "{unreadable}");
        assert!(
            unreadable.contains("`export BGD_MCP_DEPTH=0`") && !unreadable.contains("--depth"),
            "{unreadable}"
        );
        assert!(unreadable.len() < 500, "{unreadable}");
    }
}
