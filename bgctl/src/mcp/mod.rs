//! `bgctl mcp`: an MCP server on standard input and output. It lets an AI agent use the daemon (R80) and reports ended
//! tasks without being asked (R81).
//!
//! It keeps no task state; that belongs to the daemon. It has one connection that owns the parent session, and a ledger
//! of what was reported. Only this module uses rmcp and an async runtime. Nothing but MCP messages may be written to
//! standard output.

pub mod ancestors;
mod answer;
mod arguments;
mod catalogue;
mod ledger;
mod lines;
mod link;
mod output;
mod push;
mod refusal;
mod server;
mod shapes;
mod shared;
mod tools;
mod variables;
mod waits;
mod wire;
mod words;

use std::sync::Arc;
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::request::{InboxAck, InboxAckParams, SubmitParams};
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::ledger::{Done, Ledger};
use self::link::Link;
use self::push::Push;
use self::server::Server;
use self::shared::Shared;
use self::variables::DEPTH;
use self::waits::Waits;
use self::wire::Wire;
use crate::cli::JobArgs;
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::{self, Machine, Work};
use crate::link::DaemonAddress;

/// How long to wait for answers in flight after the end of the input: as long as rmcp does. The server ends at once when
/// there are none left.
const LAST_WORDS: Duration = Duration::from_secs(5);

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag, and the server has several")]
pub struct Options {
    /// The key of the parent session, if given.
    pub session: Option<String>,
    /// The parent session of the environment.
    pub inherited: Option<String>,
    /// Whether the parent session outlives the server.
    pub keeps: bool,
    /// The longest wait of `background_block`, in milliseconds.
    pub max_block_ms: u64,
    /// How many levels of agents may start agents.
    pub depth: u32,
    /// Whether tasks of other sessions may be shown.
    pub all_sessions: bool,
    /// Whether answers include structured content, with declared schemas.
    pub structured: bool,
    /// How to reach the daemon. If it is on another machine, the parent session outlives the server: a lost connection
    /// must not end its tasks.
    pub address: DaemonAddress,
    /// The variables that locate the socket, if they are not in the environment of this process.
    pub variables: Vec<(String, String)>,
    /// Whether to start a daemon if none runs.
    pub starts: bool,
}

/// Serves until standard input ends or a signal arrives.
///
/// # Errors
/// The runtime can't be created, or the current folder can't be determined.
pub fn serve(options: Options) -> Result<Code, Failure> {
    let depth = depth_here();
    // An unreadable depth was not written by this program. Assume too deep rather than risk endless nesting.
    let counted = *depth.as_ref().unwrap_or(&u32::MAX);
    let session = session(options.session.as_deref(), options.inherited.as_deref(), counted);
    // Before any thread starts: `template` reads process-wide state.
    let machine = if options.address.host().is_some() { Machine::Another } else { Machine::This(None) };
    let template = template(&session, counted, options.variables.clone(), machine)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("can't make the runtime", &error))?;
    let outcome = runtime.block_on(run(options, session, depth, template));
    // A runtime thread may be blocked on standard input.
    runtime.shutdown_background();
    outcome.map(|()| Code::OK)
}

/// Returns the depth of this process: 0 if it was not started by a task of such a server. Some agents pass almost no
/// environment to their servers, so the ancestors are checked too. A value that is not a number is returned as the
/// error.
fn depth_here() -> Result<u32, String> {
    let own = std::env::var_os(DEPTH).map(|depth| depth.to_string_lossy().into_owned());
    let ancestors = || ancestors::nearest(&[DEPTH]).into_iter().next().map(|(_, depth)| depth);
    let depth = own.or_else(ancestors).filter(|depth| !depth.is_empty());
    depth.map_or(Ok(0), |depth| depth.parse().map_err(|_| depth))
}

/// Returns the key of the parent session: the given one, else that of the environment, else a new one. At a depth above
/// 0 the environment's session belongs to the process that started the agent, so it is ignored.
fn session(named: Option<&str>, inherited: Option<&str>, depth: u32) -> String {
    let key = named.or(inherited.filter(|_| depth == 0)).filter(|key| !key.is_empty());
    key.map_or_else(|| format!("mcp:{}", TaskId::random().short()), str::to_owned)
}

/// Returns the parameters common to all tasks: everything that a child of this process would inherit.
fn template(
    session: &str,
    depth: u32,
    mut variables: Vec<(String, String)>,
    machine: Machine,
) -> Result<SubmitParams, Failure> {
    variables.push((DEPTH.to_owned(), depth.saturating_add(1).to_string()));
    let args = JobArgs { session: Some(session.to_owned()), env: variables, ..JobArgs::default() };
    let params = job::params(args, Work::Shell(String::new().into()), machine)?;
    // The terminal belongs to the agent: nothing may be written to it.
    Ok(SubmitParams { shell: None, terminal: None, ..params })
}

