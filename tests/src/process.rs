//! Processes that need not be children, held by a pidfd so that a signal never hits a recycled pid.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memchr::memmem;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, prlimit,
};

use crate::wait;

/// A process that need not be a child of this one.
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process with this pid, if there is one.
    pub fn open(pid: i32) -> Option<Self> {
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, pidfd })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Reports whether it is alive. A zombie is not.
    pub fn is_alive(&self) -> bool {
        !self.wait_gone(Duration::ZERO)
    }

    /// Waits until it is dead; fails the test after [`wait::PATIENCE`].
    #[track_caller]
    pub fn gone(&self) {
        assert!(self.wait_gone(wait::PATIENCE), "{self:?} does not die");
    }

    /// Waits at most this long until the process is dead. Reports whether it is.
    pub fn wait_gone(&self, at_most: Duration) -> bool {
        wait::readable(self.pidfd.as_fd(), at_most)
    }

    /// Sends a signal. It is no error if the process is already gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills it and waits until it is dead.
    pub fn kill(&self) {
        self.signal(Signal::KILL).expect("a process of this user can be killed");
        self.gone();
    }

    /// Limits this resource for the process from now on; `None` is as much as this process may have.
    #[track_caller]
    pub fn limit(&self, resource: Resource, current: Option<u64>) {
        let maximum = getrlimit(resource).maximum;
        let limit = Rlimit { current: current.or(maximum), maximum };
        prlimit(Pid::from_raw(self.pid), resource, limit).expect("a process of this user can be limited");
    }

    /// Returns the arguments, separated by blanks; empty if the process is gone.
    pub fn cmdline(&self) -> String {
        let bytes = fs::read(self.proc("cmdline")).unwrap_or_default();
        let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        words.join(" ").trim_end().to_owned()
    }

    /// Returns a file of the process in `/proc`, such as `status`.
    pub fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// Returns a value of `/proc/PID/status`, such as `VmRSS`, without its unit.
    pub fn status_value(&self, name: &str) -> Option<u64> {
        value_of(&fs::read_to_string(self.proc("status")).ok()?, name)
    }

    /// Returns a value of `/proc/PID/smaps_rollup`, such as `Pss`, in kB.
    pub fn memory_kb(&self, name: &str) -> Option<u64> {
        value_of(&fs::read_to_string(self.proc("smaps_rollup")).ok()?, name)
    }

    /// Returns the private memory of the process in KiB, without changed pages in the mappings of its program's file.
    #[track_caller]
    pub fn own_memory_kb(&self) -> u64 {
        let program = fs::read_link(self.proc("exe")).expect("a process that may be looked at");
        let program = program.into_os_string().into_string().expect("a path in UTF-8");
        let maps = fs::read_to_string(self.proc("smaps")).expect("a process that may be looked at");
        let (mut is_program, mut sum) = (false, 0);
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("Private_Dirty:") if !is_program => {
                    sum += words.next().and_then(|kb| kb.parse::<u64>().ok()).expect("a size");
                }
                Some(first) if !first.ends_with(':') => is_program = line.ends_with(&program),
                _ => {}
            }
        }
        sum
    }

    /// Returns how often this text occurs in the memory of the process, as a debugger or a core file would find it.
    /// Requires permission to read it.
    #[track_caller]
    pub fn remembers(&self, needle: &str) -> usize {
        let maps = fs::read_to_string(self.proc("maps")).expect("a process that may be looked at");
        let memory = fs::File::open(self.proc("mem")).expect("a process that may be looked at");
        let regions = maps.lines().filter_map(readable_region);
        let mut found = 0;
        for (begin, end) in regions {
            let mut bytes = vec![0; usize::try_from(end - begin).expect("it is mapped")];
            // Regions that the kernel reserves for itself cannot be read, and are not the process's doing.
            if memory.read_exact_at(&mut bytes, begin).is_ok() {
                found += memmem::find_iter(&bytes, needle).count();
            }
        }
        found
    }

    pub fn threads(&self) -> Vec<i32> {
        let names = fs::read_dir(self.proc("task")).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Returns how often its threads have gone to sleep so far.
    pub fn switches(&self) -> u64 {
        let of = |thread: i32| {
            let status = fs::read_to_string(self.proc(&format!("task/{thread}/status"))).ok()?;
            value_of(&status, "voluntary_ctxt_switches")
        };
        self.threads().into_iter().filter_map(of).sum()
    }

    /// Returns the names of the threads, sorted.
    pub fn thread_names(&self) -> Vec<String> {
        let comm = |id: &i32| fs::read_to_string(self.proc(&format!("task/{id}/comm"))).ok();
        let mut names: Vec<_> = self.threads().iter().filter_map(comm).collect();
        for name in &mut names {
            name.truncate(name.trim_end().len());
        }
        names.sort_unstable();
        names
    }

    /// Waits for the thread with this name. A thread gives itself its name, which may be after its process reports that
    /// it is ready.
    #[track_caller]
    pub fn thread(&self, name: &str) -> i32 {
        let comm = |id: &i32| fs::read_to_string(self.proc(&format!("task/{id}/comm")));
        let is_meant = |id: &i32| comm(id).is_ok_and(|comm| comm.trim_end() == name);
        wait::poll_until(name, || self.threads().into_iter().find(is_meant))
    }

    /// Returns the number of open descriptors.
    pub fn descriptors(&self) -> Option<usize> {
        Some(fs::read_dir(self.proc("fd")).ok()?.count())
    }

    /// Returns the processor time that the process has used, without its children.
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(self.proc("stat")).ok()?;
        // The name, in parentheses, may contain anything; the third field follows it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    }

    /// Returns the processor time that its first thread has used, much finer than [`Self::cpu_time`].
    pub fn first_thread_time(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.proc("schedstat")).ok()?;
        Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
    }

    /// Reports whether the environment of the process names this folder or the process runs in it.
    fn belongs_to(&self, home: &Path) -> bool {
        let environ = fs::read(self.proc("environ")).unwrap_or_default();
        let needle = home.as_os_str().as_bytes();
        memmem::find(&environ, needle).is_some()
            || fs::read_link(self.proc("cwd")).is_ok_and(|cwd| cwd.starts_with(home))
    }
}

