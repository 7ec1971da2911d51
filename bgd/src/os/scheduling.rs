//! How the kernel schedules this process: niceness, scheduling policy and allowed CPUs. Children inherit all three.

use bgd_shared::proc::ProcessStat;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rustix::process::setpriority_process;

/// The first process, whose CPUs are those that the machine or container leaves to programs in general.
const INIT: Pid = Pid::from_raw(1);

/// Undoes what was inherited from the program that started this process, which may have been meant for that program
/// only, as in `taskset 1 bgctl submit`: allows all CPUs and sets the niceness to 0, as far as permitted. Must be called
/// before there are other threads, which would keep theirs.
pub fn reset() {
    if let Err(error) = allow_cpus() {
        tracing::warn!(%error, "cannot allow all CPUs: tasks run only on those of the daemon's starter");
    }
    // Only privileged processes may lower it; `warning` tells the user.
    let _ = setpriority_process(None, 0);
}

/// Allows all CPUs that the first process may use, but none that are reserved (`isolcpus`).
fn allow_cpus() -> nix::Result<()> {
    let this = Pid::from_raw(0);
    let (mut cpus, more) = (sched_getaffinity(this)?, sched_getaffinity(INIT)?);
    for cpu in 0..CpuSet::count() {
        if more.is_set(cpu)? {
            cpus.set(cpu)?;
        }
    }
    sched_setaffinity(this, &cpus)
}

/// Returns a warning if this process, and so every task, yields to other programs. `None` if a service manager has
/// started it, whose settings are deliberate.
pub fn warning() -> Option<String> {
    let is_service = std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let stat = ProcessStat::own().filter(|_| !is_service)?;
    slow(stat.field(19)?, stat.field(41)?)
}

/// Returns the warning for this niceness and policy, a number of sched(7).
fn slow(niceness: i32, policy: i32) -> Option<String> {
    let how = match policy {
        libc::SCHED_BATCH => "with the scheduling policy SCHED_BATCH".to_owned(),
        libc::SCHED_IDLE => "with the scheduling policy SCHED_IDLE".to_owned(),
        _ if niceness > 0 => format!("at niceness {niceness}"),
        _ => return None,
    };
    Some(format!(
        "the daemon runs {how}, as the program that started it did, and so do all tasks; run `bgctl daemon restart` \
         from a shell of normal priority"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r08_only_lowered_priority_is_warned_of() {
        assert_eq!([slow(0, libc::SCHED_OTHER), slow(-5, libc::SCHED_RR)], [None, None]);
        for (niceness, policy, how) in [
            (19, libc::SCHED_OTHER, "at niceness 19"),
            (0, libc::SCHED_IDLE, "SCHED_IDLE"),
            (0, libc::SCHED_BATCH, "BATCH"),
        ] {
            let warning = slow(niceness, policy).unwrap();
            assert!(warning.contains(how) && warning.contains("`bgctl daemon restart`"), "{warning}");
        }
    }
}
