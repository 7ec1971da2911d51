//! What the keeper holds for the local executor: goes on with the runs that a killed daemon has left, and has those closed
//! whose end is written down.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::Local;
use crate::exec::carried::{JobState, ProcessState, TerminalState};
use crate::exec::handed::drain::Drains;
use crate::exec::left::{Left, Parcel, Resumed};
use crate::exec::messages::{Begun, NewTerminal, Report};
use crate::exec::progress::{Progress, Stage};
use crate::exec::ready::ProbeState;
use crate::exec::terminal::still::FollowedState;
use crate::exec::tree::pause::Paused;
use crate::keeper::Key;
use crate::keeper::client::{Keeper, until_gone};

impl Local {
    /// Has this keeper hold what must survive the daemon.
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
        // It has outputs and terminals of tasks open, but belongs to none.
        self.context.adopted.add(socket.pid);
        tokio::spawn(async move {
            match until_gone(socket).await {
                Ok(()) => reports.send(Report::KeeperGone),
                Err(error) => tracing::warn!(%error, "the keeper of running tasks can't be watched"),
            }
        });
    }

    /// Replaces a keeper that is gone. It will hold what starts from now on.
    pub(super) fn replace_keeper(&mut self) {
        let Some(keeper) = &self.keeper else { return };
        tracing::warn!(
            "the keeper of running tasks was ended: what runs now ends if the daemon is killed, and what starts later does not"
        );
        let (gone, keeper) = (keeper.socket(), Arc::clone(keeper));
        self.context.adopted.remove(gone.pid);
        let reports = self.context.reports.clone();
        keeper.renew();
        self.context.workers.later(move || {
            if keeper.after(&gone).is_some() {
                reports.send(Report::KeeperCame);
            }
        });
    }

    /// Has the descriptors of a run closed.
    pub(super) fn close_kept(&self, task: TaskId, run: u32) {
        if let Some(keeper) = &self.keeper {
            keeper.close(Key { task, run });
        }
    }

    /// Has a job in a terminal held, with the terminal and the socket of its leader.
    pub(super) fn keep_terminal(&self, task: TaskId, run: u32, begun: &Begun) {
        let (Some(keeper), Some(terminal)) = (&self.keeper, &begun.terminal) else { return };
        let NewTerminal { pty, size, output, leader_news, job, job_handle } = &**terminal;
        let mut parcel = Parcel::default();
        let handle = parcel.add(job_handle);
        let sides = [Some(parcel.add(&pty.slave)), leader_news.as_ref().map(|news| parcel.add(news))];
        let followed = FollowedState::of_new(*size, parcel.add(&pty.master), sides, parcel.add(output));
        let job = JobState { pid: *job, handle, name: pty.name.clone() };
        let probe = begun.awaited.as_deref();
        let probe = probe.map(|awaited| ProbeState::of_new(awaited, |socket| parcel.add(socket)));
        let process = ProcessState {
            cgroup: begun.cgroup.clone(),
            mark: Some(begun.mark),
            split: begun.split.unwrap_or_default(),
            probe,
            terminal: Some(TerminalState { job: Some(job), followed: Some(followed), owed: Vec::new() }),
            ..ProcessState::left(task, run)
        };
        let (text, descriptors) = parcel.seal(process);
        let all = std::iter::once(begun.pidfd.as_fd()).chain(descriptors);
        match all.map(|fd| fd.try_clone_to_owned()).collect() {
            Ok(descriptors) => keeper.keep(Key { task, run }, begun.pid, &text, descriptors),
            Err(error) => tracing::warn!(%task, %error, "it will end if the daemon is killed"),
        }
    }

    /// Goes on with a run that a killed daemon has left. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Something of it is missing, or no descriptor is left.
    pub(super) fn resume_left(&mut self, mut left: Left, resumed: &Resumed) -> io::Result<i32> {
        left.drop_closed_input();
        left.refresh_terminal()?;
        let Left { key: Key { task, run }, pid, mut process, mut came } = left;
        if (process.task, process.run) != (task, run) {
            return Err(io::Error::other("the keeper says something else of it than was started"));
        }
        process.leader = pid;
        let stage = if resumed.has_exited { Stage::Rest } else { Stage::Leader };
        // Nobody knows any more which of its processes had stopped before the pause.
        let paused = resumed.is_paused.then(Paused::default);
        process.progress = Progress { stage, paused, ..Progress::default() };
        if resumed.is_ready
            && let Some(probe) = &mut process.probe
        {
            probe.is_told();
        }
        if !resumed.has_exited {
            self.context.adopted.add(pid);
        }
        match &resumed.spec.output_file {
            Some(file) => self.context.outputs.track_own(task, run, file.as_os_str().as_ref()),
            None => self.context.outputs.track(task, run, process.split),
        }
        if process.terminal.is_some() {
            self.terminals.prepare().map_err(|error| io::Error::other(error.message.into_string()))?;
        }
        process.resume(&mut self.processes, &mut self.terminals, Drains::default(), &mut came)?;
        self.terminals.go_on(&HashMap::new());
        let job = self.processes.supervised.get(&task).and_then(|supervised| supervised.job);
        Ok(job.map_or(pid, |(job, _)| job))
    }
}
