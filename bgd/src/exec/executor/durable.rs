//! Runs that outlive their daemon: on this machine if the daemon is durable, on other machines and clusters always.

use std::io;

use bgd_shared::id::TaskId;

use crate::core::{KnownRun, UsagePending};
use crate::exec::left::{HeldRun, Resumed, SparedProcesses};

/// Leaves runs to the next daemon and continues those of an earlier one. An executor whose runs end with their daemon
/// implements none of these calls.
pub trait Durable {
    /// Continues a run that a killed daemon has left. Returns the pid that its task shows.
    ///
    /// # Errors
    /// Part of the state is missing, or nothing of this executor outlives a daemon.
    fn adopt(&mut self, left: HeldRun, resumed: &Resumed) -> io::Result<i32> {
        let _ = (left, resumed);
        Err(io::Error::other("its executor leaves nothing behind"))
    }

    /// Continues a run on another machine or a cluster that a daemon or another program has left. Reports facts as for
    /// a run of its own, except those already known.
    fn adopt_elsewhere(&mut self, known: KnownRun) {
        tracing::error!(task = %known.task, "its executor runs nothing elsewhere");
    }

    /// Determines the usage of an ended run elsewhere that another daemon or program has left, and reports it like that
    /// of its own runs.
    fn collect_usage(&mut self, ended: UsagePending) {
        let _ = ended;
    }

    /// Called by a durable daemon when the end of a run, with all of its processes, has been written to the journal:
    /// the data kept about the run for the next daemon is no longer needed.
    fn end_recorded(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called by a durable daemon when a report about a run has been written to the journal, once for each
    /// [`PlaceFact::Lost`] and [`PlaceFact::Submitting`].
    ///
    /// [`PlaceFact::Lost`]: crate::core::PlaceFact::Lost
    /// [`PlaceFact::Submitting`]: crate::core::PlaceFact::Submitting
    fn report_recorded(&mut self, task: TaskId, run: u32) {
        let _ = (task, run);
    }

    /// Called when events up to this number have been sent although they can't be written to the journal, so that the
    /// number is stored where it survives a kill; called with `None` once they are written.
    fn sent_unrecorded(&mut self, seq: Option<u64>) {
        let _ = seq;
    }

    /// Called when a durable daemon starts with an incomplete record of the previous one's runs: the holder of runs for
    /// the next daemon must not claim to hold all of them until [`Self::caught_up`].
    fn mark_incomplete(&mut self) {}

    /// Called with 0 when the outcome of everything that the previous daemon started is in the journal; and where this
    /// executor called [`Facts::ask_caught_up`], with the number from that call, once everything reported before it is
    /// in the journal.
    ///
    /// [`Facts::ask_caught_up`]: crate::exec::messages::Facts::ask_caught_up
    fn caught_up(&mut self, mark: u64) {
        let _ = mark;
    }

    /// Called when a durable daemon ends and leaves its tasks running, here and elsewhere, and again once the executor
    /// is no longer busy: adds what identifies their processes.
    fn leave(&mut self, left: &mut SparedProcesses) {
        let _ = left;
    }
}
