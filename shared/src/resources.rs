//! The resources that a task requests from the place that runs it, and the state that this place reports: for tasks on
//! another machine or a cluster.

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::time::Timestamp;

/// Kind of an executor that runs tasks elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// The daemon of another machine, reached via ssh.
    Ssh,
    /// A Slurm cluster.
    Slurm,
}

impl ExecutorKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Ssh, Self::Slurm];

    /// Returns the name on the wire and in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ssh => "ssh",
            Self::Slurm => "slurm",
        }
    }

    /// Reports whether it enforces the time limits of its tasks, so that the core does not have to.
    pub const fn enforces_time_limit(self) -> bool {
        match self {
            Self::Ssh => true,
            Self::Slurm => false,
        }
    }

    /// Reports whether conditions on other tasks that it has can be left to it.
    pub const fn tracks_dependencies(self) -> bool {
        match self {
            Self::Ssh => false,
            Self::Slurm => true,
        }
    }
}

/// Resources that a task requests from a cluster. Missing values are taken from the executor's configuration, else from
/// the cluster's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Number of processors, 1 to 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory in bytes; rounded up to whole mebibytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of graphics processors, 1 to 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Partition (queue) of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Account that is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Quality of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Further options of the cluster's own submit command, passed on unchanged, at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Maximum number of processors or graphics processors.
const UNITS: u32 = 1_000_000;

/// Maximum amount of memory in bytes: a pebibyte.
const MEMORY_BYTES: u64 = 1 << 50;

/// Maximum number of further options.
const OPTIONS: usize = 64;

impl Resources {
    /// Reports whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the name of the first requested resource.
    pub fn first(&self) -> Option<&'static str> {
        [
            ("cpus", self.cpus.is_some()),
            ("memory", self.memory_bytes.is_some()),
            ("gpus", self.gpus.is_some()),
            ("partition", self.partition.is_some()),
            ("account", self.account.is_some()),
            ("qos", self.qos.is_some()),
            ("options", !self.options.is_empty()),
        ]
        .into_iter()
        .find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Fills in missing values from `defaults`. Options of both are kept, those of `self` last.
    #[must_use]
    pub fn over(self, defaults: &Self) -> Self {
        Self {
            cpus: self.cpus.or(defaults.cpus),
            memory_bytes: self.memory_bytes.or(defaults.memory_bytes),
            gpus: self.gpus.or(defaults.gpus),
            partition: self.partition.or_else(|| defaults.partition.clone()),
            account: self.account.or_else(|| defaults.account.clone()),
            qos: self.qos.or_else(|| defaults.qos.clone()),
            options: defaults.options.iter().cloned().chain(self.options).collect(),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The name of the first invalid value, and the problem with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (name, units) in [("cpus", self.cpus), ("gpus", self.gpus)] {
            if let Some(units) = units.filter(|units| !(1..=UNITS).contains(units)) {
                return Err((name, format!("is {units}; it must be 1 to {UNITS}")));
            }
        }
        if let Some(bytes) = self.memory_bytes.filter(|bytes| !(1..=MEMORY_BYTES).contains(bytes)) {
            return Err(("memory", format!("is {bytes} bytes; it must be 1 to {MEMORY_BYTES}")));
        }
        let names = [("partition", &self.partition), ("account", &self.account), ("qos", &self.qos)];
        for (name, text) in names.into_iter().filter_map(|(name, text)| Some((name, text.as_ref()?))) {
            check_text(text).map_err(|what| (name, what))?;
            if text.starts_with('-') {
                return Err((name, "must not begin with a dash".to_owned()));
            }
        }
        if self.options.len() > OPTIONS {
            return Err((
                "options",
                format!("has {} entries; at most {OPTIONS} are allowed", self.options.len()),
            ));
        }
        for option in &self.options {
            check_text(option).map_err(|what| ("options", what))?;
            // The submit command would take anything else for the script.
            if !option.starts_with("--") || option == "--" {
                let what =
                    format!("has {option:?}; write each as one word that begins with --, as in --nice=5");
                return Err(("options", what));
            }
        }
        Ok(())
    }

    /// Returns the total length of the texts, in bytes.
    pub fn text_bytes(&self) -> usize {
        let names = [&self.partition, &self.account, &self.qos].into_iter().flatten();
        names.chain(&self.options).map(String::len).sum()
    }
}

fn check_text(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > limits::LABEL_BYTES || text.contains(char::is_control) {
        let most = limits::LABEL_BYTES;
        return Err(format!("must have 1 to {most} bytes and no control characters"));
    }
    Ok(())
}

/// State of a task's run as reported by the place that runs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Elsewhere {
    /// Its id there: of a task, or of a job of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Why it waits there, in that place's words. Only while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when the place has been unreachable; the task's status is the last known one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<Timestamp>,
    /// Why the place is unreachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_because: Option<String>,
    /// The last request concerning the task that the place refused, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How often the task was put back into the queue there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requeued: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(resources: &Resources) -> &'static str {
        resources.check().unwrap_err().0
    }

    #[test]
    fn r146_invalid_resource_values_are_refused() {
        let none = Resources::default;
        assert_eq!(none().check(), Ok(()));
        assert_eq!(fault(&Resources { cpus: Some(0), ..none() }), "cpus");
        assert_eq!(fault(&Resources { gpus: Some(UNITS + 1), ..none() }), "gpus");
        assert_eq!(fault(&Resources { memory_bytes: Some(0), ..none() }), "memory");
        assert_eq!(fault(&Resources { partition: Some("--wrap=x".into()), ..none() }), "partition");
        assert_eq!(fault(&Resources { account: Some("a\nb".into()), ..none() }), "account");
        assert_eq!(fault(&Resources { qos: Some(String::new()), ..none() }), "qos");
        for bad in ["job.sh", "-p", "--", ""] {
            assert_eq!(fault(&Resources { options: vec![bad.into()], ..none() }), "options", "{bad}");
        }
        assert_eq!(fault(&Resources { options: vec!["--x".into(); OPTIONS + 1], ..none() }), "options");
        let options = vec!["--nice=5".into(), "--exclusive".into()];
        assert_eq!(Resources { cpus: Some(4), options, ..none() }.check(), Ok(()));
    }

    #[test]
    fn r146_task_resources_override_the_configuration() {
        let configured = Resources {
            cpus: Some(1),
            partition: Some("long".into()),
            options: vec!["--a".into()],
            ..Resources::default()
        };
        let asked = Resources { cpus: Some(4), options: vec!["--b".into()], ..Resources::default() };
        let both = asked.over(&configured);
        assert_eq!((both.cpus, both.partition.as_deref()), (Some(4), Some("long")));
        assert_eq!(both.options, ["--a", "--b"]);
    }
}
