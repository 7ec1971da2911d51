//! Requests as the dispatcher gets them: read, checked against every limit, nothing left to parse.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::agent::{AgentListParams, AnswerParams, ResumeParams};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits;
use bgd_shared::message::{Request as Envelope, RequestId, parse_params};
use bgd_shared::request::{
    self, CancelParams, ClearParams, Encoding, ListParams, METHODS, Method, OutputParams, Stdin,
    SubmitParams, SubscribeParams, WriteParams,
};
use bgd_shared::task::{Kind, Origin};
use bgd_shared::text::OsText;

use crate::core::{AgentWork, Cancel, Command, ListQuery, Ordinal, Request, Selection, Spec, Work};
use crate::signals;

/// A request of a client.
#[derive(Debug)]
pub struct Call {
    /// The id for its answer; `None` for a notification, which gets none.
    pub id: Option<RequestId>,
    /// Bytes that its answer may need and that are reserved in the client's queue.
    pub reserved: usize,
    /// What it asks for.
    pub body: Body,
}

/// What a client asks for.
#[derive(Debug)]
pub enum Body {
    /// `hello`
    Hello,
    /// `task.submit`, with the descriptor that came along.
    Submit(Box<Command>, Option<OwnedFd>),
    /// `task.submit` of a prompt, with the agent that gets it, if one is named.
    Prompt(Box<Command>, Option<String>),
    /// `agent.list`
    Agents(AgentListParams),
    /// A request that the core answers with what the method returns.
    Core(Request),
    /// `task.output`
    Output(OutputParams),
    /// `task.result`
    Result(TaskRef),
    /// `task.list`
    List(ListQuery),
    /// `task.get`
    Get(TaskRef),
    /// `task.write`
    Write(TaskRef, Vec<u8>, bool),
    /// `events.subscribe`
    Subscribe(SubscribeParams),
    /// `daemon.status`
    Status,
    /// `daemon.reload`
    Reload,
    /// A line that is no request, or no good one.
    Refused(RpcError),
}

/// Methods of the protocol that this version does not have.
const LATER: &[&str] = &["task.handoff", "task.attach", "task.detach", "inbox.read", "inbox.ack"];

impl Body {
    /// Reads and checks a request. What is wrong with it becomes its answer.
    pub fn read(request: &Envelope<'_>, fds: Vec<OwnedFd>) -> Self {
        Self::try_read(request, fds).unwrap_or_else(Self::Refused)
    }

    fn try_read(request: &Envelope<'_>, fds: Vec<OwnedFd>) -> Result<Self, RpcError> {
        let method = &*request.method;
        let params = request.params;
        Ok(match method {
            request::TaskSubmit::NAME => submitted(parse_params(method, params)?, fds)?,
            request::TaskResume::NAME => {
                let ResumeParams { id, prompt } = parse_params(method, params)?;
                Self::Core(resume(id, prompt)?)
            }
            request::AgentAnswer::NAME => {
                let AnswerParams { id, request, option } = parse_params(method, params)?;
                Self::Core(Request::Answer { id, request, option: option.into() })
            }
            request::AgentList::NAME => Self::Agents(parse_params(method, params)?),
            request::TaskBlock::NAME => {
                let request::BlockParams { ids, timeout_ms, mode } = parse_params(method, params)?;
                check_ms("timeout_ms", timeout_ms)?;
                Self::Core(Request::Block { ids, timeout_ms, mode })
            }
            request::TaskList::NAME => Self::List(list(parse_params(method, params)?)?),
            request::TaskGet::NAME => Self::Get(parse_params::<request::IdParams>(method, params)?.id),
            request::TaskOutput::NAME => Self::Output(output(parse_params(method, params)?)?),
            request::TaskResultOf::NAME => {
                Self::Result(parse_params::<request::IdParams>(method, params)?.id)
            }
            request::TaskCancel::NAME => Self::Core(cancel(parse_params(method, params)?)?),
            request::TaskClear::NAME => Self::Core(clear(parse_params(method, params)?)?),
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
            request::SessionEnd::NAME => {
                let request::SessionEndParams { session } = parse_params(method, params)?;
                check_label("session", Some(&session))?;
                Self::Core(Request::EndSession { session: session.into() })
            }
            request::DaemonShutdown::NAME => {
                let request::ShutdownParams { grace_ms } = parse_params(method, params)?;
                check_ms("grace_ms", grace_ms)?;
                Self::Core(Request::Shutdown { grace_ms })
            }
            request::Hello::NAME => hello(&parse_params(method, params)?)?,
            request::DaemonStatusOf::NAME => {
                parse_params(method, params).map(|request::NoParams {}| Self::Status)?
            }
            request::DaemonReload::NAME => {
                parse_params(method, params).map(|request::NoParams {}| Self::Reload)?
            }
            unknown => return Err(unknown_method(unknown)),
        })
    }

