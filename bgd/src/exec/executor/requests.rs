//! Clients' requests on tasks other than starting and ending them: write to them, view them, check what runs them, hand
//! processes over.

use std::io;
use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{ExecutorCheck, TerminalSize};
use bgd_shared::task::{Kind, Task as WireTask};
use bgd_shared::text::{Env, OsText};
use bgd_shared::time::Timestamp;
use tokio::sync::oneshot;

use crate::agents::Agent;
use crate::client::answer::Answer;
use crate::exec::input::unread::UnreadBytes;
use crate::remotes::Remote;

/// Receives a worker's result for an offer.
pub type OfferCallback = Box<dyn FnOnce(TaskId, Result<Offer, RpcError>) + Send>;

/// A process that is ready to be taken over.
#[derive(Debug)]
pub struct Offer {
    pub pid: i32,
    pub started_at: Timestamp,
    /// The program with its arguments.
    pub argv: Vec<OsText>,
    pub cwd: OsText,
    /// Whether standard output and error go to separate files.
    pub split: bool,
    /// The size of its terminal, if it has one.
    pub pty: Option<TerminalSize>,
    /// The file that the process itself writes its output to, if any.
    pub output_file: Option<OsText>,
}

/// The order to check agents or a place.
pub enum Check {
    /// Checks whether a place elsewhere works. The answer comes within its `connect_timeout` plus some seconds.
    Place {
        remote: Arc<Remote>,
        /// Receives the result; dropped if the place is not served.
        done: oneshot::Sender<ExecutorCheck>,
    },
    /// Checks whether agents start, and what they report about themselves.
    Agents {
        /// The agents, each with the information known so far.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// The environment to start them in.
        env: Arc<Env>,
        /// Receives the results, or the reason why there are none; dropped if the agent executor has ended.
        done: oneshot::Sender<io::Result<Vec<AgentInfo>>>,
    },
}

/// A client's request on a running task.
#[derive(Debug)]
pub struct Asked {
    pub answer: Answer,
    /// The task, as clients see it.
    pub task: Box<WireTask>,
    pub what: Ask,
}

/// A client's request.
#[derive(Debug)]
pub enum Ask {
    /// Write to the task's standard input or its terminal.
    Write {
        data: Vec<u8>,
        /// Whether this ends the input.
        eof: bool,
        /// Counts the bytes until they are read.
        unread: UnreadBytes,
    },
    /// Show its terminal to the client.
    Attach {
        /// Whether the task is the caller's foreground job, of which the caller gets every byte.
        owns: bool,
        /// The size of the client's own terminal.
        size: Option<TerminalSize>,
    },
    /// Stop showing it to the client.
    Leave,
    /// Note a new size of the client's own terminal.
    Resize { size: TerminalSize },
}

impl Asked {
    /// Refuses a request that the executor can't serve for that task.
    pub fn refuse(&self) {
        let id = self.task.id;
        let unsupported =
            |message: String, hint: &str| RpcError::new(ErrorKind::Unsupported, message).hint(hint);
        let error = match (&self.what, self.task.kind) {
            (Ask::Write { .. }, kind) => {
                let hint = match kind {
                    Kind::Process | Kind::Unknown => {
                        "resubmit it with --stdin-pipe (`stdin: \"pipe\"` in task.submit)"
                    }
                    Kind::Agent => "`bgctl resume` sends an agent a follow-up after its answer",
                };
                unsupported(format!("task {id} has no standard input to write to"), hint)
            }
            (Ask::Attach { .. } | Ask::Resize { .. }, _) => unsupported(
                format!("task {id} has no terminal"),
                &format!("follow its output with: bgctl output --follow {id}"),
            ),
            (Ask::Leave, _) => not_shown(id),
        };
        self.answer.refuse(&error);
    }
}

/// Returns the error for a client that tries to leave or resize a terminal it is not viewing.
pub fn not_shown(id: TaskId) -> RpcError {
    let message = format!("this connection does not show the terminal of task {id}");
    RpcError::new(ErrorKind::InvalidParams, message).hint("call `task.attach` first")
}
