//! The open terminals and their viewers. A thread of its own follows what the terminals show.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::limits::TERMINAL_VIEWERS;
use bgd_shared::request::{DetachResult, TaskResult, TerminalSize, WriteResult};

use crate::client::Client;
use crate::client::answer::write_error;
use crate::core::SpawnFailure;
use crate::exec::executor::{Ask, Asked, not_shown};
use crate::exec::terminal::viewers::{Door, Viewer};
use crate::exec::terminal::{Opening, Terminal, Terminals};

/// An open terminal and its viewers.
#[derive(Debug)]
struct Shown {
    terminal: Terminal,
    viewers: BTreeMap<u64, Door>,
}

/// All terminals of the daemon.
#[derive(Debug, Default)]
pub(super) struct OpenTerminals {
    thread: Terminals,
    open: HashMap<TaskId, Shown>,
}

impl OpenTerminals {
    /// Starts the terminal thread before something is started in a terminal.
    pub(super) fn prepare(&mut self) -> Result<(), SpawnFailure> {
        self.thread.start().map_err(|error| format!("cannot start a thread for terminals: {error}").into())
    }

    /// Follows a terminal; its owner is shown it from the first byte on.
    pub(super) fn open(&mut self, opening: Opening) -> io::Result<Terminal> {
        let task = opening.task;
        let owner = opening.owner.as_ref().map(|owner| (owner.client.id, owner.door.clone()));
        let terminal = self.thread.open(opening)?;
        let viewers = owner.into_iter().collect();
        self.open.insert(task, Shown { terminal: terminal.clone(), viewers });
        Ok(terminal)
    }

    /// Returns a task whose terminal is open, if there is one.
    pub(super) fn any(&self) -> Option<TaskId> {
        self.open.keys().next().copied()
    }

    pub(super) fn is_open(&self, task: TaskId) -> bool {
        self.open.contains_key(&task)
    }

    /// Closes the terminal of a task whose processes are gone.
    pub(super) fn close(&mut self, task: TaskId) {
        self.open.remove(&task);
    }

    /// Stops showing a terminal to a client, which gets not a byte from now on. Returns whether it was shown it.
    pub(super) fn leave(&mut self, task: TaskId, client: u64) -> bool {
        let Some(shown) = self.open.get_mut(&task) else { return false };
        let Some(door) = shown.viewers.remove(&client) else { return false };
        door.close();
        shown.terminal.leave(client);
        true
    }

    /// Removes a client that has disconnected from all terminals.
    pub(super) fn disconnect(&mut self, client: u64) {
        for shown in self.open.values_mut().filter(|shown| shown.viewers.contains_key(&client)) {
            shown.viewers.remove(&client);
            shown.terminal.leave(client);
        }
    }

    /// Serves and answers a client's request on a terminal.
    pub(super) fn ask(&mut self, asked: Asked) {
        let Some(shown) = self.open.get_mut(&asked.task.id) else { return asked.refuse() };
        match asked.what {
            Ask::Attach { size } => shown.attach(&asked, size),
            Ask::Resize { size } => shown.resize(&asked, size),
            Ask::Write { .. } => shown.write(asked),
            Ask::Leave => {
                let client = asked.answer.client().id;
                if !self.leave(asked.task.id, client) {
                    return asked.refuse();
                }
                let message = format!("Detached from task {}", asked.task.id);
                asked.answer.give(&DetachResult { task: *asked.task, message });
            }
        }
    }
}

impl Shown {
    fn attach(&mut self, asked: &Asked, size: Option<TerminalSize>) {
        let client = asked.answer.client();
        let is_shown = self.viewers.contains_key(&client.id);
        if !is_shown && self.viewers.len() >= TERMINAL_VIEWERS {
            let message = format!("{TERMINAL_VIEWERS} clients show the terminal of task {}", asked.task.id);
            let error = RpcError::new(ErrorKind::TooManyRequests, format!("{message}, which is the limit"));
            return asked.answer.refuse(&error.hint("detach one of them"));
        }
        asked.answer.give(&TaskResult { task: (*asked.task).clone() });
        if is_shown {
            return self.terminal.draw_again(client.id, size);
        }
        let viewer = viewer(client, size, false);
        self.viewers.insert(client.id, viewer.door.clone());
        self.terminal.attach(viewer);
    }

    fn resize(&self, asked: &Asked, size: TerminalSize) {
        let client = asked.answer.client().id;
        if !self.viewers.contains_key(&client) {
            return asked.answer.refuse(&not_shown(asked.task.id));
        }
        self.terminal.resize(client, size);
        asked.answer.give(&TaskResult { task: (*asked.task).clone() });
    }

    fn write(&self, asked: Asked) {
        let Asked { answer, task, what: Ask::Write { data, eof } } = asked else { return asked.refuse() };
        let id = task.id;
        if eof {
            let message = format!("`eof`: task {id} reads from a terminal, which can't be closed");
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            return answer
                .refuse(&error.hint("send the end-of-file character instead, as Ctrl-D does: \"\\u0004\""));
        }
        let terminal = self.terminal.clone();
        tokio::spawn(async move {
            match terminal.write(data).await {
                Ok(written) => answer.give(&WriteResult { written }),
                Err(error) => answer.refuse(&write_error(id, &error)),
            }
        });
    }
}

pub(super) fn viewer(client: &Arc<Client>, size: Option<TerminalSize>, is_owner: bool) -> Viewer {
    Viewer { client: Arc::clone(client), door: Door::open(), size, is_owner }
}
