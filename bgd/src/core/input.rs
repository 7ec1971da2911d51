//! What the core is told: requests of clients, facts of executors, and what else happens.

use std::sync::Arc;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::BlockMode;
use bgd_shared::task::Exit;
use bgd_shared::text::Env;
use serde::{Deserialize, Serialize};

use super::CoreLimits;
use super::task::Spec;

/// Whom an answer goes to: a client and one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplyTo {
    /// The connection.
    pub client: u64,
    /// The call on it.
    pub call: u64,
}

/// Everything that can happen to the core, apart from time going by.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client asks for something.
    Request {
        /// Who gets the answer.
        to: ReplyTo,
        /// What is asked for.
        request: Request,
    },
    /// An executor saw something.
    Fact {
        /// The task.
        task: TaskId,
        /// The run of it.
        run: u32,
        /// What was seen.
        fact: Fact,
    },
    /// A client is gone; it waits for nothing any more.
    Disconnected {
        /// The connection.
        client: u64,
    },
    /// The configuration has changed.
    Configure(CoreLimits),
}

/// A request that changes something or waits for something. Questions are asked of the core directly.
#[derive(Clone, Debug)]
pub enum Request {
    /// R01. The id is new and random.
    Submit(Box<Command>),
    /// R21: notes that the result was asked for.
    Retrieve {
        /// The task.
        id: TaskRef,
        /// Whether it must be completed (R07).
        complete: bool,
    },
    /// R22 to R25.
    Block {
        /// The tasks.
        ids: Vec<TaskRef>,
        /// How long at most, in milliseconds.
        timeout_ms: Option<u64>,
        /// For all of them, or for one.
        mode: BlockMode,
    },
    /// R05.
    Cancel(Cancel),
    /// R10.
    Clear {
        /// Which tasks.
        which: Selection,
        /// Whether active ones are cancelled and cleared too.
        active_too: bool,
    },
    /// A signal for a running task.
    Signal {
        /// The task.
        id: TaskRef,
        /// The number of the signal.
        signal: i32,
        /// For every process of the tree.
        tree: bool,
    },
    /// R54.
    EndSession {
        /// The parent session's key.
        session: Arc<str>,
    },
    /// R11.
    Shutdown {
        /// How long tasks have to end, in milliseconds.
        grace_ms: Option<u64>,
    },
}

/// A new task.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its id.
    pub id: TaskId,
    /// What it is.
    pub spec: Spec,
    /// The complete environment of its process.
    pub env: Env,
    /// Idempotency key, within its parent session.
    pub key: Option<Arc<str>>,
}

/// Which tasks a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// These.
    Ids(Vec<TaskRef>),
    /// All, or all of one parent session.
    All {
        /// The parent session.
        session: Option<Arc<str>>,
    },
}

/// How tasks are cancelled.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// Which tasks.
    pub which: Selection,
    /// The first signal.
    pub signal: Option<i32>,
    /// How long they have before SIGKILL, in milliseconds.
    pub grace_ms: Option<u64>,
}

/// What an executor saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The process runs.
    Started {
        /// Its id.
        pid: i32,
    },
    /// The process could not be started.
    StartFailed {
        /// Why, for people.
        error: Box<str>,
    },
    /// The leader has ended.
    Exited {
        /// How.
        exit: Exit,
        /// Whether others of its tree live on; [`Fact::TreeEmpty`] will follow then.
        others: bool,
    },
    /// No process of the tree is left.
    TreeEmpty,
    /// The output has grown, or a part of it was dropped.
    Output {
        /// Bytes so far.
        bytes: u64,
        /// Bytes of it that were dropped, in each stream.
        dropped: [u64; 2],
        /// Whether subscribers shall hear of it.
        tell: bool,
    },
}
