//! The usage of a task's processes: measured while they live, and totalled when they have ended.

use std::path::Path;

use bgd_shared::id::TaskId;
use bgd_shared::proc::ProcessStat;
use bgd_shared::usage::{LiveUsage, Usage};
use rustix::param::{clock_ticks_per_second, page_size};
use tokio::sync::oneshot;

use super::process::Supervisor;
use crate::core::Fact;

/// The maximum number of processes measured in a handed-over tree: each takes a descriptor for a moment.
const MOST: usize = 256;

impl Supervisor {
    /// Reports the usage of the tree: the cgroup's figures for all processes if there is a cgroup, else `leader`, the
    /// system's figures for the leader. Returns `leader`.
    pub(super) async fn report_usage(&self, leader: Option<Usage>) -> Option<Usage> {
        let all = match self.tree.cgroup.clone() {
            Some(cgroup) => {
                let known = leader.unwrap_or_default();
                self.context.workers.walk(move || of_cgroup(&cgroup, known)).await.flatten()
            }
            None => None,
        };
        if let Some(usage) = all.or(leader) {
            self.report(Fact::Used(usage));
        }
        leader
    }

    /// Measures the tree on a worker, and sends the result.
    pub(super) fn measure_live_usage(&self, done: oneshot::Sender<LiveUsage>) {
        let tree = self.tree.clone();
        self.context.workers.later(move || {
            // The client may have disconnected.
            let _ = done.send(live(tree.task, &tree.pids_now(MOST)));
        });
    }
}

/// Measures the current usage of these processes. Blocks for a short time: call it on a worker.
pub fn live(id: TaskId, pids: &[i32]) -> LiveUsage {
    let per_second = clock_ticks_per_second().max(1);
    let ms = |ticks: u64| ticks.saturating_mul(1000) / per_second;
    let mut sum = LiveUsage { id, processes: 0, user_ms: 0, system_ms: 0, memory_bytes: 0 };
    for (pid, stat) in pids.iter().filter_map(|pid| Some((*pid, ProcessStat::of(*pid)?))) {
        let field = |number| stat.field::<u64>(number).unwrap_or(0);
        // A first thread that has ended has no memory any more.
        let living = stat.living(pid);
        let pages = living.as_ref().unwrap_or(&stat).field::<u64>(24).unwrap_or(0);
        sum.processes += 1;
        // The process's own time, and that of its ended children.
        sum.user_ms += ms(field(14) + field(16));
        sum.system_ms += ms(field(15) + field(17));
        sum.memory_bytes += pages.saturating_mul(page_size() as u64);
    }
    sum
}

/// Returns a cgroup's figures for all its processes. Figures that the cgroup lacks, as a controller is not enabled, are
/// taken from `leader`. `None` if it has no figures at all.
fn of_cgroup(cgroup: &Path, leader: Usage) -> Option<Usage> {
    let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok();
    let cpu = read("cpu.stat")?;
    let ms = |name: &str| Some(number_after(&cpu, name)? / 1000);
    let written = read("io.stat").map_or(0, |io| written(&io, &read("memory.stat").unwrap_or_default()));
    Some(Usage {
        user_ms: ms("user_usec")?,
        system_ms: ms("system_usec")?,
        peak_memory_bytes: read("memory.peak")
            .and_then(|text| text.trim().parse().ok())
            .or(leader.peak_memory_bytes),
        // Not every file system accounts its writes to a cgroup.
        written_bytes: written.max(leader.written_bytes),
    })
}

/// Returns the number of bytes written by all processes of a cgroup: those that have reached the disks, and those still
/// in memory.
fn written(io: &str, memory: &str) -> u64 {
    let arrived = io.split_ascii_whitespace().filter_map(|word| word.strip_prefix("wbytes=")?.parse().ok());
    let waiting =
        ["file_dirty ", "file_writeback "].into_iter().filter_map(|name| number_after(memory, name));
    arrived.chain(waiting).fold(0, u64::saturating_add)
}

/// Returns the number after a name, in lines of a name and a number each.
fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_usage_is_completed_by_leader_usage() {
        let folder = tempfile::tempdir().unwrap();
        let leader = Usage { user_ms: 1, system_ms: 2, peak_memory_bytes: Some(3), written_bytes: 4 };
        assert_eq!(of_cgroup(folder.path(), leader), None);
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        put("cpu.stat", "usage_usec 5000000\nuser_usec 3000999\nsystem_usec 2000000\nnr_periods 0\n");
        let usage = Usage { user_ms: 3000, system_ms: 2000, ..leader };
        assert_eq!(of_cgroup(folder.path(), leader), Some(usage));
        put("memory.peak", "1048576\n");
        put("io.stat", "8:0 rbytes=1 wbytes=512 rios=1 wios=1\n8:16 rbytes=0 wbytes=1024 rios=0 wios=2\n");
        let usage = Usage { peak_memory_bytes: Some(1 << 20), written_bytes: 1536, ..usage };
        assert_eq!(of_cgroup(folder.path(), leader), Some(usage));
        put("memory.stat", "file 9000\nfile_dirty 4096\nfile_writeback 100\nfile_thp 0\n");
        assert_eq!(of_cgroup(folder.path(), leader).unwrap().written_bytes, 1536 + 4196);
        let usage = Usage { written_bytes: 9999, ..usage };
        assert_eq!(of_cgroup(folder.path(), Usage { written_bytes: 9999, ..leader }), Some(usage));
    }

    #[test]
    fn live_usage_of_this_process_is_measured() {
        let id = TaskId::from_u128(7);
        let own = i32::try_from(std::process::id()).unwrap();
        let usage = live(id, &[own, 0]);
        assert_eq!((usage.id, usage.processes), (id, 1));
        assert!(usage.memory_bytes > 1 << 16, "{usage:?}");
    }
}
