//! Takes over from the program that this process ran before (R122): rebuilds every part of the daemon from the state
//! that it left, and goes back to that program if this fails.
//!
//! Until everything is rebuilt, nothing that the state refers to is changed: no descriptor is read or written, no
//! process is started, no file is removed. So the previous program can still continue from the same state.

use std::fs::File;
use std::io::{self, Write as _};
use std::num::NonZeroI32;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bgd_shared::holder::Note;
use bgd_shared::request::UpgradeResult;
use bgd_shared::socket::SocketPath;
use bgd_shared::transport::AsyncListener;
use nix::sched::{CloneFlags, unshare};

use super::address::Address;
use super::args::Args;
use super::cgroups;
use super::durable;
use super::failure::{Failure, failed, print_error};
use super::instance::Instance;
use super::manager::{notify_manager, watch_signals};
use super::running::{self, Daemon, Resources};
use crate::carry::ReceivedFds;
use crate::carry::handover::go_back;
use crate::carry::image::{Head, Image};
use crate::carry::program::{Formats, Found};
use crate::client::answer::Answer;
use crate::config::{Config, Durable};
use crate::dispatcher::state::{ResourcesState, State};
use crate::exec::processes::mark::Marks;
use crate::exec::strays::Strays;
use crate::journal;
use crate::keeper::client::Keeper;
use crate::keeper::socket::Socket;
use crate::os::clock::Stamp;
use crate::os::lock::ProcessLock;
use crate::os::program::Program;
use crate::os::{inherited, log, memory, pidfd, signals};
use crate::wire::connection::Connection;
use crate::wire::connections::Connections;

/// How long rebuilding may take before the previous program continues.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints the state formats that this program reads.
pub fn say_formats() -> ExitCode {
    say(&Formats::own(journal::READS))
}

/// Reads a state from standard input and prints a summary.
pub fn try_state() -> ExitCode {
    // Taking over needs more memory than reading, and can't be refused any more if there is none.
    memory::leave_room();
    match try_read() {
        Ok(found) => say(&found),
        Err(why) => {
            print_error(&why);
            ExitCode::FAILURE
        }
    }
}

fn try_read() -> Result<Found, String> {
    let mut file = File::open("/dev/stdin").map_err(|error| format!("standard input: {error}"))?;
    let image = Image::read(&mut file).map_err(|error| error.to_string())?;
    let state: State = image.decode().map_err(|error| error.to_string())?;
    let (text, path) = &state.dispatcher.config;
    Config::parse(Path::new(path.as_os_str()), text).map_err(|error| error.to_string())?;
    Ok(Found { digest: image.digest(), ..state.count()? })
}