impl AsFd for Process {
    /// Returns the pidfd, which becomes readable when the process is dead.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.cmdline())
    }
}

/// Returns the range of a line of `/proc/PID/maps`, if it is readable.
fn readable_region(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let (begin, end) = range.split_once('-').filter(|_| rest.starts_with('r'))?;
    Some((u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn value_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns every living process whose environment names this folder or that runs in it. The folder has a random name,
/// so these are exactly the processes that the test has started.
pub fn processes_of(home: &Path) -> Vec<Process> {
    living_processes(|process| process.belongs_to(home))
}

/// Returns every living process that `is_meant` accepts.
pub(crate) fn living_processes(is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
    let names = fs::read_dir("/proc").expect("/proc is there").flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::open)
        // The process was inspected after it was opened and is still alive, so the pid was not reused in between.
        .filter(|process| is_meant(process) && process.is_alive())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    #[test]
    fn process_is_found_by_its_home_and_its_death_noticed() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(processes_of(home.path()).len(), 0);
        let mut command = Command::new("cat");
        command.env("SOME_HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The environment is readable only once the process runs, a moment after its start is known.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let found = processes_of(home.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cmdline(), "cat");
        assert!(found[0].is_alive());
        found[0].kill();
        assert!(!found[0].is_alive());
        assert!(processes_of(home.path()).is_empty(), "a zombie does not count");
        child.wait().unwrap();
    }

    #[test]
    fn own_process_facts_are_readable() {
        let me = Process::open(std::process::id().cast_signed()).unwrap();
        assert!(me.status_value("VmRSS").unwrap() > 100);
        assert!(me.memory_kb("Pss").unwrap() > 100);
        assert!(me.cpu_time().is_some() && me.first_thread_time().is_some());
        assert!(!me.threads().is_empty());
        let text = format!("a text that {} has", std::process::id());
        assert!(me.remembers(&text) > 0);
    }
}
