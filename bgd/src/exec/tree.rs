//! Process trees: who belongs to a task, and how all of them are reached.
//!
//! With a delegated cgroup the kernel keeps the list, but for those that move to another cgroup by themselves.
//! Without one, and for those, a task's tree is its leader's descendants, and those orphans of the daemon that
//! carry the task's [`Mark`], which they inherit, are in the leader's session, have the task's id in their
//! environment, or hold its output open. What rids itself of all four is ended when the daemon ends.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::stat::ProcessStat;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use super::handed::tree::HandedTree;
use super::mark::Mark;
use super::newborn::Newborns;
use super::output::OutputFiles;
use crate::sys::pidfd::{PidFd, SIGKILL};

/// The environment variable that marks every process of a task.
pub const TASK_MARK: &str = "BGD_TASK_ID";

/// The environment variable that marks every process of an agent, which may work for several tasks.
pub const AGENT_MARK: &str = "BGD_AGENT_ID";

/// The environment variable that marks every process of a channel's command.
pub const HOOK_MARK: &str = "BGD_HOOK_ID";

/// The environment variable that marks every process of this life of the daemon.
pub const INSTANCE_MARK: &str = "BGD_INSTANCE";

/// The longest environment that is searched for a mark, in bytes.
const ENVIRON_BYTES: u64 = 4 * 1024 * 1024;

/// A process of a tree.
#[derive(Debug)]
pub struct Member {
    /// Its number, for messages only.
    pub pid: i32,
    /// The handle by which it is signalled.
    pub handle: PidFd,
}

