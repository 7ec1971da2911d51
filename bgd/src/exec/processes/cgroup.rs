//! A task's cgroup: creating it, listing its processes, freezing, killing and removing it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use bgd_shared::proc;

/// Reports whether a process is in this cgroup or in one nested in it. The name identifies the cgroup, as it begins
/// with a task's id.
pub(in crate::exec) fn is_in_cgroup(pid: i32, cgroup: &Path) -> bool {
    let name = cgroup.file_name().unwrap_or_default().to_string_lossy();
    proc::cgroup(pid).is_some_and(|path| path.split('/').any(|part| part == name))
}

pub(in crate::exec) fn cgroup_pids(cgroup: &Path) -> Vec<i32> {
    with_nested(cgroup).iter().flat_map(|cgroup| proc::pids_in(&cgroup.join("cgroup.procs"))).collect()
}

/// Returns a cgroup and all below it, each before those nested in it. Does not recurse, as a task may nest cgroups
/// deeper than a thread's stack allows.
fn with_nested(cgroup: &Path) -> Vec<PathBuf> {
    let mut all = vec![cgroup.to_owned()];
    let mut next = 0;
    while let Some(cgroup) = all.get(next) {
        let entries = fs::read_dir(cgroup).into_iter().flatten().filter_map(Result::ok);
        let nested = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let nested: Vec<PathBuf> = nested.map(|entry| entry.path()).collect();
        all.extend(nested);
        next += 1;
    }
    all
}

/// Creates a cgroup, or uses the existing one if `may_exist`. Returns its `cgroup.procs`, for the processes that join
/// it.
pub fn make(cgroup: &Path, may_exist: bool) -> io::Result<OwnedFd> {
    match fs::create_dir(cgroup) {
        Err(error) if may_exist && error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    Ok(fs::File::options().write(true).open(cgroup.join("cgroup.procs"))?.into())
}

/// Kills all processes of a cgroup at once.
pub fn kill(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.kill"), "1")
}

/// Kills all processes below a cgroup, except those in the `spared` cgroups directly below it.
pub fn kill_except(cgroup: &Path, spared: &BTreeSet<PathBuf>) -> io::Result<()> {
    if spared.is_empty() {
        return kill(cgroup);
    }
    for entry in fs::read_dir(cgroup)?.flatten().filter(|entry| entry.path().is_dir()) {
        if !spared.contains(&entry.path()) {
            kill(&entry.path())?;
        }
    }
    Ok(())
}

/// Freezes or thaws all processes of a cgroup and below it.
pub fn freeze(cgroup: &Path, frozen: bool) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.freeze"), if frozen { "1" } else { "0" })
}

/// Reports whether a cgroup is set to be frozen.
pub fn is_frozen(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.freeze")).is_ok_and(|state| state.trim_end() == "1")
}

/// How long a cgroup whose processes have ended may take to become empty.
const EMPTYING: Duration = Duration::from_secs(5);

/// Removes a cgroup whose processes have ended, with those nested in it. An ended process stays in its cgroup for
/// another moment, so this waits until the kernel reports the cgroup empty; call it on a worker.
pub fn remove(cgroup: &Path) {
    remove_by(cgroup, Instant::now() + EMPTYING);
}

/// Like [`remove`], but waits until this deadline at most.
pub fn remove_by(cgroup: &Path, deadline: Instant) {
    if let Err(error) = until_empty(cgroup, deadline) {
        tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup can't be watched");
    }
    remove_empty_cgroup(cgroup);
}

/// Removes the cgroups directly below one whose processes have ended, like [`remove`], but not the `spared` ones; if
/// none of these is below it, removes the cgroup itself.
pub fn remove_except(cgroup: &Path, spared: &BTreeSet<PathBuf>) {
    if !spared.iter().any(|spared| spared.starts_with(cgroup)) {
        return remove(cgroup);
    }
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        if !spared.contains(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Waits until no process is in a cgroup or below it. The kernel reports a change of `cgroup.events` as an
/// exceptional condition (`POLLPRI`).
fn until_empty(cgroup: &Path, deadline: Instant) -> io::Result<()> {
    wait_for_event(cgroup, "populated 0", deadline).map(drop)
}

/// Waits until all processes of a cgroup and below it are frozen, like [`until_empty`]. Returns whether all are.
pub fn until_frozen(cgroup: &Path, deadline: Instant) -> io::Result<bool> {
    wait_for_event(cgroup, "frozen 1", deadline)
}

fn wait_for_event(cgroup: &Path, word: &str, deadline: Instant) -> io::Result<bool> {
    let mut events = fs::File::open(cgroup.join("cgroup.events"))?;
    loop {
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let says = text.lines().any(|line| line == word);
        if says || left.is_zero() {
            return Ok(says);
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn remove_empty_cgroup(cgroup: &Path) {
    for cgroup in with_nested(cgroup).into_iter().rev() {
        if let Err(error) = fs::remove_dir(&cgroup) {
            tracing::debug!(cgroup = %cgroup.display(), %error, "cgroup not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// The longest path that the system allows has room for 2000 levels.
    const DEPTH: usize = 1500;

    /// Less than a recursion would need at `DEPTH` levels.
    const STACK_BYTES: usize = 128 * 1024;

    #[test]
    fn r05_deeply_nested_cgroups_are_read_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("task");
        let mut cgroup = top.clone();
        for pid in 1..=DEPTH {
            make_folder(&cgroup, pid);
            cgroup.push("n");
        }
        make_folder(&top.join("beside"), DEPTH + 1);
        let of_thread = top.clone();
        let read = move || {
            let pids = cgroup_pids(&of_thread);
            for cgroup in with_nested(&of_thread) {
                fs::remove_file(cgroup.join("cgroup.procs")).unwrap();
            }
            remove_empty_cgroup(&of_thread);
            pids
        };
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(read).unwrap();
        let mut pids = thread.join().unwrap();
        pids.sort_unstable();
        let all = 1..=i32::try_from(DEPTH + 1).unwrap();
        assert!(pids.into_iter().eq(all), "each process is found once");
        assert!(!top.exists());
    }

    /// Makes a folder that looks like a cgroup with this process.
    fn make_folder(cgroup: &Path, pid: usize) {
        fs::create_dir(cgroup).unwrap();
        fs::write(cgroup.join("cgroup.procs"), format!("{pid}\n")).unwrap();
    }
}
