//! What a run was ordered to do, as long as its processes may not have got it: a durable daemon writes it down, so that
//! the next one repeats it.

use serde::{Deserialize, Serialize};

/// An order to the processes of a run that is repeated if it may be lost. A pause is not among them, as the task says
/// that it is paused; nor is SIGKILL, as its state says that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Go on after a pause.
    Continue,
    /// End by this signal.
    End {
        /// The signal's number.
        signal: i32,
        /// The grace before SIGKILL, in milliseconds.
        grace_ms: u64,
    },
}

/// The orders that a run's executor has not reported as delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undelivered {
    /// The last one; `None` if they change nothing.
    pub last: Option<Order>,
    /// How many there are: they are delivered in their order.
    pub count: u32,
}
