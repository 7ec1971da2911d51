//! The running daemon: its parts put together, either at startup or after taking over from another program.

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::holder::Note;
use bgd_shared::socket::SocketPath;
use bgd_shared::time::Timestamp;
use bgd_shared::transport::AsyncListener;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;

use super::address::{self, Address};
use super::cgroups::apart;
use super::failure::{Failure, failed};
use super::instance::Instance;
use super::last::Last;
use super::manager::notify_stopping;
use crate::carry::{CarriedFds, Obstacle};
use crate::config::{Config, Durable, TreeMode};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::state::ResourcesState;
use crate::dispatcher::upgrading::UpgradeContext;
use crate::exec;
use crate::exec::agent::AgentThread;
use crate::exec::context::Context;
use crate::exec::elsewhere::places::Elsewhere;
use crate::exec::local::Local;
use crate::exec::messages::{self, Facts, Report};
use crate::exec::output::OutputFolder;
use crate::exec::processes::mark::Marks;
use crate::exec::processes::reaper;
use crate::exec::spawner::{self, SpawnSettings};
use crate::exec::strays::Strays;
use crate::exec::threads::workers::Workers;
use crate::journal::{self, Journal, JournalFile};
use crate::keeper::client::Keeper;
use crate::os::clock::Stamp;
use crate::os::log;
use crate::os::program::Program;
use crate::os::wall_clock::WallClock;
use crate::wire::connection::{Connection, Shared};
use crate::wire::connections::Connections;
use crate::wire::mailbox::{self, Internals, Mailbox};
use crate::wire::server::{self, ServerLimits};
use crate::wire::status::Identity;

/// Creates the runtime of the daemon's first thread. Fails if there are no free file descriptors.
pub(super) fn runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// The resources acquired by the daemon.
pub(super) struct Resources {
    pub(super) config: Config,
    pub(super) config_path: PathBuf,
    pub(super) state: PathBuf,
    pub(super) socket: SocketPath,
    pub(super) instance: Arc<Instance>,
    /// The ID of this run of the daemon; a durable daemon keeps its instance across runs.
    pub(super) life: String,
    /// The parent of the tasks' cgroups.
    pub(super) cgroup: Option<PathBuf>,
    /// The limit of file descriptors for tasks.
    pub(super) nofile: Option<libc::rlimit>,
    pub(super) marks: Arc<Marks>,
    pub(super) strays: Strays,
    /// Holds the descriptors that must survive the daemon, if it is durable.
    pub(super) keeper: Option<Arc<Keeper>>,
    /// The path of the daemon's program.
    pub(super) program: Option<Program>,
    /// Processes that have inherited the orphans of a killed daemon.
    pub(super) subreapers: Vec<i32>,
}

pub(super) struct Daemon {
    pub(super) dispatcher: Dispatcher,
    pub(super) internals: Internals,
    pub(super) shared: Shared,
    mailbox: Mailbox,
    wall_clock: WallClock,
    limits: watch::Receiver<ServerLimits>,
    address: Address,
    instance: Arc<Instance>,
    cgroup: Option<PathBuf>,
    strays: Arc<Strays>,
    keeper: Option<Arc<Keeper>>,
    /// The file of a durable daemon's journal.
    journal: Option<JournalFile>,
    workers: Workers,
}