    /// How many bytes the answer may need beyond a task or two.
    pub fn reserve(&self) -> usize {
        match self {
            Self::Output(params) => {
                let bytes = params.limit.unwrap_or(OUTPUT_DEFAULT_BYTES);
                usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes / 3 * 4)
            }
            #[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
            Self::Result(_) => limits::AGENT_RESULT_BYTES as usize / 3 * 4,
            Self::List(query) => (query.limit * TASK_BYTES).min(limits::LIST_PAGE_BYTES),
            Self::Core(Request::Block { ids, .. }) => ids.len() * TASK_BYTES,
            Self::Hello
            | Self::Submit(..)
            | Self::Prompt(..)
            | Self::Agents(_)
            | Self::Core(_)
            | Self::Get(_)
            | Self::Write(..)
            | Self::Subscribe(_)
            | Self::Status
            | Self::Reload
            | Self::Refused(_) => 0,
        }
    }
}

/// The bytes of an ordinary task object.
const TASK_BYTES: usize = 1024;

/// The bytes of `task.output` when the request names no limit.
pub const OUTPUT_DEFAULT_BYTES: u64 = 64 * 1024;

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::InvalidParams, message)
}

fn unknown_method(method: &str) -> RpcError {
    if LATER.contains(&method) {
        return RpcError::new(ErrorKind::Unsupported, format!("this version of bgd has no {method} yet"));
    }
    let method: String = method.chars().take(64).collect();
    let error = RpcError::new(ErrorKind::MethodNotFound, format!("there is no method {method:?}"));
    let near = |known: &&&str| strsim::damerau_levenshtein(known, &method);
    match METHODS.iter().min_by_key(near).filter(|known| near(known) <= 3) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error.hint("bgd-protocol(7) lists the methods"),
    }
}

fn check_ms(name: &str, ms: Option<u64>) -> Result<(), RpcError> {
    match ms {
        Some(ms) if ms > limits::DURATION_MS => Err(invalid(format!(
            "`{name}` is {ms} ms; at most {} ms (100 years) are taken",
            limits::DURATION_MS
        ))),
        Some(_) | None => Ok(()),
    }
}

fn check_label(name: &str, text: Option<&str>) -> Result<(), RpcError> {
    match text {
        Some("") => Err(invalid(format!("`{name}` is empty; leave it out instead"))),
        Some(text) if text.len() > limits::LABEL_BYTES => Err(invalid(format!(
            "`{name}` has {} bytes; at most {} are taken",
            text.len(),
            limits::LABEL_BYTES
        ))),
        Some(_) | None => Ok(()),
    }
}

fn check_no_nul(name: &str, text: &OsText) -> Result<(), RpcError> {
    if text.has_nul() {
        return Err(invalid(format!("`{name}` holds a NUL byte, which the system can't pass on")));
    }
    Ok(())
}

fn hello(params: &request::HelloParams) -> Result<Body, RpcError> {
    match params.protocol {
        Some(version) if version != bgd_shared::PROTOCOL => Err(RpcError::new(
            ErrorKind::Unsupported,
            format!("protocol {version} is not spoken here, only {}", bgd_shared::PROTOCOL),
        )
        .hint("use a client and a daemon of the same release")),
        Some(_) | None => Ok(Body::Hello),
    }
}

fn prompt_required() -> RpcError {
    RpcError::new(ErrorKind::PromptRequired, "`prompt` is missing or blank: what shall the agent be told?")
}

fn resume(id: TaskRef, prompt: String) -> Result<Request, RpcError> {
    if prompt.trim().is_empty() {
        return Err(prompt_required());
    }
    Ok(Request::Resume { id, prompt: prompt.into() })
}

