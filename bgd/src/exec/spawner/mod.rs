//! Threads that start processes. Starting one takes up to a millisecond, so the dispatcher delegates it.
//!
//! The threads live as long as the daemon and have all signals blocked. The reaper relies on none of them being the
//! first thread. If a start hangs, because its folder or program is on a disk that hangs, other threads take over.
//! Nothing here supervises a process once it has started.

mod in_terminal;

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::proc;
use bgd_shared::ready::Ready;
use bgd_shared::request::{Stdin, Stream, TerminalSize};
use bgd_shared::rlimit::{RESOURCES, Rlimits};
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::stat::fstat;

use super::awaited::{Awaited, NotifySocket};
use super::left::Starting;
use super::messages::{Inherited, Report, Reports, StartOrder, StartedProcess, Streams};
use super::output::OutputFolder;
use super::processes::cgroup;
use super::processes::mark::{Mark, Marks, RESOURCE};
use super::processes::members::{INSTANCE_MARK, TASK_MARK};
use super::task_variables;
use super::threads::thread_pool::{Size, ThreadPool};
use crate::core::{SpawnFailure, Spec};
use crate::keeper::PID_AT;
use crate::keeper::client::Keeper;
use crate::keeper::socket::Socket;
use crate::os::descriptors;
use crate::os::search_path;
use crate::os::spawn::{Announce, ChildStack, JobControl, Plan, SpawnError, Spawned, Stage, spawn};

/// The settings that all starts share.
#[derive(Debug)]
pub struct SpawnSettings {
    /// The id of this daemon instance, which its processes are marked with.
    pub instance: String,
    /// The folder of the output files.
    pub folder: Arc<OutputFolder>,
    /// Generates the mark of each process tree.
    pub marks: Arc<Marks>,
    /// The cgroup under which each task gets its own, if there is one.
    pub cgroup: Option<PathBuf>,
    pub socket: Arc<Path>,
    /// The descriptor limit for tasks whose submitter sets none, as the daemon has raised its own.
    pub nofile: Option<libc::rlimit>,
    /// Holds everything that must survive the daemon, if the daemon is durable.
    pub keeper: Option<Arc<Keeper>>,
}

/// Two threads keep both cores busy, as a thread waits while its child executes the program.
const THREADS: usize = 2;

/// Starts the threads; they end when the pool is dropped.
///
/// # Errors
/// The system allows no more threads, or `/dev/null` can't be opened.
pub fn start(settings: SpawnSettings, reports: &Reports) -> io::Result<ThreadPool<StartOrder>> {
    let common = Arc::new(Common {
        null: Null::open()?,
        reset_signals: ignored_signals(settings.keeper.is_some()),
        settings,
        own_limits: own_limits(),
    });
    let reports = reports.clone();
    ThreadPool::start(Size::new("spawner", THREADS), move || {
        if let Err(error) = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None) {
            tracing::error!(%error, "cannot block signals in a spawner");
            return None;
        }
        let (common, reports) = (Arc::clone(&common), reports.clone());
        let mut stack = ChildStack::default();
        Some(Box::new(move |order: StartOrder| {
            let (task, run) = (order.task, order.run);
            let begun = catch_unwind(AssertUnwindSafe(|| common.begin(order, &mut stack)));
            // Its task would stay in its start.
            let result = begun.unwrap_or_else(|_| Err("the daemon panicked while starting it".into()));
            reports.send(Report::Begun { task, run, result: result.map(Box::new) });
        }))
    })
}

/// `/dev/null`, for reading.
struct Null {
    /// The daemon's standard input, which usually is `/dev/null`: descriptors are scarce.
    stdin: io::Stdin,
    /// A separate descriptor, if the standard input is something else.
    own: Option<OwnedFd>,
}

impl Null {
    fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let null = fs::metadata("/dev/null")?.rdev();
        let is_null = fstat(&stdin).is_ok_and(|stat| stat.st_rdev == null);
        let is_readable = fcntl(&stdin, FcntlArg::F_GETFL)
            .is_ok_and(|flags| OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE != OFlag::O_WRONLY);
        let own = if is_null && is_readable { None } else { Some(File::open("/dev/null")?.into()) };
        Ok(Self { stdin, own })
    }
}

