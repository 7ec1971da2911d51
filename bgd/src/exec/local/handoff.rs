//! Takes over processes that other programs hand over (R70).
//!
//! A worker checks the process, the drain thread prepares its drains, the core accepts the task, and only then is
//! anything touched. If a step before that fails, the process stays with the program that offered it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{Stream, TerminalSize};

use super::Local;
use super::handoffs::{Prepared, Ready, Running};
use crate::client::Client;
use crate::exec::executor::{Offer, OfferCallback};
use crate::exec::handed::check::{Checked, check};
use crate::exec::handed::copies::{FlowCopy, Via};
use crate::exec::handed::drain::Flow;
use crate::exec::handed::exit::Handed;
use crate::exec::handed::kinds::{Outputs, Source};
use crate::exec::handed::{HandedTerminal, Handoff, Recorded};
use crate::exec::output::OutputFolder;
use crate::exec::output::loss::Loss;
use crate::exec::supervise::process::Taken;
use crate::exec::terminal::TERMINAL_SIDE;
use crate::keeper::Key;
use crate::os::pty::size_of;
use crate::os::watch;

impl Local {
    /// Has a worker check an offered process; [`Self::prepared`] follows.
    pub(super) fn check_offer(
        &mut self,
        task: TaskId,
        handoff: Box<Handoff>,
        client: &Client,
        callback: OfferCallback,
    ) {
        let thread = match self.handoffs.thread() {
            Ok(thread) => thread,
            Err(error) => {
                let message = format!("cannot start a thread that drains pipes: {error}");
                return callback(task, Err(RpcError::new(ErrorKind::Internal, message)));
            }
        };
        let (leaders, prepare) = (self.handoffs.leaders(), self.handoffs.prepare.clone());
        let (folder, is_kept) = (Arc::clone(&self.context.folder), self.keeper.is_some());
        let (client, process) = (client.id, client.process);
        self.context.workers.later(move || {
            // If the receiver is gone, the daemon has ended.
            let done = move |result| drop(prepare.send(Prepared { task, client, result, callback }));
            let looked = check(*handoff, process, &leaders).and_then(|(checked, outputs)| {
                Ok((checked, prepare_outputs(task, outputs, &folder, is_kept)?))
            });
            let (checked, flows, copies) = match looked {
                Ok((checked, Kept::Flows(flows, copies))) => (checked, flows, copies),
                Ok((checked, Kept::Recorded(recorded))) => return done(Ok((checked, recorded))),
                Err(error) => return done(Err(error)),
            };
            let split = flows.len() > 1;
            thread.prepare(
                task,
                flows,
                Box::new(move |prepared| match prepared {
                    Ok(prepared) => done(Ok((checked, Recorded::Drained { prepared, split, copies }))),
                    Err(error) => {
                        folder.remove(task, 0);
                        let message = format!("its output can't be watched: {error}");
                        done(Err(RpcError::new(ErrorKind::Internal, message)));
                    }
                }),
            );
        });
    }

    /// Keeps a checked process until the core has decided about it.
    pub(super) fn prepared(&mut self, prepared: Prepared) {
        let Prepared { task, client, result, callback } = prepared;
        let kept = result.and_then(|(checked, recorded)| {
            let kept = self.keep(task, client, checked, recorded);
            // The process itself is still untouched.
            kept.inspect_err(|_| self.remove_offered(task))
        });
        callback(task, kept);
    }