async fn run(
    options: Options,
    session: String,
    depth: Result<u32, String>,
    template: SubmitParams,
) -> Result<(), Failure> {
    let keeps = options.keeps || options.address.host().is_some();
    let ledger = Arc::new(Ledger::default());
    let push = Arc::new(Push::default());
    let link =
        Arc::new(Link::new(options.address, options.starts, options.variables, session.clone(), !keeps));
    let (ended, end) = watch::channel(false);
    let (written, answers) = mpsc::unbounded_channel();
    tokio::spawn(acknowledge(Arc::clone(&link), Arc::clone(&ledger), session.clone(), answers));
    tokio::spawn(Arc::clone(&push).listen(Arc::clone(&link), Arc::clone(&ledger), session.clone()));
    tokio::spawn(Arc::clone(&push).tell_lists());
    let wire = Wire::stdio(Arc::clone(&ledger), written, ended);
    let server = Server(Arc::new(Shared {
        link,
        ledger,
        push,
        session,
        template,
        max_block: Duration::from_millis(options.max_block_ms),
        depth,
        most_depth: options.depth,
        all_sessions: options.all_sessions,
        structured: options.structured,
        keeps,
        ended: end.clone(),
        waits: Waits::default(),
    }));
    tokio::select! {
        outcome = converse(server, wire) => outcome?,
        () = last_words(end) => {}
        outcome = stopped() => outcome?,
    }
    Ok(())
}

/// Serves the client until its input ends.
async fn converse(server: Server, wire: Wire) -> Result<(), Failure> {
    match Box::pin(server.serve(wire)).await {
        Ok(running) => {
            let end = running.waiting().await;
            end.map(drop).map_err(|error| ended(Code::INTERNAL, "internal", &error))
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        // The output has no reader.
        Err(error @ ServerInitializeError::TransportError { .. }) => {
            Err(ended(Code::BROKEN_PIPE, "io", &error))
        }
        Err(error) => Err(ended(Code::USAGE, "usage", &error)),
    }
}

fn ended(code: Code, kind: &'static str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(code, kind, format!("the connection ended: {}", crate::render::clean(&why.to_string())))
}

/// Waits for the end of the input, and then [`LAST_WORDS`] for answers in flight.
async fn last_words(mut end: watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends the server too.
    let _ = end.wait_for(|ended| *ended).await;
    tokio::time::sleep(LAST_WORDS).await;
}

/// Waits for SIGTERM or SIGINT.
async fn stopped() -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::io("can't listen for signals", &error));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Acknowledges reported items to the daemon instance that sent them. A failed acknowledgement is repeated after the
/// next answer or a reconnect.
async fn acknowledge(
    link: Arc<Link>,
    ledger: Arc<Ledger>,
    session: String,
    mut written: mpsc::UnboundedReceiver<()>,
) {
    let mut connections = link.connections();
    loop {
        tokio::select! {
            answer = written.recv() => if answer.is_none() { return },
            Ok(()) = connections.changed() => {}
        }
        if let Some(done) = ledger.unacknowledged() {
            acknowledge_all(&link, &ledger, &session, done).await;
        }
    }
}

/// Acknowledges these items, unless the connection is broken or leads to another instance, which does not know them.
async fn acknowledge_all(link: &Arc<Link>, ledger: &Ledger, session: &str, done: Done) {
    let Done { instance, numbers, upto, whole } = done;
    let params = |upto, only| InboxAckParams {
        session: session.to_owned(),
        upto,
        only,
        instance: Some(instance.clone()),
        ..InboxAckParams::default()
    };
    if whole {
        if let Some(Ok(_)) = link.call_here::<InboxAck>(&instance, &params(upto, false)).await {
            ledger.confirm_acknowledged(&instance, &numbers);
        }
        return;
    }
    // All at once: one after the other would take a round trip each.
    let mut calls = JoinSet::new();
    for number in numbers {
        let (link, instance, params) = (Arc::clone(link), instance.clone(), params(number, true));
        calls.spawn(async move { (number, link.call_here::<InboxAck>(&instance, &params).await) });
    }
    while let Some(call) = calls.join_next().await {
        if let Ok((number, Some(Ok(_)))) = call {
            ledger.confirm_acknowledged(&instance, &[number]);
        }
    }
}
