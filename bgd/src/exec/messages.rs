//! The messages between the parts of executors and the dispatcher: orders down, facts up. Every part may use this
//! module, which uses none that sends or receives them, only those whose types they carry.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;
use bgd_shared::text::Env;
use tokio::sync::mpsc;

use super::awaited::Awaited;
use super::helper::{Purpose, Watcher};
use super::processes::mark::Mark;
use crate::core::{Fact, RunPlace, SpawnFailure, Spec};
use crate::keeper::Key;
use crate::keeper::socket::Socket;
use crate::os::pidfd::PidFd;
use crate::os::pty::Pty;

/// The order to start a process.
#[derive(Debug)]
pub struct StartOrder {
    pub task: TaskId,
    pub run: u32,
    pub spec: Arc<Spec>,
    /// The complete environment.
    pub env: Arc<Env>,
    /// Its place among other tasks, passed to it in variables; `None` for a helper.
    pub place: Option<Box<RunPlace>>,
    pub streams: Streams,
}

/// Descriptors that the submitter sent for the standard streams of a process.
#[derive(Debug, Default)]
pub struct Inherited {
    pub stdin: Option<OwnedFd>,
    /// Standard output and error.
    pub outputs: [Option<OwnedFd>; 2],
}

impl Inherited {
    /// Reports whether the submitter sent none.
    pub fn is_empty(&self) -> bool {
        self.stdin.is_none() && self.outputs.iter().all(Option::is_none)
    }

    /// Duplicates the descriptors.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let [out, err] = &self.outputs;
        Ok(Self { stdin: copy(&self.stdin)?, outputs: [copy(out)?, copy(err)?] })
    }

    /// Returns the descriptors, with that for the standard input first.
    pub fn into_all(self) -> impl Iterator<Item = OwnedFd> {
        self.stdin.into_iter().chain(self.outputs.into_iter().flatten())
    }
}

/// The standard streams of a process.
#[derive(Debug)]
pub enum Streams {
    /// Output files of its own, and the standard input that the task asks for: nothing, or a pipe. Descriptors from the
    /// submitter replace them.
    Own(Inherited),
    /// These descriptors, for a helper.
    Given {
        /// Standard input, output and error.
        streams: [OwnedFd; 3],
        /// The environment variable that marks its processes.
        mark: &'static str,
    },
}

/// A process that has started.
#[derive(Debug)]
pub struct StartedProcess {
    pub pid: i32,
    pub pidfd: PidFd,
    /// The daemon's end of its standard input, if it is a pipe.
    pub input: Option<OwnedFd>,
    pub cgroup: Option<PathBuf>,
    /// The mark of every process in its tree.
    pub mark: Mark,
    /// Whether its standard output and error have separate files; `None` for a helper, which has no output files.
    pub split: Option<bool>,
    /// How to detect that it is ready, if its spec sets a condition.
    pub awaited: Option<Box<Awaited>>,
    /// Its terminal. The process then only leads the terminal, and its job does the work.
    pub terminal: Option<Box<NewTerminal>>,
    /// The keeper that it has announced itself to, if any.
    pub announced: Option<Arc<Socket>>,
}

/// A terminal in which a job has started.
#[derive(Debug)]
pub struct NewTerminal {
    pub pty: Pty,
    pub size: TerminalSize,
    /// The output file that records the terminal.
    pub output: OwnedFd,
    /// The socket on which its leader reports about the job.
    pub leader_news: Option<OwnedFd>,
    pub job: i32,
    pub job_handle: PidFd,
}

/// Copies of the descriptors of a run for the keeper.
#[derive(Debug)]
pub struct Copied {
    /// The pid of the run's process.
    pub pid: i32,
    /// The keeper's message about the run.
    pub text: Vec<u8>,
    /// The copies, with that of the process first.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the standard input is among them, at its position.
    pub has_input: bool,
}

/// A report to the owner of all processes.
#[derive(Debug)]
pub enum Report {
    /// A process has started, or could not be started.
    Begun {
        task: TaskId,
        run: u32,
        /// The process, or the reason why it did not start.
        result: Result<Box<StartedProcess>, SpawnFailure>,
    },
    /// A supervisor observed a fact.
    Fact { task: TaskId, run: u32, fact: Fact },
    /// A helper is to be started.
    StartHelper {
        purpose: Purpose,
        order: Box<StartOrder>,
        /// Is notified of the helper's start and end.
        watcher: Watcher,
    },
    /// End a helper with this signal.
    EndHelper {
        /// The id that the helper was started under.
        process: TaskId,
        signal: i32,
    },
    /// The keeper with this pid is gone, or no other daemon could reach it.
    KeeperGone { pid: i32 },
    /// Another keeper has replaced the one that is gone.
    KeeperCame,
    /// Descriptors of a run were copied for the keeper, or that failed.
    Copied { key: Key, copied: io::Result<Copied> },
    /// A job has stopped in its terminal, which no viewer is shown any more.
    StoppedUnseen { task: TaskId, run: u32 },
    /// The output of a handed-over process has reached its end, after the process itself.
    Drained { key: Key },
}

/// Sends the reports of spawners, of supervisors and of the requesters of helpers.
#[derive(Clone, Debug)]
pub struct Reports(mpsc::UnboundedSender<Report>);

impl Reports {
    /// Sends a report. When the daemon ends there is no receiver any more, which doesn't matter then.
    pub fn send(&self, report: Report) {
        let _ = self.0.send(report);
    }
}

/// Creates a channel for reports.
pub fn reports() -> (Reports, mpsc::UnboundedReceiver<Report>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Reports(sender), receiver)
}

/// A message of an executor to the dispatcher.
#[derive(Debug)]
pub enum ExecutorMessage {
    /// A fact that the executor observed about a run.
    Fact {
        task: TaskId,
        /// Counted from 1.
        run: u32,
        fact: Fact,
    },
    /// The request for a notification with this number once everything sent before is in the journal.
    AskCaughtUp(u64),
}

/// Sends the facts of executors to the dispatcher.
#[derive(Clone, Debug)]
pub struct Facts(mpsc::UnboundedSender<ExecutorMessage>);

impl Facts {
    /// Sends a fact. When the daemon ends there is no receiver any more, which doesn't matter then.
    pub fn send(&self, task: TaskId, run: u32, fact: Fact) {
        let _ = self.0.send(ExecutorMessage::Fact { task, run, fact });
    }

    /// Requests [`Executor::caught_up`](super::executor::Executor::caught_up) with this number once all facts sent
    /// before are in the journal.
    pub fn ask_caught_up(&self, mark: u64) {
        let _ = self.0.send(ExecutorMessage::AskCaughtUp(mark));
    }
}

/// Creates a channel for facts.
pub fn facts() -> (Facts, mpsc::UnboundedReceiver<ExecutorMessage>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Facts(sender), receiver)
}
