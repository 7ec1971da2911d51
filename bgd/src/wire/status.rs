//! Who this daemon is, and how it is (R08).

use std::path::PathBuf;
use std::time::Instant;

use bgd_shared::request::{ChannelStatus, DaemonStatus, Times};

use crate::config::Config;
use crate::core::Core;
use crate::os::log;

/// What never changes in a daemon's life, or nearly never.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This life.
    pub instance: String,
    /// How many tasks had been started by daemons that were killed.
    pub lost_tasks: usize,
    /// Its process id.
    pub pid: i32,
    /// Its socket.
    pub socket: PathBuf,
    /// Its state folder.
    pub state_dir: PathBuf,
    /// Its configuration file.
    pub config_path: PathBuf,
    /// Whether that was there.
    pub config_loaded: bool,
    /// What is wrong with it, if it was read since and not taken over.
    pub config_error: Option<String>,
    /// `cgroup` or `session`.
    pub tree: &'static str,
    /// Why that.
    pub tree_reason: String,
    /// When it began.
    pub started: Instant,
}

/// What others have counted.
#[derive(Debug)]
pub struct Counted {
    /// Clients that are connected.
    pub connections: usize,
    /// Subscriptions to events.
    pub subscriptions: usize,
    /// How long tasks waited for a slot.
    pub waited: Times,
    /// How long runs took.
    pub ran: Times,
    /// How the channels do.
    pub channels: Vec<ChannelStatus>,
    /// Ends of runs that were told to no channel.
    pub untold: u64,
    /// Whether the system tells of writes to outputs.
    pub outputs_watched: bool,
}

/// Less free space than this is told as a warning, in bytes.
const LITTLE_SPACE: u64 = 64 * 1024 * 1024;

/// Fewer files than this that can still be made are told as a warning.
const FEW_FILES: u64 = 16;

impl Identity {
    /// The answer to `daemon.status`.
    pub fn status(&self, core: &Core, config: &Config, counted: Counted) -> DaemonStatus {
        let summary = core.summary();
        let warnings = self.warnings(&counted);
        DaemonStatus {
            active: summary.active(),
            summary,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            memory_bytes: resident_bytes(),
            held_bytes: core.held() as u64,
            connections: counted.connections as u64,
            subscriptions: counted.subscriptions as u64,
            seq: core.seq(),
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.pid,
            socket: self.socket.display().to_string(),
            state_dir: self.state_dir.display().to_string(),
            config: self.config_path.display().to_string(),
            config_loaded: self.config_loaded,
            tree: self.tree.to_owned(),
            tree_reason: self.tree_reason.clone(),
            limits: config.wire_limits(),
            waited: counted.waited,
            ran: counted.ran,
            inboxes: core.inboxes(),
            channels: counted.channels,
            untold: counted.untold,
            warnings,
        }
    }

    fn warnings(&self, counted: &Counted) -> Vec<String> {
        let refused =
            self.config_error.iter().map(|error| format!("the configuration was not applied: {error}"));
        let mut warnings: Vec<String> = refused.collect();
        if self.lost_tasks > 0 {
            let log = self.state_dir.join(log::FILE);
            // A service manager has it, and knows where.
            let place = if log.exists() { format!("; its log is {}", log.display()) } else { String::new() };
            warnings.push(format!(
                "the previous daemon was killed: its tasks and their output are lost ({} had started){place}",
                self.lost_tasks
            ));
        }
        if !counted.outputs_watched {
            warnings.push(
                "no inotify instance or watch is left for this user, so outputs are polled 4 times a second while \
                 tasks run; raise fs.inotify.max_user_instances or max_user_watches"
                    .to_owned(),
            );
        }
        let Ok(disk) = nix::sys::statvfs::statvfs(&self.state_dir) else {
            warnings.push(format!("the state folder {} can't be looked at", self.state_dir.display()));
            return warnings;
        };
        let free = disk.blocks_available() * disk.fragment_size();
        if free < LITTLE_SPACE {
            warnings.push(format!(
                "the disk under {} is nearly full: {} left for output; free some space, or run `bgctl clear \
                 --all-sessions`",
                self.state_dir.display(),
                bytesize::ByteSize(free)
            ));
        }
        // Some filesystems make room for files as they need it and count none.
        if disk.files() > 0 && disk.files_available() < FEW_FILES {
            warnings.push(format!(
                "the disk under {} is full: only {} more files can be created (inodes); remove some, or run \
                 `bgctl clear --all-sessions`",
                self.state_dir.display(),
                disk.files_available()
            ));
        }
        warnings
    }
}

/// The daemon's resident memory in bytes; 0 if the system does not tell.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages =
        statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages * page.and_then(|page| u64::try_from(page).ok()).unwrap_or(4096)
}
