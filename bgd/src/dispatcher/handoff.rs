//! The dispatcher's part in processes that other programs hand over (R70).
//!
//! A worker looks at the process, the thread that drains makes itself ready, the core takes the task, and
//! only then is anything touched. Whatever fails before that leaves the process with who offered it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::{HandoffParams, Stream, TaskResult, TerminalSize};
use bgd_shared::task::{Exit, Kind, Origin};
use bgd_shared::text::{Env, OsText};

use super::handoffs::{Offered, Running};
use super::{Dispatcher, Shape};
use crate::answer::Answer;
use crate::core::{Command, Place, Request, Spec, Work};
use crate::exec::handed::check::{Checked, check};
use crate::exec::handed::drain::{Drains, Flow};
use crate::exec::handed::exit::Handed;
use crate::exec::handed::kinds::Outputs;
use crate::exec::handed::{HandedTerminal, Handoff, Ready, Recorded};
use crate::exec::loss::Loss;
use crate::exec::output::OutputFolder;
use crate::exec::process::Taken;
use crate::exec::pty::size_of;
use crate::exec::terminal::TERMINAL_SIDE;
use crate::mailbox::Internal;
use crate::sys::watch;
use crate::view;

impl Dispatcher {
    /// Has a process that is offered looked at; [`Internal::Offered`] follows.
    pub(super) fn handoff(&mut self, answer: Answer, handoff: Box<Handoff>) {
        let thread = match self.handoffs.thread() {
            Ok(thread) => thread,
            Err(error) => {
                let message = format!("cannot start a thread that drains pipes: {error}");
                return answer.refuse(&RpcError::new(ErrorKind::Internal, message));
            }
        };
        let (leaders, task) = (self.handoffs.leaders(), TaskId::random());
        let (folder, internals) = (Arc::clone(&self.around.folder), self.internals.clone());
        let client = answer.client().process;
        self.around.workers.later(move || {
            let params = Box::new(handoff.params.clone());
            let tell = move |result| internals.send(Internal::Offered { answer, params, task, result });
            let looked = check(*handoff, client, &leaders)
                .and_then(|(checked, outputs)| Ok((checked, prepare(task, outputs, &folder)?)));
            let (checked, flows) = match looked {
                Ok((checked, Kept::Flows(flows))) => (checked, flows),
                Ok((checked, Kept::Recorded(recorded))) => {
                    return tell(Ok(Box::new(Ready { checked, recorded })));
                }
                Err(error) => return tell(Err(error)),
            };
            let split = flows.len() > 1;
            thread.prepare(
                task,
                flows,
                Box::new(move |prepared| match prepared {
                    Ok(prepared) => {
                        let recorded = Recorded::Drained { prepared, split };
                        tell(Ok(Box::new(Ready { checked, recorded })));
                    }
                    Err(error) => {
                        folder.remove(task, 0);
                        let message = format!("its output can't be watched: {error}");
                        tell(Err(RpcError::new(ErrorKind::Internal, message)));
                    }
                }),
            );
        });
    }