impl Member {
    /// Sends it a signal. One that has ended needs none.
    pub fn send(&self, signal: i32) {
        if let Err(error) = self.handle.signal(signal)
            && errno(&error) != Errno::ESRCH
        {
            tracing::warn!(pid = self.pid, signal, %error, "cannot signal a process");
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Who was sent a signal.
#[derive(Debug, Default)]
pub struct Signalled {
    /// Whether every process could be reached. One can't if no descriptor is left to hold it.
    pub all: bool,
    /// Their numbers; none of a process that was handed over.
    pub pids: Vec<i32>,
    /// Those that may have swallowed it.
    pub newborns: Newborns,
}

/// What is known of a task's tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The task.
    pub task: TaskId,
    /// Its leader's number, which is also the number of its session.
    pub leader: i32,
    /// Whether the leader has not been reaped yet, so that its number is still its own.
    pub leader_is_ours: bool,
    /// Whether the leader only leads a terminal: it stands for its job, and no signal but SIGKILL is for it.
    pub leader_stands_by: bool,
    /// Its output files.
    pub files: OutputFiles,
    /// Its terminal, if it has one: whoever has it open belongs to the tree.
    pub terminal: Option<PathBuf>,
    /// Its cgroup, if there is one.
    pub cgroup: Option<PathBuf>,
    /// What every process of it is marked with; nothing if another program started it.
    pub mark: Option<Mark>,
    /// That of a process that another program started: nothing of it is the daemon's by birth.
    pub handed: Option<Arc<HandedTree>>,
}

impl Tree {
    /// Whether a quick look tells that nobody is left behind the leader, as is nearly always so.
    pub fn is_plainly_empty(&self) -> bool {
        match &self.handed {
            Some(handed) => handed.is_plainly_empty(),
            None => self.cgroup.is_none() && orphans().is_empty(),
        }
    }

    /// Living processes of the tree, so many at most. Blocks for a short time; to be called on a worker.
    ///
    /// # Errors
    /// No descriptor is left to hold even one of them.
    pub fn members(&self, at_most: usize) -> io::Result<Vec<Member>> {
        if let Some(handed) = &self.handed {
            return handed.members(at_most);
        }
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            let pids = self.pids();
            for pid in &pids {
                match self.member(*pid) {
                    Ok(member) => found.extend(member),
                    Err(error) if found.is_empty() => return Err(error),
                    Err(_) => break,
                }
                if found.len() == at_most {
                    break;
                }
            }
            // Those that were there have ended, but may have left children behind.
            if !found.is_empty() || pids.is_empty() {
                break;
            }
            wait_for_leaving(&pids);
        }
        Ok(found)
    }

    /// Sends a signal to every living process of the tree. Blocks as [`Self::members`] does.
    pub fn signal(&self, signal: i32) -> Signalled {
        if let Some(handed) = &self.handed {
            let (all, newborns) = handed.signal(signal);
            return Signalled { all, newborns, ..Signalled::default() };
        }
        let mut signalled = Signalled { all: true, ..Signalled::default() };
        // All are held before the first one is signalled, as its end may make others hard to find; fewer
        // at a time where descriptors are short.
        let mut held: Vec<Member> = Vec::new();
        // A leader that its job has stopped must go on, to end as the job does.
        let is_for_leader = [SIGKILL, libc::SIGCONT].contains(&signal);
        let spared = (self.leader_stands_by && self.leader_is_ours && !is_for_leader).then_some(self.leader);
        for pid in self.pids().into_iter().filter(|pid| Some(*pid) != spared) {
            let member = self.member(pid).or_else(|_| {
                held.drain(..).for_each(|member| member.send(signal));
                self.member(pid)
            });
            match member {
                Ok(member) => {
                    signalled.pids.extend(member.iter().map(|member| member.pid));
                    held.extend(member);
                }
                Err(error) => {
                    tracing::warn!(task = %self.task, pid, signal, %error, "cannot reach a process");
                    signalled.all = false;
                }
            }
        }
        signalled.newborns = Newborns::among(&held, self.leader_is_ours.then_some(self.leader));
        held.drain(..).for_each(|member| member.send(signal));
        signalled
    }

    /// Names some processes of the tree that live on after SIGKILL, for people, and why they do. Blocks as
    /// [`Self::members`] does.
    pub fn survivors(&self) -> Box<str> {
        /// How many are named.
        const NAMED: usize = 3;
        let members = self.members(NAMED).unwrap_or_default();
        let named: Vec<String> = members.iter().map(|member| survivor(member.pid)).collect();
        if named.is_empty() { "its processes are not found".into() } else { named.join(", ").into() }
    }

    fn pids(&self) -> Vec<i32> {
        let Some(cgroup) = &self.cgroup else { return self.descendants() };
        let mut pids = cgroup_pids(cgroup);
        let inside: HashSet<i32> = pids.iter().copied().collect();
        // One may have moved to a cgroup elsewhere, as `systemd-run --scope` does.
        pids.extend(self.descendants().into_iter().filter(|pid| !inside.contains(pid)));
        pids
    }

    /// The process of this number, if it lives and belongs to the tree; an error if that can't be known.
    fn member(&self, pid: i32) -> io::Result<Option<Member>> {
        let Some(handle) = hold(pid)? else { return Ok(None) };
        // The handle is taken first and the process looked at through /proc afterwards: if it was
        // still alive then, the look was at the process that the handle holds.
        let is_member = match &self.cgroup {
            Some(cgroup) => is_in_cgroup(pid, cgroup) || self.is_mine(pid),
            None => self.is_mine(pid),
        };
        Ok((is_member && !is_zombie(pid) && !handle.has_ended()).then_some(Member { pid, handle }))
    }

    fn descendants(&self) -> Vec<i32> {
        let mut listed = orphans();
        let mut roots: Vec<i32> = Vec::new();
        for _ in 0..LOOKS {
            roots = listed.iter().copied().filter(|pid| self.owns_orphan(*pid)).collect();
            // One that ends meanwhile can't be known any more, and leaves its children to the daemon; and
            // while one is taken away the kernel may leave another one out of the list.
            let is_leaving = wait_for_leaving(&listed);
            let now = orphans();
            if now == listed && !is_leaving {
                break;
            }
            listed = now;
        }
        if self.leader_is_ours {
            roots.insert(0, self.leader);
        }
        descendants_of(&roots)
    }

    /// Whether a process that was found in the tree is still there: its chain of parents leads to the
    /// leader, or to the daemon by way of an orphan of this task.
    fn is_mine(&self, pid: i32) -> bool {
        let me = std::process::id().cast_signed();
        let mut current = pid;
        for _ in 0..MAX_DEPTH {
            if self.leader_is_ours && current == self.leader {
                return true;
            }
            match Stat::of(current) {
                Some(stat) if stat.parent == me => return self.owns_orphan(current),
                Some(stat) if stat.parent > 1 => current = stat.parent,
                Some(_) | None => return false,
            }
        }
        false
    }

    fn owns_orphan(&self, pid: i32) -> bool {
        if Stat::of(pid).is_some_and(|stat| stat.session == self.leader) {
            return true;
        }
        let is_marked = |name: &&str| has_mark(pid, format!("{name}={}", self.task).as_bytes());
        self.mark.is_some_and(|mark| mark.is_on(pid))
            || [TASK_MARK, AGENT_MARK, HOOK_MARK].iter().any(is_marked)
            || self.files.paths().any(|path| appends_to(pid, path))
            || self.terminal.as_deref().is_some_and(|terminal| has_open(pid, terminal))
    }
}

/// A handle to the process of this number; none if there is no such process.
///
/// # Errors
/// No descriptor is left for it.
pub(super) fn hold(pid: i32) -> io::Result<Option<PidFd>> {
    match PidFd::open(pid) {
        Ok(handle) => Ok(Some(handle)),
        Err(error) if [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].contains(&errno(&error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// How often a tree is looked at, at most, until it holds still.
const LOOKS: usize = 16;

/// How long a process is given that is about to end.
const LEAVING: Duration = Duration::from_millis(1);

/// Whether one of these processes is on its way out: it has given up its memory, and so can't be known,
/// but still has its children. It is given a moment then.
fn wait_for_leaving(pids: &[i32]) -> bool {
    let is_leaving = pids.iter().any(|pid| Stat::of(*pid).is_some_and(|stat| stat.is_leaving()));
    if is_leaving {
        thread::sleep(LEAVING);
    }
    is_leaving
}

/// How deep a tree may be; deeper ones are cut, and their rest is found as orphans later.
pub(super) const MAX_DEPTH: usize = 10_000;

/// The children of the daemon's first thread: processes that lost their parents.
pub fn orphans() -> Vec<i32> {
    let me = std::process::id();
    read_pids(Path::new(&format!("/proc/self/task/{me}/children")))
}

/// These processes and all that descend from them.
pub fn descendants_of(roots: &[i32]) -> Vec<i32> {
    let mut seen: HashSet<i32> = roots.iter().copied().collect();
    let mut found = roots.to_vec();
    let mut queue: VecDeque<i32> = roots.iter().copied().collect();
    while let Some(pid) = queue.pop_front() {
        for child in children_of(pid) {
            if seen.insert(child) {
                found.push(child);
                queue.push_back(child);
            }
        }
    }
    found
}

/// The children of a process, of whichever of its threads.
pub fn children_of(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.filter_map(Result::ok).flat_map(|thread| read_pids(&thread.path().join("children"))).collect()
}

fn read_pids(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Whether a process is in a cgroup of ours, or in one inside it: their names are ids of tasks.
fn is_in_cgroup(pid: i32, cgroup: &Path) -> bool {
    let name = cgroup.file_name().unwrap_or_default().to_string_lossy();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups
        .lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .any(|path| path.split('/').any(|part| part == name))
}

fn cgroup_pids(cgroup: &Path) -> Vec<i32> {
    let mut pids = read_pids(&cgroup.join("cgroup.procs"));
    let nested = fs::read_dir(cgroup).into_iter().flatten().filter_map(Result::ok);
    for entry in nested.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        pids.extend(cgroup_pids(&entry.path()));
    }
    pids
}

/// The part of `/proc/PID/stat` that trees are made of.
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// Bytes of its address space; none of a process that ends, or of a thread of the kernel.
    memory: u64,
    /// When it was born, in clock ticks after the machine was.
    born: u64,
    pub(super) image: Image,
}

/// Where the program and the stack of a process lie. A child has those of its parent until it runs a program, for
/// which they are chosen anew, at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image([u64; 3]);

impl Stat {
    fn is_leaving(&self) -> bool {
        self.memory == 0 && !matches!(self.state, 'Z' | 'X')
    }

    pub(super) fn of(pid: i32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        Some(Self {
            state: stat.field::<char>(3)?,
            parent: stat.parent()?,
            group: stat.field(5)?,
            session: stat.field(6)?,
            memory: stat.field(23)?,
            born: stat.field(22)?,
            image: Image([stat.field(26)?, stat.field(27)?, stat.field(28)?]),
        })
    }

    /// How long ago it was born, to a clock tick.
    pub(super) fn age(&self) -> Duration {
        let up = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::MAX);
        let born = self.born.saturating_mul(1000) / clock_ticks_per_second().max(1);
        up.saturating_sub(Duration::from_millis(born))
    }
}

pub(super) fn is_zombie(pid: i32) -> bool {
    Stat::of(pid).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

/// Whether a process ignores a signal, from 1 to 64.
pub fn ignores(pid: i32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Whether a process was started with this `NAME=value` in its environment.
pub fn has_mark(pid: i32, mark: &[u8]) -> bool {
    environment_of(pid).split(|byte| *byte == 0).any(|variable| variable == mark)
}

/// The value that a process was started with for a variable, if that is text.
pub fn mark_of(pid: i32, name: &str) -> Option<String> {
    let environ = environment_of(pid);
    let value = environ.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })?;
    String::from_utf8(value.to_vec()).ok()
}

/// The environment that a process was started with; empty if it can't be read.
fn environment_of(pid: i32) -> Vec<u8> {
    let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) else { return Vec::new() };
    let mut environ = Vec::new();
    match file.take(ENVIRON_BYTES).read_to_end(&mut environ) {
        Ok(_) => environ,
        Err(_) => Vec::new(),
    }
}

/// Whether a process has a file at this path, or below it, open as a task has its output: for
/// appending. Somebody's `tail -f` or pager on the same file is no part of any task.
pub fn appends_to(pid: i32, path: &Path) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.filter_map(Result::ok).any(|fd| {
        fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(path))
            && is_appending(pid, &fd.file_name())
    })
}