/// The two modes of a submit (R37): a new task, or a prompt for the conversation of an earlier one.
fn submitted(mut params: SubmitParams, fds: Vec<OwnedFd>) -> Result<Body, RpcError> {
    if let Some(id) = params.resume {
        return resume(id, params.prompt.unwrap_or_default()).map(Body::Core);
    }
    if params.prompt.is_none() && params.agent.is_some() && params.argv.is_none() && params.shell.is_none() {
        return Err(prompt_required());
    }
    let agent = params.agent.take();
    if params.prompt.is_none() {
        if agent.is_some() {
            return Err(invalid("`agent` goes with `prompt`, not with a command"));
        }
        let (command, fd) = submit(params, fds)?;
        return Ok(Body::Submit(Box::new(command), fd));
    }
    check_prompt(&params)?;
    let (command, _) = submit(params, Vec::new())?;
    Ok(Body::Prompt(Box::new(command), agent))
}

/// Whether a prompt comes with what it needs, and with nothing that only a command can have.
fn check_prompt(params: &SubmitParams) -> Result<(), RpcError> {
    if params.prompt.as_deref().is_none_or(|prompt| prompt.trim().is_empty()) {
        return Err(prompt_required());
    }
    if params.argv.is_some() || params.shell.is_some() {
        return Err(invalid("`prompt` and a command exclude each other: give one of them"));
    }
    if params.description.as_deref().is_none_or(|text| text.trim().is_empty()) {
        return Err(invalid(
            "`description` is missing: what shall people read in lists? (with `prompt` it is required)",
        ));
    }
    if params.stdin.is_some() || params.split {
        return Err(invalid("`stdin` and `split` go with a command, not with `prompt`"));
    }
    Ok(())
}

fn submit(mut params: SubmitParams, fds: Vec<OwnedFd>) -> Result<(Command, Option<OwnedFd>), RpcError> {
    check_rlimits(&params.rlimits)?;
    check_labels(&params)?;
    check_ms("time_limit_ms", params.time_limit_ms)?;
    let prompt: Option<Arc<str>> = params.prompt.take().map(Into::into);
    let work =
        if prompt.is_some() { Work::Agent(AgentWork::default()) } else { work(params.argv, params.shell)? };
    let cwd = params.cwd.ok_or_else(|| invalid("`cwd` is missing: the folder to run in, absolute"))?;
    let env = params.env.ok_or_else(|| invalid("`env` is missing: the complete environment, an object"))?;
    check_no_nul("cwd", &cwd)?;
    if !cwd.as_bytes().starts_with(b"/") {
        return Err(invalid(format!("`cwd` is {:?}, which is not absolute", cwd.to_string_lossy())));
    }
    for (name, value) in &env.0 {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(invalid(format!("`env`: {name:?} can't be the name of a variable")));
        }
        check_no_nul(&format!("env.{name}"), value)?;
    }
    let umask = params.umask.unwrap_or(0o022);
    if umask > 0o777 {
        return Err(invalid(format!("`umask` is {umask}; it must be 0 to 511 (0o777)")));
    }
    if params.time_limit_ms == Some(0) {
        return Err(invalid("`time_limit_ms` is 0: the task could not even start"));
    }
    let fd = match (params.stdin, fds.into_iter().next()) {
        (Some(Stdin::Fd), Some(fd)) => Some(fd),
        (Some(Stdin::Fd), None) => {
            return Err(invalid("`stdin` is \"fd\", but no descriptor came with the line")
                .hint("send it by SCM_RIGHTS together with the first byte of the line"));
        }
        (Some(Stdin::Pipe) | None, _) => None,
    };
    let rlimits = (!params.rlimits.is_empty()).then(|| Arc::new(params.rlimits));
    let spec = Spec {
        kind: if prompt.is_some() { Kind::Agent } else { Kind::Process },
        origin: Origin::Submit,
        description: params.description.filter(|text| !text.is_empty()).map(Into::into),
        work,
        session: params.session.map(Into::into),
        channel: params.channel.map(Into::into),
        tags: params.tags.into_iter().map(Into::into).collect(),
        cwd: Arc::new(cwd),
        umask,
        rlimits,
        stdin: params.stdin,
        split: params.split,
        time_limit_ms: params.time_limit_ms,
    };
    Ok((Command { id: TaskId::random(), spec, env, prompt, key: params.key.map(Into::into) }, fd))
}