    /// Asks the core to take a process over that was looked at.
    pub(super) fn offered(
        &mut self,
        answer: Answer,
        params: HandoffParams,
        task: TaskId,
        result: Result<Box<Ready>, RpcError>,
    ) {
        let ready = match result {
            Ok(ready) => *ready,
            Err(error) => return answer.refuse(&error),
        };
        if let Recorded::Terminal(_) = &ready.recorded
            && let Err(error) = self.shows.prepare()
        {
            answer.refuse(&RpcError::new(ErrorKind::Internal, error.message));
            return self.remove_offered(task);
        }
        let pid = ready.checked.pid;
        // Offered twice at the same time, it was free both times.
        if let Some(other) = self.handoffs.leaders().0.get(&pid) {
            let message = format!("process {pid} belongs to task {other} already");
            answer.refuse(&RpcError::new(ErrorKind::InvalidParams, message));
            return self.remove_offered(task);
        }
        let mut command = Box::new(command(task, params, &ready));
        if let Err(error) = self.choose_channel(&mut command.spec) {
            answer.refuse(&error);
            return self.remove_offered(task);
        }
        let Ready { checked: Checked { tree, pidfd, started_at, .. }, recorded } = ready;
        // Not later: it is its owner's as long as the daemon can't be sure to learn of its end.
        let pidfd = match watch::process(pidfd) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let message = format!("process {pid} can't be watched: {error}");
                answer.refuse(&RpcError::new(ErrorKind::Internal, message));
                return self.remove_offered(task);
            }
        };
        self.notifier.awaits(&command.spec, answer.client().process);
        let client = answer.client().id;
        self.handoffs.ready.insert(task, Offered { pid, pidfd, tree, recorded, client });
        self.ask(answer, Shape::Plain, Request::Adopt { command, pid, started_at });
        // The core has refused it: the process stays where it is.
        if self.handoffs.ready.remove(&task).is_some() {
            self.remove_offered(task);
        }
    }

    fn remove_offered(&self, task: TaskId) {
        let folder = Arc::clone(&self.around.folder);
        self.around.workers.later(move || folder.remove(task, 0));
    }

    /// The core has taken a process over.
    pub(super) fn adopt_handed(&mut self, task: TaskId, run: u32) {
        let Some(Offered { pid, pidfd, tree, recorded, client }) = self.handoffs.ready.remove(&task) else {
            return tracing::error!(%task, "nothing was handed over for it");
        };
        let mut taken = Taken { pid, pidfd, tree, split: false, own_file: None, handed: Handed::default() };
        let loss = Loss::new(task, run, self.around.facts.clone());
        match recorded {
            Recorded::Drained { prepared, split } => {
                let drains = prepared.begin(&loss);
                self.handoffs.drained.insert(task, drains.clone());
                (taken.split, taken.handed.drains) = (split, drains);
            }
            Recorded::File(path) => taken.own_file = Some(path),
            Recorded::Terminal(terminal) => {
                taken.handed.terminal = self.open_handed_terminal(task, terminal, loss);
            }
        }
        self.processes.take_over(task, run, taken);
        self.handoffs.running.insert(task, Running { pid, client, told: Vec::new() });
        if !self.clients.contains_key(&client) {
            self.processes.left(task);
        }
    }

    /// `task.exit`: how a process ended that was handed over, as its parent says. The answer is given when
    /// the daemon knows that it has.
    pub(super) fn exit_told(&mut self, answer: Answer, task: &TaskRef, exit: Exit) {
        let snapshot = match self.core.get(task) {
            Ok(snapshot) => snapshot,
            Err(error) => return answer.refuse(&error.into()),
        };
        if snapshot.spec.origin != Origin::Handoff {
            let message = format!("task {} was not handed over", snapshot.id);
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            return answer.refuse(&error.hint("the daemon knows by itself how what it started has ended"));
        }
        match self.handoffs.running.get_mut(&snapshot.id) {
            Some(running) => {
                self.processes.told(snapshot.id, exit);
                running.told.push(answer);
            }
            None => answer.give(&TaskResult { task: view::task(&snapshot, &self.around.folder) }),
        }
    }

    /// The end of a process is known, if it was handed over.
    pub(super) fn handed_ended(&mut self, task: TaskId) {
        let Some(running) = self.handoffs.running.remove(&task) else { return };
        for answer in running.told {
            match self.core.get(&task.into()) {
                Ok(snapshot) => answer.give(&TaskResult { task: view::task(&snapshot, &self.around.folder) }),
                Err(error) => answer.refuse(&error.into()),
            }
        }
        if self.handoffs.drained.get(&task).is_some_and(Drains::have_ended) {
            self.handoffs.drained.remove(&task);
        }
    }

    /// A client is gone: it tells nothing any more of what it handed over.
    pub(super) fn hander_left(&self, client: u64) {
        for (task, running) in &self.handoffs.running {
            if running.client == client {
                self.processes.left(*task);
            }
        }
    }
}

/// Where the output of a process will be kept.
enum Kept {
    /// In these files, when it is drained.
    Flows(Vec<Flow>),
    /// All is ready.
    Recorded(Recorded),
}

/// Makes the output files: an empty one if there is no output, and none for a file of the process's own.
fn prepare(task: TaskId, outputs: Outputs, folder: &OutputFolder) -> Result<Kept, RpcError> {
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
    let flows: Result<_, RpcError> =
        flows.map(|(source, stream)| Ok(Flow { source, file: create(stream)? })).collect();
    Ok(Kept::Flows(flows?))
}

/// The size of a terminal as it can be shown. Many programs give none to those that they open; these get
/// the one that everybody assumes then.
fn usable_size(master: &OwnedFd) -> Result<TerminalSize, RpcError> {
    let size = size_of(master).map_err(|error| {
        RpcError::new(ErrorKind::InvalidParams, format!("the terminal does not tell its size: {error}"))
    })?;
    let usable = |side: u16, usual: u16| if side == 0 { usual } else { side.min(TERMINAL_SIDE) };
    Ok(TerminalSize { rows: usable(size.rows, 24), cols: usable(size.cols, 80) })
}

/// What the core is told of a process that is handed over.
fn command(id: TaskId, params: HandoffParams, ready: &Ready) -> Command {
    let Checked { argv, cwd, .. } = &ready.checked;
    let (split, pty, output_file) = match &ready.recorded {
        Recorded::Drained { split, .. } => (*split, None, None),
        Recorded::File(path) => (false, None, Some(Box::new(OsText::from(path.as_os_str())))),
        Recorded::Terminal(terminal) => (false, Some(terminal.size), None),
    };
    let spec = Spec {
        kind: Kind::Process,
        origin: Origin::Handoff,
        description: Some(params.description.into()),
        work: Work::Argv(argv.clone().into()),
        session: params.session.map(Into::into),
        channel: params.channel.map(Into::into),
        place: params
            .terminal
            .map(|terminal| Arc::new(Place { terminal: Some(terminal), ..Place::default() })),
        tags: params.tags.into_iter().map(Into::into).collect(),
        cwd: Arc::new(cwd.clone()),
        split,
        pty,
        output_file,
        ..Spec::of_daemon()
    };
    Command { id, spec, env: Env::default(), prompt: None, key: None, foreground: false }
}
