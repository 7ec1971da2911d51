//! The `[executors]` part of the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bgd_shared::limits;
use bgd_shared::order::{DEFAULT_GROUP, is_group_name};
use bgd_shared::resources::{ExecutorKind, Resources};
use serde::{Deserialize, Serialize};

use super::agents::Fault;
use super::size::Size;
use super::span::Span;
use crate::core::ExecutorName;
use crate::remotes::{CONNECT_TIMEOUT, Remote, RemoteSettings, Shell, Slurm, Ssh};

/// One `[executors.NAME]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorConfig {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<ExecutorKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssh: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qos: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    work_folder: Option<PathBuf>,
}

/// The keys of an executor, for suggestions on mistyped keys and for the documentation.
pub const KEYS: [&str; 16] = [
    "type",
    "host",
    "ssh",
    "connect_timeout",
    "bootstrap",
    "folder",
    "env",
    "partition",
    "account",
    "qos",
    "time",
    "cpus",
    "memory",
    "gpus",
    "options",
    "work_folder",
];

/// A key that only some kinds of executors accept: the key, those kinds, and whether a table sets it.
type Special = (&'static str, &'static [ExecutorKind], fn(&ExecutorConfig) -> bool);

/// The keys that only some kinds of executors accept.
const SPECIAL: [Special; 11] = [
    ("bootstrap", SSH, |config| config.bootstrap.is_some()),
    ("folder", SSH, |config| config.folder.is_some()),
    ("partition", SLURM, |config| config.partition.is_some()),
    ("account", SLURM, |config| config.account.is_some()),
    ("qos", SLURM, |config| config.qos.is_some()),
    ("time", SLURM, |config| config.time.is_some()),
    ("cpus", SLURM, |config| config.cpus.is_some()),
    ("memory", SLURM, |config| config.memory.is_some()),
    ("gpus", SLURM, |config| config.gpus.is_some()),
    ("options", SLURM, |config| config.options.is_some()),
    ("work_folder", SLURM, |config| config.work_folder.is_some()),
];

const SSH: &[ExecutorKind] = &[ExecutorKind::Ssh];

const SLURM: &[ExecutorKind] = &[ExecutorKind::Slurm];

/// Maximum number of executors.
const EXECUTORS: usize = 64;

impl ExecutorConfig {
    /// Reports whether variables are set, whose values may be secret.
    pub fn has_variables(&self) -> bool {
        self.env.as_ref().is_some_and(|env| !env.is_empty())
    }

    /// Builds and checks the executor.
    ///
    /// # Errors
    /// A value is invalid; the fault names the key and the reason.
    pub fn remote(&self, name: &str) -> Result<Remote, Fault> {
        let fault = |key: &str, what: &str| (format!("executors.{name}{key}"), what.to_owned());
        // `local` would hide this machine, which has that name in every list.
        let reserved = [DEFAULT_GROUP, ExecutorName::LOCAL.0];
        if !is_group_name(name) || reserved.contains(&name) {
            let bytes = limits::GROUP_BYTES;
            let [first, second] = reserved;
            let what = format!(
                "is not a valid name: use 1 to {bytes} letters, digits, `.`, `_` and `-`, not `{first}` or `{second}`"
            );
            return Err(fault("", &what));
        }
        let kind =
            self.kind.ok_or_else(|| fault(".type", &format!("is missing: {}", named(&ExecutorKind::ALL))))?;
        let is_foreign = |(_, kinds, is_given): &&Special| is_given(self) && !kinds.contains(&kind);
        if let Some((key, kinds, _)) = SPECIAL.iter().find(is_foreign) {
            return Err(fault(&format!(".{key}"), &format!("requires type = {}", named(kinds))));
        }
        let shell = self.shell().map_err(|(key, what)| fault(key, &what))?;
        let env = self.env.clone().unwrap_or_default();
        if let Some(bad) = env.iter().find(|(name, value)| !is_variable(name, value)) {
            return Err(fault(".env", &format!("has {:?}, which is not a valid variable", bad.0)));
        }
        let settings = match kind {
            ExecutorKind::Ssh => RemoteSettings::Ssh(Ssh {
                shell: shell.ok_or_else(|| fault(".host", "is missing: the machine, as ssh names it"))?,
                folder: self.folder.clone(),
                env,
            }),
            ExecutorKind::Slurm => {
                if shell.is_some() && self.work_folder.is_none() {
                    let what = "is missing: with `host`, name a folder that the login node shares with the cluster's nodes";
                    return Err(fault(".work_folder", what));
                }
                let resources = self.resources();
                resources.check().map_err(|(key, what)| fault(&format!(".{key}"), &what))?;
                if self.work_folder.as_ref().is_some_and(|folder| !folder.is_absolute()) {
                    return Err(fault(".work_folder", "must be an absolute path"));
                }
                RemoteSettings::Slurm(Box::new(Slurm {
                    shell,
                    resources,
                    time_limit_ms: self.time_limit().map_err(|what| fault(".time", what))?,
                    env,
                    work_folder: self.work_folder.clone(),
                }))
            }
        };
        Ok(Remote { name: name.into(), settings })
    }

