//! What reaches the dispatcher. Calls of clients come through a bounded queue, so that a flood of them
//! waits in the clients' sockets; reports of executors come through one of their own, which holds at
//! most a few for each running process, so that no client can delay them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::{HandoffParams, TerminalSize};
use bgd_shared::text::Env;
use tokio::sync::mpsc;

use crate::agents::Agent;
use crate::answer::Answer;
use crate::calls::Call;
use crate::client::Client;
use crate::config::{Config, ConfigError};
use crate::core::{Command, Fact, Request, SpawnFailure};
use crate::exec::handed::Ready;
use crate::exec::host::{Purpose, Watcher};
use crate::exec::mark::Mark;
use crate::exec::spawner::StartOrder;
use crate::exec::terminal::birth::Pty;
use crate::sys::pidfd::PidFd;

/// How many calls may wait for the dispatcher.
const CALLS: usize = 1024;

/// Something from a client.
#[derive(Debug)]
pub enum Mail {
    /// It asks for something.
    Call {
        /// Who.
        client: Arc<Client>,
        /// For what.
        call: Call,
    },
    /// It has connected.
    Connected(Arc<Client>),
    /// It is gone.
    Gone(Arc<Client>),
    /// It has taken what was waiting for it; subscriptions of its may go on.
    Drained(Arc<Client>),
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

/// Something from an executor, or from the system.
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
    /// Something that only the core cares about.
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
    /// The agent of a prompt was looked for.
    AgentFound {
        /// Who gets the prompt's task.
        answer: Answer,
        /// What was submitted.
        command: Box<Command>,
        /// Whether its program is there.
        result: Result<(), RpcError>,
    },
    /// Who answers an agent's question may do so.
    MayAnswer {
        /// Who.
        answer: Answer,
        /// What the core is asked then.
        request: Request,
    },
    /// The programs of agents were looked for.
    AgentsFound {
        /// Who wants to know.
        answer: Answer,
        /// In this environment.
        env: Arc<Env>,
        /// Whether they shall be started, too.
        check: bool,
        /// What is there.
        found: Result<Vec<(Arc<Agent>, AgentInfo)>, RpcError>,
    },
    /// A process that another program offers was looked at.
    Offered {
        /// Who offers it.
        answer: Answer,
        /// What was said of it.
        params: Box<HandoffParams>,
        /// The task that it will be.
        task: TaskId,
        /// The process, or why it can't be taken over.
        result: Result<Box<Ready>, RpcError>,
    },
    /// The configuration was read.
    ConfigRead {
        /// What it says, or what is wrong with it.
        config: Result<Box<Config>, ConfigError>,
        /// Who asked for it, if it was a client.
        asked: Option<Answer>,
    },
    /// The result that a notice of this task is about was read.
    NoticeRead {
        /// The task.
        task: TaskId,
    },
    /// Every notice that waited was delivered or given up, and the channels' thread has ended.
    ChannelsDone,
    /// SIGHUP: the configuration shall be read again.
    Reload,
    /// SIGTERM or SIGINT: the daemon shall end.
    Terminate {
        /// The signal's name.
        signal: &'static str,
    },
}

/// Where executors report to.
#[derive(Clone, Debug)]
pub struct Facts(mpsc::UnboundedSender<Report>);

impl Facts {
    /// Reports. Nobody listens any more when the daemon ends; then it does not matter.
    pub fn send(&self, report: Report) {
        let _ = self.0.send(report);
    }
}

/// Where connections send calls.
pub type Calls = mpsc::Sender<Mail>;

/// The dispatcher's end.
#[derive(Debug)]
pub struct Mailbox {
    /// Calls of clients.
    pub calls: mpsc::Receiver<Mail>,
    /// Reports of executors.
    pub reports: mpsc::UnboundedReceiver<Report>,
}

/// An empty mailbox with both of its entrances.
pub fn new() -> (Calls, Facts, Mailbox) {
    let (calls, calls_end) = mpsc::channel(CALLS);
    let (facts, reports_end) = mpsc::unbounded_channel();
    (calls, Facts(facts), Mailbox { calls: calls_end, reports: reports_end })
}
