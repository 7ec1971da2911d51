//! Parsed requests for the dispatcher, checked against every limit.

mod agent;
mod batch;
mod body;
mod checks;
mod foreground;
mod inherit;
mod order;
mod session;
mod signals;
mod submission;
mod submit;

use std::os::fd::OwnedFd;

use bgd_shared::agent::{AgentListParams, ResumeParams};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskRef;
use bgd_shared::limits;
use bgd_shared::message::Request as Envelope;
use bgd_shared::params::parse_params;
use bgd_shared::request::{
    self, CancelParams, ClearParams, Encoding, METHODS, Method, OutputParams, SubscribeParams, UsageParams,
    WriteParams,
};

use self::agent::{answered, resume};
pub use self::body::{Body, Call, OUTPUT_DEFAULT_BYTES};
use self::checks::{check_label, check_ms, invalid};
pub use self::submission::PromptRequest;
use crate::core::{Cancel, LeavePolicy, Request, Selection};

impl Body {
    /// Parses and checks a request; `peer` is the process that sent it. An error becomes [`Body::Refused`]
    /// or [`Body::PartRefused`].
    pub fn read(request: &Envelope<'_>, fds: Vec<OwnedFd>, peer: Option<i32>) -> Self {
        Self::try_read(request, fds, peer).unwrap_or_else(Self::Refused)
    }

    fn try_read(request: &Envelope<'_>, fds: Vec<OwnedFd>, peer: Option<i32>) -> Result<Self, RpcError> {
        let method = &*request.method;
        let params = request.params;
        Ok(match method {
            request::TaskSubmit::NAME => submit::submitted(parse_params(method, params)?, fds, peer)?,
            request::TaskSubmitMany::NAME => batch::read(params, fds, peer),
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
                let params = inherit::complete_list(parse_params(method, params)?, peer)?;
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
                let leaves = if cancel { LeavePolicy::Nothing } else { LeavePolicy::All };
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

fn measured(UsageParams { ids }: UsageParams) -> Result<Vec<TaskRef>, RpcError> {
    if ids.len() > limits::USAGES {
        let (given, most) = (ids.len(), limits::USAGES);
        return Err(invalid(format!("`ids` has {given} tasks; at most {most} are measured at a time")));
    }
    Ok(ids)
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
