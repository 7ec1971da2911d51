//! Parsed requests for the dispatcher, checked against every limit.

use bgd_shared::agent::{AgentListParams, AgentSettings, AnswerParams, ResumeParams};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskRef;
use bgd_shared::limits;
use bgd_shared::message::{Request as Envelope, RequestId, parse_params};
use bgd_shared::request::{
    self, CancelParams, ClearParams, Encoding, ExecutorListParams, METHODS, Method, OutputParams,
    SubscribeParams, TerminalSize, UpgradeParams, UsageParams, WriteParams,
};
use bgd_shared::task::Exit;
use bgd_shared::text::OsText;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::core::{Cancel, Command, Leaves, ListQuery, Part, Request, Selection};
use crate::exec::handed::Handoff;
use crate::exec::messages::Inherited;
use crate::remotes::OnRequest;

mod batch;
mod checks;
mod foreground;
mod inherit;
mod order;
mod session;
mod signals;
mod submit;

pub use submit::PromptRequest;

/// A client's request.
#[derive(Debug)]
pub struct Call {
    /// The ID for its response; `None` for a notification, which gets none.
    pub id: Option<RequestId>,
    /// Bytes reserved in the client's queue for its response.
    pub reserved: usize,
    /// The request itself.
    pub body: Body,
}

/// The content of a request.
#[derive(Debug)]
pub enum Body {
    /// `hello`, with the parent session that ends with the connection.
    Hello(Option<Arc<str>>),
    /// `task.submit` of a command, with the descriptors sent with it, and where it is to run.
    Submit(Box<Command>, Inherited, Box<OnRequest>),
    /// `task.submit` of a prompt.
    Prompt(Box<PromptRequest>),
    /// `task.submit_many`, and where the tasks are to run.
    Many(Box<Part>, Box<OnRequest>),
    /// `agent.list`
    Agents(AgentListParams),
    /// A request that the core answers directly.
    Core(Request),
    /// `inbox.read` and `inbox.ack`, with the daemon instance they are meant for.
    Inbox(Option<String>, Request),
    /// `inbox.list`: the number after which to start, and the maximum number of entries.
    Inboxes(u64, usize),
    /// `task.output`
    Output(OutputParams),
    /// `task.result`
    Result(TaskRef),
    /// `task.list`
    List(Box<ListQuery>),
    /// `executor.list`
    Executors(ExecutorListParams),
    /// `task.usage`
    Usage(Vec<TaskRef>),
    /// `group.list`
    Groups,
    /// `task.get`
    Get(TaskRef),
    /// `task.write`
    Write(TaskRef, Vec<u8>, bool),
    /// `task.attach`, with the size of the caller's terminal.
    Attach(TaskRef, Option<TerminalSize>),
    /// `task.detach` without `background`, which only ends an attachment.
    Leave(TaskRef),
    /// `task.resize`
    Resize(TaskRef, TerminalSize),
    /// `task.handoff`
    Handoff(Box<Handoff>),
    /// `task.exit`
    Exit(TaskRef, Exit),
    /// `events.subscribe`
    Subscribe(SubscribeParams),
    /// `daemon.status`
    Status,
    /// `daemon.reload`
    Reload,
    /// `daemon.upgrade`
    Upgrade(UpgradeParams),
    /// A line that is not a valid request.
    Refused(RpcError),
}

impl Body {
    /// Parses and checks a request; `peer` is the process that sent it. An error becomes [`Body::Refused`].
    pub fn read(request: &Envelope<'_>, fds: Vec<OwnedFd>, peer: Option<i32>) -> Self {
        Self::try_read(request, fds, peer).unwrap_or_else(Self::Refused)
    }

