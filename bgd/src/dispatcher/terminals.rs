//! The dispatcher's part in terminals: who is shown which. What they show is followed by a thread of its
//! own.

use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::limits::TERMINAL_VIEWERS;
use bgd_shared::request::{DetachResult, TaskResult, TerminalSize, WriteResult};

use super::Dispatcher;
use super::shows::Shown;
use crate::answer::{Answer, write_error};
use crate::client::Client;
use crate::core::{CoreError, Snapshot, State};
use crate::exec::handed::HandedTerminal;
use crate::exec::loss::Loss;
use crate::exec::messages::NewTerminal;
use crate::exec::process::TerminalJob;
use crate::exec::pty::{set_size, slave_of};
use crate::exec::terminal::viewers::{Door, Viewer};
use crate::exec::terminal::{Opening, Terminal};
use crate::view;

fn viewer(client: &Arc<Client>, size: Option<TerminalSize>, is_owner: bool) -> Viewer {
    Viewer { client: Arc::clone(client), door: Door::open(), size, is_owner }
}

impl Dispatcher {
    /// A process has begun in a terminal.
    pub(super) fn open_terminal(&mut self, task: TaskId, run: u32, new: NewTerminal) -> Option<TerminalJob> {
        let NewTerminal { pty, size, output, leader_news, job, job_handle } = new;
        let owner = self.core.get(&task.into()).ok().and_then(|task| task.foreground);
        let owner = owner.and_then(|client| self.clients.get(&client));
        let owner = owner.map(|client| viewer(client, Some(size), true));
        let loss = Loss::new(task, run, self.around.facts.clone());
        let (master, slave) = (pty.master, Some(pty.slave));
        let opening = Opening { task, master, slave, size, output, loss, leader_news, owner };
        match self.shows.open(opening) {
            Ok(terminal) => Some(TerminalJob { pid: job, handle: job_handle, name: pty.name, terminal }),
            // Everything of it is closed then, so the leader hangs up.
            Err(error) => {
                tracing::error!(%task, %error, "cannot follow a terminal");
                None
            }
        }
    }

    /// A terminal has come along with a process.
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
        let opening = Opening { task, master, slave, size, output, loss, leader_news: None, owner: None };
        // Everything of it is closed if that fails, so its processes are hung up.
        let opened = self.shows.open(opening);
        opened.inspect_err(|error| tracing::error!(%task, %error, "cannot follow a terminal")).ok()
    }

    /// A task whose terminal can be shown.
    fn find_shown(&self, task: &TaskRef) -> Result<(Snapshot, &Shown), RpcError> {
        let snapshot = self.core.get(task)?;
        let id = snapshot.id;
        if !matches!(snapshot.state, State::Running { .. } | State::Stopping { exit: None, .. }) {
            return Err(CoreError::NotRunning(id, snapshot.status()).into());
        }
        match self.shows.open.get(&id) {
            Some(shown) => Ok((snapshot, shown)),
            None => Err(RpcError::new(ErrorKind::Unsupported, format!("task {id} has no terminal"))
                .hint(format!("its output can be followed: bgctl output --follow {id}"))),
        }
    }

    pub(super) fn attach(&mut self, answer: &Answer, task: &TaskRef, size: Option<TerminalSize>) {
        let (snapshot, shown) = match self.find_shown(task) {
            Ok(found) => found,
            Err(error) => return answer.refuse(&error),
        };
        let client = answer.client();
        let is_shown = shown.viewers.contains_key(&client.id);
        if !is_shown && shown.viewers.len() >= TERMINAL_VIEWERS {
            let message = format!("{TERMINAL_VIEWERS} clients show the terminal of task {}", snapshot.id);
            let error = RpcError::new(ErrorKind::TooManyRequests, format!("{message}, which is the limit"));
            return answer.refuse(&error.hint("let one of them leave"));
        }
        answer.give(&TaskResult { task: view::task(&snapshot, &self.around.folder) });
        let Some(shown) = self.shows.open.get_mut(&snapshot.id) else { return };
        if is_shown {
            return shown.terminal.draw_again(client.id, size);
        }
        let viewer = viewer(client, size, false);
        shown.viewers.insert(client.id, viewer.door.clone());
        shown.terminal.attach(viewer);
    }

    pub(super) fn leave(&mut self, answer: &Answer, task: &TaskRef) {
        let client = answer.client().id;
        let snapshot = match self.core.get(task) {
            Ok(snapshot) => snapshot,
            Err(error) => return answer.refuse(&error.into()),
        };
        let id = snapshot.id;
        if snapshot.foreground == Some(client) {
            let message = format!("task {id} is a foreground job of this connection");
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            return answer
                .refuse(&error.hint("move it to the background by `background: true`, or cancel it"));
        }
        if !self.shows.leave(id, client) {
            return answer.refuse(&not_shown(id));
        }
        let message = format!("Left the terminal of task {id}");
        answer.give(&DetachResult { task: view::task(&snapshot, &self.around.folder), message });
    }

    pub(super) fn resize(&mut self, answer: &Answer, task: &TaskRef, size: TerminalSize) {
        let (snapshot, shown) = match self.find_shown(task) {
            Ok(found) => found,
            Err(error) => return answer.refuse(&error),
        };
        let client = answer.client().id;
        if !shown.viewers.contains_key(&client) {
            return answer.refuse(&not_shown(snapshot.id));
        }
        shown.terminal.resize(client, size);
        answer.give(&TaskResult { task: view::task(&snapshot, &self.around.folder) });
    }

    pub(super) fn leave_terminal(&mut self, task: TaskId, client: u64) {
        self.shows.leave(task, client);
    }

    /// Writes to the terminal of a task, if it has one; else gives the call back.
    pub(super) fn write_to_terminal(
        &self,
        answer: Answer,
        id: TaskId,
        data: Vec<u8>,
        eof: bool,
    ) -> Option<(Answer, Vec<u8>)> {
        let Some(shown) = self.shows.open.get(&id) else { return Some((answer, data)) };
        if eof {
            let message = format!("`eof`: task {id} reads from a terminal, which has no end");
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            answer.refuse(
                &error.hint("write the character that ends input there, as Ctrl-D does: \"\\u0004\""),
            );
            return None;
        }
        let terminal = shown.terminal.clone();
        tokio::spawn(async move {
            match terminal.write(data).await {
                Ok(written) => answer.give(&WriteResult { written }),
                Err(error) => answer.refuse(&write_error(id, &error)),
            }
        });
        None
    }
}

fn not_shown(id: TaskId) -> RpcError {
    let message = format!("this connection does not show the terminal of task {id}");
    RpcError::new(ErrorKind::InvalidParams, message).hint("`task.attach` comes first")
}
