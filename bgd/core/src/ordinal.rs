//! The order in which tasks were submitted.

use serde::{Deserialize, Serialize};

/// A task's number in order of submission. Orders the queue and serves as the cursor of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ordinal(pub u64);
