//! What reaches the dispatcher. Calls of clients come through a bounded queue, so that a flood of them
//! waits in the clients' sockets; facts of executors come through one of their own, which holds at
//! most a few for each running process, so that no client can delay them.

use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::HandoffParams;
use bgd_shared::text::Env;
use tokio::sync::mpsc;

use crate::agents::Agent;
use crate::client::Client;
use crate::client::answer::Answer;
use crate::config::{Config, ConfigError};
use crate::core::{Command, Request};
use crate::exec::executor::Offer;
use crate::exec::messages::{self, Facts, Seen};
use crate::wire::calls::Call;

/// How many calls may wait for the dispatcher.
const CALLS: usize = 1024;

/// Something from a client.
#[derive(Debug)]
pub enum Incoming {
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

/// What workers of the daemon have found, and what the system says.
#[derive(Debug)]
pub enum Internal {
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
        /// The process, which is ready, or why it can't be taken over.
        result: Result<Offer, RpcError>,
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

/// Where the daemon's own workers tell what they have found.
#[derive(Clone, Debug)]
pub struct Internals(mpsc::UnboundedSender<Internal>);

impl Internals {
    /// Tells. Nobody listens any more when the daemon ends; then it does not matter.
    pub fn send(&self, internal: Internal) {
        let _ = self.0.send(internal);
    }
}

/// Where connections send calls.
pub type Calls = mpsc::Sender<Incoming>;

/// The dispatcher's end.
#[derive(Debug)]
pub struct Mailbox {
    /// Calls of clients.
    pub calls: mpsc::Receiver<Incoming>,
    /// Facts of executors.
    pub facts: mpsc::UnboundedReceiver<Seen>,
    /// What the daemon's own workers have found.
    pub internals: mpsc::UnboundedReceiver<Internal>,
}

/// An empty mailbox with its entrances.
pub fn new() -> (Calls, Facts, Internals, Mailbox) {
    let (calls, calls_end) = mpsc::channel(CALLS);
    let (facts, facts_end) = messages::facts();
    let (internals, internals_end) = mpsc::unbounded_channel();
    let mailbox = Mailbox { calls: calls_end, facts: facts_end, internals: internals_end };
    (calls, facts, Internals(internals), mailbox)
}
