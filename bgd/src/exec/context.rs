//! The context that executors and channels share: output files, workers for blocking jobs, and the receivers of their
//! reports.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::helper::UnclaimedHelpers;
use super::input::unread::Unread;
use super::messages::{Facts, Reports};
use super::output::OutputFolder;
use super::output::follow::OutputWatch;
use super::processes::adopted::Adopted;
use super::silence::Waits;
use super::threads::workers::Workers;

/// Shared handles, cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub folder: Arc<OutputFolder>,
    /// Follows the growth of output files.
    pub outputs: OutputWatch,
    pub workers: Workers,
    /// Sends facts to the dispatcher.
    pub facts: Facts,
    /// Sends reports to the owner of all processes.
    pub reports: Reports,
    pub adopted: Arc<Adopted>,
    /// Helpers that were carried over an upgrade.
    pub helpers: UnclaimedHelpers,
    /// Clients that wait for other machines.
    pub waits: Waits,
    /// Counts the bytes that clients have written and tasks have not read.
    pub unread: Unread,
    /// Set when a signal asks the daemon to end; the cgroups of tasks are kept from then on, until the daemon ends.
    pub is_terminating: Arc<AtomicBool>,
    pub socket: Arc<Path>,
}

impl Context {
    /// Creates a context that follows outputs in this folder, each of at most so many bytes, and in which nothing was
    /// carried over an upgrade.
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
            helpers: UnclaimedHelpers::default(),
            waits: Waits::default(),
            unread: Unread::default(),
            is_terminating: Arc::default(),
            socket,
        }
    }
}
