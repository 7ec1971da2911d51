//! Carrying running tasks over to a newer program in the same process.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bgd_shared::id::TaskId;

use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::client::Client;
use crate::core::Spec;
use crate::exec::carried::Carried;

/// Carries its state over an upgrade: `hold_starts`, `carry`, then `release` if the upgrade fails; in the next program
/// `resume`, then `activate`. Only [`Self::carry`] has no default, so that no executor loses its runs by oversight.
pub trait Upgradable {
    /// Holds back new starts, or releases those held back. Held starts are carried over an upgrade.
    fn hold_starts(&mut self, holds: bool) {
        let _ = holds;
    }

    /// Returns the executor's state, with every run, for the program that takes over. Changes nothing, as that program
    /// may refuse.
    ///
    /// # Errors
    /// Part of the state can't be carried now.
    fn carry(&mut self, named: &mut CarriedFds) -> Result<Carried, Obstacle>;

    /// Releases what [`Self::carry`] keeps still: the carried state is not used.
    fn release(&mut self) {}

    /// Restores the state that another program has carried over; `spec` returns the spec of a task. Starts nothing.
    ///
    /// # Errors
    /// Part of the state is missing.
    fn resume(&mut self, carried: Carried, came: &mut ReceivedFds, spec: &SpecOf<'_>) -> io::Result<()> {
        let _ = (came, spec);
        match carried {
            Carried::Nothing => Ok(()),
            Carried::Local(_) | Carried::Other(_) => Err(io::Error::other("the state of another executor")),
        }
    }

    /// Called after [`Self::resume`] once nothing can fail: restored runs are active from now on, including for the
    /// clients carried over.
    fn activate(&mut self, clients: &HashMap<u64, Arc<Client>>) {
        let _ = clients;
    }

    /// Adds the number of replies that the executor owes to each client and carries over an upgrade.
    fn count_owed(&self, clients: &mut HashMap<u64, usize>) {
        let _ = clients;
    }
}

/// Returns the spec of a task.
pub type SpecOf<'a> = dyn Fn(TaskId) -> Option<Arc<Spec>> + 'a;
