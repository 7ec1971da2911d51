//! The state of processes that other programs hand over.

use std::collections::HashMap;
use std::io;

use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::exec::executor::TellOffer;
use crate::exec::handed::Recorded;
use crate::exec::handed::check::{Checked, Leaders};
use crate::exec::handed::drain::{DrainThread, Drains};
use crate::exec::handed::tree::HandedTree;
use crate::os::pidfd::PidFd;

#[derive(Debug)]
pub(super) struct Handoffs {
    pub(super) thread: Option<DrainThread>,
    /// Processes that the core has not taken yet.
    pub(super) ready: HashMap<TaskId, Ready>,
    /// Processes that have not ended.
    pub(super) running: HashMap<TaskId, Running>,
    /// Tasks whose pipes are drained.
    pub(super) drained: HashMap<TaskId, Drains>,
    /// Results of the checks by workers.
    prepared: mpsc::UnboundedReceiver<Prepared>,
    pub(super) prepare: mpsc::UnboundedSender<Prepared>,
}

/// A process that is taken over as soon as the core has a task for it; from then on nothing can fail.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) pid: i32,
    pub(super) pidfd: AsyncFd<PidFd>,
    pub(super) tree: HandedTree,
    pub(super) recorded: Recorded,
    /// The client that offers it; `None` once that has disconnected.
    pub(super) client: Option<u64>,
}

/// A handed-over process that has not ended.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) pid: i32,
    /// The client that handed it over, if it was still connected then.
    pub(super) client: Option<u64>,
}

/// A worker's result for an offered process.
pub(super) struct Prepared {
    pub(super) task: TaskId,
    pub(super) client: u64,
    pub(super) result: Result<(Checked, Recorded), RpcError>,
    pub(super) tell: TellOffer,
}

impl Handoffs {
    pub(super) fn new() -> Self {
        let (prepare, prepared) = mpsc::unbounded_channel();
        let (ready, running, drained) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { thread: None, ready, running, drained, prepared, prepare }
    }

    /// Waits for a worker's result for an offered process.
    pub(super) async fn prepared(&mut self) -> Prepared {
        match self.prepared.recv().await {
            Some(prepared) => prepared,
            // Unreachable: this holds a sender itself.
            None => std::future::pending().await,
        }
    }

    pub(super) fn thread(&mut self) -> io::Result<DrainThread> {
        if let Some(thread) = self.thread.as_ref().filter(|thread| !thread.is_lost()) {
            return Ok(thread.clone());
        }
        let thread = DrainThread::start()?;
        Ok(self.thread.insert(thread).clone())
    }

    /// Returns the processes that belong to a task or are about to.
    pub(super) fn leaders(&self) -> Leaders {
        let running = self.running.iter().map(|(task, running)| (running.pid, *task));
        Leaders(self.ready.iter().map(|(task, ready)| (ready.pid, *task)).chain(running).collect())
    }

    /// Returns a task whose process was handed over, or is about to be, if there is one.
    pub(super) fn any(&self) -> Option<TaskId> {
        let all = self.running.keys().chain(self.ready.keys()).chain(self.drained.keys());
        all.copied().next()
    }

    /// Forgets a process whose exit is known, and its drains if they have ended.
    pub(super) fn ended(&mut self, task: TaskId) {
        self.running.remove(&task);
        if self.drained.get(&task).is_some_and(Drains::have_ended) {
            self.drained.remove(&task);
        }
    }
}
