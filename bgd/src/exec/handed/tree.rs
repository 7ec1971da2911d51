//! The tree of a process that another program started. None of its processes is the daemon's child, so their orphans go
//! to other parents and carry no mark.
//!
//! The tree consists of the leader, its descendants, and the members of the session or process group that the leader
//! leads. Pidfds of all of them are opened before the first is signalled, and those of survivors stay open: so a
//! process that leaves the session and loses its parent because of that signal is still reached by the next one. A
//! process that did so before the first signal is not found.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use bgd_shared::mutex::Mutex;

use super::facts::{Leads, is_pid_of};
use crate::exec::processes::forked::ForkedCopies;
use crate::exec::processes::members::{
    MAX_DEPTH, Member, Order, Stat, ancestors_of, descendants_of, hold, hold_all, processes_of_user,
};
use crate::os::pidfd::{PidFd, SIGKILL};

const SIGSTOP: i32 = libc::SIGSTOP;

/// The state of the tree of a process that another program started.
#[derive(Debug)]
pub struct HandedTree {
    leader: i32,
    /// The leader's pidfd, which shows whether the pid is still its own.
    handle: PidFd,
    leads_session: AtomicBool,
    leads_group: AtomicBool,
    /// Processes that were signalled and are still alive.
    held: Mutex<Vec<Member>>,
}

impl HandedTree {
    /// Creates the tree of this process.
    pub fn new(leader: i32, handle: PidFd) -> Self {
        let tree = Self {
            leader,
            handle,
            leads_session: AtomicBool::new(false),
            leads_group: AtomicBool::new(false),
            held: Mutex::default(),
        };
        tree.current_leads();
        tree
    }

    /// Recreates the tree of another program: whether the leader leads a session and a group, and the signalled
    /// processes.
    pub fn restore(leader: i32, handle: PidFd, leads: (bool, bool), held: Vec<Member>) -> Self {
        Self {
            leader,
            handle,
            leads_session: AtomicBool::new(leads.0),
            leads_group: AtomicBool::new(leads.1),
            held: Mutex::new(held),
        }
    }

    /// Returns whether the leader leads a session and a group, and the pids and pidfds of signalled processes that
    /// still live.
    pub fn state(&self) -> ((bool, bool), Vec<(i32, RawFd)>) {
        let Self { leader: _, handle: _, leads_session, leads_group, held: _ } = self;
        let held = self.living();
        let held = held.iter().map(|member| (member.pid, member.handle.as_fd().as_raw_fd())).collect();
        ((leads_session.load(Ordering::Relaxed), leads_group.load(Ordering::Relaxed)), held)
    }

    pub fn handle(&self) -> &PidFd {
        &self.handle
    }

    /// Reports whether nothing can be left once the leader has ended.
    pub fn is_plainly_empty(&self) -> bool {
        let leads = self.current_leads();
        let has_group = leads.group && group_exists(self.leader);
        !leads.session && !has_group && self.living().is_empty()
    }

    /// Returns living processes of the tree, at most this many.
    ///
    /// # Errors
    /// No descriptor is left for even one pidfd.
    pub fn members(&self, at_most: usize) -> io::Result<Vec<Member>> {
        let held = self.living();
        let known = numbers(&held);
        let mut found = Vec::new();
        let copies = held.iter().map(|member| {
            let handle = member.handle.try_clone()?;
            Ok(Some(Member { pid: member.pid, handle }))
        });
        let others = self.pids(&known).into_iter().filter(|pid| !known.contains(pid));
        for member in copies.chain(others.map(|pid| self.member(pid, &known))) {
            match member {
                Ok(member) => found.extend(member),
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => break,
            }
            if found.len() >= at_most {
                break;
            }
        }
        Ok(found)
    }

    /// Visits every living process of the tree, one after the other. Returns false if a process could not be visited, as
    /// no descriptor is left.
    pub(in crate::exec) fn visit(&self, order: Order, mut visitor: impl FnMut(&Member)) -> bool {
        let held = self.living();
        let known = numbers(&held);
        let by_pid: HashMap<i32, &Member> = held.iter().map(|member| (member.pid, member)).collect();
        let mut has_seen_all = true;
        for pid in order.of(self.pids(&known)) {
            match by_pid.get(&pid).filter(|_| known.contains(&pid)) {
                Some(member) => visitor(member),
                None => match self.member(pid, &known) {
                    Ok(member) => member.iter().for_each(&mut visitor),
                    Err(error) => {
                        tracing::debug!(leader = self.leader, pid, %error, "cannot reach a process");
                        has_seen_all = false;
                    }
                },
            }
        }
        has_seen_all
    }

