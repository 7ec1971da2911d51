//! The context that executors and channels share: output files, workers for blocking jobs, and where to report.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::adopted::Adopted;
use super::helper::Lives;
use super::messages::{Facts, Reports};
use super::output::OutputFolder;
use super::output::follow::OutputWatch;
use super::silence::Waits;
use super::unread::Unread;
use super::workers::Workers;

/// Shared handles, cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// The folder of the output files.
    pub folder: Arc<OutputFolder>,
    /// Follows the growth of output files.
    pub outputs: OutputWatch,
    /// Threads for blocking jobs.
    pub workers: Workers,
    /// Sends facts to the dispatcher.
    pub facts: Facts,
    /// Sends reports to the owner of all processes.
    pub reports: Reports,
    /// Leaders that are children of the first thread.
    pub adopted: Arc<Adopted>,
    /// Helpers that came over an upgrade.
    pub helpers: Lives,
    /// Clients that wait for other machines.
    pub waits: Waits,
    /// Counts what clients have written and tasks have not read.
    pub unread: Unread,
    /// Whether a signal has told the daemon to end: the cgroups of tasks stay until it does.
    pub is_told_to_end: Arc<AtomicBool>,
    /// The path of the daemon's socket.
    pub socket: Arc<Path>,
}

impl Context {
    /// Follows outputs in this folder, each of at most so many bytes; nothing has been carried over an upgrade.
    pub fn new(
        folder: Arc<OutputFolder>,
        limit: u64,
        workers: Workers,
        facts: Facts,
        reports: Reports,
        socket: Arc<Path>,
    ) -> Self {
        let outputs = OutputWatch::start(Arc::clone(&folder), limit, facts.clone(), workers.clone());
        Self {
            folder,
            outputs,
            workers,
            facts,
            reports,
            adopted: Arc::default(),
            helpers: Lives::default(),
            waits: Waits::default(),
            unread: Unread::default(),
            is_told_to_end: Arc::default(),
            socket,
        }
    }
}