impl Daemon {
    /// Puts the parts together. `tree` describes how process trees are tracked, and why. Must run on the process's
    /// first thread.
    pub(super) fn new(
        resources: Resources,
        address: Address,
        tree: (&'static str, String),
        connections: Arc<Connections<Connection>>,
        started: Instant,
    ) -> Result<Self, Failure> {
        let (calls, facts, internals, mailbox) = mailbox::new();
        let (local, context) = start_executors(&resources, facts)?;
        let Resources { config, config_path, state, socket, instance, life, cgroup, program, .. } = resources;
        let (nofile, marks, strays, keeper) =
            (resources.nofile, resources.marks, Arc::new(resources.strays), resources.keeper);
        let agents = AgentThread::new(Arc::new(config.agents().unwrap_or_default()), context.clone());
        // A durable daemon keeps its name across restarts.
        let name = if config.durable == Durable::No { &life } else { &instance.id };
        let elsewhere = elsewhere(&config, &context, &state, name);
        let executors = exec::table(local, agents, &elsewhere);
        let config_modified = Timestamp::of_file(&config_path);
        let identity = Identity {
            instance: instance.id.clone(),
            pid: std::process::id().cast_signed(),
            socket: socket.as_path().to_path_buf(),
            config_loaded: config_modified.is_some(),
            config_modified,
            config_path,
            config_error: None,
            tree: tree.0,
            tree_reason: tree.1,
            lost_tasks: instance.lost,
            unused_tasks: unused_tasks(&config, &state),
            state_dir: state,
            program,
            started,
        };
        tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %identity.socket.display(), tree = identity.tree, why = identity.tree_reason, "ready");
        let taken = Taken {
            address: address.shown(),
            instance: Arc::clone(&instance),
            life,
            cgroup: cgroup.clone(),
            nofile,
            marks,
            strays: Arc::clone(&strays),
            identity: identity.clone(),
            fixed: (config.durable, config.tree),
            keeper: keeper.clone(),
        };
        let (sender, limits) = watch::channel(ServerLimits::from(&config));
        let workers = context.workers.clone();
        let shared = Shared { calls, silent: Arc::default(), connections: Arc::clone(&connections) };
        let dispatcher = Dispatcher::new(config, identity, executors, context, internals.clone(), sender);
        let (says, served) = (address.shown().phase_writer(), Arc::clone(&connections));
        let state = Box::new(move |named: &mut CarriedFds| taken.state(served.state().1, named));
        let context = UpgradeContext { connections, state, says, stopping: notify_stopping };
        Ok(Self {
            dispatcher: dispatcher.upgradable(context),
            internals,
            shared,
            mailbox,
            wall_clock: WallClock::new().map_err(failed("timer"))?,
            limits,
            address,
            instance,
            cgroup,
            strays,
            keeper,
            journal: None,
            workers,
        })
    }

    /// Returns the folder of the tasks' outputs.
    pub(super) fn outputs(&self) -> PathBuf {
        self.instance.output()
    }

    pub(super) fn make_durable(&mut self, journal: Journal, warning: Option<String>) {
        self.journal = journal.file().cloned();
        let warnings: Vec<String> = warning.into_iter().chain(self.instance.unknown.clone()).collect();
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        self.dispatcher.make_durable(journal, warning, apart::can_leave(self.cgroup.as_deref()));
    }

    /// Returns the current limits of clients.
    pub(super) fn limits(&self) -> ServerLimits {
        *self.limits.borrow()
    }

