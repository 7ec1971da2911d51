//! The dispatcher's inputs. Calls of clients arrive in a bounded queue, so that a flood of them backs up into the
//! clients' sockets. Facts of executors have a queue of their own, so that no client can delay them. Executors limit
//! the rate of their facts, so that this queue holds at most a few per running process.

use std::sync::Arc;

use bgd_shared::agent::AgentInfo;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::HandoffParams;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::agents::Agent;
use crate::carry::program::Candidate;
use crate::client::Client;
use crate::client::answer::Answer;
use crate::config::{Config, ConfigError};
use crate::core::{Command, Delivery, Request};
use crate::exec::executor::Offer;
use crate::exec::messages::{self, ExecutorMessage, Facts};
use crate::journal::Recorded;
use crate::wire::calls::Call;

/// Capacity of the queue of calls.
const CALLS: usize = 1024;

/// A message from a client's connection.
#[derive(Debug)]
pub enum Incoming {
    /// A request.
    Call {
        client: Arc<Client>,
        call: Call,
    },
    Connected(Arc<Client>),
    Gone(Arc<Client>),
    /// A part of a batch was refused before it became a call.
    PartRefused(Arc<Client>),
    /// The client's queue is empty, so its subscriptions may continue.
    Drained(Arc<Client>),
}

/// Results of the daemon's own workers, and signals.
#[derive(Debug)]
pub enum Internal {
    /// The agent for a prompt was looked up.
    AgentResolved {
        /// The pending response to the submission.
        answer: Answer,
        command: Box<Command>,
        /// Whether its client owned its parent session when it was submitted.
        owned: bool,
        /// Whether the agent is available.
        result: Result<(), RpcError>,
    },
    /// A client turned out to be allowed to answer an agent's question.
    MayAnswer {
        /// The pending response to the client.
        answer: Answer,
        request: Request,
    },
    /// The programs of agents were looked up.
    AgentsFound {
        /// The pending response to `agent.list`.
        answer: Answer,
        /// The environment in which they were looked up.
        env: Arc<Env>,
        /// Whether the agents are also to be started, as a check.
        check: bool,
        found: Result<Vec<(Arc<Agent>, AgentInfo)>, RpcError>,
    },
    /// A process that another program is handing over was inspected.
    Offered {
        /// The pending response to the handoff.
        answer: Answer,
        params: Box<HandoffParams>,
        task: TaskId,
        /// The process, ready to be adopted, or why it can't be.
        result: Result<Offer, RpcError>,
    },
    /// The configuration file was read.
    ConfigRead {
        /// The new configuration, or its error.
        config: Result<Box<Config>, ConfigError>,
        /// The modification time of the file when it was read; `None` if there was no file.
        modified: Option<Timestamp>,
        /// The pending response, if a client asked for the reload.
        asked: Option<Answer>,
    },
    /// The result for a notice was read.
    NoticeRead {
        /// The number of the notice.
        number: u64,
    },
    /// The delivery state of a notice has changed.
    Notice {
        /// The number of the notice.
        number: u64,
        delivery: Delivery,
    },
    /// Steps were written to the journal, or could not be.
    Recorded(Recorded),
    /// Every waiting notice was delivered or given up, and the channels' thread has ended.
    ChannelsDone,
    /// The program for an upgrade in place was inspected, or has tried to read the state.
    Upgrade {
        /// The program, or why it can't take over.
        program: Result<Box<Candidate>, String>,
        /// Whether the program has tried to read the state.
        was_tried: bool,
    },
    /// SIGHUP: reload the configuration.
    Reload,
    /// SIGTERM or SIGINT: shut down.
    Terminate {
        /// The name of the signal.
        signal: &'static str,
    },
}

/// The sending side for the daemon's own workers.
#[derive(Clone, Debug)]
pub struct Internals(mpsc::UnboundedSender<Internal>);

impl Internals {
    /// Sends a message. The message is lost if the daemon is ending, when it no longer matters.
    pub fn send(&self, internal: Internal) {
        let _ = self.0.send(internal);
    }
}

/// The sending side for connections.
pub type Calls = mpsc::Sender<Incoming>;

/// The dispatcher's receiving side.
#[derive(Debug)]
pub struct Mailbox {
    pub calls: mpsc::Receiver<Incoming>,
    pub facts: mpsc::UnboundedReceiver<ExecutorMessage>,
    pub internals: mpsc::UnboundedReceiver<Internal>,
}

/// Creates an empty mailbox with its sending sides.
pub fn new() -> (Calls, Facts, Internals, Mailbox) {
    let (calls, calls_end) = mpsc::channel(CALLS);
    let (facts, facts_end) = messages::facts();
    let (internals, internals_end) = mpsc::unbounded_channel();
    let mailbox = Mailbox { calls: calls_end, facts: facts_end, internals: internals_end };
    (calls, facts, Internals(internals), mailbox)
}
