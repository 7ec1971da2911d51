//! Processes that were signalled to end between their fork and their exec.
//!
//! Until it executes its own program, a child has the signal handlers of its parent, which swallow a signal that was
//! meant to end the child: a shell's `sleep` would then keep running, and its shell wait for it. So such children are
//! signalled again when they execute another program. This module only looks at them and signals them; the decision to
//! end them is made elsewhere.

use std::time::{Duration, Instant};

use super::members::{Image, Member, Stat};

/// How long after its fork a process may take to execute its program, even on a machine that stalls.
const YOUNG: Duration = Duration::from_secs(10);

/// How long after the signal such a process is watched: less than the 5 s that an upgrade waits for it.
const WATCHED: Duration = Duration::from_secs(3);

/// The maximum number of processes watched at once; each takes up a descriptor.
const MAX: usize = 64;

/// Processes that are signalled again if they execute another program soon.
#[derive(Debug, Default)]
pub struct ForkedCopies {
    watched: Vec<ForkedCopy>,
}

#[derive(Debug)]
struct ForkedCopy {
    member: Member,
    image: Image,
    until: Instant,
}

impl ForkedCopies {
    /// Returns those of these processes that may still be copies of their parents. Call it before they are signalled.
    /// `leader` was started with its program, so it is never one of them. `is_frozen` states whether their cgroup is
    /// frozen.
    pub fn among(members: &[Member], leader: Option<i32>, is_frozen: bool) -> Self {
        Self::younger(members, leader, is_frozen, [YOUNG, WATCHED])
    }

    /// Like [`Self::among`], with another maximum age and another watch time (`limits`).
    fn younger(members: &[Member], leader: Option<i32>, is_frozen: bool, limits: [Duration; 2]) -> Self {
        let others = members.iter().filter(|member| Some(member.pid) != leader);
        Self {
            watched: others
                .filter_map(|member| ForkedCopy::of(member, is_frozen, limits))
                .take(MAX)
                .collect(),
        }
    }

    /// Also watches these, up to the maximum.
    pub fn add(&mut self, others: Self) {
        self.watched.extend(others.watched);
        self.watched.truncate(MAX);
    }

    /// Reports whether no process is left to watch.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Signals the processes that have executed another program by now.
    pub fn signal(&mut self, signal: i32) {
        let now = Instant::now();
        self.watched.retain(|copy| {
            let lives = !copy.member.handle.has_ended();
            let has_changed = Stat::of(copy.member.pid).is_some_and(|stat| stat.image != copy.image);
            if lives && has_changed {
                copy.member.send(signal);
            }
            lives && !has_changed && now < copy.until
        });
    }
}

impl ForkedCopy {
    fn of(member: &Member, is_frozen: bool, [young, watched]: [Duration; 2]) -> Option<Self> {
        let stat = Stat::of(member.pid)?;
        let me = std::process::id().cast_signed();
        // The program of an orphan's original parent is unknown.
        let is_copy =
            stat.parent == me || Stat::of(stat.parent).is_some_and(|parent| parent.image == stat.image);
        // A stopped process, in a paused tree for example, counts as young however long it has existed.
        let is_young = stat.age() <= young || stat.state == 'T' || is_frozen;
        if !is_copy || !is_young {
            return None;
        }
        let member = Member { pid: member.pid, handle: member.handle.try_clone().ok()? };
        Some(Self { member, image: stat.image, until: Instant::now() + watched })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::os::pidfd::PidFd;

    /// No test takes that long.
    const LONG: Duration = Duration::from_mins(1);

    fn member(pid: u32) -> Member {
        let pid = pid.cast_signed();
        Member { pid, handle: PidFd::open(pid).unwrap() }
    }

    /// Starts a shell whose child prints its pid, swallows SIGTERM, and becomes `sleep` at the end of a line. A signal
    /// that arrives during `read` ends it in some shells, hence the loop.
    fn family() -> (Child, BufReader<std::process::ChildStdout>, Member) {
        let script = "trap : TERM; (trap : TERM; sh -c 'echo $PPID'; until read line; do :; done; exec sleep 1000) \
                      <&3 & wait; wait";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec 3<&0; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let copy = member(line.trim().parse().unwrap());
        (child, said, copy)
    }

    /// Waits for a state of the process that nothing announces.
    fn until(pid: i32, is_reached: impl Fn(&Stat) -> bool) {
        let end = Instant::now() + LONG;
        while !is_reached(&Stat::of(pid).unwrap()) {
            assert!(Instant::now() < end, "process {pid} stays as it is");
            std::thread::yield_now();
        }
    }

    /// Lets the child of a [`family`] execute its program, and signals it until it counts as ended or no copy.
    fn is_ended_at_exec(
        mut copies: ForkedCopies,
        mut parent: Child,
        said: BufReader<std::process::ChildStdout>,
    ) {
        parent.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while !copies.is_empty() {
            copies.signal(libc::SIGTERM);
        }
        // Once both have ended, no process has the pipe open.
        parent.wait().unwrap();
        assert_eq!(said.lines().count(), 0);
    }

    #[test]
    fn forked_copy_is_signalled_again_until_it_execs() {
        let (parent, said, child) = family();
        let members = [member(parent.id()), child];
        let mut copies = ForkedCopies::younger(&members, Some(members[0].pid), false, [LONG; 2]);
        assert_eq!(copies.watched.len(), 1, "{copies:?}");
        members[1].send(libc::SIGTERM);
        copies.signal(libc::SIGTERM);
        assert!(!copies.is_empty(), "it is still a copy");
        is_ended_at_exec(copies, parent, said);
    }

    #[test]
    fn long_stopped_forked_copy_still_counts_as_young() {
        let (parent, said, child) = family();
        let members = [member(parent.id()), child];
        let young = Duration::from_millis(10);
        let copies = || ForkedCopies::younger(&members, Some(members[0].pid), false, [young, LONG]);
        until(members[1].pid, |stat| stat.age() > young);
        assert!(copies().is_empty(), "it is too old");
        members[1].send(libc::SIGSTOP);
        until(members[1].pid, |stat| stat.state == 'T');
        let copies = copies();
        assert_eq!(copies.watched.len(), 1, "{copies:?}");
        members[1].send(libc::SIGTERM);
        members[1].send(libc::SIGCONT);
        is_ended_at_exec(copies, parent, said);
    }

    #[test]
    fn process_that_already_execed_is_no_forked_copy() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let members = [member(child.id())];
        // This process, its parent, is taken for the daemon; only the leader is known to run its own program already.
        assert!(ForkedCopies::among(&members, Some(members[0].pid), false).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
