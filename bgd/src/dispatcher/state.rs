//! The state carried by an upgrade in place from one program to the next (R121), as data.
//!
//! Fields are only added, with a default, so that each release can read the state of its predecessor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::holder::Note;
use bgd_shared::id::TaskId;
use bgd_shared::request::OutputParams;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::carry::Fd;
use crate::carry::program::Found;
use crate::client::answer::AnswerState;
use crate::config::{Durable, TreeMode};
use crate::core::{Core, ExecutorName, ReplyTo, sharing};
use crate::exec::agent;
use crate::exec::carried::{Carried, InheritedState};
use crate::notify::carried::NotifierState;
use crate::os::clock::Stamp;
use crate::os::lock::FileId;
use crate::wire::connection::ConnectionsState;
use crate::wire::figures::Figures;
use crate::wire::subscribers::SubscribersState;

/// The whole state of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// When requests were last held back.
    pub since: Stamp,
    /// How long they were held back before that.
    #[serde(default)]
    pub held: Duration,
    /// The daemon's peak memory so far, in KiB; 0 if it is unknown.
    #[serde(default)]
    pub peak_kib: i64,
    /// The version of the previous program.
    pub from: String,
    /// The pending response to the upgrade request, sent when the upgrade is done.
    pub asked: AnswerState,
    /// The path of the next program.
    #[serde(default)]
    pub next: Option<OsText>,
    /// The resources acquired at startup.
    #[serde(rename = "premises")]
    pub resources: ResourcesState,
    pub connections: ConnectionsState,
    /// The dispatcher and everything it owns.
    pub dispatcher: DispatcherState,
}

impl State {
    /// Parses the state and counts its content. The digest is left empty.
    ///
    /// # Errors
    /// The tasks or the agents can't be read.
    pub fn count(&self) -> Result<Found, String> {
        if let Some(Carried::Other(agents)) = self.dispatcher.executors.get(ExecutorName::AGENT.0) {
            agent::read(agents).map_err(|error| format!("the agents can't be read: {error}"))?;
        }
        let core =
            read_core(&self.dispatcher.core).map_err(|error| format!("the tasks can't be read: {error}"))?;
        Ok(Found {
            digest: String::new(),
            tasks: core.summary().total(),
            connections: self.connections.all.len() as u64,
        })
    }
}

/// The resources acquired at startup.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResourcesState {
    /// The ID of the instance.
    pub instance: String,
    /// The number of tasks started by killed daemons.
    pub lost: usize,
    /// The ID of this run of the daemon, if it differs from the instance's.
    #[serde(default)]
    pub life: Option<String>,
    /// Whether the instance's folder outlives the daemon.
    #[serde(default)]
    pub is_kept: bool,
    /// The daemon's durability, regardless of its current configuration.
    #[serde(default)]
    pub durable: Option<Durable>,
    /// The value of `tree` at the start of the daemon, regardless of its current configuration.
    #[serde(default)]
    pub tree_mode: Option<TreeMode>,
    /// The lock of the instance's folder.
    pub instance_lock: Fd,
    /// The content of the instance's lock file.
    pub note: Note,
    pub socket_lock: Fd,
    /// The identity of the socket's file, if this daemon created it.
    pub socket: Option<FileId>,
    /// Whether a service manager created the socket.
    pub is_given: bool,
    /// How process trees are tracked, and why.
    pub tree: (String, String),
    /// The parent of the tasks' cgroups.
    pub cgroup: Option<PathBuf>,
    /// The soft and hard limit of file descriptors for tasks.
    pub nofile: Option<(u64, u64)>,
    /// The number of the next mark of a process tree.
    pub next_mark: u32,
    /// Child processes that are not the daemon's.
    pub spared: Vec<i32>,
    pub started: Stamp,
    pub state_dir: OsText,
    pub socket_path: OsText,
    /// The path of the previous program.
    #[serde(default)]
    pub program: Option<OsText>,
    /// The socket to the keeper and the keeper's PID, if the daemon is durable.
    #[serde(default)]
    pub keeper: Option<(Fd, i32)>,
}

/// The dispatcher and everything it owns.
#[derive(Debug, Serialize, Deserialize)]
pub struct DispatcherState {
    pub(super) core: Box<RawValue>,
    /// When the core's clock started.
    pub epoch: Stamp,
    pub(super) executors: BTreeMap<String, Carried>,
    pub(super) agent_warnings: BTreeMap<Arc<str>, Arc<str>>,
    pub(super) subscribers: SubscribersState,
    pub(super) notifier: NotifierState,
    /// Cleared tasks whose outputs are still needed for notices, with their latest runs.
    #[serde(default)]
    pub(super) kept_for_notices: Vec<(TaskId, u32)>,
    pub(super) figures: Figures,
    pub(super) pending: Vec<(ReplyTo, AnswerState, Shape)>,
    pub(super) last_call: u64,
    pub(super) inherited: BTreeMap<TaskId, InheritedState>,
    /// The text of the configuration in use, and the path of its file.
    pub config: (String, OsText),
    pub(super) config_loaded: bool,
    #[serde(default)]
    pub(super) config_modified: Option<Timestamp>,
    pub(super) config_error: Option<String>,
    /// The warning for users about the journal found at startup.
    #[serde(default)]
    pub(super) journal_warning: Option<String>,
}

/// How to convert a call's reply to its response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Shape {
    Plain,
    /// With whether it is about another task or batch than this one, which the call would have created.
    Submitted(TaskId),
    /// With a part of the task's output.
    Output(OutputParams),
    /// With the task's result.
    Result,
}

impl Shape {
    /// Reports whether the call did not create this task or batch, as one with its key existed.
    pub(super) fn is_existing(&self, id: TaskId) -> bool {
        matches!(self, Self::Submitted(new) if *new != id)
    }
}

/// Parses the core's state.
///
/// # Errors
/// The state is damaged.
pub(super) fn read_core(core: &RawValue) -> serde_json::Result<Core> {
    sharing::read_once(|| serde_json::from_str(core.get()))
}
