//! The state that the local executor carries over an upgrade in place, and its restoration.
//!
//! Pidfds are opened again: an unreaped leader keeps its pid, and the other processes of a tree are searched for as
//! usual.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::Local;
use super::handoffs::Running;
use super::open_terminals::OpenTerminals;
use super::waiting::Waiting;
use crate::carry::{CarriedFds, Fd, Obstacle, ReceivedFds};
use crate::exec::carried::{
    HandedState, InheritedState, JobState, LocalState, ProcessState, StartState, TerminalState,
};
use crate::exec::context::Context;
use crate::exec::executor::SpecOf;
use crate::exec::handed::drain::Drains;
use crate::exec::handed::exit::Handed;
use crate::exec::handed::tree::HandedTree;
use crate::exec::input::{InputPipe, UnreadState};
use crate::exec::messages::{StartOrder, Streams};
use crate::exec::output::loss::Loss;
use crate::exec::processes::members::Member;
use crate::exec::ready::Probe;
use crate::exec::supervise::process::{Processes, Supervised, SupervisorStart, TerminalJob};
use crate::exec::supervise::progress::Stage;
use crate::exec::terminal::Terminal;
use crate::exec::tree::Tree;
use crate::os::pidfd::PidFd;
use crate::os::watch;

impl Local {
    /// Returns the state, or the obstacle that prevents carrying it now.
    pub(super) fn state(&mut self, named: &mut CarriedFds) -> Result<LocalState, Obstacle> {
        // Exhaustive: a new field must be carried, too, or be an obstacle.
        let Self {
            processes,
            terminals,
            handoffs,
            helpers,
            owners,
            owners_before: _,
            starts,
            holds_starts,
            leaves: _,
            reports,
            keeper,
            replaced,
            waiting,
            ends,
            context,
        } = self;
        let helpers = helpers.state()?;
        if handoffs.is_busy() {
            return Err(Obstacle::passing("a process is being handed over"));
        }
        if !processes.starting.is_empty() || !reports.is_empty() || !(starts.is_empty() || *holds_starts) {
            return Err(Obstacle::passing("a process is being started"));
        }
        if !ends.is_empty() {
            return Err(Obstacle::passing("the end of a process is being handled"));
        }
        if keeper.as_ref().is_some_and(|keeper| !keeper.is_idle()) || !replaced.is_over() {
            return Err(Obstacle::passing("the keeper of running tasks is being informed"));
        }
        let are_still = [terminals.keep_still(), handoffs.keep_still()];
        if are_still != [true; 2] {
            return Err(Obstacle::passing("output is being read"));
        }
        let mut all = Vec::new();
        for (task, supervised) in &processes.supervised {
            let mut state = ProcessState::of(*task, supervised, terminals, named)?;
            let running = handoffs.running.get(task);
            let handed = supervised.tree.handed.as_deref();
            state.handed = handed.map(|tree| HandedState::of(tree, running, named));
            all.push(state);
        }
        let drains = handoffs.drains(named);
        let owner = |task| owners.get(&task).map(|client| client.id);
        let starts = starts.iter().map(|start| StartState::of(start, owner(start.task), named)).collect();
        let outputs = context.outputs.tracked();
        let subreapers = context.adopted.subreapers();
        let waiting = waiting.state();
        Ok(LocalState { processes: all, starts, outputs, drains, helpers, subreapers, waiting })
    }

