//! Process trees: which processes belong to a task, and how all of them are reached.
//!
//! With a delegated cgroup the kernel keeps the list, except for processes that move to another cgroup by themselves.
//! Without a cgroup, and for those processes, a task's tree consists of its leader's descendants, and of the daemon's
//! orphans that carry the task's inherited [`Mark`], are in the leader's session, have the task's id in their
//! environment, or have its output or its terminal open. A process that sheds all of that is ended when the daemon
//! ends.
//!
//! When a tree is signalled, paused or ended is decided elsewhere.

pub mod pause;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use super::handed::facts::is_pid_of;
use super::handed::tree::HandedTree;
use super::output::OutputFiles;
use super::processes::adopted::Adopted;
use super::processes::cgroup::{cgroup_pids, is_frozen, is_in_cgroup};
use super::processes::forked::ForkedCopies;
use super::processes::mark::Mark;
use super::processes::members::{
    AGENT_MARK, BRIDGE_MARK, HOOK_MARK, MAX_DEPTH, Member, Stat, TASK_MARK, appends_to, descendants_of,
    has_mark, has_open, hold, hold_all, survivor, wait_for_leaving,
};
use crate::os::pidfd::{PidFd, SIGKILL};

/// The outcome of signalling a tree.
#[derive(Debug, Default)]
pub struct Signalled {
    /// Whether every process could be reached. A process can't be reached if no descriptor is left for its pidfd.
    pub all: bool,
    /// The pids that were signalled; empty for a handed-over tree.
    pub pids: Vec<i32>,
    /// The processes that may have swallowed the signal.
    pub forked: ForkedCopies,
}

/// The identity of a task's tree.
#[derive(Clone, Debug)]
pub struct Tree {
    pub task: TaskId,
    /// The leader's pid, which is also the id of its session.
    pub leader: i32,
    /// Whether the leader has yet to end, as far as its supervisor knows.
    pub has_leader: bool,
    /// The leader's pidfd, if a killed daemon started it: another process reaps the leader as soon as it ends, so its pid
    /// may be reused before its supervisor notices.
    pub handle: Option<Arc<PidFd>>,
    /// Whether the leader only leads a terminal: its job does the work, and only SIGKILL and SIGCONT are sent to the
    /// leader.
    pub leader_only_leads_terminal: bool,
    pub files: OutputFiles,
    /// The path of its terminal, if it has one: a process that has the terminal open belongs to the tree.
    pub terminal: Option<PathBuf>,
    pub cgroup: Option<PathBuf>,
    /// The mark of all its processes; `None` if another program started it.
    pub mark: Option<Mark>,
    /// The tree of a process that another program started: none of its processes descends from the daemon.
    pub handed: Option<Arc<HandedTree>>,
    /// Whether a killed daemon started it: none of its processes descends from this daemon.
    pub is_inherited: bool,
    /// The daemon's children that are not orphans.
    pub adopted: Arc<Adopted>,
}

impl Tree {
    /// Reports whether a quick look shows that no process outlives the leader, as is nearly always the case.
    pub fn is_plainly_empty(&self) -> bool {
        match &self.handed {
            Some(handed) => handed.is_plainly_empty(),
            None => self.cgroup.is_none() && !self.is_inherited && self.adopted.orphans().is_empty(),
        }
    }