    fn try_read(request: &Envelope<'_>, fds: Vec<OwnedFd>, peer: Option<i32>) -> Result<Self, RpcError> {
        let method = &*request.method;
        let params = request.params;
        Ok(match method {
            request::TaskSubmit::NAME => submit::submitted(parse_params(method, params)?, fds, peer)?,
            request::TaskSubmitMany::NAME => batch::part(parse_params(method, params)?, fds, peer)?,
            request::TaskAttach::NAME => foreground::attach(parse_params(method, params)?)?,
            request::TaskDetach::NAME => foreground::detach(parse_params(method, params)?),
            request::TaskResize::NAME => foreground::resize(parse_params(method, params)?)?,
            request::TaskHandoff::NAME => foreground::handoff(parse_params(method, params)?, fds)?,
            request::TaskExit::NAME => foreground::exit(parse_params(method, params)?)?,
            request::TaskResume::NAME => {
                let ResumeParams { id, prompt, settings } = parse_params(method, params)?;
                Self::Core(resume(id, prompt, settings)?)
            }
            request::AgentAnswer::NAME => Self::Core(answered(parse_params(method, params)?)),
            request::AgentList::NAME => {
                let params: AgentListParams = parse_params(method, params)?;
                let env = submit::environment(params.env, params.env_fd, &mut fds.into_iter())?;
                Self::Agents(AgentListParams { env, ..params })
            }
            request::ExecutorList::NAME => Self::Executors(parse_params(method, params)?),
            request::TaskUsage::NAME => Self::Usage(measured(parse_params(method, params)?)?),
            request::TaskBlock::NAME => {
                let request::BlockParams { ids, matching, timeout_ms, mode, until } =
                    parse_params(method, params)?;
                check_ms("timeout_ms", timeout_ms)?;
                let which = order::select(ids, matching)?;
                Self::Core(Request::Block { which, timeout_ms, mode, until })
            }
            request::TaskList::NAME => Self::List(Box::new(order::list(parse_params(method, params)?)?)),
            request::TaskGet::NAME => Self::Get(parse_params::<request::IdParams>(method, params)?.id),
            request::TaskOutput::NAME => Self::Output(output(parse_params(method, params)?)?),
            request::TaskResultOf::NAME => {
                Self::Result(parse_params::<request::IdParams>(method, params)?.id)
            }
            request::TaskCancel::NAME => Self::Core(cancel(parse_params(method, params)?)?),
            request::TaskClear::NAME => Self::Core(clear(parse_params(method, params)?)?),
            name if order::METHODS.contains(&name) => order::read(name, params)?,
            request::TaskSignal::NAME => {
                let request::SignalParams { id, signal, tree } = parse_params(method, params)?;
                Self::Core(Request::Signal { id, signal: signals::number(&signal)?, tree })
            }
            request::TaskWrite::NAME => write(parse_params(method, params)?)?,
            request::EventsSubscribe::NAME => {
                let params: SubscribeParams = parse_params(method, params)?;
                check_label("session", params.session.as_deref())?;
                Self::Subscribe(params)
            }
            request::SessionEnd::NAME => session::end(parse_params(method, params)?)?,
            request::DaemonShutdown::NAME => {
                let request::ShutdownParams { grace_ms, cancel } = parse_params(method, params)?;
                check_ms("grace_ms", grace_ms)?;
                let leaves = if cancel { Leaves::Nothing } else { Leaves::All };
                Self::Core(Request::Shutdown { grace_ms, leaves })
            }
            request::Hello::NAME => session::hello(parse_params(method, params)?)?,
            request::InboxRead::NAME => session::read_inbox(parse_params(method, params)?)?,
            request::InboxList::NAME => session::list_inboxes(parse_params(method, params)?)?,
            request::InboxAck::NAME => session::acknowledge(parse_params(method, params)?)?,
            request::DaemonStatusOf::NAME => {
                parse_params(method, params).map(|request::NoParams {}| Self::Status)?
            }
            request::DaemonReload::NAME => {
                parse_params(method, params).map(|request::NoParams {}| Self::Reload)?
            }
            request::DaemonUpgrade::NAME => Self::Upgrade(parse_params(method, params)?),
            unknown => return Err(unknown_method(unknown)),
        })
    }

