//! Startup and shutdown of the daemon.
//!
//! The order matters: the lock is taken before a stale socket is removed; the socket listens before the cleanup
//! of dead instances, so that clients wait in its queue; and no request is answered before the cleanup is done.

pub mod address;
pub mod args;
pub mod cgroups;
mod durable;
mod failure;
pub mod instance;
mod last;
mod left_behind;
mod manager;
mod probe;
mod running;
#[cfg_attr(not(feature = "systemd"), path = "scope/absent.rs")]
pub mod scope;
mod takeover;

use std::fs::File;
use std::io::{self, Write as _};
use std::num::NonZeroI32;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::dirs;
use bgd_shared::holder::Note;
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::AsyncListener;
use clap::Parser;
use nix::sys::stat::{Mode, umask};

use self::address::Address;
use self::args::Args;
use self::cgroups::Delegation;
use self::failure::{CONFIG, Failure, NO_PERMISSION, UNAVAILABLE, failed, print_error, state_unusable};
use self::instance::Instance;
use self::manager::{notify_manager, watch_signals};
use self::running::{Daemon, Resources};
use crate::carry::program::TRY;
use crate::config::Config;
use crate::exec::awaited;
use crate::exec::processes::mark::{self, Marks};
use crate::exec::strays::Strays;
use crate::exec::terminal::leader;
use crate::keeper;
use crate::keeper::client::Keeper;
use crate::os::files::private_folder;
use crate::os::lock::ProcessLock;
use crate::os::program::Program;
use crate::os::{descriptors, inherited, log, memory, scheduling, signals};

/// Runs the daemon, or another mode of this program: the leader of a terminal, or the keeper.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == TRY) {
        // If memory is short, this process is killed first, as it only reads. It has not read anything yet.
        memory::prefer_oom_kill();
    }
    memory::use_one_arena();
    keep_memory_to_itself();
    keep_files_to_itself();
    if std::env::args_os().nth(1).is_some_and(|first| first == leader::ARGUMENT) {
        return leader::main();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == keeper::ARGUMENT) {
        return keeper::process::main();
    }
    signals::block_child();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return printed(&error),
    };
    if args.probe_kernel {
        return probe::main();
    }
    if args.carried_formats {
        return takeover::say_formats();
    }
    if args.try_carried {
        return takeover::try_state();
    }
    if args.check {
        return check(&args);
    }
    // Before anything is written, and before the ignored signals that tasks must not inherit are recorded. An earlier
    // version that ran in this process may have ignored fewer.
    if let Err(error) = signals::ignore_needless() {
        print_error(&format!("cannot ignore signals, some may end the daemon: {error}"));
    }
    if let Some(state) = args.carried {
        return takeover::main(&args, state);
    }
    let mut ready = match Ready::new(args.ready_fd) {
        Ok(ready) => ready,
        Err(error) => {
            print_error(&format!("--ready-fd: {error}"));
            return ExitCode::from(2);
        }
    };
    match start(&args, &mut ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            ready.say(&failure.report());
            print_error(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

/// Prints the help, the version, or what is wrong with the arguments.
fn printed(text: &clap::Error) -> ExitCode {
    let written = text.print().and_then(|()| io::stdout().flush());
    match written {
        // A pager that closed early is not an error.
        Err(error) if text.exit_code() == 0 && error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("can't write to standard output: {error}"));
            ExitCode::from(70)
        }
        Ok(()) | Err(_) => ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(2)),
    }
}

/// Environments, prompts and tokens pass through this memory: no other program of the user may read it, and none
/// of it may end up in a core dump. Child processes are not affected.
fn keep_memory_to_itself() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        print_error(&format!("cannot protect its memory from other programs of this user: {error}"));
    }
}

/// Whatever the starter's umask, no file or socket that this program creates is for others: some are created by calls
/// that take no mode. Each task is started with its own umask.
fn keep_files_to_itself() {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}