    /// Sends a signal to every living process of the tree. Returns false if a process could not be reached because no
    /// descriptor is left for its pidfd, and the forked copies that may have swallowed the signal.
    pub fn signal(&self, signal: i32) -> (bool, ForkedCopies) {
        let mut held = self.living();
        let (mut reached_all, mut stopped) = (true, 0);
        loop {
            let known = numbers(&held);
            let pids = self.pids(&known).into_iter().filter(|pid| !known.contains(pid));
            let (_, missed) = hold_all(&mut held, pids, signal, |pid| self.member(pid, &known));
            for (pid, error) in &missed {
                tracing::warn!(leader = self.leader, pid, signal, %error, "cannot reach a process");
            }
            reached_all &= missed.is_empty();
            // The children of killed processes go to unknown parents. A stopped process creates no children, so
            // processes are stopped until no further one is found.
            if signal != SIGKILL || held.len() <= stopped || !reached_all {
                break;
            }
            held[stopped..].iter().for_each(|member| member.send(SIGSTOP));
            stopped = held.len();
        }
        let forked = ForkedCopies::among(&held, None, false);
        held.iter().for_each(|member| member.send(signal));
        (reached_all, forked)
    }

    /// Returns the processes that were signalled before and have not ended yet.
    fn living(&self) -> MutexGuard<'_, Vec<Member>> {
        let mut held = self.held.lock();
        held.retain(|member| !member.handle.has_ended());
        held
    }

    /// Reports whether the pid still is the leader's: it lives, or is a zombie.
    fn leader_is_there(&self) -> bool {
        is_pid_of(self.leader, &self.handle)
    }

    /// Returns whether the leader leads a session and a group, as far as known: it may begin to lead at any time, which
    /// can't be looked up after it has been reaped.
    fn current_leads(&self) -> Leads {
        if let Some(stat) = Stat::of(self.leader)
            && self.leader_is_there()
        {
            self.leads_session.store(stat.session == self.leader, Ordering::Relaxed);
            self.leads_group.store(stat.group == self.leader, Ordering::Relaxed);
        } else if Stat::of(self.leader).is_some() {
            // The pid has been reused. The kernel does not reuse it while a session or a group has that id, so both are
            // empty.
            return Leads { session: false, group: false };
        }
        Leads {
            session: self.leads_session.load(Ordering::Relaxed),
            group: self.leads_group.load(Ordering::Relaxed),
        }
    }

    /// Returns the pids of processes that seem to belong to the tree, which includes `held`.
    fn pids(&self, held: &HashSet<i32>) -> Vec<i32> {
        let leads = self.current_leads();
        let mut roots: Vec<i32> = held.iter().copied().collect();
        if self.leader_is_there() {
            roots.push(self.leader);
        }
        if leads.session || (leads.group && group_exists(self.leader)) {
            roots.extend(processes_of_user().into_iter().filter(|pid| self.is_led(*pid, leads)));
        }
        let spared = protected_processes();
        let mut seen = HashSet::new();
        let mut found = descendants_of(&roots);
        found.retain(|pid| !spared.contains(pid) && seen.insert(*pid));
        found
    }

    fn is_led(&self, pid: i32, leads: Leads) -> bool {
        Stat::of(pid).is_some_and(|stat| {
            (leads.session && stat.session == self.leader) || (leads.group && stat.group == self.leader)
        })
    }

    /// Returns this process if it lives and belongs to the tree; an error if no descriptor is left.
    fn member(&self, pid: i32, held: &HashSet<i32>) -> io::Result<Option<Member>> {
        let Some(handle) = hold(pid)? else { return Ok(None) };
        // As with other trees: opened first, examined next, and still alive afterwards.
        let is_member = self.is_mine(pid, held) && !handle.has_ended();
        Ok(is_member.then_some(Member { pid, handle }))
    }

    /// Reports whether a process that was found in the tree still belongs to it: it or one of its ancestors is held, is
    /// the leader, or is in the session or group that the leader leads.
    fn is_mine(&self, pid: i32, held: &HashSet<i32>) -> bool {
        let leads = self.current_leads();
        let leader_is_there = self.leader_is_there();
        let mut current = pid;
        for _ in 0..MAX_DEPTH {
            let is_leader = leader_is_there && current == self.leader;
            if is_leader || held.contains(&current) || self.is_led(current, leads) {
                return true;
            }
            match Stat::of(current) {
                Some(stat) if stat.parent > 1 => current = stat.parent,
                Some(_) | None => return false,
            }
        }
        false
    }
}

