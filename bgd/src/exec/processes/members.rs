//! Processes as `/proc` shows them: their places in trees, their marks, their open files. This module mostly reads; a
//! member of a tree is signalled through its pidfd.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bgd_shared::proc::{self, ProcessStat};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use crate::os::pidfd::PidFd;

/// The environment variable that marks every process of a task.
pub const TASK_MARK: &str = "BGD_TASK_ID";

/// The environment variable that marks every process of an agent, which may work for several tasks.
pub const AGENT_MARK: &str = "BGD_AGENT_ID";

/// The environment variable that marks every process of a channel's command.
pub const HOOK_MARK: &str = "BGD_HOOK_ID";

/// The environment variable that marks every process of a connection to another machine.
pub const BRIDGE_MARK: &str = "BGD_BRIDGE_ID";

/// The environment variable that marks every process of this daemon instance.
pub const INSTANCE_MARK: &str = "BGD_INSTANCE";

/// A process of a tree.
#[derive(Debug)]
pub struct Member {
    /// For messages only.
    pub pid: i32,
    /// The pidfd by which the process is signalled.
    pub handle: PidFd,
}

impl Member {
    /// Sends the process a signal, unless it has ended.
    pub fn send(&self, signal: i32) {
        send(self.pid, &self.handle, signal);
    }
}

/// The order in which the processes of a tree are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Order {
    ParentsFirst,
    ChildrenFirst,
}

