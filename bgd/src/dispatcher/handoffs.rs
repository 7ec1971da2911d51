//! What is known of processes that were handed over.

use std::collections::HashMap;
use std::io;

use bgd_shared::id::TaskId;
use tokio::io::unix::AsyncFd;

use crate::answer::Answer;
use crate::exec::handed::Recorded;
use crate::exec::handed::check::Leaders;
use crate::exec::handed::drain::{DrainThread, Drains};
use crate::exec::handed::tree::HandedTree;
use crate::sys::pidfd::PidFd;

/// What the dispatcher knows of processes that were handed over.
#[derive(Debug, Default)]
pub(super) struct Handoffs {
    pub(super) thread: Option<DrainThread>,
    /// Those that the core has not taken yet.
    pub(super) ready: HashMap<TaskId, Offered>,
    /// Those whose process has not ended.
    pub(super) running: HashMap<TaskId, Running>,
    /// Those whose pipes are drained.
    pub(super) drained: HashMap<TaskId, Drains>,
}

/// A process that is taken over as soon as the core has a task for it; nothing can fail then.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) pid: i32,
    pub(super) pidfd: AsyncFd<PidFd>,
    pub(super) tree: HandedTree,
    pub(super) recorded: Recorded,
    /// Who offers it.
    pub(super) client: u64,
}

/// A process that was handed over and has not ended.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) pid: i32,
    /// Who handed it over.
    pub(super) client: u64,
    /// Who said how it ended, and waits for the daemon to know that it did.
    pub(super) told: Vec<Answer>,
}

impl Handoffs {
    pub(super) fn thread(&mut self) -> io::Result<DrainThread> {
        if let Some(thread) = self.thread.as_ref().filter(|thread| !thread.is_lost()) {
            return Ok(thread.clone());
        }
        let thread = DrainThread::start()?;
        Ok(self.thread.insert(thread).clone())
    }

    pub(super) fn leaders(&self) -> Leaders {
        Leaders(self.running.iter().map(|(task, running)| (running.pid, *task)).collect())
    }

    /// Nobody wants the output of this task any more.
    pub(super) fn forget(&mut self, task: TaskId) {
        if let Some(drains) = self.drained.remove(&task) {
            drains.discard();
        }
    }
}
