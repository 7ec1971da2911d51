//! An agent's program on another machine (R152): a `bgctl run` process here forwards its streams, so the protocol
//! passes through that process, and the agent ends with the connection. To the daemon, that `bgctl` is the agent's
//! process.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bgd_shared::error::ErrorKind;
use bgd_shared::text::{Env, OsText};

use crate::agents::{Agent, Machine};
use crate::core::Refusal;
use crate::exec::remote::program;

/// The variable that carries the agent's variables, as a JSON object: an argument would be readable by every user.
const VARIABLES: &str = "BGD_RUN_ENV";

/// Returns the command line and the environment of the local process, for the first task's submitter.
///
/// # Errors
/// `bgctl` is not installed beside this program.
pub fn process(agent: &Agent, machine: &Machine, submitter: &Env) -> Result<(Vec<OsText>, Env), Refusal> {
    let shell = &machine.ssh.shell;
    let about = format!("agent {}", agent.name);
    let verb = ["run", "--description", &about, "--env-from", VARIABLES, "--"];
    let line = program::line(shell, &[], &verb).ok_or_else(|| {
        Refusal::new(ErrorKind::AgentUnavailable, program::MISSING)
            .hint("install both programs into one folder")
    })?;
    let words = agent.command.iter().map(|word| OsText::from(word.as_str()));
    let given = agent.environment(submitter);
    let variables: BTreeMap<&str, Cow<'_, str>> =
        given.0.iter().map(|(name, value)| (&**name, value.to_string_lossy())).collect();
    let variables = serde_json::to_string(&variables).map_err(|error| {
        Refusal::new(ErrorKind::Internal, format!("the agent's variables can't be written: {error}"))
    })?;
    let own = program::environment(shell);
    let env = own.0.iter().cloned().chain([(VARIABLES.into(), variables.as_str().into())]).collect();
    Ok((line.into_iter().chain(words).collect(), env))
}
