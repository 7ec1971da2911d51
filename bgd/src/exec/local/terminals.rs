//! Terminals in the local executor: opens those that processes start in or come with.

use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::Local;
use super::shows::new_viewer;
use crate::client::Client;
use crate::exec::handed::HandedTerminal;
use crate::exec::loss::Loss;
use crate::exec::messages::NewTerminal;
use crate::exec::process::TerminalJob;
use crate::exec::pty::{set_size, slave_of};
use crate::exec::terminal::{Opening, Terminal};

impl Local {
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
            // All its descriptors are closed then, so the leader hangs up.
            Err(error) => {
                tracing::error!(%task, %error, "cannot follow a terminal");
                None
            }
        }
    }

    /// Opens a terminal that came with a handed-over process.
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
            tracing::warn!(%task, %error, "a terminal is followed as long as somebody has it open only");
        });
        let slave = slave.ok();
        let (leader_news, owner, before) = (None, None, None);
        let opening = Opening { task, master, slave, size, output, loss, leader_news, owner, before };
        // All its descriptors are closed if that fails, so its processes are hung up.
        let opened = self.terminals.open(opening);
        opened.inspect_err(|error| tracing::error!(%task, %error, "cannot follow a terminal")).ok()
    }
}