impl Order {
    /// Puts pids that are listed parents first into this order.
    pub(in crate::exec) fn of(self, mut pids: Vec<i32>) -> Vec<i32> {
        if self == Self::ChildrenFirst {
            pids.reverse();
        }
        pids
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Sends a signal to a process, unless it has ended. The pid is for messages only.
pub(in crate::exec) fn send(pid: i32, process: &PidFd, signal: i32) {
    if let Err(error) = process.signal(signal)
        && errno(&error) != Errno::ESRCH
    {
        tracing::warn!(pid, signal, %error, "cannot signal a process");
    }
}

/// Opens a pidfd of this process; `None` if there is no such process.
///
/// # Errors
/// No descriptor is left.
pub(in crate::exec) fn hold(pid: i32) -> io::Result<Option<PidFd>> {
    match PidFd::open(pid) {
        Ok(handle) => Ok(Some(handle)),
        Err(error) if [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].contains(&errno(&error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Opens pidfds of these processes, as far as `member` finds that they belong to the tree. When descriptors run out,
/// the processes held so far are signalled and released, which frees their descriptors. Returns the pids found, and the
/// processes that could not be reached.
pub(in crate::exec) fn hold_all(
    held: &mut Vec<Member>,
    pids: impl IntoIterator<Item = i32>,
    signal: i32,
    member: impl Fn(i32) -> io::Result<Option<Member>>,
) -> (Vec<i32>, Vec<(i32, io::Error)>) {
    let (mut found, mut missed) = (Vec::new(), Vec::new());
    for pid in pids {
        let held_now = member(pid).or_else(|_| {
            held.drain(..).for_each(|member| member.send(signal));
            member(pid)
        });
        match held_now {
            Ok(member) => {
                found.extend(member.iter().map(|member| member.pid));
                held.extend(member);
            }
            Err(error) => missed.push((pid, error)),
        }
    }
    (found, missed)
}

/// How long to wait for a process that is about to end.
const LEAVING: Duration = Duration::from_millis(1);

/// Waits a moment if one of these processes is exiting, and returns whether one is. An exiting process has released its
/// memory, and so can't be identified, but still has its children.
pub(in crate::exec) fn wait_for_leaving(pids: &[i32]) -> bool {
    let is_leaving = pids.iter().any(|pid| Stat::of(*pid).is_some_and(|stat| stat.is_leaving()));
    if is_leaving {
        thread::sleep(LEAVING);
    }
    is_leaving
}

/// The maximum depth of a tree; deeper trees are cut, and the rest is found as orphans later.
pub(in crate::exec) const MAX_DEPTH: usize = 10_000;

/// Returns these processes and all their descendants.
pub fn descendants_of(roots: &[i32]) -> Vec<i32> {
    let mut seen: HashSet<i32> = roots.iter().copied().collect();
    let mut found = roots.to_vec();
    let mut queue: VecDeque<i32> = roots.iter().copied().collect();
    while let Some(pid) = queue.pop_front() {
        for child in proc::children(pid) {
            if seen.insert(child) {
                found.push(child);
                queue.push_back(child);
            }
        }
    }
    found
}

/// The fields of `/proc/PID/stat` that trees are built from. State, memory and image are those of a live thread, if
/// there is one.
pub(in crate::exec) struct Stat {
    pub(in crate::exec) state: char,
    pub(in crate::exec) parent: i32,
    pub(in crate::exec) group: i32,
    pub(in crate::exec) session: i32,
    /// The size of its address space in bytes; 0 for an exiting process or a kernel thread.
    memory: u64,
    /// Its start, in clock ticks since boot.
    born: u64,
    /// The number of its threads. The first thread counts until the process is reaped.
    threads: u64,
    pub(super) image: Image,
}

/// The addresses of the program and the stack of a process. A child has those of its parent until it executes a
/// program, which gets new random addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image([u64; 3]);

impl Stat {
    fn is_leaving(&self) -> bool {
        self.memory == 0 && !self.is_zombie()
    }

    /// Reports whether the process is only waiting to be reaped. That requires that its last thread has ended: the
    /// process keeps its descriptors and its children while that thread is exiting.
    pub(in crate::exec) fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// Reports whether a signal has stopped it. A process that a debugger holds is another matter.
    pub(in crate::exec) fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    /// Reports whether it has stopped or ended.
    pub(in crate::exec) fn is_at_rest(&self) -> bool {
        self.is_zombie() || matches!(self.state, 'T' | 't')
    }

    pub(in crate::exec) fn of(pid: i32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        let living = stat.living(pid);
        let living = living.as_ref().unwrap_or(&stat);
        Some(Self {
            state: living.state()?,
            parent: stat.parent()?,
            group: stat.field(5)?,
            session: stat.field(6)?,
            memory: living.field(23)?,
            born: stat.field(22)?,
            threads: stat.field(20)?,
            image: Image([living.field(26)?, living.field(27)?, living.field(28)?]),
        })
    }

    /// Returns the time since its start, with the precision of a clock tick.
    pub(in crate::exec) fn age(&self) -> Duration {
        let up = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::MAX);
        let born = self.born.saturating_mul(1000) / clock_ticks_per_second().max(1);
        up.saturating_sub(Duration::from_millis(born))
    }
}

/// Returns how often a process has gone to sleep voluntarily; 0 if there is no such process.
pub fn sleeps(pid: i32) -> u64 {
    proc::status(pid, "voluntary_ctxt_switches").and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Reports whether a process ignores a signal (1 to 64).
pub fn ignores(pid: i32, signal: i32) -> bool {
    proc::ignored_signals(pid) & (1 << (signal - 1)) != 0
}

/// Reports whether a process was started with this `NAME=value` in its environment.
pub fn has_mark(pid: i32, mark: &[u8]) -> bool {
    proc::environment(pid).split(|byte| *byte == 0).any(|variable| variable == mark)
}

/// Returns the value of a variable in the environment that a process was started with, if it is text.
pub fn mark_of(pid: i32, name: &str) -> Option<String> {
    let environ = proc::environment(pid);
    let value = environ.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })?;
    String::from_utf8(value.to_vec()).ok()
}

/// Reports whether a process has a file at or below this path open for appending, as a task has its output. A user's
/// `tail -f` or pager on the same file belongs to no task.
pub fn appends_to(pid: i32, path: &Path) -> bool {
    proc::open_files(pid).any(|(descriptor, file)| file.starts_with(path) && is_appending(pid, &descriptor))
}

/// Reports whether a process has exactly this file open.
pub(in crate::exec) fn has_open(pid: i32, path: &Path) -> bool {
    proc::open_files(pid).any(|(_, file)| file == path)
}

fn is_appending(pid: i32, descriptor: &OsStr) -> bool {
    let flags = proc::open_flags(pid, descriptor).map(OFlag::from_bits_retain);
    flags.is_some_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_WRONLY && flags.contains(OFlag::O_APPEND))
}

/// Returns the pids of all processes of this user.
pub fn processes_of_user() -> Vec<i32> {
    let me = nix::unistd::Uid::effective().as_raw();
    proc::processes().filter(|pid| proc::owner(pid).is_ok_and(|owner| owner == me)).collect()
}

/// Describes a process that survives SIGKILL, and the reason.
pub(in crate::exec) fn survivor(pid: i32) -> String {
    let me = nix::unistd::Uid::effective();
    let why = match (proc::owner(pid), Stat::of(pid).map(|stat| (stat.state, stat.threads))) {
        (Ok(uid), _) if uid != me.as_raw() && !me.is_root() => format!("belongs to uid {uid}"),
        (_, Some(('D', _))) => "is waiting uninterruptibly in the kernel".to_owned(),
        // The state is that of the first thread, which has ended.
        (_, Some(('Z' | 'X', 2..))) => "has a thread that does not end".to_owned(),
        (_, Some(('Z' | 'X', _))) => "is held by a debugger".to_owned(),
        (_, Some((state, _))) => format!("is in state {state}"),
        (_, None) => "has ended by now".to_owned(),
    };
    format!("process {pid} ({}) {why}", String::from_utf8_lossy(&proc::name(pid)))
}

pub fn session_of(pid: i32) -> Option<i32> {
    Stat::of(pid).map(|stat| stat.session)
}

/// Returns a process and its ancestors.
pub fn ancestors_of(pid: i32) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut current = pid;
    while current > 0 && found.insert(current) {
        current = Stat::of(current).map_or(0, |stat| stat.parent);
    }
    found
}