    /// Restores the state that another program has carried over. `spec` returns the spec of a task.
    ///
    /// # Errors
    /// Part of the state is missing, or no descriptor is left.
    pub(super) fn restore(
        &mut self,
        state: LocalState,
        received: &mut ReceivedFds,
        spec: &SpecOf<'_>,
    ) -> io::Result<()> {
        let LocalState { processes, starts, outputs, drains, helpers, subreapers, waiting } = state;
        self.waiting = Waiting::restore(waiting);
        self.context.adopted.search_children_of(subreapers);
        // First, so that the end of a leader is not mistaken for that of an orphan.
        let is_child = |process: &&ProcessState| process.handed.is_none();
        let unreaped = processes.iter().filter(is_child).filter(|it| it.progress.stage != Stage::Rest);
        unreaped.for_each(|process| self.context.adopted.add(process.leader));
        self.context.outputs.resume_tracking(outputs);
        self.helpers.restore(helpers, &self.context.helpers);
        let mut all_drains = HashMap::new();
        for state in drains {
            let (task, run) = (state.task, state.run);
            let drains = self.handoffs.add_carried(state, &self.context.facts, received)?;
            all_drains.insert(task, (run, drains));
        }
        for process in processes {
            let (task, run) = (process.task, process.run);
            let of_run = all_drains.get(&task).is_some_and(|(its, _)| *its == run);
            let drains = of_run.then(|| all_drains.remove(&task)).flatten();
            let drains = drains.map(|(_, drains)| drains).unwrap_or_default();
            if let Some(HandedState { is_running: true, client, .. }) = process.handed {
                self.handoffs.running.insert(task, Running { pid: process.leader, client });
            }
            process.resume(&mut self.processes, &mut self.terminals, drains, received)?;
        }
        // The rest belongs to trees that have ended, but other processes have their pipes open.
        for (task, (run, drains)) in all_drains {
            self.close_when_drained(task, run, &drains);
            self.processes.finish_drains(task, run, drains);
        }
        for start in starts {
            let StartState { task, run, env, place, inherited, owner } = start;
            let spec = spec(task).ok_or_else(|| io::Error::other(format!("task {task} is missing")))?;
            if spec.pty.is_some() {
                self.terminals.prepare().map_err(|error| io::Error::other(error.message.into_string()))?;
            }
            self.owners_before.extend(owner.map(|owner| (task, owner)));
            let streams = Streams::Own(inherited.take(received)?);
            self.starts.push(StartOrder { task, run, spec, env, place, streams });
        }
        Ok(())
    }
}

impl ProcessState {
    fn of(
        task: TaskId,
        supervised: &Supervised,
        terminals: &OpenTerminals,
        named: &mut CarriedFds,
    ) -> Result<Self, Obstacle> {
        let Supervised { run, control: _, input, unread: _, probe, tree, split, shown, job } = supervised;
        let progress = shown.get();
        if progress.stage == Stage::AtWork {
            return Err(Obstacle::passing(format!("the processes of task {task} are being examined")));
        }
        let unread = match input {
            Some(input) => {
                let answering = || Obstacle::passing("a request is being answered");
                input.unread().ok_or_else(answering)?
            }
            None => UnreadState::default(),
        };
        // The files have the names of the task, and the daemon's children are found again; the state that concerns the
        // leader follows from the progress, the job, and whether it was handed over.
        let Tree {
            task: _,
            leader,
            has_leader: _,
            handle,
            leader_only_leads_terminal: _,
            files: _,
            terminal: name,
            cgroup,
            mark,
            handed: _,
            is_inherited,
            adopted: _,
        } = tree;
        let job = job.as_ref().map(|(pid, handle)| JobState {
            pid: *pid,
            handle: named.add(handle),
            name: name.clone().unwrap_or_default(),
        });
        Ok(Self {
            task,
            run: *run,
            leader: *leader,
            cgroup: cgroup.clone(),
            mark: *mark,
            split: *split,
            input: input.as_ref().and_then(InputPipe::number).map(|number| named.number(number)),
            unread,
            probe: probe.as_ref().map(|probe| probe.state(probe.socket().map(|socket| named.add(socket)))),
            progress,
            terminal: terminals.state(task, job, named),
            handed: None,
            handle: handle.as_ref().map(|handle| named.add(handle)),
            is_inherited: *is_inherited,
        })
    }