/// Whether a process has this very file open.
fn has_open(pid: i32, path: &Path) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.filter_map(Result::ok).any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path))
}

fn is_appending(pid: i32, fd: &std::ffi::OsStr) -> bool {
    let info = fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(fd)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags =
        flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).map(OFlag::from_bits_retain);
    flags.is_some_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_WRONLY && flags.contains(OFlag::O_APPEND))
}

/// Every process of this user, by number.
pub fn processes_of_user() -> Vec<i32> {
    let me = nix::unistd::Uid::effective().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            (entry.metadata().ok()?.uid() == me).then_some(pid)
        })
        .collect()
}

/// A process that lives on after SIGKILL, and why.
fn survivor(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
    let me = nix::unistd::Uid::effective();
    let why = match (owner, Stat::of(pid).map(|stat| stat.state)) {
        (Ok(uid), _) if uid != me.as_raw() && !me.is_root() => format!("belongs to uid {uid}"),
        (_, Some('D')) => "waits in the kernel, uninterruptibly".to_owned(),
        (_, Some('Z' | 'X')) => "is held by a debugger".to_owned(),
        (_, Some(state)) => format!("is in state {state}"),
        (_, None) => "is gone by now".to_owned(),
    };
    format!("process {pid} ({}) {why}", name.trim_end())
}