fn say(what: &impl serde::Serialize) -> ExitCode {
    let said =
        serde_json::to_vec(what).map_err(io::Error::from).and_then(|line| io::stdout().write_all(&line));
    if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes over with the state in this descriptor.
pub fn main(args: &Args, state: RawFd) -> ExitCode {
    // The program before may have left some pending; no thread may take them.
    signals::block_commands();
    // If the program was executed by its descriptor, older kernels name the process after the descriptor.
    let _ = nix::sys::prctl::set_name(c"bgd");
    if inherited::set_inheritable(&[state], false).is_err() {
        print_error("--carried: not an open descriptor; this option is not meant to be used by hand");
        return ExitCode::from(2);
    }
    let file = File::from(inherited::claim(state));
    match take_over(args, file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(message = %failure, "the daemon ends");
            print_error(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

fn take_over(args: &Args, mut file: File) -> Result<(), Failure> {
    let head = Head::read(&mut file).map_err(|error| internal(&error.to_string()))?;
    // A program that was gone back to is not guarded, as there is no other program to go to.
    let guard = if args.refused.is_none() { Some(Guard::start(&head, file.as_raw_fd())?) } else { None };
    let runtime = match running::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return Err(given_up(guard, internal(&error.to_string()))),
    };
    let outcome = runtime.block_on(async {
        let built = catch_unwind(AssertUnwindSafe(|| build(args, &head, &mut file)));
        let built = match built {
            Ok(Ok(built)) => built,
            Ok(Err(failure)) => return Err(given_up(guard, failure)),
            Err(_) => return Err(given_up(guard, internal("it panicked"))),
        };
        if let Some(guard) = guard {
            guard.dismiss();
        }
        // The state contains environments.
        let _ = file.set_len(0);
        drop(file);
        Box::pin(built.commit(args.refused.clone())).await
    });
    // Blocking work of channels may hang.
    runtime.shutdown_background();
    outcome
}

fn internal(what: &str) -> Failure {
    Failure::new(70, format!("cannot take over: {what}"))
}

/// Goes back to the previous program, unless this is that program. Returns the failure if that is not possible.
fn given_up(guard: Option<Guard>, failure: Failure) -> Failure {
    let Some(guard) = guard else { return failure };
    let why = failure.to_string();
    let error = guard.go_back(&why);
    stranded(&why, &error)
}

/// Returns the failure of a program that can neither take over nor go back.
fn stranded(why: &str, error: &io::Error) -> Failure {
    Failure::new(70, format!("{why}; and the previous program can't be executed: {error}"))
}

/// Goes back to the previous program if this one fails or hangs.
///
/// The guard is a thread with its own descriptor table, where the descriptors of the state stay open regardless of this
/// program: dropping a half-built daemon closes those that it has taken.
struct Guard {
    /// `None` if the daemon is rebuilt, else the reason of the failure.
    verdict: mpsc::Sender<Option<String>>,
    thread: thread::JoinHandle<Option<io::Error>>,
}

impl Guard {
    /// Starts the guard. Goes back at once if that fails.
    fn start(head: &Head, state: RawFd) -> Result<Self, Failure> {
        let (verdict, hears) = mpsc::channel::<Option<String>>();
        let (says, is_ready) = mpsc::channel::<io::Result<()>>();
        let its_head = head.clone();
        let back = move |why: &str| Some(go_back(&its_head, state, why));
        let thread = thread::Builder::new().name("guard".to_owned()).spawn(move || {
            let own_table = unshare(CloneFlags::CLONE_FILES).map_err(io::Error::from);
            let has_table = own_table.is_ok();
            if says.send(own_table).is_err() || !has_table {
                return None;
            }
            match hears.recv_timeout(PATIENCE) {
                Ok(None) => None,
                Ok(Some(why)) => back(&why),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    back(&format!("it did not take over within {} s", PATIENCE.as_secs()))
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => back("it panicked"),
            }
        });
        let started = thread.and_then(|thread| {
            is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("it has ended")))?;
            Ok(Self { verdict, thread })
        });
        started.map_err(|error| {
            let why = internal(&format!("no guard: {error}")).to_string();
            stranded(&why, &go_back(head, state, &why))
        })
    }

    /// Ends the guard and closes its descriptors. Never returns if the guard goes back at this moment.
    fn dismiss(self) {
        let _ = self.verdict.send(None);
        if let Ok(Some(error)) = self.thread.join() {
            tracing::error!(%error, "took longer than it should have, and could not go back to the previous program");
        }
    }

    /// Goes back. Returns only if that fails.
    fn go_back(self, why: &str) -> io::Error {
        let _ = self.verdict.send(Some(why.to_owned()));
        let outcome = self.thread.join();
        outcome.ok().flatten().unwrap_or_else(|| io::Error::other("the guard has ended"))
    }
}

/// The rebuilt daemon.
struct Built {
    daemon: Daemon,
    listener: AsyncListener,
    connections: Vec<Arc<Connection>>,
    note: Note,
    asked: Option<Answer>,
    from: String,
    since: Stamp,
    held: Duration,
    active: u64,
    /// The previous program, which is no longer needed.
    program: OwnedFd,
}

/// Rebuilds every part of the daemon from the state in this file. Must not change anything outside this process, except
/// that it recreates a folder that was removed.
fn build(args: &Args, head: &Head, file: &mut File) -> Result<Built, Failure> {
    let internal = |error: io::Error| internal(&error.to_string());
    let state: State = Image::read(file)
        .and_then(|image| image.decode())
        .map_err(|error| internal(io::Error::other(error)))?;
    let State { since, held, peak_kib, from, asked, next, mut resources, connections, dispatcher } = state;
    pidfd::set_earlier_peak_kib(peak_kib);
    // Otherwise this is the previous program again, whose path is unchanged.
    if args.refused.is_none() {
        resources.program = next;
    }
    let mut received = ReceivedFds::new(&head.descriptors).map_err(internal)?;
    let program = received.take_number(head.program).map_err(internal)?;
    // The daemon also works without a log.
    let state_dir = PathBuf::from(resources.state_dir.as_os_str());
    let _ = log::start(args.log_target(), &state_dir);
    let (text, path) = &dispatcher.config;
    let path = PathBuf::from(path.as_os_str());
    let mut config = Config::parse(&path, text).map_err(|error| internal(io::Error::other(error)))?;
    // A reload may have set other values, which need a restart.
    config.durable = resources.durable.unwrap_or_default();
    config.tree = resources.tree_mode.unwrap_or(config.tree);
    let (durable, epoch) = (config.durable, dispatcher.epoch);
    let (taken, address, tree, started) = take(resources, config, path, &mut received)?;
    let (note, marks) = (address.note(), Arc::clone(&taken.marks));
    let all = Arc::new(Connections::restore(connections.latest));
    let mut daemon = Daemon::new(taken, address, tree, all, started.instant())?;
    durable::reopen(&mut daemon, durable, &state_dir, &note, &marks, epoch)?;
    let listener = received.take(connections.listener).and_then(AsyncListener::try_from).map_err(internal)?;
    let limits = daemon.limits();
    let connections = connections.all.into_iter().map(|connection| {
        Connection::restore(connection, (limits.frame_bytes, limits.client), &daemon.shared, &mut received)
    });
    let connections = connections.collect::<io::Result<Vec<_>>>().map_err(internal)?;
    let clients = connections.iter().map(|connection| (connection.client.id, Arc::clone(&connection.client)));
    let clients = clients.collect();
    let asked = asked.resume(&clients);
    daemon.dispatcher.resume(dispatcher, clients, &mut received).map_err(internal)?;
    received.finish().map_err(internal)?;
    let active = daemon.dispatcher.active();
    Ok(Built { daemon, listener, connections, note, asked, from, since, held, active, program })
}

/// The acquired resources, the address, how process trees are tracked and why, and when the daemon started.
type Taken = (Resources, Address, (&'static str, String), Stamp);

/// Takes over the resources acquired by the previous program.
fn take(
    resources: ResourcesState,
    config: Config,
    config_path: PathBuf,
    received: &mut ReceivedFds,
) -> Result<Taken, Failure> {
    let internal = |error: io::Error| internal(&error.to_string());
    let ResourcesState {
        instance,
        lost,
        life,
        is_kept,
        durable,
        // Set in the configuration.
        tree_mode: _,
        instance_lock,
        note,
        socket_lock,
        socket,
        is_given,
        tree: (tree, reason),
        cgroup,
        nofile,
        next_mark,
        spared,
        started,
        state_dir,
        socket_path,
        program,
        keeper,
    } = resources;
    // The note of an earlier version may lack both.
    let pid = NonZeroI32::new(std::process::id().cast_signed());
    let note = Note { pid, durable: durable.is_some_and(|durable| durable != Durable::No), ..note };
    let marks = Arc::new(Marks::new(&instance, next_mark));
    let life = life.unwrap_or_else(|| instance.clone());
    let lock = ProcessLock::taken(received.take(instance_lock).map_err(internal)?);
    let state_dir = PathBuf::from(state_dir.as_os_str());
    let instance = Instance::take_over(&state_dir, instance, (lost, is_kept), (lock, note.clone()));
    let instance = Arc::new(instance.map_err(failed("the folder of this daemon"))?);
    let path = SocketPath::new(socket_path.as_os_str())?;
    let lock = ProcessLock::taken(received.take(socket_lock).map_err(internal)?);
    let address = Address::take_over(path.clone(), lock, note, (socket, is_given));
    let nofile = nofile.map(|(rlim_cur, rlim_max)| libc::rlimit { rlim_cur, rlim_max });
    let strays = Strays::sparing(spared);
    // The state of an earlier version may lack the path.
    let program = program.map(|path| Program::at(path.as_os_str().into())).or_else(Program::own);
    let keeper = keeper.map(|(fd, pid)| {
        received.take(fd).and_then(|socket| Keeper::restore(&instance.path, Socket::restore(socket, pid)))
    });
    let keeper = keeper.transpose().map_err(internal)?.map(Arc::new);
    let taken = Resources {
        config,
        config_path,
        state: state_dir,
        socket: path,
        instance,
        life,
        cgroup,
        nofile,
        marks,
        strays,
        keeper,
        program,
        subreapers: Vec::new(),
    };
    Ok((taken, address, (cgroups::tree_name(&tree), reason), started))
}

impl Built {
    /// Continues as the daemon. From here on there is no way back.
    async fn commit(self, refused: Option<String>) -> Result<(), Failure> {
        let Self { mut daemon, listener, connections, note, asked, from, since, held, active, program } =
            self;
        drop(program);
        watch_signals(daemon.internals.clone()).map_err(failed("signals"))?;
        signals::unblock();
        let pause_ms = u64::try_from((held + since.elapsed()).as_millis()).unwrap_or(u64::MAX);
        let done = if let Some(why) = refused {
            tracing::warn!(%why, "the next program could not take over: this one continues");
            Err(why)
        } else {
            let (to, connections) = (env!("CARGO_PKG_VERSION").to_owned(), connections.len() as u64);
            tracing::info!(from, pause_ms, active, connections, "took over from the previous program");
            Ok(UpgradeResult { from, to, pause_ms, active, connections })
        };
        daemon.dispatcher.resume_work(asked, done);
        daemon.serve(listener, note, connections, |_| notify_manager(&[sd_notify::NotifyState::Ready])).await
    }
}