    pub(super) fn resume(
        self,
        processes: &mut Processes,
        terminals: &mut OpenTerminals,
        drains: Drains,
        received: &mut ReceivedFds,
    ) -> io::Result<()> {
        let Self { task, run, leader, cgroup, mark, split, .. } = self;
        let Self { input, unread, probe, progress, terminal, handed, handle, is_inherited, .. } = self;
        let context = &processes.context;
        let resumed =
            terminal.map(|state| state.resume(task, run, terminals, context, received)).transpose()?;
        let (job, terminal) = resumed.unzip();
        let job = job.flatten();
        let is_handed = handed.is_some();
        let handed_tree = handed.map(|handed| handed.resume(leader, received)).transpose()?.map(Arc::new);
        let handle = handle.map(|handle| received.take(handle).map(PidFd::from)).transpose()?.map(Arc::new);
        let tree = Tree {
            task,
            leader,
            has_leader: progress.stage != Stage::Rest && !is_handed,
            handle: handle.clone(),
            leader_only_leads_terminal: job.is_some(),
            files: context.folder.files(task, split),
            terminal: job.as_ref().map(|job| job.name.clone()),
            cgroup,
            mark,
            handed: handed_tree.clone(),
            is_inherited,
            adopted: Arc::clone(&context.adopted),
        };
        let input = input.map(|fd| received.take(fd).and_then(InputPipe::new)).transpose()?;
        // The pid of a reaped leader may have been reused; a killed daemon had just reaped one that has no handle.
        let pidfd = match (progress.stage, &handed_tree, &handle) {
            (Stage::Rest, _, _) => Err(io::ErrorKind::NotFound.into()),
            (_, Some(tree), _) => Ok(tree.handle().try_clone().and_then(watch::process)?),
            (_, None, Some(handle)) => Ok(handle.try_clone().and_then(watch::process)?),
            (_, None, None) if is_inherited => {
                return Err(io::Error::other("the daemon was killed before it could record the end"));
            }
            (Stage::AtWork | Stage::Leader, None, None) => {
                // A process supervised without a pidfd would be killed.
                Ok(PidFd::open(leader).and_then(watch::process)?)
            }
        };
        // Last, as any later failure would leave the file of its socket behind.
        let of_probe = (run, tree.clone(), context.clone());
        let probe = probe.map(|probe| Probe::restore(probe, received, of_probe)).transpose()?;
        let (probe, last_look) = probe.unzip();
        let (reported, is_left) = (progress.reported.clone(), progress.is_left);
        let handed = is_handed.then_some(Handed { drains, terminal, reported, is_left });
        let begins = SupervisorStart { input, job, handed, last_look, progress };
        processes.supervise(run, tree, split, pidfd, begins);
        if let Some(supervised) = processes.supervised.get_mut(&task) {
            (supervised.probe, supervised.unread) = (probe, unread);
        }
        Ok(())
    }
}

impl HandedState {
    fn of(tree: &HandedTree, running: Option<&Running>, named: &mut CarriedFds) -> Self {
        let (leads, held) = tree.state();
        let client = running.map(|Running { pid: _, client }| *client);
        let (is_running, client) = (client.is_some(), client.flatten());
        let held = held.into_iter().map(|(pid, handle)| (pid, named.number(handle))).collect();
        Self { handle: named.add(tree.handle()), leads, held, is_running, client }
    }

    /// Returns the state for the keeper.
    pub(super) fn left(tree: &HandedTree) -> Self {
        let (leads, _) = tree.state();
        Self { handle: Fd::OF_PROCESS, leads, held: Vec::new(), is_running: true, client: None }
    }

    fn resume(self, leader: i32, received: &mut ReceivedFds) -> io::Result<HandedTree> {
        let Self { handle, leads, held, is_running: _, client: _ } = self;
        let held =
            held.into_iter().map(|(pid, handle)| Ok(Member { pid, handle: received.take(handle)?.into() }));
        let held = held.collect::<io::Result<_>>()?;
        Ok(HandedTree::restore(leader, received.take(handle)?.into(), leads, held))
    }
}

impl TerminalState {
    /// Returns the job in the terminal, and the terminal.
    fn resume(
        self,
        task: TaskId,
        run: u32,
        terminals: &mut OpenTerminals,
        context: &Context,
        received: &mut ReceivedFds,
    ) -> io::Result<(Option<TerminalJob>, Terminal)> {
        let Self { job, followed, owed, typists } = self;
        let taken = followed.map(|followed| followed.take(received)).transpose()?;
        let loss = Loss::new(task, run, context.facts.clone());
        let terminal = terminals.add_carried(task, taken, (owed, typists), loss)?;
        let job = job.map(|JobState { pid, handle, name }| {
            let handle = Arc::new(received.take(handle)?.into());
            Ok::<_, io::Error>(TerminalJob { pid, handle, name, terminal: terminal.clone() })
        });
        Ok((job.transpose()?, terminal))
    }
}

impl StartState {
    fn of(start: &StartOrder, owner: Option<u64>, named: &mut CarriedFds) -> Self {
        let StartOrder { task, run, spec: _, env, place, streams } = start;
        let inherited = match streams {
            Streams::Own(inherited) => InheritedState::of(inherited, named),
            // Only helpers have other streams, and their starts are not deferred.
            Streams::Given { .. } => InheritedState::default(),
        };
        Self { task: *task, run: *run, env: Arc::clone(env), place: place.clone(), inherited, owner }
    }
}
