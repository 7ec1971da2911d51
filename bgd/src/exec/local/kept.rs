//! The local executor's part of the keeper: continues the runs that a killed daemon has left, and has the descriptors
//! of a run closed once its end is in the journal.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use nix::errno::Errno;

use super::Local;
use super::handoffs::Running;
use super::replaced::Renewal;
use super::waiting::ended;
use crate::carry::Fd;
use crate::exec::carried::{DrainsState, HandedState, JobState, ProcessState, TerminalState};
use crate::exec::handed::Recorded;
use crate::exec::handed::drain::Drains;
use crate::exec::handed::tree::HandedTree;
use crate::exec::input::InputPipe;
use crate::exec::left::{Copies, Ended, HeldRun, INPUT, Resumed};
use crate::exec::messages::{Copied, Report};
use crate::exec::supervise::process::Supervised;
use crate::exec::supervise::progress::{Progress, Stage};
use crate::exec::tree::pause::Paused;
use crate::keeper::Key;
use crate::keeper::client::Keeper;
use crate::keeper::socket::{Socket, until_gone};
use crate::os::pidfd::{PidFd, SIGCONT};

/// The delay before another attempt to watch the keeper, for which no descriptor was left.
const WATCH_AGAIN: Duration = Duration::from_secs(10);

impl Local {
    /// Has this keeper hold everything that must survive the daemon.
    #[must_use]
    pub fn kept_by(mut self, keeper: Option<Arc<Keeper>>) -> Self {
        self.keeper = keeper;
        self.watch_keeper();
        self
    }

    /// Waits for the end of the keeper's process.
    pub(super) fn watch_keeper(&self) {
        let Some(keeper) = &self.keeper else { return };
        let (socket, reports) = (keeper.socket(), self.context.reports.clone());
        let pid = socket.pid;
        // The keeper has outputs and terminals of tasks open, but belongs to no task.
        self.context.adopted.add(pid);
        tokio::spawn(async move {
            while let Err(error) = until_gone(Arc::clone(&socket)).await {
                tracing::warn!(%error, "the keeper of running tasks can't be watched: another attempt follows");
                tokio::time::sleep(WATCH_AGAIN).await;
            }
            // Nothing announces itself to it any more, unless a process is just being started.
            drop(socket);
            reports.send(Report::KeeperGone { pid });
        });
    }

    /// Replaces the keeper with this pid, which is gone or out of reach, unless that has begun.
    pub(super) fn replace_keeper(&mut self, pid: i32) {
        let Some(keeper) = &self.keeper else { return };
        let gone = keeper.socket();
        if self.replaced.renewal == Renewal::Starting {
            return;
        }
        if gone.pid != pid {
            // One that was out of reach has ended after it was replaced.
            return self.tell_complete();
        }
        tracing::warn!(
            pid = gone.pid,
            "the keeper of running tasks is gone or out of reach: another one takes its place"
        );
        self.context.adopted.remove(gone.pid);
        self.replaced.gone.push(Arc::downgrade(&gone));
        self.replaced.renewal = Renewal::Starting;
        let reports = self.context.reports.clone();
        keeper.renew(move || reports.send(Report::KeeperCame));
    }

    /// Copies all current runs to the keeper that has replaced another one.
    pub(super) fn keeper_came(&mut self) {
        self.watch_keeper();
        (self.replaced.renewal, self.replaced.lacks) = (Renewal::Filling, false);
        self.doubt_until_caught_up();
        let of_tasks = self.processes.supervised.keys().filter(|task| !self.helpers.owns(**task));
        let drained = self.handoffs.drained.keys();
        let all: BTreeSet<TaskId> = of_tasks.chain(drained).copied().collect();
        for task in all {
            self.copy_for_keeper(task);
        }
        if let Some(keeper) = &self.keeper {
            self.waiting.keep_all(keeper);
        }
        self.tell_complete();
    }

    /// Marks the new keeper as incomplete until everything reported until now is in the journal: the keeper receives
    /// nothing of runs that have ended, and the next daemon would start those again.
    fn doubt_until_caught_up(&mut self) {
        self.replaced.is_doubtful = true;
        self.replaced.mark += 1;
        self.context.facts.ask_caught_up(self.replaced.mark);
    }

