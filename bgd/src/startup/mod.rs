//! Startup and shutdown of the daemon.
//!
//! The order matters: the lock is taken before a stale socket is removed; the socket listens before the cleanup
//! of dead instances, so that clients wait in its queue; and no request is answered before the cleanup is done.

pub mod address;
pub mod cgroups;
pub mod instance;
#[cfg_attr(not(feature = "systemd"), path = "scope/absent.rs")]
pub mod scope;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::holder::{Note, Phase};
use bgd_shared::socket::{SocketError, SocketPath};
use bgd_shared::transport::AsyncListener;
use clap::Parser;
use tokio::sync::watch;

use self::address::Address;
use self::cgroups::Place;
use self::instance::Instance;
use crate::config::Config;
use crate::dispatcher::Dispatcher;
use crate::exec::adopted::Adopted;
use crate::exec::agent::AgentThread;
use crate::exec::context::Context;
use crate::exec::local::Local;
use crate::exec::messages::{self, Facts};
use crate::exec::output::{OutputFolder, OutputWatch};
use crate::exec::remote::Machines;
use crate::exec::slurm::Clusters;
use crate::exec::spawner::{self, SpawnSettings};
use crate::exec::strays::Strays;
use crate::exec::terminal::leader;
use crate::exec::workers::Workers;
use crate::exec::{self, awaited, cgroup, mark, reaper};
use crate::os::lock::ProcessLock;
use crate::os::program::Program;
use crate::os::wall_clock::WallClock;
use crate::os::{dirs, inherited, log, signals};
use crate::wire::connection::Shared;
use crate::wire::mailbox::{self, Internal, Internals};
use crate::wire::server::{self, ServerLimits};
use crate::wire::status::Identity;

/// Background daemon: runs tasks for one user, controlled over a Unix socket.
#[derive(Debug, Parser)]
#[allow(clippy::doc_markdown, reason = "these texts are shown to users as they are")]
#[command(name = "bgd", version, after_help = HELP, max_term_width = 100)]
pub struct Args {
    /// Socket to listen on [default: $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else /tmp/bgd-UID/bgd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Configuration file [default: $XDG_CONFIG_HOME/bgd/config.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Log target [default: stderr under a service manager, else bgd.log in the state folder]
    #[arg(long, value_enum, value_name = "TARGET")]
    pub log: Option<LogTarget>,

    /// Check the configuration and exit, with 0 if it is valid, else with 78
    #[arg(long, conflicts_with = "ready_fd")]
    pub check: bool,

    /// Detach, and report to this descriptor: `ready` (and `lost COUNT` if a killed daemon lost tasks), `taken`, or `error CODE MESSAGE`
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<RawFd>,
}

/// Where to log.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogTarget {
    /// bgd.log in the state folder
    File,
    /// Standard error
    Stderr,
}

const HELP: &str = "\
You rarely start bgd yourself: bgctl starts it when needed.

Examples:
  bgd                                  run in the foreground on the default socket
  bgd --log stderr                     the same, logging to the terminal
  BGD_LOG=debug bgd --log stderr       with a more detailed log
  bgd --check                          check the configuration

Signals: TERM and INT cancel every task and stop the daemon (a second one skips the grace
period); HUP reloads the configuration. Under systemd, bgd supports socket activation and
readiness notification.";

/// Why the daemon could not start or run: an exit code from bgctl's table, and a message.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// No daemon is running, and none could be started.
const UNAVAILABLE: u8 = 69;
/// Not allowed.
const NO_PERMISSION: u8 = 77;
/// The configuration is invalid.
const CONFIG: u8 = 78;

impl From<SocketError> for Failure {
    fn from(error: SocketError) -> Self {
        let code = match error {
            SocketError::PathTooLong(_) | SocketError::NotAbsolute(_) => 2,
            SocketError::Link(_)
            | SocketError::NotAFolder(_)
            | SocketError::ForeignOwner { .. }
            | SocketError::TooOpen { .. } => NO_PERMISSION,
            SocketError::Missing(_) | SocketError::Io { .. } => UNAVAILABLE,
        };
        Self::new(code, error.to_string())
    }
}