impl AsFd for Null {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_ref().map_or_else(|| self.stdin.as_fd(), OwnedFd::as_fd)
    }
}

/// Returns the signals that a child may inherit as ignored; it starts with the default for all of them. Executing a
/// program resets those that the daemon handles.
fn ignored_signals(has_keeper: bool) -> Vec<i32> {
    // The daemon's parent may have ignored any of them.
    let mask = proc::ignored_signals("self");
    // Every Rust program ignores the first; children that the keeper holds, the second until they are announced.
    let known = [Some(Signal::SIGPIPE), has_keeper.then_some(Signal::SIGTERM)]
        .map(|signal| signal.map(|signal| signal as i32));
    (1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0 || known.contains(&Some(*signal))).collect()
}

/// Opened standard streams.
struct Open {
    /// `None` stands for `/dev/null`, or for the terminal.
    stdin: Option<OwnedFd>,
    /// The descriptors that the submitter sent for standard output and error.
    given: [Option<OwnedFd>; 2],
    out: OwnedFd,
    err: Option<OwnedFd>,
    /// The daemon's end of standard input, if it is a pipe.
    input: Option<OwnedFd>,
    /// Whether standard output and error have separate files; `None` for a helper.
    split: Option<bool>,
}

impl Open {
    fn stdio<'a>(&'a self, null: BorrowedFd<'a>) -> [BorrowedFd<'a>; 3] {
        let [out, err] = &self.given;
        [
            self.stdin.as_ref().map_or(null, OwnedFd::as_fd),
            out.as_ref().unwrap_or(&self.out).as_fd(),
            err.as_ref().or(self.err.as_ref()).unwrap_or(&self.out).as_fd(),
        ]
    }

    /// Returns the sizes of the output files, which the process appends to.
    fn sizes(&self) -> [u64; 2] {
        let size = |fd: &OwnedFd| fstat(fd).map_or(0, |stat| stat.st_size.cast_unsigned());
        [size(&self.out), self.err.as_ref().map_or(0, size)]
    }

    /// Returns the streams that are not connected to the terminal, for a process that has one.
    fn not_terminal(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let [out, err] = &self.given;
        [&self.stdin, out, err].map(|fd| fd.as_ref().map(OwnedFd::as_fd))
    }
}

/// A process to be started in a terminal.
struct InTerminal<'a> {
    task: TaskId,
    spec: &'a Spec,
    program: &'a Program,
    mark: Mark,
    size: TerminalSize,
    /// The process's announcement to the keeper, if there is one.
    left: Option<Starting<'a>>,
}

