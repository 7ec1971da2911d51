//! `bgctl mcp`: an MCP server on standard input and output, by which an AI agent uses the daemon (R80) and is told of
//! what ends without having to ask (R81).
//!
//! It keeps no state of tasks: that is the daemon's. What it has is one connection that owns the parent session, and a
//! book of what was told. Only this module names the protocol's library and an async runtime. Nothing but the protocol
//! is written to standard output.

pub mod above;
mod answer;
mod arguments;
mod catalogue;
mod ledger;
mod lines;
mod link;
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
use bgd_shared::socket::SocketPath;
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

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
use crate::job::{self, Work};

/// How long answers that are under way have at the end of the input.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the server is started with.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag, and the server has several")]
pub struct Options {
    /// The parent session, if one was named.
    pub session: Option<String>,
    /// Whether the parent session stays at the end.
    pub keeps: bool,
    /// How long `background_block` waits at most, in milliseconds.
    pub max_block_ms: u64,
    /// How deep agents may start agents.
    pub depth: u32,
    /// Whether tasks of other sessions may be looked at.
    pub all_sessions: bool,
    /// Whether answers have structured content, too, with schemas that are declared.
    pub structured: bool,
    /// The daemon's socket.
    pub socket: SocketPath,
    /// The variables that say where it is, if they are not in the environment of this process.
    pub variables: Vec<(String, String)>,
    /// Whether a daemon is started if none runs.
    pub starts: bool,
}

/// Serves until standard input ends or a signal says so.
///
/// # Errors
/// The runtime can't be made, or the folder that this runs in can't be found.
pub fn serve(options: Options) -> Result<Code, Failure> {
    let depth = depth_here();
    // What can't be read was not written by this program: rather too deep than without an end.
    let counted = *depth.as_ref().unwrap_or(&u32::MAX);
    let session = session(options.session.as_deref(), counted);
    // Before there are threads: it looks at what belongs to the whole process.
    let template = template(&session, counted, options.variables.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("can't make the runtime", &error))?;
    let outcome = runtime.block_on(run(options, session, depth, template));
    // Reading standard input may hang in a thread of its own.
    runtime.shutdown_background();
    outcome.map(|()| Code::OK)
}

/// How deep this process is: 0 if no task of a server like this one started it. Some agents give their servers next to
/// nothing of their environment, so that the processes above are asked too. What is no number comes back as it is.
fn depth_here() -> Result<u32, String> {
    let own = std::env::var_os(DEPTH).map(|depth| depth.to_string_lossy().into_owned());
    let above = || above::nearest(&[DEPTH]).into_iter().next().map(|(_, depth)| depth);
    let depth = own.or_else(above).filter(|depth| !depth.is_empty());
    depth.map_or(Ok(0), |depth| depth.parse().map_err(|_| depth))
}

/// The parent session: the one that was named; else that of the environment, if it is of this process and not of the
/// one that started its agent; else a new one.
fn session(named: Option<&str>, depth: u32) -> String {
    let inherited = std::env::var("BGD_SESSION").ok().filter(|_| depth == 0);
    let key = named.map(str::to_owned).or(inherited).filter(|key| !key.is_empty());
    key.unwrap_or_else(|| format!("mcp:{}", TaskId::random().short()))
}

/// What every task is submitted with: all that a child of this process would inherit.
fn template(
    session: &str,
    depth: u32,
    mut variables: Vec<(String, String)>,
) -> Result<SubmitParams, Failure> {
    variables.push((DEPTH.to_owned(), depth.saturating_add(1).to_string()));
    let args = JobArgs { session: Some(session.to_owned()), env: variables, ..JobArgs::default() };
    let params = job::params(args, Work::Shell(String::new().into()), None)?;
    // The terminal is the agent's: nothing is written into it.
    Ok(SubmitParams { shell: None, terminal: None, ..params })
}

async fn run(
    options: Options,
    session: String,
    depth: Result<u32, String>,
    template: SubmitParams,
) -> Result<(), Failure> {
    let ledger = Arc::new(Ledger::default());
    let push = Arc::new(Push::default());
    let link = Arc::new(Link::new(
        options.socket,
        options.starts,
        options.variables,
        session.clone(),
        !options.keeps,
    ));
    let (ended, end) = watch::channel(false);
    let (done, finished) = mpsc::unbounded_channel();
    tokio::spawn(acknowledge(Arc::clone(&link), Arc::clone(&ledger), session.clone(), finished));
    tokio::spawn(Arc::clone(&push).listen(Arc::clone(&link), Arc::clone(&ledger), session.clone()));
    tokio::spawn(Arc::clone(&push).tell_lists());
    let wire = Wire::stdio(Arc::clone(&ledger), done, ended);
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
        keeps: options.keeps,
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

/// Speaks with the client until its input ends.
async fn converse(server: Server, wire: Wire) -> Result<(), Failure> {
    match Box::pin(server.serve(wire)).await {
        Ok(running) => {
            let end = running.waiting().await;
            end.map(drop).map_err(|error| ended(Code::INTERNAL, "internal", &error))
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        // Nobody reads what is written.
        Err(error @ ServerInitializeError::TransportError { .. }) => {
            Err(ended(Code::BROKEN_PIPE, "io", &error))
        }
        Err(error) => Err(ended(Code::USAGE, "usage", &error)),
    }
}

fn ended(code: Code, kind: &'static str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(code, kind, format!("the connection ended: {}", crate::render::clean(&why.to_string())))
}

/// The end of the input, and the time for answers that are under way.
async fn last_words(mut end: watch::Receiver<bool>) {
    // An error is the end of whoever would say it.
    let _ = end.wait_for(|ended| *ended).await;
    tokio::time::sleep(LAST_WORDS).await;
}

/// Waits for a signal to end.
async fn stopped() -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::io("can't listen for signals", &error));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Acknowledges what was told, to the daemon that it is from. Where that can't be done it is done with the next one, or
/// when there is a connection again; a daemon of another life knows nothing of it.
async fn acknowledge(
    link: Arc<Link>,
    ledger: Arc<Ledger>,
    session: String,
    mut finished: mpsc::UnboundedReceiver<Done>,
) {
    let mut connections = link.connections();
    let mut open: Option<Done> = None;
    loop {
        tokio::select! {
            done = finished.recv() => match done {
                // It has those before it in it.
                Some(done) => open = Some(done),
                None => return,
            },
            Ok(()) = connections.changed() => {
                let instance = connections.borrow_and_update().clone();
                open = open.filter(|done| done.instance == instance);
            }
        }
        if let Some(done) = &open {
            let params = InboxAckParams {
                session: session.clone(),
                upto: done.upto,
                instance: Some(done.instance.clone()),
            };
            if let Some(Ok(_)) = link.call_here::<InboxAck>(&done.instance, &params).await {
                ledger.is_acknowledged(&done.instance);
                open = None;
            }
        }
    }
}