/// Checks the configuration and reports its errors.
fn check(args: &Args) -> ExitCode {
    match configuration(args) {
        Ok(_) => {
            warn_of_log_level();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print_error(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

/// Reports an invalid log level on standard error. The log says it as well.
fn warn_of_log_level() {
    if let Some(warning) = log::level_warning() {
        print_error(&warning);
    }
}

/// Loads the configuration. Returns it with the path of its file.
fn configuration(args: &Args) -> Result<(Config, PathBuf), Failure> {
    let path = args.config.clone().unwrap_or_else(Config::default_path);
    let config = Config::load(&path).map_err(|error| Failure::new(CONFIG, error.to_string()))?;
    Ok((config, path))
}

/// Returns the path of the socket: as chosen by the user, else that of a socket passed by a service manager, which clients
/// connect to, else the usual one.
fn socket_of(args: &Args) -> Result<SocketPath, Failure> {
    let chosen = args.socket.clone().or_else(|| dirs::variable("BGD_SOCKET"));
    let path = chosen.or_else(inherited::activated_socket);
    Ok(path.map_or_else(SocketPath::usual, SocketPath::new)?)
}

fn start(args: &Args, ready: &mut Ready) -> Result<(), Failure> {
    let socket = socket_of(args)?;
    let (config, config_path) = configuration(args)?;
    if args.log_target() == log::Target::File {
        warn_of_log_level();
    }
    descriptors::check_limit().map_err(|why| {
        Failure::new(UNAVAILABLE, why).hint("raise it; in a systemd unit, LimitNOFILE= sets it")
    })?;
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
    private_folder(&state).map_err(state_unusable(&state))?;
    if let Some(pid) = instance::serving(&state, socket.as_path()) {
        ready.say("taken\n");
        let path = socket.as_path().display();
        let message =
            format!("another bgd (pid {pid}) is running on {path}, and is recreating the removed socket");
        return Err(Failure::new(UNAVAILABLE, message));
    }
    log::start(args.log_target(), &state).map_err(state_unusable(&state))?;
    ready.detach();
    let internal = |error: io::Error| Failure::new(70, error.to_string());
    let runtime = running::runtime().map_err(internal)?;
    let outcome = runtime.block_on(live(Life { socket, config, config_path, state, address }, ready));
    // Blocking work of channels may hang.
    runtime.shutdown_background();
    outcome
}

/// The input for starting an instance.
struct Life {
    socket: SocketPath,
    config: Config,
    config_path: PathBuf,
    state: PathBuf,
    address: Address,
}

async fn live(life: Life, ready: &mut Ready) -> Result<(), Failure> {
    let Life { socket, config, config_path, state, mut address } = life;
    // As late as possible, because no signal ends the start from here on; but before there are other threads.
    signals::block_commands();
    let nofile = prepare_process();
    let strays = Strays::before_anything();
    let (new, started) = (uuid::Uuid::new_v4().to_string(), Instant::now());
    let before = durable::open(&state, config.durable)?;
    let first_mark = before.as_ref().map_or(1, |before| before.first_mark);
    // Before listening, as it may take a moment, and before the cleanup, which may kill the starter of this process.
    let mut place = Delegation::find(config.tree, &new).await;
    let listener = open_socket(&socket, &mut address)?;
    let spared = before.as_ref().map(durable::Before::spared).unwrap_or_default();
    let subreapers = before.as_ref().map_or(Vec::new(), |_| spared.subreapers().into_iter().collect());
    let id = before.as_ref().and_then(|before| before.instance.clone()).unwrap_or_else(|| new.clone());
    let keeps_days = before.as_ref().map(|_| config.history.days);
    let instance = Instance::begin(&state, id, keeps_days, &spared).map_err(state_unusable(&state))?;
    let (instance, mut note) = record_daemon(instance, &socket, before.is_some());
    instance::sweep_noted(&state, &address.note());
    let keeper = keeper(before.as_ref(), &instance)?;
    if let Some(keeper) = &keeper {
        place.move_apart(config.tree, keeper, &new).await;
    }
    let cgroup = prepare_cgroup(&mut place, &instance, keeper.as_deref(), &mut note)?;
    awaited::sweep(
        socket.as_path(),
        &before.as_ref().map(durable::Before::notify_sockets).unwrap_or_default(),
    );
    let marks = Arc::new(Marks::new(&instance.id, first_mark));
    let tree = (place.tree(), place.reason);
    let of_journal = Arc::clone(&marks);
    let resources = Resources {
        config,
        config_path,
        state,
        socket,
        instance,
        life: new,
        cgroup,
        nofile,
        marks,
        strays,
        keeper,
        program: Program::own(),
        subreapers,
    };
    let mut daemon = Daemon::new(resources, address, tree, Arc::default(), started)?;
    if let Some(before) = before {
        durable::begin(&mut daemon, before, &note, &of_journal)?;
    }
    watch_signals(daemon.internals.clone()).map_err(failed("signals"))?;
    daemon
        .serve(listener, note, Vec::new(), |instance| {
            ready.say(&ready_words(instance));
            notify_manager(&[sd_notify::NotifyState::Ready]);
        })
        .await
}

/// Returns the keeper of the previous daemon, or a new one for a durable daemon.
fn keeper(before: Option<&durable::Before>, instance: &Instance) -> Result<Option<Arc<Keeper>>, Failure> {
    let Some(before) = before else { return Ok(None) };
    let keeper = match &before.keeper {
        Some(keeper) => Arc::clone(keeper),
        None => Arc::new(
            Keeper::start(&instance.path, !before.left.is_complete)
                .map_err(failed("cannot start the keeper of tasks"))?,
        ),
    };
    Ok(Some(keeper))
}

/// Returns the ready message, with the number of tasks lost by killed daemons.
fn ready_words(instance: &Instance) -> String {
    match instance.lost {
        0 => "ready\n".to_owned(),
        lost => format!("ready\nlost {lost}\n"),
    }
}

/// Records in the instance's directory which daemon it belongs to, so that clients find the daemon if its socket is
/// gone.
fn record_daemon(instance: Instance, socket: &SocketPath, durable: bool) -> (Arc<Instance>, Note) {
    let socket = socket.as_path().as_os_str().into();
    let pid = NonZeroI32::new(std::process::id().cast_signed());
    let note = Note { instance: instance.id.clone(), socket, pid, durable, ..Note::default() };
    instance.write_note(note.clone());
    (Arc::new(instance), note)
}

/// Creates the parent of the tasks' cgroups, and records it in the instance's directory for a later cleanup.
fn prepare_cgroup(
    place: &mut Delegation,
    instance: &Instance,
    keeper: Option<&Keeper>,
    note: &mut Note,
) -> Result<Option<PathBuf>, Failure> {
    let cgroup = place.prepare(&instance.id, keeper.map(|keeper| keeper.socket().pid));
    if let Some(cgroup) = &cgroup {
        instance.note_cgroup(cgroup).map_err(failed(instance.path.display().to_string()))?;
    }
    note.cgroup = cgroup.as_ref().map(|path| path.as_os_str().into());
    instance.write_note(note.clone());
    Ok(cgroup)
}

/// Takes the lock of a socket; `None` if another daemon has it.
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
    address.wait_until_let_go();
    address.listen().map_err(unusable)?.map_err(|in_the_way| {
        let what = in_the_way.what();
        Failure::new(NO_PERMISSION, format!("{path} {what}")).hint("remove it, or use another socket path")
    })
}

/// Prepares this process for starting others. Returns the original limit of file descriptors.
fn prepare_process() -> Option<libc::rlimit> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Err(error) = mark::remove_own() {
        tracing::warn!(%error, "cannot remove the mark of another daemon's task");
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

/// The connection to the process that waits for this daemon to be ready, if any.
#[derive(Debug)]
struct Ready(Option<File>);

impl Ready {
    fn new(fd: Option<RawFd>) -> io::Result<Self> {
        Ok(Self(inherited::close_all_but(fd)?.map(File::from)))
    }

    /// Leaves the starter's session, directory and priority. Does nothing without `--ready-fd`, as the daemon then runs
    /// in the foreground.
    fn detach(&self) {
        if self.0.is_some() {
            // Fails only for a process group leader, such as one started by a service manager.
            let _ = nix::unistd::setsid();
            let _ = std::env::set_current_dir("/");
            scheduling::reset();
        }
    }

    /// Sends a message and closes the connection. Ignores errors, as the reader may be gone.
    fn say(&mut self, word: &str) {
        if let Some(mut fd) = self.0.take() {
            let _ = fd.write_all(word.as_bytes());
        }
    }
}
