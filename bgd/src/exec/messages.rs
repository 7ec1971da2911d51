//! What the parts of executors say to each other and to the dispatcher: orders down, facts up. Everybody may use it; it
//! uses no executor.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::TerminalSize;
use bgd_shared::text::Env;
use tokio::sync::mpsc;

use super::awaited::Awaited;
use super::helper::{Purpose, Watcher};
use super::mark::Mark;
use super::pty::Pty;
use crate::core::{Fact, RunPlace, SpawnFailure, Spec};
use crate::os::pidfd::PidFd;

/// The order to start a process.
#[derive(Debug)]
pub struct StartOrder {
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: u32,
    /// What to start.
    pub spec: Arc<Spec>,
    /// Its complete environment.
    pub env: Arc<Env>,
    /// What it is told of its place among others; nothing, for a helper.
    pub place: Option<Box<RunPlace>>,
    /// Its standard streams.
    pub streams: Streams,
}

/// Descriptors that the submitter sent along for the standard streams of a process.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Standard input.
    pub stdin: Option<OwnedFd>,
    /// Standard output and error.
    pub outputs: [Option<OwnedFd>; 2],
}

impl Inherited {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stdin.is_none() && self.outputs.iter().all(Option::is_none)
    }
}

/// What a process has as standard streams.
#[derive(Debug)]
pub enum Streams {
    /// Output files of its own, and what the task asks for as standard input: nothing, or a pipe; what
    /// its submitter sent along takes their place.
    Own(Inherited),
    /// These, for a helper.
    Given {
        /// Standard input, output and error.
        streams: [OwnedFd; 3],
        /// The environment variable that marks its processes.
        mark: &'static str,
    },
}

/// A process that has begun.
#[derive(Debug)]
pub struct Begun {
    /// Its number.
    pub pid: i32,
    /// The handle to it.
    pub pidfd: PidFd,
    /// The daemon's end of its standard input, if it is a pipe.
    pub input: Option<OwnedFd>,
    /// Its cgroup.
    pub cgroup: Option<PathBuf>,
    /// What every process of its tree is marked with.
    pub mark: Mark,
    /// Its output files, if it writes to some of its own: whether they are two.
    pub split: Option<bool>,
    /// When it is ready, if somebody wants to know.
    pub awaited: Option<Box<Awaited>>,
    /// Its terminal. The process is only the leader of the terminal then, and its job the real one.
    pub terminal: Option<Box<NewTerminal>>,
}

/// A terminal that a job has begun in.
#[derive(Debug)]
pub struct NewTerminal {
    /// The terminal.
    pub pty: Pty,
    /// Its size.
    pub size: TerminalSize,
    /// Where what it shows is kept.
    pub output: OwnedFd,
    /// Where its leader tells of the job.
    pub leader_news: Option<OwnedFd>,
    /// The job's number.
    pub job: i32,
    /// The handle to the job.
    pub job_handle: PidFd,
}

/// Something for the owner of all processes.
#[derive(Debug)]
pub enum Report {
    /// A process has begun, or could not.
    Begun {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// The process, or why there is none.
        result: Result<Box<Begun>, SpawnFailure>,
    },
    /// A supervisor saw something.
    Fact {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What was seen.
        fact: Fact,
    },
    /// A helper shall be started.
    StartHelper {
        /// What for.
        purpose: Purpose,
        /// How.
        order: Box<StartOrder>,
        /// Who hears what becomes of it.
        watcher: Watcher,
    },
    /// A helper shall be ended with this signal.
    EndHelper {
        /// The process, by the id that it was started under.
        process: TaskId,
        /// The number of the signal.
        signal: i32,
    },
}

/// Where spawners, supervisors and those who need helpers report to.
#[derive(Clone, Debug)]
pub struct Reports(mpsc::UnboundedSender<Report>);

impl Reports {
    /// Reports. Nobody listens any more when the daemon ends; then it does not matter.
    pub fn send(&self, report: Report) {
        let _ = self.0.send(report);
    }
}

/// An empty channel of reports.
pub fn reports() -> (Reports, mpsc::UnboundedReceiver<Report>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Reports(sender), receiver)
}

/// What an executor saw of a run.
#[derive(Debug)]
pub struct Seen {
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: u32,
    /// What was seen.
    pub fact: Fact,
}

/// Where executors tell the dispatcher what they see.
#[derive(Clone, Debug)]
pub struct Facts(mpsc::UnboundedSender<Seen>);

impl Facts {
    /// Tells. Nobody listens any more when the daemon ends; then it does not matter.
    pub fn send(&self, task: TaskId, run: u32, fact: Fact) {
        let _ = self.0.send(Seen { task, run, fact });
    }
}

/// An empty channel of facts.
pub fn facts() -> (Facts, mpsc::UnboundedReceiver<Seen>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Facts(sender), receiver)
}