    /// Returns living processes of the tree, at most this many. Blocks for a short time: call it on a worker.
    ///
    /// # Errors
    /// No descriptor is left for even one pidfd.
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
            // The listed processes have ended, but may have left children behind.
            if !found.is_empty() || pids.is_empty() {
                break;
            }
            wait_for_leaving(&pids);
        }
        Ok(found)
    }

    /// Sends a signal to every living process of the tree. Blocks like [`Self::members`].
    pub fn signal(&self, signal: i32) -> Signalled {
        self.signal_if(signal, |_| true)
    }

    /// Like [`Self::signal`], but only for processes for which `wanted` returns true; in a handed-over tree, for all.
    fn signal_if(&self, signal: i32, wanted: impl Fn(i32) -> bool) -> Signalled {
        if let Some(handed) = &self.handed {
            let (all, forked) = handed.signal(signal);
            return Signalled { all, forked, ..Signalled::default() };
        }
        // All pidfds are opened before the first process is signalled, as its end may make others hard to find; fewer
        // at a time when descriptors are short.
        let mut held: Vec<Member> = Vec::new();
        // A leader that its job has stopped must continue, in order to exit like the job.
        let is_for_leader = [SIGKILL, libc::SIGCONT].contains(&signal);
        let leader = self.leader_is_there().then_some(self.leader);
        let spared = leader.filter(|_| self.leader_only_leads_terminal && !is_for_leader);
        let pids = self.pids().into_iter().filter(|pid| Some(*pid) != spared && wanted(*pid));
        let (pids, missed) = hold_all(&mut held, pids, signal, |pid| self.member(pid));
        for (pid, error) in &missed {
            tracing::warn!(task = %self.task, pid, signal, %error, "cannot reach a process");
        }
        let stands_still = self.cgroup.as_deref().is_some_and(is_frozen);
        let forked = ForkedCopies::among(&held, leader, stands_still);
        held.drain(..).for_each(|member| member.send(signal));
        Signalled { all: missed.is_empty(), pids, forked }
    }

    /// Describes to humans some processes of the tree that survive SIGKILL, with the reasons. Blocks like
    /// [`Self::members`].
    pub fn survivors(&self) -> Box<str> {
        /// The maximum number of processes named.
        const NAMED: usize = 3;
        let members = self.members(NAMED).unwrap_or_default();
        let named: Vec<String> = members.iter().map(|member| survivor(member.pid)).collect();
        if named.is_empty() { "its processes can't be found".into() } else { named.join(", ").into() }
    }

    /// Reports whether this is a living process of another tree. Blocks for a short time: call it on a worker.
    pub fn is_foreign(&self, pid: i32) -> bool {
        let is_marked = || self.mark.is_some_and(|mark| mark.is_on(pid));
        match hold(pid) {
            Ok(Some(handle)) => {
                let is_mine = is_marked() || self.member(pid).is_ok_and(|member| member.is_some());
                !is_mine && !handle.has_ended()
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Returns the current pids of its processes, at most this many of a handed-over tree.
    pub(super) fn pids_now(&self, at_most: usize) -> Vec<i32> {
        match &self.handed {
            Some(handed) => handed.members(at_most).into_iter().flatten().map(|member| member.pid).collect(),
            None => self.pids(),
        }
    }

    fn pids(&self) -> Vec<i32> {
        let Some(cgroup) = &self.cgroup else { return self.descendants() };
        let mut pids = cgroup_pids(cgroup);
        let inside: HashSet<i32> = pids.iter().copied().collect();
        // A process may have moved to a cgroup elsewhere, as `systemd-run --scope` does.
        pids.extend(self.descendants().into_iter().filter(|pid| !inside.contains(pid)));
        pids
    }

    /// Returns this process if it lives and belongs to the tree; an error if no descriptor is left.
    fn member(&self, pid: i32) -> io::Result<Option<Member>> {
        let Some(handle) = hold(pid)? else { return Ok(None) };
        // The pidfd is opened first and `/proc` read afterwards: if the process still lives then, `/proc` showed the
        // process that the pidfd refers to.
        let is_member = match &self.cgroup {
            Some(cgroup) => is_in_cgroup(pid, cgroup) || self.is_mine(pid),
            None => self.is_mine(pid),
        };
        Ok((is_member && !handle.has_ended()).then_some(Member { pid, handle }))
    }

    fn descendants(&self) -> Vec<i32> {
        let (mut listed, mut found) = (self.orphans(), Vec::new());
        for _ in 0..WALKS {
            let orphans;
            (orphans, listed) = self.living_orphans(listed);
            let leader = self.leader_is_there().then_some(self.leader);
            found = descendants_of(&leader.into_iter().chain(orphans).collect::<Vec<_>>());
            // Read after the walk: a process that ended before its turn has left its children to the daemon, too.
            let now = self.orphans();
            if now == listed {
                break;
            }
            listed = now;
        }
        found
    }

    /// Returns the orphans of this tree, and the list of all orphans that shows them; `listed` was read before.
    fn living_orphans(&self, mut listed: Vec<i32>) -> (Vec<i32>, Vec<i32>) {
        let mut living = Vec::new();
        for _ in 0..LOOKS {
            living = listed.iter().copied().filter(|pid| self.owns_living_orphan(*pid)).collect();
            // An exiting orphan can't be identified any more, and leaves its children to the daemon; and while an
            // orphan is being reaped, the kernel may omit another one from the list.
            let is_leaving = wait_for_leaving(&listed);
            let now = self.orphans();
            if now == listed && !is_leaving {
                break;
            }
            listed = now;
        }
        (living, listed)
    }

    /// Reports whether the leader's pid is its own, as it has not ended, or only this process can reap it.
    pub(super) fn leader_is_there(&self) -> bool {
        self.has_leader && self.handle.as_ref().is_none_or(|handle| !handle.has_ended())
    }

    /// Reports whether the session with the leader's number is its own. The kernel does not reuse the number while there
    /// is a process in the session, so the session is another one if the number is now the pid of another process.
    fn session_is_its_own(&self) -> bool {
        let is_pid = || self.handle.as_ref().is_some_and(|handle| is_pid_of(self.leader, handle));
        !self.is_inherited || is_pid() || Stat::of(self.leader).is_none()
    }

    /// Returns processes that may have been orphaned by the tree. Orphans of other trees carry other marks and are left
    /// out: after a kill there may be a thousand of them, and each tree would have to examine them all.
    fn orphans(&self) -> Vec<i32> {
        let may_be = |pid| !self.mark.is_some_and(|mark| mark.is_of_another(pid));
        let mut orphans = self.adopted.orphans();
        orphans.retain(|pid| may_be(*pid));
        if self.is_inherited {
            orphans.extend(self.adopted.reparented(may_be));
        }
        orphans
    }

    /// Reports whether a process that was found in the tree still belongs to it: its chain of parents leads to the
    /// leader, or through an orphan of this task to the daemon. The daemon itself, which has the terminal open, never
    /// belongs to it.
    fn is_mine(&self, pid: i32) -> bool {
        let me = std::process::id().cast_signed();
        let subreapers = if self.is_inherited { self.adopted.subreapers() } else { Vec::new() };
        let mut current = pid;
        for _ in 0..MAX_DEPTH {
            if current == self.leader && self.leader_is_there() {
                return true;
            }
            if current == me {
                return false;
            }
            match Stat::of(current) {
                Some(stat) if stat.parent == me || subreapers.contains(&stat.parent) => {
                    return self.owns_orphan(current, &stat);
                }
                Some(stat) if stat.parent > 1 => current = stat.parent,
                Some(_) | None => return false,
            }
        }
        false
    }

    /// Reports whether this orphan belongs to the tree and lives. An unreaped orphan has left no children behind, and
    /// may stay for seconds if pid 1 is slow.
    fn owns_living_orphan(&self, pid: i32) -> bool {
        Stat::of(pid).is_some_and(|stat| !stat.is_zombie() && self.owns_orphan(pid, &stat))
    }

    /// Reports whether this orphan belongs to the tree.
    fn owns_orphan(&self, pid: i32, stat: &Stat) -> bool {
        let is_marked = |name: &&str| has_mark(pid, format!("{name}={}", self.task).as_bytes());
        (stat.session == self.leader && self.session_is_its_own())
            || self.mark.is_some_and(|mark| mark.is_on(pid))
            || [TASK_MARK, AGENT_MARK, HOOK_MARK, BRIDGE_MARK].iter().any(is_marked)
            || self.files.paths().any(|path| appends_to(pid, path))
            || self.terminal.as_deref().is_some_and(|terminal| has_open(pid, terminal))
    }
}

/// How many times a tree is examined at most until it stops changing.
const LOOKS: usize = 16;

/// The same for walks through all processes of a tree, which take longer.
const WALKS: usize = 4;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use nix::unistd::getsid;

    use super::*;
    use crate::exec::output::OutputFolder;
    use crate::os::pidfd::{PidFd, wait_for_all};

    /// Returns a tree of a killed daemon, with the session of this process.
    fn inherited(folder: &OutputFolder) -> Tree {
        let task = TaskId::from_u128(1);
        let leader = getsid(None).unwrap().as_raw();
        Tree {
            task,
            leader,
            has_leader: false,
            handle: PidFd::open(leader).ok().map(Arc::new),
            leader_only_leads_terminal: false,
            files: folder.files(task, false),
            terminal: None,
            cgroup: None,
            mark: None,
            handed: None,
            is_inherited: true,
            adopted: Arc::default(),
        }
    }

    /// The first process of a container may take seconds to reap zombies, and each would be looked for sixteen times.
    #[test]
    fn r126_zombie_is_not_a_living_orphan() {
        let folder = tempfile::tempdir().unwrap();
        let tree = inherited(&OutputFolder::open(folder.path().to_path_buf()).unwrap());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let handle = PidFd::open(pid).unwrap();
        let was_owned = tree.owns_living_orphan(pid);
        child.kill().unwrap();
        let has_ended = wait_for_all([&handle], Instant::now() + Duration::from_mins(1));
        let is_owned = tree.owns_living_orphan(pid);
        child.wait().unwrap();
        assert!(has_ended && was_owned && !is_owned, "{has_ended} {was_owned} {is_owned}");
    }

    /// Another process reaps a killed daemon's leader, at any time; the next daemon may have an order for it just then.
    #[test]
    fn r126_process_with_the_reused_pid_of_a_leader_is_no_member() {
        let folder = tempfile::tempdir().unwrap();
        let mut gone = Command::new("true").spawn().unwrap();
        let handle = PidFd::open(gone.id().cast_signed()).unwrap();
        gone.wait().unwrap();
        // Once it writes, it leads a session.
        let mut setsid = Command::new("setsid");
        setsid.args(["sh", "-c", "echo; exec sleep 1000"]).stdout(Stdio::piped());
        let mut other = setsid.spawn().unwrap();
        let pid = other.id().cast_signed();
        other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let stat = Stat::of(pid).unwrap();
        let mut tree = inherited(&OutputFolder::open(folder.path().to_path_buf()).unwrap());
        (tree.leader, tree.has_leader, tree.handle) = (pid, true, Some(Arc::new(handle)));
        let members = tree.members(8).unwrap();
        let (_, had_stopped) = tree.pause(None);
        let owns_session = tree.owns_orphan(pid, &stat);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(stat.session, pid);
        assert!(
            members.is_empty() && had_stopped && !owns_session,
            "{members:?} {had_stopped} {owns_session}"
        );
    }
}