/// The session of a process.
pub fn session_of(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.session)
}

/// Ends every process of a cgroup at once.
///
/// # Errors
/// What the system says.
pub fn kill_cgroup(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.kill"), "1")
}

/// How long a cgroup whose processes have ended has to become empty.
const EMPTYING: Duration = Duration::from_secs(5);

/// Removes a cgroup whose processes have ended, with those that were made inside it. A process that ends
/// stays in its cgroup for a moment longer, so this waits for the kernel's word; to be called on a worker.
pub fn remove_cgroup(cgroup: &Path) {
    if let Err(error) = until_empty(cgroup, Instant::now() + EMPTYING) {
        tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup can't be watched");
    }
    remove_empty_cgroup(cgroup);
}

/// Waits until no process is in a cgroup or below it: the kernel tells by an exceptional condition on
/// the file that says so.
fn until_empty(cgroup: &Path, deadline: Instant) -> io::Result<()> {
    let mut events = fs::File::open(cgroup.join("cgroup.events"))?;
    loop {
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if text.lines().any(|line| line == "populated 0") || left.is_zero() {
            return Ok(());
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn remove_empty_cgroup(cgroup: &Path) {
    let nested = fs::read_dir(cgroup).into_iter().flatten().filter_map(Result::ok);
    for entry in nested.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty_cgroup(&entry.path());
    }
    if let Err(error) = fs::remove_dir(cgroup) {
        tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup not removed");
    }
}

/// A process and its ancestors.
pub fn ancestors_of(pid: i32) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut current = pid;
    while current > 0 && found.insert(current) {
        current = Stat::of(current).map_or(0, |stat| stat.parent);
    }
    found
}