    fn keep(
        &mut self,
        task: TaskId,
        client: u64,
        checked: Checked,
        recorded: Recorded,
    ) -> Result<Offer, RpcError> {
        let internal = |message| RpcError::new(ErrorKind::Internal, message);
        let (split, pty, output_file) = match &recorded {
            Recorded::Drained { split, .. } => (*split, None, None),
            Recorded::File(path) => (false, None, Some(path.as_os_str().into())),
            Recorded::Terminal(terminal) => {
                self.terminals.prepare().map_err(|error| internal(error.message.into()))?;
                (false, Some(terminal.size), None)
            }
        };
        let Checked { pid, pidfd, tree, argv, cwd, started_at } = checked;
        // A process that is offered twice at the same time belonged to no task in both checks.
        if let Some(other) = self.handoffs.leaders().0.get(&pid) {
            let message = format!("process {pid} already belongs to task {other}");
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
        // Watch it now, as the process stays with its owner until the daemon is sure to notice its end.
        let pidfd = watch::process(pidfd)
            .map_err(|error| internal(format!("process {pid} can't be watched: {error}")))?;
        self.handoffs.ready.insert(task, Ready { pid, pidfd, tree, recorded, client: Some(client) });
        Ok(Offer { pid, started_at, argv, cwd, split, pty, output_file })
    }

    fn remove_offered(&self, task: TaskId) {
        let folder = Arc::clone(&self.context.folder);
        self.context.workers.later(move || folder.remove(task, 0));
    }

    /// Starts to supervise a process whose task the core has accepted.
    pub(super) fn adopt_handed(&mut self, task: TaskId, run: u32) {
        let Some(Ready { pid, pidfd, tree, recorded, client }) = self.handoffs.ready.remove(&task) else {
            return tracing::error!(%task, "nothing was handed over for it");
        };
        let mut taken = Taken { pid, pidfd, tree, split: false, own_file: None, handed: Handed::default() };
        let loss = Loss::new(task, run, self.context.facts.clone());
        let recorded = self.keep_handed(Key { task, run }, pid, &taken.tree, recorded);
        match recorded {
            Recorded::Drained { prepared, split, copies: _ } => {
                let drains = prepared.begin(&loss);
                self.handoffs.drained.retain(|_, (_, drains)| !drains.have_ended());
                self.handoffs.drained.insert(task, (run, drains.clone()));
                (taken.split, taken.handed.drains) = (split, drains);
            }
            Recorded::File(path) => taken.own_file = Some(path),
            Recorded::Terminal(terminal) => {
                taken.handed.terminal = self.open_handed_terminal(task, terminal, loss);
            }
        }
        self.processes.take_over(task, run, taken);
        // Nobody else would: its terminal's shell has let it go.
        self.processes.continue_handed(task, run);
        self.handoffs.running.insert(task, Running { pid, client });
        if client.is_none() {
            self.processes.client_disconnected(task);
        }
    }

    /// Discards the output of a task, which is not wanted any more, or an offer that the core has not accepted.
    pub(super) fn forget_handed(&mut self, task: TaskId) {
        if self.handoffs.ready.remove(&task).is_some() {
            self.remove_offered(task);
        }
        // The drains stay known: writers must not find the pipe closed, for instance after an upgrade.
        if let Some((run, drains)) = self.handoffs.drained.get(&task) {
            drains.discard();
            // The next daemon will not have the task, and until then the keeper would hold the file.
            self.close_kept(task, *run);
            // The drain must be held again, without the file.
            self.handoffs.holds.remove(&task);
        }
    }

    /// Handles the disconnect of a client, which can no longer report the exit of the process that it handed over.
    pub(super) fn client_left(&mut self, client: u64) {
        for ready in self.handoffs.ready.values_mut().filter(|ready| ready.client == Some(client)) {
            ready.client = None;
        }
        for (task, running) in &self.handoffs.running {
            if running.client == Some(client) {
                self.processes.client_disconnected(*task);
            }
        }
    }
}

/// How the output of a process will be recorded.
enum Kept {
    /// By drains into files, once the drains are prepared; with copies for the keeper, if there is one.
    Flows(Vec<Flow>, Vec<FlowCopy>),
    /// Everything is ready.
    Recorded(Recorded),
}

/// Creates the output files: an empty one if there is no output, and none if the process writes its own file. If
/// `is_kept`, the output must survive the daemon, so none of it may ever be in this process alone.
fn prepare_outputs(
    task: TaskId,
    outputs: Outputs,
    folder: &OutputFolder,
    is_kept: bool,
) -> Result<Kept, RpcError> {
    let failed = |error: io::Error| {
        folder.remove(task, 0);
        let message = format!("cannot create its output in {}: {error}", folder.path().display());
        RpcError::new(ErrorKind::Internal, message)
    };
    let create = |stream| folder.create_to_drain(task, stream).map_err(failed);
    let sources = match outputs {
        Outputs::Drained(sources) => sources,
        Outputs::File(path) => return Ok(Kept::Recorded(Recorded::File(path))),
        Outputs::Pty(master) => {
            let size = usable_size(&master)?;
            let output = folder.create(task, Stream::Stdout).map_err(failed)?;
            return Ok(Kept::Recorded(Recorded::Terminal(HandedTerminal { master, size, output })));
        }
    };
    if sources.is_empty() {
        create(Stream::Stdout)?;
    }
    let streams = [Stream::Stdout, Stream::Stderr];
    let flows = sources.into_iter().zip(streams);
    let flow = |(source, stream)| {
        let passes = is_kept && matches!(source, Source::Socket(_));
        let via = passes.then(Via::new).transpose().map_err(failed)?;
        Ok(Flow { source, file: create(stream)?, via })
    };
    let flows: Vec<Flow> = flows.map(flow).collect::<Result<_, RpcError>>()?;
    let kept = flows.iter().filter(|_| is_kept);
    let copies = kept.map(Flow::copy).collect::<io::Result<_>>().map_err(failed)?;
    Ok(Kept::Flows(flows, copies))
}

/// Returns the size of a terminal, limited to the sizes that can be shown. Many programs do not set the size of the
/// terminals that they open; these get the usual 24 by 80.
fn usable_size(master: &OwnedFd) -> Result<TerminalSize, RpcError> {
    let size = size_of(master).map_err(|error| {
        RpcError::new(ErrorKind::InvalidParams, format!("the size of the terminal can't be read: {error}"))
    })?;
    let usable = |side: u16, usual: u16| if side == 0 { usual } else { side.min(TERMINAL_SIDE) };
    Ok(TerminalSize { rows: usable(size.rows, 24), cols: usable(size.cols, 80) })
}
