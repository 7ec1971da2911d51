//! The resource limits of other processes.

use bgd_shared::proc;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Returns a process's soft limit; `None` if it is unlimited or can't be read. Falls back to `/proc/PID/limits`, where
/// the resource is called `name`: that file can also be read for processes of other users and groups, but takes far
/// longer.
pub fn soft(pid: i32, resource: Resource, name: &str) -> Option<u64> {
    match asked(pid, resource) {
        Ok(soft) => soft,
        Err(Errno::ESRCH) => None,
        Err(_) => proc::soft_limit(pid, name),
    }
}

/// Returns this process's soft limit; `None` if it is unlimited.
pub fn own(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY)
}

/// Returns a process's soft limit; `None` if it is unlimited.
///
/// # Errors
/// There is no such process, or it belongs to another user or group.
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn asked(pid: i32, resource: Resource) -> nix::Result<Option<u64>> {
    if pid <= 0 {
        return Err(Errno::ESRCH);
    }
    let mut limit = libc::rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY };
    // SAFETY: nothing is set, and the result goes to `limit`, which outlives the call.
    let done = unsafe { libc::prlimit(pid, resource as _, std::ptr::null(), &raw mut limit) };
    Errno::result(done).map(|_| Some(limit.rlim_cur).filter(|soft| *soft != RLIM_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prlimit_and_proc_report_the_same_limit() {
        let (own, files) = (std::process::id().cast_signed(), "Max open files");
        assert!(soft(own, Resource::RLIMIT_NOFILE, files).is_some());
        assert_eq!(soft(own, Resource::RLIMIT_NOFILE, files), proc::soft_limit(own, files));
        assert_eq!(soft(1, Resource::RLIMIT_NOFILE, files), proc::soft_limit(1, files), "that of root's");
        let both =
            [soft(own, Resource::RLIMIT_LOCKS, "Max file locks"), proc::soft_limit(own, "Max file locks")];
        assert_eq!(both[0], both[1], "it may be unlimited");
        assert_eq!([-1, 0].map(|pid| soft(pid, Resource::RLIMIT_NOFILE, files)), [None; 2]);
    }
}