/// Runs the daemon, or the leader of a terminal, as which the daemon starts itself.
pub fn main() -> ExitCode {
    keep_memory_to_itself();
    if std::env::args_os().nth(1).is_some_and(|first| first == leader::ARGUMENT) {
        return leader::main();
    }
    let args = Args::parse();
    if args.check {
        return check(&args);
    }
    let mut ready = match Ready::new(args.ready_fd) {
        Ok(ready) => ready,
        Err(error) => {
            print_error(&format!("--ready-fd: {error}"));
            return ExitCode::from(2);
        }
    };
    // Before anything is written, and before the ignored signals that tasks must not inherit are recorded.
    if let Err(error) = signals::ignore_full_files() {
        print_error(&format!("cannot ignore SIGXFSZ, a file size limit may end the daemon: {error}"));
    }
    match start(&args, &mut ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            ready.say(&format!("error {} {}\n", failure.code, failure.message));
            print_error(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Environments, prompts and tokens pass through this memory: no other program of the user may read it, and none
/// of it may end up in a core dump. Child processes are not affected.
fn keep_memory_to_itself() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        print_error(&format!("cannot protect its memory from other programs of this user: {error}"));
    }
}

/// Reports on standard error why the daemon can't start. Ignores a closed standard error.
fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "bgd: {}", bgd_shared::show::lines(message));
}

