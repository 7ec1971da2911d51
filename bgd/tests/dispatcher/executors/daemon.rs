//! A daemon in this process with its own table of executors, and clients over a real socket.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bgd::config::Config;
use bgd::core::ExecutorName;
use bgd::core::durable::Kept;
use bgd::dispatcher::Dispatcher;
use bgd::dispatcher::durable::LeftRuns;
use bgd::exec::context::Context;
use bgd::exec::executor::{Close, Executors};
use bgd::exec::messages;
use bgd::exec::output::OutputFolder;
use bgd::exec::threads::workers::Workers;
use bgd::journal::{Journal, Recorded};
use bgd::os::wall_clock::WallClock;
use bgd::wire::connection::Shared;
use bgd::wire::mailbox::{Internal, Internals};
use bgd::wire::server::{self, ServerLimits};
use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, DaemonShutdown, ShutdownParams, SubmitParams, TaskBlock, TaskSubmit,
};
use bgd_shared::resources::ExecutorKind;
use bgd_shared::socket::SocketPath;
use bgd_shared::task::Task;
use bgd_shared::text::Env;
use bgd_shared::transport::listen;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};

use super::scripted::{Closing, Scripted};

/// A daemon with a client. Dropping it ends the daemon.
pub struct Daemon {
    pub client: Client,
    socket: SocketPath,
    thread: Option<JoinHandle<()>>,
    _home: TempDir,
}

/// What a durable daemon has left, and where to report the runs that are over.
pub struct Before {
    pub kept: Kept,
    pub left: LeftRuns,
    pub over: Sender<(TaskId, u32)>,
}

impl Daemon {
    /// Starts a daemon that runs this many tasks at once.
    pub fn start(max_concurrent_tasks: usize) -> Self {
        Self::start_after(max_concurrent_tasks, None)
    }

    /// Starts a daemon that is durable and continues from the state of another one, if given.
    pub fn start_after(max_concurrent_tasks: usize, before: Option<Before>) -> Self {
        Self::start_with(max_concurrent_tasks, before, None)
    }

    /// Starts a daemon with an executor elsewhere that reports how it is closed.
    pub fn start_beside(closed: Sender<Close>) -> Self {
        Self::start_with(1, None, Some(closed))
    }

    fn start_with(
        max_concurrent_tasks: usize,
        before: Option<Before>,
        closed: Option<Sender<Close>>,
    ) -> Self {
        let home = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let socket = SocketPath::new(home.path().join("bgd.sock")).unwrap();
        let config = Config { max_concurrent_tasks, ..Config::default() };
        let (ready, is_ready) = oneshot::channel();
        let (path, state) = (socket.clone(), home.path().to_owned());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(live(config, &path, &state, ready, (before, closed)));
        });
        is_ready.blocking_recv().unwrap();
        let client = Client::connect(&socket).unwrap();
        Self { client, socket, thread: Some(thread), _home: home }
    }

    /// Connects another client.
    pub fn client_too(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// Submits a script.
    pub fn submit(&mut self, words: &[&str]) -> TaskId {
        self.submit_with(words, |_| {})
    }

    /// Submits a script, with changed params.
    pub fn submit_with(&mut self, words: &[&str], change: impl FnOnce(&mut SubmitParams)) -> TaskId {
        let mut params = SubmitParams {
            argv: Some(words.iter().map(|word| (*word).into()).collect()),
            cwd: Some("/".into()),
            env: Some(Env::default()),
            ..SubmitParams::default()
        };
        change(&mut params);
        self.client.call::<TaskSubmit>(&params).unwrap().task.id
    }

    /// Waits until these tasks have ended.
    pub fn ended<const N: usize>(&mut self, tasks: [TaskId; N]) -> [Task; N] {
        let ids = tasks.map(Into::into).to_vec();
        let params =
            BlockParams { ids, timeout_ms: Some(60_000), mode: BlockMode::All, ..BlockParams::default() };
        let result = self.client.call::<TaskBlock>(&params).unwrap();
        assert!(!result.timed_out, "{result:?}");
        result.tasks.try_into().unwrap()
    }

    /// Shuts the daemon down, and waits for its end. Returns the number of tasks that were cancelled.
    pub fn shut_down(&mut self, params: &ShutdownParams) -> u64 {
        let result = self.client.call::<DaemonShutdown>(params).unwrap();
        self.thread.take().unwrap().join().unwrap();
        result.cancelled
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After a failure, it may not answer.
        if self.thread.is_some() && !thread::panicking() {
            self.shut_down(&ShutdownParams { grace_ms: Some(0), cancel: true });
        }
    }
}

/// Makes a daemon continue from the state that a durable one has left. Its own journal writes everything at once.
fn begin_again(dispatcher: &mut Dispatcher, mut kept: Kept, left: LeftRuns, internals: Internals) {
    let journal = Journal::simulated(move |upto, _| {
        internals.send(Internal::Recorded(Recorded { upto, is_written: true, trouble: None }));
    });
    dispatcher.make_durable(journal, None, true);
    dispatcher.resume_clock(&mut kept, None);
    dispatcher.begin_again(kept, left, "a test has killed it");
}

async fn live(
    config: Config,
    socket: &SocketPath,
    state: &Path,
    ready: oneshot::Sender<()>,
    (before, closed): (Option<Before>, Option<Sender<Close>>),
) {
    let (calls, facts, internals, mailbox) = bgd::wire::mailbox::new();
    let workers = Workers::start().unwrap();
    let folder = Arc::new(OutputFolder::open(state.to_owned()).unwrap());
    let (reports, _) = messages::reports();
    let path = socket.as_path();
    let context = Context::new(folder, u64::MAX, workers, facts, reports, path.into());
    // The only line needed in the table of executors.
    let (over, left) = before.map(|Before { kept, left, over }| (over, (kept, left))).unzip();
    let mut executors =
        Executors::default().with(ExecutorName::LOCAL, Scripted::new(context.facts.clone(), over));
    if let Some(closed) = closed {
        executors = executors.with(ExecutorKind::Ssh.into(), Closing::new(closed));
    }
    let (limits, limits_seen) = watch::channel(ServerLimits::from(&config));
    let identity = crate::identity("test".into(), path, state, Instant::now());
    let recorded = internals.clone();
    let mut dispatcher = Dispatcher::new(config, identity, executors, context, internals, limits);
    if let Some((kept, left)) = left {
        begin_again(&mut dispatcher, kept, left, recorded);
    }
    let listener = listen(socket).unwrap();
    let (closing, closing_seen) = watch::channel(false);
    let (_made, listeners) = mpsc::channel(1);
    let shared = Shared { calls, silent: Arc::default(), connections: Arc::default() };
    let server =
        tokio::spawn(server::run(listener, listeners, limits_seen, (shared, Vec::new()), closing_seen));
    ready.send(()).unwrap();
    let wall_clock = WallClock::new().expect("a timer");
    dispatcher.run(mailbox, wall_clock).await;
    closing.send_replace(true);
    server.await.unwrap();
}
