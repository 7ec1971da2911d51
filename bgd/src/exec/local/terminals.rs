//! Terminals in the local executor: opens the terminals that processes start in or come with.

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;

use super::Local;
use super::open_terminals::new_viewer;
use crate::client::Client;
use crate::exec::handed::HandedTerminal;
use crate::exec::messages::{NewTerminal, Report};
use crate::exec::output::loss::Loss;
use crate::exec::supervise::process::TerminalJob;
use crate::exec::terminal::leader::{LONGEST_STOP, STOP_TIMEOUT};
use crate::exec::terminal::{Opening, Terminal};
use crate::exec::threads::job::Job;
use crate::os::pty::{set_size, slave_of};

/// How long a key that was typed before the last viewer left may take to stop the job: longer than the leader waits for
/// the other processes, as the first of them may handle the key, too.
const LATE_STOP: Duration = LONGEST_STOP.saturating_add(STOP_TIMEOUT);

impl Local {
    /// Continues the jobs whose last viewer has left, if they have stopped or are now stopped by a key typed before: no
    /// viewer is left to continue them (R62).
    pub(super) fn keep_going_unseen(&mut self) {
        for task in self.terminals.take_unseen() {
            let Some(run) = self.processes.supervised.get(&task).map(|supervised| supervised.run) else {
                continue;
            };
            let reports = self.context.reports.clone();
            self.terminals.keep_going(task, |stopped| {
                Job::start(async move {
                    if let Ok(Ok(())) = tokio::time::timeout(LATE_STOP, stopped).await {
                        reports.send(Report::StoppedUnseen { task, run });
                    }
                })
            });
        }
    }

    /// Continues a job that has stopped unseen.
    pub(super) fn continue_unseen(&mut self, task: TaskId, run: u32) {
        if self.terminals.may_stop(task) {
            self.processes.continue_stopped(task, run);
        }
    }

    /// Opens the terminal that a process has started in.
    pub(super) fn open_terminal(
        &mut self,
        task: TaskId,
        run: u32,
        new: NewTerminal,
        owner: Option<Arc<Client>>,
    ) -> Option<TerminalJob> {
        let NewTerminal { pty, size, output, leader_news, job, job_handle } = new;
        let owner = owner.map(|client| new_viewer(&client, Some(size), true));
        let loss = Loss::new(task, run, self.context.facts.clone());
        let (master, slave) = (pty.master, Some(pty.slave));
        let before = None;
        let opening = Opening { task, master, slave, size, output, loss, leader_news, owner, before };
        match self.terminals.open(opening) {
            Ok(terminal) => {
                let handle = Arc::new(job_handle);
                Some(TerminalJob { pid: job, handle, name: pty.name, terminal })
            }
            // All its descriptors are closed then, which hangs up the leader.
            Err(error) => {
                tracing::error!(%task, %error, "cannot follow a terminal");
                None
            }
        }
    }

    /// Opens a terminal received with a handed-over process.
    pub(super) fn open_handed_terminal(
        &mut self,
        task: TaskId,
        handed: HandedTerminal,
        loss: Loss,
    ) -> Option<Terminal> {
        let HandedTerminal { master, size, output } = handed;
        if let Err(error) = set_size(&master, size) {
            tracing::warn!(%task, %error, "cannot set the size of a terminal");
        }
        let slave = slave_of(&master).inspect_err(|error| {
            tracing::warn!(%task, %error, "a terminal is followed only while somebody has it open");
        });
        let slave = slave.ok();
        let (leader_news, owner, before) = (None, None, None);
        let opening = Opening { task, master, slave, size, output, loss, leader_news, owner, before };
        // If that fails, all its descriptors are closed, which hangs up its processes.
        let opened = self.terminals.open(opening);
        opened.inspect_err(|error| tracing::error!(%task, %error, "cannot follow a terminal")).ok()
    }
}