/// Checks the configuration and reports what is wrong with it.
fn check(args: &Args) -> ExitCode {
    match configuration(args) {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            print_error(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Loads the configuration. Returns it with the path of its file.
fn configuration(args: &Args) -> Result<(Config, PathBuf), Failure> {
    let path = args.config.clone().unwrap_or_else(Config::default_path);
    let config = Config::load(&path).map_err(|error| Failure::new(CONFIG, error.to_string()))?;
    Ok((config, path))
}

fn start(args: &Args, ready: &mut Ready) -> Result<(), Failure> {
    let socket = match &args.socket {
        Some(path) => SocketPath::new(path)?,
        None => SocketPath::from_env()?,
    };
    let (config, config_path) = configuration(args)?;
    socket.prepare_folder()?;
    let Some(lock) = take_lock(&socket.beside("lock"))? else {
        ready.say("taken\n");
        return Err(Failure::new(
            UNAVAILABLE,
            format!("another bgd is already running on {}", socket.as_path().display()),
        ));
    };
    let address = Address::new(socket.clone(), lock);
    let state = dirs::state();
    let unusable = |error: io::Error| Failure::new(UNAVAILABLE, format!("{}: {error}", state.display()));
    DirBuilder::new().mode(0o700).recursive(true).create(&state).map_err(unusable)?;
    if let Some(pid) = instance::serving(&state, socket.as_path()) {
        ready.say("taken\n");
        let path = socket.as_path().display();
        let message =
            format!("another bgd (pid {pid}) is running on {path}, and is recreating the removed socket");
        return Err(Failure::new(UNAVAILABLE, message));
    }
    let target = match args.log {
        Some(LogTarget::File) => log::Target::File,
        Some(LogTarget::Stderr) => log::Target::Stderr,
        None => log::Target::detect(),
    };
    log::start(target, &state).map_err(unusable)?;
    ready.detach();
    let internal = |error: io::Error| Failure::new(70, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    runtime.block_on(live(Life { socket, config, config_path, state, address }, ready))
}

/// What an instance starts with.
struct Life {
    socket: SocketPath,
    config: Config,
    config_path: PathBuf,
    state: PathBuf,
    address: Address,
}

/// Converts an I/O error of a startup step to a failure.
fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |error| Failure::new(UNAVAILABLE, format!("{what}: {error}"))
}

async fn live(life: Life, ready: &mut Ready) -> Result<(), Failure> {
    let Life { socket, config, config_path, state, mut address } = life;
    let nofile = prepare_process();
    let strays = Strays::before_anything();
    let (id, started) = (uuid::Uuid::new_v4().to_string(), Instant::now());
    // Before listening, as it may take a moment, and before the cleanup, which may kill what this process
    // was started in.
    let mut place = Place::find(config.tree, &id).await;
    let listener = open_socket(&socket, &mut address)?;
    let instance = Instance::begin(&state, id).map_err(failed(state.display().to_string()))?;
    let (instance, mut note) = known(instance, &socket);
    instance::sweep_noted(&state, address.note());
    let cgroup = prepare_cgroup(&mut place, &instance, &mut note)?;
    let (calls, facts, internals, mailbox) = mailbox::new();
    let (local, context) =
        start_executors(&config, &instance, cgroup.clone(), nofile, (facts, socket.as_path().into()))?;
    let agents = AgentThread::new(Arc::new(config.agents().unwrap_or_default()), context.clone());
    let (machines, clusters) = elsewhere(&config, &context, &state, &instance);
    let executors = exec::table(local, agents.clone(), machines, clusters);
    watch_signals(internals.clone()).map_err(failed("signals"))?;
    let identity = Identity {
        instance: instance.id.clone(),
        pid: std::process::id().cast_signed(),
        socket: socket.as_path().to_path_buf(),
        state_dir: state,
        config_loaded: config_path.exists(),
        config_path,
        config_error: None,
        tree: place.tree(),
        tree_reason: place.reason,
        lost_tasks: instance.lost,
        program: Program::own(),
        started,
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %identity.socket.display(), tree = identity.tree, why = identity.tree_reason, "ready");
    let (limits, limits_seen) = watch::channel(ServerLimits::from(&config));
    let workers = context.workers.clone();
    let wall_clock = WallClock::new().map_err(failed("timer"))?;
    let dispatcher = Dispatcher::new(config, identity, executors, agents, context, internals, limits);
    let (closing, closing_seen) = watch::channel(false);
    let (made, listeners) = tokio::sync::mpsc::channel(1);
    let shared = Shared { calls, silent: Arc::default(), connections: Arc::default() };
    let server = tokio::spawn(server::run(listener, listeners, limits_seen, shared, closing_seen));
    address.tell(note.clone());
    let (leaving, leaves) = watch::channel(false);
    let keeping = tokio::spawn(address.keep(made, leaves));
    ready.say(&ready_words(&instance));
    notify_manager(sd_notify::NotifyState::Ready);

    let is_hurried = dispatcher.run(mailbox, wall_clock).await;

    notify_manager(sd_notify::NotifyState::Stopping);
    leaving.send_replace(true);
    let mut address = keeping.await.map_err(|error| Failure::new(70, error.to_string()))?;
    address.tell(Note { phase: Phase::Ending, ..note });
    address.leave();
    // Responses that are being read from output files are still sent.
    if tokio::time::timeout(LAST_READS, workers.drain()).await.is_err() {
        tracing::warn!("a disk does not answer: what was still to be read or removed is left");
    }
    end_all(&strays, is_hurried, &instance, &mut address);
    if let Some(cgroup) = cgroup {
        cgroup::remove(&cgroup);
    }
    // Whoever sees the last connection close may start the next daemon at once.
    drop(address);
    closing.send_replace(true);
    let _ = server.await;
    tracing::info!("ended");
    Ok(())
}

/// Creates the executors of tasks on other machines and on clusters.
fn elsewhere(config: &Config, context: &Context, state: &Path, instance: &Instance) -> (Machines, Clusters) {
    let remotes = Arc::new(config.remotes().unwrap_or_default());
    let (id, of_machines) = (&instance.id, Arc::clone(&remotes));
    let machines = Machines::new(context.clone(), state.to_path_buf(), id.clone(), of_machines);
    (machines, Clusters::new(context.clone(), state.to_path_buf(), id.clone(), remotes))
}

/// Kills what is left of the tasks. If that succeeds, removes the instance, so that the next daemon has
/// nothing to clean up.
fn end_all(strays: &Strays, is_hurried: bool, instance: &Instance, address: &mut Address) {
    if strays.end(is_hurried) {
        instance.end();
        address.tell(Note { phase: Phase::Ending, ..Note::default() });
    } else {
        tracing::warn!("some processes do not end; the next daemon will try again");
    }
}

/// How long reads in progress may take at shutdown.
const LAST_READS: Duration = Duration::from_secs(5);

/// Returns the ready message, with the number of tasks lost by killed daemons.
fn ready_words(instance: &Instance) -> String {
    match instance.lost {
        0 => "ready\n".to_owned(),
        lost => format!("ready\nlost {lost}\n"),
    }
}

/// Notes in the instance's directory which daemon it belongs to, so that the daemon can be found if its
/// socket is gone.
fn known(instance: Instance, socket: &SocketPath) -> (Arc<Instance>, Note) {
    let socket = socket.as_path().as_os_str().into();
    let note = Note { instance: instance.id.clone(), socket, ..Note::default() };
    instance.tell(note.clone());
    (Arc::new(instance), note)
}

/// Creates the parent cgroup of the tasks' cgroups, and notes it in the instance's directory for a later cleanup.
fn prepare_cgroup(
    place: &mut Place,
    instance: &Instance,
    note: &mut Note,
) -> Result<Option<PathBuf>, Failure> {
    let cgroup = place.prepare(&instance.id);
    if let Some(cgroup) = &cgroup {
        let note = instance.path.join("cgroup");
        fs::write(&note, cgroup.as_os_str().as_encoded_bytes())
            .map_err(failed(note.display().to_string()))?;
    }
    note.cgroup = cgroup.as_ref().map(|path| path.as_os_str().into());
    instance.tell(note.clone());
    Ok(cgroup)
}

fn start_executors(
    config: &Config,
    instance: &Arc<Instance>,
    cgroup: Option<PathBuf>,
    nofile: Option<libc::rlimit>,
    (facts, socket): (Facts, Arc<Path>),
) -> Result<(Local, Context), Failure> {
    let life = Arc::clone(instance);
    let restore = move || life.restore();
    let workers = Workers::start().map_err(failed("cannot start threads"))?;
    let folder = OutputFolder::kept(instance.output(), restore).map_err(failed("the output folder"))?;
    let folder = Arc::new(folder);
    awaited::sweep(&socket);
    let settings = SpawnSettings {
        instance: instance.id.clone(),
        folder: Arc::clone(&folder),
        cgroup,
        socket: Arc::clone(&socket),
        nofile,
    };
    let (reports, reported) = messages::reports();
    let orders = spawner::start(settings, &reports).map_err(failed("cannot start threads"))?;
    let adopted = Arc::new(Adopted::default());
    reaper::start(Arc::clone(&adopted)).map_err(failed("SIGCHLD"))?;
    let limit = config.limits.output_bytes.0;
    let outputs = OutputWatch::start(Arc::clone(&folder), limit, facts.clone(), workers.clone());
    let context = Context { folder, outputs, workers, facts, reports, adopted, socket };
    Ok((Local::new(orders, reported, context.clone()), context))
}

/// Takes the lock of a socket. `None` if another daemon has it.
fn take_lock(path: &Path) -> Result<Option<ProcessLock>, Failure> {
    ProcessLock::try_take(path)
        .map_err(|error| Failure::new(UNAVAILABLE, format!("{}: {error}", path.display())))
}

/// Returns the socket to serve: one passed by a service manager, or a new one.
fn open_socket(socket: &SocketPath, address: &mut Address) -> Result<AsyncListener, Failure> {
    let path = socket.as_path().display();
    let unusable = |error: io::Error| Failure::new(UNAVAILABLE, format!("{path}: {error}"));
    let mut passed = listenfd::ListenFd::from_env();
    if let Some(listener) = passed.take_unix_listener(0).map_err(unusable)? {
        listener.set_nonblocking(true).map_err(unusable)?;
        return AsyncListener::try_from(OwnedFd::from(listener)).map_err(unusable);
    }
    address.listen().map_err(unusable)?.map_err(|in_the_way| {
        let what = in_the_way.what();
        let message = format!("{path} {what}: remove it, or use another socket path");
        Failure::new(NO_PERMISSION, message)
    })
}

/// Prepares the process for starting others. Returns the original limit of descriptors.
fn prepare_process() -> Option<libc::rlimit> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Err(error) = mark::remove_own() {
        tracing::warn!(%error, "cannot take off the mark of another daemon's task");
    }
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "no subreaper: processes that leave their tree are not found");
    }
    if !Path::new("/proc/self/task").join(std::process::id().to_string()).join("children").exists() {
        tracing::warn!(
            "this kernel does not list children (CONFIG_PROC_CHILDREN): trees end without stragglers only in cgroups"
        );
    }
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "cannot raise the limit of descriptors");
    }
    Some(libc::rlimit { rlim_cur: soft, rlim_max: hard })
}