    /// Returns how many bytes the response may need beyond a task or two.
    pub fn reserve(&self) -> usize {
        match self {
            Self::Output(params) => {
                let bytes = params.limit.unwrap_or(OUTPUT_DEFAULT_BYTES);
                usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes / 3 * 4)
            }
            #[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
            Self::Result(_) => limits::AGENT_RESULT_BYTES as usize / 3 * 4,
            Self::Inboxes(_, limit) => limit * (limits::LABEL_BYTES + 128),
            Self::List(query) => (query.limit * TASK_BYTES).min(limits::LIST_PAGE_BYTES),
            Self::Core(
                Request::Block { which: Selection::Ids(ids), timeout_ms: Some(0), .. }
                | Request::SetPaused { which: Selection::Ids(ids), .. },
            ) => ids.len() * TASK_BYTES,
            Self::Core(Request::Block { which: Selection::Matching(_), timeout_ms: Some(0), .. }) => {
                limits::LIST_PAGE_BYTES
            }
            Self::Many(part, _) => part.items.len() * ID_BYTES,
            // A waiting request reserves nothing yet. Otherwise no other request of that client would be read
            // meanwhile, not even a check whether the daemon is alive.
            Self::Inbox(_, Request::ReadInbox { wait_ms: 0, .. }) => limits::INBOX_PAGE_BYTES,
            Self::Hello(_)
            | Self::Submit(..)
            | Self::Prompt(..)
            | Self::Agents(_)
            | Self::Core(_)
            | Self::Inbox(..)
            | Self::Groups
            | Self::Executors(_)
            | Self::Usage(_)
            | Self::Get(_)
            | Self::Write(..)
            | Self::Attach(..)
            | Self::Leave(_)
            | Self::Resize(..)
            | Self::Handoff(_)
            | Self::Exit(..)
            | Self::Subscribe(_)
            | Self::Status
            | Self::Reload
            | Self::Upgrade(_)
            | Self::Refused(_) => 0,
        }
    }
}

/// The size of an ID in a list, in bytes.
const ID_BYTES: usize = 39;

/// The typical size of a task object, in bytes.
const TASK_BYTES: usize = 1024;

/// The default `limit` of `task.output`, in bytes.
pub const OUTPUT_DEFAULT_BYTES: u64 = 64 * 1024;

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

fn unknown_method(method: &str) -> RpcError {
    let method: String = method.chars().take(64).collect();
    let error = RpcError::new(ErrorKind::MethodNotFound, format!("unknown method {method:?}"));
    let near = |known: &&&str| strsim::damerau_levenshtein(known, &method);
    match METHODS.iter().min_by_key(near).filter(|known| near(known) <= 3) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error.hint("bgd-protocol(7) lists the methods"),
    }
}

fn answered(AnswerParams { id, request, option }: AnswerParams) -> Request {
    Request::Answer { id, request, option: option.into() }
}

fn measured(UsageParams { ids }: UsageParams) -> Result<Vec<TaskRef>, RpcError> {
    if ids.len() > limits::USAGES {
        let (given, most) = (ids.len(), limits::USAGES);
        return Err(invalid(format!("`ids` has {given} tasks; at most {most} are measured at a time")));
    }
    Ok(ids)
}

fn check_ms(name: &str, ms: Option<u64>) -> Result<(), RpcError> {
    match ms {
        Some(ms) if ms > limits::DURATION_MS => Err(invalid(format!(
            "`{name}` is {ms} ms; at most {} ms (100 years) are allowed",
            limits::DURATION_MS
        ))),
        Some(_) | None => Ok(()),
    }
}

fn check_label(name: &str, text: Option<&str>) -> Result<(), RpcError> {
    match text {
        Some("") => Err(invalid(format!("`{name}` is empty; omit it instead"))),
        Some(text) if text.len() > limits::LABEL_BYTES => Err(invalid(format!(
            "`{name}` has {} bytes; at most {} are allowed",
            text.len(),
            limits::LABEL_BYTES
        ))),
        Some(_) | None => Ok(()),
    }
}

