//! The configured executors that run tasks elsewhere: other machines by ssh, and Slurm clusters. This module holds
//! their settings and checks which tasks they accept; it does not connect to them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::ready::Ready;
use bgd_shared::request::{Chosen, LOCAL_EXECUTOR};
use bgd_shared::resources::{ExecutorKind, Resources};
use serde::{Deserialize, Serialize};

use crate::core::{Command, Placement, Work};

/// The default time limit for a machine's response.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// An executor's complete settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The name users refer to it by.
    pub name: Arc<str>,
    /// Its kind, and the settings for that.
    pub settings: RemoteSettings,
}

/// The settings of one kind of executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteSettings {
    /// The daemon of another machine.
    Ssh(Ssh),
    /// A cluster.
    Slurm(Box<Slurm>),
}

/// How to reach another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// The ssh program.
    pub ssh: String,
    /// The machine, as ssh names it.
    pub host: String,
    /// Time limit for its response.
    pub connect_timeout: Duration,
    /// Whether the bgd programs are copied to the machine if it has none.
    pub bootstrap: bool,
}

/// How much longer connecting may take if the programs have to be copied to the machine first. A copy that stalls is
/// abandoned sooner.
const COPY: Duration = Duration::from_mins(10);

impl Shell {
    /// Returns how long connecting may take.
    pub fn connect_limit(&self) -> Duration {
        self.connect_timeout + if self.bootstrap { COPY } else { Duration::ZERO }
    }
}

/// A machine whose daemon runs tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ssh {
    /// How to reach the machine.
    pub shell: Shell,
    /// The folder on the remote machine for tasks that chose none; `None` for the home folder.
    pub folder: Option<String>,
    /// Variables set for its tasks.
    pub env: BTreeMap<String, String>,
}

/// A Slurm cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    /// How to reach its login node; `None` if its commands are on this machine.
    pub shell: Option<Shell>,
    /// The default resources of tasks.
    pub resources: Resources,
    /// The time limit of tasks without one of their own, in milliseconds.
    pub time_limit_ms: Option<u64>,
    /// Variables set for Slurm's own commands.
    pub env: BTreeMap<String, String>,
    /// A folder shared by this machine and the cluster's nodes; `None` if they share the daemon's state folder.
    pub work_folder: Option<PathBuf>,
}

/// The home folder on another machine, whose path is not known.
const HOME: &str = "~";

/// How long a machine may take, beyond connecting, to answer the calls of a check.
const CHECK_GRACE: Duration = Duration::from_secs(10);

impl Remote {
    /// Returns how long a check of it may take: the time for connecting, and some seconds.
    pub fn check_limit(&self) -> Duration {
        let shell = match &self.settings {
            RemoteSettings::Ssh(ssh) => Some(&ssh.shell),
            RemoteSettings::Slurm(slurm) => slurm.shell.as_ref(),
        };
        shell.map_or(CONNECT_TIMEOUT, Shell::connect_limit) + CHECK_GRACE
    }

    pub const fn kind(&self) -> ExecutorKind {
        match self.settings {
            RemoteSettings::Ssh(_) => ExecutorKind::Ssh,
            RemoteSettings::Slurm(_) => ExecutorKind::Slurm,
        }
    }

    /// Returns its name and settings if it is the daemon of another machine.
    pub fn ssh(&self) -> Option<(&Arc<str>, &Ssh)> {
        if let RemoteSettings::Ssh(ssh) = &self.settings { Some((&self.name, ssh)) } else { None }
    }

    /// Returns its name and settings if it is a cluster.
    pub fn slurm(&self) -> Option<(&Arc<str>, &Slurm)> {
        if let RemoteSettings::Slurm(slurm) = &self.settings { Some((&self.name, slurm)) } else { None }
    }

    /// Returns the machine through which it is reached, if that is another one.
    pub fn host(&self) -> Option<&str> {
        match &self.settings {
            RemoteSettings::Ssh(ssh) => Some(&ssh.shell.host),
            RemoteSettings::Slurm(slurm) => slurm.shell.as_ref().map(|shell| &*shell.host),
        }
    }

    /// Returns the folder of tasks that chose none, as they show it, if the submitter's folder is not there.
    fn folder(&self) -> Option<&str> {
        match &self.settings {
            RemoteSettings::Ssh(ssh) => Some(ssh.folder.as_deref().unwrap_or(HOME)),
            RemoteSettings::Slurm(slurm) => slurm.shell.as_ref().map(|_| HOME),
        }
    }

