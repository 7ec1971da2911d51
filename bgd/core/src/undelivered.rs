//! Orders to a run that its processes may not have received: a durable daemon persists them, so that the next daemon
//! repeats them.

use serde::{Deserialize, Serialize};

/// An order to the processes of a run that is repeated if it may have been lost. A pause is not among them, as the task
/// records that it is paused; nor is SIGKILL, as the state records that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Continue after a pause.
    Continue,
    /// End by this signal.
    End {
        signal: i32,
        /// The grace before SIGKILL, in milliseconds.
        grace_ms: u64,
    },
}

/// The orders that a run's executor has not reported as delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undelivered {
    /// The last order; `None` if none of them has an effect.
    pub last: Option<Order>,
    /// How many there are: they are delivered in order.
    pub count: u32,
}