    /// Handles the start of a process that announced itself to the keeper on this socket, which may have been replaced
    /// since.
    pub(super) fn has_announced(&mut self, task: TaskId, announced: Option<Arc<Socket>>) {
        let is_gone = |socket: &Arc<Socket>| {
            self.keeper.as_ref().is_some_and(|keeper| !Arc::ptr_eq(socket, &keeper.socket()))
        };
        if announced.is_some_and(|socket| is_gone(&socket)) {
            self.copy_for_keeper(task);
        }
    }

    /// Notifies a keeper that has replaced another one once it holds all current runs.
    pub(super) fn tell_complete(&mut self) {
        if self.replaced.renewal != Renewal::Filling || !self.replaced.is_over() {
            return;
        }
        self.replaced.renewal = Renewal::Complete;
        self.replaced.gone.clear();
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !self.replaced.lacks) {
            keeper.complete();
            tracing::info!(pid = keeper.socket().pid, "the keeper holds everything that is running");
        }
    }

    /// Has all descriptors of a current run copied for the keeper; [`Report::Copied`] follows.
    fn copy_for_keeper(&mut self, task: TaskId) {
        self.replaced.copying += 1;
        let mut copies = Copies::default();
        let begun = match self.processes.supervised.get(&task) {
            Some(supervised) => held(task, supervised, &mut copies),
            None => self.drained(task),
        };
        let terminal = self.terminals.get(task).cloned();
        let drains = self.handoffs.drained.get(&task).cloned();
        let job = self.processes.supervised.get(&task).and_then(|supervised| {
            let (pid, handle) = supervised.job.as_ref()?;
            Some((*pid, Arc::clone(handle), supervised.tree.terminal.clone().unwrap_or_default()))
        });
        let (reports, run) = (self.context.reports.clone(), begun.as_ref().map_or(0, |(_, state)| state.run));
        tokio::spawn(async move {
            let all = async {
                let (process, mut state) = begun?;
                if let Some(terminal) = terminal {
                    let job = job.map(|(pid, handle, name)| {
                        let handle = copies.add(handle.as_fd().try_clone_to_owned()?);
                        io::Result::Ok(JobState { pid, handle, name })
                    });
                    let job = job.transpose()?;
                    let followed = Some(copies.add_terminal(terminal.copies().await?)?);
                    state.terminal =
                        Some(TerminalState { job, followed, owed: Vec::new(), typists: Vec::new() });
                }
                let mut flows = Vec::new();
                if let Some((_, drains)) = drains.filter(|(of, _)| *of == run) {
                    flows.extend(drains.copies().await?.into_iter().map(|flow| copies.add_flow(flow)));
                }
                let (pid, has_input) = (state.leader, state.input.is_some());
                let (text, rest) = copies.seal(state, flows)?;
                let descriptors = std::iter::once(process).chain(rest).collect();
                io::Result::Ok(Copied { pid, text, descriptors, has_input })
            };
            reports.send(Report::Copied { key: Key { task, run }, copied: all.await });
        });
    }

    /// Returns what the keeper holds of a run that has ended while its output has not: a substitute for the pidfd, and
    /// the state.
    fn drained(&self, task: TaskId) -> io::Result<(OwnedFd, ProcessState)> {
        let run = self.handoffs.drained.get(&task).map_or(0, |(run, _)| *run);
        let state = ProcessState { handle: None, ..ProcessState::left(task, run) };
        Ok((ended()?, state))
    }

    /// Has the keeper hold these copies, if the run has not ended.
    pub(super) fn keep_copied(&mut self, key: Key, copied: io::Result<Copied>) {
        self.replaced.copying -= 1;
        let Key { task, run } = key;
        let supervised = self.processes.supervised.get(&task).filter(|supervised| supervised.run == run);
        let is_known = supervised.is_some() || self.handoffs.living(task, run).is_some();
        match copied {
            // The run has ended meanwhile.
            _ if !is_known => self.doubt_until_caught_up(),
            Ok(Copied { pid, text, descriptors, has_input }) => {
                let kept =
                    self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.keep(key, pid, &text, descriptors));
                let input = supervised.and_then(|supervised| supervised.input.as_ref());
                let is_open = input.is_some_and(|input| input.number().is_some());
                input.inspect(|input| input.set_kept(has_input && is_open));
                // The input was closed meanwhile. If it was not copied, it has no position.
                if has_input && !is_open {
                    self.close_kept_input(task, run);
                }
                if let Err(error) = kept {
                    self.lacks(task, &error);
                }
            }
            Err(error) => self.lacks(task, &error),
        }
        self.tell_complete();
    }

    /// Notes that the keeper that has replaced another one will never hold the current run of a task.
    fn lacks(&mut self, task: TaskId, error: &io::Error) {
        self.replaced.lacks = true;
        tracing::warn!(%task, %error, "it will end if the daemon is killed");
    }

    /// Has the keeper close its copy of a run's standard input, which would keep the pipe open.
    pub(super) fn close_kept_input(&self, task: TaskId, run: u32) {
        if let Some(keeper) = &self.keeper {
            keeper.close_part(Key { task, run }, INPUT);
        }
    }

    /// Has the keeper close the descriptors of a run once its output has reached its end.
    pub(super) fn close_when_drained(&self, task: TaskId, run: u32, drains: &Drains) {
        if self.keeper.is_some() {
            let (drains, reports) = (drains.clone(), self.context.reports.clone());
            tokio::spawn(async move {
                drains.end().await;
                reports.send(Report::Drained { key: Key { task, run } });
            });
        }
    }

    /// Has the keeper close the descriptors of a run whose end is in the journal, unless its output is still drained.
    pub(super) fn close_over(&self, task: TaskId, run: u32) {
        match self.handoffs.living(task, run) {
            Some(drains) => self.close_when_drained(task, run, drains),
            None => self.close_kept(task, run),
        }
    }

    /// Has the keeper close the descriptors of a run.
    pub(super) fn close_kept(&self, task: TaskId, run: u32) {
        if let Some(keeper) = &self.keeper {
            keeper.close(Key { task, run });
        }
    }

    /// Has the keeper hold a handed-over process, with the sources and files of its output. Returns `recorded` without
    /// the copies.
    pub(super) fn keep_handed(
        &self,
        key: Key,
        pid: i32,
        tree: &HandedTree,
        mut recorded: Recorded,
    ) -> Recorded {
        let Some(keeper) = &self.keeper else { return recorded };
        let mut copies = Copies::default();
        let mut state = ProcessState::left(key.task, key.run);
        (state.handed, state.handle) = (Some(HandedState::left(tree)), None);
        let mut flows = Vec::new();
        let mut copy = || {
            match &mut recorded {
                Recorded::Drained { split, copies: of_drains, .. } => {
                    state.split = *split;
                    flows.extend(std::mem::take(of_drains).into_iter().map(|flow| copies.add_flow(flow)));
                }
                Recorded::File(_) => {}
                Recorded::Terminal(terminal) => {
                    let followed = Some(copies.add_terminal(terminal.copies()?)?);
                    state.terminal =
                        Some(TerminalState { job: None, followed, owed: Vec::new(), typists: Vec::new() });
                }
            }
            tree.handle().as_fd().try_clone_to_owned()
        };
        let sealed = copy().and_then(|process| Ok((process, copies.seal(state, flows)?)));
        let kept = sealed.and_then(|(process, (text, rest))| {
            keeper.keep(key, pid, &text, std::iter::once(process).chain(rest).collect())
        });
        if let Err(error) = kept {
            tracing::warn!(task = %key.task, %error, "it is lost if the daemon is killed");
        }
        recorded
    }

    /// Continues a run that a killed daemon has left. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Part of the state is missing, or no descriptor is left.
    pub(super) fn resume_left(&mut self, mut left: HeldRun, resumed: &Resumed) -> io::Result<i32> {
        let has_exited = resumed.ended != Ended::Nothing;
        if left.drop_input(has_exited) {
            self.close_kept_input(left.key.task, left.key.run);
        }
        left.refresh_terminal()?;
        left.refresh_drains()?;
        let HeldRun { key, pid, mut process, drains: flows, mut received, ended_at } = left;
        let Key { task, run } = key;
        if (process.task, process.run) != (task, run) {
            return Err(io::Error::other("the keeper's record of it differs from what was started"));
        }
        process.leader = pid;
        let is_handed = process.handed.is_some();
        let stage = if has_exited { Stage::Rest } else { Stage::Leader };
        // There is no longer a record of the processes that had stopped before the pause.
        let paused = resumed.may_be_paused.then(Paused::default);
        // The program that could report the exit of a handed-over process has disconnected.
        process.progress = Progress { stage, paused, is_left: is_handed, ..Progress::default() };
        if resumed.is_ready
            && let Some(probe) = &mut process.probe
        {
            probe.note_reported();
        }
        match &resumed.spec.output_file {
            Some(file) => self.context.outputs.track_own(task, run, file.as_os_str().as_ref()),
            None => self.context.outputs.track(task, run, process.split),
        }
        let drains = if flows.is_empty() {
            Drains::default()
        } else {
            self.handoffs.add_carried(DrainsState { task, run, flows }, &self.context.facts, &mut received)?
        };
        if resumed.ended == Ended::Tree {
            self.close_when_drained(task, run, &drains);
            self.processes.finish_drains(task, run, drains);
            self.handoffs.resume();
            return Ok(pid);
        }
        match (has_exited, is_handed) {
            (true, _) => {}
            (false, true) => _ = self.handoffs.running.insert(task, Running { pid, client: None }),
            (false, false) => self.context.adopted.add(pid),
        }
        if process.terminal.is_some() {
            self.terminals.prepare().map_err(|error| io::Error::other(error.message.into_string()))?;
        }
        process.resume(&mut self.processes, &mut self.terminals, drains, &mut received)?;
        self.ends.extend(ended_at.filter(|_| !has_exited).map(|at| (key, at)));
        self.terminals.resume(&HashMap::new(), &self.context.unread);
        self.handoffs.resume();
        let supervised = self.processes.supervised.get(&task);
        // The previous daemon is gone.
        let probe = supervised.and_then(|supervised| supervised.probe.as_ref());
        probe.inspect(|probe| probe.set_left(false));
        let job = supervised.and_then(|supervised| supervised.job.as_ref());
        if let (Some(_), Some(leader)) =
            (job, supervised.and_then(|supervised| supervised.tree.handle.as_ref()))
        {
            // The job may have stopped the leader just after the start, which the previous daemon would have noticed.
            let _ = leader.signal(SIGCONT);
        }
        Ok(job.map_or(pid, |(job, _)| *job))
    }
}