struct Common {
    settings: SpawnSettings,
    null: Null,
    reset_signals: Vec<i32>,
    /// The daemon's own resource limits, which children inherit.
    own_limits: Vec<(&'static str, Resource, libc::rlimit)>,
}

impl Common {
    fn begin(&self, order: StartOrder, stack: &mut ChildStack) -> Result<StartedProcess, SpawnFailure> {
        let notify = self.notify_socket(&order)?;
        let StartOrder { task, run, spec, env, place, streams } = order;
        let name = match &streams {
            Streams::Own(_) => TASK_MARK,
            Streams::Given { mark, .. } => mark,
        };
        let mark = self.settings.marks.next();
        let here = || place.map(|place| task_variables::variables(&place, &self.settings.folder));
        let mut variables = task_variables::given(&spec, &env).or_else(here).unwrap_or_default();
        variables.extend(notify.as_ref().map(NotifySocket::variable));
        let program = Program::new(&spec, env.get("PATH"), self.environment(name, task, &env, variables));
        let streams = self.streams(task, run, &spec, streams)?;
        let awaited = Awaited::new(&spec, || streams.sizes(), notify);
        let cgroup = self.make_cgroup(task, run)?;
        let procs = cgroup.as_ref().map(|(_, procs)| procs.as_fd());
        let is_kept = self.settings.keeper.is_some();
        let left = streams.split.filter(|_| is_kept).map(|split| {
            let path = cgroup.as_ref().map(|(path, _)| path.clone());
            let (input, awaited) = (streams.input.as_ref(), awaited.as_deref());
            Starting { task, run, mark, cgroup: path, split, input, awaited }
        });
        let begun = match spec.pty {
            None => {
                let pid = self.begin_plainly(&spec, &program, (mark, left), &streams, procs, stack);
                pid.map(|(Spawned { pid, pidfd }, announced)| {
                    let Open { input, split, .. } = streams;
                    let (cgroup, awaited, terminal) = (None, None, None);
                    StartedProcess { pid, pidfd, input, cgroup, mark, split, awaited, terminal, announced }
                })
            }
            Some(size) => {
                let job = InTerminal { task, spec: &spec, program: &program, mark, size, left };
                self.begin_in_terminal(&job, &streams, procs, stack).map(|(leader, in_new, announced)| {
                    let Open { out, split, .. } = streams;
                    let (input, cgroup, awaited, terminal) =
                        (None, None, None, Some(Box::new(in_new.with(out))));
                    let Spawned { pid, pidfd } = leader;
                    StartedProcess { pid, pidfd, input, cgroup, mark, split, awaited, terminal, announced }
                })
            }
        };
        let cgroup = cgroup.map(|(path, _)| path);
        match begun {
            Ok(begun) => Ok(StartedProcess { cgroup, awaited, ..begun }),
            Err(error) => {
                if let Some(cgroup) = cgroup {
                    cgroup::remove(&cgroup);
                }
                Err(error)
            }
        }
    }