fn watch_signals(internals: Internals) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hup = signal(SignalKind::hangup())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let internal = tokio::select! {
                Some(()) = hup.recv() => Internal::Reload,
                Some(()) = term.recv() => Internal::Terminate { signal: "SIGTERM" },
                Some(()) = int.recv() => Internal::Terminate { signal: "SIGINT" },
                else => break,
            };
            internals.send(internal);
        }
    });
    Ok(())
}

fn notify_manager(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

/// Whoever waits for this daemon to be ready.
#[derive(Debug)]
struct Ready(Option<File>);

impl Ready {
    fn new(fd: Option<RawFd>) -> io::Result<Self> {
        Ok(Self(inherited::close_all_but(fd)?.map(File::from)))
    }

    /// Leaves the starter's session and directory. Without `--ready-fd` it does nothing, as the daemon then runs
    /// in the foreground.
    fn detach(&self) {
        if self.0.is_some() {
            // Fails only for a process group leader, such as one started by a service manager.
            let _ = nix::unistd::setsid();
            let _ = std::env::set_current_dir("/");
        }
    }

    /// Sends a message and closes. Ignores errors, as the reader may be gone.
    fn say(&mut self, word: &str) {
        if let Some(mut fd) = self.0.take() {
            let _ = fd.write_all(word.as_bytes());
        }
    }
}
