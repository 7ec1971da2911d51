//! A mark on processes that survives a cleared environment: a resource limit.
//!
//! Every process of a task inherits its resource limits, whatever happens to its session, parents, environment and
//! descriptors, and every user may read them in `/proc/PID/limits`. One of them, `RLIMIT_LOCKS`, has had no effect
//! since Linux 2.4.25 and is unlimited everywhere. So its soft value can identify the task: 31 bits for the daemon
//! instance, 32 for the start. Only a process that sets this very limit itself loses the mark.

use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::os::limit;

/// The resource whose soft limit is the mark.
pub const RESOURCE: Resource = Resource::RLIMIT_LOCKS;

/// The mark of all processes of one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark(u64);

impl Mark {
    /// The highest soft limit that is below every mark.
    pub const BELOW_ALL: u64 = (1 << 62) - 1;

    /// Reports whether a process carries this mark. May block for a moment, as it may read `/proc`.
    pub fn is_on(self, pid: i32) -> bool {
        of(pid) == Some(self)
    }

    /// Reports whether a process carries the mark of another start of the same instance, as far as a single system call
    /// shows.
    pub fn is_of_another(self, pid: i32) -> bool {
        let soft = limit::asked(pid, RESOURCE).ok().flatten();
        soft.and_then(Self::read).is_some_and(|other| other != self && other.0 >> 32 == self.0 >> 32)
    }

    /// Returns the mark that a soft limit encodes, if any.
    fn read(soft: u64) -> Option<Self> {
        (soft >> 62 == 1).then_some(Self(soft))
    }

    /// Returns the number of its start within its instance.
    pub fn number(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Returns the soft limit to start a process with.
    pub fn soft_limit(self) -> u64 {
        self.0
    }
}

/// Generates the marks of one daemon instance.
#[derive(Debug)]
pub struct Marks {
    instance: u64,
    next: AtomicU32,
}

impl Marks {
    /// Creates the generator for the instance with this id, a UUID. `first` is the number of its first mark: 1, or the
    /// value of [`Self::number`] in the previous program.
    pub fn new(instance: &str, first: u32) -> Self {
        Self { instance: bits_of(instance), next: AtomicU32::new(first) }
    }

    /// Returns the number of the next mark.
    pub fn number(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns a mark that no other start of this instance has; marks repeat after 2^32 starts.
    pub fn next(&self) -> Mark {
        Mark((self.instance << 32) | u64::from(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Reports whether a process carries any mark of the instance with this id. May block for a moment, as it may read
/// `/proc`.
pub fn is_of_instance(pid: i32, instance: &str) -> bool {
    of(pid).is_some_and(|mark| mark.0 >> 32 == bits_of(instance))
}

/// Removes the mark from this process: a daemon that was started by a task of another daemon does not belong to that
/// task.
///
/// # Errors
/// Returns the system error.
pub fn remove_own() -> nix::Result<()> {
    let (soft, hard) = getrlimit(RESOURCE)?;
    if soft == hard { Ok(()) } else { setrlimit(RESOURCE, hard, hard) }
}

/// Returns the first 31 bits of an instance's id, with the highest of them set: the resulting limit is neither infinite
/// nor one that a person would set.
fn bits_of(instance: &str) -> u64 {
    let bits = uuid::Uuid::parse_str(instance).map_or(0, |id| id.as_u64_pair().0 >> 33);
    bits | 1 << 30
}

/// Returns the mark of a process, if it has one. May block for a moment, as it may read `/proc`.
pub fn of(pid: i32) -> Option<Mark> {
    limit::soft(pid, RESOURCE, "Max file locks").and_then(Mark::read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ef3673cc-470a-4390-9d0a-d0330b382430";

    #[test]
    fn marks_are_unique_and_identify_their_instance() {
        let marks = Marks::new(ID, 1);
        let (first, second) = (marks.next(), marks.next());
        assert_ne!(first, second);
        assert!([first, second].iter().all(|mark| mark.0 >> 32 == bits_of(ID) && mark.0 >> 62 == 1));
        assert_eq!(Marks::new(ID, marks.number()).next().0, second.0 + 1, "they go on after an upgrade");
        assert_ne!(bits_of(ID), bits_of("0f3673cc-470a-4390-9d0a-d0330b382430"));
    }

    #[test]
    fn mark_identifies_processes_of_another_start() {
        use std::time::{Duration, Instant};

        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

        use crate::os::pidfd::{PidFd, wait_for_all};

        let other_instance = Marks::new("0f3673cc-470a-4390-9d0a-d0330b382430", 1).next();
        let marks = Marks::new(ID, 1);
        let [own, another] = [marks.next(), marks.next()];
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let soft = Some(own.soft_limit());
        let limit = Rlimit { current: soft, maximum: getrlimit(Resource::Locks).maximum };
        prlimit(Pid::from_raw(pid), Resource::Locks, limit).unwrap();
        let seen = [own, another, other_instance].map(|mark| (mark.is_on(pid), mark.is_of_another(pid)));
        let handle = PidFd::open(pid).unwrap();
        child.kill().unwrap();
        assert!(wait_for_all([&handle], Instant::now() + Duration::from_mins(1)));
        // Until it is reaped, it shows its mark.
        let ended = [own, another, other_instance].map(|mark| (mark.is_on(pid), mark.is_of_another(pid)));
        child.wait().unwrap();
        assert_eq!(seen, [(true, false), (false, true), (false, false)]);
        assert_eq!(ended, seen);
        assert!(!own.is_of_another(std::process::id().cast_signed()), "nobody has marked it");
    }

    #[test]
    fn unmarked_process_has_no_mark() {
        assert_eq!(of(std::process::id().cast_signed()), None);
        assert_eq!(of(-1), None);
    }
}