    fn resources(&self) -> Resources {
        Resources {
            cpus: self.cpus,
            memory_bytes: self.memory.map(|size| size.0),
            gpus: self.gpus,
            partition: self.partition.clone(),
            account: self.account.clone(),
            qos: self.qos.clone(),
            options: self.options.clone().unwrap_or_default(),
        }
    }

    fn shell(&self) -> Result<Option<Shell>, (&'static str, String)> {
        let ssh = self.ssh.clone().unwrap_or_else(|| "ssh".to_owned());
        if ssh.is_empty() {
            return Err((".ssh", "is empty: give the program".to_owned()));
        }
        let connect_timeout = self.connect_timeout.map_or(CONNECT_TIMEOUT, |span| span.0);
        if connect_timeout < Duration::from_secs(1) {
            return Err((".connect_timeout", "must be at least 1s".to_owned()));
        }
        let Some(host) = self.host.clone() else { return Ok(None) };
        if host.is_empty()
            || host.starts_with('-')
            || host.contains(|c: char| c.is_control() || c.is_whitespace())
        {
            return Err((".host", format!("is {host:?}, which is not a machine's name")));
        }
        Ok(Some(Shell { ssh, host, connect_timeout, bootstrap: self.bootstrap.unwrap_or(false) }))
    }

    fn time_limit(&self) -> Result<Option<u64>, &'static str> {
        let Some(Span(time)) = self.time else { return Ok(None) };
        if time.is_zero() {
            return Err("is 0; it must be longer");
        }
        Ok(u64::try_from(time.as_millis()).ok())
    }
}

/// Returns the names of kinds of executors as written in the configuration.
fn named(kinds: &[ExecutorKind]) -> String {
    kinds.iter().map(|kind| format!("{:?}", kind.as_str())).collect::<Vec<_>>().join(" or ")
}

fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

/// Checks the number of executors.
pub fn check(executors: &BTreeMap<String, ExecutorConfig>) -> Result<(), Fault> {
    if executors.len() > EXECUTORS {
        let what = format!("has {} executors; at most {EXECUTORS} are allowed", executors.len());
        return Err(("executors".to_owned(), what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_executor_key_is_common_or_tied_to_a_type() {
        const COMMON: [&str; 5] = ["type", "host", "ssh", "connect_timeout", "env"];
        let special = SPECIAL.iter().map(|(key, ..)| *key);
        let mut known: Vec<&str> = special.chain(COMMON).collect();
        let mut keys = KEYS.to_vec();
        known.sort_unstable();
        keys.sort_unstable();
        assert_eq!(known, keys);
    }

    #[test]
    fn names_of_built_in_places_are_refused_for_executors() {
        let text = "type = \"ssh\"\nhost = \"h\"";
        let of = |name| toml::from_str::<ExecutorConfig>(text).unwrap().remote(name);
        for name in ["default", "local"] {
            let (key, what) = of(name).unwrap_err();
            assert_eq!(key, format!("executors.{name}"));
            assert!(what.ends_with("not `default` or `local`"), "{what}");
        }
        assert_eq!(&*of("locals").unwrap().name, "locals");
    }

    #[test]
    fn key_of_another_executor_type_is_refused_naming_the_required_type() {
        let of = |text: &str| toml::from_str::<ExecutorConfig>(text).unwrap().remote("x").unwrap_err();
        for (text, key, what) in [
            ("type = \"ssh\"\nhost = \"h\"\ngpus = 1", "executors.x.gpus", "requires type = \"slurm\""),
            ("type = \"slurm\"\nfolder = \"/\"", "executors.x.folder", "requires type = \"ssh\""),
            ("host = \"h\"", "executors.x.type", "is missing: \"ssh\" or \"slurm\""),
        ] {
            assert_eq!(of(text), (key.to_owned(), what.to_owned()));
        }
    }
}
