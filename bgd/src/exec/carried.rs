//! The state that executors carry over an upgrade in place. The executors themselves build and read it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::helper::{Life, Purpose};
use super::input::UnreadState;
use super::messages::Inherited;
use super::output::follow::Tracked;
use super::processes::mark::Mark;
use super::ready::ProbeState;
use super::supervise::progress::Progress;
use super::terminal::still::FollowedState;
use crate::carry::{CarriedFds, Fd, ReceivedFds};
use crate::client::answer::AnswerState;
use crate::core::RunPlace;

/// The state of an executor for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub enum Carried {
    /// The executor has no state.
    Nothing,
    /// Processes on this machine.
    Local(LocalState),
    /// The state of another executor, in that executor's own format.
    Other(Box<RawValue>),
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LocalState {
    pub(super) processes: Vec<ProcessState>,
    pub(super) starts: Vec<StartState>,
    pub(super) outputs: BTreeMap<TaskId, Tracked>,
    #[serde(default)]
    pub(super) drains: Vec<DrainsState>,
    #[serde(default)]
    pub(super) helpers: Vec<HelperState>,
    /// The processes that adopted the orphans of a killed daemon.
    #[serde(default, rename = "fosters")]
    pub(super) subreapers: Vec<i32>,
    /// How many descriptors the keeper holds for each pending task; those of other pending tasks are sent to it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) waiting: BTreeMap<TaskId, usize>,
}

/// The keeper's data about a run, from which the next daemon continues the run if this one is killed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftState {
    pub(super) process: ProcessState,
    /// The drains of its output, if the process was handed over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) drains: Vec<FlowState>,
    /// The names of the attached descriptors, in order.
    pub(super) names: Vec<Fd>,
}

/// A process for the daemon's own work. Its supervisor is among [`LocalState::processes`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HelperState {
    pub(super) id: TaskId,
    pub(super) purpose: Purpose,
    pub(super) life: Life,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProcessState {
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) leader: i32,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) mark: Option<Mark>,
    pub(super) split: bool,
    pub(super) input: Option<Fd>,
    /// The data written to `input` and not read yet.
    #[serde(default, skip_serializing_if = "UnreadState::is_empty")]
    pub(super) unread: UnreadState,
    #[serde(default)]
    pub(super) probe: Option<ProbeState>,
    pub(super) progress: Progress,
    #[serde(default)]
    pub(super) terminal: Option<TerminalState>,
    #[serde(default)]
    pub(super) handed: Option<HandedState>,
    /// The leader's pidfd, if a killed daemon started it.
    #[serde(default)]
    pub(super) handle: Option<Fd>,
    /// Whether a killed daemon started it.
    #[serde(default)]
    pub(super) is_inherited: bool,
}

/// The state of a process that another program started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HandedState {
    pub(super) handle: Fd,
    /// Whether it leads a session, and whether it leads a group.
    pub(super) leads: (bool, bool),
    /// Processes that were signalled and are still alive.
    pub(super) held: Vec<(i32, Fd)>,
    /// Whether its exit is still unknown.
    pub(super) is_running: bool,
    /// The client that may report its exit.
    pub(super) client: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DrainsState {
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) flows: Vec<FlowState>,
}

/// A pipe or socket that is drained.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FlowState {
    pub(super) source: Fd,
    pub(super) is_pipe: bool,
    pub(super) file: Option<Fd>,
    pub(super) offset: u64,
    pub(super) is_losing: bool,
    /// The pipe that a socket is drained through: read end, write end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) via: Option<(Fd, Fd)>,
    /// The read end of that pipe, if the keeper's message had no place for the write end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) via_out: Option<Fd>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TerminalState {
    /// The job that the process leads, if it is a leader.
    pub(super) job: Option<JobState>,
    /// `None` if the terminal can't be followed any more.
    pub(super) followed: Option<FollowedState>,
    /// The answers owed for typed input.
    pub(super) owed: Vec<(u64, AnswerState)>,
    /// The viewers that have typed anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) typists: Vec<u64>,
}

/// A job in a terminal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct JobState {
    pub(super) pid: i32,
    pub(super) handle: Fd,
    pub(super) name: PathBuf,
}

/// A process that was about to be started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartState {
    pub(super) task: TaskId,
    pub(super) run: u32,
    pub(super) env: Arc<Env>,
    pub(super) place: Option<Box<RunPlace>>,
    pub(super) inherited: InheritedState,
    /// The client that is shown its terminal from the first byte on.
    #[serde(default)]
    pub(super) owner: Option<u64>,
}

/// The descriptors that a submitter sent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct InheritedState {
    stdin: Option<Fd>,
    pub(super) outputs: [Option<Fd>; 2],
}

impl InheritedState {
    pub fn of(inherited: &Inherited, named: &mut CarriedFds) -> Self {
        let Inherited { stdin, outputs } = inherited;
        let mut name = |fd: &Option<_>| fd.as_ref().map(|fd| named.add(fd));
        Self { stdin: name(stdin), outputs: [name(&outputs[0]), name(&outputs[1])] }
    }

    /// Returns the names of the descriptors in the order of [`Inherited::into_all`].
    pub(super) fn names(&self) -> impl Iterator<Item = Fd> {
        self.stdin.into_iter().chain(self.outputs.into_iter().flatten())
    }

    /// Takes the descriptors out of `received`.
    ///
    /// # Errors
    /// A descriptor did not arrive.
    pub fn take(self, received: &mut ReceivedFds) -> io::Result<Inherited> {
        let Self { stdin, outputs: [out, err] } = self;
        let mut take = |fd: Option<Fd>| fd.map(|fd| received.take(fd)).transpose();
        Ok(Inherited { stdin: take(stdin)?, outputs: [take(out)?, take(err)?] })
    }
}
