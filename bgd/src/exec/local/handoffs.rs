//! The state of processes that other programs hand over.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::carry::{CarriedFds, ReceivedFds};
use crate::exec::carried::{DrainsState, FlowState};
use crate::exec::executor::OfferCallback;
use crate::exec::handed::Recorded;
use crate::exec::handed::check::{Checked, Leaders};
use crate::exec::handed::copies::Via;
use crate::exec::handed::drain::{DrainThread, Drains, FlowBefore, RestingDrains, StillFlow};
use crate::exec::handed::kinds::Source;
use crate::exec::handed::tree::HandedTree;
use crate::exec::messages::Facts;
use crate::exec::output::loss::Loss;
use crate::exec::threads::hold::Hold;
use crate::os::pidfd::PidFd;

#[derive(Debug)]
pub(super) struct Handoffs {
    pub(super) thread: Option<DrainThread>,
    /// Processes that the core has not accepted yet.
    pub(super) ready: HashMap<TaskId, Ready>,
    pub(super) running: HashMap<TaskId, Running>,
    /// The drains of each task, with its run.
    pub(super) drained: HashMap<TaskId, (u32, Drains)>,
    /// Hold the drains for an upgrade.
    pub(super) holds: HashMap<TaskId, Vec<Hold<StillFlow>>>,
    /// Drains of the previous program that have not resumed yet.
    pub(super) resting: Vec<RestingDrains>,
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
    /// The client that offers it; `None` once the client has disconnected.
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
    pub(super) callback: OfferCallback,
}

impl Handoffs {
    pub(super) fn new() -> Self {
        let (prepare, prepared) = mpsc::unbounded_channel();
        let (ready, running, drained) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (holds, resting) = (HashMap::new(), Vec::new());
        Self { thread: None, ready, running, drained, holds, resting, prepared, prepare }
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

    /// Reports whether a process is being handed over.
    pub(super) fn is_busy(&self) -> bool {
        !self.ready.is_empty() || !self.prepared.is_empty()
    }

    /// Holds all drains until [`Self::release`]. Returns whether they have been still since the previous call, so that
    /// everything they had reported has arrived.
    pub(super) fn keep_still(&mut self) -> bool {
        let Self { drained, holds, .. } = self;
        let is_still = |task| holds.get(task).is_some_and(|holds| holds.iter().all(Hold::is_still));
        let were_still = drained.keys().all(is_still);
        for (task, (_, drains)) in drained {
            holds.entry(*task).or_insert_with(|| drains.hold()).iter_mut().for_each(Hold::look);
        }
        were_still
    }

    /// Releases the drains.
    pub(super) fn release(&mut self) {
        self.holds.clear();
    }

    /// Returns the state of all drains, which are held.
    pub(super) fn drains(&self, named: &mut CarriedFds) -> Vec<DrainsState> {
        let states = self.drained.iter().map(|(task, (run, _))| {
            let flows = self.holds.get(task).into_iter().flatten().filter_map(Hold::still);
            let flows = flows.map(|flow| {
                let StillFlow { source: (source, is_pipe), file, offset, is_losing, via } = flow;
                FlowState {
                    source: named.number(*source),
                    is_pipe: *is_pipe,
                    file: file.map(|file| named.number(file)),
                    offset: *offset,
                    is_losing: *is_losing,
                    via: via.map(|(out, into)| (named.number(out), named.number(into))),
                    via_out: None,
                }
            });
            DrainsState { task: *task, run: *run, flows: flows.collect() }
        });
        states.filter(|state| !state.flows.is_empty()).collect()
    }

    /// Adds drains of the previous program, which resume in [`Self::resume`].
    pub(super) fn add_carried(
        &mut self,
        state: DrainsState,
        facts: &Facts,
        received: &mut ReceivedFds,
    ) -> io::Result<Drains> {
        let DrainsState { task, run, flows } = state;
        self.thread()?;
        let flows = flows.into_iter().map(|flow| {
            let FlowState { source, is_pipe, file, offset, is_losing, via, via_out } = flow;
            let source = received.take(source)?;
            let source = if is_pipe { Source::Pipe(source) } else { Source::Socket(source) };
            let file = file.map(|file| received.take(file)).transpose()?.map(File::from);
            let via = match (via, via_out) {
                (Some((out, into)), _) => Some(Via { out: received.take(out)?, into: received.take(into)? }),
                (None, Some(out)) => Some(Via::of_read_end(received.take(out)?)?),
                (None, None) => None,
            };
            Ok(FlowBefore { source, file, offset, is_losing, via })
        });
        let flows = flows.collect::<io::Result<_>>()?;
        let (drains, resting) = Drains::restore(task, flows, Loss::new(task, run, facts.clone()));
        self.resting.push(resting);
        self.drained.insert(task, (run, drains.clone()));
        Ok(drains)
    }

    /// Resumes the drains of the previous program.
    pub(super) fn resume(&mut self) {
        for resting in std::mem::take(&mut self.resting) {
            match self.thread() {
                Ok(thread) => thread.resume(resting),
                Err(error) => tracing::error!(%error, "cannot drain pipes any longer"),
            }
        }
    }

    /// Returns the drains of a run that have not reached their end.
    pub(super) fn living(&self, task: TaskId, run: u32) -> Option<&Drains> {
        let (of, drains) = self.drained.get(&task)?;
        (*of == run && !drains.have_ended()).then_some(drains)
    }

    /// Forgets a process whose exit is known, and its drains if they have ended.
    pub(super) fn ended(&mut self, task: TaskId) {
        self.running.remove(&task);
        if self.drained.get(&task).is_some_and(|(_, drains)| drains.have_ended()) {
            self.drained.remove(&task);
        }
    }
}