fn work(argv: Option<Vec<OsText>>, shell: Option<OsText>) -> Result<Work, RpcError> {
    match (argv, shell) {
        (Some(argv), None) => {
            if argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
                return Err(invalid("`argv` names no program"));
            }
            argv.iter().try_for_each(|text| check_no_nul("argv", text))?;
            Ok(Work::Argv(argv.into()))
        }
        (None, Some(line)) => {
            check_no_nul("shell", &line)?;
            Ok(Work::Shell(line))
        }
        (None, None) => Err(invalid("nothing to do: give `argv`, `shell`, or `prompt`")),
        (Some(_), Some(_)) => Err(invalid("`argv` and `shell` exclude each other: give one of them")),
    }
}

fn check_labels(params: &SubmitParams) -> Result<(), RpcError> {
    check_label("session", params.session.as_deref())?;
    check_label("channel", params.channel.as_deref())?;
    check_label("key", params.key.as_deref())?;
    check_label("description", params.description.as_deref().filter(|text| !text.is_empty()))?;
    if params.tags.len() > limits::TAGS {
        return Err(invalid(format!("{} tags; at most {} are taken", params.tags.len(), limits::TAGS)));
    }
    params.tags.iter().try_for_each(|tag| check_label("tags", Some(tag)))
}

fn check_rlimits(rlimits: &bgd_shared::rlimit::Rlimits) -> Result<(), RpcError> {
    let known = bgd_shared::rlimit::RESOURCES;
    for name in rlimits.keys() {
        if !known.iter().any(|(resource, _)| resource == name) {
            let names: Vec<_> = known.iter().map(|(resource, _)| *resource).collect();
            return Err(invalid(format!("`rlimits`: {name:?} is none of {}", names.join(", "))));
        }
    }
    Ok(())
}

fn list(params: ListParams) -> Result<ListQuery, RpcError> {
    let limit = params.limit.unwrap_or(limits::LIST_PAGE_DEFAULT);
    if limit == 0 || limit > limits::LIST_PAGE {
        return Err(invalid(format!("`limit` is {limit}; it must be 1 to {}", limits::LIST_PAGE)));
    }
    Ok(ListQuery { session: params.session, status: params.status, limit, after: params.after.map(Ordinal) })
}

fn output(params: OutputParams) -> Result<OutputParams, RpcError> {
    match params.limit {
        Some(limit) if limit > limits::OUTPUT_CHUNK_BYTES => Err(invalid(format!(
            "`limit` is {limit}; at most {} bytes are returned at once",
            limits::OUTPUT_CHUNK_BYTES
        ))
        .hint("read on from `next`")),
        Some(_) | None => Ok(params),
    }
}

fn cancel(params: CancelParams) -> Result<Request, RpcError> {
    check_ms("grace_ms", params.grace_ms)?;
    check_label("session", params.session.as_deref())?;
    let which = match (params.ids.is_empty(), params.all) {
        (false, false) if params.session.is_none() => Selection::Ids(params.ids),
        (false, false) => return Err(invalid("`session` goes with `all`, not with `ids`")),
        (true, true) => Selection::All { session: params.session.map(Into::into) },
        (false, true) => return Err(invalid("`ids` and `all` exclude each other: give one of them")),
        (true, false) => return Err(invalid("nothing to cancel: give `ids` or `all`")),
    };
    let signal = params.signal.as_deref().map(signals::number).transpose()?;
    Ok(Request::Cancel(Cancel { which, signal, grace_ms: params.grace_ms }))
}

fn clear(params: ClearParams) -> Result<Request, RpcError> {
    check_label("session", params.session.as_deref())?;
    let which = match (params.ids, params.session) {
        (None, session) => Selection::All { session: session.map(Into::into) },
        (Some(_), Some(_)) => {
            return Err(invalid("`ids` and `session` exclude each other: give one of them"));
        }
        (Some(ids), None) if ids.is_empty() => {
            return Err(
                invalid("`ids` is empty: nothing to clear").hint("leave it out to clear all finished tasks")
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
            "`data` has {} bytes; at most {} are taken",
            data.len(),
            limits::WRITE_BYTES
        ))
        .hint("send it in parts"));
    }
    Ok(Body::Write(params.id, data, params.eof))
}
