//! A checked submission: everything about a task except its work. That of an agent is known only once the agent is
//! found.

use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::limits;
use bgd_shared::params::shortened;
use bgd_shared::request::{OriginTerminal, SubmitParams};
use bgd_shared::task::Origin;
use bgd_shared::text::{Env, OsText};

use super::checks::{check_no_nul, check_required, invalid};
use crate::core::{Command, PlanRequest, Spec, SubmitterLocation, Work};

/// A prompt for an agent. The work of its task is known once the agent is.
#[derive(Debug)]
pub struct PromptRequest {
    /// `None` for the default agent.
    pub agent: Option<String>,
    pub prompt: Arc<str>,
    /// Settings for the agent's session.
    pub settings: Arc<AgentSettings>,
    pub task: Submission,
}

/// A checked submission: everything about a task except its work.
#[derive(Debug)]
pub struct Submission {
    pub id: TaskId,
    params: SubmitParams,
    cwd: OsText,
    /// The complete environment of its process.
    pub env: Env,
    umask: u32,
    place: Option<Arc<SubmitterLocation>>,
    plan: PlanRequest,
}

impl Submission {
    /// Checks everything about a task except its work.
    ///
    /// # Errors
    /// A param is missing or wrong; the error names it.
    pub fn new(mut params: SubmitParams, plan: PlanRequest) -> Result<Self, RpcError> {
        let cwd = params
            .cwd
            .take()
            .ok_or_else(|| invalid("`cwd` is missing: give the absolute path of the folder to run in"))?;
        let env = params
            .env
            .take()
            .ok_or_else(|| invalid("`env` is missing: give the complete environment, an object"))?;
        check_no_nul("cwd", &cwd)?;
        if !cwd.as_bytes().starts_with(b"/") {
            let cwd = shortened(&cwd.to_string_lossy());
            return Err(invalid(format!("`cwd` is {cwd:?}, which is not absolute")));
        }
        for (name, value) in &env.0 {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(invalid(format!("`env`: {:?} is not a valid variable name", shortened(name))));
            }
            check_no_nul(format_args!("env.{name}"), value)?;
        }
        let umask = params.umask.unwrap_or(0o022);
        if umask > 0o777 {
            return Err(invalid(format!("`umask` is {umask}; it must be 0 to 511 (0o777)")));
        }
        if params.time_limit_ms == Some(0) {
            return Err(invalid("`time_limit_ms` is 0: the task could not even start"));
        }
        let place = place(params.terminal.take(), &env)?;
        Ok(Self { id: TaskId::random(), params, cwd, env, umask, place, plan })
    }

    /// Returns the parent session and the idempotency key, if it has one.
    pub fn key(&self) -> Option<(Option<&str>, &str)> {
        Some((self.params.session.as_deref(), self.params.key.as_deref()?))
    }

    /// Builds the command with this work; `prompt` is that of an agent.
    pub fn command(self, work: Work, prompt: Option<Arc<str>>) -> Command {
        let Self { id, params, cwd, env, umask, place, plan } = self;
        let spec = Spec {
            origin: if params.foreground { Origin::Run } else { Origin::Submit },
            description: params.description.filter(|text| !text.is_empty()).map(Into::into),
            work,
            on: None,
            session: params.session.map(Into::into),
            channel: params.channel.map(Into::into),
            place,
            tags: params.tags.into_iter().map(Into::into).collect(),
            cwd: Arc::new(cwd),
            umask,
            rlimits: (!params.rlimits.is_empty()).then(|| Arc::new(params.rlimits)),
            stdin: params.stdin,
            given: [params.stdout.is_some(), params.stderr.is_some()],
            pty: params.pty,
            direct: params.direct,
            stays: params.stays,
            split: params.split,
            output_file: None,
            time_limit_ms: params.time_limit_ms,
            ready: params.ready.map(Box::new),
            ready_timeout_ms: params.ready_timeout_ms,
        };
        let (key, foreground) = (params.key.map(Into::into), params.foreground);
        Command { id, spec, env, prompt, key, foreground, plan }
    }
}

/// Environment variables that describe where the submitter can be reached.
const PLACE_VARIABLES: [&str; 8] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "STY",
    "TERM",
    "TERM_PROGRAM",
    "TMUX",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
];

/// Returns where the submitter can be reached. `None` if nothing is known.
pub fn place(
    terminal: Option<OriginTerminal>,
    env: &Env,
) -> Result<Option<Arc<SubmitterLocation>>, RpcError> {
    if let Some(terminal) = &terminal {
        check_required("terminal.path", &terminal.path)?;
    }
    let is_kept = |(name, value): &&(Box<str>, OsText)| {
        PLACE_VARIABLES.contains(&&**name) && value.as_bytes().len() <= limits::LABEL_BYTES
    };
    let env = env.0.iter().filter(is_kept).cloned().collect();
    let place = SubmitterLocation { terminal, env };
    Ok((place != SubmitterLocation::default()).then(|| Arc::new(place)))
}