/// Returns the pids of the members that still live, which can't have been reused.
fn numbers(members: &[Member]) -> HashSet<i32> {
    members.iter().filter(|member| !member.handle.has_ended()).map(|member| member.pid).collect()
}

/// Reports whether a process group has members, including zombies. Sends no signal.
fn group_exists(group: i32) -> bool {
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), None) != Err(nix::errno::Errno::ESRCH)
}

/// Returns the daemon and the processes that it runs under, which belong to no task's tree.
fn protected_processes() -> HashSet<i32> {
    ancestors_of(std::process::id().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell that writes a line when it is ready, and returns it with its tree.
    fn tree(line: &str, group: bool) -> (Child, HandedTree) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped());
        if group {
            command.process_group(0);
        }
        let mut child = command.spawn().unwrap();
        let mut word = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut word).unwrap();
        assert_eq!(word, "up\n");
        let pid = child.id().cast_signed();
        let tree = HandedTree::new(pid, PidFd::open(pid).unwrap());
        (child, tree)
    }

    #[test]
    fn sigkill_reaches_held_process_and_its_later_children() {
        let line = "exec 4<&0
            setsid sh -c 'trap \"\" TERM; echo up; read x <&4; sleep 1000 & echo up; wait' & wait";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut word = String::new();
        said.read_line(&mut word).unwrap();
        let pid = child.id().cast_signed();
        let tree = HandedTree::new(pid, PidFd::open(pid).unwrap());
        assert!(tree.signal(libc::SIGTERM).0);
        let stdin = child.stdin.take().unwrap();
        child.wait().unwrap();
        // At the end of its input the shell forks a child that has not been looked for yet.
        drop(stdin);
        said.read_line(&mut word).unwrap();
        assert_eq!(word, "up\nup\n");
        let left = tree.members(8).unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(tree.signal(SIGKILL).0);
        left.iter().for_each(wait_for);
        assert!(tree.members(8).unwrap().is_empty());
    }

    fn wait_for(member: &Member) {
        let mut fds =
            [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&member.handle), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).unwrap();
    }

    #[test]
    fn process_that_left_the_session_stays_a_member() {
        let line = "setsid sh -c 'trap \"\" TERM; echo up >&3; exec sleep 1000 3>&-' 3>&1 >/dev/null & wait";
        let (mut child, tree) = tree(line, false);
        assert!(tree.signal(libc::SIGTERM).0);
        child.wait().unwrap();
        let left = tree.members(8).unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(!tree.is_plainly_empty());
        assert!(tree.signal(libc::SIGKILL).0);
        wait_for(&left[0]);
        assert!(tree.is_plainly_empty() && tree.members(8).unwrap().is_empty());
    }

    #[test]
    fn group_members_are_found_after_the_leader_is_gone() {
        let (mut child, tree) = tree("sleep 1000 >/dev/null & echo up", true);
        child.wait().unwrap();
        let left = tree.members(8).unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(tree.signal(libc::SIGKILL).0);
        wait_for(&left[0]);
        assert!(tree.members(8).unwrap().is_empty());
    }

    #[test]
    fn non_leader_process_does_not_include_its_group() {
        let (mut child, tree) = tree("echo up; exec sleep 1000", false);
        let members = tree.members(8).unwrap();
        assert_eq!(members.iter().map(|member| member.pid).collect::<Vec<_>>(), [child.id().cast_signed()]);
        assert!(tree.signal(libc::SIGKILL).0);
        child.wait().unwrap();
        assert!(tree.is_plainly_empty() && tree.members(8).unwrap().is_empty());
    }
}
