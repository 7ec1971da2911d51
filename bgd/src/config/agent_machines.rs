//! The machines that agents run on: the key `on` of an agent names an executor.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::agents::{AgentConfig, Fault};
use super::executors::ExecutorConfig;
use crate::agents::{Agent, Machine};

/// Builds and checks an agent, together with the machine that its program runs on.
///
/// # Errors
/// A value is invalid; the fault names the key and the reason.
pub fn agent(
    name: &str,
    config: &AgentConfig,
    executors: &BTreeMap<String, ExecutorConfig>,
) -> Result<Agent, Fault> {
    let agent = config.agent(name)?;
    let Some(on) = config.on() else { return Ok(agent) };
    let fault = |what: String| (format!("agents.{name}.on"), what);
    let Some(executor) = executors.get(on) else {
        return Err(fault(format!("is {on:?}, but there is no [executors.{on}]")));
    };
    let remote = executor.remote(on)?;
    let Some((name, ssh)) = remote.ssh() else {
        let kind = remote.kind().as_str();
        return Err(fault(format!(
            "is {on:?}, which has type = {kind:?}: an agent runs on a machine, an executor with type = \"ssh\""
        )));
    };
    Ok(Agent { on: Some(Arc::new(Machine { name: Arc::clone(name), ssh: ssh.clone() })), ..agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r152_agent_on_option_requires_a_configured_ssh_executor() {
        let executors = "[far]\ntype = \"ssh\"\nhost = \"h\"\n[hpc]\ntype = \"slurm\"\n";
        let executors: BTreeMap<String, ExecutorConfig> = toml::from_str(executors).unwrap();
        let placed = |on: &str, more: &str| {
            let config = format!("command = [\"a\"]\non = \"{on}\"\n{more}\n");
            agent("x", &toml::from_str(&config).unwrap(), &executors)
        };
        for (on, more, words) in [
            ("near", "", "there is no [executors.near]"),
            ("hpc", "", "which has type = \"slurm\": an agent runs on a machine"),
            ("far", "protocol = \"template\"", "requires protocol = \"acp\""),
        ] {
            let (key, what) = placed(on, more).unwrap_err();
            assert!(key == "agents.x.on" && what.contains(words), "{key} {what}");
        }
        assert_eq!(placed("local", "protocol = \"template\"").unwrap().on, None);
        assert_eq!(placed("far", "").unwrap().on.as_ref().unwrap().ssh.shell.host, "h");
    }
}