    /// Serves until the daemon has ended. `ready` is called once clients are served; `before` are the connections of
    /// the program before an upgrade.
    pub(super) async fn serve(
        self,
        listener: AsyncListener,
        note: Note,
        before: Vec<Arc<Connection>>,
        ready: impl FnOnce(&Instance),
    ) -> Result<(), Failure> {
        let Self { dispatcher, shared, mailbox, wall_clock, limits, mut address, instance, .. } = self;
        let (closing, closing_seen) = watch::channel(false);
        let (made, listeners) = tokio::sync::mpsc::channel(1);
        let server = tokio::spawn(server::run(listener, listeners, limits, (shared, before), closing_seen));
        address.write_note(note.clone());
        let (leaving, leaves) = watch::channel(false);
        let keeping = tokio::spawn(address.keep(made, leaves));
        ready(&instance);

        // A separate task: whenever a call or a fact wakes the future that the runtime blocks on, the runtime polls for
        // events once more before running it.
        let dispatching = tokio::task::spawn_local(dispatcher.run(mailbox, wall_clock));
        let ending = match dispatching.await {
            Ok(ending) => ending,
            // The task is never cancelled.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };

        leaving.send_replace(true);
        let address = keeping.await.map_err(|error| Failure::new(70, error.to_string()))?;
        let last = Last { address, instance, cgroup: self.cgroup, strays: self.strays, keeper: self.keeper };
        last.take(ending, note, self.journal, &self.workers).await;
        closing.send_replace(true);
        let _ = server.await;
        tracing::info!("ended");
        Ok(())
    }
}

/// The acquired resources, for an upgrade in place.
struct Taken {
    address: address::Shown,
    instance: Arc<Instance>,
    life: String,
    cgroup: Option<PathBuf>,
    nofile: Option<libc::rlimit>,
    marks: Arc<Marks>,
    strays: Arc<Strays>,
    identity: Identity,
    /// The values that only a restart changes: `durable` and `tree`.
    fixed: (Durable, TreeMode),
    keeper: Option<Arc<Keeper>>,
}

impl Taken {
    fn state(&self, listener: RawFd, named: &mut CarriedFds) -> Result<ResourcesState, Obstacle> {
        let Self { address, instance, life, cgroup, nofile, marks, strays, identity, fixed, keeper } = self;
        let (durable, tree_mode) = *fixed;
        let (socket_lock, note, socket, is_given) = address.state(listener, named)?;
        Ok(ResourcesState {
            instance: instance.id.clone(),
            lost: instance.lost,
            life: Some(life.clone()),
            is_kept: instance.is_kept,
            durable: Some(durable),
            tree_mode: Some(tree_mode),
            instance_lock: instance.name_lock(named),
            note,
            socket_lock,
            socket,
            is_given,
            tree: (identity.tree.to_owned(), identity.tree_reason.clone()),
            cgroup: cgroup.clone(),
            nofile: nofile.map(|limit| (limit.rlim_cur, limit.rlim_max)),
            next_mark: marks.number(),
            spared: strays.spared(),
            started: Stamp::of(identity.started),
            state_dir: identity.state_dir.as_os_str().into(),
            socket_path: identity.socket.as_os_str().into(),
            program: identity.program.as_ref().map(|program| program.path().as_os_str().into()),
            keeper: keeper.as_ref().map(|keeper| {
                let socket = keeper.socket();
                (named.add(&*socket), socket.pid)
            }),
        })
    }
}

/// Returns the number of tasks that only a durable daemon would show, and puts it into the log.
fn unused_tasks(config: &Config, state: &Path) -> u32 {
    let tasks = if config.durable == Durable::No { journal::unused_tasks(state) } else { 0 };
    if tasks > 0 {
        tracing::warn!(tasks, "the journal has tasks from when the daemon was durable, which are not shown");
    }
    tasks
}

/// Returns the parameters of the executors for other machines and clusters.
fn elsewhere(config: &Config, context: &Context, state: &Path, name: &str) -> Elsewhere {
    Elsewhere {
        context: context.clone(),
        state: state.to_path_buf(),
        instance: name.to_owned(),
        remotes: Arc::new(config.remotes().unwrap_or_default()),
        is_durable: config.durable != Durable::No,
    }
}

fn start_executors(resources: &Resources, facts: Facts) -> Result<(Local, Context), Failure> {
    let Resources { config, instance, socket, cgroup, nofile, marks, keeper, subreapers, .. } = resources;
    if let Some(keeper) = keeper {
        apart::keep(keeper, cgroup.as_deref());
    }
    let socket: Arc<Path> = socket.as_path().into();
    let (reports, reported) = messages::reports();
    let renew = {
        let (life, keeper, reports) = (Arc::clone(instance), keeper.clone(), reports.clone());
        move || match &keeper {
            Some(keeper) if !life.has_keeper_socket() => {
                reports.send(Report::KeeperGone { pid: keeper.socket().pid });
            }
            Some(_) | None => {}
        }
    };
    // The folder of an instance that was carried over may have been recreated.
    renew();
    let life = Arc::clone(instance);
    let restore = move || life.restore().inspect(|()| renew());
    let workers = log::write_on_thread().and_then(|()| Workers::start());
    let workers = workers.map_err(failed("cannot start threads"))?;
    let folder = OutputFolder::kept(instance.output(), restore).map_err(failed("the output folder"))?;
    let folder = Arc::new(folder);
    let settings = SpawnSettings {
        instance: instance.id.clone(),
        marks: Arc::clone(marks),
        folder: Arc::clone(&folder),
        cgroup: cgroup.clone(),
        socket: Arc::clone(&socket),
        nofile: *nofile,
        keeper: keeper.clone(),
    };
    let orders = spawner::start(settings, &reports).map_err(failed("cannot start threads"))?;
    let limit = config.limits.output_bytes.0;
    let context = Context::new(folder, limit, workers, facts, reports, socket);
    context.adopted.search_children_of(subreapers.iter().copied());
    reaper::start(Arc::clone(&context.adopted)).map_err(failed("SIGCHLD"))?;
    let local = Local::new(orders, reported, context.clone()).kept_by(keeper.clone());
    Ok((local, context))
}