impl Supervised {
    /// Reports whether the leader, or the job that it leads, has ended, even if its supervisor has yet to notice.
    pub(super) fn has_ended(&self) -> bool {
        let leader = match (&self.tree.handed, &self.tree.handle) {
            (Some(tree), _) => tree.handle().has_ended(),
            (None, Some(handle)) => handle.has_ended(),
            (None, None) => match PidFd::open(self.tree.leader) {
                Ok(leader) => leader.has_ended(),
                // It was just reaped.
                Err(error) => error.raw_os_error() == Some(Errno::ESRCH as i32),
            },
        };
        leader || self.job.as_ref().is_some_and(|(_, job)| job.has_ended())
    }
}

/// Returns the process descriptor of a current run, and the state that the keeper holds besides its terminal and its
/// drains.
fn held(task: TaskId, supervised: &Supervised, copies: &mut Copies) -> io::Result<(OwnedFd, ProcessState)> {
    let Supervised { run, input, probe, tree, split, shown, .. } = supervised;
    // First, at the position `INPUT`.
    let input = input.as_ref().and_then(InputPipe::copy).transpose()?.map(|copy| copies.add(copy));
    let probe = probe.as_ref().map(|probe| {
        let socket = probe.socket().map(|socket| socket.as_fd().try_clone_to_owned()).transpose()?;
        io::Result::Ok(probe.state(socket.map(|copy| copies.add(copy))))
    });
    let (stage, opened) = (shown.get().stage, || PidFd::open(tree.leader));
    let process = match (&tree.handed, &tree.handle) {
        (Some(tree), _) => tree.handle().try_clone().map(Some),
        (None, Some(handle)) => handle.try_clone().map(Some),
        (None, None) if stage == Stage::Rest => Ok(None),
        (None, None) => match opened() {
            // The process has just been reaped.
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
            opened => opened.map(Some),
        },
    }?;
    let handed = tree.handed.as_deref().map(HandedState::left);
    let left = ProcessState {
        leader: tree.leader,
        cgroup: tree.cgroup.clone(),
        mark: tree.mark,
        split: *split,
        input,
        probe: probe.transpose()?,
        handle: (process.is_some() && handed.is_none()).then_some(Fd::OF_PROCESS),
        handed,
        ..ProcessState::left(task, *run)
    };
    let process = process.map_or_else(ended, |process| process.as_fd().try_clone_to_owned())?;
    Ok((process, left))
}