fn check_no_nul(name: &str, text: &OsText) -> Result<(), RpcError> {
    if text.has_nul() {
        return Err(invalid(format!("`{name}` contains a NUL byte, which the system does not allow")));
    }
    Ok(())
}

fn prompt_required() -> RpcError {
    RpcError::new(ErrorKind::PromptRequired, "`prompt` is missing or blank")
}

fn check_settings(settings: &AgentSettings) -> Result<(), RpcError> {
    settings.check().map_err(|(key, what)| invalid(format!("`settings.{key}` {what}")))
}

fn resume(id: TaskRef, prompt: String, settings: AgentSettings) -> Result<Request, RpcError> {
    if prompt.trim().is_empty() {
        return Err(prompt_required());
    }
    check_settings(&settings)?;
    Ok(Request::Resume { id, prompt: prompt.into(), settings: Box::new(settings) })
}

fn output(params: OutputParams) -> Result<OutputParams, RpcError> {
    match params.limit {
        Some(limit) if limit > limits::OUTPUT_CHUNK_BYTES => Err(invalid(format!(
            "`limit` is {limit}; at most {} bytes are returned at once",
            limits::OUTPUT_CHUNK_BYTES
        ))
        .hint("continue from `next`")),
        Some(_) | None => Ok(params),
    }
}

fn cancel(params: CancelParams) -> Result<Request, RpcError> {
    check_ms("grace_ms", params.grace_ms)?;
    check_label("session", params.session.as_deref())?;
    let is_narrow = params.matching.is_some();
    let which = match (params.ids.is_empty(), params.all) {
        (_, true) if is_narrow => {
            return Err(invalid("`matching` and `all` can't be combined: give one of them"));
        }
        _ if is_narrow && params.session.is_some() => {
            return Err(invalid("`session` requires `all`; put it into `matching`"));
        }
        _ if is_narrow => order::select(params.ids, params.matching)?,
        (false, false) if params.session.is_none() => Selection::Ids(params.ids),
        (false, false) => return Err(invalid("`session` requires `all`, not `ids`")),
        (true, true) => Selection::All { session: params.session.map(Into::into) },
        (false, true) => return Err(invalid("`ids` and `all` can't be combined: give one of them")),
        (true, false) => return Err(invalid("nothing to cancel: give `ids`, `matching` or `all`")),
    };
    let signal = params.signal.as_deref().map(signals::number).transpose()?;
    Ok(Request::Cancel(Cancel { which, signal, grace_ms: params.grace_ms }))
}

fn clear(params: ClearParams) -> Result<Request, RpcError> {
    check_label("session", params.session.as_deref())?;
    let which = match (params.ids, params.session) {
        (ids, session) if params.matching.is_some() => {
            if session.is_some() || ids.as_ref().is_some_and(Vec::is_empty) {
                return Err(invalid(
                    "`matching` can't be combined with `session` or `ids`: put the session into it",
                ));
            }
            order::select(ids.unwrap_or_default(), params.matching)?
        }
        (None, session) => Selection::All { session: session.map(Into::into) },
        (Some(_), Some(_)) => {
            return Err(invalid("`ids` and `session` can't be combined: give one of them"));
        }
        (Some(ids), None) if ids.is_empty() => {
            return Err(
                invalid("`ids` is empty: nothing to clear").hint("omit it to clear all finished tasks")
            );
        }
        (Some(ids), None) => Selection::Ids(ids),
    };
    Ok(Request::Clear { which, active_too: params.all })
}

fn write(params: WriteParams) -> Result<Body, RpcError> {
    let data = params.encoding.decode(params.data).map_err(|error| {
        invalid(format!(
            "`data` is not {}: {error}",
            if params.encoding == Encoding::Base64 { "base64" } else { "UTF-8" }
        ))
    })?;
    if data.len() > limits::WRITE_BYTES {
        return Err(invalid(format!(
            "`data` has {} bytes; at most {} are allowed",
            data.len(),
            limits::WRITE_BYTES
        ))
        .hint("send it in parts"));
    }
    Ok(Body::Write(params.id, data, params.eof))
}