    fn begin_plainly(
        &self,
        spec: &Spec,
        program: &Program,
        (mark, left): (Mark, Option<Starting<'_>>),
        streams: &Open,
        cgroup: Option<BorrowedFd<'_>>,
        stack: &mut ChildStack,
    ) -> Result<(Spawned, Option<Arc<Socket>>), SpawnFailure> {
        let plan = Plan {
            programs: &program.programs,
            argv: &program.argv,
            env: &program.env,
            folder: &c_string(spec.cwd.as_bytes()),
            umask: spec.umask,
            rlimits: &self.rlimits(spec.rlimits.as_deref(), mark),
            reset_signals: &self.reset_signals,
            stdio: streams.stdio(self.null.as_fd()),
            cgroup,
            control: JobControl::Session,
            announce: None,
        };
        self.spawn_kept(spec, &plan, left, stack)
    }

    /// Starts a process, which announces itself to the keeper if there is one. Returns the keeper that holds it.
    fn spawn_kept(
        &self,
        spec: &Spec,
        plan: &Plan<'_>,
        left: Option<Starting<'_>>,
        stack: &mut ChildStack,
    ) -> Result<(Spawned, Option<Arc<Socket>>), SpawnFailure> {
        let failed = |error| explain(spec, error);
        let (Some(keeper), Some(left)) = (&self.settings.keeper, left) else {
            return spawn(plan, stack).map(|spawned| (spawned, None)).map_err(failed);
        };
        let (message, descriptors) = left.announcement(None)?;
        let path = left.cgroup.as_deref();
        let (spawned, socket) = announce_to(keeper, (plan.cgroup, path), |socket, cgroup| {
            let announce = Announce { socket, message: &message, pid_at: PID_AT, descriptors: &descriptors };
            let spawned = spawn(&Plan { cgroup, announce: Some(announce), ..*plan }, stack);
            spawned.map_err(|error| (Some(error), error))
        })
        .map_err(failed)?;
        Ok((spawned, Some(socket)))
    }

    fn streams(&self, task: TaskId, run: u32, spec: &Spec, streams: Streams) -> Result<Open, SpawnFailure> {
        let Inherited { stdin, outputs: given } = match streams {
            Streams::Given { streams: [stdin, out, err], .. } => {
                let (stdin, err, given) = (Some(stdin), Some(err), [None, None]);
                return Ok(Open { stdin, given, out, err, input: None, split: None });
            }
            Streams::Own(inherited) => inherited,
        };
        let folder = &self.settings.folder;
        let create = |stream| -> Result<OwnedFd, SpawnFailure> {
            let made = if run == 1 { folder.create(task, stream) } else { folder.append(task, stream) };
            let made = made.or_else(|error| match error.kind() {
                // A killed daemon had already created the file.
                io::ErrorKind::AlreadyExists if self.settings.keeper.is_some() => folder.append(task, stream),
                _ => Err(error),
            });
            let file = made.map_err(|error| {
                format!("cannot create its output in {}: {}", folder.path().display(), describe_error(&error))
            })?;
            let is_kept_back = descriptors::are_reserved(&file, descriptors::User::Task);
            if is_kept_back { Err(descriptors::NONE_LEFT_FOR_TASK.into()) } else { Ok(file) }
        };
        let out = create(Stream::Stdout)?;
        let err = if spec.split { Some(create(Stream::Stderr)?) } else { None };
        let (stdin, input) = match (spec.stdin, stdin) {
            (None, _) => (None, None),
            (Some(Stdin::Fd), sent) => (sent, None),
            (Some(Stdin::Pipe | Stdin::Sent), _) => {
                let (theirs, ours) =
                    nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(|error| {
                        format!("cannot create its standard input: {}", describe_error(&error.into()))
                    })?;
                set_blocking(&theirs)
                    .map_err(|error| format!("cannot create its standard input: {error}"))?;
                (Some(theirs), Some(ours))
            }
        };
        Ok(Open { stdin, given, out, err, input, split: Some(spec.split) })
    }

    /// Creates the socket on which a process reports that it is ready, if its spec requires one.
    fn notify_socket(&self, order: &StartOrder) -> Result<Option<NotifySocket>, SpawnFailure> {
        if order.spec.ready.as_deref() != Some(&Ready::Notify) {
            return Ok(None);
        }
        let socket = NotifySocket::bind(&self.settings.socket, order.task, order.run).map_err(|error| {
            let folder = self.settings.socket.parent().unwrap_or(Path::new("/")).display();
            format!("cannot create its notification socket in {folder}: {}", describe_error(&error))
        })?;
        Ok(Some(socket))
    }

    fn make_cgroup(&self, task: TaskId, run: u32) -> Result<Option<(PathBuf, OwnedFd)>, SpawnFailure> {
        let Some(parent) = &self.settings.cgroup else { return Ok(None) };
        // The cgroup of the previous attempt may not have been removed yet.
        let path = parent.join(if run == 1 { task.to_string() } else { format!("{task}.{run}") });
        let keeper = self.settings.keeper.as_ref().map(|keeper| (keeper, keeper.socket()));
        let make = || cgroup::make(&path, keeper.is_some());
        // The scope around it may have ended with the keeper: the next keeper is in another one.
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let procs = make().or_else(|error| match keeper.as_ref().filter(|_| is_gone(&error)) {
            Some((keeper, gone)) => keeper.after(gone).map_or(Err(error), |_| make()),
            None => Err(error),
        });
        let procs = procs.map_err(|error| format!("cannot create the cgroup {}: {error}", path.display()))?;
        Ok(Some((path, procs)))
    }

    /// Returns the limits to set for a process: those of its submitter, and the one that marks it.
    fn rlimits(&self, wanted: Option<&Rlimits>, mark: Mark) -> Vec<(i32, libc::rlimit)> {
        let mut list = wanted.map(|wanted| rlimits_to_set(wanted, &self.own_limits)).unwrap_or_default();
        self.add_mark(&mut list, mark);
        if let Some(nofile) = self.settings.nofile
            && wanted.is_none_or(|wanted| !wanted.contains_key("nofile"))
        {
            list.push((Resource::RLIMIT_NOFILE as i32, nofile));
        }
        list
    }

    /// Adds the limit that is the mark. A process whose hard limit is below the mark is not marked: only root could
    /// raise the limit again.
    fn add_mark(&self, list: &mut Vec<(i32, libc::rlimit)>, mark: Mark) {
        let set = list.iter().position(|(resource, _)| *resource == RESOURCE as i32);
        let set = set.map(|place| list.swap_remove(place).1);
        let own =
            self.own_limits.iter().find(|(_, resource, _)| *resource == RESOURCE).map(|(_, _, own)| *own);
        let Some(limit) = set.or(own) else { return };
        if limit.rlim_max >= mark.soft_limit() {
            list.push((RESOURCE as i32, libc::rlimit { rlim_cur: mark.soft_limit(), ..limit }));
        } else if set.is_some() {
            // The submitter's soft limit may be the mark of another start if its hard limit is.
            list.push((
                RESOURCE as i32,
                libc::rlimit { rlim_cur: limit.rlim_cur.min(Mark::BELOW_ALL), ..limit },
            ));
        }
    }

    /// Returns the submitter's environment with the variables that identify a process of this daemon.
    fn environment(&self, mark: &str, id: TaskId, env: &Env, place: Vec<CString>) -> Vec<CString> {
        let is_replaced = |name: &str| {
            let value =
                |variable: &CString| variable.as_bytes().strip_prefix(name.as_bytes())?.first().copied();
            place.iter().any(|variable| value(variable) == Some(b'='))
        };
        let mut list = Vec::with_capacity(env.0.len() + place.len() + 2);
        for (name, value) in &env.0 {
            if &**name != mark
                && &**name != INSTANCE_MARK
                && !task_variables::is_variable(name)
                && !is_replaced(name)
            {
                list.push(c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
            }
        }
        list.extend(place);
        list.push(c_string(format!("{mark}={id}").as_bytes()));
        list.push(c_string(format!("{INSTANCE_MARK}={}", self.settings.instance).as_bytes()));
        list
    }
}

/// Has a process started that announces itself to the keeper. If the keeper has just ended, and with it perhaps the
/// scope around the cgroup at `path`, waits for the next keeper and has the process started again. On failure `start`
/// returns the cause, if known.
fn announce_to<T, E>(
    keeper: &Keeper,
    (cgroup, path): (Option<BorrowedFd<'_>>, Option<&Path>),
    mut start: impl FnMut(BorrowedFd<'_>, Option<BorrowedFd<'_>>) -> Result<T, (Option<SpawnError>, E)>,
) -> Result<(T, Arc<Socket>), E> {
    let socket = keeper.socket();
    let (why, error) = match start(socket.as_fd(), cgroup) {
        Ok(started) => return Ok((started, socket)),
        Err(failed) => failed,
    };
    if !why.is_some_and(|why| matches!(why.stage, Stage::Announce | Stage::Cgroup)) {
        return Err(error);
    }
    let Some(socket) = keeper.after(&socket) else { return Err(error) };
    let Ok(made) = path.map(|path| cgroup::make(path, true)).transpose() else { return Err(error) };
    let started = start(socket.as_fd(), made.as_ref().map(AsFd::as_fd));
    started.map(|started| (started, socket)).map_err(|(_, error)| error)
}

/// A program to execute.
struct Program {
    /// The paths to try, in order.
    programs: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn new(spec: &Spec, path: Option<&OsText>, env: Vec<CString>) -> Self {
        let argv: Vec<CString> = spec.work.argv().into_iter().map(c_string).collect();
        let name = argv.first().map(CString::as_bytes).unwrap_or_default();
        let programs = search_path::candidates(name, path);
        let programs = programs.iter().map(|file| c_string(file.as_os_str().as_bytes())).collect();
        Self { programs, argv, env }
    }
}

/// Requests with NUL bytes are refused on arrival, so nothing is cut off here.
fn c_string(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

fn own_limits() -> Vec<(&'static str, Resource, libc::rlimit)> {
    let limit = |(name, resource): &(&'static str, Resource)| {
        let (rlim_cur, rlim_max) = getrlimit(*resource).ok()?;
        Some((*name, *resource, libc::rlimit { rlim_cur, rlim_max }))
    };
    RESOURCES.iter().filter_map(limit).collect()
}

/// Returns the limits that differ from the daemon's own, capped at what the daemon may have.
fn rlimits_to_set(
    wanted: &Rlimits,
    own: &[(&'static str, Resource, libc::rlimit)],
) -> Vec<(i32, libc::rlimit)> {
    let mut list = Vec::new();
    for (name, resource, own) in own {
        let Some(wanted) = wanted.get(*name) else { continue };
        let rlim_max = wanted.hard.unwrap_or(libc::RLIM_INFINITY).min(own.rlim_max);
        let rlim_cur = wanted.soft.unwrap_or(libc::RLIM_INFINITY).min(rlim_max);
        if (rlim_cur, rlim_max) != (own.rlim_cur, own.rlim_max) {
            #[allow(clippy::cast_possible_wrap, reason = "resources are numbered from 0 to 15")]
            list.push((*resource as i32, libc::rlimit { rlim_cur, rlim_max }));
        }
    }
    list
}

fn set_blocking(fd: &OwnedFd) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).map(drop)
}

/// Describes a system error, naming the limit that was reached.
fn describe_error(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => descriptors::NONE_LEFT_FOR_TASK.to_owned(),
        Some(Errno::ENFILE) => "the whole system has no file descriptors left".to_owned(),
        Some(Errno::ENOSPC) => "no space is left on the disk".to_owned(),
        Some(Errno::EDQUOT) => "the disk quota is used up".to_owned(),
        _ => error.to_string(),
    }
}

/// Describes why a start failed, in a sentence that names the affected part.
fn explain(spec: &Spec, error: SpawnError) -> SpawnFailure {
    let SpawnError { stage, mut errno } = error;
    let why = errno.desc();
    let mut code = None;
    let message = match (stage, errno) {
        (Stage::Clone, Errno::EAGAIN) => {
            "no more processes are allowed (RLIMIT_NPROC, or the system's limit)".to_owned()
        }
        (Stage::Clone, Errno::EMFILE) => descriptors::NONE_LEFT_FOR_TASK.to_owned(),
        (Stage::Clone, _) => format!("cannot create a process: {why}"),
        (Stage::Session, _) => format!("cannot create a session: {why}"),
        (Stage::Terminal, _) => format!("cannot take its terminal: {why}"),
        (Stage::Cgroup, _) => format!("cannot join its cgroup: {why}"),
        (Stage::Limits, _) => format!("cannot set its resource limits: {why}"),
        (Stage::Folder, _) => format!("cannot enter the folder {}: {why}", spec.cwd.to_string_lossy()),
        (Stage::Announce, _) => {
            format!("the keeper, which holds the tasks of a durable daemon, does not answer: {why}")
        }
        (Stage::Streams, _) => format!("cannot set up its standard streams: {why}"),
        (Stage::Exec, _) => {
            let argv = spec.work.argv();
            let program = argv.first().copied().map(String::from_utf8_lossy).unwrap_or_default();
            // As in shells, an entry of PATH that is no folder has no programs.
            if errno == Errno::ENOTDIR && !program.contains('/') {
                errno = Errno::ENOENT;
            }
            // The system only says that it may not be executed. A permission would not help.
            let folder = Path::new(spec.cwd.as_os_str());
            if errno == Errno::EACCES && program.contains('/') && folder.join(&*program).is_dir() {
                errno = Errno::EISDIR;
            }
            let (of_shell, message) = exec_error(&program, folder, errno);
            code = Some(of_shell);
            message
        }
    };
    SpawnFailure { errno: Some(errno as i32), code, message: message.into() }
}

/// Returns a shell's exit code for this error, and a message.
fn exec_error(program: &str, folder: &Path, errno: Errno) -> (i32, String) {
    let is_missing = errno == Errno::ENOENT && !(program.contains('/') && folder.join(program).exists());
    let message = match errno {
        Errno::ENOENT if !is_missing => {
            format!("{program}: its interpreter (the program named in its first line) was not found")
        }
        Errno::ENOENT => search_path::not_found(program),
        Errno::EACCES => search_path::not_executable(program),
        Errno::E2BIG => format!(
            "{program}: the arguments and the environment are too long: the system allows 128 KiB each, and a \
             quarter of the stack limit, at most 6 MiB, in total"
        ),
        _ => format!("{program}: {}", errno.desc()),
    };
    (if is_missing { Exit::NOT_FOUND } else { Exit::NOT_EXECUTABLE }, message)
}
