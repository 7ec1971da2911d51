//! The daemon's identity and status (R08).

use std::path::PathBuf;
use std::time::Instant;

use bgd_shared::proc::{self, ProcessStat};
use bgd_shared::request::{ChannelStatus, DaemonStatus, DurableStatus, Times};
use bgd_shared::show;
use bgd_shared::time::Timestamp;

use crate::config::{Config, Durable};
use crate::core::Core;
use crate::journal;
use crate::os::log;
use crate::os::program::Program;
use crate::os::scheduling;

/// Values that rarely or never change during the daemon's lifetime.
#[derive(Clone, Debug)]
pub struct Identity {
    pub instance: String,
    /// How many tasks had been started by daemons that were killed.
    pub lost_tasks: usize,
    /// How many tasks are in a journal that this daemon does not use, as it is not durable.
    pub unused_tasks: u32,
    pub pid: i32,
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    pub config_path: PathBuf,
    /// Whether the configuration file existed.
    pub config_loaded: bool,
    /// The modification time of the configuration file when it was read; `None` if there was none.
    pub config_modified: Option<Timestamp>,
    /// Why the last reload was not applied, if it failed.
    pub config_error: Option<String>,
    /// How process trees are tracked: `cgroup` or `session`.
    pub tree: &'static str,
    pub tree_reason: String,
    /// The file of the daemon's program, if known.
    pub program: Option<Program>,
    pub started: Instant,
}

/// Counters from other modules.
#[derive(Debug)]
pub struct Counted {
    pub connections: usize,
    pub subscriptions: usize,
    /// The number of the latest event available to subscribers: a durable daemon publishes events once they are
    /// persisted.
    pub seq: u64,
    /// How long tasks took from submission to their first start.
    pub waited: Times,
    /// How long runs took.
    pub ran: Times,
    pub channels: Vec<ChannelStatus>,
    /// Ends of runs that were not reported to any channel.
    pub unreported: u64,
    /// Why inotify does not report writes to outputs, if so.
    pub outputs_unwatched: Option<String>,
    /// Why outputs can't be limited: those in the state folder, and those in folders shared with clusters.
    pub limit_errors: [Option<String>; 2],
    /// Problems of the journal.
    pub journal: Vec<String>,
    pub is_shutting_down: bool,
}

/// The status has a warning if less space than this is free, in bytes.
const LITTLE_SPACE: u64 = 64 * 1024 * 1024;

/// The status has a warning if fewer files than this can be created.
const FEW_FILES: u64 = 16;

impl Identity {
    /// Builds the result of `daemon.status`, without the parts that [`Self::look`] adds.
    pub fn status(&self, core: &Core, config: &Config, counted: Counted) -> DaemonStatus {
        let summary = core.summary();
        let warnings = self.warnings(&counted);
        DaemonStatus {
            active: summary.active(),
            shutting_down: counted.is_shutting_down,
            summary,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            memory_bytes: 0,
            held_bytes: core.held() as u64,
            connections: counted.connections as u64,
            subscriptions: counted.subscriptions as u64,
            seq: counted.seq,
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.pid,
            program: None,
            socket: self.socket.display().to_string(),
            state_dir: self.state_dir.display().to_string(),
            config: self.config_path.display().to_string(),
            config_loaded: self.config_loaded,
            config_modified: self.config_modified,
            private_files: config.private_files(&self.config_path),
            tree: self.tree.to_owned(),
            tree_reason: self.tree_reason.clone(),
            durable: Some(match config.durable {
                Durable::No => DurableStatus::No,
                Durable::Yes => DurableStatus::Written,
                Durable::Sync => DurableStatus::Synced,
            }),
            missing_journal: None,
            limits: config.wire_limits(),
            waited: counted.waited,
            ran: counted.ran,
            inboxes: core.inboxes(),
            default_deliver_to: config.default_deliver_to.clone(),
            channels: counted.channels,
            undelivered: counted.unreported,
            warnings,
            notes: Vec::new(),
        }
    }

    fn warnings(&self, counted: &Counted) -> Vec<String> {
        let refused =
            self.config_error.iter().map(|error| format!("the configuration was not applied: {error}"));
        let mut warnings: Vec<String> = refused.collect();
        warnings.extend(counted.journal.iter().cloned());
        warnings.extend(counted.outputs_unwatched.clone());
        let [here, shared] = &counted.limit_errors;
        if let Some(error) = shared {
            warnings.push(format!(
                "outputs in a folder shared with a cluster outgrow `limits.output_bytes`, as its disk can't drop parts of \
                 files ({error})"
            ));
        }
        if let Some(error) = here {
            warnings.push(format!(
                "outputs outgrow `limits.output_bytes`, as the disk under {} can't drop parts of files ({error}); set \
                 XDG_STATE_HOME to a local disk",
                self.state_dir.display()
            ));
        }
        warnings
    }

    /// Adds the information that is read from files. Blocks as long as a disk does: must be called on the thread for
    /// checks.
    pub fn look(&self, status: &mut DaemonStatus) {
        status.memory_bytes = proc::resident_bytes("self");
        status.program = self.program.as_ref().map(Program::status);
        if self.lost_tasks > 0 {
            let log = self.state_dir.join(log::FILE);
            // Under a service manager, the log goes to the journal, which the manager can find.
            let place = if log.exists() { format!("; its log is {}", log.display()) } else { String::new() };
            let text = format!("{}{place}", show::lost_tasks(self.lost_tasks as u64));
            status.notes.push(text.clone());
            status.warnings.push(text);
        }
        if let Some(text) = self.unused() {
            status.notes.push(text.clone());
            status.warnings.push(text);
        }
        status.warnings.extend(scheduling::warning());
        status.warnings.extend(ProcessStat::own().is_none().then(|| show::HIDDEN_PROCESSES.to_owned()));
        self.look_at_disk(&mut status.warnings);
    }

    /// Describes the tasks that only a durable daemon would show, and how to see or drop them. They were counted at the
    /// start; their folder may have been removed since.
    fn unused(&self) -> Option<String> {
        let (tasks, journal) = (show::count(self.unused_tasks, "task"), self.state_dir.join("journal"));
        let (is, them) = if self.unused_tasks == 1 { ("is", "it") } else { ("are", "them") };
        let at_least = if self.unused_tasks == journal::COUNTED { "at least " } else { "" };
        (self.unused_tasks > 0 && journal.exists()).then(|| {
            format!(
                "{at_least}{tasks} from when the daemon was durable {is} kept in {}; to see {them}, set `durable = true` and run \
                 `bgctl daemon restart`; to drop {them}, remove that folder",
                journal.display()
            )
        })
    }

    /// Adds a warning that the disk did not respond in time.
    pub fn disk_is_silent(&self, status: &mut DaemonStatus) {
        status.warnings.push(format!("the disk under {} does not answer", self.state_dir.display()));
    }

    fn look_at_disk(&self, warnings: &mut Vec<String>) {
        let Ok(disk) = nix::sys::statvfs::statvfs(&self.state_dir) else {
            return warnings.push(format!("the state folder {} can't be examined", self.state_dir.display()));
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
        // Some file systems create inodes on demand and report a total of 0.
        if disk.files() > 0 && disk.files_available() < FEW_FILES {
            warnings.push(format!(
                "the disk under {} is full: only {} can be created (inodes); remove some, or run \
                 `bgctl clear --all-sessions`",
                self.state_dir.display(),
                show::count(disk.files_available(), "more file")
            ));
        }
    }
}