    /// Returns where a new task runs, with its requests to that place.
    ///
    /// # Errors
    /// It can't run such a task; the error names the unsupported part.
    fn placement_for(&self, command: &Command, request: OnRequest) -> Result<Placement, RpcError> {
        let refuse = |what: &str, hint: &str| {
            let message = format!(
                "{what} is not supported on {}, an executor of type {:?}",
                self.name,
                self.kind().as_str()
            );
            Err(RpcError::new(ErrorKind::InvalidParams, message).hint(hint))
        };
        let spec = &command.spec;
        if matches!(spec.work, Work::Agent(_)) {
            return refuse("an agent", "set `on` in [agents.NAME]: its program then runs there");
        }
        if command.foreground || spec.direct {
            return refuse("a foreground job", "submit it, and follow it with `bgctl output --follow`");
        }
        if spec.pty.is_some() {
            return refuse("a terminal (`pty`)", "omit it, or use `bgctl -H HOST run` on that machine");
        }
        if spec.takes_descriptors() {
            return refuse("passing on a file or a pipe", "let the command open files over there");
        }
        match &self.settings {
            RemoteSettings::Ssh(_) => {
                if let Some(name) = request.resources.first() {
                    return refuse(
                        &format!("`{name}`"),
                        "only a cluster takes it: an executor of type \"slurm\"",
                    );
                }
            }
            RemoteSettings::Slurm(_) => {
                if spec.stdin.is_some() {
                    return refuse("an open standard input (`stdin: \"pipe\"`)", "let the job read a file");
                }
                if spec.ready.as_deref().is_some_and(|ready| !matches!(ready, Ready::Line(_))) {
                    return refuse(
                        "this way to become ready",
                        "use line:REGEX, which is looked for in its output",
                    );
                }
            }
        }
        let OnRequest { name: _, resources, chosen } = request;
        Ok(Placement { name: Arc::clone(&self.name), kind: self.kind(), resources, chosen })
    }
}

/// A submitter's choice of where a task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnRequest {
    /// The name of the executor; `None` for this machine.
    pub name: Option<String>,
    /// The resources requested from a cluster.
    pub resources: Resources,
    /// Which parts of its folder and environment were chosen for the task.
    pub chosen: Chosen,
}

/// The configured executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remotes(BTreeMap<Arc<str>, Arc<Remote>>);

impl FromIterator<Remote> for Remotes {
    fn from_iter<T: IntoIterator<Item = Remote>>(remotes: T) -> Self {
        Self(remotes.into_iter().map(|remote| (Arc::clone(&remote.name), Arc::new(remote))).collect())
    }
}

impl Remotes {
    /// Returns the executor of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Remote>> {
        self.0.get(name)
    }

    /// Returns all executors in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Remote>> {
        self.0.values()
    }

    /// Returns the executor of this name.
    ///
    /// # Errors
    /// There is none; the error lists the known ones.
    pub fn find(&self, name: &str) -> Result<&Arc<Remote>, RpcError> {
        self.get(name).ok_or_else(|| {
            let error = RpcError::new(ErrorKind::UnknownExecutor, format!("unknown executor {name:?}"));
            let known: Vec<&str> = self.0.keys().map(|name| &**name).collect();
            if known.is_empty() {
                return error.hint("none is configured: add one as [executors.NAME], see bgd-executors(7), then bgctl daemon reload");
            }
            error.hint(format!("known executors: {LOCAL_EXECUTOR}, {}", known.join(", ")))
        })
    }

    /// Completes a new task with its place. The task then belongs to the group of the executor's name unless it names
    /// another.
    ///
    /// # Errors
    /// There is no such executor, it can't run the task, or the task requests something that only a cluster has.
    pub fn place(&self, command: &mut Command, request: OnRequest) -> Result<(), RpcError> {
        let Some(name) = &request.name else {
            return match request.resources.first() {
                Some(name) => Err(RpcError::new(
                    ErrorKind::InvalidParams,
                    format!(
                        "`{name}` requires an executor that is a cluster: it can't limit local processes"
                    ),
                )
                .hint("name one with --on (`on` in task.submit), or omit it")),
                None => Ok(()),
            };
        };
        let remote = self.find(name)?;
        let on = remote.placement_for(command, request)?;
        if let (RemoteSettings::Slurm(slurm), None) = (&remote.settings, command.spec.time_limit_ms) {
            command.spec.time_limit_ms = slurm.time_limit_ms;
        }
        if let Some(folder) = remote.folder().filter(|_| !on.chosen.cwd) {
            command.spec.cwd = Arc::new(folder.into());
        }
        command.plan.group.get_or_insert_with(|| Arc::clone(&on.name));
        command.spec.on = Some(Arc::new(on));
        Ok(())
    }
}
