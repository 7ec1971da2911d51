//! The order in which tasks came.

use serde::{Deserialize, Serialize};

/// The number of a task in the order of submission. It is the order of the queue, and the cursor of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ordinal(pub u64);
