//! What the local executor carries over an upgrade in place, and how it is built from that again.
//!
//! Pidfds are opened anew: a leader that is not reaped keeps its pid, and others of a tree are looked for as always.

use std::io;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::Local;
use crate::carry::{Came, Named, Obstacle};
use crate::exec::carried::{InheritedState, LocalState, ProcessState, StartState};
use crate::exec::executor::SpecOf;
use crate::exec::input::InputPipe;
use crate::exec::job::Job;
use crate::exec::messages::{StartOrder, Streams};
use crate::exec::process::{Begins, Processes, Supervised};
use crate::exec::progress::Stage;
use crate::exec::tree::Tree;
use crate::os::pidfd::PidFd;
use crate::os::watch;

impl Local {
    /// Returns the state; an obstacle if something can't be carried now.
    pub(super) fn state(&self, named: &mut Named) -> Result<LocalState, Obstacle> {
        // Whatever is new here must be carried, too, or be an obstacle.
        let Self { processes, terminals, handoffs, helpers, owners, starts, holds_starts, reports, context } =
            self;
        if let Some(what) = helpers.obstacle() {
            return Err(Obstacle::lasting(what));
        }
        if let Some(task) = terminals.any().or_else(|| owners.keys().next().copied()) {
            return Err(Obstacle::lasting(format!("task {task} has a terminal")));
        }
        if let Some(task) = handoffs.any() {
            return Err(Obstacle::lasting(format!("task {task} was handed over by another program")));
        }
        if processes.starting > 0 || !reports.is_empty() || !(starts.is_empty() || *holds_starts) {
            return Err(Obstacle::passing("a process is being started"));
        }
        let mut all = Vec::new();
        for (task, supervised) in &processes.supervised {
            all.push(ProcessState::of(*task, supervised, named)?);
        }
        let starts = starts.iter().map(|start| StartState::of(start, named)).collect();
        Ok(LocalState { processes: all, starts, outputs: context.outputs.tracked() })
    }

    /// Goes on with what another program has carried over. `spec` returns what a task is.
    ///
    /// # Errors
    /// Something of it is missing, or no descriptor is left.
    pub(super) fn go_on_with(
        &mut self,
        state: LocalState,
        came: &mut Came,
        spec: &SpecOf<'_>,
    ) -> io::Result<()> {
        let LocalState { processes, starts, outputs } = state;
        // First, so that no end of a leader is taken for that of an orphan.
        let unreaped = processes.iter().filter(|process| process.progress.stage != Stage::Rest);
        unreaped.for_each(|process| self.context.adopted.add(process.leader));
        self.context.outputs.track_again(outputs);
        for process in processes {
            process.resume(&mut self.processes, came)?;
        }
        for start in starts {
            let StartState { task, run, env, place, inherited } = start;
            let spec = spec(task).ok_or_else(|| io::Error::other(format!("task {task} is missing")))?;
            let streams = Streams::Own(inherited.take(came)?);
            self.starts.push(StartOrder { task, run, spec, env, place, streams });
        }
        Ok(())
    }
}

impl ProcessState {
    fn of(task: TaskId, supervised: &Supervised, named: &mut Named) -> Result<Self, Obstacle> {
        let Supervised { run, input, probe, tree, split, shown, .. } = supervised;
        let progress = shown.get();
        if progress.stage == Stage::AtWork {
            return Err(Obstacle::passing(format!("the processes of task {task} are being looked at")));
        }
        if probe.as_ref().is_some_and(|probe| !Job::is_done(probe)) {
            return Err(Obstacle::lasting(format!("task {task} is waited for to be ready")));
        }
        if input.as_ref().is_some_and(InputPipe::is_busy) {
            let what = format!("task {task} has not read what was written to its standard input");
            return Err(Obstacle::lasting(what));
        }
        let Tree { leader, cgroup, mark, .. } = tree;
        Ok(Self {
            task,
            run: *run,
            leader: *leader,
            cgroup: cgroup.clone(),
            mark: *mark,
            split: *split,
            input: input.as_ref().and_then(InputPipe::number).map(|number| named.number(number)),
            progress,
        })
    }

    fn resume(self, processes: &mut Processes, came: &mut Came) -> io::Result<()> {
        let Self { task, run, leader, cgroup, mark, split, input, progress } = self;
        let context = &processes.context;
        let tree = Tree {
            task,
            leader,
            leader_is_ours: progress.stage != Stage::Rest,
            leader_stands_by: false,
            files: context.folder.files(task, split),
            terminal: None,
            cgroup,
            mark,
            handed: None,
            adopted: Arc::clone(&context.adopted),
        };
        let input = input.map(|fd| came.take(fd).and_then(InputPipe::new)).transpose()?;
        // The pid of one that was reaped may be another process's.
        let pidfd = match progress.stage {
            Stage::Rest => Err(io::ErrorKind::NotFound.into()),
            Stage::AtWork | Stage::Leader => PidFd::open(leader).and_then(watch::process),
        };
        processes.supervise(run, tree, split, pidfd, Begins { input, progress, ..Begins::default() });
        Ok(())
    }
}

impl StartState {
    fn of(start: &StartOrder, named: &mut Named) -> Self {
        let StartOrder { task, run, spec: _, env, place, streams } = start;
        let inherited = match streams {
            Streams::Own(inherited) => InheritedState::of(inherited, named),
            // Only helpers have others, and they are not deferred.
            Streams::Given { .. } => InheritedState::default(),
        };
        Self { task: *task, run: *run, env: Arc::clone(env), place: place.clone(), inherited }
    }
}
